//! A connection that nobody has used for `limits.idle_timeout` is ended for both
//! sides, rather than left to hang: each gets a reset that it will believe.

use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};

use trapeze_core::config::Dispatcher;
use trapeze_core::flow::{FlowKey, addr_from_bytes};
use trapeze_core::seq::{ClientSeq, ServerSeq};
use trapeze_core::wire::geneve;
use trapeze_core::wire::meta::Meta;
use trapeze_core::wire::segment::Segment;
use trapeze_core::wire::tcp::{Flags, Header, Options, Timestamps};
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

    /// Asks a client what it has heard.
    pub fn ask(&self, key: &abi::FlowKey, flow: &Flow) {
        let key = FlowKey::from(*key);
        let agreed = Meta::decode(&flow.meta).is_ok_and(|meta| meta.handshake.timestamps);
        // Nobody knows its server's clock by now.
        let timestamps = agreed.then_some(Timestamps { value: 1, echo: 0 });
        let (heard, next) = (ServerSeq::new(flow.last_ack), ClientSeq::new(flow.next));
        if let IpAddr::V4(client) = key.client.ip() {
            self.to_client(client, &question(&key, heard, next, timestamps));
        }
    }

    fn to_client(&self, client: Ipv4Addr, segment: &Segment) {
        let mut out = Outbox::default();
        out.push(SocketAddrV4::new(client, 0), |bytes| segment.write(bytes));
        self.to_clients.send(&out);
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
            let (heard, end) = (ServerSeq::new(flow.last_ack), ClientSeq::new(flow.last_seq));
            self.to_client(client, &reset_of_client(&key, heard, end));
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

/// The reset that a flow's client believes, which has had all up to `heard` and sent all up to `end`.
pub fn reset_of_client(key: &FlowKey, heard: ServerSeq, end: ClientSeq) -> Segment {
    Segment {
        source: key.vip,
        destination: key.client,
        header: Header {
            seq: heard.raw(),
            ack: end.raw(),
            ..reset()
        },
        payload: Vec::new(),
    }
}

/// A segment that a client has had all of, with the octet of a keep-alive (RFC 1122 §4.2.3.6): it
/// answers where it is (RFC 9293 §3.10.7.4), whatever the clock says (RFC 7323 §5.3, R1). Without the octet, Linux answers
/// one in half a second at most (tcp_invalid_ratelimit).
pub fn question(
    key: &FlowKey,
    heard: ServerSeq,
    next: ClientSeq,
    timestamps: Option<Timestamps>,
) -> Segment {
    Segment {
        source: key.vip,
        destination: key.client,
        header: Header {
            seq: (heard + u32::MAX).raw(),
            ack: next.raw(),
            window: u16::MAX,
            flags: Flags::ACK,
            options: Options {
                timestamps,
                ..Options::default()
            },
            ..Header::default()
        },
        payload: vec![0],
    }
}

fn reset() -> Header {
    Header {
        flags: Flags::RST | Flags::ACK,
        ..Header::default()
    }
}
