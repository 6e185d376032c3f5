//! Backends without an agent answer no heartbeats: at every one their servers are asked
//! for a connection, which is dropped at once. Whoever answers is there, if only to
//! refuse.

use std::net::{IpAddr, SocketAddrV4};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use trapeze_core::config::Dispatcher;
use trapeze_core::wire::meta::Refusal;
use trapeze_datapath::clock;
use trapeze_datapath::knock::{Heard, Knock};

use crate::cluster::Cluster;
use crate::{Shared, v4};

/// Answers are looked for so often in a heartbeat.
const LOOKS: u32 = 8;
/// Who has not answered at each so many of them is asked again: each quarter of a heartbeat, as agents are.
const LOOKS_TO_REPEAT: u32 = 2;
/// Who has not answered after so many heartbeats does not.
const PATIENCE: u32 = 3;

/// A question, and what number it has.
struct Asked {
    slot: u32,
    port: u16,
    is_here: bool,
    number: u32,
    at: Instant,
    knock: Knock,
}

/// Asks until the daemon stops.
pub fn run(shared: &Arc<Shared>, own: &Dispatcher) -> anyhow::Result<()> {
    let own = v4(own.address)?;
    // As pulse has it: numbers never step back.
    let (first, started) = (clock::cluster(), Instant::now());
    let mut asked: Vec<Asked> = Vec::new();
    while !shared.stopping.load(Ordering::Relaxed) {
        let cluster = shared.cluster();
        let interval = cluster.config.limits.heartbeat;
        let at = Instant::now();
        let number = (first + started.elapsed()).as_millis() as u32;
        let servers = servers(&cluster);
        let ask = |&(slot, server): &(u32, SocketAddrV4)| {
            Some(Asked {
                slot,
                port: server.port(),
                is_here: *server.ip() == own,
                number,
                at,
                knock: Knock::at(own, server).ok()?,
            })
        };
        asked.extend(servers.iter().filter_map(ask));
        let step = interval / LOOKS;
        for look in 1.. {
            std::thread::sleep(step.min(interval.saturating_sub(at.elapsed())));
            asked.retain(|one| !is_done(shared, one, interval));
            if at.elapsed() >= interval {
                break;
            }
            // A packet that is lost is no sign of death.
            if look % LOOKS_TO_REPEAT == 0 {
                let is_late = |(slot, _): &&_| shared.health.is_late(*slot, number);
                asked.extend(servers.iter().filter(is_late).filter_map(ask));
            }
        }
    }
    Ok(())
}

/// Has it been heard, or will it never be?
fn is_done(shared: &Shared, one: &Asked, interval: Duration) -> bool {
    let health = &shared.health;
    match one.knock.heard() {
        Heard::Nothing => return one.at.elapsed() >= interval * PATIENCE,
        Heard::Open => {
            health.heard(one.slot, one.number, 0);
            health.listens(one.slot, one.port);
        }
        Heard::Refused => {
            health.heard(one.slot, one.number, 0);
            health.refused(one.slot, one.port, Refusal::NoListener);
        }
        Heard::Unreachable => return true,
    }
    if !one.is_here {
        health.heard_from_outside();
    }
    true
}

/// The servers of backends without an agent, and whose they are.
fn servers(cluster: &Cluster) -> Vec<(u32, SocketAddrV4)> {
    let mut servers = Vec::new();
    for (pool, of_pool) in cluster.config.pools.iter().enumerate() {
        for member in &of_pool.members {
            let backend = &cluster.config.backends[member.backend];
            let IpAddr::V4(address) = backend.address else {
                continue;
            };
            if backend.transfer.has_agent() {
                continue;
            }
            let ports = match member.server.or(backend.server) {
                Some(server) => vec![server.port()],
                None => cluster.ports(pool),
            };
            let slot = cluster.slots[member.backend];
            let all = (ports.into_iter()).map(|port| (slot, SocketAddrV4::new(address, port)));
            servers.extend(all);
        }
    }
    servers.sort_unstable();
    servers.dedup();
    servers
}
