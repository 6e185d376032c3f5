//! What is remembered of a pool: its policy's tables, and what requests have cost.
//! It outlives a reload that leaves the pool as it is.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use trapeze_core::config;
use trapeze_core::policy::{
    self, BackendId, Backends, Class, CostModel, Finished, Kind, Policy, Request, Settled, Stands,
};
use trapeze_datapath::abi;

/// A pool's memory, shared by the configurations that have the pool.
#[derive(Clone)]
pub struct Memory(Arc<Mutex<Inner>>);

struct Inner {
    policy: Box<dyn Policy>,
    costs: CostModel,
    /// When what was told of last had ended.
    told: Duration,
    /// By slot, how many the data path had placed by what is settled.
    stood: HashMap<u32, u32>,
}

/// What a policy has made of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    pub request: Request,
    /// Microseconds of service that it adds to its backend until it is finished.
    pub charge_us: u32,
    /// Requests that the backend has now, this one included.
    pub shared: u32,
    /// Whether the policy wants to hear when it is finished.
    pub report: bool,
}

impl Placed {
    /// For a backend that nobody has asked a policy for, or one without memory.
    pub fn unnoticed(request: Request) -> Self {
        Self {
            request,
            charge_us: 0,
            shared: 1,
            report: false,
        }
    }
}

impl Memory {
    /// Of a pool that is new. Dispatchers have different seeds.
    pub fn new(pool: &config::Pool, seed: u64) -> Self {
        Self(Arc::new(Mutex::new(Inner {
            policy: policy::build(&pool.policy, seed),
            costs: CostModel::new(pool.costs),
            told: Duration::ZERO,
            stood: HashMap::new(),
        })))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().expect("no policy panics")
    }

    /// What of the policy's choices can stand.
    pub fn stands(&self) -> Stands {
        self.lock().policy.stands()
    }

    /// Who takes the request, remembered.
    pub fn place(
        &self,
        now: Duration,
        mut request: Request,
        backends: &Backends,
    ) -> Option<(BackendId, Placed)> {
        let Inner { policy, costs, .. } = &mut *self.lock();
        let report = !matches!(policy.stands(), Stands::ByUrl | Stands::ByTurns);
        if report {
            request.cost_us = costs.estimate(&request);
        }
        let chosen = policy::preview(&mut **policy, now, &request, backends)?;
        let charge = match report {
            true => policy.charge(&request, backends, chosen),
            false => 0,
        };
        policy.placed(now, &request, backends, chosen);
        let placed = Placed {
            request,
            charge_us: u32::try_from(charge).unwrap_or(u32::MAX),
            shared: backends.get(chosen).map_or(0, |b| b.outstanding) + 1,
            report,
        };
        Some((chosen, placed))
    }

    /// Where requests like this one, which has just been placed, may go without asking.
    pub fn settled(
        &self,
        now: Duration,
        request: &Request,
        backends: &Backends,
        chosen: BackendId,
    ) -> Option<Settled> {
        self.lock().policy.settled(now, request, backends, chosen)
    }

    /// So many were placed so in that time.
    pub fn settled_took(&self, request: &Request, count: u32, time: Duration) {
        self.lock().policy.settled_took(request, count, time);
    }

    /// As [`Self::place`], and nothing is remembered.
    pub fn preview(
        &self,
        now: Duration,
        mut request: Request,
        backends: &Backends,
    ) -> Option<BackendId> {
        let Inner { policy, costs, .. } = &mut *self.lock();
        request.cost_us = costs.estimate(&request);
        policy::preview(&mut **policy, now, &request, backends)
    }

    /// The data path tells how a request ended, some time ago; its backend has
    /// `outstanding` now.
    pub fn finished(&self, now: Duration, told: &abi::Finished, outstanding: u64) {
        let request = request_of(told.object, told.kind, told.class, told.charge_us);
        let backend = BackendId(told.slot as u16);
        let inner = &mut *self.lock();
        if told.ended_ns > 0 {
            inner.told = inner.told.max(Duration::from_nanos(told.ended_ns).min(now));
        }
        let Inner {
            policy,
            costs,
            told: ended,
            stood,
        } = inner;
        let before = stood.insert(told.slot, told.stood).unwrap_or(told.stood);
        // A report that was overtaken by a later one tells of none.
        let unheard = told.stood.wrapping_sub(before) as i32;
        if unheard > 0 {
            policy.settled_at(backend, unheard as u32);
        }
        if told.lost != 0 {
            return policy.lost(now, &request, backend);
        }
        let finished = Finished {
            request,
            backend,
            bytes: told.bytes & 0xffff_ffff,
            elapsed: Duration::from_nanos(told.elapsed_ns),
            // Between placing and now, on average.
            shared: (told.shared as f32 + outstanding as f32 + 1.0) / 2.0,
            hit: None,
        };
        costs.learn(&finished);
        policy.finished(*ended, &finished);
    }

    /// A request that was placed there is not answered there.
    pub fn lost(&self, now: Duration, request: &Request, backend: BackendId) {
        self.lock().policy.lost(now, request, backend);
    }
}

/// The request of which a record or report tells this much.
pub fn request_of(object: u64, kind: u16, class: u8, cost_us: u32) -> Request {
    let class = Class::ALL.get(usize::from(class)).copied();
    Request {
        kind: Kind::new(kind),
        cost_us,
        ..Request::new(object, class.unwrap_or(Class::Static))
    }
}
