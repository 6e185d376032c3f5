//! A worker: takes the packets that the data path cannot place, and places
//! their flows. One thread, one socket, one intake; a flow is always the same
//! worker's. What becomes of a flow that has an owner is in worker/later.rs.

mod later;
mod relay;
mod takeover;

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use trapeze_core::config::Dispatcher;
use trapeze_core::flow::{FlowKey, Handshake, addr_from_bytes};
use trapeze_core::head::{self, Inspection};
use trapeze_core::intake::{Action, Answer, Arrived, Body, Bounds, Intake, Looked, Outcome};
use trapeze_core::policy::Feedback;
use trapeze_core::seq::{ClientSeq, ServerSeq};
use trapeze_core::wire::checksum::{TcpChecksum, complete_tcp};
use trapeze_core::wire::meta::{self, Binding, Kind, Meta, Refusal};
use trapeze_core::wire::segment::Segment;
use trapeze_core::wire::tcp::{Flags, Header};
use trapeze_core::wire::{geneve, ipv4};
use trapeze_datapath::abi::{ENCAP_LEN, Finished, GENEVE_PORT};
use trapeze_datapath::clock;
use trapeze_datapath::host;
use trapeze_datapath::raw::RawSocket;
use trapeze_datapath::udp::{LONGEST_WAIT, Outbox, UdpSocket};

use crate::cluster::{Choice, Cluster, Decision};
use crate::farewell;
use crate::handoff::Waitings;
use crate::health;
use crate::look::{Extent, Found, Later, Look};
use crate::records::{Assignment, Record};
use crate::{Shared, v4};

/// IPv4 and TCP headers without options.
const HEADERS: usize = 40;

/// What a worker counts, as shown by `trapeze status`.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    pub held_flows: usize,
    pub held_bytes: usize,
    pub answering_flows: usize,
    pub counters: HashMap<&'static str, u64>,
}

/// Socket and state of one worker.
pub struct Worker {
    index: usize,
    socket: UdpSocket,
    state: State,
}

pub(crate) struct State {
    shared: Arc<Shared>,
    cluster: Arc<Cluster>,
    generation: u64,
    /// The generation that decisions made now belong to.
    decisions: u32,
    own_address: IpAddr,
    /// The largest inner packet that fits an encapsulated frame.
    inner_max: usize,
    intake: Intake,
    /// Requests that wait for their owners.
    waiting: Waitings,
    raw: RawSocket,
    to_backends: Outbox,
    to_clients: Outbox,
    counters: HashMap<&'static str, u64>,
}

impl Worker {
    /// Binds the socket; workers must be bound in the order of their indices.
    pub fn bind(shared: Arc<Shared>, own: &Dispatcher, index: usize) -> anyhow::Result<Self> {
        let address = SocketAddrV4::new(v4(own.address)?, GENEVE_PORT);
        let socket = UdpSocket::bind(address, index, own.workers)
            .map_err(|e| anyhow::anyhow!("cannot bind UDP {address}: {e}"))?;
        let cluster = shared.cluster();
        let mut intake = Intake::new(Bounds::per_worker(&cluster.config.limits, own.workers));
        intake.have_copied(shared.peers.are_there());
        Ok(Self {
            index,
            socket,
            state: State {
                own_address: own.address,
                inner_max: host::mtu(&own.interface)? as usize - ENCAP_LEN,
                intake,
                waiting: Waitings::default(),
                raw: RawSocket::open()?,
                to_backends: Outbox::default(),
                to_clients: Outbox::default(),
                counters: HashMap::new(),
                generation: 0,
                decisions: 0,
                cluster,
                shared,
            },
        })
    }

    /// Works until the daemon stops.
    pub fn run(mut self) -> anyhow::Result<()> {
        let mut shown = Instant::now();
        while !self.state.shared.stopping.load(Ordering::Relaxed) {
            let now = clock::monotonic();
            let dues = [
                self.state.intake.poll_timeout(),
                self.state.waiting.next_due(),
            ];
            let due = dues.into_iter().flatten().min();
            let due = due.map(|at| at.saturating_sub(now));
            let count = self.socket.receive(due.unwrap_or(LONGEST_WAIT))?;
            // In this order: a decision by an older configuration must not stand.
            self.state.decisions = self.state.shared.standing.generation();
            self.state.follow_reload();
            // Decisions are to know what the answers until now have told.
            self.state.shared.hear_finished(&self.state.cluster)?;
            let now = clock::monotonic();
            for index in 0..count {
                let (datagram, from) = self.socket.datagram(index);
                self.state.on_datagram(now, datagram, from);
            }
            self.state.intake.on_timeout(now);
            let idle = self.state.shared.drains.take_idle(self.index);
            self.state.take_from_owners(now, &idle);
            for key in self.state.shared.peers.take_orphans(self.index) {
                self.state.read_on(now, &key);
            }
            self.state.on_waiting_due(now);
            self.state.act();
            self.send();
            if shown.elapsed() > LONGEST_WAIT {
                let lost = self.socket.lost()?;
                self.state.counters.insert("queue-full", lost.into());
                self.state.show(self.index);
                shown = Instant::now();
            }
        }
        self.state.intake.abandon();
        self.state.act();
        self.send();
        Ok(())
    }

    /// Sends what there is to send.
    fn send(&mut self) {
        // The other dispatchers know first what follows from a record.
        (self.state.shared.peers.herald).send(&self.socket, &self.state.cluster.keys);
        if !self.state.to_backends.is_empty() {
            let lost = self.socket.send(&self.state.to_backends);
            self.state.count_many("not-sent-to-backend", lost);
            self.state.to_backends.clear();
        }
        if !self.state.to_clients.is_empty() {
            let lost = self.state.raw.send(&self.state.to_clients);
            self.state.count_many("not-sent-to-client", lost);
            self.state.to_clients.clear();
        }
    }
}

/// What the flow's 4-tuple has had before.
#[derive(Clone, Copy)]
enum Before {
    Nothing,
    /// Another connection, of this epoch.
    Older(u32),
    /// This connection, at a backend that refused it, in this epoch, and the owner before
    /// that one, if it came by a half-pipe.
    Refused(u32, Option<Ipv4Addr>),
}

impl Before {
    fn of(request: &Meta) -> Self {
        match request.epoch {
            0 => Self::Nothing,
            epoch => Self::Older(epoch),
        }
    }

    fn older(self) -> Option<u32> {
        match self {
            Self::Older(epoch) => Some(epoch),
            _ => None,
        }
    }

    fn refused(self) -> Option<u32> {
        match self {
            Self::Refused(epoch, _) => Some(epoch),
            _ => None,
        }
    }
}

/// What has waited here says what the client had acknowledged when it came. The data path
/// has told the owner more since, and TCP takes nothing whose acknowledgement is too old
/// (RFC 5961 §5.2). The segment that starts the owner's connection says where that begins.
fn as_heard(mut segment: Segment, record: &Record) -> Segment {
    let header = &mut segment.header;
    let starts = ClientSeq::new(header.seq) == record.isns.client + 1;
    if !starts && ServerSeq::new(header.ack).before(record.heard) {
        header.ack = record.heard.raw();
        header.window = record.window;
    }
    segment
}

/// RFC 9110 §9.2.2.
fn is_idempotent(method: &str) -> bool {
    ["GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"].contains(&method)
}

impl State {
    fn follow_reload(&mut self) {
        let generation = self.shared.generation.load(Ordering::Acquire);
        if generation != self.generation {
            self.generation = generation;
            self.cluster = self.shared.cluster();
            let workers = self.cluster.own.workers;
            self.intake
                .set_bounds(Bounds::per_worker(&self.cluster.config.limits, workers));
            self.intake.have_copied(self.shared.peers.are_there());
        }
    }

    fn on_datagram(&mut self, now: Duration, datagram: &[u8], from: SocketAddrV4) {
        let cluster = self.cluster.clone();
        let packet = match geneve::open(datagram, self.own_address, &cluster.keys) {
            Ok(packet) => packet,
            Err(_) => return self.count("rejected"),
        };
        if self.relay(&packet, from) {
            return;
        }
        match packet.meta.kind {
            Kind::Request { .. } => self.on_request(now, &packet.meta, packet.inner),
            Kind::Unheard { .. } => self.on_unheard(now, &packet.meta, packet.inner),
            Kind::Refused(why) => self.on_refused(now, &packet.meta, packet.inner, why),
            Kind::ProbeAnswer { received, sender } => {
                if let Ok(arrived) = Arrived::parse(&packet.meta, packet.inner) {
                    if (self.intake).on_probe_answer(now, &arrived.key, received, sender) {
                        self.go_on(now, &arrived.key);
                        self.act();
                    }
                    if received == ClientSeq::new(arrived.header.seq) {
                        self.on_lost(&arrived.key, packet.meta.epoch, received);
                    }
                }
            }
            Kind::Next { .. } => self.on_next(now, &packet.meta, packet.inner),
            Kind::Held(held) => self.on_held(now, &packet.meta, packet.inner, held, from),
            Kind::Released {
                end,
                drained,
                clock,
            } => self.on_released(now, &packet.meta, packet.inner, (end, drained, clock)),
            Kind::Done => self.on_done(&packet.meta, packet.inner),
            Kind::Vacated { end } => self.on_vacated(&packet.meta, packet.inner, end),
            Kind::EchoReply { feedback } => {
                self.on_echo_reply(packet.meta.epoch, packet.inner, feedback);
            }
            _ => self.count("rejected"),
        }
    }

    fn on_request(&mut self, now: Duration, meta: &Meta, inner: &[u8]) {
        let Ok(mut arrived) = Arrived::parse(meta, inner) else {
            return self.count("malformed");
        };
        self.read_on(now, &arrived.key);
        if let Some(record) = self.record_of(&arrived) {
            arrived.cookie = record.cookie;
            // It may have been on its way here while its flow was decided.
            if record.has_backend() && arrived.header.seq != (arrived.isns.client + 1).raw() {
                return self.pass_on(now, &record, arrived, inner);
            }
        }
        match self.take(now, &arrived, None) {
            Outcome::Complete(Found::Request(Decision::To(choice), extent)) => {
                let before = Before::of(meta);
                if let Some(record) = self.assign(now, &arrived, &choice, before, extent) {
                    self.forward(&record, &arrived, inner);
                }
            }
            Outcome::Decide(Found::Request(Decision::To(choice), extent)) => {
                let before = Before::of(meta);
                if self
                    .assign(now, &arrived, &choice, before, extent)
                    .is_some()
                {
                    let payload_max = self.payload_max(&arrived.handshake);
                    self.intake.assigned(now, &arrived.key, payload_max);
                    self.go_on(now, &arrived.key);
                }
            }
            Outcome::Complete(Found::Request(Decision::Refuse(answer, body), _))
            | Outcome::Decide(Found::Request(Decision::Refuse(answer, body), _)) => {
                self.intake.answer(now, &arrived, answer, body);
            }
            Outcome::Assigned => {
                if let Some(record) = self.assigned(&arrived) {
                    self.pass_on(now, &record, arrived, inner);
                }
            }
            Outcome::Closed => {
                // A connection without a backend ends as quietly.
                let (key, isns) = (arrived.key, arrived.isns);
                let _ = self.shared.records.end_reading(&key, isns);
            }
            Outcome::Complete(Found::Owners(_)) | Outcome::Decide(Found::Owners(_)) => {
                debug_assert!(false, "a first request has no owner");
            }
            Outcome::Held | Outcome::Answering | Outcome::Ignored(_) => {}
        }
        self.act();
    }

    /// Gives a packet to the intake; `later` if its flow has an owner.
    fn take(
        &mut self,
        now: Duration,
        arrived: &Arrived<'_>,
        later: Option<Later>,
    ) -> Outcome<Found> {
        let (cluster, shared) = (self.cluster.clone(), self.shared.clone());
        let mut look = Look {
            shared: &shared,
            cluster: &cluster,
            decisions: self.decisions,
            key: arrived.key,
            later,
            not_remembered: false,
        };
        let outcome =
            (self.intake).on_packet(now, arrived, |bytes, progress| look.at(bytes, progress));
        if look.not_remembered {
            self.count("not-remembered");
        }
        outcome
    }

    /// A backend could not set the connection up: another one may, and if there
    /// is none, the client is told.
    fn on_refused(&mut self, now: Duration, meta: &Meta, inner: &[u8], why: Refusal) {
        let Ok(mut arrived) = Arrived::parse(meta, inner) else {
            return self.count("malformed");
        };
        let Ok(Some(record)) = self.shared.records.get(&arrived.key) else {
            return;
        };
        if record.isns.client != arrived.isns.client
            || !record.has_backend()
            || record.epoch != meta.epoch
        {
            return self.count("late-refusals");
        }
        self.count("refusals");
        arrived.isns = record.isns;
        arrived.cookie = record.cookie;
        let port = match meta.server_port {
            0 => arrived.key.vip.port(),
            own => own,
        };
        self.shared.health.refused(record.slot, port, why);
        if self.shared.renew_decisions().is_err() {
            self.count("record-failures");
        }
        let start = ClientSeq::new(arrived.header.seq);
        if start != record.isns.client + 1 {
            return self.on_returned(now, meta, inner, &arrived, start);
        }
        let decision = self.decide_again(&arrived, &record);
        match (decision, why) {
            (Decision::To(choice), _) if choice.slot != record.slot => {
                let before = Before::Refused(meta.epoch, record.predecessor());
                let Some(record) = self.assign(now, &arrived, &choice, before, record.again())
                else {
                    return;
                };
                let payload_max = self.payload_max(&arrived.handshake);
                if !self.intake.assigned(now, &arrived.key, payload_max) {
                    self.forward(&record, &arrived, inner);
                }
            }
            // It is only busy: the client's TCP tries again.
            (_, Refusal::AcceptQueueFull) => {}
            (Decision::Refuse(answer, body), _) => self.intake.answer(now, &arrived, answer, body),
            (Decision::To(_), _) => {
                self.intake
                    .answer(now, &arrived, Answer::ServiceUnavailable, Body::Full);
            }
        }
        self.act();
    }

    /// A later request came to a backend whose server had closed, and that could not
    /// set it up as the first one of a new connection (docs/protocol/handoff.md 7.3):
    /// it is placed as that.
    fn on_returned(
        &mut self,
        now: Duration,
        meta: &Meta,
        inner: &[u8],
        arrived: &Arrived<'_>,
        start: ClientSeq,
    ) {
        let end = ServerSeq::new(arrived.header.ack);
        match (self.shared.records).take_request_back(&arrived.key, meta.epoch, start, end) {
            Ok(Some(vacated)) => self.tell(vacated.finished),
            Ok(None) => return self.count("late-refusals"),
            Err(_) => return self.count("record-failures"),
        }
        let request = Meta {
            kind: Kind::Request {
                server_isn: end + u32::MAX,
            },
            start,
            ..*meta
        };
        self.on_request(now, &request, inner);
    }

    /// The client sends its request again and has not heard a word: its backend
    /// has died. What may run twice goes to another one (RFC 9110 §9.2.2).
    fn on_unheard(&mut self, now: Duration, meta: &Meta, inner: &[u8]) {
        let Ok(arrived) = Arrived::parse(meta, inner) else {
            return self.count("malformed");
        };
        let Some(record) = self.assigned(&arrived) else {
            return;
        };
        if self.shared.health.state(record.slot) != health::State::Silent {
            // It is back, or the request has moved already.
            return self.forward(&record, &arrived, inner);
        }
        self.count("unheard");
        let held = self.intake.head(&arrived.key).unwrap_or(arrived.payload);
        let decision = match head::inspect(held, self.cluster.config.limits.head_bytes) {
            Inspection::Http(head) if !is_idempotent(head.method) => {
                Decision::Refuse(Answer::GatewayTimeout, Body::Full)
            }
            // Until the handshake is over no request has run.
            Inspection::Http(_) | Inspection::Tls(_) => self.decide_again(&arrived, &record),
            // Part of a head, or requests that cannot be read.
            _ => Decision::Refuse(Answer::Close, Body::Full),
        };
        match decision {
            Decision::To(choice) => {
                let before = Before::Refused(record.epoch, record.predecessor());
                if let Some(record) = self.assign(now, &arrived, &choice, before, record.again()) {
                    let payload_max = self.payload_max(&arrived.handshake);
                    if !self.intake.assigned(now, &arrived.key, payload_max) {
                        self.forward(&record, &arrived, inner);
                    }
                }
            }
            Decision::Refuse(answer, body) => self.intake.answer(now, &arrived, answer, body),
        }
        self.act();
    }

    /// An idle connection's socket has come and gone, perhaps with a reset that the
    /// client has not heard. `asked_at`: where its backend was asked.
    fn on_lost(&mut self, key: &FlowKey, epoch: u32, asked_at: ClientSeq) {
        match self.shared.records.lost(key, epoch, asked_at.raw()) {
            Ok(Some(flow)) => {
                self.count("lost-by-backend");
                if let IpAddr::V4(client) = key.client.ip() {
                    let reset = farewell::reset_of_client(key, &flow);
                    self.to_clients
                        .push(SocketAddrV4::new(client, 0), |out| reset.write(out));
                }
            }
            Ok(None) => {}
            Err(_) => self.count("record-failures"),
        }
    }

    fn decide_again(&self, arrived: &Arrived<'_>, record: &Record) -> Decision {
        let (cluster, health) = (&self.cluster, &self.shared.health);
        cluster.lost(record.pool, &record.request, record.slot);
        let bytes = self.intake.head(&arrived.key).unwrap_or(arrived.payload);
        let inspection = head::inspect(bytes, cluster.config.limits.head_bytes);
        if let Looked::Done(decision) | Looked::Cut(decision, _) = cluster.look(
            health,
            arrived.key.vip,
            arrived.key.client,
            None,
            &inspection,
        ) {
            return decision;
        }
        // Only the first part of a longer head came back: its pool is known.
        debug_assert!(!matches!(inspection, Inspection::Http(_)));
        let port = arrived.key.vip.port();
        match cluster.choose(health, record.pool, port, record.request) {
            Some(choice) => Decision::To(choice),
            None => Decision::Refuse(Answer::ServiceUnavailable, Body::Full),
        }
    }

    /// Policies hear of requests of which the data path will not tell.
    fn tell(&self, finished: impl IntoIterator<Item = Finished>) {
        for finished in finished {
            self.cluster.finished(&self.shared.health, &finished);
        }
    }

    fn on_echo_reply(&mut self, beat: u32, inner: &[u8], feedback: Option<Feedback>) {
        let Ok(packet) = ipv4::Packet::parse(inner) else {
            return self.count("malformed");
        };
        // The packet that we sent: it was to the backend.
        let source = IpAddr::V4(packet.destination());
        match self.slot_of(source) {
            Some(slot) => match self.shared.health.heard(slot, beat) {
                true => self.shared.health.said(slot, feedback),
                false => self.count("old-echo-replies"),
            },
            None => self.count("strange-echo-replies"),
        }
    }

    /// The record of the very connection that a packet belongs to, if it has a backend.
    fn assigned(&self, arrived: &Arrived<'_>) -> Option<Record> {
        self.record_of(arrived).filter(Record::has_backend)
    }

    fn record_of(&self, arrived: &Arrived<'_>) -> Option<Record> {
        let record = self.shared.records.get(&arrived.key).ok()??;
        (record.isns == arrived.isns).then_some(record)
    }

    fn assign(
        &mut self,
        now: Duration,
        arrived: &Arrived<'_>,
        choice: &Choice,
        before: Before,
        extent: Extent,
    ) -> Option<Record> {
        let held = self
            .intake
            .head(&arrived.key)
            .map_or(arrived.payload.len(), <[u8]>::len);
        let assignment = Assignment {
            key: arrived.key,
            isns: arrived.isns,
            handshake: arrived.handshake,
            choice,
            keys: &self.cluster.keys,
            after: before.refused(),
            older: before.older(),
            held,
            extent,
            care: self.cluster.care(choice.pool),
            has_rest: self.intake.has_rest(&arrived.key),
            predecessor: match before {
                Before::Refused(_, predecessor) => predecessor,
                _ => None,
            },
        };
        match self.shared.records.assign(&assignment) {
            Ok(assigned) => {
                self.tell(assigned.finished);
                if !assigned.is_new {
                    self.cluster.not_taken(choice);
                }
                Some(assigned.record)
            }
            Err(_) => {
                // The table is full: limits.flows.
                self.count("table-full");
                self.cluster.not_taken(choice);
                self.intake
                    .answer(now, arrived, Answer::ServiceUnavailable, Body::Full);
                None
            }
        }
    }

    /// Sends a client's packet on as it came, or in pieces that fit.
    fn forward(&mut self, record: &Record, arrived: &Arrived<'_>, inner: &[u8]) {
        if arrived.checksum == TcpChecksum::Wrong {
            return self.count("bad-checksum");
        }
        let Some((to, option)) = self.way_of(&arrived.key, record) else {
            return self.count("no-backend");
        };
        self.note_end(&arrived.key, arrived.header.flags);
        if inner.len() <= self.inner_max {
            self.to_backends.push(to, |out| {
                geneve::write(&option, inner, out);
                if arrived.checksum == TcpChecksum::Partial {
                    let at = out.len() - inner.len() + HEADERS / 2;
                    let (source, destination) = (arrived.key.client.ip(), arrived.key.vip.ip());
                    complete_tcp(source, destination, &mut out[at..]);
                }
            });
            return;
        }
        self.forward_in_pieces(&option, to, arrived);
    }

    /// Sends a client's packet on in pieces that fit.
    fn forward_in_pieces(&mut self, option: &meta::Raw, to: SocketAddrV4, arrived: &Arrived<'_>) {
        let chunk = usize::from(self.payload_max(&arrived.handshake));
        let count = arrived.payload.len().div_ceil(chunk);
        for (index, payload) in arrived.payload.chunks(chunk).enumerate() {
            let mut header = arrived.header;
            header.seq = header.seq.wrapping_add((index * chunk) as u32);
            if index + 1 < count {
                header.flags = header.flags.without(Flags::FIN).without(Flags::PSH);
            }
            let segment = Segment {
                source: arrived.key.client,
                destination: arrived.key.vip,
                header,
                payload: payload.to_vec(),
            };
            let packet = segment.to_packet();
            self.to_backends
                .push(to, |out| geneve::write(option, &packet, out));
        }
    }

    /// Where a flow's packets go, and with which option: as the data path does it.
    fn way_of(&self, key: &FlowKey, record: &Record) -> Option<(SocketAddrV4, meta::Raw)> {
        let to = self.backend_address(record.slot)?;
        if !record.is_moving() {
            return Some((to, record.option));
        }
        let by = self.backend_address(record.previous)?;
        let handoff = Meta {
            kind: Kind::Handoff { next: *to.ip() },
            requests: record.requests_before as u16,
            ..Meta::decode(&record.option).ok()?
        };
        let binding = Binding::of_flow(IpAddr::V4(*by.ip()), key.client, key.vip)?;
        Some((by, handoff.seal(&self.cluster.keys, &binding)))
    }

    /// The most payload of one segment to a backend.
    fn payload_max(&self, handshake: &Handshake) -> u16 {
        let options = if handshake.timestamps { 12 } else { 0 };
        (self.inner_max - HEADERS - options).min(u16::MAX.into()) as u16
    }

    /// Does what the intake wants done.
    fn act(&mut self) {
        while let Some(action) = self.intake.poll_action() {
            match action {
                Action::ToClient(segment) => {
                    let IpAddr::V4(client) = segment.destination.ip() else {
                        continue;
                    };
                    self.to_clients
                        .push(SocketAddrV4::new(client, 0), |out| segment.write(out));
                }
                Action::ToBackend { key, segment } => self.send_to_backend(&key, segment, None),
                Action::Probe { key, segment } => {
                    self.send_to_backend(&key, segment, Some(Kind::Probe))
                }
                Action::Acknowledge { key, seq } => self.acknowledge(&key, seq),
                Action::Reading {
                    key,
                    isns,
                    handshake,
                } => {
                    // A copy of the first segment was on its way here while the flow was
                    // assigned and the intake forgot it: the backend has it.
                    let known = self.shared.records.get(&key).ok().flatten();
                    let assigned = known.is_some_and(|r| r.isns == isns && r.has_backend());
                    if self.intake.is_reading(&key) && assigned {
                        self.intake.forget(&key);
                    } else {
                        match self.shared.records.read_on(&key, isns, handshake) {
                            Ok(finished) => self.tell(finished),
                            Err(_) => {
                                self.count("table-full");
                                self.intake.forget(&key);
                            }
                        }
                    }
                }
                Action::Keep(kept) => self.share(kept),
                Action::Stay { key } => {
                    if let Some(waiting) = self.waiting.end(&key) {
                        self.not_moved(&waiting.target);
                    }
                    if self.shared.records.stay(&key).is_err() {
                        self.count("record-failures");
                    }
                }
                Action::Ended { key, isns, .. } => {
                    let _ = self.shared.records.end_reading(&key, isns);
                }
            }
        }
    }

    fn send_to_backend(&mut self, key: &FlowKey, segment: Segment, kind: Option<Kind>) {
        let Ok(Some(record)) = self.shared.records.get(key) else {
            return;
        };
        let way = match kind {
            None => self.way_of(key, &record),
            Some(kind) => self.sealed(key, &record, |meta| Meta { kind, ..meta }),
        };
        let Some((to, option)) = way else {
            return self.count("no-backend");
        };
        if kind.is_none() {
            self.note_end(key, segment.header.flags);
        }
        let packet = as_heard(segment, &record).to_packet();
        self.to_backends
            .push(to, |out| geneve::write(&option, &packet, out));
    }

    /// Tells the owner what the client has acknowledged.
    fn acknowledge(&mut self, key: &FlowKey, seq: ClientSeq) {
        let Ok(Some(record)) = self.shared.records.get(key) else {
            return;
        };
        let segment = Segment::of_client(
            key,
            Header {
                seq: seq.raw(),
                ack: record.heard.raw(),
                window: record.window,
                flags: Flags::ACK,
                ..Header::default()
            },
        );
        self.send_to_backend(key, segment, None);
    }

    /// The owner's address, and its option as `change` makes it.
    fn sealed(
        &self,
        key: &FlowKey,
        record: &Record,
        change: impl FnOnce(Meta) -> Meta,
    ) -> Option<(SocketAddrV4, meta::Raw)> {
        let to = self.backend_address(record.slot)?;
        let meta = Meta::decode(&record.option).ok()?;
        let binding = Binding::of_flow(IpAddr::V4(*to.ip()), key.client, key.vip)?;
        Some((to, change(meta).seal(&self.cluster.keys, &binding)))
    }

    /// A FIN that does not pass through the data path ages its record all the same.
    fn note_end(&mut self, key: &FlowKey, flags: Flags) {
        if flags.has(Flags::FIN) && self.shared.records.client_closed(key).is_err() {
            self.count("record-failures");
        }
    }

    /// The slot of the backend at an address.
    fn slot_of(&self, address: IpAddr) -> Option<u32> {
        let backends = &self.cluster.config.backends;
        let index = backends.iter().position(|b| b.address == address)?;
        Some(self.cluster.slots[index])
    }

    fn backend_address(&self, slot: u32) -> Option<SocketAddrV4> {
        let cluster = &self.cluster;
        let address = match cluster.slots.iter().position(|&s| s == slot) {
            Some(index) => cluster.config.backends[index].address,
            // Not configured any more; its flows go on.
            None => addr_from_bytes(self.shared.maps.backends.get(&slot).ok()??.addr),
        };
        match address {
            IpAddr::V4(v4) => Some(SocketAddrV4::new(v4, GENEVE_PORT)),
            IpAddr::V6(_) => None,
        }
    }

    fn count(&mut self, what: &'static str) {
        self.count_many(what, 1);
    }

    fn count_many(&mut self, what: &'static str, number: usize) {
        if number > 0 {
            *self.counters.entry(what).or_default() += number as u64;
        }
    }

    fn show(&self, index: usize) {
        let mut counters = self.counters.clone();
        counters.extend(self.intake.counters().iter());
        let figures = Figures {
            held_flows: self.intake.held_flows(),
            held_bytes: self.intake.held_bytes(),
            answering_flows: self.intake.answering_flows(),
            counters,
        };
        self.shared.intake.lock().expect("no thread panics with it")[index] = figures;
    }
}
