use super::super::case::{Mode, Size};
use super::*;
use crate::load::Errors;
use crate::machine::Machine;

const ALL: [Target; 5] = [
    Target::Direct,
    Target::Haproxy,
    Target::HaproxySplice,
    Target::Nginx,
    Target::Trapeze,
];

/// A run of a second with so many requests.
pub fn run(round: u32, requests: u64) -> Run {
    Run {
        round,
        usage: Usage {
            machine_cpu_us: 2_000_000,
            others_cpu_us: 100_000,
        },
        outcome: Outcome {
            requests,
            bytes: requests * 1274,
            duration_us: 1_000_000,
            p50_us: 500,
            p90_us: 800,
            p99_us: 4_270,
            max_us: 12_000,
            errors: Errors::default(),
            connections_begun: 32,
        },
    }
}

/// Results with the rates of each target by round: direct, HAProxy, the same
/// with splicing, nginx, Trapeze.
pub fn case(name: &str, mode: Mode, rates: [&[u64]; 5]) -> CaseResults {
    let size = Size::named(name).unwrap();
    let mut results = {
        let case = Case { size, mode };
        CaseResults::new(case, &ALL, case.bars(1, false))
    };
    for (target, rates) in ALL.into_iter().zip(rates) {
        for (round, &rate) in (1..).zip(rates) {
            results.add(target, run(round, rate));
        }
    }
    results.conclude();
    results
}

/// A bench of two sizes and a connection for each request.
pub fn results() -> Results {
    Results {
        environment: Environment {
            machine: Machine::example(),
            haproxy: Some("2.6.12".into()),
            nginx: "1.22.1".into(),
        },
        settings: Settings {
            rounds: 3,
            seconds: 1,
            connections: 32,
            backends: 2,
        },
        cases: vec![
            case(
                "1k",
                Mode::ConnectionPerRequest,
                [
                    &[20_000; 3],
                    &[9_000; 3],
                    &[16_000; 3],
                    &[8_000; 3],
                    &[15_000; 3],
                ],
            ),
            case(
                "1k",
                Mode::KeepAlive,
                [
                    &[60_000, 50_000, 40_000],
                    &[30_000, 20_000, 21_000],
                    &[27_000, 20_000, 19_000],
                    &[29_000, 25_000, 20_000],
                    &[57_000, 40_000, 38_000],
                ],
            ),
            case(
                "1m",
                Mode::KeepAlive,
                [&[1000; 3], &[300; 3], &[600; 3], &[500; 3], &[970; 3]],
            ),
        ],
        failures: Vec::new(),
    }
}

#[test]
fn ratios_are_of_runs_of_the_same_round() {
    let results = &results().cases[1];
    let of_direct = results.ratios.by_rate.of_direct.unwrap();
    // 0.95, 0.8 and 0.95: the ratio of the medians would be 0.8.
    assert_eq!(of_direct.median, 0.95);
    assert_eq!((of_direct.low, of_direct.high), (0.8, 0.95));
    assert_eq!(of_direct.confidence, 0.75);
    assert!(of_direct.meets(0.9) && !of_direct.is_sure_of(0.9));
    assert!(of_direct.is_sure_of(0.8) && of_direct.is_sure_of(1.0));
}

#[test]
fn splicing_is_compared_with_and_sets_no_bar() {
    let results = &results().cases[2];
    let by_rate = &results.ratios.by_rate;
    // nginx's 500, though splicing ran at 600.
    assert_eq!(by_rate.best_proxy, Some(Target::Nginx));
    assert_eq!(by_rate.of_best_proxy.unwrap().median, 970.0 / 500.0);
    assert_eq!(by_rate.of_splicing.unwrap().median, 970.0 / 600.0);
}

#[test]
fn the_best_proxy_is_chosen_by_medians() {
    let results = results();
    let best: Vec<_> = results
        .cases
        .iter()
        .map(|of| of.ratios.by_rate.best_proxy)
        .collect();
    let (haproxy, nginx) = (Some(Target::Haproxy), Some(Target::Nginx));
    // 30, 20, 21 thousand against 29, 25, 20.
    assert_eq!(best, [haproxy, nginx, nginx]);
    let ratio = results.cases[1].ratios.by_rate.of_best_proxy.unwrap();
    assert_eq!(ratio.median, 1.9);
}

#[test]
fn what_was_not_measured_has_no_ratio() {
    let results = case("1k", Mode::KeepAlive, [&[100], &[], &[], &[], &[]]);
    assert_eq!(results.ratios, Ratios::default());
    assert_eq!(results.target(Target::Trapeze).unwrap().median, None);
    let stalled = case("1k", Mode::KeepAlive, [&[0], &[], &[], &[], &[100]]);
    assert_eq!(stalled.ratios.by_rate.of_direct, None);
}

#[test]
fn cpu_time_is_shared_among_requests() {
    let figures = Figures::median(&[run(1, 20_000)]).unwrap();
    assert_eq!(figures.cpu_us_per_request, 95.0);
    assert_eq!(run(1, 20_000).others_share(2), 0.05);
}

#[test]
fn requests_for_the_same_cpu_time_are_compared_too() {
    let mut results = case("1k", Mode::KeepAlive, [&[100], &[50], &[45], &[40], &[80]]);
    for of in &mut results.targets {
        // nginx used a quarter of the time that the others did.
        let own_us = if of.target == Target::Nginx {
            475_000
        } else {
            1_900_000
        };
        of.rounds[0].usage.machine_cpu_us = own_us + of.rounds[0].usage.others_cpu_us;
    }
    results.conclude();
    let Ratios { by_rate, by_cpu } = results.ratios;
    assert_eq!(by_rate.best_proxy, Some(Target::Haproxy));
    assert_eq!(by_cpu.best_proxy, Some(Target::Nginx));
    let close_to = |ratio: Option<Ratio>, to: f64| (ratio.unwrap().median - to).abs() < 1e-9;
    assert!(close_to(by_cpu.of_direct, 0.8) && close_to(by_cpu.of_best_proxy, 0.5));
}
