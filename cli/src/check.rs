//! `trapeze check`: is a configuration right? Asks no daemon, changes nothing.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::process::ExitCode;

use serde::Serialize;
use trapeze_core::config::{Config, ConfigErrors};

use crate::output::Output;
use crate::{amount, file};

/// Check a configuration, without changing anything
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The cluster's configuration
    #[arg(short, long, value_name = "FILE", default_value = file::DEFAULT)]
    config: PathBuf,
    #[command(flatten)]
    output: Output,
}

/// What was found.
#[derive(Debug, Serialize)]
struct Report {
    file: String,
    ok: bool,
    summary: Option<Summary>,
    /// Right, and perhaps not meant.
    remarks: Vec<String>,
    errors: Vec<Mistake>,
    /// The errors with the lines that they are in.
    #[serde(skip)]
    text: String,
}

/// How much of everything there is.
#[derive(Debug, Serialize)]
struct Summary {
    cluster: String,
    dispatchers: usize,
    backends: usize,
    pools: usize,
    services: usize,
    rules: usize,
}

/// Line and column count from 1.
#[derive(Debug, Serialize)]
struct Mistake {
    line: usize,
    column: usize,
    message: String,
}

/// Checks it.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let text = file::read(&args.config)?;
    let report = Report::of(&text, &args.config.display().to_string());
    args.output.one(&report)?;
    Ok(match report.ok {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

impl Report {
    fn of(text: &str, name: &str) -> Self {
        let parsed = Config::parse(text, name);
        Self {
            file: name.to_owned(),
            ok: parsed.is_ok(),
            summary: parsed.as_ref().ok().map(Summary::of),
            remarks: parsed.as_ref().map(remarks).unwrap_or_default(),
            errors: parsed.as_ref().err().map(mistakes).unwrap_or_default(),
            text: parsed.err().map_or_else(String::new, |e| e.to_string()),
        }
    }
}

impl Summary {
    fn of(config: &Config) -> Self {
        Self {
            cluster: config.name.clone(),
            dispatchers: config.dispatchers.len(),
            backends: config.backends.len(),
            pools: config.pools.len(),
            services: config.services.len(),
            rules: config.services.iter().map(|s| s.rules.len()).sum(),
        }
    }
}

fn mistakes(errors: &ConfigErrors) -> Vec<Mistake> {
    (errors.iter())
        .map(|error| Mistake {
            line: error.line,
            column: error.column,
            message: error.message.clone(),
        })
        .collect()
}

fn remarks(config: &Config) -> Vec<String> {
    let in_pools: BTreeSet<usize> = (config.pools.iter())
        .flat_map(|pool| pool.members.iter().map(|member| member.backend))
        .collect();
    let used: BTreeSet<usize> = (config.services.iter())
        .flat_map(|service| {
            let by_rules = service.rules.iter().map(|rule| rule.pool);
            by_rules.chain(service.default_pool)
        })
        .collect();
    let backends = (config.backends.iter().enumerate())
        .filter(|(index, _)| !in_pools.contains(index))
        .map(|(_, backend)| format!("backend {} is in no pool", backend.name));
    let pools = (config.pools.iter().enumerate())
        .filter(|(index, _)| !used.contains(index))
        .map(|(_, pool)| format!("pool {} is used by no service", pool.name));
    backends.chain(pools).collect()
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(summary) = &self.summary else {
            writeln!(f, "{}", self.text)?;
            let count = amount::count(self.errors.len(), "error");
            return writeln!(f, "\n{}: {count}", self.file);
        };
        writeln!(
            f,
            "ok: {}: cluster {}, {}, {}, {}, {}, {}",
            self.file,
            summary.cluster,
            amount::count(summary.dispatchers, "dispatcher"),
            amount::count(summary.backends, "backend"),
            amount::count(summary.pools, "pool"),
            amount::count(summary.services, "service"),
            amount::count(summary.rules, "rule"),
        )?;
        for remark in &self.remarks {
            writeln!(f, "remark: {remark}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = include_str!("../../examples/trapeze.toml");

    #[test]
    fn a_right_file_is_summed_up() {
        assert_eq!(
            Report::of(FILE, "t.toml").to_string(),
            "ok: t.toml: cluster example, 1 dispatcher, 3 backends, 2 pools, 2 services, 3 rules\n"
        );
    }

    #[test]
    fn mistakes_come_with_their_place() {
        let report = Report::of(&FILE.replace("\"hrw\"", "\"hwr\""), "t.toml");
        assert!(!report.ok);
        let place = format!(
            "t.toml:{}:{}:",
            report.errors[0].line, report.errors[0].column
        );
        let text = report.to_string();
        assert!(text.starts_with(&place), "{text}");
        assert!(text.ends_with("t.toml: 1 error\n"), "{text}");
    }

    #[test]
    fn what_nothing_uses_is_remarked() {
        let text = FILE.replace("pool = \"images\"", "pool = \"web\"");
        let report = Report::of(&text, "t.toml");
        assert_eq!(report.remarks, ["pool images is used by no service"]);
    }
}
