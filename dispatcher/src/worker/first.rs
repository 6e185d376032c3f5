//! First requests: of connections that have no backend, or whose backend has closed.

use std::net::Ipv4Addr;
use std::time::Duration;

use trapeze_core::intake::{Answer, Arrived, Body, Outcome, Released};
use trapeze_core::seq::{ClientSeq, ServerSeq};
use trapeze_core::splice::Splice;
use trapeze_core::wire::meta::Meta;
use trapeze_datapath::abi::FlowState;

use super::State;
use crate::cluster::{Choice, Decision};
use crate::look::{Extent, Found, Later, Look};
use crate::records::{Assignment, Record};

/// What the flow's 4-tuple has had before.
#[derive(Clone, Copy)]
pub(super) enum Before {
    Nothing,
    /// Another connection, of this epoch.
    Older(u32),
    /// This connection, at a backend that refused it, in this epoch, and the owner before
    /// that one, if it came by a half-pipe.
    Refused(u32, Option<Ipv4Addr>),
}

impl Before {
    pub(super) fn of(request: &Meta) -> Self {
        match request.epoch {
            0 => Self::Nothing,
            epoch => Self::Older(epoch),
        }
    }

    fn older(self) -> Option<u32> {
        match self {
            Self::Older(epoch) => Some(epoch),
            _ => None,
        }
    }

    fn refused(self) -> Option<u32> {
        match self {
            Self::Refused(epoch, _) => Some(epoch),
            _ => None,
        }
    }
}

impl State {
    pub(super) fn on_request(&mut self, now: Duration, meta: &Meta, inner: &[u8]) {
        let Ok(mut arrived) = Arrived::parse(meta, inner) else {
            return self.count("malformed");
        };
        self.end_before(now, &arrived.key, arrived.isns);
        self.read_on(now, &arrived.key);
        match self.shared.records.get(&arrived.key) {
            // It may have been on its way here while its flow was decided, and come twice.
            Ok(Some(record)) if record.isns == arrived.isns => {
                arrived.cookie = record.cookie;
                if record.has_backend() {
                    return self.pass_on(now, &record, arrived, inner);
                }
                self.begin_anew(now, &arrived);
            }
            // Or even while its request was answered, and its server closed.
            Ok(Some(record)) if record.has_left(arrived.isns.server) => {
                return self.count("late-packets");
            }
            _ => {}
        }
        if self.waits_for_server(&arrived) {
            return;
        }
        match self.take(now, &arrived, None) {
            Outcome::Complete(Found::Request(Decision::To(choice), extent))
            | Outcome::Decide(Found::Request(Decision::To(choice), extent))
                if self.connects(now, &arrived, &choice, Before::of(meta), extent) => {}
            Outcome::Complete(Found::Request(Decision::To(choice), extent)) => {
                let given = (arrived.payload, extent);
                if let Some(record) = self.give(now, &arrived, &choice, Before::of(meta), given) {
                    self.forward(&record, &arrived, inner);
                }
            }
            Outcome::Decide(Found::Request(Decision::To(choice), extent)) => {
                let held = self.held_for_retry(&arrived.key, &choice);
                let given = (&held[..], extent);
                let assigned = self.give(now, &arrived, &choice, Before::of(meta), given);
                if assigned.is_some() {
                    let payload_max = self.payload_max(&arrived.handshake);
                    self.intake.assigned(now, &arrived.key, payload_max);
                    self.go_on(now, &arrived.key);
                }
            }
            Outcome::Complete(Found::Request(Decision::Refuse(answer, body), _))
            | Outcome::Decide(Found::Request(Decision::Refuse(answer, body), _)) => {
                self.intake.answer(now, &arrived, answer, body);
            }
            Outcome::Assigned => {
                if let Some(record) = self.assigned(&arrived) {
                    self.pass_on(now, &record, arrived, inner);
                }
            }
            Outcome::Closed => {
                // A connection without a backend ends as quietly.
                let (key, isns) = (arrived.key, arrived.isns);
                let _ = self.shared.records.end_reading(&key, isns);
            }
            Outcome::Complete(Found::Owners(_)) | Outcome::Decide(Found::Owners(_)) => {
                debug_assert!(false, "a first request has no owner");
            }
            Outcome::Held | Outcome::Answering | Outcome::Ignored(_) => {}
        }
        self.act();
    }

    /// The owner has given the flow up before this request, and nobody has had it since. What was read of it is a connection's
    /// first one: here as a later one's, by the word of another dispatcher that had not heard who keeps it; or here before, and
    /// left to another that keeps it no more.
    fn begin_anew(&mut self, now: Duration, arrived: &Arrived<'_>) {
        let (key, isns) = (&arrived.key, arrived.isns);
        if !self.intake.holds(key) {
            self.read_what_is_left(now, key);
        } else if self.intake.is_reading_later(key, isns.client + 1) {
            let released = Released {
                end: isns.server + 1,
                clock: 0,
                heard: ServerSeq::new(arrived.header.ack),
                window: arrived.header.window,
                half_piped: false,
            };
            self.intake.released(key, &released);
        }
    }

    /// As [`Self::assign`]; `bytes` of the request are kept, if its choice wants that.
    pub(super) fn give(
        &mut self,
        now: Duration,
        arrived: &Arrived<'_>,
        choice: &Choice,
        before: Before,
        (bytes, extent): (&[u8], Extent),
    ) -> Option<Record> {
        let record = self.assign(now, arrived, choice, before, extent)?;
        let (flow, clock) = ((&arrived.key, &record), clock_of(arrived));
        self.keep_given(now, flow, choice, (bytes, &extent), clock);
        Some(record)
    }

    /// Gives a packet to the intake; `later` if its flow has an owner.
    pub(super) fn take(
        &mut self,
        now: Duration,
        arrived: &Arrived<'_>,
        later: Option<Later>,
    ) -> Outcome<Found> {
        let (cluster, shared) = (self.cluster.clone(), self.shared.clone());
        let begins = arrived.isns.client + 1 == ClientSeq::new(arrived.header.seq);
        if later.is_some() && begins && !arrived.payload.is_empty() {
            shared.left_behind.found(&arrived.key);
        }
        let mut look = Look {
            shared: &shared,
            cluster: &cluster,
            decisions: self.decisions,
            key: arrived.key,
            later,
            not_remembered: false,
        };
        let outcome =
            (self.intake).on_packet(now, arrived, |bytes, progress| look.at(bytes, progress));
        if look.not_remembered {
            self.count("not-remembered");
        }
        outcome
    }

    /// The record of the very connection that a packet belongs to, if it has a backend.
    pub(super) fn assigned(&self, arrived: &Arrived<'_>) -> Option<Record> {
        let record = self.shared.records.get(&arrived.key).ok()??;
        (record.isns == arrived.isns && record.has_backend()).then_some(record)
    }

    pub(super) fn assign(
        &mut self,
        now: Duration,
        arrived: &Arrived<'_>,
        choice: &Choice,
        before: Before,
        extent: Extent,
    ) -> Option<Record> {
        self.assign_with(now, arrived, choice, (before, extent), None)
    }

    /// As [`Self::assign`], to a backend without an agent, by that connection.
    pub(super) fn assign_spliced(
        &mut self,
        now: Duration,
        arrived: &Arrived<'_>,
        choice: &Choice,
        request: (Before, Extent),
        splice: Splice,
    ) -> Option<Record> {
        self.assign_with(now, arrived, choice, request, Some(splice))
    }

    /// Has the data path placed another connection from this port, whose client begins further on (RFC 6528 §3), while this
    /// one's request was on its way here?
    fn is_used_again(&self, arrived: &Arrived<'_>) -> bool {
        let record = self.shared.records.get(&arrived.key).ok().flatten();
        record.is_some_and(|record| {
            record.state == FlowState::Established && arrived.isns.client.before(record.isns.client)
        })
    }

    fn assign_with(
        &mut self,
        now: Duration,
        arrived: &Arrived<'_>,
        choice: &Choice,
        (before, extent): (Before, Extent),
        splice: Option<Splice>,
    ) -> Option<Record> {
        if self.is_used_again(arrived) {
            self.count("late-heads");
            self.cluster.not_taken(choice);
            return None;
        }
        let start = arrived.isns.client + 1;
        let (held, has_rest) = match self.intake.head_from(&arrived.key, start) {
            Some(head) => (head.len(), self.intake.has_rest(&arrived.key)),
            // If anything is held, it is a later request.
            None => (arrived.payload.len(), self.intake.holds(&arrived.key)),
        };
        let assignment = Assignment {
            key: arrived.key,
            isns: arrived.isns,
            handshake: arrived.handshake,
            choice,
            keys: &self.cluster.keys,
            after: before.refused(),
            older: before.older(),
            held,
            window: arrived.header.window,
            extent,
            care: match splice {
                Some(_) => self.splice_care(choice, &extent),
                None => (self.cluster).care_ahead(choice.pool, has_rest && extent.is_whole()),
            },
            splice,
            has_rest,
            predecessor: match before {
                Before::Refused(_, predecessor) => predecessor,
                _ => None,
            },
        };
        match self.shared.records.assign(&assignment) {
            Ok(assigned) => {
                self.given.push(arrived.key);
                self.tell(assigned.finished);
                if !assigned.is_new {
                    self.cluster.not_taken(choice);
                }
                if before.refused().is_some() {
                    let next = assigned.record.epoch.wrapping_add(1);
                    self.waiting.follow(&arrived.key, next);
                }
                Some(assigned.record)
            }
            Err(_) => {
                // The table is full: limits.flows.
                self.count("table-full");
                self.cluster.not_taken(choice);
                self.intake
                    .answer(now, arrived, Answer::ServiceUnavailable, Body::Full);
                None
            }
        }
    }
}

/// The owner's clock, which goes on from what the client echoes; 0 without timestamps.
pub(super) fn clock_of(arrived: &Arrived<'_>) -> u32 {
    let clocks = arrived.header.options.timestamps;
    clocks.map_or(0, |clocks| clocks.echo)
}
