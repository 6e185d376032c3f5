//! `trapeze sim implosion`: where a dead server's clients go.

use std::fmt;

use serde::Serialize;
use trapeze_sim::implosion::{Figures, Row, Setup, simulate};

use crate::output::Output;
use crate::table::{Column, Table};

/// A server dies and its clients go to others: how far, and how many to one [MIGRATE01 §5.3]
///
/// The five methods of the paper's table 1, published and measured, and the policies by which
/// Trapeze's dispatchers choose who goes on with an answer.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Clients that have to go
    #[arg(short, long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    clients: u32,
    /// Servers, of which one dies
    #[arg(short, long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(2..=1000))]
    servers: u32,
    /// Random squares to average over
    #[arg(short, long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
    layouts: u32,
    /// Of all randomness
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Serialize)]
struct Report {
    rows: Vec<Row>,
}

/// Runs it.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let setup = Setup {
        clients: args.clients as usize,
        servers: args.servers as usize,
        layouts: args.layouts as usize,
        seed: args.seed,
    };
    args.output.one(&Report {
        rows: simulate(&setup),
    })
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new(&[
            Column::Left("method"),
            Column::Right("latency ms"),
            Column::Right("published"),
            Column::Right("most clients"),
            Column::Right("published"),
        ]);
        for row in &self.rows {
            let published = |of: fn(&Figures) -> f64| {
                (row.published.as_ref())
                    .map_or_else(|| "-".to_owned(), |figures| whole(of(figures)))
            };
            table.row([
                row.method.into(),
                whole(row.measured.latency_ms).into(),
                published(|figures| figures.latency_ms).into(),
                whole(row.measured.most_clients).into(),
                published(|figures| figures.most_clients).into(),
            ]);
        }
        table.fmt(f)?;
        writeln!(
            f,
            "published: [MIGRATE01 table 1], of 10,000 clients and 10 servers"
        )
    }
}

fn whole(number: f64) -> String {
    format!("{number:.0}")
}
