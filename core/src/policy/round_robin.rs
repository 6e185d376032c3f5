//! Weighted round robin, smooth as nginx does it: weights 5, 1, 1 give
//! a a b a c a a, never five in a row.

use std::time::Duration;

use super::{Candidate, Policy, Subject};
use crate::config::PolicyKind;

/// Each choice gives every candidate its weight in credit; the richest is chosen
/// and pays what all were given. Credits add up to about zero.
#[derive(Clone, Debug, Default)]
pub(super) struct RoundRobin {
    /// In the order of the last candidates; then those who left, the last first.
    turns: Vec<Turn>,
}

#[derive(Clone, Debug)]
struct Turn {
    name: String,
    credit: i64,
}

impl Policy for RoundRobin {
    fn kind(&self) -> PolicyKind {
        PolicyKind::RoundRobin
    }

    fn clone_box(&self) -> Box<dyn Policy> {
        Box::new(self.clone())
    }

    fn choose(
        &mut self,
        _now: Duration,
        _subject: &Subject<'_>,
        candidates: &[Candidate<'_>],
    ) -> Option<usize> {
        self.next(candidates, |_| true)
    }
}

impl RoundRobin {
    /// The next of those candidates that are eligible; the others keep their turn.
    pub(super) fn next(
        &mut self,
        candidates: &[Candidate<'_>],
        eligible: impl Fn(&Candidate<'_>) -> bool,
    ) -> Option<usize> {
        self.follow(candidates);
        let mut given = 0;
        let mut richest: Option<usize> = None;
        for (i, candidate) in candidates.iter().enumerate() {
            if candidate.weight == 0 || !eligible(candidate) {
                continue;
            }
            self.turns[i].credit += i64::from(candidate.weight);
            given += i64::from(candidate.weight);
            if richest.is_none_or(|r| self.turns[i].credit > self.turns[r].credit) {
                richest = Some(i);
            }
        }
        self.turns[richest?].credit -= given;
        richest
    }

    /// Puts the turns in the candidates' order. Those who left come after and keep
    /// their credit, or one that is away every other time would always begin anew
    /// and never be chosen.
    fn follow(&mut self, candidates: &[Candidate<'_>]) {
        let same = self.turns.len() >= candidates.len()
            && self
                .turns
                .iter()
                .zip(candidates)
                .all(|(turn, c)| turn.name == c.name);
        if same {
            return;
        }
        let mut left = std::mem::take(&mut self.turns);
        self.turns = (candidates.iter())
            .map(|c| match left.iter().position(|turn| turn.name == c.name) {
                Some(at) => left.remove(at),
                None => Turn {
                    name: c.name.to_owned(),
                    credit: 0,
                },
            })
            .collect();
        // The last to leave are the first here.
        left.truncate(REMEMBERED);
        self.turns.append(&mut left);
        // The forgotten took their credit along: the sum goes back to about zero, or
        // a newcomer would be poorer than all, or richer.
        let sum: i64 = self.turns.iter().map(|t| t.credit).sum();
        let mean = sum / (self.turns.len().max(1) as i64);
        self.turns.iter_mut().for_each(|t| t.credit -= mean);
    }
}

/// How many of those who left keep their credit.
const REMEMBERED: usize = 64;
