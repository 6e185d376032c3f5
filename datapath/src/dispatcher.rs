//! A dispatcher's data path: loaded, attached, and its maps by name.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use trapeze_core::config::Attach;

use crate::abi::{
    self, Backend, BackendLoad, Flow, FlowKey, Node, Service, ServiceKey, SiphashKey,
};
use crate::attach::{Hook, attach};
use crate::map::{Map, PerCpu};
use crate::object::{self, LoadError, MapSize};

static DISPATCH_TC: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/dispatch_tc.o"));
static DISPATCH_XDP: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/dispatch_xdp.o"));

/// The maps of a dispatcher, whether its daemon runs or not.
#[derive(Debug)]
pub struct DispatcherMaps {
    /// Flow records.
    pub flows: Map<FlowKey, Flow>,
    /// Service addresses.
    pub services: Map<ServiceKey, Service>,
    /// Backends by slot.
    pub backends: Map<u32, Backend>,
    /// Open connections by slot.
    pub loads: Map<u32, BackendLoad>,
    /// This node.
    pub node: Map<u32, Node>,
    /// Cookie keys by rotation.
    pub cookie_keys: Map<u32, SiphashKey>,
    /// Tag keys by id.
    pub tag_keys: Map<u32, SiphashKey>,
    /// Drops by reason.
    pub drops: PerCpu,
    /// Events by name.
    pub events: PerCpu,
}

/// How to load a dispatcher.
#[derive(Clone, Copy, Debug)]
pub struct DispatcherOptions<'a> {
    /// Where its maps and links are pinned.
    pub pins: &'a Path,
    /// The interface to attach to.
    pub interface: &'a str,
    /// At which hook.
    pub attach: Attach,
    /// The most flow records.
    pub flows: u32,
}

/// Loads the programs, or takes over what is there, without a gap for flows.
///
/// They do nothing until the maps are filled; [`attach_dispatcher`] comes after that.
pub fn load_dispatcher(
    options: &DispatcherOptions,
) -> Result<(DispatcherMaps, object::Loaded), LoadError> {
    let (name, bytes) = match options.attach {
        Attach::Tc => ("dispatch_tc", DISPATCH_TC),
        Attach::Xdp | Attach::XdpGeneric => ("dispatch_xdp", DISPATCH_XDP),
    };
    let sizes: [MapSize; 1] = [("flows", options.flows)];
    let loaded = object::load(name, bytes, options.pins, &sizes)?;
    let maps = DispatcherMaps::open(options.pins).map_err(|source| LoadError::Pin {
        path: options.pins.into(),
        source,
    })?;
    Ok((maps, loaded))
}

/// Puts the loaded program on the interface.
pub fn attach_dispatcher(loaded: &object::Loaded, options: &DispatcherOptions) -> io::Result<()> {
    let ifindex = crate::host::ifindex(options.interface)?;
    attach(
        &loaded.program("dispatch"),
        ifindex,
        Hook::from(options.attach),
        &loaded.pin("link_dispatch"),
    )
}

impl DispatcherMaps {
    /// The maps that are pinned in a node's directory.
    pub fn open(pins: &Path) -> io::Result<Self> {
        Ok(Self {
            flows: Map::from_pin(&pins.join("flows"))?,
            services: Map::from_pin(&pins.join("services"))?,
            backends: Map::from_pin(&pins.join("backends"))?,
            loads: Map::from_pin(&pins.join("loads"))?,
            node: Map::from_pin(&pins.join("node"))?,
            cookie_keys: Map::from_pin(&pins.join("cookie_keys"))?,
            tag_keys: Map::from_pin(&pins.join("tag_keys"))?,
            drops: PerCpu::from_pin(&pins.join("drops"))?,
            events: PerCpu::from_pin(&pins.join("events"))?,
        })
    }
}

/// The loads map in this process's memory: the data path counts down, the daemon up.
#[derive(Debug)]
pub struct Loads {
    entries: *const LoadEntry,
}

#[repr(C)]
struct LoadEntry {
    active: AtomicI64,
    total: AtomicU64,
}

// SAFETY: shared memory that is only touched by atomics.
unsafe impl Send for Loads {}
// SAFETY: as above.
unsafe impl Sync for Loads {}

impl Loads {
    /// Maps it; stays mapped for the life of the process.
    pub fn map(loads: &Map<u32, BackendLoad>) -> io::Result<Self> {
        use std::os::fd::AsRawFd;
        let length = abi::BACKENDS_MAX * size_of::<LoadEntry>();
        // SAFETY: a new shared mapping of a map made with BPF_F_MMAPABLE.
        let memory = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                loads.fd().as_raw_fd(),
                0,
            )
        };
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self {
            entries: memory.cast(),
        })
    }

    fn entry(&self, slot: u32) -> &LoadEntry {
        assert!((slot as usize) < abi::BACKENDS_MAX);
        // SAFETY: within the mapping, aligned, never unmapped.
        unsafe { &*self.entries.add(slot as usize) }
    }

    /// Connections that are open at a backend now.
    pub fn active(&self, slot: u32) -> u64 {
        self.entry(slot).active.load(Ordering::Relaxed).max(0) as u64
    }

    /// Connections that it has been given in all.
    pub fn total(&self, slot: u32) -> u64 {
        self.entry(slot).total.load(Ordering::Relaxed)
    }

    /// One more.
    pub fn opened(&self, slot: u32) {
        self.entry(slot).active.fetch_add(1, Ordering::Relaxed);
        self.entry(slot).total.fetch_add(1, Ordering::Relaxed);
    }

    /// One less.
    pub fn closed(&self, slot: u32) {
        self.entry(slot).active.fetch_sub(1, Ordering::Relaxed);
    }

    /// A slot begins anew.
    pub fn reset(&self, slot: u32) {
        self.entry(slot).active.store(0, Ordering::Relaxed);
        self.entry(slot).total.store(0, Ordering::Relaxed);
    }
}
