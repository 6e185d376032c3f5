//! What nodes say to each other.

use std::net::SocketAddr;

use trapeze_core::flow::{FlowKey as CoreKey, addr_bytes, addr_from_bytes};

use super::Pod;

pod!(
    struct FlowKey {
        client_addr: [u8; 16],
        vip_addr: [u8; 16],
        client_port: [u8; 2],
        vip_port: [u8; 2],
    }
);

/// Bytes that the encapsulation adds to a packet.
pub const ENCAP_LEN: usize = 72;
/// UDP port of the encapsulation (RFC 8926).
pub const GENEVE_PORT: u16 = 6081;
/// UDP port on which dispatchers' daemons hear each other, in the same encapsulation.
pub const PEERS_PORT: u16 = 6082;
/// `enum held`: the answer is unfinished,
pub const HELD_ANSWERING: u32 = 1;
/// the client has not acknowledged it,
pub const HELD_UNACKED: u32 = 2;
/// or the server closes.
pub const HELD_CLOSING: u32 = 3;
/// The kind of what a server says to a splice address: workers have it by our port, all
/// else by the client's.
pub const META_SPLICE: u8 = 24;
/// Of packets that another of our programs on this host lets by.
pub const PASS_BY_MARK: u32 = 0x545a_0007;
/// Of a packet of an agent's daemon's, which comes in as from a connection's client.
pub const TURN_MARK: u32 = 0x545a_0009;
/// Of a client's bytes that a dispatcher's daemon has held, for its data path to forward.
pub const HELD_MARK: u32 = 0x545a_000a;
/// Of a client's packet that comes in once more.
pub const AGAIN_MARK: u32 = 0x545a_000b;

impl From<CoreKey> for FlowKey {
    fn from(key: CoreKey) -> Self {
        Self {
            client_addr: addr_bytes(key.client.ip()),
            vip_addr: addr_bytes(key.vip.ip()),
            client_port: key.client.port().to_be_bytes(),
            vip_port: key.vip.port().to_be_bytes(),
        }
    }
}

impl From<FlowKey> for CoreKey {
    fn from(key: FlowKey) -> Self {
        Self {
            client: SocketAddr::new(
                addr_from_bytes(key.client_addr),
                u16::from_be_bytes(key.client_port),
            ),
            vip: SocketAddr::new(
                addr_from_bytes(key.vip_addr),
                u16::from_be_bytes(key.vip_port),
            ),
        }
    }
}
