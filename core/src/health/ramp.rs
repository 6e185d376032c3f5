//! Slow start: what a backend is given that has just recovered grows with time, so that cold
//! caches and pools of threads are not met by its whole share at once.

use std::time::Duration;

/// In so many steps: each is news to policies that make tables of weights.
pub const STEPS: u16 = 10;
/// The largest weight that policies take.
const WEIGHT_MAX: u16 = 256;

/// Which step of its slow start a backend is in that has been back for so long: 1 at first,
/// [`STEPS`] once it is over.
pub fn step(since: Duration, whole: Duration) -> u16 {
    if since >= whole {
        return STEPS;
    }
    let done = since.as_micros() * u128::from(STEPS) / whole.as_micros().max(1);
    (done as u16 + 1).min(STEPS)
}

/// The weights of a pool whose members are in these steps. Where none starts slowly, they are as
/// configured; else all are larger, in the same proportions, so that a part of 1 is a number. One
/// that is not 0 stays so.
pub fn weights(members: &[(u16, u16)]) -> Vec<u16> {
    if members.iter().all(|&(_, step)| step >= STEPS) {
        return members.iter().map(|&(weight, _)| weight).collect();
    }
    let largest = members.iter().map(|&(weight, _)| weight).max().unwrap_or(0);
    let scale = u32::from((WEIGHT_MAX / largest.max(1)).clamp(1, STEPS));
    let scaled = |&(weight, step): &(u16, u16)| {
        let whole = u32::from(weight) * scale;
        let part = whole * u32::from(step.min(STEPS)) / u32::from(STEPS);
        part.max(u32::from(weight > 0)) as u16
    };
    members.iter().map(scaled).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_share_grows_to_the_whole() {
        let whole = Duration::from_secs(10);
        let at = |s| step(Duration::from_secs(s), whole);
        assert_eq!(
            [at(0), at(1), at(5), at(9), at(10), at(99)],
            [1, 2, 6, 10, 10, 10]
        );
        assert_eq!(weights(&[(1, 1), (1, 10), (1, 10)]), [1, 10, 10]);
        assert_eq!(weights(&[(1, 5), (2, 10)]), [5, 20]);
        assert_eq!(weights(&[(256, 5), (1, 10)]), [128, 1]);
        assert_eq!(weights(&[(3, 10), (0, 10)]), [3, 0], "as configured");
        assert_eq!(step(Duration::ZERO, Duration::ZERO), STEPS);
    }

    proptest! {
        #[test]
        fn proportions_stay_and_nobody_is_shut_out(
            members in prop::collection::vec((0u16..=256, 1u16..=STEPS), 1..20),
        ) {
            let now = weights(&members);
            for (&(weight, step), &own) in members.iter().zip(&now) {
                prop_assert!(own <= 256);
                prop_assert_eq!(own > 0, weight > 0);
                for (&(other, of_other), &theirs) in members.iter().zip(&now) {
                    if step == STEPS && of_other == STEPS {
                        let (a, b) = (u32::from(own) * u32::from(other), u32::from(theirs) * u32::from(weight));
                        prop_assert_eq!(a, b, "whole shares as configured");
                    }
                    if weight == other && step <= of_other {
                        prop_assert!(own <= theirs);
                    }
                }
            }
        }
    }
}
