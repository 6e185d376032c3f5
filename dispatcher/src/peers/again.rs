//! What this dispatcher had passed to another one comes in once more when that one is found dead: to stay here, or to
//! go to whoever keeps its flow now (core/src/membership/replay.rs).

use std::net::{Ipv4Addr, SocketAddrV4};

use trapeze_core::wire::geneve;
use trapeze_core::wire::meta::{Keys, Kind};
use trapeze_datapath::abi::GENEVE_PORT;
use trapeze_datapath::inlet::{Inlet, InletFrames};
use trapeze_datapath::udp::Outbox;

use super::herald::option;

/// The way of what comes in again.
pub(super) struct Again {
    /// None: not at this hook. Then another one passes it on, if there is one.
    inlet: Option<Inlet>,
}

impl Again {
    pub fn none() -> Self {
        Self { inlet: None }
    }

    /// By the loopback device, to the data path at that interface.
    pub fn open(interface: &str) -> anyhow::Result<Self> {
        Ok(Self {
            inlet: Some(Inlet::of_clients(interface)?),
        })
    }

    /// Those packets come in, or go into the outbox to one of the `living`, by turns.
    pub fn come_in(
        &mut self,
        packets: &[(u16, Vec<u8>)],
        living: &[Ipv4Addr],
        keys: &Keys,
        outbox: &mut Outbox,
    ) {
        let mut others = living.iter().cycle();
        let mut frames = InletFrames::default();
        for (_, packet) in packets {
            if self.inlet.is_some() {
                frames.push_packet(packet);
            } else if let Some(&other) = others.next() {
                let option = option(Kind::Sprayed { again: true }, 0, other, packet, keys);
                let to = SocketAddrV4::new(other, GENEVE_PORT);
                outbox.push(to, |out| geneve::write(&option, packet, out));
            }
        }
        if let Some(inlet) = &self.inlet
            && let Err(error) = inlet.send(&mut frames)
        {
            eprintln!("what a dead dispatcher had comes in by its clients' timers only: {error}");
            self.inlet = None;
        }
    }
}
