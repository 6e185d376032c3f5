//! The soft state of an answer [MIGRATE01 §4.1], and the messages that carry it. Each is
//! sealed with a key of the cluster, for one flow: any node may send it on.
//!
//! ```text
//!  UPDATE   agent of the owner -> dispatcher    this answer is in progress: keep this for a while
//!  TAKE     dispatcher -> wedge                 go on with it from there
//!  REFUSAL  agent of the wedge -> dispatcher    it could not be proved to be the same
//!  ASK      dispatcher -> agent                 could you go on with it?
//!  REPLY    agent -> dispatcher                 yes; or no, for that reason
//!  AHEAD    dispatcher -> dispatcher            this was asked ahead of its end
//!  PART     of any that is longer than a frame
//! ```

use crate::flow::{FlowKey, addr_bytes};
use crate::head::{self, Inspection};
use crate::seq::ServerSeq;
use crate::siphash::siphash24;
use crate::takeover::AnswerHead;
use crate::takeover::parts::Part;
use crate::wire::meta::Keys;

/// Bytes in front of the body: seal, length, what, key.
pub const HEAD_LEN: usize = 14;
const SEAL_LEN: usize = 8;

/// What a support group knows of an answer in progress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SoftState {
    /// Of the owner's setup.
    pub epoch: u32,
    /// Which of the answers since that setup, from 1, modulo 2^16.
    pub answer: u16,
    /// The byte behind the first so many of it, head included,
    pub offset: u64,
    /// has this number. Said anew with each UPDATE, since numbers come round.
    pub at: ServerSeq,
    /// The owner's timestamp clock (RFC 7323) when this was said, in milliseconds; 0
    /// without.
    pub clock: u32,
    /// The head of the request.
    pub request: Vec<u8>,
    /// The head of the answer as it was sent.
    pub head: Vec<u8>,
}

impl SoftState {
    /// How many bytes of the answer lie before that number. None: it lies before the answer.
    pub fn before(&self, number: ServerSeq) -> Option<u64> {
        (self.offset).checked_add_signed(self.at.distance_to(number).into())
    }

    /// Bytes of the answer, its head included, as that says.
    pub fn whole(&self) -> Option<u64> {
        let head = AnswerHead::parse(&self.head)?;
        head.length.checked_add(head.len as u64)
    }

    /// Behind its last byte, its head and body as long as the head says. `None`: that is not
    /// known, or further away than half of what numbers can tell apart (RFC 9293 §3.4).
    pub fn end(&self) -> Option<ServerSeq> {
        const NEAR: u64 = 1 << 30;
        let left = self.whole()?.checked_sub(self.offset)?;
        (left <= NEAR).then(|| self.at + left as u32)
    }

    /// Is its request the last of its connection?
    pub fn is_last(&self) -> bool {
        let inspected = head::inspect(&self.request, self.request.len() + 1);
        matches!(inspected, Inspection::Http(head) if head.is_last())
    }
}

/// What a wedge is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Take {
    /// The answer, under the wedge's own epoch; `answer` is 1.
    pub state: SoftState,
    /// So many bytes of it, head included, the client has had.
    pub had: u64,
    /// Where the server there listens.
    pub server_port: u16,
}

/// What is said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// An answer is in progress.
    Update(SoftState),
    /// Go on with it.
    Take(Take),
    /// The rest could not be proved to be the same, for that reason; the client is reset.
    Refusal {
        /// Of the wedge's setup.
        epoch: u32,
        /// Its server is not there just now: it has not been asked.
        is_away: bool,
        /// For people.
        why: String,
    },
    /// Could it go on with this? Nothing else comes of that; the epoch is the owner's.
    Ask {
        /// The dispatcher's number for it.
        question: u32,
        /// What a wedge would be told.
        take: Take,
    },
    /// What is said to an ASK.
    Reply {
        /// Its number.
        question: u32,
        /// Why it could not, for people; none: it could.
        why_not: Option<String>,
    },
    /// This was asked ahead of the answer's end.
    Ahead {
        /// Of the owner's setup, or of the wedge's.
        epoch: u32,
        /// How many requests the owner was given of it.
        requests: u16,
        /// They, and what the client has begun to say behind them.
        bytes: Vec<u8>,
    },
    /// A piece of a message that is longer than a frame.
    Part(Part),
}

impl Message {
    /// The message's bytes, about that flow.
    pub fn seal(&self, keys: &Keys, flow: &FlowKey) -> Vec<u8> {
        let (key_id, key) = keys.signing();
        let mut out = vec![0; HEAD_LEN];
        out[12] = self.what();
        out[13] = key_id;
        match self {
            Self::Update(state) => write_state(state, &mut out),
            Self::Take(take) => write_take(take, &mut out),
            Self::Refusal {
                epoch,
                is_away,
                why,
            } => {
                out.extend(epoch.to_be_bytes());
                out.push(u8::from(*is_away));
                out.extend(why.as_bytes());
            }
            Self::Ask { question, take } => {
                out.extend(question.to_be_bytes());
                write_take(take, &mut out);
            }
            Self::Reply { question, why_not } => {
                out.extend(question.to_be_bytes());
                out.push(why_not.is_some().into());
                out.extend(why_not.as_deref().unwrap_or_default().as_bytes());
            }
            Self::Ahead {
                epoch,
                requests,
                bytes,
            } => {
                out.extend(epoch.to_be_bytes());
                out.extend(requests.to_be_bytes());
                out.extend(bytes);
            }
            Self::Part(part) => {
                out.extend(part.number.to_be_bytes());
                out.extend(part.at.to_be_bytes());
                out.extend(part.whole.to_be_bytes());
                out.extend(&part.bytes);
            }
        }
        let length = (out.len() - HEAD_LEN) as u32;
        out[8..12].copy_from_slice(&length.to_be_bytes());
        let seal = seal(key, &out, flow);
        out[..SEAL_LEN].copy_from_slice(&seal);
        out
    }

    /// Reads a message that begins `bytes`. None: cut short, unknown, or not sealed with a
    /// key of the cluster for this flow.
    pub fn open(bytes: &[u8], keys: &Keys, flow: &FlowKey) -> Option<Self> {
        let bytes = bytes.get(..length(bytes)?)?;
        let expected = seal(keys.accepted(bytes[13])?, bytes, flow);
        let difference = (expected.iter().zip(bytes)).fold(0, |d, (a, b)| d | (a ^ b));
        if difference != 0 {
            return None;
        }
        let mut body = Reader(&bytes[HEAD_LEN..]);
        match bytes[12] {
            1 => Some(Self::Update(body.state()?)),
            2 => Some(Self::Take(body.whole_take()?)),
            3 => Some(Self::Refusal {
                epoch: body.word()?,
                is_away: body.take(1)? != [0],
                why: String::from_utf8_lossy(body.0).into_owned(),
            }),
            4 => Some(Self::Ask {
                question: body.word()?,
                take: body.whole_take()?,
            }),
            5 => Some(Self::Reply {
                question: body.word()?,
                why_not: (body.take(1)? != [0])
                    .then(|| String::from_utf8_lossy(body.0).into_owned()),
            }),
            6 => Some(Self::Ahead {
                epoch: body.word()?,
                requests: body.half()?,
                bytes: body.rest(),
            }),
            7 => Some(Self::Part(Part {
                number: body.word()?,
                at: body.word()?,
                whole: body.word()?,
                bytes: body.rest(),
            })),
            _ => None,
        }
    }

    fn what(&self) -> u8 {
        match self {
            Self::Update(_) => 1,
            Self::Take(_) => 2,
            Self::Refusal { .. } => 3,
            Self::Ask { .. } => 4,
            Self::Reply { .. } => 5,
            Self::Ahead { .. } => 6,
            Self::Part(_) => 7,
        }
    }
}

/// How long the message is that begins so. None: that is not known yet.
pub fn length(begun: &[u8]) -> Option<usize> {
    let length = begun.get(8..12)?.try_into().expect("four bytes");
    (begun.len() >= HEAD_LEN).then(|| HEAD_LEN + u32::from_be_bytes(length) as usize)
}

fn write_take(take: &Take, out: &mut Vec<u8>) {
    out.extend(take.had.to_be_bytes());
    out.extend(take.server_port.to_be_bytes());
    write_state(&take.state, out);
}

fn write_state(state: &SoftState, out: &mut Vec<u8>) {
    out.extend(state.epoch.to_be_bytes());
    out.extend(state.offset.to_be_bytes());
    out.extend(state.at.raw().to_be_bytes());
    out.extend(state.clock.to_be_bytes());
    out.extend(state.answer.to_be_bytes());
    out.extend((state.request.len() as u16).to_be_bytes());
    out.extend(&state.request);
    out.extend(&state.head);
}

/// Over all that lies behind it, and the flow.
fn seal(key: &[u8; 16], message: &[u8], flow: &FlowKey) -> [u8; SEAL_LEN] {
    let mut covered = message[SEAL_LEN..].to_vec();
    for end in [flow.client, flow.vip] {
        covered.extend(addr_bytes(end.ip()));
        covered.extend(end.port().to_be_bytes());
    }
    siphash24(key, &covered).to_le_bytes()
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn rest(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.0).to_vec()
    }

    fn half(&mut self) -> Option<u16> {
        let bytes = self.take(2)?;
        Some(u16::from_be_bytes([bytes[0], bytes[1]]))
    }

    fn word(&mut self) -> Option<u32> {
        let bytes = self.take(4)?;
        Some(u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    fn long(&mut self) -> Option<u64> {
        Some(u64::from(self.word()?) << 32 | u64::from(self.word()?))
    }

    fn whole_take(&mut self) -> Option<Take> {
        Some(Take {
            had: self.long()?,
            server_port: self.half()?,
            state: self.state()?,
        })
    }

    fn state(&mut self) -> Option<SoftState> {
        let (epoch, offset) = (self.word()?, self.long()?);
        let (at, clock) = (self.word()?, self.word()?);
        let (answer, request) = (self.half()?, self.half()?);
        Some(SoftState {
            epoch,
            answer,
            offset,
            at: ServerSeq::new(at),
            clock,
            request: self.take(request.into())?.to_vec(),
            head: self.rest(),
        })
    }
}
