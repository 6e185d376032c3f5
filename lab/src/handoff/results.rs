//! What was measured, and what follows from it.

use serde::Serialize;

use super::published::{Gain, Network, Point};
use super::visits::Visits;
use crate::figures::median;
use crate::machine::Machine;

/// How a connection goes to another server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// When the client has acknowledged everything: the paper's "traditional".
    Drained,
    /// At once [SPLITSTACK02 §III].
    HalfPipe,
}

/// All of the experiments.
#[derive(Clone, Debug, Serialize)]
pub struct Results {
    /// Where they ran.
    pub machine: Machine,
    /// How they ran.
    pub settings: Settings,
    /// In the paper's order.
    pub points: Vec<PointResults>,
    /// What went wrong, and in which run.
    pub failures: Vec<String>,
}

/// How the experiments ran.
#[derive(Clone, Debug, Serialize)]
pub struct Settings {
    /// Turns of all points.
    pub rounds: u32,
    /// The length of each, in seconds.
    pub seconds: u32,
    /// Connections at a time.
    pub connections: u16,
}

/// What was measured at a point.
#[derive(Clone, Debug, Serialize)]
pub struct PointResults {
    /// Over what.
    pub network: Network,
    /// What was asked for.
    #[serde(flatten)]
    pub point: Point,
    /// What the paper says of it.
    pub published: Option<Gain>,
    /// In the order of measuring.
    pub runs: Vec<Run>,
}

/// One turn.
#[derive(Clone, Debug, Serialize)]
pub struct Run {
    /// From 1.
    pub round: u32,
    /// How flows were handed over.
    pub way: Way,
    /// What the client saw.
    #[serde(flatten)]
    pub visits: Visits,
}

impl Way {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Drained, Self::HalfPipe];

    /// As the configuration has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Drained => "drained",
            Self::HalfPipe => "half-pipe",
        }
    }
}

impl PointResults {
    /// Without runs yet.
    pub fn new(network: Network, point: Point) -> Self {
        Self {
            network,
            point,
            published: point.published(network),
            runs: Vec::new(),
        }
    }

    /// The median over one way's runs.
    pub fn of(&self, way: Way, figure: fn(&Visits) -> f64) -> Option<f64> {
        let runs = self.runs.iter().filter(|run| run.way == way);
        median(runs.map(|run| figure(&run.visits)).collect())
    }

    /// What the half-pipe gains over draining.
    pub fn gain(&self) -> Option<Gain> {
        let ratio = |figure| Some(self.of(Way::HalfPipe, figure)? / self.of(Way::Drained, figure)?);
        Some(Gain {
            throughput: ratio(Visits::rate)? - 1.0,
            lifetime: 1.0 - ratio(Visits::lifetime_ms)?,
        })
    }
}
