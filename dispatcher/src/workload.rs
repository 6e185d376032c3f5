//! What others are told of this dispatcher with every heartbeat: that it is one, and how
//! much capacity it has to spare [SPLICE06 §4.2]. The data path says it
//! (bpf/lib/heartbeat.bpf.h); while this process is away, that it does not know.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use trapeze_core::membership::{Presence, Workload};
use trapeze_datapath::abi;
use trapeze_datapath::clock;
use trapeze_datapath::load::Sampler;
use trapeze_datapath::map::Update;

use crate::Shared;
use crate::peers::Stage;

const INTERVAL: Duration = Duration::from_millis(200);

/// Looks at the host until the daemon stops.
pub fn run(shared: &Shared) -> anyhow::Result<()> {
    let mut sampler = Sampler::new();
    while !shared.stopping.load(Ordering::Relaxed) {
        let busy = sampler.sample()?.cpu_permille;
        let factor = Workload::of_cpu(busy).permille();
        shared.workload.store(factor.into(), Ordering::Relaxed);
        publish(shared)?;
        std::thread::sleep(INTERVAL);
    }
    Ok(())
}

/// Has sprays and other dispatchers take this one out, and waits until those that are there
/// have heard it, for two of their heartbeats at most.
pub fn leave(shared: &Shared) -> std::io::Result<()> {
    let config = &shared.cluster().config;
    let is_alone = config.sprays.is_empty() && config.membership.is_none();
    if is_alone && !shared.peers.are_there() {
        return Ok(());
    }
    shared.leaving.store(true, Ordering::Relaxed);
    publish(shared)?;
    let now = clock::monotonic();
    let (start, patience) = (Instant::now(), config.spraying.heartbeat * 2 + TAKEN_OUT);
    let lately = now.saturating_sub(patience);
    while start.elapsed() < patience {
        let heard = |peer: &abi::Peer| Duration::from_nanos(peer.heard_ns);
        let mut peers = shared.maps.peers.all()?.into_iter().map(|(_, peer)| peer);
        if peers.all(|peer| heard(&peer) < lately || heard(&peer) > now + TICK) {
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    // They have been told, and have still to deal the lots.
    std::thread::sleep(TAKEN_OUT);
    Ok(())
}

/// What it takes to deal lots, and more.
const TAKEN_OUT: Duration = Duration::from_millis(30);
/// The clock by which the data path notes peers may be behind ours by so much.
const TICK: Duration = Duration::from_millis(10);

/// Has the data path say from now on what this dispatcher is.
pub fn publish(shared: &Shared) -> std::io::Result<()> {
    // Whoever writes last has seen the latest.
    let _turn = shared.presence.lock().expect("no thread panics with it");
    say(shared)
}

/// It is to say so for longer. Does not wait for a thread that is at it.
pub fn renew(shared: &Shared) -> std::io::Result<()> {
    match shared.presence.try_lock() {
        Ok(_turn) => say(shared),
        Err(_) => Ok(()),
    }
}

fn say(shared: &Shared) -> std::io::Result<()> {
    let now = clock::monotonic();
    let lease = shared.cluster().config.spraying.lease();
    shared.peers.renew_lease(now, lease);
    let says = match shared.peers.stage() {
        _ if shared.leaving.load(Ordering::Relaxed) => Presence::Leaving,
        // Who has not caught up keeps no flows.
        Stage::CatchingUp | Stage::Lapsed => Presence::Dispatcher { workload: None },
        Stage::Joining => Presence::Joining,
        Stage::Keeping => Presence::Dispatcher {
            workload: Workload::new(shared.workload.load(Ordering::Relaxed)),
        },
    };
    let afterwards = match says {
        Presence::Leaving => says,
        _ => Presence::Dispatcher { workload: None },
    };
    let presence = abi::Presence::new(says, afterwards, now, lease);
    shared.maps.presence.put(&0, &presence, Update::Any)
}
