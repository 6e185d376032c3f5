//! A worker: takes the packets that the data path cannot place, and places
//! their flows. One thread, one socket, one intake; a flow is always the same
//! worker's.
//!
//! ```text
//!  first     a connection's first request      later     those of a flow that has an owner
//!  returned  requests that come back           way       packets to backends
//!  behind    their later packets
//!  relay     words for another dispatcher      takeover  heads that one was reading
//!  splice    connections to servers without an agent
//!  idle      owners that are gone, and owe nothing
//!  support   owners that are gone in the midst of an answer
//!  words     what clients and wedges are told then
//!  heirs     dispatchers that are gone in the midst of that
//!  retry     owners that are gone with a request that they have not answered
//!  not_retried  those that nobody else is given
//!  half_pipes  owners that are gone while an older one still sends
//!  unsure    flows that another dispatcher has kept: how far their owners have come
//! ```

mod ahead;
mod behind;
mod candidates;
mod first;
mod given_up;
mod gone;
mod half_pipes;
mod heirs;
mod idle;
mod later;
mod not_retried;
mod not_taken;
mod part;
mod planned;
mod relay;
mod retry;
mod returned;
mod splice;
mod support;
mod takeover;
mod unheard_owners;
mod unsure;
mod way;
mod whose;
mod words;

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use trapeze_core::config::Dispatcher;
use trapeze_core::flow::FlowKey;
use trapeze_core::health::Word;
use trapeze_core::intake::{Action, Arrived, Bounds, End, Intake};
use trapeze_core::policy::Feedback;
use trapeze_core::seq::ClientSeq;
use trapeze_core::takeover::Assembly;
use trapeze_core::wire::meta::{Kind, Meta, Sender};
use trapeze_core::wire::{geneve, ipv4};
use trapeze_datapath::abi::{ENCAP_LEN, Finished, GENEVE_PORT};
use trapeze_datapath::clock;
use trapeze_datapath::host;
use trapeze_datapath::inlet::{self, Inlet, InletFrames};
use trapeze_datapath::raw::RawSocket;
use trapeze_datapath::udp::{BATCH, LONGEST_WAIT, Outbox, UdpSocket};

use crate::checks;
use crate::cluster::Cluster;
use crate::early::Early;
use crate::handoff::Waitings;
use crate::health::Heard;
use crate::pauses::Pauses;
use crate::records::Record;
use crate::support::Support;
use crate::unanswered::Unanswered;
use crate::{Shared, v4};
use behind::Behind;
use half_pipes::Watch;
use heirs::Heritage;
use retry::Retries;
use splice::Connections;
use support::Takings;
use unheard_owners::{Repeated, as_client_takes_it};
use unsure::Unsure;

/// What a worker counts, as shown by `trapeze status`.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    pub held_flows: usize,
    pub held_bytes: usize,
    pub answering_flows: usize,
    pub protected_answers: usize,
    pub protected_bytes: usize,
    pub kept_requests: usize,
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
    /// How often this dispatcher has been cut off from the others, or its daemon away for too long.
    cuts: u32,
    /// What there is in the queue came while lots were dealt so.
    deal: u32,
    /// Some of it came while they were dealt otherwise.
    is_dealt_anew: bool,
    /// The generation that decisions made now belong to.
    decisions: u32,
    own_address: IpAddr,
    /// The largest inner packet that fits an encapsulated frame.
    inner_max: usize,
    intake: Intake,
    /// Requests that wait for their owners.
    waiting: Waitings,
    /// Flows that have been given to an owner just now.
    given: Vec<FlowKey>,
    /// Those to servers that are being opened.
    connections: Connections,
    /// Requests that no backend has had a seat for.
    pauses: Pauses,
    /// Later packets of requests that come back.
    behind: Behind,
    /// What waits until it is known how far its owner has come.
    unsure: Unsure,
    /// What clients repeat because they do not hear who has it.
    repeated: Repeated,
    /// Answers that are to outlive their backends, and those that do just now.
    support: Support,
    /// What may have been sent ahead of answers that are not told of yet.
    early: Early,
    takings: Takings,
    heritage: Heritage,
    /// What agents and other dispatchers say of answers, as far as it has come.
    said: Assembly,
    /// Requests that are to have another backend when theirs dies, and those that are given it now.
    unanswered: Unanswered,
    retries: Retries,
    /// Flows with older owners.
    watch: Watch,
    /// How many were asked whether they could go on with one.
    questions: u32,
    raw: RawSocket,
    /// The way back to the data path, if there is one.
    held: Option<Inlet>,
    to_data_path: InletFrames,
    to_backends: Outbox,
    /// How far they have come with what goes there before.
    probes: Outbox,
    to_servers: Outbox,
    to_clients: Outbox,
    counters: HashMap<&'static str, u64>,
}

impl Worker {
    /// Binds the socket; workers must be bound in the order of their indices. `by_loopback`: what it has held may go to
    /// the data path.
    pub fn bind(
        shared: Arc<Shared>,
        own: &Dispatcher,
        index: usize,
        by_loopback: bool,
    ) -> anyhow::Result<Self> {
        let address = SocketAddrV4::new(v4(own.address)?, GENEVE_PORT);
        let socket = UdpSocket::bind(address, index, own.workers)
            .map_err(|e| anyhow::anyhow!("cannot bind UDP {address}: {e}"))?;
        let cluster = shared.cluster();
        let ear = socket.ear()?;
        shared.health.listening().open(index, ear);
        let held = match by_loopback {
            true => Some(Inlet::of_held(&own.interface)?),
            false => None,
        };
        let intake = State::empty_intake(&shared, &cluster, held.is_some());
        Ok(Self {
            index,
            socket,
            state: State {
                own_address: own.address,
                inner_max: host::mtu(&own.interface)? as usize - ENCAP_LEN,
                intake,
                waiting: Waitings::default(),
                connections: Connections::default(),
                to_servers: Outbox::default(),
                pauses: Pauses::default(),
                behind: Behind::default(),
                unsure: Unsure::default(),
                repeated: Repeated::default(),
                support: Support::default(),
                early: Early::default(),
                takings: Takings::default(),
                heritage: Heritage::default(),
                said: Assembly::default(),
                unanswered: Unanswered::default(),
                retries: Retries::default(),
                watch: Watch::default(),
                questions: 0,
                raw: RawSocket::open()?,
                held,
                given: Vec::new(),
                to_data_path: InletFrames::default(),
                to_backends: Outbox::default(),
                probes: Outbox::default(),
                to_clients: Outbox::default(),
                counters: HashMap::new(),
                generation: 0,
                decisions: 0,
                cuts: 0,
                deal: 0,
                is_dealt_anew: true,
                cluster,
                shared,
            },
        })
    }

    /// Works until the daemon stops.
    pub fn run(mut self) -> anyhow::Result<()> {
        let mut shown = Instant::now();
        while !self.state.shared.stopping.load(Ordering::Relaxed) {
            let before = clock::monotonic();
            let dues = [
                self.state.intake.poll_timeout(),
                self.state.waiting.next_due(),
                self.state.connections.next_due(),
                self.state.behind.next_due(),
                self.state.unsure.next_due(),
                self.state.support.next_due(),
                self.state.takings.next_due(),
                self.state.heritage.next_due(),
                self.state.unanswered.next_due(),
                self.state.retries.next_due(),
                self.state.half_pipes_due(),
            ];
            let due = dues.into_iter().flatten().min();
            let is_cut_off = self.state.shared.health.is_deaf();
            let due = due
                .filter(|_| !is_cut_off)
                .map(|at| at.saturating_sub(before));
            let count = self.socket.receive(due.unwrap_or(LONGEST_WAIT))?;
            let peers = &self.state.shared.peers;
            if self.state.shared.health.is_deaf() || peers.has_lapsed(clock::monotonic()) {
                self.hear_backends(before, count);
                continue;
            }
            self.state.follow_cut();
            let peers = &self.state.shared.peers;
            if peers.hear_all(clock::monotonic()) {
                self.state.count("waited-for-news");
            }
            let deal = self.state.shared.peers.act(self.index);
            self.state.is_dealt_anew = deal != self.state.deal;
            if count < BATCH {
                self.state.deal = deal;
            }
            if self.state.is_dealt_anew {
                self.state.leave_heads();
            }
            self.state.shared.health.listening().begin(self.index);
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
            let all = (count < BATCH).then_some(before.as_millis() as u64);
            self.state.shared.health.listening().end(self.index, all);
            self.state.intake.on_timeout(now);
            let idle = self.state.shared.drains.take_idle(self.index);
            self.state.take_from_owners(now, &idle);
            for key in self.state.shared.peers.take_orphans(self.index) {
                self.state.read_on(now, &key);
            }
            self.state.on_waiting_due(now);
            self.state.on_connections_due(now);
            self.state.on_behind_due(now);
            self.state.on_unsure_due(now);
            self.state.on_heritage_due(now);
            self.state.on_support_due(now);
            self.state.on_half_pipes_due(now, self.index);
            self.state.on_retries_due(now);
            self.state.act();
            self.send()?;
            if self.state.repeat_resets() {
                self.send()?;
            }
            self.state.shared.peers.rest(self.index);
            if shown.elapsed() > LONGEST_WAIT {
                let lost = self.socket.lost()?;
                self.state.counters.insert("queue-full", lost.into());
                self.state.show(self.index);
                shown = Instant::now();
            }
        }
        self.state.intake.abandon();
        self.state.act();
        Ok(self.send()?)
    }

    /// While nobody can be heard nothing is decided, and nothing is said: of what has come all is forgotten but that
    /// somebody can be heard again. Clients repeat the rest.
    fn hear_backends(&mut self, before: Duration, count: usize) {
        self.state.shared.health.listening().begin(self.index);
        for index in 0..count {
            let (datagram, _) = self.socket.datagram(index);
            self.state.hear_backend(datagram);
        }
        let all = (count < BATCH).then_some(before.as_millis() as u64);
        self.state.shared.health.listening().end(self.index, all);
    }

    /// Sends what there is to send, unless others have gone on with that since it was decided.
    fn send(&mut self) -> std::io::Result<()> {
        // The other dispatchers know first what follows from a record.
        let (shared, keys) = (&self.state.shared, &self.state.cluster.keys);
        let may_follow = shared.records.tell_peers(&self.socket, keys)?;
        if !may_follow || shared.peers.cuts() != self.state.cuts {
            return Ok(());
        }
        // A port's older connection is ended before its SYN comes, which an agent may get.
        if !self.state.to_servers.is_empty() {
            let lost = self.state.raw.send(&self.state.to_servers);
            self.state.count_many("not-sent-to-server", lost);
            self.state.to_servers.clear();
        }
        self.state
            .send(&self.socket, |state| &mut state.to_backends);
        self.state.send_long();
        self.state.send(&self.socket, |state| &mut state.probes);
        if !self.state.to_clients.is_empty() {
            let lost = self.state.raw.send(&self.state.to_clients);
            self.state.count_many("not-sent-to-client", lost);
            self.state.to_clients.clear();
        }
        Ok(())
    }
}

impl State {
    fn bounds(cluster: &Cluster, by_loopback: bool) -> Bounds {
        Bounds {
            burst: if by_loopback { inlet::LONGEST } else { 0 },
            ..Bounds::per_worker(&cluster.config.limits, cluster.own.workers)
        }
    }

    fn empty_intake(shared: &Shared, cluster: &Cluster, by_loopback: bool) -> Intake {
        let mut intake = Intake::new(Self::bounds(cluster, by_loopback));
        intake.have_copied(shared.peers.are_there());
        intake
    }

    /// Others have gone on with all flows since this dispatcher was cut off, or its daemon away: what it has begun with is of before, as if
    /// its daemon had begun anew.
    fn follow_cut(&mut self) {
        let cuts = self.shared.peers.cuts();
        if cuts == self.cuts {
            return;
        }
        self.cuts = cuts;
        self.count("was-cut-off");
        for (name, number) in self.intake.counters().iter() {
            *self.counters.entry(name).or_default() += number;
        }
        self.intake = Self::empty_intake(&self.shared, &self.cluster, self.held.is_some());
        self.waiting = Waitings::default();
        self.given.clear();
        self.connections = Connections::default();
        self.pauses = Pauses::default();
        self.behind = Behind::default();
        self.unsure = Unsure::default();
        self.repeated = Repeated::default();
        self.support = Support::default();
        self.early = Early::default();
        self.takings = Takings::default();
        self.heritage = Heritage::default();
        self.said = Assembly::default();
        self.unanswered = Unanswered::default();
        self.retries = Retries::default();
        self.watch = Watch::default();
        self.to_data_path.clear();
        self.to_backends.clear();
        self.probes.clear();
        self.to_servers.clear();
        self.to_clients.clear();
    }

    fn send(&mut self, socket: &UdpSocket, datagrams: fn(&mut Self) -> &mut Outbox) {
        let datagrams = datagrams(self);
        if datagrams.is_empty() {
            return;
        }
        let lost = socket.send(datagrams);
        datagrams.clear();
        self.count_many("not-sent-to-backend", lost);
    }

    /// What is long goes by way of the data path. If it has to be cut here from now on, what is lost so comes again.
    fn send_long(&mut self) {
        let Some(held) = self.held.as_ref().filter(|_| !self.to_data_path.is_empty()) else {
            return;
        };
        let sent = held.send(&mut self.to_data_path);
        self.to_data_path.clear();
        match sent {
            Ok(lost) => self.count_many("not-sent-to-backend", lost),
            Err(_) => {
                self.count("loopback-down");
                self.held = None;
                self.intake.set_bounds(Self::bounds(&self.cluster, false));
            }
        }
    }

    /// Of what has come only what a backend says of itself.
    fn hear_backend(&mut self, datagram: &[u8]) {
        match geneve::open(datagram, self.own_address, &self.cluster.keys) {
            Ok(packet) => {
                if let Kind::EchoReply { feedback } = packet.meta.kind {
                    self.on_echo_reply(&packet.meta, packet.inner, feedback);
                }
            }
            Err(_) => self.count("rejected"),
        }
    }

    fn follow_reload(&mut self) {
        let generation = self.shared.generation.load(Ordering::Acquire);
        if generation != self.generation {
            self.generation = generation;
            self.cluster = self.shared.cluster();
            self.intake
                .set_bounds(Self::bounds(&self.cluster, self.held.is_some()));
            self.intake.have_copied(self.shared.peers.are_there());
        }
    }

    fn on_datagram(&mut self, now: Duration, datagram: &[u8], from: SocketAddrV4) {
        let cluster = self.cluster.clone();
        let packet = match geneve::open(datagram, self.own_address, &cluster.keys) {
            Ok(packet) => packet,
            Err(_) => return self.count("rejected"),
        };
        if self.relay(now, &packet, from) {
            return;
        }
        if self.is_dealt_anew && self.pass_to_keeper(&packet) {
            return;
        }
        match packet.meta.kind {
            Kind::Request { .. } => self.on_request(now, &packet.meta, packet.inner),
            Kind::Unheard { .. } => self.on_unheard(now, &packet.meta, packet.inner),
            Kind::Refused(why) => self.on_refused(now, &packet.meta, packet.inner, why),
            Kind::ProbeAnswer { received, sender } => {
                if let Ok(arrived) = Arrived::parse(&packet.meta, packet.inner) {
                    let record = self.shared.records.get(&arrived.key).ok().flatten();
                    let sender = sender.map(|sender| as_known(record.as_ref(), sender));
                    let said = sender.map(|sender| as_client_takes_it(record.as_ref(), sender));
                    if (self.intake).on_probe_answer(now, &arrived.key, received, said) {
                        self.go_on(now, &arrived.key);
                        self.act();
                    }
                    self.tell_client(&arrived.key, received, sender);
                    if sender.is_some() {
                        self.stands_anew(&arrived.key, packet.meta.epoch);
                    }
                    if let Some(sender) = sender.filter(|sender| sender.has_not_begun) {
                        self.on_not_begun(&arrived.key, packet.meta.epoch, sender.next);
                    }
                    let asked = (packet.meta.epoch, ClientSeq::new(arrived.header.seq));
                    self.hears_how_far(now, &arrived.key, asked.0, received, sender.is_some());
                    if received == asked.1 {
                        self.on_lost(now, &arrived.key, asked.0, received);
                    } else if let Some(sender) = sender.filter(|sender| sender.is_idle) {
                        self.on_idle(&arrived.key, asked, received, sender.next);
                    }
                }
            }
            Kind::Reckoned { received } => {
                if let Ok(arrived) = Arrived::parse(&packet.meta, packet.inner) {
                    let all = (received, packet.meta.requests);
                    self.on_reckoned(now, &arrived.key, packet.meta.epoch, all);
                }
            }
            Kind::Elsewhere { owner, end } => {
                if let Ok(arrived) = Arrived::parse(&packet.meta, packet.inner) {
                    let said = (owner, end);
                    self.hears_elsewhere(now, &arrived.key, &packet.meta, from, said);
                }
            }
            Kind::Next { .. } => self.on_next(now, &packet.meta, packet.inner),
            Kind::Held(held) => self.on_held(now, &packet.meta, packet.inner, held, from),
            Kind::Released {
                end,
                drained,
                clock,
            } => self.on_released(now, &packet.meta, packet.inner, (end, drained, clock)),
            Kind::Done => self.on_done(now, &packet.meta, packet.inner),
            Kind::Answered { end } => self.on_answered(&packet.meta, packet.inner, end),
            Kind::Vacated { end, vacancy } => {
                self.on_vacated(now, &packet.meta, packet.inner, (end, vacancy));
            }
            Kind::Support => self.on_support(now, &packet.meta, packet.inner),
            Kind::Splice => self.on_server(now, packet.inner),
            Kind::EchoReply { feedback } => {
                self.on_echo_reply(&packet.meta, packet.inner, feedback);
            }
            // The data path's, which is not attached yet.
            Kind::Sprayed { .. } | Kind::Passed { .. } | Kind::Entrusted { .. } | Kind::Beat(_) => {
                self.count("too-early");
            }
            _ => self.count("rejected"),
        }
    }

    /// Policies hear of requests of which the data path will not tell.
    fn tell(&self, finished: impl IntoIterator<Item = Finished>) {
        for finished in finished {
            self.cluster.finished(&self.shared.health, &finished);
        }
    }

    fn on_echo_reply(&mut self, meta: &Meta, inner: &[u8], feedback: Option<Feedback>) {
        let Ok(packet) = ipv4::Packet::parse(inner) else {
            return self.count("malformed");
        };
        // The packet that we sent: it was to the backend.
        let source = IpAddr::V4(packet.destination());
        match self.slot_of(source) {
            Some(slot) => match self.shared.health.heard(slot, meta.epoch, meta.start.raw()) {
                Heard::Late => self.count("old-echo-replies"),
                heard => {
                    if source != self.own_address {
                        self.shared.health.heard_from_outside();
                    }
                    if heard == Heard::Anew {
                        self.on_anew(slot);
                    }
                    self.shared.health.said(slot, feedback);
                    self.hear_word(slot, packet.destination(), packet.payload());
                    for (to, datagram) in self.shared.forsaken.to_be_told(slot) {
                        self.to_backends
                            .push(to, |out| out.extend_from_slice(&datagram));
                    }
                }
            },
            None => self.count("strange-echo-replies"),
        }
    }

    /// A backend has come up anew: whatever it was given before is lost, as with one that is silent.
    fn on_anew(&mut self, slot: u32) {
        self.count("came-up-anew");
        let cluster = &self.cluster;
        let at = cluster.slots.iter().position(|&known| known == slot);
        let name = at.map_or("a backend", |at| &cluster.config.backends[at].name);
        eprintln!("{name} has come up anew, and has lost what it had");
    }

    /// What an agent holds of its servers, if that came with its heartbeat.
    fn hear_word(&mut self, slot: u32, backend: Ipv4Addr, said: &[u8]) {
        let Some(word) = Word::open(said, &self.cluster.keys, backend) else {
            return;
        };
        let is_checked = |number| self.cluster.is_checked(slot, number);
        let news = self.shared.health.hear_word(slot, &word, is_checked);
        if news {
            checks::note(&self.shared, &self.cluster);
            if self.shared.renew_decisions().is_err() {
                self.count("decision-failures");
            }
        }
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
                Action::ToBackend { key, segment, mss } => {
                    self.send_to_backend(&key, segment, mss);
                }
                Action::Probe { key, segment } => self.ask_about_held(&key, segment),
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
                    // What lies behind what nobody has does not go on anywhere.
                    let is_lost = self.shared.left_behind.is_without(&key);
                    if !is_lost && self.shared.records.stay(&key).is_err() {
                        self.count("record-failures");
                    }
                }
                Action::TooSlow { key } => self.on_slow_head(&key),
                // Its owner has never had what its client was told that has come.
                Action::Ended {
                    key,
                    isns,
                    why: End::Unconfirmed,
                } => {
                    if let Ok(Some(record)) = self.shared.records.get(&key)
                        && (record.isns == isns || record.cookie == isns.server)
                        && record.has_backend()
                    {
                        match record.splice {
                            Some(_) => self.abandon(&key, record.epoch),
                            None => self.reset_where_it_is(clock::monotonic(), &key, record.epoch),
                        }
                    }
                }
                Action::Ended { key, isns, .. } => {
                    let _ = self.shared.records.end_reading(&key, isns);
                }
            }
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
            protected_answers: (self.support).count(|key| self.shared.peers.keeps(key)),
            protected_bytes: self.support.bytes(),
            kept_requests: self.unanswered.len(),
            counters,
        };
        self.shared.intake.lock().expect("no thread panics with it")[index] = figures;
    }
}

/// Where an owner's socket stands, as the client knows it.
fn as_known(record: Option<&Record>, sender: Sender) -> Sender {
    match record.and_then(|record| record.splice) {
        Some(splice) => splice.as_known(sender),
        None => sender,
    }
}
