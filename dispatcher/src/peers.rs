//! The other dispatchers: who of them keeps a flow, and what they are to know
//! (docs/protocol/replication.md). Without any, all of this does nothing.
//!
//! ```text
//!  records ──► herald ──► news to all peers      worker: sends them before what follows
//!  vigil   ──► beats, lots: who keeps what       records ◄── news of the others
//!          ──► catching up
//! ```

mod caught_up;
mod copies;
mod herald;
mod joining;
mod proofs;
mod vigil;

pub use copies::Copies;
pub use herald::{Herald, NO_PROTOCOL, Told, option};
pub use joining::Stage;
pub use vigil::{PeerStatus, Vigil};

use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

use anyhow::bail;
use trapeze_core::config::{Config, Dispatcher, SprayMode};
use trapeze_core::flow::FlowKey;
use trapeze_core::intake::Kept;
use trapeze_core::membership::lots::{self, Holder, NOBODY};
use trapeze_core::replica::Entry;
use trapeze_core::replica::record::PIECE;
use trapeze_datapath::abi::{DISPATCHERS_MAX, Spraying};
use trapeze_datapath::dispatcher::DispatcherMaps;
use trapeze_datapath::dispatchers;
use trapeze_datapath::map::Update;
use trapeze_datapath::spray::SharedLots;

use crate::v4;

/// In the lots: this dispatcher itself. As the data path has it.
const SELF: u16 = NOBODY;

/// Another dispatcher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    pub name: String,
    pub address: Ipv4Addr,
    /// In the data path.
    pub slot: u16,
}

/// What all threads know of other dispatchers.
pub struct Peers {
    pub own: Ipv4Addr,
    maps: Arc<DispatcherMaps>,
    lots_key: [u8; 16],
    lots: SharedLots,
    peers: RwLock<Arc<Vec<Peer>>>,
    /// Those of them that are taken for dead.
    silent: RwLock<Vec<Ipv4Addr>>,
    are_there: AtomicBool,
    /// A [`Stage`].
    stage: AtomicU8,
    /// Those that keep flows, and this dispatcher if it is about to.
    claims: RwLock<Vec<Holder>>,
    deal: AtomicU32,
    pub herald: Herald,
    /// Heads that others are reading.
    pub copies: Copies,
    /// By worker: flows whose heads a dead dispatcher was reading, and that are kept here.
    orphans: Vec<Mutex<Vec<FlowKey>>>,
    status: Mutex<Vec<PeerStatus>>,
}

impl Peers {
    pub fn new(
        config: &Config,
        own: &Dispatcher,
        maps: Arc<DispatcherMaps>,
    ) -> anyhow::Result<Self> {
        let workers = own.workers;
        let own = v4(own.address)?;
        let peers = Self {
            copies: Copies::default(),
            orphans: (0..workers).map(|_| Mutex::default()).collect(),
            own,
            lots_key: lots::key(&config.name),
            lots: SharedLots::map(&maps.lots)?,
            peers: RwLock::default(),
            silent: RwLock::default(),
            are_there: AtomicBool::new(false),
            stage: AtomicU8::new(Stage::CatchingUp as u8),
            claims: RwLock::default(),
            deal: AtomicU32::new(0),
            herald: Herald::new(own),
            status: Mutex::default(),
            maps,
        };
        peers.configure(config)?;
        Ok(peers)
    }

    /// These are configured from now on.
    pub fn configure(&self, config: &Config) -> anyhow::Result<()> {
        let wanted = (config.dispatchers.iter())
            .map(|dispatcher| Ok((dispatcher.name.clone(), v4(dispatcher.address)?)))
            .filter(|other| !matches!(other, Ok((_, address)) if *address == self.own))
            .collect::<anyhow::Result<Vec<_>>>()?;
        let Some(slots) = dispatchers::slots(&self.maps.dispatchers, &wanted)? else {
            bail!("more than {DISPATCHERS_MAX} dispatchers: split the cluster");
        };
        let peers: Vec<Peer> = (wanted.into_iter().zip(slots))
            .map(|((name, address), slot)| Peer {
                name,
                address,
                slot,
            })
            .collect();
        for peer in &peers {
            let is = (&*peer.name, peer.address);
            dispatchers::publish(&self.maps.dispatchers, peer.slot, is, self.own)?;
        }
        let by_flow = Spraying::new(SprayMode::FlowHash, &config.name);
        self.maps.spraying.put(&0, &by_flow, Update::Any)?;
        self.herald.address(&peers);
        self.are_there.store(!peers.is_empty(), Ordering::Release);
        *self.peers.write().expect("no thread panics with it") = Arc::new(peers);
        Ok(())
    }

    /// Are any configured?
    pub fn are_there(&self) -> bool {
        self.are_there.load(Ordering::Acquire)
    }

    /// Those that are configured.
    pub fn all(&self) -> Arc<Vec<Peer>> {
        self.peers.read().expect("no thread panics with it").clone()
    }

    /// Is it one of them?
    pub fn has(&self, address: Ipv4Addr) -> bool {
        self.all().iter().any(|peer| peer.address == address)
    }

    /// Its place in the data path, which is nobody's for this dispatcher itself.
    pub fn slot_of(&self, dispatcher: &Dispatcher) -> anyhow::Result<u16> {
        let address = v4(dispatcher.address)?;
        let peers = self.all();
        let peer = peers.iter().find(|peer| peer.address == address);
        Ok(peer.map_or(SELF, |peer| peer.slot))
    }

    /// Is it one of them, and not taken for dead?
    pub fn has_living(&self, address: Ipv4Addr) -> bool {
        let silent = self.silent.read().expect("no thread panics with it");
        self.has(address) && !silent.contains(&address)
    }

    /// The dispatcher that keeps a flow; none: this one does.
    pub fn keeper_of(&self, key: &FlowKey) -> Option<Ipv4Addr> {
        if !self.are_there() {
            return None;
        }
        let lot = lots::lot_of(&self.lots_key, key)?;
        let slot = self.lots.get(lot).filter(|&slot| slot != SELF)?;
        let peers = self.all();
        let peer = peers.iter().find(|peer| peer.slot == slot)?;
        Some(peer.address)
    }

    /// Does this dispatcher keep the flow? While it joins: if that is left to it.
    pub fn keeps(&self, key: &FlowKey) -> bool {
        self.keeper_of(key).is_none() || self.stage() == Stage::Joining && self.claims(key)
    }

    /// The dispatcher that would keep a flow if this one, which does, died.
    pub fn heir_of(&self, key: &FlowKey) -> Option<Ipv4Addr> {
        if !self.are_there() {
            return None;
        }
        let lot = lots::lot_of(&self.lots_key, key)?;
        let claims = self.claims.read().expect("no thread panics with it");
        let others: Vec<Holder> = (claims.iter().filter(|holder| holder.slot != SELF))
            .cloned()
            .collect();
        let slot = lots::holder_by_hash(lot, &others)?.slot;
        let peers = self.all();
        let peer = peers.iter().find(|peer| peer.slot == slot)?;
        Some(peer.address)
    }

    /// How often lots have been dealt: keepers have changed where it has.
    pub fn deal(&self) -> u32 {
        self.deal.load(Ordering::Acquire)
    }

    fn claims(&self, key: &FlowKey) -> bool {
        let claims = self.claims.read().expect("no thread panics with it");
        let lot = lots::lot_of(&self.lots_key, key);
        lot.and_then(|lot| lots::holder_by_hash(lot, &claims))
            .is_some_and(|holder| holder.slot == SELF)
    }

    /// Others are to have what a client is told that a dispatcher has of its head.
    pub fn tell_head(&self, kept: &Kept) {
        for (index, piece) in kept.bytes.chunks(PIECE).enumerate() {
            self.herald.tell(&Entry::Bytes(Kept {
                offset: kept.offset + (index * PIECE) as u32,
                bytes: piece.to_vec(),
                ..kept.clone()
            }));
        }
    }

    /// Somebody will keep flows who was not there when their heads were told.
    fn tell_heads_again(&self, now: Duration) {
        for kept in self.copies.all(now) {
            self.tell_head(&kept);
        }
    }

    /// What a dispatcher was reading that is dead, and this one keeps now, is a worker's.
    fn inherit(&self, from: Ipv4Addr) {
        self.adopt(self.copies.of(from));
    }

    /// This dispatcher comes to keep flows whose heads others were reading: they pass on what
    /// comes from now on.
    fn inherit_all(&self, now: Duration) {
        let all = self.copies.all(now);
        self.adopt(all.into_iter().map(|kept| kept.key).collect());
    }

    fn adopt(&self, keys: Vec<FlowKey>) {
        for key in keys.into_iter().filter(|key| self.keeps(key)) {
            let worker = usize::from(key.client.port()) % self.orphans.len();
            let orphans = self.orphans[worker].lock();
            orphans.expect("no thread panics with it").push(key);
        }
    }

    /// Flows whose heads this worker is to read on.
    pub fn take_orphans(&self, worker: usize) -> Vec<FlowKey> {
        let mut orphans = self.orphans[worker]
            .lock()
            .expect("no thread panics with it");
        std::mem::take(&mut *orphans)
    }

    /// How far this dispatcher has come. Who is alone keeps all flows.
    pub fn stage(&self) -> Stage {
        match self.are_there() {
            true => Stage::of(self.stage.load(Ordering::Acquire)),
            false => Stage::Keeping,
        }
    }

    /// How the others are, as of the latest heartbeat.
    pub fn status(&self) -> Vec<PeerStatus> {
        self.status
            .lock()
            .expect("no thread panics with it")
            .clone()
    }
}

/// As all of ours are, so far.
pub fn is_v4(key: &FlowKey) -> bool {
    matches!(
        (key.client.ip(), key.vip.ip()),
        (IpAddr::V4(_), IpAddr::V4(_))
    )
}
