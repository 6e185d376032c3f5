//! `trapeze sim`: policies in virtual time. Needs no root, no network, no daemon.

mod compare;
mod setup;

use clap::Subcommand;

/// Try policies in a simulated cluster: no root, no network, the same code
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Compare(compare::Args),
}

/// Runs it.
pub fn run(args: &Args) -> anyhow::Result<()> {
    match &args.command {
        Command::Compare(args) => compare::run(args),
    }
}
