//! Slots: the numbers by which flow records name backends. A backend keeps its
//! slot across reloads and restarts; a slot that flows still use is not reused.

use std::net::IpAddr;

use anyhow::bail;
use trapeze_core::flow::{addr_bytes, addr_from_bytes};
use trapeze_datapath::abi::{BACKENDS_MAX, Backend, Pod};
use trapeze_datapath::dispatcher::DispatcherMaps;
use trapeze_datapath::map::{Map, Update};

/// Which backend has which slot.
#[derive(Debug, Default)]
pub struct Registry {
    slots: Vec<Option<(String, IpAddr)>>,
    changed: Vec<u32>,
}

/// A backend that wants a slot.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its address.
    pub address: IpAddr,
}

impl Registry {
    /// As the data path's map has it.
    pub fn read(maps: &DispatcherMaps) -> std::io::Result<Self> {
        let slots = (0..BACKENDS_MAX as u32)
            .map(|slot| {
                let entry = maps.backends.get(&slot)?.unwrap_or_else(Backend::zeroed);
                Ok((!entry.name().is_empty())
                    .then(|| (entry.name().to_owned(), addr_from_bytes(entry.addr))))
            })
            .collect::<std::io::Result<_>>()?;
        Ok(Self {
            slots,
            changed: Vec::new(),
        })
    }

    /// The slots of these backends, in their order. `in_use` tells of a slot
    /// whether flow records name it.
    pub fn assign(
        &mut self,
        wanted: &[Wanted<'_>],
        in_use: impl Fn(u32) -> bool,
    ) -> anyhow::Result<Vec<u32>> {
        let is_wanted = |entry: &(String, IpAddr)| {
            wanted
                .iter()
                .any(|w| w.name == entry.0 && w.address == entry.1)
        };
        let mut assigned = Vec::with_capacity(wanted.len());
        for backend in wanted {
            let same = |entry: &Option<(String, IpAddr)>| {
                entry
                    .as_ref()
                    .is_some_and(|e| e.0 == backend.name && e.1 == backend.address)
            };
            let slot = match self.slots.iter().position(same) {
                Some(slot) => slot,
                None => {
                    let free = self.slots.iter().position(Option::is_none).or_else(|| {
                        (0..self.slots.len()).find(|&slot| {
                            !self.slots[slot].as_ref().is_some_and(is_wanted)
                                && !in_use(slot as u32)
                        })
                    });
                    let Some(slot) = free else {
                        bail!("more than {BACKENDS_MAX} backends: split the cluster");
                    };
                    self.slots[slot] = Some((backend.name.to_owned(), backend.address));
                    self.changed.push(slot as u32);
                    slot
                }
            };
            assigned.push(slot as u32);
        }
        Ok(assigned)
    }

    /// Who has which slot.
    pub fn all(&self) -> impl Iterator<Item = (u32, IpAddr)> + '_ {
        let taken = self.slots.iter().enumerate();
        taken.filter_map(|(slot, who)| Some((slot as u32, who.as_ref()?.1)))
    }

    /// Writes new slots to the data path. Returns them.
    pub fn publish(
        &mut self,
        backends: &Map<u32, Backend>,
        source: std::net::Ipv4Addr,
    ) -> std::io::Result<Vec<u32>> {
        let changed = std::mem::take(&mut self.changed);
        for &slot in &changed {
            let Some((name, address)) = &self.slots[slot as usize] else {
                continue;
            };
            let value = Backend {
                addr: addr_bytes(*address),
                name: Backend::name_bytes(name),
                source: source.octets(),
                ..Backend::zeroed()
            };
            backends.put(&slot, &value, Update::Any)?;
        }
        Ok(changed)
    }
}
