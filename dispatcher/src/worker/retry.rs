//! Requests that their owner has acknowledged, and dies before it says a word of the answer: another
//! backend is given them (docs/protocol/retry.md).
//!
//! ```text
//!  given ──► kept ──(owner dead)──► asking the client ──(it has had nothing)──► as a first request
//! ```

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddrV4};
use std::time::Duration;

use trapeze_core::config::Retry;
use trapeze_core::flow::FlowKey;
use trapeze_core::head::{self, Expected, Inspection};
use trapeze_core::intake::{Answer, Arrived, Assembly, Body, Isns, Outcome};
use trapeze_core::seq::{ClientSeq, ServerSeq};
use trapeze_core::wire::checksum::TcpChecksum;
use trapeze_core::wire::meta::Meta;
use trapeze_core::wire::segment::Segment;
use trapeze_core::wire::tcp::{Flags, Header, Options, Timestamps};
use trapeze_datapath::abi::{FlowState, MARK_LOST, MARK_TAKING};

use super::State;
use super::first::{Before, clock_of};
use super::not_retried::{Complaints, WhyNot};
use super::returned::runs_again;
use super::support::is_open;
use crate::cluster::{Choice, Decision};
use crate::look::{Extent, Found};
use crate::records::{Record, Records, can_be_kept};
use crate::unanswered::{Copied, Given};

/// A client is asked so often, at this and doubling intervals.
const TRIES: u32 = 7;
const FIRST_ASK: Duration = Duration::from_millis(50);
/// So far the next owner's clock is ahead of the dead one's, in milliseconds: should that not be dead,
/// its client drops for as long whatever it says (RFC 7323 §5.3).
const FENCE_MS: u32 = 600_000;
/// A clock that is further ahead looks as if it were behind (RFC 7323 §5.2).
const LONGEST_AGE: Duration = Duration::from_secs(20 * 86_400);

/// Requests whose clients are asked.
#[derive(Debug, Default)]
pub(super) struct Retries {
    all: HashMap<FlowKey, Retrying>,
    pub(super) complaints: Complaints,
}

#[derive(Debug)]
struct Retrying {
    slot: u32,
    given: Given,
    /// What its client hears, if nobody else is to run it.
    instead: Option<Answer>,
    fence: u32,
    tries: u32,
    due: Duration,
}

impl Retries {
    pub(super) fn next_due(&self) -> Option<Duration> {
        self.all.values().map(|retrying| retrying.due).min()
    }
}

impl State {
    /// An owner is given a request, which is the first of its setup, as was chosen for it. `clock` is its own then, 0: it is
    /// not known.
    pub(super) fn keep_given(
        &mut self,
        now: Duration,
        (key, record): (&FlowKey, &Record),
        choice: &Choice,
        (bytes, extent): (&[u8], &Extent),
        clock: u32,
    ) {
        let retry = choice.retry;
        let agreed = Meta::decode(&record.option).map(|meta| meta.handshake);
        let is_plain = agreed.is_ok_and(|agreed| can_be_kept(&agreed))
            && record.requests == 1
            && record.splice.is_none()
            && !record.is_tunnel()
            && clock != 0;
        if !retry.keeps() {
            return;
        }
        let whole = match extent.next {
            Some((at, Expected::Head)) => bytes.get(..at),
            _ => None,
        };
        // What waits beyond a gap its client may not say again.
        let can_be_copied = extent.is_copied && !self.intake.has_gap(key);
        let request = whole.or(can_be_copied.then_some(bytes));
        let is_copied = whole.is_none();
        let Some(expects) = may_run(retry, bytes) else {
            return;
        };
        let request = request.filter(|_| is_plain);
        if extent.is_copied && (request.is_none() || !is_copied) {
            self.copies_no_more(key, record.epoch);
        }
        let Some(request) = request else {
            return self.count("not-kept-requests");
        };
        let given = Given {
            epoch: record.epoch,
            requests: record.requests,
            start: record.isns.client + 1,
            end: record.isns.server + 1,
            clock,
            at: now,
            retries: 0,
            request: Assembly::of(request),
            is_copied,
            expects,
            asked_at: Duration::ZERO,
            is_closed: false,
        };
        match self.unanswered.keep(record.slot, *key, given) {
            true => self.count("kept-requests"),
            false => {
                self.count("not-kept-requests");
                self.copies_no_more(key, record.epoch);
            }
        }
    }

    /// A server has closed on a request, and its client has not heard that. False: it was not to be kept, or
    /// its answer has begun.
    pub(super) fn closes_on_kept(
        &mut self,
        now: Duration,
        meta: &Meta,
        key: &FlowKey,
        record: &Record,
    ) -> bool {
        let is_kept = Meta::decode(&record.option).is_ok_and(|option| option.care.kept);
        if !is_kept || (record.epoch, 0) != (meta.epoch, meta.requests) || !record.has_backend() {
            return false;
        }
        // It closes in the midst of what another one may go on with.
        if self.takings.all.contains_key(key)
            || self.support.has_begun(record.slot, key, record.epoch)
        {
            return false;
        }
        // Its client has been told, or has gone; the socket says so again and again.
        if is_open(record) && !self.is_retried(now, key, record) {
            self.not_retried_as(WhyNot::NotKept);
            self.abandon(key, record.epoch);
        }
        true
    }

    /// Its owner, asked there, has no socket of it any more. True: its latest request is kept, and another
    /// one's turn comes.
    pub(super) fn loses_kept(
        &mut self,
        now: Duration,
        key: &FlowKey,
        epoch: u32,
        asked_at: ClientSeq,
    ) -> bool {
        let lost = (self.shared.records).would_be_lost(key, epoch, asked_at.raw());
        let Ok(Some(record)) = lost else {
            return false;
        };
        let given = self.unanswered.get(record.slot, key);
        given.is_none_or(|given| is_unanswered(&record, record.slot, given))
            && self.is_retried(now, key, &record)
    }

    /// Another backend's turn with that request comes, or has come. False: nothing of it is kept.
    fn is_retried(&mut self, now: Duration, key: &FlowKey, record: &Record) -> bool {
        self.retries.all.contains_key(key)
            || (self.unanswered).is_orphan(now, (record.slot, key), record.epoch)
    }

    /// An owner has said no more than interim answers, up to there.
    pub(super) fn on_not_begun(&mut self, key: &FlowKey, epoch: u32, end: ServerSeq) {
        if let Ok(Some(record)) = self.shared.records.get(key) {
            self.unanswered.begins_at(record.slot, key, epoch, end);
        }
    }

    /// What its client says goes from now on where its record says.
    fn copies_no_more(&mut self, key: &FlowKey, epoch: u32) {
        if self.shared.records.taking(key, epoch, false).is_err() {
            self.count("record-failures");
        }
    }

    /// It is not given to another one.
    fn not_retried(&mut self, key: &FlowKey, given: &Given, why: WhyNot) {
        self.not_retried_as(why);
        match given.is_closed {
            true => self.abandon(key, given.epoch),
            false if given.is_copied => self.copies_no_more(key, given.epoch),
            false => {}
        }
    }

    /// Keeps what goes to the owner of a request that is to be kept, and has not come whole.
    pub(super) fn copy_request(&mut self, now: Duration, record: &Record, arrived: &Arrived<'_>) {
        if record.marks & MARK_TAKING == 0 {
            return;
        }
        let (slot, key, epoch) = (record.slot, &arrived.key, record.epoch);
        // The record may not have heard that yet.
        let heard = record.heard.later_of(ServerSeq::new(arrived.header.ack));
        if (self.unanswered).is_to_be_asked(now, (slot, key), epoch, heard) {
            let header = Header {
                seq: record.next.raw(),
                ack: record.heard.raw(),
                flags: Flags::ACK,
                ..Header::default()
            };
            self.probe(key, record, Segment::of_client(key, header));
        }
        let seq = ClientSeq::new(arrived.header.seq);
        let is_over = match (self.unanswered).copy(slot, key, epoch, (seq, arrived.payload)) {
            Copied::Kept => {
                record.expected == Expected::Head
                    && self.unanswered.ends(slot, key, epoch, record.next)
            }
            Copied::TooMuch => {
                self.count("not-kept-requests");
                true
            }
            // It has been answered, or the daemon before has kept it.
            Copied::Unknown => {
                let peers = &self.shared.peers;
                let is_heard = record.marks & MARK_LOST != 0
                    || self.retries.all.contains_key(key)
                    || self.takings.all.contains_key(key)
                    || record.maker != peers.own && peers.has_living(record.maker);
                !is_heard
            }
        };
        if is_over {
            self.copies_no_more(key, epoch);
        }
    }

    /// The client of an owner that is silent sends its latest request once more, whole; where
    /// the answer to that begins the owner had told. It may have had the request: what has been heard
    /// of it is known after the client has been asked.
    pub(super) fn retry_latest(&mut self, now: Duration, record: &Record, arrived: &Arrived<'_>) {
        let key = arrived.key;
        let request = arrived.payload;
        let clock = clock_of(arrived);
        let Some(end) = record.latest_from.filter(|_| clock != 0) else {
            return;
        };
        let retry = match head::inspect(request, self.cluster.config.limits.head_bytes) {
            Inspection::Http(head) => {
                let rescue = (self.cluster).rescue(key.vip, record.pool, &head);
                runs_again(head.method, rescue.retry)
            }
            _ => false,
        };
        let instead = (!retry).then_some(Answer::GatewayTimeout);
        let given = Given {
            epoch: record.epoch,
            requests: record.requests,
            start: ClientSeq::new(arrived.header.seq),
            end,
            clock,
            // No later did the owner say so.
            at: now.saturating_sub(Records::age(record.epoch).min(LONGEST_AGE)),
            retries: 0,
            request: Assembly::of(request),
            is_copied: false,
            expects: false,
            asked_at: Duration::ZERO,
            is_closed: false,
        };
        if is_unanswered(record, record.slot, &given) {
            self.begin_retrying(now, (record.slot, key), given, instead);
        }
    }

    /// What is held of a flow, if that is kept.
    pub(super) fn held_for_retry(&self, key: &FlowKey, choice: &Choice) -> Vec<u8> {
        match choice.retry.keeps() {
            true => self.intake.head(key).unwrap_or(&[]).to_vec(),
            false => Vec::new(),
        }
    }

    /// Looks for requests whose owners have died, and does what is due of those.
    pub(super) fn on_retries_due(&mut self, now: Duration) {
        let (health, records) = (&self.shared.health, &self.shared.records);
        // Whoever has an older owner before it has its turn once the client has had all of that one's.
        let is_dead = |slot: u32, key: &FlowKey, given: &Given| {
            let record = || records.get(key).ok().flatten();
            let is_dead = health.has_lost(slot, given.at)
                || health.is_dead(slot, || {
                    (self.cluster).number(record()?.pool, slot, key.vip.port())
                });
            is_dead && !record().is_some_and(|record| record.heard.before(record.isns.server + 1))
        };
        let unanswered = |slot: u32, key: &FlowKey, given: &Given| {
            let record = records.get(key).ok().flatten();
            record.is_some_and(|record| {
                is_latest(&record, slot, given)
                    && (has_heard_nothing(&record, given) || record.heard.before(given.end))
            })
        };
        let asking = self.retries.all.len();
        let (due, lost) = (self.unanswered).look(now, asking, is_dead, unanswered);
        for (_, key, given) in lost {
            let why = match given.has_had_enough() {
                true => WhyNot::Tried,
                false => WhyNot::NoTurn,
            };
            self.not_retried(&key, &given, why);
        }
        for (slot, key, given) in due {
            self.begin_retrying(now, (slot, key), given, None);
        }
        let due = (self.retries.all.iter())
            .filter(|(_, retrying)| retrying.due <= now)
            .map(|(key, _)| *key);
        for key in due.collect::<Vec<_>>() {
            self.on_retry_due(now, &key);
        }
        self.retries.complaints.say(now);
    }

    fn begin_retrying(
        &mut self,
        now: Duration,
        (slot, key): (u32, FlowKey),
        mut given: Given,
        instead: Option<Answer>,
    ) {
        let Ok(Some(record)) = self.shared.records.get(&key) else {
            return;
        };
        if given.is_copied {
            // What it has heard may be an interim answer, or not.
            if record.heard != given.end {
                return self.not_retried(&key, &given, WhyNot::HasPart);
            }
            // What is held of its body is kept, too.
            self.intake.forget(&key);
            if record.expected == Expected::Head {
                given.ends(record.next);
            }
        }
        // Its owner has not said yet that it has it.
        if self.intake.head_from(&key, given.start).is_some() && !self.intake.has_rest(&key) {
            self.intake.forget(&key);
        }
        // What has been asked behind it may be in its server's hands, too.
        if self.intake.holds(&key) || self.waiting.get(&key).is_some() {
            return self.not_retried(&key, &given, WhyNot::AskedAhead);
        }
        match self.shared.records.taking(&key, given.epoch, true) {
            Ok(true) => {}
            Ok(false) => return,
            Err(_) => return self.count("record-failures"),
        }
        let since = now.saturating_sub(given.at).as_millis() as u32;
        let fence = given.clock.wrapping_add(since).wrapping_add(FENCE_MS);
        let retrying = Retrying {
            slot,
            // 0 is no clock.
            fence: fence.max(1),
            given,
            instead,
            tries: 0,
            due: now,
        };
        self.retries.all.insert(key, retrying);
    }

    fn on_retry_due(&mut self, now: Duration, key: &FlowKey) {
        let Some(retrying) = self.retries.all.get_mut(key) else {
            return;
        };
        retrying.due = now + FIRST_ASK * (1 << retrying.tries);
        retrying.tries += 1;
        let (slot, tries) = (retrying.slot, retrying.tries);
        let record = self.shared.records.get(key).ok().flatten();
        // It has gone another way, or its client has.
        let record = record.filter(|record| is_unanswered(record, slot, &retrying.given));
        if record.is_none() {
            self.retries.all.remove(key);
            return;
        }
        if tries > TRIES {
            return self.stop_retrying(key, WhyNot::Silent);
        }
        self.ask_what_it_has(key);
    }

    /// Two segments, whose clock is far ahead of the owner's. The first one says nothing and stands where the
    /// answer begins: a client that has had nothing of that takes it, and its clock with it. The second one
    /// is a keep-alive (RFC 1122 §4.2.3.6), and has to be answered.
    fn ask_what_it_has(&mut self, key: &FlowKey) {
        let (Some(retrying), IpAddr::V4(client)) = (self.retries.all.get(key), key.client.ip())
        else {
            return;
        };
        let (end, next) = (retrying.given.end, retrying.given.next());
        let timestamps = Timestamps {
            value: retrying.fence,
            echo: 0,
        };
        let segment = |seq: u32, payload: Vec<u8>| Segment {
            source: key.vip,
            destination: key.client,
            header: Header {
                seq,
                ack: next.raw(),
                // The next owner says what it has room for.
                window: 512,
                flags: Flags::ACK,
                options: Options {
                    timestamps: Some(timestamps),
                    ..Options::default()
                },
                ..Header::default()
            },
            payload,
        };
        let first = segment(end.raw(), Vec::new());
        let second = segment((end + u32::MAX).raw(), vec![0]);
        for question in [first, second] {
            self.to_clients
                .push(SocketAddrV4::new(client, 0), |out| question.write(out));
        }
    }

    /// A client that is asked says something. False: it is not asked.
    pub(super) fn hears_of_retry(&mut self, now: Duration, arrived: &Arrived<'_>) -> bool {
        let key = arrived.key;
        let Some(retrying) = self.retries.all.get(&key) else {
            return false;
        };
        let header = &arrived.header;
        let Ok(Some(record)) = self.shared.records.get(&key) else {
            self.retries.all.remove(&key);
            return false;
        };
        if header.flags.has(Flags::RST) || !is_unanswered(&record, retrying.slot, &retrying.given) {
            self.retries.all.remove(&key);
            let _ = (self.shared.records).taking(&key, record.epoch, false);
            return false;
        }
        let heard_us = (header.options.timestamps).is_some_and(|t| t.echo == retrying.fence);
        let (said, next) = (ClientSeq::new(header.seq), retrying.given.next());
        let is_there = said == next || retrying.given.is_copied && next.before(said);
        // Its word of before, or what is asked ahead: that comes again.
        if !heard_us || !is_there || !arrived.payload.is_empty() {
            return true;
        }
        // It has had a byte of the answer: no other answer can follow that.
        let end = retrying.given.end;
        let mut blocks = header.options.sack.as_slice().iter();
        let has_nothing = header.ack == end.raw()
            // But the octet that it was just sent (RFC 2883 §4).
            && !blocks.any(|&(_, to)| end.before(ServerSeq::new(to)))
            && !header.flags.has(Flags::FIN);
        match has_nothing {
            true => self.retry(now, &record, arrived),
            false => self.stop_retrying(&key, WhyNot::HasPart),
        }
        true
    }

    /// Nobody has said a word of the answer, and who had the request cannot any more.
    fn retry(&mut self, now: Duration, record: &Record, arrived: &Arrived<'_>) {
        let key = arrived.key;
        let Some(retrying) = self.retries.all.remove(&key) else {
            return;
        };
        let Retrying { given, fence, .. } = retrying;
        let _ = (self.shared.records).taking(&key, given.epoch, false);
        // The owner has given up all of that epoch by this word: the next one, which may be the same, has a later one.
        let given_up = given.epoch.wrapping_add(1);
        self.forsake(&key, record, (given_up, given.start), given.end);
        let taken = (self.shared.records).take_request_back(
            &key,
            (given.epoch, given_up),
            given.start,
            given.end,
        );
        match taken {
            Ok(Some(vacated)) => self.tell(vacated.finished),
            Ok(None) => return,
            Err(_) => return self.count("record-failures"),
        }
        let Ok(agreed) = Meta::decode(&record.option) else {
            return;
        };
        let header = &arrived.header;
        // The next owner's clock goes on from there.
        let timestamps = header.options.timestamps.map(|clocks| Timestamps {
            echo: fence,
            ..clocks
        });
        let arrived = Arrived {
            key,
            isns: Isns {
                client: given.start + u32::MAX,
                server: given.end + u32::MAX,
            },
            cookie: record.cookie,
            later: false,
            handshake: agreed.handshake,
            header: Header {
                seq: given.start.raw(),
                ack: given.end.raw(),
                window: header.window,
                flags: Flags::ACK | Flags::PSH,
                options: Options {
                    timestamps,
                    ..Options::default()
                },
                ..Header::default()
            },
            payload: given.request.contiguous(),
            checksum: TcpChecksum::Complete,
        };
        if let Some(answer) = retrying.instead {
            return self.answer_ourselves(now, &arrived, answer, Body::Full);
        }
        self.count("retried");
        self.place_kept(now, &arrived, Before::Older(given_up));
        if let Ok(Some(record)) = self.shared.records.get(&key) {
            (self.unanswered).retried(record.slot, &key, given.retries + 1);
        }
    }

    /// Its client has had a part of the answer, or says nothing that can be used: it hears that no more
    /// will come.
    fn stop_retrying(&mut self, key: &FlowKey, why: WhyNot) {
        if let Some(retrying) = self.retries.all.remove(key) {
            self.not_retried_as(why);
            self.abandon(key, retrying.given.epoch);
        }
    }

    /// A request that its client has been told to have come whole, or so far, is placed as a first one.
    fn place_kept(&mut self, now: Duration, arrived: &Arrived<'_>, before: Before) {
        let key = &arrived.key;
        if !self.intake.restore(now, arrived) {
            self.not_retried_as(WhyNot::NoRoom);
            return self.answer_ourselves(now, arrived, Answer::ServiceUnavailable, Body::Full);
        }
        // The record says that it is read here before it says who has it.
        self.act();
        match self.look_again(now, key, None) {
            Some(Outcome::Decide(Found::Request(Decision::To(choice), extent)))
                if self.connects(now, arrived, &choice, before, extent) => {}
            Some(Outcome::Decide(Found::Request(Decision::To(choice), extent))) => {
                let given = (arrived.payload, extent);
                if (self.give(now, arrived, &choice, before, given)).is_some() {
                    let payload_max = self.payload_max(&arrived.handshake);
                    self.intake.assigned(now, key, payload_max);
                    self.go_on(now, key);
                }
            }
            Some(Outcome::Decide(Found::Request(Decision::Refuse(answer, body), _))) => {
                self.intake.answer(now, arrived, answer, body);
            }
            _ => {}
        }
        self.act();
    }

    /// Is its client asked what it has had?
    pub(super) fn is_retrying(&self, key: &FlowKey) -> bool {
        self.retries.all.contains_key(key)
    }
}

/// Is that request the latest of its owner, and has its client heard nothing of an answer?
fn is_unanswered(record: &Record, slot: u32, given: &Given) -> bool {
    is_latest(record, slot, given) && has_heard_nothing(record, given)
}

fn has_heard_nothing(record: &Record, given: &Given) -> bool {
    record.heard == given.end || given.is_copied && given.expects
}

fn is_latest(record: &Record, slot: u32, given: &Given) -> bool {
    (record.slot, record.epoch, record.requests) == (slot, given.epoch, given.requests)
        && (given.is_copied || (record.next, record.expected) == (given.next(), Expected::Head))
        && record.state == FlowState::Established
        && !record.is_tunnel()
        && !record.is_releasing()
}

/// An owner that has died may have run it. Some: another one may run it, too, and whether its client waits for
/// an interim answer.
fn may_run(retry: Retry, request: &[u8]) -> Option<bool> {
    match head::inspect(request, request.len() + 1) {
        Inspection::Http(head) if retry.keeps_one(&head) => {
            Some(head.header("expect").next().is_some())
        }
        _ => None,
    }
}
