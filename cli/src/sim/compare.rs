//! `trapeze sim compare`: policies side by side on workloads and traces.

use std::path::PathBuf;
use std::{fmt, fs};

use anyhow::{Context, bail, ensure};
use serde::Serialize;
use trapeze_sim::{Outcome, Run, picture};

use super::setup::{self, Setup};
use crate::output::Output;
use crate::table::{Cell, Column, Table, Tone};

/// Compare policies on workloads and recorded traces
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    setup: setup::Cluster,
    /// Draw throughput into a file, as SVG
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Serialize)]
struct Report {
    outcomes: Vec<Outcome>,
}

/// Runs all policies on all workloads.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let setup = Setup::of(&args.setup)?;
    let runs: Vec<Run<'_>> = setup.runs();
    let report = Report {
        outcomes: setup.go(&runs),
    };
    if let Some(nothing) = report.outcomes.iter().find(|o| o.requests == 0) {
        let Outcome {
            policy, unanswered, ..
        } = nothing;
        ensure!(
            *unanswered == 0,
            "{policy}: all backends are gone or drained for good before counting begins, and \
             {unanswered} users wait; let one come back (--drain b1@5s..9s), go later, or have \
             fewer requests with -n"
        );
        bail!("{policy}: the run ends before counting begins: give it more requests with -n");
    }
    if let Some(path) = &args.svg {
        fs::write(path, picture::throughput(&report.outcomes))
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    args.output.one(&report)
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let same = |a: &Outcome, b: &Outcome| a.workload == b.workload && a.backends == b.backends;
        for (index, group) in self.outcomes.chunk_by(same).enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            let first = &group[0];
            writeln!(f, "{}, {} backends", first.workload, first.backends)?;
            let table = table(group);
            match f.alternate() {
                true => write!(f, "{table:#}")?,
                false => write!(f, "{table}")?,
            }
            let lost: Vec<String> = (group.iter().filter(|o| o.lost > 0))
                .map(|o| format!("{} {}", o.policy, o.lost))
                .collect();
            if !lost.is_empty() {
                writeln!(f, "  lost and asked again: {}", lost.join(", "))?;
            }
            let waiting: Vec<String> = (group.iter().filter(|o| o.unanswered > 0))
                .map(|o| format!("{} {}", o.policy, o.unanswered))
                .collect();
            if !waiting.is_empty() {
                writeln!(
                    f,
                    "  never answered, as all backends were gone or drained: {}; what is shown is \
                     of the time before",
                    waiting.join(", ")
                )?;
            }
        }
        Ok(())
    }
}

fn table(group: &[Outcome]) -> Table {
    let best = (group.iter()).fold(0.0, |best: f64, o| best.max(o.requests_per_second));
    let mut table = Table::new(&[
        Column::Left("policy"),
        Column::Right("req/s"),
        Column::Right("of best"),
        Column::Right("mean ms"),
        Column::Right("p50 ms"),
        Column::Right("p99 ms"),
        Column::Right("hits"),
        Column::Right("balance"),
        Column::Right("handoffs"),
        Column::Right("cpu"),
        Column::Right("disk"),
    ])
    .indented(2);
    for o in group {
        let of_best = o.requests_per_second / best;
        let tone = if of_best > 0.97 {
            Tone::Good
        } else {
            Tone::Plain
        };
        // All counted answers may be of one instant.
        let in_time = |text: String| {
            if o.seconds > 0.0 {
                text
            } else {
                "-".to_owned()
            }
        };
        table.row([
            o.policy.as_str().into(),
            in_time(rate(o.requests_per_second)).into(),
            tone.cell(in_time(format!("{of_best:.3}"))),
            format!("{:.2}", o.latency_mean_ms).into(),
            format!("{:.2}", o.latency_p50_ms).into(),
            format!("{:.1}", o.latency_p99_ms).into(),
            o.hit_ratio
                .map_or(Cell::from("-"), |h| format!("{:.1} %", h * 100.0).into()),
            format!("{:.2}", o.balance).into(),
            format!("{:.2}", o.handoffs_per_request).into(),
            format!("{:.2}", o.cpu_busy.mean).into(),
            format!("{:.2}", o.disk_busy.mean).into(),
        ]);
    }
    table
}

/// A trace that is played at its own times may have one request in a minute.
fn rate(per_second: f64) -> String {
    match per_second {
        ..10.0 => format!("{per_second:.3}"),
        _ => format!("{per_second:.0}"),
    }
}
