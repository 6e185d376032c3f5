//! Least connections, weighted (LVS's WLC): the backend with the fewest unfinished
//! requests for its weight.

use std::time::Duration;

use super::least::Least;
use super::{BackendId, Backends, Policy, Request, load};
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
        self.least.next(backends, load::requests)
    }

    fn placed(
        &mut self,
        _now: Duration,
        _request: &Request,
        backends: &Backends,
        chosen: BackendId,
    ) {
        self.least.took(backends, chosen, load::requests);
    }
}
