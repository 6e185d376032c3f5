//! Maglev, bounded loads, two choices, EWMA.

use super::*;

#[test]
fn maglev_is_even_and_follows_weights() {
    let mut policy = build(&PolicyKind::Maglev.into(), 0);
    let weights = [1, 2, 3, 2];
    let backends = with_weights(&weights);
    let mut counts = [0u32; 4];
    for object in 0..200_000 {
        counts[policy
            .choose(Duration::ZERO, &static_file(object), &backends)
            .unwrap()
            .index()] += 1;
    }
    for (count, weight) in counts.into_iter().zip(weights) {
        let share = 25_000.0 * f64::from(weight);
        assert!(
            (f64::from(count) - share).abs() < 0.02 * share,
            "{counts:?}"
        );
    }
    assert_eq!(policy.memory().bytes, 2 * 65_537);
}

#[test]
fn maglev_does_not_care_for_the_order() {
    let backends = with_weights(&[1, 2, 3, 4]);
    let reversed = Backends::new(backends.open().iter().rev().copied());
    let config = PolicyConfig::Maglev(MaglevParameters { m: 251 });
    let (mut one, mut other) = (build(&config, 0), build(&config, 0));
    for object in 0..1000 {
        let request = static_file(object);
        assert_eq!(
            one.choose(Duration::ZERO, &request, &backends),
            other.choose(Duration::ZERO, &request, &reversed)
        );
    }
}

#[test]
fn tables_of_any_prime_are_filled() {
    for m in [2, 3, 5, 7, 11, 13] {
        assert!(MaglevParameters::is_prime(m));
        let mut policy = build(&PolicyConfig::Maglev(MaglevParameters { m }), 0);
        let backends = with_weights(&[1, 256, 3]);
        for object in 0..100 {
            let chosen = policy.choose(Duration::ZERO, &static_file(object), &backends);
            assert!(chosen.is_some());
        }
    }
    assert!(
        [0, 1, 4, 9, 65_536]
            .iter()
            .all(|&m| !MaglevParameters::is_prime(m))
    );
}

proptest! {
    /// Theorem of SODA 2018: nobody gets more than c times its share, rounded up.
    #[test]
    fn bounded_loads_are_bounded(
        weights in prop::collection::vec(1u16..=20, 1..8), c in 1.01f64..3.0, requests in 1u32..400, hot: bool
    ) {
        let mut policy = build(&PolicyConfig::BoundedLoads(BoundedLoadsParameters { c }), 0);
        let mut backends = with_weights(&weights);
        let mut loads = vec![0u32; weights.len()];
        for i in 0..requests {
            let object = if hot { 7 } else { i.into() };
            let chosen = place(&mut *policy, Duration::ZERO, &static_file(object), &backends).unwrap();
            loads[chosen.index()] += 1;
            backends.set_load(chosen, loads[chosen.index()], 0);
        }
        let total: f64 = weights.iter().map(|&w| f64::from(w)).sum();
        for (load, weight) in loads.into_iter().zip(weights) {
            let share = c * f64::from(requests) * f64::from(weight) / total;
            prop_assert!(f64::from(load) <= share.ceil(), "{load} of {share}");
        }
    }
}

#[test]
fn bounded_loads_are_hrw_while_there_is_room() {
    let backends = with_weights(&[1, 2, 3]);
    let (mut one, mut other) = (
        build(&PolicyKind::BoundedLoads.into(), 0),
        build(&PolicyKind::Hrw.into(), 0),
    );
    for object in 0..100 {
        let request = static_file(object);
        assert_eq!(
            one.choose(Duration::ZERO, &request, &backends),
            other.choose(Duration::ZERO, &request, &backends)
        );
    }
}

#[test]
fn two_choices_never_take_the_busiest_and_draw_by_seed() {
    let backends = Backends::new((0..4).map(|id| Candidate {
        outstanding: u32::from(id),
        ..candidate(id, 1)
    }));
    let draws = |seed| -> Vec<u16> {
        let mut policy = build(&PolicyKind::TwoChoices.into(), seed);
        let place = |_| {
            place(&mut *policy, Duration::ZERO, &static_file(0), &backends)
                .unwrap()
                .0
        };
        (0..600).map(place).collect()
    };
    let one = draws(1);
    assert_eq!(one, draws(1));
    assert_ne!(one, draws(2));
    let count = |id| one.iter().filter(|&&other| other == id).count() as f64;
    // Of six pairs the first is in three, the last wins none.
    for (id, pairs) in [(0, 3.0), (1, 2.0), (2, 1.0), (3, 0.0)] {
        assert!(
            (count(id) - 100.0 * pairs).abs() < 50.0,
            "{id}: {}",
            count(id)
        );
    }
}

#[test]
fn ewma_leaves_the_slow_alone_and_tries_them_again() {
    let mut policy = build(&PolicyKind::Ewma.into(), 0);
    let backends = with_weights(&[1, 1]);
    let answered = |policy: &mut dyn Policy, now, id, ms| {
        let elapsed = Duration::from_millis(ms);
        policy.finished(
            now,
            &Finished {
                elapsed,
                ..finished(static_file(0), BackendId(id))
            },
        );
    };
    let second = Duration::from_secs(1);
    answered(&mut *policy, second, 0, 10);
    answered(&mut *policy, second, 1, 10);
    // One peak counts at once, and in full.
    answered(&mut *policy, second, 0, 500);
    for object in 0..20 {
        let chosen = policy.choose(second, &static_file(object), &backends);
        assert_eq!(chosen, Some(BackendId(1)));
    }
    // Until the other one is 50 times as busy, or half a minute has passed.
    let busy = |outstanding| {
        Backends::new([
            candidate(0, 1),
            Candidate {
                outstanding,
                ..candidate(1, 1)
            },
        ])
    };
    assert_eq!(
        policy.choose(second, &static_file(0), &busy(48)),
        Some(BackendId(1))
    );
    assert_eq!(
        policy.choose(second, &static_file(0), &busy(51)),
        Some(BackendId(0))
    );
    let later = Duration::from_secs(60);
    for i in 0..10 {
        answered(&mut *policy, later + i * second, 1, 10);
    }
    let chosen = policy.choose(later + 10 * second, &static_file(0), &busy(1));
    assert_eq!(chosen, Some(BackendId(0)));
    // A newcomer is as good as the others.
    let three = with_weights(&[1, 1, 1]);
    let chosen = policy.choose(later, &static_file(0), &three);
    assert!(chosen.is_some());
}
