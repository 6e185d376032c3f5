//! The machine and the programs that a measurement ran on and with.

use std::process::Command;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::program;

/// The machine and the versions of what always runs.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// Its release.
    pub kernel: String,
    /// The processor's model.
    pub cpu: String,
    /// How many processors there are to use.
    pub cores: usize,
    /// Our own version.
    pub trapeze: String,
    /// Whether we were built with optimisation.
    pub optimised: bool,
    /// The client.
    pub wrk: String,
}

impl Machine {
    /// Asks the machine and the client.
    ///
    /// # Errors
    /// wrk is not installed.
    pub fn ask() -> Result<Self> {
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease")
            .context("cannot read the kernel's release")?;
        Ok(Machine {
            kernel: kernel.trim().to_owned(),
            cpu: cpu(),
            cores: std::thread::available_parallelism()?.get(),
            trapeze: env!("CARGO_PKG_VERSION").to_owned(),
            optimised: !cfg!(debug_assertions),
            wrk: version("wrk")?,
        })
    }
}

#[cfg(test)]
impl Machine {
    /// One to describe results of.
    pub fn example() -> Self {
        Machine {
            kernel: "6.18.0".into(),
            cpu: "A & B <CPU>".into(),
            cores: 2,
            trapeze: "0.1.0".into(),
            optimised: true,
            wrk: "4.1.0".into(),
        }
    }
}

fn cpu() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = text.lines().find(|line| line.starts_with("model name"));
    let value = model.and_then(|line| line.split_once(": "));
    value.map_or("unknown", |(_, model)| model).to_owned()
}

/// What a program says of itself when given -v, and wherever it says it.
///
/// # Errors
/// It is not installed.
pub fn version(name: &str) -> Result<String> {
    let output = Command::new(program::find(name)?)
        .arg("-v")
        .output()
        .with_context(|| format!("cannot run {name}"))?;
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    Ok(number(&said).unwrap_or("unknown").to_owned())
}

/// The first word that has a version number in it, without what precedes the
/// number: `2.6.12-1+deb12u4`, `nginx/1.22.1`, `debian/4.1.0-3+b2`.
fn number(said: &str) -> Option<&str> {
    said.split_whitespace().find_map(|word| {
        let (_, number) = word.rsplit_once('/').unwrap_or(("", word));
        let is_version = number.starts_with(|c: char| c.is_ascii_digit()) && number.contains('.');
        is_version.then_some(number)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_found_in_what_programs_say() {
        for (said, expected) in [
            (
                "HAProxy version 2.6.12-1+deb12u4 2026/10/17 - https://haproxy.org/",
                "2.6.12-1+deb12u4",
            ),
            ("nginx version: nginx/1.22.1\n", "1.22.1"),
            (
                "wrk debian/4.1.0-3+b2 [epoll] Copyright (C) 2012 Will Glozer\n",
                "4.1.0-3+b2",
            ),
        ] {
            assert_eq!(number(said), Some(expected));
        }
        assert_eq!(number("usage: thing"), None);
    }
}
