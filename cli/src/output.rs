//! What a command prints: JSON for programs, or text for people, in colour on
//! a terminal only.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};

use serde::Serialize;

/// How to print.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Output {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Output {
    /// Prints one thing.
    pub fn one<T: Serialize + Display>(self, report: &T) -> anyhow::Result<()> {
        match self.json {
            true => print(&(serde_json::to_string_pretty(report)? + "\n")),
            false => print(&text(report)),
        }
    }

    /// Prints several, one for each node: a JSON array, or texts with a line between.
    pub fn each<T: Serialize + Display>(self, reports: &[T]) -> anyhow::Result<()> {
        match self.json {
            true => print(&(serde_json::to_string_pretty(reports)? + "\n")),
            false => print(&reports.iter().map(text).collect::<Vec<_>>().join("\n")),
        }
    }
}

/// `{:#}` is with colour.
fn text(report: &impl Display) -> String {
    let colour = io::stdout().is_terminal()
        && std::env::var_os("NO_COLOR").is_none()
        && std::env::var_os("TERM").is_none_or(|term| term != "dumb");
    match colour {
        true => format!("{report:#}"),
        false => format!("{report}"),
    }
}

fn print(text: &str) -> anyhow::Result<()> {
    match io::stdout().write_all(text.as_bytes()) {
        // `trapeze flows | head` has seen enough.
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => Ok(result?),
    }
}
