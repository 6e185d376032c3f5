//! Servers that close: owing nothing, and the flow is vacant; or owing an answer, and its client
//! hears the FIN (docs/protocol/handoff.md 7.2), unless another backend goes on with that.

use std::time::Duration;

use trapeze_core::head::Expected;
use trapeze_core::intake::{Answer, Arrived, Body, Isns};
use trapeze_core::seq::ServerSeq;
use trapeze_core::wire::meta::{Meta, Vacancy};
use trapeze_core::wire::tcp::Flags;
use trapeze_datapath::abi::{FlowState, MARK_HELD, MARK_MOVING};

use super::State;
use crate::records::Vacated;

impl State {
    /// A server has closed, and its owner says that nothing is owed.
    pub(super) fn on_vacated(
        &mut self,
        now: Duration,
        meta: &Meta,
        inner: &[u8],
        (end, vacancy): (ServerSeq, Vacancy),
    ) {
        let Ok(mut arrived) = Arrived::parse(meta, inner) else {
            return self.count("malformed");
        };
        // A packet of the client's, which was for nobody.
        if vacancy == Vacancy::Anew {
            arrived.payload = &[];
            arrived.header.seq = meta.start.raw();
            arrived.header.flags = arrived.header.flags.without(Flags::FIN);
        }
        let records = &self.shared.records;
        // It has answered whatever its socket has had.
        let known = records.reckon(&arrived.key, meta.epoch, Some((meta.start, meta.requests)));
        if known.is_err() {
            self.count("record-failures");
        }
        let records = &self.shared.records;
        match records.vacate(&arrived.key, meta.epoch, meta.requests, meta.start, end) {
            Ok(Some(vacated)) => self.on_vacant(&vacated),
            Ok(None) => self.on_gone(now, meta, arrived, (end, vacancy)),
            Err(_) => self.count("record-failures"),
        }
    }

    /// A server has closed that owes something, or has not read all of what it has
    /// answered: its client hears the FIN (docs/protocol/handoff.md 7.2).
    fn on_gone(
        &mut self,
        now: Duration,
        meta: &Meta,
        mut arrived: Arrived<'_>,
        (end, vacancy): (ServerSeq, Vacancy),
    ) {
        let key = arrived.key;
        let Ok(Some(record)) = self.shared.records.get(&key) else {
            return;
        };
        // What its client has heard was no answer.
        if vacancy == Vacancy::Kept && record.epoch == meta.epoch {
            self.on_not_begun(&key, meta.epoch, end);
        }
        if vacancy != Vacancy::Anew && self.closes_on_kept(now, meta, &key, &record) {
            return;
        }
        let unanswered = (record.requests as u16).wrapping_sub(meta.requests);
        // The client's own FIN counts in what the server has had.
        let has_fin = record.state == FlowState::ClientFin;
        let has_come = (record.next == meta.start || has_fin && record.next + 1 == meta.start)
            && record.expected == Expected::Head;
        // What comes begins no request, and an answer is owed that will not come.
        let is_stray = vacancy == Vacancy::Anew
            && !has_come
            && unanswered != 0
            && (unanswered != 1 || record.began != meta.start)
            && record.heard.at_or_before(end);
        // What is held here, and brings no request's beginning there, waits for nobody any more.
        let work = match vacancy {
            Vacancy::Anew => MARK_MOVING,
            Vacancy::Closed | Vacancy::Kept => MARK_HELD | MARK_MOVING,
        };
        // What waits behind an answer that outlives its server is asked again with it.
        let waits_behind = vacancy == Vacancy::Closed
            && record.epoch == meta.epoch
            && record.marks & work == MARK_HELD
            && unanswered != 0;
        if waits_behind && self.takes_over(now, &key, &record) {
            return;
        }
        let at_work = record.marks & work != 0;
        if record.epoch != meta.epoch
            || !record.has_backend()
            || at_work
            || has_come == (unanswered == 0) && !is_stray
        {
            return self.count("late-vacancies");
        }
        if self.takes_over(now, &key, &record) {
            return;
        }
        let Ok(agreed) = Meta::decode(&record.option) else {
            return;
        };
        if let Some(waiting) = self.waiting.end(&key) {
            self.not_moved(&waiting.target);
        }
        self.count("closed-by-server");
        let isns = Isns {
            client: meta.start + u32::MAX,
            server: end + u32::MAX,
        };
        arrived.isns = isns;
        arrived.handshake = agreed.handshake;
        // It was the server's segment: its clock is what the client echoes.
        if vacancy != Vacancy::Anew
            && let Some(clocks) = &mut arrived.header.options.timestamps
        {
            std::mem::swap(&mut clocks.value, &mut clocks.echo);
        }
        self.answer_ourselves(now, &arrived, Answer::Close, Body::Full);
    }

    /// No backend has the flow any more, and none is to have it.
    pub(super) fn answer_ourselves(
        &mut self,
        now: Duration,
        arrived: &Arrived<'_>,
        answer: Answer,
        body: Body,
    ) {
        let read = (self.shared.records).read_on(&arrived.key, arrived.isns, arrived.handshake);
        self.tell(read.ok().flatten());
        self.intake.answer(now, arrived, answer, body);
        self.act();
    }

    pub(super) fn on_vacant(&mut self, vacated: &Vacated) {
        self.count("vacated");
        self.tell(vacated.finished);
    }
}
