//! Planned moves: answers in progress of a backend that is drained go on from another one, while
//! theirs is well (docs/protocol/takeover.md §8) [MIGRATE01 §5.1]; and those of a server that fails its
//! checks, and may wake up. Nothing happens to one before
//! its next owner has said that it has the very object.
//!
//! ```text
//!  kept ──ASK──► another ──REPLY──► as in support.rs: asking the client, setting up
//!    ▲              │ no
//!    └── waited for ┘
//! ```

use std::net::SocketAddrV4;
use std::time::Duration;

use trapeze_core::flow::FlowKey;
use trapeze_core::head::Expected;
use trapeze_core::takeover::{Message, Rest, Take, WEDGE_PORT};
use trapeze_core::wire::tcp::Header;
use trapeze_datapath::abi::{self, EPOCH_LEAD_MAX};
use trapeze_datapath::clock;

use super::State;
use super::support::{Stage, Taking, is_open};
use crate::drain::Move;
use crate::records::Record;

/// Moves under way at once, of one worker: the rest waits for its turn.
const MOST: usize = 64;
/// When it is tried again where something was in the way.
pub(super) const LATER: Duration = Duration::from_millis(500);

/// A move that its owner could do without.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// Whose it is, and is to be no more.
    from: u32,
    /// An operator has wanted it; else its server fails its checks.
    is_wanted: bool,
    /// Who has said that it could go on.
    pub(super) to: Option<u32>,
    /// What its owner is told once that one does.
    pub(super) word: Option<(SocketAddrV4, Vec<u8>)>,
}

impl State {
    /// Tries to move answers of backends whose are to be moved.
    pub(super) fn migrate(&mut self, now: Duration) {
        let drained = self.shared.drains.migrating();
        let health = &self.shared.health;
        let mut slots = self.support.owners();
        slots.retain(|slot| drained.contains(slot) || health.may_be_down(*slot));
        if slots.is_empty() {
            return;
        }
        let takings = &self.takings.all;
        let moving = takings.values().filter(|taking| taking.plan.is_some());
        let room = MOST.saturating_sub(moving.count());
        let is_wanted = |slot: u32, key: &FlowKey| {
            let leaves = drained.contains(&slot) || self.is_dead(slot, key);
            leaves && !takings.contains_key(key) && self.shared.peers.keeps(key)
        };
        for (slot, key) in self.support.movable(now, &slots, room, is_wanted) {
            self.begin_moving(now, slot, key);
        }
    }

    fn begin_moving(&mut self, now: Duration, slot: u32, key: FlowKey) {
        let Ok(Some(record)) = self.shared.records.get(&key) else {
            return self.support.stays_until(slot, &key, now + LATER);
        };
        let Some(kept) = self.support.get(slot, &key).cloned() else {
            return;
        };
        let mut taking = Taking::new(now, kept, slot, record.next);
        taking.plan = Some(Plan {
            from: slot,
            is_wanted: self.shared.drains.migrating().contains(&slot),
            ..Plan::default()
        });
        if record.slot != slot || !self.is_movable(&key, &record, &taking) {
            // What is under way there is not answered by a server that sleeps.
            if self.is_dead(slot, &key)
                && let Some(kept) = self.support.forget(slot, &key)
            {
                return self.begin_taking(now, slot, key, kept);
            }
            return self.support.stays_until(slot, &key, now + LATER);
        }
        self.takings.all.insert(key, taking);
        self.inquire(now, &key, &record);
    }

    /// Is it as it was when somebody was asked?
    pub(super) fn may_move(&self, key: &FlowKey, record: &Record) -> bool {
        let taking = self.takings.all.get(key);
        taking.is_some_and(|taking| self.is_movable(key, record, taking))
    }

    /// Is nothing under way but that answer? What was asked ahead would be asked of two.
    fn is_movable(&self, key: &FlowKey, record: &Record, taking: &Taking) -> bool {
        let (state, ahead) = (&taking.kept.state, &taking.kept.ahead);
        let epoch = record.epoch.wrapping_add(1);
        let lead = epoch.wrapping_sub(abi::epoch(clock::cluster()));
        record.epoch == state.epoch
            && record.requests as u16 == state.answer
            && record.next == taking.boundary
            && ahead.requests == 0
            && is_open(record)
            && !record.is_tunnel()
            && !record.is_releasing()
            && record.expected == Expected::Head
            && lead.cast_signed() <= EPOCH_LEAD_MAX
            && self.waiting.get(key).is_none()
            && !self.intake.holds(key)
    }

    /// Asks the next candidate whether it could go on.
    fn inquire(&mut self, now: Duration, key: &FlowKey, record: &Record) {
        let Some(taking) = self.takings.all.get(key) else {
            return;
        };
        let choice = self.candidate(key, record, taking);
        let asked = choice.and_then(|choice| {
            self.cluster.not_taken(&choice);
            Some((choice, self.backend_address(choice.slot)?))
        });
        let Some((choice, to)) = asked else {
            // Those that are there have said no; who comes later may have it, with the next answer.
            let has_asked = taking.tried.len() > 1;
            return match has_asked {
                true => self.refuse_move(key),
                false => self.leave_with_owner(key, now + LATER),
            };
        };
        let state = taking.kept.state.clone();
        let had = state.offset;
        if Rest::of(&state.head, had).is_none() {
            return self.leave_with_owner(key, now + LATER);
        }
        self.questions = self.questions.wrapping_add(1);
        let question = self.questions;
        let ask = Message::Ask {
            question,
            take: Take {
                state,
                had,
                server_port: choice.server_port,
            },
        };
        let ask = ask.seal(&self.cluster.keys, key);
        let datagrams = self.support_datagrams(*to.ip(), key, Header::default(), ask);
        let Some(taking) = self.takings.all.get_mut(key) else {
            return;
        };
        taking.stage = Stage::Inquiring {
            question,
            candidate: choice.slot,
            to: SocketAddrV4::new(*to.ip(), WEDGE_PORT),
            datagrams,
        };
        taking.tries = 0;
        taking.due = now;
    }

    /// A candidate has said whether it could go on; `why_not`: it could not.
    pub(super) fn on_reply(
        &mut self,
        now: Duration,
        key: &FlowKey,
        question: u32,
        why_not: Option<&str>,
    ) {
        let Some(taking) = self.takings.all.get_mut(key) else {
            return;
        };
        let candidate = match taking.stage {
            Stage::Inquiring {
                question: asked,
                candidate,
                ..
            } if asked == question => candidate,
            _ => return,
        };
        let epoch = taking.kept.state.epoch;
        if let Some(why) = why_not {
            eprintln!("{key:?}: its answer is not migrated to a backend: {why}");
            taking.tried.push(candidate);
            return match self.shared.records.get(key) {
                Ok(Some(record)) => self.inquire(now, key, &record),
                _ => self.leave_with_owner(key, now + LATER),
            };
        }
        taking.stage = Stage::Asking;
        taking.tries = 0;
        taking.due = now;
        if let Some(plan) = &mut taking.plan {
            plan.to = Some(candidate);
        }
        if !matches!(self.shared.records.taking(key, epoch, true), Ok(true)) {
            self.takings.all.remove(key);
        }
    }

    /// Nobody else has provably the same: its owner goes on to its end.
    fn refuse_move(&mut self, key: &FlowKey) {
        let plan = self.takings.all.get(key).and_then(|t| t.plan.as_ref());
        if let Some(&Plan { from, .. }) = plan.filter(|plan| plan.is_wanted) {
            self.count("not-migrated");
            self.shared.drains.count(from, Move::Not);
        }
        self.leave_with_owner(key, Duration::MAX);
    }

    /// Its owner goes on with it, and it is not tried again before.
    pub(super) fn leave_with_owner(&mut self, key: &FlowKey, until: Duration) {
        let Some(taking) = self.takings.all.remove(key) else {
            return;
        };
        let epoch = taking.kept.state.epoch;
        if self.shared.records.taking(key, epoch, false).is_err() {
            self.count("record-failures");
        }
        if let Some(plan) = taking.plan {
            self.support.stays_until(plan.from, key, until);
        }
    }

    /// Another one goes on with it: if it was moved, the one before need not any more.
    pub(super) fn on_moved(&mut self, plan: Option<Plan>) {
        match plan {
            Some(Plan {
                from,
                is_wanted: true,
                ..
            }) => {
                self.count("migrated");
                self.shared.drains.count(from, Move::Done);
            }
            Some(_) => self.count("moved-from-down"),
            None => {}
        }
        self.end_plan(plan);
    }

    pub(super) fn end_plan(&mut self, plan: Option<Plan>) {
        if let Some((to, word)) = plan.and_then(|plan| plan.word) {
            (self.to_backends).push(to, |out| out.extend_from_slice(&word));
        }
    }
}
