//! Cache prediction [LACP03, "A hybrid locality-aware algorithm based on cache
//! prediction"; its figure is lost]: of the backends that probably have the object in
//! memory, the least loaded; if none has, the least loaded of all.

use std::time::Duration;

use super::cache_model::{CacheModel, CacheParameters, Copies};
use super::lard::least_loaded;
use super::{BackendId, Backends, Finished, Memory, Policy, Request, load};
use crate::config::PolicyKind;

#[derive(Debug)]
pub(super) struct CachePrediction {
    model: CacheModel,
}

impl CachePrediction {
    pub(super) fn new(parameters: CacheParameters) -> Self {
        CachePrediction {
            model: CacheModel::new(parameters),
        }
    }
}

impl Policy for CachePrediction {
    fn kind(&self) -> PolicyKind {
        PolicyKind::CachePrediction
    }

    fn choose(
        &mut self,
        _now: Duration,
        request: &Request,
        backends: &Backends,
    ) -> Option<BackendId> {
        least_with_copy(&self.model.copies(request.object), request, backends)
    }

    fn placed(
        &mut self,
        _now: Duration,
        request: &Request,
        _backends: &Backends,
        chosen: BackendId,
    ) {
        self.model.placed(request.object, chosen);
    }

    fn finished(&mut self, _now: Duration, finished: &Finished) {
        self.model.finished(finished);
    }

    fn lost(&mut self, _now: Duration, request: &Request, backend: BackendId) {
        self.model.lost(request.object, backend);
    }

    fn memory(&self) -> Memory {
        self.model.memory()
    }
}

pub(super) fn least_with_copy(
    copies: &Copies,
    request: &Request,
    backends: &Backends,
) -> Option<BackendId> {
    load::least(request.object, copies.open(backends), load::requests)
        .map(|c| c.id)
        .or_else(|| least_loaded(request, backends))
}
