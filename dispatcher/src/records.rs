//! Flow records: written here, followed and aged by the data path.

mod latest;

use std::io;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use trapeze_core::flow::{FlowKey, Handshake};
use trapeze_core::head::Expected;
use trapeze_core::intake::Isns;
use trapeze_core::policy::Request;
use trapeze_core::seq::{ClientSeq, ServerSeq};
use trapeze_core::wire::meta::{self, Binding, Care, Keys, Kind, Meta};
use trapeze_datapath::abi::{
    self, Finished, Flow, FlowState, MARK_HELD, MARK_MOVING, MARK_PIPELINES, MARK_SHORT,
    MARK_SHORT_BEFORE, MARK_TUNNEL, Pod,
};
use trapeze_datapath::clock;
use trapeze_datapath::dispatcher::{DispatcherMaps, FlowChanged, FlowChanger, Loads};
use trapeze_datapath::map::Update;

use crate::cluster::Choice;
use crate::inquiry;
use crate::look::Extent;
use crate::memory::request_of;

/// So often a change is tried again because packets have changed the record meanwhile.
const CHANGES: usize = 100;

/// The flow table.
pub struct Records {
    maps: Arc<DispatcherMaps>,
    changer: FlowChanger,
    loads: Arc<Loads>,
    highest_epoch: AtomicU64,
}

/// A flow and the backend that is to have it.
#[derive(Clone, Copy, Debug)]
pub struct Assignment<'a> {
    pub key: FlowKey,
    pub isns: Isns,
    pub handshake: Handshake,
    pub choice: &'a Choice,
    pub keys: &'a Keys,
    /// The epoch of an assignment that has failed.
    pub after: Option<u32>,
    /// The epoch of a connection that had the 4-tuple before, if its record is gone.
    pub older: Option<u32>,
    /// Bytes that go there from here.
    pub held: usize,
    /// How far the request goes.
    pub extent: Extent,
    /// What the pool wants of the answers.
    pub care: Care,
    /// More has come than the request.
    pub has_rest: bool,
    /// The owner before, that still sends: its address.
    pub predecessor: Option<Ipv4Addr>,
}

/// What a record says, for who must follow it in user space.
#[derive(Clone, Copy, Debug)]
pub struct Record {
    pub isns: Isns,
    pub slot: u32,
    pub pool: usize,
    pub epoch: u32,
    pub state: FlowState,
    /// The option for its packets, tag included.
    pub option: meta::Raw,
    /// Its latest request, as its pool's policy saw it.
    pub request: Request,
    /// Where the next request can start, and what is there.
    pub next: ClientSeq,
    pub expected: Expected,
    /// Requests given to the owner since its setup.
    pub requests: u32,
    /// The number of our SYN-ACK.
    pub cookie: ServerSeq,
    /// MARK_*.
    pub marks: u32,
    /// Where the owner's server listens.
    pub server_port: u16,
    /// What the client has acknowledged, and the window field that came with it.
    pub heard: ServerSeq,
    pub window: u16,
    /// The slot of the owner before, and how many requests that had been given.
    pub previous: u32,
    pub requests_before: u32,
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

/// A flow has no backend any more.
#[derive(Clone, Copy, Debug)]
pub struct Vacated {
    /// What its latest request has come to, if nobody has been told yet.
    pub finished: Option<Finished>,
}

/// What a backend has no more when a flow leaves it.
struct Left {
    was_open: bool,
    slot: u32,
    charge_us: u32,
    vacated: Vacated,
}

/// How an owner is told to give up, or has been told: docs/protocol/handoff.md §3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TakenBack {
    /// The record is again that of the owner before; the other was to have been this
    /// backend, which has `charge_us` less to do.
    Yes {
        slot: u32,
        server_port: u16,
        charge_us: u32,
    },
    /// The word is late, or about something else.
    No,
}

impl Records {
    pub fn new(maps: Arc<DispatcherMaps>, changer: FlowChanger, loads: Arc<Loads>) -> Self {
        Self {
            maps,
            changer,
            loads,
            highest_epoch: AtomicU64::new(0),
        }
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
        match self.maps.flows.put(&key, &flow, Update::Create) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                let old = self.maps.flows.get(&key)?;
                if let Some((raw, old)) = old.and_then(|raw| Some((raw, Record::read(&raw)?))) {
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
                self.maps.flows.put(&key, &flow, Update::Any)?;
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
        if let Some(raw) = self.maps.flows.get(&map_key)?
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
        self.maps.flows.put(&map_key, &flow, Update::Any)?;
        Ok(finished)
    }

    /// Its owner has been given what starts at the boundary: the boundary is behind it.
    /// `asked` says which request begins there, and what the client had acknowledged.
    /// What requests have come to of which nobody will be told else: the one before, and
    /// this one if that has not been answered, for nobody can tell their answers apart.
    pub fn advance(
        &self,
        key: &FlowKey,
        extent: &Extent,
        asked: Option<(ServerSeq, Option<&Choice>)>,
        has_rest: bool,
    ) -> io::Result<[Option<Finished>; 2]> {
        let mut charge_us = 0;
        let mut finished = [None; 2];
        let flow = self.change(key, |flow| {
            flow.marks &= !MARK_HELD;
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
        let made = to.flow(epoch);
        let mut left = None;
        let moved = self.exchange(&to.key, |old| {
            if old.next != start.raw() {
                return None;
            }
            left = Some((old.state, old.backend, old.charge_us, self.finished(old)));
            let mut flow = made;
            inherit(&mut flow, old);
            // What the client has had of the owner before, if that still sends.
            flow.last_ack = old.last_ack;
            flow.window = old.window;
            flow.last_seq = ClientSeq::new(flow.last_seq)
                .later_of(ClientSeq::new(old.last_seq))
                .raw();
            flow.state = old.state;
            flow.marks |= old.marks & MARK_PIPELINES;
            Some(flow)
        })?;
        let (Some(flow), Some((state, owner, charge_us, finished))) = (moved, left) else {
            return Ok(None);
        };
        let placed = &to.choice.placed;
        if state == FlowState::Established as u32 {
            self.loads.closed(owner);
            self.loads.opened(to.choice.slot, placed.charge_us);
        } else {
            self.loads.charged(to.choice.slot, placed.charge_us);
        }
        self.loads.finished(owner, charge_us);
        Ok(Record::read(&flow).map(|record| Assigned {
            record,
            is_new: true,
            finished,
        }))
    }

    /// An owner that the data path has passed over has not given the flow up: it has it
    /// again. `restored` makes an option for it where the record has none any more.
    pub fn take_back(
        &self,
        key: &FlowKey,
        moved: (u32, ClientSeq),
        owner: u32,
        requests: u16,
        restored: impl Fn(&Record) -> Option<meta::Raw>,
    ) -> io::Result<TakenBack> {
        let mut taken = TakenBack::No;
        let mut had = owner;
        let flow = self.exchange(key, |flow| {
            had = flow.backend;
            let (flow, back) = taken_back(flow, moved, owner, requests, &restored)?;
            taken = back;
            Some(flow)
        })?;
        let Some(flow) = flow else {
            return Ok(TakenBack::No);
        };
        if flow.state == FlowState::Established as u32 && had != owner {
            self.loads.closed(had);
            self.loads.opened(owner, 0);
        }
        if let TakenBack::Yes { charge_us, .. } = taken {
            self.loads.finished(had, charge_us);
        }
        Ok(taken)
    }

    /// The server has closed, and owes nothing: no backend has the flow, until the next
    /// request comes. None: an answer is owed, or the word is late.
    pub fn vacate(
        &self,
        key: &FlowKey,
        epoch: u32,
        answers: u16,
        end: ServerSeq,
    ) -> io::Result<Option<Vacated>> {
        self.vacate_if(key, end, |flow| {
            Record::read(flow).is_some_and(|record| {
                record.epoch == epoch
                    && record.requests as u16 == answers
                    // The client's FIN may have met the server's: it comes again, for us.
                    && matches!(record.state, FlowState::Established | FlowState::ClientFin)
                    && record.marks & (MARK_HELD | MARK_MOVING | MARK_TUNNEL) == 0
                    && record.expected == Expected::Head
            })
        })
    }

    /// The owner's server has closed, owing nothing before the flow's latest request,
    /// which starts at `start`, and the owner has given that back: no backend has the
    /// flow. None: the word is late.
    pub fn take_request_back(
        &self,
        key: &FlowKey,
        epoch: u32,
        start: ClientSeq,
        end: ServerSeq,
    ) -> io::Result<Option<Vacated>> {
        self.vacate_if(key, end, |flow| {
            let known = Record::read(flow).is_some_and(|record| {
                record.epoch == epoch
                    && record.has_backend()
                    && record.isns.client.before(start)
                    && start.before(record.next)
            });
            if known {
                flow.next = start.raw();
                flow.expect = Expected::Head.number();
                flow.marks &= !(MARK_HELD | MARK_TUNNEL);
            }
            known
        })
    }

    /// The owner has given the flow up, as it was asked to, and there is no request.
    pub fn vacate_released(
        &self,
        key: &FlowKey,
        (epoch, start): (u32, ClientSeq),
        end: ServerSeq,
    ) -> io::Result<Vacated> {
        let vacated = self.vacate_if(key, end, |flow| {
            if flow.next != start.raw() || flow.state == FlowState::Vacant as u32 {
                return false;
            }
            flow.meta[4..8].copy_from_slice(&epoch.to_be_bytes());
            flow.marks &= MARK_PIPELINES;
            true
        })?;
        Ok(vacated.unwrap_or(Vacated { finished: None }))
    }

    /// No backend has the flow, if `ready` says so, which makes it ready for that.
    fn vacate_if(
        &self,
        key: &FlowKey,
        end: ServerSeq,
        mut ready: impl FnMut(&mut Flow) -> bool,
    ) -> io::Result<Option<Vacated>> {
        let mut left = None;
        let changed = self.change(key, |flow| {
            left = ready(flow).then(|| self.leave(flow, end));
        })?;
        Ok(changed.and(left).map(|left| self.left(left)))
    }

    /// Without a backend, from its boundary on, the server's numbers being at `end`.
    fn leave(&self, flow: &mut Flow, end: ServerSeq) -> Left {
        let left = Left {
            was_open: flow.state == FlowState::Established as u32,
            slot: flow.backend,
            charge_us: flow.charge_us,
            vacated: Vacated {
                finished: self.finished(flow),
            },
        };
        (flow.charge_us, flow.report) = (0, 0);
        flow.client_isn = flow.next.wrapping_sub(1);
        flow.server_isn = end.raw().wrapping_sub(1);
        flow.asked_ack = end.raw();
        flow.state = FlowState::Vacant as u32;
        flow.before = [0; 32];
        left
    }

    /// Its backend has one less, once the record says so.
    fn left(&self, left: Left) -> Vacated {
        if left.was_open {
            self.loads.closed(left.slot);
        }
        self.loads.finished(left.slot, left.charge_us);
        left.vacated
    }

    /// Lets the data path bring here what comes next of a flow that is idle, as far as
    /// can be seen here. None: it is not.
    pub fn hold_idle(&self, key: &FlowKey) -> io::Result<Option<Record>> {
        let mut held = None;
        self.change(key, |flow| {
            let marks = MARK_HELD | MARK_MOVING | MARK_TUNNEL;
            if flow.state == FlowState::Established as u32 && flow.marks & marks == 0 {
                flow.marks |= MARK_HELD;
                held = Record::read(flow);
            }
        })?;
        Ok(held)
    }

    /// The flow has no boundaries any more: all that comes is its owner's.
    pub fn stay(&self, key: &FlowKey) -> io::Result<()> {
        let change = |flow: &mut Flow| {
            flow.marks |= MARK_TUNNEL;
            flow.marks &= !MARK_HELD;
        };
        self.change(key, change).map(drop)
    }

    /// The daemon is not at work on the flow any more.
    pub fn let_go(&self, key: &FlowKey) -> io::Result<()> {
        self.change(key, |flow| flow.marks &= !MARK_HELD).map(drop)
    }

    /// Changes a record, if there is one of a flow that has a backend, and returns what it
    /// is then. `change` is called once more where packets have changed it meanwhile.
    fn change(&self, key: &FlowKey, mut change: impl FnMut(&mut Flow)) -> io::Result<Option<Flow>> {
        self.exchange(key, |flow| {
            if flow.state == FlowState::Reading as u32 {
                return None;
            }
            let mut after = *flow;
            change(&mut after);
            Some(after)
        })
    }

    /// As [`Self::change`], of any flow; nothing happens if `after` makes nothing of what
    /// is there.
    fn exchange(
        &self,
        key: &FlowKey,
        mut after: impl FnMut(&Flow) -> Option<Flow>,
    ) -> io::Result<Option<Flow>> {
        let map_key = abi::FlowKey::from(*key);
        for _ in 0..CHANGES {
            let Some(before) = self.maps.flows.get(&map_key)? else {
                return Ok(None);
            };
            let Some(after) = after(&before) else {
                return Ok(None);
            };
            if after == before {
                return Ok(Some(after));
            }
            match self.changer.change(&map_key, &before, &after)? {
                FlowChanged::Yes => return Ok(Some(after)),
                FlowChanged::Stale => {}
                FlowChanged::Gone => return Ok(None),
            }
        }
        Err(io::Error::other("a flow's record changes all the time"))
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
            let record = Record::read(flow)?;
            if record.state != FlowState::Established
                || record.epoch != epoch
                || inquiry::asked_at(flow) != asked_at
            {
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

    /// Takes a record away that was for reading, or has no backend; another connection's
    /// stays.
    pub fn end_reading(&self, key: &FlowKey, isns: Isns) -> io::Result<()> {
        if let Some(record) = self.get(key)?
            && record.isns == isns
            && matches!(record.state, FlowState::Reading | FlowState::Vacant)
        {
            self.maps.flows.delete(&(*key).into())?;
        }
        Ok(())
    }

    /// Deletes a record whose time has come. What its latest request came to, if
    /// nobody has been told yet.
    pub fn expire(&self, key: &abi::FlowKey, flow: &Flow) -> io::Result<Option<Finished>> {
        if !self.maps.flows.delete(key)? {
            return Ok(None);
        }
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

impl Record {
    /// Has it a backend, whatever its client has said?
    pub fn has_backend(&self) -> bool {
        !matches!(self.state, FlowState::Reading | FlowState::Vacant)
    }

    /// The owner before, if it came to this one by a half-pipe.
    pub fn predecessor(&self) -> Option<Ipv4Addr> {
        let [a, b, c, d] = [20, 21, 22, 23].map(|at| self.option[at]);
        Some(Ipv4Addr::new(a, b, c, d)).filter(|address| !address.is_unspecified())
    }

    /// Do its packets go by way of the owner before? As in bpf/lib/boundary.bpf.h.
    pub fn is_moving(&self) -> bool {
        self.marks & MARK_MOVING != 0 && self.heard.at_or_before(self.isns.server + 1)
    }

    /// How far its owner's first request goes, for another one: the record knows.
    pub fn again(&self) -> Extent {
        let care = Meta::decode(&self.option).map_or(Care::default(), |meta| meta.care);
        Extent {
            next: None,
            is_head: care.head,
            is_last: !care.outlive,
        }
    }

    /// Has it no boundaries?
    pub fn is_tunnel(&self) -> bool {
        self.marks & MARK_TUNNEL != 0
    }

    fn read(flow: &Flow) -> Option<Self> {
        Some(Self {
            isns: Isns {
                client: ClientSeq::new(flow.client_isn),
                server: ServerSeq::new(flow.server_isn),
            },
            slot: flow.backend,
            pool: flow.pool as usize,
            epoch: u32::from_be_bytes([flow.meta[4], flow.meta[5], flow.meta[6], flow.meta[7]]),
            state: FlowState::from_raw(flow.state)?,
            option: flow.meta,
            request: request_of(flow.object, flow.kind, flow.class, flow.charge_us),
            next: ClientSeq::new(flow.next),
            expected: Expected::from_number(flow.expect)?,
            requests: flow.requests,
            cookie: ServerSeq::new(flow.cookie),
            marks: flow.marks,
            server_port: u16::from_be_bytes([flow.meta[16], flow.meta[17]]),
            heard: ServerSeq::new(flow.last_ack),
            window: flow.window as u16,
            previous: flow.previous,
            requests_before: flow.requests_before,
        })
    }
}

impl Assignment<'_> {
    fn flow(&self, epoch: u32) -> Flow {
        let meta = Meta {
            kind: match self.predecessor {
                Some(predecessor) => Kind::ForwardAfter { predecessor },
                None => Kind::Forward,
            },
            server_port: self.choice.server_port,
            epoch,
            care: Care {
                head: self.extent.is_head && self.care.follow,
                outlive: self.care.outlive && !self.extent.is_last,
                park: self.care.park && !self.extent.is_last,
                ..self.care
            },
            ..meta_of(self.isns, self.handshake)
        };
        let binding = Binding::of_flow(self.choice.address, self.key.client, self.key.vip);
        let binding = binding.expect("configuration and data path are IPv4");
        let placed = &self.choice.placed;
        let start = self.isns.client + 1;
        let (next, expected, mut marks) = match self.extent.next {
            Some((at, expected)) if self.care.follow => (start + at as u32, expected, 0),
            _ => (start, Expected::Head, MARK_TUNNEL),
        };
        if self.has_rest {
            marks |= MARK_HELD;
        }
        Flow {
            meta: meta.seal(self.keys, &binding),
            backend: self.choice.slot,
            pool: self.choice.pool as u32,
            state: FlowState::Established as u32,
            packets: 1,
            bytes: self.held as u64,
            object: placed.request.object,
            kind: placed.request.kind.number(),
            class: placed.request.class as u8,
            charge_us: placed.charge_us,
            shared: placed.shared,
            report: placed.report.into(),
            next: next.raw(),
            expect: expected.number(),
            requests: 1,
            marks,
            last_seq: (self.isns.client + 1 + self.held as u32).raw(),
            ..new_flow(self.isns, self.handshake)
        }
    }
}

/// A record of a connection that is being read.
fn new_flow(isns: Isns, handshake: Handshake) -> Flow {
    let now = clock::monotonic().as_nanos() as u64;
    Flow {
        meta: meta_of(isns, handshake).encode(0),
        client_isn: isns.client.raw(),
        server_isn: isns.server.raw(),
        state: FlowState::Reading as u32,
        last_seq: (isns.client + 1).raw(),
        last_ack: (isns.server + 1).raw(),
        created_ns: now,
        last_seen_ns: now,
        asked_ns: now,
        asked_ack: (isns.server + 1).raw(),
        cookie: isns.server.raw(),
        ..Flow::zeroed()
    }
}

/// The same request again, for another backend than the one that has not taken it: its
/// end is known, and it is as much a HEAD as it was.
fn repeat(flow: &mut Flow, old: &Flow) {
    flow.next = old.next;
    flow.expect = old.expect;
    flow.requests = old.requests;
    flow.marks = old.marks & (MARK_TUNNEL | MARK_HELD | MARK_PIPELINES);
}

/// The record of [`Records::take_back`], and who was to have had it.
fn taken_back(
    flow: &Flow,
    (epoch, start): (u32, ClientSeq),
    owner: u32,
    requests: u16,
    restored: impl Fn(&Record) -> Option<meta::Raw>,
) -> Option<(Flow, TakenBack)> {
    let of = |raw: &meta::Raw| {
        let word = |at: usize| u32::from_be_bytes([raw[at], raw[at + 1], raw[at + 2], raw[at + 3]]);
        (word(4), ClientSeq::new(word(8)))
    };
    let last = flow.marks & MARK_SHORT != 0 && of(&flow.meta) == (epoch, start);
    let before = flow.marks & MARK_SHORT_BEFORE != 0 && of(&flow.before) == (epoch, start);
    let record = Record::read(flow).filter(|_| last || before)?;
    let (slot, option) = match last {
        true => (flow.backend, flow.meta),
        false => (flow.previous, flow.before),
    };
    let refused = TakenBack::Yes {
        slot,
        server_port: u16::from_be_bytes([option[16], option[17]]),
        charge_us: flow.charge_us,
    };
    let known = last && flow.before[0] != 0 && flow.previous == owner;
    let option = match known {
        true => flow.before,
        false => restored(&record)?,
    };
    let mut flow = *flow;
    flow.meta = option;
    flow.backend = owner;
    flow.client_isn = of(&option).1.raw().wrapping_sub(1);
    if known {
        flow.server_isn = flow.server_isn_before;
    }
    flow.requests = match known {
        true => flow.requests_before,
        false => requests.into(),
    };
    flow.next = start.raw();
    flow.expect = Expected::Head.number();
    let was_short = known && flow.marks & MARK_SHORT_BEFORE != 0;
    flow.marks &= !(MARK_MOVING | MARK_SHORT | MARK_SHORT_BEFORE);
    flow.marks |= MARK_HELD | MARK_PIPELINES | if was_short { MARK_SHORT } else { 0 };
    flow.before = [0; 32];
    // What the data path has placed nobody wants to hear of.
    (flow.charge_us, flow.report) = (0, 0);
    Some((flow, refused))
}

/// What a new record of the same connection keeps of the one before.
fn inherit(flow: &mut Flow, old: &Flow) {
    flow.cookie = old.cookie;
    flow.created_ns = old.created_ns;
    flow.syn_isn = old.syn_isn;
    flow.syn_seen_ns = old.syn_seen_ns;
    flow.packets = old.packets + 1;
    flow.bytes = flow.bytes.wrapping_add(old.bytes);
}

fn meta_of(isns: Isns, handshake: Handshake) -> Meta {
    Meta {
        kind: Kind::Forward,
        epoch: 0,
        start: isns.client + 1,
        handshake,
        server_port: 0,
        requests: 0,
        care: Care::default(),
    }
}

/// Later than what this 4-tuple has had (RFC 1982).
fn later(epoch: u32, older: Option<u32>) -> u32 {
    match older {
        Some(older) if (epoch.wrapping_sub(older) as i32) <= 0 => older.wrapping_add(1),
        _ => epoch,
    }
}
