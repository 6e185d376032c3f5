//! `trapeze status`: this host's nodes at a glance.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::SocketAddr;
use std::time::SystemTime;

use serde::Serialize;
use trapeze_core::flow::addr_from_bytes;
use trapeze_datapath::abi::{FlowState, Service, ServiceKey};
use trapeze_datapath::diag;
use trapeze_datapath::dispatcher::DispatcherMaps;
use trapeze_datapath::map::Map;
use trapeze_datapath::node::{Node, Role};
use trapeze_dispatcher::{BackendStatus, Request, ask};
use trapeze_membership::MembershipStatus;

use crate::nodes::PerNode;
use crate::pinned::{self, Counter};
use crate::table::{Column, Table, Tone};
use crate::{amount, drops, file, members};

/// Show this host's nodes: daemon, configuration, connections, counters
///
/// What the data path keeps is shown while the daemon is dead, too.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    nodes: PerNode,
}

/// A node at this moment.
#[derive(Debug, Serialize)]
struct Report {
    cluster: String,
    node: String,
    role: &'static str,
    running: bool,
    pid: u32,
    /// Since the daemon's start, if it runs.
    uptime_s: Option<u64>,
    config: String,
    /// What its daemon or configuration would have told, and why not.
    problems: Vec<String>,
    events: Vec<Counter>,
    drops: Drops,
    #[serde(flatten)]
    part: Part,
}

/// Packets that the data path has dropped (`trapeze drops` has the reasons).
#[derive(Debug, Serialize)]
struct Drops {
    expected: u64,
    unexpected: u64,
}

/// What only nodes of its role have.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Part {
    Spray(members::Spray),
    Dispatcher {
        /// Service addresses.
        services: Vec<String>,
        flows: Flows,
        /// As the daemon knows it.
        daemon: Option<trapeze_dispatcher::Status>,
        /// How many backends are in each state.
        backends: BTreeMap<String, usize>,
        /// Sprays that ask this dispatcher whether it is there.
        sprays: Vec<members::Heard>,
    },
    Agent {
        /// Ports on which the configuration expects servers, if it is right.
        expected: Option<BTreeSet<u16>>,
        /// Those of them on which one listens.
        listening: BTreeSet<u16>,
    },
}

/// Flow records by state.
#[derive(Debug, Default, Serialize)]
struct Flows {
    reading: usize,
    established: usize,
    closing: usize,
    reset: usize,
    /// Without a backend until their next request.
    vacant: usize,
}

/// Shows them.
pub fn run(args: &Args) -> anyhow::Result<()> {
    args.nodes.report(look).map(drop)
}

fn look(node: &Node) -> anyhow::Result<Report> {
    let mut problems = Vec::new();
    let (events, drops, part) = match node.role {
        Role::Spray => {
            let maps = pinned::spray(node)?;
            let part = members::Spray::look(node, &maps, &mut problems)?;
            (maps.events, maps.drops, Part::Spray(part))
        }
        Role::Dispatcher => {
            let maps = pinned::dispatcher(node)?;
            let part = look_at_dispatcher(node, &maps, &mut problems)?;
            (maps.events, maps.drops, part)
        }
        Role::Agent => {
            let maps = pinned::agent(node)?;
            (maps.events, maps.drops, look_at_agent(node, &mut problems)?)
        }
    };
    let (expected, unexpected) = drops::expected_and_not(&pinned::drops(&drops)?);
    let running = node.is_running();
    Ok(Report {
        cluster: node.cluster.clone(),
        node: node.name.clone(),
        role: node.role.name(),
        running,
        pid: node.pid,
        uptime_s: running.then(|| uptime(node)).flatten(),
        config: node.config.display().to_string(),
        problems,
        events: pinned::events(&events)?,
        drops: Drops {
            expected,
            unexpected,
        },
        part,
    })
}

fn look_at_dispatcher(
    node: &Node,
    maps: &DispatcherMaps,
    problems: &mut Vec<String>,
) -> anyhow::Result<Part> {
    let mut flows = Flows::default();
    maps.flows.for_each(|_, flow| flows.count(flow.state))?;
    let (mut daemon, mut backends) = (None, BTreeMap::new());
    if node.is_running() {
        match ask_daemon(node) {
            Ok((status, list)) => {
                daemon = Some(status);
                for backend in list {
                    *backends.entry(backend.state).or_default() += 1;
                }
            }
            Err(error) => problems.push(format!("{error:#}")),
        }
    }
    Ok(Part::Dispatcher {
        services: service_addresses(&maps.services)?,
        flows,
        daemon,
        backends,
        sprays: members::heard(node, &maps.peers)?,
    })
}

fn ask_daemon(node: &Node) -> anyhow::Result<(trapeze_dispatcher::Status, Vec<BackendStatus>)> {
    let socket = node.control_socket();
    let status = ask(&socket, &Request::Status)?;
    Ok((status, ask(&socket, &Request::Backends)?))
}

/// The service addresses that a data path knows.
pub fn service_addresses(services: &Map<ServiceKey, Service>) -> anyhow::Result<Vec<String>> {
    let mut addresses: Vec<SocketAddr> = (services.all()?.iter())
        .map(|(key, _)| SocketAddr::new(addr_from_bytes(key.addr), u16::from_be_bytes(key.port)))
        // That stands for the address as a whole.
        .filter(|address| address.port() != 0)
        .collect();
    addresses.sort();
    Ok(addresses.iter().map(SocketAddr::to_string).collect())
}

fn look_at_agent(node: &Node, problems: &mut Vec<String>) -> anyhow::Result<Part> {
    let expected = match file::read(&node.config) {
        Ok(config) => Some(file::expected_ports(&config, &node.name)),
        Err(error) => {
            problems.push(format!("{error:#}"));
            None
        }
    };
    let listening = diag::listening_ports()?;
    Ok(Part::Agent {
        listening: (expected.iter().flatten())
            .filter(|port| listening.contains(port))
            .copied()
            .collect(),
        expected,
    })
}

fn uptime(node: &Node) -> Option<u64> {
    let since = node.since().ok()?;
    Some(SystemTime::now().duration_since(since).ok()?.as_secs())
}

impl Flows {
    fn count(&mut self, state: u32) {
        match FlowState::from_raw(state) {
            Some(FlowState::Reading) => self.reading += 1,
            Some(FlowState::Established) => self.established += 1,
            Some(FlowState::ClientFin) => self.closing += 1,
            Some(FlowState::Reset) => self.reset += 1,
            Some(FlowState::Vacant) => self.vacant += 1,
            None => {}
        }
    }

    fn by_state(&self) -> [(FlowState, usize); 5] {
        [
            (FlowState::Established, self.established),
            (FlowState::ClientFin, self.closing),
            (FlowState::Reset, self.reset),
            (FlowState::Vacant, self.vacant),
            (FlowState::Reading, self.reading),
        ]
    }
}

impl Report {
    fn daemon(&self) -> (Tone, String) {
        let uptime = self.uptime_s.map(std::time::Duration::from_secs);
        match (self.running, uptime) {
            (true, Some(uptime)) => (
                Tone::Good,
                format!("running for {}, process {}", amount::time(uptime), self.pid),
            ),
            (true, None) => (Tone::Good, format!("running, process {}", self.pid)),
            (false, _) => (
                Tone::Bad,
                format!(
                    "not running (it was process {}): {}",
                    self.pid,
                    match self.role {
                        "agent" =>
                            "connections go on, the dispatchers send no new ones; start `trapeze agent`",
                        "spray" =>
                            "packets go on as before, whoever dies meanwhile; start `trapeze spray`",
                        _ => "connections go on, new ones wait; start `trapeze dispatch`",
                    }
                ),
            ),
        }
    }
}

impl Part {
    fn add_to(&self, table: &mut Table) {
        match self {
            Self::Spray(spray) => spray.add_to(table),
            Self::Dispatcher {
                services,
                flows,
                daemon,
                backends,
                sprays,
            } => {
                table.row(["services".into(), joined(services).into()]);
                let states = flows.by_state().map(|(state, count)| (state.name(), count));
                let total: usize = states.iter().map(|(_, count)| count).sum();
                table.row(["flows".into(), with_total(total, states).into()]);
                if !sprays.is_empty() {
                    let sprays: Vec<String> = sprays.iter().map(ToString::to_string).collect();
                    table.row(["sprays".into(), sprays.join(", ").into()]);
                }
                if let Some(daemon) = daemon {
                    if !daemon.peers.is_empty() {
                        let all_well = daemon.keeps_flows && daemon.peers.iter().all(|p| p.fit);
                        let tone = if all_well { Tone::Good } else { Tone::Warning };
                        table.row(["peers".into(), tone.cell(peers(daemon))]);
                    }
                    if let Some((tone, gates)) = gates(daemon) {
                        table.row(["sub-cluster".into(), tone.cell(gates)]);
                    }
                    add_membership(table, daemon.membership.as_ref());
                    let held = amount::bytes(daemon.reading_bytes as u64);
                    let heads = format!(
                        "{} being read, {held} held; {} being answered by the dispatcher",
                        daemon.reading_flows, daemon.answering_flows
                    );
                    table.row(["heads".into(), heads.into()]);
                    if let Some(answers) = answers(daemon) {
                        table.row(["answers".into(), answers.into()]);
                    }
                    if let Some(requests) = requests(daemon) {
                        table.row(["requests".into(), requests.into()]);
                    }
                    let all_up = backends.keys().all(|state| state == "up");
                    let states = backends
                        .iter()
                        .map(|(state, &count)| (state.as_str(), count));
                    let text = with_total(backends.values().sum(), states);
                    let tone = if all_up { Tone::Good } else { Tone::Warning };
                    table.row(["backends".into(), tone.cell(text)]);
                    table.row(["reloads".into(), daemon.reloads.into()]);
                }
            }
            Self::Agent {
                expected,
                listening,
            } => {
                let Some(expected) = expected else { return };
                let silent: Vec<&u16> = expected.difference(listening).collect();
                let mut text = match expected.is_empty() {
                    true => "no service uses this backend".to_owned(),
                    false if listening.is_empty() => String::new(),
                    false => format!("listening on {}", joined(listening)),
                };
                if !silent.is_empty() {
                    let before = if text.is_empty() { "" } else { "; " };
                    text += &format!("{before}none on {}: start the server", joined(silent));
                    table.row(["servers".into(), Tone::Bad.cell(text)]);
                } else {
                    table.row(["servers".into(), Tone::Good.cell(text)]);
                }
            }
        }
    }
}

/// What has been counted under that name.
fn counted(daemon: &trapeze_dispatcher::Status, name: &str) -> u64 {
    daemon.counters.get(name).copied().unwrap_or(0)
}

/// Answers that outlive their backends, and what has not; none if nothing protects any.
fn answers(daemon: &trapeze_dispatcher::Status) -> Option<String> {
    let of = |name| counted(daemon, name);
    let failed = ["not-taken-over", "not-same"].map(of);
    if of("updates") == 0 && failed == [0; 2] {
        return None;
    }
    let mut text = format!(
        "{} could outlive their backend now, {} kept for that; told of {} times; {} taken over, {} of them by plan",
        daemon.protected_answers,
        amount::bytes(daemon.protected_bytes as u64),
        of("updates"),
        of("taken-over"),
        of("migrated")
    );
    let more = [
        (
            "moved-from-down",
            ", {} from servers that failed their checks",
        ),
        ("not-taken-over", "; {} not taken over"),
        ("not-same", "; {} times a backend did not have the same"),
    ];
    for (name, said) in more {
        if of(name) > 0 {
            text += &said.replace("{}", &of(name).to_string());
        }
    }
    if failed != [0; 2] {
        text += " (the log says why)";
    }
    Some(text)
}

/// Requests that outlive their backends, and what has not; none if none was kept.
fn requests(daemon: &trapeze_dispatcher::Status) -> Option<String> {
    let of = |name| counted(daemon, name);
    if ["kept-requests", "retried", "not-retried"].map(of) == [0; 3] {
        return None;
    }
    let mut text = format!(
        "{} kept until they are answered; {} retried that had died with their backends",
        daemon.kept_requests,
        of("retried"),
    );
    let more = [
        ("not-retried", "; {} not retried (the log says why)"),
        ("not-kept-requests", "; {} were too much to be kept"),
    ];
    for (name, said) in more {
        if of(name) > 0 {
            text += &said.replace("{}", &of(name).to_string());
        }
    }
    Some(text)
}

/// Members by etcd, and what is wrong there.
pub fn add_membership(table: &mut Table, membership: Option<&MembershipStatus>) {
    let Some(status) = membership else { return };
    let since = amount::time(std::time::Duration::from_millis(status.for_ms));
    let lapsed = status.members.iter().filter(|member| member.lapsed);
    let lapsed: Vec<&str> = lapsed.map(|member| &*member.name).collect();
    let mut text = match (status.connected, status.registered) {
        (true, true) => format!("connected to {} for {since}, registered", status.endpoint),
        (true, false) => format!(
            "connected to {} for {since}, not registered",
            status.endpoint
        ),
        (false, _) => format!("away for {since}, the members stay"),
    };
    text += &format!("; {}", amount::count(status.members.len(), "member"));
    if !lapsed.is_empty() {
        text += &format!(", no longer registered: {}", lapsed.join(", "));
    }
    let is_well = status.connected && status.registered && lapsed.is_empty();
    let tone = if is_well { Tone::Good } else { Tone::Warning };
    table.row(["etcd".into(), tone.cell(text)]);
    if let Some(problem) = &status.problem {
        table.row(["".into(), Tone::Bad.cell(problem.as_str())]);
    }
    for refused in &status.refused {
        let text = format!("{} does not count: {}", refused.key, refused.why);
        table.row(["".into(), Tone::Bad.cell(text)]);
    }
}

/// Its sub-cluster, and to whom it passes the packets of others.
fn gates(daemon: &trapeze_dispatcher::Status) -> Option<(Tone, String)> {
    let gates = &daemon.gates;
    if gates.is_empty() && daemon.sub_cluster == 0 {
        return None;
    }
    let own = match daemon.sub_cluster {
        0 => "0, the front end".to_owned(),
        number => number.to_string(),
    };
    let gate = |gate: &trapeze_dispatcher::PeerStatus| {
        format!(
            "{} of {} ({}, {} lots)",
            gate.name, gate.sub_cluster, gate.state, gate.lots
        )
    };
    let all: Vec<String> = gates.iter().map(gate).collect();
    let is_well = gates.iter().all(|gate| gate.state == "alive");
    let tone = if is_well { Tone::Good } else { Tone::Warning };
    Some((tone, format!("{own}; passes to {}", all.join(", "))))
}

/// The other dispatchers, and how many of 65,536 lots each keeps the flows of.
fn peers(daemon: &trapeze_dispatcher::Status) -> String {
    let peer = |peer: &trapeze_dispatcher::PeerStatus| {
        let state = match (&*peer.state, peer.fit) {
            ("alive", false) => "not fit",
            (state, _) => state,
        };
        format!("{} ({state}, {} lots)", peer.name, peer.lots)
    };
    let all: Vec<String> = daemon.peers.iter().map(peer).collect();
    let own = match (daemon.caught_up, daemon.keeps_flows) {
        (false, _) => "catching up; ",
        (true, false) => "joining; ",
        (true, true) => "",
    };
    format!("{own}{}", all.join(", "))
}

fn with_total<'a>(total: usize, parts: impl IntoIterator<Item = (&'a str, usize)>) -> String {
    let parts: Vec<String> = (parts.into_iter())
        .filter(|(_, count)| *count > 0)
        .map(|(name, count)| format!("{count} {name}"))
        .collect();
    match parts.is_empty() {
        true => total.to_string(),
        false => format!("{total}: {}", parts.join(", ")),
    }
}

fn joined<T: ToString>(items: impl IntoIterator<Item = T>) -> String {
    let items: Vec<String> = items.into_iter().map(|item| item.to_string()).collect();
    match items.is_empty() {
        true => "none".into(),
        false => items.join(", "),
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} {} of cluster {}", self.role, self.node, self.cluster)?;
        let mut table = Table::new(&[Column::Left(""), Column::Left("")]).indented(2);
        let (tone, daemon) = self.daemon();
        table.row(["daemon".into(), tone.cell(daemon)]);
        table.row(["config".into(), self.config.as_str().into()]);
        self.part.add_to(&mut table);
        let drops = format!(
            "{} unexpected, {} expected (trapeze drops)",
            self.drops.unexpected, self.drops.expected
        );
        table.row(["drops".into(), drops.into()]);
        table.fmt(f)?;
        if let Part::Spray(spray) = &self.part {
            spray.tables().try_for_each(|table| table.fmt(f))?;
        }
        for problem in &self.problems {
            writeln!(f, "  {}", Tone::Bad.paint(problem, f.alternate()))?;
        }
        let mut table = Table::new(&[Column::Right(""), Column::Left(""), Column::Left("")]);
        for event in self.events.iter().filter(|event| event.count > 0) {
            table.row([event.count.into(), event.name.into(), event.meaning.into()]);
        }
        table.indented(2).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agent(expected: &[u16], listening: &[u16]) -> Report {
        Report {
            cluster: "c".into(),
            node: "b1".into(),
            role: "agent",
            running: false,
            pid: 7,
            uptime_s: None,
            config: "/c.toml".into(),
            problems: vec!["a problem".into()],
            events: vec![],
            drops: Drops {
                expected: 1,
                unexpected: 2,
            },
            part: Part::Agent {
                expected: Some(expected.iter().copied().collect()),
                listening: listening.iter().copied().collect(),
            },
        }
    }

    #[test]
    fn what_is_wrong_is_said_with_what_to_do() {
        let text = agent(&[80, 443], &[80]).to_string();
        assert!(text.contains("start `trapeze agent`"), "{text}");
        let servers = "  servers  listening on 80; none on 443: start the server\n";
        assert!(text.contains(servers), "{text}");
        assert!(text.contains("  a problem\n"), "{text}");
    }

    #[test]
    fn json_is_flat() {
        let json = serde_json::to_value(agent(&[80], &[])).unwrap();
        assert_eq!(json["expected"][0], 80);
        assert_eq!(json["drops"]["unexpected"], 2);
        assert_eq!(json["running"], false);
    }

    fn dispatcher(counters: serde_json::Value) -> trapeze_dispatcher::Status {
        serde_json::from_value(serde_json::json!({
            "reloads": 0, "reading_flows": 0, "reading_bytes": 0, "answering_flows": 0,
            "services": [], "counters": counters,
        }))
        .expect("a status")
    }

    #[test]
    fn what_did_not_outlive_its_backend_is_said_where_there_is_any() {
        let of = |counters| {
            let status = dispatcher(counters);
            [answers(&status), requests(&status)]
        };
        assert_eq!(of(serde_json::json!({})), [None, None]);
        let well = of(serde_json::json!({
            "updates": 9, "taken-over": 4, "migrated": 4, "kept-requests": 7, "retried": 2,
        }));
        let [answers, requests] = well.map(|text| text.expect("a row"));
        assert!(
            answers.ends_with("; 4 taken over, 4 of them by plan"),
            "{answers}"
        );
        assert_eq!(
            requests,
            "0 kept until they are answered; 2 retried that had died with their backends"
        );
        let ill = of(serde_json::json!({
            "updates": 9, "taken-over": 12, "moved-from-down": 12, "not-taken-over": 3,
            "not-same": 5, "not-retried": 6, "not-kept-requests": 1,
        }));
        let [answers, requests] = ill.map(|text| text.expect("a row"));
        let said = "; 12 taken over, 0 of them by plan, 12 from servers that failed their checks; \
                    3 not taken over; 5 times a backend did not have the same (the log says why)";
        assert!(answers.ends_with(said), "{answers}");
        let said = "; 6 not retried (the log says why); 1 were too much to be kept";
        assert!(requests.ends_with(said), "{requests}");
    }

    #[test]
    fn states_without_a_flow_are_left_out() {
        let states = [("established", 2), ("reset", 0), ("reading", 1)];
        assert_eq!(with_total(3, states), "3: 2 established, 1 reading");
        assert_eq!(with_total(0, []), "0");
    }
}
