//! What backends say about a flow comes to the dispatcher that they heard last: it goes on
//! to the one that keeps the flow (docs/protocol/replication.md 2.5).

use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;

use trapeze_core::flow::FlowKey;
use trapeze_core::intake::Arrived;
use trapeze_core::wire::checksum::TcpChecksum;
use trapeze_core::wire::geneve::{self, Encapsulated};
use trapeze_core::wire::meta::{Binding, Kind, Meta};
use trapeze_datapath::abi::GENEVE_PORT;

use super::State;
use crate::peers::{Stage, option};

impl State {
    /// Sends a backend's word on, if it is another dispatcher's to hear. What comes from a
    /// dispatcher has been sent on already.
    pub(super) fn relay(
        &mut self,
        now: Duration,
        packet: &Encapsulated<'_>,
        from: SocketAddrV4,
    ) -> bool {
        let is_a_backends_word = matches!(
            packet.meta.kind,
            Kind::Refused(_)
                | Kind::Held(_)
                | Kind::Released { .. }
                | Kind::Done
                | Kind::Answered { .. }
                | Kind::Vacated { .. }
                | Kind::Support
        );
        let peers = &self.shared.peers;
        if !is_a_backends_word || !peers.are_there() || peers.has(*from.ip()) {
            return false;
        }
        let Ok(arrived) = Arrived::parse(&packet.meta, packet.inner) else {
            return false;
        };
        let Some(keeper) = peers.keeper_of(&arrived.key) else {
            return false;
        };
        if self.has_asked(&arrived.key, &packet.meta) {
            return false;
        }
        let Some(binding) = Binding::of_packet(keeper.into(), packet.inner) else {
            return false;
        };
        let option = packet.meta.seal(&self.cluster.keys, &binding);
        let to = SocketAddrV4::new(keeper, GENEVE_PORT);
        self.to_backends
            .push(to, |out| geneve::write(&option, packet.inner, out));
        self.count("relayed");
        // The keeper may be dead, and nobody know it yet.
        if packet.meta.kind == Kind::Support {
            self.hear_update(now, &arrived);
        }
        true
    }

    /// Passes on what a client has said, if another dispatcher has come to keep the flow while that lay in the queue:
    /// both would decide about it. True: it does (docs/protocol/replication.md 2.3).
    pub(super) fn pass_to_keeper(&mut self, packet: &Encapsulated<'_>) -> bool {
        if !matches!(
            packet.meta.kind,
            Kind::Request { .. } | Kind::Unheard { .. } | Kind::Next { .. }
        ) {
            return false;
        }
        let peers = &self.shared.peers;
        let Ok(arrived) = Arrived::parse(&packet.meta, packet.inner) else {
            return false;
        };
        let Some(keeper) = peers.keeper_of(&arrived.key) else {
            return false;
        };
        if arrived.checksum == TcpChecksum::Wrong {
            self.count("bad-checksum");
            return true;
        }
        for segment in self.pieces(&arrived) {
            self.pass(keeper, &segment.to_packet());
        }
        self.count("passed-late");
        true
    }

    /// A packet that is another dispatcher's, as it came.
    pub(super) fn pass(&mut self, to: Ipv4Addr, packet: &[u8]) {
        let kind = Kind::Passed {
            by_joining: self.shared.peers.stage() != Stage::Keeping,
            again: false,
            before: 0,
        };
        let option = option(kind, 0, to, packet, &self.cluster.keys);
        let to = SocketAddrV4::new(to, GENEVE_PORT);
        self.to_backends
            .push(to, |out| geneve::write(&option, packet, out));
    }

    /// Is it the answer to a question of this dispatcher's? Who keeps the flow by now lets it
    /// end what it has begun (7.3).
    fn has_asked(&self, key: &FlowKey, meta: &Meta) -> bool {
        match meta.kind {
            Kind::Held(_) | Kind::Released { .. } => {
                self.waiting.find(key, meta.epoch, meta.start).is_some()
            }
            Kind::Done => (self.waiting.get(key))
                .is_some_and(|waiting| waiting.epoch == meta.epoch.wrapping_add(1)),
            // A takeover.
            Kind::Support => self.takings.all.contains_key(key),
            _ => false,
        }
    }
}
