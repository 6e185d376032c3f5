//! What active checks hold of a backend's servers: said by its agent with heartbeats, or found
//! out here where there is none (docs/decisions/0024).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use trapeze_core::health::{Outcome, Standing};

/// What is not said again for so long is not known any more: an agent's daemon may be gone,
/// while its backend serves.
const LIFETIME: Duration = Duration::from_secs(10);

/// One backend's.
#[derive(Debug, Default)]
pub struct Checks {
    /// Without a lock, the usual answer.
    any_down: AtomicBool,
    /// When an agent said what was said last, by its own clock: an older word repeated says nothing.
    word_ms: AtomicU64,
    all: Mutex<Vec<Checked>>,
}

/// What is held of one server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checked {
    /// `TargetKey::number`.
    pub number: u64,
    pub standing: Standing,
    pub last: Option<Outcome>,
    said_ms: u64,
}

impl Checks {
    /// Is that so late that a later word has come before? Else it is the latest now.
    pub fn is_old(&self, at_ms: u64) -> bool {
        self.word_ms.fetch_max(at_ms, Ordering::Relaxed) > at_ms
    }

    /// What is held of a server now. Who does not know says nothing. True: it was otherwise.
    pub fn hear(
        &self,
        now_ms: u64,
        number: u64,
        standing: Standing,
        last: Option<Outcome>,
    ) -> bool {
        if standing == Standing::Unknown {
            return false;
        }
        let mut all = self.all();
        let at = all.iter().position(|checked| checked.number == number);
        let before = at.map(|at| all[at].now(now_ms).standing);
        let checked = Checked {
            number,
            standing,
            last,
            said_ms: now_ms,
        };
        match at {
            Some(at) => all[at] = checked,
            None => all.push(checked),
        }
        self.note(&all);
        before.unwrap_or_default() != standing && (standing, before) != (Standing::Up, None)
    }

    /// Only these are checked from now on.
    pub fn retain(&self, numbers: &[u64]) {
        let mut all = self.all();
        all.retain(|checked| numbers.contains(&checked.number));
        self.note(&all);
    }

    /// It is another backend's.
    pub fn reset(&self) {
        self.retain(&[]);
        self.word_ms.store(0, Ordering::Relaxed);
    }

    /// Is one of them down that `concerns` the asker?
    pub fn down(&self, now_ms: u64, concerns: impl Fn(u64) -> bool) -> Option<Checked> {
        if !self.any_down.load(Ordering::Relaxed) {
            return None;
        }
        let all = self.all();
        let mut all = all.iter().map(|checked| checked.now(now_ms));
        all.find(|checked| checked.standing == Standing::Down && concerns(checked.number))
    }

    /// Is one of them down that `concerns` the asker, and does nothing at all?
    pub fn is_dead(&self, now_ms: u64, concerns: impl Fn(u64) -> bool) -> bool {
        if !self.any_down.load(Ordering::Relaxed) {
            return false;
        }
        let all = self.all();
        let mut all = all.iter().map(|checked| checked.now(now_ms));
        all.any(|checked| {
            checked.standing == Standing::Down
                && checked.last.is_some_and(Outcome::is_dead)
                && concerns(checked.number)
        })
    }

    /// What is held of a server, if anything has been said of it.
    pub fn of(&self, now_ms: u64, number: u64) -> Option<Checked> {
        let all = self.all();
        let checked = all.iter().find(|checked| checked.number == number)?;
        Some(checked.now(now_ms))
    }

    fn note(&self, all: &[Checked]) {
        let any = (all.iter()).any(|checked| checked.standing == Standing::Down);
        self.any_down.store(any, Ordering::Relaxed);
    }

    fn all(&self) -> MutexGuard<'_, Vec<Checked>> {
        self.all.lock().expect("no thread panics with it")
    }
}

impl Checked {
    fn now(self, now_ms: u64) -> Self {
        let is_fresh = now_ms.saturating_sub(self.said_ms) < LIFETIME.as_millis() as u64;
        match is_fresh {
            true => self,
            false => Self {
                standing: Standing::Unknown,
                last: None,
                ..self
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BAD: Option<Outcome> = Some(Outcome::NotAnswered);
    const GOOD: Option<Outcome> = Some(Outcome::Passed);

    #[test]
    fn what_is_said_stands_for_a_while() {
        let checks = Checks::default();
        assert!(!checks.hear(1000, 1, Standing::Up, GOOD), "as was taken");
        assert_eq!(checks.down(1000, |_| true), None);
        assert!(checks.hear(2000, 1, Standing::Down, BAD));
        assert!(!checks.hear(2100, 1, Standing::Down, BAD));
        assert!(!checks.hear(2200, 1, Standing::Unknown, None));
        assert_eq!(checks.down(2300, |n| n == 1).unwrap().last, BAD);
        assert_eq!(checks.down(2300, |n| n == 2), None, "another server");
        assert!(checks.down(12_099, |_| true).is_some());
        assert_eq!(checks.down(12_100, |_| true), None, "nobody says so");
        assert_eq!(checks.of(12_100, 1).unwrap().standing, Standing::Unknown);
    }

    #[test]
    fn who_answers_something_else_is_not_dead() {
        let checks = Checks::default();
        checks.hear(1000, 1, Standing::Down, Some(Outcome::Status(503)));
        checks.hear(1000, 2, Standing::Up, BAD);
        assert!(checks.down(1000, |n| n == 1).is_some());
        assert!(!checks.is_dead(1000, |_| true));
        checks.hear(1100, 2, Standing::Down, BAD);
        assert!(checks.is_dead(1100, |n| n == 2) && !checks.is_dead(1100, |n| n == 1));
        assert!(!checks.is_dead(12_000, |_| true), "nobody says so any more");
    }

    #[test]
    fn what_is_checked_no_more_is_forgotten() {
        let checks = Checks::default();
        checks.hear(1000, 1, Standing::Down, BAD);
        checks.hear(1000, 2, Standing::Down, BAD);
        checks.retain(&[2]);
        assert_eq!(checks.of(1000, 1), None);
        checks.retain(&[]);
        assert_eq!(checks.down(1000, |_| true), None);
    }

    #[test]
    fn an_older_word_says_nothing() {
        let checks = Checks::default();
        assert!(!checks.is_old(5));
        assert!(
            !checks.is_old(5),
            "said to another dispatcher's heartbeat, too"
        );
        assert!(checks.is_old(4));
        checks.reset();
        assert!(!checks.is_old(1));
    }
}
