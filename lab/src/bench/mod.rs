//! `trapeze lab bench`: Trapeze beside a server asked directly and beside
//! proxies that relay, all in one lab, with the same client, the same servers
//! and turns so short that a change of the machine's mood hits all alike.
//!
//! Only ratios of runs of one round mean anything: the hosts are namespaces of
//! one machine, and client, dispatcher and servers share its processors.

mod case;
mod environment;
mod picture;
mod proxies;
mod report;
mod results;

use std::net::Ipv4Addr;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use trapeze_datapath::signal::Signals;

use crate::args::{Bench, DEFAULT_NAME};
use crate::cpu::Accounts;
use crate::files;
use crate::lab::LabGuard;
use crate::load::{Client, Load, Outcome};
use crate::options::Options;
use crate::role::{Role, VIP};
use crate::state::RunDir;

use case::{Case, Mode};
use environment::Environment;
use report::Table;
use results::{CaseResults, Results, Run, Settings};

pub use case::{Size, Target};

/// Where the dispatcher and the proxies are.
const DISPATCHER: &str = "d1";
const CLIENT: &str = "c1";
/// How long a target is asked before anything counts.
const WARM_UP_SECONDS: u32 = 1;
/// Connections that wrk makes only to see whether it can.
const PROBES: u64 = 1;

/// Makes a lab, measures, prints the results and writes them to files.
///
/// # Errors
/// The lab does not come up, a program is missing, or somebody interrupts. What
/// goes wrong in a run is part of the results, and of the exit status.
pub fn run(name: &str, bench: &Bench) -> Result<ExitCode> {
    ensure!(!bench.sizes.is_empty(), "--sizes is empty");
    let name = match name {
        DEFAULT_NAME => format!("bench-{}", std::process::id()),
        chosen => chosen.to_owned(),
    };
    let signals = Signals::block().context("cannot catch signals")?;
    let mut measurement = Measurement::prepare(&name, bench, signals)?;
    measurement.warm_up()?;
    for round in 1..=bench.rounds {
        measurement.run_round(round)?;
    }
    let results = measurement.finish();
    let table = Table(&results).to_string();
    let json = serde_json::to_string_pretty(&results)?;
    let picture = picture::draw(&results);
    let mut files = vec![("bench.txt", &*table), ("bench.json", &*json)];
    files.extend(picture.as_deref().map(|picture| ("bench.svg", picture)));
    files::write_results(&bench.out, &files)?;
    match bench.json {
        true => println!("{json}"),
        false => print!("{table}"),
    }
    eprintln!("written to {}", bench.out.display());
    Ok(match results.failures.is_empty() {
        true => ExitCode::SUCCESS,
        false => {
            let count = results.failures.len();
            eprintln!("trapeze: {count} RUNS WENT WRONG, their figures must not be believed");
            ExitCode::FAILURE
        }
    })
}

/// A bench in progress.
struct Measurement {
    settings: Settings,
    environment: Environment,
    targets: Vec<Target>,
    cases: Vec<CaseResults>,
    failures: Vec<String>,
    runs_done: usize,
    client: Client,
    accounts: Accounts,
    signals: Signals,
    /// Keeps the lab up.
    _lab: LabGuard,
}

impl Measurement {
    fn prepare(name: &str, bench: &Bench, signals: Signals) -> Result<Self> {
        let has = |target| bench.targets.contains(&target);
        // Asks every program that is needed, before anything is made.
        let environment = Environment::ask(bench.targets.iter().any(|target| target.is_haproxy()))?;
        eprintln!("making the lab {name}");
        let lab = LabGuard::up(&Options {
            dispatchers: Some(1),
            backends: Some(bench.backends),
            transfer: bench.transfer.clone(),
            daemons: has(Target::Trapeze),
            ..Options::named(name)
        })?;
        let dispatcher = lab.host(DISPATCHER)?;
        let backends: Vec<Ipv4Addr> = (1..=bench.backends)
            .map(|number| Role::Backend.address(number))
            .collect();
        for &proxy in bench.targets.iter().filter(|target| target.is_proxy()) {
            proxies::start(
                proxy,
                &lab,
                &dispatcher,
                &backends,
                environment.machine.cores,
            )?;
        }
        let cases = Case::all(&bench.sizes).into_iter();
        let splices = bench.transfer.as_deref() == Some("splice");
        Ok(Measurement {
            settings: Settings {
                rounds: bench.rounds,
                seconds: bench.seconds,
                connections: bench.connections,
                backends: bench.backends,
            },
            environment,
            targets: bench.targets.clone(),
            cases: cases
                .map(|case| {
                    let bars = case.bars(bench.backends, splices);
                    CaseResults::new(case, &bench.targets, bars)
                })
                .collect(),
            failures: Vec::new(),
            runs_done: 0,
            client: Client::new(lab.host(CLIENT)?, RunDir::of(name).path(), "")?,
            accounts: Accounts::of(name),
            signals,
            _lab: lab,
        })
    }

    /// Fills caches and connection pools. What fails will fail again, when it counts.
    fn warm_up(&self) -> Result<()> {
        let case = self.cases[0].case;
        for &target in &self.targets {
            self.check_interrupt()?;
            eprintln!("warming up {}", target.title());
            let _ = self.client.run(&Load {
                seconds: WARM_UP_SECONDS,
                ..self.load(case, target)
            });
        }
        Ok(())
    }

    /// All targets in turn for each case.
    fn run_round(&mut self, round: u32) -> Result<()> {
        let order = order(&self.targets, round);
        for index in 0..self.cases.len() {
            for &target in &order {
                self.check_interrupt()?;
                self.run_one(round, index, target)?;
            }
        }
        Ok(())
    }

    fn run_one(&mut self, round: u32, index: usize, target: Target) -> Result<()> {
        let case = self.cases[index].case;
        let load = self.load(case, target);
        let (outcome, usage) = self.accounts.during(|| self.client.run(&load))?;
        self.runs_done += 1;
        let all = self.settings.rounds as usize * self.cases.len() * self.targets.len();
        let what = format!(
            "[{:>3}/{all}] round {round}  {:<26}{:<8}",
            self.runs_done,
            case.title(),
            target.title(),
        );
        let problem = match &outcome {
            Ok(outcome) => problem(case, &load, outcome),
            Err(error) => Some(format!("{error:#}")),
        };
        if let Ok(outcome) = outcome {
            eprintln!("{what}{:>9.0} req/s", outcome.rate());
            let run = Run {
                round,
                usage,
                outcome,
            };
            self.cases[index].add(target, run);
        }
        if let Some(problem) = problem {
            eprintln!("{what} FAILED: {problem}");
            self.failures.push(format!(
                "{}, {}, round {round}: {problem}",
                case.title(),
                target.title()
            ));
        }
        Ok(())
    }

    fn load(&self, case: Case, target: Target) -> Load {
        let authority = match target {
            Target::Direct => Role::Backend.address(1).to_string(),
            Target::Trapeze => VIP.to_string(),
            proxy => format!("{}:{}", Role::Dispatcher.address(1), proxies::port(proxy)),
        };
        let connections = case.connections(self.settings.connections);
        Load {
            url: format!("http://{authority}/{}", case.size.name),
            connections,
            // wrk takes no more threads than connections.
            threads: case
                .threads(self.environment.machine.cores, self.settings.backends)
                .min(connections.into()),
            close: case.mode == Mode::ConnectionPerRequest,
            seconds: self.settings.seconds,
            arguments: Vec::new(),
        }
    }

    /// An interrupt ends the bench, and with it the lab.
    fn check_interrupt(&self) -> Result<()> {
        match self.signals.wait(Duration::ZERO)? {
            Some(_) => bail!("interrupted"),
            None => Ok(()),
        }
    }

    fn finish(mut self) -> Results {
        for case in &mut self.cases {
            case.conclude();
        }
        Results {
            environment: self.environment,
            settings: self.settings,
            cases: self.cases,
            failures: self.failures,
        }
    }
}

/// The turns of a round, from 1. Trapeze and direct, whose ratio is close to 1 and
/// held to the narrowest bars, are neighbours, in turn one and the other first; they
/// move through the proxies, which rotate.
fn order(targets: &[Target], round: u32) -> Vec<Target> {
    let round = round as usize - 1;
    let (mut order, mut pair): (Vec<Target>, Vec<Target>) =
        targets.iter().partition(|target| target.is_proxy());
    let places = order.len() + 1;
    let place = round % places;
    // Each comes first at each place.
    if (round + round / places * (places + 1)) % 2 == 1 {
        pair.reverse();
    }
    if !order.is_empty() {
        let by = round % order.len();
        order.rotate_left(by);
    }
    order.splice(place..place, pair);
    order
}

/// What is wrong with a run, so that its figures must not be believed.
fn problem(case: Case, load: &Load, outcome: &Outcome) -> Option<String> {
    let begun = outcome.connections_begun;
    let reused = begun < outcome.requests;
    let kept = u64::from(load.connections) + PROBES;
    if let Some(errors) = outcome.errors.summary() {
        return Some(errors);
    }
    match case.mode {
        _ if outcome.requests == 0 => Some("no answers".to_owned()),
        Mode::ConnectionPerRequest if reused => Some(format!(
            "{begun} connections for {} requests, of which each should have its own",
            outcome.requests
        )),
        Mode::KeepAlive | Mode::OneConnection if begun > kept => Some(format!(
            "{begun} connections were begun, where {kept} should have been kept"
        )),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trapeze_and_direct_are_neighbours_in_every_round() {
        use Target::{Direct, Haproxy, HaproxySplice, Nginx, Trapeze};
        let all = [Direct, Haproxy, HaproxySplice, Nginx, Trapeze];
        let mut places = [[0; 5]; 5];
        for round in 1..=24 {
            let order = order(&all, round);
            let place = |target| order.iter().position(|of| *of == target).unwrap();
            assert_eq!(place(Direct).abs_diff(place(Trapeze)), 1, "{order:?}");
            for (index, &target) in all.iter().enumerate() {
                places[index][place(target)] += 1;
            }
        }
        // Everybody has been first, and last.
        for of in places {
            assert!(of[0] > 0 && of[4] > 0, "{places:?}");
        }
        assert_eq!(order(&[Trapeze], 3), [Trapeze]);
        assert_eq!(order(&[Nginx, Haproxy], 2), [Haproxy, Nginx]);
    }

    #[test]
    fn a_run_that_did_not_do_what_its_case_says_is_a_failure() {
        let [close, keep, ..] = Case::all(&[Size::named("1k").unwrap()])[..] else {
            panic!("three cases");
        };
        let load = Load {
            url: String::new(),
            connections: 32,
            threads: 1,
            close: false,
            seconds: 1,
            arguments: Vec::new(),
        };
        let outcome = |requests, connections_begun| Outcome {
            connections_begun,
            ..results::tests::run(1, requests).outcome
        };
        let problem = |case, requests, begun| problem(case, &load, &outcome(requests, begun));
        assert_eq!(problem(keep, 1000, 33), None);
        assert_eq!(problem(close, 1000, 1032), None);
        assert!(problem(keep, 1000, 34).unwrap().contains("kept"));
        assert!(problem(close, 1000, 32).unwrap().contains("its own"));
        assert!(problem(keep, 0, 32).unwrap().contains("no answers"));
    }
}
