//! The experiments of [SPLITSTACK02 §V], and what the paper reports of them: the
//! gains of the half-pipe over a handoff that drains the connection first.

use clap::ValueEnum;
use serde::Serialize;

/// What is between the client and the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
#[value(rename_all = "lowercase")]
pub enum Network {
    /// Nothing.
    Lan,
    /// 175 ms for a round trip on which 4 % of packets are lost, a receive window of
    /// 16 KB.
    Wan16,
    /// The same with 100 KB.
    Wan100,
}

/// One point of an experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(tag = "experiment", rename_all = "kebab-case")]
pub enum Point {
    /// Figures 5a and 5b: 6 KB each, every request at another server.
    Jumps {
        /// Requests of a connection.
        requests: u32,
    },
    /// Figures 5c and 5d: four requests each, every request at another server.
    Sizes {
        /// Bytes of each answer.
        bytes: u32,
    },
    /// Table I: 12 requests of 6 KB in the mean, by LARD.
    Olympics,
}

/// A share by which something is better.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Gain {
    /// More requests a second.
    pub throughput: f64,
    /// Shorter connections.
    pub lifetime: f64,
}

impl Network {
    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Lan => "LAN",
            Self::Wan16 => "WAN, 16 KB",
            Self::Wan100 => "WAN, 100 KB",
        }
    }

    /// The client's receive buffer, in bytes; 0: the kernel's choice.
    pub fn window(self) -> u32 {
        match self {
            Self::Lan | Self::Wan16 => 16 << 10,
            Self::Wan100 => 100 << 10,
        }
    }
}

impl Point {
    /// Requests of a connection.
    pub fn requests(self) -> u32 {
        match self {
            Self::Jumps { requests } => requests,
            Self::Sizes { .. } => 4,
            Self::Olympics => 12,
        }
    }

    /// For people.
    pub fn name(self) -> String {
        match self {
            Self::Jumps { requests: 1 } => "1 jump".into(),
            Self::Jumps { requests } => format!("{requests} jumps"),
            Self::Sizes { bytes } => format!("{} KB", bytes >> 10),
            Self::Olympics => "Olympics".into(),
        }
    }

    /// What the paper says in numbers; its curves are lost.
    pub fn published(self, network: Network) -> Option<Gain> {
        match (self, network) {
            (Self::Jumps { requests: 2 }, Network::Wan16) => Some(Gain {
                throughput: 0.40,
                lifetime: 1.0 - 1055.0 / 1440.0,
            }),
            (Self::Jumps { requests: 6 }, Network::Wan16) => Some(Gain {
                throughput: 0.65,
                lifetime: 1.0 - 1972.0 / 3489.0,
            }),
            (Self::Olympics, Network::Lan) => Some(Gain {
                throughput: 1014.0 / 903.0 - 1.0,
                lifetime: 1.0 - 1140.0 / 1358.0,
            }),
            (Self::Olympics, Network::Wan100) => Some(Gain {
                throughput: 295.0 / 244.0 - 1.0,
                lifetime: 1.0 - 3356.0 / 4969.0,
            }),
            _ => None,
        }
    }
}

/// All points, in the paper's order.
pub fn points() -> Vec<(Network, Point)> {
    let jumps = (1..=6).map(|requests| Point::Jumps { requests });
    let sizes = [1, 2, 4, 6, 10, 20, 50].map(|kb| Point::Sizes { bytes: kb << 10 });
    let mut all = Vec::new();
    for network in [Network::Lan, Network::Wan16] {
        all.extend(jumps.clone().map(|point| (network, point)));
    }
    for network in [Network::Lan, Network::Wan16, Network::Wan100] {
        all.extend(sizes.map(|point| (network, point)));
    }
    all.extend([Network::Lan, Network::Wan100].map(|network| (network, Point::Olympics)));
    all
}

/// The sizes of the trace's stand-in: a mean of 6 KB, spread as files of web sites are
/// (log-normal), the most popular ones small.
pub fn olympics_sizes() -> Vec<u32> {
    const FILES: u32 = 200;
    // Quantiles of a log-normal distribution with sigma 1, mean 6 KiB.
    let mean = 6144.0_f64;
    let mu = mean.ln() - 0.5;
    (0..FILES)
        .map(|n| {
            // A file's rank says nothing of its size: ranks in the order of a full cycle.
            let quantile = (f64::from(n * 77 % FILES) + 0.5) / f64::from(FILES);
            (mu + normal_quantile(quantile)).exp() as u32
        })
        .collect()
}

/// Of the standard normal distribution, by the logistic one's: near enough for sizes.
fn normal_quantile(p: f64) -> f64 {
    let odds = (p / (1.0 - p)).ln();
    odds / 1.702
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_answer_has_6_kb() {
        let sizes = olympics_sizes();
        let mean = sizes.iter().map(|&size| f64::from(size)).sum::<f64>() / sizes.len() as f64;
        assert!((5500.0..7000.0).contains(&mean), "{mean}");
    }

    #[test]
    fn gains_are_those_of_the_text() {
        let gain = Point::Jumps { requests: 2 }
            .published(Network::Wan16)
            .unwrap();
        assert_eq!(
            (gain.throughput, (gain.lifetime * 100.0).round()),
            (0.40, 27.0)
        );
        let table = Point::Olympics.published(Network::Wan100).unwrap();
        assert_eq!((table.throughput * 100.0).round(), 21.0);
        assert_eq!((table.lifetime * 100.0).round(), 32.0);
        assert!(Point::Olympics.published(Network::Wan16).is_none());
    }
}
