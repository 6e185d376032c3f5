//! What this dispatcher keeps of answers in progress, so that another backend can go on with
//! them when theirs dies: soft state [MIGRATE01 §4.1], which its owner's agent renews, and
//! which is forgotten when it does not (docs/protocol/takeover.md §2). What comes of it is
//! the worker's.

use std::collections::HashMap;
use std::time::Duration;

use trapeze_core::flow::FlowKey;
use trapeze_core::head::{self, Expected, Followed, follow_head};
use trapeze_core::seq::{ClientSeq, ServerSeq};
use trapeze_core::takeover::{SoftState, VAST, VAST_IS_SLOW};

/// Bytes that one worker keeps; what is more is not protected.
const BYTES_MAX: usize = 64 << 20;
/// Of an entry, besides its heads.
const ENTRY: usize = 256;
/// How often the owners are looked at,
const LOOK_INTERVAL: Duration = Duration::from_millis(20);
/// where the longest answers are that are slow,
const SLOW_INTERVAL: Duration = Duration::from_millis(400);
/// and all that is kept.
const REVIEW_INTERVAL: Duration = Duration::from_secs(1);

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
    /// It could not be taken over, and that is counted; it is tried again when its owner has said so later
    /// than that.
    pub given_up: Option<Duration>,
    /// When it was last known where it is,
    marked: Duration,
    /// and whether it has come far between two such times.
    was_fast: bool,
    /// Where it was gone on with last, in bytes, and how often there, one after the other.
    pub resumed: Option<(u64, u32)>,
    /// Its client has had it, or another owner has the flow.
    is_over: bool,
}

/// How an answer that is kept stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    InProgress,
    /// It is kept all the same: what it says of its flow may be of use.
    Over,
    Gone,
}

/// Requests that were sent ahead of an answer's end. Their client has been told that they have
/// come, and will not send them again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ahead {
    pub requests: u16,
    pub bytes: Vec<u8>,
}

impl Ahead {
    /// Each of them. None: where one of them ends is not known.
    pub fn each(&self) -> Option<Vec<&[u8]>> {
        let mut left = &self.bytes[..];
        let mut all = Vec::new();
        while !left.is_empty() {
            let inspected = head::inspect(left, left.len() + 1);
            let Followed::To {
                at,
                expected: Expected::Head,
            } = follow_head(&inspected, left)
            else {
                return None;
            };
            let (request, behind) = left.split_at_checked(at)?;
            all.push(request);
            left = behind;
        }
        (all.len() == usize::from(self.requests)).then_some(all)
    }

    /// What is behind the first so many of them.
    fn behind(&self, first: usize) -> Option<Self> {
        let each = self.each()?;
        let behind = each.get(first..)?;
        Some(Self {
            requests: behind.len() as u16,
            bytes: behind.concat(),
        })
    }
}

/// All that are known, by their owners.
#[derive(Debug, Default)]
pub struct Support {
    by_slot: HashMap<u32, HashMap<FlowKey, Kept>>,
    /// Those that are so long that numbers alone do not say where a byte lies, and when it is looked how far
    /// they have come.
    vast: HashMap<(u32, FlowKey), Duration>,
    bytes: usize,
    look_at: Duration,
    review_at: Duration,
}

impl Support {
    /// An owner says it. False: there is no room.
    pub fn keep(&mut self, slot: u32, key: FlowKey, mut kept: Kept) -> bool {
        let before = self.forget(slot, &key);
        let before = before.filter(|before| before.state.epoch == kept.state.epoch);
        // One that was asked ahead of it is answered by now.
        if let Some(before) = &before
            && let Some(number) = before.number_ahead(kept.state.answer)
            && let Some(ahead) = before.ahead.behind(number)
        {
            kept.ahead = ahead;
        }
        if let Some(before) = before.filter(|one| one.state.answer == kept.state.answer) {
            kept.ahead = before.ahead;
            kept.stays_until = before.stays_until;
            kept.resumed = kept.resumed.or(before.resumed);
            kept.given_up = before.given_up;
            let step = kept.state.offset.saturating_sub(before.state.offset);
            kept.was_fast = before.was_fast || step > VAST_IS_SLOW;
        }
        let size = kept.size();
        if self.bytes + size > BYTES_MAX {
            return false;
        }
        self.bytes += size;
        if kept.is_vast() {
            self.vast.entry((slot, key)).or_default();
        } else {
            self.vast.remove(&(slot, key));
        }
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

    /// Has that owner, in that epoch, begun an answer that can be gone on with?
    pub fn has_begun(&self, slot: u32, key: &FlowKey, epoch: u32) -> bool {
        (self.get(slot, key)).is_some_and(|kept| kept.state.epoch == epoch)
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

    /// Whose answers are kept.
    pub fn owners(&self) -> Vec<u32> {
        let owners = self
            .by_slot
            .iter()
            .filter(|(_, answers)| !answers.is_empty());
        owners.map(|(&slot, _)| slot).collect()
    }

    /// Answers of these owners that may be tried to be moved now, and are `wanted` elsewhere; `most` at most.
    pub fn movable(
        &self,
        now: Duration,
        slots: &[u32],
        most: usize,
        wanted: impl Fn(u32, &FlowKey) -> bool,
    ) -> Vec<(u32, FlowKey)> {
        let of_slots = slots
            .iter()
            .filter_map(|slot| Some((*slot, self.by_slot.get(slot)?)));
        let all = of_slots.flat_map(|(slot, answers)| answers.iter().map(move |one| (slot, one)));
        all.filter(|(slot, (key, kept))| kept.stays_until <= now && wanted(*slot, key))
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

    /// How many are in progress, as far as is known, of flows that are `kept` here.
    pub fn count(&self, kept: impl Fn(&FlowKey) -> bool) -> usize {
        let all = self.by_slot.values().flatten();
        all.filter(|(key, answer)| !answer.is_over && kept(key))
            .count()
    }

    /// What they take of the memory there is for them.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// When [`Self::orphans`] may find something.
    pub fn next_due(&self) -> Option<Duration> {
        (self.bytes > 0).then_some(self.look_at)
    }

    /// Those whose owner's server `is_dead`, and of which something was said within the `cache_timeout`; they are
    /// forgotten here.
    pub fn orphans(
        &mut self,
        now: Duration,
        cache_timeout: Duration,
        is_dead: impl Fn(u32, &FlowKey, &Kept) -> bool,
    ) -> Vec<(u32, FlowKey, Kept)> {
        if self.bytes == 0 || now < self.look_at {
            return Vec::new();
        }
        self.look_at = now + LOOK_INTERVAL;
        let mut orphans = Vec::new();
        for (&slot, answers) in &mut self.by_slot {
            let dead = answers.extract_if(|key, kept| {
                kept.given_up != Some(kept.said) && is_dead(slot, key, kept)
            });
            orphans.extend(dead.map(|(key, kept)| (slot, key, kept)));
        }
        self.bytes -= orphans
            .iter()
            .map(|(_, _, kept)| kept.size())
            .sum::<usize>();
        // An owner that died this long ago has not been renewing what it has.
        orphans.retain(|(_, _, kept)| now.saturating_sub(kept.said) < cache_timeout);
        orphans
    }

    /// Sees how far the longest have come, as their clients have `acknowledged` to the owner in that epoch.
    pub fn follow(
        &mut self,
        now: Duration,
        acknowledged: impl Fn(u32, &FlowKey, u32) -> Option<ServerSeq>,
    ) {
        let by_slot = &mut self.by_slot;
        self.vast.retain(|(slot, key), look_at| {
            if *look_at > now {
                return true;
            }
            let Some(kept) = by_slot.get_mut(slot).and_then(|all| all.get_mut(key)) else {
                return false;
            };
            let heard = acknowledged(*slot, key, kept.state.epoch);
            let step = heard.map_or(0, |heard| kept.follow(now, heard));
            *look_at = now
                + match step > VAST_IS_SLOW {
                    true => LOOK_INTERVAL,
                    false => SLOW_INTERVAL,
                };
            true
        });
    }

    /// Forgets those that nobody has renewed within the `cache_timeout`, or that are gone; now and then.
    pub fn review(
        &mut self,
        now: Duration,
        cache_timeout: Duration,
        standing: impl Fn(&FlowKey, &Kept) -> Standing,
    ) {
        if self.bytes == 0 || now < self.review_at {
            return;
        }
        self.review_at = now + REVIEW_INTERVAL;
        for answers in self.by_slot.values_mut() {
            answers.retain(|key, kept| {
                let is_fresh = now.saturating_sub(kept.said) < cache_timeout;
                let standing = match kept.is_over {
                    true => Standing::Over,
                    false => standing(key, kept),
                };
                kept.is_over = standing != Standing::InProgress;
                let is_kept = is_fresh && standing != Standing::Gone;
                if !is_kept {
                    self.bytes -= kept.size();
                }
                is_kept
            });
        }
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
            given_up: None,
            marked: now,
            was_fast: false,
            resumed: None,
            is_over: false,
        }
    }

    /// Which of those that were sent ahead that owner's answer is of, from 1.
    fn number_ahead(&self, answer: u16) -> Option<usize> {
        let number = answer.wrapping_sub(self.state.answer);
        (1..=self.ahead.requests)
            .contains(&number)
            .then_some(number.into())
    }

    /// The request of that owner's answer of that number, as far as it is known by this.
    pub fn request_of(&self, answer: u16) -> Option<&[u8]> {
        match self.number_ahead(answer) {
            Some(number) => self.ahead.each()?.get(number - 1).copied(),
            None => (answer == self.state.answer).then_some(&self.state.request),
        }
    }

    fn is_vast(&self) -> bool {
        self.state.whole().is_none_or(|bytes| bytes >= VAST)
    }

    /// Its client has acknowledged so much. How many bytes more than was known.
    pub fn follow(&mut self, now: Duration, heard: ServerSeq) -> u64 {
        let step = self.state.at.distance_to(heard);
        if step <= 0 {
            return 0;
        }
        let step = u64::from(step.unsigned_abs());
        self.mark(now, self.state.offset + step, heard);
        step
    }

    /// It is known that the byte behind so many has that number.
    pub fn mark(&mut self, now: Duration, offset: u64, at: ServerSeq) {
        self.was_fast |= offset.saturating_sub(self.state.offset) > VAST_IS_SLOW;
        (self.state.offset, self.state.at) = (offset, at);
        self.marked = now;
    }

    /// Numbers may have come round since it was known where it is.
    pub fn is_lost(&self, now: Duration) -> bool {
        /// A death is seen by then, and a fast one would have come far enough to be said again.
        const LATE: Duration = Duration::from_secs(5);
        let since = now.saturating_sub(self.marked);
        self.is_vast() && self.was_fast && since > LATE
    }

    /// Another one is to go on with it behind so many bytes. How often one has from there.
    pub fn resume_at(&mut self, had: u64) -> u32 {
        let times = match self.resumed {
            Some((at, times)) if at == had => times + 1,
            _ => 1,
        };
        self.resumed = Some((had, times));
        times
    }

    /// That one did not begin.
    pub fn did_not_resume(&mut self) {
        if let Some((_, times)) = &mut self.resumed {
            *times = times.saturating_sub(1);
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
        self.state.before(heard) >= self.state.whole()
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

    const CACHE: Duration = Duration::from_secs(10);

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
            given_up: None,
            marked: Duration::from_secs(said_s),
            was_fast: false,
            resumed: None,
            is_over: false,
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
        let mut dead = support.orphans(now, CACHE, |slot, _, _| slot == 1);
        dead.sort_by_key(|(_, key, _)| *key);
        let found: Vec<_> = dead.iter().map(|(slot, key, _)| (*slot, *key)).collect();
        assert_eq!(found, [(1, key(1)), (1, key(3))]);
        assert!(
            support
                .orphans(now + LOOK_INTERVAL, CACHE, |slot, _, _| slot == 1)
                .is_empty()
        );
        assert_eq!(support.count(|_| true), 2);
    }

    /// Its owner may be frozen alone, and say so again and again.
    #[test]
    fn what_could_not_be_taken_over_is_found_again_once_it_is_said_again() {
        let mut support = Support::default();
        let second = Duration::from_secs(1);
        support.keep(1, key(1), kept(100, 10));
        let look = |support: &mut Support, at_s: u32| {
            let mut found = support.orphans(second * at_s, CACHE, |_, _, _| true);
            assert!(found.len() <= 1);
            found.pop().map(|(_, _, kept)| kept)
        };
        let mut first = look(&mut support, 101).expect("its owner is dead");
        first.ahead.requests = 1;
        first.given_up = Some(first.said);
        support.keep(1, key(1), first);
        assert!(look(&mut support, 102).is_none());
        support.keep(1, key(1), kept(103, 10));
        let again = look(&mut support, 104).expect("its owner is dead");
        assert_eq!(
            (again.given_up, again.ahead.requests),
            (Some(second * 100), 1)
        );
        support.keep(1, key(1), again);
        let mut next = kept(105, 10);
        next.state.answer += 1;
        support.keep(1, key(1), next);
        let next = look(&mut support, 106).expect("another answer");
        assert_eq!(next.given_up, None);
        assert_eq!(support.bytes, 0);
    }

    #[test]
    fn what_is_not_renewed_is_forgotten() {
        let mut support = Support::default();
        support.keep(1, key(1), kept(100, 10));
        support.keep(1, key(2), kept(109, 10));
        let now = Duration::from_secs(100) + CACHE;
        let found = support.orphans(now, CACHE, |_, _, _| true);
        assert_eq!(found.len(), 1, "a dead one's, too");
        support.keep(1, key(1), kept(100, 10));
        support.review(now, CACHE, |_, _| Standing::InProgress);
        assert_eq!((support.count(|_| true), support.bytes), (0, 0));
    }

    #[test]
    fn who_gets_no_further_is_counted_over_all_that_is_said() {
        let mut support = Support::default();
        let mut stuck = kept(100, 10);
        assert_eq!([5, 5, 9, 9].map(|had| stuck.resume_at(had)), [1, 2, 1, 2]);
        support.keep(1, key(1), stuck);
        support.keep(1, key(1), kept(103, 10));
        let mut said_again = support.forget(1, &key(1)).unwrap();
        assert_eq!(said_again.resume_at(9), 3);
    }

    #[test]
    fn what_is_over_is_not_counted_and_what_is_gone_is_forgotten() {
        let mut support = Support::default();
        for port in 1..=3 {
            support.keep(1, key(port), kept(100, 10));
        }
        let now = Duration::from_secs(101);
        support.review(now, CACHE, |key, _| match key.client.port() {
            1 => Standing::InProgress,
            2 => Standing::Over,
            _ => Standing::Gone,
        });
        let ports: Vec<_> = [1, 2, 3]
            .map(|port| support.get(1, &key(port)).is_some())
            .into();
        assert_eq!(
            (support.count(|_| true), ports),
            (1, vec![true, true, false])
        );
        // Another answer of the same flow.
        support.keep(1, key(2), kept(101, 10));
        assert_eq!(support.count(|_| true), 2);
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

    /// What was sent ahead of one is answered, one after the other.
    #[test]
    fn the_next_answer_is_of_the_next_request_and_the_rest_is_ahead_of_it() {
        let requests = [
            "GET /b HTTP/1.1\r\nHost: a\r\n\r\n",
            "PUT /c HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc",
            "GET /d HTTP/1.1\r\nHost: a\r\n\r\n",
        ];
        let mut support = Support::default();
        support.keep(1, key(1), kept(100, 10));
        for request in requests {
            assert!(support.ask_ahead(1, &key(1), request.as_bytes()));
        }
        let text = |bytes: Option<&[u8]>| bytes.map(|b| String::from_utf8_lossy(b).into_owned());
        let of = |support: &Support, answer| {
            let kept = support.get(1, &key(1)).unwrap();
            text(kept.request_of(answer))
        };
        assert_eq!(of(&support, 1), text(Some(&[0; 10])));
        for (answer, request) in (2..).zip(requests) {
            assert_eq!(of(&support, answer).as_deref(), Some(request));
        }
        assert_eq!((of(&support, 0), of(&support, 5)), (None, None));
        let mut third = kept(103, 10);
        third.state.answer = 3;
        support.keep(1, key(1), third.clone());
        let ahead = support.get(1, &key(1)).unwrap().ahead.clone();
        assert_eq!(
            (ahead.requests, &ahead.bytes[..]),
            (1, requests[2].as_bytes())
        );
        assert_eq!(of(&support, 4).as_deref(), Some(requests[2]));
        assert_eq!(support.bytes, support.get(1, &key(1)).unwrap().size());
        // Of another setup nothing is known.
        let mut other = kept(104, 10);
        (other.state.epoch, other.state.answer) = (2, 4);
        support.keep(1, key(1), other);
        assert_eq!(support.get(1, &key(1)).unwrap().ahead, Ahead::default());
        // More than are there, or cut short: nobody knows which is whose.
        support.keep(1, key(2), kept(100, 10));
        assert!(support.ask_ahead(1, &key(2), &requests[1].as_bytes()[..30]));
        assert_eq!(support.get(1, &key(2)).unwrap().request_of(2), None);
    }

    #[test]
    fn what_is_not_to_be_moved_stays_until_its_time_over_all_that_is_said_of_it() {
        let mut support = Support::default();
        let second = Duration::from_secs(1);
        for port in 1..=3 {
            support.keep(1, key(port), kept(100, 10));
        }
        let movable = |support: &Support, at_s: u64, most| {
            let mut found =
                support.movable(second * at_s as u32, &[0, 1], most, |_, k| *k != key(3));
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
        assert_eq!(support.movable(second * 103, &[2], 9, |_, _| true), []);
    }

    /// Of more than 4 GiB, where numbers come round.
    #[test]
    fn where_the_longest_are_is_followed_in_between() {
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", 64u64 << 30);
        let second = Duration::from_secs(1);
        let mut support = Support::default();
        for (port, head) in [
            (1, head.as_bytes()),
            (2, b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n"),
        ] {
            let mut kept = kept(100, 10);
            kept.state.head = head.to_vec();
            support.keep(1, key(port), kept);
        }
        let mut acknowledged = 0u64;
        let mut now = second * 100;
        for _ in 0..20 {
            acknowledged += 1 << 30;
            now += LOOK_INTERVAL;
            let heard = ServerSeq::new(acknowledged as u32);
            support.follow(now, |_, asked, epoch| {
                assert_eq!((asked, epoch), (&key(1), 1));
                Some(heard)
            });
            support.follow(now, |_, _, _| panic!("too early"));
        }
        // One that has been overtaken, and whoever stands still.
        let overtaken = ServerSeq::new((acknowledged as u32).wrapping_sub(9));
        support.follow(now + LOOK_INTERVAL, |_, _, _| Some(overtaken));
        support.follow(now + 2 * LOOK_INTERVAL, |_, _, _| panic!("it is slow"));
        let vast = support.get(1, &key(1)).unwrap();
        assert_eq!(
            vast.state.before(ServerSeq::new(acknowledged as u32)),
            Some(20 << 30)
        );
        assert!(!vast.is_lost(now + 5 * second) && vast.is_lost(now + 6 * second));
        assert!(!support.get(1, &key(2)).unwrap().is_lost(second * 200));
        support.forget(1, &key(1));
        support.follow(now + second, |_, _, _| panic!("it is forgotten"));
        assert!(support.vast.is_empty());
    }

    #[test]
    fn a_clock_goes_on() {
        let kept = kept(100, 0);
        assert_eq!(kept.clock(Duration::from_secs(103)), 4100);
    }

    #[test]
    fn what_another_one_says_was_sent_ahead_is_of_its_answer_alone() {
        let ahead = Ahead {
            requests: 2,
            bytes: b"GETPUT".to_vec(),
        };
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
