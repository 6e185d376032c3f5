//! `trapeze reload`: the daemons read their configuration again. A file with a
//! mistake changes nothing.

use std::fmt;
use std::net::Ipv4Addr;
use std::process::ExitCode;

use anyhow::{Context, ensure};
use serde::Serialize;
use trapeze_datapath::kill;
use trapeze_datapath::node::{Node, Role};
use trapeze_dispatcher::{Request, ask};

use crate::nodes::PerNode;
use crate::{file, pinned};

/// Have the daemons of this host read their configuration again
///
/// Connections and their backends stay as they are. A file with a mistake
/// changes nothing.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    nodes: PerNode,
}

/// What became of one node's reload.
#[derive(Debug, Serialize)]
struct Report {
    cluster: String,
    node: String,
    role: &'static str,
    config: String,
    reloaded: bool,
    error: Option<String>,
}

/// Reloads them.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let reports = args.nodes.report(|node| Ok(reload(node)))?;
    Ok(match reports.iter().all(|report| report.reloaded) {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

fn reload(node: &Node) -> Report {
    let result = match node.role {
        Role::Spray => {
            ask::<()>(&node.control_socket(), &trapeze_spray::Request::Reload).map_err(Into::into)
        }
        Role::Dispatcher => ask::<()>(&node.control_socket(), &Request::Reload).map_err(Into::into),
        Role::Agent => reload_agent(node),
    };
    Report {
        cluster: node.cluster.clone(),
        node: node.name.clone(),
        role: node.role.name(),
        config: node.config.display().to_string(),
        reloaded: result.is_ok(),
        error: result.err().map(|error| format!("{error:#}")),
    }
}

/// An agent answers no questions: what it would refuse is looked for before.
fn reload_agent(node: &Node) -> anyhow::Result<()> {
    ensure!(
        node.is_running(),
        "its daemon does not run (it was process {}): start `trapeze agent`",
        node.pid
    );
    let config = file::read(&node.config)?;
    let own = config.own_backend(&node.name)?;
    let data_path = pinned::agent(node)?.node.get(&0)?;
    let address = data_path.map(|node| Ipv4Addr::from(node.address));
    ensure!(
        config.name == node.cluster && address.is_none_or(|address| own.address == address),
        "the cluster's name and this backend's address are fixed while it runs: restart it"
    );
    kill::hang_up(node.pid)
        .with_context(|| format!("cannot tell process {} to reload: are you root?", node.pid))
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.error {
            None => writeln!(f, "{} {}: reloaded {}", self.role, self.node, self.config),
            Some(error) => writeln!(
                f,
                "{} {}: not reloaded, the old configuration stays:\n{error}",
                self.role, self.node
            ),
        }
    }
}
