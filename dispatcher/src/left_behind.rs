//! Next requests of which the daemon before this one had acknowledged a part to their clients when it died: nobody has
//! that any more, nor will a client say it again. Its connection ends, rather than to hang, once it has had all that it
//! was going to have (docs/protocol/handoff.md 5.5b). First ones are the workers' to miss: their clients have been said
//! nothing else.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use trapeze_core::flow::FlowKey;
use trapeze_core::seq::ServerSeq;
use trapeze_datapath::abi::{Flow, FlowState, MARK_HELD, MARK_TUNNEL};

use crate::records::Record;

/// What is left behind, as far as it has been looked for. The sweep's first round through all records finds it.
#[derive(Debug)]
pub struct LeftBehind {
    /// CLOCK_MONOTONIC: what was held then, this daemon does not have.
    since: Duration,
    /// There is something, or may be.
    is_there: AtomicBool,
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    /// The first round is over.
    is_complete: bool,
    /// Of these the beginning has come (again) since.
    found: HashSet<FlowKey>,
    missing: HashMap<FlowKey, Missing>,
}

#[derive(Clone, Copy, Debug)]
struct Missing {
    epoch: u32,
    next: u32,
    /// What its client has had of the answers before, and since when.
    heard: ServerSeq,
    at: Duration,
}

impl LeftBehind {
    /// By who begins at `now` (CLOCK_MONOTONIC).
    pub fn by_the_daemon_before(now: Duration) -> Self {
        Self {
            since: now,
            is_there: AtomicBool::new(true),
            seen: Mutex::default(),
        }
    }

    /// A worker has what comes next of that flow, from its boundary on.
    pub fn found(&self, key: &FlowKey) {
        if !self.is_there.load(Ordering::Relaxed) {
            return;
        }
        let mut seen = self.seen.lock().expect("no thread panics with it");
        seen.missing.remove(key);
        if !seen.is_complete {
            seen.found.insert(*key);
        }
    }

    /// Is the beginning of what comes next of that flow missing, or may it be?
    pub fn is_without(&self, key: &FlowKey) -> bool {
        self.is_there.load(Ordering::Relaxed) && {
            let seen = self.seen.lock().expect("no thread panics with it");
            seen.missing.contains_key(key) || !(seen.is_complete || seen.found.contains(key))
        }
    }

    /// The sweep has been through all records.
    pub fn round_is_over(&self) {
        if !self.is_there.load(Ordering::Relaxed) {
            return;
        }
        let mut seen = self.seen.lock().expect("no thread panics with it");
        seen.is_complete = true;
        seen.found = HashSet::new();
        self.is_there
            .store(!seen.missing.is_empty(), Ordering::Relaxed);
    }

    /// Is a part of what that client asks missing, and has it had nothing for `patience`? Its epoch, then.
    pub fn is_missing(
        &self,
        key: &FlowKey,
        flow: &Flow,
        now: Duration,
        patience: Duration,
    ) -> Option<u32> {
        if !self.is_there.load(Ordering::Relaxed) {
            return None;
        }
        let mut seen = self.seen.lock().expect("no thread panics with it");
        let known = seen.missing.get(key).copied();
        if known.is_none() && (seen.is_complete || seen.found.contains(key)) {
            return None;
        }
        let Some(record) = Record::read(flow).filter(|_| lacks_something(flow)) else {
            seen.missing.remove(key);
            return None;
        };
        let as_now = Missing {
            epoch: record.epoch,
            next: flow.next,
            heard: record.heard,
            at: now.max(self.since),
        };
        let Some(known) = known else {
            seen.missing.insert(*key, as_now);
            return None;
        };
        if (known.epoch, known.next) != (as_now.epoch, as_now.next) {
            seen.missing.remove(key);
        } else if known.heard != as_now.heard {
            seen.missing.insert(*key, as_now);
        } else if now.saturating_sub(known.at) > patience {
            seen.missing.remove(key);
            return Some(known.epoch);
        }
        None
    }
}

/// Has the client said more than its owner was given, and is a daemon at work there? Others may have what one of several
/// dispatchers had.
fn lacks_something(flow: &Flow) -> bool {
    flow.version == 0
        && flow.state == FlowState::Established as u32
        && flow.marks & (MARK_HELD | MARK_TUNNEL) == MARK_HELD
        && flow.last_seq.wrapping_sub(flow.next).cast_signed() > 0
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use trapeze_datapath::abi::Pod;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(10);

    fn key(port: u16) -> FlowKey {
        let of = |last, port| SocketAddr::from((Ipv4Addr::new(10, 0, 0, last), port));
        FlowKey {
            client: of(1, port),
            vip: of(2, 80),
        }
    }

    fn held() -> Flow {
        Flow {
            state: FlowState::Established as u32,
            marks: MARK_HELD,
            next: 1000,
            last_seq: 1100,
            last_ack: 5000,
            server_isn: 4000,
            ..Flow::zeroed()
        }
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn who_waits_for_what_nobody_has_is_found_once() {
        let left = LeftBehind::by_the_daemon_before(at(100));
        let ask = |flow: &Flow, now| left.is_missing(&key(1), flow, at(now), PATIENCE).is_some();
        assert!(left.is_without(&key(1)), "nobody has looked");
        assert!(!ask(&held(), 101));
        left.round_is_over();
        assert!(left.is_without(&key(1)));
        assert!(!left.is_without(&key(2)));
        assert!(!ask(&held(), 111));
        // Its answer goes on.
        let heard = Flow {
            last_ack: 6000,
            ..held()
        };
        assert!(!ask(&heard, 112));
        assert!(!ask(&heard, 122));
        assert!(ask(&heard, 123));
        assert!(!ask(&heard, 200));
    }

    #[test]
    fn what_comes_again_or_lacks_nothing_is_left() {
        let others = [
            Flow {
                last_seq: 1000,
                ..held()
            },
            Flow { marks: 0, ..held() },
            Flow {
                marks: MARK_HELD | MARK_TUNNEL,
                ..held()
            },
            Flow {
                state: FlowState::ClientFin as u32,
                ..held()
            },
            Flow {
                version: 1,
                ..held()
            },
        ];
        let left = LeftBehind::by_the_daemon_before(at(100));
        for flow in others {
            for now in [101, 150] {
                assert_eq!(left.is_missing(&key(1), &flow, at(now), PATIENCE), None);
            }
        }
        // Before the sweep comes there, and after.
        left.found(&key(2));
        assert!(!left.is_without(&key(2)));
        assert_eq!(left.is_missing(&key(2), &held(), at(101), PATIENCE), None);
        assert_eq!(left.is_missing(&key(3), &held(), at(101), PATIENCE), None);
        left.found(&key(3));
        // It has been read, and another one waits.
        assert_eq!(left.is_missing(&key(4), &held(), at(101), PATIENCE), None);
        let later = Flow {
            next: 1050,
            ..held()
        };
        assert_eq!(left.is_missing(&key(4), &later, at(102), PATIENCE), None);
        left.round_is_over();
        for port in [2, 3, 4, 5] {
            for now in [103, 150] {
                let missing = left.is_missing(&key(port), &held(), at(now), PATIENCE);
                assert_eq!(missing, None, "{port}");
            }
        }
    }
}
