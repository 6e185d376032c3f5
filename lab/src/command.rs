//! `trapeze lab …`: from the command line to the lab and back to the terminal.

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::process::ExitCode;

use anyhow::{Context, Result};

use crate::args::{Args, Command, Relay};
use crate::bench;
use crate::compare;
use crate::demo;
use crate::handoff;
use crate::lab::Lab;
use crate::link::relay;
use crate::servers::origin;
use crate::splice;

/// Does what the command line says.
///
/// # Errors
/// With a message that says what to do.
pub fn run(args: Args) -> Result<ExitCode> {
    let name = args.name;
    match args.command {
        Command::Up(up) => {
            let lab = Lab::up(&up.options(&name))?;
            print(&lab.status()?.to_string())?;
        }
        Command::Down => Lab::remove(&name)?,
        Command::Status { json } => {
            let status = Lab::open(&name)?.status()?;
            print(&match json {
                true => serde_json::to_string_pretty(&status)? + "\n",
                false => status.to_string(),
            })?;
        }
        Command::Exec { host, command } => {
            let host = Lab::open(&name)?.host(&host)?;
            let (program, arguments) = command.split_first().context("give a command to run")?;
            // Becomes the command, so that signals and the exit status are its own.
            let mut command = host.command(program);
            let error = command.args(arguments).env("PATH", path()?).exec();
            eprintln!(
                "cannot run {} on {}: {error}",
                program.display(),
                host.name()
            );
            let not_found = error.kind() == io::ErrorKind::NotFound;
            return Ok(ExitCode::from(if not_found { 127 } else { 126 }));
        }
        Command::Kill { host, process } => Lab::open(&name)?.kill(&host, process)?,
        Command::Start { host, process } => Lab::open(&name)?.start(&host, process)?,
        Command::Link(link) => Lab::open(&name)?.link(&link.host, &link.settings())?,
        // `lab` is the user's own.
        Command::Demo if name == "lab" => demo::run("demo")?,
        Command::Demo => demo::run(&name)?,
        Command::Bench(settings) => return bench::run(&name, &settings),
        Command::Compare(settings) => return compare::run(&name, &settings),
        Command::Handoff(settings) => return handoff::run(&name, &settings),
        Command::Splice(settings) => return splice::run(&name, &settings),
        Command::Origin(settings) => origin::run(settings)?,
        Command::Relay(Relay {
            host_side,
            network_side,
            control,
            settings,
        }) => {
            let settings = serde_json::from_str(&settings).context("--settings is not JSON")?;
            relay::run(&host_side, &network_side, settings, &control)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Whoever reads it may have seen enough: `trapeze lab status | head`.
fn print(text: &str) -> Result<()> {
    match io::stdout().write_all(text.as_bytes()) {
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => Ok(result?),
    }
}

/// Where programs are found: `trapeze`, too, where nobody has installed it.
fn path() -> Result<OsString> {
    let own = std::env::current_exe()?;
    let own = own.parent().context("a program is in a directory")?;
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&path).chain([own.into()]);
    Ok(std::env::join_paths(places)?)
}
