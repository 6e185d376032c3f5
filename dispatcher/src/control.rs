//! What the daemon answers to questions of the command line.

use std::os::unix::net::UnixListener;

use serde::{Deserialize, Serialize};
use trapeze_core::config::Member;
use trapeze_core::policy::{self, BackendId, Feedback};
use trapeze_datapath::control;
use trapeze_membership::MembershipStatus;

use crate::cluster::Cluster;
use crate::explain::{Question, View, explain};
use crate::health::{Health, State};
use crate::peers::Stage;
use crate::{Shared, drain};

/// A question.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Request {
    /// How is the daemon?
    Status,
    /// Which backends are there, and how are they?
    Backends,
    /// Where would this go, and why?
    Explain(Question),
    /// Read the configuration again.
    Reload,
    /// This backend is to have no connections.
    Drain(String),
    /// It may have connections again.
    Undrain(String),
    /// What has this backend left, that is drained?
    Left(String),
}

/// How the daemon is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Status {
    /// Reloads since the start.
    pub reloads: u64,
    /// Heads being read now.
    pub reading_flows: usize,
    /// Bytes held for them.
    pub reading_bytes: usize,
    /// Connections that are being answered by the dispatcher itself.
    pub answering_flows: usize,
    /// Answers in progress that another backend could go on with now.
    #[serde(default)]
    pub protected_answers: usize,
    /// Bytes that are kept of them.
    #[serde(default)]
    pub protected_bytes: usize,
    /// What the workers have counted.
    pub counters: std::collections::BTreeMap<String, u64>,
    /// Service addresses.
    pub services: Vec<String>,
    /// The other dispatchers.
    #[serde(default)]
    pub peers: Vec<crate::PeerStatus>,
    /// What they have been told.
    #[serde(default)]
    pub told: crate::Told,
    /// All their records are here.
    #[serde(default)]
    pub caught_up: bool,
    /// It keeps its share of flows.
    #[serde(default)]
    pub keeps_flows: bool,
    /// Members by etcd, if they are configured.
    #[serde(default)]
    pub membership: Option<MembershipStatus>,
}

/// A backend, as the dispatcher sees it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BackendStatus {
    /// Its name.
    pub name: String,
    /// Its address.
    pub address: String,
    /// `up`, `unknown`, `silent`, `no-server`, `busy` or `drained`.
    pub state: String,
    /// The ports at which no server listened a moment ago.
    #[serde(default)]
    pub ports_without_server: Vec<u16>,
    /// Connections open now.
    pub active: u64,
    /// Connections given to it so far.
    pub total: u64,
    /// How busy its agent finds its host; none if it has not said so lately.
    #[serde(default)]
    pub feedback: Option<FeedbackStatus>,
    /// The pools that it is in, with its weight.
    pub pools: Vec<(String, u16)>,
}

/// How busy an agent finds its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FeedbackStatus {
    /// Connections that the server has not accepted yet.
    pub accept_queue: u16,
    /// Busy time of all processors, thousandths, over a second or so.
    pub cpu_permille: u16,
    /// Memory that could not be had without swapping, thousandths.
    pub memory_permille: u16,
}

impl From<Feedback> for FeedbackStatus {
    fn from(feedback: Feedback) -> Self {
        FeedbackStatus {
            accept_queue: feedback.accept_queue,
            cpu_permille: feedback.cpu_permille,
            memory_permille: feedback.memory_permille,
        }
    }
}

/// Serves for the life of the process.
pub(crate) fn serve(listener: &UnixListener, shared: &Shared) {
    control::serve(listener, |request| respond(request, shared));
}

fn respond(request: Request, shared: &Shared) -> anyhow::Result<serde_json::Value> {
    Ok(match request {
        Request::Status => serde_json::to_value(status(shared))?,
        Request::Backends => serde_json::to_value(backends(shared))?,
        Request::Reload => {
            shared.reload()?;
            serde_json::Value::Null
        }
        Request::Drain(name) => serde_json::to_value(drain::set(shared, &name, true)?)?,
        Request::Undrain(name) => serde_json::to_value(drain::set(shared, &name, false)?)?,
        Request::Left(name) => serde_json::to_value(drain::left(shared, &name)?)?,
        Request::Explain(question) => {
            let cluster = shared.cluster();
            let view = Live {
                cluster: &cluster,
                health: &shared.health,
            };
            serde_json::to_value(explain(&cluster.config, &view, &question)?)?
        }
    })
}

fn status(shared: &Shared) -> Status {
    let figures = shared
        .intake
        .lock()
        .expect("no thread panics with it")
        .clone();
    let mut counters = std::collections::BTreeMap::new();
    for (name, count) in figures.iter().flat_map(|f| &f.counters) {
        // Spelt as the data path's are.
        *counters.entry(name.replace('_', "-")).or_default() += count;
    }
    Status {
        reloads: shared.generation.load(std::sync::atomic::Ordering::Relaxed),
        reading_flows: figures.iter().map(|f| f.held_flows).sum(),
        reading_bytes: figures.iter().map(|f| f.held_bytes).sum(),
        answering_flows: figures.iter().map(|f| f.answering_flows).sum(),
        protected_answers: figures.iter().map(|f| f.protected_answers).sum(),
        protected_bytes: figures.iter().map(|f| f.protected_bytes).sum(),
        counters,
        peers: shared.peers.status(),
        told: shared.peers.herald.told(),
        caught_up: shared.peers.stage() != Stage::CatchingUp,
        keeps_flows: shared.peers.stage() == Stage::Keeping,
        membership: shared.membership.as_ref().map(|m| m.status()),
        services: shared
            .cluster()
            .config
            .services
            .iter()
            .map(|s| s.address.to_string())
            .collect(),
    }
}

fn backends(shared: &Shared) -> Vec<BackendStatus> {
    let cluster = shared.cluster();
    let backends = cluster
        .config
        .backends
        .iter()
        .zip(&cluster.slots)
        .enumerate();
    backends
        .map(|(index, (backend, &slot))| BackendStatus {
            name: backend.name.clone(),
            address: backend.address.to_string(),
            state: state_name(shared.health.state(slot)).into(),
            ports_without_server: shared.health.ports_without_server(slot),
            active: shared.health.active(slot),
            total: shared.health.total(slot),
            feedback: shared.health.feedback(slot).map(FeedbackStatus::from),
            pools: cluster
                .config
                .pools
                .iter()
                .flat_map(|pool| pool.members.iter().map(move |member| (pool, member)))
                .filter(|(_, member)| member.backend == index)
                .map(|(pool, member)| (pool.name.clone(), member.weight))
                .collect(),
        })
        .collect()
}

fn state_name(state: State) -> &'static str {
    match state {
        State::Up => "up",
        State::Unknown => "unknown",
        State::Silent => "silent",
        State::NoServer => "no-server",
        State::Busy => "busy",
        State::Drained => "drained",
    }
}

/// The backends as this daemon sees them.
struct Live<'a> {
    cluster: &'a Cluster,
    health: &'a Health,
}

impl View for Live<'_> {
    fn describe(&self, member: &Member, port: u16) -> String {
        let slot = self.cluster.slots[member.backend];
        format!(
            "{}: {}, weight {}, connections open: {}",
            self.cluster.config.backends[member.backend].name,
            state_name(self.cluster.state(self.health, member, port)),
            member.weight,
            self.health.active(slot)
        )
    }

    fn id(&self, backend: usize) -> BackendId {
        BackendId(self.cluster.slots[backend] as u16)
    }

    fn choose(&self, pool: usize, port: u16, request: policy::Request) -> Option<BackendId> {
        let choice = self.cluster.preview(self.health, pool, port, request)?;
        Some(BackendId(choice.slot as u16))
    }
}
