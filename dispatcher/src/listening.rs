//! Up to when the workers have heard what backends say, and the vigil what other dispatchers do. Where
//! one waits for a processor, or is at work on what came before, answers lie in its queue: who sent them
//! is not silent, and what they say is not known yet.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use trapeze_datapath::udp::Ear;

/// Of all workers, or of the vigil alone. Times are milliseconds of CLOCK_MONOTONIC.
pub struct Listening(Vec<Listener>);

#[derive(Default)]
struct Listener {
    ear: OnceLock<Ear>,
    is_busy: AtomicBool,
    until_ms: AtomicU64,
}

impl Listening {
    pub fn new(workers: usize) -> Self {
        Self(
            std::iter::repeat_with(Listener::default)
                .take(workers)
                .collect(),
        )
    }

    /// A worker's socket.
    pub fn open(&self, worker: usize, ear: Ear) {
        let _ = self.0[worker].ear.set(ear);
    }

    /// A worker has taken datagrams from its socket, and not looked at them yet.
    pub fn begin(&self, worker: usize) {
        self.0[worker].is_busy.store(true, Ordering::Release);
    }

    /// It has, and if that says so, they were all that had come until then.
    pub fn end(&self, worker: usize, all_until_ms: Option<u64>) {
        let listener = &self.0[worker];
        if let Some(until_ms) = all_until_ms {
            listener.until_ms.fetch_max(until_ms, Ordering::Relaxed);
        }
        listener.is_busy.store(false, Ordering::Release);
    }

    /// Those that wait for something to come have heard all.
    pub fn look(&self, now_ms: u64) {
        for listener in &self.0 {
            let has_come = |ear: &Ear| ear.has_unread().unwrap_or(true);
            let unread = listener.ear.get().is_none_or(has_come);
            // In this order: who has taken the last one has begun.
            if !unread && !listener.is_busy.load(Ordering::Acquire) {
                listener.until_ms.fetch_max(now_ms, Ordering::Relaxed);
            }
        }
    }

    /// All that had come by then has been heard.
    pub fn until_ms(&self) -> u64 {
        let all = self.0.iter().map(|l| l.until_ms.load(Ordering::Relaxed));
        all.min().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddrV4};

    use trapeze_datapath::udp::{LONGEST_WAIT, UdpSocket};

    use super::*;

    #[test]
    fn who_waits_has_heard_all_that_has_come() {
        let address = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 46_081);
        let mut worker = UdpSocket::bind(address, 0, 1).expect("a socket");
        let listening = Listening::new(1);
        listening.look(5);
        assert_eq!(listening.until_ms(), 0, "it has no socket yet");
        listening.open(0, worker.ear().expect("it is open"));
        listening.look(10);
        assert_eq!(listening.until_ms(), 10);
        let other = std::net::UdpSocket::bind("127.0.0.1:0").expect("another");
        other.send_to(&[1], address).expect("it is sent");
        listening.look(20);
        assert_eq!(listening.until_ms(), 10, "something has come");
        assert_eq!(worker.receive(LONGEST_WAIT).expect("it is there"), 1);
        listening.begin(0);
        listening.look(30);
        assert_eq!(listening.until_ms(), 10, "it has not been looked at");
        listening.end(0, Some(25));
        assert_eq!(listening.until_ms(), 25);
        listening.look(40);
        assert_eq!(listening.until_ms(), 40);
    }
}
