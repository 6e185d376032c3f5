//! Requests that have stayed with their owner, or have been moved on, of which the data path alone knows: the
//! others are told a little later, once for all of them. So a record that another dispatcher has told is not
//! all that it has done, and who keeps the flow next asks the owner
//! (docs/protocol/replication.md 4.6).

use std::io;
use std::net::Ipv4Addr;
use std::time::Duration;

use trapeze_core::flow::FlowKey;
use trapeze_core::head::Expected;
use trapeze_core::seq::{ClientSeq, ServerSeq};
use trapeze_core::wire::meta;
use trapeze_datapath::abi::{
    self, Flow, FlowState, MARK_ENDS, MARK_ENTRUSTED, MARK_HELD, MARK_MOVING, MARK_PIPELINES,
    MARK_PROTECTED, MARK_REFUSED, MARK_RELEASING, MARK_SHORT, MARK_SHORT_BEFORE, MARK_STAYED,
    MARK_TAKING, MARK_TUNNEL, MARK_UNSURE,
};

use super::Records;

/// A flow that has one of these goes on at its owner, whatever its record says.
const SETTLED: u32 = MARK_TUNNEL | MARK_TAKING;

/// Of a flow that has one of these, requests are given to its owner by daemons alone, who tell of each.
const DAEMONS: u32 = MARK_PIPELINES | MARK_RELEASING;

/// Who says FIN, and something more after so long, waits for the rest of an answer.
const CLOSES_WITHIN: Duration = Duration::from_nanos(abi::CLOSES_WITHIN_NS);

/// Its heir is told of a connection that lives so long, by the data path that has entrusted it.
const TOLD_WITHIN: Duration = Duration::from_nanos(abi::TRUST_NS);

/// To whom a data path has moved a flow.
#[derive(Clone, Copy, Debug)]
pub struct Moved {
    pub epoch: u32,
    /// Where the first request there starts,
    pub start: ClientSeq,
    /// and where the answer to that begins.
    pub end: ServerSeq,
    pub slot: u32,
    /// Of packets to it.
    pub option: meta::Raw,
}

impl Records {
    /// Tells the others of what has stayed or moved, and of what was entrusted to one of them alone, if they do not
    /// know yet. True: once more in a while, for it is about to move. What has become of a flow that this dispatcher
    /// does not keep any more its keeper asks the owner about, but has to hear that there is one.
    pub fn tell_stay(&self, key: &abi::FlowKey) -> io::Result<bool> {
        if !self.peers.are_there() {
            return Ok(false);
        }
        let keeps = self.peers.keeps(&(*key).into());
        let is_to_be_told = |flow: &Flow| {
            let is_known = flow.marks & MARK_ENTRUSTED == 0 && !self.is_unheard_of(flow);
            flow.marks & MARK_STAYED != 0 && is_of_use(flow) && (keeps || !is_known)
        };
        let changing = self.changing();
        let told = self.swap(&changing, key, |flow| {
            is_to_be_told(flow).then(|| {
                let mut told = *flow;
                match keeps {
                    true => self.raise_version(&mut told),
                    // Its keeper may have a later version by now.
                    false => told.marks &= !(MARK_STAYED | MARK_ENTRUSTED),
                }
                // Its packets need not wait for that: they go where they went.
                told.turn = flow.turn;
                told
            })
        })?;
        if let Some(flow) = &told {
            self.tell(key, flow);
        }
        Ok(told.is_some_and(|flow| flow.marks & MARK_STAYED != 0))
    }

    /// What a keeper that has left has entrusted to this dispatcher others are to hear of, whoever keeps it now: as
    /// that one has made it, for they may have a later version.
    pub fn tell_orphan(&self, key: &abi::FlowKey) -> io::Result<()> {
        let changing = self.changing();
        let told = self.swap(&changing, key, |flow| {
            self.is_orphan(flow).then(|| {
                let mut told = *flow;
                told.marks &= !MARK_ENTRUSTED;
                told
            })
        })?;
        if let Some(flow) = &told {
            self.tell(key, flow);
        }
        Ok(())
    }

    /// Has a keeper that has left placed it, and told its heir alone, which is this dispatcher?
    pub fn is_orphan(&self, flow: &Flow) -> bool {
        // What has stayed here since is told with that.
        let maker = Ipv4Addr::from(flow.maker);
        flow.marks & (MARK_ENTRUSTED | MARK_STAYED) == MARK_ENTRUSTED
            && is_of_use(flow)
            && maker != self.peers.own
            && !self.peers.has_living(maker)
    }

    /// Has the data path here placed it, and nobody been told but its heir?
    fn is_unheard_of(&self, flow: &Flow) -> bool {
        (flow.version, flow.turn) == (1, 0) && flow.maker == self.peers.own.octets()
    }

    /// Has a connection ended that was entrusted to this dispatcher? Its keeper would have told of it otherwise, and is
    /// there to do so.
    pub fn has_ended_untold(&self, flow: &Flow, now: Duration) -> bool {
        let age = now.saturating_sub(Duration::from_nanos(flow.created_ns));
        let maker = Ipv4Addr::from(flow.maker);
        flow.marks & MARK_ENTRUSTED != 0
            && maker != self.peers.own
            && age > TOLD_WITHIN
            && self.peers.has_living(maker)
    }

    /// The flow is there by now; how far that owner has come it is to be asked. False: the record is another one
    /// than that of `epoch`, or that is later.
    pub fn follow(&self, key: &FlowKey, epoch: u32, moved: &Moved) -> io::Result<bool> {
        let mut follows = false;
        let mut left = None;
        let is_later = moved.epoch.wrapping_sub(epoch).cast_signed() > 0;
        self.change(key, |flow| {
            follows =
                is_later && flow.marks & MARK_UNSURE != 0 && flow.meta[4..8] == epoch.to_be_bytes();
            if !follows {
                return;
            }
            left = Some(flow.backend);
            flow.meta = moved.option;
            flow.backend = moved.slot;
            flow.client_isn = moved.start.raw().wrapping_sub(1);
            flow.server_isn = moved.end.raw().wrapping_sub(1);
            flow.next = moved.start.raw();
            flow.began = flow.next;
            // What it has had it is to say itself.
            flow.requests = 0;
            (flow.before, flow.previous, flow.idle_heard) = ([0; 32], 0, 0);
            flow.marks &= !(MARK_MOVING
                | MARK_REFUSED
                | MARK_SHORT
                | MARK_SHORT_BEFORE
                | MARK_PROTECTED
                | MARK_ENDS);
        })?;
        if let Some(left) = left.filter(|_| follows) {
            self.loads.closed(left);
            self.loads.opened(moved.slot, 0);
        }
        Ok(follows)
    }

    /// What the owner has had and answered of a flow that another dispatcher has kept, or that there
    /// is no more of it than its record says; then what follows a request to upgrade, or one whose client has perhaps left
    /// its body away, is its owner's, whatever it is. One that has not had all of such a request yet says nothing of
    /// it: false. Else the record is this dispatcher's from now on: true.
    pub fn reckon(
        &self,
        key: &FlowKey,
        epoch: u32,
        found: Option<(ClientSeq, u16)>,
    ) -> io::Result<bool> {
        let mut is_meant = false;
        self.change(key, |flow| {
            let expected = Expected::from_number(flow.expect).unwrap_or_default();
            let is_owners = expected.is_for_its_owner_to_say();
            is_meant = (flow.marks & MARK_UNSURE != 0 || is_owners)
                && flow.meta[4..8] == epoch.to_be_bytes();
            let has_not_had_all = |(received, _): (ClientSeq, u16)| {
                is_owners && received.before(ClientSeq::new(flow.next))
            };
            is_meant &= !found.is_some_and(has_not_had_all);
            if !is_meant {
                return;
            }
            flow.marks &= !MARK_UNSURE;
            let Some((received, answered)) = found else {
                if is_owners {
                    flow.marks = flow.marks & !MARK_HELD | MARK_TUNNEL;
                }
                return;
            };
            if is_owners {
                flow.expect = Expected::Head.number();
            }
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

/// Will anybody else want to know of it? Not of a connection that its heir alone has been told of, if its client has
/// closed, unless that waits for an answer still.
pub(super) fn is_of_use(flow: &Flow) -> bool {
    let lasted = Duration::from_nanos(flow.last_seen_ns.saturating_sub(flow.created_ns));
    flow.marks & MARK_ENTRUSTED == 0
        || flow.state == FlowState::Established as u32
        || lasted > CLOSES_WITHIN
}

/// May more have become of it than this record tells? What a daemon has told may have been lost; where there is no
/// agent to be asked, it is taken to have come.
pub(super) fn is_unsure(told: &Flow) -> bool {
    let known = match told.splice.terms() {
        None => SETTLED,
        Some(splice) if !splice.split => SETTLED | DAEMONS,
        Some(_) => return false,
    };
    told.state == FlowState::Established as u32
        && told.expect == Expected::Head.number()
        && told.marks & known == 0
}

#[cfg(test)]
mod tests {
    use trapeze_datapath::abi::{Pod, SPLICE_SPLIT, Splice};

    use super::*;

    #[test]
    fn owners_are_asked_after_all_that_was_told_of_heads() {
        let rebuilt = Splice::zeroed();
        let spliced = Splice {
            port: [0, 7],
            ..rebuilt
        };
        let split = Splice {
            changes: SPLICE_SPLIT,
            ..spliced
        };
        let is_asked = |marks, splice| {
            is_unsure(&Flow {
                marks,
                splice,
                state: FlowState::Established as u32,
                expect: Expected::Head.number(),
                ..Flow::zeroed()
            })
        };
        for (marks, rebuilt_is, spliced_is) in [
            (0, true, true),
            (MARK_PIPELINES, true, false),
            (MARK_RELEASING, true, false),
            (MARK_TUNNEL, false, false),
            (MARK_TAKING, false, false),
        ] {
            assert_eq!(is_asked(marks, rebuilt), rebuilt_is, "{marks}");
            assert_eq!(is_asked(marks, spliced), spliced_is, "{marks}");
            assert!(!is_asked(marks, split), "{marks}");
        }
    }
}
