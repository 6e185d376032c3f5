//! A connection that nobody has used for `limits.idle_timeout` is ended for both
//! sides, rather than left to hang: each gets a reset that it will believe.

use std::net::{IpAddr, SocketAddrV4};

use trapeze_core::config::Dispatcher;
use trapeze_core::flow::{FlowKey, addr_from_bytes};
use trapeze_core::wire::geneve;
use trapeze_core::wire::segment::Segment;
use trapeze_core::wire::tcp::{Flags, Header};
use trapeze_datapath::abi::{self, Flow, GENEVE_PORT};
use trapeze_datapath::dispatcher::DispatcherMaps;
use trapeze_datapath::raw::RawSocket;
use trapeze_datapath::udp::{Outbox, UdpSocket};

use crate::v4;

/// Sockets to both sides.
pub struct Farewell {
    to_backends: UdpSocket,
    to_clients: RawSocket,
}

impl Farewell {
    pub fn open(own: &Dispatcher) -> anyhow::Result<Self> {
        Ok(Self {
            to_backends: UdpSocket::bind(SocketAddrV4::new(v4(own.address)?, 0), 0, 1)?,
            to_clients: RawSocket::open()?,
        })
    }

    /// Resets both ends of a flow, as far as they can be reached.
    pub fn say(
        &self,
        maps: &DispatcherMaps,
        key: &abi::FlowKey,
        flow: &Flow,
    ) -> anyhow::Result<()> {
        let key = FlowKey::from(*key);
        if let IpAddr::V4(client) = key.client.ip() {
            let segment = reset_of_client(&key, flow);
            let mut out = Outbox::default();
            out.push(SocketAddrV4::new(client, 0), |bytes| segment.write(bytes));
            self.to_clients.send(&out);
        }
        let backend = maps
            .backends
            .get(&flow.backend)?
            .map(|b| addr_from_bytes(b.addr));
        if let Some(IpAddr::V4(backend)) = backend {
            let segment = Segment::of_client(
                &key,
                Header {
                    seq: flow.last_seq,
                    ack: flow.last_ack,
                    ..reset()
                },
            );
            let mut out = Outbox::default();
            if let Some(splice) = flow.splice.terms() {
                let segment = splice.segment(backend, segment.header, Vec::new());
                out.push(SocketAddrV4::new(backend, 0), |bytes| segment.write(bytes));
                self.to_clients.send(&out);
                return Ok(());
            }
            out.push(SocketAddrV4::new(backend, GENEVE_PORT), |bytes| {
                geneve::write(&flow.meta, &segment.to_packet(), bytes);
            });
            self.to_backends.send(&out);
        }
        Ok(())
    }
}

/// The reset that a flow's client believes.
pub fn reset_of_client(key: &FlowKey, flow: &Flow) -> Segment {
    Segment {
        source: key.vip,
        destination: key.client,
        header: Header {
            seq: flow.last_ack,
            ack: flow.last_seq,
            ..reset()
        },
        payload: Vec::new(),
    }
}

fn reset() -> Header {
    Header {
        flags: Flags::RST | Flags::ACK,
        ..Header::default()
    }
}
