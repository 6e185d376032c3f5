//! The default policy, rent, on requests that nothing was tuned on: popularity that
//! drifts, files that nobody asks for again, crowds that come at once, robots that read
//! everything, users who ask for the same again.

use std::collections::VecDeque;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use trapeze_core::config::PolicyKind;
use trapeze_sim::workload::{Ask, Content, Kind, Object, Pace, Source, Then, Workload};
use trapeze_sim::{Bound, Entrant, Hardware, Run, Span, run_all};

/// Files by rank of a Zipf curve, and who holds which rank changes.
#[derive(Debug)]
struct MadeUp {
    name: &'static str,
    objects: Vec<Object>,
    /// Files that have a rank; the rest are asked for once, one after the other.
    ranked: usize,
    exponent: f64,
    /// Share of requests for what is asked for once.
    once: f64,
    /// Requests between changes of rank; 0: never.
    drift: u64,
    /// Share of requests of a robot that reads all files, one after the other.
    robot: f64,
    /// Share of requests for what one of the last 2,000 was for.
    again: f64,
    /// Every third 20,000 requests half of them are for twenty files.
    crowds: bool,
}

const CROWD: usize = 20;

impl MadeUp {
    fn new(name: &'static str, ranked: usize, exponent: f64) -> Self {
        let mut dice = SmallRng::seed_from_u64(name.len() as u64);
        let objects = (0..ranked + 60_000).map(|number| {
            // Many of some KB, a tail of some MB.
            let unit: f64 = dice.random_range(1e-4..1.0);
            let bytes = (4_000.0 / unit.powf(0.8)).min(4e6) as u64;
            Object {
                path: format!("/{number}.html").into_bytes().into(),
                query: None,
                bytes,
                kind: Kind::Static,
            }
        });
        MadeUp {
            name,
            objects: objects.collect(),
            ranked,
            exponent,
            once: 0.0,
            drift: 0,
            robot: 0.0,
            again: 0.0,
            crowds: false,
        }
    }
}

impl Workload for MadeUp {
    fn name(&self) -> &str {
        self.name
    }

    fn objects(&self) -> &[Object] {
        &self.objects
    }

    fn pace(&self) -> Pace {
        Pace::Admission
    }

    fn start(&self, seed: u64, _users: usize) -> Box<dyn Source + '_> {
        let mut total = 0.0;
        let weights = (1..=self.ranked).map(|rank| {
            total += (rank as f64).powf(-self.exponent);
            total
        });
        Box::new(Requests {
            weights: weights.collect(),
            by_rank: (0..self.ranked as u32).collect(),
            dice: SmallRng::seed_from_u64(seed),
            asked: 0,
            once: self.ranked as u32,
            recent: VecDeque::new(),
            of: self,
        })
    }
}

struct Requests<'w> {
    of: &'w MadeUp,
    /// Sums up to each rank.
    weights: Vec<f64>,
    by_rank: Vec<u32>,
    dice: SmallRng,
    asked: u64,
    once: u32,
    recent: VecDeque<u32>,
}

impl Requests<'_> {
    fn rank(&mut self) -> usize {
        let total = self.weights[self.weights.len() - 1];
        let drawn = self.dice.random_range(0.0..total);
        self.weights.partition_point(|&sum| sum <= drawn)
    }

    fn object(&mut self) -> u32 {
        let object = match self.recent.len() {
            2_000 if self.dice.random_bool(self.of.again) => {
                self.recent[self.dice.random_range(0..2_000)]
            }
            _ => self.unlike_before(),
        };
        self.recent.push_back(object);
        if self.recent.len() > 2_000 {
            self.recent.pop_front();
        }
        object
    }

    fn unlike_before(&mut self) -> u32 {
        self.asked += 1;
        if self.dice.random_bool(self.of.robot) {
            return (self.asked as f64 * self.of.robot) as u32 % self.of.ranked as u32;
        }
        if self.of.drift > 0 && self.asked.is_multiple_of(self.of.drift) {
            let (falls, rises) = (self.rank(), self.dice.random_range(0..self.by_rank.len()));
            self.by_rank.swap(falls, rises);
        }
        if self.dice.random_bool(self.of.once) && (self.once as usize) < self.of.objects.len() {
            self.once += 1;
            return self.once - 1;
        }
        let period = (self.asked / 20_000) as usize;
        if self.of.crowds && period % 3 == 2 && self.dice.random_bool(0.5) {
            let crowd = self.of.ranked + period * CROWD;
            return (crowd + self.dice.random_range(0..CROWD)) as u32;
        }
        let rank = self.rank();
        self.by_rank[rank]
    }
}

impl Source for Requests<'_> {
    fn next(&mut self, _user: u32) -> Option<Ask> {
        let object = self.object();
        Some(Ask {
            object,
            bytes: self.of.objects[object as usize].bytes,
            wait_ns: 0,
            content: Content::Needed,
            then: Then::Close,
        })
    }
}

#[test]
fn it_is_near_the_best_of_all_and_ahead_of_lard_r_on_what_it_has_never_seen() {
    let workloads = [
        MadeUp {
            once: 0.1,
            drift: 40,
            ..MadeUp::new("drifting", 12_000, 0.9)
        },
        MadeUp {
            crowds: true,
            ..MadeUp::new("crowds", 8_000, 0.85)
        },
        MadeUp::new("flat", 10_000, 0.6),
        MadeUp {
            once: 0.05,
            ..MadeUp::new("steep", 20_000, 1.1)
        },
        MadeUp {
            robot: 0.15,
            ..MadeUp::new("robot", 15_000, 0.75)
        },
        MadeUp {
            again: 0.4,
            ..MadeUp::new("asked again", 15_000, 0.75)
        },
    ];
    use PolicyKind::*;
    let entrants = [
        Rent,
        LardR,
        XlardR,
        CachePrediction,
        Cahrd,
        Hrw,
        BoundedLoads,
    ]
    .map(Entrant::of);
    let clusters = [(2, 8 << 20), (5, 3 << 20), (12, 2 << 20)]
        .map(|(backends, cache)| Hardware::lard98().with_backends(backends).with_cache(cache));
    let mut runs = Vec::new();
    for workload in &workloads {
        for hardware in &clusters {
            for entrant in &entrants {
                runs.push(Run {
                    hardware,
                    workload,
                    entrant,
                    span: Span::requests(100_000),
                    seed: 5,
                });
            }
        }
    }
    let outcomes = run_all(&runs, 2, &|_| {});
    let mut over_lard_r = 1.0;
    for (of_all, runs) in (outcomes.chunks(entrants.len())).zip(runs.chunks(entrants.len())) {
        let bound = Bound::of(&runs[0]).expect("users are closed");
        let rates: Vec<f64> = of_all.iter().map(|o| o.requests_per_second).collect();
        let best = rates.iter().copied().fold(0.0, f64::max);
        let which = (&of_all[0].workload, of_all[0].backends);
        println!(
            "{which:?} {:.3} of the best, {:.3} of LARD/R (at most {:.2})",
            rates[0] / best,
            rates[0] / rates[1],
            bound.requests_per_second / rates[1]
        );
        assert!(rates[0] >= 0.97 * best, "{which:?}: {rates:?}");
        over_lard_r *= rates[0] / rates[1];
    }
    let mean = f64::powf(over_lard_r, 1.0 / (outcomes.len() / entrants.len()) as f64);
    // 1.09 when this was written; 1.1 is the aim.
    assert!(mean >= 1.07, "{mean}");
}
