//! A dispatcher's side of a policy: it counts loads, learns costs, and reports ends,
//! as the contract in `trapeze_core::policy` asks of its caller.

use std::collections::VecDeque;
use std::time::Duration;

use trapeze_core::policy::{
    self, BackendId, Backends, Candidate, Class, CostModel, Finished, Policy, Request, Subject,
};

use super::Entrant;
use crate::hardware::Condition;
use crate::workload::{Kind, Object};

/// One dispatcher's policy, and what it knows of the backends.
pub(super) struct Placement {
    policy: Box<dyn Policy>,
    backends: Backends,
    conditions: Vec<Condition>,
    loads: Vec<Load>,
    costs: CostModel,
    unfinished: u64,
    /// Requests beyond the policy's limit, in order.
    waiting: VecDeque<u32>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Load {
    outstanding: u32,
    cost_us: u64,
    /// The integral of `outstanding` over time, until `updated_ns`.
    integral: f64,
    updated_ns: u64,
}

/// Where a request has been placed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Placed {
    pub(super) backend: BackendId,
    charge_us: u64,
    at_ns: u64,
    integral: f64,
}

impl Default for Placed {
    fn default() -> Self {
        Placed {
            backend: BackendId(0),
            charge_us: 0,
            at_ns: 0,
            integral: 0.0,
        }
    }
}

/// An object's request as a dispatcher reads it.
pub(super) fn request(object: &Object) -> Request {
    let subject = Subject {
        host: "www.example.org",
        path: &object.path,
        query: object.query.as_deref(),
        method: "GET",
        client: ([192, 0, 2, 1], 1024).into(),
    };
    let class = match object.kind {
        Kind::Static => Class::Static,
        Kind::Dynamic { .. } => Class::Dynamic,
    };
    Request::of(&subject, Some(class))
}

impl Placement {
    pub(super) fn new(entrant: &Entrant, backends: usize, seed: u64) -> Self {
        let conditions = vec![Condition::Up; backends];
        Placement {
            policy: policy::build(&entrant.policy, seed),
            backends: Backends::new(candidates(&conditions)),
            conditions,
            loads: vec![Load::default(); backends],
            costs: CostModel::new(entrant.costs),
            unfinished: 0,
            waiting: VecDeque::new(),
        }
    }

    /// Places a request, whose cost is filled in; none if it has to wait.
    pub(super) fn place(&mut self, now_ns: u64, request: &mut Request) -> Option<Placed> {
        let admits = self.policy.admits(&self.backends);
        if admits.is_some_and(|limit| self.unfinished >= limit.max(1)) {
            return None;
        }
        request.cost_us = self.costs.estimate(request);
        let now = Duration::from_nanos(now_ns);
        // With nobody there it waits.
        let backend = policy::preview(&mut *self.policy, now, request, &self.backends)?;
        let charge_us = self.policy.charge(request, &self.backends, backend);
        self.policy.placed(now, request, &self.backends, backend);
        self.unfinished += 1;
        let load = self.change(now_ns, backend, |load| {
            load.outstanding += 1;
            load.cost_us += charge_us;
        });
        Some(Placed {
            backend,
            charge_us,
            at_ns: now_ns,
            integral: load.integral,
        })
    }

    /// A request has its answer, and is no load any more.
    pub(super) fn finished(&mut self, now_ns: u64, request: &Request, placed: &Placed, bytes: u64) {
        self.released(now_ns, placed);
        self.answered(now_ns, request, placed, bytes);
    }

    /// It is no load any more.
    pub(super) fn released(&mut self, now_ns: u64, placed: &Placed) {
        self.unfinished -= 1;
        self.change(now_ns, placed.backend, |load| {
            load.outstanding -= 1;
            load.cost_us -= placed.charge_us;
        });
    }

    /// It has its answer.
    pub(super) fn answered(&mut self, now_ns: u64, request: &Request, placed: &Placed, bytes: u64) {
        let integral = self.outstanding_ns(placed.backend, now_ns);
        let elapsed_ns = now_ns - placed.at_ns;
        let shared = (integral - placed.integral) / (elapsed_ns.max(1) as f64);
        let finished = Finished {
            request: *request,
            backend: placed.backend,
            bytes,
            elapsed: Duration::from_nanos(elapsed_ns),
            shared: shared.max(1.0) as f32,
            // A dispatcher cannot see it.
            hit: None,
        };
        self.costs.learn(&finished);
        self.policy
            .finished(Duration::from_nanos(now_ns), &finished);
    }

    /// A request's backend is gone.
    pub(super) fn lost(&mut self, now_ns: u64, request: &Request, placed: &Placed) {
        self.released(now_ns, placed);
        (self.policy).lost(Duration::from_nanos(now_ns), request, placed.backend);
    }

    /// From now on a backend is like that.
    pub(super) fn condition(&mut self, backend: usize, into: Condition) {
        self.conditions[backend] = into;
        self.backends.set(candidates(&self.conditions));
        let loads = &self.loads;
        self.backends.set_loads(|id| {
            let load = loads[id.index()];
            (load.outstanding, load.cost_us)
        });
    }

    pub(super) fn wait(&mut self, slot: u32) {
        self.waiting.push_back(slot);
    }

    /// How many wait.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Whether it waits again, behind all others.
    pub(super) fn is_last(&self, slot: u32) -> bool {
        self.waiting.back() == Some(&slot)
    }

    /// Who may try again, now that something has ended.
    pub(super) fn admitted(&mut self) -> Option<u32> {
        self.waiting.pop_front()
    }

    pub(super) fn outstanding_ns(&self, backend: BackendId, now_ns: u64) -> f64 {
        let load = self.loads[backend.index()];
        load.integral + (now_ns - load.updated_ns) as f64 * f64::from(load.outstanding)
    }

    fn change(&mut self, now_ns: u64, backend: BackendId, change: impl FnOnce(&mut Load)) -> Load {
        let integral = self.outstanding_ns(backend, now_ns);
        let load = &mut self.loads[backend.index()];
        load.integral = integral;
        load.updated_ns = now_ns;
        change(load);
        let load = *load;
        (self.backends).set_load(backend, load.outstanding, load.cost_us);
        load
    }
}

fn candidates(conditions: &[Condition]) -> impl Iterator<Item = Candidate> {
    let present = (0..)
        .zip(conditions)
        .filter(|(_, c)| **c != Condition::Gone);
    present.map(|(number, condition)| Candidate {
        draining: *condition == Condition::Draining,
        ..Candidate::new(BackendId(number), &format!("b{}", number + 1), 1)
    })
}
