//! What a decision costs: 100 backends, a million known objects, asked for uniformly,
//! which is the worst that caches can meet. `cargo bench -p trapeze-core --bench
//! policies`; it judges nothing.
//!
//! - *place*: the policy alone, its choice remembered.
//! - *whole*: the URL hashed, the cost estimated, 100 loads written, then the same.

use std::collections::VecDeque;
use std::hint::black_box;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use trapeze_core::config::PolicyKind;
use trapeze_core::policy::{
    BackendId, Backends, Candidate, CostModel, Finished, Policy, Request, Subject, build, place,
};

const BACKENDS: u16 = 100;
const OBJECTS: u64 = 1_000_000;
const DECISIONS: usize = 100_000;
/// About twenty for each backend.
const UNFINISHED: usize = 2000;

fn main() {
    let clock = clock_ns();
    println!(
        "{BACKENDS} backends, {OBJECTS} objects; a reading of the clock, {clock} ns, is taken off\n"
    );
    println!(
        "{:18} {:>10} {:>10} {:>10} {:>10} {:>10} {:>8}",
        "policy", "place p50", "p99", "whole p50", "p99", "objects", "MiB"
    );
    for kind in PolicyKind::ALL {
        let mut pool = Pool::new(kind);
        for object in 0..OBJECTS {
            pool.request(object, None);
        }
        let (mut alone, mut whole) = (Vec::new(), Vec::new());
        let mut random = 1u64;
        for i in 0..2 * DECISIONS {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let object = (random >> 20) % OBJECTS;
            match i % 2 {
                0 => pool.request(object, Some(&mut alone)),
                _ => pool.whole(object, &mut whole),
            }
        }
        let memory = pool.policy.memory();
        let [alone, whole] = [alone, whole].map(|times| quantiles(times, clock));
        println!(
            "{:18} {:7} ns {:7} ns {:7} ns {:7} ns {:10} {:8.1}",
            kind.name(),
            alone.0,
            alone.1,
            whole.0,
            whole.1,
            memory.objects,
            memory.bytes as f64 / f64::from(1 << 20)
        );
    }
}

/// A pool at work.
struct Pool {
    policy: Box<dyn Policy>,
    backends: Backends,
    costs: CostModel,
    loads: Vec<(u32, u64)>,
    unfinished: VecDeque<(Request, BackendId, u64)>,
    now: Duration,
}

impl Pool {
    fn new(kind: PolicyKind) -> Self {
        let backend = |id| Candidate::new(BackendId(id), &format!("backend-{id:03}"), 1 + id % 3);
        Pool {
            policy: build(&kind.into(), 1),
            backends: Backends::new((0..BACKENDS).map(backend)),
            costs: CostModel::default(),
            loads: vec![(0, 0); BACKENDS.into()],
            unfinished: VecDeque::new(),
            now: Duration::ZERO,
        }
    }

    /// The choice alone is timed.
    fn request(&mut self, object: u64, times: Option<&mut Vec<u64>>) {
        let path = path(object);
        let mut request = Request::of(&subject(&path), None);
        request.cost_us = self.costs.estimate(&request);
        let start = Instant::now();
        let chosen = place(
            &mut *self.policy,
            self.now,
            black_box(&request),
            &self.backends,
        );
        let took = start.elapsed().as_nanos() as u64;
        if let Some(times) = times {
            times.push(took);
        }
        self.account(request, chosen.expect("all are open"));
    }

    /// All that a dispatcher does is timed.
    fn whole(&mut self, object: u64, times: &mut Vec<u64>) {
        let path = path(object);
        let start = Instant::now();
        let mut request = Request::of(black_box(&subject(&path)), None);
        request.cost_us = self.costs.estimate(&request);
        self.backends.set_loads(|id| self.loads[id.index()]);
        let chosen = place(&mut *self.policy, self.now, &request, &self.backends);
        times.push(start.elapsed().as_nanos() as u64);
        self.account(request, chosen.expect("all are open"));
    }

    /// Counts the request, and ends the oldest.
    fn account(&mut self, request: Request, chosen: BackendId) {
        self.now += Duration::from_micros(50);
        let charge = self.policy.charge(&request, &self.backends, chosen);
        self.add(chosen, 1, charge);
        self.unfinished.push_back((request, chosen, charge));
        if self.unfinished.len() <= UNFINISHED {
            return;
        }
        let Some((request, backend, charge)) = self.unfinished.pop_front() else {
            return;
        };
        self.add(backend, u32::MAX, charge.wrapping_neg());
        let finished = Finished {
            request,
            backend,
            bytes: 2000 + request.object % 20_000,
            elapsed: Duration::from_millis(20),
            shared: 20.0,
            hit: None,
        };
        self.costs.learn(&finished);
        self.policy.finished(self.now, &finished);
    }

    fn add(&mut self, id: BackendId, requests: u32, cost_us: u64) {
        let load = &mut self.loads[id.index()];
        *load = (load.0.wrapping_add(requests), load.1.wrapping_add(cost_us));
        self.backends.set_load(id, load.0, load.1);
    }
}

fn path(object: u64) -> String {
    format!("/download/releases/2026/package-{object:07}.tar.gz")
}

fn subject(path: &str) -> Subject<'_> {
    Subject {
        host: "downloads.example.org",
        path: path.as_bytes(),
        query: None,
        method: "GET",
        client: SocketAddr::from(([192, 0, 2, 1], 4000)),
    }
}

/// Median and 99th percentile.
fn quantiles(mut times: Vec<u64>, clock: u64) -> (u64, u64) {
    times.sort_unstable();
    let at = |per_mille: usize| times[times.len() * per_mille / 1000].saturating_sub(clock);
    (at(500), at(990))
}

/// What it costs to ask for the time, at the median.
fn clock_ns() -> u64 {
    let mut times: Vec<u64> = (0..10_001)
        .map(|_| Instant::now().elapsed().as_nanos() as u64)
        .collect();
    times.sort_unstable();
    times[5000]
}
