//! What was measured, and what follows from it.

use serde::Serialize;

use super::published::{Case, Published};
use super::transfers::Transfers;
use crate::cpu::Usage;
use crate::figures::median;
use crate::machine::Machine;

/// All of the experiments.
#[derive(Clone, Debug, Serialize)]
pub struct Results {
    /// Where they ran.
    pub machine: Machine,
    /// Turns of all cases.
    pub rounds: u32,
    /// Transfers at once.
    pub transfers: u16,
    /// Of each host's link, in bits a second; without it, none.
    pub rate: Option<u64>,
    /// In the paper's order.
    pub cases: Vec<CaseResults>,
    /// What went wrong, and in which run.
    pub failures: Vec<String>,
}

/// What was measured of one case.
#[derive(Clone, Debug, Serialize)]
pub struct CaseResults {
    /// Which.
    #[serde(flatten)]
    pub case: Case,
    /// What the paper says of it.
    pub published: Option<Published>,
    /// In the order of measuring.
    pub runs: Vec<Run>,
}

/// One turn.
#[derive(Clone, Debug, Serialize)]
pub struct Run {
    /// What the clients saw.
    #[serde(flatten)]
    pub transfers: Transfers,
    /// What the machine did meanwhile.
    #[serde(flatten)]
    pub usage: Usage,
}

impl CaseResults {
    /// Without runs yet.
    pub fn new(case: Case) -> Self {
        CaseResults {
            case,
            published: case.published(),
            runs: Vec::new(),
        }
    }

    /// The median over the runs.
    pub fn of(&self, figure: impl Fn(&Transfers) -> f64) -> Option<f64> {
        median(self.runs.iter().map(|run| figure(&run.transfers)).collect())
    }

    /// The share of all cores' time that the lab used, 0..=1, in the median.
    pub fn busy(&self, cores: usize) -> Option<f64> {
        let share = |run: &Run| {
            let all = run.transfers.total_s * 1e6 * cores as f64;
            run.usage.own_us() as f64 / all
        };
        median(self.runs.iter().map(share).collect())
    }
}

impl Results {
    /// The results of one case, if it was measured.
    pub fn case(&self, case: Case) -> Option<&CaseResults> {
        self.cases.iter().find(|results| results.case == case)
    }
}
