//! A backend's data path: loaded, attached, and its maps by name.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use crate::abi::{
    Adoption, Done, EVENTS, Feedback, FlowKey, HealthWord, Node, Pod, Protection, SETUP_MOVED,
    SETUP_OLDER, Server, ServerKey, Setup, SiphashKey, Split, Unread, UnreadKey, Withheld,
};
use crate::attach::{Hook, attach, attach_to_loopback, detach};
use crate::diag;
use crate::map::{Map, PerCpu, Update, check};
use crate::object::{self, LoadError};
use crate::ring::{Begun, Ring};

static AGENT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/agent.o"));

/// A socket whose flow has not come back by then is not waited for any more.
pub const PARKED_FOR: Duration = Duration::from_secs(1);

/// The maps of an agent, whether its daemon runs or not.
#[derive(Debug)]
pub struct AgentMaps {
    /// This node.
    pub node: Map<u32, Node>,
    /// The index of the interface, where a dispatcher is on this host, too.
    pub own_interface: Map<u32, u32>,
    /// Servers that do not listen on the VIP, by port.
    pub servers: Map<ServerKey, Server>,
    /// How busy the host is.
    pub feedback: Map<u32, Feedback>,
    /// What is held of the servers here.
    pub health_word: Map<u32, HealthWord>,
    /// Tag keys by id.
    pub tag_keys: Map<u32, SiphashKey>,
    /// What is known of flows.
    pub setups: Map<FlowKey, Setup>,
    /// Flows of which this host is an older owner, and the epoch of the one after it.
    pub older: Map<FlowKey, u32>,
    /// Flows that another backend has, whose sockets wait here, and since when.
    pub parked: Map<FlowKey, u64>,
    /// Copies of requests' packets, of which the least used makes room.
    pub unreads: Map<UnreadKey, Unread>,
    /// Which answers the daemon is to be told of.
    pub protecting: Map<u32, Protection>,
    /// Connections that dispatchers open to servers here, until their sockets have spoken.
    pub splits: Map<FlowKey, Split>,
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

/// Has what a dispatcher's daemon on this host says to its agent come in at the interface, as
/// other dispatchers' words do; or no more.
///
/// # Errors
/// There is no such interface, or the kernel attaches nothing to the loopback device.
pub fn attach_loopback(
    maps: &AgentMaps,
    program: &OwnedFd,
    pins: &Path,
    interface: Option<&str>,
) -> io::Result<()> {
    let link = pins.join("link_loopback");
    match interface {
        Some(interface) => attach_to_loopback(program, &maps.own_interface, interface, &link),
        None => detach(&link),
    }
}

/// What the data path wants dispatchers to be told: what held a flow up has changed.
pub fn dones(pins: &Path) -> io::Result<Ring<Done>> {
    Ring::open(&pins.join("dones"))
}

/// Acknowledgements that do not leave before a request is being read.
pub fn withheld(pins: &Path) -> io::Result<Ring<Withheld>> {
    Ring::open(&pins.join("withheld"))
}

/// Answers that have begun and may outlive this backend.
pub fn begun(pins: &Path) -> io::Result<Ring<Begun>> {
    Ring::open(&pins.join("begun"))
}

impl AgentMaps {
    /// The maps that are pinned in a node's directory.
    pub fn open(pins: &Path) -> io::Result<Self> {
        Ok(Self {
            node: Map::from_pin(&pins.join("node"))?,
            own_interface: Map::from_pin(&pins.join("own_interface"))?,
            servers: Map::from_pin(&pins.join("servers"))?,
            feedback: Map::from_pin(&pins.join("feedback"))?,
            health_word: Map::from_pin(&pins.join("health_word"))?,
            tag_keys: Map::from_pin(&pins.join("tag_keys"))?,
            setups: Map::from_pin(&pins.join("setups"))?,
            older: Map::from_pin(&pins.join("older"))?,
            parked: Map::from_pin(&pins.join("parked"))?,
            unreads: Map::from_pin(&pins.join("unreads"))?,
            protecting: Map::from_pin(&pins.join("protecting"))?,
            splits: Map::from_pin(&pins.join("splits"))?,
            drops: PerCpu::from_pin(&pins.join("drops"))?,
            events: PerCpu::from_pin(&pins.join("events"))?,
        })
    }

    /// Ends the older owners that have heard nothing of their clients for `patience`, as
    /// of `now` on the monotonic clock (docs/protocol/handoff.md 6.6). Returns how many.
    ///
    /// # Errors
    /// Those of the maps, and of the kernel when it is to remove a socket.
    pub fn forsake_silent(&self, now: Duration, patience: Duration) -> io::Result<usize> {
        let mut forsaken = 0;
        for (key, epoch) in self.older.all()? {
            if let Some(setup) = self.setups.get(&key)?
                && setup.state == SETUP_OLDER
                && setup.epoch == epoch
            {
                if now.saturating_sub(Duration::from_nanos(setup.heard_ns)) < patience {
                    continue;
                }
                let moved = Setup {
                    state: SETUP_MOVED,
                    ..setup
                };
                let socket = diag::find(&key.into())?;
                // First, so that nobody hears what the socket says to its end.
                self.setups.put(&key, &moved, Update::Any)?;
                if let Some(socket) = socket {
                    diag::destroy(&key.into(), socket)?;
                }
                forsaken += 1;
            }
            self.older.delete(&key)?;
        }
        Ok(forsaken)
    }

    /// Ends the sockets that have been parked for longer than [`PARKED_FOR`], as of `now`
    /// on the monotonic clock (docs/protocol/handoff.md 8.4). Returns how many.
    ///
    /// # Errors
    /// Those of the maps, and of the kernel when it is to remove a socket.
    pub fn end_parked(&self, now: Duration) -> io::Result<usize> {
        let mut ended = 0;
        for (key, since) in self.parked.all()? {
            if now.saturating_sub(Duration::from_nanos(since)) < PARKED_FOR {
                continue;
            }
            let socket = diag::find(&key.into())?;
            // Whoever takes it out has it: the data path may just be taking it up again, or
            // be putting another in its place.
            if self.parked.delete(&key)?
                && let Some(socket) = socket
                && diag::destroy(&key.into(), socket)?
            {
                ended += 1;
            }
        }
        Ok(ended)
    }

    /// Forgets connections of which the data path was told `patience` ago, as of `now` on the
    /// monotonic clock, and whose sockets have not spoken (docs/protocol/splice.md 8.6).
    ///
    /// # Errors
    /// Those of the map.
    pub fn forget_unopened(&self, now: Duration, patience: Duration) -> io::Result<usize> {
        let mut forgotten = 0;
        for (key, split) in self.splits.all()? {
            if now.saturating_sub(Duration::from_nanos(split.told_ns)) >= patience {
                forgotten += usize::from(self.splits.delete(&key)?);
            }
        }
        Ok(forgotten)
    }

    /// Counts what the daemon has done, under the name that abi.h has for it.
    ///
    /// # Panics
    /// If it has none.
    pub fn count(&self, event: &str, more: u64) -> io::Result<()> {
        let index = EVENTS.iter().position(|(name, _)| *name == event);
        self.events.add(index.expect("abi.h has it") as u32, more)
    }
}

/// Makes connections that were set up for it ones that go on with another backend's answer
/// (bpf/lib/adopt.bpf.h).
#[derive(Debug)]
pub struct Adopter {
    adopt: OwnedFd,
    never_ends: OwnedFd,
}

impl Adopter {
    /// Of a data path that was loaded.
    pub fn of(loaded: &object::Loaded) -> Self {
        Self {
            adopt: loaded.program("adopt_answer"),
            never_ends: loaded.program("never_ends"),
        }
    }

    /// False: that connection is another's, or nobody's by now.
    ///
    /// # Errors
    /// The kernel does not run the program.
    pub fn adopt(&self, adoption: &Adoption) -> io::Result<bool> {
        run(&self.adopt, adoption)
    }

    /// The answer until close of that connection, in that epoch, is one that its server never ends. False:
    /// there is none.
    ///
    /// # Errors
    /// The kernel does not run the program.
    pub fn never_ends(&self, key: FlowKey, epoch: u32) -> io::Result<bool> {
        let adoption = Adoption {
            key,
            epoch,
            ..Adoption::zeroed()
        };
        run(&self.never_ends, &adoption)
    }
}

/// True: it is done.
fn run(program: &OwnedFd, adoption: &Adoption) -> io::Result<bool> {
    let mut adoption = *adoption;
    let mut options = libbpf_sys::bpf_test_run_opts {
        sz: size_of::<libbpf_sys::bpf_test_run_opts>() as _,
        ctx_in: (&raw mut adoption).cast(),
        ctx_size_in: size_of::<Adoption>() as u32,
        ..Default::default()
    };
    // SAFETY: the kernel reads and writes as many bytes as is said.
    check(unsafe { libbpf_sys::bpf_prog_test_run_opts(program.as_raw_fd(), &raw mut options) })?;
    Ok(options.retval == 0)
}
