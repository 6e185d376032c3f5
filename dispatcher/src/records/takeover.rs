//! Flows whose owner has died in the midst of an answer, which another one goes on with
//! (docs/protocol/takeover.md).

use std::io;

use trapeze_core::flow::FlowKey;
use trapeze_core::seq::ServerSeq;
use trapeze_datapath::abi::{Flow, FlowState, MARK_TAKING};
use trapeze_datapath::clock;

use super::assignment::inherit;
use super::{Assigned, Assignment, Record, Records};

impl Records {
    /// What the client says of a flow is the daemon's to hear, or not any more. False: its
    /// owner is another one.
    pub fn taking(&self, key: &FlowKey, epoch: u32, taking: bool) -> io::Result<bool> {
        let mut is_meant = false;
        self.change(key, |flow| {
            is_meant = Record::read(flow).is_some_and(|record| record.epoch == epoch);
            match (is_meant, taking) {
                (true, true) => flow.marks |= MARK_TAKING,
                (true, false) => flow.marks &= !MARK_TAKING,
                _ => {}
            }
        })?;
        Ok(is_meant)
    }

    /// Another backend goes on with the answer, in the next epoch: what it is told takes the
    /// place of the last bytes before the boundary. None: the flow has changed.
    pub fn take_over(&self, to: &Assignment<'_>, epoch: u32) -> io::Result<Option<Assigned>> {
        let made = to.flow(epoch.wrapping_add(1));
        let mut left = None;
        let moved = self.exchange(&to.key, |old| {
            let record = Record::read(old)?;
            if record.epoch != epoch || old.next != made.next || !record.has_backend() {
                return None;
            }
            left = Some((old.state, old.backend, old.charge_us, self.finished(old)));
            let mut flow = made;
            inherit(&mut flow, old);
            flow.last_ack = old.last_ack;
            flow.window = old.window;
            flow.last_seq = old.last_seq;
            flow.state = old.state;
            Some(flow)
        })?;
        let (Some(flow), Some((state, owner, charge_us, finished))) = (moved, left) else {
            return Ok(None);
        };
        let charge = to.choice.placed.charge_us;
        if state == FlowState::Established as u32 {
            self.loads.closed(owner);
            self.loads.opened(to.choice.slot, charge);
        } else {
            self.loads.charged(to.choice.slot, charge);
        }
        self.loads.finished(owner, charge_us);
        Ok(Record::read(&flow).map(|record| Assigned {
            record,
            is_new: true,
            finished,
        }))
    }

    /// The client has had all of the answer that was in progress: nothing is owed.
    pub fn owes_nothing(&self, key: &FlowKey, epoch: u32, end: ServerSeq) -> io::Result<()> {
        self.change(key, |flow| {
            if Record::read(flow).is_some_and(|record| record.epoch == epoch) {
                flow.marks &= !MARK_TAKING;
                flow.idle_end = end.raw();
                flow.idle_epoch = epoch;
                flow.idle_requests = flow.requests;
            }
        })
        .map(drop)
    }

    /// Nobody can go on with it. The record as it was, of a client that is to be reset.
    pub fn abandon(&self, key: &FlowKey, epoch: u32) -> io::Result<Option<Flow>> {
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
                marks: flow.marks & !MARK_TAKING,
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
