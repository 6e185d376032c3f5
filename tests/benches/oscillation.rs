//! What it costs a download to go from one server to the other and back, all the time: it is
//! migrated by `trapeze drain --migrate` (docs/protocol/takeover.md) [MIGRATE01 §5.1].
//!
//! `cargo build --release -p trapeze-cli`, then `cargo bench -p trapeze-tests --bench oscillation`, as
//! root. With `-- paper` over the paper's link, too: that takes some minutes.

use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use trapeze_lab::LinkSettings;
use trapeze_tests::downloads::Downloads;
use trapeze_tests::{Cluster, Content, VIP, until};

const ROUNDS: usize = 3;
/// [MIGRATE01 §5.1]: "A connection served entirely by one server takes 61.96 seconds". Of the others
/// there is a figure alone.
const PUBLISHED: Duration = Duration::from_millis(61_960);

/// A link, and a file that keeps it busy for a while.
struct Setting {
    name: &'static str,
    link: LinkSettings,
    bytes: u64,
    rounds: usize,
    /// How long it stays with each server, in seconds.
    periods_s: &'static [u64],
}

fn main() {
    let root = tempfile::tempdir().expect("a temporary directory");
    let cluster = cluster(root.path());
    let lan = Setting {
        name: "1 Gbit/s",
        link: LinkSettings {
            rate: Some(1_000_000_000),
            ..LinkSettings::default()
        },
        bytes: 1 << 30,
        rounds: ROUNDS,
        periods_s: &[1],
    };
    let whole_machine = Setting {
        name: "as fast as the machine is",
        link: LinkSettings::default(),
        bytes: 4 << 30,
        ..lan
    };
    let mut settings = vec![lan, whole_machine];
    if std::env::args().any(|arg| arg == "paper") {
        settings.push(Setting {
            name: "128 kbit/s, 40 ms",
            link: LinkSettings {
                rate: Some(128_000),
                delay: Duration::from_millis(20),
                ..LinkSettings::default()
            },
            bytes: 950_000,
            rounds: 1,
            periods_s: &[1, 2, 5, 10],
        });
    }
    for setting in &settings {
        cluster.link("c1", &setting.link).expect("a link");
        measure(&cluster, root.path(), setting);
    }
}

fn measure(cluster: &Cluster, root: &Path, setting: &Setting) {
    write(root, setting.bytes);
    println!("{}, {} MB:", setting.name, setting.bytes / 1_000_000);
    let mut times: Vec<Vec<Duration>> = vec![Vec::new(); setting.periods_s.len() + 1];
    let periods: Vec<Option<Duration>> = std::iter::once(None)
        .chain(
            setting
                .periods_s
                .iter()
                .map(|&s| Some(Duration::from_secs(s))),
        )
        .collect();
    // In turns: the machine has other things to do now and then.
    for _ in 0..setting.rounds {
        for (times, period) in times.iter_mut().zip(&periods) {
            times.push(download(cluster, root, *period));
        }
    }
    let medians = times.iter_mut().map(|times| {
        times.sort();
        times[times.len() / 2]
    });
    let medians: Vec<Duration> = medians.collect();
    for (median, period) in medians.iter().zip(&periods) {
        let rate = setting.bytes as f64 / median.as_secs_f64() / 1e6;
        let stayed = medians[0].as_secs_f64() / median.as_secs_f64();
        let what = match period {
            None => "stays".to_owned(),
            Some(period) => format!("moves every {} s", period.as_secs()),
        };
        println!(
            "  {what}: {:.2} s, {rate:.2} MB/s, {stayed:.3} of staying",
            median.as_secs_f64()
        );
    }
    if setting.rounds == 1 {
        println!("  published, stays: {:.2} s", PUBLISHED.as_secs_f64());
    }
    let counters = cluster.daemon().counters;
    let of = |name: &str| counters.get(name).copied().unwrap_or(0);
    println!(
        "  migrated {}, not migrated {}, not taken over {}",
        of("migrated"),
        of("not-migrated"),
        of("not-taken-over")
    );
}

/// How long one takes that goes to the other server after each `period`.
fn download(cluster: &Cluster, root: &Path, period: Option<Duration>) -> Duration {
    let begun = Instant::now();
    let download = Downloads::start(cluster, "c1", VIP, root, &["large".to_owned()]);
    let Some(period) = period else {
        download.join();
        return begun.elapsed();
    };
    let run = |words: &[&str]| drop(cluster.trapeze("d1", words));
    let mut turn = 0;
    let mut due = begun + period;
    while download.ended() == 0 {
        std::thread::sleep(Duration::from_millis(10));
        if Instant::now() < due {
            continue;
        }
        due += period;
        let [leaves, comes] = match turn % 2 {
            0 => ["b1", "b2"],
            _ => ["b2", "b1"],
        };
        turn += 1;
        run(&["undrain", comes]);
        run(&["drain", leaves, "--migrate", "--deadline", "0s"]);
    }
    download.join();
    let took = begun.elapsed();
    for backend in ["b1", "b2"] {
        run(&["undrain", backend]);
        until("it is up", || {
            (cluster.backend(backend).state == "up").then_some(())
        });
    }
    took
}

fn write(root: &Path, bytes: u64) {
    let file = std::fs::File::create(root.join("large")).expect("a file");
    let mut to = std::io::BufWriter::with_capacity(1 << 20, file);
    std::io::copy(&mut Content::new(7, bytes), &mut to).expect("there is room for it");
    to.flush().expect("there is room for it");
}

fn cluster(root: &Path) -> Cluster {
    let text = "[[pool]]\nname = \"web\"\nprotect_from = 100000\nbackends = [\"b1\", \"b2\"]\n\
                [[service]]\nname = \"site\"\naddress = \"10.77.0.100:80\"\npool = \"web\"\n";
    Cluster::configured("sway", 2, text, |options| {
        options.root = Some(root.to_owned())
    })
}
