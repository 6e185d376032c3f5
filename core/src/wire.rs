//! Wire formats: checked views of what arrived, writers of what is sent.
//!
//! A parser returns a valid value or says what is wrong; nothing that a peer
//! sends can panic. Sequence numbers stay raw in here: only who knows which way
//! a packet travels can say whose space they are in.

pub mod again;
pub mod checksum;
pub mod geneve;
pub mod ipv4;
pub mod meta;
pub mod segment;
pub mod tcp;

/// A header that contradicts itself or the packet's length: the peer's fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The packet ends before its headers do.
    #[error("the packet is too short for its headers")]
    Truncated,
    /// Another version of IP.
    #[error("not an IPv4 packet")]
    NotIpv4,
    /// A header length below the smallest header, or beyond the packet.
    #[error("a header length that cannot be")]
    HeaderLength,
    /// A total length below the header's, or beyond the packet.
    #[error("an IP total length that cannot be")]
    TotalLength,
    /// A piece of a packet.
    #[error("an IP fragment")]
    Fragment,
    /// Another transport.
    #[error("not a TCP segment")]
    NotTcp,
    /// A TCP option that runs over its header's end or is shorter than itself.
    #[error("a TCP option that cannot be")]
    TcpOption,
}
