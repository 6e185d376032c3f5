//! A server dies, and its clients go to those that are left [MIGRATE01 §5.3]: how far they
//! have to go, and how many the busiest gets. Clients and servers lie in a square, and a
//! latency is a distance there. All clients are orphans at once: the published maxima are those
//! of 10,000 clients among nine of ten servers.
//!
//! In the paper candidates offer themselves to clients. Here a dispatcher chooses for them, by
//! its pool's policy, so that there is no competition: the policies' rows are that very code.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use serde::Serialize;
use trapeze_core::config::{PolicyConfig, PolicyKind};
use trapeze_core::policy::{BackendId, Backends, Candidate, Class, Request, build, place};

/// The longest possible way of the square, in milliseconds.
const DIAGONAL: f64 = 250.0;
/// Optimal's limit of clients, in hundredths of all (1,400 of 10,000).
const CAP_PERCENT: usize = 14;
/// Between a candidate's first offers, in milliseconds. The paper gives neither this nor the next:
/// of sixteen pairs tried, they give the published number of clients.
const FIRST_PAUSE: f64 = 0.01;
/// A candidate's pause doubles with so many clients, hosted or offered to, in shares of all by the
/// servers that are left.
const DOUBLES: f64 = 0.3;

/// What is simulated.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// Clients of all servers, 1..=100,000.
    pub clients: usize,
    /// Servers before one dies, 2..=1,000.
    pub servers: usize,
    /// Random squares, over which results are averaged.
    pub layouts: usize,
    /// Of all randomness.
    pub seed: u64,
}

/// Who chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// The nearest server.
    Distance,
    /// The least sum of latencies with a limit of clients for each server.
    Optimal,
    /// The first offer that arrives, of servers that pause longer the more clients and open offers
    /// they have.
    Backoff,
    /// Lots.
    Random,
    /// A dispatcher by that policy.
    Policy(PolicyKind),
}

/// A method and what came of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Its name.
    pub method: &'static str,
    /// In the paper, if it is there.
    pub published: Option<Figures>,
    /// Here.
    pub measured: Figures,
}

/// Means over layouts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Figures {
    /// Of a client to its new server, in milliseconds.
    pub latency_ms: f64,
    /// Clients of the server that has most.
    pub most_clients: f64,
}

impl Method {
    /// The paper's, in its order, then what dispatchers can do.
    pub const ALL: [Method; 8] = [
        Method::Distance,
        Method::Optimal,
        Method::Backoff,
        Method::Policy(PolicyKind::RoundRobin),
        Method::Random,
        Method::Policy(PolicyKind::Rent),
        Method::Policy(PolicyKind::LeastConnections),
        Method::Policy(PolicyKind::Hrw),
    ];

    /// As shown to people.
    pub fn name(self) -> &'static str {
        match self {
            Method::Distance => "distance",
            Method::Optimal => "optimal",
            Method::Backoff => "backoff",
            Method::Random => "random",
            Method::Policy(kind) => kind.name(),
        }
    }

    /// [MIGRATE01 table 1].
    pub fn published(self) -> Option<Figures> {
        let (latency_ms, most_clients) = match self {
            Method::Distance => (34.0, 2146.0),
            Method::Optimal => (38.0, 1399.0),
            Method::Backoff => (67.0, 1334.0),
            Method::Policy(PolicyKind::RoundRobin) => (94.0, 1112.0),
            Method::Random => (94.0, 1160.0),
            Method::Policy(_) => return None,
        };
        Some(Figures {
            latency_ms,
            most_clients,
        })
    }
}

/// One after the other, on the same layouts.
pub fn simulate(setup: &Setup) -> Vec<Row> {
    let layouts: Vec<Layout> = (0..setup.layouts as u64)
        .map(|number| {
            Layout::new(
                setup,
                &mut SmallRng::seed_from_u64(setup.seed ^ number << 32),
            )
        })
        .collect();
    let row = |method: Method| {
        let mut measured = Figures::default();
        for (number, layout) in layouts.iter().enumerate() {
            let mut random = SmallRng::seed_from_u64(setup.seed ^ !(number as u64));
            let figures = layout.figures(&layout.assign(method, &mut random));
            measured.latency_ms += figures.latency_ms / layouts.len() as f64;
            measured.most_clients += figures.most_clients / layouts.len() as f64;
        }
        Row {
            method: method.name(),
            published: method.published(),
            measured,
        }
    };
    Method::ALL.into_iter().map(row).collect()
}

/// Latencies in milliseconds, by client and server that is left.
struct Layout {
    latencies: Vec<Vec<f64>>,
    servers: usize,
}

impl Layout {
    fn new(setup: &Setup, random: &mut SmallRng) -> Self {
        let side = DIAGONAL / 2f64.sqrt();
        let mut points = |count: usize| -> Vec<(f64, f64)> {
            let mut point = || (side * random.random::<f64>(), side * random.random::<f64>());
            (0..count).map(|_| point()).collect()
        };
        let servers = points(setup.servers.max(2) - 1);
        let from = |client: (f64, f64)| {
            let way = |server: &(f64, f64)| (server.0 - client.0).hypot(server.1 - client.1);
            servers.iter().map(way).collect()
        };
        Layout {
            latencies: points(setup.clients).into_iter().map(from).collect(),
            servers: servers.len(),
        }
    }

    /// The server of each client.
    fn assign(&self, method: Method, random: &mut SmallRng) -> Vec<usize> {
        match method {
            Method::Distance => self.nearest(),
            Method::Optimal => self.optimal((self.latencies.len() * CAP_PERCENT).div_ceil(100)),
            Method::Backoff => self.backoff(random),
            Method::Random => (self.latencies.iter())
                .map(|_| random.random_range(0..self.servers))
                .collect(),
            Method::Policy(kind) => self.by_policy(kind, random.random()),
        }
    }

    fn figures(&self, assigned: &[usize]) -> Figures {
        let ways = self.latencies.iter().zip(assigned).map(|(l, &s)| l[s]);
        Figures {
            latency_ms: ways.sum::<f64>() / assigned.len().max(1) as f64,
            most_clients: self.counts(assigned).into_iter().max().unwrap_or(0) as f64,
        }
    }

    fn counts(&self, assigned: &[usize]) -> Vec<usize> {
        let mut counts = vec![0; self.servers];
        for &server in assigned {
            counts[server] += 1;
        }
        counts
    }

    fn nearest(&self) -> Vec<usize> {
        let nearest =
            |ways: &Vec<f64>| (0..ways.len()).min_by(|&a, &b| ways[a].total_cmp(&ways[b]));
        (self.latencies.iter())
            .map(|ways| nearest(ways).expect("a server"))
            .collect()
    }

    /// From the nearest on, whoever is too many goes the cheapest way to a server that has room:
    /// successive shortest paths, so the sum is the least possible.
    fn optimal(&self, cap: usize) -> Vec<usize> {
        // Where there is no room for all, the limit is even.
        let cap = cap.max(self.latencies.len().div_ceil(self.servers));
        let mut assigned = self.nearest();
        let mut counts = self.counts(&assigned);
        let mut moves: Vec<Vec<Option<Step>>> = (0..self.servers)
            .map(|s| self.steps(&assigned, s))
            .collect();
        while let Some(full) = (0..self.servers).find(|&s| counts[s] > cap) {
            let path = self.cheapest(&moves, full, |server| counts[server] < cap);
            counts[full] -= 1;
            counts[path.last().expect("there is room").to] += 1;
            for step in &path {
                assigned[step.client] = step.to;
            }
            let ends = path.last().map(|step| step.to);
            let touched = path.iter().map(|step| step.from).chain(ends);
            for server in touched {
                moves[server] = self.steps(&assigned, server);
            }
        }
        assigned
    }

    /// By target: the client of that server that loses least by going there.
    fn steps(&self, assigned: &[usize], from: usize) -> Vec<Option<Step>> {
        let mut best: Vec<Option<Step>> = vec![None; self.servers];
        let clients = assigned.iter().enumerate().filter(|(_, s)| **s == from);
        for (client, _) in clients {
            let ways = &self.latencies[client];
            for to in (0..self.servers).filter(|&to| to != from) {
                let cost = ways[to] - ways[from];
                if best[to].is_none_or(|step| cost < step.cost) {
                    best[to] = Some(Step {
                        client,
                        from,
                        to,
                        cost,
                    });
                }
            }
        }
        best
    }

    /// Bellman and Ford's: costs may be negative.
    fn cheapest(
        &self,
        moves: &[Vec<Option<Step>>],
        from: usize,
        has_room: impl Fn(usize) -> bool,
    ) -> Vec<Step> {
        let mut costs = vec![f64::INFINITY; self.servers];
        let mut last: Vec<Option<Step>> = vec![None; self.servers];
        costs[from] = 0.0;
        for _ in 0..self.servers {
            for step in moves.iter().flatten().flatten() {
                let cost = costs[step.from] + step.cost;
                // What sums of rounded numbers gain by going round is no way.
                if step.to != from && cost + 1e-9 < costs[step.to] {
                    costs[step.to] = cost;
                    last[step.to] = Some(*step);
                }
            }
        }
        let ends = (0..self.servers).filter(|&server| has_room(server));
        let mut at = ends
            .min_by(|&a, &b| costs[a].total_cmp(&costs[b]))
            .expect("there is room for all");
        let mut path = Vec::new();
        while let Some(step) = last[at].filter(|_| path.len() < self.servers) {
            path.push(step);
            at = step.from;
        }
        path.reverse();
        path
    }

    /// Each server makes offers to all clients, in an order of its own, for as long as nobody has
    /// them; who is offered something takes what arrives first.
    fn backoff(&self, random: &mut SmallRng) -> Vec<usize> {
        let clients = self.latencies.len();
        let share = clients as f64 / self.servers as f64;
        let mut assigned: Vec<Option<usize>> = vec![None; clients];
        let mut servers: Vec<Server> = (0..self.servers)
            .map(|_| {
                let mut order: Vec<usize> = (0..clients).collect();
                order.shuffle(random);
                Server { order, busy: 0 }
            })
            .collect();
        let mut events: BinaryHeap<Reverse<(u64, Event)>> = (0..self.servers)
            .map(|server| Reverse((0, Event::Offers(server))))
            .collect();
        let micros = |ms: f64| (ms * 1000.0) as u64;
        while let Some(Reverse((now, event))) = events.pop() {
            match event {
                Event::Offers(number) => {
                    let server = &mut servers[number];
                    // The group hears who has a client.
                    let next = loop {
                        match server.order.pop() {
                            Some(client) if assigned[client].is_some() => {}
                            next => break next,
                        }
                    };
                    let Some(client) = next else { continue };
                    server.busy += 1;
                    let arrives = now + micros(self.latencies[client][number]);
                    events.push(Reverse((arrives, Event::Arrives(number, client))));
                    let doubled = server.busy as f64 / (DOUBLES * share);
                    let pause = micros(FIRST_PAUSE * doubled.min(30.0).exp2());
                    events.push(Reverse((now + pause, Event::Offers(number))));
                }
                Event::Arrives(number, client) => {
                    if assigned[client].is_none() {
                        assigned[client] = Some(number);
                    } else {
                        let back = now + micros(self.latencies[client][number]);
                        events.push(Reverse((back, Event::IsRefused(number))));
                    }
                }
                Event::IsRefused(number) => servers[number].busy -= 1,
            }
        }
        (assigned.into_iter())
            .map(|server| server.expect("somebody has offered"))
            .collect()
    }

    /// Downloads of different objects, none of which ends meanwhile.
    fn by_policy(&self, kind: PolicyKind, seed: u64) -> Vec<usize> {
        let mut policy = build(&PolicyConfig::from(kind), seed);
        let candidate =
            |id: usize| Candidate::new(BackendId(id as u16), &format!("b{}", id + 1), 1);
        let mut backends = Backends::new((0..self.servers).map(candidate));
        let mut counts = vec![0; self.servers];
        let clients = 0..self.latencies.len() as u64;
        clients
            .map(|client| {
                let object = client.wrapping_mul(0x9e37_79b9_7f4a_7c15);
                let request = Request::new(object, Class::Static);
                let now = Duration::from_micros(client);
                let chosen = place(policy.as_mut(), now, &request, &backends);
                let server = chosen.expect("all are open").index();
                counts[server] += 1;
                backends.set_load(BackendId(server as u16), counts[server], 0);
                server
            })
            .collect()
    }
}

/// A client that goes from one server to another.
#[derive(Clone, Copy, Debug)]
struct Step {
    client: usize,
    from: usize,
    to: usize,
    cost: f64,
}

/// A candidate.
struct Server {
    /// To whom it will offer itself; the last one first.
    order: Vec<usize>,
    /// Clients that it has, and open offers.
    busy: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Offers(usize),
    Arrives(usize, usize),
    IsRefused(usize),
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETUP: Setup = Setup {
        clients: 2000,
        servers: 10,
        layouts: 4,
        seed: 5,
    };

    #[test]
    fn the_nearest_are_swamped_and_backoff_is_between() {
        let rows = simulate(&SETUP);
        let of = |name: &str| {
            let mut rows = rows.iter();
            rows.find(|row| row.method == name).expect(name).measured
        };
        let [distance, optimal, backoff, turns, lots] =
            ["distance", "optimal", "backoff", "round-robin", "random"].map(of);
        assert!(optimal.most_clients <= 280.0, "{optimal:?}");
        assert!(distance.most_clients > 1.2 * optimal.most_clients);
        let ways = [distance, optimal, backoff, turns].map(|figures| figures.latency_ms);
        assert!(ways.is_sorted(), "{ways:?}");
        assert!((lots.latency_ms / turns.latency_ms - 1.0).abs() < 0.05);
        assert_eq!(turns.most_clients, 223.0, "nine servers");
        assert!(backoff.most_clients < distance.most_clients);
    }

    /// All assignments of a few clients, tried.
    #[test]
    fn optimal_is_the_least_possible() {
        let setup = Setup {
            clients: 7,
            servers: 4,
            ..SETUP
        };
        for seed in 0..30 {
            let layout = Layout::new(&setup, &mut SmallRng::seed_from_u64(seed));
            let all = (0..3usize.pow(7)).map(|number| {
                let digits = (0..7u32).map(|at| number / 3usize.pow(at) % 3);
                digits.collect::<Vec<_>>()
            });
            let fitting = all.filter(|assigned| layout.counts(assigned).iter().all(|c| *c <= 3));
            let sums = fitting.map(|assigned| layout.figures(&assigned).latency_ms);
            let least = sums.min_by(f64::total_cmp).expect("there is one");
            let found = layout.optimal(3);
            assert!(layout.counts(&found).iter().all(|count| *count <= 3));
            let found = layout.figures(&found).latency_ms;
            assert!((found - least).abs() < 1e-9, "{seed}: {found} {least}");
        }
    }

    #[test]
    fn the_same_seed_gives_the_same() {
        let few = Setup {
            clients: 300,
            ..SETUP
        };
        assert_eq!(simulate(&few), simulate(&few));
    }
}
