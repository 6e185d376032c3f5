//! [LACP03]: HRW beside round robin and least connections with one user, with more
//! servers, and LACP at 300 users.

use super::{Experiment, Outcomes, Row, Trial, policy};
use crate::engine::{Decides, Entrant, Span};
use crate::hardware::Hardware;
use crate::workload::Surge;

pub(super) fn experiments() -> Vec<Experiment> {
    vec![one_user(), scalability(), many_users()]
}

const SEEDS: std::ops::RangeInclusive<u64> = 1..=6;

/// LVS chooses for round robin and least connections by the SYN alone.
fn entrant(name: &str) -> Entrant {
    let entrant = policy(name);
    match name {
        "round-robin" | "least-connections" => entrant.deciding(Decides::Blindly),
        _ => entrant,
    }
}

fn one_user() -> Experiment {
    let mut trials = Vec::new();
    for seed in SEEDS {
        for name in ["hrw", "least-connections", "round-robin"] {
            trials.push(Trial {
                label: name.to_owned(),
                // All that is asked for in a minute stays in memory.
                hardware: Hardware::lacp03().with_cache(64 << 20),
                workload: Box::new(Surge::new(1000, 1, seed).without_off_times()),
                entrant: entrant(name),
                span: Span::seconds(60),
                seed,
            });
        }
    }
    Experiment {
        title: "One user, mean latency",
        setup: "SURGE without off times, 1000 files, 3 servers with cold caches, 60 s, 6 seeds",
        trials,
        compare: |outcomes| {
            let hrw = outcomes.latency_ms("hrw");
            let mut rows = Vec::new();
            for (name, published_ms, requests) in [
                ("hrw", 3.321, 18_012),
                ("least-connections", 5.778, 10_366),
                ("round-robin", 5.678, 10_539),
            ] {
                let ms = outcomes.latency_ms(name);
                let done = outcomes.mean(name, |o| o.requests as f64);
                rows.push(Row::new(
                    format!("{name}: latency, requests in a minute"),
                    format!("{published_ms:.2} ms, {requests}"),
                    format!("{ms:.2} ms, {done:.0}"),
                ));
            }
            for (name, published) in [("least-connections", 0.575), ("round-robin", 0.585)] {
                let ratio = hrw / outcomes.latency_ms(name);
                rows.push(
                    Row::new(
                        format!("hrw's latency over {name}'s"),
                        format!("{published:.2}"),
                        format!("{ratio:.2}"),
                    )
                    .check("at most 0.6", ratio <= 0.6),
                );
            }
            rows
        },
    }
}

fn scalability() -> Experiment {
    let mut trials = Vec::new();
    for servers in 1..=5usize {
        for seed in SEEDS {
            trials.push(Trial {
                label: servers.to_string(),
                hardware: Hardware::lacp03().with_backends(servers),
                workload: Box::new(Surge::new(700, 100, seed)),
                entrant: entrant("hrw"),
                span: Span::seconds(500),
                seed,
            });
        }
    }
    Experiment {
        title: "HRW with more servers, mean latency",
        setup: "SURGE, 700 files, 100 users, 500 s",
        trials,
        compare: |outcomes| {
            let rows = (1..=5).map(|servers: usize| {
                let ms = outcomes.latency_ms(&servers.to_string());
                Row::new(
                    format!("{servers} servers"),
                    "(figure lost)",
                    format!("{ms:.1} ms"),
                )
            });
            rows.collect()
        },
    }
}

fn many_users() -> Experiment {
    let mut trials = Vec::new();
    for seed in SEEDS {
        for name in ["hrw", "cache-prediction", "least-connections", "lacp"] {
            trials.push(Trial {
                label: name.to_owned(),
                hardware: Hardware::lacp03(),
                workload: Box::new(Surge::new(700, 300, seed)),
                entrant: entrant(name),
                span: Span::seconds(500),
                seed,
            });
        }
    }
    Experiment {
        title: "300 users on three servers, mean latency",
        setup: "SURGE, 700 files, 500 s, 6 seeds",
        trials,
        compare: |outcomes| {
            let lacp = outcomes.latency_ms("lacp");
            let mut rows = vec![Row::new("lacp", "46.1 to 50.0 ms", format!("{lacp:.1} ms"))];
            rows.extend(
                [
                    ("hrw", 54.965),
                    ("cache-prediction", 58.781),
                    ("least-connections", 63.292),
                ]
                .map(|(name, published)| above(outcomes, name, published, lacp)),
            );
            rows
        },
    }
}

fn above(outcomes: &Outcomes<'_>, name: &str, published_ms: f64, lacp_ms: f64) -> Row {
    let ms = outcomes.latency_ms(name);
    Row::new(
        format!("{name}, above lacp"),
        format!("{published_ms:.1} ms"),
        format!("{ms:.1} ms"),
    )
    .check("order", ms > lacp_ms)
}
