//! Heads that another dispatcher was reading when it died, or when this one came to keep
//! their flows: read on from what it has told its client to have
//! (docs/protocol/replication.md 5.4).

use std::time::Duration;

use trapeze_core::flow::FlowKey;
use trapeze_core::intake::{Arrived, Kept, Outcome};
use trapeze_core::wire::checksum::TcpChecksum;
use trapeze_core::wire::segment::Segment;
use trapeze_core::wire::tcp::{Flags, Header, Options};
use trapeze_datapath::clock;

use super::State;
use super::first::Before;
use super::later::later;
use crate::cluster::Decision;
use crate::look::{Found, Later, Look};

impl State {
    /// Others are to have what a client is about to be told that we have.
    pub(super) fn share(&self, kept: Kept) {
        let (peers, now) = (&self.shared.peers, clock::monotonic());
        peers.tell_head(&kept);
        let limit = self.cluster.config.limits.reading_bytes;
        peers.copies.add(now, peers.own, kept, limit);
    }

    /// Goes on with a head that another dispatcher was reading, if there is one.
    pub(super) fn read_on(&mut self, now: Duration, key: &FlowKey) {
        let Some(kept) = self.shared.peers.copies.take(key, self.shared.peers.own) else {
            return;
        };
        if self.goes_behind_a_taking(key, &kept) {
            return;
        }
        let Ok(record) = self.shared.records.get(key) else {
            return self.count("record-failures");
        };
        let start = kept.isns.client + 1;
        let mut arrived = Arrived {
            key: *key,
            isns: kept.isns,
            cookie: kept.cookie,
            later: kept.later,
            handshake: kept.handshake,
            header: Header {
                seq: start.raw(),
                ack: kept.heard.raw(),
                window: kept.window,
                flags: Flags::ACK | Flags::PSH,
                options: Options {
                    timestamps: kept.timestamps,
                    ..Options::default()
                },
                ..Header::default()
            },
            payload: &kept.bytes,
            checksum: TcpChecksum::Complete,
        };
        let same = record.filter(|record| record.cookie == kept.cookie);
        if let Some(record) = same.filter(|record| record.has_backend()) {
            if !kept.later || start.before(record.next) {
                // Its backend has been told, and perhaps not heard. Where its connection begins
                // with that, it begins behind all that was said before (handoff.md 5.4).
                if start == record.isns.client + 1 {
                    let begins = record.isns.server + 1;
                    arrived.header.ack = kept.heard.later_of(begins).raw();
                }
                let segment = Segment {
                    payload: kept.bytes.clone(),
                    ..Segment::of_client(key, arrived.header)
                };
                return self.forward(&record, &arrived, &segment.to_packet());
            }
        } else if kept.later {
            return;
        }
        if !self.intake.restore(now, &arrived) {
            return;
        }
        self.count("read-on");
        // The record says that it is read here before it says who has it.
        self.act();
        // Who closes meanwhile, as a wedge does at its end, does not make the flow vacant.
        if kept.later {
            let end = start + kept.bytes.len() as u32;
            let _ = self.shared.records.hold(key, end);
        }
        let limit = self.cluster.config.limits.reading_bytes;
        let peers = &self.shared.peers;
        peers.copies.add(now, peers.own, kept.clone(), limit);
        let later = same
            .filter(|_| kept.later)
            .and_then(|record| later(&record));
        match self.look_again(now, key, later) {
            Some(Outcome::Decide(found)) if kept.later => self.on_found(now, key, found),
            Some(Outcome::Decide(Found::Request(Decision::To(choice), extent)))
                if self.connects(now, &arrived, &choice, Before::Nothing, extent) => {}
            Some(Outcome::Decide(Found::Request(Decision::To(choice), extent))) => {
                let before = Before::Nothing;
                if (self.assign(now, &arrived, &choice, before, extent)).is_some() {
                    let payload_max = self.payload_max(&arrived.handshake);
                    self.intake.assigned(now, key, payload_max);
                    self.go_on(now, key);
                }
            }
            Some(Outcome::Decide(Found::Request(Decision::Refuse(answer, body), _))) => {
                self.intake.answer(now, &arrived, answer, body);
            }
            _ => {}
        }
        self.act();
    }

    pub(super) fn look_again(
        &mut self,
        now: Duration,
        key: &FlowKey,
        later: Option<Later>,
    ) -> Option<Outcome<Found>> {
        let (cluster, shared) = (self.cluster.clone(), self.shared.clone());
        let mut look = Look {
            shared: &shared,
            cluster: &cluster,
            decisions: self.decisions,
            key: *key,
            later,
            not_remembered: false,
        };
        (self.intake).resume(now, key, |bytes, progress| look.at(bytes, progress))
    }
}
