//! `trapeze lab splice`: the experiments of [SPLICE06 §7] on today's machines. What does it
//! cost many transfers that a spray and dispatchers are in their way, that one of the
//! dispatchers dies, and what does the server's host save them?

mod published;
mod report;
mod results;
mod transfers;

use std::net::SocketAddrV4;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use trapeze_datapath::signal::Signals;

use crate::args::{DEFAULT_NAME, Splice};
use crate::cpu::Accounts;
use crate::files::{self, Scratch};
use crate::lab::LabGuard;
use crate::link::settings::LinkSettings;
use crate::machine::Machine;
use crate::options::Options;
use crate::role::{Role, VIP};

pub use published::Experiment;
use published::{Case, Setup, cases};
use report::Table;
use results::{CaseResults, Results, Run};
use transfers::{Plan, Transfers};

const CLIENT: &str = "c1";
/// Who dies.
const VICTIM: &str = "d2";
/// Between heartbeats, where none dies.
const HEARTBEAT: Duration = Duration::from_millis(200);

/// Makes labs, measures, prints the results and writes them to files.
///
/// # Errors
/// A lab does not come up, or somebody interrupts. What goes wrong in a run is part of the
/// results, and of the exit status.
pub fn run(name: &str, splice: &Splice) -> Result<ExitCode> {
    let name = match name {
        DEFAULT_NAME => format!("splice-{}", std::process::id()),
        chosen => chosen.to_owned(),
    };
    let cases = cases(&splice.experiments, splice.largest);
    ensure!(
        !cases.is_empty(),
        "--largest leaves no size: the smallest is 100kb"
    );
    let documents = make_documents(&cases).context("cannot make the experiments' files")?;
    let mut measurement = Measurement {
        name,
        splice,
        documents,
        signals: Signals::block().context("cannot catch signals")?,
        all: cases.len() * splice.rounds as usize,
        done: 0,
        results: Results {
            machine: Machine::ask()?,
            rounds: splice.rounds,
            transfers: splice.transfers,
            rate: splice.rate,
            cases: cases.into_iter().map(CaseResults::new).collect(),
            failures: Vec::new(),
        },
    };
    for _ in 0..splice.rounds {
        for index in 0..measurement.results.cases.len() {
            measurement.run_one(index)?;
        }
    }
    let results = measurement.results;
    let table = Table(&results).to_string();
    let json = serde_json::to_string_pretty(&results)?;
    let files = [("splice.txt", &*table), ("splice.json", &*json)];
    files::write_results(&splice.out, &files)?;
    match splice.json {
        true => println!("{json}"),
        false => print!("{table}"),
    }
    eprintln!("written to {}", splice.out.display());
    Ok(match results.failures.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

struct Measurement<'a> {
    name: String,
    splice: &'a Splice,
    documents: Scratch,
    signals: Signals,
    all: usize,
    done: usize,
    results: Results,
}

impl Measurement<'_> {
    /// In a lab of its own: who died stays dead.
    fn run_one(&mut self, index: usize) -> Result<()> {
        let case = self.results.cases[index].case;
        let lab = self.lab(case)?;
        let to = match case.setup {
            Setup::Direct => Role::Backend.address(1),
            _ => VIP,
        };
        let plan = Plan {
            address: SocketAddrV4::new(to, 80),
            transfers: self.splice.transfers,
            bytes: case.bytes,
            upload: case.experiment != Experiment::Split,
        };
        let death = case.dies.and(self.half_way(case));
        let client = lab.host(CLIENT)?;
        let work = || {
            transfers::make(client.namespace(), &plan, || {
                let Some(after) = death else { return Ok(()) };
                std::thread::sleep(after);
                lab.kill(VICTIM, None)
            })
        };
        let (transfers, usage) = Accounts::of(lab.name()).during(work)?;
        let transfers = transfers?;
        self.done += 1;
        let what = format!("[{:>2}/{}] {:<48}", self.done, self.all, case.name());
        eprintln!(
            "{what}{:>8.2} s in all, {:>6.2} s each, {:>6.0} Mbit/s",
            transfers.total_s,
            transfers.mean_s(),
            transfers.mbps
        );
        if let Some(failure) = &transfers.failure {
            let problem = format!("{} transfers failed: {failure}", transfers.failed);
            eprintln!("{what} FAILED: {problem}");
            self.results
                .failures
                .push(format!("{}: {problem}", case.name()));
        }
        self.results.cases[index]
            .runs
            .push(Run { transfers, usage });
        match self.signals.wait(Duration::ZERO)? {
            Some(_) => bail!("interrupted"),
            None => Ok(()),
        }
    }

    fn lab(&self, case: Case) -> Result<LabGuard> {
        let heartbeat = case.dies.unwrap_or(HEARTBEAT);
        let lab = LabGuard::up(&Options {
            sprays: Some(1),
            // Every dispatcher has packets of every connection, 40 in a row [SPLICE06 §4.2].
            spray_mode: Some("batch".into()),
            spray_heartbeat: Some(heartbeat),
            dispatchers: Some(case.setup.dispatchers()),
            backends: Some(1),
            transfer: Some(case.setup.transfer().into()),
            root: Some(self.documents.path().to_owned()),
            ..Options::named(&self.name)
        })?;
        if let Some(rate) = self.splice.rate {
            let settings = LinkSettings {
                rate: Some(rate),
                ..LinkSettings::default()
            };
            let dispatchers = (1..=case.setup.dispatchers()).map(|n| format!("d{n}"));
            let others = [CLIENT, "s1", "b1"].map(str::to_owned);
            for host in others.into_iter().chain(dispatchers) {
                lab.link(&host, &settings)?;
            }
        }
        // Until all know each other.
        std::thread::sleep(Duration::from_secs(1).max(2 * heartbeat));
        Ok(lab)
    }

    /// Half of a transfer's mean duration where nobody dies [SPLICE06 §7.3].
    fn half_way(&self, case: Case) -> Option<Duration> {
        let mean = self.results.case(case.base())?.of(Transfers::mean_s)?;
        Some(Duration::from_secs_f64(mean / 2.0))
    }
}

/// What is downloaded: files with their length for a name.
fn make_documents(cases: &[Case]) -> std::io::Result<Scratch> {
    let documents = Scratch::make("splice")?;
    for case in cases {
        let file = std::fs::File::create(documents.path().join(case.bytes.to_string()))?;
        file.set_len(case.bytes)?;
    }
    Ok(documents)
}
