//! What a request costs each dispatcher, with one and with two behind a spray: the processor time
//! of its daemon, and of its data path as the kernel accounts for it.
//!
//! `cargo build --release -p trapeze-cli`, then `cargo bench -p trapeze-tests --bench
//! dispatchers`, as root, with wrk; `-- ROUNDS` for another number than 3, `-- POLICY` for another
//! policy than round-robin, under which nothing stands among several dispatchers.

use std::time::Duration;

use trapeze_core::config::PolicyKind;
use trapeze_datapath::run_time::{RunTime, Timing};
use trapeze_lab::Process;
use trapeze_tests::{Cluster, until, without_node};

const ROUNDS: usize = 3;
const CONNECTIONS: u32 = 32;
const SECONDS: u32 = 3;
/// The most that issue 5 allows each of two, of what one has.
const BAR: f64 = 0.6;
/// Of /proc/PID/stat.
const TICK: Duration = Duration::from_millis(10);

/// What clients do.
struct Case {
    name: &'static str,
    path: &'static str,
    /// Of a PUT's body; 0: a GET.
    body: usize,
    closes: bool,
}

const CASES: [Case; 5] = [
    Case::get("1 KiB, kept alive", "/1k", false),
    Case::get("1 KiB, a connection each", "/1k", true),
    Case::get("100 KiB", "/100k", false),
    Case::get("10 MiB", "/10m", false),
    Case {
        name: "PUT of 100 KiB",
        path: "/upload/some",
        body: 100 << 10,
        closes: false,
    },
];

/// What dispatchers have done since they began.
#[derive(Clone, Copy, Default)]
struct Done {
    daemon: Duration,
    data_path: RunTime,
}

fn main() {
    let rounds = std::env::args().find_map(|arg| arg.parse().ok());
    let rounds: usize = rounds.unwrap_or(ROUNDS);
    let named = |arg: String| PolicyKind::ALL.into_iter().find(|kind| kind.name() == arg);
    let policy = std::env::args().find_map(named);
    let _timing = Timing::begin().expect("the kernel times programs");
    for mode in ["flow-hash", "batch"] {
        let cluster = cluster(mode, policy);
        println!("sprayed by {mode}; µs of a processor for each request, daemon + data path:");
        for case in &CASES {
            let mut each = [Vec::new(), Vec::new()];
            for round in 0..rounds {
                for turn in 0..2 {
                    let two = (round + turn) % 2 == 1;
                    have_dispatchers(&cluster, two);
                    each[usize::from(two)].push(costs(&cluster, case, two));
                }
            }
            report(case, &mut each);
        }
    }
}

fn report(case: &Case, each: &mut [Vec<(f64, f64)>; 2]) {
    let [one, two] = each.each_mut().map(|costs| {
        costs.sort_by(|a, b| (a.0 + a.1).total_cmp(&(b.0 + b.1)));
        costs[costs.len() / 2]
    });
    println!(
        "  {:26} one: {:5.2} + {:5.2}   each of two: {:5.2} + {:5.2}   {:.2} (the bar {BAR})",
        case.name,
        one.0,
        one.1,
        two.0,
        two.1,
        (two.0 + two.1) / (one.0 + one.1)
    );
}

impl Case {
    const fn get(name: &'static str, path: &'static str, closes: bool) -> Self {
        Self {
            name,
            path,
            body: 0,
            closes,
        }
    }
}

fn cluster(mode: &str, policy: Option<PolicyKind>) -> Cluster {
    let cluster = Cluster::with("scale", |options| {
        options.sprays = Some(1);
        options.spray_mode = Some(mode.into());
        options.dispatchers = Some(2);
        options.backends = Some(2);
        options.policy = policy;
    });
    // For a connection each: as trapeze_lab::load says.
    cluster.run("c1", &["sysctl", "-q", "-w", "net.ipv4.tcp_tw_reuse=1"]);
    cluster
}

/// One is alone by its configuration, not because the other is dead.
fn have_dispatchers(cluster: &Cluster, two: bool) {
    let config = cluster.config();
    let given = match two {
        true => config.clone(),
        false => without_node(&config, "d2"),
    };
    for (host, process) in [("s1", Process::Spray), ("d1", Process::Dispatch)] {
        cluster.reload(host, process, &given);
    }
    std::fs::write(cluster.status().expect("it is up").config, &config).expect("it is a file");
    let spray = || cluster.spray_status("s1");
    until("flows are kept", || {
        let d1 = cluster.dispatch_status("d1")?;
        let ready = d1.caught_up && d1.peers.iter().all(|peer| peer.fit);
        (ready
            && d1.peers.len() == usize::from(two)
            && spray().dispatchers.len() == 1 + usize::from(two))
        .then_some(())
    });
    std::thread::sleep(Duration::from_millis(500));
}

/// Microseconds for each request at a dispatcher: its daemon's, its data path's.
fn costs(cluster: &Cluster, case: &Case, two: bool) -> (f64, f64) {
    let names: &[&str] = if two { &["d1", "d2"] } else { &["d1"] };
    let of_all = || {
        names
            .iter()
            .map(|name| done(cluster, name))
            .collect::<Vec<_>>()
    };
    let before = of_all();
    let requests = load(cluster, case);
    let after = of_all();
    let number = (requests * names.len() as u64) as f64;
    let sum = |get: fn(&Done) -> Duration| {
        let total = |all: &[Done]| all.iter().map(get).sum::<Duration>();
        (total(&after) - total(&before)).as_secs_f64() * 1e6 / number
    };
    (sum(|done| done.daemon), sum(|done| done.data_path.time))
}

fn done(cluster: &Cluster, name: &str) -> Done {
    let status = cluster.status().expect("the lab is up");
    let host = status.hosts.iter().find(|host| host.name == name);
    let pid = host.and_then(|host| host.processes[&Process::Dispatch].pid);
    let stat = format!("/proc/{}/stat", pid.expect("it has been started"));
    let stat = std::fs::read_to_string(stat).expect("it runs");
    // utime and stime are the 14th and 15th; the second, in parentheses, may have blanks.
    let fields = stat.rsplit(')').next().expect("a name").split_whitespace();
    let ticks: u32 = (fields.skip(11).take(2))
        .map(|field| field.parse::<u32>().expect("a number"))
        .sum();
    Done {
        daemon: TICK * ticks,
        data_path: cluster.run_time(name, "link_dispatch"),
    }
}

/// How many requests were answered.
fn load(cluster: &Cluster, case: &Case) -> u64 {
    let (connections, seconds) = (format!("-c{CONNECTIONS}"), format!("-d{SECONDS}s"));
    let url = format!("http://10.77.0.100{}", case.path);
    let script = tempfile::NamedTempFile::new().expect("a temporary file");
    let text = format!(
        "wrk.method = 'PUT'\nwrk.body = string.rep('x', {})\n",
        case.body
    );
    std::fs::write(script.path(), text).expect("a temporary file");
    let script = script.path().to_str().expect("a path of ours");
    let mut words = vec!["wrk", "-t1", "--timeout", "30s", &connections, &seconds];
    if case.body > 0 {
        words.extend(["-s", script]);
    }
    if case.closes {
        words.extend(["-H", "Connection: close"]);
    }
    words.push(&url);
    let said = cluster.run("c1", &words);
    assert!(
        !said.contains("Socket errors") && !said.contains("Non-2xx"),
        "{said}"
    );
    let line = said
        .lines()
        .find_map(|line| line.trim().split_once(" requests in "));
    line.and_then(|(number, _)| number.parse().ok())
        .expect("wrk says so")
}
