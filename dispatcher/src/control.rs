//! What the daemon answers to questions of the command line.

use std::os::unix::net::UnixListener;

use serde::{Deserialize, Serialize};
use trapeze_core::config::Member;
use trapeze_core::health::{Standing, ramp};
use trapeze_core::policy::{self, BackendId, Feedback};
use trapeze_datapath::control;
use trapeze_membership::MembershipStatus;

use crate::cluster::Cluster;
use crate::drain::Way;
use crate::explain::{Question, View, explain};
use crate::health::{Change, Health, State};
use crate::peers::Stage;
use crate::{Shared, checks, drain, outliers};

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
    /// And its answers in progress are to be moved, as far as they are protected.
    Migrate(String),
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
    /// Requests that another backend would be given if theirs died now.
    #[serde(default)]
    pub kept_requests: usize,
    /// What the workers have counted.
    pub counters: std::collections::BTreeMap<String, u64>,
    /// Service addresses.
    pub services: Vec<String>,
    /// The other dispatchers.
    #[serde(default)]
    pub peers: Vec<crate::PeerStatus>,
    /// The sub-cluster that it shares records with; 0 is the front end.
    #[serde(default)]
    pub sub_cluster: u8,
    /// Those of other sub-clusters that it watches, and passes their packets to.
    #[serde(default)]
    pub gates: Vec<crate::PeerStatus>,
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
    /// `up`, `unknown`, `silent`, `down`, `ejected`, `no-server`, `busy` or `drained`.
    pub state: String,
    /// Why.
    #[serde(default)]
    pub reason: String,
    /// What is held of its servers that are checked.
    #[serde(default)]
    pub checks: Vec<CheckStatus>,
    /// While it starts slowly: how much of its share it gets in the pool where that is least, percent.
    #[serde(default)]
    pub slow_start: Option<u16>,
    /// How often clients have repeated in vain what they asked of it.
    #[serde(default)]
    pub stalls: u64,
    /// Connections that its servers have reset while they owed something.
    #[serde(default)]
    pub resets: u64,
    /// What it was before, the latest change last.
    #[serde(default)]
    pub history: Vec<Change>,
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

/// What is held of a server that is checked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckStatus {
    /// Whose requests it gets.
    pub pool: String,
    /// Where clients' requests reach it.
    pub port: u16,
    /// Where it is asked.
    pub address: String,
    /// `agent`, if the backend's own asks; else `dispatcher`.
    pub by: String,
    /// `up`, `down`, or `unknown`.
    pub state: String,
    /// What came of the last check.
    pub last: Option<String>,
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
        Request::Drain(name) => serde_json::to_value(drain::set(shared, &name, Some(Way::Wait))?)?,
        Request::Migrate(name) => {
            serde_json::to_value(drain::set(shared, &name, Some(Way::Migrate))?)?
        }
        Request::Undrain(name) => serde_json::to_value(drain::set(shared, &name, None)?)?,
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
    for (name, count) in [
        ("backends-down", shared.health.counts().0),
        ("backends-ejected", shared.health.counts().1),
        ("lost-with-backend", shared.health.counts().2),
    ] {
        counters.insert(name.into(), count);
    }
    // Workers count those that they hear of.
    let vacated = shared.health.vacated();
    if vacated > 0 {
        *counters.entry("vacated".into()).or_default() += vacated;
    }
    Status {
        reloads: shared.generation.load(std::sync::atomic::Ordering::Relaxed),
        reading_flows: figures.iter().map(|f| f.held_flows).sum(),
        reading_bytes: figures.iter().map(|f| f.held_bytes).sum(),
        answering_flows: figures.iter().map(|f| f.answering_flows).sum(),
        protected_answers: figures.iter().map(|f| f.protected_answers).sum(),
        protected_bytes: figures.iter().map(|f| f.protected_bytes).sum(),
        kept_requests: figures.iter().map(|f| f.kept_requests).sum(),
        counters,
        peers: shared.peers.status(),
        sub_cluster: shared.cluster().own.sub_cluster,
        gates: shared.peers.gates_status(),
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
    checks::note(shared, &cluster);
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
            state: shared.health.state(slot).name().into(),
            reason: reason(&cluster, &shared.health, index),
            checks: checks_of(&cluster, &shared.health, index),
            slow_start: slow_start(&cluster, &shared.health, index),
            stalls: outliers::stalls(shared, slot).unwrap_or(0),
            resets: shared.health.resets(slot),
            history: shared.health.history(slot),
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

fn checks_of(cluster: &Cluster, health: &Health, backend: usize) -> Vec<CheckStatus> {
    let has_agent = cluster.config.backends[backend].transfer.has_agent();
    let targets = cluster.targets[backend].iter();
    targets
        .map(|target| {
            let known = health.check(cluster.slots[backend], target.key.number());
            let standing = known.map_or(Standing::Unknown, |known| known.standing);
            let last = known.and_then(|known| known.last);
            CheckStatus {
                pool: target.key.pool.clone(),
                port: target.key.port,
                address: target.address.to_string(),
                by: if has_agent { "agent" } else { "dispatcher" }.into(),
                state: match standing {
                    Standing::Unknown => "unknown",
                    Standing::Up => "up",
                    Standing::Down => "down",
                }
                .into(),
                last: last.map(|last| last.to_string()),
            }
        })
        .collect()
}

/// How much of its share a backend gets where it starts slowly, percent; none if it does not.
fn slow_start(cluster: &Cluster, health: &Health, backend: usize) -> Option<u16> {
    let slot = cluster.slots[backend];
    let steps = cluster.servers(backend).filter_map(|(number, pool, ..)| {
        let whole = cluster.config.pools[pool].slow_start?;
        Some(health.step(slot, number, whole))
    });
    let least = steps.min().filter(|&step| step < ramp::STEPS)?;
    Some(least * 100 / ramp::STEPS)
}

/// Why a backend is in its state, for people.
pub(crate) fn reason(cluster: &Cluster, health: &Health, backend: usize) -> String {
    let slot = cluster.slots[backend];
    match health.state(slot) {
        State::Up if cluster.targets[backend].is_empty() => "heard of".into(),
        State::Up => "heard of, and passes its checks".into(),
        State::Unknown => "not heard of yet".into(),
        State::Silent => "does not answer heartbeats".into(),
        State::Ejected => "resets connections, or acknowledges nothing".into(),
        State::Drained => "drained by an operator".into(),
        State::Busy => "its server accepts too slowly".into(),
        State::NoServer { .. } => {
            let ports = health.ports_without_server(slot);
            let ports: Vec<_> = ports.iter().map(u16::to_string).collect();
            format!("nothing listens on port {}", ports.join(", "))
        }
        State::Down => {
            let failed = checks_of(cluster, health, backend).into_iter();
            let failed = failed.filter(|check| check.state == "down");
            let said: Vec<_> = failed
                .map(|c| format!("{}:{}: {}", c.pool, c.port, c.last.unwrap_or_default()))
                .collect();
            said.join("; ")
        }
    }
}

/// The backends as this daemon sees them.
struct Live<'a> {
    cluster: &'a Cluster,
    health: &'a Health,
}

impl View for Live<'_> {
    fn describe(&self, pool: usize, member: &Member, port: u16) -> String {
        let slot = self.cluster.slots[member.backend];
        format!(
            "{}: {}, weight {}, connections open: {}",
            self.cluster.config.backends[member.backend].name,
            self.cluster.state(self.health, pool, member, port).name(),
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
