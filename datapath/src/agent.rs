//! A backend's data path: loaded, attached, and its maps by name.

use std::io;
use std::path::Path;

use crate::abi::{EVENTS, Feedback, Node, Server, ServerKey, SiphashKey};
use crate::attach::{Hook, attach};
use crate::map::{Map, PerCpu};
use crate::object::{self, LoadError};

static AGENT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/agent.o"));

/// The maps of an agent, whether its daemon runs or not.
#[derive(Debug)]
pub struct AgentMaps {
    /// This node.
    pub node: Map<u32, Node>,
    /// Servers that do not listen on the VIP, by port.
    pub servers: Map<ServerKey, Server>,
    /// How busy the host is.
    pub feedback: Map<u32, Feedback>,
    /// Tag keys by id.
    pub tag_keys: Map<u32, SiphashKey>,
    /// Drops by reason.
    pub drops: PerCpu,
    /// Events by name.
    pub events: PerCpu,
}

/// Loads the programs, or takes over what is there.
pub fn load_agent(pins: &Path) -> Result<(AgentMaps, object::Loaded), LoadError> {
    let loaded = object::load("agent", AGENT, pins, &[])?;
    let maps = AgentMaps::open(pins).map_err(|source| LoadError::Pin {
        path: pins.into(),
        source,
    })?;
    Ok((maps, loaded))
}

/// Puts the loaded programs on the interface.
pub fn attach_agent(loaded: &object::Loaded, interface: &str) -> io::Result<()> {
    let ifindex = crate::host::ifindex(interface)?;
    // Egress first: no connection may speak before somebody listens for its word.
    attach(
        &loaded.program("agent_egress"),
        ifindex,
        Hook::TcEgress,
        &loaded.pin("link_egress"),
    )?;
    attach(
        &loaded.program("agent_ingress"),
        ifindex,
        Hook::TcIngress,
        &loaded.pin("link_ingress"),
    )
}

impl AgentMaps {
    /// The maps that are pinned in a node's directory.
    pub fn open(pins: &Path) -> io::Result<Self> {
        Ok(Self {
            node: Map::from_pin(&pins.join("node"))?,
            servers: Map::from_pin(&pins.join("servers"))?,
            feedback: Map::from_pin(&pins.join("feedback"))?,
            tag_keys: Map::from_pin(&pins.join("tag_keys"))?,
            drops: PerCpu::from_pin(&pins.join("drops"))?,
            events: PerCpu::from_pin(&pins.join("events"))?,
        })
    }

    /// Counts what the daemon has set again on its host.
    pub fn count_set_again(&self, more: u64) -> io::Result<()> {
        let index = EVENTS.iter().position(|(name, _)| *name == "set-again");
        self.events.add(index.expect("abi.h has it") as u32, more)
    }
}
