//! Trapeze's pure core: sequence spaces, wire formats, request heads, rules,
//! policies, and the protocol of reading a first request. No sockets, no clock,
//! no threads: `now` is an argument.

#![forbid(unsafe_code)]

pub mod config;
pub mod flow;
pub mod head;
pub mod health;
pub mod intake;
pub mod membership;
pub mod policy;
pub mod replica;
pub mod route;
pub mod seq;
pub mod siphash;
pub mod splice;
pub mod takeover;
pub mod wire;
