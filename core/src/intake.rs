//! The intake: reads the first request of a connection from its packets,
//! without a TCP endpoint, and hands what it held to the backend chosen.
//!
//! ```text
//!             head incomplete           head complete           assigned
//!   (nothing) ──────────────► Reading ─────────────► Decided ──────────────► (nothing)
//!     │  │                     │ 408, 431, 400,         │      if we had        ▲ backend has
//!     │  │ whole head in       │ FIN in the middle      │      acknowledged     │ the bytes
//!     │  │ one packet:         ▼                        ▼      bytes            │
//!     │  └─► Complete       Goodbye ◄────────────── answer()   └────────► Retained ──► RST
//!     └────────── answer() ───►│ both sides closed, or 10 s                    after 10 s; 2 min,
//!                              └─► (nothing)                                   if its socket stands
//! ```
//!
//! What is acknowledged to a client will not come again, so it must not be
//! lost: acknowledged bytes are retained until the backend confirms them.
//! Therefore the intake acknowledges as late as it can. What it has not
//! acknowledged it may forget, because the client's own TCP sends it again.
//!
//! There is no socket, clock or thread in here: `now` is a duration since any
//! fixed moment, the same for all calls; what is to be sent comes out of
//! [`Intake::poll_action`], to be drained after every call.

mod answer;
mod arrive;
mod assembly;
mod counters;
mod depart;
mod events;
mod flow;
mod goodbye;
mod reading;
mod retained;
mod sack;
mod table;
#[cfg(test)]
mod tests;

pub use answer::{Answer, Body};
pub use assembly::{Assembly, Inserted};
pub use counters::Counters;
pub use events::{Action, Arrived, End, Ignored, Isns, Kept, Looked, Outcome, Released};

use crate::config::Limits;
use crate::flow::FlowKey;
use crate::head::Progress;
use crate::seq::ClientSeq;
use crate::wire::checksum::TcpChecksum;
use crate::wire::meta::Sender;
use crate::wire::tcp::{Flags, Header};
use flow::{Connection, Flow, Phase};
use goodbye::{Goodbye, Step};
use reading::{Reading, Reset, Taken};
use retained::{Cut, Due, Retained, Socket};
use std::collections::VecDeque;
use std::time::Duration;
use table::Table;

/// No stream is held further than this,
const CAPACITY: usize = 1 << 20;
/// nor takes a greater part than one in so many of what may be held still.
const SHARE: usize = 8;

/// Bounds of one intake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// The largest head, in bytes.
    pub head_bytes: usize,
    /// How long a head may take from its first byte.
    pub head_timeout: Duration,
    /// Flows held at once.
    pub flows: usize,
    /// Flows being answered at once; beyond, the oldest is reset.
    pub answers: usize,
    /// Bytes held in all.
    pub bytes: usize,
    /// The most payload of a segment for a backend that is cut on its way, in bytes: beyond the segment that starts
    /// a request. 0: nobody cuts it.
    pub burst: usize,
    /// The window that our SYN-ACK announced, in bytes (its field is not
    /// shifted, RFC 7323 §2.2).
    pub first_window: u16,
}

impl Bounds {
    /// An equal share of the configured limits for each of `workers` intakes.
    pub fn per_worker(limits: &Limits, workers: usize) -> Self {
        let workers = workers.max(1);
        let flows = (limits.reading_flows / workers).max(1);
        Self {
            head_bytes: limits.head_bytes,
            head_timeout: limits.head_timeout,
            flows,
            answers: (flows / 4).max(1),
            bytes: limits.reading_bytes / workers,
            burst: 0,
            first_window: u16::MAX,
        }
    }

    /// How far behind its start a stream is held: bytes of a body that come along with the head, or ahead of its
    /// last byte. So much always; and what an owner's window lets a client send at once, as long as there is room,
    /// `held` being held of all: what is left out at the end of that its client says again only when its timer ends.
    fn capacity(&self, held: usize) -> usize {
        let least = self.head_bytes + usize::from(u16::MAX);
        let share = self.bytes.saturating_sub(held) / SHARE;
        share.min(CAPACITY).max(least)
    }

    /// How far behind its start the client is asked to send while we read.
    fn reach(&self) -> u32 {
        let head = u32::try_from(self.head_bytes).unwrap_or(u32::MAX / 4);
        head.saturating_add(4096).max(u32::from(self.first_window))
    }
}

/// The heads that one thread reads.
#[derive(Debug)]
pub struct Intake {
    bounds: Bounds,
    table: Table,
    actions: VecDeque<Action>,
    counters: Counters,
    has_copied: bool,
}

impl Intake {
    /// An intake without flows.
    pub fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            table: Table::default(),
            actions: VecDeque::new(),
            counters: Counters::default(),
            has_copied: false,
        }
    }

    /// From now on others are told of bytes that are acknowledged: [`Action::Keep`].
    pub fn have_copied(&mut self, has_copied: bool) {
        self.has_copied = has_copied;
    }

    /// Reads on where another dispatcher has stopped, whose client had been told that these
    /// bytes have arrived: `arrived` has all of them, from the head's first on. False: the
    /// connection is known here, or there is no room. [`Self::resume`] looks at them.
    pub fn restore(&mut self, now: Duration, arrived: &Arrived<'_>) -> bool {
        let Some((connection, reading)) = self.restored(now, arrived) else {
            return false;
        };
        if !arrived.later {
            self.want_packets_of(&connection);
        }
        self.table.put_youngest(connection, Phase::Reading(reading));
        true
    }

    /// Keeps what another dispatcher has told its client to have, and has given to a backend, until that says that it
    /// has it; what lies behind is looked at then: see [`Self::resume`]. Each `arrived` has all of its bytes. If the backend
    /// has heard nothing of it, its clock begins at `clock` at least. False: the
    /// connection is known here, or there is no room.
    pub fn retain(
        &mut self,
        now: Duration,
        arrived: &Arrived<'_>,
        rest: Option<&Arrived<'_>>,
        clock: u32,
        mss: u16,
    ) -> bool {
        let Some((mut connection, reading)) = self.restored(now, arrived) else {
            return false;
        };
        connection.begins_at(clock);
        let mut retained = Retained::new(&reading, self.cut(mss), false, now);
        let rest = rest.and_then(|rest| self.restored(now, rest));
        retained.rest = rest.map(Box::new);
        self.send_retained(&connection, &retained, retained.repeated(&connection));
        self.table
            .put_youngest(connection, Phase::Retained(retained));
        true
    }

    /// How far behind its start a stream is held now.
    fn capacity(&self) -> usize {
        self.bounds.capacity(self.table.bytes())
    }

    fn cut(&self, mss: u16) -> Cut {
        Cut::new(mss, self.bounds.burst)
    }

    fn restored(&mut self, now: Duration, arrived: &Arrived<'_>) -> Option<(Connection, Reading)> {
        let length = arrived.payload.len();
        let has_room = self.table.held() < self.bounds.flows
            && self.table.bytes() + length <= self.bounds.bytes;
        if self.holds(&arrived.key) || !has_room {
            return None;
        }
        let mut connection = Connection::new(arrived, self.bounds.first_window.into());
        let mut reading = Reading::new(now + self.bounds.head_timeout);
        let capacity = self.capacity().max(length);
        reading.take_in(&mut connection, arrived, capacity).ok()?;
        reading.acked = reading.assembly.contiguous().len();
        (reading.acked > 0).then_some((connection, reading))
    }

    /// Other bounds, from now on; what is held stays.
    pub fn set_bounds(&mut self, bounds: Bounds) {
        self.bounds = bounds;
    }

    /// Takes a packet. `inspect(bytes, progress)` looks at a stream from its
    /// first byte on; `progress` is where its last look at this stream stopped.
    /// It says `Done` at most once for a connection, unless the connection is
    /// forgotten in between.
    pub fn on_packet<Decision>(
        &mut self,
        now: Duration,
        arrived: &Arrived<'_>,
        inspect: impl FnMut(&[u8], &mut Progress) -> Looked<Decision>,
    ) -> Outcome<Decision> {
        self.counters.packets += 1;
        let outcome = self.receive(now, arrived, inspect);
        match &outcome {
            Outcome::Complete(_) => self.counters.complete += 1,
            Outcome::Decide(_) => self.counters.decided += 1,
            Outcome::Held => self.counters.held += 1,
            Outcome::Answering => self.counters.answering += 1,
            Outcome::Closed => self.counters.closed_silent += 1,
            Outcome::Assigned => self.counters.assigned += 1,
            Outcome::Ignored(why) => self.counters.ignored(*why),
        }
        outcome
    }

    /// A backend takes the flow that [`Outcome::Decide`] or [`Self::head`]
    /// named: its bytes go there, in segments of at most `mss` bytes of payload, or of [`Bounds::burst`].
    /// May be called again for another backend. False if nothing is held (any
    /// more): then the client's retransmission will come.
    pub fn assigned(&mut self, now: Duration, key: &FlowKey, mss: u16) -> bool {
        if !self.has_head(key) {
            return false;
        }
        let Some(Flow {
            connection,
            serial,
            phase,
        }) = self.table.take(key)
        else {
            return false;
        };
        let cut = self.cut(mss);
        match phase {
            Phase::Reading(reading) => self.depart(now, connection, serial, reading, cut),
            Phase::Retained(mut retained) => {
                retained.reassign(cut, now);
                self.send_retained(&connection, &retained, retained.segments(&connection));
                self.table.put(Flow {
                    connection,
                    serial,
                    phase: Phase::Retained(retained),
                });
            }
            Phase::Goodbye(_) => return false,
        }
        true
    }

    /// The backend has no room yet for what is held for it: it is sent again after `pause`,
    /// and kept for as long as the backend says so. False if nothing is held: then the
    /// client's retransmission will come.
    pub fn put_off(&mut self, now: Duration, key: &FlowKey, pause: Duration) -> bool {
        let Some(mut flow) = self.table.take(key) else {
            return false;
        };
        let is_held = matches!(flow.phase, Phase::Retained(_));
        if let Phase::Retained(retained) = &mut flow.phase {
            retained.put_off(now, pause);
        }
        self.table.put(flow);
        is_held
    }

    /// The owner of a later request's connection has given it up: the request is as a
    /// connection's first one now, which began where `released` says.
    pub fn released(&mut self, key: &FlowKey, released: &Released) {
        if let Some(mut flow) = self.table.take(key) {
            if matches!(flow.phase, Phase::Reading(_)) {
                flow.connection.rebase(released);
            }
            self.table.put(flow);
        }
    }

    /// Looks at what is held behind a request that has been assigned. None if nothing
    /// is, or if it has to wait.
    pub fn resume<Decision>(
        &mut self,
        now: Duration,
        key: &FlowKey,
        inspect: impl FnMut(&[u8], &mut Progress) -> Looked<Decision>,
    ) -> Option<Outcome<Decision>> {
        if !self.is_undecided(key) {
            return None;
        }
        let Some(Flow {
            connection,
            serial,
            phase: Phase::Reading(reading),
        }) = self.table.take(key)
        else {
            return None;
        };
        let taken = Taken::News(reading::Urgency::Later);
        Some(self.read_on(now, connection, serial, reading, taken, inspect))
    }

    /// The flow's backend has everything before `received`. True if something was held
    /// until then: see [`Self::resume`]. If it lacks bytes before those that are read here,
    /// and has lacked them for as long as it takes to ask twice, the client is told so.
    pub fn on_probe_answer(
        &mut self,
        now: Duration,
        key: &FlowKey,
        received: ClientSeq,
        sender: Option<Sender>,
    ) -> bool {
        let Some(mut flow) = self.table.take(key) else {
            return false;
        };
        if let Phase::Reading(reading) = &mut flow.phase
            && !flow.connection.settled
        {
            let connection = &mut flow.connection;
            if connection.start().at_or_before(received) {
                connection.settled = true;
                connection.sender = sender;
                self.acknowledge(now, connection, reading);
            } else if sender.is_some() && connection.tells_gap(now, received) {
                connection.sender = sender;
                let edge = self.edge(connection);
                let tells = reading.tell_gap(connection, received, edge);
                self.counters.acks += 1;
                self.actions.push_back(Action::ToClient(tells));
            }
        }
        let socket = match sender {
            Some(_) if self.has_room_to_wait() => Socket::Stands,
            _ => Socket::NotWaitedFor,
        };
        let Phase::Retained(retained) = &mut flow.phase else {
            self.table.put(flow);
            return false;
        };
        let is_confirmed = retained.confirm(now, flow.connection.start(), received, socket);
        if is_confirmed {
            self.counters.confirmed += 1;
            if flow.connection.half_piped {
                let (key, seq) = (*key, retained.end(&flow.connection));
                self.actions.push_back(Action::Acknowledge { key, seq });
                let beyond = flow.connection.our_start();
                if let Some(sender) = sender.filter(|sender| sender.next.before(beyond)) {
                    self.reassure_connection(&mut flow.connection, seq, sender);
                }
            }
        } else {
            let more = retained.more(&flow.connection);
            if !more.is_empty() {
                self.send_retained(&flow.connection, retained, more);
            }
        }
        if is_confirmed || retained.is_over(&flow.connection) {
            let Some(rest) = retained.rest.take() else {
                return false;
            };
            let (connection, mut reading) = *rest;
            // Nobody has told its client meanwhile that it has come.
            reading.prolong(now + self.bounds.head_timeout);
            self.table.put(Flow {
                connection,
                serial: flow.serial,
                phase: Phase::Reading(reading),
            });
            return true;
        }
        self.table.put(flow);
        false
    }

    /// Acknowledges what lies before `received` to a client that does not hear its owner, which stands at `sender` as far
    /// as the client takes its numbers. `arrived` is what the client said last.
    pub fn reassure(&mut self, arrived: &Arrived<'_>, received: ClientSeq, sender: Sender) {
        let arrived = Arrived {
            isns: Isns {
                client: received + u32::MAX,
                ..arrived.isns
            },
            ..*arrived
        };
        let mut connection = Connection::new(&arrived, self.bounds.first_window.into());
        self.reassure_connection(&mut connection, received, sender);
    }

    fn reassure_connection(
        &mut self,
        connection: &mut Connection,
        received: ClientSeq,
        sender: Sender,
    ) {
        let edge = self.edge(connection);
        connection.sender = Some(sender);
        let ack =
            connection.segment_to_client(sender.next, received, Flags::default(), Vec::new(), edge);
        self.counters.acks += 1;
        self.actions.push_back(Action::ToClient(ack));
    }

    /// Answers a connection ourselves: the one that this packet belongs to,
    /// whether it is held or not.
    pub fn answer(&mut self, now: Duration, arrived: &Arrived<'_>, answer: Answer, body: Body) {
        match self.table.take_same(&arrived.key, arrived.isns) {
            Some(Flow {
                connection,
                phase: Phase::Reading(reading),
                ..
            }) => {
                self.part(now, connection, &reading, answer, body);
            }
            Some(Flow {
                connection,
                phase: Phase::Retained(retained),
                ..
            }) => {
                // Its record sends the client's packets elsewhere: call them back.
                self.want_packets_of(&connection);
                let received = retained.end(&connection);
                let goodbye = Goodbye::new(&connection, answer, body, received, retained.fin, now);
                self.say_goodbye(connection, goodbye);
            }
            Some(flow) => self.table.put(flow),
            None => {
                self.replace(&arrived.key);
                self.part_at_packet(now, arrived, answer, body);
            }
        }
    }

    /// Forgets a flow. An answer goes out; an acknowledgement that waits does not: a
    /// client that has heard of bytes would not send them again along with the rest.
    pub fn forget(&mut self, key: &FlowKey) {
        let flow = self.table.take(key);
        if flow.is_some_and(|flow| matches!(flow.phase, Phase::Reading(_))) {
            self.actions.retain(|action| action.flow() != *key);
        }
    }

    /// The stream so far of a flow whose head is complete: decided, or
    /// retained for a backend that has not confirmed it.
    pub fn head(&self, key: &FlowKey) -> Option<&[u8]> {
        match &self.table.get(key)?.phase {
            Phase::Reading(reading) if reading.decided => Some(reading.assembly.contiguous()),
            Phase::Retained(retained) => Some(&retained.bytes),
            _ => None,
        }
    }

    /// The same, if it begins at `start`: what waits behind the request that its owner has
    /// does not.
    pub fn head_from(&self, key: &FlowKey, start: ClientSeq) -> Option<&[u8]> {
        let begins = self.table.get(key)?.connection.start();
        self.head(key).filter(|_| begins == start)
    }

    /// The header with which the held bytes of a flow begin, for whoever is to have them.
    pub fn opening(&self, key: &FlowKey) -> Option<Header> {
        let connection = &self.table.get(key)?.connection;
        let start = connection.start();
        let first = connection.segment_to_backend(start, Flags::default(), Vec::new());
        Some(first.header)
    }

    /// What has come in order of a connection's next request, and behind it: nothing, if nothing is
    /// held. None: its client has closed behind that, or is being answered.
    pub fn pending(&self, key: &FlowKey) -> Option<&[u8]> {
        let reading = match self.table.get(key).map(|flow| &flow.phase) {
            None => return Some(&[]),
            Some(Phase::Reading(reading)) => reading,
            Some(Phase::Retained(retained)) => match &retained.rest {
                Some(rest) => &rest.1,
                None => return Some(&[]),
            },
            Some(Phase::Goodbye(_)) => return None,
        };
        (!reading.has_fin()).then(|| reading.assembly.contiguous())
    }

    /// Up to where its client has been told that the bytes have come that are read here from
    /// `start` on.
    pub fn told(&self, key: &FlowKey, start: ClientSeq) -> ClientSeq {
        match self.table.get(key) {
            Some(Flow {
                connection,
                phase: Phase::Reading(reading),
                ..
            }) if connection.start() == start => start + reading.acked as u32,
            _ => start,
        }
    }

    /// Does a packet say more of what its client has had, or of its window, than what is held of its flow? Bytes that follow
    /// each other in one burst do not.
    pub fn is_news(&self, arrived: &Arrived<'_>) -> bool {
        let flow = self.table.get(&arrived.key);
        flow.is_none_or(|flow| flow.connection.is_news(&arrived.header))
    }

    /// Does a part of it wait beyond a gap?
    pub fn has_gap(&self, key: &FlowKey) -> bool {
        match self.table.get(key).map(|flow| &flow.phase) {
            Some(Phase::Reading(reading)) => reading.assembly.has_gap(),
            _ => false,
        }
    }

    /// Is this flow's head being read?
    pub fn is_reading(&self, key: &FlowKey) -> bool {
        let flow = self.table.get(key);
        flow.is_some_and(|flow| matches!(flow.phase, Phase::Reading(_)))
    }

    /// Flows whose heads are incomplete.
    pub fn undecided(&self) -> Vec<FlowKey> {
        let reading = self.table.reading();
        reading.filter(|key| self.is_undecided(key)).collect()
    }

    /// Is its head incomplete?
    pub fn is_undecided(&self, key: &FlowKey) -> bool {
        let flow = self.table.get(key);
        flow.is_some_and(|flow| matches!(&flow.phase, Phase::Reading(r) if !r.decided))
    }

    /// Is the head of a later request being read that starts there?
    pub fn is_reading_later(&self, key: &FlowKey, start: ClientSeq) -> bool {
        let is_there = |of: &Connection| of.later && of.start() == start;
        self.is_undecided(key)
            && (self.table.get(key)).is_some_and(|flow| is_there(&flow.connection))
    }

    /// Does anything follow the request that has been decided?
    pub fn has_rest(&self, key: &FlowKey) -> bool {
        match self.table.get(key).map(|flow| &flow.phase) {
            Some(Phase::Reading(reading)) => reading.has_rest(),
            Some(Phase::Retained(retained)) => retained.rest.is_some(),
            _ => false,
        }
    }

    /// Is anything of this flow held?
    pub fn holds(&self, key: &FlowKey) -> bool {
        self.table.get(key).is_some()
    }

    /// When [`Self::on_timeout`] wants to be called.
    pub fn poll_timeout(&self) -> Option<Duration> {
        self.table.deadline()
    }

    /// Does what is due.
    pub fn on_timeout(&mut self, now: Duration) {
        while let Some(Flow {
            connection,
            serial,
            phase,
        }) = self.table.take_due(now)
        {
            match phase {
                Phase::Reading(reading) => self.on_reading_due(now, connection, serial, reading),
                Phase::Retained(retained) => {
                    self.on_retained_due(now, connection, serial, retained);
                }
                Phase::Goodbye(goodbye) => {
                    let (mut connection, mut goodbye) = (connection, goodbye);
                    let step = goodbye.on_timeout(&mut connection, now);
                    self.go_on_parting(connection, serial, goodbye, step);
                }
            }
        }
    }

    /// The next thing to do.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// What has been counted.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Flows whose bytes are held.
    pub fn held_flows(&self) -> usize {
        self.table.held()
    }

    /// Bytes held.
    pub fn held_bytes(&self) -> usize {
        self.table.bytes()
    }

    /// Flows being answered.
    pub fn answering_flows(&self) -> usize {
        self.table.parting()
    }

    /// What a busy server keeps waiting is bounded before others' heads have to go for it.
    fn has_room_to_wait(&self) -> bool {
        self.table.held() < self.bounds.flows.div_ceil(2)
            && self.table.bytes() < self.bounds.bytes.div_ceil(2)
    }

    fn has_head(&self, key: &FlowKey) -> bool {
        self.head(key).is_some()
    }
}
