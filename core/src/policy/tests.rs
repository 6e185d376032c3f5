//! What holds of every policy, and what each promises.

use std::collections::{HashMap, HashSet};

use proptest::prelude::*;

use super::*;

#[test]
fn a_policy_is_of_the_kind_it_was_built_as() {
    for kind in PolicyKind::ALL {
        assert_eq!(build(kind).kind(), kind);
    }
}

proptest! {
    /// Candidates that come, go and change between calls, as they like.
    #[test]
    fn every_policy_names_a_candidate_with_weight_while_there_is_one(
        steps in prop::collection::vec(
            prop::collection::hash_map(0usize..6, (0u16..=256, any::<u64>()), 0..6), 1..40)
    ) {
        for kind in PolicyKind::ALL {
            let mut policy = build(kind);
            for (i, step) in steps.iter().enumerate() {
                let candidates: Vec<_> = (step.iter())
                    .map(|(&name, &(weight, active))| Candidate { name: NAMES[name], weight, active })
                    .collect();
                let url = format!("/{i}");
                let chosen = policy.choose(Duration::ZERO, &subject(&url), &candidates);
                match chosen {
                    Some(chosen) => prop_assert!(candidates[chosen].weight > 0),
                    None => prop_assert!(candidates.iter().all(|c| c.weight == 0)),
                }
            }
        }
    }

    #[test]
    fn round_robin_gives_each_exactly_its_weight(weights in prop::collection::vec(0u16..=20, 1..6)) {
        let mut policy = build(PolicyKind::RoundRobin);
        let candidates = with_weights(&weights);
        let rounds: u32 = weights.iter().map(|&w| u32::from(w)).sum();
        prop_assert_eq!(counts(&mut *policy, &candidates, rounds as usize * 3),
            weights.iter().map(|&w| usize::from(w) * 3).collect::<Vec<_>>());
    }

    /// Whatever came and went before, each gets its share soon after.
    #[test]
    fn round_robin_recovers_from_comings_and_goings(
        presence in prop::collection::vec(prop::collection::vec(any::<bool>(), 4), 0..200),
        weights in prop::collection::vec(1u16..=20, 4),
    ) {
        let mut policy = build(PolicyKind::RoundRobin);
        let all = with_weights(&weights);
        for present in presence {
            let candidates: Vec<_> = all.iter().zip(present).filter(|(_, p)| *p).map(|(c, _)| *c).collect();
            policy.choose(Duration::ZERO, &subject("/"), &candidates);
        }
        let rounds: usize = weights.iter().map(|&w| usize::from(w)).sum();
        let counted = counts(&mut *policy, &all, rounds * 20);
        for (count, weight) in counted.into_iter().zip(weights) {
            // A credit is at most a few rounds' worth.
            prop_assert!(count.abs_diff(20 * usize::from(weight)) <= 4 + rounds / 4, "{count} for {weight}");
        }
    }

    #[test]
    fn least_connections_names_one_with_the_least_load(
        loads in prop::collection::vec((1u16..=256, 0u64..1000), 1..8)
    ) {
        let candidates: Vec<_> = (loads.iter().enumerate())
            .map(|(i, &(weight, active))| Candidate { name: NAMES[i], weight, active })
            .collect();
        let mut policy = build(PolicyKind::LeastConnections);
        let chosen = policy.choose(Duration::ZERO, &subject("/"), &candidates).unwrap();
        let load = |c: &Candidate<'_>| c.active as f64 / f64::from(c.weight);
        prop_assert!(candidates.iter().all(|c| load(c) >= load(&candidates[chosen]) - 1e-9));
    }

    /// Thaler and Ravishankar's property, and Schindelhauer's: a backend that goes
    /// or shrinks gives URLs away, and nobody else moves.
    #[test]
    fn hrw_moves_only_the_urls_of_the_one_that_changes(
        weights in prop::collection::vec(1u16..=256, 2..8), which in any::<prop::sample::Index>()
    ) {
        let before = with_weights(&weights);
        let which = which.index(weights.len());
        let mut less = weights.clone();
        for weight in [less[which] / 2, 0] {
            less[which] = weight;
            let after = with_weights(&less);
            for i in 0..50 {
                let url = format!("/{i}");
                let was = choose_hrw(&url, &before);
                if was != NAMES[which] {
                    prop_assert_eq!(choose_hrw(&url, &after), was);
                }
            }
        }
    }

    #[test]
    fn hrw_does_not_care_for_the_order(weights in prop::collection::vec(1u16..=256, 2..8), url in "/[a-z]{0,8}") {
        let candidates = with_weights(&weights);
        let reversed: Vec<_> = candidates.iter().rev().copied().collect();
        prop_assert_eq!(choose_hrw(&url, &candidates), choose_hrw(&url, &reversed));
    }
}

#[test]
fn round_robin_is_smooth() {
    let mut policy = build(PolicyKind::RoundRobin);
    let candidates = with_weights(&[5, 1, 1]);
    let order: String = (0..7)
        .map(|_| {
            NAMES[policy
                .choose(Duration::ZERO, &subject("/"), &candidates)
                .unwrap()]
        })
        .collect();
    assert_eq!(order, "aabacaa"); // as nginx's documentation of its change says
}

/// One that is away every other time keeps its place in the rotation.
#[test]
fn round_robin_does_not_starve_one_that_flaps() {
    let mut policy = build(PolicyKind::RoundRobin);
    let candidates = with_weights(&[1, 1, 1]);
    let mut chosen = [0; 3];
    for i in 0..6000 {
        let present = if i % 2 == 0 {
            &candidates[..]
        } else {
            &candidates[..2]
        };
        chosen[policy
            .choose(Duration::ZERO, &subject("/"), present)
            .unwrap()] += 1;
    }
    assert!(chosen.iter().all(|&n| n > 900), "{chosen:?}");
}

#[test]
fn least_connections_rotates_among_equals() {
    let mut policy = build(PolicyKind::LeastConnections);
    let candidates = with_weights(&[1, 2, 1]);
    assert_eq!(counts(&mut *policy, &candidates, 40), [10, 20, 10]);
}

#[test]
fn least_connections_fills_by_weight() {
    let mut policy = build(PolicyKind::LeastConnections);
    let mut candidates = with_weights(&[1, 3]);
    for _ in 0..400 {
        let chosen = policy
            .choose(Duration::ZERO, &subject("/"), &candidates)
            .unwrap();
        candidates[chosen].active += 1;
    }
    assert_eq!([candidates[0].active, candidates[1].active], [100, 300]);
}

#[test]
fn hrw_shares_urls_by_weight() {
    let weights = [1, 2, 5, 0, 256];
    let candidates = with_weights(&weights);
    let draws = 100_000;
    let mut chosen: HashMap<&str, usize> = HashMap::new();
    for i in 0..draws {
        *chosen
            .entry(choose_hrw(&format!("/{i}"), &candidates))
            .or_default() += 1;
    }
    let total: f64 = weights.iter().map(|&w| f64::from(w)).sum();
    for (name, weight) in NAMES.iter().zip(weights) {
        let expected = f64::from(draws) * f64::from(weight) / total;
        let found = *chosen.get(name).unwrap_or(&0) as f64;
        // Four standard deviations of a binomial count.
        assert!(
            (found - expected).abs() <= 4.0 * expected.sqrt(),
            "{name}: {found}, {expected}"
        );
    }
}

/// Dispatchers of different versions work side by side: these never change.
#[test]
fn hashes_and_choices_are_the_same_in_every_version() {
    assert_eq!(subject("/").url_hash(), URL_HASH);
    let candidates = with_weights(&[1, 2, 3, 4]);
    let chosen: String = (0..16)
        .map(|i| choose_hrw(&format!("/{i}"), &candidates))
        .collect();
    assert_eq!(chosen, CHOICES);
}

const URL_HASH: u64 = 7_033_962_182_377_538_904;
const CHOICES: &str = "ddbcbaccdbdcaabd";

#[test]
fn the_url_is_host_path_and_query_else_the_clients_address() {
    let client = "192.0.2.1:4000".parse().unwrap();
    let url = |host, path: &'static str, query: Option<&'static str>| {
        Subject {
            host,
            path: path.as_bytes(),
            query: query.map(str::as_bytes),
            client,
        }
        .url_hash()
    };
    let hashes: HashSet<u64> = [
        url("a", "/", None),
        url("b", "/", None),
        url("a", "/b", None),
        url("a", "/", Some("")),
        url("a", "/", Some("b")),
        url("a", "", None),
        url("", "/", None),
    ]
    .into();
    assert_eq!(hashes.len(), 7);
    let unnamed = |client: &str| Subject::of(&Asked::H2Preface, client.parse().unwrap()).url_hash();
    assert_eq!(unnamed("192.0.2.1:1"), unnamed("192.0.2.1:2"));
    assert_ne!(unnamed("192.0.2.1:1"), unnamed("192.0.2.2:1"));
}

const NAMES: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];

fn with_weights(weights: &[u16]) -> Vec<Candidate<'static>> {
    (weights.iter().zip(NAMES))
        .map(|(&weight, name)| Candidate {
            name,
            weight,
            active: 0,
        })
        .collect()
}

fn subject(path: &str) -> Subject<'_> {
    let client = SocketAddr::from(([192, 0, 2, 1], 4000));
    Subject {
        host: "a.example",
        path: path.as_bytes(),
        query: None,
        client,
    }
}

fn counts(policy: &mut dyn Policy, candidates: &[Candidate<'_>], rounds: usize) -> Vec<usize> {
    let mut counts = vec![0; candidates.len()];
    for _ in 0..rounds {
        if let Some(chosen) = policy.choose(Duration::ZERO, &subject("/"), candidates) {
            counts[chosen] += 1;
        }
    }
    counts
}

fn choose_hrw(path: &str, candidates: &[Candidate<'static>]) -> &'static str {
    let chosen = build(PolicyKind::Hrw).choose(Duration::ZERO, &subject(path), candidates);
    candidates[chosen.unwrap()].name
}
