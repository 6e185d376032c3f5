//! A spray's data path: loaded, attached, and its maps by name.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU16, Ordering};

use trapeze_core::config::Attach;

use crate::abi::{
    self, Dispatcher, Node, Peer, Presence, Sent, SentRing, Server, Service, ServiceKey,
    SiphashKey, Spraying,
};
use crate::attach::{Hook, attach};
use crate::map::{Map, PerCpu, share};
use crate::object::{self, LoadError};

static SPRAY_TC: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/spray_tc.o"));
static SPRAY_XDP: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/spray_xdp.o"));

/// The maps of a spray, whether its daemon runs or not.
#[derive(Debug)]
pub struct SprayMaps {
    /// Service addresses.
    pub services: Map<ServiceKey, Service>,
    /// This node.
    pub node: Map<u32, Node>,
    /// Tag keys by id.
    pub tag_keys: Map<u32, SiphashKey>,
    /// What it says of itself.
    pub presence: Map<u32, Presence>,
    /// Who has asked whether it is there, by address.
    pub peers: Map<Server, Peer>,
    /// How packets draw lots.
    pub spraying: Map<u32, Spraying>,
    /// Whose each lot is, as one value; [`SharedLots`] is the quicker way.
    pub lots: Map<u32, abi::Lots>,
    /// Dispatchers by slot.
    pub dispatchers: Map<u32, Dispatcher>,
    /// Packets sent to each, by slot.
    pub sprayed: PerCpu,
    /// The latest ones; [`crate::sent::SharedSent`] reads them.
    pub sent: Map<u32, Sent>,
    /// Where the latest ones to each are, by slot.
    pub sent_rings: Map<u32, SentRing>,
    /// Drops by reason.
    pub drops: PerCpu,
    /// Events by name.
    pub events: PerCpu,
}

/// Loads the program, or takes over what is there.
///
/// It does nothing until the maps are filled; [`attach_spray`] comes after that.
pub fn load_spray(pins: &Path, hook: Attach) -> Result<(SprayMaps, object::Loaded), LoadError> {
    let (name, bytes) = match hook {
        Attach::Tc => ("spray_tc", SPRAY_TC),
        Attach::Xdp | Attach::XdpGeneric => ("spray_xdp", SPRAY_XDP),
    };
    let loaded = object::load(name, bytes, pins, &[])?;
    let maps = SprayMaps::open(pins).map_err(|source| LoadError::Pin {
        path: pins.into(),
        source,
    })?;
    Ok((maps, loaded))
}

/// Puts the loaded program on the interface.
pub fn attach_spray(loaded: &object::Loaded, interface: &str, hook: Attach) -> io::Result<()> {
    let ifindex = crate::host::ifindex(interface)?;
    let pin = loaded.pin("link_spray");
    attach(&loaded.program("spray"), ifindex, Hook::from(hook), &pin)
}

impl SprayMaps {
    /// The maps that are pinned in a node's directory.
    pub fn open(pins: &Path) -> io::Result<Self> {
        Ok(Self {
            services: Map::from_pin(&pins.join("services"))?,
            node: Map::from_pin(&pins.join("node"))?,
            tag_keys: Map::from_pin(&pins.join("tag_keys"))?,
            presence: Map::from_pin(&pins.join("presence"))?,
            peers: Map::from_pin(&pins.join("peers"))?,
            spraying: Map::from_pin(&pins.join("spraying"))?,
            lots: Map::from_pin(&pins.join("lots"))?,
            dispatchers: Map::from_pin(&pins.join("dispatchers"))?,
            sprayed: PerCpu::from_pin(&pins.join("sprayed"))?,
            sent: Map::from_pin(&pins.join("sent"))?,
            sent_rings: Map::from_pin(&pins.join("sent_rings"))?,
            drops: PerCpu::from_pin(&pins.join("drops"))?,
            events: PerCpu::from_pin(&pins.join("events"))?,
        })
    }
}

/// The lots map in this process's memory: the data path reads what is written here at once.
#[derive(Debug)]
pub struct SharedLots {
    slots: *const AtomicU16,
}

// SAFETY: shared memory that is only touched by atomics.
unsafe impl Send for SharedLots {}
// SAFETY: as above.
unsafe impl Sync for SharedLots {}

impl SharedLots {
    /// Maps it; stays mapped for the life of the process.
    pub fn map(lots: &Map<u32, abi::Lots>) -> io::Result<Self> {
        Ok(Self {
            slots: share(lots, 1)?.cast(),
        })
    }

    /// Whose each lot is from now on, lot by lot: a packet that comes meanwhile draws an
    /// old one or a new one. At most [`abi::LOTS`].
    pub fn set(&self, slots: &[u16]) {
        for (at, &slot) in slots.iter().take(abi::LOTS).enumerate() {
            // SAFETY: within the mapping, aligned, never unmapped.
            let lot = unsafe { &*self.slots.add(at) };
            if lot.load(Ordering::Relaxed) != slot {
                lot.store(slot, Ordering::Relaxed);
            }
        }
    }

    /// Whose a lot is.
    pub fn get(&self, lot: usize) -> Option<u16> {
        // SAFETY: as above.
        (lot < abi::LOTS).then(|| unsafe { &*self.slots.add(lot) }.load(Ordering::Relaxed))
    }
}
