//! The `trapeze` binary: the daemons, and what an operator asks of them, a file
//! for each command.

mod amount;
mod backends;
mod check;
mod doctor;
mod drain;
mod drops;
mod explain;
mod file;
mod flows;
mod members;
mod nodes;
mod output;
mod pinned;
mod reload;
mod sim;
mod status;
mod table;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// A layer-7 load balancer that hands live TCP connections to backends
#[derive(Parser)]
#[command(name = "trapeze", version)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run this host's spray, in front of dispatchers
    Spray(Daemon),
    /// Run this host's dispatcher
    Dispatch(Daemon),
    /// Run this host's agent, beside its server
    Agent(Daemon),
    Status(status::Args),
    Flows(flows::Args),
    Backends(backends::Args),
    Drops(drops::Args),
    Explain(explain::Args),
    Reload(reload::Args),
    Drain(drain::Args),
    Undrain(drain::UndrainArgs),
    Check(check::Args),
    Doctor(doctor::Args),
    Lab(trapeze_lab::Args),
    Sim(sim::Args),
}

/// How to run a daemon
#[derive(clap::Args)]
struct Daemon {
    /// The cluster's configuration
    #[arg(
        short,
        long,
        value_name = "FILE",
        default_value = file::DEFAULT
    )]
    config: PathBuf,
    /// Which of its nodes this host is [default: the host's name]
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
}

impl Daemon {
    fn node(&self) -> anyhow::Result<String> {
        match &self.node {
            Some(name) => Ok(name.clone()),
            None => Ok(std::fs::read_to_string("/proc/sys/kernel/hostname")?
                .trim()
                .to_owned()),
        }
    }
}

fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => return output::misused(&error),
    };
    let result = match args.command {
        Command::Spray(daemon) => daemon
            .node()
            .and_then(|node| trapeze_spray::run(daemon.config, &node))
            .map(done),
        Command::Dispatch(daemon) => daemon
            .node()
            .and_then(|node| trapeze_dispatcher::run(daemon.config, &node))
            .map(done),
        Command::Agent(daemon) => daemon
            .node()
            .and_then(|node| trapeze_agent::run(daemon.config, &node))
            .map(done),
        Command::Status(args) => status::run(&args).map(done),
        Command::Flows(args) => flows::run(&args).map(done),
        Command::Backends(args) => backends::run(&args).map(done),
        Command::Drops(args) => drops::run(&args).map(done),
        Command::Explain(args) => explain::run(&args).map(done),
        Command::Reload(args) => reload::run(&args),
        Command::Drain(args) => drain::run(&args),
        Command::Undrain(args) => drain::undo(&args).map(done),
        Command::Check(args) => check::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Lab(args) => trapeze_lab::run(args),
        Command::Sim(args) => sim::run(&args).map(done),
    };
    result.unwrap_or_else(|error| output::failed(&error))
}

fn done((): ()) -> ExitCode {
    ExitCode::SUCCESS
}
