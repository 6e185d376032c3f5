//! A dispatcher's data path: loaded, attached, and its maps by name.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use trapeze_core::config::Attach;

use crate::abi::{
    self, Backend, BackendLoad, Decision, DecisionKey, Finished, Flow, FlowChange, FlowKey, Node,
    Overheard, Parting, Peer, Pod, Presence, Proof, SIEVE_KEYS, Server, Service, ServiceKey,
    SiphashKey, Spliced, Spraying, Standing, Turn, Turns,
};
use crate::attach::{Hook, attach, attach_to_loopback, detach};
use crate::map::{Map, PerCpu, Update, check, share};
use crate::object::{self, LoadError, MapSize};
use crate::ring::Ring;

static DISPATCH_TC: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/dispatch_tc.o"));
static DISPATCH_XDP: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/dispatch_xdp.o"));

/// The maps of a dispatcher, whether its daemon runs or not.
#[derive(Debug)]
pub struct DispatcherMaps {
    /// Flow records.
    pub flows: Map<FlowKey, Flow>,
    /// Spliced flows, by what their servers send.
    pub splices: Map<FlowKey, Spliced>,
    /// What is known of these servers' answers, where flows have boundaries.
    pub overheard: Map<FlowKey, Overheard>,
    /// Connections that have shown their cookie.
    pub proofs: Map<FlowKey, Proof>,
    /// Service addresses.
    pub services: Map<ServiceKey, Service>,
    /// Backends by slot.
    pub backends: Map<u32, Backend>,
    /// Their slots by address, as it is in packets.
    pub slots: Map<u32, u32>,
    /// Open connections by slot.
    pub loads: Map<u32, BackendLoad>,
    /// By slot: how often clients have repeated what nobody acknowledges.
    pub stalls: Map<u32, u64>,
    /// What holds of all decisions.
    pub standing: Map<u32, Standing>,
    /// Where requests like earlier ones go.
    pub decisions: Map<DecisionKey, Decision>,
    /// Whose turn it is, by pool.
    pub turns: Map<u32, Turns>,
    /// This node.
    pub node: Map<u32, Node>,
    /// Cookie keys by rotation.
    pub cookie_keys: Map<u32, SiphashKey>,
    /// Tag keys by id.
    pub tag_keys: Map<u32, SiphashKey>,
    /// The daemon's latest turn of which others have been told.
    pub told: Map<u32, u32>,
    /// What it says of itself.
    pub presence: Map<u32, Presence>,
    /// Who has asked whether it is there, by address.
    pub peers: Map<Server, Peer>,
    /// How flows draw lots.
    pub spraying: Map<u32, Spraying>,
    /// Which dispatcher keeps the flows of each lot; [`crate::spray::SharedLots`] is the
    /// quicker way.
    pub lots: Map<u32, abi::Lots>,
    /// Which of the others would keep them if this one died.
    pub heirs: Map<u32, abi::Lots>,
    /// Other dispatchers by slot.
    pub dispatchers: Map<u32, abi::Dispatcher>,
    /// The latest packets that were passed to them; [`crate::sent::SharedSent`] reads them.
    pub sent: Map<u32, abi::Sent>,
    /// Where the latest ones to each are, by slot.
    pub sent_rings: Map<u32, abi::SentRing>,
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
    let sizes: [MapSize; 3] = ["flows", "splices", "overheard"].map(|map| (map, options.flows));
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

/// Has what the daemon gives back ([`crate::inlet`]) come in where clients' packets do. False: not at this hook, which
/// sees no segments longer than the interface carries.
///
/// # Errors
/// There is no such interface, or the kernel attaches nothing to the loopback device.
pub fn attach_loopback(loaded: &object::Loaded, options: &DispatcherOptions) -> io::Result<bool> {
    let link = loaded.pin("link_loopback");
    if options.attach != Attach::Tc {
        return detach(&link).map(|()| false);
    }
    let program = loaded.program("dispatch_loopback");
    let own_interface = Map::from_pin(&loaded.pin("own_interface"))?;
    attach_to_loopback(&program, &own_interface, options.interface, &link)?;
    Ok(true)
}

impl DispatcherMaps {
    /// The maps that are pinned in a node's directory.
    pub fn open(pins: &Path) -> io::Result<Self> {
        Ok(Self {
            flows: Map::from_pin(&pins.join("flows"))?,
            splices: Map::from_pin(&pins.join("splices"))?,
            overheard: Map::from_pin(&pins.join("overheard"))?,
            proofs: Map::from_pin(&pins.join("proofs"))?,
            services: Map::from_pin(&pins.join("services"))?,
            backends: Map::from_pin(&pins.join("backends"))?,
            slots: Map::from_pin(&pins.join("slots"))?,
            loads: Map::from_pin(&pins.join("loads"))?,
            stalls: Map::from_pin(&pins.join("stalls"))?,
            standing: Map::from_pin(&pins.join("standing"))?,
            decisions: Map::from_pin(&pins.join("decisions"))?,
            turns: Map::from_pin(&pins.join("turns"))?,
            node: Map::from_pin(&pins.join("node"))?,
            cookie_keys: Map::from_pin(&pins.join("cookie_keys"))?,
            tag_keys: Map::from_pin(&pins.join("tag_keys"))?,
            told: Map::from_pin(&pins.join("told"))?,
            presence: Map::from_pin(&pins.join("presence"))?,
            peers: Map::from_pin(&pins.join("peers"))?,
            spraying: Map::from_pin(&pins.join("spraying"))?,
            lots: Map::from_pin(&pins.join("lots"))?,
            heirs: Map::from_pin(&pins.join("heirs"))?,
            dispatchers: Map::from_pin(&pins.join("dispatchers"))?,
            sent: Map::from_pin(&pins.join("sent"))?,
            sent_rings: Map::from_pin(&pins.join("sent_rings"))?,
            drops: PerCpu::from_pin(&pins.join("drops"))?,
            events: PerCpu::from_pin(&pins.join("events"))?,
        })
    }
}

/// Changes flow records while the data path goes on with them (bpf/lib/change.bpf.h).
#[derive(Debug)]
pub struct FlowChanger {
    program: OwnedFd,
}

/// What became of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowChanged {
    /// The record is as it was to be.
    Yes,
    /// It has changed since it was read.
    Stale,
    /// There is none any more.
    Gone,
}

impl FlowChanger {
    /// Of a data path that was loaded.
    pub fn of(loaded: &object::Loaded) -> Self {
        Self {
            program: loaded.program("change_flow"),
        }
    }

    /// Makes of a record that was `before`, when it was read, the one that is `after`.
    /// What packets have changed since and both have alike stays as they left it.
    ///
    /// # Errors
    /// The kernel does not run the program.
    pub fn change(&self, key: &FlowKey, before: &Flow, after: &Flow) -> io::Result<FlowChanged> {
        let mut change = FlowChange {
            key: *key,
            pad: 0,
            before: *before,
            after: *after,
        };
        match run(&self.program, &mut change)? {
            0 => Ok(FlowChanged::Yes),
            1 => Ok(FlowChanged::Stale),
            2 => Ok(FlowChanged::Gone),
            other => Err(io::Error::other(format!("change_flow says {other}"))),
        }
    }
}

/// Makes records of the connections that other dispatchers have entrusted to this one (bpf/lib/heir.bpf.h).
#[derive(Debug)]
pub struct Claimer {
    program: OwnedFd,
}

impl Claimer {
    /// Of a data path that was loaded.
    pub fn of(loaded: &object::Loaded) -> Self {
        Self {
            program: loaded.program("claim_trusts"),
        }
    }

    /// Of all that was entrusted since the last time, and not so long ago that it has ended. For one thread at a time.
    ///
    /// # Errors
    /// The kernel does not run the program.
    pub fn claim(&self) -> io::Result<()> {
        run(&self.program, &mut 0u32).map(|_| ())
    }
}

/// Finds the flows of which others are to be told (bpf/lib/sieve.bpf.h).
#[derive(Debug)]
pub struct Sieve {
    program: OwnedFd,
    keys: Map<u32, abi::Sieve>,
}

impl Sieve {
    /// Of a data path that was loaded.
    ///
    /// # Errors
    /// Its map is not there.
    pub fn of(loaded: &object::Loaded) -> io::Result<Self> {
        Ok(Self {
            program: loaded.program("sieve_flows"),
            keys: Map::from_pin(&loaded.pin("sieving"))?,
        })
    }

    /// Leaves those of `keys` of whose flows others may have to be told. For one thread at a time.
    ///
    /// # Errors
    /// The kernel does not run the program.
    pub fn sift(&self, keys: &[FlowKey]) -> io::Result<Vec<FlowKey>> {
        let mut left = Vec::new();
        let mut sieve: Box<abi::Sieve> = Box::new(Pod::zeroed());
        for some in keys.chunks(SIEVE_KEYS) {
            sieve.count = some.len() as u32;
            sieve.keys[..some.len()].copy_from_slice(some);
            self.keys.put(&0, &sieve, Update::Any)?;
            run(&self.program, &mut 0u32)?;
            if let Some(sifted) = self.keys.get(&0)? {
                *sieve = sifted;
            }
            let each = some.iter().zip(sieve.keep);
            left.extend(each.filter(|&(_, keep)| keep == 1).map(|(key, _)| *key));
        }
        Ok(left)
    }
}

/// Takes flows from servers without an agent (bpf/lib/parting.bpf.h).
#[derive(Debug)]
pub struct Parter {
    program: OwnedFd,
}

/// What becomes of that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parted {
    /// Nothing of what the server says goes on to the client any more.
    Yes {
        /// Where its last answer ended, as the client knows it.
        end: u32,
        /// Its clock; 0: it has none.
        clock: u32,
    },
    /// Not now: an answer is on its way.
    NotYet,
    /// Nobody here knows where its answers end, or it closes.
    Never,
}

impl Parter {
    /// Of a data path that was loaded.
    pub fn of(loaded: &object::Loaded) -> Self {
        Self {
            program: loaded.program("part_flow"),
        }
    }

    /// Takes a flow from its server, if that owes nothing.
    ///
    /// # Errors
    /// The kernel does not run the program.
    pub fn part(&self, mut parting: Parting) -> io::Result<Parted> {
        match run(&self.program, &mut parting)? {
            0 => Ok(Parted::Yes {
                end: parting.end,
                clock: parting.clock,
            }),
            abi::HELD_ANSWERING | abi::HELD_UNACKED => Ok(Parted::NotYet),
            abi::HELD_CLOSING => Ok(Parted::Never),
            other => Err(io::Error::other(format!("part_flow says {other}"))),
        }
    }
}

/// Runs a program of the daemon's, which may change what it is given.
fn run<T: Pod>(program: &OwnedFd, given: &mut T) -> io::Result<u32> {
    let mut options = libbpf_sys::bpf_test_run_opts {
        sz: size_of::<libbpf_sys::bpf_test_run_opts>() as _,
        ctx_in: ptr::from_mut(given).cast(),
        ctx_size_in: size_of::<T>() as u32,
        ..Default::default()
    };
    // SAFETY: the kernel reads and writes as many bytes as is said.
    check(unsafe { libbpf_sys::bpf_prog_test_run_opts(program.as_raw_fd(), &raw mut options) })?;
    Ok(options.retval)
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
    cost_us: AtomicI64,
    stood: AtomicU64,
}

const _: () = assert!(size_of::<LoadEntry>() == size_of::<BackendLoad>());

// SAFETY: shared memory that is only touched by atomics.
unsafe impl Send for Loads {}
// SAFETY: as above.
unsafe impl Sync for Loads {}

impl Loads {
    /// Maps it; stays mapped for the life of the process.
    pub fn map(loads: &Map<u32, BackendLoad>) -> io::Result<Self> {
        Ok(Self {
            entries: share(loads, abi::BACKENDS_MAX)?.cast(),
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

    /// What its unfinished requests are expected to cost, in microseconds of service.
    pub fn cost_us(&self, slot: u32) -> u64 {
        self.entry(slot).cost_us.load(Ordering::Relaxed).max(0) as u64
    }

    /// Of these, those that the data path has placed by decisions of a policy that looks
    /// at loads.
    pub fn stood(&self, slot: u32) -> u64 {
        self.entry(slot).stood.load(Ordering::Relaxed)
    }

    /// One more, with a request that is expected to cost so much.
    pub fn opened(&self, slot: u32, charge_us: u32) {
        let entry = self.entry(slot);
        entry.active.fetch_add(1, Ordering::Relaxed);
        entry.total.fetch_add(1, Ordering::Relaxed);
        entry.cost_us.fetch_add(charge_us.into(), Ordering::Relaxed);
    }

    /// One of its connections has a request more, that is expected to cost so much.
    pub fn charged(&self, slot: u32, charge_us: u32) {
        self.entry(slot)
            .cost_us
            .fetch_add(charge_us.into(), Ordering::Relaxed);
    }

    /// A request that was charged so much is not its affair any more.
    pub fn finished(&self, slot: u32, charge_us: u32) {
        self.entry(slot)
            .cost_us
            .fetch_sub(charge_us.into(), Ordering::Relaxed);
    }

    /// One less.
    pub fn closed(&self, slot: u32) {
        self.entry(slot).active.fetch_sub(1, Ordering::Relaxed);
    }

    /// A slot begins anew.
    pub fn reset(&self, slot: u32) {
        self.entry(slot).active.store(0, Ordering::Relaxed);
        self.entry(slot).total.store(0, Ordering::Relaxed);
        self.entry(slot).cost_us.store(0, Ordering::Relaxed);
        self.entry(slot).stood.store(0, Ordering::Relaxed);
    }
}

/// The first requests that flows of the dispatcher that is pinned in that directory have finished. One reader at a
/// time.
pub fn finished_requests(pins: &Path) -> io::Result<Ring<Finished>> {
    Ring::open(&pins.join("reports"))
}

/// Its flows of which requests have stayed with their owner. One reader at a time.
pub fn stayed_flows(pins: &Path) -> io::Result<Ring<FlowKey>> {
    Ring::open(&pins.join("stays"))
}

/// The turns map in this process's memory: daemon and data path take turns of one row.
#[derive(Debug)]
pub struct SharedTurns {
    rows: *const Row,
}

#[repr(C)]
struct Row {
    next: AtomicU64,
    count: AtomicU64,
    turns: [AtomicU64; abi::TURNS_MAX],
}

const _: () = assert!(size_of::<Row>() == size_of::<Turns>());

// SAFETY: shared memory that is only touched by atomics.
unsafe impl Send for SharedTurns {}
// SAFETY: as above.
unsafe impl Sync for SharedTurns {}

impl SharedTurns {
    /// Maps it; stays mapped for the life of the process.
    pub fn map(turns: &Map<u32, Turns>) -> io::Result<Self> {
        Ok(Self {
            rows: share(turns, abi::POOLS_MAX)?.cast(),
        })
    }

    /// Takes the pool's next turn; none if its backends do not take turns.
    pub fn take(&self, pool: usize) -> Option<Turn> {
        let row = self.row(pool)?;
        row.turn(row.next.fetch_add(1, Ordering::Relaxed))
    }

    /// As [`Self::take`], and the turn stays.
    pub fn peek(&self, pool: usize) -> Option<Turn> {
        let row = self.row(pool)?;
        row.turn(row.next.load(Ordering::Relaxed))
    }

    /// From now on these take turns, at most [`abi::TURNS_MAX`]; nobody does if
    /// there are none.
    pub fn set(&self, pool: usize, turns: &[Turn]) {
        let Some(row) = self.row(pool) else { return };
        row.count.store(0, Ordering::SeqCst);
        for (entry, turn) in row.turns.iter().zip(turns) {
            entry.store(turn.to_bits(), Ordering::SeqCst);
        }
        let count = turns.len().min(abi::TURNS_MAX);
        row.count.store(count as u64, Ordering::SeqCst);
    }

    fn row(&self, pool: usize) -> Option<&Row> {
        // SAFETY: within the mapping, aligned, never unmapped.
        (pool < abi::POOLS_MAX).then(|| unsafe { &*self.rows.add(pool) })
    }
}

impl Row {
    fn turn(&self, number: u64) -> Option<Turn> {
        let place = number.checked_rem(self.count.load(Ordering::Relaxed))?;
        let entry = self.turns.get(place as usize)?;
        Some(Turn::from_bits(entry.load(Ordering::Relaxed)))
    }
}
