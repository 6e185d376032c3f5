//! Weighted round robin, smooth as nginx does it: weights 5, 1, 1 give
//! a a b a c a a, never five in a row.

use std::time::Duration;

use super::{BackendId, Backends, Candidate, Policy, Request};
use crate::config::PolicyKind;

/// Each choice gives every candidate its weight in credit; the richest is chosen
/// and pays what all were given: credits add up to zero.
#[derive(Debug, Default)]
pub(super) struct RoundRobin {
    /// By id. Those who left keep theirs, or one that is away every other time would
    /// always begin anew and never be chosen.
    credits: Vec<i64>,
}

impl Policy for RoundRobin {
    fn kind(&self) -> PolicyKind {
        PolicyKind::RoundRobin
    }

    fn choose(
        &mut self,
        _now: Duration,
        _request: &Request,
        backends: &Backends,
    ) -> Option<BackendId> {
        self.next(backends, |_| true)
    }

    fn placed(
        &mut self,
        _now: Duration,
        _request: &Request,
        backends: &Backends,
        chosen: BackendId,
    ) {
        // Draining ones get what is bound to them without having had a turn.
        if backends.get_open(chosen).is_some() {
            self.took(backends, chosen, |_| true);
        }
    }
}

impl RoundRobin {
    /// Whose turn it is among those that are eligible.
    pub(super) fn next(
        &self,
        backends: &Backends,
        eligible: impl Fn(&Candidate) -> bool,
    ) -> Option<BackendId> {
        let mut richest: Option<(i64, BackendId)> = None;
        for c in backends.open().iter().filter(|c| eligible(c)) {
            let credit = self.credit(c.id) + i64::from(c.weight);
            if richest.is_none_or(|(most, _)| credit > most) {
                richest = Some((credit, c.id));
            }
        }
        richest.map(|(_, id)| id)
    }

    /// `chosen` had its turn among those that are eligible; the others keep theirs.
    pub(super) fn took(
        &mut self,
        backends: &Backends,
        chosen: BackendId,
        eligible: impl Fn(&Candidate) -> bool,
    ) {
        let mut given = 0;
        for c in backends.open().iter().filter(|c| eligible(c)) {
            *self.credit_mut(c.id) += i64::from(c.weight);
            given += i64::from(c.weight);
        }
        *self.credit_mut(chosen) -= given;
    }

    fn credit(&self, id: BackendId) -> i64 {
        self.credits.get(id.index()).copied().unwrap_or(0)
    }

    fn credit_mut(&mut self, id: BackendId) -> &mut i64 {
        if self.credits.len() <= id.index() {
            self.credits.resize(id.index() + 1, 0);
        }
        &mut self.credits[id.index()]
    }
}
