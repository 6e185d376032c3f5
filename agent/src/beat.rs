//! Heartbeats: every interval, to every dispatcher, that this host lives.

use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::time::Duration;

use trapeze_core::config::{Backend, Config};
use trapeze_core::flow::Handshake;
use trapeze_core::seq::ClientSeq;
use trapeze_core::wire::meta::{Binding, Keys, Kind, Meta};
use trapeze_core::wire::{geneve, ipv4};
use trapeze_datapath::abi::GENEVE_PORT;
use trapeze_datapath::clock;

use crate::v4;

/// RFC 3692: for experiments; the inner header is there only to be signed.
const NO_PROTOCOL: u8 = 253;

/// Sends the heartbeats of one configuration.
pub struct Heart {
    socket: UdpSocket,
    keys: Keys,
    own: Ipv4Addr,
    dispatchers: Vec<Ipv4Addr>,
    interval: Duration,
}

impl Heart {
    pub fn new(config: &Config, own: &Backend) -> anyhow::Result<Self> {
        let own = v4(own.address)?;
        let socket = UdpSocket::bind(SocketAddrV4::new(own, 0))?;
        socket.set_nonblocking(true)?;
        Ok(Self {
            socket,
            keys: crate::keys(config),
            own,
            dispatchers: config
                .dispatchers
                .iter()
                .map(|d| v4(d.address))
                .collect::<anyhow::Result<_>>()?,
            interval: config.limits.heartbeat,
        })
    }

    pub fn interval(&self) -> Duration {
        self.interval
    }

    /// One beat; a dispatcher that cannot be reached now hears the next one.
    pub fn beat(&mut self) {
        // Numbered by the clock in milliseconds: the next daemon goes on from here.
        let number = clock::tai().as_millis() as u32;
        for &dispatcher in &self.dispatchers {
            let mut inner = Vec::new();
            ipv4::write_header(self.own, dispatcher, NO_PROTOCOL, 0, &mut inner);
            let meta = Meta {
                kind: Kind::Heartbeat,
                epoch: number,
                start: ClientSeq::new(0),
                handshake: Handshake::default(),
                server_port: 0,
            };
            let Some(binding) = Binding::of_packet(dispatcher.into(), &inner) else {
                continue;
            };
            let mut datagram = Vec::new();
            geneve::write(&meta.seal(&self.keys, &binding), &inner, &mut datagram);
            let _ = self
                .socket
                .send_to(&datagram, SocketAddrV4::new(dispatcher, GENEVE_PORT));
        }
    }
}
