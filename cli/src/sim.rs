//! `trapeze sim`: policies in virtual time. Needs no root, no network, no daemon.

mod compare;
mod implosion;
mod paper;
mod setup;
mod spell;
mod subclusters;
mod tournament;
mod trace;

use clap::Subcommand;

/// Try policies in a simulated cluster: no root, no network, the dispatcher's own code
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    #[command(visible_alias = "run")]
    Compare(Box<compare::Args>),
    Implosion(implosion::Args),
    Paper(paper::Args),
    Subclusters(subclusters::Args),
    Tournament(tournament::Args),
    Trace(trace::Args),
}

/// Runs it.
pub fn run(args: &Args) -> anyhow::Result<()> {
    match &args.command {
        Command::Compare(args) => compare::run(args),
        Command::Implosion(args) => implosion::run(args),
        Command::Paper(args) => paper::run(args),
        Command::Subclusters(args) => subclusters::run(args),
        Command::Tournament(args) => tournament::run(args),
        Command::Trace(args) => trace::run(args),
    }
}
