//! `trapeze drain`, `trapeze undrain`: a backend without connections, for maintenance.

use std::fmt;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde::Serialize;
use trapeze_core::config::parse_duration;
use trapeze_datapath::node::Node;
use trapeze_dispatcher::{Left, Request, ask};

use crate::nodes::Select;
use crate::output::Output;
use crate::{amount, file};

/// How often the daemon is asked.
const INTERVAL: Duration = Duration::from_millis(200);

/// Take all connections from a backend, and wait until it has none
///
/// It gets no new ones, every next request of its connections goes elsewhere, and idle
/// connections leave it at once, unseen by their clients. Long answers are waited for,
/// and so are connections without boundaries: TLS, upgraded ones, and those of pools
/// with `handoff = "none"`. It stays drained, over restarts of the daemon, until
/// `trapeze undrain`. With `--migrate`, long answers in progress that a pool protects
/// (`protect_from`) are not waited for: another backend goes on with each, on the same
/// connection, once it has shown that it has the very object; the others are waited for.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The backend's name
    backend: String,
    /// Have other backends go on with long answers in progress
    #[arg(long)]
    migrate: bool,
    /// Wait no longer, such as 30s, 5m or 1h30m [default: limits.drain_timeout]
    // With hyphens, so that of `-1s` it is said what a time is, and not how to pass it.
    #[arg(long, value_name = "TIME", value_parser = parse_time, allow_hyphen_values = true)]
    deadline: Option<Duration>,
    #[command(flatten)]
    select: Select,
    #[command(flatten)]
    output: Output,
}

/// Let a backend that was drained have connections again
#[derive(Debug, clap::Args)]
pub struct UndrainArgs {
    /// The backend's name
    backend: String,
    #[command(flatten)]
    select: Select,
    #[command(flatten)]
    output: Output,
}

/// What has come of it.
#[derive(Debug, Serialize)]
struct Report {
    node: String,
    backend: String,
    drained: bool,
    /// What it has left.
    left: Left,
    waited_s: f64,
}

/// Drains a backend.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let node = args.select.dispatcher()?;
    let socket = node.control_socket();
    let deadline = match args.deadline {
        Some(deadline) => deadline,
        None => file::read(&node.config)?.limits.drain_timeout,
    };
    let drain = match args.migrate {
        true => Request::Migrate,
        false => Request::Drain,
    };
    ask::<Option<bool>>(&socket, &drain(args.backend.clone()))?;
    let started = Instant::now();
    let mut progress = Progress::new();
    let left = loop {
        let left: Option<Left> =
            ask(&socket, &Request::Left(args.backend.clone())).with_context(|| {
                let backend = &args.backend;
                format!(
                    "the daemon has stopped answering; {backend} stays drained: once the daemon is back, \
                     `trapeze drain {backend}` says what it has left"
                )
            })?;
        match left {
            Some(left) if left.connections == 0 || started.elapsed() >= deadline => break left,
            Some(left) => progress.show(&args.backend, &left, started.elapsed()),
            None => ensure!(
                started.elapsed() < deadline + Duration::from_secs(5),
                "the daemon does not look for its connections: see its log"
            ),
        }
        std::thread::sleep(INTERVAL);
    };
    progress.end();
    let report = Report::new(&node, &args.backend, left, started.elapsed());
    let code = match report.drained {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    };
    args.output.one(&report)?;
    Ok(code)
}

/// Takes that back.
pub fn undo(args: &UndrainArgs) -> anyhow::Result<()> {
    let node = args.select.dispatcher()?;
    // A daemon of before does not say.
    let was_drained: Option<bool> = ask(
        &node.control_socket(),
        &Request::Undrain(args.backend.clone()),
    )?;
    args.output.one(&Undone {
        node: node.name,
        backend: args.backend.clone(),
        drained: false,
        was_drained: was_drained != Some(false),
    })
}

impl Report {
    fn new(node: &Node, backend: &str, left: Left, waited: Duration) -> Self {
        Self {
            node: node.name.clone(),
            backend: backend.to_owned(),
            drained: left.connections == 0,
            left,
            waited_s: waited.as_millis() as f64 / 1e3,
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { node, backend, .. } = self;
        let waited = amount::time(Duration::from_secs_f64(self.waited_s));
        let migrated = migrated(&self.left);
        if self.drained {
            return writeln!(
                f,
                "{node}: {backend} has no connection left, after {waited}{migrated}"
            );
        }
        writeln!(
            f,
            "{node}: after {waited} {backend} still has {}{migrated}; it gets no new ones: wait for these \
             with `trapeze drain {backend}`, or let it have more with `trapeze undrain {backend}`",
            describe(&self.left)
        )
    }
}

/// As [`Report`], of a backend that has connections again.
#[derive(Debug, Serialize)]
struct Undone {
    node: String,
    backend: String,
    drained: bool,
    was_drained: bool,
}

impl fmt::Display for Undone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let said = match self.was_drained {
            true => "has connections again",
            false => "was not drained",
        };
        writeln!(f, "{}: {} {said}", self.node, self.backend)
    }
}

fn describe(left: &Left) -> String {
    let connections = amount::count(left.connections as usize, "connection");
    format!(
        "{connections}, {} with a request under way, {} without boundaries",
        left.busy, left.tunnels
    )
}

/// What has come of answers that were to be migrated; nothing if there were none.
fn migrated(left: &Left) -> String {
    let count = |number: u64| amount::count(number as usize, "answer");
    let not = match left.not_migrated {
        0 => String::new(),
        number => format!(
            "; {} waited for: no other backend has provably the same",
            count(number)
        ),
    };
    match left.migrated {
        0 => not,
        number => format!("; {} migrated{not}", count(number)),
    }
}

/// A line on standard error that is written over, on a terminal only.
struct Progress {
    terminal: bool,
    shown: bool,
}

impl Progress {
    fn new() -> Self {
        Self {
            terminal: std::io::stderr().is_terminal(),
            shown: false,
        }
    }

    fn show(&mut self, backend: &str, left: &Left, waited: Duration) {
        if self.terminal {
            let waited = amount::time(waited);
            let (left, migrated) = (describe(left), migrated(left));
            eprint!("\r\x1b[K{waited}: {backend} has {left}{migrated}");
            self.shown = true;
        }
    }

    fn end(&mut self) {
        if self.shown {
            eprint!("\r\x1b[K");
        }
    }
}

/// As the configuration's durations.
fn parse_time(text: &str) -> Result<Duration, String> {
    parse_duration(text).ok_or_else(|| "expected a time such as 30s, 5m or 1h30m".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        assert_eq!(parse_time("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_time("0s"), Ok(Duration::ZERO));
        assert_eq!(parse_time("5m"), Ok(Duration::from_secs(300)));
        assert_eq!(parse_time("1h30m"), Ok(Duration::from_secs(5400)));
        for wrong in ["", "5", "s", "5w", "-5s", "30m1h", "99999999999999999999h"] {
            assert!(parse_time(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_was_not_drained_is_not_said_to_be_back() {
        let said = |was_drained| {
            let undone = Undone {
                node: "d1".into(),
                backend: "b1".into(),
                drained: false,
                was_drained,
            };
            undone.to_string()
        };
        assert_eq!(said(true), "d1: b1 has connections again\n");
        assert_eq!(said(false), "d1: b1 was not drained\n");
    }

    #[test]
    fn what_is_left_is_said_with_what_to_do() {
        let mut report = Report {
            node: "d1".into(),
            backend: "b1".into(),
            drained: true,
            left: Left::default(),
            waited_s: 2.0,
        };
        assert_eq!(
            report.to_string(),
            "d1: b1 has no connection left, after 2.0s\n"
        );
        report.drained = false;
        report.left = Left {
            connections: 3,
            busy: 1,
            tunnels: 2,
            ..Left::default()
        };
        let text = report.to_string();
        let said = "b1 still has 3 connections, 1 with a request under way, 2 without boundaries";
        assert!(text.contains(said), "{text}");
        assert!(text.contains("trapeze undrain b1"), "{text}");
        assert!(!text.contains("migrated"), "{text}");
        report.left.migrated = 12;
        report.left.not_migrated = 1;
        let text = report.to_string();
        let said = "; 12 answers migrated; 1 answer waited for: no other backend";
        assert!(text.contains(said), "{text}");
    }
}
