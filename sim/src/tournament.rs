//! All policies on all workloads, each on the hardware that it was described for, and
//! on recorded traces with memory in proportion to them: where is which policy how
//! far from the best?

use serde::Serialize;

use crate::engine::{Entrant, Run, Span, Until};
use crate::hardware::Hardware;
use crate::outcome::Outcome;
use crate::trace::Trace;
use crate::workload::{self, Recorded, RecordedOptions, Workload};

/// What every policy has to deal with.
#[derive(Debug)]
pub struct Round {
    /// Its name in tables.
    pub name: String,
    hardware: Hardware,
    workload: Box<dyn Workload>,
    span: Span,
}

/// How every policy fared.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Standing {
    /// The policy.
    pub policy: String,
    /// Its throughput over that of the best, round by round.
    pub of_best: Vec<f64>,
    /// The least of these.
    pub worst: f64,
    /// Their geometric mean.
    pub mean: f64,
}

/// Requests of a backend before counting, and then.
const WARMUP: u64 = 30_000;
const COUNTED: u64 = 50_000;

impl Round {
    /// Those of the synthetic workloads.
    pub fn synthetic(backends: usize, seed: u64) -> Vec<Round> {
        (workload::NAMES.iter())
            .map(|(name, _)| {
                let workload = workload::named(name, seed).expect("it is one of the names");
                let hardware = match *name {
                    "webbench" | "hot" | "mix" => Hardware::lvscad07(),
                    // Users that think need no more servers than the paper had.
                    "surge" => Hardware::lacp03().with_cache(1 << 20),
                    _ => Hardware::lard98(),
                };
                let backends = if *name == "surge" { 3 } else { backends };
                Round {
                    name: (*name).to_owned(),
                    hardware: hardware.with_backends(backends),
                    workload,
                    span: Span {
                        requests: backends as u64 * (WARMUP + COUNTED),
                        warmup: backends as u64 * WARMUP,
                        most_ns: u64::MAX,
                        until: Until::UserWithoutRequest,
                    },
                }
            })
            .collect()
    }

    /// Those of a recorded trace: each backend has memory for a tenth of its files,
    /// and for a fortieth.
    pub fn recorded(name: &str, trace: &Trace, backends: usize) -> Vec<Round> {
        [10, 40]
            .map(|part| {
                let workload = Recorded::new(name, trace.clone(), RecordedOptions::default());
                let cache = (workload.total_bytes() / part).max(1 << 16);
                Round {
                    name: format!("{name}/{part}"),
                    hardware: Hardware::lard98().with_backends(backends).with_cache(cache),
                    span: Span::requests(workload.requests().unwrap_or(u64::MAX)),
                    workload: Box::new(workload),
                }
            })
            .into()
    }

    /// One policy's run.
    pub fn run<'a>(&'a self, entrant: &'a Entrant, seed: u64) -> Run<'a> {
        Run {
            hardware: &self.hardware,
            workload: self.workload.as_ref(),
            entrant,
            span: self.span,
            seed,
        }
    }
}

/// From the outcomes of all policies on the first round, then on the second, and so
/// on. The best one's worst round comes first.
pub fn standings(entrants: &[Entrant], outcomes: &[Outcome]) -> Vec<Standing> {
    let rounds: Vec<&[Outcome]> = outcomes.chunks(entrants.len().max(1)).collect();
    let mut standings: Vec<Standing> = (entrants.iter().enumerate())
        .map(|(index, entrant)| {
            let of_best: Vec<f64> = (rounds.iter())
                .map(|round| {
                    let best = round
                        .iter()
                        .fold(1e-9, |b: f64, o| b.max(o.requests_per_second));
                    round[index].requests_per_second / best
                })
                .collect();
            let logarithms: f64 = of_best.iter().map(|share| share.max(1e-9).ln()).sum();
            Standing {
                policy: entrant.name.clone(),
                worst: of_best.iter().copied().fold(1.0, f64::min),
                mean: (logarithms / of_best.len().max(1) as f64).exp(),
                of_best,
            }
        })
        .collect();
    standings.sort_by(|a, b| b.worst.total_cmp(&a.worst));
    standings
}

#[cfg(test)]
mod tests {
    use super::*;
    use trapeze_core::config::PolicyKind;

    #[test]
    fn shares_are_of_the_best_and_the_least_bad_comes_first() {
        let entrants = [PolicyKind::RoundRobin, PolicyKind::Hrw].map(Entrant::of);
        let rounds = Round::synthetic(2, 1);
        let round = &rounds[0];
        let mut outcomes: Vec<Outcome> = (entrants.iter())
            .map(|entrant| {
                Run {
                    span: Span::requests(200),
                    ..round.run(entrant, 1)
                }
                .go()
            })
            .collect();
        outcomes[0].requests_per_second = 50.0;
        outcomes[1].requests_per_second = 200.0;
        let mut second = outcomes.clone();
        second[0].requests_per_second = 100.0;
        second[1].requests_per_second = 90.0;
        outcomes.extend(second);
        let standings = standings(&entrants, &outcomes);
        assert_eq!(standings[0].policy, "hrw");
        assert_eq!(standings[0].of_best, [1.0, 0.9]);
        assert_eq!((standings[0].worst, standings[1].worst), (0.9, 0.25));
        assert!((standings[1].mean - 0.5).abs() < 1e-12);
    }
}
