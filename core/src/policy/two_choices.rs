//! The power of two choices (M. Mitzenmacher, IEEE TPDS 12(10), 2001): of two
//! backends drawn at random, by weight, the less loaded one. Many dispatchers that
//! count only their own requests do not all run to the same backend.

use std::time::Duration;

use super::felt::Felt;
use super::hash::mix;
use super::{BackendId, Backends, Candidate, Policy, Request, load};
use crate::config::PolicyKind;

#[derive(Debug)]
pub(super) struct TwoChoices {
    seed: u64,
    draws: u64,
}

impl TwoChoices {
    pub(super) fn new(seed: u64) -> Self {
        TwoChoices { seed, draws: 0 }
    }
}

impl Policy for TwoChoices {
    fn kind(&self) -> PolicyKind {
        PolicyKind::TwoChoices
    }

    fn choose(
        &mut self,
        _now: Duration,
        _request: &Request,
        backends: &Backends,
    ) -> Option<BackendId> {
        let draw = mix(self.seed ^ mix(self.draws.wrapping_add(1)));
        let total = backends.weight_total();
        let (one, before) = at(scale(draw as u32, total), backends)?;
        let weight = u64::from(one.weight);
        if weight == total {
            return Some(one.id);
        }
        // Of the others: its own part is cut out.
        let point = scale((draw >> 32) as u32, total - weight);
        let point = if point < before {
            point
        } else {
            point + weight
        };
        let (other, _) = at(point, backends)?;
        let felt = Felt::by(backends);
        let less = load::order(other, one, |c| felt.load(c)).is_lt();
        Some(if less { other.id } else { one.id })
    }

    fn placed(
        &mut self,
        _now: Duration,
        _request: &Request,
        _backends: &Backends,
        _chosen: BackendId,
    ) {
        self.draws += 1;
    }
}

/// The backend whose part of the sum of weights `point` falls into, and where that
/// part begins.
fn at(point: u64, backends: &Backends) -> Option<(&Candidate, u64)> {
    let mut before = 0;
    for c in backends.open() {
        if point < before + u64::from(c.weight) {
            return Some((c, before));
        }
        before += u64::from(c.weight);
    }
    None
}

/// A number below `bound`, for any 32 bits.
fn scale(bits: u32, bound: u64) -> u64 {
    (u64::from(bits) * bound) >> 32
}
