//! Requests that come back: refused by their backend, returned by one whose server has
//! closed, or never heard of again.

use std::net::{IpAddr, SocketAddrV4};
use std::time::Duration;

use trapeze_core::config::{PoolNumber, Retry};
use trapeze_core::flow::FlowKey;
use trapeze_core::head::{self, Inspection, is_idempotent};
use trapeze_core::intake::{Answer, Arrived, Body, Looked};
use trapeze_core::policy::Request;
use trapeze_core::seq::{ClientSeq, ServerSeq};
use trapeze_core::wire::meta::{Kind, Meta, Refusal};
use trapeze_core::wire::segment::Segment;
use trapeze_datapath::abi::Flow;

use super::State;
use super::first::Before;
use super::support::is_open;
use crate::cluster::Decision;
use crate::farewell;
use crate::pauses;
use crate::records::Record;

/// A backend gives a seat to another flow no sooner after it was taken (bpf/lib/seats.bpf.h).
const SEAT_SETTLES: Duration = Duration::from_secs(1);

impl State {
    /// A backend could not set the connection up: another one may, and if there
    /// is none, the client is told.
    pub(super) fn on_refused(&mut self, now: Duration, meta: &Meta, inner: &[u8], why: Refusal) {
        let Ok(arrived) = Arrived::parse(meta, inner) else {
            return self.count("malformed");
        };
        let key = arrived.key;
        self.give_back(now, meta, arrived, inner, why);
        if why != Refusal::Behind {
            self.send_all_behind(now, &key);
        }
    }

    fn give_back(
        &mut self,
        now: Duration,
        meta: &Meta,
        mut arrived: Arrived<'_>,
        inner: &[u8],
        why: Refusal,
    ) {
        let Ok(Some(record)) = self.shared.records.get(&arrived.key) else {
            return;
        };
        if why == Refusal::Behind {
            return self.on_behind(now, &arrived.key, meta, &record, inner);
        }
        if record.isns.client != arrived.isns.client
            || !record.has_backend()
            || record.epoch != meta.epoch
        {
            return self.count("late-refusals");
        }
        if self.on_taking_refused(now, &arrived.key, meta.epoch) {
            self.is_put_off(now, &arrived.key);
            return self.count("refusals");
        }
        self.count("refusals");
        arrived.isns = record.isns;
        arrived.cookie = record.cookie;
        if why == Refusal::NoSeat {
            return self.on_no_seat(now, &arrived, &record, inner);
        }
        let port = match meta.server_port {
            0 => arrived.key.vip.port(),
            own => own,
        };
        self.shared.health.refused(record.slot, port, why);
        if self.shared.renew_decisions().is_err() {
            self.count("record-failures");
        }
        let start = ClientSeq::new(arrived.header.seq);
        let is_first = start == record.isns.client + 1;
        // It has run there, and what comes back is a repetition whose connection is over.
        if is_first && (record.isns.server + 1).before(record.heard) {
            return self.count("late-refusals");
        }
        if !is_first {
            return self.on_returned(now, meta, inner, &arrived, start);
        }
        let decision = self.decide_again(&arrived, record.tried());
        match (decision, why) {
            (Decision::To(choice), _)
                if choice.slot != record.slot && record.may_go_to(choice.transfer) =>
            {
                let before = Before::Refused(meta.epoch, record.predecessor());
                if self.connects(now, &arrived, &choice, before, record.again()) {
                    return;
                }
                let Some(record) = self.assign(now, &arrived, &choice, before, record.again())
                else {
                    return;
                };
                self.give_again(now, &record, arrived, inner);
            }
            // It is only busy: the client's TCP tries again.
            (_, Refusal::AcceptQueueFull | Refusal::NoSeat) => {}
            (Decision::Refuse(answer, body), _) => self.answer_again(now, &arrived, answer, body),
            (Decision::To(_), _) => {
                self.answer_again(now, &arrived, Answer::ServiceUnavailable, Body::Full);
            }
        }
        self.act();
    }

    /// A backend has no seat for the flow, whose older answers have to reach the client
    /// first: another one may have. Where none has, the request waits.
    fn on_no_seat(&mut self, now: Duration, arrived: &Arrived<'_>, record: &Record, inner: &[u8]) {
        let key = arrived.key;
        let start = ClientSeq::new(arrived.header.seq);
        let pause = self.pauses.after_refusal(now, &key, start);
        // It may have run there, and its seat be another's by now.
        if pause.is_none() && now.saturating_sub(record.asked) >= SEAT_SETTLES {
            return self.count("late-refusals");
        }
        let mut record = *record;
        if let Decision::To(choice) = self.decide_again(arrived, record.tried())
            && choice.slot != record.slot
            && record.may_go_to(choice.transfer)
        {
            let before = Before::Refused(record.epoch, record.predecessor());
            let again = record.again();
            match self.assign(now, arrived, &choice, before, again) {
                Some(assigned) => record = assigned,
                None => return self.act(),
            }
            if pause.is_none() {
                self.give_again(now, &record, *arrived, inner);
                return self.act();
            }
        }
        // What is not held comes again from the client.
        if self.intake.head_from(&key, start).is_some() {
            (self.intake).put_off(now, &key, pause.unwrap_or(pauses::FIRST));
        }
        self.act();
    }

    /// A later request came to a backend whose server had closed, and that could not
    /// set it up as the first one of a new connection (docs/protocol/handoff.md 7.3):
    /// it is placed as that.
    pub(super) fn on_returned(
        &mut self,
        now: Duration,
        meta: &Meta,
        inner: &[u8],
        arrived: &Arrived<'_>,
        start: ClientSeq,
    ) {
        let end = ServerSeq::new(arrived.header.ack);
        let epochs = (meta.epoch, meta.epoch);
        match (self.shared.records).take_request_back(&arrived.key, epochs, start, end) {
            Ok(Some(vacated)) => self.tell(vacated.finished),
            Ok(None) => return self.count("late-refusals"),
            Err(_) => return self.count("record-failures"),
        }
        let request = Meta {
            kind: Kind::Request {
                server_isn: end + u32::MAX,
            },
            start,
            ..*meta
        };
        self.on_request(now, &request, inner);
    }

    /// The client sends its request again and has not heard a word: its backend
    /// has died. What may run twice goes to another one (RFC 9110 §9.2.2).
    pub(super) fn on_unheard(&mut self, now: Duration, meta: &Meta, inner: &[u8]) {
        let Ok(arrived) = Arrived::parse(meta, inner) else {
            return self.count("malformed");
        };
        if self.waits_for_server(&arrived) || self.is_retrying(&arrived.key) {
            return;
        }
        let Some(record) = self.assigned(&arrived) else {
            return;
        };
        if !self.is_gone(&record) {
            if record.is_moving() && self.is_silent(record.previous) {
                return self.pass_over_silent(now, &record, &arrived, inner);
            }
            // It is back, or the request has moved already.
            return self.pass_on(now, &record, arrived, inner);
        }
        self.count("unheard");
        if ClientSeq::new(arrived.header.seq) != arrived.isns.client + 1 {
            self.retry_latest(now, &record, &arrived);
            return self.act();
        }
        self.place_again(now, &record, arrived, inner);
    }

    /// The backend to which a request's held bytes go is silent, and has not said that it has them: their client has been told
    /// that they have come, and will not send them again. True: another one is to have them.
    pub(super) fn is_placed_again(
        &mut self,
        now: Duration,
        key: &FlowKey,
        record: &Record,
    ) -> bool {
        if !record.has_backend()
            || record.splice.is_some()
            || !self.is_gone(record)
            || (record.isns.server + 1).before(record.heard)
            || (self.intake.head_from(key, record.isns.client + 1)).is_none()
        {
            return false;
        }
        let (Some(header), Ok(agreed)) = (self.intake.opening(key), Meta::decode(&record.option))
        else {
            return false;
        };
        let request = Meta {
            kind: Kind::Request {
                server_isn: record.isns.server,
            },
            start: record.isns.client + 1,
            ..agreed
        };
        let packet = Segment::of_client(key, header).to_packet();
        let Ok(mut arrived) = Arrived::parse(&request, &packet) else {
            return false;
        };
        arrived.cookie = record.cookie;
        self.count("unheard");
        self.place_again(now, record, arrived, &[]);
        true
    }

    /// A request that its backend, which is silent, has not acknowledged goes to another one, if it may run twice.
    fn place_again(&mut self, now: Duration, record: &Record, arrived: Arrived<'_>, inner: &[u8]) {
        let bytes = self.head_of(&arrived);
        let may_run_again = match head::inspect(bytes, self.cluster.config.limits.head_bytes) {
            Inspection::Http(head) => {
                let rescue = (self.cluster).rescue(arrived.key.vip, record.pool, &head);
                Some(runs_again(head.method, rescue.retry))
            }
            // Until the handshake is over no request has run.
            Inspection::Tls(_) => Some(true),
            // The rest of it comes again, too, to whoever has the first part.
            Inspection::Incomplete => {
                let method = bytes.split(|byte| *byte == b' ').next().unwrap_or(bytes);
                let method = std::str::from_utf8(method).unwrap_or("");
                let retry = self.cluster.least_retry(record.pool);
                Some(bytes.first() == Some(&head::TLS_HANDSHAKE) || runs_again(method, retry))
            }
            Inspection::H2Preface | Inspection::Bad(_) => None,
        };
        let decision = match may_run_again {
            Some(true) => self.decide_again(&arrived, record.tried()),
            Some(false) => Decision::Refuse(Answer::GatewayTimeout, Body::Full),
            None => Decision::Refuse(Answer::Close, Body::Full),
        };
        match decision {
            Decision::To(choice) if !record.may_go_to(choice.transfer) => {
                self.cluster.not_taken(&choice);
                self.answer_again(now, &arrived, Answer::Close, Body::Full);
            }
            Decision::To(choice) => {
                let before = Before::Refused(record.epoch, record.predecessor());
                if self.connects(now, &arrived, &choice, before, record.again()) {
                    return;
                }
                if let Some(record) = self.assign(now, &arrived, &choice, before, record.again()) {
                    self.give_again(now, &record, arrived, inner);
                }
            }
            Decision::Refuse(answer, body) => self.answer_again(now, &arrived, answer, body),
        }
        self.act();
    }

    /// The head of a request that has come back: as it is held, or of what came.
    fn head_of<'a>(&'a self, arrived: &Arrived<'a>) -> &'a [u8] {
        let start = arrived.isns.client + 1;
        (self.intake.head_from(&arrived.key, start)).unwrap_or(arrived.payload)
    }

    /// Gives a request that has come back to another backend, as its record says.
    fn give_again(&mut self, now: Duration, record: &Record, arrived: Arrived<'_>, inner: &[u8]) {
        let payload_max = self.payload_max(&arrived.handshake);
        if !self.gives_held(now, &arrived, payload_max) {
            self.pass_on(now, record, arrived, inner);
        }
    }

    /// Sends what is held of the request that this packet begins. False: nothing is, or only
    /// what waits behind it.
    pub(super) fn gives_held(&mut self, now: Duration, arrived: &Arrived<'_>, mss: u16) -> bool {
        let start = arrived.isns.client + 1;
        self.intake.head_from(&arrived.key, start).is_some()
            && self.intake.assigned(now, &arrived.key, mss)
    }

    /// Answers a request that has come back, in its server's place. What waits behind it is
    /// nobody's.
    fn answer_again(&mut self, now: Duration, arrived: &Arrived<'_>, answer: Answer, body: Body) {
        if let Some(waiting) = self.waiting.end(&arrived.key) {
            self.not_moved(&waiting.target);
        }
        self.intake.answer(now, arrived, answer, body);
    }

    /// An idle connection's socket has come and gone, perhaps with a reset that the
    /// client has not heard; if nothing was owed, its client keeps it. `asked_at`: where its
    /// backend was asked.
    pub(super) fn on_lost(
        &mut self,
        now: Duration,
        key: &FlowKey,
        epoch: u32,
        asked_at: ClientSeq,
    ) {
        match self.shared.records.vacate_idle(key, epoch, asked_at) {
            Ok(Some(vacated)) => return self.on_vacant(&vacated),
            Ok(None) => {}
            Err(_) => return self.count("record-failures"),
        }
        if self.saves(now, key, epoch, asked_at) || self.loses_kept(now, key, epoch, asked_at) {
            return;
        }
        match self.shared.records.lost(key, epoch, asked_at.raw()) {
            Ok(Some(flow)) => {
                self.count("lost-by-backend");
                self.shared.health.has_reset(flow.backend);
                self.reset_client(key, &flow);
            }
            Ok(None) => {}
            Err(_) => self.count("record-failures"),
        }
    }

    /// Its owner, which has come up anew, has it all the same: its client has repeated the request before that was known.
    pub(super) fn stands_anew(&mut self, key: &FlowKey, epoch: u32) {
        let record = self.shared.records.get(key).ok().flatten();
        let is_taken_for_lost = record.is_some_and(|record| {
            record.epoch == epoch && self.shared.health.has_lost(record.slot, record.asked)
        });
        if is_taken_for_lost && self.shared.records.given_anew(key, epoch).is_err() {
            self.count("record-failures");
        }
    }

    /// Its owner has nothing of it any more: another one goes on with its answer, or is given the request that has
    /// none. False: there is nothing of that to be done.
    fn saves(&mut self, now: Duration, key: &FlowKey, epoch: u32, asked_at: ClientSeq) -> bool {
        if !matches!(self.shared.records.was_asked(key, asked_at), Ok(true)) {
            return false;
        }
        let record = self.shared.records.get(key).ok().flatten();
        let Some(record) = record.filter(|record| record.epoch == epoch && is_open(record)) else {
            return false;
        };
        if self.takes_over(now, key, &record) {
            if let Some(taking) = self.takings.all.get_mut(key) {
                taking.may_return.get_or_insert(record.slot);
            }
            return true;
        }
        self.is_retrying(key)
            || record.heard == record.isns.server + 1
                && (self.unanswered).is_orphan(now, (record.slot, key), epoch)
    }

    /// The client of a record that has ended hears so.
    pub(super) fn reset_client(&mut self, key: &FlowKey, flow: &Flow) {
        let (heard, end) = (flow.last_ack, flow.last_seq);
        self.reset_client_at(key, ServerSeq::new(heard), ClientSeq::new(end));
    }

    /// The client, which has had all up to `heard` and sent all up to `end`, is reset.
    pub(super) fn reset_client_at(&mut self, key: &FlowKey, heard: ServerSeq, end: ClientSeq) {
        if let IpAddr::V4(client) = key.client.ip() {
            let reset = farewell::reset_of_client(key, heard, end);
            self.to_clients
                .push(SocketAddrV4::new(client, 0), |out| reset.write(out));
        }
    }

    /// The backend of that slot was `tried`, chosen from that pool for that request.
    pub(super) fn decide_again(
        &self,
        arrived: &Arrived<'_>,
        (pool, request, slot): (PoolNumber, &Request, u32),
    ) -> Decision {
        let (cluster, health) = (&self.cluster, &self.shared.health);
        cluster.lost(pool, request, slot);
        let inspection = head::inspect(self.head_of(arrived), cluster.config.limits.head_bytes);
        if let Looked::Done(decision) | Looked::Cut(decision, _) = cluster.look(
            health,
            arrived.key.vip,
            arrived.key.client,
            None,
            &inspection,
        ) {
            return decision;
        }
        // Only the first part of a longer head came back: its pool is known.
        debug_assert!(!matches!(inspection, Inspection::Http(_)));
        let port = arrived.key.vip.port();
        let pool = cluster.place_of(pool);
        match pool.and_then(|pool| cluster.choose(health, pool, port, *request)) {
            Some(choice) => Decision::To(choice),
            None => Decision::Refuse(Answer::ServiceUnavailable, Body::Full),
        }
    }
}

/// Whether a request whose server nobody has heard may be given to another one.
pub(super) fn runs_again(method: &str, retry: Retry) -> bool {
    match retry {
        Retry::Never => false,
        Retry::Always => true,
        Retry::Unheard | Retry::Idempotent => is_idempotent(method),
    }
}
