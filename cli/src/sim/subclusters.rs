//! `trapeze sim subclusters`: what thousands of dispatchers cost each other.

use std::fmt;

use serde::Serialize;
use trapeze_sim::subclusters::{Outcome, Setup, simulate};

use super::setup::count;
use crate::output::Output;
use crate::table::{Column, Table};

/// Thousands of dispatchers in sub-clusters: state, messages and balance [SPLICE06 §8]
///
/// Routes each packet of each connection by the dispatchers' own rule, for each number of
/// nodes; and tells what one flat cluster of them would keep and say.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// How many nodes; several numbers give several lines
    #[arg(
        short,
        long,
        value_name = "N",
        value_delimiter = ',',
        default_value = "100,300,1000,3000,10000",
        value_parser = count(100_000)
    )]
    nodes: Vec<u32>,
    /// The most nodes of a sub-cluster
    #[arg(short, long, value_name = "N", default_value_t = 100, value_parser = count(100_000))]
    size: u32,
    /// Connections that are open for each node
    #[arg(short, long, value_name = "N", default_value_t = 100, value_parser = count(100_000))]
    connections: u32,
    /// A client's packets on each, from its first payload on
    #[arg(short, long, value_name = "N", default_value_t = 10, value_parser = count(10_000))]
    packets: u32,
    /// Of all randomness
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Serialize)]
struct Report {
    outcomes: Vec<Outcome>,
}

/// Runs it.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let outcomes = args.nodes.iter().map(|&nodes| {
        simulate(&Setup {
            nodes: nodes as usize,
            size: args.size as usize,
            connections: args.connections as usize,
            packets: args.packets as usize,
            seed: args.seed,
        })
    });
    args.output.one(&Report {
        outcomes: outcomes.collect(),
    })
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new(&[
            Column::Right("nodes"),
            Column::Right("sub-clusters"),
            Column::Right("records a node"),
            Column::Right("flat"),
            Column::Right("updates"),
            Column::Right("flat"),
            Column::Right("passed on"),
            Column::Right("to owner"),
            Column::Right("front load"),
            Column::Right("back load"),
            Column::Right("max/mean front"),
            Column::Right("back"),
            Column::Right("owned"),
        ]);
        for outcome in &self.outcomes {
            let back = |show: fn(&trapeze_sim::subclusters::Spread) -> String| {
                outcome.back.as_ref().map_or_else(|| "-".to_owned(), show)
            };
            table.row([
                outcome.nodes.into(),
                outcome.clusters.into(),
                format!("{:.0}", outcome.records.mean).into(),
                outcome.records_flat.into(),
                format!("{:.0}", outcome.messages.updates).into(),
                outcome.updates_flat.into(),
                format!("{:.2}", outcome.messages.passed_on).into(),
                format!("{:.2}", outcome.messages.to_owner).into(),
                format!("{:.0}", outcome.front.mean).into(),
                back(|spread| format!("{:.0}", spread.mean)).into(),
                format!("{:.2}", outcome.front.over_mean()).into(),
                back(|spread| format!("{:.2}", spread.over_mean())).into(),
                format!("{:.2}", outcome.owned.over_mean()).into(),
            ]);
        }
        table.fmt(f)?;
        writeln!(
            f,
            "updates, passed on, to owner: messages between nodes for a connection; load: packets \
             that a node handles"
        )
    }
}
