//! The results as a table for a terminal.

use std::fmt::{self, Display, Formatter};

use super::case::{Bars, Target};
use super::results::{CaseResults, Comparison, Results, Run};
use crate::figures::{Ratio, grouped, time};

/// A share of the machine used by others from which on figures are doubtful.
const NOISE: f64 = 0.1;

/// The figures by case and target, then Trapeze's ratios and the bars.
pub struct Table<'a>(pub &'a Results);

impl Display for Table<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Table(results) = self;
        write_conditions(f, results)?;
        for case in &results.cases {
            write_case(f, case)?;
        }
        write_ratios(f, &results.cases)?;
        write_legend(f, &results.cases)?;
        writeln!(f)?;
        write_doubts(f, results)
    }
}

fn write_conditions(f: &mut Formatter<'_>, results: &Results) -> fmt::Result {
    let (environment, settings) = (&results.environment, &results.settings);
    writeln!(
        f,
        "Linux {}, {} cores of {}\n\
         trapeze {}, {}nginx {}, wrk {}\n\
         {} connections, {}, medians of {} rounds, runs of {} s",
        environment.machine.kernel,
        environment.machine.cores,
        environment.machine.cpu,
        environment.machine.trapeze,
        environment
            .haproxy
            .as_ref()
            .map_or_else(String::new, |version| format!("HAProxy {version}, ")),
        environment.nginx,
        environment.machine.wrk,
        settings.connections,
        settings.servers(),
        settings.rounds,
        settings.seconds,
    )?;
    writeln!(
        f,
        "\n{:<28}{:>9}{:>9}{:>10}{:>10}{:>12}{:>11}",
        "", "req/s", "MB/s", "p50", "p99", "CPU µs/req", "of direct"
    )
}

fn write_case(f: &mut Formatter<'_>, case: &CaseResults) -> fmt::Result {
    writeln!(f, "{}", case.title)?;
    for results in &case.targets {
        write!(f, "  {:<26}", results.target.title())?;
        let Some(median) = results.median else {
            writeln!(f, "{:>9}", "-")?;
            continue;
        };
        let of_direct = case.ratio(results.target, Target::Direct);
        writeln!(
            f,
            "{:>9}{:>9.1}{:>10}{:>10}{:>12.1}{:>11}",
            grouped(median.requests_per_s),
            median.megabytes_per_s,
            time(median.p50_us),
            time(median.p99_us),
            median.cpu_us_per_request,
            of_direct.map_or_else(|| "-".to_owned(), |ratio| format!("{:.2}", ratio.median)),
        )?;
    }
    Ok(())
}

/// Ratios with their intervals, and whether they reach the bars.
fn write_ratios(f: &mut Formatter<'_>, cases: &[CaseResults]) -> fmt::Result {
    let no_bars = Bars {
        of_direct: None,
        of_best_proxy: None,
        of_nat: None,
    };
    let by_rate = |case: &CaseResults| (case.ratios.by_rate.clone(), case.bars);
    write_comparisons(f, "Trapeze, by requests a second", cases, by_rate)?;
    let by_cpu = |case: &CaseResults| (case.ratios.by_cpu.clone(), no_bars);
    write_comparisons(
        f,
        "Trapeze, by requests for the same CPU time",
        cases,
        by_cpu,
    )
}

fn write_comparisons(
    f: &mut Formatter<'_>,
    heading: &str,
    cases: &[CaseResults],
    comparison: impl Fn(&CaseResults) -> (Comparison, Bars),
) -> fmt::Result {
    let has_nat = (cases.iter()).any(|case| comparison(case).0.of_nat.is_some());
    let lines: Vec<String> = cases
        .iter()
        .filter_map(|case| {
            let (comparison, bars) = comparison(case);
            comparison
                .of_direct
                .or(comparison.of_best_proxy)
                .or(comparison.of_splicing)
                .or(comparison.of_nat)?;
            let of_direct = verdict(comparison.of_direct, bars.of_direct);
            let of_proxy = match comparison.best_proxy {
                Some(proxy) => {
                    let of_proxy = verdict(comparison.of_best_proxy, bars.of_best_proxy);
                    format!("{of_proxy} {}", proxy.title())
                }
                None => "-".to_owned(),
            };
            let of_splicing = verdict(comparison.of_splicing, None);
            let line = format!(
                "  {:<26}{of_direct:<36}{of_proxy:<46}{of_splicing}",
                case.title
            );
            Some(match comparison.of_nat {
                Some(_) => format!("{line:<136}{}", verdict(comparison.of_nat, bars.of_nat)),
                None => line,
            })
        })
        .collect();
    if lines.is_empty() {
        return Ok(());
    }
    writeln!(f, "\n{heading}")?;
    writeln!(
        f,
        "{:<28}{:<36}{:<46}of HAProxy with splicing{}",
        "",
        "of direct",
        "of the better of HAProxy and nginx",
        match has_nat {
            true => "  of the kernel's NAT",
            false => "",
        }
    )?;
    writeln!(f, "{}", lines.join("\n"))
}

/// What the brackets and question marks behind ratios mean.
fn write_legend(f: &mut Formatter<'_>, cases: &[CaseResults]) -> fmt::Result {
    let ratios = cases.iter().filter_map(|case| {
        let Comparison {
            of_direct,
            of_best_proxy,
            of_splicing,
            of_nat,
            ..
        } = case.ratios.by_rate;
        of_direct.or(of_best_proxy).or(of_splicing).or(of_nat)
    });
    let least = ratios.map(|ratio| ratio.confidence).reduce(f64::min);
    let Some(confidence) = least else {
        return Ok(());
    };
    writeln!(
        f,
        "\nMedian of the rounds' ratios, and the interval that holds the true one with {:.0}% \
         confidence.\n?: the bar is inside the interval, more rounds could turn the verdict.",
        confidence * 100.0
    )
}

fn verdict(ratio: Option<Ratio>, bar: Option<f64>) -> String {
    let Some(ratio) = ratio else {
        return "-".to_owned();
    };
    let Ratio {
        median, low, high, ..
    } = ratio;
    let range = format!("{median:.2} ({low:.2}..{high:.2})");
    let Some(bar) = bar else {
        return range;
    };
    let met = if ratio.meets(bar) { "met" } else { "NOT MET" };
    let doubt = if ratio.is_sure_of(bar) { "" } else { "?" };
    format!("{range} bar {bar:.2} {met}{doubt}")
}

/// What a reader should know before believing the figures.
fn write_doubts(f: &mut Formatter<'_>, results: &Results) -> fmt::Result {
    let runs = || {
        let targets = results.cases.iter().flat_map(|case| &case.targets);
        targets.flat_map(|target| &target.rounds)
    };
    let cores = results.environment.machine.cores;
    let is_noisy = |run: &&Run| run.others_share(cores) > NOISE;
    let noisy = runs().filter(is_noisy).count();
    if noisy > 0 {
        writeln!(
            f,
            "warning: other programs used over {:.0}% of the machine in {noisy} of {} runs",
            NOISE * 100.0,
            runs().count()
        )?;
    }
    if !results.environment.machine.optimised {
        writeln!(f, "warning: this trapeze was built without --release")?;
    }
    for failure in &results.failures {
        writeln!(f, "FAILED: {failure}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::case::Mode;
    use super::super::results::tests::{case, results};
    use super::*;

    #[test]
    fn each_case_has_a_line_for_each_target_and_its_ratios() {
        let table = Table(&results()).to_string();
        let line = |start: &str| {
            let found = table.lines().find(|line| line.starts_with(start));
            found.unwrap_or_else(|| panic!("no {start:?} in\n{table}"))
        };
        let words = |start| line(start).split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(
            words("  Trapeze"),
            "Trapeze 15,000 19.1 500 µs 4.27 ms 126.7 0.75"
        );
        let bars: Vec<&str> = table
            .lines()
            .filter(|line| line.contains(") bar "))
            .collect();
        assert_eq!(bars.len(), 3, "{table}");
        assert!(bars[0].contains("1.67 (1.67..1.67) bar 1.30 met HAProxy "));
        assert!(bars[0].ends_with(" 0.94 (0.94..0.94)"));
        assert!(bars[1].contains("0.95 (0.80..0.95) bar 0.90 met?"));
        assert!(bars[2].contains("0.97 (0.97..0.97) bar 0.95 met"));
        assert!(!table.contains("warning"), "{table}");
    }

    #[test]
    fn a_bar_that_is_missed_stands_out() {
        let mut results = results();
        results.cases = vec![case(
            "1m",
            Mode::KeepAlive,
            [&[1000], &[300], &[600], &[900], &[940]],
        )];
        let table = Table(&results).to_string();
        assert_eq!(table.matches("NOT MET").count(), 2, "{table}");
    }

    #[test]
    fn targets_that_were_left_out_are_left_out() {
        let mut results = results();
        results.cases = vec![case("1k", Mode::KeepAlive, [&[], &[], &[], &[], &[100]])];
        let table = Table(&results).to_string();
        assert!(!table.contains("of the better"), "{table}");
        assert!(!table.contains("confidence"), "{table}");
    }

    #[test]
    fn doubtful_figures_are_called_so() {
        let mut results = results();
        results.cases[0].targets[0].rounds[0].usage.others_cpu_us = 500_000;
        results.environment.machine.optimised = false;
        results
            .failures
            .push("1 KiB, nginx, round 1: no answers".into());
        let table = Table(&results).to_string();
        assert!(table.contains("over 10% of the machine in 1 of 45 runs"));
        assert!(table.contains("without --release"));
        assert!(table.contains("FAILED: 1 KiB, nginx, round 1: no answers"));
    }
}
