//! Round robin and least connections.

use super::*;

proptest! {
    #[test]
    fn round_robin_gives_each_exactly_its_weight(weights in prop::collection::vec(0u16..=20, 1..6)) {
        let mut policy = build(&PolicyConfig::RoundRobin, 0);
        let rounds: usize = weights.iter().map(|&w| usize::from(w)).sum();
        let counted = counts(&mut *policy, &with_weights(&weights), rounds * 3);
        for (count, weight) in counted.into_iter().zip(weights) {
            prop_assert_eq!(count, usize::from(weight) * 3);
        }
    }

    /// Whatever came and went before, each gets its share soon after.
    #[test]
    fn round_robin_recovers_from_comings_and_goings(
        presence in prop::collection::vec(prop::collection::vec(any::<bool>(), 4), 0..200),
        weights in prop::collection::vec(1u16..=20, 4),
    ) {
        let mut policy = build(&PolicyConfig::RoundRobin, 0);
        let all = with_weights(&weights);
        for present in presence {
            let there = Backends::new(
                all.open().iter().zip(present).filter(|(_, p)| *p).map(|(c, _)| *c));
            place(&mut *policy, Duration::ZERO, &static_file(0), &there);
        }
        let rounds: usize = weights.iter().map(|&w| usize::from(w)).sum();
        let counted = counts(&mut *policy, &all, rounds * 20);
        for (count, weight) in counted.into_iter().zip(weights) {
            // A credit is at most a few rounds' worth.
            prop_assert!(count.abs_diff(20 * usize::from(weight)) <= 4 + rounds / 4, "{count} for {weight}");
        }
    }

    #[test]
    fn least_connections_takes_one_of_the_least(loads in prop::collection::vec((1u16..=256, 0u32..10_000), 1..8)) {
        let backends = Backends::new((0..).zip(&loads).map(|(id, &(weight, outstanding))| Candidate {
            outstanding, ..candidate(id, weight)
        }));
        let mut policy = build(&PolicyConfig::LeastConnections, 0);
        let chosen = policy.choose(Duration::ZERO, &static_file(0), &backends).unwrap();
        let load = |c: &Candidate| f64::from(c.outstanding) / f64::from(c.weight);
        let least = load(backends.get(chosen).unwrap());
        prop_assert!(backends.open().iter().all(|c| load(c) >= least - 1e-9));
    }
}

#[test]
fn round_robin_is_smooth() {
    let mut policy = build(&PolicyConfig::RoundRobin, 0);
    let backends = with_weights(&[5, 1, 1]);
    let order: String = (0..7)
        .filter_map(|_| place(&mut *policy, Duration::ZERO, &static_file(0), &backends))
        .map(|id| NAMES[id.index()])
        .collect();
    assert_eq!(order, "aabacaa"); // as nginx's documentation of its change says
}

/// One that is away every other time keeps its place in the rotation.
#[test]
fn round_robin_does_not_starve_one_that_flaps() {
    let mut policy = build(&PolicyConfig::RoundRobin, 0);
    let (all, two) = (with_weights(&[1, 1, 1]), with_weights(&[1, 1]));
    let mut chosen = [0; 3];
    for i in 0..6000 {
        let present = if i % 2 == 0 { &all } else { &two };
        chosen[place(&mut *policy, Duration::ZERO, &static_file(0), present)
            .unwrap()
            .index()] += 1;
    }
    assert!(chosen.iter().all(|&n| n > 900), "{chosen:?}");
}

/// What stickiness gives to a draining backend is no turn of the others'.
#[test]
fn round_robin_does_not_hold_the_time_of_draining_against_anyone() {
    let mut policy = build(&PolicyConfig::RoundRobin, 0);
    let draining = Backends::new([
        candidate(0, 1),
        Candidate {
            draining: true,
            ..candidate(1, 1)
        },
    ]);
    let stuck = Request {
        bound: Some(Bound::To(BackendId(1))),
        ..static_file(0)
    };
    for _ in 0..1000 {
        place(&mut *policy, Duration::ZERO, &stuck, &draining);
    }
    assert_eq!(
        counts(&mut *policy, &with_weights(&[1, 1]), 10)[..2],
        [5, 5]
    );
}

#[test]
fn least_connections_rotates_among_equals() {
    let mut policy = build(&PolicyConfig::LeastConnections, 0);
    let counted = counts(&mut *policy, &with_weights(&[1, 2, 1]), 40);
    assert_eq!(counted[..3], [10, 20, 10]);
}

#[test]
fn least_connections_fills_by_weight() {
    let mut policy = build(&PolicyConfig::LeastConnections, 0);
    let mut backends = with_weights(&[1, 3]);
    let mut loads = [0; 2];
    for _ in 0..400 {
        let chosen = place(&mut *policy, Duration::ZERO, &static_file(0), &backends).unwrap();
        loads[chosen.index()] += 1;
        backends.set_load(chosen, loads[chosen.index()], 0);
    }
    assert_eq!(loads, [100, 300]);
}
