//! What a command prints: JSON for programs, or text for people, in colour on
//! a terminal only. With `--json` the standard output is JSON whatever happens: what
//! goes wrong is `{"error": "..."}` there, and text on standard error without it.

use std::ffi::OsString;
use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

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

/// Says why a command could not do its work, and gives its exit status.
pub fn failed(error: &anyhow::Error) -> ExitCode {
    match asks_for_json(std::env::args_os()) {
        true => print_error(&format!("{error:#}")),
        false => eprintln!("trapeze: {error:#}"),
    }
    ExitCode::FAILURE
}

/// The same for a command line that is none, or asks for help.
pub fn misused(error: &clap::Error) -> ExitCode {
    match error.use_stderr() && asks_for_json(std::env::args_os()) {
        true => print_error(without_title(&error.render().to_string())),
        // Nobody reads it: nothing to be done.
        false => drop(error.print()),
    }
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(u8::MAX))
}

/// The key says already that it is an error.
fn without_title(message: &str) -> &str {
    let message = message.trim_end();
    message.strip_prefix("error: ").unwrap_or(message)
}

/// Looks at the words alone: a command line that is wrong has no more.
fn asks_for_json(words: impl Iterator<Item = OsString>) -> bool {
    // What follows is another program's.
    let mut own = words.take_while(|word| word != "--");
    own.any(|word| word == "--json")
}

fn print_error(message: &str) {
    let error = serde_json::json!({ "error": message });
    // As in `print`, and there is nowhere left to say so.
    let _ = writeln!(io::stdout(), "{error:#}");
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_own_words_ask_for_json() {
        let asks = |line: &str| asks_for_json(line.split(' ').map(OsString::from));
        assert!(asks("trapeze status --json"));
        assert!(asks("trapeze status --json --nod"));
        assert!(!asks("trapeze lab exec d1 -- trapeze status --json"));
        assert!(!asks("trapeze flows"));
    }
}
