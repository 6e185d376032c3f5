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
        });
        true
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
