//! `trapeze doctor`: what this host lacks, each with the command that mends it.
//! It looks and changes nothing. `doctor/kernel.rs` looks at the machine,
//! `doctor/network.rs` at what a node of the configuration needs, `doctor/reach.rs` at
//! whether a dispatcher's packets get to backends, `doctor/etcd.rs` at etcd.

mod etcd;
mod kernel;
mod network;
mod reach;

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{bail, ensure};
use clap::ValueEnum;
use serde::Serialize;
use trapeze_core::config::Config;
use trapeze_datapath::node::{Node, Role};

use crate::file::FileError;
use crate::output::Output;
use crate::table::{Column, Table, Tone};
use crate::{amount, file};

/// Tell what this host lacks, each with the command that mends it
///
/// Looks at this host's nodes, whether their daemons run or not; before there
/// is any, at the node that -c and --node name; without a configuration, at
/// what every node needs. Changes nothing. Exit status 1 if something is missing.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What the host is to be, where no configuration says so [default: either]
    #[arg(long)]
    role: Option<RoleName>,
    /// The cluster's configuration
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Which of its nodes this host is [default: with -c the host's name]
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
    #[command(flatten)]
    output: Output,
}

/// As `--role` takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum RoleName {
    /// In front of dispatchers
    Spray,
    /// Reads requests
    Dispatcher,
    /// Beside a server
    Agent,
}

/// All that was looked at.
#[derive(Debug, Serialize)]
struct Report {
    /// Nothing is missing.
    ok: bool,
    missing: usize,
    warnings: usize,
    sections: Vec<Section>,
}

/// What was looked at for the host, or for one of its nodes.
#[derive(Debug, Serialize)]
struct Section {
    about: String,
    checks: Vec<Check>,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Check {
    name: String,
    level: Level,
    detail: String,
    /// A command, or what to write into the configuration.
    mend: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Level {
    Ok,
    Warning,
    Missing,
}

/// A node that is to be looked at.
struct Patient {
    name: String,
    role: Role,
    config: Config,
    /// Its daemon runs.
    running: bool,
}

/// Looks.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let (patients, mut sections) = find_patients(args)?;
    let mut roles: Vec<Role> = patients.iter().map(|patient| patient.role).collect();
    if roles.is_empty() {
        roles = match args.role {
            Some(role) => vec![role.role()],
            None => vec![Role::Dispatcher, Role::Agent],
        };
    }
    sections.insert(
        0,
        Section {
            about: "host".into(),
            checks: kernel::checks(&roles),
        },
    );
    for patient in &patients {
        sections.push(Section {
            about: format!("{} {}", patient.role.name(), patient.name),
            checks: [network::checks(patient), etcd::checks(patient)].concat(),
        });
    }
    let report = Report::new(sections);
    args.output.one(&report)?;
    Ok(match report.ok {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// The nodes to be looked at, and sections about configurations that are wrong.
fn find_patients(args: &Args) -> anyhow::Result<(Vec<Patient>, Vec<Section>)> {
    let nodes = Node::local()?;
    if let Some(path) = &args.config {
        let name = match &args.node {
            Some(name) => name.clone(),
            None => host_name()?,
        };
        return Ok(match file::read(path) {
            Ok(config) => (vec![patient(config, &name, args.role, &nodes)?], vec![]),
            Err(error) => (vec![], vec![wrong_file("configuration", path, &error)]),
        });
    }
    let chosen = nodes.iter().filter(|node| {
        let named = args.node.as_ref().is_none_or(|name| *name == node.name);
        named && args.role.is_none_or(|role| role.role() == node.role)
    });
    let (mut patients, mut wrong) = (Vec::new(), Vec::new());
    for node in chosen {
        match file::read(&node.config) {
            Ok(config) => patients.push(Patient {
                name: node.name.clone(),
                role: node.role,
                running: node.is_running(),
                config,
            }),
            Err(error) => wrong.push(wrong_file(
                &format!("{} {}", node.role.name(), node.name),
                &node.config,
                &error,
            )),
        }
    }
    let found = !patients.is_empty() || !wrong.is_empty();
    ensure!(
        found || args.node.is_none(),
        "no node of that name and role runs here: give its configuration with -c"
    );
    Ok((patients, wrong))
}

fn patient(
    config: Config,
    name: &str,
    asked: Option<RoleName>,
    nodes: &[Node],
) -> anyhow::Result<Patient> {
    let spray = config.spray(name).map(|_| Role::Spray);
    let dispatcher = config.dispatcher(name).map(|_| Role::Dispatcher);
    let agent = config.backend(name).map(|_| Role::Agent);
    let role = match spray.or(dispatcher).or(agent) {
        Some(role) => role,
        None => {
            let sprays = config.sprays.iter().map(|s| s.name.as_str());
            let names: Vec<&str> = sprays
                .chain(config.dispatchers.iter().map(|d| d.name.as_str()))
                .chain(config.backends.iter().map(|b| b.name.as_str()))
                .collect();
            bail!(
                "no node of the configuration is named {name}: choose one with --node: {}",
                names.join(", ")
            );
        }
    };
    ensure!(
        asked.is_none_or(|asked| asked.role() == role),
        "{name} is configured as {}: leave --role out",
        role.name()
    );
    let is_same = |node: &&Node| node.cluster == config.name && node.name == name;
    Ok(Patient {
        name: name.to_owned(),
        role,
        running: nodes.iter().find(is_same).is_some_and(Node::is_running),
        config,
    })
}

fn wrong_file(about: &str, path: &Path, error: &FileError) -> Section {
    let mend = match error {
        FileError::Unread { .. } => format!("ls -l {}; is it the right file?", path.display()),
        FileError::Wrong(_) => format!("trapeze check -c {}", path.display()),
    };
    Section {
        about: about.to_owned(),
        checks: vec![Check::missing(
            "configuration",
            format!("{error:#}").lines().next().unwrap_or_default(),
            mend,
        )],
    }
}

fn host_name() -> anyhow::Result<String> {
    Ok(std::fs::read_to_string("/proc/sys/kernel/hostname")?
        .trim()
        .to_owned())
}

impl RoleName {
    fn role(self) -> Role {
        match self {
            Self::Spray => Role::Spray,
            Self::Dispatcher => Role::Dispatcher,
            Self::Agent => Role::Agent,
        }
    }
}

impl Report {
    fn new(sections: Vec<Section>) -> Self {
        let count = |level| {
            let checks = sections.iter().flat_map(|section| &section.checks);
            checks.filter(|check| check.level == level).count()
        };
        let (missing, warnings) = (count(Level::Missing), count(Level::Warning));
        Self {
            ok: missing == 0,
            missing,
            warnings,
            sections,
        }
    }
}

impl Check {
    fn ok(name: impl Into<String>, detail: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            level: Level::Ok,
            detail: detail.into(),
            mend: None,
        }
    }

    fn warning(
        name: impl Into<String>,
        detail: impl Into<String>,
        mend: impl Into<String>,
    ) -> Self {
        Self {
            level: Level::Warning,
            mend: Some(mend.into()),
            ..Self::ok(name, detail)
        }
    }

    fn missing(
        name: impl Into<String>,
        detail: impl Into<String>,
        mend: impl Into<String>,
    ) -> Self {
        Self {
            level: Level::Missing,
            ..Self::warning(name, detail, mend)
        }
    }
}

impl Level {
    fn cell(self) -> crate::table::Cell {
        match self {
            Self::Ok => Tone::Good.cell("ok"),
            Self::Warning => Tone::Warning.cell("warning"),
            Self::Missing => Tone::Bad.cell("missing"),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for section in &self.sections {
            writeln!(f, "{}", section.about)?;
            let columns = [Column::Left(""), Column::Left(""), Column::Left("")];
            let mut table = Table::new(&columns).indented(2);
            for check in &section.checks {
                table.row([
                    check.level.cell(),
                    check.name.as_str().into(),
                    check.detail.as_str().into(),
                ]);
                if let Some(mend) = &check.mend {
                    table.row(["".into(), "".into(), format!("mend: {mend}").into()]);
                }
            }
            table.fmt(f)?;
        }
        match (self.missing, self.warnings) {
            (0, 0) => writeln!(f, "nothing is missing"),
            (0, warnings) => {
                let warnings = amount::count(warnings, "warning");
                writeln!(f, "nothing is missing, {warnings}")
            }
            (missing, warnings) => {
                let warnings = amount::count(warnings, "warning");
                writeln!(f, "{missing} missing, {warnings}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_ok_has_its_remedy_below() {
        let report = Report::new(vec![Section {
            about: "host".into(),
            checks: vec![
                Check::ok("kernel", "6.18"),
                Check::missing("bpffs", "not mounted", "mount it"),
            ],
        }]);
        assert!(!report.ok);
        assert_eq!(
            report.to_string(),
            "host\n  \
               ok       kernel  6.18\n  \
               missing  bpffs   not mounted\n                   \
                                mend: mount it\n\
             1 missing, 0 warnings\n"
        );
    }

    #[test]
    fn the_configuration_says_what_a_node_is() {
        let config = || {
            let text = include_str!("../../examples/trapeze.toml");
            Config::parse(text, "trapeze.toml").unwrap()
        };
        let role = |name, asked| patient(config(), name, asked, &[]).map(|p| p.role);
        assert_eq!(role("d1", None).unwrap(), Role::Dispatcher);
        assert_eq!(role("b2", Some(RoleName::Agent)).unwrap(), Role::Agent);
        let error = role("b2", Some(RoleName::Dispatcher)).unwrap_err();
        assert!(error.to_string().contains("configured as agent"));
        let error = role("x", None).unwrap_err().to_string();
        assert!(error.ends_with("d1, b1, b2, b3"), "{error}");
    }
}
