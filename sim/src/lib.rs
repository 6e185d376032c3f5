//! A web cluster in virtual time: users, dispatchers, and backends with processors,
//! memory, disks and links. Dispatchers run the very policies of `trapeze-core`.
//!
//! A [`Run`] has [`Hardware`], a [`Workload`](workload::Workload), an [`Entrant`] (a
//! policy and what it decides about) and a [`Span`]; it gives an [`Outcome`].
//! Nothing here prints, reads a clock or draws without a seed.

#![forbid(unsafe_code)]

mod batch;
mod bound;
mod cache;
mod dist;
mod engine;
mod hardware;
pub mod implosion;
mod outcome;
pub mod paper;
pub mod picture;
mod station;
pub mod subclusters;
pub mod tournament;
pub mod trace;
pub mod workload;

pub use batch::run_all;
pub use bound::{Bound, Limit};
pub use cache::Replacement;
pub use engine::{Decides, Entrant, Run, Span, Until};
pub use hardware::{Backend, Change, Clients, Condition, Disk, Dispatcher, Hardware, LoadUntil};
pub use outcome::{Busy, Outcome};
pub use station::Discipline;
