//! Published experiments, run again: what was published and what the model gives, side
//! by side. Nothing here decides a result; hardware and workload of an experiment are
//! the same for all of its policies.

mod lacp03;
mod lard98;
mod lvscad07;
mod row;

use serde::Serialize;
use trapeze_core::config::PolicyKind;

use crate::batch::run_all;
use crate::engine::{Entrant, Run, Span};
use crate::hardware::Hardware;
use crate::outcome::Outcome;
use crate::workload::Workload;
pub use row::{Check, Row};

/// A paper with experiments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Paper {
    /// Di Santo, Ranaldo, Zimeo: HRW, LACP.
    Lacp03,
    /// Liu, Chiang, Wu: xLARD/R, CAWLL, CAHRD.
    Lvscad07,
    /// Pai et al.: LARD, LARD/R.
    Lard98,
}

impl Paper {
    /// All of them.
    pub const ALL: [Paper; 3] = [Paper::Lacp03, Paper::Lvscad07, Paper::Lard98];

    /// Its key.
    pub fn name(self) -> &'static str {
        match self {
            Paper::Lacp03 => "lacp03",
            Paper::Lvscad07 => "lvscad07",
            Paper::Lard98 => "lard98",
        }
    }

    /// Its experiments.
    pub fn experiments(self) -> Vec<Experiment> {
        match self {
            Paper::Lacp03 => lacp03::experiments(),
            Paper::Lvscad07 => lvscad07::experiments(),
            Paper::Lard98 => lard98::experiments(),
        }
    }
}

/// Runs, and what their outcomes are held against.
pub struct Experiment {
    /// What it is, with the section.
    pub title: &'static str,
    /// What it was run on, in words.
    pub setup: &'static str,
    trials: Vec<Trial>,
    compare: fn(&Outcomes<'_>) -> Vec<Row>,
}

/// A run that owns what it needs; its label names it among those of its experiment.
struct Trial {
    label: String,
    hardware: Hardware,
    workload: Box<dyn Workload>,
    entrant: Entrant,
    span: Span,
    seed: u64,
}

/// Of one experiment.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// What it is, with the section.
    pub title: &'static str,
    /// What it was run on, in words.
    pub setup: &'static str,
    /// Line by line.
    pub rows: Vec<Row>,
    /// Of every run, by label.
    pub outcomes: Vec<(String, Outcome)>,
}

impl Experiment {
    /// How many requests its runs are, as far as that is known before: runs for a time
    /// count none.
    pub fn requests(&self) -> u64 {
        let requests = self.trials.iter().map(|t| t.span.requests);
        requests.filter(|&requests| requests < u64::MAX).sum()
    }

    /// Runs it.
    pub fn go(&self, threads: usize, watch: &(dyn Fn(u64) + Sync)) -> Comparison {
        let runs: Vec<Run<'_>> = self.trials.iter().map(Trial::run).collect();
        let outcomes = run_all(&runs, threads, watch);
        let labels = self.trials.iter().map(|t| t.label.clone());
        let outcomes: Vec<(String, Outcome)> = labels.zip(outcomes).collect();
        Comparison {
            title: self.title,
            setup: self.setup,
            rows: (self.compare)(&Outcomes(&outcomes)),
            outcomes,
        }
    }
}

impl Trial {
    fn run(&self) -> Run<'_> {
        Run {
            hardware: &self.hardware,
            workload: self.workload.as_ref(),
            entrant: &self.entrant,
            span: self.span,
            seed: self.seed,
        }
    }
}

/// Outcomes by label; runs with one label are repetitions.
struct Outcomes<'a>(&'a [(String, Outcome)]);

impl Outcomes<'_> {
    /// The mean over repetitions.
    fn mean(&self, label: &str, of: impl Fn(&Outcome) -> f64) -> f64 {
        let (sum, count) = (self.0.iter().filter(|(l, _)| l == label))
            .fold((0.0, 0), |(sum, count), (_, o)| (sum + of(o), count + 1));
        sum / f64::from(count.max(1))
    }

    fn latency_ms(&self, label: &str) -> f64 {
        self.mean(label, |o| o.latency_mean_ms)
    }

    fn rate(&self, label: &str) -> f64 {
        self.mean(label, |o| o.requests_per_second)
    }

    /// How much more throughput, in per cent.
    fn gain(&self, label: &str, over: &str) -> f64 {
        (self.rate(label) / self.rate(over) - 1.0) * 100.0
    }
}

/// A policy by its name in the configuration.
fn policy(name: &str) -> Entrant {
    let kind = PolicyKind::ALL.into_iter().find(|kind| kind.name() == name);
    Entrant::of(kind.unwrap_or_else(|| panic!("the core has no policy {name}")))
}

/// `min to max`.
fn range(values: impl IntoIterator<Item = f64>) -> (f64, f64) {
    values
        .into_iter()
        .fold((f64::MAX, f64::MIN), |(low, high), v| {
            (low.min(v), high.max(v))
        })
}
