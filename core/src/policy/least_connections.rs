//! Least connections, weighted: the backend with the fewest connections for its
//! weight. Equals take turns, so that an idle cluster does not send everything to
//! its first backend.

use std::cmp::Ordering;
use std::time::Duration;

use super::round_robin::RoundRobin;
use super::{Candidate, Policy, Subject};
use crate::config::PolicyKind;

#[derive(Clone, Debug, Default)]
pub(super) struct LeastConnections {
    turns: RoundRobin,
}

impl Policy for LeastConnections {
    fn kind(&self) -> PolicyKind {
        PolicyKind::LeastConnections
    }

    fn clone_box(&self) -> Box<dyn Policy> {
        Box::new(self.clone())
    }

    fn choose(
        &mut self,
        _now: Duration,
        _subject: &Subject<'_>,
        candidates: &[Candidate<'_>],
    ) -> Option<usize> {
        let least = (candidates.iter().filter(|c| c.weight > 0))
            .copied()
            .min_by(by_load)?;
        self.turns.next(candidates, |c| by_load(c, &least).is_eq())
    }
}

/// Compares active/weight without dividing; both weights are above zero.
fn by_load(a: &Candidate<'_>, b: &Candidate<'_>) -> Ordering {
    let a_scaled = u128::from(a.active) * u128::from(b.weight);
    let b_scaled = u128::from(b.active) * u128::from(a.weight);
    a_scaled.cmp(&b_scaled)
}
