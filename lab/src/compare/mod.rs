//! `trapeze lab compare`: policies beside each other on real connections, where it
//! matters who gets a request. Origin servers have caches that are much smaller than
//! the catalogue, and disks on which misses queue; requests are Zipf-distributed.
//!
//! A miss costs time and not CPU, so a few cores are enough for several servers. The
//! dispatcher runs on from turn to turn: policies change by reload. Each turn begins
//! with empty caches, and has the same requests as the others' of its round.

mod picture;
mod report;
mod results;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use trapeze_core::config::PolicyKind;
use trapeze_datapath::signal::Signals;

use crate::args::{Compare, DEFAULT_NAME};
use crate::cpu::Accounts;
use crate::files;
use crate::lab::LabGuard;
use crate::load::{self, Client, Load};
use crate::machine::Machine;
use crate::objects;
use crate::options::{Options, ServerKind};
use crate::role::VIP;
use crate::servers::origin::OriginCounts;
use crate::state::RunDir;

use report::Table;
use results::{PolicyResults, Results, Run, Settings};

const CLIENT: &str = "c1";

/// Makes a lab, measures, prints the results and writes them to files.
///
/// # Errors
/// The lab does not come up, a program is missing, or somebody interrupts. What
/// goes wrong in a run is part of the results, and of the exit status.
pub fn run(name: &str, compare: &Compare) -> Result<ExitCode> {
    let name = match name {
        DEFAULT_NAME => format!("compare-{}", std::process::id()),
        chosen => chosen.to_owned(),
    };
    let signals = Signals::block().context("cannot catch signals")?;
    let mut comparison = Comparison::prepare(&name, compare, signals)?;
    for round in 1..=compare.rounds {
        comparison.run_round(round)?;
    }
    let results = comparison.finish();
    let table = Table(&results).to_string();
    let json = serde_json::to_string_pretty(&results)?;
    let picture = picture::draw(&results);
    let files = [
        ("compare.txt", &*table),
        ("compare.json", &*json),
        ("compare.svg", &*picture),
    ];
    files::write_results(&compare.out, &files)?;
    match compare.json {
        true => println!("{json}"),
        false => print!("{table}"),
    }
    eprintln!("written to {}", compare.out.display());
    Ok(match results.failures.is_empty() {
        true => ExitCode::SUCCESS,
        false => {
            let count = results.failures.len();
            eprintln!("trapeze: {count} RUNS WENT WRONG, their figures must not be believed");
            ExitCode::FAILURE
        }
    })
}

/// A comparison in progress.
struct Comparison {
    machine: Machine,
    settings: Settings,
    policies: Vec<(PolicyKind, PolicyResults)>,
    failures: Vec<String>,
    runs_done: usize,
    client: Client,
    accounts: Accounts,
    signals: Signals,
    lab: LabGuard,
}

impl Comparison {
    fn prepare(name: &str, compare: &Compare, signals: Signals) -> Result<Self> {
        let machine = Machine::ask()?;
        let origin = compare.memory.settings();
        let objects = objects::count((compare.catalogue * origin.cache_bytes as f64) as u64);
        ensure!(objects > 0, "--catalogue is empty");
        eprintln!("making the lab {name}");
        let lab = LabGuard::up(&Options {
            dispatchers: Some(1),
            backends: Some(compare.backends),
            server: ServerKind::Origin,
            origin: origin.clone(),
            ..Options::named(name)
        })?;
        let host = lab.host(CLIENT)?;
        load::reuse_ports(&host)?;
        let client = Client::new(host, RunDir::of(name).path(), REQUESTS)?;
        let results = |&kind: &PolicyKind| (kind, PolicyResults::new(kind.name()));
        Ok(Comparison {
            settings: Settings {
                rounds: compare.rounds,
                warm_up_s: compare.warm_up,
                seconds: compare.seconds,
                connections: compare.connections,
                backends: compare.backends,
                objects,
                catalogue_bytes: (1..=objects).map(objects::size).sum(),
                zipf: compare.zipf,
                origin,
            },
            machine,
            policies: compare.policies.iter().map(results).collect(),
            failures: Vec::new(),
            runs_done: 0,
            client,
            accounts: Accounts::of(name),
            signals,
            lab,
        })
    }

    /// All policies in turn, each round from another on.
    fn run_round(&mut self, round: u32) -> Result<()> {
        let count = self.policies.len();
        for turn in 0..count {
            self.check_interrupt()?;
            self.run_one(round, (round as usize - 1 + turn) % count)?;
        }
        Ok(())
    }

    fn run_one(&mut self, round: u32, index: usize) -> Result<()> {
        let policy = self.policies[index].0;
        self.lab.set_policy(policy)?;
        self.lab.flush_caches()?;
        // What goes wrong here is told by what goes wrong when it counts.
        let _ = self
            .client
            .run(&self.load(self.settings.warm_up_s, 2 * round));
        self.check_interrupt()?;
        let before = self.counts()?;
        let load = self.load(self.settings.seconds, 2 * round + 1);
        let (outcome, usage) = self.accounts.during(|| self.client.run(&load))?;
        let backends = since(&self.counts()?, &before);

        self.runs_done += 1;
        let all = self.settings.rounds as usize * self.policies.len();
        let what = format!(
            "[{:>3}/{all}] round {round}  {:<18}",
            self.runs_done,
            policy.name()
        );
        let problem = match outcome {
            Ok(outcome) => {
                let problem = outcome.errors.summary();
                let run = Run {
                    round,
                    usage,
                    outcome,
                    backends,
                };
                eprintln!(
                    "{what}{:>9.0} req/s, {:.1} % hits",
                    run.outcome.rate(),
                    run.hit_ratio() * 100.0
                );
                self.policies[index].1.rounds.push(run);
                problem
            }
            Err(error) => Some(format!("{error:#}")),
        };
        if let Some(problem) = problem {
            eprintln!("{what} FAILED: {problem}");
            self.failures
                .push(format!("{}, round {round}: {problem}", policy.name()));
        }
        Ok(())
    }

    /// A connection for each request: it is dispatched once.
    fn load(&self, seconds: u32, seed: u32) -> Load {
        let settings = &self.settings;
        Load {
            url: format!("http://{VIP}/"),
            connections: settings.connections,
            threads: 1,
            close: true,
            seconds,
            arguments: vec![
                settings.objects.to_string(),
                settings.zipf.to_string(),
                seed.to_string(),
            ],
        }
    }

    fn counts(&self) -> Result<BTreeMap<String, OriginCounts>> {
        let hosts = self.lab.status()?.hosts.into_iter();
        let counts: BTreeMap<_, _> = hosts
            .filter_map(|host| Some((host.name, host.origin?)))
            .collect();
        let all = usize::from(self.settings.backends);
        ensure!(counts.len() == all, "a server does not say what it did");
        Ok(counts)
    }

    /// An interrupt ends the comparison, and with it the lab.
    fn check_interrupt(&self) -> Result<()> {
        match self.signals.wait(Duration::ZERO)? {
            Some(_) => bail!("interrupted"),
            None => Ok(()),
        }
    }

    fn finish(self) -> Results {
        let policies = self.policies.into_iter().map(|(_, results)| results);
        Results::new(
            self.machine,
            self.settings,
            policies.collect(),
            self.failures,
        )
    }
}

fn since(
    now: &BTreeMap<String, OriginCounts>,
    before: &BTreeMap<String, OriginCounts>,
) -> BTreeMap<String, OriginCounts> {
    now.iter()
        .map(|(name, counts)| (name.clone(), counts.since(&before[name])))
        .collect()
}

/// Object numbers by Zipf's law: the table has the sums of n^-s, and a draw is
/// looked for in it.
const REQUESTS: &str = r#"-- Arguments: how many objects, the exponent, the seed.
local sums, requests, total = {}, {}, 0
function init(args)
  local exponent = tonumber(args[2])
  for number = 1, tonumber(args[1]) do
    total = total + number ^ -exponent
    sums[number] = total
  end
  math.randomseed(tonumber(args[3]))
end
function request()
  local drawn, low, high = math.random() * total, 1, #sums
  while low < high do
    local middle = math.floor((low + high) / 2)
    if sums[middle] < drawn then low = middle + 1 else high = middle end
  end
  local known = requests[low]
  if not known then
    known = wrk.format("GET", "/object/" .. low)
    requests[low] = known
  end
  return known
end
"#;
