//! Answers that outlive their backend: what is known of one (soft state), what a wedge is told
//! to go on with, and whether what another server says is provably the rest of it
//! (docs/protocol/takeover.md) [MIGRATE01 §3-4].
//!
//! ```text
//!  head    an answer's head: where its body starts, how long it is, which object it is of
//!  state   the soft state of an answer, and the messages that carry it: UPDATE, TAKE and others
//!  parts   messages that are longer than a frame
//!  stream  what an application says of a stream that has no validator
//!  date    when a time is a strong validator
//!  rest    the request for the rest of it, and the judgement of the answer to that
//! ```

mod date;
pub mod head;
pub mod parts;
pub mod rest;
pub mod state;
pub mod stream;

#[cfg(test)]
mod tests;

pub use head::AnswerHead;
pub use parts::Assembly;
pub use rest::{End, NotSame, Rest};
pub use state::{Message, SoftState, Take};
pub use stream::Resume;

/// Of an answer as long as that, numbers alone do not say where a byte lies (RFC 9293 §3.4).
pub const VAST: u64 = 1 << 31;
/// Of one of those it is said again after so many bytes, too.
pub const VAST_STEP: u64 = 1 << 28;
/// Between two looks at one of those it may come so far, and is slow.
pub const VAST_IS_SLOW: u64 = 1 << 22;
/// The port on which a backend's wedge listens, on its loopback address alone; and, by UDP on its own,
/// its agent for what dispatchers ask.
pub const WEDGE_PORT: u16 = 6083;
