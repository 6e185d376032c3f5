//! What it costs that answers could outlive their backend (docs/protocol/takeover.md): the
//! throughput with `protect_from` against that without, side by side, and what is kept and said.
//!
//! `cargo build --release -p trapeze-cli`, then `cargo bench -p trapeze-tests --bench
//! protection`, as root, with wrk; `-- ROUNDS SIZE` for another number than 9, and for one of the
//! sizes alone. `-- overhead`: the time of one request against its size, published and measured
//! [MIGRATE01 §5.2].

use std::fmt::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use trapeze_lab::Process;
use trapeze_tests::{Cluster, Connection, Content, until};

const ROUNDS: usize = 9;
const CONNECTIONS: u32 = 32;
const SECONDS: u32 = 3;
/// Sizes, and the most of the throughput that issue 6 allows.
const SIZES: [(&str, u64, f64); 2] = [("100k", 100 << 10, 0.05), ("10m", 10 << 20, 0.01)];

/// What the paper's wedge adds to a request, where its text says it.
const OVERHEADS: [(&str, u64, &str); 5] = [
    ("1 KB", 1 << 10, "1 ms (80 %)"),
    ("16 KB", 16 << 10, ""),
    ("128 KB", 128 << 10, ""),
    ("1 MB", 1 << 20, ""),
    ("8 MB", 8 << 20, "12 ms (1 %)"),
];
/// Requests of each size in each round, one after the other.
const REQUESTS: usize = 40;

fn main() {
    if std::env::args().any(|arg| arg == "overhead") {
        return overhead();
    }
    let rounds = std::env::args().find_map(|arg| arg.parse().ok());
    let rounds = rounds.unwrap_or(ROUNDS);
    let root = tempfile::tempdir().expect("a temporary directory");
    for (name, size, _) in SIZES {
        let bytes = Content::new(7, size).bytes();
        std::fs::write(root.path().join(name), bytes).expect("a temporary file");
    }
    let cluster = cluster(root.path());
    let plain = cluster.config();
    let protecting = plain.replace("[[pool]]\n", "[[pool]]\nprotect_from = 65536\n");
    let alone = SIZES.map(|(name, ..)| name).into_iter();
    let mut alone = alone.filter(|name| std::env::args().any(|arg| arg == *name));
    let alone = alone.next();
    for (name, _, most) in SIZES {
        if alone.is_some_and(|alone| alone != name) {
            continue;
        }
        let mut ratios = Vec::new();
        let (mut sums, mut begun, mut most_kept) = ([0.0; 2], 0, 0);
        for round in 0..rounds {
            let mut rates = [0.0; 2];
            // Each is first as often as the other.
            for turn in 0..2 {
                let protects = (round + turn) % 2;
                configure(&cluster, [&plain, &protecting][protects]);
                let before = cluster.agents().of("begun");
                rates[protects] = load(&cluster, name);
                begun += cluster.agents().of("begun") - before;
                most_kept = most_kept.max(cluster.daemon().protected_answers);
            }
            ratios.push(rates[1] / rates[0]);
            sums = [sums[0] + rates[0], sums[1] + rates[1]];
        }
        ratios.sort_by(f64::total_cmp);
        let [plain, protected] = sums.map(|sum| sum / rounds as f64);
        println!(
            "{name}: {plain:.0} requests/s without, {protected:.0} with; of {rounds} pairs the median is \
             {:.3} ({:.3} to {:.3}; the bar {:.2}); {begun} answers were looked at, at most {most_kept} \
             kept at once",
            ratios[rounds / 2],
            ratios[0],
            ratios[rounds - 1],
            1.0 - most
        );
    }
}

/// Every answer is protected, or none: how long a request takes that nothing else disturbs.
fn overhead() {
    let root = tempfile::tempdir().expect("a temporary directory");
    for (_, size, _) in OVERHEADS {
        let bytes = Content::new(7, size).bytes();
        std::fs::write(root.path().join(size.to_string()), bytes).expect("a temporary file");
    }
    let cluster = cluster(root.path());
    let plain = cluster.config();
    let protecting = plain.replace("[[pool]]\n", "[[pool]]\nprotect_from = 1\n");
    let mut times = OVERHEADS.map(|_| [Vec::new(), Vec::new()]);
    for round in 0..ROUNDS {
        for turn in 0..2 {
            let protects = (round + turn) % 2;
            configure(&cluster, [&plain, &protecting][protects]);
            for ((_, size, _), times) in OVERHEADS.iter().zip(&mut times) {
                times[protects].extend(request_times(&cluster, &format!("/{size}")));
            }
        }
    }
    println!(
        "{:>8}  {:>11}  {:>11}  {:>17}  {:>12}",
        "", "without", "with", "adds", "published"
    );
    for ((name, _, published), times) in OVERHEADS.iter().zip(&mut times) {
        let [plain, protected] = times.each_mut().map(|times| {
            times.sort();
            times[times.len() / 2].as_secs_f64() * 1e6
        });
        println!(
            "{name:>8}  {plain:8.0} µs  {protected:8.0} µs  {:6.0} µs ({:+.1} %)  {published:>12}",
            protected - plain,
            100.0 * (protected / plain - 1.0)
        );
    }
}

/// From the SYN to the last byte, of connections of their own.
fn request_times(cluster: &Cluster, path: &str) -> Vec<Duration> {
    cluster.on("c1", || {
        let time = |_| {
            let start = Instant::now();
            assert_eq!(Connection::open().ask(path).status, 200);
            start.elapsed()
        };
        (0..REQUESTS).map(time).collect()
    })
}

fn cluster(root: &Path) -> Cluster {
    let mut text = String::from("[[pool]]\nname = \"web\"\nbackends = [\"b1\", \"b2\"]\n");
    let _ = write!(
        text,
        "[[service]]\nname = \"site\"\naddress = \"10.77.0.100:80\"\npool = \"web\"\n"
    );
    let root = root.to_owned();
    Cluster::configured("costs", 2, &text, |options| options.root = Some(root))
}

fn configure(cluster: &Cluster, config: &str) {
    for backend in ["b1", "b2"] {
        cluster.reload(backend, Process::Agent, config);
    }
    cluster.reload("d1", Process::Dispatch, config);
    until("both are up", || {
        let is_up = |name: &&str| cluster.backend(name).state == "up";
        ["b1", "b2"].iter().all(is_up).then_some(())
    });
}

/// Requests a second.
fn load(cluster: &Cluster, name: &str) -> f64 {
    let (connections, seconds) = (format!("-c{CONNECTIONS}"), format!("-d{SECONDS}s"));
    let url = format!("http://10.77.0.100/{name}");
    let said = cluster.run(
        "c1",
        &[
            "wrk",
            "-t1",
            "--timeout",
            "30s",
            &connections,
            &seconds,
            &url,
        ],
    );
    assert!(
        !said.contains("Socket errors") && !said.contains("Non-2xx"),
        "{said}"
    );
    let line = said
        .lines()
        .find_map(|line| line.strip_prefix("Requests/sec:"));
    line.and_then(|rate| rate.trim().parse().ok())
        .expect("wrk says so")
}
