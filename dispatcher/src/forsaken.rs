//! Backends whose idle flows went elsewhere while they were silent (docs/protocol/handoff.md
//! §9). Such a backend may only have been cut off: its sockets stand then, and its servers may
//! say something there. When it is heard of again, it is told what it has no more.

use std::collections::HashMap;
use std::net::SocketAddrV4;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Words that are kept, for all backends together; what is more is not said.
const MOST: usize = 65_536;
/// Each is said so often, once for every heartbeat that is answered: one may be lost.
const TIMES: u8 = 3;

/// What is to be said to which slot.
#[derive(Debug, Default)]
pub struct Forsaken {
    words: Mutex<HashMap<u32, Vec<Word>>>,
    /// How many there are: without a lock, the usual answer.
    count: AtomicUsize,
}

#[derive(Debug)]
struct Word {
    to: SocketAddrV4,
    datagram: Vec<u8>,
    times: u8,
}

impl Forsaken {
    /// The backend has a flow no more. `datagram` tells it so.
    pub fn remember(&self, slot: u32, to: SocketAddrV4, datagram: Vec<u8>) {
        if self.count.load(Ordering::Relaxed) >= MOST {
            return;
        }
        self.count.fetch_add(1, Ordering::Relaxed);
        let mut words = self.words.lock().expect("no thread panics with it");
        words.entry(slot).or_default().push(Word {
            to,
            datagram,
            times: 0,
        });
    }

    /// The backend has been heard of: what it is to be told.
    pub fn to_be_told(&self, slot: u32) -> Vec<(SocketAddrV4, Vec<u8>)> {
        if self.count.load(Ordering::Relaxed) == 0 {
            return Vec::new();
        }
        let mut words = self.words.lock().expect("no thread panics with it");
        let Some(due) = words.get_mut(&slot) else {
            return Vec::new();
        };
        let said = due.iter_mut().map(|word| {
            word.times += 1;
            (word.to, word.datagram.clone())
        });
        let said = said.collect();
        let before = due.len();
        due.retain(|word| word.times < TIMES);
        (self.count).fetch_sub(before - due.len(), Ordering::Relaxed);
        said
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_word_is_said_three_times_to_its_backend() {
        let forsaken = Forsaken::default();
        let to = "10.0.0.1:6081".parse().unwrap();
        forsaken.remember(7, to, vec![1]);
        assert_eq!(forsaken.to_be_told(8), []);
        for _ in 0..TIMES {
            assert_eq!(forsaken.to_be_told(7), [(to, vec![1])]);
        }
        assert_eq!(forsaken.to_be_told(7), []);
        assert_eq!(forsaken.count.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn there_is_an_end_to_what_is_kept() {
        let forsaken = Forsaken::default();
        let to = "10.0.0.1:6081".parse().unwrap();
        for _ in 0..MOST + 10 {
            forsaken.remember(1, to, Vec::new());
        }
        assert_eq!(forsaken.to_be_told(1).len(), MOST);
    }
}
