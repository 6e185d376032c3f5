//! What is measured: the targets, the cases, and the bars that Trapeze is held
//! to in each case.

use anyhow::{Result, bail};
use clap::ValueEnum;
use serde::Serialize;

use crate::documents::DOCUMENTS;

/// What requests are sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Target {
    /// A backend's own server, with nothing between.
    Direct,
    /// HAProxy on the dispatcher.
    Haproxy,
    /// The same, its bodies moved by splice(2): an option that its manual
    /// advises against using without extreme care.
    HaproxySplice,
    /// nginx as a proxy on the dispatcher.
    Nginx,
    /// The kernel's own rewriting of both directions, on the dispatcher: it reads no requests.
    Nat,
    /// The service's address.
    Trapeze,
}

/// How a client uses its connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// One request after the other on each connection.
    KeepAlive,
    /// A connection for each request, which the server closes.
    ConnectionPerRequest,
    /// Keep-alive on a single connection: the latency of an idle system.
    OneConnection,
}

/// One of the lab's documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Size {
    /// Its name: 1k, 1m, …
    pub name: &'static str,
    /// Its length.
    pub bytes: u64,
}

/// What all targets are measured at in turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Case {
    /// What is asked for.
    pub size: Size,
    /// On which connections.
    pub mode: Mode,
}

/// The least throughput that Trapeze is to have, in ratios.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Bars {
    /// Of direct's.
    pub of_direct: Option<f64>,
    /// Of the better proxy's.
    pub of_best_proxy: Option<f64>,
    /// Of the kernel's NAT's.
    pub of_nat: Option<f64>,
}

impl Target {
    /// As users write it.
    pub fn word(self) -> &'static str {
        match self {
            Target::Direct => "direct",
            Target::Haproxy => "haproxy",
            Target::HaproxySplice => "haproxy-splice",
            Target::Nginx => "nginx",
            Target::Nat => "nat",
            Target::Trapeze => "trapeze",
        }
    }

    /// As a reader knows it.
    pub fn title(self) -> &'static str {
        match self {
            Target::Direct => "direct",
            Target::Haproxy => "HAProxy",
            Target::HaproxySplice => "HAProxy, splicing",
            Target::Nginx => "nginx",
            Target::Nat => "nftables NAT",
            Target::Trapeze => "Trapeze",
        }
    }

    /// Whether every byte of both directions goes by way of it.
    pub fn is_proxy(self) -> bool {
        !matches!(self, Target::Direct | Target::Trapeze)
    }

    /// Whether it is HAProxy, however it is set.
    pub fn is_haproxy(self) -> bool {
        matches!(self, Target::Haproxy | Target::HaproxySplice)
    }

    /// Whether bars are held against it (docs/decisions/0013).
    pub fn sets_bars(self) -> bool {
        matches!(self, Target::Haproxy | Target::Nginx)
    }
}

impl Size {
    /// The document of that name, as an option's value.
    ///
    /// # Errors
    /// There is none: says which there are.
    pub fn named(name: &str) -> Result<Self> {
        match DOCUMENTS.iter().find(|(known, _)| *known == name) {
            Some(&(name, bytes)) => Ok(Size { name, bytes }),
            None => {
                let names: Vec<&str> = DOCUMENTS.iter().map(|(name, _)| *name).collect();
                bail!("the lab serves {}", names.join(", "))
            }
        }
    }

    /// As a reader knows it.
    pub fn title(self) -> String {
        match self.bytes {
            bytes if bytes >= 1 << 20 => format!("{} MiB", bytes >> 20),
            bytes => format!("{} KiB", bytes >> 10),
        }
    }
}

impl Case {
    /// All cases for `sizes`: the small ones that tell what a connection and
    /// what an idle system cost come with the smallest size.
    pub fn all(sizes: &[Size]) -> Vec<Case> {
        let of_mode = |mode| move |&size: &Size| Case { size, mode };
        let smallest = sizes.iter().min_by_key(|size| size.bytes);
        smallest
            .map(of_mode(Mode::ConnectionPerRequest))
            .into_iter()
            .chain(sizes.iter().map(of_mode(Mode::KeepAlive)))
            .chain(smallest.map(of_mode(Mode::OneConnection)))
            .collect()
    }

    /// As a reader knows it.
    pub fn title(self) -> String {
        let size = self.size.title();
        match self.mode {
            Mode::KeepAlive => size,
            Mode::ConnectionPerRequest => format!("{size}, a connection each"),
            Mode::OneConnection => format!("{size}, one connection"),
        }
    }

    /// The connections that it has at a time.
    pub fn connections(self, usual: u16) -> u16 {
        match self.mode {
            Mode::OneConnection => 1,
            Mode::KeepAlive | Mode::ConnectionPerRequest => usual,
        }
    }

    /// The client's threads: one, which leaves the server a core. Where answers are so long that to read
    /// them is the work, or several servers share it, one is the limit of all targets but proxies: then as
    /// many as there are cores.
    pub fn threads(self, cores: usize, backends: u8) -> usize {
        let one_is_the_limit = self.size.bytes >= 100_000 || backends > 1;
        match self.mode {
            Mode::KeepAlive if one_is_the_limit => cores,
            _ => 1,
        }
    }

    /// What Trapeze is to reach: with several backends, where requests move from one to
    /// the other, only what a proxy does. Where it splices, its answers go by way of it too.
    pub fn bars(self, backends: u8, splices: bool) -> Bars {
        let bars = |of_direct, of_best_proxy| Bars {
            of_direct,
            of_best_proxy,
            of_nat: None,
        };
        if splices {
            let is_large = self.size.bytes >= 100_000 && self.mode == Mode::KeepAlive;
            return Bars {
                of_nat: Some(1.0),
                ..bars(None, is_large.then_some(1.8))
            };
        }
        if backends > 1 {
            return match (self.size.bytes, self.mode) {
                (..10_000, Mode::KeepAlive) => bars(None, Some(1.0)),
                (..100_000, Mode::KeepAlive) => bars(None, Some(1.3)),
                (_, Mode::KeepAlive) => bars(None, Some(2.0)),
                _ => bars(None, None),
            };
        }
        match (self.size.name, self.mode) {
            ("1k", Mode::ConnectionPerRequest) => bars(None, Some(1.3)),
            ("1k", Mode::KeepAlive) => bars(Some(0.9), Some(1.7)),
            ("10k", Mode::KeepAlive) => bars(Some(0.9), Some(1.3)),
            ("100k", Mode::KeepAlive) => bars(Some(0.9), Some(2.2)),
            ("1m", Mode::KeepAlive) => bars(Some(0.95), Some(1.8)),
            _ => bars(None, None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn with_several_backends_others_bars_hold() {
        let case = |name| Case {
            size: Size::named(name).unwrap(),
            mode: Mode::KeepAlive,
        };
        assert_eq!(case("1k").bars(1, false).of_best_proxy, Some(1.7));
        let moving = ["1k", "10k", "100k", "10m"].map(|name| case(name).bars(2, false));
        let of_best_proxy = moving.map(|bars| bars.of_best_proxy.unwrap());
        assert_eq!(of_best_proxy, [1.0, 1.3, 2.0, 2.0]);
        assert!(moving.iter().all(|bars| bars.of_direct.is_none()));
        let spliced = ["10k", "100k"].map(|name| case(name).bars(1, true));
        assert_eq!(spliced.map(|bars| bars.of_best_proxy), [None, Some(1.8)]);
        assert!(spliced.iter().all(|bars| bars.of_nat == Some(1.0)));
    }

    #[test]
    fn connections_are_measured_at_the_smallest_size() {
        let sizes = ["10k", "1k", "1m"].map(|name| Size::named(name).unwrap());
        let titles: Vec<String> = Case::all(&sizes).into_iter().map(Case::title).collect();
        assert_eq!(
            titles,
            [
                "1 KiB, a connection each",
                "10 KiB",
                "1 KiB",
                "1 MiB",
                "1 KiB, one connection"
            ]
        );
        assert!(Case::all(&[]).is_empty());
    }

    #[test]
    fn an_unknown_size_is_refused_with_those_that_there_are() {
        let error = Size::named("2k").unwrap_err().to_string();
        assert!(error.contains("1k, 10k, 100k, 1m"), "{error}");
    }
}
