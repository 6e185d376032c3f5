//! A backend that starts slowly changes all weights of its pool, in proportion: nobody else may
//! notice (core/src/health/ramp.rs).

use super::*;
use crate::health::ramp;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Ten times the weights are the same weights, to every policy that does not draw lots.
    #[test]
    fn weights_count_by_proportion(
        weights in prop::collection::vec(1u16..=25, 2..8),
        first: u64,
    ) {
        let tenfold: Vec<u16> = weights.iter().map(|weight| weight * ramp::STEPS).collect();
        let (plain, scaled) = (with_weights(&weights), with_weights(&tenfold));
        for kind in PolicyKind::ALL {
            if kind == PolicyKind::TwoChoices {
                continue;
            }
            let [mut one, mut other] = [(); 2].map(|()| build(&kind.into(), 7));
            for i in 0..60 {
                let request = static_file(first.wrapping_add(i % 20));
                let placed = place(&mut *one, Duration::ZERO, &request, &plain);
                let as_scaled = place(&mut *other, Duration::ZERO, &request, &scaled);
                prop_assert_eq!(placed, as_scaled, "{}", kind.name());
            }
        }
    }
}

/// Each gets more with each step, by whichever policy that shares by weights alone.
#[test]
fn the_share_grows_with_each_step() {
    for kind in [PolicyKind::RoundRobin, PolicyKind::Hrw, PolicyKind::Maglev] {
        let mut before = 0;
        for step in 1..=ramp::STEPS {
            let weights = ramp::weights(&[(1, step), (1, ramp::STEPS), (1, ramp::STEPS)]);
            let backends = with_weights(&weights);
            let mut policy = build(&kind.into(), 7);
            let mut chosen = || {
                (0..3000u64)
                    .filter(|&i| {
                        let request = static_file(i.wrapping_mul(0x9e37_79b9_7f4a_7c15));
                        place(&mut *policy, Duration::ZERO, &request, &backends)
                            == Some(BackendId(0))
                    })
                    .count()
            };
            let count = chosen();
            assert!(count > before, "{} in step {step}: {count}", kind.name());
            before = count;
        }
        assert!((900..1100).contains(&before), "{}: {before}", kind.name());
    }
}
