//! What to simulate, from the command line.

use std::fmt;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use indicatif::{HumanCount, HumanDuration, ProgressBar, ProgressState, ProgressStyle};
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
    #[arg(short, long, value_name = "N", value_delimiter = ',', value_parser = count(BACKENDS_MAX))]
    backends: Vec<u32>,
    /// How many dispatchers, each with its own policy
    #[arg(long, value_name = "N", value_parser = count(100))]
    dispatchers: Option<u32>,
    /// Memory for files on each backend, such as 32M (powers of 1024)
    #[arg(long, value_name = "SIZE", value_parser = amount::parse_bytes)]
    cache: Option<u64>,
    /// What leaves that memory: lru, or gds (GreedyDual-Size)
    #[arg(long, value_name = "NAME")]
    replacement: Option<String>,
    /// Requests of each run, of a trace at most what it has; a fifth of them only fills
    /// caches [default: 500,000, or those of the trace]
    #[arg(short = 'n', long, value_name = "N", value_parser = count(4_000_000_000))]
    requests: Option<u32>,
    /// Users of recorded traces [default: the admission limit of LARD98]
    #[arg(long, value_name = "N", value_parser = count(1_000_000))]
    users: Option<u32>,
    /// Replay traces at their recorded times, this many times as fast
    #[arg(long, value_name = "FACTOR", conflicts_with = "users", value_parser = speed)]
    speed: Option<f64>,
    /// So many sites like the recorded one, interleaved, with URLs of their own [default: 1]
    #[arg(long, value_name = "N", value_parser = count(1000))]
    copies: Option<u32>,
    /// Requests of a connection in traces [default: 1]
    #[arg(long, value_name = "N", value_parser = count(1_000_000))]
    requests_per_connection: Option<u32>,
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
    #[arg(long, value_name = "N", value_parser = count(THREADS_MAX))]
    threads: Option<u32>,
}

/// As many as a dispatcher's data path has room for.
pub const BACKENDS_MAX: u32 = 1024;
/// More are of no use to anyone.
pub const THREADS_MAX: u32 = 1024;
/// Of all copies of a trace together: each takes some 300 bytes, and 24 on each backend.
const COPIED_URLS_MAX: u64 = 4_000_000;
/// Thirty years: times are counted in nanoseconds, in 64 bits.
const PLAYED_MAX_S: f64 = 1e9;

/// A number from 1 on.
pub fn count(most: u32) -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=i64::from(most))
}

fn speed(text: &str) -> Result<f64, String> {
    (text.parse().ok())
        .filter(|speed| (0.001..=1e6).contains(speed))
        .ok_or_else(|| "a factor from 0.001 to 1000000, such as 10".to_owned())
}

/// The same, ready to run.
pub struct Setup {
    hardware: Vec<Hardware>,
    workloads: Vec<Box<dyn Workload>>,
    entrants: Vec<Entrant>,
    requests: Option<u32>,
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

    /// Every policy on every workload on every cluster. What of the requests is too little
    /// to tell anything goes to standard error.
    pub fn runs(&self) -> Vec<Run<'_>> {
        let mut runs = Vec::new();
        for workload in &self.workloads {
            let requests = self.requests_of(workload.as_ref());
            for hardware in &self.hardware {
                let users = workload.pace().users(hardware.backends);
                warn_of_chance(workload.name(), requests, users);
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

    /// As many as are asked for, and there are: a fifth of these is the warm-up.
    fn requests_of(&self, workload: &dyn Workload) -> u64 {
        let asked = self.requests.map(u64::from);
        match (asked, workload.requests()) {
            (Some(asked), Some(there)) if asked > there => {
                eprintln!(
                    "{}: has {there} requests, fewer than -n {asked}: all of them are played",
                    workload.name()
                );
                there
            }
            (asked, there) => asked.or(there).unwrap_or(500_000),
        }
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

/// Says so where so few requests are played that users ask a handful each: where queues
/// begin and end is most of what is measured then.
pub fn warn_of_chance(name: &str, requests: u64, users: Option<usize>) {
    let (enough, of) = match users {
        Some(users) => (10 * users as u64, format!(" of {users} users at once")),
        None => (1000, String::new()),
    };
    if requests < enough {
        eprintln!(
            "{name}: {requests} requests{of}: what comes of it is chance; \
             10,000 and more tell policies apart"
        );
    }
}

/// A bar of that many requests; hidden where nobody would see it.
pub fn bar(requests: u64) -> ProgressBar {
    let bar = match std::io::stderr().is_terminal() {
        true => ProgressBar::new(requests),
        false => ProgressBar::hidden(),
    };
    let style = ProgressStyle::with_template("{bar:30} {percent:>3} %  {human_pos} requests{rest}")
        .expect("the template is right")
        .with_key(
            "rest",
            |state: &ProgressState, into: &mut dyn fmt::Write| {
                let _ = into.write_str(&rest(state.pos(), state.per_sec(), state.eta()));
            },
        );
    bar.set_style(style);
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

/// How fast it goes and how long it takes yet; nothing while nobody can tell.
fn rest(done: u64, per_second: f64, left: Duration) -> String {
    match done {
        0 => String::new(),
        _ => format!(
            ", {}/s, {:#} left",
            HumanCount(per_second as u64),
            HumanDuration(left)
        ),
    }
}

/// One for each processor, if nothing is said.
pub fn threads(asked: Option<u32>) -> usize {
    match asked {
        Some(asked) => asked as usize,
        None => thread::available_parallelism().map_or(1, |n| n.get()),
    }
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
        base.dispatchers = dispatchers as usize;
    }
    match args.replacement.as_deref() {
        None => {}
        Some("lru") => base.backend.replacement = Replacement::Lru,
        Some("gds") => base.backend.replacement = Replacement::GreedyDualSize,
        Some(other) => bail!("no replacement `{other}`; there are: lru, gds"),
    }
    let spells = (args.fail.iter().map(|spell| (spell, Condition::Gone)))
        .chain(args.drain.iter().map(|spell| (spell, Condition::Draining)));
    for (spell, into) in spells {
        let fewest = args.backends.iter().min();
        let fewest = fewest.map_or(base.backends, |&n| n as usize);
        if spell.backend >= fewest {
            bail!("there is no b{} of {fewest}", spell.backend + 1);
        }
        base.changes.extend(spell.changes(into));
    }
    Ok(match args.backends.as_slice() {
        [] => vec![base],
        several => several
            .iter()
            .map(|&n| base.clone().with_backends(n as usize))
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
    let of_traces = [
        ("--users", args.users.is_some()),
        ("--speed", args.speed.is_some()),
        ("--copies", args.copies.is_some()),
        (
            "--requests-per-connection",
            args.requests_per_connection.is_some(),
        ),
    ];
    for (option, _) in of_traces.iter().filter(|(_, said)| *said) {
        let names: Vec<&str> = workloads.iter().map(|w| w.name()).collect();
        let names = names.join(", ");
        match (&args.trace[..], &names[..]) {
            ([], _) => bail!(
                "{option} is for recorded traces, and {names} is none: leave it out, or name a \
                 trace with -t"
            ),
            (_, "") => {}
            _ => eprintln!("{option} is for the traces alone: {names} has its own"),
        }
    }
    for path in &args.trace {
        let trace = open(path, args.requests.map(u64::from))?;
        let name = path
            .file_name()
            .map_or_else(String::new, |n| n.to_string_lossy().into());
        let options = options(args, &trace).with_context(|| name.clone())?;
        workloads.push(Box::new(Recorded::new(&name, trace, options)));
    }
    Ok(workloads)
}

/// How a trace is played.
fn options(args: &Cluster, trace: &Trace) -> anyhow::Result<RecordedOptions> {
    let copies = args.copies.unwrap_or(1);
    let urls = trace.objects.len() as u64;
    ensure!(
        copies == 1 || urls * u64::from(copies) <= COPIED_URLS_MAX,
        "--copies {copies} of {urls} URLs are more than {COPIED_URLS_MAX} in all: at most --copies {}",
        (COPIED_URLS_MAX / urls.max(1)).max(1)
    );
    let speed = args.speed.unwrap_or(1.0);
    let recorded_s = trace.records.last().map_or(0.0, |r| r.at_ns as f64 / 1e9);
    ensure!(
        args.speed.is_none() || recorded_s / speed <= PLAYED_MAX_S,
        "{recorded_s:.0} s at --speed {speed} take more than 30 years: at least --speed {}",
        (recorded_s / PLAYED_MAX_S * 1000.0).ceil() / 1000.0
    );
    Ok(RecordedOptions {
        speed,
        pace: match (args.speed, args.users) {
            (Some(_), _) => Pace::Open,
            (None, Some(users)) => Pace::Users(users as usize),
            (None, None) => Pace::Admission,
        },
        copies,
        requests_per_connection: args.requests_per_connection.unwrap_or(1),
    })
}

/// What [`trapeze_sim::trace::Reading::trailing`] means.
pub const TRAILING: &str = "what stands behind the end of the compressed data was not read";

/// Reads a trace, and says on standard error which lines were left out, and why.
/// Not more is read than so many requests.
pub fn open(path: &Path, most: Option<u64>) -> anyhow::Result<Trace> {
    let trace = Trace::open(path, most.unwrap_or(u64::MAX))
        .with_context(|| format!("{}", path.display()))?;
    if trace.reading.trailing {
        eprintln!("{}: {TRAILING}", path.display());
    }
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
            Some((policy, other)) => bail!(
                "`{name}`: a policy cannot decide for `{other}`; write {policy}@connections, \
                 {policy}@blindly, or {policy} alone, which decides for each request"
            ),
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
    let has_value = |p: &&str| (p.split_once('=')).is_some_and(|(_, value)| !value.is_empty());
    if let Some(parameter) = parameters.iter().find(|p| !has_value(p)) {
        bail!("`{parameter}` has no value: write {name}:KEY=VALUE, such as lard:t_high=130");
    }
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
            let mut said: Vec<&str> = errors.iter().map(|e| e.message.as_str()).collect();
            said.dedup();
            bail!("{}", said.join("; "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_says_how_long_it_takes_once_that_is_known() {
        let minute = Duration::from_secs(61);
        assert_eq!(rest(0, 0.0, Duration::ZERO), "");
        assert_eq!(rest(5, 592_806.25, minute), ", 592,806/s, 61s left");
    }

    #[test]
    fn parameters_are_said_to_be_wrong_once() {
        let said = |name: &str| {
            let error = entrants(&[name.to_owned()]).unwrap_err();
            format!("{error:#}")
        };
        for name in ["lard:t_high='x", "lard:t_high=x", "lard:t_high={"] {
            let said = said(name);
            let (_, message) = said.split_once(": ").unwrap();
            let half = message.len() / 2;
            assert!(!message[half..].contains(&message[..half]), "{said}");
        }
        assert!(said("lard:t_high=").contains("`t_high=` has no value"));
    }
}
