//! Flows that have lost their backend, and are given another when their next request comes.

use std::io;

use trapeze_core::flow::FlowKey;
use trapeze_core::head::Expected;
use trapeze_core::seq::{ClientSeq, ServerSeq};
use trapeze_datapath::abi::{
    Finished, Flow, FlowState, MARK_HELD, MARK_MOVING, MARK_PIPELINES, MARK_TUNNEL, Pod, Splice,
};

use super::{Record, Records};

/// A flow has no backend any more.
#[derive(Clone, Copy, Debug)]
pub struct Vacated {
    /// What its latest request has come to, if nobody has been told yet.
    pub finished: Option<Finished>,
}

/// What a backend has no more when a flow leaves it.
struct Left {
    was_open: bool,
    slot: u32,
    charge_us: u32,
    vacated: Vacated,
}

impl Records {
    /// The server has closed, and owes nothing: no backend has the flow, until the next
    /// request comes, which starts at `start`. None: an answer is owed, or a part of the
    /// request, or the word is late.
    pub fn vacate(
        &self,
        key: &FlowKey,
        epoch: u32,
        answers: u16,
        start: ClientSeq,
        end: ServerSeq,
    ) -> io::Result<Option<Vacated>> {
        self.vacate_if(key, end, |flow| {
            Record::read(flow).is_some_and(|record| {
                record.epoch == epoch
                    && record.requests as u16 == answers
                    && record.next == start
                    // The client's FIN may have met the server's: it comes again, for us.
                    && matches!(record.state, FlowState::Established | FlowState::ClientFin)
                    && record.marks & (MARK_HELD | MARK_MOVING | MARK_TUNNEL) == 0
                    && record.expected.is_between_requests()
            })
        })
    }

    /// The owner's server has closed, owing nothing before the flow's latest request,
    /// which starts at `start`, and the owner has given that back: no backend has the
    /// flow, up to the epoch `given_up`. None: the word is late.
    pub fn take_request_back(
        &self,
        key: &FlowKey,
        (epoch, given_up): (u32, u32),
        start: ClientSeq,
        end: ServerSeq,
    ) -> io::Result<Option<Vacated>> {
        self.vacate_if(key, end, |flow| {
            let known = Record::read(flow).is_some_and(|record| {
                record.epoch == epoch
                    && record.has_backend()
                    && record.began == start
                    && start.before(record.next)
            });
            if known {
                flow.meta[4..8].copy_from_slice(&given_up.to_be_bytes());
                flow.next = start.raw();
                flow.expect = Expected::Head.number();
                flow.marks &= !(MARK_HELD | MARK_TUNNEL);
            }
            known
        })
    }

    /// The owner has given the flow up, as it was asked to, and there is no request.
    pub fn vacate_released(
        &self,
        key: &FlowKey,
        (epoch, start): (u32, ClientSeq),
        end: ServerSeq,
    ) -> io::Result<Vacated> {
        let vacated = self.vacate_if(key, end, |flow| {
            if flow.next != start.raw() || flow.state == FlowState::Vacant as u32 {
                return false;
            }
            flow.meta[4..8].copy_from_slice(&epoch.to_be_bytes());
            flow.marks &= MARK_PIPELINES;
            true
        })?;
        Ok(vacated.unwrap_or(Vacated { finished: None }))
    }

    /// No backend has the flow, if `ready` says so, which makes it ready for that.
    pub(super) fn vacate_if(
        &self,
        key: &FlowKey,
        end: ServerSeq,
        mut ready: impl FnMut(&mut Flow) -> bool,
    ) -> io::Result<Option<Vacated>> {
        let mut left = None;
        let changed = self.change(key, |flow| {
            left = ready(flow).then(|| self.leave(flow, end));
        })?;
        Ok(changed.and(left).map(|left| self.left(left)))
    }

    /// Without a backend, from its boundary on, the server's numbers being at `end`.
    fn leave(&self, flow: &mut Flow, end: ServerSeq) -> Left {
        let left = Left {
            was_open: flow.state == FlowState::Established as u32,
            slot: flow.backend,
            charge_us: flow.charge_us,
            vacated: Vacated {
                finished: self.finished(flow),
            },
        };
        (flow.charge_us, flow.report) = (0, 0);
        flow.client_isn = flow.next.wrapping_sub(1);
        flow.server_isn = end.raw().wrapping_sub(1);
        flow.asked_ack = end.raw();
        flow.state = FlowState::Vacant as u32;
        flow.before = [0; 32];
        flow.splice = Splice::zeroed();
        left
    }

    /// Its backend has one less, once the record says so.
    fn left(&self, left: Left) -> Vacated {
        if left.was_open {
            self.loads.closed(left.slot);
        }
        self.loads.finished(left.slot, left.charge_us);
        left.vacated
    }
}
