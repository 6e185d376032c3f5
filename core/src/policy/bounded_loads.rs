//! Consistent hashing with bounded loads (V. Mirrokni, M. Thorup, M. Zadimoghaddam,
//! SODA 2018): an object stays with the backend that its hash names, unless that has
//! more than c times its share of all unfinished requests; then the next one has it.
//!
//! Who is next is drawn by highest random weight, not read off a ring: a ring gives all
//! of a full backend's overflow to its one neighbour, and weights need many points.

use std::time::Duration;

use super::{BackendId, Backends, Policy, Request, hrw};
use crate::config::PolicyKind;

/// Parameters of consistent hashing with bounded loads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BoundedLoadsParameters {
    /// How much more than its share a backend may have (1.01..=100; default 1.25).
    pub c: f64,
}

impl Default for BoundedLoadsParameters {
    fn default() -> Self {
        BoundedLoadsParameters { c: 1.25 }
    }
}

#[derive(Debug)]
pub(super) struct BoundedLoads {
    parameters: BoundedLoadsParameters,
}

impl BoundedLoads {
    pub(super) fn new(parameters: BoundedLoadsParameters) -> Self {
        BoundedLoads { parameters }
    }
}

impl Policy for BoundedLoads {
    fn kind(&self) -> PolicyKind {
        PolicyKind::BoundedLoads
    }

    fn choose(
        &mut self,
        _now: Duration,
        request: &Request,
        backends: &Backends,
    ) -> Option<BackendId> {
        let outstanding: u64 = backends
            .open()
            .iter()
            .map(|c| u64::from(c.outstanding))
            .sum();
        // What each unit of weight may have once this request is placed.
        let bound =
            self.parameters.c * (outstanding + 1) as f64 / backends.weight_total().max(1) as f64;
        // A whole number is below another one's ceiling as soon as it is below that.
        let has_room = |load: u32, weight: u16| f64::from(load) < bound * f64::from(weight);
        let with_room = backends
            .open()
            .iter()
            .filter(|c| has_room(c.outstanding, c.weight));
        hrw::winner(request.object, with_room).map(|c| c.id)
    }
}
