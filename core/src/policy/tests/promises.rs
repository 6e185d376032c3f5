//! What moves when a backend goes, who gets how much, and how much is remembered.

use std::collections::{BTreeMap, VecDeque};

use super::*;

/// The share of objects that may move although their backend is still there.
fn may_move(kind: PolicyKind) -> Option<f64> {
    match kind {
        PolicyKind::Hrw
        | PolicyKind::Lard
        | PolicyKind::LardR
        | PolicyKind::XlardR
        | PolicyKind::Cahrd
        | PolicyKind::CachePrediction
        | PolicyKind::Lacp
        | PolicyKind::BoundedLoads
        | PolicyKind::Rent => Some(0.0),
        // A few entries change hands for a table a hundred times the backends.
        PolicyKind::Maglev => Some(0.05),
        // These do not look at objects.
        PolicyKind::RoundRobin
        | PolicyKind::LeastConnections
        | PolicyKind::Cawll
        | PolicyKind::Cap
        | PolicyKind::TwoChoices
        | PolicyKind::Ewma => None,
    }
}

fn equal(n: u16, load: u32, without: Option<usize>) -> Backends {
    let present = (0..n).filter(|&id| Some(usize::from(id)) != without);
    Backends::new(present.map(|id| Candidate {
        outstanding: load,
        cost_us: u64::from(load) * 500,
        ..candidate(id, 1)
    }))
}

/// How many backends, at least two, and the index of one.
fn some_and_one_of_them() -> impl Strategy<Value = (u16, usize)> {
    (2u16..=20).prop_flat_map(|n| (Just(n), 0..usize::from(n)))
}

fn known(object: u64) -> Request {
    Request {
        cost_us: 500,
        ..static_file(object)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn when_one_goes_only_its_objects_move(
        (n, gone) in some_and_one_of_them(),
        load in 0u32..40,
        first: u64,
    ) {
        let objects = (0..2000).map(|i| first.wrapping_add(i));
        let now = Duration::from_secs(1);
        for config in configs() {
            let Some(most) = may_move(config.kind()) else { continue };
            let config = match config {
                PolicyConfig::Maglev(_) => PolicyConfig::Maglev(MaglevParameters { m: 2039 }),
                other => other,
            };
            let mut policy = build(&config, 0);
            let before: BTreeMap<u64, BackendId> = (objects.clone())
                .map(|o| (o, place(&mut *policy, now, &known(o), &equal(n, load, None)).unwrap()))
                .collect();
            let rest = equal(n, load, Some(gone));
            let (mut moved, mut kept) = (0, 0);
            for (&object, &was) in before.iter().filter(|(_, was)| was.index() != gone) {
                let is = preview(&mut *policy, now, &known(object), &rest).unwrap();
                kept += 1;
                moved += usize::from(is != was);
            }
            prop_assert!(moved as f64 <= most * f64::from(kept), "{config:?}: {moved} of {kept}");
        }
    }

    /// What is remembered by id comes back with the backend.
    #[test]
    fn when_it_comes_back_so_do_its_objects((n, gone) in some_and_one_of_them()) {
        let now = Duration::from_secs(1);
        for config in configs() {
            if may_move(config.kind()).is_none() { continue }
            let mut policy = build(&config, 0);
            let all = equal(n, 5, None);
            let objects = 0..500u64;
            let before: Vec<_> = (objects.clone())
                .map(|o| place(&mut *policy, now, &known(o), &all)).collect();
            preview(&mut *policy, now, &known(0), &equal(n, 5, Some(gone)));
            let after: Vec<_> = objects.map(|o| preview(&mut *policy, now, &known(o), &all)).collect();
            prop_assert_eq!(before, after, "{:?}", config);
        }
    }
}

/// With requests for ever new objects, so many at once, each backend gets its weight's
/// share in the long run.
#[test]
fn weights_are_shares() {
    const ROUNDS: u32 = 20_000;
    let weights = [1, 2, 3, 4, 0];
    for kind in PolicyKind::ALL {
        let mut policy = build(&kind.into(), 3);
        let mut backends = with_weights(&weights);
        let mut loads = [(0u32, 0u64); 5];
        let mut unfinished: VecDeque<(Request, BackendId, u64)> = VecDeque::new();
        let mut counts = [0u32; 5];
        for i in 0..ROUNDS {
            let now = Duration::from_millis(i.into());
            let request = known(u64::from(i));
            let chosen = preview(&mut *policy, now, &request, &backends).unwrap();
            let charge = policy.charge(&request, &backends, chosen);
            policy.placed(now, &request, &backends, chosen);
            unfinished.push_back((request, chosen, charge));
            counts[chosen.index()] += 1;
            loads[chosen.index()].0 += 1;
            loads[chosen.index()].1 += charge;
            let (load, cost) = loads[chosen.index()];
            backends.set_load(chosen, load, cost);
            if unfinished.len() > 100 {
                let (request, backend, charge) = unfinished.pop_front().unwrap();
                let load = &mut loads[backend.index()];
                *load = (load.0 - 1, load.1 - charge);
                backends.set_load(backend, load.0, load.1);
                policy.finished(now, &finished(request, backend));
            }
        }
        for (count, weight) in counts.into_iter().zip(weights) {
            let share = f64::from(ROUNDS) * f64::from(weight) / 10.0;
            let off = (f64::from(count) - share).abs();
            assert!(off <= 0.12 * share, "{kind:?}: {counts:?}");
        }
    }
}

#[test]
fn memory_stays_within_its_bound() {
    const OBJECTS: usize = 10_000;
    let lard = LardParameters {
        objects: OBJECTS,
        ..Default::default()
    };
    let xlard_r = XlardRParameters {
        objects: OBJECTS,
        ..Default::default()
    };
    let cache = CacheParameters {
        objects: OBJECTS,
        ..Default::default()
    };
    let lard_r = LardRParameters {
        lard,
        ..Default::default()
    };
    let lacp = LacpParameters {
        cache,
        ..Default::default()
    };
    // Bytes an object, as the parameters' documentation says; queues double as they grow.
    let bounded = [
        (PolicyConfig::Lard(lard), 22),
        (PolicyConfig::LardR(lard_r), 43),
        (PolicyConfig::XlardR(xlard_r), 43),
        (PolicyConfig::Cahrd(xlard_r), 43),
        (PolicyConfig::CachePrediction(cache), 43 + 2 * 2 * 16),
        (PolicyConfig::Lacp(lacp), 43 + 2 * 2 * 16),
        (
            PolicyConfig::Rent(RentParameters { objects: OBJECTS }),
            87 + 3,
        ),
    ];
    let backends = equal(8, 5, None);
    for (config, bytes) in bounded {
        let mut policy = build(&config, 0);
        for object in 0..50_000 {
            let request = known(object);
            let chosen = place(&mut *policy, Duration::ZERO, &request, &backends).unwrap();
            policy.finished(Duration::ZERO, &finished(request, chosen));
        }
        let memory = policy.memory();
        assert!(memory.objects <= memory.objects_max && memory.objects_max <= OBJECTS);
        assert!(memory.objects > OBJECTS / 2, "{config:?}: {memory:?}");
        assert!(
            memory.bytes <= OBJECTS * bytes + 1000,
            "{config:?}: {memory:?}"
        );
    }
    for kind in PolicyKind::ALL {
        let remembers = bounded_kinds().contains(&kind);
        assert_eq!(build(&kind.into(), 0).memory().objects_max > 0, remembers);
    }
}

fn bounded_kinds() -> [PolicyKind; 7] {
    use PolicyKind::*;
    [Lard, LardR, XlardR, Cahrd, CachePrediction, Lacp, Rent]
}
