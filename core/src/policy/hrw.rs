//! Highest random weight [LACP03; D. Thaler, C. Ravishankar, "Using name-based
//! mappings to increase hit rates", IEEE/ACM ToN 6(1), 1998]: every backend draws
//! a number from URL and name, the highest wins. Without any state, all
//! dispatchers send a URL to the same backend, and when a backend goes, only the
//! URLs that it had move.

use std::time::Duration;

use super::hash::mix;
use super::{BackendId, Backends, Candidate, Policy, Request, Stands};
use crate::config::PolicyKind;

#[derive(Debug, Default)]
pub(super) struct Hrw;

impl Policy for Hrw {
    fn kind(&self) -> PolicyKind {
        PolicyKind::Hrw
    }

    fn stands(&self) -> Stands {
        Stands::ByUrl
    }

    fn choose(
        &mut self,
        _now: Duration,
        request: &Request,
        backends: &Backends,
    ) -> Option<BackendId> {
        winner(request.object, backends.open()).map(|c| c.id)
    }
}

/// Who wins the draw for the key; all have a weight.
///
/// A draw is -ln(u)/weight for u from (0, 1): exponentially distributed with the
/// weight as its rate, so that each is the smallest with a probability in
/// proportion to its weight (J. Schindelhauer, G. Schomaker, "Weighted
/// distributed hash tables", SPAA 2005). A changed weight moves no key between
/// the others.
pub(super) fn winner<'a>(
    key: u64,
    candidates: impl IntoIterator<Item = &'a Candidate>,
) -> Option<&'a Candidate> {
    let mut best: Option<(f64, &Candidate)> = None;
    // Above the least cost so far, for a weight of 1, in units of 2^-32.
    let mut limit = u64::MAX >> 9;
    for c in candidates {
        let draw = mix(key ^ c.name_hash);
        // -ln(u) > 1 - u spares nearly all logarithms, and for most backends it is seen
        // by the upper 32 bits alone.
        if !draw >> 32 > limit * u64::from(c.weight) {
            continue;
        }
        // The upper 53 bits, in the middle of their interval: never 0, never 1.
        let u = ((draw >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
        let weight = f64::from(c.weight);
        // One term more of the same series.
        let v = 1.0 - u;
        if best.is_some_and(|(least, _)| v + v * v / 2.0 > least * weight) {
            continue;
        }
        let cost = -ln(u) / weight;
        // Hashes of names decide the draws that are alike, whatever the order.
        let wins = |(least, winner): (f64, &Candidate)| {
            cost < least || cost == least && c.name_hash < winner.name_hash
        };
        if best.is_none_or(wins) {
            best = Some((cost, c));
            limit = (cost * (1u64 << 32) as f64) as u64 + 2;
        }
    }
    best.map(|(_, c)| c)
}

/// The natural logarithm for 0 < u < 1, by operations that IEEE 754 rounds in one
/// way only: the last bit of `f64::ln` may differ between machines, and
/// dispatchers have to agree.
fn ln(u: f64) -> f64 {
    let bits = u.to_bits();
    let mut exponent = (bits >> 52) as i32 - 1023;
    let mut mantissa = f64::from_bits(bits & ((1 << 52) - 1) | 1023 << 52);
    if mantissa > std::f64::consts::SQRT_2 {
        mantissa /= 2.0;
        exponent += 1;
    }
    // ln m = 2 artanh((m-1)/(m+1)); |s| < 0.172, so that s^17 is beyond what counts.
    let s = (mantissa - 1.0) / (mantissa + 1.0);
    let s2 = s * s;
    let mut sum = 0.0;
    for term in SERIES {
        sum = sum * s2 + term;
    }
    2.0 * s * sum + f64::from(exponent) * std::f64::consts::LN_2
}

const SERIES: [f64; 8] = [
    1.0 / 15.0,
    1.0 / 13.0,
    1.0 / 11.0,
    1.0 / 9.0,
    1.0 / 7.0,
    1.0 / 5.0,
    1.0 / 3.0,
    1.0,
];

#[cfg(test)]
mod tests {
    use super::ln;

    #[test]
    fn our_logarithm_is_the_logarithm() {
        for i in 1..100_000u32 {
            let u = f64::from(i) / 100_000.0;
            assert!((ln(u) - u.ln()).abs() <= 1e-12 * u.ln().abs(), "{u}");
        }
        assert!((ln(0.5f64.powi(54)) - 0.5f64.powi(54).ln()).abs() < 1e-10);
    }
}
