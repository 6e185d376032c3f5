//! The rest of an answer, from another server: what to ask for, and whether the answer to
//! that is provably of the same object (RFC 9110 §13.1.5, §14), or said by its application to
//! be of the same stream. If not, no byte of it may reach the client.

use std::ops::Range;

use super::stream::{RESUME, RESUME_FROM};
use super::{AnswerHead, Resume};
use crate::head::{self, Inspection};

/// What is left of an answer of which the client has had the first bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rest {
    /// Of the head: it has to come as it was sent before.
    pub of_head: Vec<u8>,
    /// Of the object, or of the stream's body.
    pub bytes: Range<u64>,
    of: Of,
    coding: Option<String>,
    /// Where it ends.
    pub end: End,
}

/// What is gone on with.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Of {
    /// So many bytes, which have that validator.
    Object { total: u64, validator: String },
    /// What the application has said of it.
    Stream { said: String, target: String },
}

/// Where an answer ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Behind its last byte, and another one may follow.
    Length,
    /// The same, and the server closes the connection.
    Closes,
    /// Where its server closes.
    UntilClose,
    /// Nowhere: a server that closes has died.
    Never,
}

impl End {
    /// Is its request the last of its connection?
    pub fn is_last(self) -> bool {
        self != Self::Length
    }

    /// Is it a stream's?
    pub fn is_open(self) -> bool {
        matches!(self, Self::UntilClose | Self::Never)
    }

    fn of(answer: &AnswerHead<'_>) -> Self {
        match (answer.resume, answer.closes) {
            (Some(resume), _) if resume.is_endless => Self::Never,
            (Some(_), _) => Self::UntilClose,
            (None, true) => Self::Closes,
            (None, false) => Self::Length,
        }
    }
}

/// Why what another server says is not the rest.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotSame {
    /// Not HTTP/1, no length and no stream's, or no end within what was read.
    #[error("its answer has no head that can be read, or an end that nobody knows")]
    Unreadable,
    /// The object has changed (200), or is not there.
    #[error("it answers {0} to the request for the rest")]
    Status(u16),
    /// Another version of the object, or one that only a weak validator names.
    #[error("its object is {there}, the client's {wanted}")]
    Validator {
        /// Of the answer that began.
        wanted: String,
        /// Of the one that was to go on.
        there: String,
    },
    /// Other bytes than those that were asked for, or of an object of another size.
    #[error("it answers with other bytes than those that were asked for")]
    Part,
    /// The same object, coded in another way.
    #[error("its object is coded in another way")]
    Coding,
    /// Another stream, or one that the application cannot go on with.
    #[error("its stream is {there}, the client's {wanted}")]
    Stream {
        /// Of the answer that began.
        wanted: String,
        /// Of the one that was to go on.
        there: String,
    },
    /// The application does not say that it goes on from there: it may have begun anew.
    #[error("it does not say that it goes on from byte {0}")]
    From(u64),
}

impl Rest {
    /// Of the answer that begins with `head`, of which the client has had `sent` bytes,
    /// head included. None: the head cannot be gone on with, or nothing is left.
    pub fn of(head: &[u8], sent: u64) -> Option<Self> {
        let answer = AnswerHead::parse(head)?;
        let (object, of) = match answer.resume {
            Some(resume) => (stream(&answer)?, Of::stream(&resume)),
            None => {
                let (object, total) = answer.object()?;
                let validator = answer.validator()?.to_owned();
                (object, Of::Object { total, validator })
            }
        };
        let in_body = sent.saturating_sub(answer.len as u64);
        if in_body >= answer.length {
            return None;
        }
        let of_head = head[..answer.len].get(sent as usize..).unwrap_or(&[]);
        Some(Self {
            of_head: of_head.to_vec(),
            bytes: object.start + in_body..object.end,
            of,
            coding: answer.coding.map(str::to_owned),
            end: End::of(&answer),
        })
    }

    /// Bytes that are left, of the head too.
    pub fn length(&self) -> u64 {
        self.of_head.len() as u64 + (self.bytes.end - self.bytes.start)
    }

    /// The request for the rest: the client's own, but for what it says of ranges,
    /// preconditions and its connection; of a stream, for what its application has named. None: it
    /// cannot be asked again.
    pub fn request(&self, request: &[u8]) -> Option<Vec<u8>> {
        let Inspection::Http(head) = head::inspect(request, request.len() + 1) else {
            return None;
        };
        // What lies behind it is a body, or another request: this one may not be the answer's.
        if head.method != "GET" || !head.has_plain_fields() || head.len != request.len() {
            return None;
        }
        let mut out = b"GET ".to_vec();
        out.extend_from_slice(match &self.of {
            Of::Object { .. } => head.target,
            Of::Stream { target, .. } => target.as_bytes(),
        });
        out.extend_from_slice(b" HTTP/1.1\r\n");
        for (name, value) in head.headers() {
            if OF_THE_CONNECTION
                .iter()
                .any(|n| name.eq_ignore_ascii_case(n))
            {
                continue;
            }
            out.extend_from_slice(name.as_bytes());
            out.extend_from_slice(b": ");
            out.extend_from_slice(value);
            out.extend_from_slice(b"\r\n");
        }
        let (first, last) = (self.bytes.start, self.bytes.end - 1);
        let ours = match &self.of {
            Of::Object { validator, .. } => {
                format!("Range: bytes={first}-{last}\r\nIf-Range: {validator}\r\n")
            }
            Of::Stream { .. } => format!("Trapeze-Resume-From: {first}\r\n"),
        };
        out.extend_from_slice(ours.as_bytes());
        out.extend_from_slice(b"Connection: close\r\n\r\n");
        Some(out)
    }

    /// Whether the head that answers [`Self::request`] is that of the very rest; where its
    /// body begins.
    ///
    /// # Errors
    /// Why not.
    pub fn judge(&self, head: &[u8]) -> Result<usize, NotSame> {
        let answer = AnswerHead::parse(head).ok_or(NotSame::Unreadable)?;
        match &self.of {
            Of::Object { total, validator } => self.judge_object(&answer, *total, validator)?,
            Of::Stream { said, .. } => self.judge_stream(&answer, said)?,
        }
        Ok(answer.len)
    }

    fn judge_object(
        &self,
        answer: &AnswerHead<'_>,
        total: u64,
        validator: &str,
    ) -> Result<(), NotSame> {
        if answer.status != 206 {
            return Err(NotSame::Status(answer.status));
        }
        if !answer.is_of(validator) {
            let there = answer.etag.or(answer.modified);
            return Err(NotSame::Validator {
                wanted: validator.to_owned(),
                there: there.unwrap_or("without a validator").to_owned(),
            });
        }
        if answer.coding != self.coding.as_deref() {
            return Err(NotSame::Coding);
        }
        match answer.object() {
            Some((bytes, there)) if bytes == self.bytes && there == total => Ok(()),
            _ => Err(NotSame::Part),
        }
    }

    fn judge_stream(&self, answer: &AnswerHead<'_>, said: &str) -> Result<(), NotSame> {
        if answer.status != 200 {
            return Err(NotSame::Status(answer.status));
        }
        let there = answer.resume.map(|resume| resume.said);
        if there != Some(said) {
            return Err(NotSame::Stream {
                wanted: said.to_owned(),
                there: there.unwrap_or("none until close").to_owned(),
            });
        }
        if answer.coding != self.coding.as_deref() {
            return Err(NotSame::Coding);
        }
        if stream(answer).is_none() {
            return Err(NotSame::Part);
        }
        match answer.resumed_from {
            Some(from) if from == self.bytes.start => Ok(()),
            _ => Err(NotSame::From(self.bytes.start)),
        }
    }
}

impl Of {
    fn stream(resume: &Resume<'_>) -> Self {
        Self::Stream {
            said: resume.said.to_owned(),
            target: resume.target.to_owned(),
        }
    }
}

/// The bytes of a stream's body: it is no part of anything.
fn stream(answer: &AnswerHead<'_>) -> Option<Range<u64>> {
    let is_whole = answer.status == 200 && answer.part.is_none();
    is_whole.then_some(0..answer.length)
}

/// Not the object's, or said anew.
const OF_THE_CONNECTION: [&str; 14] = [
    "range",
    "if-range",
    "if-match",
    "if-none-match",
    "if-modified-since",
    "if-unmodified-since",
    "connection",
    "keep-alive",
    "expect",
    "upgrade",
    "te",
    "http2-settings",
    RESUME,
    RESUME_FROM,
];
