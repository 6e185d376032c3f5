//! How far servers' answers have been followed.

use super::{FlowKey, Pod};

pod!(
    struct Answers {
        remaining: u64,
        next: u32,
        taken: u32,
        finished: u16,
        flags: u16,
        phase: u8,
        line_length: u8,
        unread: u8,
        busy: u8,
        line: [u8; 64],
    }
);
pod!(
    struct Overheard {
        answers: Answers,
        busy: u32,
        clock: u32,
        told: u32,
        start: u32,
        end: u32,
        closes: u8,
        parted: u8,
        window_scale: u8,
        pad: u8,
        edge: u32,
        pad2: u32,
    }
);
pod!(
    struct Parting {
        key: FlowKey,
        start: u32,
        requests: u32,
        heard: u32,
        told: u32,
        end: u32,
        clock: u32,
    }
);

/// `enum answer_phase`: in a body of known length.
pub const ANSWER_BODY: u8 = 5;
/// Until close, of which something remains: counted as a body is.
pub const ANSWER_ENDLESS: u8 = 7;
/// A flag of answers: the next is one to a HEAD.
pub const ANSWER_TO_HEAD: u16 = 4;
