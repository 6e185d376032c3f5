//! [LARD98 §4]: LARD and LARD/R beside weighted round robin and a static partition by
//! hash (the paper's LB), on workloads like its two traces. The paper's text is not
//! at hand: its figures here are from memory.

use super::{Experiment, Outcomes, Row, Trial, policy};
use crate::cache::Replacement;
use crate::engine::{Span, Until};
use crate::hardware::Hardware;
use crate::workload::{Workload, Zipf};

pub(super) fn experiments() -> Vec<Experiment> {
    vec![
        Experiment {
            title: "Rice trace (§4.2), throughput by cluster size",
            setup: "synthetic: 37,703 files of 1418 MB with the trace's coverage; 32 MB for each \
                    backend, GreedyDual-Size",
            trials: trials(|| Box::new(Zipf::like_rice(SEED))),
            compare: |outcomes| rows(outcomes, "2 to 4 times", &[("range", 2.0, 4.0)]),
        },
        Experiment {
            title: "IBM trace (§4.2), throughput by cluster size",
            setup: "synthetic: 38,527 files of 1029 MB with the trace's coverage",
            trials: trials(|| Box::new(Zipf::like_ibm(SEED))),
            compare: |outcomes| {
                let published = [("2 and more", 2.0, f64::MAX), ("slightly", 0.0, 2.5)];
                rows(outcomes, "slightly more than 2 times", &published)
            },
        },
    ]
}

const SEED: u64 = 1;
/// For each backend.
const WARMUP: u64 = 40_000;
const COUNTED: u64 = 40_000;
const SIZES: [usize; 5] = [1, 2, 4, 8, 16];
/// Those of which the paper's statements are.
const LARGE: [usize; 3] = [4, 8, 16];
/// What the paper calls WRR counts connections, as weighted least connections does.
const WRR: &str = "least-connections";
const NAMES: [&str; 4] = [WRR, "hrw", "lard", "lard-r"];

fn trials(workload: fn() -> Box<dyn Workload>) -> Vec<Trial> {
    let mut trials = Vec::new();
    for backends in SIZES {
        for name in NAMES {
            let mut hardware = Hardware::lard98().with_backends(backends);
            hardware.backend.replacement = Replacement::GreedyDualSize;
            trials.push(Trial {
                label: format!("{name} {backends}"),
                hardware,
                workload: workload(),
                entrant: policy(name),
                span: Span {
                    requests: backends as u64 * (WARMUP + COUNTED),
                    warmup: backends as u64 * WARMUP,
                    most_ns: u64::MAX,
                    until: Until::LastAnswer,
                },
                seed: SEED,
            });
        }
    }
    trials
}

/// `speedups`: what the paper says of LARD/R over WRR, with the least and the most that
/// this is taken to mean.
fn rows(
    outcomes: &Outcomes<'_>,
    published: &str,
    speedups: &[(&'static str, f64, f64)],
) -> Vec<Row> {
    let rate = |name: &str, n: usize| outcomes.rate(&format!("{name} {n}"));
    let misses = |name: &str, n: usize| {
        100.0 * (1.0 - outcomes.mean(&format!("{name} {n}"), |o| o.hit_ratio.unwrap_or(1.0)))
    };
    let mut rows: Vec<Row> = SIZES
        .map(|n| {
            Row::new(
                format!("{n} backends: WRR, LB, LARD, LARD/R"),
                "(figure lost)",
                format!(
                    "{:.0}, {:.0}, {:.0}, {:.0} req/s; misses {:.1}, {:.1}, {:.1}, {:.1} %",
                    rate(WRR, n),
                    rate("hrw", n),
                    rate("lard", n),
                    rate("lard-r", n),
                    misses(WRR, n),
                    misses("hrw", n),
                    misses("lard", n),
                    misses("lard-r", n),
                ),
            )
        })
        .into();
    let over = |name: &str| LARGE.map(|n| rate("lard-r", n) / rate(name, n));
    let over_wrr = over(WRR);
    let speedup = Row::new(
        "LARD/R over WRR, 4, 8 and 16 backends",
        published,
        format!(
            "{:.1}, {:.1}, {:.1} times",
            over_wrr[0], over_wrr[1], over_wrr[2]
        ),
    );
    rows.push(speedups.iter().fold(speedup, |row, &(of, low, high)| {
        let inside = |times: &f64| (low..=high).contains(&((times * 10.0).round() / 10.0));
        row.check(of, over_wrr.iter().all(inside))
    }));
    let flat = misses(WRR, 16) / misses(WRR, 2);
    rows.push(
        Row::new(
            "WRR's misses at 16 over those at 2",
            "about 1: no gain from more caches",
            format!("{flat:.2}"),
        )
        .check("within 10 % of 1", (0.9..=1.1).contains(&flat)),
    );
    let falling = misses("lard-r", 16) / misses("lard-r", 2);
    rows.push(
        Row::new(
            "LARD/R's misses at 16 over those at 2",
            "well below 1: caches add up",
            format!("{falling:.2}"),
        )
        .check("below 0.6", falling < 0.6),
    );
    for (name, label, published) in [("lard", "LARD", "1 and above"), ("hrw", "LB", "above 1")] {
        let ratios = over(name);
        let hundredths = |ratio: &f64| (ratio * 100.0).round();
        let holds = match published {
            "above 1" => ratios.iter().all(|ratio| hundredths(ratio) > 100.0),
            _ => ratios.iter().all(|ratio| hundredths(ratio) >= 100.0),
        };
        rows.push(
            Row::new(
                format!("LARD/R over {label}, 4, 8 and 16 backends"),
                published,
                format!("{:.2}, {:.2}, {:.2}", ratios[0], ratios[1], ratios[2]),
            )
            .check("order", holds),
        );
    }
    rows
}
