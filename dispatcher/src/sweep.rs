//! Records whose time has come, and idle ones to be asked after: looked for in small steps, so
//! that a full table of a million is gone through in ten seconds. Rounds begin no oftener than
//! costs a hundredth of a processor: even an empty table has a million buckets to look into.

use std::collections::{BTreeSet, HashMap};
use std::net::Ipv4Addr;
use std::ops::RangeInclusive;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use trapeze_core::flow::FlowKey;
use trapeze_core::seq::ClientSeq;
use trapeze_core::wire::meta::Meta;
use trapeze_datapath::abi::{
    self, Flow, FlowState, MARK_HELD, MARK_LOST, MARK_MOVING, MARK_TAKING,
};
use trapeze_datapath::clock;
use trapeze_datapath::map::Cursor;

use crate::farewell::Farewell;
use crate::inquiry::{self, Inquiry};
use crate::records::{Record, Vacated};
use crate::{Shared, keys};

const STEP: Duration = Duration::from_millis(100);
const BATCH: usize = 4096;
/// Steps for a whole round of a full table.
const ROUND: usize = 100;
/// A round takes its time so often, until the next one begins.
const ROUND_SHARE: u32 = 100;
/// Rounds begin no oftener, and no less often where steps suffice.
const ROUND_INTERVAL: RangeInclusive<Duration> =
    Duration::from_millis(200)..=Duration::from_secs(2);
/// Cookie keys are derived ahead, and clocks compared; this often.
const UPKEEP_INTERVAL: Duration = Duration::from_secs(60);
/// With the table three quarters full, closed flows have to go this soon. Else
/// they stay (`limits.fin_timeout`) until their cookie is too old to be taken
/// again for a new connection's, should the network repeat a request.
const PRESSED_FIN_LIFETIME: Duration = Duration::from_secs(5);

/// Whose backend has been silent for so long gets no answer any more. What is saved, is retried or moves
/// has another one by then.
const LOST_AFTER: Duration = Duration::from_secs(15);
/// One that has come up anew has lost it for certain: so long is what can be saved looked for.
const LOST_ANEW: Duration = Duration::from_millis(500);
/// A client that has had nothing of an answer may be about to repeat its request, for another one or the same.
const UNHEARD_ANEW: Duration = Duration::from_secs(3);
/// Clients that nobody answers are asked for so long what they have heard.
const ASKED_FOR: Duration = Duration::from_secs(6);

pub fn run(shared: &Shared, farewell: Farewell, mut inquiry: Inquiry) -> anyhow::Result<()> {
    let mut this_round = clock::monotonic();
    let mut last_round = this_round;
    let mut cursor = Cursor::default();
    let (mut seen, mut entries) = (0, 0);
    // What the flows of this round are from, if they are spliced; none: no round has begun.
    let mut splice_addresses: Option<BTreeSet<Ipv4Addr>> = None;
    // Whose clients are to be reset where they are, since when.
    let mut since = HashMap::<FlowKey, _>::new();
    let mut upkeep_due = Instant::now() + UPKEEP_INTERVAL;
    let mut batch = BATCH;
    let (mut round_began, mut spent) = (Instant::now(), Duration::ZERO);
    while !shared.stopping.load(Ordering::Relaxed) {
        std::thread::sleep(STEP);
        // What it knows of others' flows is of before.
        if shared.peers.has_lapsed(clock::monotonic()) {
            continue;
        }
        let cluster = shared.cluster();
        if Instant::now() >= upkeep_due {
            shared.publish_node()?;
            keys::publish_cookie_keys(&shared.maps, &cluster.config.keys)?;
            upkeep_due += UPKEEP_INTERVAL;
        }
        if cursor.at_start() {
            let interval = spent * ROUND_SHARE;
            let interval = interval.clamp(*ROUND_INTERVAL.start(), *ROUND_INTERVAL.end());
            if round_began.elapsed() < interval {
                continue;
            }
            (round_began, spent) = (Instant::now(), Duration::ZERO);
            last_round = std::mem::replace(&mut this_round, clock::monotonic());
            if let Some(seen) = splice_addresses.replace(BTreeSet::new()) {
                shared.left_behind.round_is_over();
                shared.note_splice_addresses(&seen, last_round)?;
            }
            since.retain(|_, at| this_round.saturating_sub(*at) < ASKED_FOR);
        }
        let limits = &cluster.config.limits;
        let pressed = entries > limits.flows as usize / 4 * 3;
        let lifetimes = Lifetimes {
            reading: limits.head_timeout + Duration::from_secs(30),
            idle: limits.idle_timeout,
            closed: if pressed {
                limits.fin_timeout.min(PRESSED_FIN_LIFETIME)
            } else {
                limits.fin_timeout
            },
        };
        let mut budget = (entries / ROUND).max(BATCH);
        let step_began = Instant::now();
        let (mut lost, mut lost_anew, mut left_behind) = (0, 0, 0);
        while budget > 0 {
            let now = clock::monotonic();
            match shared.maps.flows.walk(&mut cursor, batch) {
                Ok(found) => {
                    seen += found.len();
                    budget = budget.saturating_sub(found.len().max(1));
                    for (key, flow) in &found {
                        if flow.splice.terms().is_some() {
                            let round = splice_addresses.get_or_insert_default();
                            round.insert(flow.splice.address.into());
                        }
                        // What others are to be told, and what they do themselves.
                        shared.records.tell_what_has_been_seen(key, flow)?;
                        let is_kept_here = flow.version == 0 || shared.peers.keeps(&(*key).into());
                        // The daemon before knew who has not been heard to the end.
                        if flow.meta[20..24] != [0; 4] {
                            shared.records.note_older(&(*key).into(), flow);
                        }
                        let record = if is_kept_here {
                            lost_record(shared, flow)
                        } else {
                            None
                        };
                        let lose = |epoch| {
                            farewell.say(&shared.maps, key, flow)?;
                            farewell.ask(key, flow);
                            shared.records.lose(&(*key).into(), epoch)?;
                            anyhow::Ok(())
                        };
                        if let Some(Record {
                            epoch, slot, asked, ..
                        }) = record
                        {
                            // Who has said FIN has had its answer, as far as is known: it hears of it, if not.
                            let is_open = u64::from(flow.state == FlowState::Established as u32);
                            match shared.health.has_lost(slot, asked) {
                                true => lost_anew += is_open,
                                false => lost += is_open,
                            }
                            lose(epoch)?;
                            since.insert((*key).into(), now);
                            continue;
                        }
                        let patience = limits.head_timeout;
                        let missing =
                            (shared.left_behind).is_missing(&(*key).into(), flow, now, patience);
                        if let Some(epoch) = missing {
                            left_behind += 1;
                            lose(epoch)?;
                            since.insert((*key).into(), now);
                            continue;
                        }
                        if is_kept_here && let Some(vacated) = vacate_lost(shared, key, flow)? {
                            shared.health.count_vacated();
                            if let Some(told) = vacated.finished {
                                cluster.finished(&shared.health, &told);
                            }
                            continue;
                        }
                        if flow.marks & MARK_LOST != 0 && since.contains_key(&(*key).into()) {
                            farewell.ask(key, flow);
                        }
                        let has_ended = || shared.records.has_ended_untold(flow, now);
                        if lifetimes.are_over(flow, now) || (!is_kept_here && has_ended()) {
                            let open = [FlowState::Established, FlowState::Vacant];
                            let is_open = open.map(|state| state as u32).contains(&flow.state);
                            if is_open && is_kept_here {
                                farewell.say(&shared.maps, key, flow)?;
                            }
                            if let Some(told) = shared.records.expire(key, flow)? {
                                cluster.finished(&shared.health, &told);
                            }
                            continue;
                        }
                        if is_kept_here && inquiry::is_due(flow, last_round, this_round) {
                            inquiry.ask(&shared.maps, &cluster.keys, key, flow)?;
                        }
                        if is_kept_here {
                            shared.records.reseal(key, flow, &cluster.keys)?;
                        }
                    }
                    inquiry.send();
                }
                // A bucket with more entries than the batch has room.
                Err(e) if e.raw_os_error() == Some(28) => batch *= 2,
                Err(e) => return Err(e.into()),
            }
            if cursor.at_start() {
                (entries, seen) = (seen, 0);
                break;
            }
        }
        if lost > 0 {
            eprintln!("{lost} connections end: their backends have been silent for {LOST_AFTER:?}");
        }
        if lost_anew > 0 {
            eprintln!("{lost_anew} connections end: their backends have come up anew without them");
        }
        if left_behind > 0 {
            eprintln!(
                "{left_behind} connections end: the daemon before has died with parts of their requests"
            );
        }
        shared.health.count_lost(lost + lost_anew);
        spent += step_began.elapsed();
    }
    Ok(())
}

/// Its backend has come up anew, and owed nothing: whoever is chosen for the next request has the flow then.
fn vacate_lost(
    shared: &Shared,
    key: &abi::FlowKey,
    flow: &Flow,
) -> std::io::Result<Option<Vacated>> {
    let asked = Duration::from_nanos(flow.asked_ns);
    if !shared.health.has_lost(flow.backend, asked) {
        return Ok(None);
    }
    let Some(Record { epoch, .. }) = Record::read(flow) else {
        return Ok(None);
    };
    let asked_at = ClientSeq::new(inquiry::asked_at(flow));
    (shared.records).vacate_idle(&(*key).into(), epoch, asked_at)
}

/// Is it the turn of a backend that has died, as far as is known, and nobody at work to give that to
/// another one? Its record, then.
fn lost_record(shared: &Shared, flow: &Flow) -> Option<Record> {
    let lost_for = (shared.health).lost_for(flow.backend, Duration::from_nanos(flow.asked_ns));
    let is_silent = shared.health.silence(flow.backend) > LOST_AFTER || lost_for > LOST_ANEW;
    // Most flows' backends are well.
    if !is_silent {
        return None;
    }
    let record = Record::read(flow)?;
    // Who has said FIN may be gone, or wait for the rest of its answer.
    let waits = matches!(record.state, FlowState::Established | FlowState::ClientFin)
        && record.splice.is_none()
        && record.marks & (MARK_HELD | MARK_MOVING | MARK_TAKING) == 0
        && record.idle_end != Some(record.heard);
    let patience = || {
        let is_kept = Meta::decode(&record.option).is_ok_and(|option| option.care.kept);
        let is_first_unheard = record.heard == record.isns.server + 1;
        match is_first_unheard || record.latest_from == Some(record.heard) {
            // It may wait for its turn to be retried: as with one that is silent.
            true if is_kept => LOST_AFTER,
            true => UNHEARD_ANEW,
            false => LOST_ANEW,
        }
    };
    if !lost_for.is_zero() && lost_for < patience() {
        return None;
    }
    waits.then_some(record)
}

struct Lifetimes {
    reading: Duration,
    idle: Duration,
    closed: Duration,
}

impl Lifetimes {
    fn are_over(&self, flow: &Flow, now: Duration) -> bool {
        let lifetime = match FlowState::from_raw(flow.state) {
            Some(FlowState::Reading) => self.reading,
            Some(FlowState::Established | FlowState::Vacant) => self.idle,
            Some(FlowState::ClientFin | FlowState::Reset) => self.closed,
            None => return true,
        };
        now.saturating_sub(Duration::from_nanos(flow.last_seen_ns)) > lifetime
    }
}
