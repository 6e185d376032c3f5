//! Whether servers do their work: what is checked, what a check's answer says, and when so
//! many answers make a server dead or alive (docs/decisions/0024). Who asks is not here: agents
//! ask the servers of their own hosts, dispatchers those of hosts without one.
//!
//! ```text
//!  targets   of a configuration: what is to be checked of a backend
//!  answer    the request of an HTTP check, and the judgement of what comes back
//!  outcome   what came of one check
//!  monitor   so many outcomes in a row change a server's state
//!  word      what an agent says of its servers, with its heartbeats
//!  outliers  what becomes of clients' own requests, and who stands out by that
//!  ramp      how much the recovered are given at first
//! ```

pub mod answer;
pub mod monitor;
pub mod outcome;
pub mod outliers;
pub mod ramp;
pub mod targets;
pub mod word;

pub use monitor::{Monitor, Standing};
pub use outcome::Outcome;
pub use targets::{Target, TargetKey, targets};
pub use word::{Entry, Word};
