//! Requests that a backend was given and has not answered, of pools that want them retried:
//! kept here until it has (docs/protocol/retry.md), for their clients have been told that they have
//! come. And how many may be retried at once: a backend that dies under load takes many with it, and
//! those that are left are not to be given all of them on top of their own (Envoy's retry budgets:
//! a fifth of the requests under way, three at least).

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use trapeze_core::flow::FlowKey;
use trapeze_core::seq::{ClientSeq, ServerSeq};

/// Bytes that one worker keeps; what is more is not retried.
const BYTES_MAX: usize = 64 << 20;
/// Of an entry, besides its bytes.
const ENTRY: usize = 192;
/// How often the owners are looked at,
const LOOK_INTERVAL: Duration = Duration::from_millis(20);
/// and all that is kept.
const FORGET_INTERVAL: Duration = Duration::from_millis(250);
/// Retries under way at once: a fifth of the requests under way, but so many at least.
const SHARE: usize = 5;
const LEAST: usize = 3;
/// A request waits so long for its turn to be retried.
const PATIENCE: Duration = Duration::from_secs(10);
/// One is given to so many backends (HAProxy's `retries`, and the first).
const ATTEMPTS: u8 = 4;

/// A request that its owner has not answered, as far as is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Given {
    /// Of the owner's setup,
    pub epoch: u32,
    /// as whose so manieth request it was given it.
    pub requests: u32,
    /// Its first byte,
    pub start: ClientSeq,
    /// and that of its answer.
    pub end: ServerSeq,
    /// The owner's timestamp clock when it was given the request (RFC 7323).
    pub clock: u32,
    /// When that was.
    pub at: Duration,
    /// How many backends had it before.
    pub retries: u8,
    pub request: Vec<u8>,
}

/// All of a worker, by their owners.
#[derive(Debug, Default)]
pub struct Unanswered {
    by_slot: HashMap<u32, HashMap<FlowKey, Given>>,
    /// Of owners that have died.
    orphans: VecDeque<(Duration, u32, FlowKey, Given)>,
    bytes: usize,
    /// How many of those that are kept have been retried.
    retried: usize,
    look_at: Duration,
    forget_at: Duration,
}

impl Unanswered {
    /// An owner is given it. False: there is no room.
    pub fn keep(&mut self, slot: u32, key: FlowKey, given: Given) -> bool {
        self.forget(slot, &key);
        let size = given.size();
        if self.bytes + size > BYTES_MAX {
            return false;
        }
        self.bytes += size;
        self.retried += usize::from(given.retries > 0);
        self.by_slot.entry(slot).or_default().insert(key, given);
        true
    }

    /// It has been given to so many backends before.
    pub fn retried(&mut self, slot: u32, key: &FlowKey, retries: u8) {
        if let Some(mut given) = self.forget(slot, key) {
            given.retries = retries;
            self.keep(slot, *key, given);
        }
    }

    fn forget(&mut self, slot: u32, key: &FlowKey) -> Option<Given> {
        let given = self.by_slot.get_mut(&slot)?.remove(key)?;
        self.bytes -= given.size();
        self.retried -= usize::from(given.retries > 0);
        Some(given)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.by_slot.values().map(HashMap::len).sum::<usize>() + self.orphans.len()
    }

    /// When [`Self::look`] may find something.
    pub fn next_due(&self) -> Option<Duration> {
        (self.bytes > 0 || !self.orphans.is_empty()).then_some(self.look_at)
    }

    /// Those that may be retried now, whose owner's server `is_dead`, while `asking` others are about to be;
    /// and how many wait no more. What is not `unanswered` any more is forgotten.
    pub fn look(
        &mut self,
        now: Duration,
        asking: usize,
        is_dead: impl Fn(u32, &FlowKey) -> bool,
        unanswered: impl Fn(u32, &FlowKey, &Given) -> bool,
    ) -> (Vec<(u32, FlowKey, Given)>, usize) {
        if now < self.look_at || self.next_due().is_none() {
            return (Vec::new(), 0);
        }
        self.look_at = now + LOOK_INTERVAL;
        let forgets = now >= self.forget_at;
        if forgets {
            self.forget_at = now + FORGET_INTERVAL;
        }
        let mut gone = Vec::new();
        for (&slot, requests) in &mut self.by_slot {
            let left = requests.extract_if(|key, given| {
                is_dead(slot, key) || forgets && !unanswered(slot, key, given)
            });
            gone.extend(left.map(|(key, given)| (slot, key, given)));
        }
        for (slot, key, given) in gone {
            self.bytes -= given.size();
            self.retried -= usize::from(given.retries > 0);
            if unanswered(slot, &key, &given) {
                self.orphans.push_back((now, slot, key, given));
            }
        }
        let all = self.len() + asking;
        let room = (all / SHARE)
            .max(LEAST)
            .saturating_sub(asking + self.retried);
        let mut lost = 0;
        let mut due = Vec::new();
        while let Some((since, ..)) = self.orphans.front() {
            let waits_no_more = now.saturating_sub(*since) > PATIENCE;
            if due.len() >= room && !waits_no_more {
                break;
            }
            let Some((_, slot, key, given)) = self.orphans.pop_front() else {
                break;
            };
            match waits_no_more || given.retries + 1 >= ATTEMPTS {
                true => lost += 1,
                false => due.push((slot, key, given)),
            }
        }
        (due, lost)
    }
}

impl Given {
    fn size(&self) -> usize {
        ENTRY + self.request.len()
    }

    /// Behind its last byte.
    pub fn next(&self) -> ClientSeq {
        self.start + self.request.len() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(retries: u8) -> Given {
        Given {
            epoch: 1,
            requests: 1,
            start: ClientSeq::new(u32::MAX),
            end: ServerSeq::new(5),
            clock: 7,
            at: Duration::ZERO,
            retries,
            request: b"GET".to_vec(),
        }
    }

    fn key(port: u16) -> FlowKey {
        FlowKey {
            client: ([192, 0, 2, 1], port).into(),
            vip: ([10, 77, 0, 100], 80).into(),
        }
    }

    fn all(_: u32, _: &FlowKey, _: &Given) -> bool {
        true
    }

    const NOW: Duration = Duration::from_secs(100);

    #[test]
    fn no_more_than_a_fifth_is_retried_at_once_and_all_are_in_the_end() {
        let mut unanswered = Unanswered::default();
        for port in 0..100 {
            unanswered.keep(u32::from(port % 2), key(port), given(0));
        }
        let dead = |slot: u32, _: &FlowKey| slot == 1;
        let (due, lost) = unanswered.look(NOW, 0, dead, all);
        assert_eq!((due.len(), lost), (20, 0));
        // They are asked for, and then another one's.
        let soon = NOW + LOOK_INTERVAL;
        assert_eq!(unanswered.look(soon, 20, dead, all).0, []);
        for (_, key, given) in due {
            unanswered.keep(2, key, given);
            unanswered.retried(2, &key, 1);
        }
        assert_eq!(unanswered.look(soon + LOOK_INTERVAL, 0, dead, all).0, []);
        // They are answered.
        let later = NOW + FORGET_INTERVAL;
        let (due, _) = unanswered.look(later, 0, dead, |slot, _, _| slot != 2);
        assert_eq!(due.len(), 16, "a fifth of those that are left");
    }

    #[test]
    fn few_are_retried_whatever_their_share() {
        let mut unanswered = Unanswered::default();
        for port in 0..5 {
            unanswered.keep(1, key(port), given(0));
        }
        let (due, _) = unanswered.look(NOW, 0, |_, _| true, all);
        assert_eq!(due.len(), 3);
        let late = NOW + PATIENCE + LOOK_INTERVAL;
        let (due, lost) = unanswered.look(late, 3, |_, _| true, all);
        assert_eq!((due.len(), lost, unanswered.len()), (0, 2, 0));
        assert_eq!(unanswered.next_due(), None);
    }

    #[test]
    fn what_has_been_answered_is_forgotten_and_not_retried() {
        let mut unanswered = Unanswered::default();
        unanswered.keep(1, key(1), given(0));
        unanswered.keep(1, key(2), given(0));
        let only_2 = |_: u32, k: &FlowKey, _: &Given| *k == key(2);
        let (due, _) = unanswered.look(NOW, 0, |_, _| false, only_2);
        assert_eq!((due.len(), unanswered.len()), (0, 1));
        unanswered.keep(1, key(1), given(0));
        let (due, _) = unanswered.look(NOW + LOOK_INTERVAL, 0, |_, _| true, only_2);
        assert_eq!(due, [(1, key(2), given(0))]);
        assert_eq!((unanswered.len(), unanswered.bytes), (0, 0));
    }

    #[test]
    fn a_request_has_no_more_than_four_backends() {
        let mut unanswered = Unanswered::default();
        unanswered.keep(1, key(1), given(2));
        unanswered.keep(2, key(2), given(3));
        let (due, lost) = unanswered.look(NOW, 0, |_, _| true, all);
        assert_eq!((due, lost), (vec![(1, key(1), given(2))], 1));
    }
}
