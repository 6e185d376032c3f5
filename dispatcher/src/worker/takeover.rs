//! Heads that another dispatcher was reading when it died, or when this one came to keep
//! their flows: read on from what it has told its client to have
//! (docs/protocol/replication.md 5.4).

use std::time::Duration;

use trapeze_core::flow::FlowKey;
use trapeze_core::intake::{Arrived, Isns, Kept, Outcome};
use trapeze_core::takeover::WEDGE_PORT;
use trapeze_core::wire::checksum::TcpChecksum;
use trapeze_core::wire::segment::Segment;
use trapeze_core::wire::tcp::{Flags, Header, Options, later_clock};
use trapeze_datapath::abi::FlowState;
use trapeze_datapath::clock;

use super::State;
use super::first::Before;
use super::later::later;
use crate::cluster::Decision;
use crate::look::{Found, Later, Look};
use crate::records::Record;

/// Who has been given a request has all of it by then, or it has been repeated.
const GIVEN: Duration = Duration::from_secs(2);
/// Clocks of hosts differ by less, and so long is what was said under way.
const AHEAD: Duration = Duration::from_millis(100);

impl State {
    /// Others are to have what a client is about to be told that we have.
    pub(super) fn share(&self, kept: Kept) {
        self.share_aged(kept, Duration::ZERO);
    }

    /// The same of what it was told `age` ago.
    fn share_aged(&self, kept: Kept, age: Duration) {
        let peers = &self.shared.peers;
        let limit = self.cluster.config.limits.reading_bytes;
        // First: who joins meanwhile is told all that is here, or hears this.
        peers.copies.add(age, peers.own, kept.clone(), limit);
        if self.shared.health.is_deaf() {
            peers.copies.disown_one(&kept.key, peers.own);
        }
        peers.tell_head(&kept, age);
    }

    /// Heads of flows that another dispatcher has come to keep are read there, and requests that are not decided yet
    /// are decided there: what has been acknowledged of them has been told, and the rest comes again from the client.
    pub(super) fn leave_heads(&mut self) {
        for key in self.intake.undecided() {
            self.leave_head(&key);
        }
    }

    /// The same of one. False: its flow is kept here.
    pub(super) fn leave_head(&mut self, key: &FlowKey) -> bool {
        if self.shared.peers.keeps(key) {
            return false;
        }
        if self.intake.is_undecided(key) {
            self.count("left-to-keeper");
            self.leave_to_keeper(key);
        }
        true
    }

    /// Whoever keeps the flow reads on from what its client was told. That may be this dispatcher yet: who joins reads
    /// what is left to it, too.
    pub(super) fn leave_to_keeper(&mut self, key: &FlowKey) {
        self.intake.forget(key);
        let peers = &self.shared.peers;
        peers.copies.disown_one(key, peers.own);
    }

    /// Goes on with a head that another dispatcher was reading, if there is one.
    pub(super) fn read_on(&mut self, now: Duration, key: &FlowKey) {
        if let Some(taken) = self
            .shared
            .peers
            .copies
            .take(now, key, self.shared.peers.own)
        {
            self.read_on_from(now, key, taken);
        }
    }

    /// Another dispatcher has gone on with what is read here. Of what lies behind that the client has been told
    /// that it has arrived.
    pub(super) fn read_what_is_left(&mut self, now: Duration, key: &FlowKey) {
        self.intake.forget(key);
        let copies = &self.shared.peers.copies;
        if self.shared.peers.keeps(key)
            && let Some(taken) = copies.take_any(now, key)
        {
            self.read_on_from(now, key, taken);
        }
    }

    fn read_on_from(&mut self, now: Duration, key: &FlowKey, (kept, said): (Kept, Duration)) {
        let Ok(record) = self.shared.records.get(key) else {
            return self.count("record-failures");
        };
        // A client that uses its port again begins further on (RFC 6528 3).
        if record.as_ref().is_some_and(|record| {
            record.cookie != kept.cookie && !record.isns.client.before(kept.isns.client)
        }) {
            return self.count("late-heads");
        }
        let same = record.filter(|record| record.cookie == kept.cookie);
        let owned = same.filter(|record| record.has_backend());
        let rest = match (&owned, &same) {
            (Some(record), _) => self.repeat_given(now, record, (kept, said)),
            (None, Some(record)) if kept.later => as_first(kept, record.isns),
            (None, _) => Some(kept),
        };
        let Some(kept) = rest else {
            return;
        };
        if self.goes_behind_a_taking(key, &kept) {
            return;
        }
        // Whatever has become of it since, nobody has the flow.
        let is_stale = || kept.later || same.is_some_and(|record| record.isns != kept.isns);
        if owned.is_none() && is_stale() {
            return;
        }
        let start = kept.start();
        let arrived = as_arrived(&kept);
        let later = same
            .filter(|_| kept.later)
            .and_then(|record| later(&record));
        let outcome = if self.intake.restore(now, &arrived) {
            self.count("read-on");
            // The record says that it is read here before it says who has it.
            self.act();
            // Who closes meanwhile, as a wedge does at its end, does not make the flow vacant.
            if kept.later {
                let end = start + kept.bytes.len() as u32;
                let _ = self.shared.records.hold(key, end);
            }
            // Whose connection nobody knows, or is over, is not kept the longer by each that reads it on.
            let lives = |record: &Record| record.state == FlowState::Established;
            let age = match owned.as_ref().is_some_and(lives) {
                true => Duration::ZERO,
                false => now.saturating_sub(said),
            };
            self.share_aged(kept.clone(), age);
            self.look_again(now, key, later)
        } else if self.intake.is_reading(key) {
            // It is read on here already, from what was known before this came.
            Some(self.take(now, &arrived, later))
        } else {
            return;
        };
        match outcome {
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

    /// Repeats to its backend what that has been told to have, and has perhaps not heard. What lies behind the
    /// boundary: nobody has been given that.
    fn repeat_given(
        &mut self,
        now: Duration,
        record: &Record,
        (kept, said): (Kept, Duration),
    ) -> Option<Kept> {
        let start = kept.start();
        if kept.later && !start.before(record.next) {
            return Some(kept);
        }
        let rest = match record.is_tunnel() {
            true => None,
            false => kept.behind(record.next),
        };
        // It has had all of that, if it has answered since: where its connection is over, another backend would run it
        // again. And where a wedge's connection begins are the bytes of what it was told.
        let is_old = || now.saturating_sub(record.asked) > GIVEN;
        let is_over = match record.state {
            FlowState::Established => record.is_answered && is_old(),
            _ => record.is_answered || record.state == FlowState::Reset,
        };
        let is_taken_over = || self.takings.all.contains_key(&kept.key);
        if record.server_port == WEDGE_PORT || is_taken_over() {
            return rest;
        }
        if is_over {
            // Of what lies behind the last boundary that is known its owner may have had nothing, whatever it has answered.
            return match record.is_tunnel() && kept.later {
                true => kept.behind(record.next),
                false => rest,
            };
        }
        let end = kept.bytes.len() - rest.as_ref().map_or(0, |rest| rest.bytes.len());
        let begins = record.isns.client + 1;
        let before = usize::try_from(start.distance_to(begins)).unwrap_or(0);
        let Some(bytes) = kept.bytes.get(before..end).filter(|its| !its.is_empty()) else {
            return rest;
        };
        let mut arrived = as_arrived(&kept);
        arrived.payload = bytes;
        let start = start + before as u32;
        arrived.header.seq = start.raw();
        arrived.isns.client = start + u32::MAX;
        // Where its connection begins with that, it begins behind all that was said before
        // (handoff.md 5.4).
        if start == begins {
            arrived.isns = record.isns;
            let first = record.isns.server + 1;
            arrived.header.ack = kept.heard.later_of(first).raw();
        }
        let payload_max = self.payload_max(&kept.handshake);
        let clock = clock_by_now(&kept, now.saturating_sub(said));
        let behind = rest.as_ref().map(as_arrived);
        // An owner that was asked to give the flow up may have done so, and confirms nothing then.
        if !record.is_releasing()
            && (self.intake).retain(now, &arrived, behind.as_ref(), clock, payload_max)
        {
            self.act();
            self.share(kept);
            return None;
        }
        arrived.header.options = arrived.header.options.aged();
        let segment = Segment {
            payload: bytes.to_vec(),
            ..Segment::of_client(&kept.key, arrived.header)
        };
        self.forward(record, &arrived, &segment.to_packet());
        rest
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

/// A clock that is not behind any that the client can have heard of an owner by now. Each goes on from the one before it,
/// the first from the cluster's (docs/protocol/cookie.md 1.5); `age` ago the client had heard what it echoed.
fn clock_by_now(kept: &Kept, age: Duration) -> u32 {
    let ms = |time: Duration| (time + AHEAD).as_millis() as u32;
    let clusters = ms(clock::cluster());
    match kept.timestamps {
        Some(clocks) => later_clock(clocks.echo.wrapping_add(ms(age)), clusters),
        None => clusters,
    }
}

/// The owner has given the flow up before this request, and nobody has it since: it is as a connection's first one.
/// What lies before that owners have had. None: nothing lies behind.
fn as_first(kept: Kept, isns: Isns) -> Option<Kept> {
    let kept = match kept.start().before(isns.client + 1) {
        true => kept.behind(isns.client + 1)?,
        false => kept,
    };
    if kept.isns.client != isns.client {
        return Some(kept);
    }
    Some(Kept {
        isns,
        later: false,
        heard: kept.heard.later_of(isns.server + 1),
        ..kept
    })
}

/// As if its bytes came now, in a packet.
fn as_arrived(kept: &Kept) -> Arrived<'_> {
    Arrived {
        key: kept.key,
        isns: kept.isns,
        cookie: kept.cookie,
        later: kept.later,
        handshake: kept.handshake,
        header: Header {
            seq: kept.start().raw(),
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
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trapeze_core::flow::Handshake;
    use trapeze_core::seq::{ClientSeq, ServerSeq};

    /// Of a flow that is vacant at 100; two requests of four bytes each were told of as one copy.
    #[test]
    fn of_a_vacant_flow_what_lies_behind_is_its_first_request() {
        let isns = |client: u32, server: u32| Isns {
            client: ClientSeq::new(client),
            server: ServerSeq::new(server),
        };
        let vacant = isns(99, 5000);
        for (what, start, expected) in [
            ("at the vacancy", 100, Some((100, false, "GET1GET2"))),
            ("from before it", 96, Some((100, false, "GET2"))),
            ("all of it before", 92, None),
            (
                "behind it: of another time",
                104,
                Some((104, true, "GET1GET2")),
            ),
        ] {
            let kept = Kept {
                key: FlowKey {
                    client: ([192, 0, 2, 1], 40000).into(),
                    vip: ([198, 51, 100, 7], 80).into(),
                },
                isns: isns(start - 1, 7),
                cookie: ServerSeq::new(7),
                later: true,
                handshake: Handshake::default(),
                offset: 0,
                heard: ServerSeq::new(4000),
                window: 9,
                timestamps: None,
                bytes: b"GET1GET2".to_vec(),
            };
            let first = as_first(kept, vacant);
            let (start, later, bytes) = match &first {
                Some(first) => (first.start().raw(), first.later, &first.bytes[..]),
                None => (0, false, &[][..]),
            };
            let expected = expected.map(|(at, later, bytes)| (at, later, bytes.as_bytes()));
            assert_eq!(
                first.is_some().then_some((start, later, bytes)),
                expected,
                "{what}"
            );
            if let Some(first) = first.filter(|first| !first.later) {
                assert_eq!((first.isns, first.heard.raw()), (vacant, 5001), "{what}");
            }
        }
    }
}
