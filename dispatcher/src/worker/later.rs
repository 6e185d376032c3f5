//! Later requests, of flows that have an owner: cut from the client's stream at its
//! boundaries, given to the owner, or asked of it for another backend (docs/protocol/handoff.md). What the owner
//! says then is worker/given_up.rs.

use std::time::Duration;

use trapeze_core::config::{Handoff, Transfer};
use trapeze_core::flow::FlowKey;
use trapeze_core::head::Expected;
use trapeze_core::intake::{Answer, Arrived, Body, Isns, Outcome};
use trapeze_core::seq::ClientSeq;
use trapeze_core::takeover::WEDGE_PORT;
use trapeze_core::wire::geneve;
use trapeze_core::wire::meta::{Care, Kind, Leave, Meta};
use trapeze_core::wire::segment::Segment;
use trapeze_core::wire::tcp::{Flags, Header};
use trapeze_datapath::abi::{self, EPOCH_LEAD_MAX, MARK_HELD};
use trapeze_datapath::clock;

use super::State;
use super::unheard_owners::would_start_too_early;
use crate::cluster::{Choice, Decision};
use crate::handoff::{Due, Target};
use crate::look::{Extent, Found, Later, Look};
use crate::records::Record;

/// Another dispatcher that has asked an owner to give a flow up, and keeps the flow no
/// more, is to be done with it by then.
pub(super) const ANOTHERS_TURN: Duration = Duration::from_millis(500);

impl State {
    /// Something reaches beyond the boundary of a flow that has an owner.
    pub(super) fn on_next(&mut self, now: Duration, meta: &Meta, inner: &[u8]) {
        let Ok(arrived) = Arrived::parse(meta, inner) else {
            return self.count("malformed");
        };
        if self.hears_of_taking(now, &arrived)
            || self.hears_of_retry(now, &arrived)
            || self.hears_of_loss(&arrived)
            || self.hears_of_half_pipe(&arrived)
        {
            return self.act();
        }
        self.read_on(now, &arrived.key);
        let Ok(Some(record)) = self.shared.records.get(&arrived.key) else {
            return;
        };
        if record.cookie != arrived.cookie {
            return self.count("late-packets");
        }
        self.end_before(now, &arrived.key, record.isns);
        if !self.asks_how_far(now, &record, &arrived, (meta, inner)) {
            self.pass_on(now, &record, arrived, inner);
        }
        self.act();
    }

    /// Gives the part of a packet that lies before the boundary to the owner, and reads
    /// what lies behind.
    pub(super) fn pass_on(
        &mut self,
        now: Duration,
        record: &Record,
        mut arrived: Arrived<'_>,
        inner: &[u8],
    ) {
        self.copy_request(now, record, &arrived);
        let seq = ClientSeq::new(arrived.header.seq);
        let end = seq + arrived.payload.len() as u32;
        // Where nothing was left of what came before it, the data path has been let go on.
        let held = match record.marks & MARK_HELD != 0 || !record.next.before(end) {
            true => None,
            false => self.shared.records.hold(&arrived.key, end).ok().flatten(),
        };
        // The data path has given the port to another connection meanwhile.
        if held.is_some_and(|held| held.cookie != record.cookie) {
            let _ = self.shared.records.let_go(&arrived.key);
            return self.count("late-packets");
        }
        let record = held.as_ref().unwrap_or(record);
        if !record.has_backend() {
            // Else the client's TCP sends it again: then it is a first request's.
            self.waits_for_server(&arrived);
            return;
        }
        if record.is_tunnel() || !record.next.before(end) {
            if record.splice.is_none() && would_start_too_early(record, &arrived) {
                return self.ask_for_client(now, record, &arrived);
            }
            return self.forward(record, &arrived, inner);
        }
        if seq.before(record.next) {
            let before = seq.distance_to(record.next).unsigned_abs() as usize;
            let (owners, rest) = arrived.payload.split_at(before);
            let mut part = arrived;
            part.payload = owners;
            part.header.flags = part.header.flags.without(Flags::FIN);
            self.forward_part(record, &part);
            arrived.payload = rest;
            arrived.header.seq = record.next.raw();
        }
        starts_at_boundary(&mut arrived, record);
        let key = arrived.key;
        let says_more = self.intake.is_news(&arrived);
        match self.take(now, &arrived, later(record)) {
            Outcome::Decide(found) | Outcome::Complete(found) => self.on_found(now, &key, found),
            Outcome::Ignored(_) if !self.intake.holds(&key) => {
                let _ = self.shared.records.let_go(&key);
            }
            _ => {}
        }
        self.act();
        if says_more && self.intake.holds(&key) {
            self.pass_acknowledgement(&arrived);
        }
    }

    /// The bytes of a packet wait here. What it acknowledges does not: the owner may be
    /// waiting for that, to send the rest of its answer.
    fn pass_acknowledgement(&mut self, arrived: &Arrived<'_>) {
        let Ok(Some(record)) = self.shared.records.get(&arrived.key) else {
            return;
        };
        // Of a body that waits for 100-continue the boundary lies beyond what the client has sent: its window would
        // be old news to the owner from then on.
        let end = ClientSeq::new(arrived.header.seq) + arrived.payload.len() as u32;
        let seq = if record.next.before(end) {
            record.next
        } else {
            end
        };
        let segment = Segment::of_client(
            &arrived.key,
            Header {
                seq: seq.raw(),
                flags: Flags::ACK,
                ..arrived.header
            },
        );
        self.send_to_backend(&arrived.key, segment, u16::MAX);
    }

    /// Goes on with what has come behind a request that was assigned.
    pub(super) fn go_on(&mut self, now: Duration, key: &FlowKey) {
        if self.leave_head(key) {
            return;
        }
        let Ok(Some(record)) = self.shared.records.get(key) else {
            return;
        };
        let (cluster, shared) = (self.cluster.clone(), self.shared.clone());
        let mut look = Look {
            shared: &shared,
            cluster: &cluster,
            decisions: self.decisions,
            key: *key,
            later: later(&record),
            not_remembered: false,
        };
        let outcome = (self.intake).resume(now, key, |bytes, progress| look.at(bytes, progress));
        if let Some(Outcome::Decide(found)) = outcome {
            self.on_found(now, key, found);
        }
    }

    /// What starts at the boundary is known.
    pub(super) fn on_found(&mut self, now: Duration, key: &FlowKey, found: Found) {
        let Ok(Some(record)) = self.shared.records.get(key) else {
            return self.intake.forget(key);
        };
        // The data path has given the port to another connection since its head came.
        let is_before = |header: Header| ClientSeq::new(header.seq).before(record.isns.client + 1);
        if self.intake.opening(key).is_some_and(is_before) {
            if let Found::Request(Decision::To(choice), _) = &found {
                self.cluster.not_taken(choice);
            }
            self.count("late-heads");
            return self.intake.forget(key);
        }
        let (decision, extent) = match found {
            Found::Owners(extent) => {
                self.waiting.end(key);
                return self.give_to_owner(now, key, &record, extent, None);
            }
            Found::Request(decision, extent) => (decision, extent),
        };
        // Nobody can tell where its server's answers end, or how far it has come: it stays (docs/protocol/splice.md 5.6,
        // replication.md 4.6a).
        if record.splice.is_some() && (record.is_tunnel() || record.is_to_be_asked()) {
            if let Decision::To(choice) = &decision {
                self.cluster.not_taken(choice);
            }
            let extent = Extent {
                next: None,
                ..extent
            };
            if record.is_to_be_asked() {
                self.know_no_better(key, record.epoch);
            }
            return self.give_to_owner(now, key, &record, extent, Some(None));
        }
        // Who has kept the flow has given it this very request, which has not come there: nobody else brings it, and
        // that owner, which has no such connection, could not give it up. It knows of a HEAD by who gave it that.
        let is_plain = !extent.is_head && !extent.is_last && record.server_port != WEDGE_PORT;
        if record.is_unstarted() && is_plain && !self.is_gone(&record) {
            if let Decision::To(choice) = &decision {
                self.cluster.not_taken(choice);
            }
            self.count("brought-again");
            self.waiting.end(key);
            return self.give_to_owner(now, key, &record, extent, Some(None));
        }
        match decision {
            // An owner knows of a HEAD, and of a last request, only where it is a setup's first.
            Decision::To(choice)
                if (choice.slot, choice.server_port) == (record.slot, record.server_port)
                    && !record.is_releasing()
                    && !extent.is_head
                    && (record.is_heard_here()
                        || !extent.is_last
                            // Where its answer begins is known of a setup's first alone (docs/protocol/retry.md).
                            && !choice.retry.keeps()) =>
            {
                self.count("stayed-with-owner");
                self.give_to_owner(now, key, &record, extent, Some(Some(&choice)));
            }
            Decision::To(choice) => self.release(now, key, &record, Target::To(choice), extent),
            Decision::Refuse(answer, body) => {
                self.release(now, key, &record, Target::Answer(answer, body), extent);
            }
        }
    }

    /// The head of a next request does not come: once its owner owes nothing, the client is
    /// told. If the rest comes before, it is a request like others.
    pub(super) fn on_slow_head(&mut self, key: &FlowKey) {
        let record = self.shared.records.get(key).ok().flatten();
        let starts = self
            .intake
            .opening(key)
            .map(|header| ClientSeq::new(header.seq));
        // What another dispatcher has gone on with is nothing any more.
        let Some(record) =
            record.filter(|record| Some(record.next) == starts && self.shared.peers.keeps(key))
        else {
            if let Some(waiting) = self.waiting.end(key) {
                self.not_moved(&waiting.target);
            }
            return self.intake.forget(key);
        };
        let is_head = record.expected == Expected::Head && self.intake.head(key).is_none();
        if is_head && self.waiting.get(key).is_none() {
            self.count("slow-heads");
            let timeout = Target::Answer(Answer::RequestTimeout, Body::Full);
            let extent = Extent::default();
            self.release(clock::monotonic(), key, &record, timeout, extent);
        }
    }

    /// The owner has what starts at the boundary: a request, if `asked`, and that one
    /// because it was chosen, if that says so.
    pub(super) fn give_to_owner(
        &mut self,
        now: Duration,
        key: &FlowKey,
        record: &Record,
        extent: Extent,
        asked: Option<Option<&Choice>>,
    ) {
        let Ok(meta) = Meta::decode(&record.option) else {
            return;
        };
        let has_rest = self.intake.has_rest(key);
        if asked.is_some() {
            self.keep_ahead(now, key, record, &extent);
        }
        let asked = asked.map(|choice| (record.heard, choice));
        // Where requests wait at a server that closes, nobody can tell which it has read.
        let ahead = self.sealed(key, record, |meta| Meta {
            care: Care {
                outlive: false,
                ..meta.care
            },
            ..meta
        });
        let ahead = ahead.map_or(record.option, |(_, option)| option);
        match (self.shared.records).advance(key, &extent, asked, has_rest, &ahead) {
            Ok(finished) => self.tell(finished.into_iter().flatten()),
            Err(_) => self.count("record-failures"),
        }
        let payload_max = self.payload_max(&meta.handshake);
        self.intake.assigned(now, key, payload_max);
        self.act();
        if has_rest {
            self.go_on(now, key);
        }
    }

    /// The request waits until the owner has given the flow up.
    fn release(
        &mut self,
        now: Duration,
        key: &FlowKey,
        record: &Record,
        target: Target,
        extent: Extent,
    ) {
        if self.has_missed_answers(record) {
            return self.stay_unheard(now, key, record, &target, extent);
        }
        let epoch = record.epoch.wrapping_add(1);
        let lead = epoch.wrapping_sub(abi::epoch(clock::cluster()));
        // The owner may have given it up already, where another dispatcher has asked.
        if lead.cast_signed() > EPOCH_LEAD_MAX && !record.is_releasing() {
            self.count("moves-too-fast");
            self.not_moved(&target);
            return self.keep(now, key, record, extent);
        }
        let patience = self.cluster.config.limits.head_timeout;
        let move_to = (epoch, record.next);
        self.waiting
            .begin(now, *key, move_to, target, extent, patience);
        self.ask_when_nobody_else_does(now, key, record);
    }

    /// Asks the owner, once all dispatchers can know that it is asked. One of them may have
    /// asked before this one kept the flow: if it is there, it is to end what it began.
    fn ask_when_nobody_else_does(&mut self, now: Duration, key: &FlowKey, record: &Record) {
        if self.is_anothers_turn(record) {
            return self.waiting.defer(key, now + ANOTHERS_TURN);
        }
        if self.shared.records.releasing(key).is_err() {
            self.count("record-failures");
        }
        self.ask(now, key);
    }

    pub(super) fn is_anothers_turn(&self, record: &Record) -> bool {
        let (maker, peers) = (record.maker, &self.shared.peers);
        record.is_releasing() && maker != peers.own && peers.has_living(maker)
    }

    /// It stays with its owner, which does not know of a HEAD in its midst: then nobody
    /// knows where its answers end.
    pub(super) fn keep(&mut self, now: Duration, key: &FlowKey, record: &Record, extent: Extent) {
        let next = extent.next.filter(|_| !extent.is_head);
        let extent = Extent { next, ..extent };
        self.give_to_owner(now, key, record, extent, Some(None));
    }

    /// Asks the owner to give the flow up.
    pub(super) fn ask(&mut self, now: Duration, key: &FlowKey) {
        let Some(waiting) = self.waiting.get(key).copied() else {
            return;
        };
        let Ok(Some(record)) = self.shared.records.get(key) else {
            self.not_moved(&waiting.target);
            self.waiting.end(key);
            return self.intake.forget(key);
        };
        // Another dispatcher, that kept the flow before, has moved it.
        if self.is_elsewhere(&record, waiting.epoch) {
            self.waiting.end(key);
            return self.read_what_is_left(now, key);
        }
        if self.end_before(now, key, record.isns) || now < waiting.not_before {
            return;
        }
        if self.take_from_silent(now, key, &record, &waiting) {
            return;
        }
        if record.is_heard_here() {
            if self.is_left_to_another(&record, &waiting, key) {
                self.not_moved(&waiting.target);
                self.waiting.end(key);
                self.leave_to_keeper(key);
                return self.read_what_is_left(now, key);
            }
            return self.part(now, key, &record, &waiting);
        }
        // Nobody can be its own older owner, and who has no agent none after another.
        let half_pipe = self.cluster.handoff(record.pool) == Handoff::HalfPipe
            && matches!(waiting.target, Target::To(choice)
                if choice.slot != record.slot && choice.transfer == Transfer::Rebuild);
        let leave = match half_pipe {
            true if record.protected.is_some() || self.cluster.protects(record.pool) => {
                Leave::HalfPipeUnprotected
            }
            true => Leave::HalfPipe,
            false => Leave::Drained,
        };
        let reach = self.intake.told(key, waiting.start);
        let way = self.sealed(key, &record, |meta| Meta {
            kind: match record.splice {
                Some(splice) => Kind::SplitRelease {
                    own: splice.own,
                    reach,
                },
                None => Kind::Release { leave, reach },
            },
            epoch: waiting.epoch,
            start: waiting.start,
            server_port: (record.splice).map_or(meta.server_port, |splice| splice.server_port),
            requests: record.requests as u16,
            care: Care {
                park: meta.care.park && !matches!(waiting.target, Target::Nobody),
                ..meta.care
            },
            ..meta
        });
        let Some((to, option)) = way else {
            return self.count("no-backend");
        };
        let segment = Segment::of_client(
            key,
            Header {
                seq: waiting.start.raw(),
                ack: record.heard.raw(),
                flags: Flags::ACK,
                // An older owner hears it too, and would wait for it to open again.
                window: record.window,
                ..Header::default()
            },
        );
        let packet = segment.to_packet();
        self.to_backends
            .push(to, |out| geneve::write(&option, &packet, out));
    }

    /// A client that uses its port again begins further on (RFC 6528 §3), as who has moved does: what has waited for the owner
    /// of before is nothing any more. True: something has.
    pub(super) fn end_before(&mut self, now: Duration, key: &FlowKey, isns: Isns) -> bool {
        let waiting = self.waiting.get(key).copied();
        let Some(waiting) = waiting.filter(|waiting| waiting.start.before(isns.client + 1)) else {
            return false;
        };
        self.count("ended-before");
        self.waiting.end(key);
        self.not_moved(&waiting.target);
        let is_read_here = |header: Header| ClientSeq::new(header.seq) == waiting.start;
        if self.intake.opening(key).is_some_and(is_read_here) {
            self.read_what_is_left(now, key);
        }
        true
    }

    /// Is a move to that epoch too late, because another dispatcher has moved the flow?
    pub(super) fn is_elsewhere(&self, record: &Record, epoch: u32) -> bool {
        self.shared.peers.are_there() && record.epoch.wrapping_add(1) != epoch
    }

    /// Takes idle connections from owners that are to have none.
    pub(super) fn take_from_owners(&mut self, now: Duration, keys: &[FlowKey]) {
        for key in keys {
            if self.waiting.get(key).is_some() || self.intake.holds(key) {
                continue;
            }
            // It comes again.
            if self.asks_about_idle(now, key) {
                continue;
            }
            // From here on its packets come here, and wait.
            let Ok(Some(record)) = self.shared.records.hold_idle(key) else {
                continue;
            };
            let move_to = (record.epoch.wrapping_add(1), record.next);
            (self.waiting).begin(
                now,
                *key,
                move_to,
                Target::Nobody,
                Extent::default(),
                Duration::ZERO,
            );
            self.ask_when_nobody_else_does(now, key, &record);
        }
    }

    /// Asks owners again, and gives up those that do not answer.
    pub(super) fn on_waiting_due(&mut self, now: Duration) {
        for due in self.waiting.due(now) {
            match due {
                Due::Ask(key) => self.ask(now, &key),
                Due::GiveUp(key) => self.lose_patience(now, &key),
            }
        }
    }

    /// It has waited for long enough; but a wedge, which reads no requests, gets none.
    fn lose_patience(&mut self, now: Duration, key: &FlowKey) {
        let record = self.shared.records.get(key).ok().flatten();
        let is_wedges = record.is_some_and(|record| record.server_port == WEDGE_PORT);
        match is_wedges {
            true => self.waiting.heard(now, key),
            false => self.give_up(now, key),
        }
    }

    /// The owner does not give the flow up: the request is the owner's. What nobody is
    /// to have, nobody gets.
    pub(super) fn give_up(&mut self, now: Duration, key: &FlowKey) {
        let record = self.shared.records.get(key).ok().flatten();
        if record.is_some_and(|record| self.end_before(now, key, record.isns)) {
            return;
        }
        let Some(waiting) = self.waiting.end(key) else {
            return;
        };
        self.count("kept");
        self.not_moved(&waiting.target);
        match (self.shared.records.get(key), waiting.target) {
            (Ok(Some(record)), Target::To(_)) => self.keep(now, key, &record, waiting.extent),
            (_, Target::Nobody) => drop(self.shared.records.kept(key)),
            _ => self.intake.forget(key),
        }
    }

    /// A request that was to move stays with its owner, or is nobody's.
    pub(super) fn not_moved(&self, target: &Target) {
        if let Target::To(choice) = target {
            self.cluster.not_taken(choice);
        }
    }
}

/// What is known of the flow's next request.
pub(super) fn later(record: &Record) -> Option<Later> {
    Some(Later {
        expected: record.expected,
        owner: record.slot,
        is_tunnel: record.is_tunnel(),
    })
}

/// To the intake a later request is of a connection that begins at the boundary.
pub(super) fn starts_at_boundary(arrived: &mut Arrived<'_>, record: &Record) {
    arrived.later = true;
    arrived.cookie = record.cookie;
    arrived.isns = Isns {
        client: record.next + u32::MAX,
        server: record.cookie,
    };
}
