//! The one place with unsafe code and system calls: sockets, namespaces, BPF.

pub mod kill;
pub mod netns;
pub mod packet_socket;
