//! What the daemon answers to questions of the command line.

use std::net::{IpAddr, SocketAddr};
use std::os::unix::net::UnixListener;

use anyhow::Context;
use serde::{Deserialize, Serialize};
use trapeze_core::config::SprayMode;
use trapeze_core::flow::FlowKey;
use trapeze_core::membership::lots;
use trapeze_datapath::control;
use trapeze_membership::MembershipStatus;

use crate::Shared;
use crate::plan::MemberRole;

/// A question.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Request {
    /// How is the daemon, and whom does it hear?
    Status,
    /// Which dispatcher has this connection?
    Explain(Question),
    /// Read the configuration again.
    Reload,
}

/// A connection.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Question {
    /// The client's address and port.
    pub client: SocketAddr,
    /// The service's.
    pub vip: SocketAddr,
}

/// Where its packets go.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Explained {
    /// As configured.
    pub mode: String,
    /// Its lot, in the mode `flow-hash`.
    pub lot: Option<usize>,
    /// Whose that is.
    pub dispatcher: Option<String>,
}

/// How the daemon is.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Status {
    /// `standby`, `active` or `yielding`.
    pub state: String,
    /// Whether it has the service addresses.
    pub has_addresses: bool,
    /// `flow-hash`, `batch` or `workload`.
    pub mode: String,
    /// Between heartbeats.
    pub heartbeat_ms: u64,
    /// Reloads since the start.
    pub reloads: u64,
    /// Packets that had gone to dispatchers that were found dead, sent to others since this daemon's start.
    #[serde(default)]
    pub sent_again: u64,
    /// As it hears them.
    pub dispatchers: Vec<MemberStatus>,
    /// The others.
    pub sprays: Vec<MemberStatus>,
    /// Splice addresses that it serves for dispatchers that have left.
    #[serde(default)]
    pub left: Vec<IpAddr>,
    /// Members by etcd, if they are configured.
    #[serde(default)]
    pub membership: Option<MembershipStatus>,
}

/// Somebody whom the daemon asks.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MemberStatus {
    /// Its name.
    pub name: String,
    /// Its address.
    pub address: String,
    /// `alive`, `silent` or `unknown`.
    pub state: String,
    /// What another spray says of itself.
    pub says: Option<String>,
    /// Capacity that a dispatcher has to spare, in thousandths, if its daemon says so.
    pub workload_permille: Option<u16>,
    /// Since its latest answer.
    pub heard_ms_ago: Option<u64>,
    /// How many of the 65536 lots are a dispatcher's.
    pub lots: Option<usize>,
    /// Packets sent to it since the data path was loaded.
    pub packets: Option<u64>,
}

/// Serves for the life of the process.
pub(crate) fn serve(listener: &UnixListener, shared: &Shared) {
    control::serve(listener, |request| respond(request, shared));
}

fn respond(request: Request, shared: &Shared) -> anyhow::Result<serde_json::Value> {
    Ok(match request {
        Request::Status => {
            let status = shared.status.lock().expect("no thread panics with it");
            let membership = shared.membership.as_ref().map(|m| m.status());
            serde_json::to_value(Status {
                membership,
                ..status.clone()
            })?
        }
        Request::Explain(question) => serde_json::to_value(explain(shared, question)?)?,
        Request::Reload => {
            shared.reload()?;
            serde_json::Value::Null
        }
    })
}

fn explain(shared: &Shared, question: Question) -> anyhow::Result<Explained> {
    let plan = shared.plan();
    let mode = plan.config.spraying.mode;
    let flow = FlowKey {
        client: question.client,
        vip: question.vip,
    };
    let by_hash = mode == SprayMode::FlowHash;
    let lot = by_hash
        .then(|| lots::lot_of(&plan.lots_key, &flow))
        .flatten();
    let table = shared
        .maps
        .lots
        .get(&0)?
        .context("the lots are not dealt")?;
    let slot = lot.map(|lot| table.slots[lot]);
    let dispatcher = slot.and_then(|slot| {
        let member = |m: &&crate::plan::Member| m.role == MemberRole::Dispatcher(slot);
        plan.members.iter().find(member)
    });
    Ok(Explained {
        mode: mode.name().to_owned(),
        lot,
        dispatcher: dispatcher.map(|member| member.name.clone()),
    })
}
