//! What this dispatcher had passed to another one comes in once more when that one is found dead: to stay here, or to
//! go to whoever keeps its flow now (core/src/membership/replay.rs).

use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;

use trapeze_core::membership::replay::Replay;
use trapeze_core::wire::meta::{Keys, Kind};
use trapeze_core::wire::{again, geneve};
use trapeze_datapath::abi::{ENCAP_LEN, GENEVE_PORT};
use trapeze_datapath::dispatcher::DispatcherMaps;
use trapeze_datapath::host;
use trapeze_datapath::inlet::{Inlet, InletFrames};
use trapeze_datapath::sent::SharedSent;
use trapeze_datapath::udp::Outbox;

use super::Peer;
use super::herald::option;

pub(super) struct Again {
    replay: Replay,
    sent: SharedSent,
    /// The longest packet that fits into the encapsulation.
    inner_max: usize,
    /// None: not at this hook. Then another one passes it on, if there is one.
    inlet: Option<Inlet>,
}

impl Again {
    pub fn open(maps: &DispatcherMaps, interface: &str) -> anyhow::Result<Self> {
        Ok(Self {
            replay: Replay::default(),
            sent: SharedSent::map(&maps.sent)?,
            inner_max: host::mtu(interface)? as usize - ENCAP_LEN,
            inlet: None,
        })
    }

    /// There is a way in by the loopback device.
    pub fn open_inlet(&mut self, interface: &str) -> anyhow::Result<()> {
        self.inlet = Some(Inlet::of_clients(interface)?);
        Ok(())
    }

    /// A peer is found dead, with heartbeats of that interval; it was heard last at `heard`.
    pub fn begin(
        &mut self,
        peer: &Peer,
        heard: Option<Duration>,
        now: Duration,
        interval: Duration,
    ) {
        if let Some(heard) = heard {
            self.replay.begin(peer.slot, heard, now, interval);
        }
    }

    /// It is there.
    pub fn end(&mut self, peer: &Peer) {
        self.replay.end(peer.slot);
    }

    pub fn due(&self) -> Option<Duration> {
        self.replay.due()
    }

    /// What is due comes in, or goes into the outbox to one of the `living`, by turns.
    pub fn come_in(
        &mut self,
        now: Duration,
        living: &[Ipv4Addr],
        keys: &Keys,
        outbox: &mut Outbox,
    ) {
        let mut others = living.iter().cycle();
        let mut frames = InletFrames::default();
        for (slot, since) in self.replay.take(now) {
            let kept = again::unanswered(self.sent.since(slot, since));
            for packet in kept
                .iter()
                .flat_map(|it| again::segments(it, self.inner_max))
            {
                if self.inlet.is_some() {
                    frames.push_packet(&packet);
                } else if let Some(&other) = others.next() {
                    let option = option(Kind::Sprayed { again: true }, 0, other, &packet, keys);
                    let to = SocketAddrV4::new(other, GENEVE_PORT);
                    outbox.push(to, |out| geneve::write(&option, &packet, out));
                }
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
