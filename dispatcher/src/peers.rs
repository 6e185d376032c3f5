//! The other dispatchers: who of them keeps a flow, and what they are to know
//! (docs/protocol/replication.md). Without any, all of this does nothing. *Peers* are those of
//! the same sub-cluster; the others are in gates.rs.
//!
//! ```text
//!  again   ──► what was passed to a dead one comes in once more
//!  records ──► herald ──► news to all peers      worker: sends them before what follows
//!  vigil   ──► beats, lots: who keeps what       records ◄── news of the others
//!          ──► catching up
//!  gates   ──► other sub-clusters' lots
//! ```

mod again;
mod caught_up;
mod copies;
mod gates;
mod herald;
mod joining;
mod proofs;
mod vigil;

pub use copies::Copies;
pub use herald::{Herald, NO_PROTOCOL, Told, option};
pub use joining::Stage;
pub use vigil::{PeerStatus, Vigil};

use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, RwLock};
use std::time::{Duration, Instant};

use anyhow::bail;
use trapeze_core::config::{Config, Dispatcher, SprayMode};
use trapeze_core::flow::FlowKey;
use trapeze_core::intake::Kept;
use trapeze_core::membership::lots::{self, Holder, NOBODY};
use trapeze_core::replica::Entry;
use trapeze_core::replica::record::PIECE;
use trapeze_datapath::abi::{DISPATCHERS_MAX, Spraying};
use trapeze_datapath::clock;
use trapeze_datapath::dispatcher::DispatcherMaps;
use trapeze_datapath::dispatchers::{self, Shares};
use trapeze_datapath::map::Update;
use trapeze_datapath::sent;
use trapeze_datapath::spray::SharedLots;

use crate::listening::Listening;
use crate::v4;
use gates::Elsewhere;

/// What others say is known so soon, where there is a processor for it.
const SOON: Duration = Duration::from_millis(5);
/// Nothing is waited for longer: what others say comes faster than it can be heard.
const PATIENCE: Duration = Duration::from_secs(1);
const HEARD_INTERVAL: Duration = Duration::from_micros(200);
/// A data path is done with a packet by then.
const A_PACKET: Duration = Duration::from_millis(1);

/// In the lots: this dispatcher itself. As the data path has it.
const SELF: u16 = NOBODY;

/// Another dispatcher: one of those that share records, or one elsewhere.
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
    name: String,
    maps: Arc<DispatcherMaps>,
    lots_key: [u8; 16],
    lots: SharedLots,
    /// Who would keep the flows of each lot without this dispatcher.
    heirs: SharedLots,
    peers: RwLock<Arc<Vec<Peer>>>,
    /// Those of them that are taken for dead.
    silent: RwLock<Vec<Ipv4Addr>>,
    elsewhere: RwLock<Arc<Elsewhere>>,
    /// Those of other sub-clusters that are known to be alive.
    living_elsewhere: RwLock<Vec<Ipv4Addr>>,
    /// To whom lots are dealt, by sub-cluster.
    dealt: RwLock<Vec<Vec<Holder>>>,
    /// Others, of whichever sub-cluster.
    are_there: AtomicBool,
    /// A [`Stage`].
    stage: AtomicU8,
    /// How often nobody has been heard for so long that others may have taken this dispatcher for dead.
    cuts: AtomicU32,
    /// Until then the data path says that this dispatcher keeps flows: milliseconds of CLOCK_MONOTONIC.
    lease_ms: AtomicU64,
    /// Up to when it has been heard what others have said.
    listening: Listening,
    /// Those that keep flows, and this dispatcher if it is about to.
    claims: RwLock<Vec<Holder>>,
    deal: AtomicU32,
    /// By worker: one more than the deal that it acts by, or 0 while it waits for something to come.
    acts_by: Vec<AtomicU64>,
    /// One more than the deal up to which others know of all that the data path has placed.
    has_told_by: AtomicU64,
    /// Raised at a deal, for who tells of that.
    dealt_anew: (Mutex<()>, Condvar),
    /// Somebody who has kept flows does not any more, since its heirs were last asked what they alone know.
    has_lost_keeper: AtomicBool,
    pub herald: Herald,
    /// Heads that others are reading.
    pub copies: Copies,
    /// By worker: flows that are kept here, and whose heads a dead dispatcher was reading, or one that has kept them before.
    orphans: Vec<Mutex<Vec<FlowKey>>>,
    status: Mutex<Vec<PeerStatus>>,
    gates_status: Mutex<Vec<PeerStatus>>,
}

impl Peers {
    pub fn new(
        config: &Config,
        own: &Dispatcher,
        maps: Arc<DispatcherMaps>,
    ) -> anyhow::Result<Self> {
        let workers = own.workers;
        let name = own.name.clone();
        let own = v4(own.address)?;
        let peers = Self {
            copies: Copies::default(),
            orphans: (0..workers).map(|_| Mutex::default()).collect(),
            own,
            name,
            lots_key: lots::key(&config.name),
            lots: SharedLots::map(&maps.lots)?,
            heirs: SharedLots::map(&maps.heirs)?,
            peers: RwLock::default(),
            silent: RwLock::default(),
            elsewhere: RwLock::default(),
            living_elsewhere: RwLock::default(),
            dealt: RwLock::default(),
            are_there: AtomicBool::new(false),
            stage: AtomicU8::new(Stage::CatchingUp as u8),
            cuts: AtomicU32::new(0),
            lease_ms: AtomicU64::new(u64::MAX),
            listening: Listening::new(1),
            claims: RwLock::default(),
            deal: AtomicU32::new(0),
            acts_by: (0..workers).map(|_| AtomicU64::new(0)).collect(),
            has_told_by: AtomicU64::new(0),
            dealt_anew: Default::default(),
            // The daemon before may have.
            has_lost_keeper: AtomicBool::new(true),
            herald: Herald::new(own),
            status: Mutex::default(),
            gates_status: Mutex::default(),
            maps,
        };
        peers.configure(config)?;
        Ok(peers)
    }

    /// These are configured from now on.
    pub fn configure(&self, config: &Config) -> anyhow::Result<()> {
        let is_own = |dispatcher: &&Dispatcher| dispatcher.address == IpAddr::V4(self.own);
        let own = config.dispatchers.iter().find(is_own);
        let own = own.map_or(0, |own| own.sub_cluster);
        let others: Vec<&Dispatcher> = (config.dispatchers.iter())
            .filter(|dispatcher| !is_own(dispatcher))
            .collect();
        let wanted = (others.iter())
            .map(|dispatcher| Ok((dispatcher.name.clone(), v4(dispatcher.address)?)))
            .collect::<anyhow::Result<Vec<_>>>()?;
        let Some(slots) = dispatchers::slots(&self.maps.dispatchers, &wanted)? else {
            bail!("more than {DISPATCHERS_MAX} dispatchers: split the cluster");
        };
        let (mut peers, mut elsewhere) = (Vec::new(), Vec::new());
        for (other, ((name, address), slot)) in others.iter().zip(wanted.into_iter().zip(slots)) {
            let shares = match other.sub_cluster == own {
                true => Shares::Records,
                false => Shares::Nothing,
            };
            let is = (&*name, address);
            dispatchers::publish(&self.maps.dispatchers, slot, is, self.own, shares)?;
            let peer = Peer {
                name,
                address,
                slot,
            };
            match shares {
                Shares::Records => peers.push(peer),
                Shares::Nothing => elsewhere.push((usize::from(other.sub_cluster), peer)),
            }
        }
        let by_flow = Spraying::new(SprayMode::FlowHash, &config.name);
        self.maps.spraying.put(&0, &by_flow, Update::Any)?;
        self.herald.address(&peers);
        let slots: Vec<u16> = peers.iter().map(|peer| peer.slot).collect();
        sent::divide(&self.maps.sent_rings, &slots)?;
        self.are_there.store(!others.is_empty(), Ordering::Release);
        let elsewhere = Elsewhere::new(config, (&self.name, own.into()), elsewhere);
        *self.elsewhere.write().expect("no thread panics with it") = Arc::new(elsewhere);
        *self.peers.write().expect("no thread panics with it") = Arc::new(peers);
        Ok(())
    }

    /// Are any others configured, of whichever sub-cluster?
    pub fn are_there(&self) -> bool {
        self.are_there.load(Ordering::Acquire)
    }

    /// Those of the same sub-cluster that are configured.
    pub fn all(&self) -> Arc<Vec<Peer>> {
        self.peers.read().expect("no thread panics with it").clone()
    }

    /// Is it one of them?
    pub fn has(&self, address: Ipv4Addr) -> bool {
        self.all().iter().any(|peer| peer.address == address)
    }

    /// Those of other sub-clusters.
    pub fn elsewhere(&self) -> Arc<Elsewhere> {
        let elsewhere = self.elsewhere.read().expect("no thread panics with it");
        elsewhere.clone()
    }

    /// Are there several sub-clusters?
    pub fn are_in_sub_clusters(&self) -> bool {
        self.elsewhere().homes.is_some()
    }

    /// Who has what servers send to a dispatcher's splice address: its place in the data path,
    /// which is nobody's for this dispatcher itself, and for one that has left. Of one elsewhere a gate,
    /// which is alive.
    pub fn slot_for_answers(&self, dispatcher: &Dispatcher) -> anyhow::Result<u16> {
        let address = v4(dispatcher.address)?;
        let is = |peer: &&Peer| peer.address == address;
        if let Some(peer) = self.all().iter().find(is) {
            return Ok(peer.slot);
        }
        let elsewhere = self.elsewhere();
        if usize::from(dispatcher.sub_cluster) == elsewhere.own {
            return Ok(SELF);
        }
        let dealt = self.dealt.read().expect("no thread panics with it");
        let gates = dealt.get(usize::from(dispatcher.sub_cluster));
        let gate = gates.and_then(|gates| gates::gate_for(address, gates));
        let owner = || elsewhere.all().find(is).map(|owner| owner.slot);
        Ok(gate.or_else(owner).unwrap_or(SELF))
    }

    /// Is it another dispatcher, and known to be alive, or if it shares records, not taken for
    /// dead?
    pub fn has_living(&self, address: Ipv4Addr) -> bool {
        let silent = self.silent.read().expect("no thread panics with it");
        let elsewhere = self.living_elsewhere.read();
        self.has(address) && !silent.contains(&address)
            || (elsewhere.expect("no thread panics with it")).contains(&address)
    }

    /// The slot of the flow's lot, unless it is this dispatcher's.
    fn slot_by_lot(&self, key: &FlowKey) -> Option<u16> {
        if !self.are_there() {
            return None;
        }
        let lot = lots::lot_of(&self.lots_key, key)?;
        self.lots.get(lot).filter(|&slot| slot != SELF)
    }

    /// The peer that keeps a flow; none: this dispatcher does, or it is another sub-cluster's.
    pub fn keeper_of(&self, key: &FlowKey) -> Option<Ipv4Addr> {
        let slot = self.slot_by_lot(key)?;
        let peers = self.all();
        let peer = peers.iter().find(|peer| peer.slot == slot)?;
        Some(peer.address)
    }

    /// Does this dispatcher keep the flow? While it joins: if that is left to it.
    pub fn keeps(&self, key: &FlowKey) -> bool {
        let Some(slot) = self.slot_by_lot(key) else {
            return true;
        };
        if self.elsewhere().has_slot(slot) {
            return false;
        }
        let is_peers = self.all().iter().any(|peer| peer.slot == slot);
        !is_peers || self.stage() == Stage::Joining && self.claims(key)
    }

    /// The dispatcher that would keep a flow if this one, which does, died.
    pub fn heir_of(&self, key: &FlowKey) -> Option<Ipv4Addr> {
        if !self.are_there() {
            return None;
        }
        let lot = lots::lot_of(&self.lots_key, key)?;
        let slot = self.heirs.get(lot)?;
        let peers = self.all();
        let peer = peers.iter().find(|peer| peer.slot == slot)?;
        Some(peer.address)
    }

    /// How often lots have been dealt: keepers have changed where it has.
    pub fn deal(&self) -> u32 {
        self.deal.load(Ordering::SeqCst)
    }

    /// Others may keep from now on what this dispatcher has kept, or one that has left.
    fn note_deal(&self, has_lost_keeper: bool) {
        let _guard = self.dealt_anew.0.lock();
        (self.has_lost_keeper).fetch_or(has_lost_keeper, Ordering::SeqCst);
        self.deal.fetch_add(1, Ordering::SeqCst);
        self.dealt_anew.1.notify_all();
    }

    /// Waits until lots are dealt anew, so long at most. By which deal the data path places connections then.
    pub fn wait_for_deal(&self, longest: Duration) -> u32 {
        let (lock, dealt_anew) = &self.dealt_anew;
        let guard = lock.lock().expect("no thread panics with it");
        let is_told =
            |(): &mut ()| self.has_told_by.load(Ordering::SeqCst) == u64::from(self.deal()) + 1;
        drop(dealt_anew.wait_timeout_while(guard, longest, is_told));
        let deal = self.deal();
        // The data path may be at a packet that it has begun with before.
        std::thread::sleep(A_PACKET);
        deal
    }

    /// Whether a keeper has left since this was last asked: what it has placed its heirs alone may know.
    pub fn take_lost_keeper(&self) -> bool {
        self.has_lost_keeper.swap(false, Ordering::SeqCst)
    }

    /// Others know of all that the data path has placed by that deal or an older one, and of what it has been
    /// entrusted with by who has left.
    pub fn has_told(&self, deal: u32) {
        self.has_told_by
            .store(u64::from(deal) + 1, Ordering::SeqCst);
    }

    /// A worker acts by the latest deal, until it rests.
    pub fn act(&self, worker: usize) -> u32 {
        self.acts_by[worker].store(u64::MAX, Ordering::SeqCst);
        let deal = self.deal();
        self.acts_by[worker].store(u64::from(deal) + 1, Ordering::SeqCst);
        deal
    }

    /// A worker has sent all that follows from what it has decided.
    pub fn rest(&self, worker: usize) {
        self.acts_by[worker].store(0, Ordering::SeqCst);
    }

    /// Does nobody act by an older deal any more, and has all been told that was placed by such?
    fn all_act_by_the_latest(&self) -> bool {
        let latest = u64::from(self.deal()) + 1;
        let mut all = self.acts_by.iter().map(|by| by.load(Ordering::SeqCst));
        let has_told = self.has_told_by.load(Ordering::SeqCst) == latest;
        has_told && all.all(|by| by == 0 || by == latest)
    }

    fn claims(&self, key: &FlowKey) -> bool {
        let claims = self.claims.read().expect("no thread panics with it");
        let lot = lots::lot_of(&self.lots_key, key);
        lot.and_then(|lot| lots::holder_by_hash(lot, &claims))
            .is_some_and(|holder| holder.slot == SELF)
    }

    /// Others are to have what a client has been told that a dispatcher has of its head, `age` ago.
    pub fn tell_head(&self, kept: &Kept, age: Duration) {
        for (index, piece) in kept.bytes.chunks(PIECE).enumerate() {
            let kept = Kept {
                offset: kept.offset + (index * PIECE) as u32,
                bytes: piece.to_vec(),
                ..kept.clone()
            };
            let age_ms = age.as_millis() as u32;
            self.herald.tell(&Entry::Bytes { kept, age_ms });
        }
    }

    /// Somebody will keep flows who was not there when their heads were told.
    fn tell_heads_again(&self, now: Duration) {
        for (kept, age) in self.copies.all(now) {
            self.tell_head(&kept, age);
        }
    }

    /// What a dispatcher was reading that is dead, and this one keeps now, is a worker's.
    fn inherit(&self, from: Ipv4Addr) {
        self.adopt(self.copies.of(clock::monotonic(), from));
    }

    /// This dispatcher comes to keep flows whose heads others were reading: they pass on what
    /// comes from now on.
    fn inherit_all(&self, now: Duration) {
        let all = self.copies.all(now);
        self.adopt(all.into_iter().map(|(kept, _)| kept.key));
    }

    /// Not by who joins yet: until then their keeper reads them. What there is then is all inherited.
    fn adopt(&self, keys: impl IntoIterator<Item = FlowKey>) {
        if self.stage() != Stage::Keeping {
            return;
        }
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

    /// What was begun with before is not to be gone on with where this has become more.
    pub fn cuts(&self) -> u32 {
        self.cuts.load(Ordering::Acquire)
    }

    /// The data path will say for so long that this daemon is here, unless it has stopped to say so meanwhile.
    pub fn renew_lease(&self, now: Duration, lease: Duration) {
        self.has_lapsed(now);
        let until = (now + lease).as_millis() as u64;
        self.lease_ms.store(until, Ordering::Release);
    }

    /// Where this daemon has been away for longer than its lease, others may keep what it kept, and have gone on with that.
    /// True: so it is, and the vigil has not seen to it yet. Nothing is decided or told then, nor does anything follow from
    /// what was decided before (docs/protocol/replication.md 1.6a).
    pub fn has_lapsed(&self, now: Duration) -> bool {
        let is_over = now.as_millis() as u64 >= self.lease_ms.load(Ordering::Acquire);
        if is_over && self.are_there() {
            let lapsed = Stage::Lapsed as u8;
            for kept in [Stage::Keeping as u8, Stage::Joining as u8] {
                let stage = &self.stage;
                let _ = stage.compare_exchange(kept, lapsed, Ordering::AcqRel, Ordering::Acquire);
            }
        }
        self.stage() == Stage::Lapsed
    }

    /// Waits until all that others have said by now is known here, if some of it has been waiting for a while: who
    /// decides by what was known before may do so a second time, or for somebody else. True: it had to wait
    /// (docs/protocol/replication.md 7.5).
    pub fn hear_all(&self, now: Duration) -> bool {
        if !self.are_there() {
            return false;
        }
        let now_ms = now.as_millis() as u64;
        let is_known = |by_ms| self.listening.until_ms() >= by_ms;
        let soon_ms = now_ms.saturating_sub(SOON.as_millis() as u64);
        // The first look costs no system call.
        if is_known(soon_ms) {
            return false;
        }
        self.listening.look(now_ms);
        if is_known(soon_ms) {
            return false;
        }
        let start = Instant::now();
        while !is_known(now_ms) && start.elapsed() < PATIENCE {
            std::thread::sleep(HEARD_INTERVAL);
            self.listening.look(now_ms);
        }
        true
    }

    /// How the others are, as of the latest heartbeat.
    pub fn status(&self) -> Vec<PeerStatus> {
        self.status
            .lock()
            .expect("no thread panics with it")
            .clone()
    }

    /// How those of other sub-clusters are that it watches.
    pub fn gates_status(&self) -> Vec<PeerStatus> {
        let status = self.gates_status.lock();
        status.expect("no thread panics with it").clone()
    }
}

/// As all of ours are, so far.
pub fn is_v4(key: &FlowKey) -> bool {
    matches!(
        (key.client.ip(), key.vip.ip()),
        (IpAddr::V4(_), IpAddr::V4(_))
    )
}
