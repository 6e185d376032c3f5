//! The `trapeze` binary.

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
    Lab(trapeze_lab::Args),
}

fn main() -> ExitCode {
    let result = match Args::parse().command {
        Command::Lab(args) => trapeze_lab::run(args),
    };
    result.unwrap_or_else(|error| {
        eprintln!("trapeze: {error:#}");
        ExitCode::FAILURE
    })
}
