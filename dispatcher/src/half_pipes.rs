//! Older owners (docs/protocol/handoff.md 6): who still sends what lies before a flow's newest one's range. A record
//! names the last of them alone. What is known of the others is here, for as long as their clients have not had
//! all of their ranges; what becomes of it when one of them dies is the worker's.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use trapeze_core::flow::FlowKey;
use trapeze_core::seq::{ClientSeq, ServerSeq};

/// Flows that are known at once; of what is more the last older owner is, by their records.
const MOST: usize = 65_536;

/// An owner that has given its flow up before the client had all of its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Older {
    pub slot: u32,
    /// In what epoch, and before which request.
    pub epoch: u32,
    pub start: ClientSeq,
    /// Where its range ends.
    pub end: ServerSeq,
}

/// All of a dispatcher.
#[derive(Debug, Default)]
pub struct HalfPipes {
    /// With the cookie of the connection; the oldest first.
    all: Mutex<HashMap<FlowKey, (ServerSeq, Vec<Older>)>>,
    /// How many there are: without a lock, the usual answer.
    count: AtomicUsize,
}

impl HalfPipes {
    /// The flow of that connection has one more, and its client has acknowledged so much.
    pub fn note(&self, key: &FlowKey, cookie: ServerSeq, older: Older, heard: ServerSeq) {
        let mut all = self.all.lock().expect("no thread panics with it");
        if all.len() >= MOST && !all.contains_key(key) {
            return;
        }
        let (known, chain) = all.entry(*key).or_insert((cookie, Vec::new()));
        if *known != cookie {
            (*known, *chain) = (cookie, Vec::new());
        }
        chain.retain(|one| heard.before(one.end) && one.end != older.end);
        chain.push(older);
        self.count.store(all.len(), Ordering::Relaxed);
    }

    /// The older owners of that connection whose ranges its client has not had to their ends, the oldest first.
    pub fn unfinished(&self, key: &FlowKey, cookie: ServerSeq, heard: ServerSeq) -> Vec<Older> {
        let mut chain = self.of(key, cookie);
        chain.retain(|one| heard.before(one.end));
        chain.sort_by_key(|one| heard.distance_to(one.end));
        chain
    }

    /// All that are known of that connection.
    pub fn of(&self, key: &FlowKey, cookie: ServerSeq) -> Vec<Older> {
        let all = self.all.lock().expect("no thread panics with it");
        let chain = all.get(key).filter(|(known, _)| *known == cookie);
        chain.map_or(Vec::new(), |(_, chain)| chain.clone())
    }

    /// Flows that are to be looked at.
    pub fn keys(&self, which: impl Fn(&FlowKey) -> bool) -> Vec<FlowKey> {
        if self.is_empty() {
            return Vec::new();
        }
        let all = self.all.lock().expect("no thread panics with it");
        all.keys().copied().filter(which).collect()
    }

    pub fn forget(&self, key: &FlowKey) {
        let mut all = self.all.lock().expect("no thread panics with it");
        all.remove(key);
        self.count.store(all.len(), Ordering::Relaxed);
    }

    pub fn is_empty(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn older(slot: u32, end: u32) -> Older {
        Older {
            slot,
            epoch: slot,
            start: ClientSeq::new(slot),
            end: ServerSeq::new(end),
        }
    }

    #[test]
    fn a_chain_is_known_until_it_is_heard_out() {
        let half_pipes = HalfPipes::default();
        let key = FlowKey {
            client: "192.0.2.1:40000".parse().unwrap(),
            vip: "10.77.0.100:80".parse().unwrap(),
        };
        let (cookie, start) = (ServerSeq::new(1), ServerSeq::new(u32::MAX - 100));
        assert!(half_pipes.is_empty());
        half_pipes.note(&key, cookie, older(1, 50), start);
        half_pipes.note(&key, cookie, older(2, 90), start);
        // Whoever was to come after it could not.
        let again = Older {
            epoch: 7,
            ..older(2, 90)
        };
        half_pipes.note(&key, cookie, again, start);
        let unfinished = |heard| half_pipes.unfinished(&key, cookie, ServerSeq::new(heard));
        assert_eq!(unfinished(u32::MAX), [older(1, 50), again]);
        assert_eq!(unfinished(50), [again]);
        assert_eq!(unfinished(90), []);
        assert_eq!(half_pipes.keys(|_| true), [key]);
        assert_eq!(half_pipes.of(&key, ServerSeq::new(2)), []);
        half_pipes.note(&key, cookie, older(3, 200), ServerSeq::new(90));
        assert_eq!(half_pipes.of(&key, cookie), [older(3, 200)]);
        // Its client uses the port again.
        half_pipes.note(&key, ServerSeq::new(2), older(4, 10), ServerSeq::new(0));
        assert_eq!(half_pipes.of(&key, cookie), []);
        half_pipes.forget(&key);
        assert!(half_pipes.is_empty());
    }
}
