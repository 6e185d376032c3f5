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
        self.count("kept");
        self.not_moved(&waiting.target);
        if matches!(waiting.target, Target::Nobody) {
            return drop(self.shared.records.kept(key));
        }
        let extent = Extent {
            next: None,
            ..waiting.extent
        };
        self.give_to_owner(now, key, record, extent, Some(None));
    }
}
