//! When backends were what, and why: for people.

use std::collections::VecDeque;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// Changes that are kept of each backend.
const KEPT: usize = 32;

/// A change of a backend's state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// When, in milliseconds since 1970 (UTC).
    pub at_ms: u64,
    /// What it was before.
    pub from: String,
    /// What it is from then on.
    pub to: String,
    /// Why.
    pub reason: String,
    /// So often in a row, going back and forth: `at_ms` is the last time.
    #[serde(default = "once")]
    pub times: u64,
}

fn once() -> u64 {
    1
}

/// One backend's, the latest last.
#[derive(Clone, Debug, Default)]
pub struct History {
    state: Option<&'static str>,
    changes: VecDeque<Change>,
}

impl History {
    /// What it is now. True: that is a change; the first one is none.
    pub fn note(&mut self, state: &'static str, reason: impl FnOnce() -> String) -> bool {
        let before = self.state.replace(state);
        let Some(before) = before.filter(|&before| before != state) else {
            return false;
        };
        if self.changes.len() == KEPT {
            self.changes.pop_front();
        }
        self.changes.push_back(Change {
            at_ms: now_ms(),
            from: before.into(),
            to: state.into(),
            reason: reason(),
            times: once(),
        });
        self.fold();
        true
    }

    /// One that goes back and forth is not to drive out all that was before: the same two changes again are
    /// these two once more.
    fn fold(&mut self) {
        let length = self.changes.len();
        let Some(first) = length.checked_sub(4) else {
            return;
        };
        let is_same = |at: usize| {
            let (before, now) = (&self.changes[at], &self.changes[at + 2]);
            (&before.from, &before.to, &before.reason) == (&now.from, &now.to, &now.reason)
        };
        if !(is_same(first) && is_same(first + 1)) {
            return;
        }
        for at in [first, first + 1] {
            self.changes[at + 2].times += self.changes[at].times;
        }
        self.changes.drain(first..first + 2);
    }

    /// All that is kept.
    pub fn changes(&self) -> Vec<Change> {
        self.changes.iter().cloned().collect()
    }
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flap_takes_the_room_of_two_changes() {
        let mut history = History::default();
        let mut note = |state, reason: &str| history.note(state, || reason.to_owned());
        note("up", "");
        note("drained", "an operator");
        note("up", "an operator");
        for _ in 0..40 {
            note("silent", "no word");
            note("up", "heard of");
        }
        note("down", "status 503");
        let shown: Vec<(String, u64)> = history
            .changes()
            .into_iter()
            .map(|change| (change.to, change.times))
            .collect();
        let shown: Vec<(&str, u64)> = shown.iter().map(|(to, times)| (&**to, *times)).collect();
        let expected = [
            ("drained", 1),
            ("up", 1),
            ("silent", 40),
            ("up", 40),
            ("down", 1),
        ];
        assert_eq!(shown, expected);
    }

    #[test]
    fn changes_are_kept_up_to_a_bound() {
        let mut history = History::default();
        history.note("up", || unreachable!("no change"));
        for round in 0..KEPT + 3 {
            let state = if round % 2 == 0 { "down" } else { "up" };
            assert!(history.note(state, || round.to_string()));
            assert!(!history.note(state, || unreachable!("no change")));
        }
        let changes = history.changes();
        assert_eq!(changes.len(), KEPT);
        let (first, last) = (&changes[0], &changes[KEPT - 1]);
        assert_eq!((&*first.reason, &*last.reason), ("3", "34"));
        assert_eq!((&*last.from, &*last.to), ("up", "down"));
    }
}
