//! Flow records: written here, followed and aged by the data path. What other dispatchers
//! know of them is in records/replica.rs.

mod assignment;
mod change;
mod idle;
mod latest;
mod marks;
mod record;
mod replica;
mod reseal;
mod spliced;
mod stays;
mod take_back;
mod takeover;
mod untold;
mod vacancy;

pub use assignment::{Assignment, can_be_kept};
pub use record::{Protected, Record};
pub use stays::Moved;
pub use take_back::TakenBack;
pub use vacancy::Vacated;

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use trapeze_core::flow::{FlowKey, Handshake};
use trapeze_core::intake::Isns;
use trapeze_core::seq::{ClientSeq, ServerSeq};
use trapeze_core::wire::meta;
use trapeze_datapath::abi::{
    self, Finished, Flow, FlowState, MARK_HELD, MARK_PIPELINES, MARK_RELEASING, MARK_TUNNEL,
};
use trapeze_datapath::clock;
use trapeze_datapath::dispatcher::{DispatcherMaps, FlowChanger, Loads};
use trapeze_datapath::map::Update;

use crate::cluster::Choice;
use crate::half_pipes::HalfPipes;
use crate::inquiry;
use crate::look::Extent;
use crate::peers::Peers;
use crate::splice::Splices;
use assignment::{inherit, later, new_flow, repeat};
pub use replica::Slots;

/// The flow table.
pub struct Records {
    maps: Arc<DispatcherMaps>,
    changer: FlowChanger,
    loads: Arc<Loads>,
    peers: Arc<Peers>,
    slots: Arc<Slots>,
    splices: Splices,
    /// Who had them before their owners of now, and still sends.
    pub half_pipes: HalfPipes,
    /// Held by who reads a record and puts another in its place, or changes it: of two
    /// threads one would undo what the other has done.
    changing: Mutex<()>,
    highest_epoch: AtomicU64,
    /// What the daemon before may not have told.
    doubted: Mutex<Vec<abi::FlowKey>>,
    /// What is doubted had been told, and something may have followed from it.
    may_have_happened: AtomicBool,
}

/// A record has a backend.
#[derive(Clone, Copy, Debug)]
pub struct Assigned {
    pub record: Record,
    /// It is the one that was chosen. False: this very connection had one, and keeps it.
    pub is_new: bool,
    /// What the record's latest request before has come to, if nobody has been told yet.
    pub finished: Option<Finished>,
}

/// Of the client that has been seen to ask before it was answered, at every eighth request:
/// that may have been once, and the data path finds out soon if it was not.
fn forgiven(count: u32) -> u32 {
    match count % 8 {
        0 => MARK_PIPELINES,
        _ => 0,
    }
}

impl Records {
    pub fn new(
        maps: Arc<DispatcherMaps>,
        changer: FlowChanger,
        loads: Arc<Loads>,
        peers: Arc<Peers>,
        splices: Splices,
    ) -> Self {
        Self {
            slots: splices.slots(),
            splices,
            half_pipes: HalfPipes::default(),
            maps,
            changer,
            loads,
            peers,
            changing: Mutex::new(()),
            highest_epoch: AtomicU64::new(0),
            doubted: Mutex::default(),
            may_have_happened: AtomicBool::new(false),
        }
    }

    /// Backends have these slots, here and in the data path.
    pub fn know_slots(&self, all: impl Iterator<Item = (u32, IpAddr)>) -> io::Result<()> {
        self.slots.set(all);
        let known = self.slots.all();
        let in_packets = |address: Ipv4Addr| u32::from_ne_bytes(address.octets());
        for (&address, slot) in &known {
            (self.maps.slots).put(&in_packets(address), slot, Update::Any)?;
        }
        let mut gone = Vec::new();
        self.maps.slots.for_each(|address, _| {
            if !known.contains_key(&Ipv4Addr::from(address.to_ne_bytes())) {
                gone.push(address);
            }
        })?;
        for address in gone {
            self.maps.slots.delete(&address)?;
        }
        Ok(())
    }

    pub fn get(&self, key: &FlowKey) -> io::Result<Option<Record>> {
        Ok(self
            .maps
            .flows
            .get(&(*key).into())?
            .and_then(|flow| Record::read(&flow)))
    }

    /// Assigns a flow to a backend, unless this very connection has one: then
    /// that one stays.
    pub fn assign(&self, to: &Assignment<'_>) -> io::Result<Assigned> {
        let key = abi::FlowKey::from(to.key);
        let mut finished = None;
        let mut epoch = match to.after {
            Some(refused) => refused.wrapping_add(1),
            None => later(self.epoch_now(), to.older),
        };
        let mut flow = to.flow(epoch);
        let _changing = self.changing();
        match self.put(&key, &mut flow, None, Update::Create) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                let there = self.maps.flows.get(&key)?;
                if let Some((raw, old)) = there.and_then(|raw| Some((raw, Record::read(&raw)?))) {
                    let has_backend = ![FlowState::Reading, FlowState::Vacant].contains(&old.state);
                    let same = old.isns == to.isns;
                    let refused = to.after == Some(old.epoch);
                    if same && has_backend && !refused {
                        return Ok(Assigned {
                            record: old,
                            is_new: false,
                            finished,
                        });
                    }
                    // Of one that was refused the policy has been told.
                    finished = self.finished(&raw).filter(|_| !refused);
                    if old.state == FlowState::Established {
                        self.loads.closed(old.slot);
                    }
                    self.loads.finished(old.slot, old.request.cost_us);
                    // One that is being read, and has had no backend, has no epoch.
                    epoch = later(epoch, Some(old.epoch).filter(|&epoch| epoch != 0));
                    flow = to.flow(epoch);
                    if same {
                        inherit(&mut flow, &raw);
                    }
                    if same && has_backend {
                        repeat(&mut flow, &raw);
                    }
                }
                self.put(&key, &mut flow, there.as_ref(), Update::Any)?;
            }
            Err(e) => return Err(e),
        }
        let charge_us = to.choice.placed.charge_us;
        self.loads.opened(to.choice.slot, charge_us);
        Ok(Assigned {
            record: Record::read(&flow).expect("a record just made"),
            is_new: true,
            finished,
        })
    }

    /// Epochs begin at the clock, 954 to a second, so that a connection's is above
    /// that of any earlier one of the same 4-tuple, on every dispatcher. They do
    /// not step back with the clock.
    fn epoch_now(&self) -> u32 {
        let now = (clock::cluster().as_nanos() >> abi::EPOCH_SHIFT) as u64;
        self.highest_epoch
            .fetch_max(now, Ordering::Relaxed)
            .max(now) as u32
    }

    /// How long ago an epoch began; zero for one that runs ahead of the clock.
    pub fn age(epoch: u32) -> Duration {
        let age = abi::epoch(clock::cluster())
            .wrapping_sub(epoch)
            .cast_signed();
        Duration::from_nanos(u64::try_from(age).unwrap_or(0) << abi::EPOCH_SHIFT)
    }

    /// No new record's epoch so far was higher.
    pub fn highest_epoch(&self) -> u32 {
        self.epoch_now()
    }

    /// Lets the data path bring a connection's packets here. What the record's latest
    /// request before has come to, if nobody has been told yet.
    pub fn read_on(
        &self,
        key: &FlowKey,
        isns: Isns,
        handshake: Handshake,
    ) -> io::Result<Option<Finished>> {
        let map_key = abi::FlowKey::from(*key);
        let mut finished = None;
        let mut flow = new_flow(isns, handshake);
        let _changing = self.changing();
        let there = self.maps.flows.get(&map_key)?;
        if let Some(raw) = there
            && let Some(old) = Record::read(&raw)
        {
            if old.state == FlowState::Established {
                self.loads.closed(old.slot);
            }
            self.loads.finished(old.slot, old.request.cost_us);
            finished = self.finished(&raw);
            if old.isns == isns {
                inherit(&mut flow, &raw);
            }
            // Backends that had the 4-tuple take nothing earlier.
            flow.meta[4..8].copy_from_slice(&raw.meta[4..8]);
        }
        self.put(&map_key, &mut flow, there.as_ref(), Update::Any)?;
        Ok(finished)
    }

    /// Its owner has been given what starts at the boundary: the boundary is behind it.
    /// `asked` says which request begins there, and what the client had acknowledged.
    /// What requests have come to of which nobody will be told else: the one before, and
    /// this one if that has not been answered, for nobody can tell their answers apart.
    /// `ahead` is the flow's option once its client has asked before it was answered.
    pub fn advance(
        &self,
        key: &FlowKey,
        extent: &Extent,
        asked: Option<(ServerSeq, Option<&Choice>)>,
        has_rest: bool,
        ahead: &meta::Raw,
    ) -> io::Result<[Option<Finished>; 2]> {
        let mut charge_us = 0;
        let mut finished = [None; 2];
        let flow = self.change(key, |flow| {
            flow.marks &= !(MARK_HELD | MARK_RELEASING);
            if !has_rest {
                flow.marks &= !forgiven(flow.requests);
            }
            if asked.is_some() {
                flow.began = flow.next;
            }
            match extent.next {
                Some((at, expected)) => {
                    flow.next = flow.next.wrapping_add(at as u32);
                    flow.expect = expected.number();
                    if has_rest {
                        flow.marks |= MARK_HELD;
                    }
                }
                None => flow.marks |= MARK_TUNNEL,
            }
            let Some((heard, choice)) = asked else { return };
            if (has_rest && extent.is_whole()) || !flow.is_answered() {
                flow.meta = *ahead;
            }
            let stood = self.loads.stood(flow.backend);
            let now = clock::monotonic();
            finished = latest::replace(flow, heard, choice, stood, now);
            charge_us = choice.map_or(0, |choice| choice.placed.charge_us);
        })?;
        let Some(flow) = flow else {
            return Ok([None; 2]);
        };
        self.loads.charged(flow.backend, charge_us);
        Ok(finished)
    }

    /// The owner has given the flow up, at `isns`: another one has it from there on,
    /// under that epoch. None: it does not stand there any more.
    pub fn move_on(&self, to: &Assignment<'_>, epoch: u32) -> io::Result<Option<Assigned>> {
        let start = to.isns.client + 1;
        self.give_to(to, epoch, |flow, old| {
            flow.last_seq = ClientSeq::new(flow.last_seq)
                .later_of(ClientSeq::new(old.last_seq))
                .raw();
            flow.marks |= old.marks & MARK_PIPELINES & !forgiven(epoch);
            old.next == start.raw()
        })
    }

    /// The flow is another owner's from now on, under that epoch. `goes_on` makes the new
    /// record go on from the old one; None, and nothing happens, if it says that it cannot.
    fn give_to(
        &self,
        to: &Assignment<'_>,
        epoch: u32,
        mut goes_on: impl FnMut(&mut Flow, &Flow) -> bool,
    ) -> io::Result<Option<Assigned>> {
        let made = to.flow(epoch);
        let mut left = None;
        let moved = self.exchange(&to.key, |old| {
            let mut flow = made;
            if !goes_on(&mut flow, old) {
                return None;
            }
            left = Some((old.state, old.backend, old.charge_us, self.finished(old)));
            inherit(&mut flow, old);
            // What the client has had of the owner before, if that still sends.
            flow.last_ack = old.last_ack;
            flow.window = old.window;
            flow.state = old.state;
            Some(flow)
        })?;
        let (Some(flow), Some((state, owner, charge_us, finished))) = (moved, left) else {
            return Ok(None);
        };
        let charge = to.choice.placed.charge_us;
        if state == FlowState::Established as u32 {
            self.loads.closed(owner);
            self.loads.opened(to.choice.slot, charge);
        } else {
            self.loads.charged(to.choice.slot, charge);
        }
        self.loads.finished(owner, charge_us);
        Ok(Record::read(&flow).map(|record| Assigned {
            record,
            is_new: true,
            finished,
        }))
    }

    /// The client's FIN has come this way, unseen by the data path.
    pub fn client_closed(&self, key: &FlowKey) -> io::Result<()> {
        let mut was_open = false;
        let closed = self.change(key, |flow| {
            was_open = flow.state == FlowState::Established as u32;
            if was_open {
                flow.state = FlowState::ClientFin as u32;
                flow.last_seq = flow.last_seq.wrapping_add(1);
            }
        })?;
        if let Some(flow) = closed.filter(|_| was_open) {
            self.loads.closed(flow.backend);
        }
        Ok(())
    }

    /// The backend has no socket of this connection any more. Its record stays for a
    /// while, and is returned as it was; nothing if the question was about another
    /// connection, or the client has spoken since.
    pub fn lost(&self, key: &FlowKey, epoch: u32, asked_at: u32) -> io::Result<Option<Flow>> {
        let mut lost = None;
        self.exchange(key, |flow| {
            lost = None;
            if !is_lost(flow, epoch, asked_at)? {
                return None;
            }
            lost = Some(*flow);
            Some(Flow {
                state: FlowState::Reset as u32,
                last_seen_ns: clock::monotonic().as_nanos() as u64,
                ..*flow
            })
        })?;
        if let Some(flow) = lost {
            self.loads.closed(flow.backend);
        }
        Ok(lost)
    }

    /// The record of which [`Self::lost`] would say so.
    pub fn would_be_lost(
        &self,
        key: &FlowKey,
        epoch: u32,
        asked_at: u32,
    ) -> io::Result<Option<Record>> {
        let flow = self.maps.flows.get(&(*key).into())?;
        let flow = flow.filter(|flow| is_lost(flow, epoch, asked_at) == Some(true));
        Ok(flow.as_ref().and_then(Record::read))
    }

    /// Takes a record away that was for reading, or has no backend; another connection's
    /// stays. Where other dispatchers know of it they are told that it has ended, and it goes like any that has.
    pub fn end_reading(&self, key: &FlowKey, isns: Isns) -> io::Result<()> {
        let ended = self.exchange(key, |flow| {
            let record = Record::read(flow).filter(|record| record.isns == isns)?;
            let is_known = record.state == FlowState::Vacant && flow.version != 0;
            is_known.then_some(Flow {
                state: FlowState::Reset as u32,
                ..*flow
            })
        })?;
        if ended.is_none()
            && let Some(record) = self.get(key)?
            && record.isns == isns
            && matches!(record.state, FlowState::Reading | FlowState::Vacant)
        {
            self.maps.flows.delete(&(*key).into())?;
        }
        Ok(())
    }

    /// Deletes a record whose time has come, if it is as it was then: its client may have taken
    /// its port again since. What its latest request came to, if nobody has been told yet.
    pub fn expire(&self, key: &abi::FlowKey, flow: &Flow) -> io::Result<Option<Finished>> {
        let changing = self.changing();
        let is_same = |now: &Flow| {
            let of = |flow: &Flow| (flow.created_ns, flow.last_seen_ns, flow.state, flow.version);
            of(now) == of(flow)
        };
        let there = self.maps.flows.get(key)?;
        if !there.is_some_and(|now| is_same(&now)) || !self.maps.flows.delete(key)? {
            return Ok(None);
        }
        drop(changing);
        self.splices.follow(key, Some(flow), None)?;
        if flow.state == FlowState::Established as u32 {
            self.loads.closed(flow.backend);
        }
        self.loads.finished(flow.backend, flow.charge_us);
        Ok(self.finished(flow))
    }

    fn finished(&self, flow: &Flow) -> Option<Finished> {
        latest::finished(flow, self.loads.stood(flow.backend))
    }
}

/// Was its backend asked there, and has the client said nothing since? None: it is in no state that we know.
fn is_lost(flow: &Flow, epoch: u32, asked_at: u32) -> Option<bool> {
    let record = Record::read(flow)?;
    Some(
        record.state == FlowState::Established
            && record.epoch == epoch
            && inquiry::asked_at(flow) == asked_at,
    )
}
