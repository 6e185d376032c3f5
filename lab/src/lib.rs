//! The lab: a whole cluster in network namespaces on one machine, with real
//! servers, links that delay and lose, and hosts that die. How Trapeze is
//! shown, tested and measured, and how a user tries it.
//!
//! ```no_run
//! use trapeze_lab::{LabGuard, Options};
//!
//! # fn main() -> anyhow::Result<()> {
//! let lab = LabGuard::up(&Options::named("doc"))?;
//! let answer = lab.host("c1")?.command("curl").arg("http://10.77.0.100/1k").output()?;
//! # Ok(())
//! # }
//! ```
//!
//! Not here: anything of the data path. A lab prepares hosts as an operator
//! would, and starts the daemons there.

mod args;
mod bench;
mod cluster;
mod command;
mod compare;
mod cpu;
mod demo;
pub mod documents;
mod etcd;
mod figures;
mod files;
mod handoff;
mod http;
mod ip;
mod lab;
mod link;
mod load;
mod machine;
pub mod objects;
mod options;
mod power;
mod process;
mod program;
mod random;
mod role;
mod servers;
mod splice;
mod state;
mod status;
pub mod svg;
mod tls;
mod topology;

pub use args::Args;
pub use command::run;
pub use lab::{HostHandle, Lab, LabGuard};
pub use link::settings::LinkSettings;
pub use link::shape::Counters;
pub use options::{Options, ServerKind};
pub use role::{Process, Role, VIP};
pub use servers::origin::{OriginCounts, OriginSettings};
pub use status::{HostStatus, LinkStatus, ProcessStatus, Status};
