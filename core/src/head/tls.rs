//! The records that carry a ClientHello (RFC 8446 §5.1, RFC 5246 §6.2.1): where
//! the message ends, over however many records and segments.
//!
//! ```text
//! record:     type(1)=22  version(2)=3,x  length(2)  fragment
//! fragments:  type(1)=1   length(3)       body          = one handshake message
//! ```

use std::borrow::Cow;

use super::{BadHead, ClientHello, Inspection};

/// ContentType handshake; no HTTP method begins so.
pub const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;
const RECORD_HEADER: usize = 5;
const MESSAGE_HEADER: usize = 4;
/// 2^14 (RFC 8446 §5.1).
const MAX_FRAGMENT: usize = 1 << 14;

/// How far growing records have been looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Scan {
    /// Everything before is a part of the message or a record's header.
    at: usize,
    /// Bytes of the record at `at` that are still to come.
    record_left: usize,
    /// The message's own header, so far as it has come.
    header: [u8; MESSAGE_HEADER],
    /// Bytes of the message so far, with its header.
    message: usize,
}

impl Scan {
    /// Bytes of the whole message, with its header, once that is known.
    fn message_len(&self) -> Option<usize> {
        let [_, a, b, c] = self.header;
        let known = self.message >= MESSAGE_HEADER;
        known.then(|| MESSAGE_HEADER + u32::from_be_bytes([0, a, b, c]) as usize)
    }
}

/// `bytes` are not empty and cut at `limit`.
pub(super) fn inspect<'a>(bytes: &'a [u8], scan: &mut Scan, limit: usize) -> Inspection<'a> {
    match find_end(bytes, scan, limit) {
        Ok(Some(len)) => match ClientHello::parse(&message(bytes, len), scan.at) {
            Some(hello) => Inspection::Tls(hello),
            None => bad("lengths in the ClientHello do not fit"),
        },
        Ok(None) if bytes.len() < limit => Inspection::Incomplete,
        Ok(None) => Inspection::Bad(BadHead::TlsTooLarge),
        Err(bad) => Inspection::Bad(bad),
    }
}

fn bad<'a>(why: &'static str) -> Inspection<'a> {
    Inspection::Bad(BadHead::TlsMalformed(why))
}

/// Goes through the records that have come; the message's length once it is whole.
fn find_end(bytes: &[u8], scan: &mut Scan, limit: usize) -> Result<Option<usize>, BadHead> {
    loop {
        if scan.record_left == 0 {
            let Some(length) = record_length(&bytes[scan.at..])? else {
                return Ok(None);
            };
            scan.at += RECORD_HEADER;
            scan.record_left = length;
        }
        while scan.message < MESSAGE_HEADER && scan.record_left > 0 {
            let Some(&byte) = bytes.get(scan.at) else {
                return Ok(None);
            };
            scan.header[scan.message] = byte;
            (scan.message, scan.at, scan.record_left) =
                (scan.message + 1, scan.at + 1, scan.record_left - 1);
            if scan.header[0] != CLIENT_HELLO {
                return Err(BadHead::TlsMalformed("the first message is no ClientHello"));
            }
        }
        let Some(len) = scan.message_len() else {
            continue;
        };
        if len > limit {
            return Err(BadHead::TlsTooLarge);
        }
        let here = (len - scan.message)
            .min(scan.record_left)
            .min(bytes.len() - scan.at);
        (scan.message, scan.at, scan.record_left) =
            (scan.message + here, scan.at + here, scan.record_left - here);
        if scan.message == len {
            return Ok(Some(len));
        }
        if scan.record_left > 0 {
            return Ok(None);
        }
    }
}

/// The length in the record header that `bytes` begin with; none if it is not
/// whole yet. What is there of it is judged at once.
fn record_length(bytes: &[u8]) -> Result<Option<usize>, BadHead> {
    // The minor version is 1 or 3 and means nothing (RFC 8446 §5.1).
    match *bytes {
        [kind, ..] if kind != HANDSHAKE => {
            Err(BadHead::TlsMalformed("a record is not of the handshake"))
        }
        [_, major, ..] if major != 3 => Err(BadHead::TlsMalformed("a record is not of TLS")),
        [_, _, _, high, low, ..] => match usize::from(u16::from_be_bytes([high, low])) {
            0 => Err(BadHead::TlsMalformed("a record is empty")),
            length if length > MAX_FRAGMENT => {
                Err(BadHead::TlsMalformed("a record is longer than 2^14 bytes"))
            }
            length => Ok(Some(length)),
        },
        _ => Ok(None),
    }
}

/// The whole message of `len` bytes without its header: borrowed if one record
/// has it all, as usual.
fn message(bytes: &[u8], len: usize) -> Cow<'_, [u8]> {
    let mut whole = Vec::new();
    let mut rest = bytes;
    while let [_, _, _, high, low, after @ ..] = rest {
        let length = usize::from(u16::from_be_bytes([*high, *low])).min(after.len());
        let (fragment, next) = after.split_at(length);
        if whole.is_empty() && length >= len {
            return Cow::Borrowed(&fragment[MESSAGE_HEADER..len]);
        }
        whole.extend_from_slice(&fragment[..length.min(len - whole.len())]);
        if whole.len() == len {
            break;
        }
        rest = next;
    }
    whole.drain(..MESSAGE_HEADER.min(whole.len()));
    Cow::Owned(whole)
}
