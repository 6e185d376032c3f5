//! Requests that have stayed with their owner, of which the data path alone knows: the others are
//! told a little later, once for all of them. So a record that another dispatcher has told is not
//! all that it has done, and who keeps the flow next asks the owner
//! (docs/protocol/replication.md 4.6).

use std::io;

use trapeze_core::flow::FlowKey;
use trapeze_core::head::Expected;
use trapeze_core::seq::ClientSeq;
use trapeze_datapath::abi::{
    self, Flow, FlowState, MARK_ENDS, MARK_PIPELINES, MARK_PROTECTED, MARK_RELEASING, MARK_STAYED,
    MARK_TAKING, MARK_TUNNEL, MARK_UNSURE,
};

use super::Records;

/// Of a flow that has one of these, requests are given to its owner by daemons alone, who tell of
/// each.
const DAEMONS: u32 = MARK_TUNNEL | MARK_PIPELINES | MARK_RELEASING | MARK_TAKING;

impl Records {
    /// Tells the others of what has stayed, if they do not know yet. What this dispatcher does not
    /// keep any more its keeper asks the owner about.
    pub fn tell_stay(&self, key: &abi::FlowKey) -> io::Result<()> {
        if !self.peers.are_there() || !self.peers.keeps(&(*key).into()) {
            return Ok(());
        }
        let changing = self.changing();
        let told = self.swap(&changing, key, |flow| {
            (flow.marks & MARK_STAYED != 0).then(|| {
                let mut told = *flow;
                self.raise_version(&mut told);
                // Its packets need not wait for that: they go where they went.
                told.turn = flow.turn;
                told
            })
        })?;
        if let Some(flow) = told {
            self.tell(key, &flow);
        }
        Ok(())
    }

    /// What the owner has had and answered of a flow that another dispatcher has kept, or that there
    /// is no more of it than its record says. The record is this dispatcher's from now on: true.
    pub fn reckon(
        &self,
        key: &FlowKey,
        epoch: u32,
        found: Option<(ClientSeq, u16)>,
    ) -> io::Result<bool> {
        let mut is_meant = false;
        self.change(key, |flow| {
            is_meant = flow.marks & MARK_UNSURE != 0 && flow.meta[4..8] == epoch.to_be_bytes();
            if !is_meant {
                return;
            }
            flow.marks &= !MARK_UNSURE;
            let Some((received, answered)) = found else {
                return;
            };
            let more = answered.wrapping_sub(flow.requests as u16).cast_signed();
            if more > 0 && ClientSeq::new(flow.next).before(received) {
                flow.next = received.raw();
                flow.requests = flow.requests.wrapping_add(more.unsigned_abs().into());
                flow.marks &= !(MARK_PROTECTED | MARK_ENDS);
            }
        })?;
        Ok(is_meant)
    }
}

/// May requests have stayed with the owner since this record was told?
pub(super) fn is_unsure(told: &Flow) -> bool {
    told.state == FlowState::Established as u32
        && told.expect == Expected::Head.number()
        && told.marks & DAEMONS == 0
        && told.splice.terms().is_none_or(|splice| !splice.split)
}
