//! Flows that another dispatcher has kept: of requests that stayed with the owner, and of others to which the
//! flow has moved since, it may not have told. So before anything is read at the boundary the owner is asked how
//! far it has come (docs/protocol/replication.md 4.6), and what the client says waits here meanwhile. One that has
//! given the flow up says to whom, and that one is asked, or all are if it does not know (whose.rs). One that does not
//! know how far it has come, or is silent, leaves what the record says. With one that is not done for a long
//! time, or cannot tell where its answers end, the flow stays.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;

use trapeze_core::flow::FlowKey;
use trapeze_core::intake::Arrived;
use trapeze_core::policy::BackendId;
use trapeze_core::seq::{ClientSeq, ServerSeq};
use trapeze_core::wire::geneve;
use trapeze_core::wire::meta::{Kind, Meta};
use trapeze_core::wire::segment::Segment;
use trapeze_core::wire::tcp::{Flags, Header};

use super::State;
use super::later::ANOTHERS_TURN;
use super::whose::Others;
use crate::memory::Placed;
use crate::records::{Moved, Record};

/// Asked again after so long, then after twice that, and so on,
const FIRST: Duration = Duration::from_millis(4);
/// up to this.
const LAST: Duration = Duration::from_millis(100);
/// No more is asked then.
const PATIENCE: Duration = Duration::from_secs(2);
/// Packets of a flow, and flows, that wait: the client's TCP has the others.
const PACKETS: usize = 16;
const FLOWS: usize = 4096;

/// Those that are asked about.
#[derive(Debug, Default)]
pub(super) struct Unsure {
    all: HashMap<FlowKey, Asked>,
}

#[derive(Debug)]
pub(super) struct Asked {
    due: Duration,
    pause: Duration,
    since: Duration,
    /// The owner has had more than the record says, and is not done with that.
    is_at_work: bool,
    packets: Vec<(Meta, Vec<u8>)>,
    /// The owner has given it up, and these are asked who has it.
    pub(super) others: Option<Others>,
}

impl Unsure {
    pub(super) fn next_due(&self) -> Option<Duration> {
        self.all.values().map(|asked| asked.due).min()
    }

    pub(super) fn find(&mut self, key: &FlowKey) -> Option<&mut Asked> {
        self.all.get_mut(key)
    }
}

impl State {
    /// False: it is known how far the owner has come. Else the packet waits.
    pub(super) fn asks_how_far(
        &mut self,
        now: Duration,
        record: &Record,
        arrived: &Arrived<'_>,
        (meta, inner): (&Meta, &[u8]),
    ) -> bool {
        let end = ClientSeq::new(arrived.header.seq) + arrived.payload.len() as u32;
        if !record.is_to_be_asked() || !record.next.before(end) {
            return false;
        }
        let key = arrived.key;
        if record.splice.is_some() {
            // Its client has been told that the beginning of a request is here, and does not say that again: the
            // server has it with the rest (on_found()).
            if self.intake.is_reading(&key) {
                return false;
            }
            self.leave_there(&key, record.epoch);
            if let Ok(Some(record)) = self.shared.records.get(&key) {
                self.pass_on(now, &record, *arrived, inner);
            }
            return true;
        }
        if self.is_gone(record) {
            self.know_no_better(&key, record.epoch);
            return false;
        }
        self.ask_how_far(now, &key, record);
        if let Some(asked) = self.unsure.all.get_mut(&key)
            && asked.packets.len() < PACKETS
        {
            asked.packets.push((*meta, inner.to_vec()));
        }
        // What it acknowledges does not wait: so the owner may come to the end of its answer.
        let heard = Header {
            flags: Flags::ACK,
            ..arrived.header
        };
        self.send_to_backend(&key, Segment::of_client(&key, heard), u16::MAX);
        true
    }

    /// True: the owner of an idle flow is asked first.
    pub(super) fn asks_about_idle(&mut self, now: Duration, key: &FlowKey) -> bool {
        let record = self.shared.records.get(key).ok().flatten();
        let Some(record) = record.filter(Record::is_to_be_asked) else {
            return false;
        };
        if record.splice.is_some() {
            self.leave_there(key, record.epoch);
            return true;
        }
        if self.is_gone(&record) {
            self.know_no_better(key, record.epoch);
            return false;
        }
        self.ask_how_far(now, key, &record);
        true
    }

    fn ask_how_far(&mut self, now: Duration, key: &FlowKey, record: &Record) {
        if self.unsure.all.contains_key(key) || self.unsure.all.len() >= FLOWS {
            return;
        }
        self.count("asked-how-far");
        let asked = Asked {
            due: now + FIRST,
            pause: FIRST,
            since: now,
            is_at_work: false,
            packets: Vec::new(),
            others: None,
        };
        self.unsure.all.insert(*key, asked);
        self.ask_owner(now, now, key, record);
    }

    /// `since`: the packets wait.
    fn ask_owner(&mut self, now: Duration, since: Duration, key: &FlowKey, record: &Record) {
        // It has been asked to give the flow up, and who has done that may be about to tell what became of it.
        if self.is_anothers_turn(record) && now < since + ANOTHERS_TURN {
            return;
        }
        match self.backend_address(record.slot) {
            Some(owner) => self.send_question(owner, key, record, Kind::Reckon),
            None => self.count("no-backend"),
        }
    }

    /// At a number that no socket can expect, as inquiries are.
    pub(super) fn send_question(
        &mut self,
        backend: SocketAddrV4,
        key: &FlowKey,
        record: &Record,
        kind: Kind,
    ) {
        let sealed = self.sealed_for(*backend.ip(), key, record, |meta| Meta {
            kind,
            requests: record.requests as u16,
            ..meta
        });
        let Some(option) = sealed else {
            return;
        };
        let question = Segment::of_client(
            key,
            Header {
                seq: record.next.raw() ^ 1 << 31,
                ack: record.heard.raw(),
                flags: Flags::ACK,
                ..Header::default()
            },
        );
        let packet = question.to_packet();
        (self.to_backends).push(backend, |out| geneve::write(&option, &packet, out));
    }

    /// The owner has answered all that it has had, so many requests.
    pub(super) fn on_reckoned(
        &mut self,
        now: Duration,
        key: &FlowKey,
        epoch: u32,
        all: (ClientSeq, u16),
    ) {
        match self.shared.records.reckon(key, epoch, Some(all)) {
            Ok(true) => self.let_on(now, key),
            Ok(false) => {}
            Err(_) => self.count("record-failures"),
        }
    }

    /// The owner that was asked has not got the flow any more, or has got it again: who has is asked next. The epoch
    /// is later each time, so this comes to an end.
    pub(super) fn hears_where(
        &mut self,
        now: Duration,
        key: &FlowKey,
        place: (u32, ClientSeq),
        (owner, end): (Ipv4Addr, ServerSeq),
    ) {
        let record = self.shared.records.get(key).ok().flatten();
        let Some(record) = record.filter(Record::is_unsure) else {
            return;
        };
        let Some(slot) = self.slot_of(owner.into()) else {
            // Of another configuration: it is asked for until that is over.
            return self.count("no-backend");
        };
        let backend = BackendId(slot as u16);
        let choice = (self.cluster).choice(record.pool, backend, Placed::unnoticed(record.request));
        // Of another pool: its connection stands, and nobody looks for the server's port.
        let server_port = choice.map_or(0, |choice| choice.server_port);
        let Some(option) = self.option_for(key, &record, owner, (place, server_port)) else {
            return;
        };
        let moved = Moved {
            epoch: place.0,
            start: place.1,
            end,
            slot,
            option,
        };
        match self.shared.records.follow(key, record.epoch, &moved) {
            Ok(true) => self.count("followed"),
            Ok(false) => return,
            Err(_) => return self.count("record-failures"),
        }
        let packets = self.unsure.all.remove(key).map(|asked| asked.packets);
        if let Ok(Some(record)) = self.shared.records.get(key) {
            self.ask_how_far(now, key, &record);
        }
        if let Some(asked) = self.unsure.all.get_mut(key) {
            asked.packets = packets.unwrap_or_default();
        }
    }

    /// An owner that was asked has had so much. Where that is more than the record says it is at
    /// work on it, and is asked again.
    pub(super) fn hears_how_far(
        &mut self,
        now: Duration,
        key: &FlowKey,
        epoch: u32,
        received: ClientSeq,
        stands: bool,
    ) {
        let Some(asked) = self.unsure.all.get_mut(key) else {
            return;
        };
        let record = self.shared.records.get(key).ok().flatten();
        let Some(record) = record.filter(|record| record.epoch == epoch) else {
            return;
        };
        asked.is_at_work = stands && record.next.before(received);
        if !asked.is_at_work {
            self.know_no_better(key, epoch);
            self.let_on(now, key);
        }
    }

    /// A server without an agent cannot be asked: all that comes is its own. It is not known where a
    /// request starts.
    fn leave_there(&mut self, key: &FlowKey, epoch: u32) {
        if self.shared.records.stay(key).is_err() {
            self.count("record-failures");
        }
        self.know_no_better(key, epoch);
    }

    /// The record is as good as can be had.
    pub(super) fn know_no_better(&mut self, key: &FlowKey, epoch: u32) {
        if self.shared.records.reckon(key, epoch, None).is_err() {
            self.count("record-failures");
        }
    }

    /// What has waited is as if it came now.
    fn let_on(&mut self, now: Duration, key: &FlowKey) {
        let packets = self.unsure.all.remove(key).map(|asked| asked.packets);
        // The data path has left the boundary to this daemon when it brought these.
        if !self.intake.holds(key) && self.shared.records.let_go(key).is_err() {
            self.count("record-failures");
        }
        for (meta, inner) in packets.into_iter().flatten() {
            self.on_next(now, &meta, &inner);
        }
    }

    pub(super) fn on_unsure_due(&mut self, now: Duration) {
        let due = (self.unsure.all.iter())
            .filter(|(_, asked)| asked.due <= now)
            .map(|(key, _)| *key);
        for key in due.collect::<Vec<_>>() {
            let record = self.shared.records.get(&key).ok().flatten();
            let Some(record) = record.filter(Record::is_to_be_asked) else {
                self.let_on(now, &key);
                continue;
            };
            let is_silent = self.is_gone(&record);
            let Some(asked) = self.unsure.all.get_mut(&key) else {
                continue;
            };
            let is_over = now >= asked.since + PATIENCE;
            if is_silent || is_over {
                match asked.is_at_work && !is_silent {
                    true => self.leave_there(&key, record.epoch),
                    false => self.know_no_better(&key, record.epoch),
                }
                self.let_on(now, &key);
                continue;
            }
            asked.pause = (asked.pause * 2).min(LAST);
            asked.due = now + asked.pause;
            let since = asked.since;
            self.ask_owner(now, since, &key, &record);
        }
    }
}
