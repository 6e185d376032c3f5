//! Requests that are sent ahead of the end of an answer which may outlive its backend: kept here,
//! and answered when another one goes on with that (docs/protocol/takeover.md §4a).

use std::time::Duration;

use trapeze_core::flow::FlowKey;
use trapeze_core::head::{self, Inspection, is_idempotent};
use trapeze_core::intake::{Arrived, Isns, Kept, Outcome};
use trapeze_core::seq::ClientSeq;
use trapeze_core::takeover::SoftState;
use trapeze_core::wire::checksum::TcpChecksum;
use trapeze_core::wire::meta::Meta;
use trapeze_core::wire::tcp::Header;

use super::State;
use super::later::later;
use crate::look::Extent;
use crate::records::Record;
use crate::support::Ahead;

impl State {
    /// An owner is about to be given the request at the boundary, whose bytes are held here.
    pub(super) fn keep_ahead(
        &mut self,
        now: Duration,
        key: &FlowKey,
        record: &Record,
        extent: &Extent,
    ) {
        if record.protected.is_none() {
            return self.keep_early(now, key, record, extent);
        }
        let kept = self.support.get(record.slot, key);
        let Some(kept) = kept.filter(|kept| !kept.is_over_at(record.heard)) else {
            self.ahead_is_early(now, key, record);
            if (self.shared.records.protect(key, record.epoch, None)).is_err() {
                self.count("record-failures");
            }
            return self.keep_early(now, key, record, extent);
        };
        // Of what may run twice all or nothing is known.
        if record.requests as u16 != kept.state.answer.wrapping_add(kept.ahead.requests)
            || !extent.is_whole()
        {
            return;
        }
        let Some(request) = self.held_request(key, extent) else {
            return;
        };
        let request = request.to_vec();
        match self.support.ask_ahead(record.slot, key, &request) {
            true => self.tell_ahead(record.slot, key),
            false => self.count("support-full"),
        }
    }

    /// The same, where nobody has told of an answer yet: it may be in progress, and worth it.
    fn keep_early(&mut self, now: Duration, key: &FlowKey, record: &Record, extent: &Extent) {
        if !self.cluster.protects(record.pool) {
            return;
        }
        let number = (record.requests as u16).wrapping_add(1);
        let request =
            (extent.is_whole()).then(|| self.held_request(key, extent).map(<[u8]>::to_vec));
        match request.flatten() {
            Some(request) => {
                let given = (record.slot, record.epoch, number);
                self.early.note(now, key, given, &request);
            }
            None => self.early.forget(key),
        }
    }

    /// What was sent ahead of an answer that is over, is being answered, and nobody has told of that yet.
    fn ahead_is_early(&mut self, now: Duration, key: &FlowKey, record: &Record) {
        let Some(kept) = self.support.forget(record.slot, key) else {
            return;
        };
        let (epoch, answer) = (kept.state.epoch, kept.state.answer);
        for (request, behind) in kept.ahead.each().unwrap_or_default().iter().zip(1..) {
            let given = (record.slot, epoch, answer.wrapping_add(behind));
            self.early.note(now, key, given, request);
        }
    }

    /// What an owner says of an answer, with the request that this one has been given for it, and whether that has
    /// changed: where several wait at an owner it does not know which one is whose.
    pub(super) fn completed(&self, key: &FlowKey, mut state: SoftState) -> (SoftState, bool) {
        let record = self.shared.records.get(key).ok().flatten();
        let Some(record) = record.filter(|record| record.epoch == state.epoch) else {
            return (state, false);
        };
        let kept = self.support.get(record.slot, key);
        let kept = kept.filter(|kept| kept.state.epoch == state.epoch);
        let owner = (record.slot, record.epoch);
        let request = kept
            .and_then(|kept| kept.request_of(state.answer))
            .or_else(|| self.early.request(key, owner, state.answer));
        let request = request.filter(|request| *request != state.request);
        let request = request.map(<[u8]>::to_vec);
        let is_completed = request.is_some();
        if let Some(request) = request {
            state.request = request;
        }
        (state, is_completed)
    }

    /// An owner has told of its answer of that number for the first time: what it was given behind that is kept with it.
    pub(super) fn attach_early(&mut self, key: &FlowKey, record: &Record, answer: u16) {
        let given = (record.slot, record.epoch);
        let behind = (self.early).behind(key, given, answer, record.requests as u16);
        let is_first =
            (self.support.get(record.slot, key)).is_some_and(|kept| kept.ahead.requests == 0);
        for request in behind.filter(|_| is_first).unwrap_or_default() {
            // Where there is no room, less is kept than was given, and nobody goes on with it.
            if !self.support.ask_ahead(record.slot, key, &request) {
                return self.count("support-full");
            }
        }
    }

    /// The request that is held at the boundary, if it may run twice.
    fn held_request(&self, key: &FlowKey, extent: &Extent) -> Option<&[u8]> {
        let held = self.intake.head(key).unwrap_or(&[]);
        let request = extent.next.and_then(|(at, _)| held.get(..at));
        request.filter(|request| may_run_twice(request))
    }

    /// Takes what is held of the flow's next requests behind those that its owner was given: they
    /// wait until another one goes on with the answer. False: it cannot be taken.
    pub(super) fn gather_ahead(&mut self, key: &FlowKey, ahead: &mut Ahead) -> bool {
        let Some(pending) = self.intake.pending(key) else {
            return false;
        };
        ahead.bytes.extend_from_slice(pending);
        self.intake.forget(key);
        if let Some(waiting) = self.waiting.end(key) {
            self.not_moved(&waiting.target);
        }
        true
    }

    /// Another one goes on with the answer: what was sent ahead of its end is read as what comes now.
    /// `heard` is the client's latest header.
    pub(super) fn ask_again(
        &mut self,
        now: Duration,
        key: &FlowKey,
        (start, heard): (ClientSeq, &Header),
        bytes: &[u8],
    ) {
        let Ok(Some(record)) = self.shared.records.get(key) else {
            return;
        };
        let Ok(agreed) = Meta::decode(&record.option) else {
            return;
        };
        if bytes.is_empty() || record.next != start {
            return;
        }
        let arrived = Arrived {
            key: *key,
            isns: Isns {
                client: start + u32::MAX,
                server: record.cookie,
            },
            cookie: record.cookie,
            later: true,
            handshake: agreed.handshake,
            header: Header {
                seq: start.raw(),
                ack: record.heard.raw(),
                ..*heard
            },
            payload: bytes,
            checksum: TcpChecksum::Complete,
        };
        if !self.intake.restore(now, &arrived) {
            return self.count("ahead-lost");
        }
        self.count("asked-again");
        // Its client has been told that they have come: whoever keeps the flow next reads on.
        if self.shared.peers.are_there() {
            self.share(Kept {
                key: *key,
                isns: arrived.isns,
                cookie: arrived.cookie,
                later: true,
                handshake: arrived.handshake,
                offset: 0,
                heard: record.heard,
                window: heard.window,
                timestamps: heard.options.timestamps,
                bytes: bytes.to_vec(),
            });
        }
        if let Some(Outcome::Decide(found)) = self.look_again(now, key, later(&record)) {
            self.on_found(now, key, found);
        }
        self.act();
    }
}

/// RFC 9110 §9.2.2: an owner that has died may have run it.
fn may_run_twice(request: &[u8]) -> bool {
    let inspected = head::inspect(request, request.len() + 1);
    matches!(inspected, Inspection::Http(head) if is_idempotent(head.method))
}
