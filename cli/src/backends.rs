//! `trapeze backends`: who serves, and how a dispatcher sees them.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use trapeze_datapath::node::Node;
use trapeze_dispatcher::{BackendStatus, FeedbackStatus, Request, ask};

use crate::amount;
use crate::nodes::PerNode;
use crate::pinned;
use crate::table::{Cell, Column, Table, Tone};

/// List the backends, their state and their connections, as a dispatcher sees them
///
/// Without a running daemon names and connections come from the data path; who
/// is alive is not known then.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Also how their servers are checked, and what they were before
    #[arg(long)]
    history: bool,
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
    /// People are shown it; --json has it always.
    #[serde(skip)]
    with_history: bool,
}

/// Not in the configuration any more.
const REMOVED: &str = "removed";
/// There is no daemon to ask.
const NOT_KNOWN: &str = "?";

/// Lists them.
pub fn run(args: &Args) -> anyhow::Result<()> {
    (args.nodes)
        .report_dispatchers(|node| look(node, args.history))
        .map(drop)
}

fn look(node: &Node, with_history: bool) -> anyhow::Result<Report> {
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
                slow_start: None,
                stalls: 0,
                resets: 0,
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
        with_history,
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
                [] if backend.state == "up" && backend.slow_start.is_some() => {
                    let percent = backend.slow_start.unwrap_or(100);
                    format!("{meaning}, {percent} % of its share so far: slow start")
                }
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
        table.fmt(f)?;
        if self.with_history {
            self.show_checks(f)?;
            self.show_history(f)?;
        }
        Ok(())
    }
}

impl Report {
    fn show_checks(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new(&[
            Column::Left("check of"),
            Column::Left("pool"),
            Column::Right("port"),
            Column::Left("asked at"),
            Column::Left("by its"),
            Column::Left("state"),
            Column::Left("last"),
        ])
        .indented(2);
        let each = (self.backends.iter()).flat_map(|b| b.checks.iter().map(move |c| (b, c)));
        for (backend, check) in each.clone() {
            table.row([
                backend.name.as_str().into(),
                check.pool.as_str().into(),
                u64::from(check.port).into(),
                check.address.as_str().into(),
                check.by.as_str().into(),
                meaning(&check.state).1.cell(check.state.as_str()),
                check.last.clone().unwrap_or_else(|| "-".into()).into(),
            ]);
        }
        match each.count() {
            0 => Ok(()),
            _ => write!(f, "\n{table}"),
        }
    }

    fn show_history(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let now_ms = SystemTime::now().duration_since(UNIX_EPOCH);
        let now_ms = now_ms.map_or(0, |now| now.as_millis() as u64);
        let mut table = Table::new(&[
            Column::Right("ago"),
            Column::Left("backend"),
            Column::Left("was"),
            Column::Left("became"),
            Column::Left("because"),
        ])
        .indented(2);
        let each = self.backends.iter();
        let mut changes: Vec<_> = each
            .flat_map(|b| b.history.iter().map(move |change| (b, change)))
            .collect();
        changes.sort_by_key(|(_, change)| change.at_ms);
        for (backend, change) in &changes {
            let ago = Duration::from_millis(now_ms.saturating_sub(change.at_ms));
            table.row([
                amount::time(ago).into(),
                backend.name.as_str().into(),
                change.from.as_str().into(),
                meaning(&change.to).1.cell(change.to.as_str()),
                match change.times {
                    1 => change.reason.as_str().into(),
                    times => format!("{} ({times} times)", change.reason).into(),
                },
            ]);
        }
        match changes.is_empty() {
            true => writeln!(f, "\n  no changes since the daemon began"),
            false => write!(f, "\n{table}"),
        }
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
                slow_start: None,
                stalls: 0,
                resets: 0,
                history: vec![],
                ports_without_server: vec![],
                active: 1,
                total: 20,
                feedback: None,
                pools: vec![],
            }],
            with_history: false,
        };
        assert_eq!(
            report.to_string(),
            "d1, from its data path, because it is dead\n\
             backend  address   state  active  total  queue  cpu  memory  pools, weight  meaning\n\
             b1       10.0.0.1  ?           1     20      -    -       -  -              only the daemon knows\n"
        );
    }

    #[test]
    fn a_backend_that_failed_says_why_and_when() {
        let at_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let change = trapeze_dispatcher::Change {
            at_ms: at_ms.as_millis() as u64 - 90_000,
            from: "up".into(),
            to: "down".into(),
            reason: "web:80: status 503".into(),
            times: 12,
        };
        let check = trapeze_dispatcher::CheckStatus {
            pool: "web".into(),
            port: 80,
            address: "10.0.0.100:80".into(),
            by: "agent".into(),
            state: "down".into(),
            last: Some("status 503".into()),
        };
        let report = Report {
            cluster: "c".into(),
            node: "d1".into(),
            daemon_error: None,
            backends: vec![BackendStatus {
                name: "b1".into(),
                address: "10.0.0.1".into(),
                state: "down".into(),
                reason: "web:80: status 503".into(),
                checks: vec![check],
                slow_start: None,
                stalls: 0,
                resets: 0,
                history: vec![change],
                ports_without_server: vec![],
                active: 1,
                total: 20,
                feedback: None,
                pools: vec![("web".into(), 1)],
            }],
            with_history: true,
        };
        let shown = report.to_string();
        for line in [
            "its server fails its checks: web:80: status 503",
            "b1        web     80  10.0.0.100:80  agent   down   status 503",
            "1m30s  b1       up   down    web:80: status 503 (12 times)",
        ] {
            assert!(shown.contains(line), "{shown}");
        }
    }
}
