//! Least connections, weighted (LVS's WLC): the backend with the fewest unfinished
//! requests for its weight. Equals take turns, so that an idle cluster does not
//! send everything to its first backend.

use std::cmp::Ordering;
use std::time::Duration;

use super::round_robin::RoundRobin;
use super::{BackendId, Backends, Candidate, Policy, Request};
use crate::config::PolicyKind;

#[derive(Debug, Default)]
pub(super) struct LeastConnections {
    turns: RoundRobin,
}

impl Policy for LeastConnections {
    fn kind(&self) -> PolicyKind {
        PolicyKind::LeastConnections
    }

    fn choose(
        &mut self,
        _now: Duration,
        _request: &Request,
        backends: &Backends,
    ) -> Option<BackendId> {
        let least = *backends.open().iter().min_by(|a, b| by_load(a, b))?;
        self.turns.next(backends, |c| by_load(c, &least).is_eq())
    }

    fn placed(
        &mut self,
        _now: Duration,
        _request: &Request,
        backends: &Backends,
        chosen: BackendId,
    ) {
        // Those that it was equal to have waited a turn.
        if let Some(&taker) = backends.get_open(chosen) {
            self.turns
                .took(backends, chosen, |c| by_load(c, &taker).is_eq());
        }
    }
}

/// Compares outstanding/weight without dividing; both weights are above zero.
fn by_load(a: &Candidate, b: &Candidate) -> Ordering {
    let a_scaled = u64::from(a.outstanding) * u64::from(b.weight);
    let b_scaled = u64::from(b.outstanding) * u64::from(a.weight);
    a_scaled.cmp(&b_scaled)
}
