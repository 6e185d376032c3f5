//! Flows whose owner has died in the midst of an answer, which another one goes on with
//! (docs/protocol/takeover.md).

use std::io;

use trapeze_core::flow::FlowKey;
use trapeze_core::seq::{ClientSeq, ServerSeq};
use trapeze_datapath::abi::{
    Flow, FlowState, MARK_ENDS, MARK_HELD, MARK_LOST, MARK_PROTECTED, MARK_TAKING,
};
use trapeze_datapath::clock;

use super::{Assigned, Assignment, Protected, Record, Records};

impl Records {
    /// An answer may outlive its owner: what is asked ahead of its end, if that is known, is the
    /// daemon's to keep. No answer: none does any more.
    pub fn protect(&self, key: &FlowKey, epoch: u32, answer: Option<Protected>) -> io::Result<()> {
        self.change(key, |flow| {
            if Record::read(flow).is_some_and(|record| record.epoch == epoch) {
                flow.marks &= !(MARK_PROTECTED | MARK_ENDS);
                match answer {
                    Some(Protected { end: Some(end) }) => {
                        flow.marks |= MARK_PROTECTED | MARK_ENDS;
                        flow.answer_end = end.raw();
                    }
                    Some(Protected { end: None }) => flow.marks |= MARK_PROTECTED,
                    None => {}
                }
            }
        })
        .map(drop)
    }

    /// What the client says of a flow is the daemon's to hear, or not any more. False: its
    /// owner is another one.
    pub fn taking(&self, key: &FlowKey, epoch: u32, taking: bool) -> io::Result<bool> {
        let mut is_meant = false;
        self.change(key, |flow| {
            is_meant = Record::read(flow).is_some_and(|record| record.epoch == epoch);
            match (is_meant, taking) {
                (true, true) => flow.marks |= MARK_TAKING,
                (true, false) => flow.marks &= !(MARK_TAKING | MARK_LOST),
                _ => {}
            }
        })?;
        Ok(is_meant)
    }

    /// Another backend goes on with the answer, in this epoch: what it is told takes the
    /// place of the last bytes before the boundary: that of the record, which is `next`, or an earlier one,
    /// where its owner has been given more. None: the flow has changed.
    pub fn take_over(
        &self,
        to: &Assignment<'_>,
        later: u32,
        (epoch, next): (u32, ClientSeq),
    ) -> io::Result<Option<Assigned>> {
        self.give_to(to, later, |flow, old| {
            flow.last_seq = old.last_seq;
            let is_meant = |record: Record| record.epoch == epoch && record.has_backend();
            Record::read(old).is_some_and(is_meant) && old.next == next.raw()
        })
    }

    /// The client has had all of the answer that was in progress: nothing is owed, but for what
    /// was asked ahead of that and lies behind `boundary`, which is nobody's.
    pub fn owes_nothing(
        &self,
        key: &FlowKey,
        (epoch, answers): (u32, u16),
        boundary: ClientSeq,
        end: ServerSeq,
    ) -> io::Result<()> {
        self.change(key, |flow| {
            if Record::read(flow).is_some_and(|record| record.epoch == epoch) {
                flow.marks &= !MARK_TAKING;
                flow.requests -= u32::from((flow.requests as u16).wrapping_sub(answers));
                if flow.next != boundary.raw() {
                    flow.next = boundary.raw();
                    flow.marks |= MARK_HELD;
                }
                flow.idle_end = end.raw();
                flow.idle_epoch = epoch;
                flow.idle_requests = flow.requests;
                flow.idle_from = boundary.raw();
                flow.idle_heard = 1;
            }
        })
        .map(drop)
    }

    /// Nobody can go on with it. The record as it was, of a client that is to be reset.
    pub fn abandon(&self, key: &FlowKey, epoch: u32) -> io::Result<Option<Flow>> {
        self.reset_with(key, epoch, 0)
    }

    /// Its backend has been silent for so long that nobody will ever answer. What its client says from now on is the
    /// daemon's to hear: it may be somewhere else than it is known to be.
    /// The record as it was.
    pub fn lose(&self, key: &FlowKey, epoch: u32) -> io::Result<Option<Flow>> {
        self.reset_with(key, epoch, MARK_TAKING | MARK_LOST)
    }

    fn reset_with(&self, key: &FlowKey, epoch: u32, marks: u32) -> io::Result<Option<Flow>> {
        let mut lost = None;
        self.exchange(key, |flow| {
            lost = None;
            let record = Record::read(flow)?;
            if record.epoch != epoch || !record.has_backend() {
                return None;
            }
            lost = Some(*flow);
            Some(Flow {
                state: FlowState::Reset as u32,
                marks: flow.marks & !MARK_TAKING | marks,
                last_seen_ns: clock::monotonic().as_nanos() as u64,
                ..*flow
            })
        })?;
        if let Some(flow) = lost.filter(|flow| flow.state == FlowState::Established as u32) {
            self.loads.closed(flow.backend);
        }
        Ok(lost)
    }
}
