//! Owners that have died, or seem to have, and owe their clients nothing: the next request
//! goes to another backend at once, without their word (docs/protocol/handoff.md §9).

use std::time::Duration;

use trapeze_core::flow::FlowKey;
use trapeze_core::intake::Arrived;
use trapeze_core::seq::{ClientSeq, ServerSeq};
use trapeze_core::wire::geneve;
use trapeze_core::wire::meta::{Care, Kind, Leave, Meta};
use trapeze_core::wire::segment::Segment;
use trapeze_core::wire::tcp::{Flags, Header};

use super::State;
use crate::handoff::Waiting;
use crate::health;
use crate::records::Record;

impl State {
    /// An owner says that it owes nothing.
    pub(super) fn on_idle(
        &mut self,
        key: &FlowKey,
        asked: (u32, ClientSeq),
        received: ClientSeq,
        end: ServerSeq,
    ) {
        let told = self.shared.records.is_idle(key, asked, received, end);
        if told.is_err() {
            self.count("record-failures");
        }
    }

    /// An owner says where an answer has ended.
    pub(super) fn on_answered(&mut self, meta: &Meta, inner: &[u8], end: ServerSeq) {
        let Ok(arrived) = Arrived::parse(meta, inner) else {
            return self.count("malformed");
        };
        let told = (self.shared.records).has_answered(
            &arrived.key,
            meta.epoch,
            meta.start,
            meta.requests,
            end,
        );
        if told.is_err() {
            self.count("record-failures");
        }
    }

    pub(super) fn is_silent(&self, slot: u32) -> bool {
        self.shared.health.state(slot) == health::State::Silent
    }

    /// Has the flow's owner nothing of it any more, as far as is known: it is silent, or has come up anew since it
    /// was given the latest request?
    pub(super) fn is_gone(&self, record: &Record) -> bool {
        self.is_silent(record.slot) || self.shared.health.has_lost(record.slot, record.asked)
    }

    /// What waits for the word of a silent owner goes on as with its word, if that is known.
    pub(super) fn take_from_silent(
        &mut self,
        now: Duration,
        key: &FlowKey,
        record: &Record,
        waiting: &Waiting,
    ) -> bool {
        let Some(end) = record.is_idle_at() else {
            return false;
        };
        if record.next != waiting.start || !self.is_gone(record) {
            return false;
        }
        self.count("taken-from-silent");
        let moved = (waiting.epoch, waiting.start);
        self.remember_forsaken(key, record, record.slot, moved, record.requests);
        self.as_drained(now, key, record, waiting, (end, 0))
    }

    /// Its owner has given the flow up, drained, which no word of an agent says: on as with RELEASED.
    pub(super) fn as_drained(
        &mut self,
        now: Duration,
        key: &FlowKey,
        record: &Record,
        waiting: &Waiting,
        (end, clock): (ServerSeq, u32),
    ) -> bool {
        let Ok(agreed) = Meta::decode(&record.option) else {
            return false;
        };
        let drained = true;
        let word = Meta {
            kind: Kind::Released {
                end,
                drained,
                clock,
            },
            epoch: waiting.epoch,
            start: waiting.start,
            ..agreed
        };
        let packet = acknowledgement(key, waiting.start, end).to_packet();
        self.on_released(now, &word, &packet, (end, drained, clock));
        true
    }

    /// A request that the data path has sent by way of an owner which does not answer any
    /// more: it is sent on without that, if that one owed nothing.
    pub(super) fn pass_over_silent(
        &mut self,
        now: Duration,
        record: &Record,
        arrived: &Arrived<'_>,
        inner: &[u8],
    ) {
        if !record.was_idle {
            return self.pass_on(now, record, *arrived, inner);
        }
        let key = arrived.key;
        match self.shared.records.pass_over(&key, record.epoch) {
            Ok(true) => {}
            Ok(false) => return,
            Err(_) => return self.count("record-failures"),
        }
        self.count("taken-from-silent");
        let moved = (record.epoch, record.isns.client + 1);
        self.remember_forsaken(&key, record, record.previous, moved, record.requests_before);
        if let Ok(Some(record)) = self.shared.records.get(&key) {
            self.pass_on(now, &record, *arrived, inner);
        }
    }

    /// When it is heard of again, the one that was silent is to give the flow up, in the
    /// epoch in which that went on.
    fn remember_forsaken(
        &self,
        key: &FlowKey,
        record: &Record,
        slot: u32,
        (epoch, start): (u32, ClientSeq),
        requests: u32,
    ) {
        let Some(to) = self.backend_address(slot) else {
            return;
        };
        let release = |agreed: Meta| Meta {
            kind: Kind::Release {
                leave: Leave::Drained,
                reach: start,
            },
            epoch,
            start,
            requests: requests as u16,
            care: Care {
                park: false,
                ..agreed.care
            },
            ..agreed
        };
        let Some(option) = self.sealed_for(*to.ip(), key, record, release) else {
            return;
        };
        let packet = acknowledgement(key, start, record.heard).to_packet();
        let mut datagram = Vec::new();
        geneve::write(&option, &packet, &mut datagram);
        self.shared.forsaken.remember(slot, to, datagram);
    }
}

pub(super) fn acknowledgement(key: &FlowKey, seq: ClientSeq, heard: ServerSeq) -> Segment {
    Segment::of_client(
        key,
        Header {
            seq: seq.raw(),
            ack: heard.raw(),
            flags: Flags::ACK,
            ..Header::default()
        },
    )
}
