//! A record, for those who must follow it in user space.

use std::net::Ipv4Addr;
use std::time::Duration;

use trapeze_core::config::{PoolNumber, Transfer};
use trapeze_core::head::Expected;
use trapeze_core::intake::Isns;
use trapeze_core::policy::Request;
use trapeze_core::seq::{ClientSeq, ServerSeq};
use trapeze_core::splice::Splice;
use trapeze_core::wire::meta::{self, Care, Meta};
use trapeze_datapath::abi::{
    Flow, FlowState, MARK_ENDS, MARK_MOVING, MARK_PROTECTED, MARK_REFUSED, MARK_RELEASING,
    MARK_TUNNEL, MARK_UNSURE,
};

use crate::look::Extent;
use crate::memory::request_of;

/// What a record says, for who must follow it in user space.
#[derive(Clone, Copy, Debug)]
pub struct Record {
    pub isns: Isns,
    pub slot: u32,
    pub pool: PoolNumber,
    pub epoch: u32,
    pub state: FlowState,
    /// The option for its packets, tag included.
    pub option: meta::Raw,
    /// Its latest request, as its pool's policy saw it.
    pub request: Request,
    /// Where the next request can start, and what is there.
    pub next: ClientSeq,
    /// Where its latest request starts, as far as is known.
    pub began: ClientSeq,
    pub expected: Expected,
    /// Requests given to the owner since its setup.
    pub requests: u32,
    /// The number of our SYN-ACK.
    pub cookie: ServerSeq,
    /// MARK_*.
    pub marks: u32,
    /// When its latest request was placed, by CLOCK_MONOTONIC.
    pub asked: Duration,
    /// Where the owner's server listens.
    pub server_port: u16,
    /// What the client has acknowledged, and the window field that came with it.
    pub heard: ServerSeq,
    pub window: u16,
    /// Some of the answer to its latest request is among that.
    pub is_answered: bool,
    /// The slot of the owner before, and how many requests that had been given.
    pub previous: u32,
    pub requests_before: u32,
    /// The dispatcher that made it; unspecified: this one, alone.
    pub maker: Ipv4Addr,
    /// How it is spliced, where its backend has no agent.
    pub splice: Option<Splice>,
    /// Its owner has answered all that it has been given, and the client had all up to here.
    pub idle_end: Option<ServerSeq>,
    /// It has answered all but the latest request, and its answers until then end here.
    pub latest_from: Option<ServerSeq>,
    /// So had the owner before, when the flow began to move on.
    pub was_idle: bool,
    /// An answer that may outlive its owner.
    pub protected: Option<Protected>,
}

/// An answer that may outlive its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Protected {
    /// Behind its last byte; `None`: unknown, or too far away for a word.
    pub end: Option<ServerSeq>,
}

impl Record {
    /// Has it a backend, whatever its client has said?
    pub fn has_backend(&self) -> bool {
        !matches!(self.state, FlowState::Reading | FlowState::Vacant)
    }

    /// Are these the server's numbers of a beginning before its latest one? Each vacancy is a new beginning, and
    /// until then lies what this connection has had. Another connection's numbers are drawn by chance.
    pub fn has_left(&self, server_isn: ServerSeq) -> bool {
        let had = |isn: ServerSeq| self.cookie.distance_to(isn).cast_unsigned();
        had(server_isn) < had(self.isns.server)
    }

    /// May a backend have it to which connections get so? None without an agent while an
    /// owner before still sends: nobody there would keep the two apart.
    pub fn may_go_to(&self, transfer: Transfer) -> bool {
        transfer == Transfer::Rebuild || self.predecessor().is_none()
    }

    /// Is its backend one without an agent? What that says comes by dispatchers.
    pub fn is_heard_here(&self) -> bool {
        self.splice.is_some_and(|splice| !splice.split)
    }

    /// What was chosen for its latest request: pool, request and slot.
    pub fn tried(&self) -> (PoolNumber, &Request, u32) {
        (self.pool, &self.request, self.slot)
    }

    /// The owner before, if it came to this one by a half-pipe.
    pub fn predecessor(&self) -> Option<Ipv4Addr> {
        let [a, b, c, d] = [20, 21, 22, 23].map(|at| self.option[at]);
        Some(Ipv4Addr::new(a, b, c, d)).filter(|address| !address.is_unspecified())
    }

    /// Do its packets go by way of the owner before? As in bpf/lib/boundary.bpf.h.
    pub fn is_moving(&self) -> bool {
        self.marks & MARK_REFUSED != 0
            || self.marks & MARK_MOVING != 0 && self.heard.at_or_before(self.isns.server + 1)
    }

    /// How far its owner's first request goes, for another one: the record knows.
    pub fn again(&self) -> Extent {
        let care = Meta::decode(&self.option).map_or(Care::default(), |meta| meta.care);
        Extent {
            next: None,
            is_head: care.head,
            is_last: !care.outlive,
            is_kept: false,
            is_copied: false,
        }
    }

    /// Where the server's numbers are, if its owner owes nothing as far as its own word and
    /// the client's go: the next request can begin there at any backend.
    pub fn is_idle_at(&self) -> Option<ServerSeq> {
        let at_rest = self.has_backend()
            && self.expected == Expected::Head
            && !self.is_tunnel()
            && !self.is_moving();
        self.idle_end.filter(|&end| at_rest && end == self.heard)
    }

    /// Does the client's connection outlive a server that closes without owing anything?
    pub fn outlives(&self) -> bool {
        Meta::decode(&self.option).is_ok_and(|meta| meta.care.outlive)
    }

    /// Has its owner been asked to give it up?
    pub fn is_releasing(&self) -> bool {
        self.marks & MARK_RELEASING != 0
    }

    /// May it have been given requests of which only the dispatcher knows that kept it before?
    pub fn is_unsure(&self) -> bool {
        self.marks & MARK_UNSURE != 0
    }

    /// Is what comes at the boundary the first that its owner is given, as far as is known?
    pub fn is_unstarted(&self) -> bool {
        self.requests == 0
            && self.has_backend()
            && self.splice.is_none()
            && self.next == self.isns.client + 1
    }

    /// Is its owner to be asked before anything is read at the boundary?
    pub fn is_to_be_asked(&self) -> bool {
        self.is_unsure() || self.expected.is_for_its_owner_to_say() && !self.is_tunnel()
    }

    /// Has it no boundaries?
    pub fn is_tunnel(&self) -> bool {
        self.marks & MARK_TUNNEL != 0
    }

    /// None: it is in no state that we know.
    pub fn read(flow: &Flow) -> Option<Self> {
        let epoch_of =
            |option: &meta::Raw| u32::from_be_bytes([option[4], option[5], option[6], option[7]]);
        let idle = |epoch: u32, requests: u32| {
            flow.idle_requests != 0 && (flow.idle_epoch, flow.idle_requests) == (epoch, requests)
        };
        Some(Self {
            isns: Isns {
                client: ClientSeq::new(flow.client_isn),
                server: ServerSeq::new(flow.server_isn),
            },
            slot: flow.backend,
            pool: PoolNumber(flow.pool as u16),
            epoch: epoch_of(&flow.meta),
            state: FlowState::from_raw(flow.state)?,
            option: flow.meta,
            request: request_of(flow.object, flow.kind, flow.class, flow.charge_us),
            next: ClientSeq::new(flow.next),
            began: ClientSeq::new(flow.began),
            expected: Expected::from_number(flow.expect)?,
            requests: flow.requests,
            cookie: ServerSeq::new(flow.cookie),
            marks: flow.marks,
            server_port: u16::from_be_bytes([flow.meta[16], flow.meta[17]]),
            asked: Duration::from_nanos(flow.asked_ns),
            heard: ServerSeq::new(flow.last_ack),
            window: flow.window as u16,
            is_answered: flow.is_answered(),
            previous: flow.previous,
            requests_before: flow.requests_before,
            maker: flow.maker.into(),
            splice: flow.splice.terms(),
            idle_end: idle(epoch_of(&flow.meta), flow.requests)
                .then_some(ServerSeq::new(flow.idle_end)),
            latest_from: (flow.requests.checked_sub(1))
                .is_some_and(|before| idle(epoch_of(&flow.meta), before))
                .then_some(ServerSeq::new(flow.idle_end)),
            was_idle: flow.before[0] != 0
                && idle(epoch_of(&flow.before), flow.requests_before)
                && flow.idle_end == flow.server_isn.wrapping_add(1),
            protected: (flow.marks & MARK_PROTECTED != 0).then(|| Protected {
                end: (flow.marks & MARK_ENDS != 0).then_some(ServerSeq::new(flow.answer_end)),
            }),
        })
    }
}
