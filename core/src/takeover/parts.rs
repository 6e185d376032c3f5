//! Messages that are longer than a frame: cut into parts, each a message of its own, and put together
//! again (docs/protocol/takeover.md 2.3).

use std::collections::HashMap;

use super::state::{HEAD_LEN, Message};
use crate::flow::FlowKey;
use crate::wire::meta::Keys;

/// A message's bytes, so that a frame of 1500 has room for its headers.
const FRAME: usize = 1364;
/// Bytes of the whole in a part.
const PIECE: usize = FRAME - HEAD_LEN - 12;
/// The longest message; what is longer is not said.
pub const LONGEST: usize = (1 << 20) + (128 << 10);
/// Bytes of messages of which parts are missing: more than can be on its way.
const INCOMPLETE: usize = 4 << 20;

/// A piece of a message that is longer than a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Of the message.
    pub number: u32,
    /// Where the piece lies, of so many bytes.
    pub at: u32,
    /// All of them.
    pub whole: u32,
    /// The piece.
    pub bytes: Vec<u8>,
}

/// What is to be sent of a sealed message, each in a frame of its own. Empty: it is too long.
pub fn cut(message: Vec<u8>, keys: &Keys, flow: &FlowKey) -> Vec<Vec<u8>> {
    if message.len() <= FRAME {
        return vec![message];
    }
    if message.len() > LONGEST {
        return Vec::new();
    }
    // Its seal: no two that are on their way have the same.
    let number = u32::from_le_bytes([message[0], message[1], message[2], message[3]]);
    let pieces = message.chunks(PIECE).enumerate().map(|(index, piece)| {
        let part = Part {
            number,
            at: (index * PIECE) as u32,
            whole: message.len() as u32,
            bytes: piece.to_vec(),
        };
        Message::Part(part).seal(keys, flow)
    });
    pieces.collect()
}

/// Messages of which parts have come.
#[derive(Debug, Default)]
pub struct Assembly {
    begun: HashMap<(FlowKey, u32), Vec<u8>>,
    bytes: usize,
}

impl Assembly {
    /// A part has come. The message, sealed, if it is the last; what does not follow upon those before
    /// is said again.
    pub fn add(&mut self, flow: &FlowKey, part: &Part) -> Option<Vec<u8>> {
        let key = (*flow, part.number);
        let (at, whole) = (part.at as usize, part.whole as usize);
        let mut message = self.begun.remove(&key).unwrap_or_default();
        self.bytes -= message.len();
        if at == 0 {
            message.clear();
        }
        if at != message.len() || at + part.bytes.len() > whole || whole > LONGEST {
            return None;
        }
        message.extend_from_slice(&part.bytes);
        if message.len() == whole {
            return Some(message);
        }
        if self.bytes + message.len() > INCOMPLETE {
            self.begun.clear();
            self.bytes = 0;
        }
        self.bytes += message.len();
        self.begun.insert(key, message);
        None
    }

    /// A message's meaning, of what came in a frame; and its bytes. None: there is more to come.
    ///
    /// # Errors
    /// It is not sealed with a key of the cluster for this flow, or unknown.
    pub fn open(
        &mut self,
        frame: &[u8],
        keys: &Keys,
        flow: &FlowKey,
    ) -> Result<Option<(Message, Vec<u8>)>, Unsealed> {
        let message = match Message::open(frame, keys, flow).ok_or(Unsealed)? {
            Message::Part(part) => match self.add(flow, &part) {
                Some(message) => message,
                None => return Ok(None),
            },
            message => return Ok(Some((message, frame.to_vec()))),
        };
        let opened = Message::open(&message, keys, flow).ok_or(Unsealed)?;
        Ok(Some((opened, message)))
    }
}

/// Nobody of the cluster has said it, of this flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a message that is not sealed with a key of the cluster for this flow")]
pub struct Unsealed;
