//! What owners have said of idle flows: that they owe nothing. It is what makes the death of
//! such an owner nobody's loss (docs/protocol/handoff.md §9).

use std::io;

use trapeze_core::flow::FlowKey;
use trapeze_core::seq::{ClientSeq, ServerSeq};
use trapeze_datapath::abi::{Flow, MARK_MOVING, MARK_REFUSED, MARK_SHORT, MARK_SHORT_BEFORE};
use trapeze_datapath::clock;

use super::{Record, Records, Vacated};
use crate::inquiry;

impl Records {
    /// The owner has answered all that it was given before `received`, and the client has
    /// all up to `end`. Nothing happens if the client has spoken since it was asked, at
    /// `asked_at`.
    pub fn is_idle(
        &self,
        key: &FlowKey,
        (epoch, asked_at): (u32, ClientSeq),
        received: ClientSeq,
        end: ServerSeq,
    ) -> io::Result<()> {
        let idle = |flow: &Flow| {
            let record = Record::read(flow)?;
            let is_meant = record.epoch == epoch
                && record.next == received
                && inquiry::asked_at(flow) == asked_at.raw();
            // What the client has said last may have gone by way of other dispatchers, who tell
            // of it later (replication.md 4.5): the owner has heard it.
            let heard = ServerSeq::new(flow.last_ack);
            is_meant.then(|| Flow {
                last_ack: heard.later_of(end).raw(),
                idle_end: end.raw(),
                idle_epoch: epoch,
                idle_requests: flow.requests,
                idle_from: received.raw(),
                idle_heard: 1,
                ..*flow
            })
        };
        self.exchange(key, idle).map(drop)
    }

    /// The owner has answered `requests`, modulo 2^16, of those that it was given, and all that came
    /// before `received`; its answers end there. If one more has been given to it, it is known
    /// where the answer to that begins. That the client has all of them is not known yet:
    /// no other dispatcher is told.
    pub fn has_answered(
        &self,
        key: &FlowKey,
        epoch: u32,
        received: ClientSeq,
        requests: u16,
        end: ServerSeq,
    ) -> io::Result<()> {
        let answered = |flow: &Flow| {
            let record = Record::read(flow)?;
            let ahead = (record.requests as u16).wrapping_sub(requests);
            let is_meant = record.epoch == epoch
                && record.splice.is_none()
                && (ahead == 0 && record.next == received
                    || ahead == 1 && record.requests > 1 && record.began == received)
                // Of these the owner has said more.
                && record.idle_end != Some(end);
            is_meant.then(|| Flow {
                idle_end: end.raw(),
                idle_epoch: epoch,
                idle_requests: flow.requests - u32::from(ahead),
                idle_from: received.raw(),
                idle_heard: 0,
                ..*flow
            })
        };
        self.exchange(key, answered).map(drop)
    }

    /// The owner has no socket of this connection any more, and owed nothing: no backend has
    /// the flow, until the next request comes. None: something is owed, as far as is known,
    /// the client is to hear of what its server ends, or the question was about something
    /// else.
    pub fn vacate_idle(
        &self,
        key: &FlowKey,
        epoch: u32,
        asked_at: ClientSeq,
    ) -> io::Result<Option<Vacated>> {
        let Some(end) = self.get(key)?.and_then(|record| record.idle_end) else {
            return Ok(None);
        };
        self.vacate_if(key, end, |flow| {
            Record::read(flow).is_some_and(|record| {
                record.epoch == epoch
                    && record.is_idle_at() == Some(end)
                    && record.outlives()
                    && inquiry::asked_at(flow) == asked_at.raw()
            })
        })
    }

    /// Has its owner been asked there whether it has the flow, and has the client said nothing since?
    pub fn was_asked(&self, key: &FlowKey, asked_at: ClientSeq) -> io::Result<bool> {
        let flow = self.maps.flows.get(&(*key).into())?;
        Ok(flow.is_some_and(|flow| inquiry::asked_at(&flow) == asked_at.raw()))
    }

    /// Its owner has been given the latest request only now.
    pub fn given_anew(&self, key: &FlowKey, epoch: u32) -> io::Result<()> {
        let now = clock::monotonic().as_nanos() as u64;
        self.change(key, |flow| {
            if Record::read(flow).is_some_and(|record| record.epoch == epoch) {
                flow.asked_ns = now;
            }
        })
        .map(drop)
    }

    /// The data path has sent the flow's request by way of an owner that has died, and owed
    /// nothing: it is the next one's from now on, whatever that owner may still say.
    pub fn pass_over(&self, key: &FlowKey, epoch: u32) -> io::Result<bool> {
        let mut is_passed = false;
        self.change(key, |flow| {
            is_passed = Record::read(flow).is_some_and(|record| record.epoch == epoch);
            if is_passed {
                flow.marks &= !(MARK_MOVING | MARK_REFUSED | MARK_SHORT | MARK_SHORT_BEFORE);
                flow.before = [0; 32];
            }
        })?;
        Ok(is_passed)
    }
}
