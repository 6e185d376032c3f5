//! Backends that are to have no connections any more: those that an operator drains, and
//! those that a reload has removed. They get nothing new, every next request goes
//! elsewhere, and idle connections are taken from them at once (docs/operations.md).
//!
//! What is drained is kept in a file of the run directory: a daemon that starts anew
//! goes on with it.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use trapeze_core::config::Pool;
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
/// An owner's word that an answer is in progress holds for so long: it is asked again at every look.
const SAID_FOR: Duration = Duration::from_secs(1);
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
    /// Answers in progress that another backend has gone on with since it is drained, by this dispatcher.
    #[serde(default)]
    pub migrated: u64,
    /// Of those that could outlive it, how many wait for their end all the same: nobody else has
    /// provably the same.
    #[serde(default)]
    pub not_migrated: u64,
}

/// How a backend is emptied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Answers in progress are waited for.
    Wait,
    /// They are moved, where they are protected (docs/protocol/takeover.md §8).
    Migrate,
}

/// What has come of an answer that was to be moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Move {
    Done,
    Not,
}

/// Behind the name of a backend whose answers are moved.
const MIGRATES: &str = " migrate";

/// What is drained, and what is to be done for it.
pub struct Drains {
    file: PathBuf,
    names: Mutex<BTreeMap<String, Way>>,
    /// By slot: as last seen.
    left: Mutex<HashMap<u32, Left>>,
    /// By slot: when it had a connection last, or was looked at first since it is drained.
    had_some: Mutex<HashMap<u32, Duration>>,
    /// Slots whose answers are to be moved.
    migrating: Mutex<Vec<u32>>,
    /// By slot: moved, and not.
    moves: Mutex<HashMap<u32, (u64, u64)>>,
    /// When an owner said last that an answer is in progress there.
    answering: Mutex<HashMap<FlowKey, Duration>>,
    /// By worker: connections that are to be taken from their owners.
    idle: Vec<Mutex<Vec<FlowKey>>>,
}

impl Drains {
    /// As a daemon before has left it.
    pub fn open(file: PathBuf, workers: usize) -> io::Result<Self> {
        let names = match std::fs::read_to_string(&file) {
            Ok(text) => text.lines().map(read_line).collect(),
            Err(e) if e.kind() == io::ErrorKind::NotFound => BTreeMap::new(),
            Err(e) => return Err(e),
        };
        Ok(Self {
            file,
            names: Mutex::new(names),
            left: Mutex::default(),
            had_some: Mutex::default(),
            migrating: Mutex::default(),
            moves: Mutex::default(),
            answering: Mutex::default(),
            idle: (0..workers).map(|_| Mutex::default()).collect(),
        })
    }

    /// Is this backend drained?
    pub fn has(&self, name: &str) -> bool {
        self.names
            .lock()
            .expect("no thread panics with it")
            .contains_key(name)
    }

    fn migrates(&self, name: &str) -> bool {
        let names = self.names.lock().expect("no thread panics with it");
        names.get(name) == Some(&Way::Migrate)
    }

    /// Whether it was drained.
    fn set(&self, name: &str, drained: Option<Way>) -> io::Result<bool> {
        let mut names = self.names.lock().expect("no thread panics with it");
        let before = match drained {
            Some(way) => names.insert(name.to_owned(), way),
            None => names.remove(name),
        };
        let text: String = names.iter().map(write_line).collect();
        std::fs::write(&self.file, text)?;
        Ok(before.is_some())
    }

    /// The slots whose answers are to be moved.
    pub fn migrating(&self) -> Vec<u32> {
        (self.migrating.lock().expect("no thread panics with it")).clone()
    }

    /// That has come of an answer of that slot.
    pub fn count(&self, slot: u32, what: Move) {
        let mut moves = self.moves.lock().expect("no thread panics with it");
        let (done, not) = moves.entry(slot).or_default();
        match what {
            Move::Done => *done += 1,
            Move::Not => *not += 1,
        }
    }

    /// A connection cannot be taken yet: its client has a part of an answer.
    pub fn is_answering(&self, now: Duration, key: FlowKey) {
        let mut answering = self.answering.lock().expect("no thread panics with it");
        answering.insert(key, now);
    }

    /// Those of which that was said lately.
    fn answering(&self, now: Duration) -> HashSet<FlowKey> {
        let mut answering = self.answering.lock().expect("no thread panics with it");
        answering.retain(|_, said| now.saturating_sub(*said) < SAID_FOR);
        answering.keys().copied().collect()
    }

    /// What was seen of that slot is of another drain.
    fn look_anew(&self, slot: u32) {
        let mut left = self.left.lock().expect("no thread panics with it");
        left.remove(&slot);
        let mut had_some = self.had_some.lock().expect("no thread panics with it");
        had_some.remove(&slot);
    }

    /// What is left of all that were looked at. Of one without connections it is known once none
    /// waits there for its flow to come back, either.
    fn seen(&self, now: Duration, mut all: HashMap<u32, Left>) {
        let mut left = self.left.lock().expect("no thread panics with it");
        let mut had_some = self.had_some.lock().expect("no thread panics with it");
        had_some.retain(|slot, _| all.contains_key(slot));
        for (&slot, left) in &all {
            let last = had_some.entry(slot).or_insert(now);
            if left.connections > 0 {
                *last = now;
            }
        }
        all.retain(|slot, left| left.connections > 0 || now - had_some[slot] > EMPTY_AFTER);
        *left = all;
    }

    /// Connections that this worker is to take from their owners.
    pub fn take_idle(&self, worker: usize) -> Vec<FlowKey> {
        let mut idle = self.idle[worker].lock().expect("no thread panics with it");
        std::mem::take(&mut *idle)
    }
}

fn read_line(line: &str) -> (String, Way) {
    match line.strip_suffix(MIGRATES) {
        Some(name) => (name.to_owned(), Way::Migrate),
        None => (line.to_owned(), Way::Wait),
    }
}

fn write_line((name, way): (&String, &Way)) -> String {
    let way = match way {
        Way::Wait => "",
        Way::Migrate => MIGRATES,
    };
    format!("{name}{way}\n")
}

/// Drains a backend, in some way, or takes that back. Whether it was drained before.
pub fn set(shared: &Shared, name: &str, drained: Option<Way>) -> anyhow::Result<bool> {
    let slot = slot_of(shared, name)?;
    if drained == Some(Way::Migrate) {
        ensure_protected(shared, slot, name)?;
    }
    let was_drained = (shared.drains.set(name, drained))
        .with_context(|| format!("cannot write {}", shared.drains.file.display()))?;
    shared.drains.look_anew(slot);
    (shared
        .drains
        .moves
        .lock()
        .expect("no thread panics with it"))
    .remove(&slot);
    tell_health(shared);
    shared.renew_decisions()?;
    Ok(was_drained)
}

/// What a backend still has; none while nobody has looked since it is drained.
pub fn left(shared: &Shared, name: &str) -> anyhow::Result<Option<Left>> {
    let slot = slot_of(shared, name)?;
    if !shared.drains.has(name) {
        bail!("{name} is not drained");
    }
    let left = shared.drains.left.lock().expect("no thread panics with it");
    let moves = shared
        .drains
        .moves
        .lock()
        .expect("no thread panics with it");
    let (migrated, not_migrated) = moves.get(&slot).copied().unwrap_or_default();
    Ok(left.get(&slot).map(|left| Left {
        migrated,
        not_migrated,
        ..*left
    }))
}

/// Is there a pool by which its answers can be moved?
fn ensure_protected(shared: &Shared, slot: u32, name: &str) -> anyhow::Result<()> {
    let cluster = shared.cluster();
    let has = |(index, pool): (usize, &Pool)| {
        let mut members = pool.members.iter();
        members.any(|m| cluster.slots[m.backend] == slot)
            && (cluster.config.rescues(index)).any(|rescue| rescue.protection.is_any())
    };
    if cluster.config.pools.iter().enumerate().any(has) {
        return Ok(());
    }
    bail!(
        "{name} is in no pool whose answers are protected: none of them can be migrated. Set \
         `protect_from` or `protect_after` of its pool, or of a rule, and reload dispatchers and agents; \
         or drain it without --migrate, which waits for them"
    )
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
    let backends = cluster.config.backends.iter().zip(&cluster.slots);
    let migrating = backends.filter(|(backend, _)| shared.drains.migrates(&backend.name));
    *(shared.drains.migrating.lock()).expect("no thread panics with it") =
        migrating.map(|(_, &slot)| slot).collect();
}

/// Looks for connections to take from their owners, until the daemon stops.
pub fn run(shared: &Shared) -> anyhow::Result<()> {
    let mut pause = INTERVAL;
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
        let answering = shared.drains.answering(now);
        shared.maps.flows.for_each(|key, flow| {
            if let Some(left) = left.get_mut(&flow.backend)
                && let key = FlowKey::from(key)
                && count(left, &flow, now, answering.contains(&key))
                && shared.peers.keeps(&key)
            {
                let worker = usize::from(key.client.port()) % shared.drains.idle.len();
                let idle = shared.drains.idle[worker].lock();
                idle.expect("no thread panics with it").push(key);
            }
        })?;
        shared.drains.seen(now, left);
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

/// Counts a flow, of which its owner has said lately, or not, that it is answering; true if it may
/// be taken from its owner, should it be idle.
fn count(left: &mut Left, flow: &Flow, now: Duration, is_answering: bool) -> bool {
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
    left.busy += u64::from(is_answering || flow.marks & MARK_HELD != 0 || !flow.is_answered());
    flow.marks & (MARK_HELD | MARK_MOVING) == 0
        && Expected::from_number(flow.expect).is_some_and(Expected::is_between_requests)
        && flow.is_answered()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_drain_waits_for_what_waits_there_as_the_first_one_does() {
        let drains = Drains::open(std::env::temp_dir().join("trapeze-no-drains"), 1).unwrap();
        let look = |at: u64, connections: u64| {
            let left = Left {
                connections,
                ..Left::default()
            };
            drains.seen(Duration::from_secs(at), HashMap::from([(3, left)]));
            drains.left.lock().unwrap().contains_key(&3)
        };
        assert!(look(10, 1) && !look(11, 0) && look(12, 0));
        drains.look_anew(3);
        assert!(!look(20, 0), "its sockets may still be there");
        assert!(look(22, 0));
    }

    #[test]
    fn a_daemon_that_starts_anew_drains_in_the_same_way() {
        let file = std::env::temp_dir().join(format!("trapeze-drained-{}", std::process::id()));
        let drains = Drains::open(file.clone(), 1).unwrap();
        drains.set("b1", Some(Way::Migrate)).unwrap();
        drains.set("b2", Some(Way::Wait)).unwrap();
        drains.set("b3", Some(Way::Migrate)).unwrap();
        assert!(drains.set("b3", None).unwrap());
        assert!(!drains.set("b3", None).unwrap(), "it is not drained");
        let after = Drains::open(file.clone(), 1).unwrap();
        std::fs::remove_file(file).unwrap();
        let known = ["b1", "b2", "b3"].map(|name| (after.has(name), after.migrates(name)));
        assert_eq!(known, [(true, true), (true, false), (false, false)]);
    }
}
