//! What to simulate, from the command line.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail};
use indicatif::{ProgressBar, ProgressStyle};
use trapeze_core::config::{Config, PolicyConfig, PolicyKind};
use trapeze_sim::trace::Trace;
use trapeze_sim::workload::{self, Pace, Recorded, RecordedOptions, Workload};
use trapeze_sim::{Condition, Decides, Entrant, Hardware, Outcome, Replacement, Run, Span};

use super::spell::Spell;
use crate::amount;

/// The cluster, the workloads and the policies
#[derive(Clone, Debug, clap::Args)]
pub struct Cluster {
    /// Workloads: zipf, rice, ibm, surge, webbench, hot, mix, or all
    #[arg(short, long, value_name = "NAMES", value_delimiter = ',')]
    workload: Vec<String>,
    /// Recorded traces: Common Log Format or CSV (t,url,bytes,status,method), also .gz
    #[arg(short, long, value_name = "FILE")]
    trace: Vec<PathBuf>,
    /// Policies by their names in the configuration, or all; with parameters
    /// NAME:t_high=130:k="5s"; NAME@connections decides for connections only,
    /// NAME@blindly before the first request
    #[arg(
        short,
        long,
        value_name = "NAMES",
        value_delimiter = ',',
        default_value = "all"
    )]
    policies: Vec<String>,
    /// Hardware: lard98, lacp03, lvscad07, today
    #[arg(long, value_name = "PRESET", default_value = "lard98")]
    hardware: String,
    /// How many backends; several numbers make a run for each
    #[arg(short, long, value_name = "N", value_delimiter = ',')]
    backends: Vec<usize>,
    /// How many dispatchers, each with its own policy
    #[arg(long, value_name = "N")]
    dispatchers: Option<usize>,
    /// Memory for files on each backend, such as 32M (powers of 1024)
    #[arg(long, value_name = "SIZE", value_parser = amount::parse_bytes)]
    cache: Option<u64>,
    /// What leaves that memory: lru, or gds (GreedyDual-Size)
    #[arg(long, value_name = "NAME")]
    replacement: Option<String>,
    /// Requests of each run; a fifth of them only fills caches [default: 500,000, or
    /// those of the trace]
    #[arg(short = 'n', long, value_name = "N")]
    requests: Option<u64>,
    /// Users of recorded traces [default: the admission limit of LARD98]
    #[arg(long, value_name = "N")]
    users: Option<usize>,
    /// Replay traces at their recorded times, this many times as fast
    #[arg(long, value_name = "FACTOR", conflicts_with = "users")]
    speed: Option<f64>,
    /// So many sites like the recorded one, interleaved, with URLs of their own
    #[arg(long, value_name = "N", default_value_t = 1)]
    copies: u32,
    /// Requests of a connection in traces
    #[arg(long, value_name = "N", default_value_t = 1)]
    requests_per_connection: u32,
    /// Have a backend die, and come back with nothing in memory: b3@20s, b3@20s..40s;
    /// seconds of simulated time
    #[arg(long, value_name = "WHEN", value_delimiter = ',')]
    fail: Vec<Spell>,
    /// Drain a backend: it gets no new connections
    #[arg(long, value_name = "WHEN", value_delimiter = ',')]
    drain: Vec<Spell>,
    /// Of all randomness
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Threads [default: one for each processor]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
}

/// The same, ready to run.
pub struct Setup {
    hardware: Vec<Hardware>,
    workloads: Vec<Box<dyn Workload>>,
    entrants: Vec<Entrant>,
    requests: Option<u64>,
    seed: u64,
    threads: usize,
}

impl Setup {
    /// What the arguments say. Remarks about traces go to standard error.
    pub fn of(args: &Cluster) -> anyhow::Result<Self> {
        Ok(Setup {
            hardware: hardware(args)?,
            workloads: workloads(args)?,
            entrants: entrants(&args.policies)?,
            requests: args.requests,
            seed: args.seed,
            threads: threads(args.threads),
        })
    }

    /// Every policy on every workload on every cluster.
    pub fn runs(&self) -> Vec<Run<'_>> {
        let mut runs = Vec::new();
        for workload in &self.workloads {
            let requests = self.requests.or(workload.requests()).unwrap_or(500_000);
            for hardware in &self.hardware {
                for entrant in &self.entrants {
                    runs.push(Run {
                        hardware,
                        workload: workload.as_ref(),
                        entrant,
                        span: Span::requests(requests),
                        seed: self.seed,
                    });
                }
            }
        }
        runs
    }

    /// Runs them, with a progress bar if that takes long.
    pub fn go(&self, runs: &[Run<'_>]) -> Vec<Outcome> {
        go(runs, self.threads)
    }
}

/// Runs them, with a progress bar on a terminal.
pub fn go(runs: &[Run<'_>], threads: usize) -> Vec<Outcome> {
    let total = runs.iter().map(|run| {
        let most = run.workload.requests().unwrap_or(u64::MAX);
        run.span.requests.min(most)
    });
    let bar = bar(total.fold(0, u64::saturating_add));
    let outcomes = trapeze_sim::run_all(runs, threads, &|more| bar.inc(more));
    bar.finish_and_clear();
    outcomes
}

/// A bar of that many requests; hidden where nobody would see it.
pub fn bar(requests: u64) -> ProgressBar {
    let bar = match std::io::stderr().is_terminal() {
        true => ProgressBar::new(requests),
        false => ProgressBar::hidden(),
    };
    let style = "{bar:30} {percent:>3} %  {human_pos} requests, {per_sec}, {eta} left";
    bar.set_style(ProgressStyle::with_template(style).expect("the template is right"));
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

/// One for each processor, if nothing is said.
pub fn threads(asked: Option<usize>) -> usize {
    asked.unwrap_or_else(|| thread::available_parallelism().map_or(1, |n| n.get()))
}

fn hardware(args: &Cluster) -> anyhow::Result<Vec<Hardware>> {
    let Some(mut base) = Hardware::preset(&args.hardware) else {
        let known = Hardware::PRESETS.join(", ");
        bail!("no hardware `{}`; there are: {known}", args.hardware);
    };
    if let Some(bytes) = args.cache {
        base.backend.cache_bytes = bytes;
    }
    if let Some(dispatchers) = args.dispatchers {
        base.dispatchers = dispatchers.max(1);
    }
    match args.replacement.as_deref() {
        None => {}
        Some("lru") => base.backend.replacement = Replacement::Lru,
        Some("gds") => base.backend.replacement = Replacement::GreedyDualSize,
        Some(other) => bail!("no replacement `{other}`; there are: lru, gds"),
    }
    if args.backends.contains(&0) {
        bail!("a cluster has at least one backend");
    }
    let spells = (args.fail.iter().map(|spell| (spell, Condition::Gone)))
        .chain(args.drain.iter().map(|spell| (spell, Condition::Draining)));
    for (spell, into) in spells {
        let fewest = args.backends.iter().min().unwrap_or(&base.backends);
        if spell.backend >= *fewest {
            bail!("there is no b{} of {fewest}", spell.backend + 1);
        }
        base.changes.extend(spell.changes(into));
    }
    Ok(match args.backends.as_slice() {
        [] => vec![base],
        several => several
            .iter()
            .map(|&n| base.clone().with_backends(n))
            .collect(),
    })
}

fn workloads(args: &Cluster) -> anyhow::Result<Vec<Box<dyn Workload>>> {
    let mut workloads: Vec<Box<dyn Workload>> = Vec::new();
    let zipf = ["zipf".to_owned()];
    let names: Vec<&str> = match (&args.workload[..], &args.trace[..]) {
        ([], []) => zipf.iter().map(String::as_str).collect(),
        ([one], _) if one == "all" => workload::NAMES.iter().map(|(name, _)| *name).collect(),
        (names, _) => names.iter().map(String::as_str).collect(),
    };
    for name in names {
        let Some(workload) = workload::named(name, args.seed) else {
            let known = workload::NAMES.map(|(name, _)| name).join(", ");
            bail!("no workload `{name}`; there are: {known}");
        };
        workloads.push(workload);
    }
    for path in &args.trace {
        let trace = open(path, args.requests)?;
        let name = path
            .file_name()
            .map_or_else(String::new, |n| n.to_string_lossy().into());
        let options = RecordedOptions {
            speed: args.speed.unwrap_or(1.0),
            pace: match (args.speed, args.users) {
                (Some(_), _) => Pace::Open,
                (None, Some(users)) => Pace::Users(users),
                (None, None) => Pace::Admission,
            },
            copies: args.copies,
            requests_per_connection: args.requests_per_connection,
        };
        workloads.push(Box::new(Recorded::new(&name, trace, options)));
    }
    Ok(workloads)
}

/// Reads a trace, and says on standard error which lines were left out, and why.
/// Not more is read than so many requests.
pub fn open(path: &Path, most: Option<u64>) -> anyhow::Result<Trace> {
    let trace = Trace::open(path, most.unwrap_or(u64::MAX))
        .with_context(|| format!("{}", path.display()))?;
    for left in &trace.reading.left_out {
        eprintln!(
            "{}: {} of {} lines left out: {}, first line {}",
            path.display(),
            left.lines,
            trace.reading.lines,
            left.reason,
            left.first_line
        );
    }
    Ok(trace)
}

/// Policies by name; `all` is every one.
pub fn entrants(names: &[String]) -> anyhow::Result<Vec<Entrant>> {
    let mut entrants = Vec::new();
    for name in names {
        let (policy, decides) = match name.split_once('@') {
            None => (name.as_str(), Decides::Requests),
            Some((policy, "connections")) => (policy, Decides::Connections),
            Some((policy, "blindly")) => (policy, Decides::Blindly),
            Some((_, other)) => bail!("`{other}`: connections or blindly"),
        };
        if policy == "all" {
            entrants.extend(PolicyKind::ALL.map(|kind| Entrant::of(kind).deciding(decides)));
            continue;
        }
        let mut words = policy.split(':');
        let policy = words.next().unwrap_or_default();
        let parameters: Vec<&str> = words.collect();
        let parameters = parameters.as_slice();
        let policy = match policy {
            "rr" => "round-robin",
            "wlc" | "lc" => "least-connections",
            other => other,
        };
        if !PolicyKind::ALL.iter().any(|kind| kind.name() == policy) {
            let known = PolicyKind::ALL.map(PolicyKind::name).join(", ");
            bail!("no policy `{policy}`; there are: {known}");
        }
        let policy = with_parameters(policy, parameters).with_context(|| format!("`{name}`"))?;
        entrants.push(Entrant::of(policy).deciding(decides).named(name));
    }
    Ok(entrants)
}

/// A policy with parameters such as `t_high=130`, as the configuration file reads them.
fn with_parameters(name: &str, parameters: &[&str]) -> anyhow::Result<PolicyConfig> {
    let keys: String = parameters.iter().map(|p| format!(", {p}")).collect();
    let text = format!(
        "[cluster]\nname = \"sim\"\n\
         keys = [{{ id = 1, secret = \"000102030405060708090a0b0c0d0e0f\" }}]\n\
         [[dispatcher]]\nname = \"d1\"\naddress = \"10.0.0.1\"\ninterface = \"eth0\"\n\
         [[backend]]\nname = \"b1\"\naddress = \"10.0.0.2\"\ninterface = \"eth0\"\n\
         [[pool]]\nname = \"p\"\nbackends = [\"b1\"]\n\
         policy = {{ name = \"{name}\"{keys} }}\n\
         [[service]]\nname = \"s\"\naddress = \"10.0.0.3:80\"\npool = \"p\"\n"
    );
    match Config::parse(&text, "sim") {
        Ok(config) => Ok(config.pools[0].policy.clone()),
        Err(errors) => {
            let said = errors.iter().map(|e| e.message.as_str());
            bail!("{}", said.collect::<Vec<_>>().join("; "))
        }
    }
}
