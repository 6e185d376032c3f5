//! Owners that die while an older one has not been heard to its end (docs/protocol/handoff.md 6.10): the answer of one
//! that lives goes on, and a client that waits for one that is gone is told.
//!
//! ```text
//!  client ──ACK──► newest ✗                    client ──ACK──► daemon ──GC──► older
//!                    └─ ─GC─ ─► older
//! ```

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use trapeze_core::flow::FlowKey;
use trapeze_core::intake::Arrived;
use trapeze_core::seq::ServerSeq;
use trapeze_core::wire::geneve;
use trapeze_core::wire::meta::{Binding, Care, Kind, Meta};
use trapeze_core::wire::segment::Segment;
use trapeze_core::wire::tcp::{Flags, Header};
use trapeze_datapath::abi::MARK_LOST;

use super::State;
use super::support::is_open;
use crate::records::Record;

/// How often they are looked at.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);
/// Whoever has been silent for so long, while the client has had nothing, is gone.
const GONE: Duration = Duration::from_secs(3);
/// Its client is asked so often, for so long, where it is.
const ASK_INTERVAL: Duration = Duration::from_millis(500);
const ASKED_FOR: Duration = Duration::from_secs(6);
/// A clock that any server may have said (RFC 7323): nobody knows this one's.
const SOME_CLOCK: u32 = 1;

/// Flows with older owners that are looked at here.
#[derive(Debug, Default)]
pub(super) struct Watch {
    all: HashMap<FlowKey, Watched>,
    look_at: Duration,
    /// Whose clients are to be reset where they are: until when, and when they are asked next.
    lost: HashMap<FlowKey, (Duration, Duration)>,
}

#[derive(Debug)]
struct Watched {
    /// What its client has acknowledged, since when.
    heard: ServerSeq,
    since: Duration,
    /// What it says goes to the older owners from here: who should tell them is gone.
    is_relayed: bool,
}

impl State {
    /// When there may be something to do.
    pub(super) fn half_pipes_due(&self) -> Option<Duration> {
        let is_idle = self.shared.records.half_pipes.is_empty();
        (!is_idle || !self.watch.lost.is_empty()).then_some(self.watch.look_at)
    }

    /// Looks whether all are there that are to send.
    pub(super) fn on_half_pipes_due(&mut self, now: Duration, worker: usize) {
        if self.half_pipes_due().is_none_or(|due| now < due) {
            return;
        }
        self.watch.look_at = now + LOOK_INTERVAL;
        let workers = self.cluster.own.workers;
        let is_ours = |key: &FlowKey| usize::from(key.client.port()) % workers == worker;
        let keys = self.shared.records.half_pipes.keys(is_ours);
        self.watch.all.retain(|key, _| keys.contains(key));
        for key in keys {
            self.look_at_half_pipe(now, &key);
        }
        let lost = self.watch.lost.iter_mut();
        let due = lost.filter(|(_, (_, ask_at))| now >= *ask_at);
        let due = due.map(|(key, (_, ask_at))| {
            *ask_at = now + ASK_INTERVAL;
            *key
        });
        for key in due.collect::<Vec<_>>() {
            let record = self.shared.records.get(&key).ok().flatten();
            if record.is_some_and(|record| record.marks & MARK_LOST != 0) {
                self.ask_client(&key, SOME_CLOCK);
            }
        }
        (self.watch.lost).retain(|_, (until, _)| now < *until);
    }

    fn look_at_half_pipe(&mut self, now: Duration, key: &FlowKey) {
        let record = self.shared.records.get(key).ok().flatten();
        let known = record.filter(|record| {
            let older = self.shared.records.half_pipes.of(key, record.cookie);
            is_open(record) && record.splice.is_none() && !older.is_empty()
        });
        let Some(record) = known else {
            return self.shared.records.half_pipes.forget(key);
        };
        // Whoever keeps it does, and may be gone tomorrow.
        if !self.shared.peers.keeps(key) {
            return;
        }
        let watched = self.watch.all.entry(*key).or_insert(Watched {
            heard: record.heard,
            since: now,
            is_relayed: false,
        });
        if watched.heard != record.heard {
            (watched.heard, watched.since) = (record.heard, now);
        }
        let is_stuck = now.saturating_sub(watched.since) >= GONE;
        let is_relayed = watched.is_relayed;
        let health = &self.shared.health;
        let is_gone = |slot| is_stuck && health.silence(slot) >= GONE;
        let half_pipes = &self.shared.records.half_pipes;
        let unfinished = half_pipes.unfinished(key, record.cookie, record.heard);
        let Some((sends, behind)) = unfinished.split_first() else {
            return self.is_heard_out(now, key, &record, is_gone(record.slot));
        };
        if is_gone(sends.slot) {
            let why = "the backend that sends it is gone, and another one has the connection";
            return self.lose(now, key, &record, ("not-taken-over", why));
        }
        let is_there = !health.is_host_silent(sends.slot);
        let is_cut_off = health.is_host_silent(record.slot)
            || behind.iter().any(|one| health.is_host_silent(one.slot));
        match (is_cut_off, is_relayed) {
            (true, false) if is_there => self.begin_relaying(key, &record),
            (false, true) => self.end_relaying(key, &record),
            _ => {}
        }
    }

    /// The client's acknowledgements go to who sends its answer, without who should pass them on.
    fn begin_relaying(&mut self, key: &FlowKey, record: &Record) {
        if self.takings.all.contains_key(key) || self.is_retrying(key) {
            return;
        }
        match self.shared.records.taking(key, record.epoch, true) {
            Ok(true) => {}
            Ok(false) => return,
            Err(_) => return self.count("record-failures"),
        }
        if let Some(watched) = self.watch.all.get_mut(key) {
            watched.is_relayed = true;
        }
        self.count("half-pipes-relayed");
        // What was on its way to the one that is gone.
        let header = Header {
            seq: record.next.raw(),
            ack: record.heard.raw(),
            window: record.window,
            ..Header::default()
        };
        self.tell_older(key, record, header);
    }

    /// Does what its client says go to older owners from here?
    pub(super) fn is_relayed(&self, key: &FlowKey) -> bool {
        (self.watch.all.get(key)).is_some_and(|watched| watched.is_relayed)
    }

    fn end_relaying(&mut self, key: &FlowKey, record: &Record) {
        let watched = self.watch.all.get_mut(key);
        let was_relayed = watched.is_some_and(|watched| std::mem::take(&mut watched.is_relayed));
        // Whoever asks the client by now has to hear it.
        let is_heard = self.takings.all.contains_key(key) || self.is_retrying(key);
        if was_relayed
            && !is_heard
            && (self.shared.records.taking(key, record.epoch, false)).is_err()
        {
            self.count("record-failures");
        }
    }

    /// The client of such a flow says something. False: it is none.
    pub(super) fn hears_of_half_pipe(&mut self, arrived: &Arrived<'_>) -> bool {
        let key = arrived.key;
        if !self.is_relayed(&key) {
            return false;
        }
        let Ok(Some(record)) = self.shared.records.get(&key) else {
            return false;
        };
        self.tell_older(&key, &record, arrived.header);
        if arrived.header.flags.has(Flags::RST) {
            self.end_relaying(&key, &record);
            return false;
        }
        // Whatever it asks comes again.
        true
    }

    /// GC, as the one after each of them would say it (6.2).
    fn tell_older(&mut self, key: &FlowKey, record: &Record, header: Header) {
        let Ok(agreed) = Meta::decode(&record.option) else {
            return;
        };
        let rst = match header.flags.has(Flags::RST) {
            true => Flags::ACK | Flags::RST,
            false => Flags::ACK,
        };
        let segment = Segment::of_client(
            key,
            Header {
                flags: rst,
                ..header
            },
        );
        let packet = segment.to_packet();
        // Requests that wait here have been acknowledged, too.
        let reach = self.intake.told(key, record.next);
        for older in self.shared.records.half_pipes.of(key, record.cookie) {
            if self.shared.health.is_host_silent(older.slot) {
                continue;
            }
            let Some(to) = self.backend_address(older.slot) else {
                continue;
            };
            let Some(binding) = Binding::of_flow(IpAddr::V4(*to.ip()), key.client, key.vip) else {
                continue;
            };
            let gc = Meta {
                kind: Kind::Gc {
                    end: older.end,
                    reach,
                },
                epoch: older.epoch,
                start: older.start,
                requests: 0,
                care: Care::default(),
                ..agreed
            };
            let option = gc.seal(&self.cluster.keys, &binding);
            self.to_backends
                .push(to, |out| geneve::write(&option, &packet, out));
        }
    }

    /// Its client has had all that older owners were to send, and waits for the newest one.
    fn is_heard_out(&mut self, now: Duration, key: &FlowKey, record: &Record, is_gone: bool) {
        self.end_relaying(key, record);
        let is_silent = self.shared.health.is_host_silent(record.slot);
        let owes_nothing = record.idle_end == Some(record.heard);
        // Or another one has begun to do what it owes.
        let is_at_work = self.takings.all.contains_key(key) || self.is_retrying(key);
        if !is_silent || owes_nothing || is_at_work {
            return self.shared.records.half_pipes.forget(key);
        }
        if is_gone && !(self.unanswered).keeps(record.slot, key, record.epoch) {
            let why = "the backend that was to answer next is gone";
            self.lose(now, key, record, ("not-retried", why));
        }
    }

    /// Its client waits for what will never come: it hears that.
    fn lose(
        &mut self,
        now: Duration,
        key: &FlowKey,
        record: &Record,
        (what, why): (&'static str, &str),
    ) {
        eprintln!("{key:?}: its connection ends: {why}");
        self.count(what);
        self.shared.records.half_pipes.forget(key);
        self.watch.all.remove(key);
        if let Some(waiting) = self.waiting.end(key) {
            self.not_moved(&waiting.target);
        }
        self.intake.forget(key);
        self.reset_where_it_is(now, key, record.epoch);
    }

    /// It may be somewhere else than it is known to be: then its answer tells, and it is reset there.
    pub(super) fn reset_where_it_is(&mut self, now: Duration, key: &FlowKey, epoch: u32) {
        match self.shared.records.lose(key, epoch) {
            Ok(Some(flow)) => {
                self.reset_client(key, &flow);
                self.watch.lost.insert(*key, (now + ASKED_FOR, now));
            }
            Ok(None) => {}
            Err(_) => self.count("record-failures"),
        }
    }
}
