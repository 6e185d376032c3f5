//! Highest random weight [LACP03; D. Thaler, C. Ravishankar, "Using name-based
//! mappings to increase hit rates", IEEE/ACM ToN 6(1), 1998]: every backend draws
//! a number from URL and name, the highest wins. Without any state, all
//! dispatchers send a URL to the same backend, and when a backend goes, only the
//! URLs that it had move.

use std::time::Duration;

use super::hash::{Hasher, mix};
use super::{Candidate, Policy, Subject};
use crate::config::PolicyKind;

#[derive(Clone, Debug, Default)]
pub(super) struct Hrw;

impl Policy for Hrw {
    fn kind(&self) -> PolicyKind {
        PolicyKind::Hrw
    }

    fn clone_box(&self) -> Box<dyn Policy> {
        Box::new(self.clone())
    }

    fn choose(
        &mut self,
        _now: Duration,
        subject: &Subject<'_>,
        candidates: &[Candidate<'_>],
    ) -> Option<usize> {
        let url = subject.url_hash();
        (candidates.iter().enumerate())
            .filter(|(_, c)| c.weight > 0)
            .map(|(i, c)| (i, c.name, cost(url, c)))
            // Names decide the draws that are alike, whatever the order of candidates.
            .min_by(|(_, a, x), (_, b, y)| x.total_cmp(y).then_with(|| a.cmp(b)))
            .map(|(i, ..)| i)
    }
}

/// -ln(u)/weight for u drawn from (0, 1): exponentially distributed with the
/// weight as its rate, so that each is the smallest with a probability in
/// proportion to its weight (J. Schindelhauer, G. Schomaker, "Weighted
/// distributed hash tables", SPAA 2005). A changed weight moves no URL between
/// the others.
fn cost(url: u64, candidate: &Candidate<'_>) -> f64 {
    let mut hasher = Hasher::default();
    hasher.write(candidate.name.as_bytes());
    let draw = mix(url ^ hasher.finish());
    // The upper 53 bits, in the middle of their interval: never 0, never 1.
    let u = ((draw >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
    -ln(u) / f64::from(candidate.weight)
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
    for odd in (1..=15).rev().step_by(2) {
        sum = sum * s2 + 1.0 / f64::from(odd);
    }
    2.0 * s * sum + f64::from(exponent) * std::f64::consts::LN_2
}

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
