//! Who is to go on with an answer whose owner has died (docs/protocol/takeover.md 4.2).

use std::time::Duration;

use trapeze_core::config::Transfer;
use trapeze_core::flow::FlowKey;
use trapeze_core::policy::BackendId;
use trapeze_core::wire::meta::Refusal;

use super::State;
use super::support::Taking;
use crate::cluster::Choice;
use crate::memory::Placed;
use crate::records::Record;

/// Before a host that could not take an answer is asked again.
const PAUSE: Duration = Duration::from_millis(100);

impl State {
    /// The backend that is to go on with it next.
    pub(super) fn candidate(
        &self,
        key: &FlowKey,
        record: &Record,
        taking: &Taking,
    ) -> Option<Choice> {
        let (request, health) = (record.request, &self.shared.health);
        let (pool, port) = (self.cluster.place_of(record.pool)?, key.vip.port());
        let asked = taking.plan.as_ref().and_then(|plan| plan.to);
        let fits = |choice: &Choice| {
            choice.transfer == Transfer::Rebuild
                && !taking.tried.contains(&choice.slot)
                && asked.is_none_or(|slot| slot == choice.slot)
        };
        // It has not been asked yet, only had it.
        let is_back = |choice: &Choice| {
            let tried = taking.tried.iter().filter(|&&slot| slot == choice.slot);
            choice.transfer == Transfer::Rebuild
                && taking.plan.is_none()
                && taking.may_return == Some(choice.slot)
                && tried.count() == 1
        };
        let chosen = (self.cluster).choose(health, pool, port, request);
        let others = || {
            let alive = self.cluster.backends(health, pool, port)?;
            let placed = Placed::unnoticed(request);
            let choices = alive.open().iter();
            let choices =
                choices.filter_map(|one| self.cluster.choice(record.pool, one.id, placed));
            let (own, mut others) = choices.partition::<Vec<_>, _>(is_back);
            others.retain(fits);
            others.into_iter().chain(own).next()
        };
        let fitting = chosen.filter(fits);
        if let (Some(chosen), None) = (chosen, fitting) {
            self.cluster.not_taken(&chosen);
        }
        fitting.or_else(others)
    }

    /// Is a backend dead, as far as this flow goes? A server that does not answer its checks is as dead as
    /// a host that is silent.
    pub(super) fn is_dead(&self, slot: u32, key: &FlowKey) -> bool {
        self.shared.health.is_dead(slot, || {
            let record = self.shared.records.get(key).ok().flatten()?;
            self.cluster.number(record.pool, slot, key.vip.port())
        })
    }

    /// Could yet another one go on with it?
    pub(super) fn has_candidate(&self, key: &FlowKey, record: Option<&Record>) -> bool {
        let (Some(record), Some(taking)) = (record, self.takings.all.get(key)) else {
            return false;
        };
        let choice = self.candidate(key, record, taking);
        if let Some(choice) = &choice {
            self.cluster.not_taken(choice);
        }
        choice.is_some()
    }

    /// May one that is not there now be there soon? Not where one that is there has another object: then a
    /// client had better ask anew.
    pub(super) fn awaits_another(
        &self,
        now: Duration,
        key: &FlowKey,
        record: &Record,
        taking: &Taking,
    ) -> bool {
        let (pool, health) = (self.cluster.place_of(record.pool), &self.shared.health);
        let has_asked_none = taking.tried.len() == 1 && taking.plan.is_none();
        has_asked_none
            && now.saturating_sub(taking.kept.said) < self.cluster.config.limits.cache_timeout
            && pool.is_some_and(|pool| {
                let tried: &[u32] = match taking.may_return {
                    Some(_) => &[],
                    None => &taking.tried,
                };
                (self.cluster).awaits_another(health, pool, key.vip.port(), tried)
            })
    }

    /// The latest candidate's host could not take it just now: nobody listened there yet, or too many wait. Another one is
    /// asked, and where there is none the same again.
    pub(super) fn is_put_off(&mut self, now: Duration, key: &FlowKey) {
        let record = self.shared.records.get(key).ok().flatten();
        if let Some(taking) = self.takings.all.get_mut(key) {
            taking.put_off.extend(taking.tried.last());
            taking.kept.did_not_resume();
        }
        if self.has_candidate(key, record.as_ref()) {
            return;
        }
        let patience = self.cluster.config.limits.cache_timeout;
        if let Some(taking) = self.takings.all.get_mut(key)
            && now.saturating_sub(taking.begun) < patience
        {
            let put_off = std::mem::take(&mut taking.put_off);
            taking.tried.retain(|slot| !put_off.contains(slot));
            taking.due = now + PAUSE;
        }
    }

    /// Nobody listens where the latest candidate's server should: it counts as not tried, and is not chosen
    /// for a while.
    pub(super) fn has_no_server(&mut self, key: &FlowKey) {
        let candidate = self.takings.all.get_mut(key).and_then(|taking| {
            taking.kept.did_not_resume();
            taking.tried.pop()
        });
        let record = self.shared.records.get(key).ok().flatten();
        let (Some(slot), Some(record)) = (candidate, record) else {
            return;
        };
        let choice = (self.cluster).choice(
            record.pool,
            BackendId(slot as u16),
            Placed::unnoticed(record.request),
        );
        let port = choice.map_or(0, |choice| choice.server_port);
        let port = if port == 0 { key.vip.port() } else { port };
        (self.shared.health).refused(slot, port, Refusal::NoListener);
    }
}
