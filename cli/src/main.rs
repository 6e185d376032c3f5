//! The `trapeze` binary.

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
    /// Run this host's dispatcher
    Dispatch(Daemon),
    /// Run this host's agent, beside its server
    Agent(Daemon),
    Lab(trapeze_lab::Args),
}

/// How to run a daemon
#[derive(clap::Args)]
struct Daemon {
    /// The cluster's configuration
    #[arg(
        short,
        long,
        value_name = "FILE",
        default_value = "/etc/trapeze/trapeze.toml"
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
    let result = match Args::parse().command {
        Command::Dispatch(daemon) => daemon
            .node()
            .and_then(|node| trapeze_dispatcher::run(daemon.config, &node))
            .map(done),
        Command::Agent(daemon) => daemon
            .node()
            .and_then(|node| trapeze_agent::run(daemon.config, &node))
            .map(done),
        Command::Lab(args) => trapeze_lab::run(args),
    };
    result.unwrap_or_else(|error| {
        eprintln!("trapeze: {error:#}");
        ExitCode::FAILURE
    })
}

fn done((): ()) -> ExitCode {
    ExitCode::SUCCESS
}
