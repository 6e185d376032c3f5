//! What sprays are told of this dispatcher with every heartbeat: that it is one, and how
//! much capacity it has to spare [SPLICE06 §4.2]. The data path says it
//! (bpf/lib/heartbeat.bpf.h); while this process is away, that it does not know.

use std::sync::atomic::Ordering;
use std::time::Duration;

use trapeze_core::membership::{Presence, Workload};
use trapeze_datapath::abi;
use trapeze_datapath::clock;
use trapeze_datapath::load::Sampler;
use trapeze_datapath::map::Update;

use crate::Shared;

const INTERVAL: Duration = Duration::from_millis(200);
/// What was said counts for this long.
const LEASE: Duration = Duration::from_secs(2);

/// Looks at the host until the daemon stops.
pub fn run(shared: &Shared) -> anyhow::Result<()> {
    let mut sampler = Sampler::new();
    while !shared.stopping.load(Ordering::Relaxed) {
        let busy = sampler.sample()?.cpu_permille;
        publish(shared, Some(Workload::of_cpu(busy)))?;
        std::thread::sleep(INTERVAL);
    }
    Ok(())
}

/// Has the data path say so from now on.
pub fn publish(shared: &Shared, workload: Option<Workload>) -> std::io::Result<()> {
    let says = Presence::Dispatcher { workload };
    let afterwards = Presence::Dispatcher { workload: None };
    let presence = abi::Presence::new(says, afterwards, clock::monotonic(), LEASE);
    shared.maps.presence.put(&0, &presence, Update::Any)
}
