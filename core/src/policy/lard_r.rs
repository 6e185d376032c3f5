//! LARD/R, LARD with replication (V. Pai et al., ASPLOS 1998, figure 3): an object
//! has a set of backends, which grows when its least loaded member is overloaded and
//! shrinks when nothing has changed for some time.

use std::time::Duration;

use super::lard::{LardParameters, least_loaded};
use super::server_sets::ServerSets;
use super::{BackendId, Backends, Memory, Policy, Request, load};
use crate::config::PolicyKind;

/// LARD/R's parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LardRParameters {
    /// Thresholds and memory (43 bytes an object), as LARD has them.
    pub lard: LardParameters,
    /// K: a set that has not changed for longer loses a member (1 ms..=1 d; default
    /// 20 s).
    pub k: Duration,
}

impl Default for LardRParameters {
    fn default() -> Self {
        LardRParameters {
            lard: LardParameters::default(),
            k: Duration::from_secs(20),
        }
    }
}

#[derive(Debug)]
pub(super) struct LardR {
    parameters: LardRParameters,
    sets: ServerSets,
}

impl LardR {
    pub(super) fn new(parameters: LardRParameters) -> Self {
        LardR {
            parameters,
            sets: ServerSets::new(parameters.lard.objects),
        }
    }
}

impl Policy for LardR {
    fn kind(&self) -> PolicyKind {
        PolicyKind::LardR
    }

    fn choose(
        &mut self,
        _now: Duration,
        request: &Request,
        backends: &Backends,
    ) -> Option<BackendId> {
        let set = self.sets.get(request.object);
        match load::least(request.object, set.open(backends), load::requests) {
            Some(n) if !self.parameters.lard.overloaded(n, backends) => Some(n.id),
            _ => least_loaded(request, backends),
        }
    }

    fn placed(&mut self, now: Duration, request: &Request, backends: &Backends, chosen: BackendId) {
        let k = self.parameters.k;
        (self.sets).placed(now, request.object, backends, chosen, k, load::requests);
    }

    fn admits(&self, backends: &Backends) -> Option<u64> {
        self.parameters.lard.admits(backends)
    }

    fn memory(&self) -> Memory {
        self.sets.memory()
    }
}
