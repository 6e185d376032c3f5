//! Policies: which of a pool's backends takes a request. A policy is one file
//! here, a kind in `config/policy.rs` and a line in [`build`]. Dispatcher,
//! simulator and tests run the same code: no clock, no randomness but what
//! follows from the arguments and a seed.
//!
//! ```text
//!   what was asked          what is alive            memory of one pool
//!   Subject ─► Request      Candidate ─► Backends    Box<dyn Policy>
//!                   └───────────┬───────────┘             │
//!                               ▼                         │
//!              place(): bound by stickiness? ── else ── choose()
//!                               │
//!                            placed()      ... later: finished() or lost()
//! ```
//!
//! The caller counts loads (requests and [`Policy::charge`]s that are unfinished),
//! asks a [`CostModel`] what a request will cost, and keeps [`Backends`] up to date.

mod backends;
mod bounded_loads;
mod cache_model;
mod cache_prediction;
mod cahrd;
mod cap;
mod cawll;
mod cost;
mod ewma;
mod felt;
mod hash;
mod hrw;
mod lacp;
mod lard;
mod lard_r;
mod least;
mod least_connections;
mod load;
mod maglev;
mod objects;
mod rent;
mod request;
mod round_robin;
mod scale;
mod server_sets;
mod settled;
mod stick;
mod two_choices;
mod xlard_r;

#[cfg(test)]
mod tests;

use std::fmt::Debug;
use std::time::Duration;

use crate::config::{PolicyConfig, PolicyKind};

pub use backends::{BackendId, Backends, Candidate, Feedback};
pub use bounded_loads::BoundedLoadsParameters;
pub use cache_model::CacheParameters;
pub use cost::{CostModel, Finished};
pub use ewma::EwmaParameters;
pub(crate) use hash::mix;
pub use hash::{hash_bytes, hash_name};
pub use lacp::LacpParameters;
pub use lard::LardParameters;
pub use lard_r::LardRParameters;
pub use maglev::MaglevParameters;
pub use rent::RentParameters;
pub use request::{Bound, Class, Kind, Request, Subject};
pub use settled::{SETTLED_MAX, Settled};
pub use stick::{binding, bound};
pub use xlard_r::XlardRParameters;

/// Chooses backends for one pool.
///
/// `now` counts from any fixed moment and never goes back. Backends may come, go
/// and change between calls. What is remembered of a backend is remembered by its
/// id: one that was away comes back to it.
pub trait Policy: Send + Debug {
    /// Which policy this is.
    fn kind(&self) -> PolicyKind;

    /// Who would take the request: one of `backends.open()`, and none only if that
    /// is empty. Asking changes no later answer; `&mut` is for tables that follow
    /// from the arguments alone.
    fn choose(
        &mut self,
        now: Duration,
        request: &Request,
        backends: &Backends,
    ) -> Option<BackendId>;

    /// The request was given to `chosen`: by this policy's choice, by stickiness,
    /// or because others refused. `backends` is as it was for the choice, without
    /// this request.
    fn placed(
        &mut self,
        _now: Duration,
        _request: &Request,
        _backends: &Backends,
        _chosen: BackendId,
    ) {
    }

    /// A request has its whole answer. What is told late is told with the time at which
    /// it ended: `now` may be before that of choices, not of what was finished before.
    fn finished(&mut self, _now: Duration, _finished: &Finished) {}

    /// A request that was placed will not be answered: refused, reset, or its
    /// backend died.
    fn lost(&mut self, _now: Duration, _request: &Request, _backend: BackendId) {}

    /// What the request adds to [`Candidate::cost_us`] of the backend until it is
    /// finished or lost: microseconds of service. Ask before `placed`.
    fn charge(&self, request: &Request, _backends: &Backends, _chosen: BackendId) -> u64 {
        request.cost_us.into()
    }

    /// What of a choice stands for later requests as long as the open backends and
    /// their weights stay as they are.
    fn stands(&self) -> Stands {
        Stands::Not
    }

    /// With [`Stands::WhileSettled`]: where requests like this one, which has just been
    /// placed at `chosen`, may go without asking. They count in the loads that
    /// `backends` has, and nothing else is heard of them but [`Policy::settled_took`].
    fn settled(
        &mut self,
        _now: Duration,
        _request: &Request,
        _backends: &Backends,
        _chosen: BackendId,
    ) -> Option<Settled> {
        None
    }

    /// So many requests for the object were placed by what [`Policy::settled`] allowed,
    /// in the time before the latest that was asked for.
    fn settled_took(&mut self, _request: &Request, _count: u32, _time: Duration) {}

    /// So many were placed there, since the last that was finished there.
    fn settled_at(&mut self, _backend: BackendId, _count: u32) {}

    /// How many unfinished requests the pool should have at once; the rest wait.
    /// None: as many as come. Only LARD's have a limit, and only who can make
    /// requests wait heeds it.
    fn admits(&self, _backends: &Backends) -> Option<u64> {
        None
    }

    /// What is remembered, and the most that can be.
    fn memory(&self) -> Memory {
        Memory::default()
    }
}

/// What of a policy's choice can be remembered for it, and repeated without asking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stands {
    /// Nothing: it wants to be asked each time.
    Not,
    /// An order of backends, whatever is asked for, over and over: as long as the
    /// sum of their weights by its greatest common divisor.
    ByTurns,
    /// The backend of a URL.
    ByUrl,
    /// What [`Policy::settled`] allows.
    WhileSettled,
}

/// What a policy remembers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Objects known now.
    pub objects: usize,
    /// The most that it will know.
    pub objects_max: usize,
    /// Bytes of tables now: of objects, and of what follows from the backends.
    pub bytes: usize,
}

/// Who takes the request, remembered: what stickiness says, else the policy.
pub fn place(
    policy: &mut dyn Policy,
    now: Duration,
    request: &Request,
    backends: &Backends,
) -> Option<BackendId> {
    let chosen = preview(policy, now, request, backends)?;
    policy.placed(now, request, backends, chosen);
    Some(chosen)
}

/// As [`place`], and nothing is remembered.
pub fn preview(
    policy: &mut dyn Policy,
    now: Duration,
    request: &Request,
    backends: &Backends,
) -> Option<BackendId> {
    bound(request, backends).or_else(|| policy.choose(now, request, backends))
}

/// A policy that remembers nothing yet. Policies that draw lots draw the same ones
/// for the same seed; dispatchers should have different ones.
pub fn build(config: &PolicyConfig, seed: u64) -> Box<dyn Policy> {
    match config {
        PolicyConfig::RoundRobin => Box::<round_robin::RoundRobin>::default(),
        PolicyConfig::LeastConnections => Box::<least_connections::LeastConnections>::default(),
        PolicyConfig::Hrw => Box::new(hrw::Hrw),
        PolicyConfig::Lard(p) => Box::new(lard::Lard::new(*p)),
        PolicyConfig::LardR(p) => Box::new(lard_r::LardR::new(*p)),
        PolicyConfig::XlardR(p) => Box::new(xlard_r::XlardR::new(*p)),
        PolicyConfig::Cawll => Box::<cawll::Cawll>::default(),
        PolicyConfig::Cahrd(p) => Box::new(cahrd::Cahrd::new(*p)),
        PolicyConfig::Cap => Box::<cap::Cap>::default(),
        PolicyConfig::CachePrediction(p) => Box::new(cache_prediction::CachePrediction::new(*p)),
        PolicyConfig::Lacp(p) => Box::new(lacp::Lacp::new(*p)),
        PolicyConfig::Maglev(p) => Box::new(maglev::Maglev::new(*p)),
        PolicyConfig::BoundedLoads(p) => Box::new(bounded_loads::BoundedLoads::new(*p)),
        PolicyConfig::TwoChoices => Box::new(two_choices::TwoChoices::new(seed)),
        PolicyConfig::Ewma(p) => Box::new(ewma::Ewma::new(*p)),
        PolicyConfig::Rent(p) => Box::new(rent::Rent::new(*p)),
    }
}

/// Objects that a policy remembers, by default.
const OBJECTS: usize = 1_000_000;
