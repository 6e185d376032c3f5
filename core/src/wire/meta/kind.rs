//! What for a packet is encapsulated: the option's bytes *kind* and *reason*, and its word *value*, which mean
//! something else in each kind.

use std::net::{Ipv4Addr, SocketAddrV4};

use super::{MetaError, Raw, u16_at, u32_at};
use crate::membership::Presence;
use crate::policy::Feedback;
use crate::seq::{ClientSeq, ServerSeq};

/// *reason* of a PROBE that asks how many requests have been answered, and of the word that they
/// are all.
const PROBE_RECKON: u8 = 1;
const PROBE_RECKONED: u8 = 4;
/// *reason* of a PROBE that asks who has the flow.
const PROBE_WHOSE: u8 = 2;

/// Why an owner says that its server has closed (handoff.md 7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vacancy {
    /// It has, having answered all that it had had.
    Closed = 0,
    /// It has said nothing but interim answers to a request that the dispatcher keeps.
    Kept = 1,
    /// It has closed before, and what has come since begins no request.
    Anew = 2,
}

/// How far a server's socket has come in what it sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sender {
    /// The number of the next new byte.
    pub next: ServerSeq,
    /// Its timestamp clock (RFC 7323); 0 without.
    pub clock: u32,
    /// It has answered as many requests as the question said, no other has come, and the
    /// client has all up to `next`.
    pub is_idle: bool,
    /// Up to `next` it has said nothing to its first request but interim answers (1xx).
    pub has_not_begun: bool,
}

/// The kinds of encapsulated packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Dispatcher to backend: a packet of a flow.
    Forward,
    /// The same, where the client has not had all from the owner before.
    ForwardAfter {
        /// That owner.
        predecessor: Ipv4Addr,
    },
    /// A dispatcher's data path to the owner's daemon: payload to be read.
    Request {
        /// The sequence number of our SYN-ACK: the cookie.
        server_isn: ServerSeq,
    },
    /// Dispatcher to backend: how far did this flow get?
    Probe,
    /// The same of a flow that another dispatcher has kept: and how many requests have been
    /// answered, if that is all?
    Reckon,
    /// To a backend that is not known to have the flow: has it, under a later epoch?
    Whose,
    /// Backend to dispatcher: so far, and that is all. *requests* says how many.
    Reckoned {
        /// The next byte that the server's socket expects.
        received: ClientSeq,
    },
    /// Backend to dispatcher: so far.
    ProbeAnswer {
        /// The next byte that the server's socket expects.
        received: ClientSeq,
        /// Where that socket is itself, while it stands.
        sender: Option<Sender>,
    },
    /// Backend to dispatcher: not rebuilt, the packet is enclosed.
    Refused(Refusal),
    /// Dispatcher to backend: an ICMP error about a flow.
    Icmp,
    /// Dispatcher to backend: are you there?
    Echo,
    /// Backend to dispatcher: its data path is.
    EchoReply {
        /// How busy its host is, if its daemon has said so lately. Queues of more
        /// than 4095 are told as 4095.
        feedback: Option<Feedback>,
    },
    /// A dispatcher's data path to its daemon: a request that the client sends
    /// again, not having heard a word, and whose backend has fallen silent.
    Unheard {
        /// The sequence number of our SYN-ACK: the cookie.
        server_isn: ServerSeq,
    },
    /// A dispatcher's data path to its daemon: what starts at, or reaches beyond, the
    /// boundary of a flow that has an owner.
    Next {
        /// The sequence number of our SYN-ACK: the cookie.
        server_isn: ServerSeq,
    },
    /// A dispatcher's data path to the owner: this request goes to another one, by
    /// way of you (docs/protocol/handoff.md).
    Handoff {
        /// The next owner.
        next: Ipv4Addr,
    },
    /// Owner to dispatcher: not now; the packet is enclosed.
    Held(Held),
    /// Dispatcher to owner: give the flow up.
    Release {
        /// In which ways it may.
        leave: Leave,
        /// Up to where the client has been told that its bytes have come: *start*, if only
        /// what the owner has.
        reach: ClientSeq,
    },
    /// Dispatcher to owner: another one goes on with your answer (docs/protocol/takeover.md).
    Forsake,
    /// Owner to dispatcher: given up.
    Released {
        /// Where the last answer ends.
        end: ServerSeq,
        /// Has the client acknowledged that? Else the sender is an older owner now.
        drained: bool,
        /// The owner's timestamp clock; 0 without.
        clock: u32,
    },
    /// Owner's daemon to dispatcher: what held you up has changed.
    Done,
    /// Owner's daemon to dispatcher: it has answered *requests* of them, and all that came
    /// before *start*.
    Answered {
        /// Where the last answer ends.
        end: ServerSeq,
    },
    /// Owner to dispatcher: the server has closed.
    Vacated {
        /// Where its last answer ended.
        end: ServerSeq,
        /// What the dispatcher is told it for.
        vacancy: Vacancy,
    },
    /// Owner to the one before it: an acknowledgement for your range.
    Gc {
        /// Where the sender's range starts.
        end: ServerSeq,
        /// Up to where the client's bytes have come to the owners after you.
        reach: ClientSeq,
    },
    /// Older owner to the one after it: the client has had all of mine.
    Retired {
        /// As in the GC that it answers.
        end: ServerSeq,
        /// The same.
        reach: ClientSeq,
    },
    /// Spray to dispatcher: a client's packet, as it came (docs/protocol/spray.md).
    Sprayed {
        /// It was sent to another one before, that has died: it may be late.
        again: bool,
    },
    /// Spray to dispatcher or spray: are you there? And what the sender is.
    Beat(Presence),
    /// Dispatcher or spray to spray: its data path is, and what it is.
    BeatReply(Presence),
    /// Dispatcher to the flow's keeper: a client's packet, as it came.
    Passed {
        /// The sender is about to keep flows, and keeps none yet.
        by_joining: bool,
        /// As of [`Kind::Sprayed`].
        again: bool,
        /// How often it has been passed before.
        before: u32,
    },
    /// The same to the one that would keep the flow next: a connection's first packet, and in the option's other
    /// fields what is to be forwarded with it. *requests* is the number of the flow's pool.
    Entrusted {
        /// Where it goes.
        backend: Ipv4Addr,
    },
    /// Dispatcher's daemon to another's: a message about flows is enclosed.
    Records,
    /// A dispatcher's data path to its daemon: what a server without an agent says to the
    /// splice address, as it came (docs/protocol/splice.md).
    Splice,
    /// Dispatcher to backend: the SYN of a connection to the server there, of which the
    /// backend is to rewrite what the server says (docs/protocol/splice.md §8). There is no
    /// epoch, start or count of requests in it.
    Split {
        /// Our end of the connection.
        own: SocketAddrV4,
        /// As which the client knows the server's ISN.
        server_isn: ServerSeq,
        /// The client's latest echo; 0 without timestamps.
        echo: u32,
    },
    /// As [`Self::Probe`], of such a connection; without start and count of requests.
    SplitProbe {
        /// Our end of it.
        own: SocketAddrV4,
    },
    /// As [`Self::Release`], of such a connection, drained only; without handshake.
    SplitRelease {
        /// Our end of it.
        own: SocketAddrV4,
        /// As in [`Self::Release`], at most 2^24 - 1 bytes behind *start*.
        reach: ClientSeq,
    },
    /// Backend to dispatcher that asks it [`Self::Reckon`] or [`Self::Whose`]: the flow has moved since, to its owner
    /// of the option's epoch and start; or, if the epoch is that of the question, the flow is not there.
    Elsewhere {
        /// That owner, perhaps the sender itself; unspecified: the sender does not know.
        owner: Ipv4Addr,
        /// Where that one's first answer begins.
        end: ServerSeq,
    },
    /// Backend's daemon to dispatcher: a message about an answer that may outlive it is
    /// enclosed (docs/protocol/takeover.md).
    Support,
}

/// How an owner may give a flow up (docs/protocol/handoff.md 1.3, 1.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Leave {
    /// Once the client has acknowledged the end of its answer.
    Drained,
    /// Before that, too.
    HalfPipe,
    /// Before that, if its answer is none that may outlive it (docs/protocol/takeover.md 2.2b1).
    HalfPipeUnprotected,
}

impl Leave {
    fn reason(self) -> u8 {
        match self {
            Self::Drained => 0,
            Self::HalfPipe => 1,
            Self::HalfPipeUnprotected => 3,
        }
    }

    fn of_reason(reason: u8) -> Self {
        match reason {
            1 => Self::HalfPipe,
            3 => Self::HalfPipeUnprotected,
            _ => Self::Drained,
        }
    }
}

/// Why an owner does not give a flow up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Held {
    /// The answer is not finished, or nobody knows where it ends.
    Answering,
    /// It is, and the client has not acknowledged it.
    Unacknowledged {
        /// Where it ends.
        end: ServerSeq,
    },
    /// The server closes the connection behind it.
    Closing,
    /// No such connection here.
    Stranger,
}

/// Why a backend gave a connection back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// No server listens.
    NoListener,
    /// The server accepts too slowly.
    AcceptQueueFull,
    /// It is a later packet of a request whose first one has been given back: it goes where
    /// that goes.
    Behind,
    /// The flow has no place there for another connection: its older answers are on their
    /// way to the client.
    NoSeat,
}

/// In the reason of SPRAYED and PASSED.
pub const CAME_AGAIN: u8 = 2;

fn again_bit(again: bool) -> u8 {
    if again { CAME_AGAIN } else { 0 }
}

impl Kind {
    /// The bytes `kind` and `reason`, and the word `value`.
    pub(super) fn encode(self) -> (u8, u8, u32) {
        match self {
            Self::Forward => (1, 0, 0),
            Self::ForwardAfter { predecessor } => (1, 0, predecessor.to_bits()),
            Self::Request { server_isn } => (2, 0, server_isn.raw()),
            Self::Probe => (3, 0, 0),
            Self::Reckon => (3, PROBE_RECKON, 0),
            Self::Whose => (3, PROBE_WHOSE, 0),
            Self::Reckoned { received } => (4, PROBE_RECKONED, received.raw()),
            Self::ProbeAnswer { received, sender } => {
                let how = match sender {
                    None => 0,
                    Some(Sender { is_idle: true, .. }) => 2,
                    Some(sender) => 1 + 2 * u8::from(sender.has_not_begun),
                };
                (4, how, received.raw())
            }
            Self::Refused(Refusal::NoListener) => (5, 1, 0),
            Self::Refused(Refusal::AcceptQueueFull) => (5, 2, 0),
            Self::Refused(Refusal::Behind) => (5, 3, 0),
            Self::Refused(Refusal::NoSeat) => (5, 4, 0),
            Self::Icmp => (6, 0, 0),
            Self::Echo => (7, 0, 0),
            Self::EchoReply { feedback: None } => (8, 0, 0),
            Self::EchoReply {
                feedback: Some(feedback),
            } => (8, 1, pack(feedback)),
            Self::Unheard { server_isn } => (9, 0, server_isn.raw()),
            Self::Handoff { next } => (10, 0, next.to_bits()),
            Self::Held(Held::Answering) => (11, 1, 0),
            Self::Held(Held::Unacknowledged { end }) => (11, 2, end.raw()),
            Self::Held(Held::Closing) => (11, 3, 0),
            Self::Held(Held::Stranger) => (11, 4, 0),
            Self::Release { leave, reach } => (12, leave.reason(), reach.raw()),
            Self::Forsake => (12, 2, 0),
            Self::Released { end, drained, .. } => (13, if drained { 1 } else { 2 }, end.raw()),
            Self::Done => (14, 0, 0),
            Self::Vacated { end, vacancy } => (15, vacancy as u8, end.raw()),
            Self::Gc { end, .. } => (16, 0, end.raw()),
            Self::Retired { end, .. } => (17, 0, end.raw()),
            Self::Next { server_isn } => (18, 0, server_isn.raw()),
            Self::Sprayed { again } => (19, again_bit(again), 0),
            Self::Beat(presence) => (20, presence.role(), presence.word()),
            Self::BeatReply(presence) => (21, presence.role(), presence.word()),
            Self::Passed {
                by_joining,
                again,
                before,
            } => (22, u8::from(by_joining) | again_bit(again), before),
            Self::Records => (23, 0, 0),
            Self::Splice => (24, 0, 0),
            Self::Split { server_isn, .. } => (25, 0, server_isn.raw()),
            Self::SplitProbe { .. } => (26, 0, 0),
            Self::SplitRelease { .. } => (27, 0, 0),
            Self::Support => (28, 0, 0),
            Self::Answered { end } => (29, 0, end.raw()),
            Self::Entrusted { backend } => (30, 0, backend.to_bits()),
            Self::Elsewhere { owner, .. } => (31, 0, owner.to_bits()),
        }
    }

    pub(super) fn decode(raw: &Raw) -> Result<Self, MetaError> {
        let value = u32_at(raw, 20);
        Ok(match raw[1] {
            1 if value == 0 => Self::Forward,
            1 => Self::ForwardAfter {
                predecessor: Ipv4Addr::from_bits(value),
            },
            2 => Self::Request {
                server_isn: ServerSeq::new(value),
            },
            3 if raw[3] == PROBE_RECKON => Self::Reckon,
            3 if raw[3] == PROBE_WHOSE => Self::Whose,
            3 => Self::Probe,
            4 if raw[3] == PROBE_RECKONED => Self::Reckoned {
                received: ClientSeq::new(value),
            },
            4 => Self::ProbeAnswer {
                received: ClientSeq::new(value),
                sender: match raw[3] {
                    0 => None,
                    how @ 1..=3 => Some(Sender {
                        next: ServerSeq::new(u32_at(raw, 16)),
                        clock: u32_at(raw, 12),
                        is_idle: how == 2,
                        has_not_begun: how == 3,
                    }),
                    other => return Err(MetaError::Reason(other)),
                },
            },
            5 => Self::Refused(match raw[3] {
                1 => Refusal::NoListener,
                2 => Refusal::AcceptQueueFull,
                3 => Refusal::Behind,
                4 => Refusal::NoSeat,
                other => return Err(MetaError::Reason(other)),
            }),
            6 => Self::Icmp,
            7 => Self::Echo,
            8 => Self::EchoReply {
                feedback: (raw[3] == 1).then(|| unpack(value)),
            },
            9 => Self::Unheard {
                server_isn: ServerSeq::new(value),
            },
            10 => Self::Handoff {
                next: Ipv4Addr::from_bits(value),
            },
            11 => Self::Held(match raw[3] {
                1 => Held::Answering,
                2 => Held::Unacknowledged {
                    end: ServerSeq::new(value),
                },
                3 => Held::Closing,
                4 => Held::Stranger,
                other => return Err(MetaError::Reason(other)),
            }),
            12 if raw[3] == 2 => Self::Forsake,
            12 => Self::Release {
                leave: Leave::of_reason(raw[3]),
                reach: ClientSeq::new(value),
            },
            13 => Self::Released {
                end: ServerSeq::new(value),
                drained: match raw[3] {
                    1 => true,
                    2 => false,
                    other => return Err(MetaError::Reason(other)),
                },
                clock: u32_at(raw, 12),
            },
            14 => Self::Done,
            15 => Self::Vacated {
                end: ServerSeq::new(value),
                vacancy: match raw[3] {
                    1 => Vacancy::Kept,
                    2 => Vacancy::Anew,
                    _ => Vacancy::Closed,
                },
            },
            16 => Self::Gc {
                end: ServerSeq::new(value),
                reach: ClientSeq::new(u32_at(raw, 12)),
            },
            17 => Self::Retired {
                end: ServerSeq::new(value),
                reach: ClientSeq::new(u32_at(raw, 12)),
            },
            18 => Self::Next {
                server_isn: ServerSeq::new(value),
            },
            19 => Self::Sprayed {
                again: raw[3] & CAME_AGAIN != 0,
            },
            20 => Self::Beat(presence(raw[3], value)?),
            21 => Self::BeatReply(presence(raw[3], value)?),
            22 => Self::Passed {
                by_joining: raw[3] & 1 != 0,
                again: raw[3] & CAME_AGAIN != 0,
                before: value,
            },
            23 => Self::Records,
            24 => Self::Splice,
            25 => Self::Split {
                own: end(raw),
                server_isn: ServerSeq::new(value),
                echo: u32_at(raw, 4),
            },
            26 => Self::SplitProbe { own: end(raw) },
            27 => Self::SplitRelease {
                own: end(raw),
                reach: ClientSeq::new(value)
                    + (u32::from(raw[3]) << 16 | u32::from(u16_at(raw, 14))),
            },
            28 => Self::Support,
            29 => Self::Answered {
                end: ServerSeq::new(value),
            },
            30 => Self::Entrusted {
                backend: Ipv4Addr::from_bits(value),
            },
            31 => Self::Elsewhere {
                owner: Ipv4Addr::from_bits(value),
                end: ServerSeq::new(u32_at(raw, 12)),
            },
            other => return Err(MetaError::Kind(other)),
        })
    }
}

/// Our end of a connection to a server: where others have start and requests.
pub(super) fn write_end(own: SocketAddrV4, raw: &mut Raw) {
    raw[8..12].copy_from_slice(&own.ip().octets());
    raw[18..20].copy_from_slice(&own.port().to_be_bytes());
}

fn end(raw: &Raw) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::from_bits(u32_at(raw, 8)), u16_at(raw, 18))
}

fn presence(role: u8, word: u32) -> Result<Presence, MetaError> {
    Presence::of(role, word).ok_or(MetaError::Reason(role))
}

/// 10 bits, 10 bits, 12 bits.
fn pack(feedback: Feedback) -> u32 {
    u32::from(feedback.cpu_permille.min(1000)) << 22
        | u32::from(feedback.memory_permille.min(1000)) << 12
        | u32::from(feedback.accept_queue.min(4095))
}

fn unpack(value: u32) -> Feedback {
    Feedback {
        cpu_permille: (value >> 22) as u16,
        memory_permille: (value >> 12 & 0x3ff) as u16,
        accept_queue: (value & 0xfff) as u16,
    }
}
