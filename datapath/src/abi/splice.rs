//! Connections to servers that dispatchers open.

use std::net::{Ipv4Addr, SocketAddrV4};

use trapeze_core::flow::addr_bytes;
use trapeze_core::splice::Splice as SpliceTerms;

use super::{FlowKey, Pod};

pod!(
    struct Splice {
        address: [u8; 4],
        port: [u8; 2],
        server_port: [u8; 2],
        ahead: u32,
        clock_ahead: u32,
        to_server_shift: u8,
        to_client_shift: i8,
        changes: u8,
        pad: u8,
    }
);
pod!(
    struct Spliced {
        flow: FlowKey,
        state: u32,
        splice: Splice,
        server_ack: u32,
        clock: u32,
        pad: u32,
        resolved_ns: u64,
        ifindex: u32,
        destination_mac: [u8; 6],
        source_mac: [u8; 6],
    }
);
pod!(
    struct Split {
        client: [u8; 4],
        vip: [u8; 4],
        client_port: [u8; 2],
        vip_port: [u8; 2],
        client_isn: u32,
        known_isn: u32,
        echo: u32,
        server_isn: u32,
        clock: u32,
        ahead: u32,
        clock_ahead: u32,
        to_client_shift: i8,
        answered: u8,
        window_scales: u8,
        tcp_options: u8,
        pad: u32,
        told_ns: u64,
    }
);

/// A change of a spliced flow's segments: the server has not agreed to timestamps.
pub const SPLICE_NO_TIMESTAMPS: u8 = 1;
/// The same of explicit congestion notification.
pub const SPLICE_NO_ECN: u8 = 2;
/// The server's host has an agent, which rewrites what the server says.
pub const SPLICE_SPLIT: u8 = 4;
/// `enum spliced_state`: what its server says is the daemon's.
pub const SPLICED_CONNECTING: u32 = 1;
/// The data path rewrites.
pub const SPLICED_OPEN: u32 = 2;
/// And follows the server's answers.
pub const SPLICED_FOLLOWED: u32 = 3;

impl From<&SpliceTerms> for Splice {
    fn from(terms: &SpliceTerms) -> Self {
        let change = |is: bool, bit: u8| if is { bit } else { 0 };
        Self {
            address: terms.own.ip().octets(),
            port: terms.own.port().to_be_bytes(),
            server_port: terms.server_port.to_be_bytes(),
            ahead: terms.ahead,
            clock_ahead: terms.clock_ahead,
            to_server_shift: terms.to_server_shift,
            to_client_shift: terms.to_client_shift,
            changes: change(terms.no_timestamps, SPLICE_NO_TIMESTAMPS)
                | change(terms.no_ecn, SPLICE_NO_ECN)
                | change(terms.split, SPLICE_SPLIT),
            pad: 0,
        }
    }
}

impl Splice {
    /// A connection of which no more is known.
    pub fn between(own: SocketAddrV4, server: SocketAddrV4) -> Self {
        Self {
            address: own.ip().octets(),
            port: own.port().to_be_bytes(),
            server_port: server.port().to_be_bytes(),
            ..Self::zeroed()
        }
    }

    /// What it says; none if the flow is not spliced.
    pub fn terms(&self) -> Option<SpliceTerms> {
        let port = u16::from_be_bytes(self.port);
        (port != 0).then(|| SpliceTerms {
            own: SocketAddrV4::new(self.address.into(), port),
            server_port: u16::from_be_bytes(self.server_port),
            ahead: self.ahead,
            clock_ahead: self.clock_ahead,
            to_server_shift: self.to_server_shift,
            to_client_shift: self.to_client_shift,
            no_timestamps: self.changes & SPLICE_NO_TIMESTAMPS != 0,
            no_ecn: self.changes & SPLICE_NO_ECN != 0,
            split: self.changes & SPLICE_SPLIT != 0,
        })
    }

    /// The key under which the data path finds the flow by what the server at that address
    /// sends.
    pub fn key(&self, server: Ipv4Addr) -> FlowKey {
        FlowKey {
            client_addr: addr_bytes(server.into()),
            vip_addr: addr_bytes(Ipv4Addr::from(self.address).into()),
            client_port: self.server_port,
            vip_port: self.port,
        }
    }
}
