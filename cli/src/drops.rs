//! `trapeze drops`: which packets came to nothing, and why.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;
use trapeze_datapath::node::{Node, Role};
use trapeze_dispatcher::{Request, Status, ask};

use crate::nodes::PerNode;
use crate::pinned::{self, Counter};
use crate::table::{Column, Table, Tone};

/// Show how many packets were dropped, by reason, and what to do about it
///
/// The data path's counters are there while the daemon is dead, too; those of a
/// dispatcher's daemon begin anew with each start.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Show the reasons, too, for which nothing was dropped
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    nodes: PerNode,
}

/// One node's drops.
#[derive(Debug, Serialize)]
struct Report {
    cluster: String,
    node: String,
    role: &'static str,
    drops: Vec<Drop>,
    /// Why the daemon's are not among them.
    #[serde(skip_serializing_if = "Option::is_none")]
    daemon_error: Option<String>,
}

/// Packets dropped for one reason.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Drop {
    /// `data path` or `daemon`.
    by: &'static str,
    reason: &'static str,
    count: u64,
    /// It is part of the work.
    expected: bool,
    meaning: &'static str,
}

/// How the meaning of an expected drop ends.
const EXPECTED: &str = ": expected";

/// What a dispatcher's daemon counts and does not serve, and what that means.
#[rustfmt::skip]
const BY_DAEMON: &[(&str, &str)] = &[
    ("rejected", "to the daemon, but not our encapsulation or without a valid tag: forged, or another key"),
    ("too-early", "for the data path, and came before that was attached: comes again: expected"),
    ("malformed", "encapsulated for the daemon, and not what its kind says"),
    ("bad-checksum", "the client's packet was damaged: it comes again"),
    ("no-backend", "its record names a backend that is not there"),
    ("table-full", "no room for a flow record: raise limits.flows"),
    ("late-refusals", "a backend refused what has moved already: expected"),
    ("old-heartbeats", "a heartbeat repeated or overtaken: look at the agent's clock if they are many"),
    ("strange-heartbeats", "a heartbeat of a host that is no backend here: reload after changing the file"),
    ("heads-too-large", "a head larger than limits.head_bytes, answered so"),
    ("head-timeouts", "no whole head within limits.head_timeout, answered so"),
    ("ended-evicted", "a head given up for a newer one: raise limits.reading_bytes or reading_flows"),
    ("ended-unconfirmed", "no backend confirmed what the dispatcher had acknowledged: look at the backends"),
    ("ignored-bad-checksum", "damaged while its head was read: it comes again"),
    ("ignored-bad-flags", "TCP flags that do not belong after a handshake"),
    ("ignored-bad-ack", "acknowledges what was not sent"),
    ("ignored-outside-window", "beyond what the dispatcher takes"),
    ("ignored-empty", "no payload while its head was read: expected"),
    ("ignored-duplicate", "no new byte: the network or the client repeated it: expected"),
    ("ignored-full", "no room to read another head: raise limits.reading_bytes or reading_flows"),
    ("ignored-scattered", "a head in too many pieces out of order"),
    ("ignored-reset", "the client has reset it while its head was read: expected"),
    ("ignored-inexact-reset", "a reset in the window, but not where the client's must be: forged, or overtaken"),
];

/// Shows them.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let reports = args.nodes.report(|node| {
        let mut report = look(node)?;
        report.drops.retain(|drop| args.all || drop.count > 0);
        Ok(report)
    });
    reports.map(drop)
}

fn look(node: &Node) -> anyhow::Result<Report> {
    let counters = match node.role {
        Role::Spray => pinned::drops(&pinned::spray(node)?.drops)?,
        Role::Dispatcher => pinned::drops(&pinned::dispatcher(node)?.drops)?,
        Role::Agent => pinned::drops(&pinned::agent(node)?.drops)?,
    };
    let mut drops: Vec<Drop> = counters.iter().map(Drop::by_data_path).collect();
    let mut daemon_error = None;
    if node.role == Role::Dispatcher {
        match ask::<Status>(&node.control_socket(), &Request::Status) {
            Ok(status) => drops.extend(by_daemon(&status.counters)),
            Err(error) => daemon_error = Some(format!("{error:#}")),
        }
    }
    Ok(Report {
        cluster: node.cluster.clone(),
        node: node.name.clone(),
        role: node.role.name(),
        drops,
        daemon_error,
    })
}

/// How many of the data path's drops are part of the work, and how many are not.
pub fn expected_and_not(counters: &[Counter]) -> (u64, u64) {
    let sum = |expected| {
        let drops = counters.iter().map(Drop::by_data_path);
        drops
            .filter(|drop| drop.expected == expected)
            .map(|drop| drop.count)
            .sum()
    };
    (sum(true), sum(false))
}

fn by_daemon(counters: &BTreeMap<String, u64>) -> Vec<Drop> {
    (BY_DAEMON.iter())
        .map(|&(name, meaning)| {
            let count = counters.get(name).copied().unwrap_or(0);
            Drop::new("daemon", name, count, meaning)
        })
        .collect()
}

impl Drop {
    fn by_data_path(counter: &Counter) -> Self {
        Self::new("data path", counter.name, counter.count, counter.meaning)
    }

    fn new(by: &'static str, reason: &'static str, count: u64, meaning: &'static str) -> Self {
        let expected = meaning.strip_suffix(EXPECTED);
        Self {
            by,
            reason,
            count,
            expected: expected.is_some(),
            meaning: expected.unwrap_or(meaning),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.role, self.node)?;
        if let Some(error) = &self.daemon_error {
            write!(f, ", without its daemon's counters, because {error}")?;
        }
        if self.drops.is_empty() {
            return writeln!(f, ": no packet dropped");
        }
        writeln!(f)?;
        let mut table = Table::new(&[
            Column::Right("packets"),
            Column::Left("reason"),
            Column::Left("by"),
            Column::Left(""),
            Column::Left("meaning"),
        ]);
        for drop in &self.drops {
            let tone = match (drop.count, drop.expected) {
                (0, _) | (_, true) => Tone::Plain,
                (_, false) => Tone::Warning,
            };
            table.row([
                drop.count.into(),
                tone.cell(drop.reason),
                drop.by.into(),
                if drop.expected { "expected" } else { "" }.into(),
                drop.meaning.into(),
            ]);
        }
        table.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trapeze_core::intake::Counters;
    use trapeze_datapath::abi::DROP_REASONS;

    #[test]
    fn what_is_part_of_the_work_is_marked() {
        let expected: Vec<&str> = (DROP_REASONS.iter())
            .map(|&(name, meaning)| Drop::new("data path", name, 1, meaning))
            .filter(|drop| drop.expected)
            .map(|drop| drop.reason)
            .collect();
        assert_eq!(
            expected,
            [
                "handshake-ack",
                "moved",
                "server-close",
                "vacant",
                "unheard-of",
                "unread"
            ]
        );
    }

    /// The names above are strings: these are the intake's that have to be among them.
    #[test]
    fn all_that_the_intake_ignores_has_a_meaning() {
        for (name, _) in Counters::default().iter() {
            let name = name.replace('_', "-");
            if name.starts_with("ignored-") {
                assert!(BY_DAEMON.iter().any(|(known, _)| *known == name), "{name}");
            }
        }
        for (name, _) in BY_DAEMON
            .iter()
            .filter(|(name, _)| name.starts_with("ended-"))
        {
            let known = Counters::default()
                .iter()
                .any(|(n, _)| n.replace('_', "-") == *name);
            assert!(known, "{name}");
        }
    }

    #[test]
    fn counters_of_the_daemon_are_found_by_name() {
        let counters = BTreeMap::from([("rejected".into(), 3), ("packets".into(), 9)]);
        let drops = by_daemon(&counters);
        assert_eq!(drops.iter().map(|drop| drop.count).sum::<u64>(), 3);
    }
}
