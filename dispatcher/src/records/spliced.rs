//! What of records is about connections to servers without an agent.

use std::collections::BTreeSet;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;

use trapeze_core::flow::FlowKey;
use trapeze_core::seq::ClientSeq;
use trapeze_core::wire::meta::Sender;
use trapeze_datapath::abi::{self, Flow, FlowState};
use trapeze_datapath::clock;
use trapeze_datapath::dispatcher::Parted;

use super::Records;

/// A client's last acknowledgement may come again for this long.
const LINGER: Duration = Duration::from_secs(2);

impl Records {
    /// A port of ours for that flow's connection to a server; none is free: None. Of flows
    /// that have ended, the one whose turn it is makes room: with each port once in a
    /// minute a server could take a thousand connections a second, and no more. What the server says
    /// to it comes by this dispatcher, where sprays go by flow.
    pub fn take_port(
        &self,
        key: &FlowKey,
        server: SocketAddrV4,
    ) -> io::Result<Option<SocketAddrV4>> {
        // As sprays name it by whom what the server says comes: the server is the client.
        let is_ours = |own: SocketAddrV4| {
            let said = FlowKey {
                client: server.into(),
                vip: own.into(),
            };
            self.peers.keeps(&said)
        };
        (self.splices).take_port(&(*key).into(), server, is_ours, |old| self.is_over(old))
    }

    /// What connections to servers are from, as [`Splices::with_used`] has it.
    pub fn with_splice_addresses<T>(
        &self,
        serve: impl FnOnce(&mut dyn Iterator<Item = Ipv4Addr>) -> T,
    ) -> T {
        self.splices.with_used(serve)
    }

    /// Which of them are not needed any more, as [`Splices::forget_unused`] has it.
    pub fn forget_splice_addresses(
        &self,
        seen: &BTreeSet<Ipv4Addr>,
        now: Duration,
        since: Duration,
    ) -> Vec<Ipv4Addr> {
        self.splices.forget_unused(seen, now, since)
    }

    /// Nothing came of a connection.
    pub fn give_port_back(&self, own: SocketAddrV4, server: SocketAddrV4) -> io::Result<()> {
        self.splices.give_port_back(own, server)
    }

    /// The server has answered: its SYN-ACK's clock.
    pub fn note_clock(
        &self,
        own: SocketAddrV4,
        server: SocketAddrV4,
        clock: u32,
    ) -> io::Result<()> {
        self.splices.note_clock(own, server, clock)
    }

    /// What a flow's server has acknowledged, and where it is itself, if that is known; None if it
    /// is not spliced, or says so past us.
    pub fn acknowledged(&self, key: &FlowKey) -> io::Result<Option<(ClientSeq, Option<Sender>)>> {
        let flow = self.maps.flows.get(&(*key).into())?;
        match flow.filter(|flow| flow.splice.terms().is_some_and(|splice| !splice.split)) {
            Some(flow) => self.splices.acknowledged(&flow),
            None => Ok(None),
        }
    }

    /// Takes a flow from its server, before the request at `start`, where its answers come by
    /// here; the client has been told that its bytes have come up to `told`.
    pub fn part(&self, key: &FlowKey, start: ClientSeq, told: ClientSeq) -> io::Result<Parted> {
        let flow = self.maps.flows.get(&(*key).into())?;
        match flow.filter(|flow| flow.next == start.raw()) {
            Some(flow) => self.splices.part(&flow, start, told),
            None => Ok(Parted::Never),
        }
    }

    /// The flow that a server's packets are of.
    pub fn flow_of_answer(
        &self,
        own: SocketAddrV4,
        server: SocketAddrV4,
    ) -> io::Result<Option<FlowKey>> {
        self.splices.flow_of(own, server)
    }

    /// Ends a record whose time would come soon.
    fn is_over(&self, key: &abi::FlowKey) -> io::Result<bool> {
        let Some(flow) = self.maps.flows.get(key)? else {
            return Ok(true);
        };
        let ended = has_ended(&flow, clock::monotonic());
        if ended {
            self.expire(key, &flow)?;
        }
        Ok(ended)
    }
}

fn has_ended(flow: &Flow, now: Duration) -> bool {
    let closed = [FlowState::ClientFin, FlowState::Reset].map(|state| state as u32);
    closed.contains(&flow.state)
        && now.saturating_sub(Duration::from_nanos(flow.last_seen_ns)) > LINGER
}
