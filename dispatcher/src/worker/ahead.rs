//! Requests that are sent ahead of the end of an answer which may outlive its backend: kept here,
//! and answered when another one goes on with that (docs/protocol/takeover.md §4a).

use std::time::Duration;

use trapeze_core::flow::FlowKey;
use trapeze_core::head::{self, Inspection, is_idempotent};
use trapeze_core::intake::{Arrived, Isns, Kept, Outcome};
use trapeze_core::seq::ClientSeq;
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
    pub(super) fn keep_ahead(&mut self, key: &FlowKey, record: &Record, extent: &Extent) {
        if record.protected.is_none() {
            return;
        }
        let kept = self.support.get(record.slot, key);
        let Some(kept) = kept.filter(|kept| !kept.is_over_at(record.heard)) else {
            self.support.forget(record.slot, key);
            if (self.shared.records.protect(key, record.epoch, None)).is_err() {
                self.count("record-failures");
            }
            return;
        };
        // Of what may run twice all or nothing is known.
        if record.requests as u16 != kept.state.answer.wrapping_add(kept.ahead.requests)
            || !extent.is_whole()
        {
            return;
        }
        let held = self.intake.head(key).unwrap_or(&[]);
        let request = extent.next.and_then(|(at, _)| held.get(..at));
        let Some(request) = request.filter(|request| may_run_twice(request)) else {
            return;
        };
        match self.support.ask_ahead(record.slot, key, request) {
            true => self.tell_ahead(record.slot, key),
            false => self.count("support-full"),
        }
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
