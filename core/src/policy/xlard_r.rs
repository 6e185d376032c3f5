//! xLARD/R [LVSCAD07 §5.2, figures 13 and 14]: LARD/R whose loads are costs, with what
//! a handoff and a read from disk add. An object gets another backend only where
//! that costs less than waiting.
//!
//! ```text
//! load_A = total_load + request + handoff            of one that has the object
//! load_B = total_load + request + handoff + disk     of one that has not
//! load_C = total_load + request                      to find who has most
//! ```
//! Who has little is found by total_load: figure 13 lets load_C ignore the request.
//! handoff is 0 for the backend that has the connection, disk for one in the set.
//! The paper compares these as they are. Where weights differ, total_load is taken for
//! its weight and the rest as it costs a backend of mean weight, so that weights are
//! shares of the load.

use std::time::Duration;

use super::scale::Scale;
use super::server_sets::{ServerSet, ServerSets};
use super::{BackendId, Backends, Candidate, Finished, Memory, Policy, Request, load};
use crate::config::PolicyKind;

/// xLARD/R's parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XlardRParameters {
    /// What a handoff costs, in packets of an answer (0..=100,000; default 20, the
    /// paper's).
    pub handoff_cost: u32,
    /// What a read from disk costs, in costs of the request (0..=100,000; default 10,
    /// the paper's).
    pub disk_cost: u32,
    /// The load at which a backend of mean weight is overloaded, in mean costs of a
    /// request (1..=65535; default 24). Below half of it a backend has resources to spare.
    /// The paper calls it the backend's weight, says that weights are set where hardware
    /// differs (§5.1), and measures on equal hardware: LVS's default is 1, so that an
    /// object may move only when somebody is wholly idle. On servers with many users
    /// nobody ever is, and uneven queues stay as they are. 24 is twice what a read and a
    /// handoff cost: who is overloaded waits for longer, beside one with resources to
    /// spare, than moving costs.
    pub t_high: u32,
    /// K: a set that has not changed for longer loses a member (1 ms..=1 d; default
    /// 20 s, LARD/R's).
    pub k: Duration,
    /// Objects that are remembered (1..=100,000,000; default a million), 43 bytes each.
    pub objects: usize,
}

impl Default for XlardRParameters {
    fn default() -> Self {
        XlardRParameters {
            handoff_cost: 20,
            disk_cost: 10,
            t_high: 24,
            k: Duration::from_secs(20),
            objects: super::OBJECTS,
        }
    }
}

#[derive(Debug)]
pub(super) struct XlardR {
    parameters: XlardRParameters,
    sets: ServerSets,
    scale: Scale,
}

impl XlardR {
    pub(super) fn new(parameters: XlardRParameters) -> Self {
        XlardR {
            parameters,
            sets: ServerSets::new(parameters.objects),
            scale: Scale::default(),
        }
    }

    /// CAHRD placed a dynamic request: it is one of those whose mean cost counts.
    pub(super) fn dynamic_placed(&mut self, request: &Request) {
        self.scale.placed(request);
    }

    /// What a handoff to the candidate adds, in microseconds of service; nothing if it
    /// has the connection, or if nobody has.
    pub(super) fn handoff(&self, request: &Request, c: &Candidate) -> u64 {
        match request.current {
            Some(current) if current != c.id => {
                (f64::from(self.parameters.handoff_cost) * self.scale.packet_us()) as u64
            }
            _ => 0,
        }
    }

    /// Lines 7 and 8 of figure 14, with `t_high` for the weight. An idle backend is below
    /// half of the least one, as in LVS's own scheduler of this form (lblcr), which the
    /// paper's system has.
    fn overloaded(&self, n: &Candidate, load_a: u64, backends: &Backends) -> bool {
        let high = (f64::from(self.parameters.t_high) * self.scale.request_us()) as u64;
        let below = |load: u64, c: &Candidate, limit: u64| load < limit * u64::from(c.weight);
        let idle = |l: &Candidate| below(load::cost_with(l, 0, backends), l, high.div_ceil(2));
        !below(load_a, n, high + 1) && backends.open().iter().any(idle)
    }

    fn least_load_b(
        &self,
        request: &Request,
        set: &ServerSet,
        backends: &Backends,
    ) -> Option<BackendId> {
        let disk = u64::from(self.parameters.disk_cost) * request_cost(request);
        let load_b = |c: &Candidate| {
            let read = if set.contains(c.id) { 0 } else { disk };
            let more = request_cost(request) + self.handoff(request, c) + read;
            load::cost_with(c, more, backends)
        };
        load::least(request.object, backends.open().iter(), load_b).map(|p| p.id)
    }

    fn load_a(&self, request: &Request, c: &Candidate, backends: &Backends) -> u64 {
        let more = request_cost(request) + self.handoff(request, c);
        load::cost_with(c, more, backends)
    }
}

impl Policy for XlardR {
    fn kind(&self) -> PolicyKind {
        PolicyKind::XlardR
    }

    fn choose(
        &mut self,
        _now: Duration,
        request: &Request,
        backends: &Backends,
    ) -> Option<BackendId> {
        let set = self.sets.get(request.object);
        let load_a = |c: &Candidate| self.load_a(request, c, backends);
        match load::least(request.object, set.open(backends), load_a) {
            Some(n) if !self.overloaded(n, load_a(n), backends) => Some(n.id),
            _ => self.least_load_b(request, &set, backends),
        }
    }

    fn placed(&mut self, now: Duration, request: &Request, backends: &Backends, chosen: BackendId) {
        self.scale.placed(request);
        let k = self.parameters.k;
        let load_c = |c: &Candidate| load_c(request, c, backends);
        (self.sets).placed(now, request.object, backends, chosen, k, load_c);
    }

    fn finished(&mut self, _now: Duration, finished: &Finished) {
        self.scale.finished(finished);
    }

    fn charge(&self, request: &Request, _backends: &Backends, _chosen: BackendId) -> u64 {
        request_cost(request)
    }

    fn memory(&self) -> Memory {
        self.sets.memory()
    }
}

fn load_c(request: &Request, c: &Candidate, backends: &Backends) -> u64 {
    load::cost_with(c, request_cost(request), backends)
}

/// A cost that nobody knows counts as one, so that requests are counted at least.
fn request_cost(request: &Request) -> u64 {
    request.cost_us.max(1).into()
}
