//! LARD, locality-aware request distribution (V. Pai et al., "Locality-aware request
//! distribution in cluster-based network servers", ASPLOS 1998, figure 2): an object
//! stays with its backend until that is overloaded.

use std::cmp::Ordering;
use std::time::Duration;

use super::objects::Objects;
use super::{BackendId, Backends, Candidate, Memory, Policy, Request, load};
use crate::config::PolicyKind;

/// LARD's parameters. Thresholds are unfinished requests of a backend of mean weight;
/// for another one they are in proportion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LardParameters {
    /// Below this a backend has resources to spare (1..=65535; default 25).
    pub t_low: u32,
    /// Above this an object may move to one that has, and above twice this to any
    /// (1..=65535; default 65).
    pub t_high: u32,
    /// Objects that are remembered (1..=100,000,000; default a million), 22 bytes each.
    pub objects: usize,
}

/// The paper's values.
impl Default for LardParameters {
    fn default() -> Self {
        LardParameters {
            t_low: 25,
            t_high: 65,
            objects: super::OBJECTS,
        }
    }
}

impl LardParameters {
    /// Whether an object should get another backend than this one.
    pub(super) fn overloaded(&self, n: &Candidate, backends: &Backends) -> bool {
        let at = |c: &Candidate, threshold: u32| {
            load::compare(load::requests(c), c, threshold.into(), backends)
        };
        if at(n, 2 * self.t_high) != Ordering::Less {
            return true;
        }
        at(n, self.t_high) == Ordering::Greater
            && (backends.open().iter()).any(|c| at(c, self.t_low) == Ordering::Less)
    }

    /// S, the paper's limit on requests in all.
    pub(super) fn admits(&self, backends: &Backends) -> Option<u64> {
        let others = backends.open().len().checked_sub(1)? as u64;
        Some(others * u64::from(self.t_high) + u64::from(self.t_low) - 1)
    }
}

#[derive(Debug)]
pub(super) struct Lard {
    parameters: LardParameters,
    servers: Objects<BackendId>,
}

impl Lard {
    pub(super) fn new(parameters: LardParameters) -> Self {
        Lard {
            parameters,
            servers: Objects::new(parameters.objects),
        }
    }
}

impl Policy for Lard {
    fn kind(&self) -> PolicyKind {
        PolicyKind::Lard
    }

    fn choose(
        &mut self,
        _now: Duration,
        request: &Request,
        backends: &Backends,
    ) -> Option<BackendId> {
        let server = (self.servers.get(request.object)).and_then(|&id| backends.get_open(id));
        match server {
            Some(n) if !self.parameters.overloaded(n, backends) => Some(n.id),
            _ => least_loaded(request, backends),
        }
    }

    fn placed(
        &mut self,
        _now: Duration,
        request: &Request,
        _backends: &Backends,
        chosen: BackendId,
    ) {
        *self.servers.touch_or_insert(request.object) = chosen;
    }

    fn admits(&self, backends: &Backends) -> Option<u64> {
        self.parameters.admits(backends)
    }

    fn memory(&self) -> Memory {
        Memory {
            objects: self.servers.len(),
            objects_max: self.servers.max(),
            bytes: self.servers.bytes(),
        }
    }
}

pub(super) fn least_loaded(request: &Request, backends: &Backends) -> Option<BackendId> {
    load::least(request.object, backends.open().iter(), load::requests).map(|c| c.id)
}
