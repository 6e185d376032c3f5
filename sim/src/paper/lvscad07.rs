//! [LVSCAD07 §6.2 to §6.5]: the platform alone, scalability, hot pages, static and
//! dynamic content.

use trapeze_core::config::PolicyConfig;
use trapeze_core::policy::XlardRParameters;

use super::{Experiment, Outcomes, Row, Trial, policy, range};
use crate::engine::{Decides, Entrant, Span, Until};
use crate::hardware::Hardware;
use crate::workload::WebBench;

pub(super) fn experiments() -> Vec<Experiment> {
    vec![platform(), scalability(), hot_pages(), mixes()]
}

const SEED: u64 = 1;
/// For each backend: filling its memory takes about 20,000 requests, and longer where
/// most clicks are for few pages.
const WARMUP: u64 = 30_000;
const COUNTED: u64 = 15_000;
/// What [`WLC`] is compared with: LVS decides for a connection, by its SYN.
const WLC: &str = "least-connections";

/// LVS-CAD with the same: it makes the handshake itself, and decides for a connection by
/// its first request.
const CAD_WLC: &str = "LVS-CAD/WLC";

/// Weights are set where hardware differs (§5.1), which is not the case: LVS's is 1.
fn weights_as_in_lvs() -> XlardRParameters {
    XlardRParameters {
        t_high: 1,
        ..XlardRParameters::default()
    }
}

fn trial(label: String, name: &str, backends: usize, workload: WebBench) -> Trial {
    let entrant: Entrant = match name {
        WLC => policy(WLC).deciding(Decides::Blindly).named("LVS/WLC"),
        CAD_WLC => policy(WLC).deciding(Decides::Connections).named(CAD_WLC),
        "xlard-r" => Entrant::of(PolicyConfig::XlardR(weights_as_in_lvs())),
        "cahrd" => Entrant::of(PolicyConfig::Cahrd(weights_as_in_lvs())),
        _ => policy(name),
    };
    Trial {
        label,
        hardware: Hardware::lvscad07().with_backends(backends),
        workload: Box::new(workload),
        entrant,
        span: Span {
            requests: backends as u64 * (WARMUP + COUNTED),
            warmup: backends as u64 * WARMUP,
            most_ns: u64::MAX,
            until: Until::LastAnswer,
        },
        seed: SEED,
    }
}

fn webbench() -> WebBench {
    WebBench::new(WebBench::TOTAL_BYTES, SEED)
}

fn platform() -> Experiment {
    let mut trials = Vec::new();
    for backends in 1..=8 {
        for name in [WLC, CAD_WLC] {
            let workload = WebBench::one_file(1024);
            trials.push(trial(
                format!("{name} {backends}"),
                name,
                backends,
                workload,
            ));
        }
    }
    Experiment {
        title: "Platform (§6.2), LVS-CAD over LVS, both with WLC",
        setup: "one file of 1 KB, a request for each connection, 1 to 8 backends",
        trials,
        compare: |outcomes| {
            let at = |name: &str, n: usize| format!("{name} {n}");
            let mut rows: Vec<Row> = [1, 2, 4, 8]
                .map(|n| {
                    let rate = |name: &str| outcomes.rate(&at(name, n));
                    Row::new(
                        format!("{n} backends: LVS, LVS-CAD"),
                        "(figure lost)",
                        format!("{:.0}, {:.0} req/s", rate(WLC), rate(CAD_WLC)),
                    )
                })
                .into();
            let gain = range((1..=8).map(|n| outcomes.gain(&at(CAD_WLC, n), &at(WLC, n))));
            rows.push(
                Row::new("LVS-CAD, 1 to 8 backends", "+0.8 to +32.4 %", percent(gain))
                    .check("above LVS", gain.0 > 0.0)
                    .check_range(gain, (0.8, 32.4)),
            );
            rows
        },
    }
}

fn scalability() -> Experiment {
    let mut trials = Vec::new();
    for backends in 1..=8 {
        for name in [WLC, "cawll", "lard-r", "xlard-r"] {
            trials.push(trial(
                format!("{name} {backends}"),
                name,
                backends,
                webbench(),
            ));
        }
    }
    Experiment {
        title: "Scalability (§6.3), throughput over LVS/WLC",
        setup: "WebBench-like, 340 MB of files, connections of several requests, 1 to 8 backends",
        trials,
        compare: |outcomes| {
            let mut rows: Vec<Row> = (1..=8).map(|n| backends_row(outcomes, n)).collect();
            let gain = |name: &str| {
                let gains =
                    (2..=8).map(|n| outcomes.gain(&format!("{name} {n}"), &format!("{WLC} {n}")));
                range(gains)
            };
            let xlard_r = gain("xlard-r");
            rows.push(
                Row::new(
                    "xlard-r, 2 to 8 backends",
                    "+58.7 to +156.5 %",
                    percent(xlard_r),
                )
                .check_range(xlard_r, (58.7, 156.5)),
            );
            let lard_r = gain("lard-r");
            let below = (2..=8).all(|n| {
                outcomes.rate(&format!("lard-r {n}")) < outcomes.rate(&format!("xlard-r {n}"))
            });
            rows.push(
                Row::new(
                    "lard-r, 2 to 8 backends",
                    "between WLC and xlard-r",
                    percent(lard_r),
                )
                .check(ABOVE_WLC, lard_r.0 > 0.0)
                .check(BELOW_XLARD_R, below),
            );
            let cawll = gain("cawll");
            rows.push(
                Row::new("cawll, 2 to 8 backends", "below WLC", percent(cawll))
                    .check(BELOW_WLC, cawll.1 < 0.0),
            );
            rows
        },
    }
}

fn backends_row(outcomes: &Outcomes<'_>, n: usize) -> Row {
    let rate = |name: &str| outcomes.rate(&format!("{name} {n}"));
    Row::new(
        format!("{n} backends: WLC, cawll, lard-r, xlard-r"),
        "(figure lost)",
        format!(
            "{:.0}, {:.0}, {:.0}, {:.0} req/s",
            rate(WLC),
            rate("cawll"),
            rate("lard-r"),
            rate("xlard-r")
        ),
    )
}

const SHARES_OF_PAGES: [u32; 4] = [10, 20, 30, 40];
const SHARES_OF_CLICKS: [u32; 4] = [20, 40, 60, 80];

fn hot_pages() -> Experiment {
    let mut trials = Vec::new();
    for pages in SHARES_OF_PAGES {
        for clicks in SHARES_OF_CLICKS {
            for name in [WLC, "cawll", "lard-r", "xlard-r"] {
                let workload = webbench().hot(f64::from(pages) / 100.0, f64::from(clicks) / 100.0);
                trials.push(trial(format!("{name} {pages}/{clicks}"), name, 8, workload));
            }
        }
    }
    Experiment {
        title: "Hot pages (§6.4), throughput over LVS/WLC",
        setup: "the same, 8 backends; 20 to 80 % of clicks for 10 to 40 % of pages",
        trials,
        compare: |outcomes| {
            let all = || {
                SHARES_OF_PAGES
                    .into_iter()
                    .flat_map(|p| SHARES_OF_CLICKS.map(|c| (p, c)))
            };
            let gain = |name: &str, (p, c): (u32, u32)| {
                outcomes.gain(&format!("{name} {p}/{c}"), &format!("{WLC} {p}/{c}"))
            };
            let mut rows: Vec<Row> = all()
                .map(|(p, c)| {
                    Row::new(
                        format!("{c} % for {p} %: cawll, lard-r, xlard-r"),
                        "(figure lost)",
                        format!(
                            "{:+.0} %, {:+.0} %, {:+.0} %",
                            gain("cawll", (p, c)),
                            gain("lard-r", (p, c)),
                            gain("xlard-r", (p, c))
                        ),
                    )
                })
                .collect();
            let of = |name: &str| range(all().map(|at| gain(name, at)));
            rows.push(
                Row::new("xlard-r", "+14.4 to +64.3 %", percent(of("xlard-r")))
                    .check(ABOVE_WLC, of("xlard-r").0 > 0.0)
                    .check_range(of("xlard-r"), (14.4, 64.3)),
            );
            let below = all().all(|at| gain("lard-r", at) < gain("xlard-r", at));
            rows.push(
                Row::new(
                    "lard-r",
                    "+8.0 to +59.0 %, below xlard-r",
                    percent(of("lard-r")),
                )
                .check(ABOVE_WLC, of("lard-r").0 > 0.0)
                .check(BELOW_XLARD_R, below)
                .check_range(of("lard-r"), (8.0, 59.0)),
            );
            rows.push(
                Row::new("cawll", "below WLC", percent(of("cawll")))
                    .check(BELOW_WLC, of("cawll").1 < 0.0),
            );
            rows
        },
    }
}

const SHARES_DYNAMIC: [u32; 4] = [10, 20, 30, 40];
const MIXED: [&str; 5] = [WLC, "lard-r", "xlard-r", "cawll", "cahrd"];

fn mixes() -> Experiment {
    let mut trials = Vec::new();
    for share in SHARES_DYNAMIC {
        for name in MIXED {
            let workload = webbench().php(f64::from(share) / 100.0);
            trials.push(trial(format!("{name} {share}"), name, 8, workload));
        }
    }
    Experiment {
        title: "Static and dynamic pages (§6.5), throughput over LVS/WLC",
        setup: "the same, 8 backends; 10 to 40 % of requests for PHP pages",
        trials,
        compare: |outcomes| {
            let gain = |name: &str, share: u32| {
                outcomes.gain(&format!("{name} {share}"), &format!("{WLC} {share}"))
            };
            let mut rows: Vec<Row> = SHARES_DYNAMIC
                .map(|share| {
                    Row::new(
                        format!("{}s{share}d: lard-r, xlard-r, cawll, cahrd", 100 - share),
                        "(figure lost)",
                        format!(
                            "{:+.0} %, {:+.0} %, {:+.0} %, {:+.0} %",
                            gain("lard-r", share),
                            gain("xlard-r", share),
                            gain("cawll", share),
                            gain("cahrd", share)
                        ),
                    )
                })
                .into();
            let of = |name: &str| range(SHARES_DYNAMIC.map(|share| gain(name, share)));
            let above = |high: &str, low: &str| {
                (SHARES_DYNAMIC.iter()).all(|&share| gain(high, share) > gain(low, share))
            };
            let best = ["lard-r", "xlard-r", "cawll"].map(|other| above("cahrd", other));
            rows.push(
                Row::new("cahrd", "+13.3 to +36.7 %, the best", percent(of("cahrd")))
                    .check("the best", best == [true; 3] && of("cahrd").0 > 0.0)
                    .check_range(of("cahrd"), (13.3, 36.7)),
            );
            rows.push(
                Row::new("xlard-r", "+2.8 to +24.2 %", percent(of("xlard-r")))
                    .check(ABOVE_WLC, of("xlard-r").0 > 0.0)
                    .check_range(of("xlard-r"), (2.8, 24.2)),
            );
            rows.push(
                Row::new(
                    "lard-r",
                    "+0.9 to +17.2 %, below xlard-r",
                    percent(of("lard-r")),
                )
                .check(ABOVE_WLC, of("lard-r").0 > 0.0)
                .check(BELOW_XLARD_R, above("xlard-r", "lard-r"))
                .check_range(of("lard-r"), (0.9, 17.2)),
            );
            let crossing = (SHARES_DYNAMIC.iter())
                .find(|&&share| gain("cawll", share) > gain("xlard-r", share));
            rows.push(
                Row::new(
                    "cawll overtakes xlard-r",
                    "beyond 70:30",
                    crossing.map_or("not up to 60:40".to_owned(), |share| {
                        format!("by {}:{share}", 100 - share)
                    }),
                )
                .check("crossing", crossing.is_some_and(|&share| share > 30)),
            );
            rows
        },
    }
}

// What papers say of policies, everywhere in an experiment and without a tolerance.
const ABOVE_WLC: &str = "above WLC";
const BELOW_WLC: &str = "below WLC";
const BELOW_XLARD_R: &str = "below xlard-r";

fn percent((low, high): (f64, f64)) -> String {
    format!("{low:+.1} to {high:+.1} %")
}
