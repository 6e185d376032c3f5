//! What goes into the intake and what comes out of it.

use super::answer::Answer;
use crate::flow::{FlowKey, Handshake};
use crate::seq::{ClientSeq, ServerSeq};
use crate::wire::checksum::{self, TcpChecksum};
use crate::wire::meta::{Kind, Meta};
use crate::wire::segment::Segment;
use crate::wire::{Malformed, ipv4, tcp};
use std::net::SocketAddr;

/// The sequence numbers with which both sides began: with the 4-tuple they
/// name one connection, even when a client uses a port again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Isns {
    /// Of the client's SYN.
    pub client: ClientSeq,
    /// Of our SYN-ACK: the cookie.
    pub server: ServerSeq,
}

/// Where an owner has given a connection up, and what the client has said by then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Released {
    /// The number at which its answers end.
    pub end: ServerSeq,
    /// Its latest timestamp (RFC 7323): the client will have seen none later when it has
    /// heard all. 0: there are none.
    pub clock: u32,
    /// What the client has acknowledged, as far as is known.
    pub heard: ServerSeq,
    /// The window field that came with it.
    pub window: u16,
    /// The client has not acknowledged all: the owner repeats it.
    pub half_piped: bool,
}

/// What an intake has acknowledged of a head that it is still reading: the client will not
/// send it again, so another dispatcher needs it to read on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// The connection.
    pub key: FlowKey,
    /// As in [`Arrived`].
    pub isns: Isns,
    /// As in [`Arrived`].
    pub cookie: ServerSeq,
    /// As in [`Arrived`].
    pub later: bool,
    /// What its handshake agreed.
    pub handshake: Handshake,
    /// Where the bytes begin, counted from the head's first one.
    pub offset: u32,
    /// What the client has acknowledged.
    pub heard: ServerSeq,
    /// Its latest window field.
    pub window: u16,
    /// Its latest clock, and ours as it has seen it.
    pub timestamps: Option<tcp::Timestamps>,
    /// The bytes.
    pub bytes: Vec<u8>,
}

impl Kept {
    /// The number of the first byte of its head.
    pub fn start(&self) -> ClientSeq {
        self.isns.client + 1
    }

    /// What of a whole head's bytes lies from the boundary `at` on, as a later request's: an owner has been given
    /// what is before. None: nothing does.
    pub fn behind(&self, at: ClientSeq) -> Option<Self> {
        let given = usize::try_from(self.start().distance_to(at)).ok()?;
        let rest = self.bytes.get(given..).filter(|rest| !rest.is_empty())?;
        Some(Self {
            isns: Isns {
                client: at + u32::MAX,
                server: self.cookie,
            },
            later: true,
            bytes: rest.to_vec(),
            ..self.clone()
        })
    }
}

/// A packet of a client whose cookie the data path has proved.
#[derive(Clone, Copy, Debug)]
pub struct Arrived<'a> {
    /// The connection.
    pub key: FlowKey,
    /// Its beginnings.
    pub isns: Isns,
    /// The number of our SYN-ACK, the same for the connection's whole life: ISNs move
    /// with its owners.
    pub cookie: ServerSeq,
    /// It is about a request of a connection that has an owner. `isns` are the number
    /// before that request's first one, and the cookie.
    pub later: bool,
    /// What its handshake agreed.
    pub handshake: Handshake,
    /// The packet's TCP header.
    pub header: tcp::Header,
    /// The packet's payload.
    pub payload: &'a [u8],
    /// What the packet's checksum says.
    pub checksum: TcpChecksum,
}

impl<'a> Arrived<'a> {
    /// Takes apart an IPv4 packet that came with the option `meta`: a request's
    /// from the data path, or a refused one's. Its start is the first byte
    /// after the client's SYN. A refusal does not name our ISN; there the
    /// packet's acknowledgement does, as no server has spoken yet.
    pub fn parse(meta: &Meta, inner: &'a [u8]) -> Result<Self, Malformed> {
        let packet = ipv4::Packet::parse(inner)?;
        if packet.is_fragment() {
            return Err(Malformed::Fragment);
        }
        if packet.protocol() != ipv4::PROTOCOL_TCP {
            return Err(Malformed::NotTcp);
        }
        let (header, payload) = tcp::Header::parse(packet.payload())?;
        let (source, destination) = (packet.source().into(), packet.destination().into());
        let server_isn = match meta.kind {
            Kind::Request { server_isn }
            | Kind::Unheard { server_isn }
            | Kind::Next { server_isn } => server_isn,
            _ => ServerSeq::new(header.ack) + u32::MAX,
        };
        Ok(Self {
            key: FlowKey {
                client: SocketAddr::new(source, header.source_port),
                vip: SocketAddr::new(destination, header.destination_port),
            },
            isns: Isns {
                client: meta.start + u32::MAX,
                server: server_isn,
            },
            cookie: server_isn,
            later: matches!(meta.kind, Kind::Next { .. }),
            handshake: meta.handshake,
            header,
            payload,
            checksum: checksum::verify_tcp(source, destination, packet.payload()),
        })
    }

    /// Where the payload starts.
    pub(super) fn seq(&self) -> ClientSeq {
        ClientSeq::new(self.header.seq)
    }

    /// What the client acknowledges.
    pub(super) fn ack(&self) -> ServerSeq {
        ServerSeq::new(self.header.ack)
    }

    pub(super) fn is(&self, flag: tcp::Flags) -> bool {
        self.header.flags.has(flag)
    }

    /// The numbers that payload and FIN use up.
    pub(super) fn len(&self) -> u32 {
        self.payload.len() as u32 + u32::from(self.is(tcp::Flags::FIN))
    }
}

/// What an inspection of a head's bytes so far found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Looked<Decision> {
    /// The head goes on.
    More,
    /// It is complete, and this is what the caller makes of it.
    Done(Decision),
    /// As `Done`, and only so many bytes belong to it: what follows is to be looked at
    /// by itself, once this has been assigned ([`resume`](super::Intake::resume)).
    Cut(Decision, usize),
    /// It can only be answered.
    Bad(Answer),
}

/// What became of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome<Decision> {
    /// The packet alone holds the head: send it to a backend as it is. Nothing
    /// is held.
    Complete(Decision),
    /// The head is complete with the bytes held: call
    /// [`assigned`](super::Intake::assigned) or [`answer`](super::Intake::answer).
    Decide(Decision),
    /// The head goes on.
    Held,
    /// The connection is being answered by us.
    Answering,
    /// The client closed without a word, and was answered in kind.
    Closed,
    /// The head has been decided: the flow's record says where this belongs.
    Assigned,
    /// The packet changed nothing.
    Ignored(Ignored),
}

/// Why a packet changed nothing, or only ended something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ignored {
    /// Damaged.
    BadChecksum,
    /// Flags that do not belong after a handshake.
    BadFlags,
    /// It acknowledges what we have not sent.
    BadAck,
    /// Its bytes lie outside of what we take.
    OutsideWindow,
    /// No payload.
    Empty,
    /// No byte that we did not have.
    Duplicate,
    /// No room: everything held is younger, or waits for a backend.
    Full,
    /// Too many gaps between the bytes held.
    Scattered,
    /// The client reset the connection.
    Reset,
    /// A reset of whom nobody knows; it was answered.
    InexactReset,
}

/// What the caller is to do, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send a segment from the VIP to the client.
    ToClient(Segment),
    /// Send a client's segment to the flow's backend, encapsulated.
    ToBackend {
        /// The flow.
        key: FlowKey,
        /// The segment.
        segment: Segment,
        /// In pieces of at most so many bytes of payload, if it has more.
        mss: u16,
    },
    /// Ask the flow's backend how far it got.
    Probe {
        /// The flow.
        key: FlowKey,
        /// An empty segment of the flow, to be enclosed.
        segment: Segment,
    },
    /// The flow's backend is to hear what the client has acknowledged by now: it may have
    /// said so before that backend could hear it.
    Acknowledge {
        /// The flow.
        key: FlowKey,
        /// The client's next number.
        seq: ClientSeq,
    },
    /// What is held of a flow that has an owner is the owner's, whatever it is, and so
    /// is all that will come. The bytes follow.
    Stay {
        /// The flow.
        key: FlowKey,
    },
    /// A later request has been held for `head_timeout`, whole or not; said again each time that
    /// it has passed once more.
    TooSlow {
        /// The flow.
        key: FlowKey,
    },
    /// Before anything else is sent: others are to have these bytes, should this
    /// dispatcher die. Only after [`super::Intake::have_copied`].
    Keep(Kept),
    /// Write a record that brings the flow's packets here.
    Reading {
        /// The flow.
        key: FlowKey,
        /// Its beginnings.
        isns: Isns,
        /// What its handshake agreed.
        handshake: Handshake,
    },
    /// Delete the flow's record, if it is still that of these ISNs and was made for
    /// reading.
    Ended {
        /// The flow.
        key: FlowKey,
        /// Its beginnings.
        isns: Isns,
        /// Why.
        why: End,
    },
}

impl Action {
    /// The flow that it is about.
    pub(super) fn flow(&self) -> FlowKey {
        match self {
            Self::ToClient(segment) => FlowKey {
                client: segment.destination,
                vip: segment.source,
            },
            Self::ToBackend { key, .. }
            | Self::Probe { key, .. }
            | Self::Acknowledge { key, .. }
            | Self::Stay { key }
            | Self::TooSlow { key }
            | Self::Reading { key, .. }
            | Self::Ended { key, .. } => *key,
            Self::Keep(kept) => kept.key,
        }
    }
}

/// Why a flow ended here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum End {
    /// Answered, and both sides have closed.
    Closed,
    /// Answered, but the client did not close in time.
    Lingered,
    /// The client reset it.
    ClientReset,
    /// The daemon ends, and has acknowledged a part of its head.
    Abandoned,
    /// A new connection of the same 4-tuple.
    Replaced,
    /// The oldest had to go for a new one.
    Evicted,
    /// Its head did not come, or nobody decided.
    TimedOut,
    /// No backend confirmed the bytes that we had acknowledged.
    Unconfirmed,
}
