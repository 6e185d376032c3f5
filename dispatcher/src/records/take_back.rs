//! Moves that the data path has begun, and that an owner has refused
//! (docs/protocol/handoff.md 4.4).

use std::io;

use trapeze_core::flow::FlowKey;
use trapeze_core::head::Expected;
use trapeze_core::seq::ClientSeq;
use trapeze_core::wire::meta;
use trapeze_datapath::abi::{
    Flow, FlowState, MARK_HELD, MARK_MOVING, MARK_PIPELINES, MARK_REFUSED, MARK_SHORT,
    MARK_SHORT_BEFORE,
};

use super::{Record, Records};

/// How an owner is told to give up, or has been told: docs/protocol/handoff.md §3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TakenBack {
    /// The record is again that of the owner before; the other was to have been this
    /// backend, which has `charge_us` less to do.
    Yes {
        slot: u32,
        server_port: u16,
        charge_us: u32,
    },
    /// The word is late, or about something else.
    No,
}

impl Records {
    /// An owner that the data path has passed over has not given the flow up: it has it
    /// again. `restored` makes an option for it where the record has none any more.
    pub fn take_back(
        &self,
        key: &FlowKey,
        moved: (u32, ClientSeq),
        owner: u32,
        requests: u16,
        restored: impl Fn(&Record) -> Option<meta::Raw>,
    ) -> io::Result<TakenBack> {
        let mut taken = TakenBack::No;
        let mut had = owner;
        let flow = self.exchange(key, |flow| {
            had = flow.backend;
            let (flow, back) = taken_back(flow, moved, owner, requests, &restored)?;
            taken = back;
            Some(flow)
        })?;
        let Some(flow) = flow else {
            return Ok(TakenBack::No);
        };
        if flow.state == FlowState::Established as u32 && had != owner {
            self.loads.closed(had);
            self.loads.opened(owner, 0);
        }
        if let TakenBack::Yes { charge_us, .. } = taken {
            self.loads.finished(had, charge_us);
        }
        Ok(taken)
    }
}

/// The record of [`Records::take_back`], and who was to have had it.
fn taken_back(
    flow: &Flow,
    (epoch, start): (u32, ClientSeq),
    owner: u32,
    requests: u16,
    restored: impl Fn(&Record) -> Option<meta::Raw>,
) -> Option<(Flow, TakenBack)> {
    let of = |raw: &meta::Raw| {
        let word = |at: usize| u32::from_be_bytes([raw[at], raw[at + 1], raw[at + 2], raw[at + 3]]);
        (word(4), ClientSeq::new(word(8)))
    };
    let last = flow.marks & MARK_SHORT != 0 && of(&flow.meta) == (epoch, start);
    let before = flow.marks & MARK_SHORT_BEFORE != 0 && of(&flow.before) == (epoch, start);
    let record = Record::read(flow).filter(|_| last || before)?;
    let (slot, option) = match last {
        true => (flow.backend, flow.meta),
        false => (flow.previous, flow.before),
    };
    let refused = TakenBack::Yes {
        slot,
        server_port: u16::from_be_bytes([option[16], option[17]]),
        charge_us: flow.charge_us,
    };
    let known = last && flow.before[0] != 0 && flow.previous == owner;
    let option = match known {
        true => flow.before,
        false => restored(&record)?,
    };
    let mut flow = *flow;
    flow.meta = option;
    flow.backend = owner;
    flow.client_isn = of(&option).1.raw().wrapping_sub(1);
    if known {
        flow.server_isn = flow.server_isn_before;
    }
    flow.requests = match known {
        true => flow.requests_before,
        false => requests.into(),
    };
    flow.next = start.raw();
    flow.expect = Expected::Head.number();
    let was_short = known && flow.marks & MARK_SHORT_BEFORE != 0;
    flow.marks &= !(MARK_MOVING | MARK_REFUSED | MARK_SHORT | MARK_SHORT_BEFORE);
    flow.marks |= MARK_HELD | MARK_PIPELINES | if was_short { MARK_SHORT } else { 0 };
    flow.before = [0; 32];
    // What the data path has placed nobody wants to hear of.
    (flow.charge_us, flow.report) = (0, 0);
    Some((flow, refused))
}
