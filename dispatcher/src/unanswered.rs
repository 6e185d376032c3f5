//! Requests that a backend was given and has not answered, of pools that want them retried:
//! kept here until it has (docs/protocol/retry.md), for their clients have been told that they have
//! come. And how many may be retried at once: a backend that dies under load takes many with it, and
//! those that are left are not to be given all of them on top of their own (Envoy's retry budgets:
//! a fifth of the requests under way, three at least).

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Duration;

use trapeze_core::flow::FlowKey;
use trapeze_core::intake::{Assembly, Inserted};
use trapeze_core::seq::{ClientSeq, ServerSeq};

/// Bytes that one worker keeps; what is more is not retried.
const BYTES_MAX: usize = 64 << 20;
/// Bytes of one request, head and body.
pub const REQUEST_MAX: usize = 16 << 20;
/// Of an entry, besides its bytes.
const ENTRY: usize = 192;
/// How often the owners are looked at,
const LOOK_INTERVAL: Duration = Duration::from_millis(20);
/// and all that is kept.
const FORGET_INTERVAL: Duration = Duration::from_millis(250);
/// Those that wait for their turn, while others have theirs.
const TURN_INTERVAL: Duration = Duration::from_millis(5);
/// An owner is asked no oftener where an answer begins.
const ASK_INTERVAL: Duration = Duration::from_millis(5);
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
    /// What has come of it.
    pub request: Assembly,
    /// More is to come.
    pub is_copied: bool,
    /// Its client waits for an interim answer before it sends that (RFC 9110 §10.1.1): then the answer begins
    /// behind that one.
    pub expects: bool,
    /// When its owner was asked last where that is.
    pub asked_at: Duration,
    /// Its owner's server has closed, and its client has not heard that.
    pub is_closed: bool,
}

/// What has become of bytes that are to be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copied {
    Kept,
    /// There was no room: nothing is kept of that request any more.
    TooMuch,
    /// Nothing was kept of it.
    Unknown,
}

/// Its owner's slot, and its flow.
pub type Orphan = (u32, FlowKey, Given);

/// All of a worker: of a flow the latest one.
#[derive(Debug, Default)]
pub struct Unanswered {
    /// With their owners' slots.
    requests: HashMap<FlowKey, (u32, Given)>,
    /// Of owners that have died.
    orphans: VecDeque<(Duration, u32, FlowKey, Given)>,
    bytes: usize,
    /// Those of the requests that have been retried.
    retried: HashSet<FlowKey>,
    look_at: Duration,
    forget_at: Duration,
    turn_at: Duration,
}

impl Unanswered {
    /// An owner is given it. False: there is no room.
    pub fn keep(&mut self, slot: u32, key: FlowKey, given: Given) -> bool {
        self.forget(&key);
        let size = given.size();
        if self.bytes + size > BYTES_MAX {
            return false;
        }
        self.bytes += size;
        if given.retries > 0 {
            self.retried.insert(key);
        }
        self.requests.insert(key, (slot, given));
        true
    }

    /// More of it has come, and goes to its owner.
    pub fn copy(
        &mut self,
        slot: u32,
        key: &FlowKey,
        epoch: u32,
        (seq, bytes): (ClientSeq, &[u8]),
    ) -> Copied {
        if let Some(given) = self.copied(slot, key, epoch) {
            let before = given.request.bytes();
            let is_in = given.take_in(seq, bytes);
            self.bytes += given.request.bytes() - before;
            if is_in && self.bytes <= BYTES_MAX {
                return Copied::Kept;
            }
            self.forget(key);
            return Copied::TooMuch;
        }
        // Its owner is only taken for dead, perhaps, and has that.
        let mut orphans = self.orphans.iter_mut().enumerate();
        let orphan = orphans.find(|(_, (_, _, its, given))| its == key && given.epoch == epoch);
        match orphan {
            Some((at, (.., given))) if given.is_copied => match given.take_in(seq, bytes) {
                true => Copied::Kept,
                false => {
                    self.orphans.remove(at);
                    Copied::TooMuch
                }
            },
            _ => Copied::Unknown,
        }
    }

    /// Is its owner to be asked whether what the client has heard, up to `heard`, was only an interim answer?
    pub fn is_to_be_asked(
        &mut self,
        now: Duration,
        (slot, key): (u32, &FlowKey),
        epoch: u32,
        heard: ServerSeq,
    ) -> bool {
        let given = self.copied(slot, key, epoch);
        given.is_some_and(|given| {
            let is_to_be_asked =
                given.expects && given.end.before(heard) && now >= given.asked_at + ASK_INTERVAL;
            if is_to_be_asked {
                given.asked_at = now;
            }
            is_to_be_asked
        })
    }

    /// So it was: its answer begins there.
    pub fn begins_at(&mut self, slot: u32, key: &FlowKey, epoch: u32, end: ServerSeq) {
        if let Some((its, given)) = self.requests.get_mut(key)
            && (*its, given.expects, given.epoch) == (slot, true, epoch)
        {
            given.end = given.end.later_of(end);
        }
    }

    /// What is kept of a flow's latest request.
    pub fn get(&self, slot: u32, key: &FlowKey) -> Option<&Given> {
        let (its, given) = self.requests.get(key)?;
        (*its == slot).then_some(given)
    }

    /// Its owner's server has closed on it: another one's turn comes. False: it is not kept.
    pub fn is_orphan(&mut self, now: Duration, (slot, key): (u32, &FlowKey), epoch: u32) -> bool {
        let is_known = |(_, _, its, given): &(Duration, u32, FlowKey, Given)| {
            its == key && given.epoch == epoch
        };
        if self.orphans.iter().any(is_known) {
            return true;
        }
        let is_its = self
            .get(slot, key)
            .is_some_and(|given| given.epoch == epoch);
        let Some((slot, given)) = is_its.then(|| self.forget(key)).flatten() else {
            return false;
        };
        let given = Given {
            is_closed: true,
            ..given
        };
        self.orphans.push_back((now, slot, *key, given));
        // Its client is waiting, and so is whoever asks it.
        self.turn_at = now;
        true
    }

    /// Is it to be another one's, when its owner has died?
    pub fn keeps(&self, slot: u32, key: &FlowKey, epoch: u32) -> bool {
        let mut orphans = self.orphans.iter();
        self.get(slot, key)
            .is_some_and(|given| given.epoch == epoch)
            || orphans.any(|(_, _, its, given)| its == key && given.epoch == epoch)
    }

    /// It ends there. True: all of it is kept from now on.
    pub fn ends(&mut self, slot: u32, key: &FlowKey, epoch: u32, next: ClientSeq) -> bool {
        let Some(given) = self.copied(slot, key, epoch) else {
            return false;
        };
        let before = given.request.bytes();
        let is_whole = given.ends(next);
        let after = given.request.bytes();
        self.bytes -= before - after;
        is_whole
    }

    fn copied(&mut self, slot: u32, key: &FlowKey, epoch: u32) -> Option<&mut Given> {
        let (its, given) = self.requests.get_mut(key)?;
        (*its == slot && given.is_copied && given.epoch == epoch).then_some(given)
    }

    /// It has been given to so many backends before.
    pub fn retried(&mut self, slot: u32, key: &FlowKey, retries: u8) {
        if let Some((its, given)) = self.requests.get_mut(key)
            && *its == slot
        {
            given.retries = retries;
            self.retried.insert(*key);
        }
    }

    fn forget(&mut self, key: &FlowKey) -> Option<(u32, Given)> {
        let (slot, given) = self.requests.remove(key)?;
        self.leaves(key, &given);
        Some((slot, given))
    }

    /// It is none of the requests any more.
    fn leaves(&mut self, key: &FlowKey, given: &Given) {
        self.bytes -= given.size();
        // Another one may have its turn.
        if self.retried.remove(key) {
            self.turn_at = Duration::ZERO;
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.requests.len() + self.orphans.len()
    }

    /// When [`Self::look`] may find something.
    pub fn next_due(&self) -> Option<Duration> {
        match (self.orphans.is_empty(), self.requests.is_empty()) {
            (true, true) => None,
            (true, false) => Some(self.look_at),
            (false, _) => Some(self.look_at.min(self.turn_at)),
        }
    }

    /// Those that may be retried now, whose owner's server `is_dead`, while `asking` others are about to be;
    /// and those that wait no more. What is not `unanswered` any more is forgotten.
    pub fn look(
        &mut self,
        now: Duration,
        asking: usize,
        is_dead: impl Fn(u32, &FlowKey, &Given) -> bool,
        unanswered: impl Fn(u32, &FlowKey, &Given) -> bool,
    ) -> (Vec<Orphan>, Vec<Orphan>) {
        if now >= self.look_at {
            self.look_at = now + LOOK_INTERVAL;
            self.look_for_orphans(now, is_dead, &unanswered);
        }
        if self.orphans.is_empty() || now < self.turn_at {
            return (Vec::new(), Vec::new());
        }
        self.turn_at = now + TURN_INTERVAL;
        let share = ((self.len() + asking) / SHARE).max(LEAST);
        if share < asking + self.retried.len() + self.orphans.len() {
            self.forget_retried(&unanswered);
        }
        let room = share.saturating_sub(asking + self.retried.len());
        let mut lost = Vec::new();
        let mut due = Vec::new();
        while let Some((since, ..)) = self.orphans.front() {
            let waits_no_more = now.saturating_sub(*since) > PATIENCE;
            if due.len() >= room && !waits_no_more {
                break;
            }
            let Some((_, slot, key, given)) = self.orphans.pop_front() else {
                break;
            };
            match waits_no_more || given.has_had_enough() {
                true => lost.push((slot, key, given)),
                false => due.push((slot, key, given)),
            }
        }
        (due, lost)
    }

    /// Those whose owner has died; and what is not unanswered any more is forgotten now and then.
    fn look_for_orphans(
        &mut self,
        now: Duration,
        is_dead: impl Fn(u32, &FlowKey, &Given) -> bool,
        unanswered: impl Fn(u32, &FlowKey, &Given) -> bool,
    ) {
        let forgets = now >= self.forget_at;
        if forgets {
            self.forget_at = now + FORGET_INTERVAL;
        }
        let left = self.requests.extract_if(|key, (slot, given)| {
            is_dead(*slot, key, given) || forgets && !unanswered(*slot, key, given)
        });
        for (key, (slot, given)) in left.collect::<Vec<_>>() {
            self.leaves(&key, &given);
            if unanswered(slot, &key, &given) {
                self.orphans.push_back((now, slot, key, given));
                self.turn_at = now;
            }
        }
    }

    /// Others wait for the turn of those that have been retried, and answered since.
    fn forget_retried(&mut self, unanswered: impl Fn(u32, &FlowKey, &Given) -> bool) {
        let is_over = |key: &&FlowKey| {
            let request = self.requests.get(key);
            request.is_none_or(|(slot, given)| !unanswered(*slot, key, given))
        };
        for key in self
            .retried
            .iter()
            .filter(is_over)
            .copied()
            .collect::<Vec<_>>()
        {
            self.forget(&key);
        }
    }
}

impl Given {
    /// Has it been given to as many backends as it may?
    pub fn has_had_enough(&self) -> bool {
        self.retries + 1 >= ATTEMPTS
    }

    fn size(&self) -> usize {
        ENTRY + self.request.bytes()
    }

    /// Behind its last byte, or what has come of it without a gap.
    pub fn next(&self) -> ClientSeq {
        self.start + self.request.contiguous().len() as u32
    }

    /// Bytes at `seq`. False: it has become too long, or too scattered.
    fn take_in(&mut self, seq: ClientSeq, bytes: &[u8]) -> bool {
        let at = self.start.distance_to(seq);
        // What lies before is the request's before.
        let early = at.min(0).unsigned_abs() as usize;
        let bytes = bytes.get(early..).unwrap_or(&[]);
        let at = at.max(0).unsigned_abs() as usize;
        bytes.is_empty()
            || at + bytes.len() <= REQUEST_MAX
                && self.request.insert(at, bytes) != Inserted::Scattered
    }

    /// Nothing of it lies behind that. False: not all of it has come.
    pub fn ends(&mut self, next: ClientSeq) -> bool {
        let is_whole = next.at_or_before(self.next());
        if is_whole {
            let length = self.start.distance_to(next);
            self.request.split_off(length.unsigned_abs() as usize);
            self.is_copied = false;
        }
        is_whole
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
            request: Assembly::of(b"GET"),
            is_copied: false,
            expects: false,
            asked_at: Duration::ZERO,
            is_closed: false,
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
        let dead = |slot: u32, _: &FlowKey, _: &Given| slot == 1;
        let (due, lost) = unanswered.look(NOW, 0, dead, all);
        assert_eq!((due.len(), lost.len()), (20, 0));
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
        let (due, _) = unanswered.look(NOW, 0, |_, _, _| true, all);
        assert_eq!(due.len(), 3);
        let late = NOW + PATIENCE + LOOK_INTERVAL;
        let (due, lost) = unanswered.look(late, 3, |_, _, _| true, all);
        assert_eq!((due.len(), lost.len(), unanswered.len()), (0, 2, 0));
        assert_eq!(unanswered.next_due(), None);
    }

    #[test]
    fn whose_server_has_closed_waits_for_no_clock() {
        let mut unanswered = Unanswered::default();
        let dead = |_: u32, _: &FlowKey, _: &Given| false;
        for port in 0..8 {
            unanswered.keep(1, key(port), given(0));
        }
        assert_eq!(unanswered.look(NOW, 0, dead, all), (vec![], vec![]));
        let soon = NOW + Duration::from_millis(1);
        for port in 0..5 {
            assert!(unanswered.is_orphan(soon, (1, &key(port)), 1));
        }
        assert_eq!(unanswered.next_due(), Some(soon));
        let (due, _) = unanswered.look(soon, 0, dead, all);
        assert_eq!(due.len(), 3);
        for (_, key, given) in due {
            unanswered.keep(2, key, given);
            unanswered.retried(2, &key, 1);
        }
        // Those are under way.
        let next = unanswered.next_due().expect("two wait");
        assert_eq!(next, soon + TURN_INTERVAL);
        assert_eq!(unanswered.look(next, 0, dead, all).0, []);
        // One of them is answered.
        let next = next + TURN_INTERVAL;
        let but_0 = |_: u32, its: &FlowKey, _: &Given| *its != key(0);
        let (due, _) = unanswered.look(next, 0, dead, but_0);
        assert_eq!(due.len(), 1);
        unanswered.keep(2, key(3), given(0));
        unanswered.retried(2, &key(3), 1);
        // Another one's client asks for more, of whomever.
        unanswered.keep(3, key(1), given(0));
        assert!(unanswered.next_due().is_some_and(|due| due <= next));
        assert_eq!(unanswered.look(next, 0, dead, all).0.len(), 1);
    }

    #[test]
    fn of_a_flow_the_latest_request_is_kept() {
        let mut unanswered = Unanswered::default();
        unanswered.keep(1, key(1), given(0));
        unanswered.keep(2, key(1), given(0));
        assert_eq!((unanswered.len(), unanswered.bytes), (1, given(0).size()));
        assert_eq!(unanswered.get(1, &key(1)), None);
        assert!(!unanswered.is_orphan(NOW, (1, &key(1)), 1));
        assert!(unanswered.is_orphan(NOW, (2, &key(1)), 1));
        assert_eq!(unanswered.bytes, 0);
    }

    #[test]
    fn what_has_been_answered_is_forgotten_and_not_retried() {
        let mut unanswered = Unanswered::default();
        unanswered.keep(1, key(1), given(0));
        unanswered.keep(1, key(2), given(0));
        let only_2 = |_: u32, k: &FlowKey, _: &Given| *k == key(2);
        let (due, _) = unanswered.look(NOW, 0, |_, _, _| false, only_2);
        assert_eq!((due.len(), unanswered.len()), (0, 1));
        unanswered.keep(1, key(1), given(0));
        let (due, _) = unanswered.look(NOW + LOOK_INTERVAL, 0, |_, _, _| true, only_2);
        assert_eq!(due, [(1, key(2), given(0))]);
        assert_eq!((unanswered.len(), unanswered.bytes), (0, 0));
    }

    #[test]
    fn a_request_is_kept_as_it_comes_and_to_its_end() {
        let mut unanswered = Unanswered::default();
        let begun = Given {
            is_copied: true,
            ..given(0)
        };
        let start = begun.start;
        unanswered.keep(1, key(1), begun.clone());
        let mut copy = |at: u32, bytes: &[u8]| unanswered.copy(1, &key(1), 1, (start + at, bytes));
        // Out of order, twice, and with what belongs to the request before and to the next one.
        assert_eq!(copy(8, b"!next"), Copied::Kept);
        assert_eq!(copy(u32::MAX, b".GET bo"), Copied::Kept);
        assert!(!unanswered.ends(1, &key(1), 1, start + 9));
        assert_eq!(
            unanswered.copy(1, &key(1), 2, (start + 6, b"??")),
            Copied::Unknown
        );
        assert_eq!(
            unanswered.copy(1, &key(1), 1, (start + 6, b"dy")),
            Copied::Kept
        );
        assert!(unanswered.ends(1, &key(1), 1, start + 9));
        assert_eq!(
            unanswered.copy(1, &key(1), 1, (start + 9, b"next")),
            Copied::Unknown
        );
        let (due, _) = unanswered.look(NOW, 0, |_, _, _| true, all);
        assert_eq!(due[0].2.request.contiguous(), b"GET body!");
        assert_eq!(unanswered.bytes, 0);
        // It waits for its turn, and its owner is not dead.
        let mut unanswered = Unanswered::default();
        for port in 0..5 {
            unanswered.keep(1, key(port), begun.clone());
        }
        let (due, _) = unanswered.look(NOW, 0, |_, _, _| true, all);
        let waiting = (0..5)
            .map(key)
            .find(|key| due.iter().all(|(_, its, _)| its != key));
        let waiting = waiting.expect("one waits");
        assert_eq!(
            unanswered.copy(1, &waiting, 1, (start + 3, b"!")),
            Copied::Kept
        );
        let far = (start + REQUEST_MAX as u32, &b"?"[..]);
        assert_eq!(unanswered.copy(1, &waiting, 1, far), Copied::TooMuch);
        assert_eq!(unanswered.copy(1, &waiting, 1, far), Copied::Unknown);
    }

    #[test]
    fn a_request_has_no_more_than_four_backends() {
        let mut unanswered = Unanswered::default();
        unanswered.keep(1, key(1), given(2));
        unanswered.keep(2, key(2), given(3));
        let (due, lost) = unanswered.look(NOW, 0, |_, _, _| true, all);
        assert_eq!(due, [(1, key(1), given(2))]);
        assert_eq!(lost, [(2, key(2), given(3))]);
    }
}
