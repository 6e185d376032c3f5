//! Answers whose owners have died and of which nothing is left, or which nobody goes on with
//! (docs/protocol/takeover.md 4.7).

use std::time::Duration;

use trapeze_core::flow::FlowKey;
use trapeze_core::intake::Arrived;
use trapeze_core::seq::{ClientSeq, ServerSeq};
use trapeze_core::wire::tcp::Flags;
use trapeze_datapath::abi::MARK_LOST;

use super::State;
use super::planned::LATER;
use super::support::Stage;
use crate::records::Record;

/// A client's window reaches no further (bpf/lib/boundary.bpf.h).
const PLAUSIBLE_SEQ: u32 = 1 << 26;

impl State {
    /// It is over.
    pub(super) fn let_be(&mut self, key: &FlowKey) {
        if let Some(taking) = self.takings.all.remove(key) {
            let _ = (self.shared.records).taking(key, taking.kept.state.epoch, false);
        }
    }

    /// The client has had all of it; or something that nobody knows.
    pub(super) fn on_nothing_left(
        &mut self,
        now: Duration,
        key: &FlowKey,
        record: &Record,
        heard: ServerSeq,
    ) {
        let Some(taking) = self.takings.all.get(key) else {
            return;
        };
        let (state, boundary) = (&taking.kept.state, taking.boundary);
        let whole = state.whole();
        let (had, answer, has_more) = (state.before(heard), state.answer, boundary != record.next);
        // Its connection has closed behind it.
        if whole.is_some_and(|whole| had == Some(whole + 1)) && !has_more {
            return self.let_be(key);
        }
        if whole.is_none() || had < whole || had > whole && !has_more {
            return self.stop_taking(now, key, "its client is somewhere else");
        }
        // Nobody has told of that yet, and so nobody can go on with it.
        if had > whole {
            return self.stop_taking(now, key, "its client has begun to hear the next answer");
        }
        let Some(taking) = self.takings.all.remove(key) else {
            return;
        };
        let answered = (record.epoch, answer);
        if (self
            .shared
            .records
            .owes_nothing(key, answered, boundary, heard))
        .is_err()
        {
            return self.count("record-failures");
        }
        self.ask_again(
            now,
            key,
            (boundary, &taking.heard),
            &taking.kept.ahead.bytes,
        );
    }

    /// It is not taken over. A client that waits for bytes which will not come is told.
    pub(super) fn stop_taking(&mut self, now: Duration, key: &FlowKey, why: &str) {
        let taking = self.takings.all.get(key);
        if taking.is_some_and(|t| t.plan.is_some() && matches!(t.stage, Stage::Asking)) {
            return self.leave_with_owner(key, now + LATER);
        }
        let Some(taking) = self.takings.all.remove(key) else {
            return;
        };
        let epoch = taking.kept.state.epoch;
        let was_silent = now.saturating_sub(taking.kept.said);
        eprintln!("{key:?}: its answer is not gone on with after {was_silent:?}: {why}");
        self.count("not-taken-over");
        self.abandon(key, epoch);
    }

    /// A client whose backend will never answer says something, and so where it is: a reset is believed there
    /// alone (RFC 5961 §3.2). False: it has a backend.
    pub(super) fn hears_of_loss(&mut self, arrived: &Arrived<'_>) -> bool {
        let record = self.shared.records.get(&arrived.key).ok().flatten();
        let Some(record) = record.filter(|record| record.marks & MARK_LOST != 0) else {
            return false;
        };
        let header = &arrived.header;
        let (seq, ack) = (ClientSeq::new(header.seq), ServerSeq::new(header.ack));
        let end = seq + arrived.payload.len() as u32 + u32::from(header.flags.has(Flags::FIN));
        // Else it is a word of another connection of that port, as far as can be known.
        let is_near = record.next.distance_to(end).unsigned_abs() < PLAUSIBLE_SEQ;
        // Which acknowledges nothing where its connection is gone.
        if is_near && header.flags.has(Flags::RST) {
            let _ = (self.shared.records).taking(&arrived.key, record.epoch, false);
        } else if is_near && record.heard.at_or_before(ack) {
            self.reset_client_at(&arrived.key, ack, end);
        }
        true
    }

    pub(super) fn abandon(&mut self, key: &FlowKey, epoch: u32) {
        match self.shared.records.abandon(key, epoch) {
            Ok(Some(flow)) => self.reset_client(key, &flow),
            Ok(None) => {}
            Err(_) => self.count("record-failures"),
        }
    }
}
