//! The results as a table for a terminal.

use std::fmt::{self, Display, Formatter};

use super::results::{PolicyResults, Results};
use crate::figures::{grouped, time};
use crate::servers::origin::settings::mebibytes;

/// The share of the machine from which on the processors, and not the disks, may have
/// decided.
const BUSY: f64 = 0.85;
/// A share of the machine used by others from which on figures are doubtful.
const NOISE: f64 = 0.1;

/// A line for each policy.
pub struct Table<'a>(pub &'a Results);

impl Display for Table<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Table(results) = self;
        write_conditions(f, results)?;
        for policy in &results.policies {
            write_policy(f, policy)?;
        }
        writeln!(f)?;
        write_doubts(f, results)
    }
}

fn write_conditions(f: &mut Formatter<'_>, results: &Results) -> fmt::Result {
    let (machine, settings) = (&results.machine, &results.settings);
    writeln!(
        f,
        "Linux {}, {} cores of {}; trapeze {}, wrk {}\n\
         {} backends, each with {}\n\
         {} objects of {} together, asked for in proportion to n^-{}\n\
         {} connections, one for each request\n\
         medians of {} rounds: caches empty, {} s to fill them, {} s measured\n",
        machine.kernel,
        machine.cores,
        machine.cpu,
        machine.trapeze,
        machine.wrk,
        settings.backends,
        settings.origin,
        grouped(settings.objects as f64),
        mebibytes(settings.catalogue_bytes),
        settings.zipf,
        settings.connections,
        settings.rounds,
        settings.warm_up_s,
        settings.seconds,
    )?;
    let first = results.policies.first().map_or("", |first| first.policy);
    writeln!(
        f,
        "{:<18}{:>8}{:>10}{:>10}{:>8}{:>9}{:>7}{:>6}  of {first}",
        "", "req/s", "p50", "p99", "hits", "busiest", "disks", "CPU"
    )
}

fn write_policy(f: &mut Formatter<'_>, results: &PolicyResults) -> fmt::Result {
    let Some(median) = results.median else {
        return writeln!(f, "{:<18}{:>8}", results.policy, "-");
    };
    let of_first = results.of_first.map_or_else(String::new, |ratio| {
        format!("{:.2} ({:.2}..{:.2})", ratio.median, ratio.low, ratio.high)
    });
    writeln!(
        f,
        "{:<18}{:>8}{:>10}{:>10}{:>7.1}%{:>9.2}{:>6.0}%{:>5.0}%  {of_first}",
        results.policy,
        grouped(median.requests_per_s),
        time(median.p50_us),
        time(median.p99_us),
        median.hit_ratio * 100.0,
        median.imbalance,
        median.disk_share * 100.0,
        median.cpu_share * 100.0,
    )
}

/// What a reader should know before believing the figures.
fn write_doubts(f: &mut Formatter<'_>, results: &Results) -> fmt::Result {
    for policy in &results.policies {
        if policy.median.is_some_and(|median| median.cpu_share > BUSY) {
            writeln!(
                f,
                "warning: with {} the processors were busy; fewer --backends or a longer --miss \
                 leave more to the disks",
                policy.policy
            )?;
        }
    }
    let medians = || results.policies.iter().filter_map(|policy| policy.median);
    let others = medians().map(|median| median.others_share);
    let others = others.fold(0.0, f64::max);
    if others > NOISE {
        writeln!(
            f,
            "warning: other programs used up to {:.0}% of the machine",
            others * 100.0
        )?;
    }
    if !results.machine.optimised {
        writeln!(f, "warning: this trapeze was built without --release")?;
    }
    for failure in &results.failures {
        writeln!(f, "FAILED: {failure}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::results::tests::results;
    use super::*;

    #[test]
    fn each_policy_has_a_line() {
        let table = Table(&results()).to_string();
        let line = |start: &str| {
            let found = table.lines().find(|line| line.starts_with(start));
            let line = found.unwrap_or_else(|| panic!("no {start:?} in\n{table}"));
            line.split_whitespace().collect::<Vec<_>>().join(" ")
        };
        assert_eq!(
            line("least-connections"),
            "least-connections 200 500 µs 4.27 ms 50.0% 1.00 90% 50% 1.00 (1.00..1.00)"
        );
        assert_eq!(
            line("lard-r"),
            "lard-r 800 500 µs 4.27 ms 90.0% 1.50 90% 50% 4.00 (4.00..4.00)"
        );
        assert!(table.contains("5,000 objects of 48 MiB together"));
        assert!(!table.contains("warning"), "{table}");
    }

    #[test]
    fn doubtful_figures_are_called_so() {
        let mut results = results();
        results.machine.optimised = false;
        let median = results.policies[1].median.as_mut().unwrap();
        median.cpu_share = 0.9;
        median.others_share = 0.35;
        results.policies[0].median = None;
        results.failures.push("lard-r, round 1: no answers".into());
        let table = Table(&results).to_string();
        assert!(table.contains("with lard-r the processors were busy"));
        assert!(table.contains("up to 35% of the machine"));
        assert!(table.contains("without --release"));
        assert!(table.contains("FAILED: lard-r, round 1"));
    }
}
