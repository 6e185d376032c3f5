//! One connection: who it is, what the client last said, and what we do with
//! it. Plain data, so that a half-read request can be copied to another
//! dispatcher.

use super::events::{Arrived, Isns, Kept, Released};
use super::goodbye::Goodbye;
use super::reading::Reading;
use super::retained::Retained;
use crate::flow::{FlowKey, Handshake};
use crate::seq::{ClientSeq, ServerSeq};
use crate::wire::meta::Sender;
use crate::wire::segment::Segment;
use crate::wire::tcp::{Flags, Header, Options, SackBlocks, Timestamps, later_clock};
use std::time::Duration;

/// Two owners that send at once have clocks of their own (RFC 7323, here in milliseconds).
/// The later one's must not be behind: its client would take what it sends for old (PAWS).
/// No word travels longer inside a cluster.
const CLOCK_AHEAD: u32 = 20;
/// A client that has been told of a gap has filled it by then, on most networks.
const GAP_INTERVAL: Duration = Duration::from_millis(10);

/// A connection that is being read or answered here.
#[derive(Clone, Debug)]
pub(super) struct Flow {
    pub(super) connection: Connection,
    /// Its age: older flows have smaller ones.
    pub(super) serial: u64,
    pub(super) phase: Phase,
}

/// Who it is, and what the client last said.
#[derive(Clone, Debug)]
pub(super) struct Connection {
    pub(super) key: FlowKey,
    pub(super) isns: Isns,
    pub(super) cookie: ServerSeq,
    /// It has an owner, and starts at a boundary in the middle of the connection.
    pub(super) later: bool,
    /// Its backend has all that lies before: we may acknowledge what follows.
    pub(super) settled: bool,
    /// How far that backend has come in what it sends.
    pub(super) sender: Option<Sender>,
    /// What it lacked when it was asked last, if that lies before the start.
    gap: Option<Gap>,
    /// What the client's window leaves behind the place where it has moved.
    window_behind: Option<u16>,
    /// Where the next owner's clock begins. Not ours: a client that had heard of it would
    /// take nothing more of the owner before.
    first_clock: Option<u32>,
    /// What lies before that place is on its way to the client.
    pub(super) half_piped: bool,
    /// The clock of our latest segment to the client.
    said: Option<u32>,
    pub(super) handshake: Handshake,
    peer: Peer,
}

/// What a flow is about.
#[derive(Clone, Debug)]
pub(super) enum Phase {
    /// Its head is incomplete, or nobody has decided yet.
    Reading(Reading),
    /// Assigned, but we have acknowledged bytes that no backend has confirmed.
    Retained(Retained),
    /// We answer it ourselves.
    Goodbye(Goodbye),
}

/// What the client's packets say beside their bytes.
#[derive(Clone, Copy, Debug)]
struct Peer {
    /// The window field of its latest packet.
    window: u16,
    /// What it has acknowledged.
    heard: ServerSeq,
    /// Its latest clock, and the latest of ours that it has seen.
    timestamps: Option<Timestamps>,
    /// The clock that we echo: of its latest packet in order (RFC 7323 §4.3).
    recent: u32,
    /// How far we have told it that it may send.
    edge: ClientSeq,
}

/// Bytes that a backend lacks, though what follows them has come here.
#[derive(Clone, Copy, Debug)]
struct Gap {
    from: ClientSeq,
    /// When the client is told of it next.
    tell_at: Duration,
    /// How long after that again.
    interval: Duration,
}

impl Gap {
    fn is_told(&mut self, now: Duration) -> bool {
        let is_due = self.tell_at <= now;
        if is_due {
            self.tell_at = now + self.interval;
            self.interval *= 2;
        }
        is_due
    }
}

impl Connection {
    /// The connection of which this is the first packet kept.
    pub(super) fn new(arrived: &Arrived<'_>, first_window: u32) -> Self {
        let options = arrived.header.options;
        let timestamps = options.timestamps.or(options.aged);
        Self {
            key: arrived.key,
            isns: arrived.isns,
            cookie: arrived.cookie,
            later: arrived.later,
            settled: !arrived.later,
            sender: None,
            gap: None,
            window_behind: None,
            first_clock: None,
            half_piped: false,
            said: None,
            handshake: arrived.handshake,
            peer: Peer {
                window: arrived.header.window,
                heard: arrived.ack(),
                timestamps: timestamps.filter(|_| arrived.handshake.timestamps),
                recent: timestamps.map_or(0, |timestamps| timestamps.value),
                edge: arrived.isns.client + 1 + first_window,
            },
        }
    }

    /// Is the client to be told that its backend lacks what follows `received`? Not the first
    /// time: what has only been overtaken on its way there comes meanwhile. Nor each time: a
    /// client that is told again and again waits for ever for its own timer.
    pub(super) fn tells_gap(&mut self, now: Duration, received: ClientSeq) -> bool {
        match &mut self.gap {
            Some(gap) if gap.from == received => gap.is_told(now),
            _ => {
                self.gap = Some(Gap {
                    from: received,
                    tell_at: now,
                    interval: GAP_INTERVAL,
                });
                false
            }
        }
    }

    /// How far the client may send.
    pub(super) fn edge(&self) -> ClientSeq {
        self.peer.edge
    }

    /// The client's first byte.
    pub(super) fn start(&self) -> ClientSeq {
        self.isns.client + 1
    }

    /// Our first byte. While an owner sends, what the client expects: it is the only
    /// number that a client takes in any case.
    pub(super) fn our_start(&self) -> ServerSeq {
        if self.later {
            self.peer.heard
        } else {
            self.isns.server + 1
        }
    }

    /// The number of what we say to the client now. While an owner sends, its own: a
    /// client takes none that lies before what it has heard.
    pub(super) fn our_next(&self) -> ServerSeq {
        match self.sender {
            Some(sender) => sender.next.later_of(self.our_start()),
            None => self.our_start(),
        }
    }

    /// The owner has given it up: it begins anew.
    pub(super) fn rebase(&mut self, released: &Released) {
        let Released { end, clock, .. } = *released;
        if self.peer.heard.at_or_before(released.heard) {
            self.peer.heard = released.heard;
            self.peer.window = released.window;
        }
        let shift = self.handshake.client_shift();
        let ahead = self.peer.heard.distance_to(end).max(0).cast_unsigned();
        let window = (u32::from(self.peer.window) << shift).saturating_sub(ahead) >> shift;
        self.window_behind = Some(window as u16);
        self.half_piped = released.half_piped;
        // The client has all, and has said so by way of another dispatcher. The next owner's
        // socket takes no segment that acknowledges less (RFC 5961 §5.2).
        if !released.half_piped && ahead > 0 {
            (self.peer.heard, self.peer.window) = (end, window as u16);
        }
        self.isns.server = end + u32::MAX;
        self.later = false;
        self.settled = true;
        self.sender = None;
        let ahead = if released.half_piped { CLOCK_AHEAD } else { 0 };
        self.first_clock = (clock != 0).then_some(clock.wrapping_add(ahead));
    }

    /// The owner's clock is that at least, if this sets it up.
    pub(super) fn begins_at(&mut self, clock: u32) {
        self.first_clock = Some(clock);
    }

    /// So much later the next owner is still to be set up.
    pub(super) fn clock_goes_on(&mut self, by: Duration) {
        if let Some(clock) = self.first_clock.as_mut().filter(|_| self.half_piped) {
            *clock = clock.wrapping_add(by.as_millis() as u32);
        }
    }

    /// The same connection from a boundary on that lies `bytes` behind its start.
    pub(super) fn rest(&self, bytes: usize) -> Self {
        let mut rest = self.clone();
        rest.isns = Isns {
            client: self.isns.client + bytes as u32,
            server: self.cookie,
        };
        rest.window_behind = None;
        rest.first_clock = None;
        rest.half_piped = false;
        rest.later = true;
        rest.settled = false;
        rest.sender = None;
        rest.gap = None;
        rest
    }

    /// What has come from `offset` on, as another dispatcher needs it.
    pub(super) fn kept(&self, offset: usize, bytes: &[u8]) -> Kept {
        Kept {
            key: self.key,
            isns: self.isns,
            cookie: self.cookie,
            later: self.later,
            handshake: self.handshake,
            offset: offset as u32,
            heard: self.peer.heard,
            window: self.peer.window,
            timestamps: self.peer.timestamps,
            bytes: bytes[offset..].to_vec(),
        }
    }

    /// How many SACK blocks a segment to the client may have.
    pub(super) fn sack_room(&self) -> usize {
        match (self.handshake.sack, self.peer.timestamps) {
            (false, _) => 0,
            (true, None) => SackBlocks::MOST,
            (true, Some(_)) => SackBlocks::MOST_BESIDE_TIMESTAMPS,
        }
    }

    /// Does the client acknowledge something else than it did last, or have another window?
    pub(super) fn is_news(&self, header: &Header) -> bool {
        let said = (self.peer.heard.raw(), self.peer.window);
        (header.ack, header.window) != said || !header.options.sack.as_slice().is_empty()
    }

    /// Remembers what a packet says; `expected` is the next byte in order.
    pub(super) fn note(&mut self, arrived: &Arrived<'_>, expected: ClientSeq) {
        self.peer.window = arrived.header.window;
        self.peer.heard = self.peer.heard.later_of(arrived.ack());
        let agreed = self.handshake.timestamps;
        let Some(new) = (arrived.header.options.timestamps).filter(|_| agreed) else {
            return;
        };
        // What came before had none: not the client's, perhaps.
        let Some(known) = &mut self.peer.timestamps else {
            self.peer.timestamps = Some(new);
            self.peer.recent = new.value;
            return;
        };
        if arrived.seq().at_or_before(expected) {
            self.peer.recent = later_clock(self.peer.recent, new.value);
        }
        known.value = later_clock(known.value, new.value);
        known.echo = later_clock(known.echo, new.echo);
    }

    /// The latest of our clocks that the client knows of, or has been told.
    pub(super) fn known_clock(&self) -> Option<u32> {
        let seen = self.peer.timestamps?.echo;
        Some(later_clock(seen, self.said.unwrap_or(seen)))
    }

    /// A segment to the client. Our clock stands still at what the client has
    /// already seen of it, until the server's takes over.
    pub(super) fn segment_to_client(
        &mut self,
        seq: ServerSeq,
        ack: ClientSeq,
        flags: Flags,
        payload: Vec<u8>,
        edge: ClientSeq,
    ) -> Segment {
        let owners = self.sender.map(|sender| sender.clock);
        let timestamps = self.peer.timestamps.map(|seen| Timestamps {
            value: later_clock(seen.echo, owners.filter(|&c| c != 0).unwrap_or(seen.echo)),
            echo: self.peer.recent,
        });
        self.said = timestamps.map(|clocks| clocks.value);
        Segment {
            source: self.key.vip,
            destination: self.key.client,
            header: Header {
                seq: seq.raw(),
                ack: ack.raw(),
                flags: flags | Flags::ACK,
                window: self.announce(ack, edge),
                options: Options {
                    timestamps,
                    ..Options::default()
                },
                ..Header::default()
            },
            payload,
        }
    }

    /// A segment to the backend, as the client's latest packet would have it. Only the one
    /// that starts the request says where the backend's answer begins: the others tell the
    /// owner before how far its own has come.
    pub(super) fn segment_to_backend(
        &self,
        seq: ClientSeq,
        flags: Flags,
        payload: Vec<u8>,
    ) -> Segment {
        let mut timestamps = self.peer.timestamps;
        let (ack, window) = match seq == self.start() {
            true => (self.our_start(), self.window_behind),
            false => (self.peer.heard, None),
        };
        if let (Some(timestamps), Some(clock)) = (&mut timestamps, self.first_clock)
            && seq == self.start()
        {
            timestamps.echo = later_clock(timestamps.echo, clock);
        }
        Segment {
            source: self.key.client,
            destination: self.key.vip,
            header: Header {
                seq: seq.raw(),
                ack: ack.raw(),
                flags: flags | Flags::ACK,
                window: window.unwrap_or(self.peer.window),
                options: Options {
                    timestamps,
                    ..Options::default()
                },
                ..Header::default()
            },
            payload,
        }
    }

    /// The window field that lets the client send up to `edge`, and never less
    /// far than it was told before (RFC 9293 §3.8.6: do not shrink). Shifts
    /// round up for the same reason.
    fn announce(&mut self, ack: ClientSeq, edge: ClientSeq) -> u16 {
        let shift = self
            .handshake
            .window_scales
            .map_or(0, |scales| scales.ours.min(14));
        let wanted = ack
            .distance_to(self.peer.edge.later_of(edge))
            .max(0)
            .cast_unsigned();
        let field = u16::try_from(wanted.div_ceil(1 << shift)).unwrap_or(u16::MAX);
        self.peer.edge = self.peer.edge.later_of(ack + (u32::from(field) << shift));
        field
    }
}

impl Flow {
    /// Bytes held for it.
    pub(super) fn bytes(&self) -> usize {
        match &self.phase {
            Phase::Reading(reading) => reading.assembly.bytes(),
            Phase::Retained(retained) => retained.bytes.len() + retained.rest_bytes(),
            Phase::Goodbye(_) => 0,
        }
    }

    /// When it wants to be looked at.
    pub(super) fn deadline(&self) -> Duration {
        match &self.phase {
            Phase::Reading(reading) => reading.deadline(),
            Phase::Retained(retained) => retained.deadline(),
            Phase::Goodbye(goodbye) => goodbye.deadline(),
        }
    }
}
