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

/// The least load that an open backend has for its weight, as it would be for one of
/// mean weight.
pub(super) fn lowest(backends: &Backends, load: impl Fn(&Candidate) -> u64) -> f64 {
    let lower = |a, b| if order(b, a, &load).is_lt() { b } else { a };
    backends.open().iter().reduce(lower).map_or(0.0, |c| {
        let mean = backends.weight_total() as f64 / backends.open().len() as f64;
        load(c) as f64 * mean / f64::from(c.weight)
    })
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
    c.cost_us.min(LONG_US)
}

/// Twelve days: more makes no difference, and products with two weights stay within 64
/// bits.
const LONG_US: u64 = 1 << 40;

/// Unfinished microseconds, and so many more of a backend of mean weight; all of it
/// times the mean weight, rounded, which is the same for all.
pub(super) fn cost_with(c: &Candidate, more_us: u64, backends: &Backends) -> u64 {
    cost(c) * backends.mean_weight() + more_us.min(LONG_US) * u64::from(c.weight)
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
