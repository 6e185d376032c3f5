//! `trapeze backends`: who serves, and how a dispatcher sees them.

use std::fmt;

use serde::Serialize;
use trapeze_datapath::node::Node;
use trapeze_dispatcher::{BackendStatus, FeedbackStatus, Request, ask};

use crate::nodes::PerNode;
use crate::pinned;
use crate::table::{Cell, Column, Table, Tone};

/// List the backends, their state and their connections, as a dispatcher sees them
///
/// Without a running daemon names and connections come from the data path; who
/// is alive is not known then.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    nodes: PerNode,
}

/// One node's view.
#[derive(Debug, Serialize)]
struct Report {
    cluster: String,
    node: String,
    /// Why there was no answer of the daemon.
    #[serde(skip_serializing_if = "Option::is_none")]
    daemon_error: Option<String>,
    backends: Vec<BackendStatus>,
}

/// Not in the configuration any more.
const REMOVED: &str = "removed";
/// There is no daemon to ask.
const NOT_KNOWN: &str = "?";

/// Lists them.
pub fn run(args: &Args) -> anyhow::Result<()> {
    args.nodes.report_dispatchers(look).map(drop)
}

fn look(node: &Node) -> anyhow::Result<Report> {
    let answer = ask::<Vec<BackendStatus>>(&node.control_socket(), &Request::Backends);
    let (mut backends, daemon_error) = match answer {
        Ok(backends) => (backends, None),
        Err(error) => (Vec::new(), Some(format!("{error:#}"))),
    };
    let state = if daemon_error.is_some() {
        NOT_KNOWN
    } else {
        REMOVED
    };
    // The data path remembers those, too, that the configuration does not name any more.
    for slot in pinned::slots(&pinned::dispatcher(node)?)? {
        let is_listed =
            (backends.iter()).any(|b| (&b.name, &b.address) == (&slot.name, &slot.address));
        if !is_listed && (daemon_error.is_some() || slot.active > 0) {
            backends.push(BackendStatus {
                name: slot.name,
                address: slot.address,
                state: state.into(),
                reason: String::new(),
                checks: Vec::new(),
                history: Vec::new(),
                ports_without_server: Vec::new(),
                active: slot.active,
                total: slot.total,
                feedback: None,
                pools: Vec::new(),
            });
        }
    }
    Ok(Report {
        cluster: node.cluster.clone(),
        node: node.name.clone(),
        daemon_error,
        backends,
    })
}

/// What a state means.
pub fn meaning(state: &str) -> (&'static str, Tone) {
    match state {
        "up" => ("takes connections", Tone::Good),
        "unknown" => ("no heartbeat yet, taken to be up", Tone::Warning),
        "silent" => (
            "no heartbeat: its host, its agent or the way to it is down",
            Tone::Bad,
        ),
        "down" => ("its server fails its checks", Tone::Bad),
        "ejected" => (
            "left out for a while: it resets connections, or acknowledges nothing",
            Tone::Bad,
        ),
        "drained" => ("drained by an operator", Tone::Plain),
        "no-server" => ("nothing listens there: start the server", Tone::Bad),
        "busy" => ("its server accepts too slowly", Tone::Warning),
        REMOVED => (
            "not configured any more; its connections go on",
            Tone::Plain,
        ),
        _ => ("only the daemon knows", Tone::Plain),
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new(&[
            Column::Left("backend"),
            Column::Left("address"),
            Column::Left("state"),
            Column::Right("active"),
            Column::Right("total"),
            Column::Right("queue"),
            Column::Right("cpu"),
            Column::Right("memory"),
            Column::Left("pools, weight"),
            Column::Left("meaning"),
        ]);
        for backend in &self.backends {
            let (meaning, tone) = meaning(&backend.state);
            let meaning = match &backend.ports_without_server[..] {
                [] if backend.state == "down" => format!("{meaning}: {}", backend.reason),
                [] => meaning.to_owned(),
                ports => {
                    let ports: Vec<_> = ports.iter().map(u16::to_string).collect();
                    format!(
                        "nothing listens on port {}: start the server",
                        ports.join(", ")
                    )
                }
            };
            let pools: Vec<String> = (backend.pools.iter())
                .map(|(pool, weight)| format!("{pool} {weight}"))
                .collect();
            table.row([
                backend.name.as_str().into(),
                backend.address.as_str().into(),
                tone.cell(backend.state.as_str()),
                backend.active.into(),
                backend.total.into(),
                said(backend, |f| f.accept_queue.to_string()),
                said(backend, |f| percent(f.cpu_permille)),
                said(backend, |f| percent(f.memory_permille)),
                if pools.is_empty() {
                    "-".into()
                } else {
                    pools.join(", ").into()
                },
                meaning.into(),
            ]);
        }
        match &self.daemon_error {
            None => writeln!(f, "{}", self.node)?,
            Some(error) => writeln!(f, "{}, from its data path, because {error}", self.node)?,
        }
        table.fmt(f)
    }
}

/// What its agent said lately.
fn said(backend: &BackendStatus, show: impl FnOnce(FeedbackStatus) -> String) -> Cell {
    backend.feedback.map_or("-".into(), |f| show(f).into())
}

fn percent(permille: u16) -> String {
    format!("{} %", permille / 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dead_daemon_is_named_first() {
        let report = Report {
            cluster: "c".into(),
            node: "d1".into(),
            daemon_error: Some("it is dead".into()),
            backends: vec![BackendStatus {
                name: "b1".into(),
                address: "10.0.0.1".into(),
                state: NOT_KNOWN.into(),
                reason: String::new(),
                checks: vec![],
                history: vec![],
                ports_without_server: vec![],
                active: 1,
                total: 20,
                feedback: None,
                pools: vec![],
            }],
        };
        assert_eq!(
            report.to_string(),
            "d1, from its data path, because it is dead\n\
             backend  address   state  active  total  queue  cpu  memory  pools, weight  meaning\n\
             b1       10.0.0.1  ?           1     20      -    -       -  -              only the daemon knows\n"
        );
    }
}
