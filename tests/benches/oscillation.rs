//! What it costs a download to go from one server to the other and back, all the time: it is
//! migrated by `trapeze drain --migrate` (docs/protocol/takeover.md) [MIGRATE01 §5.1].
//!
//! `cargo build --release -p trapeze-cli`, then `cargo bench -p trapeze-tests --bench oscillation`, as
//! root. `-- paper`: over the paper's link, which takes some minutes; how far each download is when is
//! drawn as its figure 4, and left at `target/tmp/oscillation.svg` or where `-- paper FILE` says.

use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use trapeze_lab::LinkSettings;
use trapeze_lab::svg::{GREY, HEADING, LEGEND, SCALE, SMALL, Svg};
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
        bytes: 12 << 30,
        ..lan
    };
    if std::env::args().any(|arg| arg == "paper") {
        let paper = Setting {
            name: "128 kbit/s, 40 ms",
            link: LinkSettings {
                rate: Some(128_000),
                delay: Duration::from_millis(20),
                limit: 10, // of 1.5 kB: the paper's 14 KB
                ..LinkSettings::default()
            },
            bytes: 950_000,
            rounds: 1,
            periods_s: &[1, 2, 3, 5, 10],
        };
        cluster.link("c1", &paper.link).expect("a link");
        let traces = measure(&cluster, root.path(), &paper);
        println!("  published, stays: {:.2} s", PUBLISHED.as_secs_f64());
        let out = std::env::args().find(|arg| arg.ends_with(".svg"));
        let out = out.unwrap_or_else(|| format!("{}/oscillation.svg", env!("CARGO_TARGET_TMPDIR")));
        std::fs::write(&out, draw(&paper, &traces)).expect("a file that can be written");
        println!("  {out}");
        return;
    }
    for setting in [lan, whole_machine] {
        cluster.link("c1", &setting.link).expect("a link");
        measure(&cluster, root.path(), &setting);
    }
}

/// How much of a download there was, when.
type Trace = Vec<(Duration, u64)>;

/// Prints the medians; the last round's traces, in the order of its periods, staying first.
fn measure(cluster: &Cluster, root: &Path, setting: &Setting) -> Vec<Trace> {
    let mut traces = vec![Trace::new(); setting.periods_s.len() + 1];
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
        for ((times, trace), period) in times.iter_mut().zip(&mut traces).zip(&periods) {
            *trace = download(cluster, root, *period);
            times.push(trace.last().expect("its end").0);
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
    let counters = cluster.daemon().counters;
    let of = |name: &str| counters.get(name).copied().unwrap_or(0);
    println!(
        "  migrated {}, not migrated {}, not taken over {}",
        of("migrated"),
        of("not-migrated"),
        of("not-taken-over")
    );
    traces
}

/// One that goes to the other server after each `period`.
fn download(cluster: &Cluster, root: &Path, period: Option<Duration>) -> Trace {
    let begun = Instant::now();
    let download = Downloads::start(cluster, "c1", VIP, root, &["large".to_owned()]);
    let run = |words: &[&str]| drop(cluster.trapeze("d1", words));
    let mut due = period.map(|period| begun + period);
    let mut trace = vec![(Duration::ZERO, 0)];
    while download.ended() == 0 {
        std::thread::sleep(Duration::from_millis(10));
        trace.push((begun.elapsed(), download.had()[0]));
        let (Some(at), Some(period)) = (due, period) else {
            continue;
        };
        if Instant::now() < at {
            continue;
        }
        due = Some(at + period);
        let [leaves, comes] = match cluster.backend("b1").active {
            0 => ["b2", "b1"],
            _ => ["b1", "b2"],
        };
        run(&["undrain", comes]);
        run(&["drain", leaves, "--migrate", "--deadline", "0s"]);
    }
    trace.push((begun.elapsed(), download.had()[0]));
    download.join();
    for backend in ["b1", "b2"] {
        run(&["undrain", backend]);
        until("it is up", || {
            (cluster.backend(backend).state == "up").then_some(())
        });
    }
    trace
}

/// The paper's figure 4: what has come against the time.
fn draw(setting: &Setting, traces: &[Trace]) -> String {
    const WIDTH: f64 = 760.0;
    const HEIGHT: f64 = 420.0;
    const COLOURS: [&str; 6] = [
        "#768390", "#e5534b", "#c69026", "#347d39", "#316dca", "#8256d0",
    ];
    let longest = traces
        .iter()
        .filter_map(|trace| trace.last())
        .map(|last| last.0);
    let longest = longest.max().unwrap_or_default().as_secs_f64().max(1.0);
    let (left, top) = (70.0, 60.0);
    let x = |at: Duration| left + WIDTH * at.as_secs_f64() / longest;
    let y = |bytes: u64| top + HEIGHT * (1.0 - bytes as f64 / setting.bytes as f64);
    let mut svg = Svg::new(left + WIDTH + 40.0, top + HEIGHT + 60.0, setting.name);
    let title = format!(
        "A download that goes from server to server: {}",
        setting.name
    );
    svg.text(16.0, 28.0, HEADING, &title);
    svg.line((left, y(0)), (left + WIDTH, y(0)), GREY, 0.8);
    svg.line((left, top), (left, y(0)), GREY, 0.8);
    for part in 0..=4 {
        let bytes = setting.bytes * part / 4;
        svg.text(
            left - 8.0,
            y(bytes) + 4.0,
            SCALE,
            &format!("{} kB", bytes / 1000),
        );
    }
    for second in (0..=longest as u64).step_by(10) {
        let at = Duration::from_secs(second);
        svg.text(x(at), y(0) + 18.0, SMALL, &format!("{second} s"));
    }
    for (index, trace) in traces.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let coarse: Trace = (trace.iter().step_by(25).chain(trace.last()).copied()).collect();
        for pair in coarse.windows(2) {
            let ends = [pair[0], pair[1]].map(|(at, bytes)| (x(at), y(bytes)));
            svg.line(ends[0], ends[1], colour, 1.0);
        }
        let what = match index.checked_sub(1) {
            None => "stays".to_owned(),
            Some(index) => format!("moves every {} s", setting.periods_s[index]),
        };
        svg.text(
            left + 20.0,
            top + 20.0 + 18.0 * index as f64,
            LEGEND.filled(colour),
            &what,
        );
    }
    svg.finish()
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
