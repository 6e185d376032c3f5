//! What this dispatcher keeps of answers in progress, so that another backend can go on with
//! them when theirs dies: soft state [MIGRATE01 §4.1], which its owner's agent renews, and
//! which is forgotten when it does not (docs/protocol/takeover.md §2). What comes of it is
//! the worker's.

use std::collections::HashMap;
use std::time::Duration;

use trapeze_core::flow::FlowKey;
use trapeze_core::seq::{ClientSeq, ServerSeq};
use trapeze_core::takeover::{AnswerHead, CACHE_TIMEOUT, SoftState};

/// Bytes that one worker keeps; what is more is not protected.
const BYTES_MAX: usize = 64 << 20;
/// Of an entry, besides its heads.
const ENTRY: usize = 256;
/// How often the owners are looked at,
const LOOK_INTERVAL: Duration = Duration::from_millis(20);
/// and all that is kept.
const FORGET_INTERVAL: Duration = Duration::from_secs(1);

/// An answer in progress.
#[derive(Clone, Debug)]
pub struct Kept {
    pub state: SoftState,
    /// When its owner has said so last, by CLOCK_MONOTONIC.
    pub said: Duration,
    /// What its owner was given behind the answer's own request.
    pub ahead: Ahead,
    /// A planned move of it is not tried before.
    pub stays_until: Duration,
}

/// Requests that were sent ahead of an answer's end. Their client has been told that they have
/// come, and will not send them again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ahead {
    pub requests: u16,
    pub bytes: Vec<u8>,
}

/// Those that another dispatcher keeps, as far as it has told.
#[derive(Clone, Debug, Default)]
pub struct AheadTold {
    pieces: Vec<u8>,
}

impl AheadTold {
    /// A piece. All of them, if it is the last; what does not follow upon those before is said again.
    pub fn add(&mut self, requests: u16, (at, whole): (u32, u32), piece: &[u8]) -> Option<Ahead> {
        if at == 0 {
            self.pieces.clear();
        }
        if at as usize != self.pieces.len() || self.pieces.len() + piece.len() > BYTES_MAX / 64 {
            return None;
        }
        self.pieces.extend_from_slice(piece);
        (self.pieces.len() == whole as usize).then(|| Ahead {
            requests,
            bytes: std::mem::take(&mut self.pieces),
        })
    }
}

/// All that are known, by their owners.
#[derive(Debug, Default)]
pub struct Support {
    by_slot: HashMap<u32, HashMap<FlowKey, Kept>>,
    bytes: usize,
    look_at: Duration,
    forget_at: Duration,
}

impl Support {
    /// An owner says it. False: there is no room.
    pub fn keep(&mut self, slot: u32, key: FlowKey, mut kept: Kept) -> bool {
        if let Some(before) = self.forget(slot, &key)
            && (before.state.epoch, before.state.answer) == (kept.state.epoch, kept.state.answer)
        {
            kept.ahead = before.ahead;
            kept.stays_until = before.stays_until;
        }
        let size = kept.size();
        if self.bytes + size > BYTES_MAX {
            return false;
        }
        self.bytes += size;
        self.by_slot.entry(slot).or_default().insert(key, kept);
        true
    }

    /// All answers, by owner and flow.
    pub fn all(&self) -> Vec<(u32, FlowKey)> {
        let all = self.by_slot.iter();
        all.flat_map(|(&slot, answers)| answers.keys().map(move |key| (slot, *key)))
            .collect()
    }

    /// The answer of the flow's owner before that epoch.
    pub fn before(&self, key: &FlowKey, epoch: u32) -> Option<(u32, Kept)> {
        let before = |kept: &&Kept| kept.state.epoch.wrapping_add(1) == epoch;
        let mut all = self.by_slot.iter();
        all.find_map(|(&slot, answers)| Some((slot, answers.get(key).filter(before)?.clone())))
    }

    /// What is known of an answer of that owner.
    pub fn get(&self, slot: u32, key: &FlowKey) -> Option<&Kept> {
        self.by_slot.get(&slot)?.get(key)
    }

    /// Its owner is given one more request. False: there is no room.
    pub fn ask_ahead(&mut self, slot: u32, key: &FlowKey, request: &[u8]) -> bool {
        let answers = self.by_slot.get_mut(&slot);
        let Some(kept) = answers.and_then(|answers| answers.get_mut(key)) else {
            return false;
        };
        let fits = self.bytes + request.len() <= BYTES_MAX;
        if fits {
            self.bytes += request.len();
            kept.ahead.requests += 1;
            kept.ahead.bytes.extend_from_slice(request);
        }
        fits
    }

    /// Another dispatcher says what the answer's owner in that epoch was given ahead.
    pub fn ahead_is(&mut self, key: &FlowKey, epoch: u32, ahead: Ahead) {
        let mut all = self.by_slot.values_mut();
        let found = all.find_map(|answers| answers.get_mut(key).filter(|k| k.state.epoch == epoch));
        if let Some(kept) = found {
            self.bytes = self.bytes + ahead.bytes.len() - kept.ahead.bytes.len();
            kept.ahead = ahead;
        }
    }

    /// Answers of these owners that may be tried to be moved now, and are not `moving`; `most` at most.
    pub fn movable(
        &self,
        now: Duration,
        slots: &[u32],
        most: usize,
        moving: impl Fn(&FlowKey) -> bool,
    ) -> Vec<(u32, FlowKey)> {
        let of_slots = slots
            .iter()
            .filter_map(|slot| Some((*slot, self.by_slot.get(slot)?)));
        let all = of_slots.flat_map(|(slot, answers)| answers.iter().map(move |one| (slot, one)));
        all.filter(|(_, (key, kept))| kept.stays_until <= now && !moving(key))
            .map(|(slot, (key, _))| (slot, *key))
            .take(most)
            .collect()
    }

    /// A planned move of it is not tried before.
    pub fn stays_until(&mut self, slot: u32, key: &FlowKey, until: Duration) {
        let answers = self.by_slot.get_mut(&slot);
        if let Some(kept) = answers.and_then(|answers| answers.get_mut(key)) {
            kept.stays_until = until;
        }
    }

    /// It is of no use any more.
    pub fn forget(&mut self, slot: u32, key: &FlowKey) -> Option<Kept> {
        let kept = self.by_slot.get_mut(&slot)?.remove(key)?;
        self.bytes -= kept.size();
        Some(kept)
    }

    /// How many there are of flows that are `kept` here.
    pub fn count(&self, kept: impl Fn(&FlowKey) -> bool) -> usize {
        let all = self.by_slot.values().flat_map(HashMap::keys);
        all.filter(|key| kept(key)).count()
    }

    /// What they take of the memory there is for them.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// When [`Self::orphans`] may find something.
    pub fn next_due(&self) -> Option<Duration> {
        (self.bytes > 0).then_some(self.look_at)
    }

    /// Those whose owner's server `is_dead`; they are forgotten here, as are those that nobody has
    /// renewed in time.
    pub fn orphans(
        &mut self,
        now: Duration,
        is_dead: impl Fn(u32, &FlowKey) -> bool,
    ) -> Vec<(u32, FlowKey, Kept)> {
        if self.bytes == 0 || now < self.look_at {
            return Vec::new();
        }
        self.look_at = now + LOOK_INTERVAL;
        let forgets = now >= self.forget_at;
        if forgets {
            self.forget_at = now + FORGET_INTERVAL;
        }
        let mut orphans = Vec::new();
        for (&slot, answers) in &mut self.by_slot {
            let dead = answers.extract_if(|key, _| is_dead(slot, key));
            orphans.extend(dead.map(|(key, kept)| (slot, key, kept)));
            if !forgets {
                continue;
            }
            answers.retain(|_, kept| {
                let is_fresh = now.saturating_sub(kept.said) < CACHE_TIMEOUT;
                if !is_fresh {
                    self.bytes -= kept.size();
                }
                is_fresh
            });
        }
        self.bytes -= orphans
            .iter()
            .map(|(_, _, kept)| kept.size())
            .sum::<usize>();
        // An owner that died this long ago has not been renewing what it has.
        orphans.retain(|(_, _, kept)| now.saturating_sub(kept.said) < CACHE_TIMEOUT);
        orphans
    }
}

impl Kept {
    /// Its owner has just said so.
    pub fn new(now: Duration, state: SoftState) -> Self {
        Self {
            state,
            said: now,
            ahead: Ahead::default(),
            stays_until: Duration::ZERO,
        }
    }

    fn size(&self) -> usize {
        ENTRY + self.state.request.len() + self.state.head.len() + self.ahead.bytes.len()
    }

    /// The boundary behind the answer's own request, where the flow's is at `next`.
    pub fn boundary(&self, next: ClientSeq) -> ClientSeq {
        next + (self.ahead.bytes.len() as u32).wrapping_neg()
    }

    /// Has a client had all of it that has acknowledged so much?
    pub fn is_over_at(&self, heard: ServerSeq) -> bool {
        let whole = AnswerHead::parse(&self.state.head).map(|h| h.len as u64 + h.length);
        self.state.before(heard) >= whole
    }

    /// Its owner's timestamp clock by now, and a little more (RFC 7323: in milliseconds).
    pub fn clock(&self, now: Duration) -> u32 {
        /// As long as an UPDATE may have been on its way.
        const AHEAD_MS: u32 = 100;
        let since = now.saturating_sub(self.said).as_millis() as u32;
        self.state.clock.wrapping_add(since).wrapping_add(AHEAD_MS)
    }
}

#[cfg(test)]
mod tests {
    use trapeze_core::seq::ServerSeq;

    use super::*;

    fn kept(said_s: u64, bytes: usize) -> Kept {
        Kept {
            state: SoftState {
                epoch: 1,
                answer: 1,
                offset: 0,
                at: ServerSeq::new(0),
                clock: 1000,
                request: vec![0; bytes],
                head: Vec::new(),
            },
            said: Duration::from_secs(said_s),
            ahead: Ahead::default(),
            stays_until: Duration::ZERO,
        }
    }

    fn key(port: u16) -> FlowKey {
        FlowKey {
            client: ([192, 0, 2, 1], port).into(),
            vip: ([10, 77, 0, 100], 80).into(),
        }
    }

    #[test]
    fn the_dead_ones_answers_are_found_once() {
        let mut support = Support::default();
        for port in 1..=4 {
            assert!(support.keep(u32::from(port % 2), key(port), kept(100, 10)));
        }
        let now = Duration::from_secs(101);
        let mut dead = support.orphans(now, |slot, _| slot == 1);
        dead.sort_by_key(|(_, key, _)| *key);
        let found: Vec<_> = dead.iter().map(|(slot, key, _)| (*slot, *key)).collect();
        assert_eq!(found, [(1, key(1)), (1, key(3))]);
        assert!(
            support
                .orphans(now + LOOK_INTERVAL, |slot, _| slot == 1)
                .is_empty()
        );
        assert_eq!(support.count(|_| true), 2);
    }

    #[test]
    fn what_is_not_renewed_is_forgotten() {
        let mut support = Support::default();
        support.keep(1, key(1), kept(100, 10));
        support.keep(1, key(2), kept(109, 10));
        let now = Duration::from_secs(100) + CACHE_TIMEOUT;
        let found = support.orphans(now, |_, _| true);
        assert_eq!(found.len(), 1, "a dead one's, too");
        support.keep(1, key(1), kept(100, 10));
        assert!(support.orphans(now * 2, |_, _| false).is_empty());
        assert_eq!((support.count(|_| true), support.bytes), (0, 0));
    }

    #[test]
    fn memory_has_an_end() {
        let mut support = Support::default();
        let size = 1 << 20;
        let fits = (0..100).filter(|&port| support.keep(1, key(port), kept(1, size)));
        assert_eq!(fits.count(), BYTES_MAX / (size + ENTRY));
        assert!(support.keep(1, key(1), kept(2, size)), "in its own place");
        support.forget(1, &key(0));
        assert!(support.keep(1, key(99), kept(2, size)));
    }

    #[test]
    fn requests_ahead_are_kept_with_their_answer_alone() {
        let mut support = Support::default();
        support.keep(1, key(1), kept(100, 10));
        let before = support.bytes;
        assert!(support.ask_ahead(1, &key(1), b"GET") && support.ask_ahead(1, &key(1), b"PUT"));
        assert!(!support.ask_ahead(1, &key(2), b"GET") && !support.ask_ahead(2, &key(1), b"GET"));
        support.keep(1, key(1), kept(103, 10));
        let there = support.get(1, &key(1)).unwrap();
        assert_eq!(
            (there.ahead.requests, &there.ahead.bytes[..]),
            (2, &b"GETPUT"[..])
        );
        assert_eq!(
            there.boundary(ClientSeq::new(3)),
            ClientSeq::new(u32::MAX - 2)
        );
        assert_eq!(support.bytes, before + 6);
        let mut next = kept(104, 10);
        next.state.answer += 1;
        support.keep(1, key(1), next);
        assert_eq!(support.get(1, &key(1)).unwrap().ahead, Ahead::default());
        support.forget(1, &key(1));
        assert_eq!(support.bytes, 0);
    }

    #[test]
    fn what_is_not_to_be_moved_stays_until_its_time_over_all_that_is_said_of_it() {
        let mut support = Support::default();
        let second = Duration::from_secs(1);
        for port in 1..=3 {
            support.keep(1, key(port), kept(100, 10));
        }
        let movable = |support: &Support, at_s: u64, most| {
            let mut found = support.movable(second * at_s as u32, &[0, 1], most, |k| *k == key(3));
            found.sort_by_key(|(_, key)| *key);
            found
        };
        assert_eq!(movable(&support, 100, 9), [(1, key(1)), (1, key(2))]);
        assert_eq!(movable(&support, 100, 1).len(), 1);
        support.stays_until(1, &key(1), second * 102);
        support.keep(1, key(1), kept(101, 10));
        assert_eq!(movable(&support, 101, 9), [(1, key(2))]);
        assert_eq!(movable(&support, 102, 9), [(1, key(1)), (1, key(2))]);
        support.stays_until(1, &key(1), Duration::MAX);
        let mut next = kept(103, 10);
        next.state.answer += 1;
        support.keep(1, key(1), next);
        assert_eq!(movable(&support, 103, 9).len(), 2, "another answer");
        assert_eq!(support.movable(second * 103, &[2], 9, |_| false), []);
    }

    #[test]
    fn a_clock_goes_on() {
        let kept = kept(100, 0);
        assert_eq!(kept.clock(Duration::from_secs(103)), 4100);
    }

    #[test]
    fn what_another_one_keeps_ahead_is_whole_or_nothing() {
        let mut told = AheadTold::default();
        assert!(told.add(2, (0, 6), b"GET").is_none());
        assert!(told.add(2, (4, 6), b"UT").is_none(), "a piece is missing");
        let ahead = told.add(2, (3, 6), b"PUT").unwrap();
        assert_eq!((ahead.requests, &ahead.bytes[..]), (2, &b"GETPUT"[..]));
        assert!(told.pieces.is_empty());
        // All of it again, with more.
        assert!(told.add(3, (0, 9), b"GETP").is_none());
        let anew = told.add(3, (0, 3), b"GET");
        assert!(anew.is_some(), "the first piece begins anew");

        let mut support = Support::default();
        support.keep(1, key(1), kept(100, 10));
        let before = support.bytes;
        support.ahead_is(&key(1), 2, ahead.clone());
        assert_eq!(support.bytes, before, "of another epoch");
        support.ahead_is(&key(1), 1, ahead.clone());
        support.ahead_is(&key(1), 1, ahead.clone());
        assert_eq!(support.bytes, before + 6);
        let (slot, there) = support.before(&key(1), 2).expect("its owner before");
        assert_eq!((slot, there.ahead), (1, ahead));
        assert!(support.before(&key(1), 3).is_none());
    }
}
