//! Comparing loads: relative to weights, without dividing.

use std::cmp::Ordering;

use super::{Backends, Candidate, hrw};

/// The candidate with the least load for its weight. Of equals, the object draws one:
/// so an idle cluster does not send everything to its first backend, and dispatchers
/// that have heard nothing of each other choose alike.
pub(super) fn least<'a>(
    object: u64,
    candidates: impl Iterator<Item = &'a Candidate> + Clone,
    load: impl Fn(&Candidate) -> u64,
) -> Option<&'a Candidate> {
    let mut least: Option<(u64, &Candidate)> = None;
    let mut equals = 0;
    for c in candidates.clone() {
        let own = load(c);
        match least {
            Some((lowest, holder)) => {
                let (a, b) = (scaled(own, holder), scaled(lowest, c));
                if a < b {
                    (least, equals) = (Some((own, c)), 1);
                } else if a == b {
                    equals += 1;
                }
            }
            None => (least, equals) = (Some((own, c)), 1),
        }
    }
    let (lowest, holder) = least?;
    if equals == 1 {
        return Some(holder);
    }
    let equal = |c: &&Candidate| scaled(load(c), holder) == scaled(lowest, c);
    hrw::winner(object, candidates.filter(equal))
}

/// The candidate with the most load for its weight; the first of equals.
pub(super) fn most<'a>(
    candidates: impl Iterator<Item = &'a Candidate>,
    load: impl Fn(&Candidate) -> u64,
) -> Option<&'a Candidate> {
    candidates.reduce(|most, c| {
        if scaled(load(c), most) > scaled(load(most), c) {
            c
        } else {
            most
        }
    })
}

/// Compares two candidates' loads for their weights.
pub(super) fn order(a: &Candidate, b: &Candidate, load: impl Fn(&Candidate) -> u64) -> Ordering {
    scaled(load(a), b).cmp(&scaled(load(b), a))
}

/// Unfinished requests.
pub(super) fn requests(c: &Candidate) -> u64 {
    c.outstanding.into()
}

/// Estimated microseconds of unfinished requests.
pub(super) fn cost(c: &Candidate) -> u64 {
    // A year. Sums and products with weights stay within 64 bits.
    c.cost_us.min(1 << 45)
}

/// Where the candidate's load stands to a threshold that is meant for a backend of
/// mean weight.
pub(super) fn compare(load: u64, c: &Candidate, threshold: u64, backends: &Backends) -> Ordering {
    let scaled_load = u128::from(load) * u128::from(backends.weight_total());
    let share = u128::from(c.weight) * backends.open().len() as u128;
    scaled_load.cmp(&(u128::from(threshold) * share))
}

/// Loads are compared crosswise: a/w < b/v is av < bw.
fn scaled(load: u64, other: &Candidate) -> u64 {
    load * u64::from(other.weight)
}
