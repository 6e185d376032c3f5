//! What hosts carried: bytes by their interfaces' own counters, packets by those
//! of the data path.

use std::path::PathBuf;

use anyhow::{Context, Result};
use trapeze_datapath::abi::EVENTS;
use trapeze_datapath::agent::AgentMaps;
use trapeze_datapath::dispatcher::DispatcherMaps;
use trapeze_datapath::map::PerCpu;
use trapeze_datapath::{netns, object};

use crate::lab::Lab;
use crate::role::INTERFACE;
use crate::state;

/// Hosts whose interfaces are watched.
pub struct Hops(Vec<(String, PathBuf)>);

/// What their interfaces have carried.
pub struct Carried(Vec<(String, Traffic)>);

/// Bytes of one interface, link-layer headers included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    pub received: u64,
    pub sent: u64,
}

/// The counters of a node's data path; they outlive its daemon.
pub struct DataPath(PerCpu);

/// Packets, by what became of them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Packets {
    pub to_daemon: u64,
    pub forwarded: u64,
    pub refused: u64,
}

impl Hops {
    /// These hosts.
    pub fn of(lab: &Lab, hosts: &[&str]) -> Result<Self> {
        let hosts = hosts.iter().map(|host| {
            let handle = lab.host(host)?;
            Ok(((*host).to_owned(), handle.namespace().to_owned()))
        });
        Ok(Hops(hosts.collect::<Result<_>>()?))
    }

    /// What they have carried so far.
    pub fn read(&self) -> Result<Carried> {
        let traffic = self.0.iter().map(|(host, namespace)| {
            let text = netns::inside(namespace, || {
                std::fs::read_to_string("/proc/thread-self/net/dev")
            })
            .with_context(|| format!("cannot read the counters of {host}"))?;
            let traffic = parse(&text, INTERFACE)
                .with_context(|| format!("{host} has no counters of {INTERFACE}"))?;
            Ok((host.clone(), traffic))
        });
        Ok(Carried(traffic.collect::<Result<_>>()?))
    }
}

impl Carried {
    /// The difference to what was read before, of the same hosts.
    pub fn since(&self, before: &Carried) -> Carried {
        let pairs = self.0.iter().zip(&before.0);
        let differences = pairs.map(|((host, now), (_, then))| {
            let traffic = Traffic {
                received: now.received - then.received,
                sent: now.sent - then.sent,
            };
            (host.clone(), traffic)
        });
        Carried(differences.collect())
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, Traffic)> {
        self.0
            .iter()
            .map(|(host, traffic)| (host.as_str(), *traffic))
    }

    pub fn of(&self, host: &str) -> Traffic {
        let found = self.iter().find(|(name, _)| *name == host);
        found.map(|(_, traffic)| traffic).unwrap_or_default()
    }

    pub fn received(&self, host: &str) -> u64 {
        self.of(host).received
    }
}

impl DataPath {
    /// That of a dispatcher.
    pub fn of(lab: &Lab, host: &str) -> Result<Self> {
        let pins = object::pin_dir(&state::cluster(lab.name()), host);
        let maps = DispatcherMaps::open(&pins)
            .with_context(|| format!("cannot open the maps of {host}"))?;
        Ok(DataPath(maps.events))
    }

    /// That of a backend.
    pub fn of_agent(lab: &Lab, host: &str) -> Result<Self> {
        let pins = object::pin_dir(&state::cluster(lab.name()), host);
        let maps =
            AgentMaps::open(&pins).with_context(|| format!("cannot open the maps of {host}"))?;
        Ok(DataPath(maps.events))
    }

    /// What it has counted so far.
    pub fn read(&self) -> Result<Packets> {
        let sums = self
            .0
            .sums()
            .context("cannot read the data path's counters")?;
        let of = |event: &str| {
            let index = EVENTS.iter().position(|(name, _)| *name == event);
            index
                .and_then(|index| sums.get(index).copied())
                .unwrap_or(0)
        };
        Ok(Packets {
            to_daemon: of("to-daemon"),
            forwarded: of("forwarded"),
            refused: of("refused"),
        })
    }
}

impl Packets {
    /// The difference to what was read before.
    pub fn since(&self, before: &Packets) -> Packets {
        Packets {
            to_daemon: self.to_daemon - before.to_daemon,
            forwarded: self.forwarded - before.forwarded,
            refused: self.refused - before.refused,
        }
    }
}

/// An interface's line of /proc/net/dev (proc_net(5)): bytes received come
/// first, bytes sent ninth.
fn parse(text: &str, interface: &str) -> Option<Traffic> {
    let (_, numbers) = text
        .lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.trim() == interface)?;
    let mut numbers = numbers.split_whitespace().map(str::parse);
    Some(Traffic {
        received: numbers.next()?.ok()?,
        sent: numbers.nth(7)?.ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_is_found_by_its_name() {
        let text = "Inter-|   Receive  |  Transmit\n face |bytes packets\n\
                    \x20   lo:  1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n\
                    \x20 eth0: 100 2 0 0 0 0 0 0 900 3 0 0 0 0 0 0\n";
        let expected = Traffic {
            received: 100,
            sent: 900,
        };
        assert_eq!(parse(text, "eth0"), Some(expected));
        assert_eq!(parse(text, "eth1"), None);
    }
}
