//! What a lab is and does now, for people and as JSON.

use std::collections::BTreeMap;
use std::fmt;
use std::net::Ipv4Addr;
use std::path::PathBuf;

use serde::Serialize;

use crate::link::control;
use crate::link::settings::{LinkSettings, percent};
use crate::link::shape::Counters;
use crate::options::ServerKind;
use crate::role::{INTERFACE, Process, Role};
use crate::servers;
use crate::servers::origin::{self, OriginCounts, OriginSettings};
use crate::state::{Host, State};

/// A lab at this moment.
#[derive(Clone, Debug, Serialize)]
pub struct Status {
    /// Which lab.
    pub name: String,
    /// The first service's address.
    pub vip: Ipv4Addr,
    /// The first service's port.
    pub port: u16,
    /// The cluster's configuration file.
    pub config: PathBuf,
    /// What the backends run.
    pub server: ServerKind,
    /// What origin servers remember, and what a miss costs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub origin: Option<OriginSettings>,
    /// The directory that the others serve.
    pub root: PathBuf,
    /// Logs of all processes.
    pub logs: PathBuf,
    /// In the order of roles, then numbers.
    pub hosts: Vec<HostStatus>,
}

/// A host at this moment.
#[derive(Clone, Debug, Serialize)]
pub struct HostStatus {
    /// c1, d1, b1, …
    pub name: String,
    /// What it is for.
    pub role: Role,
    /// As `ip netns` calls it.
    pub namespace: String,
    /// Its own address, not the VIP.
    pub address: Ipv4Addr,
    /// Where it is on the network.
    pub interface: &'static str,
    /// Whether it has power and its cable is plugged in.
    pub up: bool,
    /// What is to run on it.
    pub processes: BTreeMap<Process, ProcessStatus>,
    /// What its link does to frames, if it is emulated.
    pub link: Option<LinkStatus>,
    /// What an origin server has counted, if it answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub origin: Option<OriginCounts>,
    /// Where a backend stores the bodies of uploads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uploads: Option<PathBuf>,
}

/// A process at this moment.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct ProcessStatus {
    /// The pid it has or had last.
    pub pid: Option<u32>,
    /// Whether it lives.
    pub running: bool,
}

/// An emulated link at this moment. Times are in milliseconds, shares in percent.
#[derive(Clone, Debug, Serialize)]
pub struct LinkStatus {
    /// What happens to frames, in words.
    pub summary: String,
    /// One way.
    pub delay_ms: f64,
    /// Up and down.
    pub jitter_ms: f64,
    /// Frames lost.
    pub loss_percent: f64,
    /// Frames doubled.
    pub duplicate_percent: f64,
    /// Frames held back.
    pub reorder_percent: f64,
    /// Bits a second.
    pub rate_bits: Option<u64>,
    /// Frames that may wait for their turn at the rate.
    pub limit: usize,
    /// Of the randomness.
    pub seed: u64,
    /// The relay.
    pub pid: u32,
    /// Whether it lives.
    pub running: bool,
    /// Frames that the host sent.
    pub from_host: Option<Counters>,
    /// Frames sent to the host.
    pub to_host: Option<Counters>,
}

impl Status {
    /// Looks at the lab.
    pub fn of(state: &State) -> Self {
        Status {
            name: state.name.clone(),
            vip: state.vip,
            port: state.port,
            config: state.dir().config(),
            server: state.server,
            origin: (state.server == ServerKind::Origin).then(|| state.origin.clone()),
            root: state.root.clone(),
            logs: state.dir().logs(),
            hosts: state
                .hosts
                .iter()
                .map(|host| HostStatus::of(state, host))
                .collect(),
        }
    }

    /// The host `name`.
    pub fn host(&self, name: &str) -> Option<&HostStatus> {
        self.hosts.iter().find(|host| host.name == name)
    }
}

impl HostStatus {
    fn of(state: &State, host: &Host) -> Self {
        let process_status = |process| {
            let record = host.processes.get(&process);
            ProcessStatus {
                pid: record.map(|record| record.pid),
                running: record.is_some_and(|record| record.is_running()),
            }
        };
        HostStatus {
            name: host.name.clone(),
            role: host.role,
            namespace: state.namespace(&host.name),
            address: host.address,
            interface: INTERFACE,
            up: host.powered && state.namespace_path(&host.name).exists(),
            processes: state
                .processes(host)
                .map(|process| (process, process_status(process)))
                .collect(),
            link: host.link.as_ref().map(|link| {
                let report = control::ask(&state.dir().link_socket(&host.name)).ok();
                LinkStatus {
                    pid: link.relay.pid,
                    running: link.relay.is_running(),
                    from_host: report.as_ref().map(|report| report.from_host),
                    to_host: report.as_ref().map(|report| report.to_host),
                    ..LinkStatus::of(&link.settings)
                }
            }),
            origin: origin_counts(state, host),
            uploads: (host.role.serves()).then(|| servers::uploads(state, host)),
        }
    }
}

fn origin_counts(state: &State, host: &Host) -> Option<OriginCounts> {
    let server = host.processes.get(&Process::Server)?;
    let answers = state.server == ServerKind::Origin && server.is_running();
    let namespace = state.namespace_path(&host.name);
    answers
        .then(|| origin::counts(&namespace, state.origin_port()).ok())
        .flatten()
}

impl LinkStatus {
    fn of(settings: &LinkSettings) -> Self {
        LinkStatus {
            summary: settings.to_string(),
            delay_ms: settings.delay.as_secs_f64() * 1e3,
            jitter_ms: settings.jitter.as_secs_f64() * 1e3,
            loss_percent: percent(settings.loss),
            duplicate_percent: percent(settings.duplicate),
            reorder_percent: percent(settings.reorder),
            rate_bits: settings.rate,
            limit: settings.limit,
            seed: settings.seed,
            pid: 0,
            running: false,
            from_host: None,
            to_host: None,
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "lab      {}", self.name)?;
        writeln!(f, "service  {}:{}", self.vip, self.port)?;
        writeln!(f, "config   {}", self.config.display())?;
        match &self.origin {
            Some(origin) => writeln!(f, "serves   objects: {origin}")?,
            None => writeln!(f, "serves   {}", self.root.display())?,
        }
        writeln!(f, "logs     {}", self.logs.display())?;
        writeln!(f)?;
        let processes = |host: &HostStatus| -> String {
            let words = host.processes.iter().map(|(process, status)| {
                let state = match status.pid {
                    Some(pid) if status.running => pid.to_string(),
                    _ => "not running".to_owned(),
                };
                format!("{} {state}", process.word())
            });
            words.collect::<Vec<_>>().join(", ")
        };
        let namespace_width = self.hosts.iter().map(|host| host.namespace.len()).max();
        let width = namespace_width.unwrap_or(0).max(9);
        writeln!(
            f,
            "{:<5} {:<width$}  {:<12} {:<4} processes",
            "host", "namespace", "address", ""
        )?;
        for host in &self.hosts {
            let up = if host.up { "up" } else { "off" };
            let address = host.address.to_string();
            let line = format!(
                "{:<5} {:<width$}  {:<12} {:<4} {}",
                host.name,
                host.namespace,
                address,
                up,
                processes(host)
            );
            writeln!(f, "{}", line.trim_end())?;
            if let Some(origin) = &host.origin {
                writeln!(f, "      cache: {origin}")?;
            }
            if let Some(link) = &host.link {
                writeln!(f, "      link: {}", link.summary)?;
                for (way, counters) in [("from", &link.from_host), ("to", &link.to_host)] {
                    if let Some(counters) = counters {
                        writeln!(f, "        {way:<4} {}: {counters}", host.name)?;
                    }
                }
            }
        }
        Ok(())
    }
}

impl fmt::Display for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} received, {} sent", self.received, self.sent)?;
        for (count, word) in [
            (self.lost, "lost"),
            (self.duplicated, "doubled"),
            (self.reordered, "held back"),
            (self.overflowed, "over the limit"),
            (self.failed, "failed"),
        ] {
            if count > 0 {
                write!(f, ", {count} {word}")?;
            }
        }
        Ok(())
    }
}
