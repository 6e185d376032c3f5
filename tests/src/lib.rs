//! What the end-to-end tests share: a lab with everything running in it, raw
//! clients and servers on its hosts, and the counters that prove which path a
//! packet took. The tests themselves are in tests/tests, one concern a file.
//!
//! They need root, and the binary of the same profile: cargo build -p trapeze-cli.

mod clients;
mod cluster;
mod connection;
mod content;
mod counts;
pub mod downloads;
pub mod numbered;
mod raised;
pub mod raw;
pub mod saved;
pub mod scattered;
pub mod site;
mod splice;
mod tally;

pub use clients::work_meanwhile;
pub use cluster::{Cluster, PATIENCE, until, without_node};
pub use connection::{Connection, Response, VIP, VIP_TLS};
pub use content::{Content, Dice, same};
pub use counts::Counts;
pub use raised::Raised;
pub use site::ONE_BACKEND;
pub use splice::Splice;
pub use tally::Tally;
