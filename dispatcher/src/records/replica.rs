//! Records as the other dispatchers have them: what of a change they are told, and what
//! becomes here of what they tell (docs/protocol/replication.md §4). Slots and clocks are
//! this host's own; backends travel as addresses, times as how long ago.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::RwLock;
use std::time::Duration;

use trapeze_core::flow::FlowKey;
use trapeze_core::head::Expected;
use trapeze_core::replica::record::{Numbers, Place};
use trapeze_core::replica::{self, Entry, Seen};
use trapeze_core::seq::{ClientSeq, ServerSeq};
use trapeze_core::wire::meta::{self, Meta};
use trapeze_datapath::abi::{
    self, Finished, Flow, FlowState, MARK_ENTRUSTED, MARK_PIPELINES, MARK_PROTECTED,
    MARK_RELEASING, MARK_STAYED, MARK_TAKING, MARK_TUNNEL, MARK_UNSURE, Pod, Splice,
};
use trapeze_datapath::clock;
use trapeze_datapath::map::Update;

use super::{Record, Records, stays};
use crate::half_pipes::Older;
use crate::peers;

/// Of the marks those that hold at every dispatcher.
const MARKS: u32 = MARK_TUNNEL | MARK_PIPELINES | MARK_RELEASING | MARK_TAKING | MARK_PROTECTED;
/// What stands for [`MARK_PROTECTED`] in what is told.
const PROTECTED_TOLD: u8 = 2;
/// Who has seen packets of a flow says so, once in so long.
const REFRESH: Duration = Duration::from_secs(15);

/// Which slot each backend's address has here, and the other way round.
#[derive(Debug, Default)]
pub struct Slots(RwLock<(HashMap<Ipv4Addr, u32>, HashMap<u32, Ipv4Addr>)>);

impl Slots {
    /// These are known from now on.
    pub fn set(&self, all: impl Iterator<Item = (u32, IpAddr)>) {
        let (mut slots, mut addresses) = (HashMap::new(), HashMap::new());
        for (slot, address) in all {
            if let IpAddr::V4(address) = address {
                slots.insert(address, slot);
                addresses.insert(slot, address);
            }
        }
        *self.0.write().expect("no thread panics with it") = (slots, addresses);
    }

    /// The slot of the backend that has this address.
    pub fn slot(&self, address: Ipv4Addr) -> Option<u32> {
        let known = self.0.read().expect("no thread panics with it");
        known.0.get(&address).copied()
    }

    /// All of them.
    pub fn all(&self) -> HashMap<Ipv4Addr, u32> {
        let known = self.0.read().expect("no thread panics with it");
        known.0.clone()
    }

    /// The address of the backend that has this slot.
    pub fn address(&self, slot: u32) -> Option<Ipv4Addr> {
        let known = self.0.read().expect("no thread panics with it");
        known.1.get(&slot).copied()
    }
}

impl Records {
    /// Puts a record in the place of `old`, and has the others told. Every change of a record
    /// goes this way, or that of [`Self::exchange`].
    pub(super) fn put(
        &self,
        key: &abi::FlowKey,
        flow: &mut Flow,
        old: Option<&Flow>,
        update: Update,
    ) -> io::Result<()> {
        let is_news = self.date(flow, old);
        self.maps.flows.put(key, flow, update)?;
        self.splices.follow(key, old, Some(flow))?;
        if is_news {
            self.tell(key, flow);
        }
        Ok(())
    }

    /// The next version of the record, if it has come to differ from `old` in what others
    /// are to know: then true.
    pub(super) fn date(&self, flow: &mut Flow, old: Option<&Flow>) -> bool {
        let unknown = Flow::zeroed();
        let known = old.unwrap_or(&unknown);
        flow.version = known.version;
        flow.maker = known.maker;
        flow.told = known.told;
        flow.refreshed_ns = known.refreshed_ns;
        flow.turn = known.turn;
        let is_private = flow.state == FlowState::Reading as u32 && known.version == 0;
        // Who is sure says so, for the one that kept the flow before is not any more. What has
        // stayed is told in its own time (`tell_stay`): nothing follows from that.
        let is_sure_now = known.marks & MARK_UNSURE != 0 && flow.marks & MARK_UNSURE == 0;
        let is_known =
            known.version != 0 && !is_sure_now && what_others_know(known) == what_others_know(flow);
        let is_news = self.peers.are_there() && !is_private && !is_known;
        if is_news {
            self.raise_version(flow);
        }
        is_news
    }

    pub(super) fn raise_version(&self, flow: &mut Flow) {
        flow.version = flow.version.wrapping_add(1).max(1);
        flow.maker = self.peers.own.octets();
        flow.marks &= !(MARK_STAYED | MARK_ENTRUSTED);
        // Not all of it is told.
        if before_move(flow).is_some() {
            flow.marks |= MARK_STAYED;
        }
        flow.told = flow.state;
        flow.turn = self.peers.herald.turn();
        flow.refreshed_ns = clock::monotonic().as_nanos() as u64;
    }

    pub(super) fn tell(&self, key: &abi::FlowKey, flow: &Flow) {
        match self.record_of(key, &before_move(flow).unwrap_or(*flow)) {
            Some(record) => self.peers.herald.tell(&Entry::Record(record)),
            None => self.peers.herald.tell_nothing(),
        }
    }

    fn record_of(&self, key: &abi::FlowKey, flow: &Flow) -> Option<replica::Record> {
        let key = FlowKey::from(*key);
        let has_backend =
            ![FlowState::Reading, FlowState::Vacant].contains(&FlowState::from_raw(flow.state)?);
        let backend = match self.slots.address(flow.backend) {
            Some(address) => address,
            None if has_backend => return None,
            None => Ipv4Addr::UNSPECIFIED,
        };
        let now = clock::monotonic().as_nanos() as u64;
        let ago_ms = |then: u64| (now.saturating_sub(then) / 1_000_000).min(u32::MAX.into()) as u32;
        peers::is_v4(&key).then(|| replica::Record {
            key,
            version: flow.version,
            maker: flow.maker.into(),
            option: flow.meta,
            client_isn: ClientSeq::new(flow.client_isn),
            server_isn: ServerSeq::new(flow.server_isn),
            cookie: ServerSeq::new(flow.cookie),
            backend,
            state: flow.state as u8,
            expect: flow.expect as u8,
            marks: marks_to_tell(flow.marks),
            class: flow.class,
            pool: flow.pool as u16,
            kind: flow.kind,
            next: ClientSeq::new(flow.next),
            began: ClientSeq::new(flow.began),
            requests: flow.requests,
            numbers: numbers(flow),
            owes_nothing: owes_nothing(flow),
            asked_ack: ServerSeq::new(flow.asked_ack),
            object: flow.object,
            idle_ms: ago_ms(flow.last_seen_ns),
            age_ms: ago_ms(flow.created_ns),
            splice: flow.splice.terms(),
        })
    }

    /// A record for somebody who catches up; none of what is nobody else's affair. One that
    /// was made before there were others is theirs too from now on, as is an end that nobody
    /// has been told of.
    pub fn to_be_told(
        &self,
        key: &abi::FlowKey,
        flow: &Flow,
    ) -> io::Result<Option<replica::Record>> {
        let is_private = flow.state == FlowState::Reading as u32 && flow.version == 0;
        if is_private || self.is_doubted(flow) {
            return Ok(None);
        }
        let is_told = |flow: &Flow| {
            flow.version != 0 && flow.state == flow.told && flow.marks & MARK_STAYED == 0
        };
        let known = |flow: &Flow| self.record_of(key, &before_move(flow).unwrap_or(*flow));
        if is_told(flow) {
            return Ok(known(flow));
        }
        let changing = self.changing();
        let flow = self.swap(&changing, key, |flow| {
            let mut flow = *flow;
            if !is_told(&flow) {
                self.raise_version(&mut flow);
            }
            Some(flow)
        })?;
        let Some(flow) = flow else { return Ok(None) };
        // Not to the one that asks alone: under one version all have the same.
        self.tell(key, &flow);
        Ok(known(&flow))
    }

    /// Another dispatcher has told a record. What is here stays, if that is later. What the
    /// latest request of the one that was here has come to, if nobody has been told yet.
    pub fn apply(&self, record: &replica::Record) -> io::Result<Option<Finished>> {
        let Some(state) = FlowState::from_raw(record.state.into()) else {
            return Ok(None);
        };
        let can_be = Meta::decode(&record.option).is_ok()
            && Expected::from_number(record.expect.into()).is_some();
        let has_backend = ![FlowState::Reading, FlowState::Vacant].contains(&state);
        let slot = match self.slots.slot(record.backend) {
            Some(slot) => slot,
            // Its configuration is another one: its packets go to the flow's keeper.
            None if has_backend => return Ok(None),
            None => 0,
        };
        if !can_be {
            return Ok(None);
        }
        let key = abi::FlowKey::from(record.key);
        let told = flow_of(record, slot);
        let changing = self.changing();
        self.note_older(&record.key, &told);
        let Some(old) = self.maps.flows.get(&key)? else {
            return self.begin(&key, &told).map(|()| None);
        };
        let mut left = None;
        let mut told = told;
        if old.cookie == told.cookie {
            let now = self.swap(&changing, &key, |old| {
                left =
                    Some(*old).filter(|old| is_newer(record, old) || self.gives_way(old, record));
                left.map(|old| goes_on(&told, &old))
            })?;
            told = now.unwrap_or(told);
        } else if is_newer(record, &old) || self.is_doubted(&old) {
            let flow = Flow {
                syn_isn: old.syn_isn,
                syn_seen_ns: old.syn_seen_ns,
                ..told
            };
            self.maps.flows.put(&key, &flow, Update::Any)?;
            self.splices.follow(&key, Some(&old), Some(&flow))?;
            left = Some(old);
        }
        let Some(old) = left else { return Ok(None) };
        if old.state == FlowState::Established as u32 {
            self.loads.closed(old.backend);
        }
        if told.state == FlowState::Established as u32 {
            self.loads.opened(told.backend, 0);
        }
        if is_same_request(&told, &old) {
            return Ok(None);
        }
        self.loads.finished(old.backend, old.charge_us);
        Ok(self.finished(&old))
    }

    /// Where a record says that the owner before still sends, that is to be known for as long as it does.
    pub fn note_older(&self, key: &FlowKey, flow: &Flow) {
        let Some(record) = Record::read(flow) else {
            return;
        };
        let end = record.isns.server + 1;
        let is_open = matches!(record.state, FlowState::Established | FlowState::ClientFin);
        let before = (record.predecessor()).filter(|_| is_open && record.heard.before(end));
        let Some(slot) = before.and_then(|address| self.slots.slot(address)) else {
            return;
        };
        let older = Older {
            slot,
            epoch: record.epoch,
            start: record.isns.client + 1,
            end,
        };
        (self.half_pipes).note(key, record.cookie, older, record.heard);
    }

    /// Another dispatcher has told the record of a flow that is new here.
    fn begin(&self, key: &abi::FlowKey, told: &Flow) -> io::Result<()> {
        match self.maps.flows.put(key, told, Update::Any) {
            // The table is full: its packets go to the flow's keeper.
            Err(e) if e.raw_os_error() == Some(libc::E2BIG) => return Ok(()),
            done => done?,
        }
        self.splices.follow(key, None, Some(told))?;
        // What its proof was for is done: encapsulation.md 8.4.
        let proof = self.maps.proofs.get(key)?;
        if proof.is_some_and(|proof| proof.server_isn == told.cookie) {
            self.maps.proofs.delete(key)?;
        }
        if told.state == FlowState::Established as u32 {
            self.loads.opened(told.backend, 0);
        }
        Ok(())
    }

    /// Another dispatcher has seen packets of a flow.
    pub fn refresh(&self, seen: &Seen) -> io::Result<()> {
        let key = abi::FlowKey::from(seen.key);
        let now = clock::monotonic().as_nanos() as u64;
        let then = now.saturating_sub(u64::from(seen.idle_ms) * 1_000_000);
        let seen = |flow: &Flow| {
            (flow.cookie == seen.cookie.raw()).then(|| Flow {
                refreshed_ns: now,
                ..met(flow, &seen.numbers, then)
            })
        };
        self.swap(&self.changing(), &key, seen).map(drop)
    }

    /// What the others are to know of a flow that the data path alone has changed: its end,
    /// and now and then that it lives. Whoever has seen an end tells it: the flow may be
    /// another's by now, to whom its packet has not come.
    pub fn tell_what_has_been_seen(&self, key: &abi::FlowKey, flow: &Flow) -> io::Result<()> {
        if flow.version == 0 || !self.peers.are_there() {
            return Ok(());
        }
        if flow.marks & MARK_STAYED != 0 && stays::is_of_use(flow) {
            self.tell_stay(key)?;
        }
        // Whom nobody else knows nobody else waits for.
        let has_ended = flow.state != flow.told && flow.marks & MARK_ENTRUSTED == 0;
        let refreshed = Duration::from_nanos(flow.refreshed_ns);
        let now = clock::monotonic();
        let lives = !self.is_doubted(flow)
            && flow.last_seen_ns > flow.refreshed_ns
            && now >= refreshed + REFRESH;
        if !has_ended && !lives {
            return Ok(());
        }
        let changing = self.changing();
        if has_ended {
            let ended = self.swap(&changing, key, |flow| {
                let mut flow = *flow;
                self.raise_version(&mut flow);
                Some(flow)
            })?;
            if let Some(flow) = ended {
                self.tell(key, &flow);
            }
            return Ok(());
        }
        let refreshed_ns = now.as_nanos() as u64;
        let refreshed = self.swap(&changing, key, |flow| {
            Some(Flow {
                refreshed_ns,
                // Told long ago: turns are numbers that come again.
                turn: 0,
                ..*flow
            })
        })?;
        if let Some(flow) = refreshed {
            let idle = refreshed_ns.saturating_sub(flow.last_seen_ns) / 1_000_000;
            self.peers.herald.tell(&Entry::Seen(Seen {
                key: FlowKey::from(*key),
                cookie: ServerSeq::new(flow.cookie),
                numbers: numbers(&flow),
                idle_ms: idle as u32,
            }));
        }
        Ok(())
    }
}

/// A record's marks in one byte: that of a protected answer has the place of one that nobody is
/// told of.
fn marks_to_tell(marks: u32) -> u8 {
    let protected = if marks & MARK_PROTECTED == 0 {
        0
    } else {
        PROTECTED_TOLD
    };
    (marks & MARKS) as u8 | protected
}

fn marks_told(told: u8) -> u32 {
    let marks = u32::from(told);
    let protected = if told & PROTECTED_TOLD == 0 {
        0
    } else {
        MARK_PROTECTED
    };
    marks & MARKS | protected
}

fn numbers(flow: &Flow) -> Numbers {
    Numbers {
        end: ClientSeq::new(flow.last_seq),
        heard: ServerSeq::new(flow.last_ack),
        window: flow.window as u16,
    }
}

/// The record with what somebody else has seen of the client.
fn met(flow: &Flow, theirs: &Numbers, seen_ns: u64) -> Flow {
    let ours = numbers(flow);
    let window = match ours.heard.at_or_before(theirs.heard) {
        true => theirs.window.into(),
        false => flow.window,
    };
    Flow {
        window,
        last_seq: ours.end.later_of(theirs.end).raw(),
        last_ack: ours.heard.later_of(theirs.heard).raw(),
        last_seen_ns: flow.last_seen_ns.max(seen_ns),
        ..*flow
    }
}

/// A record that another dispatcher has told, in the place of the same connection's. What
/// each dispatcher counts for itself stays.
fn goes_on(told: &Flow, old: &Flow) -> Flow {
    let mut flow = Flow {
        syn_isn: old.syn_isn,
        syn_seen_ns: old.syn_seen_ns,
        created_ns: old.created_ns,
        packets: old.packets,
        bytes: old.bytes,
        busy: old.busy,
        ..met(told, &numbers(old), old.last_seen_ns)
    };
    // A client says FIN once and for all. Who has made this record has not heard it yet.
    if old.state == FlowState::ClientFin as u32 && told.state == FlowState::Established as u32 {
        flow.state = old.state;
    }
    if is_same_request(told, old) {
        flow.pool = old.pool;
        flow.object = old.object;
        flow.kind = old.kind;
        flow.class = old.class;
        flow.charge_us = old.charge_us;
        flow.shared = old.shared;
        flow.report = old.report;
        flow.asked_ns = old.asked_ns;
        flow.acked_ns = old.acked_ns;
    }
    flow
}

/// Is the latest request, in a record that was told, that of the record before?
fn is_same_request(told: &Flow, old: &Flow) -> bool {
    let epoch = |flow: &Flow| flow.meta[4..8].to_vec();
    told.cookie == old.cookie
        && told.backend == old.backend
        && told.requests == old.requests
        && epoch(told) == epoch(old)
}

/// Whether its owner has said so, of the record as it is (docs/protocol/handoff.md §9).
fn owes_nothing(flow: &Flow) -> bool {
    let says_so = |record: Record| record.idle_end == Some(record.heard);
    flow.idle_heard != 0 && Record::read(flow).is_some_and(says_so)
}

/// What others are told of a flow that the data path moves, as long as nobody knows whether the next owner has it:
/// that it is at the one before, who can be asked where it went. None: it is told as it is.
fn before_move(flow: &Flow) -> Option<Flow> {
    let moves = flow.state == FlowState::Established as u32
        && flow.before[0] != 0
        && Record::read(flow).is_some_and(|record| record.is_moving());
    let start = |raw: &meta::Raw| u32::from_be_bytes([raw[8], raw[9], raw[10], raw[11]]);
    moves.then(|| Flow {
        meta: flow.before,
        backend: flow.previous,
        client_isn: start(&flow.before).wrapping_sub(1),
        server_isn: flow.server_isn_before,
        requests: flow.requests_before,
        next: start(&flow.meta),
        idle_heard: 0,
        ..*flow
    })
}

/// All of a record that is not counted or aged by each dispatcher for itself.
fn what_others_know(flow: &Flow) -> impl PartialEq + use<> {
    (
        (flow.meta, flow.client_isn, flow.server_isn, flow.cookie),
        (flow.backend, flow.state, flow.next, flow.began, flow.expect),
        (flow.requests, flow.asked_ack, flow.marks & MARKS),
        owes_nothing(flow),
        flow.splice,
    )
}

/// Does it come after what is here (4.2)?
fn is_newer(record: &replica::Record, here: &Flow) -> bool {
    if here.version == 0 && here.state == FlowState::Reading as u32 {
        // A head that is being read here is another connection's, or has been decided.
        return here.cookie == record.cookie.raw();
    }
    let [.., a, b, c, d] = *here.meta.first_chunk::<8>().expect("it is longer");
    record.place().is_after(&Place {
        epoch: u32::from_be_bytes([a, b, c, d]),
        version: here.version,
        maker: here.maker.into(),
    })
}

fn flow_of(record: &replica::Record, slot: u32) -> Flow {
    let now = clock::monotonic().as_nanos() as u64;
    let then = |ago_ms: u32| now.saturating_sub(u64::from(ago_ms) * 1_000_000);
    let [.., a, b, c, d] = *record.option.first_chunk::<8>().expect("it is longer");
    // As in is_idle(); of requests there are none where nothing was said.
    let (idle_end, idle_epoch, idle_requests) = match record.owes_nothing {
        true => (
            record.numbers.heard.raw(),
            u32::from_be_bytes([a, b, c, d]),
            record.requests,
        ),
        false => (0, 0, 0),
    };
    let mut flow = Flow {
        meta: record.option,
        client_isn: record.client_isn.raw(),
        server_isn: record.server_isn.raw(),
        backend: slot,
        state: record.state.into(),
        last_seq: record.numbers.end.raw(),
        last_ack: record.numbers.heard.raw(),
        window: record.numbers.window.into(),
        pool: record.pool.into(),
        created_ns: then(record.age_ms),
        last_seen_ns: then(record.idle_ms),
        asked_ns: now,
        object: record.object,
        kind: record.kind,
        class: record.class,
        marks: marks_told(record.marks),
        next: record.next.raw(),
        began: record.began.raw(),
        expect: record.expect.into(),
        asked_ack: record.asked_ack.raw(),
        requests: record.requests,
        idle_end,
        idle_epoch,
        idle_requests,
        idle_from: record.next.raw(),
        idle_heard: record.owes_nothing.into(),
        cookie: record.cookie.raw(),
        version: record.version.max(1),
        maker: record.maker.octets(),
        told: record.state.into(),
        refreshed_ns: now,
        splice: (record.splice.as_ref()).map_or(Splice::zeroed(), Splice::from),
        ..Flow::zeroed()
    };
    if stays::is_unsure(&flow) {
        flow.marks |= MARK_UNSURE;
    }
    flow
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(state: FlowState, version: u32) -> Flow {
        Flow {
            cookie: 7,
            version,
            state: state as u32,
            told: state as u32,
            ..Flow::zeroed()
        }
    }

    #[test]
    fn a_fin_that_is_known_stands_against_a_later_record_and_is_told() {
        let (open, closed) = (FlowState::Established as u32, FlowState::ClientFin as u32);
        let here = Flow {
            told: open,
            ..of(FlowState::ClientFin, 3)
        };
        let now = goes_on(&of(FlowState::Established, 5), &here);
        assert_eq!((now.version, now.state, now.told), (5, closed, open));
        let now = goes_on(&of(FlowState::Reset, 5), &here);
        assert_eq!((now.state, now.told), (FlowState::Reset as u32, now.state));
        let now = goes_on(&of(FlowState::ClientFin, 5), &of(FlowState::Established, 3));
        assert_eq!((now.state, now.told), (closed, closed));
    }

    /// Until it has arrived the one before can say where it went, or has it again.
    #[test]
    fn what_moves_is_told_as_it_was_before() {
        let option = |epoch: u32, start: u32| {
            let meta = Meta {
                epoch,
                start: ClientSeq::new(start),
                ..Meta::of(meta::Kind::Forward)
            };
            meta.encode(1)
        };
        let moving = Flow {
            meta: option(8, 500),
            before: option(7, 100),
            backend: 3,
            previous: 2,
            client_isn: 499,
            server_isn: 8999,
            server_isn_before: 1000,
            requests: 1,
            requests_before: 5,
            next: 600,
            last_ack: 9000,
            marks: abi::MARK_MOVING | abi::MARK_SHORT,
            ..of(FlowState::Established, 4)
        };
        let told = before_move(&moving).expect("nobody knows whether the next one has it");
        assert_eq!((told.meta, told.backend), (option(7, 100), 2));
        assert_eq!((told.client_isn, told.server_isn), (99, 1000));
        assert_eq!((told.next, told.requests), (500, 5));
        let arrived = Flow {
            last_ack: 9001,
            ..moving
        };
        let ended = Flow {
            state: FlowState::ClientFin as u32,
            ..moving
        };
        let stands = Flow { marks: 0, ..moving };
        for flow in [arrived, ended, stands] {
            assert!(before_move(&flow).is_none());
        }
    }

    /// They travel in one byte, and one of them has no place in that.
    #[test]
    fn marks_that_are_everybodys_travel_and_no_others() {
        let all = [MARK_TUNNEL, MARK_PIPELINES, MARK_RELEASING, MARK_TAKING];
        for mark in all.into_iter().chain([MARK_PROTECTED, MARKS, 0]) {
            assert_eq!(marks_told(marks_to_tell(mark)), mark);
        }
        let others = abi::MARK_HELD | abi::MARK_MOVING | abi::MARK_SHORT | abi::MARK_SHORT_BEFORE;
        assert_eq!(marks_to_tell(others), 0);
        assert_eq!(marks_told(!PROTECTED_TOLD), MARKS & !MARK_PROTECTED);
    }
}
