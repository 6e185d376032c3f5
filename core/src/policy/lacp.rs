//! LACP, locality-aware with cache prediction [LACP03]: by the load of the backend that
//! the object's hash names.
//!
//! ```text
//!            T_low              T_high
//!   HRW        |  cache prediction  |   least connections      load of its HRW backend
//! ```
//!
//! The paper sets both by hand and leaves a criterion open. Ours, where they are not
//! set, weighs what moving an object costs against what waiting does:
//!
//! - Up to the load that chance brings with an even share, nothing is gained by moving:
//!   T_low = m + √m + 1, m the mean load of backends.
//! - A backend that has the object in memory costs no more than its own one. One that
//!   has not costs a read from disk, which is as much as waiting behind
//!   g = (miss − hit) / mean requests, from the measured service times of misses, hits
//!   and all: T_high = least load + g, and above T_low.

use std::cmp::Ordering;
use std::time::Duration;

use super::cache_model::{CacheModel, CacheParameters};
use super::cache_prediction::least_with_copy;
use super::lard::least_loaded;
use super::{BackendId, Backends, Finished, Memory, Policy, Request, hrw, load};
use crate::config::PolicyKind;

/// LACP's parameters. Thresholds are unfinished requests of a backend of mean weight;
/// for another one they are in proportion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LacpParameters {
    /// Up to this load HRW decides (0..=1,000,000; default: by the rule).
    pub t_low: Option<u32>,
    /// From this load on, least connections (0..=1,000,000; default: by the rule).
    pub t_high: Option<u32>,
    /// The backends' memory.
    pub cache: CacheParameters,
}

#[derive(Debug)]
pub(super) struct Lacp {
    parameters: LacpParameters,
    model: CacheModel,
    hits: Mean,
    misses: Mean,
}

/// Of service times in microseconds, over the last 256 or so.
#[derive(Debug, Default)]
struct Mean {
    us: f64,
    count: f64,
}

/// A read from disk in costs of a request, before it is known [LVSCAD07 §5.2].
const USUAL_GAP: f64 = 10.0;
/// So many hits and misses make it known.
const ENOUGH: f64 = 32.0;

impl Lacp {
    pub(super) fn new(parameters: LacpParameters) -> Self {
        Lacp {
            parameters,
            model: CacheModel::new(parameters.cache),
            hits: Mean::default(),
            misses: Mean::default(),
        }
    }

    /// What chance brings with an even share.
    fn t_low(&self, backends: &Backends) -> f64 {
        self.parameters.t_low.map_or_else(
            || {
                let sum: u64 = backends.open().iter().map(load::requests).sum();
                let mean = sum as f64 / backends.open().len().max(1) as f64;
                mean + mean.sqrt() + 1.0
            },
            f64::from,
        )
    }

    /// The least load, and what a miss is worth; above T_low.
    fn t_high(&self, t_low: f64, backends: &Backends) -> f64 {
        self.parameters.t_high.map_or_else(
            || {
                let least = load::lowest(backends, load::requests);
                (least + self.gap()).max(t_low + 1.0)
            },
            f64::from,
        )
    }

    /// g: how many requests' service a miss costs more than a hit.
    fn gap(&self) -> f64 {
        if self.hits.count < ENOUGH || self.misses.count < ENOUGH {
            return USUAL_GAP;
        }
        let (hits, misses) = (self.hits.count, self.misses.count);
        let mean = (self.hits.us * hits + self.misses.us * misses) / (hits + misses);
        ((self.misses.us - self.hits.us) / mean.max(1.0)).clamp(1.0, 1000.0)
    }
}

impl Policy for Lacp {
    fn kind(&self) -> PolicyKind {
        PolicyKind::Lacp
    }

    fn choose(
        &mut self,
        _now: Duration,
        request: &Request,
        backends: &Backends,
    ) -> Option<BackendId> {
        // First, so that the processor fetches it while the hashes are computed.
        let copies = self.model.copies(request.object);
        let own = hrw::winner(request.object, backends.open())?;
        let stands = |threshold: f64| {
            // In thousandths, since thresholds have fractions.
            let threshold = (1000.0 * threshold) as u64;
            load::compare(1000 * load::requests(own), own, threshold, backends)
        };
        let t_low = self.t_low(backends);
        let below = stands(t_low) != Ordering::Greater;
        // By the rule T_high is above T_low, and need not be known.
        if below && self.parameters.t_high.is_none() {
            return Some(own.id);
        }
        // T_low = T_high = 0 is least connections, in the paper's table.
        if stands(self.t_high(t_low, backends)) != Ordering::Less {
            return least_loaded(request, backends);
        }
        if below {
            return Some(own.id);
        }
        least_with_copy(&copies, request, backends)
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
        let us = finished.service_us();
        match self.model.finished(finished) {
            Some(true) => self.misses.add(us),
            Some(false) => self.hits.add(us),
            None => {}
        }
    }

    fn lost(&mut self, _now: Duration, request: &Request, backend: BackendId) {
        self.model.lost(request.object, backend);
    }

    fn memory(&self) -> Memory {
        self.model.memory()
    }
}

impl Mean {
    fn add(&mut self, us: f64) {
        self.count = (self.count + 1.0).min(256.0);
        self.us += (us - self.us) / self.count;
    }
}
