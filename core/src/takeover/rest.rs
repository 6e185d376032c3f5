//! The rest of an answer, from another server: what to ask for, and whether the answer to
//! that is provably of the same object (RFC 9110 §13.1.5, §14). If not, no byte of it may
//! reach the client.

use std::ops::Range;

use super::AnswerHead;
use crate::head::{self, Inspection};

/// What is left of an answer of which the client has had the first bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rest {
    /// Of the head: it has to come as it was sent before.
    pub of_head: Vec<u8>,
    /// Of the object.
    pub bytes: Range<u64>,
    /// The object's size.
    pub total: u64,
    validator: String,
    coding: Option<String>,
    /// The server would have closed the connection behind it.
    pub closes: bool,
}

/// Why what another server says is not the rest.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotSame {
    /// Not HTTP/1, no length, or no end within what was read.
    #[error("its answer has no head that can be read")]
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
}

impl Rest {
    /// Of the answer that begins with `head`, of which the client has had `sent` bytes,
    /// head included. None: the head cannot be gone on with, or nothing is left.
    pub fn of(head: &[u8], sent: u64) -> Option<Self> {
        let answer = AnswerHead::parse(head)?;
        let (object, total) = answer.object()?;
        let in_body = sent.saturating_sub(answer.len as u64);
        if in_body >= answer.length {
            return None;
        }
        let of_head = head[..answer.len].get(sent as usize..).unwrap_or(&[]);
        Some(Self {
            of_head: of_head.to_vec(),
            bytes: object.start + in_body..object.end,
            total,
            validator: answer.validator()?.to_owned(),
            coding: answer.coding.map(str::to_owned),
            closes: answer.closes,
        })
    }

    /// Bytes that are left, of the head too.
    pub fn length(&self) -> u64 {
        self.of_head.len() as u64 + (self.bytes.end - self.bytes.start)
    }

    /// The request for the rest: the client's own, but for what it says of ranges,
    /// preconditions and its connection. None: it cannot be asked again.
    pub fn request(&self, request: &[u8]) -> Option<Vec<u8>> {
        let Inspection::Http(head) = head::inspect(request, request.len() + 1) else {
            return None;
        };
        // What lies behind it is a body, or another request: this one may not be the answer's.
        if head.method != "GET" || !head.has_plain_fields() || head.len != request.len() {
            return None;
        }
        let mut out = b"GET ".to_vec();
        out.extend_from_slice(head.target);
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
        let ours = format!(
            "Range: bytes={first}-{last}\r\nIf-Range: {}\r\nConnection: close\r\n\r\n",
            self.validator
        );
        out.extend_from_slice(ours.as_bytes());
        Some(out)
    }

    /// Whether the head that answers [`Self::request`] is that of the very rest; where its
    /// body begins.
    ///
    /// # Errors
    /// Why not.
    pub fn judge(&self, head: &[u8]) -> Result<usize, NotSame> {
        let answer = AnswerHead::parse(head).ok_or(NotSame::Unreadable)?;
        if answer.status != 206 {
            return Err(NotSame::Status(answer.status));
        }
        if !answer.is_of(&self.validator) {
            let there = answer.etag.or(answer.modified);
            return Err(NotSame::Validator {
                wanted: self.validator.clone(),
                there: there.unwrap_or("without a validator").to_owned(),
            });
        }
        if answer.coding != self.coding.as_deref() {
            return Err(NotSame::Coding);
        }
        match answer.object() {
            Some((bytes, total)) if bytes == self.bytes && total == self.total => Ok(answer.len),
            _ => Err(NotSame::Part),
        }
    }
}

/// Not the object's, or said anew.
const OF_THE_CONNECTION: [&str; 12] = [
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
];
