//! The one place that talks to the kernel: BPF programs and their maps,
//! sockets with batches, namespaces, interfaces and sysctls. Everything above
//! is safe code.

pub mod abi;
pub mod agent;
pub mod attach;
pub mod checker;
pub mod clock;
pub mod control;
pub mod diag;
pub mod dispatcher;
pub mod dispatchers;
pub mod file;
pub mod host;
pub mod inlet;
pub mod kill;
pub mod knock;
pub mod linger;
pub mod load;
pub mod map;
pub mod netns;
pub mod node;
pub mod object;
pub mod packet_socket;
pub mod pipe;
pub mod priority;
pub mod raw;
pub mod ring;
pub mod run_time;
pub mod sent;
pub mod signal;
pub mod softirq;
pub mod spray;
pub mod switch;
pub mod udp;
