//! The configuration in use: whom to ask, with which keys, and which slot each dispatcher
//! has in the data path. A slot keeps its dispatcher across reloads and restarts.

use std::net::{IpAddr, Ipv4Addr};

use anyhow::bail;
use trapeze_core::config::{Config, Spray};
use trapeze_core::membership::lots;
use trapeze_core::wire::meta::Keys;
use trapeze_datapath::abi::DISPATCHERS_MAX;
use trapeze_datapath::dispatchers::{self, Shares};
use trapeze_datapath::spray::SprayMaps;

use crate::{left, v4};

pub struct Plan {
    pub config: Config,
    pub own: Spray,
    pub keys: Keys,
    /// Of the hash over 4-tuples.
    pub lots_key: [u8; 16],
    /// Splice addresses of dispatchers that are no members any more.
    pub left: Vec<IpAddr>,
    /// Dispatchers of the front end in the order of the configuration, then the other sprays.
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
        let wanted = (config.front_end())
            .map(|dispatcher| Ok((dispatcher.name.clone(), v4(dispatcher.address)?)))
            .collect::<anyhow::Result<Vec<_>>>()?;
        let Some(slots) = dispatchers::slots(&maps.dispatchers, &wanted)? else {
            bail!("more than {DISPATCHERS_MAX} dispatchers: split the cluster");
        };
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
            left: left::addresses(&config, maps)?,
            own,
            config,
            members,
        })
    }

    /// All addresses whose packets dispatchers are to have.
    pub fn front_addresses(&self) -> Vec<IpAddr> {
        let mut addresses = self.config.front_addresses();
        addresses.extend(&self.left);
        addresses
    }

    /// Writes dispatchers to their slots, where they are not yet there: before lots name them.
    pub fn publish_dispatchers(&self, maps: &SprayMaps) -> anyhow::Result<()> {
        let source = v4(self.own.address)?;
        for member in &self.members {
            if let MemberRole::Dispatcher(slot) = member.role {
                let is = (&*member.name, member.address);
                dispatchers::publish(&maps.dispatchers, slot, is, source, Shares::Records)?;
            }
        }
        Ok(())
    }

    /// The slots of the dispatchers.
    pub fn slots(&self) -> Vec<u16> {
        let slots = self.members.iter().filter_map(|member| match member.role {
            MemberRole::Dispatcher(slot) => Some(slot),
            MemberRole::Spray(_) => None,
        });
        slots.collect()
    }

    /// Empties the slots of those who are not configured any more: once no lot names them.
    pub fn retire_dispatchers(&self, maps: &SprayMaps) -> anyhow::Result<()> {
        let is_used = |slot| {
            let role = MemberRole::Dispatcher(slot);
            self.members.iter().any(|member| member.role == role)
        };
        Ok(dispatchers::retire(&maps.dispatchers, is_used)?)
    }
}
