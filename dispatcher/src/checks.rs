//! Backends without an agent have their servers checked from here; where there is an agent, it does
//! that, and says so with its heartbeats (docs/decisions/0024).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use trapeze_core::config::Dispatcher;
use trapeze_core::health::Target;
use trapeze_datapath::checker::Checker;
use trapeze_datapath::clock;

use crate::cluster::Cluster;
use crate::control::reason;
use crate::{Shared, v4};

/// How soon a reload, and the end, is noticed.
const LONGEST_WAIT: Duration = Duration::from_millis(200);

/// Checks until the daemon stops.
pub fn run(shared: &Arc<Shared>, own: &Dispatcher) -> anyhow::Result<()> {
    let mut checker = Checker::new(v4(own.address)?);
    let mut generation = None;
    while !shared.stopping.load(Ordering::Relaxed) {
        let now = clock::monotonic();
        let latest = shared.generation.load(Ordering::Acquire);
        if generation.replace(latest) != Some(latest) {
            checker.configure(now, targets(&shared.cluster()));
        }
        if shared.health.is_deaf() {
            // Nobody is found down who cannot be heard.
            std::thread::sleep(LONGEST_WAIT);
            continue;
        }
        checker.work(now);
        let cluster = shared.cluster();
        let mut news = false;
        for job in checker.jobs() {
            let key = &job.target.key;
            let backends = &cluster.config.backends;
            if let Some(at) = backends.iter().position(|b| b.name == key.backend) {
                let (slot, monitor) = (cluster.slots[at], &job.monitor);
                let (standing, last) = (monitor.standing(), monitor.last());
                news |= shared.health.checked(slot, key.number(), standing, last);
            }
        }
        if news {
            note(shared, &cluster);
            shared.renew_decisions()?;
        }
        std::thread::sleep(checker.rest(now).min(LONGEST_WAIT));
    }
    Ok(())
}

fn targets(cluster: &Cluster) -> Vec<Target> {
    let all = cluster.config.backends.iter().zip(&cluster.targets);
    let ours = all.filter(|(backend, _)| !backend.transfer.has_agent());
    ours.flat_map(|(_, targets)| targets.clone()).collect()
}

/// What is checked may have changed; after every change of the configuration.
pub fn tell_health(shared: &Shared) {
    let cluster = shared.cluster();
    for (&slot, targets) in cluster.slots.iter().zip(&cluster.targets) {
        let numbers: Vec<u64> = targets.iter().map(|t| t.key.number()).collect();
        shared.health.check_only(slot, &numbers);
    }
}

/// How backends are now, for those that are to come back slowly, and for people: at every
/// heartbeat, when there is news of a check, and when somebody asks.
pub fn note(shared: &Shared, cluster: &Cluster) {
    let health = &shared.health;
    for (backend, &slot) in cluster.slots.iter().enumerate() {
        let servers = cluster
            .servers(backend)
            .map(|(number, pool, member, port)| {
                (number, cluster.state(health, pool, member, port))
            });
        health.note(slot, servers, || reason(cluster, health, backend));
    }
}
