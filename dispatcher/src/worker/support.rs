//! Answers whose owner dies: taken over by another backend (docs/protocol/takeover.md)
//! [MIGRATE01 §4].
//!
//! ```text
//!  UPDATE ──► kept ──(owner silent)──► asking the client ──(its ACK)──► setting up ──(UPDATE)──► kept
//!                                        what has it had?               TAKE to a wedge
//! ```

use std::collections::HashMap;
use std::net::SocketAddrV4;
use std::time::Duration;

use trapeze_core::flow::FlowKey;
use trapeze_core::head::Expected;
use trapeze_core::intake::{Arrived, Isns};
use trapeze_core::seq::{ClientSeq, ServerSeq};
use trapeze_core::takeover::{Message, Rest, SoftState, Take, WEDGE_PORT};
use trapeze_core::wire::geneve;
use trapeze_core::wire::meta::{Care, Kind, Meta};
use trapeze_core::wire::segment::Segment;
use trapeze_core::wire::tcp::{Flags, Header, Options, Timestamps, later_clock};
use trapeze_datapath::abi::{FlowState, MARK_TAKING};

use super::State;
use super::heirs::is_copy;
use super::planned::{LATER, Plan};
use crate::cluster::Choice;
use crate::look::Extent;
use crate::records::{Assignment, Protected, Record};
use crate::support::{Ahead, Kept, Standing};

/// A client is asked so often what it has had, and a wedge told to go on, at these and
/// doubling intervals.
const TRIES: u32 = 7;
const FIRST_ASK: Duration = Duration::from_millis(50);
/// Where nobody could go on with it yet; and so often.
const AWAITED_ASK: Duration = Duration::from_millis(500);
const AWAITED_TRIES: u32 = 14;
/// A wedge may wait for its server's head for so long; where there is another candidate, not longer
/// than that.
const TAKE_TRIES: u32 = 8;
const TAKE_TRIES_OF_MANY: u32 = 5;
/// So often one may go on with an answer from the same place, and get no further.
const SAME_PLACE: u32 = 3;
/// Why an answer is not gone on with.
const NOBODY_ELSE: &str = "no other backend has it";
const NO_FURTHER: &str = "nobody who has it gets any further";
const FIRST_TAKE: Duration = Duration::from_millis(50);

/// The answers that are being taken over.
#[derive(Debug, Default)]
pub(super) struct Takings {
    pub(super) all: HashMap<FlowKey, Taking>,
}

#[derive(Debug)]
pub(super) struct Taking {
    pub(super) kept: Kept,
    /// Who had it before, and whoever has refused.
    pub(super) tried: Vec<u32>,
    /// Those of them whose hosts could not take it just then.
    pub(super) put_off: Vec<u32>,
    /// Its owner, if that has nothing of it any more: once it is there it is as good as another one, if there is none.
    pub(super) may_return: Option<u32>,
    pub(super) stage: Stage,
    pub(super) tries: u32,
    pub(super) due: Duration,
    /// What the client has said last.
    pub(super) heard: Header,
    /// Behind the answer's own request: what was sent ahead begins there.
    pub(super) boundary: ClientSeq,
    /// When its owner was found to be gone, or the move begun.
    pub(super) begun: Duration,
    /// More was sent ahead than is known: unless it is over, nobody can go on.
    is_hopeless: bool,
    /// The client has answered, and nobody could go on with it yet.
    awaits_another: bool,
    /// Its owner is well.
    pub(super) plan: Option<Plan>,
}

#[derive(Debug)]
pub(super) enum Stage {
    /// Its next owner is to say whether it could go on.
    Inquiring {
        question: u32,
        candidate: u32,
        to: SocketAddrV4,
        datagrams: Vec<Vec<u8>>,
    },
    /// The client is to say what it has had.
    Asking,
    /// A wedge is to say that it goes on; in that epoch.
    SettingUp {
        epoch: u32,
        to: SocketAddrV4,
        datagrams: Vec<Vec<u8>>,
        /// The same, for whoever keeps the flow next.
        for_heir: Vec<(SocketAddrV4, Vec<u8>)>,
    },
}

impl Taking {
    pub(super) fn new(now: Duration, kept: Kept, slot: u32, boundary: ClientSeq) -> Self {
        Self {
            kept,
            tried: vec![slot],
            put_off: Vec::new(),
            may_return: None,
            stage: Stage::Asking,
            tries: 0,
            due: now,
            heard: Header::default(),
            boundary,
            begun: now,
            is_hopeless: false,
            awaits_another: false,
            plan: None,
        }
    }
}

impl Takings {
    pub(super) fn next_due(&self) -> Option<Duration> {
        self.all.values().map(|taking| taking.due).min()
    }
}

impl State {
    /// A backend's daemon says something of an answer.
    pub(super) fn on_support(&mut self, now: Duration, meta: &Meta, inner: &[u8]) {
        let Ok(arrived) = Arrived::parse(meta, inner) else {
            return self.count("malformed");
        };
        let key = arrived.key;
        let said = (self.said).open(arrived.payload, &self.cluster.keys, &key);
        let is_copy = is_copy(&arrived);
        let (message, bytes) = match said {
            Ok(Some(said)) => said,
            Ok(None) => return,
            Err(_) => return self.count("rejected"),
        };
        match message {
            Message::Update(state) => {
                self.count(if is_copy {
                    "updates-of-peers"
                } else {
                    "updates"
                });
                let (state, is_completed) = self.completed(&key, state);
                self.on_update(now, key, state.clone());
                if !is_copy {
                    let bytes = match is_completed {
                        true => Message::Update(state).seal(&self.cluster.keys, &key),
                        false => bytes,
                    };
                    self.tell_next(&key, bytes);
                    if let Ok(Some(record)) = self.shared.records.get(&key) {
                        self.tell_ahead(record.slot, &key);
                    }
                }
            }
            Message::Ahead {
                epoch,
                requests,
                bytes,
            } if is_copy => self.on_ahead(&key, epoch, Ahead { requests, bytes }),
            Message::Take(take) if is_copy => self.on_begun(now, &arrived, (take, bytes)),
            Message::Refusal {
                epoch,
                is_away,
                why,
            } => self.on_not_gone_on_with(now, &key, epoch, (is_away, &why)),
            Message::Reply { question, why_not } => {
                self.on_reply(now, &key, question, why_not.as_deref());
            }
            _ => self.count("rejected"),
        }
    }

    pub(super) fn on_update(&mut self, now: Duration, key: FlowKey, state: SoftState) {
        let Ok(Some(record)) = self.shared.records.get(&key) else {
            return;
        };
        // Whatever a rule says by now, it has been gone on with.
        let is_taken = self.takings.all.get(&key).is_some_and(
            |taking| matches!(taking.stage, Stage::SettingUp { epoch, .. } if epoch == state.epoch),
        );
        if record.epoch != state.epoch
            || record.state == FlowState::Reset
            || !(is_taken || self.cluster.outlives(key.vip, record.pool, &state))
        {
            return;
        }
        let mut resumed = None;
        if is_taken {
            let taken = self.takings.all.remove(&key);
            self.count("taken-over");
            if let Some(Taking {
                kept, heard, plan, ..
            }) = taken
            {
                resumed = kept.resumed;
                self.on_moved(plan);
                self.ask_again(now, &key, (record.next, &heard), &kept.ahead.bytes);
            }
        }
        if let Some(taking) = self.takings.all.get_mut(&key)
            && (taking.kept.state.epoch, taking.kept.state.answer) == (state.epoch, state.answer)
        {
            taking.kept.mark(now, state.offset, state.at);
        }
        self.is_ended(&key, state.epoch);
        let protected = Protected { end: state.end() };
        let answer = state.answer;
        let mut kept = Kept::new(now, state);
        kept.resumed = resumed;
        if !self.support.keep(record.slot, key, kept) {
            return self.count("support-full");
        }
        self.attach_early(&key, &record, answer);
        // The record is its keeper's to change.
        if !self.shared.peers.keeps(&key) {
            return;
        }
        // Whoever has asked its client is gone, and its owner is well.
        let is_heard = self.takings.all.contains_key(&key) || self.is_relayed(&key);
        if record.marks & MARK_TAKING != 0 && !is_heard {
            let _ = self.shared.records.taking(&key, record.epoch, false);
        }
        // Before it is asked for anything else.
        if record.protected != Some(protected)
            && (self.shared.records)
                .protect(&key, record.epoch, Some(protected))
                .is_err()
        {
            self.count("record-failures");
        }
    }

    /// A wedge has found another object, and another backend may have the client's; or its server is
    /// not there, and may be later.
    fn on_not_gone_on_with(
        &mut self,
        now: Duration,
        key: &FlowKey,
        epoch: u32,
        (is_away, why): (bool, &str),
    ) {
        if self.on_taking_refused(now, key, epoch) {
            if is_away {
                self.has_no_server(key);
            }
            eprintln!("{key:?}: a backend does not go on with its answer: {why}");
            self.count("not-same");
        }
    }

    /// Looks for answers whose owners have died or sleep, and does what is due of those.
    pub(super) fn on_support_due(&mut self, now: Duration) {
        if self.support.next_due().is_some_and(|due| due <= now) {
            self.migrate(now);
        }
        let mut support = std::mem::take(&mut self.support);
        let records = &self.shared.records;
        let acknowledged = |slot: u32, key: &FlowKey, epoch: u32| {
            let record = records.get(key).ok().flatten()?;
            ((record.slot, record.epoch) == (slot, epoch)).then_some(record.heard)
        };
        support.follow(now, acknowledged);
        // Those that are to be moved, whose owner goes on.
        let moving = self.takings.all.iter_mut();
        for (key, taking) in moving.filter(|(_, taking)| taking.plan.is_some()) {
            if let Ok(Some(record)) = records.get(key)
                && record.epoch == taking.kept.state.epoch
            {
                taking.kept.follow(now, record.heard);
            }
        }
        let (health, peers) = (&self.shared.health, &self.shared.peers);
        let is_orphan = |slot, key: &_, kept: &Kept| {
            (health.is_host_silent(slot) || health.has_lost(slot, kept.said)) && peers.keeps(key)
        };
        let cache_timeout = self.cluster.config.limits.cache_timeout;
        let orphans = support.orphans(now, cache_timeout, is_orphan);
        self.support = support;
        for (slot, key, kept) in orphans {
            self.begin_taking(now, slot, key, kept);
        }
        let records = &self.shared.records;
        self.support.review(now, cache_timeout, |key, kept| {
            let Ok(Some(record)) = records.get(key) else {
                return Standing::Gone;
            };
            match record.epoch.wrapping_sub(kept.state.epoch) {
                // Its client wants no more of it. A reset that was not the client's is taken back, and its
                // owner says again what it has.
                _ if record.state == FlowState::Reset => Standing::Gone,
                0 if !kept.is_over_at(record.heard) => Standing::InProgress,
                // Who takes it over may die with it: then it is looked for here.
                0 | 1 => Standing::Over,
                _ => Standing::Gone,
            }
        });
        let due = (self.takings.all.iter())
            .filter(|(_, taking)| taking.due <= now)
            .map(|(key, _)| *key);
        for key in due.collect::<Vec<_>>() {
            self.on_taking_due(now, &key);
        }
    }

    /// The owner's server has closed in the midst of an answer. False: another one cannot go
    /// on with it.
    pub(super) fn takes_over(&mut self, now: Duration, key: &FlowKey, record: &Record) -> bool {
        let Some(kept) = self.support.forget(record.slot, key) else {
            // It is said again until that is done.
            return self.takings.all.contains_key(key);
        };
        self.begin_taking(now, record.slot, *key, kept);
        self.takings.all.contains_key(key)
    }

    /// Its owner is silent, or its server has closed, in the midst of this.
    pub(super) fn begin_taking(&mut self, now: Duration, slot: u32, key: FlowKey, mut kept: Kept) {
        let Ok(Some(record)) = self.shared.records.get(&key) else {
            return;
        };
        if (record.slot, record.epoch) != (slot, kept.state.epoch) || !is_open(&record) {
            return;
        }
        let known = kept.state.answer.wrapping_add(kept.ahead.requests);
        let is_hopeless = record.requests as u16 != known;
        let owes_nothing = record.state == FlowState::ClientFin && kept.ahead.requests == 0;
        if (is_hopeless || owes_nothing) && kept.is_over_at(record.heard) {
            return;
        }
        // An owner that has begun to answer has the flow, whether the client has heard it or not.
        let boundary = kept.boundary(record.next);
        let is_between_requests = !record.is_tunnel() && record.expected == Expected::Head;
        if !is_between_requests || !(is_hopeless || self.gather_ahead(&key, &mut kept.ahead)) {
            return self.give_up_for_now(slot, key, kept);
        }
        match self.shared.records.taking(&key, record.epoch, true) {
            Ok(true) => {}
            Ok(false) => return,
            Err(_) => return self.count("record-failures"),
        }
        let health = &self.shared.health;
        let is_lost = health.is_host_silent(slot) || health.has_lost(slot, kept.said);
        let mut taking = Taking::new(now, kept, slot, boundary);
        taking.is_hopeless = is_hopeless;
        taking.may_return = is_lost.then_some(slot);
        self.takings.all.insert(key, taking);
    }

    /// What its client is sending cannot be another one's. Its owner may only be frozen, and says every
    /// so often that it is there.
    fn give_up_for_now(&mut self, slot: u32, key: FlowKey, mut kept: Kept) {
        if kept.given_up.replace(kept.said).is_none() {
            self.count("not-taken-over");
            eprintln!(
                "{key:?}: its answer is not gone on with: its client is in the midst of a request"
            );
        }
        self.support.keep(slot, key, kept);
    }

    fn on_taking_due(&mut self, now: Duration, key: &FlowKey) {
        // It has gone another way, or its client has.
        let record = self.shared.records.get(key).ok().flatten();
        let is_meant = |taking: &Taking| {
            record.is_some_and(|record| record.epoch == taking.kept.state.epoch && is_open(&record))
        };
        if !self.takings.all.get(key).is_some_and(is_meant) {
            self.takings.all.remove(key);
            return;
        }
        let Some(taking) = self.takings.all.get_mut(key) else {
            return;
        };
        let first = match taking.stage {
            Stage::Inquiring { .. } | Stage::Asking => FIRST_ASK,
            Stage::SettingUp { .. } => FIRST_TAKE,
        };
        taking.due = now
            + match taking.awaits_another {
                true => AWAITED_ASK,
                false => first * (1 << taking.tries),
            };
        taking.tries += 1;
        if let Stage::SettingUp { epoch, .. } = taking.stage {
            let (tries, candidate) = (taking.tries, taking.tried.last().copied());
            let is_dead = candidate.is_some_and(|slot| self.is_dead(slot, key));
            let is_over = tries > TAKE_TRIES
                || tries > TAKE_TRIES_OF_MANY && self.has_candidate(key, record.as_ref());
            if is_dead || is_over {
                self.on_taking_refused(now, key, epoch);
                return;
            }
        }
        let Some(taking) = self.takings.all.get(key) else {
            return;
        };
        let tries = match taking.awaits_another {
            true => AWAITED_TRIES,
            false => TRIES,
        };
        if taking.tries > tries && !matches!(taking.stage, Stage::SettingUp { .. }) {
            return match taking.stage {
                Stage::Inquiring { question, .. } => {
                    self.on_reply(now, key, question, Some("it does not answer"));
                }
                _ if taking.awaits_another => self.stop_taking(now, key, NOBODY_ELSE),
                _ => self.stop_taking(now, key, "nobody answers"),
            };
        }
        match &taking.stage {
            Stage::Inquiring { to, datagrams, .. } => {
                for datagram in datagrams {
                    (self.to_backends).push(*to, |out| out.extend_from_slice(datagram));
                }
            }
            Stage::Asking => {
                let clock = taking.kept.clock(now);
                self.ask_client(key, clock);
            }
            Stage::SettingUp {
                to,
                datagrams,
                for_heir,
                ..
            } => {
                for (to, datagram) in for_heir {
                    (self.to_backends).push(*to, |out| out.extend_from_slice(datagram));
                }
                for datagram in datagrams {
                    self.to_backends
                        .push(*to, |out| out.extend_from_slice(datagram));
                }
            }
        }
    }

    /// A client whose answer is being taken over says something. False: it is not.
    pub(super) fn hears_of_taking(&mut self, now: Duration, arrived: &Arrived<'_>) -> bool {
        let key = arrived.key;
        let Some(taking) = self.takings.all.get(&key) else {
            return false;
        };
        let Ok(Some(record)) = self.shared.records.get(&key) else {
            self.takings.all.remove(&key);
            return false;
        };
        let header = &arrived.header;
        if matches!(taking.stage, Stage::Inquiring { .. }) {
            return false;
        }
        if !matches!(taking.stage, Stage::Asking) {
            // What is asked ahead meanwhile comes again.
            let end = ClientSeq::new(header.seq) + arrived.payload.len() as u32;
            return record.next.before(end);
        }
        // It goes away. Whatever else it says is as good as an acknowledgement.
        if header.flags.has(Flags::RST) || record.epoch != taking.kept.state.epoch {
            if taking.plan.is_none() {
                self.count("not-taken-over");
            }
            self.takings.all.remove(&key);
            let _ = self.shared.records.taking(&key, record.epoch, false);
            return false;
        }
        // Its owner hears the client until another one goes on.
        if taking.plan.is_some() && !self.may_move(&key, &record) {
            self.leave_with_owner(&key, now + LATER);
            return false;
        }
        self.give_to_wedge(now, arrived, &record);
        true
    }

    /// Another backend is to go on from what the client has acknowledged.
    fn give_to_wedge(&mut self, now: Duration, arrived: &Arrived<'_>, record: &Record) {
        let key = arrived.key;
        let Some(taking) = self.takings.all.get(&key) else {
            return;
        };
        // Of the packet whose window and clock are used, too. One that has been overtaken says less
        // than the record knows; what is sent twice does no harm.
        let heard = ServerSeq::new(arrived.header.ack);
        if taking.is_hopeless {
            return match taking.kept.is_over_at(heard) {
                true => self.let_be(&key),
                false => {
                    self.stop_taking(now, &key, "what was asked ahead of its end is not known")
                }
            };
        }
        let known = match taking.plan {
            Some(_) => now,
            None => taking.begun,
        };
        if taking.kept.is_lost(known) {
            return self.stop_taking(
                now,
                &key,
                "nobody knows how often its numbers have come round",
            );
        }
        let state = &taking.kept.state;
        let rest = state
            .before(heard)
            .and_then(|had| Some((had, Rest::of(&state.head, had)?)));
        let Some((had, rest)) = rest else {
            if taking.plan.is_some() {
                return self.leave_with_owner(&key, now + LATER);
            }
            if let Some(taking) = self.takings.all.get_mut(&key) {
                taking.heard = arrived.header;
            }
            return self.on_nothing_left(now, &key, record, heard);
        };
        let had_before = taking.kept.resumed.filter(|&(at, _)| at == had);
        if had_before.is_some_and(|(_, times)| times >= SAME_PLACE) {
            return self.stop_taking(now, &key, NO_FURTHER);
        }
        let Some(choice) = self.candidate(&key, record, taking) else {
            if !self.awaits_another(now, &key, record, taking) {
                return self.stop_taking(now, &key, NOBODY_ELSE);
            }
            // Its client is asked again by and by.
            if let Some(taking) = self.takings.all.get_mut(&key) {
                taking.awaits_another = true;
            }
            return;
        };
        let clock = taking.kept.clock(now);
        // Who has it now gives up all up to that epoch, and may be the next one itself.
        let given_up = record.epoch.wrapping_add(1);
        let epoch = given_up.wrapping_add((choice.slot == record.slot).into());
        let (next, has_rest) = (taking.boundary, !taking.kept.ahead.bytes.is_empty());
        let has_closed = record.state == FlowState::ClientFin;
        let take_is_last = state.is_last();
        let take = Message::Take(Take {
            state: SoftState {
                epoch,
                answer: 1,
                offset: had,
                at: heard,
                clock,
                ..state.clone()
            },
            had,
            server_port: choice.server_port,
        });
        let Ok(agreed) = Meta::decode(&record.option) else {
            return;
        };
        let command = take.seal(&self.cluster.keys, &key);
        let start = next + (command.len() as u32).wrapping_neg();
        let wedge = Choice {
            server_port: WEDGE_PORT,
            ..choice
        };
        let assignment = Assignment {
            key,
            isns: Isns {
                client: start + u32::MAX,
                server: heard + u32::MAX,
            },
            handshake: agreed.handshake,
            choice: &wedge,
            keys: &self.cluster.keys,
            after: None,
            older: None,
            held: command.len(),
            window: record.window,
            extent: Extent {
                next: Some((command.len(), Expected::Head)),
                is_head: false,
                is_last: rest.end.is_last() || has_closed || take_is_last,
                is_kept: false,
                is_copied: false,
            },
            care: Care {
                park: false,
                ..self.cluster.care(record.pool)
            },
            has_rest,
            predecessor: None,
            splice: None,
        };
        let taken =
            (self.shared.records).take_over(&assignment, epoch, (record.epoch, record.next));
        let Ok(Some(assigned)) = taken else {
            self.cluster.not_taken(&choice);
            self.takings.all.remove(&key);
            return self.count("record-failures");
        };
        self.tell(assigned.finished);
        self.forsake(&key, record, (given_up, start), heard);
        // It is the next owner's to tell of, now.
        self.support.forget(record.slot, &key);
        let option = assigned.record.option;
        let timestamps = arrived.header.options.timestamps;
        let header = Header {
            seq: start.raw(),
            ack: heard.raw(),
            window: arrived.header.window,
            // The client's FIN has been acknowledged, and will not come again.
            flags: match has_closed {
                true => Flags::ACK | Flags::PSH | Flags::FIN,
                false => Flags::ACK | Flags::PSH,
            },
            options: Options {
                // The next owner's clock goes on from there.
                timestamps: timestamps.map(|clocks| Timestamps {
                    echo: later_clock(clocks.echo, clock),
                    ..clocks
                }),
                ..Options::default()
            },
            ..Header::default()
        };
        let datagrams = self.take_datagrams(&key, &option, &header, &command);
        let for_heir = self.heirs_copies(&key, (epoch, header, command));
        let Some(to) = self.backend_address(choice.slot) else {
            return self.count("no-backend");
        };
        let Some(taking) = self.takings.all.get_mut(&key) else {
            return;
        };
        taking.tried.push(choice.slot);
        taking.kept.resume_at(had);
        (taking.kept.state.epoch, taking.kept.state.answer) = (epoch, 1);
        taking.heard = Header {
            options: header.options,
            ..arrived.header
        };
        taking.awaits_another = false;
        taking.stage = Stage::SettingUp {
            epoch,
            to,
            datagrams,
            for_heir,
        };
        taking.tries = 0;
        taking.due = now;
        self.count("takeovers");
    }

    /// The wedge cannot be set up there: another one may.
    pub(super) fn on_taking_refused(&mut self, now: Duration, key: &FlowKey, epoch: u32) -> bool {
        let Some(taking) = self.takings.all.get_mut(key) else {
            return false;
        };
        if !matches!(taking.stage, Stage::SettingUp { epoch: tried, .. } if tried == epoch) {
            return false;
        }
        taking.stage = Stage::Asking;
        taking.tries = 0;
        taking.due = now;
        // Its owner before has given it up: whoever has it now is to go on.
        let plan = taking.plan.take();
        self.end_plan(plan);
        if !matches!(self.shared.records.taking(key, epoch, true), Ok(true)) {
            self.takings.all.remove(key);
        }
        true
    }

    /// The owner before may only have been cut off: what its socket says is nobody's.
    pub(super) fn forsake(
        &mut self,
        key: &FlowKey,
        record: &Record,
        (epoch, start): (u32, ClientSeq),
        heard: ServerSeq,
    ) {
        let way = self.sealed(key, record, |meta| Meta {
            kind: Kind::Forsake,
            epoch,
            start,
            requests: record.requests as u16,
            ..meta
        });
        let Some((to, option)) = way else {
            return;
        };
        let packet = Segment::of_client(
            key,
            Header {
                seq: record.next.raw(),
                ack: heard.raw(),
                flags: Flags::ACK,
                ..Header::default()
            },
        );
        let mut datagram = Vec::new();
        geneve::write(&option, &packet.to_packet(), &mut datagram);
        // One that is well goes on until the next one does: so its client has something meanwhile.
        match self.takings.all.get_mut(key).and_then(|t| t.plan.as_mut()) {
            Some(plan) => plan.word = Some((to, datagram.clone())),
            None => {
                (self.to_backends).push(to, |out| out.extend_from_slice(&datagram));
            }
        }
        self.shared.forsaken.remember(record.slot, to, datagram);
    }
}

/// Does its client wait for an answer? It may have closed its side behind the request.
pub(super) fn is_open(record: &Record) -> bool {
    matches!(record.state, FlowState::Established | FlowState::ClientFin)
}
