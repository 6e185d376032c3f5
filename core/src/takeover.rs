//! Answers that outlive their backend: what is known of one (soft state), what a wedge is told
//! to go on with, and whether what another server says is provably the rest of it
//! (docs/protocol/takeover.md) [MIGRATE01 §3-4].
//!
//! ```text
//!  head    an answer's head: where its body starts, how long it is, which object it is of
//!  state   the soft state of an answer, and the messages that carry it: UPDATE, TAKE, REFUSAL
//!  rest    the request for the rest of it, and the judgement of the answer to that
//! ```

pub mod head;
pub mod rest;
pub mod state;

#[cfg(test)]
mod tests;

pub use head::AnswerHead;
pub use rest::{NotSame, Rest};
pub use state::{Message, SoftState, Take};
