//! What was measured, and what follows from it: medians over the rounds, and ratios
//! of runs of the same round to the first policy's.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::cpu::Usage;
use crate::figures::{Ratio, median};
use crate::load::Outcome;
use crate::machine::Machine;
use crate::servers::origin::{OriginCounts, OriginSettings};

/// All of a comparison.
#[derive(Clone, Debug, Serialize)]
pub struct Results {
    /// Where it ran.
    pub machine: Machine,
    /// How it ran.
    pub settings: Settings,
    /// In the order asked for.
    pub policies: Vec<PolicyResults>,
    /// What went wrong, and in which run.
    pub failures: Vec<String>,
}

/// How a comparison ran.
#[derive(Clone, Debug, Serialize)]
pub struct Settings {
    /// Turns of all policies.
    pub rounds: u32,
    /// The length of what did not count, in seconds.
    pub warm_up_s: u32,
    /// The length of what did, in seconds.
    pub seconds: u32,
    /// Requests at a time.
    pub connections: u16,
    /// Hosts that served.
    pub backends: u8,
    /// How many objects there were.
    pub objects: u64,
    /// Their bytes.
    pub catalogue_bytes: u64,
    /// The exponent of their popularity.
    pub zipf: f64,
    /// Each server's memory and disk.
    pub origin: OriginSettings,
}

/// What was measured of a policy.
#[derive(Clone, Debug, Serialize)]
pub struct PolicyResults {
    /// Which.
    pub policy: &'static str,
    /// Over the rounds; without rounds, none.
    pub median: Option<Figures>,
    /// Its requests a second over the first policy's, round by round.
    pub of_first: Option<Ratio>,
    /// In the order of measuring.
    pub rounds: Vec<Run>,
}

/// One turn of a policy.
#[derive(Clone, Debug, Serialize)]
pub struct Run {
    /// From 1.
    pub round: u32,
    /// CPU time meanwhile.
    #[serde(flatten)]
    pub usage: Usage,
    /// What the client saw.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// What each server counted meanwhile.
    pub backends: BTreeMap<String, OriginCounts>,
}

/// A run's, or medians of several.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Figures {
    /// Answers a second.
    pub requests_per_s: f64,
    /// Half of the answers came within this.
    pub p50_us: f64,
    /// 99 in a hundred came within this.
    pub p99_us: f64,
    /// The share of requests whose object was in memory, 0 to 1.
    pub hit_ratio: f64,
    /// Requests of the busiest server over those of a mean one, from 1 on.
    pub imbalance: f64,
    /// How much of the time disks were busy, a mean over servers; above 1 if reads were
    /// begun that ended later.
    pub disk_share: f64,
    /// CPU time of the lab and the kernel, as a share of the machine's, 0 to 1.
    pub cpu_share: f64,
    /// CPU time of programs outside of the lab, as a share of the machine's, 0 to 1.
    pub others_share: f64,
}

impl Results {
    /// With what follows from the runs.
    pub fn new(
        machine: Machine,
        settings: Settings,
        mut policies: Vec<PolicyResults>,
        failures: Vec<String>,
    ) -> Self {
        let rate = |run: &Run| (run.round, run.outcome.rate());
        let first: BTreeMap<u32, f64> = policies
            .first()
            .map(|first| first.rounds.iter().map(rate).collect())
            .unwrap_or_default();
        for results in &mut policies {
            results.median = Figures::median(&results.rounds, machine.cores);
            let ratios = results.rounds.iter().map(rate);
            let ratios = ratios.filter_map(|(round, rate)| Some(rate / first.get(&round)?));
            results.of_first = Ratio::of(ratios.collect());
        }
        Results {
            machine,
            settings,
            policies,
            failures,
        }
    }
}

impl PolicyResults {
    /// Of nothing yet.
    pub fn new(policy: &'static str) -> Self {
        PolicyResults {
            policy,
            median: None,
            of_first: None,
            rounds: Vec::new(),
        }
    }
}

impl Run {
    /// Over all servers; 0 without requests.
    pub fn hit_ratio(&self) -> f64 {
        let sum = |of: fn(&OriginCounts) -> u64| self.backends.values().map(of).sum::<u64>();
        sum(|counts| counts.hits) as f64 / sum(|counts| counts.requests).max(1) as f64
    }

    fn imbalance(&self) -> f64 {
        let requests = self.backends.values().map(|counts| counts.requests);
        let most = requests.clone().max().unwrap_or(0) as f64;
        most * self.backends.len() as f64 / requests.sum::<u64>().max(1) as f64
    }

    fn disk_share(&self) -> f64 {
        let busy_us: u64 = self.backends.values().map(|counts| counts.disk_us).sum();
        let disks = self.backends.len().max(1) as f64;
        busy_us as f64 / disks / self.outcome.duration_us as f64
    }

    /// Of so many cores.
    fn share(&self, cpu_us: u64, cores: usize) -> f64 {
        cpu_us as f64 / (self.outcome.duration_us as f64 * cores as f64)
    }
}

impl Figures {
    fn median(runs: &[Run], cores: usize) -> Option<Self> {
        let over = |figure: &dyn Fn(&Run) -> f64| median(runs.iter().map(figure).collect());
        Some(Figures {
            requests_per_s: over(&|run| run.outcome.rate())?,
            p50_us: over(&|run| run.outcome.p50_us as f64)?,
            p99_us: over(&|run| run.outcome.p99_us as f64)?,
            hit_ratio: over(&Run::hit_ratio)?,
            imbalance: over(&Run::imbalance)?,
            disk_share: over(&Run::disk_share)?,
            cpu_share: over(&|run| run.share(run.usage.own_us(), cores))?,
            others_share: over(&|run| run.share(run.usage.others_cpu_us, cores))?,
        })
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::load::Errors;

    /// A run of a second: requests and hits of each server.
    fn run(round: u32, servers: &[(u64, u64)]) -> Run {
        let counts = |&(requests, hits): &(u64, u64)| OriginCounts {
            requests,
            hits,
            misses: requests - hits,
            disk_us: 900_000,
            ..OriginCounts::default()
        };
        Run {
            round,
            usage: Usage {
                machine_cpu_us: 1_100_000,
                others_cpu_us: 100_000,
            },
            outcome: Outcome {
                requests: servers.iter().map(|(requests, _)| requests).sum(),
                bytes: 1,
                duration_us: 1_000_000,
                p50_us: 500,
                p90_us: 800,
                p99_us: 4_270,
                max_us: 12_000,
                errors: Errors::default(),
                connections_begun: 1,
            },
            backends: (1..)
                .map(|number| format!("b{number}"))
                .zip(servers.iter().map(counts))
                .collect(),
        }
    }

    /// Two policies, two rounds; the second policy has four times the throughput.
    pub fn results() -> Results {
        let policies = [
            ("least-connections", [(100, 40), (100, 60)]),
            ("lard-r", [(600, 570), (200, 150)]),
        ];
        let measured = policies.map(|(policy, servers)| PolicyResults {
            rounds: vec![run(1, &servers), run(2, &servers)],
            ..PolicyResults::new(policy)
        });
        let settings = Settings {
            rounds: 2,
            warm_up_s: 1,
            seconds: 1,
            connections: 128,
            backends: 2,
            objects: 5000,
            catalogue_bytes: 48 << 20,
            zipf: 0.8,
            origin: OriginSettings::default(),
        };
        Results::new(Machine::example(), settings, measured.into(), Vec::new())
    }

    #[test]
    fn figures_are_over_all_servers() {
        let results = results();
        let wlc = results.policies[0].median.unwrap();
        let lard = results.policies[1].median.unwrap();
        assert_eq!((wlc.hit_ratio, wlc.imbalance), (0.5, 1.0));
        assert_eq!((lard.hit_ratio, lard.imbalance), (0.9, 1.5));
        assert_eq!((lard.disk_share, lard.cpu_share), (0.9, 0.5));
        assert_eq!(lard.others_share, 0.05);
        assert_eq!(results.policies[1].of_first.unwrap().median, 4.0);
        assert_eq!(results.policies[0].of_first.unwrap().median, 1.0);
    }

    #[test]
    fn what_was_not_measured_has_no_figures() {
        let Results {
            machine,
            settings,
            mut policies,
            ..
        } = results();
        policies[0].rounds.clear();
        let results = Results::new(machine, settings, policies, Vec::new());
        assert_eq!(results.policies[0].median, None);
        assert_eq!(results.policies[1].of_first, None);
        assert!(results.policies[1].median.is_some());
    }
}
