//! The configuration in use: whom to ask, with which keys, and which slot each dispatcher
//! has in the data path. A slot keeps its dispatcher across reloads and restarts.

use std::net::{IpAddr, Ipv4Addr};

use anyhow::bail;
use trapeze_core::config::{Config, Spray};
use trapeze_core::flow::{addr_bytes, addr_from_bytes};
use trapeze_core::membership::lots;
use trapeze_core::wire::meta::Keys;
use trapeze_datapath::abi::{DISPATCHERS_MAX, Dispatcher, Pod};
use trapeze_datapath::map::Update;
use trapeze_datapath::spray::SprayMaps;

use crate::v4;

pub struct Plan {
    pub config: Config,
    pub own: Spray,
    pub keys: Keys,
    /// Of the hash over 4-tuples.
    pub lots_key: [u8; 16],
    /// Dispatchers in the order of the configuration, then the other sprays.
    pub members: Vec<Member>,
}

/// Somebody who is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    pub name: String,
    pub address: Ipv4Addr,
    pub role: MemberRole,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberRole {
    /// With its slot.
    Dispatcher(u16),
    /// With its place in the configuration.
    Spray(usize),
}

impl Plan {
    pub fn new(config: Config, own: Spray, maps: &SprayMaps) -> anyhow::Result<Self> {
        let wanted = (config.dispatchers.iter())
            .map(|dispatcher| Ok((dispatcher.name.clone(), v4(dispatcher.address)?)))
            .collect::<anyhow::Result<Vec<_>>>()?;
        let slots = assign(&taken(maps)?, &wanted)?;
        let mut members: Vec<Member> = (wanted.into_iter().zip(slots))
            .map(|((name, address), slot)| Member {
                name,
                address,
                role: MemberRole::Dispatcher(slot),
            })
            .collect();
        for (place, spray) in config.sprays.iter().enumerate() {
            if spray.name != own.name {
                members.push(Member {
                    name: spray.name.clone(),
                    address: v4(spray.address)?,
                    role: MemberRole::Spray(place),
                });
            }
        }
        Ok(Self {
            keys: Keys::new(&config.keys).expect("a checked configuration has a key"),
            lots_key: lots::key(&config.name),
            own,
            config,
            members,
        })
    }

    /// What works, and not as somebody may think.
    pub fn warn(&self) {
        if let Some(warning) = self.config.scatter_warning() {
            eprintln!("{warning}");
        }
    }

    /// Writes dispatchers to their slots, where they are not yet there: before lots name them.
    pub fn publish_dispatchers(&self, maps: &SprayMaps) -> anyhow::Result<()> {
        let source = v4(self.own.address)?.octets();
        for member in &self.members {
            let MemberRole::Dispatcher(slot) = member.role else {
                continue;
            };
            let key = u32::from(slot);
            let is = maps.dispatchers.get(&key)?.unwrap_or_else(Pod::zeroed);
            let mut name = [0; 32];
            name[..member.name.len()].copy_from_slice(member.name.as_bytes());
            let addr = addr_bytes(member.address.into());
            if (is.name, is.addr, is.source) != (name, addr, source) {
                let value = Dispatcher {
                    addr,
                    name,
                    source,
                    ..Pod::zeroed()
                };
                maps.dispatchers.put(&key, &value, Update::Any)?;
            }
        }
        Ok(())
    }

    /// Empties the slots of those who are not configured any more: once no lot names them.
    pub fn retire_dispatchers(&self, maps: &SprayMaps) -> anyhow::Result<()> {
        for slot in 0..DISPATCHERS_MAX as u16 {
            let role = MemberRole::Dispatcher(slot);
            if self.members.iter().any(|member| member.role == role) {
                continue;
            }
            let is = maps.dispatchers.get(&slot.into())?;
            if is.is_some_and(|is| !is.name().is_empty()) {
                (maps.dispatchers).put(&slot.into(), &Pod::zeroed(), Update::Any)?;
            }
        }
        Ok(())
    }
}

/// Which slots the data path has given to whom.
fn taken(maps: &SprayMaps) -> std::io::Result<Vec<Option<(String, IpAddr)>>> {
    (0..DISPATCHERS_MAX as u32)
        .map(|slot| {
            let entry = maps.dispatchers.get(&slot)?.unwrap_or_else(Pod::zeroed);
            let name = entry.name().to_owned();
            Ok((!name.is_empty()).then(|| (name, addr_from_bytes(entry.addr))))
        })
        .collect()
}

/// Slots for these, in their order: the one that somebody has, else a free one, else one
/// of somebody who is not wanted any more.
fn assign(
    taken: &[Option<(String, IpAddr)>],
    wanted: &[(String, Ipv4Addr)],
) -> anyhow::Result<Vec<u16>> {
    let is = |entry: &(String, IpAddr), w: &(String, Ipv4Addr)| {
        entry.0 == w.0 && entry.1 == IpAddr::V4(w.1)
    };
    let own = |w| {
        taken
            .iter()
            .position(|t| t.as_ref().is_some_and(|t| is(t, w)))
    };
    let mut used: Vec<usize> = wanted.iter().filter_map(own).collect();
    let mut slots = Vec::new();
    for member in wanted {
        let slot = own(member).or_else(|| {
            let unused = (0..taken.len()).filter(|slot| !used.contains(slot));
            unused
                .clone()
                .find(|&slot| taken[slot].is_none())
                .or(unused.clone().next())
        });
        let Some(slot) = slot else {
            bail!("more than {DISPATCHERS_MAX} dispatchers: split the cluster");
        };
        used.push(slot);
        slots.push(slot as u16);
    }
    Ok(slots)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(hosts: &[u8]) -> Vec<(String, Ipv4Addr)> {
        let host = |&n: &u8| (format!("d{n}"), Ipv4Addr::new(10, 0, 0, n));
        hosts.iter().map(host).collect()
    }

    #[test]
    fn who_has_a_slot_keeps_it() {
        let mut taken: Vec<_> = (wanted(&[1, 2, 3]).into_iter())
            .map(|(name, address)| Some((name, IpAddr::V4(address))))
            .collect();
        assert_eq!(assign(&taken, &wanted(&[3, 1])).unwrap(), [2, 0]);
        // A new one: first what nobody has, then what nobody needs.
        taken.push(None);
        assert_eq!(assign(&taken, &wanted(&[4, 3, 5])).unwrap(), [3, 2, 0]);
        // The same name elsewhere is another dispatcher.
        let moved = vec![("d1".to_owned(), Ipv4Addr::new(10, 0, 0, 9))];
        assert_eq!(assign(&taken, &moved).unwrap(), [3]);
        assert!(assign(&taken, &wanted(&[1, 2, 3, 4, 5])).is_err());
    }
}
