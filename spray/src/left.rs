//! Splice addresses of dispatchers that are no members any more, since their registration has
//! ended or they have been taken out of the file. Connections to servers that they have opened
//! go on by way of the other dispatchers, and what servers send there has to come to those. So
//! such an address stays here, until nothing has come to it for as long as an idle connection is
//! kept, or until the configuration gives it to somebody. Which these are stands in the data
//! path's map, so that the next daemon knows them, too (docs/protocol/splice.md, clause 4.4a).

use std::net::IpAddr;

use trapeze_core::config::{Config, Transfer};
use trapeze_datapath::abi::{Service, ServiceKey};
use trapeze_datapath::clock;
use trapeze_datapath::map::{Update, splice_addresses};
use trapeze_datapath::spray::SprayMaps;

use crate::Shared;

/// Those that are served, and nobody's.
pub fn addresses(config: &Config, maps: &SprayMaps) -> anyhow::Result<Vec<IpAddr>> {
    let served = splice_addresses(&maps.services)?.into_iter();
    Ok(served
        .map(|(address, _)| address)
        .filter(|&address| !config.is_taken(address))
        .collect())
}

/// Addresses, and when each was used last: now, if it is new.
pub fn with_use(
    all: impl Iterator<Item = IpAddr>,
    maps: &SprayMaps,
) -> anyhow::Result<Vec<(IpAddr, u32)>> {
    let served = splice_addresses(&maps.services)?;
    let used = |address| {
        let mut known = served.iter();
        known.find_map(|&(other, used)| (other == address).then_some(used))
    };
    Ok(all
        .map(|address| (address, used(address).unwrap_or_else(now_s)))
        .collect())
}

impl Shared {
    /// Gives those up that are not used any more.
    pub(crate) fn forget_left(&self) -> anyhow::Result<()> {
        // As a reload: one at a time.
        let _turn = self.file.lock().expect("no thread panics with it");
        let plan = self.plan();
        if plan.left.is_empty() {
            return Ok(());
        }
        let is_here = {
            let status = self.status.lock().expect("no thread panics with it");
            status.has_addresses
        };
        // What servers with agents say goes past this host, though they ask for its link address.
        let mut backends = plan.config.backends.iter();
        let is_seen = !backends.any(|backend| backend.transfer == Transfer::SplitSplice);
        let idle_timeout = plan.config.limits.idle_timeout.as_secs();
        let mut is_any_over = false;
        for (address, used) in splice_addresses(&self.maps.services)? {
            if !plan.left.contains(&address) {
                continue;
            }
            let key = ServiceKey::new(address, 0);
            if !is_here || !is_seen {
                // Who has it sees whether it is used. From when it comes here on, this spray does.
                let used = Service::splice_address(now_s());
                self.maps.services.put(&key, &used, Update::Any)?;
            } else if u64::from(now_s().saturating_sub(used)) > idle_timeout {
                println!("gives {address} up: its dispatcher has left, and nothing comes to it");
                self.maps.services.delete(&key)?;
                is_any_over = true;
            }
        }
        match is_any_over {
            true => self.follow(plan.config.clone()),
            false => Ok(()),
        }
    }
}

/// As the data path notes it.
fn now_s() -> u32 {
    clock::monotonic().as_secs() as u32
}
