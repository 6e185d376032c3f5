//! What it costs that answers could outlive their backend (docs/protocol/takeover.md): the
//! throughput with `protect_from` against that without, side by side, and what is kept and said.
//!
//! `cargo build --release -p trapeze-cli`, then `cargo bench -p trapeze-tests --bench
//! protection`, as root, with wrk; `-- ROUNDS SIZE` for another number than 9, and for one of the
//! sizes alone.

use std::fmt::Write;
use std::path::Path;

use trapeze_lab::Process;
use trapeze_tests::{Cluster, Content, until};

const ROUNDS: usize = 9;
const CONNECTIONS: u32 = 32;
const SECONDS: u32 = 3;
/// Sizes, and the most of the throughput that issue 6 allows.
const SIZES: [(&str, u64, f64); 2] = [("100k", 100 << 10, 0.05), ("10m", 10 << 20, 0.01)];

fn main() {
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
