//! Who takes part in a run, and how long it is.

use serde::Serialize;
use trapeze_core::config::{Costs, PolicyConfig};

/// A policy as it takes part.
#[derive(Clone, Debug, PartialEq)]
pub struct Entrant {
    /// Its name in tables.
    pub name: String,
    /// The policy.
    pub policy: PolicyConfig,
    /// What it decides about.
    pub decides: Decides,
    /// From what requests' costs are known.
    pub costs: Costs,
}

/// What a decision is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Decides {
    /// Each request, by handing connections over.
    Requests,
    /// Each connection, by its first request.
    Connections,
    /// Each connection, before there is a request: as a layer-4 balancer.
    Blindly,
}

impl Entrant {
    /// A policy under its own name, deciding for each request.
    pub fn of(policy: impl Into<PolicyConfig>) -> Self {
        let policy = policy.into();
        Entrant {
            name: policy.name().to_owned(),
            policy,
            decides: Decides::Requests,
            costs: Costs::default(),
        }
    }

    /// With costs from elsewhere.
    pub fn costing(mut self, costs: Costs) -> Self {
        self.costs = costs;
        self
    }

    /// Deciding otherwise.
    pub fn deciding(mut self, decides: Decides) -> Self {
        self.decides = decides;
        self
    }

    /// Under another name.
    pub fn named(mut self, name: &str) -> Self {
        self.name = name.to_owned();
        self
    }
}

/// How long a run is, and what of it counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Span {
    /// Requests until the end, if the workload has as many.
    pub requests: u64,
    /// How many of these pass, to fill caches, before counting begins.
    pub warmup: u64,
    /// Simulated time until the end.
    pub most_ns: u64,
    /// When a workload that ends is over.
    pub until: Until,
}

/// When a workload that ends is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Until {
    /// With the last answer.
    LastAnswer,
    /// When one of its users has nothing left to ask, unless hardly anything has been
    /// counted by then. The cluster runs empty from there on: how long the longest of a
    /// handful of queues is says nothing about throughput.
    UserWithoutRequest,
}

impl Span {
    /// So many requests, of which the first fifth does not count; if the workload ends
    /// with them, neither do those that come when the first users have no more.
    pub fn requests(requests: u64) -> Self {
        Span {
            requests,
            warmup: requests / 5,
            most_ns: u64::MAX,
            until: Until::UserWithoutRequest,
        }
    }

    /// So many seconds from cold caches on; all counts.
    pub fn seconds(seconds: u64) -> Self {
        Span {
            requests: u64::MAX,
            warmup: 0,
            most_ns: seconds * 1_000_000_000,
            until: Until::LastAnswer,
        }
    }
}
