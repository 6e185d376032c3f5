//! Passive signs: what becomes of clients' requests at each backend, looked at with every
//! heartbeat; who stands out is ejected for a while (docs/decisions/0024).

use std::collections::HashMap;
use std::io;
use std::time::Duration;

use trapeze_core::health::outliers::{Signs, standing_out};
use trapeze_datapath::clock;

use crate::Shared;
use crate::cluster::Cluster;

/// Of all backends of pools that look at it, by pool and slot.
#[derive(Debug, Default)]
pub struct Watched(HashMap<(String, u32), Signs>);

impl Watched {
    /// Looks at what has happened since.
    pub fn look(&mut self, shared: &Shared, cluster: &Cluster) -> io::Result<()> {
        let now = clock::monotonic();
        for (index, pool) in cluster.config.pools.iter().enumerate() {
            let Some(settings) = &pool.outliers else {
                continue;
            };
            let mut members = Vec::new();
            for member in &pool.members {
                let slot = cluster.slots[member.backend];
                let signs = self.0.entry((pool.name.clone(), slot)).or_default();
                let lately = signs.look(now, total(shared, slot)?, settings);
                members.push((lately, signs.is_ejected(now)));
            }
            for out in standing_out(&members, settings) {
                let backend = pool.members[out].backend;
                let slot = cluster.slots[backend];
                let signs = self.0.get_mut(&(pool.name.clone(), slot));
                let until = signs.map_or(Duration::ZERO, |signs| signs.eject(now, settings));
                let servers = cluster.servers(backend);
                for (number, ..) in servers.filter(|(_, of, ..)| *of == index) {
                    shared.health.eject(slot, number, until);
                }
            }
        }
        let is_known = |(pool, slot): &(String, u32)| {
            let mut pools = cluster.config.pools.iter();
            cluster.slots.contains(slot) && pools.any(|of| of.name == *pool)
        };
        self.0.retain(|key, _| is_known(key));
        Ok(())
    }
}

/// All signs of that backend so far.
fn total(shared: &Shared, slot: u32) -> io::Result<u64> {
    Ok(stalls(shared, slot)? + shared.health.resets(slot))
}

/// How often clients have repeated in vain what they asked of that backend.
pub fn stalls(shared: &Shared, slot: u32) -> io::Result<u64> {
    Ok(shared.maps.stalls.get(&slot)?.unwrap_or(0))
}
