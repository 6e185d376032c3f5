//! A pool's backends as policies see them: numbers in one slice, those that take
//! new work first. Names have been hashed, dead ones left out.

use super::hash::{hash_name, mix};

/// A backend's number: small, dense, and the same as long as anybody remembers it
/// (the dispatcher's slot; the simulator's index). One that is given to another
/// backend inherits what is remembered of the first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BackendId(pub u16);

impl BackendId {
    /// As an index.
    pub fn index(self) -> usize {
        self.0.into()
    }
}

/// A backend that is alive.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// [`super::hash_name`] of its name: the same on every dispatcher.
    pub name_hash: u64,
    /// Estimated costs of its unfinished requests: microseconds of service.
    pub cost_us: u64,
    /// Its unfinished requests, or its open connections where requests are not
    /// told apart. Of all dispatchers, as far as the caller knows.
    pub outstanding: u32,
    /// Which one this is; unique among candidates.
    pub id: BackendId,
    /// Its share of the load, 0..=256; one of weight 0 takes nothing.
    pub weight: u16,
    /// It takes only what is bound to it by stickiness.
    pub draining: bool,
    /// What its agent said last, if that was lately.
    pub feedback: Option<Feedback>,
}

impl Candidate {
    /// An idle backend that takes requests.
    pub fn new(id: BackendId, name: &str, weight: u16) -> Self {
        Candidate {
            id,
            name_hash: hash_name(name),
            weight,
            draining: false,
            outstanding: 0,
            cost_us: 0,
            feedback: None,
        }
    }

    /// Whether policies may choose it.
    pub fn is_open(&self) -> bool {
        self.weight > 0 && !self.draining
    }
}

/// How busy an agent finds its host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Feedback {
    /// Connections that the server has not accepted yet.
    pub accept_queue: u16,
    /// Busy time of all CPUs, 0..=1000 thousandths.
    pub cpu_permille: u16,
    /// Memory that could not be had without swapping, 0..=1000 thousandths.
    pub memory_permille: u16,
}

/// The candidates of one pool. Making it costs a pass over them: do that when one
/// comes, goes or changes its weight, and write loads in place between
/// ([`Backends::set_load`], [`Backends::set_loads`]).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Backends {
    /// The open ones, in the order given; then the others.
    candidates: Vec<Candidate>,
    open: usize,
    /// By id: where it is among the candidates, or [`ABSENT`].
    positions: Vec<u16>,
    fingerprint: u64,
    weight_total: u64,
    weight_mean: u64,
}

const ABSENT: u16 = u16::MAX;

impl Backends {
    /// Of these candidates; of two with one id, the first counts.
    pub fn new(candidates: impl IntoIterator<Item = Candidate>) -> Self {
        let mut backends = Backends::default();
        backends.set(candidates);
        backends
    }

    /// As [`Backends::new`], in the memory that is there.
    pub fn set(&mut self, candidates: impl IntoIterator<Item = Candidate>) {
        self.candidates.clear();
        self.candidates.extend(candidates);
        // Stable: who is equal to a policy is taken in the order given.
        self.candidates.sort_by_key(|c| !c.is_open());
        self.positions.clear();
        let mut at = 0;
        while at < self.candidates.len() {
            let id = self.candidates[at].id.index();
            if self.positions.len() <= id {
                self.positions.resize(id + 1, ABSENT);
            }
            if self.positions[id] == ABSENT {
                self.positions[id] = at as u16;
                at += 1;
            } else {
                self.candidates.remove(at);
            }
        }
        self.open = self.candidates.iter().filter(|c| c.is_open()).count();
        self.weight_total = self.open().iter().map(|c| u64::from(c.weight)).sum();
        let half = self.open as u64 / 2;
        self.weight_mean = ((self.weight_total + half) / self.open.max(1) as u64).max(1);
        // Of a set: the order does not count.
        self.fingerprint = (self.open().iter())
            .map(|c| mix(c.name_hash ^ mix(u64::from(c.id.0) << 16 | u64::from(c.weight))))
            .fold(self.open as u64, u64::wrapping_add);
    }

    /// Those that policies may choose from: alive, not draining, with a weight.
    pub fn open(&self) -> &[Candidate] {
        &self.candidates[..self.open]
    }

    /// All that are alive; the open ones first.
    pub fn all(&self) -> &[Candidate] {
        &self.candidates
    }

    /// Where the backend is in [`Backends::all`], if it is alive.
    pub fn position(&self, id: BackendId) -> Option<usize> {
        let position = *self.positions.get(id.index())?;
        (position != ABSENT).then_some(position.into())
    }

    /// The backend, if it is alive.
    pub fn get(&self, id: BackendId) -> Option<&Candidate> {
        self.position(id).map(|at| &self.candidates[at])
    }

    /// The backend, if policies may choose it.
    pub fn get_open(&self, id: BackendId) -> Option<&Candidate> {
        self.position(id)
            .filter(|&at| at < self.open)
            .map(|at| &self.candidates[at])
    }

    /// Writes a backend's load; of one that is not alive, nothing.
    pub fn set_load(&mut self, id: BackendId, outstanding: u32, cost_us: u64) {
        if let Some(at) = self.position(id) {
            self.candidates[at].outstanding = outstanding;
            self.candidates[at].cost_us = cost_us;
        }
    }

    /// Writes the load of each, requests and microseconds, as `load` has it.
    pub fn set_loads(&mut self, load: impl Fn(BackendId) -> (u32, u64)) {
        for c in &mut self.candidates {
            (c.outstanding, c.cost_us) = load(c.id);
        }
    }

    /// Writes what an agent said.
    pub fn set_feedback(&mut self, id: BackendId, feedback: Option<Feedback>) {
        if let Some(at) = self.position(id) {
            self.candidates[at].feedback = feedback;
        }
    }

    /// Equal for equal sets of open backends with equal weights: what is computed
    /// from those needs to be computed again only when this changes.
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// The mean of the open ones' weights, rounded, at least 1.
    pub fn mean_weight(&self) -> u64 {
        self.weight_mean
    }

    /// The sum of the open ones' weights.
    pub fn weight_total(&self) -> u64 {
        self.weight_total
    }
}
