//! Asks after connections whose clients have said nothing for half a second, one, two,
//! four, ...: is the server's socket still there? What a server ends goes past us, and a
//! client that has been reset says no more; without asking, such a connection would count as
//! its backend's until `limits.idle_timeout`, and no drain of that would end.
//!
//! A PROBE asks at a sequence number half the space away from the client's. The
//! answer has that very number only where the socket has come and gone (clause 7.11
//! of docs/protocol/encapsulation.md); a socket that is there expects another one,
//! and notices nothing. A backend that owes nothing to as many requests as the question
//! says tells so: then it can die, and its client need not know (docs/protocol/handoff.md 9).
//!
//! A server without an agent is asked as TCP asks (RFC 9293 §3.8.4): it resets what it does not know, and its
//! acknowledgement of what it knows is nothing new to the client (docs/protocol/splice.md 7.7).

use std::net::{IpAddr, SocketAddrV4};
use std::time::Duration;

use trapeze_core::config::Dispatcher;
use trapeze_core::flow::{FlowKey, addr_from_bytes};
use trapeze_core::seq::{ClientSeq, ServerSeq};
use trapeze_core::splice::keep_alive;
use trapeze_core::wire::geneve;
use trapeze_core::wire::meta::{Binding, Keys, Kind, Meta};
use trapeze_core::wire::segment::Segment;
use trapeze_core::wire::tcp::{Flags, Header};
use trapeze_datapath::abi::{self, Flow, FlowState, GENEVE_PORT, MARK_TUNNEL, MARK_UNSURE};
use trapeze_datapath::dispatcher::DispatcherMaps;
use trapeze_datapath::raw::RawSocket;
use trapeze_datapath::udp::{Outbox, UdpSocket};

use crate::v4;

/// Idle for this long, a connection is asked after for the first time.
const FIRST: Duration = Duration::from_millis(500);

/// Sockets to backends, and what is to be asked.
pub struct Inquiry {
    socket: UdpSocket,
    questions: Outbox,
    raw: RawSocket,
    keep_alives: Outbox,
}

impl Inquiry {
    pub fn open(own: &Dispatcher) -> anyhow::Result<Self> {
        Ok(Self {
            socket: UdpSocket::bind(SocketAddrV4::new(v4(own.address)?, 0), 0, 1)?,
            questions: Outbox::default(),
            raw: RawSocket::open()?,
            keep_alives: Outbox::default(),
        })
    }

    /// Asks after a flow; [`Self::send`] sends it.
    pub fn ask(
        &mut self,
        maps: &DispatcherMaps,
        keys: &Keys,
        key: &abi::FlowKey,
        flow: &Flow,
    ) -> std::io::Result<()> {
        let key = FlowKey::from(*key);
        let backend = maps.backends.get(&flow.backend)?;
        let Some(IpAddr::V4(backend)) = backend.map(|b| addr_from_bytes(b.addr)) else {
            return Ok(());
        };
        if let Some(splice) = flow.splice.terms().filter(|splice| !splice.split) {
            // What lies behind the boundary it has not been given: of that its socket would say nothing.
            let said = ClientSeq::new(flow.last_seq);
            let given = ClientSeq::new(flow.next);
            let next = match flow.marks & MARK_TUNNEL == 0 && given.before(said) {
                true => given,
                false => said,
            };
            // Of what another owner has said it knows nothing.
            let first = ServerSeq::new(flow.server_isn) + 1;
            let heard = first.later_of(ServerSeq::new(flow.last_ack));
            let question = keep_alive(next, heard, flow.window as u16);
            let segment = splice.segment(backend, question, Vec::new());
            let to = SocketAddrV4::new(backend, 0);
            self.keep_alives.push(to, |out| segment.write(out));
            return Ok(());
        }
        let binding = Binding::of_flow(backend.into(), key.client, key.vip);
        let (Ok(meta), Some(binding)) = (Meta::decode(&flow.meta), binding) else {
            return Ok(());
        };
        let option = match flow.splice.terms() {
            Some(splice) => Meta {
                kind: Kind::SplitProbe { own: splice.own },
                server_port: splice.server_port,
                ..meta
            },
            None => Meta {
                kind: match flow.marks & MARK_UNSURE {
                    0 => Kind::Probe,
                    _ => Kind::Reckon,
                },
                requests: flow.requests as u16,
                ..meta
            },
        };
        let option = option.seal(keys, &binding);
        let question = Segment::of_client(
            &key,
            Header {
                seq: asked_at(flow),
                ack: flow.last_ack,
                flags: Flags::ACK,
                ..Header::default()
            },
        );
        let to = SocketAddrV4::new(backend, GENEVE_PORT);
        (self.questions).push(to, |out| geneve::write(&option, &question.to_packet(), out));
        Ok(())
    }

    /// Sends what there is to ask. A question that is lost is asked again later.
    pub fn send(&mut self) {
        if !self.questions.is_empty() {
            self.socket.send(&self.questions);
            self.questions.clear();
        }
        if !self.keep_alives.is_empty() {
            self.raw.send(&self.keep_alives);
            self.keep_alives.clear();
        }
    }
}

/// Whether a flow is to be asked after now, if the last time to ask was `before`.
pub fn is_due(flow: &Flow, before: Duration, now: Duration) -> bool {
    let last_seen = Duration::from_nanos(flow.last_seen_ns);
    let times_asked = |at: Duration| {
        let idle = at.saturating_sub(last_seen);
        (idle.as_millis() / FIRST.as_millis()).checked_ilog2()
    };
    // Who has closed its side waits for an answer, or for nothing.
    let is_open = flow.state == FlowState::Established as u32
        || flow.state == FlowState::ClientFin as u32 && !flow.is_answered();
    is_open && times_asked(now) > times_asked(before)
}

/// The sequence number at which a flow is asked after.
pub fn asked_at(flow: &Flow) -> u32 {
    flow.last_seq ^ 1 << 31
}

#[cfg(test)]
mod tests {
    use trapeze_datapath::abi::Pod;

    use super::*;

    #[test]
    fn an_idle_flow_is_asked_after_more_and_more_rarely() {
        let second = Duration::from_secs(1);
        let flow = Flow {
            state: FlowState::Established as u32,
            last_seen_ns: 1000 * 1_000_000_000,
            ..Flow::zeroed()
        };
        let asked = |flow: &Flow, step: u32| -> Vec<u32> {
            (0..1000 / step)
                .map(|round| 995 + round * step)
                .filter(|&at| is_due(flow, (at - step) * second, at * second))
                .map(|at| at - 1000)
                .collect()
        };
        let powers = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512];
        assert_eq!(
            asked(&flow, 1),
            powers,
            "and half a second is for shorter steps"
        );
        assert_eq!(asked(&flow, 7), [2, 9, 16, 37, 65, 128, 261, 513]);
        let waiting = Flow {
            state: FlowState::ClientFin as u32,
            ..flow
        };
        assert_eq!(asked(&waiting, 1), powers);
        let closing = Flow {
            last_ack: 1,
            ..waiting
        };
        assert!(asked(&closing, 1).is_empty());
    }
}
