//! `trapeze sim paper`: published experiments run again.

use std::fmt;

use serde::Serialize;
use trapeze_sim::paper::{Comparison, Paper};

use super::setup;
use crate::output::Output;
use crate::table::{Cell, Column, Table, Tone};

/// Run published experiments again, and print published and measured side by side
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Which papers: lacp03, lvscad07, lard98 [default: all]
    #[arg(value_parser = paper)]
    papers: Vec<Paper>,
    /// Threads [default: one for each processor]
    #[arg(long, value_name = "N", value_parser = setup::count(setup::THREADS_MAX))]
    threads: Option<u32>,
    #[command(flatten)]
    output: Output,
}

fn paper(name: &str) -> Result<Paper, String> {
    (Paper::ALL.into_iter().find(|paper| paper.name() == name)).ok_or_else(|| {
        let known = Paper::ALL.map(Paper::name).join(", ");
        format!("there are: {known}")
    })
}

#[derive(Debug, Serialize)]
struct Report {
    paper: &'static str,
    experiments: Vec<Comparison>,
}

/// Runs the experiments of one paper after the other.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let papers = match args.papers.as_slice() {
        [] => &Paper::ALL[..],
        some => some,
    };
    let mut reports = Vec::new();
    for paper in papers {
        let experiments = paper.experiments();
        let bar = setup::bar(experiments.iter().map(|e| e.requests()).sum());
        reports.push(Report {
            paper: paper.name(),
            experiments: (experiments.iter())
                .map(|e| e.go(setup::threads(args.threads), &|more| bar.inc(more)))
                .collect(),
        });
        bar.finish_and_clear();
    }
    args.output.each(&reports)
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, experiment) in self.experiments.iter().enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            writeln!(f, "{}: {}", self.paper, experiment.title)?;
            writeln!(f, "  {}", experiment.setup)?;
            let mut table = Table::new(&[
                Column::Left(""),
                Column::Left("published"),
                Column::Left("measured"),
                Column::Left(""),
            ])
            .indented(2);
            for row in &experiment.rows {
                let verdict = match (&row.verdict, row.holds) {
                    (None, _) => Cell::from(""),
                    (Some(verdict), Some(true)) => Tone::Good.cell(verdict.as_str()),
                    (Some(verdict), _) => Tone::Warning.cell(verdict.as_str()),
                };
                table.row([
                    row.what.as_str().into(),
                    row.published.as_str().into(),
                    row.measured.as_str().into(),
                    verdict,
                ]);
            }
            match f.alternate() {
                true => write!(f, "{table:#}")?,
                false => write!(f, "{table}")?,
            }
        }
        Ok(())
    }
}
