//! A client connection's name, and what its handshake agreed.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

/// One client connection, by its 4-tuple.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FlowKey {
    /// The client's address and port.
    pub client: SocketAddr,
    /// The service address (VIP) and port.
    pub vip: SocketAddr,
}

impl fmt::Debug for FlowKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} -> {}", self.client, self.vip)
    }
}

/// The TCP options that client and dispatcher agreed in the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Handshake {
    /// The most payload the client takes in a segment, in bytes (536..=65535).
    pub mss: u16,
    /// Window shifts, when both sides sent the option (RFC 7323 §2).
    pub window_scales: Option<WindowScales>,
    /// Selective acknowledgements (RFC 2018).
    pub sack: bool,
    /// Timestamps (RFC 7323 §3).
    pub timestamps: bool,
    /// Explicit congestion notification (RFC 3168).
    pub ecn: bool,
}

impl Handshake {
    /// How far windows that the client announces are shifted, at most 14 bits (RFC 7323 §2.3).
    pub fn client_shift(&self) -> u8 {
        self.window_scales.map_or(0, |scales| scales.client.min(14))
    }
}

/// Window shifts of both sides, each 0..=14.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowScales {
    /// The client's shift: for windows that the client announces.
    pub client: u8,
    /// Ours: for windows that dispatcher and server announce.
    pub ours: u8,
}

/// An address in the 16 bytes that keys hold: IPv4 mapped (RFC 4291 §2.5.5.2).
pub fn addr_bytes(addr: IpAddr) -> [u8; 16] {
    match addr {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// The address that 16 bytes of a key stand for; the inverse of [`addr_bytes`].
pub fn addr_from_bytes(bytes: [u8; 16]) -> IpAddr {
    let v6 = std::net::Ipv6Addr::from(bytes);
    match v6.to_ipv4_mapped() {
        Some(v4) => IpAddr::V4(v4),
        None => IpAddr::V6(v6),
    }
}
