//! A flow's packets on their way to its backend, where the data path does not send them.

use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};
use std::time::Duration;

use trapeze_core::flow::{FlowKey, Handshake, addr_from_bytes};
use trapeze_core::intake::Arrived;
use trapeze_core::seq::{ClientSeq, ServerSeq};
use trapeze_core::splice::Splice;
use trapeze_core::wire::checksum::{TcpChecksum, complete_tcp};
use trapeze_core::wire::geneve;
use trapeze_core::wire::meta::{self, Binding, Care, Kind, Meta};
use trapeze_core::wire::segment::Segment;
use trapeze_core::wire::tcp::{Flags, Header};
use trapeze_datapath::abi::{FlowState, GENEVE_PORT};
use trapeze_datapath::clock;
use trapeze_datapath::inlet;

use super::State;
use super::unheard_owners::would_start_too_early;
use crate::records::Record;

/// A server has said by then that it has what it was given, or has been given it again.
const LATE: Duration = Duration::from_millis(100);
/// IPv4 and TCP headers without options.
const HEADERS: usize = 40;

impl State {
    /// Sends a client's packet on as it came, or in pieces that fit.
    pub(super) fn forward(&mut self, record: &Record, arrived: &Arrived<'_>, inner: &[u8]) {
        if record.splice.is_some() {
            let payload_max = self.payload_max(&arrived.handshake);
            return self.forward_to_server(record, arrived, payload_max);
        }
        if arrived.checksum == TcpChecksum::Wrong {
            return self.count("bad-checksum");
        }
        if would_start_too_early(record, arrived) {
            return self.count("late-packets");
        }
        let Some((to, option)) = self.way_of(&arrived.key, record) else {
            return self.count("no-backend");
        };
        self.note_end(&arrived.key, arrived.header.flags);
        // It stays behind what goes by way of the data path.
        let is_first = self.to_data_path.is_empty() || arrived.payload.is_empty();
        if inner.len() <= self.inner_max && is_first {
            let option = option_at(record, &option, &arrived.header);
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
        self.forward_in_pieces(record, &option, to, arrived);
    }

    /// The same of a part of a packet, which nobody has sent in one piece.
    pub(super) fn forward_part(&mut self, record: &Record, part: &Arrived<'_>) {
        if record.splice.is_some() {
            let payload_max = self.payload_max(&part.handshake);
            return self.forward_to_server(record, part, payload_max);
        }
        if would_start_too_early(record, part) {
            return self.count("late-packets");
        }
        if let Some((to, option)) = self.way_of(&part.key, record) {
            self.forward_in_pieces(record, &option, to, part);
        }
    }

    /// Sends a client's packet on in pieces that fit.
    fn forward_in_pieces(
        &mut self,
        record: &Record,
        option: &meta::Raw,
        to: SocketAddrV4,
        arrived: &Arrived<'_>,
    ) {
        let mss = self.payload_max(&arrived.handshake);
        self.send_cut(record, option, to, whole(arrived), mss);
    }

    /// A client's packet in pieces that fit.
    pub(super) fn pieces(&self, arrived: &Arrived<'_>) -> Vec<Segment> {
        cut(whole(arrived), self.payload_max(&arrived.handshake))
    }

    /// Sends what is too long, or may be, in pieces of `mss`: by way of the data path, if it takes that whole. There it
    /// has the way and the option that the record says, as here.
    fn send_cut(
        &mut self,
        record: &Record,
        option: &meta::Raw,
        to: SocketAddrV4,
        segment: Segment,
        mss: u16,
    ) {
        let length = segment.payload.len();
        // What follows stays behind it.
        let is_long = length > mss.into() || (length > 0 && !self.to_data_path.is_empty());
        if self.held.is_some() && is_long && length <= inlet::LONGEST {
            self.count("sent-long");
            return self.to_data_path.push(&segment, mss);
        }
        for segment in cut(segment, mss) {
            let option = option_at(record, option, &segment.header);
            let packet = segment.to_packet();
            self.to_backends
                .push(to, |out| geneve::write(&option, &packet, out));
        }
    }

    /// Sends a client's segment to the flow's backend, in pieces of at most `mss` bytes of payload.
    pub(super) fn send_to_backend(&mut self, key: &FlowKey, segment: Segment, mss: u16) {
        let Ok(Some(record)) = self.shared.records.get(key) else {
            return;
        };
        if record.splice.is_some() {
            self.note_end(key, segment.header.flags);
            return self.splice_cut(&record, as_heard(segment, &record), mss);
        }
        let Some((to, option)) = self.way_of(key, &record) else {
            return self.count("no-backend");
        };
        self.note_end(key, segment.header.flags);
        self.send_cut(&record, &option, to, as_heard(segment, &record), mss);
    }

    /// How far has the flow's backend come with what is held for it? If its answers come by here, that is known; if it is
    /// silent, another one is to have that.
    pub(super) fn ask_about_held(&mut self, key: &FlowKey, segment: Segment) {
        let Ok(Some(record)) = self.shared.records.get(key) else {
            return;
        };
        if record.splice.is_some()
            && let Ok(Some((received, sender))) = self.shared.records.acknowledged(key)
        {
            // It has said so by way of another dispatcher, perhaps, and says it again if it is asked.
            let is_late = || {
                let given_for = clock::monotonic().saturating_sub(record.asked);
                self.shared.peers.are_there() && given_for > LATE
            };
            if received.before(record.next) && (record.is_unsure() || is_late()) {
                self.ask_server(&record);
            }
            return self.on_acknowledged(key, received, sender);
        }
        if !self.is_placed_again(clock::monotonic(), key, &record) {
            self.probe(key, &record, segment);
        }
    }

    /// Asks the flow's backend how far it has come, behind what a segment without payload says.
    pub(super) fn probe(&mut self, key: &FlowKey, record: &Record, segment: Segment) {
        if let Some(splice) = record.splice {
            return self.probe_split(key, record, &splice, segment);
        }
        let probe = |meta| Meta {
            kind: Kind::Probe,
            ..meta
        };
        let Some((to, option)) = self.sealed(key, record, probe) else {
            return self.count("no-backend");
        };
        let option = option_at(record, &option, &segment.header);
        let packet = as_heard(segment, record).to_packet();
        self.probes
            .push(to, |out| geneve::write(&option, &packet, out));
    }

    /// Asks the server's host, past which the server's acknowledgements do not come here.
    fn probe_split(&mut self, key: &FlowKey, record: &Record, splice: &Splice, segment: Segment) {
        let (own, server_port) = (splice.own, splice.server_port);
        let probe = |meta| Meta {
            kind: Kind::SplitProbe { own },
            server_port,
            ..meta
        };
        let Some((to, option)) = self.sealed(key, record, probe) else {
            return self.count("no-backend");
        };
        let packet = segment.to_packet();
        (self.probes).push(to, |out| geneve::write(&option, &packet, out));
    }

    /// Tells the owner what the client has acknowledged.
    pub(super) fn acknowledge(&mut self, key: &FlowKey, seq: ClientSeq) {
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
        self.send_to_backend(key, segment, u16::MAX);
    }

    /// Where a flow's packets go, and with which option: as the data path does it.
    pub(super) fn way_of(
        &self,
        key: &FlowKey,
        record: &Record,
    ) -> Option<(SocketAddrV4, meta::Raw)> {
        let to = self.backend_address(record.slot)?;
        if !record.is_moving() {
            return Some((to, record.option));
        }
        let by = self.backend_address(record.previous)?;
        let handoff = |meta| Meta {
            kind: Kind::Handoff { next: *to.ip() },
            requests: record.requests_before as u16,
            ..meta
        };
        Some((by, self.sealed_for(*by.ip(), key, record, handoff)?))
    }

    /// The owner's address, and its option as `change` makes it.
    pub(super) fn sealed(
        &self,
        key: &FlowKey,
        record: &Record,
        change: impl FnOnce(Meta) -> Meta,
    ) -> Option<(SocketAddrV4, meta::Raw)> {
        let to = self.backend_address(record.slot)?;
        Some((to, self.sealed_for(*to.ip(), key, record, change)?))
    }

    /// The same for any backend.
    pub(super) fn sealed_for(
        &self,
        backend: Ipv4Addr,
        key: &FlowKey,
        record: &Record,
        change: impl FnOnce(Meta) -> Meta,
    ) -> Option<meta::Raw> {
        let meta = Meta::decode(&record.option).ok()?;
        let binding = Binding::of_flow(backend.into(), key.client, key.vip)?;
        Some(change(meta).seal(&self.cluster.keys, &binding))
    }

    /// The option of the flow's packets to an owner that the record does not name, of that epoch and start.
    pub(super) fn option_for(
        &self,
        key: &FlowKey,
        record: &Record,
        owner: Ipv4Addr,
        ((epoch, start), server_port): ((u32, ClientSeq), u16),
    ) -> Option<meta::Raw> {
        self.sealed_for(owner, key, record, |meta| Meta {
            kind: Kind::Forward,
            epoch,
            start,
            server_port,
            requests: 0,
            care: Care {
                head: false,
                ..self.cluster.care(record.pool)
            },
            ..meta
        })
    }

    /// The most payload of one segment to a backend.
    pub(super) fn payload_max(&self, handshake: &Handshake) -> u16 {
        self.payload_max_of(handshake.timestamps)
    }

    pub(super) fn payload_max_of(&self, timestamps: bool) -> u16 {
        let options = if timestamps { 12 } else { 0 };
        (self.inner_max - HEADERS - options).min(u16::MAX.into()) as u16
    }

    /// A FIN that does not pass through the data path ages its record all the same.
    pub(super) fn note_end(&mut self, key: &FlowKey, flags: Flags) {
        if flags.has(Flags::FIN) && self.shared.records.client_closed(key).is_err() {
            self.count("record-failures");
        }
    }

    /// A client's reset that the data path has sent on has overtaken what the owner was given, which it would not end. It is
    /// said once more, behind that. False: there is none.
    pub(super) fn repeat_resets(&mut self) -> bool {
        let mut is_any = false;
        for key in std::mem::take(&mut self.given) {
            let record = self.shared.records.get(&key).ok().flatten();
            let Some(record) = record.filter(|record| record.state == FlowState::Reset) else {
                continue;
            };
            let reset = Header {
                seq: record.next.raw(),
                ack: record.heard.raw(),
                flags: Flags::RST | Flags::ACK,
                ..Header::default()
            };
            self.count("resets-repeated");
            self.send_to_backend(&key, Segment::of_client(&key, reset), u16::MAX);
            is_any = true;
        }
        is_any
    }

    /// The slot of the backend at an address.
    pub(super) fn slot_of(&self, address: IpAddr) -> Option<u32> {
        let backends = &self.cluster.config.backends;
        if let Some(index) = backends.iter().position(|b| b.address == address) {
            return Some(self.cluster.slots[index]);
        }
        let mut removed = self.cluster.removed.iter();
        removed
            .find(|(_, of)| *of == address)
            .map(|(slot, _)| *slot)
    }

    pub(super) fn backend_address(&self, slot: u32) -> Option<SocketAddrV4> {
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
}

/// A client's packet as it came.
pub(super) fn whole(arrived: &Arrived<'_>) -> Segment {
    Segment {
        source: arrived.key.client,
        destination: arrived.key.vip,
        header: arrived.header,
        payload: arrived.payload.to_vec(),
    }
}

/// A segment in pieces of at most `mss` bytes of payload.
pub(super) fn cut(segment: Segment, mss: u16) -> Vec<Segment> {
    let mss = usize::from(mss.max(1));
    if segment.payload.len() <= mss {
        return vec![segment];
    }
    let last = (segment.payload.len() - 1) / mss;
    let piece = |(number, payload): (usize, &[u8])| {
        let mut header = segment.header;
        header.seq = header.seq.wrapping_add((number * mss) as u32);
        if number < last {
            header.flags = header.flags.without(Flags::FIN).without(Flags::PSH);
        }
        Segment {
            header,
            payload: payload.to_vec(),
            ..segment
        }
    };
    (segment.payload.chunks(mss).enumerate())
        .map(piece)
        .collect()
}

/// As the data path does it: a FORWARD says whether a request begins with its payload. To a packet
/// without any it means nothing.
fn option_at(record: &Record, option: &meta::Raw, header: &Header) -> meta::Raw {
    match header.seq == record.began.raw() {
        true => meta::begins(*option),
        false => *option,
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
