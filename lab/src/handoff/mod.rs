//! `trapeze lab handoff`: the experiments of [SPLITSTACK02 §V] on today's machines. What
//! does it cost a connection that its next request goes to another server, if the
//! data under way has to drain first, and if it has not?
//!
//! Every request of a connection goes to the other of two servers, by content rules. The
//! two ways take turns in one lab; the dispatcher is told by reload.

mod published;
mod report;
mod results;
mod site;
mod visits;

use std::net::SocketAddrV4;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use trapeze_datapath::signal::Signals;

use crate::args::{DEFAULT_NAME, Handoff};
use crate::files;
use crate::lab::LabGuard;
use crate::link::settings::LinkSettings;
use crate::load;
use crate::machine::Machine;
use crate::options::Options;
use crate::role::VIP;

pub use published::Network;
use published::{Point, points};
use report::Table;
use results::{PointResults, Results, Run, Settings, Way};
use visits::Plan;

const CLIENT: &str = "c1";

/// Makes a lab, measures, prints the results and writes them to files.
///
/// # Errors
/// The lab does not come up, or somebody interrupts. What goes wrong in a run is part
/// of the results, and of the exit status.
pub fn run(name: &str, handoff: &Handoff) -> Result<ExitCode> {
    let name = match name {
        DEFAULT_NAME => format!("handoff-{}", std::process::id()),
        chosen => chosen.to_owned(),
    };
    let signals = Signals::block().context("cannot catch signals")?;
    let machine = Machine::ask()?;
    let site = site::make().context("cannot make the experiments' files")?;
    eprintln!("making the lab {name}");
    let config = site.path().join("trapeze.toml");
    std::fs::write(&config, site::config(Way::HalfPipe)).context("cannot write a file")?;
    let lab = LabGuard::up(&Options {
        root: Some(site.path().join("documents")),
        config: Some(config),
        ..Options::named(&name)
    })?;
    load::reuse_ports(&lab.host(CLIENT)?)?;
    let points = points().into_iter();
    let points = points.filter(|(network, _)| handoff.networks.contains(network));
    let points: Vec<_> = points.map(|(n, p)| PointResults::new(n, p)).collect();
    let mut measurement = Measurement {
        all: points.len() * Way::ALL.len() * handoff.rounds as usize,
        done: 0,
        points,
        failures: Vec::new(),
        handoff,
        signals,
        lab,
    };
    for round in 1..=handoff.rounds {
        measurement.run_round(round)?;
    }
    let results = Results {
        machine,
        settings: Settings {
            rounds: handoff.rounds,
            seconds: handoff.seconds,
            connections: handoff.connections,
        },
        points: measurement.points,
        failures: measurement.failures,
    };
    let table = Table(&results).to_string();
    let json = serde_json::to_string_pretty(&results)?;
    let files = [("handoff.txt", &*table), ("handoff.json", &*json)];
    files::write_results(&handoff.out, &files)?;
    match handoff.json {
        true => println!("{json}"),
        false => print!("{table}"),
    }
    eprintln!("written to {}", handoff.out.display());
    Ok(match results.failures.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

struct Measurement<'a> {
    handoff: &'a Handoff,
    points: Vec<PointResults>,
    failures: Vec<String>,
    all: usize,
    done: usize,
    signals: Signals,
    lab: LabGuard,
}

impl Measurement<'_> {
    /// All points, in each way; every other round the ways the other way round.
    fn run_round(&mut self, round: u32) -> Result<()> {
        let mut ways = Way::ALL;
        if round.is_multiple_of(2) {
            ways.reverse();
        }
        let mut linked = None;
        for index in 0..self.points.len() {
            let network = self.points[index].network;
            if linked.replace(network) != Some(network) {
                self.lab.link(CLIENT, &link(network))?;
            }
            for way in ways {
                self.run_one(round, index, way)?;
            }
        }
        Ok(())
    }

    fn run_one(&mut self, round: u32, index: usize, way: Way) -> Result<()> {
        if self.signals.wait(Duration::ZERO)?.is_some() {
            bail!("interrupted");
        }
        let (network, point) = (self.points[index].network, self.points[index].point);
        self.lab.reconfigure(&site::config(way))?;
        let client = self.lab.host(CLIENT)?;
        let visits = visits::make(
            client.namespace(),
            &Plan {
                address: SocketAddrV4::new(VIP, 80),
                visitors: self.handoff.connections,
                requests: point.requests(),
                at_once: true,
                paths: site::paths(point),
                alternate: point != Point::Olympics,
                window: network.window(),
                duration: Duration::from_secs(self.handoff.seconds.into()),
                seed: u64::from(round),
            },
        )
        .context("cannot enter the client's network")?;
        self.done += 1;
        let what = format!(
            "[{:>3}/{}] round {round}  {:<12} {:<9} {:<10}",
            self.done,
            self.all,
            network.name(),
            point.name(),
            way.name()
        );
        eprintln!(
            "{what}{:>7.0} req/s, {:>7.1} ms a connection",
            visits.rate(),
            visits.lifetime_ms()
        );
        if let Some(failure) = &visits.failure {
            let problem = format!("{} connections failed: {failure}", visits.failed);
            eprintln!("{what} FAILED: {problem}");
            self.failures.push(format!("{}: {problem}", what.trim()));
        }
        self.points[index].runs.push(Run { round, way, visits });
        Ok(())
    }
}

/// 175 ms and 4 % for a round trip [SPLITSTACK02 §V-B].
fn link(network: Network) -> LinkSettings {
    match network {
        Network::Lan => LinkSettings::default(),
        Network::Wan16 | Network::Wan100 => LinkSettings {
            delay: Duration::from_micros(87_500),
            loss: 0.02,
            ..LinkSettings::default()
        },
    }
}
