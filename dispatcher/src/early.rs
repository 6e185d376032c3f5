//! Requests that were given to an owner which may be in the midst of an answer that nobody has told of yet
//! (docs/protocol/takeover.md 2.2b0): by the time that it is told, they are known to have been sent ahead of it.

use std::collections::HashMap;
use std::time::Duration;

use trapeze_core::flow::FlowKey;

/// Flows that are known at once, of a worker,
const FLOWS: usize = 4096;
/// requests of each, and their bytes.
const REQUESTS: usize = 64;
const BYTES: usize = 16 << 10;
/// Answers are told of when they are some 25 ms old, or some seconds, if they are not long.
const KEPT_FOR: Duration = Duration::from_secs(10);

/// All of a worker, by their flows.
#[derive(Debug, Default)]
pub struct Early {
    all: HashMap<FlowKey, Given>,
}

/// What an owner was given, one behind the other.
#[derive(Debug)]
struct Given {
    slot: u32,
    epoch: u32,
    /// Which of the owner's requests the first of these is, from 1.
    first: u16,
    requests: Vec<Vec<u8>>,
    since: Duration,
}

impl Given {
    /// The next one would be that.
    fn next(&self) -> u16 {
        self.first.wrapping_add(self.requests.len() as u16)
    }

    fn bytes(&self) -> usize {
        self.requests.iter().map(Vec::len).sum()
    }
}

impl Early {
    /// The owner in that epoch is given its request of that number.
    pub fn note(
        &mut self,
        now: Duration,
        key: &FlowKey,
        (slot, epoch, number): (u32, u32, u16),
        request: &[u8],
    ) {
        let is_new = !self.all.contains_key(key);
        if is_new && self.all.len() >= FLOWS {
            (self.all).retain(|_, given| now.saturating_sub(given.since) < KEPT_FOR);
        }
        if is_new && self.all.len() >= FLOWS || request.len() > BYTES {
            return self.forget(key);
        }
        let begins = || Given {
            slot,
            epoch,
            first: number,
            requests: Vec::new(),
            since: now,
        };
        let given = self.all.entry(*key).or_insert_with(begins);
        let goes_on = (given.slot, given.epoch, given.next()) == (slot, epoch, number)
            && given.requests.len() < REQUESTS
            && given.bytes() + request.len() <= BYTES;
        if !goes_on {
            *given = begins();
        }
        given.since = now;
        given.requests.push(request.to_vec());
    }

    /// What it is given cannot be asked of another one.
    pub fn forget(&mut self, key: &FlowKey) {
        self.all.remove(key);
    }

    /// The request of that number that the owner in that epoch was given.
    pub fn request(&self, key: &FlowKey, owner: (u32, u32), number: u16) -> Option<&[u8]> {
        let known = self.all.get(key);
        let known = known.filter(|known| (known.slot, known.epoch) == owner)?;
        let at = usize::from(number.wrapping_sub(known.first));
        known.requests.get(at).map(Vec::as_slice)
    }

    /// All that was given behind the request of that number, of `given` in all; none, if they are not all known.
    pub fn behind(
        &mut self,
        key: &FlowKey,
        (slot, epoch): (u32, u32),
        answer: u16,
        given: u16,
    ) -> Option<Vec<Vec<u8>>> {
        let known = self.all.remove(key)?;
        let skipped = usize::from(answer.wrapping_add(1).wrapping_sub(known.first));
        let is_all =
            (known.slot, known.epoch) == (slot, epoch) && known.next() == given.wrapping_add(1);
        let mut requests = known.requests;
        (is_all && skipped <= requests.len()).then(|| requests.split_off(skipped))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(100);

    fn key(port: u16) -> FlowKey {
        FlowKey {
            client: ([192, 0, 2, 1], port).into(),
            vip: ([10, 77, 0, 100], 80).into(),
        }
    }

    /// Requests 2, 3 and 4 of an owner.
    fn three() -> Early {
        let mut early = Early::default();
        for (number, request) in [(2, "b"), (3, "c"), (4, "d")] {
            early.note(NOW, &key(1), (7, 9, number), request.as_bytes());
        }
        early
    }

    #[test]
    fn what_was_given_behind_an_answers_request_is_known_if_all_is() {
        let behind = |answer, given| three().behind(&key(1), (7, 9), answer, given);
        let all = |requests: &[&str]| -> Option<Vec<Vec<u8>>> {
            Some(requests.iter().map(|one| one.as_bytes().to_vec()).collect())
        };
        assert_eq!(behind(1, 4), all(&["b", "c", "d"]));
        assert_eq!(behind(3, 4), all(&["d"]));
        assert_eq!(behind(4, 4), all(&[]));
        // The data path has placed one more, or one between.
        assert_eq!(behind(1, 5), None);
        assert_eq!(behind(0, 4), None);
        assert_eq!(three().behind(&key(1), (7, 8), 1, 4), None);
        assert_eq!(three().behind(&key(2), (7, 9), 1, 4), None);
    }

    #[test]
    fn which_request_is_whose_is_known_by_its_number() {
        let early = three();
        let of = |owner, number| early.request(&key(1), owner, number);
        assert_eq!(of((7, 9), 2), Some(&b"b"[..]));
        assert_eq!(of((7, 9), 4), Some(&b"d"[..]));
        for (owner, number) in [((7, 9), 1), ((7, 9), 5), ((7, 8), 3), ((6, 9), 3)] {
            assert_eq!(of(owner, number), None);
        }
    }

    #[test]
    fn a_gap_begins_anew() {
        let mut early = three();
        early.note(NOW, &key(1), (7, 9, 6), b"f");
        assert_eq!(early.behind(&key(1), (7, 9), 1, 6), None);
        let mut early = three();
        early.note(NOW, &key(1), (7, 9, 6), b"f");
        assert_eq!(
            early.behind(&key(1), (7, 9), 5, 6),
            Some(vec![b"f".to_vec()])
        );
        let mut early = three();
        early.note(NOW, &key(1), (7, 9, 5), &[0; BYTES]);
        assert_eq!(early.behind(&key(1), (7, 9), 1, 5), None);
        // Numbers come round.
        let mut early = Early::default();
        early.note(NOW, &key(1), (7, 9, u16::MAX), b"a");
        early.note(NOW, &key(1), (7, 9, 0), b"b");
        let behind = early.behind(&key(1), (7, 9), u16::MAX, 0);
        assert_eq!(behind, Some(vec![b"b".to_vec()]));
    }

    #[test]
    fn there_is_an_end_to_what_is_kept() {
        let mut early = Early::default();
        for port in 1..=FLOWS as u16 + 9 {
            early.note(NOW, &key(port), (1, 1, 2), b"x");
        }
        assert_eq!(early.all.len(), FLOWS);
        early.note(NOW + KEPT_FOR, &key(u16::MAX), (1, 1, 2), b"x");
        assert_eq!(early.all.len(), 1);
    }
}
