//! What a request costs each dispatcher, with one and with two behind a spray: the processor time
//! of its daemon, and of its data path as the kernel accounts for it. Softirqs that interrupt the
//! daemon are not its own: what it sends goes through the whole lab in them. What a daemon does by
//! time, requests or none, is a line of its own.
//!
//! `cargo build --release -p trapeze-cli`, then `cargo bench -p trapeze-tests --bench
//! dispatchers`, as root, with wrk; `-- ROUNDS` for another number than 3, `-- POLICY` for another
//! policy than round-robin, under which each request moves, and part of a case's name for that alone.

use std::time::{Duration, Instant};

use trapeze_core::config::PolicyKind;
use trapeze_datapath::run_time::{RunTime, Timing};
use trapeze_datapath::softirq::Interruptions;
use trapeze_lab::Process;
use trapeze_tests::{Cluster, until, without_node};

const ROUNDS: usize = 3;
const CONNECTIONS: u32 = 32;
const SECONDS: u32 = 3;
/// So long a daemon is watched without requests.
const IDLE: Duration = Duration::from_secs(4);
/// The most that issue 5 allows each of two, of what one has.
const BAR: f64 = 0.6;

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
    spray: RunTime,
}

/// What a request has cost each dispatcher: microseconds of its daemon's, of its data path's, and how
/// many packets that has seen.
#[derive(Clone, Copy)]
struct Cost {
    daemon: f64,
    data_path: f64,
    packets: f64,
    /// Nanoseconds of the spray's data path for a packet.
    spray: f64,
}

impl Cost {
    fn time(&self) -> f64 {
        self.daemon + self.data_path
    }
}

impl std::fmt::Display for Cost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            daemon,
            data_path,
            packets,
            spray,
        } = self;
        write!(
            f,
            "{daemon:6.2} + {data_path:6.2} ({packets:6.1} packets; {spray:3.0} ns each at the spray)"
        )
    }
}

fn main() {
    let rounds = std::env::args().find_map(|arg| arg.parse().ok());
    let rounds: usize = rounds.unwrap_or(ROUNDS);
    let named = |arg: String| PolicyKind::ALL.into_iter().find(|kind| kind.name() == arg);
    let policy = std::env::args().find_map(named);
    let all = CASES.iter().map(|case| case.name);
    let meant: Vec<&str> = all
        .filter(|name| {
            std::env::args()
                .skip(1)
                .any(|arg| name.contains(&*arg) && arg.len() > 3)
        })
        .collect();
    let is_meant = |case: &&Case| meant.is_empty() || meant.contains(&case.name);
    let _timing = Timing::begin().expect("the kernel times programs");
    let interruptions = Interruptions::begin().expect("the kernel times softirqs");
    for mode in ["flow-hash", "batch"] {
        let cluster = cluster(mode, policy);
        let idle = [false, true].map(|two| {
            have_dispatchers(&cluster, two);
            idle(&cluster, &interruptions, two)
        });
        println!("sprayed by {mode}; µs of a processor for each request, daemon + data path:");
        for case in CASES.iter().filter(is_meant) {
            let mut each = [Vec::new(), Vec::new()];
            for round in 0..rounds {
                for turn in 0..2 {
                    let two = (round + turn) % 2 == 1;
                    let by_time = idle[usize::from(two)];
                    have_dispatchers(&cluster, two);
                    each[usize::from(two)].push(costs(
                        &cluster,
                        &interruptions,
                        case,
                        (two, by_time),
                    ));
                }
            }
            report(case, &mut each);
        }
        let [one, two] = idle.map(|share| share * 1e6);
        println!("  by time, each second        one: {one:.0}   each of two: {two:.0}");
    }
}

fn report(case: &Case, each: &mut [Vec<Cost>; 2]) {
    let [one, two] = each.each_mut().map(|costs| {
        costs.sort_by(|a, b| a.time().total_cmp(&b.time()));
        costs[costs.len() / 2]
    });
    let ratio = two.time() / one.time();
    println!(
        "  {:26} one: {one}   each of two: {two}   {ratio:.2} (the bar {BAR})",
        case.name
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

/// Which dispatchers there are.
const fn names(two: bool) -> &'static [&'static str] {
    if two { &["d1", "d2"] } else { &["d1"] }
}

/// The share of a processor that each dispatcher's daemon has without requests.
fn idle(cluster: &Cluster, interruptions: &Interruptions, two: bool) -> f64 {
    let all = || done(cluster, interruptions, two).daemon;
    let (began, before) = (Instant::now(), all());
    std::thread::sleep(IDLE);
    (all() - before).as_secs_f64() / began.elapsed().as_secs_f64() / names(two).len() as f64
}

/// At each dispatcher, of which there are `two` or one; `by_time`: what [`idle`] says.
fn costs(
    cluster: &Cluster,
    interruptions: &Interruptions,
    case: &Case,
    (two, by_time): (bool, f64),
) -> Cost {
    let (began, before) = (Instant::now(), done(cluster, interruptions, two));
    let requests = load(cluster, case);
    let (took, after) = (began.elapsed(), done(cluster, interruptions, two));
    let number = (requests * names(two).len() as u64) as f64;
    let micros = |time: Duration| time.as_secs_f64() * 1e6 / number;
    Cost {
        daemon: micros(after.daemon - before.daemon)
            - micros(took) * by_time * names(two).len() as f64,
        data_path: micros(after.data_path.time - before.data_path.time),
        packets: (after.data_path.runs - before.data_path.runs) as f64 / number,
        spray: (after.spray.time - before.spray.time).as_nanos() as f64
            / (after.spray.runs - before.spray.runs) as f64,
    }
}

/// By all dispatchers together.
fn done(cluster: &Cluster, interruptions: &Interruptions, two: bool) -> Done {
    let status = cluster.status().expect("the lab is up");
    let mut all = Done {
        spray: cluster.run_time("s1", "link_spray"),
        ..Done::default()
    };
    for name in names(two) {
        let host = status.hosts.iter().find(|host| host.name == *name);
        let pid = host.and_then(|host| host.processes[&Process::Dispatch].pid);
        let pid = pid.expect("it has been started");
        all.daemon += interruptions.own_time(pid).expect("it runs");
        let data_path = cluster.run_time(name, "link_dispatch");
        all.data_path.runs += data_path.runs;
        all.data_path.time += data_path.time;
    }
    all
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
