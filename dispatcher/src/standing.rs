//! Standing decisions: what the policies have decided, as far as it holds for later
//! requests too, where the data path finds it (bpf/lib/standing.bpf.h). So a first
//! request like an earlier one is placed without a word from here.
//!
//! A decision stands until the set of backends that can be chosen changes, the
//! configuration is reloaded, or this daemon has been gone for a few heartbeats. That of
//! a policy that looks at loads stands for some seconds, for what the policy calls
//! settled, and as long as loads are below a limit; then the next request is a sample.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use trapeze_core::head::{HttpHead, likeness};
use trapeze_core::policy::{self, BackendId, Backends, Class, Request, Stands};
use trapeze_datapath::abi::{
    self, Decision, DecisionKey, Pod, SLOT_BY_TURNS, Standing as Rules, TURNS_MAX, Turn,
};
use trapeze_datapath::clock;
use trapeze_datapath::dispatcher::{DispatcherMaps, SharedTurns};
use trapeze_datapath::map::Update;

use crate::cluster::{Choice, Cluster};
use crate::health::Health;
use crate::memory::Placed;

/// Heartbeats without this daemon after which nothing stands any more.
const LEASE_BEATS: u32 = 5;
/// The lease is no shorter: threads are late, machines are busy.
const LEASE_MIN: Duration = Duration::from_secs(2);

/// What stands now.
pub struct Standing {
    maps: Arc<DispatcherMaps>,
    turns: Arc<SharedTurns>,
    /// Requests are alike under this key; nobody else knows it.
    key: [u8; 16],
    generation: AtomicU32,
    /// By pool and port: whom its policy chooses from, as last told.
    told: Mutex<Vec<Vec<Option<Backends>>>>,
}

/// A request, as it was read.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    pub vip: SocketAddr,
    pub head: &'a HttpHead<'a>,
    /// Its head and whatever came with it.
    pub bytes: &'a [u8],
}

impl Standing {
    /// Nothing stands until the first [`Self::renew`].
    pub fn open(maps: Arc<DispatcherMaps>) -> anyhow::Result<Self> {
        let mut key = [0; 16];
        io::Read::read_exact(&mut std::fs::File::open("/dev/urandom")?, &mut key)?;
        let turns = Arc::new(SharedTurns::map(&maps.turns)?);
        let last = maps.standing.get(&0)?.unwrap_or_else(Rules::zeroed);
        Ok(Self {
            turns,
            key,
            generation: AtomicU32::new(last.generation),
            told: Mutex::default(),
            maps,
        })
    }

    /// Whose turn it is, in daemon and data path alike.
    pub fn turns(&self) -> Arc<SharedTurns> {
        self.turns.clone()
    }

    /// Ask for it before a decision is made: one that is made meanwhile may not stand.
    pub fn generation(&self) -> u32 {
        self.generation.load(Ordering::Acquire)
    }

    /// Nothing stands until the next [`Self::renew`].
    pub fn suspend(&self) -> io::Result<()> {
        let mut told = self.told.lock().expect("no thread panics with it");
        told.clear();
        self.maps.standing.put(&0, &self.rules(0, 0), Update::Any)
    }

    /// Prolongs the lease; if other backends can be chosen than before, what was
    /// decided does not stand any more.
    pub fn renew(&self, cluster: &Cluster, health: &Health, epoch_floor: u32) -> io::Result<()> {
        let mut told = self.told.lock().expect("no thread panics with it");
        // A row of turns is the pool's, whichever port is asked.
        let now: Vec<Vec<Option<Backends>>> = (0..cluster.config.pools.len())
            .map(|pool| {
                let ports = cluster.ports(pool).into_iter();
                ports
                    .map(|port| cluster.backends(health, pool, port))
                    .collect()
            })
            .collect();
        let choosable = |backends: &Option<Backends>| -> Vec<(BackendId, u16)> {
            let open = backends.iter().flat_map(Backends::open);
            open.map(|b| (b.id, b.weight)).collect()
        };
        let same = told.len() == now.len()
            && (told.iter().zip(&now))
                .all(|(a, b)| a.iter().map(choosable).eq(b.iter().map(choosable)));
        if !same {
            for (pool, by_port) in now.iter().enumerate() {
                let alike = by_port
                    .windows(2)
                    .all(|two| choosable(&two[0]) == choosable(&two[1]));
                let turns = match (cluster.stands(pool), by_port.first()) {
                    (Stands::ByTurns, Some(Some(backends))) if alike => {
                        order(cluster, pool, backends)
                    }
                    _ => Vec::new(),
                };
                self.turns.set(pool, &turns);
            }
            self.generation.fetch_add(1, Ordering::Release);
            *told = now;
        }
        let lease = (cluster.config.limits.heartbeat * LEASE_BEATS).max(LEASE_MIN);
        let until = (clock::monotonic() + lease).as_nanos() as u64;
        let rules = self.rules(until, epoch_floor);
        self.maps.standing.put(&0, &rules, Update::Any)
    }

    /// Where requests like this one go from now on, if rules and policy let it stand.
    pub fn remember(
        &self,
        generation: u32,
        cluster: &Cluster,
        health: &Health,
        seen: &Seen<'_>,
        choice: &Choice,
    ) -> io::Result<()> {
        let Seen { vip, head, bytes } = *seen;
        let services = &cluster.config.services;
        let Some(service) = services.iter().position(|s| s.address == vip) else {
            return Ok(());
        };
        // Of CONNECT there is no URL.
        let asks_more = services[service].rules.iter().any(|r| r.header.is_some());
        if asks_more || head.path.is_empty() {
            return Ok(());
        }
        let Some(pool) = cluster.place_of(choice.pool) else {
            return Ok(());
        };
        let stands = cluster.stands(pool);
        let decision = match stands {
            Stands::Not => return Ok(()),
            Stands::ByTurns if self.turns.peek(pool).is_none() => return Ok(()),
            Stands::ByTurns => decision(generation, cluster, (choice, pool), SLOT_BY_TURNS),
            Stands::ByUrl | Stands::WhileSettled => {
                decision(generation, cluster, (choice, pool), choice.slot)
            }
        };
        let Some(likeness) = likeness(bytes, &self.key) else {
            return Ok(());
        };
        let key = DecisionKey {
            likeness: likeness.get(),
            service: service as u32,
            pad: 0,
        };
        if stands == Stands::WhileSettled {
            return self.settle(&key, decision, cluster, health, vip.port(), choice);
        }
        self.maps.decisions.put(&key, &decision, Update::Any)
    }

    /// The policy hears how often the decision has been used, and says for how long the
    /// next one stands, if it does.
    fn settle(
        &self,
        key: &DecisionKey,
        mut decision: Decision,
        cluster: &Cluster,
        health: &Health,
        port: u16,
        choice: &Choice,
    ) -> io::Result<()> {
        let now_ns = clock::monotonic().as_nanos() as u64;
        if let Some(before) = self.maps.decisions.get(key)? {
            let time = Duration::from_nanos(now_ns.saturating_sub(before.since_ns));
            cluster.settled_took(choice, before.placed, time);
        }
        let Some(settled) = cluster.settled(health, port, choice) else {
            // One that still stands does so for the backends that it names.
            return Ok(());
        };
        decision.since_ns = now_ns;
        decision.until_ns = now_ns + settled.lasts.as_nanos() as u64;
        decision.most_us = settled.most_us.try_into().unwrap_or(i64::MAX);
        decision.charge_us = settled.charge_us;
        decision.move_us = settled.move_us;
        let others = (settled.backends().iter())
            .filter(|id| u32::from(id.0) != choice.slot)
            .filter_map(|&id| cluster.choice(choice.pool, id, choice.placed));
        for (other, place) in others.zip(&mut decision.others) {
            *place = turn(&other);
            decision.others_count += 1;
        }
        self.maps.decisions.put(key, &decision, Update::Any)
    }

    fn rules(&self, valid_until_ns: u64, epoch_floor: u32) -> Rules {
        let (words, _) = self.key.as_chunks::<8>();
        Rules {
            valid_until_ns,
            k0: u64::from_le_bytes(words[0]),
            k1: u64::from_le_bytes(words[1]),
            generation: self.generation(),
            epoch_floor,
        }
    }
}

/// The order in which the pool's backends take turns; empty if it is too long.
fn order(cluster: &Cluster, pool: usize, backends: &Backends) -> Vec<Turn> {
    let weights = backends.open().iter().map(|b| u64::from(b.weight));
    let divisor = weights.clone().fold(0, gcd).max(1);
    let length = weights.sum::<u64>() / divisor;
    if length > TURNS_MAX as u64 || pool >= abi::POOLS_MAX {
        return Vec::new();
    }
    let number = cluster.config.pools[pool].number;
    let mut policy = policy::build(&cluster.config.pools[pool].policy, 0);
    let request = Request::new(0, Class::Static);
    (0..length)
        .filter_map(|_| policy::place(&mut *policy, Duration::ZERO, &request, backends))
        .filter_map(|chosen| cluster.choice(number, chosen, Placed::unnoticed(request)))
        .map(|choice| turn(&choice))
        .collect()
}

fn turn(choice: &Choice) -> Turn {
    Turn {
        slot: choice.slot,
        server_port: choice.server_port.to_be_bytes(),
        pad: 0,
    }
}

/// A decision that stands until the generation ends.
fn decision(
    generation: u32,
    cluster: &Cluster,
    (choice, place): (&Choice, usize),
    slot: u32,
) -> Decision {
    Decision {
        generation,
        pool: choice.pool.0.into(),
        row: place as u16,
        slot,
        server_port: choice.server_port.to_be_bytes(),
        care: cluster.care(choice.pool).bits(),
        stays: cluster.connects(place).into(),
        ..Decision::zeroed()
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    match b {
        0 => a,
        b => gcd(b, a % b),
    }
}
