//! The one place with unsafe code and system calls: sockets, namespaces, BPF.

pub mod netns;
pub mod packet_socket;
pub mod signal;
