//! Requests that leave a server without an agent for another backend: whether it owes nothing is
//! known where what it says comes by, and nobody has to be asked (docs/protocol/splice.md 5.5).

use std::time::Duration;

use trapeze_core::flow::FlowKey;
use trapeze_core::seq::ServerSeq;
use trapeze_core::wire::tcp::{Flags, Header};
use trapeze_datapath::dispatcher::Parted;

use super::State;
use crate::handoff::{Target, Waiting};
use crate::look::Extent;
use crate::records::Record;

impl State {
    /// As [`Self::ask`], of a flow whose server's answers come by here.
    pub(super) fn part(
        &mut self,
        now: Duration,
        key: &FlowKey,
        record: &Record,
        waiting: &Waiting,
    ) {
        // Since others came, what the server says may come by them.
        if !self.hears_servers() {
            return self.stay(now, key, record, waiting);
        }
        let told = self.intake.told(key, waiting.start);
        match self.shared.records.part(key, waiting.start, told) {
            // Nothing of what the server says goes to the client any more. It hears so, by its own number.
            Ok(Parted::Yes { end, clock }) => {
                let reset = Header {
                    seq: waiting.start.raw(),
                    flags: Flags::RST,
                    ..Header::default()
                };
                self.splice(record, reset, Vec::new());
                let clock = self.latest_clock(key, clock);
                self.as_drained(now, key, record, waiting, (ServerSeq::new(end), clock));
            }
            Ok(Parted::NotYet) if matches!(waiting.target, Target::Nobody) => {
                self.shared.drains.is_answering(now, *key);
                self.give_up(now, key);
            }
            // Of one that does not answer any more nothing will come: it waits for as long as for an owner
            // that says nothing.
            Ok(Parted::NotYet) if self.is_silent(record.slot) => {}
            Ok(Parted::NotYet) => self.waiting.heard(now, key),
            Ok(Parted::Never) => self.stay(now, key, record, waiting),
            Err(_) => {
                self.count("record-failures");
                self.stay(now, key, record, waiting);
            }
        }
    }

    /// Whoever has kept the flow since it was told last has heard what its server has said meanwhile (5.7).
    pub(super) fn has_missed_answers(&self, record: &Record) -> bool {
        let peers = &self.shared.peers;
        record.is_heard_here() && peers.are_there() && record.maker != peers.own
    }

    /// Another dispatcher keeps the flow by now, and hears its server; or has kept it, and given that what waits here.
    /// Nobody would arbitrate, as an owner's agent does: who leaves the server takes from it what others have given.
    pub(super) fn is_left_to_another(
        &self,
        record: &Record,
        waiting: &Waiting,
        key: &FlowKey,
    ) -> bool {
        !self.shared.peers.keeps(key) || record.next != waiting.start
    }

    /// Of a server's clock as it was heard here, and as the client echoes it: it may have heard of it
    /// by another dispatcher, too.
    fn latest_clock(&self, key: &FlowKey, heard: u32) -> u32 {
        let echo = (self.intake.opening(key))
            .and_then(|opening| opening.options.timestamps)
            .map_or(0, |clocks| clocks.echo);
        match heard != 0 && echo.wrapping_sub(heard).cast_signed() > 0 {
            true => echo,
            false => heard,
        }
    }

    /// Where the server's answers end nobody knows, now and later.
    fn stay(&mut self, now: Duration, key: &FlowKey, record: &Record, waiting: &Waiting) {
        self.waiting.end(key);
        if matches!(waiting.target, Target::Nobody) {
            self.count("kept");
            return drop(self.shared.records.kept(key));
        }
        self.stay_unheard(now, key, record, &waiting.target, waiting.extent);
    }

    /// The same of a request that does not wait.
    pub(super) fn stay_unheard(
        &mut self,
        now: Duration,
        key: &FlowKey,
        record: &Record,
        target: &Target,
        extent: Extent,
    ) {
        self.count("kept");
        self.not_moved(target);
        let extent = Extent {
            next: None,
            ..extent
        };
        self.give_to_owner(now, key, record, extent, Some(None));
    }
}
