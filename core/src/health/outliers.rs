//! Backends that stand out by what becomes of clients' own requests: connections that servers
//! reset while they owe an answer, and requests that clients repeat because nothing of theirs is
//! acknowledged. One that stands out is ejected for a while. Whatever clients do
//! themselves falls on all backends alike, and ejects none.

use std::collections::VecDeque;
use std::time::Duration;

use crate::config::Outliers;

/// Looks that are kept of the time that counts.
const LOOKS: u32 = 10;
/// An ejection lasts at most so many times as long as the first one.
const LONGEST: u32 = 10;

/// What is known of one backend of a pool.
#[derive(Clone, Debug, Default)]
pub struct Signs {
    /// How many there had been in all, at each look.
    seen: VecDeque<(Duration, u64)>,
    until: Option<Duration>,
    times: u32,
}

impl Signs {
    /// There have been so many in all by now. Returns those of the time that counts.
    pub fn look(&mut self, now: Duration, total: u64, settings: &Outliers) -> u64 {
        let is_due = |&(last, _): &(Duration, u64)| now >= last + settings.within / LOOKS;
        if self.seen.back().is_none_or(is_due) {
            self.seen.push_back((now, total));
        }
        let is_past = |at: Duration| now.saturating_sub(at) > settings.within;
        // The last one before that time is its beginning.
        while self.seen.get(1).is_some_and(|&(at, _)| is_past(at)) {
            self.seen.pop_front();
        }
        let began = self.seen.front().map_or(total, |&(_, count)| count);
        total.saturating_sub(began)
    }

    /// It is ejected from now on, longer each time unless it has been well meanwhile. Returns until when.
    pub fn eject(&mut self, now: Duration, settings: &Outliers) -> Duration {
        let was_well = |until: Duration| now > until + settings.eject * LONGEST;
        if self.until.is_some_and(was_well) {
            self.times = 0;
        }
        self.times = (self.times + 1).min(LONGEST);
        let until = now + settings.eject * self.times;
        self.until = Some(until);
        // What was before says nothing of the time after.
        self.seen.clear();
        until
    }

    /// Is it?
    pub fn is_ejected(&self, now: Duration) -> bool {
        self.until.is_some_and(|until| now < until)
    }
}

/// Which of a pool's backends are to be ejected: those with enough signs, and twice as many as
/// the mean; never more than half of the pool. `members` are the signs that count of each, and
/// whether it is ejected.
pub fn standing_out(members: &[(u64, bool)], settings: &Outliers) -> Vec<usize> {
    let sum: u64 = members.iter().map(|&(signs, _)| signs).sum();
    let stands_out = |signs: u64| {
        let mean_doubled = 2 * u128::from(sum);
        signs >= settings.failures.into()
            && u128::from(signs) * members.len() as u128 >= mean_doubled
    };
    let ejected = members.iter().filter(|&&(_, ejected)| ejected).count();
    let room = (members.len() / 2).saturating_sub(ejected);
    let mut out: Vec<usize> = (members.iter().enumerate())
        .filter(|&(_, &(signs, ejected))| !ejected && stands_out(signs))
        .map(|(index, _)| index)
        .collect();
    out.sort_by_key(|&index| std::cmp::Reverse(members[index].0));
    out.truncate(room);
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const S: fn(u64) -> Duration = Duration::from_secs;

    fn settings() -> Outliers {
        Outliers {
            failures: 5,
            within: S(10),
            eject: S(30),
        }
    }

    #[test]
    fn only_what_was_lately_counts() {
        let mut signs = Signs::default();
        assert_eq!(signs.look(S(100), 1000, &settings()), 0, "before our time");
        for (at, total, recent) in [
            (101, 1002, 2),
            (105, 1004, 4),
            (110, 1004, 4),
            (112, 1004, 2),
            (117, 1004, 0),
            (200, 1009, 5),
        ] {
            assert_eq!(signs.look(S(at), total, &settings()), recent, "{at}");
        }
        for n in 0..10_000 {
            signs.look(Duration::from_millis(200_000 + n), 1009, &settings());
        }
        assert!(signs.seen.len() <= LOOKS as usize + 2);
    }

    #[test]
    fn ejections_grow_until_it_is_well() {
        let mut signs = Signs::default();
        assert_eq!(signs.eject(S(100), &settings()), S(130));
        assert!(signs.is_ejected(S(129)) && !signs.is_ejected(S(130)));
        assert_eq!(signs.eject(S(140), &settings()), S(200));
        assert_eq!(signs.eject(S(501), &settings()), S(531), "it was well");
        for _ in 0..20 {
            signs.eject(S(600), &settings());
        }
        assert_eq!(signs.eject(S(600), &settings()), S(900));
    }

    #[test]
    fn who_stands_out_is_ejected_and_who_shares_a_fate_is_not() {
        let out = |members: &[(u64, bool)]| standing_out(members, &settings());
        assert_eq!(out(&[(5, false), (0, false)]), [0]);
        assert!(out(&[(4, false), (0, false)]).is_empty(), "too few");
        assert!(out(&[(50, false), (45, false)]).is_empty(), "all alike");
        assert!(out(&[(50, false)]).is_empty(), "the only one");
        assert!(out(&[(9, false), (0, true)]).is_empty(), "half is ejected");
        assert_eq!(out(&[(0, false), (7, false), (9, false), (0, false)]), [2]);
    }

    proptest! {
        #[test]
        fn never_more_than_half_of_a_pool(
            members in prop::collection::vec((0u64..100, any::<bool>()), 0..12),
        ) {
            let out = standing_out(&members, &settings());
            let before = members.iter().filter(|(_, ejected)| *ejected).count();
            prop_assert!(out.is_empty() || before + out.len() <= members.len() / 2);
            prop_assert!(out.iter().all(|&index| !members[index].1 && members[index].0 >= 5));
        }
    }
}
