//! The records that are made here: of a flow that has been placed, and of one that is being
//! read.

use std::net::Ipv4Addr;

use trapeze_core::flow::{FlowKey, Handshake};
use trapeze_core::head::Expected;
use trapeze_core::intake::Isns;
use trapeze_core::splice::Splice;
use trapeze_core::wire::meta::{Binding, Care, Keys, Kind, Meta};
use trapeze_datapath::abi::{
    self, Flow, FlowState, MARK_HELD, MARK_PIPELINES, MARK_TAKING, MARK_TUNNEL, Pod,
};
use trapeze_datapath::clock;

use crate::cluster::Choice;
use crate::look::Extent;

/// A flow and the backend that is to have it.
#[derive(Clone, Copy, Debug)]
pub struct Assignment<'a> {
    pub key: FlowKey,
    pub isns: Isns,
    pub handshake: Handshake,
    pub choice: &'a Choice,
    pub keys: &'a Keys,
    /// The epoch of an assignment that has failed.
    pub after: Option<u32>,
    /// The epoch of a connection that had the 4-tuple before, if its record is gone.
    pub older: Option<u32>,
    /// Bytes that go there from here.
    pub held: usize,
    /// The window field that the client sent last.
    pub window: u16,
    /// How far the request goes.
    pub extent: Extent,
    /// What the pool wants of the answers.
    pub care: Care,
    /// More has come than the request.
    pub has_rest: bool,
    /// The owner before, that still sends: its address.
    pub predecessor: Option<Ipv4Addr>,
    /// The connection that a dispatcher has opened.
    pub splice: Option<Splice>,
}

impl Assignment<'_> {
    pub(super) fn flow(&self, epoch: u32) -> Flow {
        let meta = Meta {
            kind: match self.predecessor {
                Some(predecessor) => Kind::ForwardAfter { predecessor },
                None => Kind::Forward,
            },
            server_port: self.choice.server_port,
            epoch,
            care: Care {
                head: self.extent.is_head && self.care.follow,
                outlive: self.care.outlive && !self.extent.is_last,
                park: self.care.park && !self.extent.is_last,
                kept: self.extent.is_kept && self.care.follow && can_be_kept(&self.handshake),
                ..self.care
            },
            ..meta_of(self.isns, self.handshake)
        };
        let binding = Binding::of_flow(self.choice.address, self.key.client, self.key.vip);
        let binding = binding.expect("configuration and data path are IPv4");
        let placed = &self.choice.placed;
        let start = self.isns.client + 1;
        let (next, expected, mut marks) = match self.extent.next {
            Some((at, expected)) if self.care.follow => (start + at as u32, expected, 0),
            _ => (start, Expected::Head, MARK_TUNNEL),
        };
        if self.has_rest {
            marks |= MARK_HELD;
        }
        if self.extent.is_copied && marks & MARK_TUNNEL == 0 && self.splice.is_none() {
            marks |= MARK_TAKING;
        }
        Flow {
            meta: meta.seal(self.keys, &binding),
            backend: self.choice.slot,
            pool: self.choice.pool.0.into(),
            state: FlowState::Established as u32,
            packets: 1,
            bytes: self.held as u64,
            object: placed.request.object,
            kind: placed.request.kind.number(),
            class: placed.request.class as u8,
            charge_us: placed.charge_us,
            shared: placed.shared,
            report: placed.report.into(),
            next: next.raw(),
            began: start.raw(),
            expect: expected.number(),
            requests: 1,
            marks,
            last_seq: (self.isns.client + 1 + self.held as u32).raw(),
            window: self.window.into(),
            splice: (self.splice.as_ref()).map_or(abi::Splice::zeroed(), abi::Splice::from),
            ..new_flow(self.isns, self.handshake)
        }
    }
}

/// Can a request be given to another backend once its owner has acknowledged it? What its client has out of order it
/// can say by SACK alone, and late words are known by their clocks (docs/protocol/retry.md 4.2).
pub fn can_be_kept(handshake: &Handshake) -> bool {
    handshake.sack && handshake.timestamps
}

/// A record of a connection that is being read.
pub(super) fn new_flow(isns: Isns, handshake: Handshake) -> Flow {
    let now = clock::monotonic().as_nanos() as u64;
    Flow {
        meta: meta_of(isns, handshake).encode(0),
        client_isn: isns.client.raw(),
        server_isn: isns.server.raw(),
        state: FlowState::Reading as u32,
        last_seq: (isns.client + 1).raw(),
        last_ack: (isns.server + 1).raw(),
        created_ns: now,
        last_seen_ns: now,
        asked_ns: now,
        asked_ack: (isns.server + 1).raw(),
        cookie: isns.server.raw(),
        ..Flow::zeroed()
    }
}

/// The same request again, for another backend than the one that has not taken it: its
/// end is known, and it is as much a HEAD as it was.
pub(super) fn repeat(flow: &mut Flow, old: &Flow) {
    flow.next = old.next;
    flow.expect = old.expect;
    flow.requests = old.requests;
    // Of the owner before, if that still sends.
    flow.last_ack = old.last_ack;
    flow.window = old.window;
    flow.marks = old.marks & (MARK_TUNNEL | MARK_HELD | MARK_PIPELINES);
    // Of a server without an agent answers are followed from its first one on, of which there may be more here.
    if flow.splice.terms().is_some_and(|splice| !splice.split) {
        flow.marks |= MARK_TUNNEL;
    }
}

/// What a new record of the same connection keeps of the one before.
pub(super) fn inherit(flow: &mut Flow, old: &Flow) {
    flow.cookie = old.cookie;
    flow.created_ns = old.created_ns;
    flow.syn_isn = old.syn_isn;
    flow.syn_seen_ns = old.syn_seen_ns;
    flow.packets = old.packets + 1;
    flow.bytes = flow.bytes.wrapping_add(old.bytes);
}

fn meta_of(isns: Isns, handshake: Handshake) -> Meta {
    Meta {
        start: isns.client + 1,
        handshake,
        ..Meta::of(Kind::Forward)
    }
}

/// Later than what this 4-tuple has had (RFC 1982).
pub(super) fn later(epoch: u32, older: Option<u32>) -> u32 {
    match older {
        Some(older) if (epoch.wrapping_sub(older) as i32) <= 0 => older.wrapping_add(1),
        _ => epoch,
    }
}
