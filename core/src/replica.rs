//! What dispatchers tell each other about flows (docs/protocol/replication.md): records,
//! the messages that carry them, and which of a peer's messages have come.
//!
//! | file | question |
//! | --- | --- |
//! | `record` | what is said about a flow? which of two records holds? |
//! | `message` | how does it travel, and who can have said it? |
//! | `stream` | what has a peer said that did not come here? what can be said again? |
//! | `part` | how far has a member come that catches up? |
//!
//! A record says more than a data path needs to forward: it is what another dispatcher
//! goes on from when the flow's keeper is gone. It has no word of this host's (slots,
//! clocks): those are the daemon's to translate.

pub mod message;
pub mod part;
pub mod record;
pub mod stream;

pub use message::{Head, Message, What, open};
pub use record::{Entry, Proved, Record, Seen};
