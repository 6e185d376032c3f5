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
use trapeze_core::intake::{Answer, Arrived, Body};
use trapeze_core::seq::{ClientSeq, ServerSeq};
use trapeze_core::wire::meta::{Kind, Meta};
use trapeze_core::wire::segment::Segment;
use trapeze_core::wire::tcp::{Flags, Header, Options, Timestamps};
use trapeze_datapath::abi::FlowState;

use super::State;
use super::first::clock_of;
use super::returned::runs_again;
use crate::cluster::Choice;
use crate::look::Extent;
use crate::records::{Record, Records};
use crate::unanswered::Given;

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
        // What its client has out of order it can say by SACK alone.
        let agreed = Meta::decode(&record.option).map(|meta| meta.handshake);
        let is_plain = agreed.is_ok_and(|agreed| agreed.sack && agreed.timestamps)
            && record.requests == 1
            && record.splice.is_none()
            && !record.is_tunnel()
            && extent.is_whole()
            && clock != 0;
        if !retry.keeps() || !is_plain {
            return;
        }
        let request = extent.next.and_then(|(at, _)| bytes.get(..at));
        let Some(request) = request.filter(|bytes| may_run(retry, bytes)) else {
            return;
        };
        let given = Given {
            epoch: record.epoch,
            requests: record.requests,
            start: record.isns.client + 1,
            end: record.isns.server + 1,
            clock,
            at: now,
            retries: 0,
            request: request.to_vec(),
        };
        match self.unanswered.keep(record.slot, *key, given) {
            true => self.count("kept-requests"),
            false => self.count("not-kept-requests"),
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
            request: request.to_vec(),
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
        let is_dead = |slot: u32, key: &FlowKey| {
            health.is_dead(slot, || {
                let record = records.get(key).ok().flatten()?;
                self.cluster.number(record.pool, slot, key.vip.port())
            })
        };
        let unanswered = |slot: u32, key: &FlowKey, given: &Given| {
            let record = records.get(key).ok().flatten();
            record.is_some_and(|record| is_unanswered(&record, slot, given))
        };
        let asking = self.retries.all.len();
        let (due, lost) = (self.unanswered).look(now, asking, is_dead, unanswered);
        self.count_many("not-retried", lost);
        for (slot, key, given) in due {
            self.begin_retrying(now, (slot, key), given, None);
        }
        let due = (self.retries.all.iter())
            .filter(|(_, retrying)| retrying.due <= now)
            .map(|(key, _)| *key);
        for key in due.collect::<Vec<_>>() {
            self.on_retry_due(now, &key);
        }
    }

    fn begin_retrying(
        &mut self,
        now: Duration,
        (slot, key): (u32, FlowKey),
        given: Given,
        instead: Option<Answer>,
    ) {
        // What has been asked behind it may be in its server's hands, too.
        if self.intake.holds(&key) || self.waiting.get(&key).is_some() {
            return self.count("not-retried");
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
        let Some(record) = record else {
            self.retries.all.remove(key);
            return;
        };
        if tries > TRIES {
            return self.stop_retrying(key);
        }
        self.ask_what_it_has(key, &record);
    }

    /// Two segments, whose clock is far ahead of the owner's. The first one says nothing and stands where the
    /// answer begins: a client that has had nothing of that takes it, and its clock with it. The second one
    /// is a keep-alive (RFC 1122 §4.2.3.6), and has to be answered.
    fn ask_what_it_has(&mut self, key: &FlowKey, record: &Record) {
        let (Some(retrying), IpAddr::V4(client)) = (self.retries.all.get(key), key.client.ip())
        else {
            return;
        };
        let end = retrying.given.end;
        let timestamps = Timestamps {
            value: retrying.fence,
            echo: 0,
        };
        let segment = |seq: u32, payload: Vec<u8>| Segment {
            source: key.vip,
            destination: key.client,
            header: Header {
                seq,
                ack: record.next.raw(),
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
        // Its word of before, or what is asked ahead: that comes again.
        if !heard_us || header.seq != record.next.raw() || !arrived.payload.is_empty() {
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
            false => self.stop_retrying(&key),
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
        let next_epoch = given.epoch.wrapping_add(1);
        self.forsake(&key, record, (next_epoch, given.start), given.end);
        let taken =
            (self.shared.records).take_request_back(&key, given.epoch, given.start, given.end);
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
        let packet = Segment {
            payload: given.request,
            ..Segment::of_client(
                &key,
                Header {
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
            )
        };
        let request = Meta {
            kind: Kind::Request {
                server_isn: given.end + u32::MAX,
            },
            start: given.start,
            epoch: given.epoch,
            ..agreed
        };
        let packet = packet.to_packet();
        if let Some(answer) = retrying.instead {
            if let Ok(arrived) = Arrived::parse(&request, &packet) {
                self.answer_ourselves(now, &arrived, answer, Body::Full);
            }
            return;
        }
        self.count("retried");
        self.on_request(now, &request, &packet);
        if let Ok(Some(record)) = self.shared.records.get(&key) {
            (self.unanswered).retried(record.slot, &key, given.retries + 1);
        }
    }

    /// Its client has had a part of the answer, or says nothing that can be used: it hears that no more
    /// will come.
    fn stop_retrying(&mut self, key: &FlowKey) {
        if let Some(retrying) = self.retries.all.remove(key) {
            self.count("not-retried");
            self.abandon(key, retrying.given.epoch);
        }
    }

    /// Is its client asked what it has had?
    pub(super) fn is_retrying(&self, key: &FlowKey) -> bool {
        self.retries.all.contains_key(key)
    }
}

/// Is that request the latest of its owner, and has its client heard nothing of an answer?
fn is_unanswered(record: &Record, slot: u32, given: &Given) -> bool {
    (record.slot, record.epoch, record.requests) == (slot, given.epoch, given.requests)
        && record.next == given.next()
        && record.heard == given.end
        && record.state == FlowState::Established
        && record.expected == Expected::Head
        && !record.is_tunnel()
        && !record.is_releasing()
}

/// An owner that has died may have run it.
fn may_run(retry: Retry, request: &[u8]) -> bool {
    let inspected = head::inspect(request, request.len() + 1);
    matches!(inspected, Inspection::Http(head) if retry.keeps_one(&head))
}
