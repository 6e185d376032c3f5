//! `trapeze flows`: the connections that a dispatcher has a record of.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::time::Duration;

use anyhow::ensure;
use clap::ValueEnum;
use serde::Serialize;
use trapeze_core::flow::FlowKey;
use trapeze_datapath::abi::{self, FlowState};
use trapeze_datapath::clock;
use trapeze_datapath::node::Node;

use crate::amount;
use crate::nodes::PerNode;
use crate::pinned::{self, Slot};
use crate::table::{Column, Table};

/// List the connections that a dispatcher has a record of, the latest seen first
///
/// Read from the data path: works while the daemon is dead, too. Packets and
/// bytes are the client's, without those that the daemon has forwarded (the
/// first request); answers go past the dispatcher.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Only this client's, by ADDRESS or ADDRESS:PORT
    #[arg(long, value_name = "ADDR")]
    client: Option<Client>,
    /// Only those of this backend
    #[arg(long, value_name = "NAME")]
    backend: Option<String>,
    /// Only those in this state
    #[arg(long)]
    state: Option<State>,
    /// List at most so many; 0: all
    #[arg(long, value_name = "N", default_value_t = 50)]
    limit: usize,
    #[command(flatten)]
    nodes: PerNode,
}

/// A client, with or without its port.
#[derive(Clone, Copy, Debug)]
struct Client {
    address: IpAddr,
    port: Option<u16>,
}

/// As `--state` takes it.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum State {
    /// Its head is being read
    Reading,
    /// It has a backend
    Established,
    /// As established, and the client has closed its side
    Closing,
    /// The client has reset it
    Reset,
}

/// One node's flows.
#[derive(Debug, Serialize)]
struct Report {
    cluster: String,
    node: String,
    /// Records in all.
    total: usize,
    /// Those that the options ask for.
    matching: usize,
    /// The latest of these.
    flows: Vec<Flow>,
}

/// One flow. Times in seconds.
#[derive(Debug, PartialEq, Serialize)]
struct Flow {
    client: SocketAddr,
    vip: SocketAddr,
    backend: Option<String>,
    state: &'static str,
    age_s: f64,
    idle_s: f64,
    packets: u64,
    bytes: u64,
}

/// Lists them.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let reports = args.nodes.report_dispatchers(|node| look(node, args));
    reports.map(drop)
}

fn look(node: &Node, args: &Args) -> anyhow::Result<Report> {
    let maps = pinned::dispatcher(node)?;
    let slots = pinned::slots(&maps)?;
    if let Some(name) = &args.backend {
        let known: Vec<&str> = slots.iter().map(|slot| slot.name.as_str()).collect();
        ensure!(
            known.contains(&name.as_str()),
            "no backend {name}: choose one of {}",
            known.join(", ")
        );
    }
    let limit = if args.limit == 0 {
        usize::MAX
    } else {
        args.limit
    };
    let (mut total, mut matching) = (0, 0);
    // The latest so far, the earliest of them on top. Kept by key and value:
    // there may be a million records.
    let mut latest = BinaryHeap::new();
    maps.flows.for_each(|key, flow| {
        total += 1;
        let key = FlowKey::from(key);
        if args.wants(&key, &flow, &slots) {
            matching += 1;
            latest.push(Reverse(Latest(flow.last_seen_ns, key, flow)));
            if latest.len() > limit {
                latest.pop();
            }
        }
    })?;
    let now = clock::monotonic();
    let flows = latest.into_sorted_vec().into_iter();
    Ok(Report {
        cluster: node.cluster.clone(),
        node: node.name.clone(),
        total,
        matching,
        flows: flows
            .map(|Reverse(Latest(_, key, flow))| Flow::new(&key, &flow, now, &slots))
            .collect(),
    })
}

impl Args {
    fn wants(&self, key: &FlowKey, flow: &abi::Flow, slots: &[Slot]) -> bool {
        self.client.is_none_or(|client| client.is(key.client))
            && (self.state).is_none_or(|state| FlowState::from_raw(flow.state) == Some(state.raw()))
            && (self.backend.as_deref()).is_none_or(|name| backend(flow, slots) == Some(name))
    }
}

/// The name of the flow's backend; one whose head is being read has none.
fn backend<'s>(flow: &abi::Flow, slots: &'s [Slot]) -> Option<&'s str> {
    if flow.state == FlowState::Reading as u32 {
        return None;
    }
    let slot = slots.iter().find(|slot| slot.index == flow.backend)?;
    Some(&slot.name)
}

/// In the order of time.
struct Latest(u64, FlowKey, abi::Flow);

impl Ord for Latest {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.cmp(&other.0)
    }
}

impl PartialOrd for Latest {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Latest {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl Eq for Latest {}

impl Flow {
    fn new(key: &FlowKey, flow: &abi::Flow, now: Duration, slots: &[Slot]) -> Self {
        let since = |ns: u64| now.saturating_sub(Duration::from_nanos(ns)).as_millis() as f64 / 1e3;
        Self {
            client: key.client,
            vip: key.vip,
            backend: backend(flow, slots).map(str::to_owned),
            state: FlowState::from_raw(flow.state).map_or("?", FlowState::name),
            age_s: since(flow.created_ns),
            // By a coarser clock.
            idle_s: since(flow.last_seen_ns.max(flow.created_ns)),
            packets: flow.packets,
            bytes: flow.bytes,
        }
    }
}

impl State {
    fn raw(self) -> FlowState {
        match self {
            Self::Reading => FlowState::Reading,
            Self::Established => FlowState::Established,
            Self::Closing => FlowState::ClientFin,
            Self::Reset => FlowState::Reset,
        }
    }
}

impl Client {
    fn is(self, client: SocketAddr) -> bool {
        self.address == client.ip() && self.port.is_none_or(|port| port == client.port())
    }
}

impl FromStr for Client {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(address) = text.parse::<IpAddr>() {
            return Ok(Self {
                address,
                port: None,
            });
        }
        match text.parse::<SocketAddr>() {
            Ok(client) => Ok(Self {
                address: client.ip(),
                port: Some(client.port()),
            }),
            Err(_) => Err("neither an address nor ADDRESS:PORT".into()),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = self.flows.len();
        write!(f, "{}: {}", self.node, amount::count(self.total, "flow"))?;
        if self.matching < self.total {
            write!(f, ", {} of them asked for", self.matching)?;
        }
        if shown < self.matching {
            write!(f, ", here the latest {shown} (--limit 0 for all)")?;
        }
        writeln!(f)?;
        if self.flows.is_empty() {
            return Ok(());
        }
        let mut table = Table::new(&[
            Column::Left("client"),
            Column::Left("service"),
            Column::Left("backend"),
            Column::Left("state"),
            Column::Right("age"),
            Column::Right("idle"),
            Column::Right("packets"),
            Column::Right("bytes"),
        ]);
        for flow in &self.flows {
            let time = |seconds| amount::time(Duration::from_secs_f64(seconds));
            table.row([
                flow.client.into(),
                flow.vip.into(),
                flow.backend.as_deref().unwrap_or("-").into(),
                flow.state.into(),
                time(flow.age_s).into(),
                time(flow.idle_s).into(),
                flow.packets.into(),
                amount::bytes(flow.bytes).into(),
            ]);
        }
        table.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_an_address_with_or_without_a_port() {
        let is = |client: &str, who: &str| {
            let client: Client = client.parse().unwrap();
            client.is(who.parse().unwrap())
        };
        assert!(is("10.0.0.1", "10.0.0.1:5"));
        assert!(is("10.0.0.1:5", "10.0.0.1:5"));
        assert!(!is("10.0.0.1:6", "10.0.0.1:5"));
        assert!(!is("10.0.0.2", "10.0.0.1:5"));
        assert!(is("::1", "[::1]:5"));
        assert!("b1".parse::<Client>().is_err());
    }

    #[test]
    fn the_text_says_what_was_left_out() {
        let report = Report {
            cluster: "c".into(),
            node: "d1".into(),
            total: 7,
            matching: 3,
            flows: vec![Flow {
                client: "10.0.0.1:5".parse().unwrap(),
                vip: "10.0.0.2:80".parse().unwrap(),
                backend: None,
                state: "reading",
                age_s: 61.0,
                idle_s: 0.25,
                packets: 3,
                bytes: 1234,
            }],
        };
        assert_eq!(
            report.to_string(),
            "d1: 7 flows, 3 of them asked for, here the latest 1 (--limit 0 for all)\n\
             client      service      backend  state      age  idle  packets   bytes\n\
             10.0.0.1:5  10.0.0.2:80  -        reading  1m01s  0.2s        3  1.2 kB\n"
        );
    }
}
