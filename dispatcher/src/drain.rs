//! Backends that are to have no connections any more: those that an operator drains, and
//! those that a reload has removed. They get nothing new, every next request goes
//! elsewhere, and idle connections are taken from them at once (docs/operations.md).
//!
//! What is drained is kept in a file of the run directory: a daemon that starts anew
//! goes on with it.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use trapeze_core::flow::FlowKey;
use trapeze_core::head::Expected;
use trapeze_datapath::abi::{BACKENDS_MAX, Flow, FlowState, MARK_HELD, MARK_MOVING, MARK_TUNNEL};
use trapeze_datapath::agent::PARKED_FOR;
use trapeze_datapath::clock;

use crate::Shared;

/// Looks for connections to take no oftener, and takes no more than a tenth of its time.
const INTERVAL: Duration = Duration::from_millis(100);
const SHARE: u32 = 10;
/// A client that has closed its side, and has not been heard of for so long, waits for
/// nothing any more.
const CLOSED: Duration = Duration::from_secs(2);
/// A backend whose last connection has gone has no socket parked after this.
const EMPTY_AFTER: Duration = PARKED_FOR.saturating_add(Duration::from_millis(500));

/// What a backend that is drained still has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Left {
    /// Connections in all.
    pub connections: u64,
    /// Of these, with an answer or a request under way.
    pub busy: u64,
    /// Of these, without boundaries: TLS, upgraded, of pools that hand nothing over.
    pub tunnels: u64,
}

/// What is drained, and what is to be done for it.
pub struct Drains {
    file: PathBuf,
    names: Mutex<BTreeSet<String>>,
    /// By slot: as last seen.
    left: Mutex<HashMap<u32, Left>>,
    /// By worker: connections that are to be taken from their owners.
    idle: Vec<Mutex<Vec<FlowKey>>>,
}

impl Drains {
    /// As a daemon before has left it.
    pub fn open(file: PathBuf, workers: usize) -> io::Result<Self> {
        let names = match std::fs::read_to_string(&file) {
            Ok(text) => text.lines().map(str::to_owned).collect(),
            Err(e) if e.kind() == io::ErrorKind::NotFound => BTreeSet::new(),
            Err(e) => return Err(e),
        };
        Ok(Self {
            file,
            names: Mutex::new(names),
            left: Mutex::default(),
            idle: (0..workers).map(|_| Mutex::default()).collect(),
        })
    }

    /// Is this backend drained?
    pub fn has(&self, name: &str) -> bool {
        self.names
            .lock()
            .expect("no thread panics with it")
            .contains(name)
    }

    fn set(&self, name: &str, drained: bool) -> io::Result<()> {
        let mut names = self.names.lock().expect("no thread panics with it");
        match drained {
            true => drop(names.insert(name.to_owned())),
            false => drop(names.remove(name)),
        }
        let text: String = names.iter().map(|name| format!("{name}\n")).collect();
        std::fs::write(&self.file, text)
    }

    /// Connections that this worker is to take from their owners.
    pub fn take_idle(&self, worker: usize) -> Vec<FlowKey> {
        let mut idle = self.idle[worker].lock().expect("no thread panics with it");
        std::mem::take(&mut *idle)
    }
}

/// Drains a backend, or takes that back.
pub fn set(shared: &Shared, name: &str, drained: bool) -> anyhow::Result<()> {
    let slot = slot_of(shared, name)?;
    (shared.drains.set(name, drained))
        .with_context(|| format!("cannot write {}", shared.drains.file.display()))?;
    (shared.drains.left.lock().expect("no thread panics with it")).remove(&slot);
    tell_health(shared);
    shared.renew_decisions()?;
    Ok(())
}

/// What a backend still has; none while nobody has looked since it is drained.
pub fn left(shared: &Shared, name: &str) -> anyhow::Result<Option<Left>> {
    let slot = slot_of(shared, name)?;
    if !shared.drains.has(name) {
        bail!("{name} is not drained");
    }
    let left = shared.drains.left.lock().expect("no thread panics with it");
    Ok(left.get(&slot).copied())
}

fn slot_of(shared: &Shared, name: &str) -> anyhow::Result<u32> {
    let cluster = shared.cluster();
    let backends = &cluster.config.backends;
    match backends.iter().position(|b| b.name == name) {
        Some(index) => Ok(cluster.slots[index]),
        None => {
            let names: Vec<_> = backends.iter().map(|b| &*b.name).collect();
            bail!("there is no backend {name}: there is {}", names.join(", "))
        }
    }
}

/// Which slots get nothing new; after every change of the configuration, too.
pub fn tell_health(shared: &Shared) {
    let cluster = shared.cluster();
    for (backend, &slot) in cluster.config.backends.iter().zip(&cluster.slots) {
        shared.health.drain(slot, shared.drains.has(&backend.name));
    }
}

/// Looks for connections to take from their owners, until the daemon stops.
pub fn run(shared: &Shared) -> anyhow::Result<()> {
    let mut pause = INTERVAL;
    let mut had_some: HashMap<u32, Duration> = HashMap::new();
    while !shared.stopping.load(Ordering::Relaxed) {
        std::thread::sleep(pause.min(Duration::from_secs(5)));
        pause = INTERVAL;
        let slots = slots_to_empty(shared);
        if slots.is_empty() {
            continue;
        }
        let started = Instant::now();
        let mut left: HashMap<u32, Left> = slots.iter().map(|&s| (s, Left::default())).collect();
        let now = clock::monotonic();
        shared.maps.flows.for_each(|key, flow| {
            if let Some(left) = left.get_mut(&flow.backend)
                && count(left, &flow, now)
                && let key = FlowKey::from(key)
                && shared.peers.keeps(&key)
            {
                let worker = usize::from(key.client.port()) % shared.drains.idle.len();
                let idle = shared.drains.idle[worker].lock();
                idle.expect("no thread panics with it").push(key);
            }
        })?;
        had_some.retain(|slot, _| slots.contains(slot));
        for (&slot, left) in &left {
            let seen = had_some.entry(slot).or_insert(now);
            if left.connections > 0 {
                *seen = now;
            }
        }
        // Then there is none that waits for its flow to come back, either.
        left.retain(|slot, left| left.connections > 0 || now - had_some[slot] > EMPTY_AFTER);
        *shared.drains.left.lock().expect("no thread panics with it") = left;
        pause = INTERVAL.max(started.elapsed() * SHARE);
    }
    Ok(())
}

/// Those that are drained, and those that are configured no more and have connections.
fn slots_to_empty(shared: &Shared) -> BTreeSet<u32> {
    let cluster = shared.cluster();
    let configured: BTreeSet<u32> = cluster.slots.iter().copied().collect();
    let drained = cluster.config.backends.iter().zip(&cluster.slots);
    let drained = drained.filter(|(backend, _)| shared.drains.has(&backend.name));
    let removed = (0..BACKENDS_MAX as u32)
        .filter(|slot| !configured.contains(slot) && shared.health.active(*slot) > 0);
    drained.map(|(_, &slot)| slot).chain(removed).collect()
}

/// Counts a flow; true if it may be taken from its owner, should it be idle.
fn count(left: &mut Left, flow: &Flow, now: Duration) -> bool {
    let seen = now.saturating_sub(Duration::from_nanos(flow.last_seen_ns));
    let open = match FlowState::from_raw(flow.state) {
        Some(FlowState::Established) => true,
        Some(FlowState::ClientFin) => seen < CLOSED,
        _ => false,
    };
    if !open {
        return false;
    }
    left.connections += 1;
    if flow.marks & MARK_TUNNEL != 0 {
        left.tunnels += 1;
        return false;
    }
    left.busy += u64::from(flow.marks & MARK_HELD != 0 || !flow.is_answered());
    flow.marks & (MARK_HELD | MARK_MOVING) == 0
        && flow.expect == Expected::Head.number()
        && flow.is_answered()
}
