//! What an acknowledgement says of bytes that came out of order, so that the client
//! sends only the rest again (RFC 2018 §4), and of bytes that came again (RFC 2883
//! §4), so that it learns that it need not have.
//!
//! Places are offsets from the stream's first byte.

use super::assembly::Assembly;
use std::collections::VecDeque;
use std::ops::Range;

/// Places remembered. Each block is said again in two acknowledgements that follow,
/// if others do not push it out (RFC 2018 §4), which the pieces around the last four
/// places give.
const REMEMBERED: usize = 4;

/// Where out of order the latest bytes have come.
#[derive(Clone, Debug, Default)]
pub(super) struct Sack {
    /// The last byte of each packet, the newest first.
    latest: VecDeque<usize>,
    /// Came once more, and has not been told.
    again: Option<Range<usize>>,
}

impl Sack {
    /// Bytes have come; the assembly knows whether there is a gap before them.
    pub(super) fn came(&mut self, bytes: Range<usize>) {
        let Some(last) = bytes.last() else { return };
        self.latest.retain(|&place| place != last);
        self.latest.truncate(REMEMBERED - 1);
        self.latest.push_front(last);
    }

    /// These had come before.
    pub(super) fn came_again(&mut self, bytes: Range<usize>) {
        if !bytes.is_empty() {
            self.again = Some(bytes.clone());
            self.came(bytes);
        }
    }

    /// The blocks of the acknowledgement that is sent now, at most `room`: first what
    /// came again, then the piece of the latest packet, then others, the newest first.
    pub(super) fn take_blocks(&mut self, assembly: &Assembly, room: usize) -> Vec<Range<usize>> {
        let mut blocks: Vec<Range<usize>> = self.again.take().into_iter().collect();
        let told = blocks.len();
        self.latest.retain(|&place| {
            let Some(piece) = assembly.piece_around(place) else {
                return false;
            };
            if !blocks[told..].contains(&piece) {
                blocks.push(piece);
            }
            true
        });
        blocks.truncate(room);
        blocks
    }
}
