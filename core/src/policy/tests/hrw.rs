//! Highest random weight.

use super::*;

proptest! {
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
                let was = choose(i, &before);
                if was.index() != which {
                    prop_assert_eq!(choose(i, &after), was);
                }
            }
        }
    }

    #[test]
    fn hrw_does_not_care_for_the_order(weights in prop::collection::vec(1u16..=256, 2..8), object: u64) {
        let backends = with_weights(&weights);
        let reversed = Backends::new(backends.open().iter().rev().copied());
        prop_assert_eq!(choose(object, &backends), choose(object, &reversed));
    }
}

#[test]
fn hrw_shares_urls_by_weight() {
    let weights = [1, 2, 5, 0, 256];
    let backends = with_weights(&weights);
    let draws = 100_000;
    let mut chosen = [0u32; 5];
    for i in 0..draws {
        chosen[choose(i, &backends).index()] += 1;
    }
    let total: f64 = weights.iter().map(|&w| f64::from(w)).sum();
    for (&found, weight) in chosen.iter().zip(weights) {
        let expected = draws as f64 * f64::from(weight) / total;
        // Four standard deviations of a binomial count.
        let off = (f64::from(found) - expected).abs();
        assert!(off <= 4.0 * expected.sqrt(), "{found}, {expected}");
    }
}

/// Dispatchers of different versions work side by side: these never change.
#[test]
fn choices_are_the_same_in_every_version() {
    let backends = with_weights(&[1, 2, 3, 4]);
    let chosen: String = (0..16)
        .map(|i| {
            let path = format!("/{i}");
            let request = Request::of(&requests::subject(&path), None);
            NAMES[choose(request.object, &backends).index()]
        })
        .collect();
    assert_eq!(chosen, "ddbcbaccdbdcaabd");
}

fn choose(object: u64, backends: &Backends) -> BackendId {
    let mut policy = build(&PolicyConfig::Hrw, 0);
    policy
        .choose(Duration::ZERO, &static_file(object), backends)
        .unwrap()
}
