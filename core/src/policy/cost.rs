//! What a request costs: microseconds of service, estimated by kind before it is
//! placed, from how long its like took.

use std::time::Duration;

use super::scale::{PACKET_US, packets};
use super::{BackendId, Kind, Request};
use crate::config::Costs;

/// A request that has its whole answer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Finished {
    /// As it was placed.
    pub request: Request,
    /// Who answered.
    pub backend: BackendId,
    /// Length of the answer.
    pub bytes: u64,
    /// From placing to the answer's end.
    pub elapsed: Duration,
    /// How many requests the backend had unfinished meanwhile, on average, this one
    /// included: at least 1. They share the server, and the time.
    pub shared: f32,
    /// Whether the server had the object in memory, if that is known.
    pub hit: Option<bool>,
}

impl Finished {
    /// The service that it needed, in microseconds. A server that works on k requests
    /// at once takes k times as long for each; so it is the time divided by k. That
    /// holds for processor sharing and for queues alike, and counts a slow client's link
    /// as service only as far as nothing else goes on.
    pub fn service_us(&self) -> f64 {
        self.elapsed.as_secs_f64() * 1e6 / f64::from(self.shared.max(1.0))
    }
}

/// Estimates by kind, 8 KiB in all.
#[derive(Clone, Debug)]
pub struct CostModel {
    costs: Costs,
    kinds: Vec<Mean>,
    /// Of all kinds together: for one that is new.
    all: Mean,
}

#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    us: f32,
    count: u32,
}

impl Default for CostModel {
    fn default() -> Self {
        CostModel::new(Costs::default())
    }
}

impl CostModel {
    /// That knows nothing yet.
    pub fn new(costs: Costs) -> Self {
        CostModel {
            costs,
            kinds: vec![Mean::default(); Kind::COUNT],
            all: Mean::default(),
        }
    }

    /// Microseconds of service that the request will need, at least 1; 1 ms before
    /// anything has been measured.
    pub fn estimate(&self, request: &Request) -> u32 {
        if let Costs::Fixed(by_class) = self.costs {
            return (f64::from(by_class[request.class as usize]) * PACKET_US) as u32;
        }
        let own = self.kinds[request.kind.0 as usize];
        let known = if own.count > 0 { own } else { self.all };
        if known.count == 0 {
            return UNKNOWN_US;
        }
        known.us.max(1.0) as u32
    }

    /// Takes in what a request has cost.
    pub fn learn(&mut self, finished: &Finished) {
        let us = match self.costs {
            Costs::Learnt => finished.service_us(),
            Costs::Packets | Costs::Fixed(_) => packets(finished.bytes) * PACKET_US,
        } as f32;
        self.kinds[finished.request.kind.0 as usize].add(us);
        self.all.add(us);
    }
}

const UNKNOWN_US: u32 = 1000;

impl Mean {
    /// The plain mean of the first 64, then one that forgets by a 64th.
    fn add(&mut self, us: f32) {
        self.count = (self.count + 1).min(64);
        self.us += (us - self.us) / self.count as f32;
    }
}
