//! Several dispatchers: who would keep a flow if its keeper died has what that one knows of an answer
//! that may outlive its owner, and ends a takeover that it has begun (docs/protocol/takeover.md 2.2c,
//! 4.10).
//!
//! ```text
//!  UPDATE ──► keeper ──► heir: kept                    keeper dies: the heir looks after its owner
//!  TAKE ◄──── keeper ──► heir: the very same TAKE      keeper dies: the heir says it again
//! ```

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};
use std::time::Duration;

use trapeze_core::flow::FlowKey;
use trapeze_core::intake::{self, Arrived};
use trapeze_core::seq::{ClientSeq, ServerSeq};
use trapeze_core::takeover::parts::cut;
use trapeze_core::takeover::{Message, SoftState, Take, WEDGE_PORT};
use trapeze_core::wire::geneve;
use trapeze_core::wire::meta::{Binding, Kind, Meta};
use trapeze_core::wire::segment::Segment;
use trapeze_core::wire::tcp::{Flags, Header};
use trapeze_datapath::abi::GENEVE_PORT;

use super::State;
use super::support::{Stage, Taking, is_open};
use crate::records::Record;
use crate::support::{Ahead, Kept};

/// How often it is looked whose keeper has died.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);
/// Answers that are told anew at a time, where a keeper has come or gone.
const AT_A_TIME: usize = 64;

/// What this dispatcher would have to end if another one died.
#[derive(Debug, Default)]
pub(super) struct Heritage {
    begun: HashMap<FlowKey, Begun>,
    look_at: Duration,
    /// The lots as they were dealt when all that is kept has been told.
    deal: u32,
    untold: Vec<(u32, FlowKey)>,
}

/// A takeover that a flow's keeper has begun, and nobody has ended yet.
#[derive(Debug)]
struct Begun {
    take: Take,
    /// As it is sealed for the wedge; repeated as it is.
    command: Vec<u8>,
    /// Of the segment that it is in, were it one.
    header: Header,
    said: Duration,
    ahead: Option<Ahead>,
}

impl Heritage {
    pub(super) fn next_due(&self) -> Option<Duration> {
        (!self.begun.is_empty() || !self.untold.is_empty()).then_some(self.look_at)
    }
}

impl State {
    /// What is said to somebody of an answer, in as many datagrams as it takes. `header` is that of the
    /// segment that they enclose.
    pub(super) fn support_datagrams(
        &self,
        to: Ipv4Addr,
        key: &FlowKey,
        header: Header,
        message: Vec<u8>,
    ) -> Vec<Vec<u8>> {
        let keys = &self.cluster.keys;
        let Some(binding) = Binding::of_flow(IpAddr::V4(to), key.client, key.vip) else {
            return Vec::new();
        };
        let option = Meta::of(Kind::Support).seal(keys, &binding);
        let frames = cut(message, keys, key).into_iter().map(|payload| {
            let segment = Segment {
                payload,
                ..Segment::of_client(key, header)
            };
            let mut datagram = Vec::new();
            geneve::write(&option, &segment.to_packet(), &mut datagram);
            datagram
        });
        frames.collect()
    }

    /// The same, to another dispatcher: what that is told has an ACK; what an agent says has no flags.
    fn to_dispatcher(
        &self,
        dispatcher: Ipv4Addr,
        key: &FlowKey,
        header: Header,
        message: Vec<u8>,
    ) -> Vec<(SocketAddrV4, Vec<u8>)> {
        let header = Header {
            flags: header.flags | Flags::ACK,
            ..header
        };
        let to = SocketAddrV4::new(dispatcher, GENEVE_PORT);
        let datagrams = self.support_datagrams(dispatcher, key, header, message);
        datagrams.into_iter().map(|bytes| (to, bytes)).collect()
    }

    /// An owner has said this of an answer: whoever keeps the flow, or would next, is to know.
    pub(super) fn tell_next(&mut self, key: &FlowKey, message: Vec<u8>) {
        let peers = &self.shared.peers;
        let Some(to) = peers.keeper_of(key).or_else(|| peers.heir_of(key)) else {
            return;
        };
        for (to, datagram) in self.to_dispatcher(to, key, Header::default(), message) {
            (self.to_backends).push(to, |out| out.extend_from_slice(&datagram));
        }
    }

    /// What is another one's to hear may be this one's before it is said again.
    pub(super) fn hear_update(&mut self, now: Duration, arrived: &Arrived<'_>) {
        let key = arrived.key;
        let said = (self.said).open(arrived.payload, &self.cluster.keys, &key);
        if let Ok(Some((Message::Update(state), _))) = said {
            let (state, _) = self.completed(&key, state);
            self.on_update(now, key, state);
        }
    }

    /// A TAKE in that epoch, and what was sent ahead, for whoever keeps the flow next.
    pub(super) fn heirs_copies(
        &self,
        key: &FlowKey,
        (epoch, header, command): (u32, Header, Vec<u8>),
    ) -> Vec<(SocketAddrV4, Vec<u8>)> {
        let Some(heir) = self.shared.peers.heir_of(key) else {
            return Vec::new();
        };
        let ahead = self.takings.all.get(key).map(|taking| &taking.kept.ahead);
        let ahead = ahead.and_then(|ahead| self.ahead_message(key, epoch, ahead));
        let ahead = ahead.map(|message| (Header::default(), message));
        std::iter::once((header, command))
            .chain(ahead)
            .flat_map(|(header, message)| self.to_dispatcher(heir, key, header, message))
            .collect()
    }

    /// The flow's keeper has told a wedge to go on with it.
    pub(super) fn on_begun(
        &mut self,
        now: Duration,
        arrived: &Arrived<'_>,
        (take, command): (Take, Vec<u8>),
    ) {
        let begun = Begun {
            take,
            command,
            header: arrived.header,
            said: now,
            ahead: None,
        };
        let before = self.heritage.begun.insert(arrived.key, begun);
        // It is said again, as they are.
        if let Some((now, before)) = self.heritage.begun.get_mut(&arrived.key).zip(before)
            && now.take.state.epoch == before.take.state.epoch
        {
            now.ahead = before.ahead;
        }
    }

    /// The flow's keeper keeps this of requests that were sent ahead.
    pub(super) fn on_ahead(&mut self, key: &FlowKey, epoch: u32, ahead: Ahead) {
        match self.heritage.begun.get_mut(key) {
            Some(begun) if begun.take.state.epoch == epoch => begun.ahead = Some(ahead),
            _ => self.support.ahead_is(key, epoch, ahead),
        }
    }

    /// Whoever keeps the flow, or would next, is to know what was sent ahead of its answer's end.
    pub(super) fn tell_ahead(&mut self, slot: u32, key: &FlowKey) {
        let Some(kept) = self.support.get(slot, key) else {
            return;
        };
        let (epoch, ahead) = (kept.state.epoch, &kept.ahead);
        if let Some(message) = self.ahead_message(key, epoch, ahead) {
            self.tell_next(key, message);
        }
    }

    /// None: nothing was.
    fn ahead_message(&self, key: &FlowKey, epoch: u32, ahead: &Ahead) -> Option<Vec<u8>> {
        let message = Message::Ahead {
            epoch,
            requests: ahead.requests,
            bytes: ahead.bytes.clone(),
        };
        (!ahead.bytes.is_empty()).then(|| message.seal(&self.cluster.keys, key))
    }

    /// A head that another dispatcher was reading, behind an answer that is being taken over. Where that
    /// one had begun, it is among what was sent ahead.
    pub(super) fn goes_behind_a_taking(&mut self, key: &FlowKey, head: &intake::Kept) -> bool {
        if self.heritage.begun.contains_key(key) {
            return true;
        }
        let Some(taking) = self.takings.all.get_mut(key) else {
            return false;
        };
        let ahead = &mut taking.kept.ahead;
        let end = taking.boundary + ahead.bytes.len() as u32;
        if !matches!(taking.stage, Stage::Inquiring { .. }) && end == head.start() {
            ahead.bytes.extend_from_slice(&head.bytes);
        }
        true
    }

    /// A wedge has said that it goes on, in that epoch.
    pub(super) fn is_ended(&mut self, key: &FlowKey, epoch: u32) {
        let begun = self.heritage.begun.get(key);
        if begun.is_some_and(|begun| begun.take.state.epoch == epoch) {
            self.heritage.begun.remove(key);
        }
    }

    /// Ends what a keeper that is gone has begun, and tells those that have come.
    pub(super) fn on_heritage_due(&mut self, now: Duration) {
        let peers = &self.shared.peers;
        let deal = peers.deal();
        if deal != self.heritage.deal {
            self.heritage.deal = deal;
            self.heritage.untold = self.support.all();
        }
        if now < self.heritage.look_at {
            return;
        }
        self.heritage.look_at = now + LOOK_INTERVAL;
        let left = self.heritage.untold.len().saturating_sub(AT_A_TIME);
        for (slot, key) in self.heritage.untold.split_off(left) {
            self.tell_anew(now, slot, &key);
        }
        let shared = self.shared.clone();
        let timeout = self.cluster.config.limits.cache_timeout;
        (self.heritage.begun).retain(|_, begun| now.saturating_sub(begun.said) < timeout);
        let inherited = self.heritage.begun.extract_if(|key, begun| {
            // Its record may come after it.
            let record = shared.records.get(key).ok().flatten();
            shared.peers.keeps(key) && record.is_some_and(|r| r.epoch == begun.take.state.epoch)
        });
        for (key, begun) in inherited.collect::<Vec<_>>() {
            self.end_begun(now, key, begun);
        }
    }

    /// The same TAKE, byte for byte: a wedge that has it answers as one that has not.
    fn end_begun(&mut self, now: Duration, key: FlowKey, begun: Begun) {
        let Ok(Some(record)) = self.shared.records.get(&key) else {
            return;
        };
        let Begun {
            take,
            command,
            header,
            said,
            ahead,
        } = begun;
        let start = ClientSeq::new(header.seq);
        let is_meant = record.server_port == WEDGE_PORT
            && record.isns.client + 1 == start
            && is_open(&record)
            && !self.takings.all.contains_key(&key);
        let Some(to) = self.backend_address(record.slot).filter(|_| is_meant) else {
            return;
        };
        let boundary = start + command.len() as u32;
        let heard = ServerSeq::new(header.ack);
        let epoch = take.state.epoch;
        let mut kept = Kept::new(now, take.state);
        kept.said = said;
        let mut tried = Vec::new();
        // Of whom it is taken over; it may only have been cut off.
        if let Some((slot, before)) = self.support.before(&key, epoch) {
            kept.ahead = before.ahead;
            tried.push(slot);
            let requests = before.state.answer.wrapping_add(kept.ahead.requests);
            let old = Record {
                slot,
                requests: requests.into(),
                next: boundary + kept.ahead.bytes.len() as u32,
                ..record
            };
            self.forsake(&key, &old, (epoch, start), heard);
            self.support.forget(slot, &key);
        }
        // Who is being told is the last.
        tried.push(record.slot);
        // Those that waited at the one before, too.
        kept.ahead = ahead.unwrap_or(kept.ahead);
        let mut taking = Taking::new(now, kept, record.slot, boundary);
        taking.tried = tried;
        taking.heard = Header {
            flags: Flags::ACK | Flags::PSH,
            ..header
        };
        let datagrams = self.take_datagrams(&key, &record.option, &header, &command);
        taking.stage = Stage::SettingUp {
            epoch,
            to,
            datagrams,
            for_heir: Vec::new(),
        };
        self.takings.all.insert(key, taking);
        self.count("inherited");
    }

    /// A keeper has come or gone: who keeps the flow, or would, is to have what is known here.
    fn tell_anew(&mut self, now: Duration, slot: u32, key: &FlowKey) {
        let Some(kept) = self.support.get(slot, key) else {
            return;
        };
        let since = now.saturating_sub(kept.said).as_millis() as u32;
        let state = SoftState {
            clock: kept.state.clock.wrapping_add(since),
            ..kept.state.clone()
        };
        let message = Message::Update(state).seal(&self.cluster.keys, key);
        self.tell_next(key, message);
        self.tell_ahead(slot, key);
    }
}

/// Was it told by a dispatcher?
pub(super) fn is_copy(arrived: &Arrived<'_>) -> bool {
    arrived.header.flags.has(Flags::ACK)
}
