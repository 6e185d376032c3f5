//! What owners say that are to give a flow up: not now, here it is, or that what was in the way is over
//! (docs/protocol/handoff.md).

use std::net::{IpAddr, SocketAddrV4};
use std::time::Duration;

use trapeze_core::intake::{Arrived, Isns, Outcome, Released};
use trapeze_core::policy::BackendId;
use trapeze_core::seq::ServerSeq;
use trapeze_core::wire::meta::{Held, Meta};
use trapeze_datapath::abi::{FlowState, MARK_SHORT};

use super::State;
use super::later::{later, starts_at_boundary};
use crate::cluster::{Choice, Decision};
use crate::half_pipes::Older;
use crate::handoff::Target;
use crate::look::Found;
use crate::memory::Placed;
use crate::records::{Assignment, Record, Records, TakenBack};

impl State {
    /// An owner says "not now".
    pub(super) fn on_held(
        &mut self,
        now: Duration,
        meta: &Meta,
        inner: &[u8],
        held: Held,
        from: SocketAddrV4,
    ) {
        let Ok(arrived) = Arrived::parse(meta, inner) else {
            return self.count("malformed");
        };
        let key = arrived.key;
        if let Some(waiting) = self.waiting.find(&key, meta.epoch, meta.start) {
            // An idle connection is asked for once; a request waits for as long as its owner
            // answers the one before.
            let is_nobodys = matches!(waiting.target, Target::Nobody);
            let never = match held {
                Held::Closing => true,
                Held::Stranger => {
                    let record = self.shared.records.get(&key).ok().flatten();
                    // Where the dispatcher has opened the connection, it stood once.
                    let given = match record.filter(|record| record.splice.is_none()) {
                        Some(record) => Records::age(record.epoch),
                        None => Duration::MAX,
                    };
                    self.waiting.is_settled(&key, now, given)
                }
                Held::Answering | Held::Unacknowledged { .. } => false,
            };
            if never || is_nobodys {
                if !never {
                    self.shared.drains.is_answering(now, key);
                }
                self.give_up(now, &key);
            } else {
                self.waiting.heard(now, &key);
            }
            self.act();
            return;
        }
        self.on_passed_over(now, meta, inner, arrived, held, from);
        self.act();
    }

    /// The data path has passed over an owner that cannot give the flow up: the record
    /// is the owner's again, and the request waits here.
    fn on_passed_over(
        &mut self,
        now: Duration,
        meta: &Meta,
        inner: &[u8],
        mut arrived: Arrived<'_>,
        held: Held,
        from: SocketAddrV4,
    ) {
        let key = arrived.key;
        let moved = (meta.epoch, meta.start);
        let taken_back = self.slot_of(IpAddr::V4(*from.ip())).map(|owner| {
            // So that nothing is taken for its request's start.
            let place = (meta.epoch.wrapping_sub(1), meta.start + (3 << 30));
            let restored = |record: &Record| self.option_for(&key, record, *from.ip(), (place, 0));
            (self.shared.records).take_back(&key, moved, owner, meta.requests, restored)
        });
        let Ok(Some(record)) = self.shared.records.get(&key) else {
            return;
        };
        let Some(Ok(TakenBack::Yes {
            slot,
            server_port,
            charge_us,
        })) = taken_back
        else {
            // Late, or of a request behind one that was refused: as if it came now.
            return self.pass_on(now, &record, arrived, inner);
        };
        self.count("held");
        // Nobody has it there, because the move before was refused as well.
        if held == Held::Stranger && record.marks & MARK_SHORT != 0 {
            return;
        }
        starts_at_boundary(&mut arrived, &record);
        let (Outcome::Decide(found) | Outcome::Complete(found)) =
            self.take(now, &arrived, later(&record))
        else {
            return;
        };
        let Found::Request(decision, extent) = found else {
            return self.on_found(now, &key, found);
        };
        let decided = match decision {
            Decision::To(choice) => Target::To(choice),
            Decision::Refuse(answer, body) => Target::Answer(answer, body),
        };
        if held == Held::Closing {
            self.not_moved(&decided);
            return self.keep(now, &key, &record, extent);
        }
        // The same as before: a copy of the packet may still come to the owner, and be
        // sent on by it.
        let placed = Placed {
            charge_us,
            ..Placed::unnoticed(record.request)
        };
        let bound = (self.cluster).choice(record.pool, BackendId(slot as u16), placed);
        let target = match bound.filter(|bound| bound.server_port == server_port) {
            Some(bound) => {
                self.not_moved(&decided);
                let retry = match &decided {
                    Target::To(choice) => choice.retry,
                    _ => bound.retry,
                };
                Target::To(Choice { retry, ..bound })
            }
            None => decided,
        };
        let patience = self.cluster.config.limits.head_timeout;
        self.waiting
            .begin(now, key, moved, target, extent, patience);
    }

    /// An owner has given its flow up.
    pub(super) fn on_released(
        &mut self,
        now: Duration,
        meta: &Meta,
        inner: &[u8],
        (end, drained, clock): (ServerSeq, bool, u32),
    ) {
        let Ok(mut arrived) = Arrived::parse(meta, inner) else {
            return self.count("malformed");
        };
        let key = arrived.key;
        let record = self.shared.records.get(&key).ok().flatten();
        if record.is_some_and(|record| self.end_before(now, &key, record.isns))
            || (self.waiting.find(&key, meta.epoch, meta.start)).is_none()
        {
            return self.count("late-releases");
        }
        let Some(waiting) = self.waiting.end(&key) else {
            return;
        };
        // Nor is anybody to have what its client has asked that has reset it.
        let Some(record) = record.filter(|record| record.state != FlowState::Reset) else {
            self.not_moved(&waiting.target);
            return self.intake.forget(&key);
        };
        // Another dispatcher, that kept the flow before, has moved it.
        if self.is_elsewhere(&record, waiting.epoch) {
            self.count("late-releases");
            return self.read_what_is_left(now, &key);
        }
        let Ok(agreed) = Meta::decode(&record.option) else {
            return;
        };
        let isns = Isns {
            client: waiting.start + u32::MAX,
            server: end + u32::MAX,
        };
        let has_rest = self.intake.has_rest(&key);
        let held = self.intake.head(&key).map_or(0, <[u8]>::len);
        let released = Released {
            end,
            clock,
            heard: record.heard,
            window: record.window,
            half_piped: !drained,
        };
        let given = match &waiting.target {
            Target::To(choice) => self.held_for_retry(&key, choice),
            _ => Vec::new(),
        };
        self.intake.released(&key, &released);
        self.count(if drained { "drained" } else { "half-piped" });
        let choice = match waiting.target {
            Target::To(choice) if choice.transfer.connects() => {
                arrived.isns = isns;
                arrived.cookie = record.cookie;
                arrived.handshake = agreed.handshake;
                return self.splice_released(now, arrived, &waiting, &choice, end);
            }
            Target::To(choice) => choice,
            Target::Nobody => {
                let moved = (waiting.epoch, waiting.start);
                match self.shared.records.vacate_released(&key, moved, end) {
                    Ok(vacated) => self.on_vacant(&vacated),
                    Err(_) => self.count("record-failures"),
                }
                return;
            }
            Target::Answer(answer, body) => {
                arrived.isns = isns;
                arrived.handshake = agreed.handshake;
                return self.answer_ourselves(now, &arrived, answer, body);
            }
        };
        let owner = self.backend_address(record.slot);
        let assignment = Assignment {
            key,
            isns,
            handshake: agreed.handshake,
            choice: &choice,
            keys: &self.cluster.keys,
            after: None,
            older: None,
            held,
            window: record.window,
            extent: waiting.extent,
            care: (self.cluster).care_ahead(choice.pool, has_rest && waiting.extent.is_whole()),
            has_rest,
            predecessor: owner.filter(|_| !drained).map(|owner| *owner.ip()),
            splice: None,
        };
        // The owner before has given up all up to that epoch, itself included.
        let again = u32::from(choice.slot == record.slot);
        let epoch = waiting.epoch.wrapping_add(again);
        match self.shared.records.move_on(&assignment, epoch) {
            Ok(Some(assigned)) => {
                self.given.push(key);
                if !drained {
                    let older = Older {
                        slot: record.slot,
                        epoch: waiting.epoch,
                        start: waiting.start,
                        end,
                    };
                    let half_pipes = &self.shared.records.half_pipes;
                    half_pipes.note(&key, record.cookie, older, record.heard);
                }
                self.tell(assigned.finished);
                let given = (&given[..], &waiting.extent);
                self.keep_given(now, (&key, &assigned.record), &choice, given, clock);
            }
            _ => {
                self.cluster.not_taken(&choice);
                return self.count("record-failures");
            }
        }
        let payload_max = self.payload_max(&agreed.handshake);
        self.intake.assigned(now, &key, payload_max);
        self.act();
        if has_rest {
            self.go_on(now, &key);
            self.act();
        }
    }

    /// What has kept an owner from giving its flow up has changed.
    pub(super) fn on_done(&mut self, now: Duration, meta: &Meta, inner: &[u8]) {
        let Ok(arrived) = Arrived::parse(meta, inner) else {
            return self.count("malformed");
        };
        let waits = self.waiting.get(&arrived.key);
        if waits.is_some_and(|waiting| waiting.epoch == meta.epoch.wrapping_add(1)) {
            self.ask(now, &arrived.key);
        }
    }
}
