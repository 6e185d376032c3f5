//! The experiments of [SPLICE06 §7], and what its tables 2 to 7 report.

use std::time::Duration;

use clap::ValueEnum;
use serde::Serialize;

/// What is between clients and server, under the paper's names (C: clients, LB: layer-3
/// load balancer, our spray; P: proxy, our dispatcher; S: server).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Setup {
    /// Nothing.
    #[serde(rename = "C-S")]
    Direct,
    /// A spray and a dispatcher that splices.
    #[serde(rename = "C-LB-P-S")]
    One,
    /// A spray and two dispatchers, of which each sees packets of all connections.
    #[serde(rename = "C-LB-2P-S")]
    Two,
    /// A spray and a dispatcher; the server's host splices what it sends.
    #[serde(rename = "C-LB-P-S*")]
    Split,
}

/// One of the paper's three experiments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
#[value(rename_all = "lowercase")]
pub enum Experiment {
    /// §7.2: uploads, with one dispatcher and with two.
    Scaling,
    /// §7.3: uploads, while one of two dispatchers dies.
    Failover,
    /// §7.4: downloads, spliced by the dispatcher and by the server's host.
    Split,
}

/// One line of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Case {
    /// Whose.
    pub experiment: Experiment,
    /// Between clients and server.
    pub setup: Setup,
    /// Of each transfer.
    pub bytes: u64,
    /// Between heartbeats, where a dispatcher dies half-way.
    pub dies: Option<Duration>,
}

/// What the paper measured, on links of 100 Mbit/s.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Published {
    /// A transfer's mean duration, in seconds.
    pub mean_s: f64,
    /// From the first one's begin to the last one's end, in seconds.
    pub total_s: f64,
}

const MB: u64 = 1_000_000;
/// Sizes of uploads; downloads have the last two [SPLICE06 §7.2, §7.4].
const SIZES: [u64; 3] = [MB / 10, 10 * MB, 20 * MB];
/// Of transfers while a dispatcher dies [SPLICE06 §7.3].
const FAILOVER_BYTES: u64 = 10 * MB;
/// Theirs, and one that their machines could not do.
const HEARTBEATS_MS: [u64; 4] = [5_000, 1_000, 200, 10];

impl Setup {
    /// The paper's.
    pub fn name(self) -> &'static str {
        match self {
            Self::Direct => "C-S",
            Self::One => "C-LB-P-S",
            Self::Two => "C-LB-2P-S",
            Self::Split => "C-LB-P-S*",
        }
    }

    pub fn dispatchers(self) -> u8 {
        match self {
            Self::Two => 2,
            _ => 1,
        }
    }

    pub fn transfer(self) -> &'static str {
        match self {
            Self::Split => "split-splice",
            _ => "splice",
        }
    }
}

impl Case {
    /// For people.
    pub fn name(self) -> String {
        let what = match self.experiment {
            Experiment::Split => "GET",
            _ => "PUT",
        };
        let size = match self.bytes {
            bytes if bytes < MB => format!("{} KB", bytes / 1_000),
            bytes => format!("{} MB", bytes / MB),
        };
        let dies = match self.dies {
            None => String::new(),
            Some(heartbeat) => format!(", one dies, heartbeat {heartbeat:?}"),
        };
        format!("{what} {size:<7} {}{dies}", self.setup.name())
    }

    /// What it is compared with: the server alone, or the same without a death.
    pub fn base(self) -> Case {
        match self.experiment {
            Experiment::Failover => Case { dies: None, ..self },
            _ => Case {
                setup: Setup::Direct,
                ..self
            },
        }
    }

    /// The paper's line.
    pub fn published(self) -> Option<Published> {
        let megabytes = self.bytes / MB;
        let heartbeat = self.dies.map(|heartbeat| heartbeat.as_millis());
        let (mean_s, total_s) = match (self.experiment, self.setup, megabytes, heartbeat) {
            (Experiment::Scaling, Setup::Direct, 20, _) => (165.02, 177.80),
            (Experiment::Scaling, Setup::One, 20, _) => (175.69, 188.85),
            (Experiment::Scaling, Setup::Two, 20, _) => (165.83, 177.83),
            (Experiment::Scaling, Setup::Direct, 10, _) => (78.99, 89.40),
            (Experiment::Scaling, Setup::One, 10, _) => (85.97, 94.59),
            (Experiment::Scaling, Setup::Two, 10, _) => (79.78, 89.42),
            (Experiment::Scaling, Setup::Direct, 0, _) => (0.738, 1.87),
            (Experiment::Scaling, Setup::One, 0, _) => (0.784, 4.57),
            (Experiment::Scaling, Setup::Two, 0, _) => (0.723, 1.87),
            (Experiment::Failover, Setup::Two, 10, None) => (79.76, 89.46),
            (Experiment::Failover, Setup::Two, 10, Some(5_000)) => (90.54, 142.14),
            (Experiment::Failover, Setup::Two, 10, Some(1_000)) => (85.69, 97.95),
            (Experiment::Failover, Setup::Two, 10, Some(200)) => (82.20, 94.48),
            (Experiment::Split, Setup::Direct, 10, _) => (78.93, 88.40),
            (Experiment::Split, Setup::One, 10, _) => (84.91, 93.66),
            (Experiment::Split, Setup::Split, 10, _) => (83.18, 90.45),
            (Experiment::Split, Setup::Direct, 20, _) => (165.76, 176.79),
            (Experiment::Split, Setup::One, 20, _) => (174.12, 186.36),
            (Experiment::Split, Setup::Split, 20, _) => (170.79, 180.09),
            _ => return None,
        };
        Some(Published { mean_s, total_s })
    }
}

/// The lines of some experiments, in the paper's order.
pub fn cases(experiments: &[Experiment], largest: u64) -> Vec<Case> {
    let mut all = Vec::new();
    for &experiment in experiments {
        let case = |setup, bytes, dies| Case {
            experiment,
            setup,
            bytes,
            dies,
        };
        match experiment {
            Experiment::Scaling => {
                for bytes in SIZES {
                    all.extend(
                        [Setup::Direct, Setup::One, Setup::Two].map(|s| case(s, bytes, None)),
                    );
                }
            }
            Experiment::Failover => {
                all.push(case(Setup::Two, FAILOVER_BYTES, None));
                all.extend(
                    HEARTBEATS_MS.map(|ms| {
                        case(Setup::Two, FAILOVER_BYTES, Some(Duration::from_millis(ms)))
                    }),
                );
            }
            Experiment::Split => {
                for bytes in &SIZES[1..] {
                    all.extend(
                        [Setup::Direct, Setup::One, Setup::Split].map(|s| case(s, *bytes, None)),
                    );
                }
            }
        }
    }
    all.retain(|case| case.bytes <= largest);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_the_tables_is_there_once_behind_what_it_is_compared_with() {
        let all = cases(
            &[Experiment::Scaling, Experiment::Failover, Experiment::Split],
            u64::MAX,
        );
        assert_eq!(all.len(), 9 + 5 + 6);
        let published = all.iter().filter(|case| case.published().is_some());
        // But for the heartbeat of 10 ms.
        assert_eq!(published.count(), all.len() - 1);
        for (index, case) in all.iter().enumerate() {
            assert!(all[..=index].contains(&case.base()), "{case:?}");
        }
    }

    #[test]
    fn sizes_can_be_left_out() {
        let small = cases(&[Experiment::Scaling, Experiment::Split], 10 * MB);
        assert!(small.iter().all(|case| case.bytes <= 10 * MB));
        assert_eq!(small.len(), 6 + 3);
    }
}
