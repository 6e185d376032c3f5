//! How long downloads stand still when the backend of all of them dies, and then its successor,
//! while frames are lost on the clients' link (docs/protocol/takeover.md).
//!
//! `cargo build --release -p trapeze-cli`, then `cargo bench -p trapeze-tests --bench takeover`,
//! as root; `-- CLIENTS MIB` for other numbers than 100 and 1024: the largest file's size, of which the others
//! are a half, a quarter and so on to a 32nd. They are in the temporary directory.

use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use trapeze_lab::LinkSettings;
use trapeze_tests::downloads::{Downloads, stall};
use trapeze_tests::{Cluster, Content, VIP, until};

const CLIENTS: usize = 100;
const LARGEST_MIB: u64 = 1024;
const SIZES: usize = 6;
const BACKENDS: [&str; 3] = ["b1", "b2", "b3"];
/// Each death is looked at for so long.
const BETWEEN: Duration = Duration::from_secs(4);

fn main() {
    let numbers: Vec<u64> = std::env::args()
        .filter_map(|arg| arg.parse().ok())
        .collect();
    let clients = numbers.first().map_or(CLIENTS, |&count| count as usize);
    let largest = numbers.get(1).copied().unwrap_or(LARGEST_MIB);
    let root = tempfile::tempdir().expect("a temporary directory");
    make_files(root.path(), largest).expect("there is room for the files");
    let names: Vec<String> = (0..clients).map(|i| format!("f{}", i % SIZES)).collect();
    let cluster = cluster(root.path());
    let lossy = LinkSettings {
        loss: 0.01,
        ..LinkSettings::default()
    };
    cluster.link("c1", &lossy).expect("a link");
    for later in ["b2", "b3"] {
        cluster.kill(later, None).expect("it is on");
    }
    let downloads = Downloads::start(&cluster, "c1", VIP, root.path(), &names);
    let begun = Instant::now();
    await_progress(&downloads);
    until("all are protected", || {
        (cluster.daemon().protected_answers == clients).then_some(())
    });
    // What losses alone do.
    let mut moments = vec![("no death", Instant::now())];
    std::thread::sleep(BETWEEN);
    for pair in BACKENDS.windows(2) {
        let [dies, goes_on] = pair else {
            unreachable!()
        };
        cluster.start(goes_on, None).expect("it starts");
        until("it is up", || {
            (cluster.backend(goes_on).state == "up").then_some(())
        });
        let had: u64 = downloads.had().iter().sum();
        let died = Instant::now();
        cluster.kill(dies, None).expect("it is on");
        std::thread::sleep(BETWEEN);
        let rate = (downloads.had().iter().sum::<u64>() - had) as f64 / BETWEEN.as_secs_f64();
        println!(
            "{dies} died, {} of {clients} were in progress still {BETWEEN:?} later, {:.0} MB/s",
            clients - downloads.ended(),
            rate / 1e6
        );
        moments.push((dies, died));
    }
    let gaps = downloads.join();
    println!(
        "{clients} downloads of {} to {largest} MiB, all identical, in {:.1} s",
        largest >> (SIZES - 1),
        begun.elapsed().as_secs_f64()
    );
    for (what, moment) in moments {
        let mut stalls: Vec<f64> = (gaps.iter())
            .map(|gaps| stall(gaps, moment, BETWEEN).as_secs_f64() * 1e3)
            .collect();
        stalls.sort_by(f64::total_cmp);
        let at = |share: f64| stalls[((stalls.len() as f64 * share).ceil() as usize).max(1) - 1];
        let [median, p90, p99, longest] = [0.5, 0.9, 0.99, 1.0].map(at);
        println!(
            "{what}: stall {median:.0} ms (p50), {p90:.0} (p90), {p99:.0} (p99), {longest:.0} (longest)"
        );
    }
    let counters = cluster.daemon().counters;
    let of = |name: &str| counters.get(name).copied().unwrap_or(0);
    println!(
        "takeovers {}, taken-over {}, not-taken-over {}",
        of("takeovers"),
        of("taken-over"),
        of("not-taken-over")
    );
    cluster.expect_nothing_left(&["b3"]);
}

fn make_files(root: &Path, largest_mib: u64) -> io::Result<()> {
    for size in 0..SIZES {
        let file = std::fs::File::create(root.join(format!("f{size}")))?;
        let mut to = BufWriter::with_capacity(1 << 20, file);
        io::copy(
            &mut Content::new(7 + size as u64, (largest_mib << 20) >> size),
            &mut to,
        )?;
        to.flush()?;
    }
    Ok(())
}

fn cluster(root: &Path) -> Cluster {
    let text = "[[pool]]\nname = \"web\"\nprotect_from = 1000000\nbackends = [\"b1\", \"b2\", \"b3\"]\n\
                [[service]]\nname = \"site\"\naddress = \"10.77.0.100:80\"\npool = \"web\"\n";
    Cluster::configured("saved", 3, text, |options| {
        options.root = Some(root.to_owned())
    })
}

/// All of them have had something.
fn await_progress(downloads: &Downloads) {
    until("all have begun", || {
        downloads.had().iter().all(|&had| had > 0).then_some(())
    });
}
