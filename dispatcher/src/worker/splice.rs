//! Connections to servers without an agent, while they are being opened: the client's
//! packets wait here until the server has answered, or another backend has the request
//! (docs/protocol/splice.md §3).

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};
use std::time::Duration;

use trapeze_core::flow::FlowKey;
use trapeze_core::intake::{Answer, Arrived, Body};
use trapeze_core::seq::{ClientSeq, ServerSeq};
use trapeze_core::splice::connect::{Connect, Open, Step};
use trapeze_core::splice::keep_alive;
use trapeze_core::wire::checksum::TcpChecksum;
use trapeze_core::wire::meta::{Binding, Care, Refusal, Sender};
use trapeze_core::wire::segment::Segment;
use trapeze_core::wire::tcp::{Flags, Header, SackBlocks};
use trapeze_core::wire::{geneve, ipv4, tcp};
use trapeze_datapath::abi::GENEVE_PORT;
use trapeze_datapath::clock;

use super::State;
use super::first::Before;
use super::way::{cut, whole};
use crate::cluster::{Choice, Decision};
use crate::handoff::Waiting;
use crate::look::Extent;
use crate::records::Record;
use crate::v4;

/// Connections being opened at once, by one worker; the rest is sent again by its clients.
const CONNECTING_MAX: usize = 16_384;
/// Packets of one client that wait: a first window of ten segments, and some that come again.
const HELD_MAX: usize = 24;
/// So many servers are asked for one request.
const SERVERS_MAX: u32 = 3;

/// What is being opened.
#[derive(Default)]
pub(super) struct Connections {
    flows: HashMap<FlowKey, Connecting>,
    by_ends: HashMap<Ends, FlowKey>,
    dues: BTreeSet<(Duration, FlowKey)>,
}

/// Our address, and the server's.
type Ends = (SocketAddrV4, SocketAddrV4);

struct Connecting {
    connect: Connect,
    choice: Choice,
    before: Before,
    extent: Extent,
    /// The packet with which the request was complete, and what has come since.
    packets: Vec<Packet>,
    /// Servers asked so far, this one included.
    asked: u32,
}

/// A client's packet that waits.
struct Packet {
    arrived: Arrived<'static>,
    payload: Vec<u8>,
}

impl Packet {
    fn of(arrived: &Arrived<'_>) -> Self {
        Self {
            payload: arrived.payload.to_vec(),
            arrived: Arrived {
                payload: &[],
                ..*arrived
            },
        }
    }

    fn arrived(&self) -> Arrived<'_> {
        Arrived {
            payload: &self.payload,
            ..self.arrived
        }
    }
}

impl Connections {
    fn put(&mut self, key: FlowKey, connecting: Connecting) {
        self.dues.insert((connecting.connect.due(), key));
        self.by_ends.insert(connecting.ends(), key);
        self.flows.insert(key, connecting);
    }

    fn take(&mut self, key: &FlowKey) -> Option<Connecting> {
        let connecting = self.flows.remove(key)?;
        self.dues.remove(&(connecting.connect.due(), *key));
        self.by_ends.remove(&connecting.ends());
        Some(connecting)
    }

    /// When [`State::on_connections_due`] wants to be called.
    pub(super) fn next_due(&self) -> Option<Duration> {
        self.dues.first().map(|(due, _)| *due)
    }
}

impl Connecting {
    fn ends(&self) -> Ends {
        (self.connect.own(), self.connect.server())
    }
}

impl State {
    /// Opens a connection to the backend that was chosen, if that has no agent. False: it has
    /// one.
    pub(super) fn connects(
        &mut self,
        now: Duration,
        arrived: &Arrived<'_>,
        choice: &Choice,
        before: Before,
        extent: Extent,
    ) -> bool {
        if !choice.transfer.connects() {
            return false;
        }
        self.connect(now, vec![Packet::of(arrived)], choice, (before, extent), 1);
        true
    }

    /// An owner has given its flow up at `end`, for a backend without an agent: the request
    /// that waits is as the first one of a connection that begins there.
    pub(super) fn splice_released(
        &mut self,
        now: Duration,
        mut arrived: Arrived<'_>,
        waiting: &Waiting,
        choice: &Choice,
        end: ServerSeq,
    ) {
        let key = arrived.key;
        let moved = (waiting.epoch, waiting.start);
        match self.shared.records.vacate_released(&key, moved, end) {
            Ok(vacated) => self.tell(vacated.finished),
            Err(_) => return self.count("record-failures"),
        }
        let Some(opening) = self.intake.opening(&key) else {
            return self.cluster.not_taken(choice);
        };
        arrived.header = opening;
        arrived.payload = &[];
        arrived.later = false;
        arrived.checksum = TcpChecksum::Complete;
        let request = (Before::Nothing, waiting.extent);
        self.connect(now, vec![Packet::of(&arrived)], choice, request, 1);
        self.act();
    }

    /// Keeps a packet of a flow whose connection is being opened. False: it is not.
    pub(super) fn waits_for_server(&mut self, arrived: &Arrived<'_>) -> bool {
        let Some(connecting) = self.connections.flows.get_mut(&arrived.key) else {
            return false;
        };
        let is_same = connecting.packets[0].arrived.cookie == arrived.cookie;
        let place = |of: &Arrived<'_>, length| (of.header.seq, of.header.flags, length);
        let this = place(arrived, arrived.payload.len());
        let is_new = (connecting.packets.iter())
            .all(|packet| place(&packet.arrived, packet.payload.len()) != this);
        if is_same && is_new && connecting.packets.len() < HELD_MAX {
            connecting.packets.push(Packet::of(arrived));
        }
        is_same
    }

    fn connect(
        &mut self,
        now: Duration,
        packets: Vec<Packet>,
        choice: &Choice,
        (before, extent): (Before, Extent),
        asked: u32,
    ) {
        let arrived = packets[0].arrived();
        let port = match choice.server_port {
            0 => arrived.key.vip.port(),
            own => own,
        };
        let IpAddr::V4(address) = choice.address else {
            return;
        };
        let server = SocketAddrV4::new(address, port);
        // An earlier connection of this 4-tuple is nobody's any more.
        if let Some(older) = self.connections.take(&arrived.key) {
            self.leave(&older);
        }
        if self.connections.flows.len() >= CONNECTING_MAX {
            self.cluster.not_taken(choice);
            return self.count("too-many-connecting");
        }
        let own = match self.shared.records.take_port(&arrived.key, server) {
            Ok(Some(own)) => own,
            Ok(None) => {
                self.count("no-splice-port");
                self.cluster.not_taken(choice);
                let refusal = (Answer::ServiceUnavailable, Body::Full);
                return self.intake.answer(now, &arrived, refusal.0, refusal.1);
            }
            Err(_) => return self.count("record-failures"),
        };
        let clocks = arrived.header.options.timestamps;
        let ends = (own, server);
        let mut agreed = arrived.handshake;
        // What the server says is passed on, in the encapsulation, by who has no record of it: by one whose daemon is
        // away, too, to whom sprays deal still.
        let peers = &self.shared.peers;
        let passes_here = peers.are_there() && !choice.transfer.has_agent();
        if peers.are_in_sub_clusters() || passes_here {
            agreed.mss = agreed.mss.min(self.payload_max_of(false));
        }
        let handshake = (agreed, clocks);
        let (connect, syn) = Connect::begin(now, choice.transfer, ends, arrived.isns, handshake);
        self.count("connects");
        let care = self.splice_care(choice, &extent);
        self.send_opening(&arrived.key, &connect, care, syn);
        let connecting = Connecting {
            connect,
            choice: *choice,
            before,
            extent,
            packets,
            asked,
        };
        let key = connecting.packets[0].arrived.key;
        self.connections.put(key, connecting);
    }

    /// A server's packet, of a connection that is not open, as far as the data path knows.
    pub(super) fn on_server(&mut self, now: Duration, inner: &[u8]) {
        let Some((own, server, header)) = parse(inner) else {
            return self.count("malformed");
        };
        let Some(key) = self.connections.by_ends.get(&(own, server)).copied() else {
            return self.on_late_answer(own, server, &header, inner);
        };
        let Some(mut connecting) = self.connections.take(&key) else {
            return;
        };
        let step = connecting.connect.on_segment(&header);
        self.go_on_connecting(now, key, connecting, step);
        self.act();
    }

    /// Sends SYNs again, and gives up servers that do not answer.
    pub(super) fn on_connections_due(&mut self, now: Duration) {
        while let Some(&(due, key)) = self.connections.dues.first() {
            if due > now {
                break;
            }
            let Some(mut connecting) = self.connections.take(&key) else {
                self.connections.dues.remove(&(due, key));
                continue;
            };
            let step = connecting.connect.on_timeout(now);
            self.go_on_connecting(now, key, connecting, step);
        }
    }

    fn go_on_connecting(
        &mut self,
        now: Duration,
        key: FlowKey,
        connecting: Connecting,
        step: Step,
    ) {
        match step {
            Step::Wait => self.connections.put(key, connecting),
            Step::Send(segments) => {
                self.count_many("connects-again", 1);
                let care = self.splice_care(&connecting.choice, &connecting.extent);
                for segment in segments {
                    self.send_opening(&key, &connecting.connect, care, segment);
                }
                self.connections.put(key, connecting);
            }
            Step::Open(open) => self.on_open(now, &connecting, &open),
            Step::Refused => self.ask_another(now, connecting, "connects-refused"),
            Step::Unreachable => self.ask_another(now, connecting, "connects-in-vain"),
        }
    }

    /// The flow is the server's from here on.
    fn on_open(&mut self, now: Duration, connecting: &Connecting, open: &Open) {
        let arrived = connecting.packets[0].arrived();
        let key = arrived.key;
        let choice = &connecting.choice;
        if !self.shared.peers.keeps(&key) {
            // Another dispatcher decides about the flow by now: the client asks it, or this one again.
            self.cluster.not_taken(choice);
            self.leave_to_keeper(&key);
            return self.leave(connecting);
        }
        let (own, server) = (open.splice.own, connecting.connect.server());
        if (self.shared.records)
            .note_clock(own, server, open.clock)
            .is_err()
        {
            self.count("record-failures");
        }
        let request = (connecting.before, connecting.extent);
        let Some(record) = self.assign_spliced(now, &arrived, choice, request, open.splice) else {
            return self.leave(connecting);
        };
        if record.splice != Some(open.splice) {
            self.intake.forget(&key);
            return self.leave(connecting);
        }
        self.count("spliced");
        let room = if arrived.handshake.timestamps { 12 } else { 0 };
        let mss = open.mss.saturating_sub(room).max(1);
        let payload_max = self.payload_max(&arrived.handshake).min(mss);
        if self.gives_held(now, &arrived, payload_max) {
            self.act();
            self.go_on(now, &key);
        } else {
            self.pass_on(now, &record, arrived, &[]);
        }
        for packet in &connecting.packets[1..] {
            let arrived = packet.arrived();
            match self.shared.records.get(&key) {
                Ok(Some(record)) if record.is_tunnel() => {
                    self.forward_to_server(&record, &arrived, payload_max);
                }
                Ok(Some(record)) => self.pass_on(now, &record, arrived, &[]),
                _ => return,
            }
        }
    }

    /// A server does not take the connection.
    fn ask_another(&mut self, now: Duration, connecting: Connecting, why: &'static str) {
        self.count(why);
        let Connecting {
            connect, choice, ..
        } = &connecting;
        let port = connect.server().port();
        (self.shared.health).refused(choice.slot, port, Refusal::NoListener);
        if self.shared.renew_decisions().is_err() {
            self.count("record-failures");
        }
        self.leave(&connecting);
        let arrived = connecting.packets[0].arrived();
        let tried = (choice.pool, &choice.placed.request, choice.slot);
        let decision = match connecting.asked < SERVERS_MAX {
            true => self.decide_again(&arrived, tried),
            false => Decision::Refuse(Answer::ServiceUnavailable, Body::Full),
        };
        let (before, extent) = (connecting.before, connecting.extent);
        match decision {
            Decision::To(other) if other.slot == choice.slot => {
                self.cluster.not_taken(&other);
                let refusal = (Answer::ServiceUnavailable, Body::Full);
                self.intake.answer(now, &arrived, refusal.0, refusal.1);
            }
            Decision::To(other) if other.transfer.connects() => {
                let asked = connecting.asked + 1;
                self.connect(now, connecting.packets, &other, (before, extent), asked);
            }
            Decision::To(other) => {
                let Some(record) = self.assign(now, &arrived, &other, before, extent) else {
                    return;
                };
                let payload_max = self.payload_max(&arrived.handshake);
                if self.gives_held(now, &arrived, payload_max) {
                    self.act();
                    return self.go_on(now, &arrived.key);
                }
                // All else comes again from the client.
                let segment = Segment {
                    payload: arrived.payload.to_vec(),
                    ..Segment::of_client(&arrived.key, arrived.header)
                };
                self.pass_on(now, &record, arrived, &segment.to_packet());
            }
            Decision::Refuse(answer, body) => self.intake.answer(now, &arrived, answer, body),
        }
        self.act();
    }

    /// Nothing comes of a connection: the server hears it, and the port is free.
    fn leave(&mut self, connecting: &Connecting) {
        let (own, server) = connecting.ends();
        self.send_to_server(connecting.connect.abandon());
        if self.shared.records.give_port_back(own, server).is_err() {
            self.count("record-failures");
        }
    }

    /// The server says again that it has heard our SYN: it has not heard more. Of no flow
    /// that is known, it is to forget it.
    fn on_late_answer(
        &mut self,
        own: SocketAddrV4,
        server: SocketAddrV4,
        header: &Header,
        inner: &[u8],
    ) {
        let records = &self.shared.records;
        let Ok(flow) = records.flow_of_answer(own, server) else {
            return self.count("record-failures");
        };
        let spliced = flow.and_then(|key| {
            let record = records.get(&key).ok()??;
            (record.splice?.own == own).then_some((key, record))
        });
        match spliced {
            Some((key, record))
                if header.flags.has(Flags::SYN) && header.ack == (record.isns.client + 1).raw() =>
            {
                self.acknowledge(&key, record.isns.client + 1);
            }
            _ if header.flags.has(Flags::SYN) && self.pass_to_connector(*own.ip(), inner) => {}
            None if !header.flags.has(Flags::RST) => {
                self.count("late-answers");
                self.send_to_server(Segment {
                    source: own.into(),
                    destination: server.into(),
                    header: Header {
                        seq: header.ack,
                        flags: Flags::RST,
                        ..Header::default()
                    },
                    payload: Vec::new(),
                });
            }
            _ => {}
        }
    }

    /// A port is another connection's by now, which only the dispatcher knows that is opening it: the flow that had
    /// it may have ended long before that one came up anew. False: that dispatcher is this one, or not there.
    fn pass_to_connector(&mut self, splice_address: Ipv4Addr, inner: &[u8]) -> bool {
        let peers = &self.shared.peers;
        let connector = (self.cluster.config.splice_addresses())
            .find(|&(_, address)| address == splice_address)
            .and_then(|(dispatcher, _)| v4(dispatcher.address).ok())
            .filter(|&connector| peers.has_living(connector));
        let Some(connector) = connector else {
            return false;
        };
        self.pass(connector, inner);
        self.count("passed-answers");
        true
    }

    /// Sends a client's packet on to its server, in pieces that fit.
    pub(super) fn forward_to_server(
        &mut self,
        record: &Record,
        arrived: &Arrived<'_>,
        payload_max: u16,
    ) {
        if arrived.checksum == TcpChecksum::Wrong {
            return self.count("bad-checksum");
        }
        self.note_end(&arrived.key, arrived.header.flags);
        self.splice_cut(record, whole(arrived), payload_max);
    }

    /// Sends the server what is a client's segment, in pieces of at most `mss` bytes of payload.
    pub(super) fn splice_cut(&mut self, record: &Record, segment: Segment, mss: u16) {
        for piece in cut(segment, mss) {
            self.splice(record, piece.header, piece.payload);
        }
    }

    /// Sends the server what is a client's segment.
    pub(super) fn splice(&mut self, record: &Record, mut header: Header, payload: Vec<u8>) {
        // Of what another owner has said.
        let begins = record.isns.server + 1;
        if ServerSeq::new(header.ack).before(begins) {
            header.ack = begins.raw();
            header.options.sack = SackBlocks::default();
        }
        let server = self.backend_address(record.slot);
        if let (Some(splice), Some(server)) = (record.splice, server) {
            self.send_to_server(splice.segment(*server.ip(), header, payload));
        } else {
            self.count("no-backend");
        }
    }

    /// Has a server say what it has had of the client.
    pub(super) fn ask_server(&mut self, record: &Record) {
        let question = keep_alive(record.next, record.heard, record.window);
        self.splice(record, question, Vec::new());
    }

    /// Whoever rewrites a server's answers can know where they end.
    pub(super) fn splice_care(&self, choice: &Choice, extent: &Extent) -> Care {
        let is_heard = choice.transfer.has_agent() || self.hears_servers();
        let follow = is_heard && self.cluster.care(choice.pool).follow;
        Care {
            follow,
            head: follow && extent.is_head,
            ..Care::default()
        }
    }

    /// Of several dispatchers one hears all that a server without an agent says where sprays go by flow:
    /// else none does.
    pub(super) fn hears_servers(&self) -> bool {
        !self.shared.peers.are_there() || self.cluster.config.is_sprayed_by_flow()
    }

    /// Of a SYN to a server on whose host an agent is that one is told what to make of the
    /// answers (docs/protocol/splice.md §8).
    fn send_opening(&mut self, key: &FlowKey, connect: &Connect, care: Care, segment: Segment) {
        let is_syn = segment.header.flags.has(Flags::SYN);
        let Some(meta) = connect.word(care).filter(|_| is_syn) else {
            return self.send_to_server(segment);
        };
        let to = SocketAddrV4::new(*connect.server().ip(), GENEVE_PORT);
        let inner = Segment::of_client(key, segment.header).to_packet();
        let Some(binding) = Binding::of_flow((*to.ip()).into(), key.client, key.vip) else {
            return;
        };
        let option = meta.seal(&self.cluster.keys, &binding);
        (self.to_backends).push(to, |out| geneve::write(&option, &inner, out));
    }

    fn send_to_server(&mut self, segment: Segment) {
        if let SocketAddr::V4(to) = segment.destination {
            let to = SocketAddrV4::new(*to.ip(), 0);
            self.to_servers.push(to, |out| segment.write(out));
        }
    }

    /// The intake asks how far its bytes got: the data path has heard the server say.
    pub(super) fn on_acknowledged(
        &mut self,
        key: &FlowKey,
        received: ClientSeq,
        sender: Option<Sender>,
    ) {
        // What the server says may come by another dispatcher now: this one would not hear that it has what
        // waits here, and does not tell the client so.
        if !self.hears_servers() && self.intake.is_reading(key) {
            return;
        }
        let now = clock::monotonic();
        if self.intake.on_probe_answer(now, key, received, sender) {
            self.go_on(now, key);
        }
    }
}

/// Our address, the server's, and what it says.
fn parse(inner: &[u8]) -> Option<(SocketAddrV4, SocketAddrV4, Header)> {
    let packet = ipv4::Packet::parse(inner).ok()?;
    let (header, _) = tcp::Header::parse(packet.payload()).ok()?;
    let own = SocketAddrV4::new(packet.destination(), header.destination_port);
    let server = SocketAddrV4::new(packet.source(), header.source_port);
    Some((own, server, header))
}
