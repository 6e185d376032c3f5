//! CAWLL, content-aware weighted least load [LVSCAD07 §5.1]: the backend whose
//! unfinished requests cost least for its weight, by what their kinds cost. It asks
//! neither where a connection is nor what is cached.

use std::time::Duration;

use super::least::Least;
use super::{BackendId, Backends, Policy, Request, load};
use crate::config::PolicyKind;

#[derive(Debug, Default)]
pub(super) struct Cawll {
    least: Least,
}

impl Policy for Cawll {
    fn kind(&self) -> PolicyKind {
        PolicyKind::Cawll
    }

    fn choose(
        &mut self,
        _now: Duration,
        _request: &Request,
        backends: &Backends,
    ) -> Option<BackendId> {
        self.least.next(backends, load::cost)
    }

    fn placed(
        &mut self,
        _now: Duration,
        _request: &Request,
        backends: &Backends,
        chosen: BackendId,
    ) {
        self.least.took(backends, chosen, load::cost);
    }
}
