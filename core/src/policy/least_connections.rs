//! Least connections, weighted (LVS's WLC): the backend with the fewest unfinished
//! requests for its weight, where its agent does not say that it is busier than that.

use std::time::Duration;

use super::felt::Felt;
use super::least::Least;
use super::{BackendId, Backends, Policy, Request};
use crate::config::PolicyKind;

#[derive(Debug, Default)]
pub(super) struct LeastConnections {
    least: Least,
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
        let felt = Felt::by(backends);
        self.least.next(backends, |c| felt.load(c))
    }

    fn placed(
        &mut self,
        _now: Duration,
        _request: &Request,
        backends: &Backends,
        chosen: BackendId,
    ) {
        let felt = Felt::by(backends);
        self.least.took(backends, chosen, |c| felt.load(c));
    }
}
