//! What a spray knows of dispatchers and the other sprays, and dispatchers of sprays, for
//! `trapeze status` and `trapeze explain`.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, ensure};
use serde::Serialize;
use trapeze_core::flow::addr_from_bytes;
use trapeze_core::membership::Presence;
use trapeze_datapath::abi::{DISPATCHERS_MAX, Peer, Server};
use trapeze_datapath::clock;
use trapeze_datapath::control::ask;
use trapeze_datapath::map::Map;
use trapeze_datapath::node::Node;
use trapeze_datapath::spray::SprayMaps;
use trapeze_spray::{Explained, MemberStatus, Question, Request, Status};

use crate::table::{Cell, Column, Table, Tone};
use crate::{explain, file, status};

/// The number of a dispatcher's role, as heartbeats tell it.
const DISPATCHER: u32 = 2;
/// After so long without a question a spray is not shown any more.
const FORGOTTEN: Duration = Duration::from_secs(60);

/// What only sprays have.
#[derive(Debug, Serialize)]
pub struct Spray {
    /// Service addresses.
    services: Vec<String>,
    /// As the daemon knows it.
    spray: Option<Status>,
    /// Without it: what the data path has, by dispatcher.
    dispatchers: Vec<MemberStatus>,
}

/// A node that asks this one whether it is there.
#[derive(Debug, Serialize)]
pub struct Heard {
    /// Its name, if the configuration has it.
    name: Option<String>,
    address: String,
    /// What it said of itself.
    says: Option<&'static str>,
    ms_ago: u64,
}

impl Spray {
    /// Looks at a spray of this host.
    pub fn look(node: &Node, maps: &SprayMaps, problems: &mut Vec<String>) -> anyhow::Result<Self> {
        let mut spray: Option<Status> = None;
        if node.is_running() {
            match ask(&node.control_socket(), &Request::Status) {
                Ok(status) => spray = Some(status),
                Err(error) => problems.push(error.to_string()),
            }
        }
        Ok(Self {
            services: status::service_addresses(&maps.services)?,
            dispatchers: match &spray {
                Some(status) => status.dispatchers.clone(),
                None => pinned_dispatchers(maps)?,
            },
            spray,
        })
    }

    /// Its lines at the head of the report.
    pub fn add_to(&self, table: &mut Table) {
        table.row(["services".into(), self.services.join(", ").into()]);
        let Some(spray) = &self.spray else { return };
        let (tone, meaning) = match (&*spray.state, spray.has_addresses) {
            ("active", _) => (Tone::Good, "active: the service addresses are here"),
            ("standby", _) => (
                Tone::Good,
                "standby: another spray has the service addresses",
            ),
            (_, true) => (
                Tone::Warning,
                "yielding: the service addresses are here still",
            ),
            (_, false) => (Tone::Warning, "yielding: it hears no dispatcher"),
        };
        table.row(["state".into(), tone.cell(meaning)]);
        let mode = format!("{}, heartbeats every {} ms", spray.mode, spray.heartbeat_ms);
        table.row(["spraying".into(), mode.into()]);
        if !spray.left.is_empty() {
            let left: Vec<String> = spray.left.iter().map(ToString::to_string).collect();
            let what = format!("{}, from where connections to servers are", left.join(", "));
            table.row(["of who has left".into(), what.into()]);
        }
        if spray.sent_again > 0 {
            let what = format!("{} packets that dead dispatchers had", spray.sent_again);
            table.row(["sent again".into(), what.into()]);
        }
        status::add_membership(table, spray.membership.as_ref());
        table.row(["reloads".into(), spray.reloads.into()]);
    }

    /// Whom it knows.
    pub fn tables(&self) -> impl Iterator<Item = Table> {
        let others = self.spray.iter().map(|status| &status.sprays[..]);
        let others = others.filter(|sprays| !sprays.is_empty());
        [dispatchers(&self.dispatchers)]
            .into_iter()
            .chain(others.map(sprays).collect::<Vec<_>>())
    }
}

fn dispatchers(members: &[MemberStatus]) -> Table {
    let mut table = Table::new(&[
        Column::Left("dispatcher"),
        Column::Left("address"),
        Column::Left("state"),
        Column::Right("heard"),
        Column::Right("workload factor"),
        Column::Right("lots"),
        Column::Right("packets"),
    ]);
    for member in members {
        let factor = member.workload_permille.map(|w| f32::from(w) / 1e3);
        table.row([
            member.name.as_str().into(),
            member.address.as_str().into(),
            state(member),
            or_dash(member.heard_ms_ago.map(|ms| format!("{ms} ms ago"))),
            or_dash(factor.map(|factor| format!("{factor:.3}"))),
            or_dash(member.lots),
            or_dash(member.packets),
        ]);
    }
    table.indented(2)
}

fn sprays(members: &[MemberStatus]) -> Table {
    let mut table = Table::new(&[
        Column::Left("spray"),
        Column::Left("address"),
        Column::Left("state"),
        Column::Right("heard"),
        Column::Left("says"),
    ]);
    for member in members {
        table.row([
            member.name.as_str().into(),
            member.address.as_str().into(),
            state(member),
            or_dash(member.heard_ms_ago.map(|ms| format!("{ms} ms ago"))),
            or_dash(member.says.as_ref()),
        ]);
    }
    table.indented(2)
}

fn state(member: &MemberStatus) -> Cell {
    let tone = match &*member.state {
        "alive" => Tone::Good,
        "silent" => Tone::Bad,
        _ => Tone::Warning,
    };
    tone.cell(member.state.as_str())
}

fn or_dash(value: Option<impl ToString>) -> Cell {
    value.map_or_else(|| "-".into(), |value| value.to_string().into())
}

/// What the data path knows while there is no daemon.
fn pinned_dispatchers(maps: &SprayMaps) -> anyhow::Result<Vec<MemberStatus>> {
    let lots = maps.lots.get(&0)?.context("there are no lots")?;
    let packets = maps.sprayed.sums()?;
    let mut members = Vec::new();
    for slot in 0..DISPATCHERS_MAX as u32 {
        let Some(entry) = maps.dispatchers.get(&slot)? else {
            continue;
        };
        if entry.name().is_empty() {
            continue;
        }
        let own = lots.slots.iter().filter(|&&of| u32::from(of) == slot);
        members.push(MemberStatus {
            name: entry.name().to_owned(),
            address: addr_from_bytes(entry.addr).to_string(),
            state: if entry.live == 1 { "alive" } else { "silent" }.into(),
            says: None,
            workload_permille: None,
            heard_ms_ago: None,
            lots: Some(own.count()),
            packets: packets.get(slot as usize).copied(),
        });
    }
    Ok(members)
}

/// The sprays that have asked this node lately.
pub fn heard(node: &Node, peers: &Map<Server, Peer>) -> anyhow::Result<Vec<Heard>> {
    let config = file::read(&node.config).ok();
    let now = clock::monotonic();
    let mut heard = Vec::new();
    for (asker, peer) in peers.all()? {
        let ago = now.saturating_sub(Duration::from_nanos(peer.heard_ns));
        // Other dispatchers' daemons tell more of each other than that they ask.
        if ago > FORGOTTEN || peer.role == DISPATCHER {
            continue;
        }
        let address = addr_from_bytes(asker.addr);
        let named = config.iter().flat_map(|config| &config.sprays);
        let name = named.clone().find(|spray| spray.address == address);
        let said = u8::try_from(peer.role)
            .ok()
            .and_then(|role| Presence::of(role, peer.said));
        heard.push(Heard {
            name: name.map(|spray| spray.name.clone()),
            address: address.to_string(),
            says: match said {
                Some(Presence::Spray(state)) => Some(state.name()),
                _ => None,
            },
            ms_ago: ago.as_millis() as u64,
        });
    }
    heard.sort_by(|a, b| (&a.name, &a.address).cmp(&(&b.name, &b.address)));
    Ok(heard)
}

impl fmt::Display for Heard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name.as_ref().unwrap_or(&self.address);
        let says = self.says.unwrap_or("of no known kind");
        write!(f, "{name} ({says}, {} ms ago)", self.ms_ago)
    }
}

/// Which dispatcher has a connection, for showing.
#[derive(Debug, Serialize)]
pub struct Report {
    client: SocketAddr,
    vip: SocketAddr,
    #[serde(flatten)]
    explained: Explained,
}

/// Asks a spray where a connection's packets go.
pub fn explain(node: &Node, args: &explain::Args) -> anyhow::Result<Report> {
    let config = file::read(&node.config)?;
    let services: Vec<SocketAddr> = config.services.iter().map(|s| s.address).collect();
    let vip = args.vip(&services)?;
    ensure!(
        vip.is_some(),
        "there are several services: choose one with --vip"
    );
    let question = Question {
        client: args.client(),
        vip: vip.expect("just looked"),
    };
    let explained = ask(&node.control_socket(), &Request::Explain(question))?;
    Ok(Report {
        client: question.client,
        vip: question.vip,
        explained,
    })
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Explained {
            mode,
            lot,
            dispatcher,
        } = &self.explained;
        writeln!(f, "from {} to {}, mode {mode}", self.client, self.vip)?;
        match (lot, dispatcher) {
            (Some(lot), Some(name)) => writeln!(f, "  lot {lot}\ndispatcher {name}"),
            (Some(lot), None) => writeln!(f, "  lot {lot}, which nobody has\nno dispatcher"),
            (None, _) => writeln!(f, "each packet may go to another dispatcher"),
        }
    }
}
