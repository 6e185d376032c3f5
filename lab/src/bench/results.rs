//! What was measured, and what follows from it: medians over the rounds, and
//! ratios of runs of the same round, which a change of the machine's mood
//! between rounds does not touch.

use serde::Serialize;

use super::case::{Bars, Case, Target};
use super::environment::Environment;
use crate::cpu::Usage;
use crate::figures::{Ratio, median};
use crate::load::Outcome;

/// All of a bench.
#[derive(Clone, Debug, Serialize)]
pub struct Results {
    /// Where it ran.
    pub environment: Environment,
    /// How it ran.
    pub settings: Settings,
    /// In the order of measuring.
    pub cases: Vec<CaseResults>,
    /// What went wrong, and in which run.
    pub failures: Vec<String>,
}

/// How a bench ran.
#[derive(Clone, Debug, Serialize)]
pub struct Settings {
    /// Rounds of all cases.
    pub rounds: u32,
    /// The length of a run.
    pub seconds: u32,
    /// Requests at a time.
    pub connections: u16,
    /// Hosts that serve, behind all targets but direct.
    pub backends: u8,
}

impl Settings {
    /// Who serves, in words.
    pub fn servers(&self) -> String {
        match self.backends {
            1 => "1 server behind all targets".to_owned(),
            count => format!("{count} servers behind all targets but direct, which asks one"),
        }
    }
}

/// What was measured of a case.
#[derive(Clone, Debug, Serialize)]
pub struct CaseResults {
    /// As a reader knows it.
    pub title: String,
    /// What was asked for, and how.
    #[serde(flatten)]
    pub case: Case,
    /// In the order of targets.
    pub targets: Vec<TargetResults>,
    /// What Trapeze is to reach.
    pub bars: Bars,
    /// What it reached, where direct and proxies were measured too.
    pub ratios: Ratios,
}

/// What was measured of a target.
#[derive(Clone, Debug, Serialize)]
pub struct TargetResults {
    /// Which.
    pub target: Target,
    /// Over the rounds; without rounds, none.
    pub median: Option<Figures>,
    /// In the order of measuring.
    pub rounds: Vec<Run>,
}

/// One run of the client against one target.
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
}

/// A run's, or medians of several.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Figures {
    /// Answers a second.
    pub requests_per_s: f64,
    /// Of 10^6 bytes, heads included.
    pub megabytes_per_s: f64,
    /// Half of the answers came within this.
    pub p50_us: f64,
    /// 99 in a hundred came within this.
    pub p99_us: f64,
    /// CPU time of the whole machine, client and server included, but for
    /// programs outside of the lab.
    pub cpu_us_per_request: f64,
}

/// Trapeze in proportion to others.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Ratios {
    /// By requests a second, which the bars are about.
    pub by_rate: Comparison,
    /// By requests for the same CPU time: what it comes to if the processors are
    /// the bottleneck, and what other programs on the machine disturb less.
    pub by_cpu: Comparison,
}

/// A figure of Trapeze, the higher the better, in proportion to others'.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Comparison {
    /// Over direct's.
    pub of_direct: Option<Ratio>,
    /// Over the better proxy's.
    pub of_best_proxy: Option<Ratio>,
    /// The proxy that is better over all rounds, of those that set bars.
    pub best_proxy: Option<Target>,
    /// Over that of HAProxy with splicing.
    pub of_splicing: Option<Ratio>,
    /// Over that of the kernel's NAT.
    pub of_nat: Option<Ratio>,
}

impl CaseResults {
    /// Of nothing yet.
    pub fn new(case: Case, targets: &[Target], bars: Bars) -> Self {
        let none = |&target| TargetResults {
            target,
            median: None,
            rounds: Vec::new(),
        };
        CaseResults {
            title: case.title(),
            case,
            targets: targets.iter().map(none).collect(),
            bars,
            ratios: Ratios::default(),
        }
    }

    /// Adds a run.
    pub fn add(&mut self, target: Target, run: Run) {
        if let Some(results) = self.targets.iter_mut().find(|of| of.target == target) {
            results.rounds.push(run);
        }
    }

    /// Draws medians and ratios from the runs.
    pub fn conclude(&mut self) {
        for results in &mut self.targets {
            results.median = Figures::median(&results.rounds);
        }
        self.ratios = Ratios {
            by_rate: self.compare(|run| run.outcome.rate()),
            by_cpu: self.compare(|run| 1.0 / run.cpu_us_per_request()),
        };
    }

    /// The throughput of a target over another's, round by round.
    pub fn ratio(&self, of: Target, over: Target) -> Option<Ratio> {
        self.ratio_by(of, over, |run| run.outcome.rate())
    }

    fn compare(&self, figure: fn(&Run) -> f64) -> Comparison {
        let median_of = |of: &TargetResults| median(of.rounds.iter().map(figure).collect());
        let best_proxy = self
            .targets
            .iter()
            .filter(|of| of.target.sets_bars())
            .filter_map(|of| Some((of.target, median_of(of)?)))
            .max_by(|(_, a), (_, b)| a.total_cmp(b))
            .map(|(target, _)| target);
        Comparison {
            of_direct: self.ratio_by(Target::Trapeze, Target::Direct, figure),
            of_best_proxy: best_proxy
                .and_then(|proxy| self.ratio_by(Target::Trapeze, proxy, figure)),
            best_proxy,
            of_splicing: self.ratio_by(Target::Trapeze, Target::HaproxySplice, figure),
            of_nat: self.ratio_by(Target::Trapeze, Target::Nat, figure),
        }
    }

    fn ratio_by(&self, of: Target, over: Target, figure: fn(&Run) -> f64) -> Option<Ratio> {
        let (of, over) = (self.target(of)?, self.target(over)?);
        let ratios = of.rounds.iter().filter_map(|run| {
            let same = over.rounds.iter().find(|other| other.round == run.round)?;
            Some(figure(run) / figure(same))
        });
        Ratio::of(ratios.collect())
    }

    /// What was measured of a target.
    pub fn target(&self, target: Target) -> Option<&TargetResults> {
        self.targets.iter().find(|of| of.target == target)
    }
}

impl Figures {
    fn median(runs: &[Run]) -> Option<Self> {
        let over = |figure: fn(&Run) -> f64| median(runs.iter().map(figure).collect());
        Some(Figures {
            requests_per_s: over(|run| run.outcome.rate())?,
            megabytes_per_s: over(|run| run.outcome.megabytes_per_s())?,
            p50_us: over(|run| run.outcome.p50_us as f64)?,
            p99_us: over(|run| run.outcome.p99_us as f64)?,
            cpu_us_per_request: over(Run::cpu_us_per_request)?,
        })
    }
}

impl Run {
    fn cpu_us_per_request(&self) -> f64 {
        self.usage.own_us() as f64 / self.outcome.requests.max(1) as f64
    }

    /// The share of `cores` that programs outside of the lab used, 0 to 1.
    pub fn others_share(&self, cores: usize) -> f64 {
        self.usage.others_cpu_us as f64 / (self.outcome.duration_us as f64 * cores as f64)
    }
}

#[cfg(test)]
#[path = "results_tests.rs"]
pub mod tests;
