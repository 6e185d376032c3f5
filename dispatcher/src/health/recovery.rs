//! Since when servers are back that had been away, so that they start slowly.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use trapeze_core::health::ramp;

use super::State;

/// One backend's servers, by the number of pool and port.
#[derive(Debug, Default)]
pub struct Recovery(Mutex<HashMap<u64, Seen>>);

#[derive(Clone, Copy, Debug)]
struct Seen {
    is_away: bool,
    back_ms: Option<u64>,
}

impl Recovery {
    /// The server's state now; looked at regularly. One that is only busy, or has not been heard of yet,
    /// is not away. A daemon that starts takes its backends for warm.
    pub fn note(&self, now_ms: u64, number: u64, state: State) {
        let is_away = match state {
            State::Silent
            | State::Down
            | State::Ejected
            | State::NoServer { .. }
            | State::Drained => true,
            State::Up | State::Unknown | State::Busy => false,
        };
        let mut all = self.0.lock().expect("no thread panics with it");
        let seen = all.entry(number).or_insert(Seen {
            is_away,
            back_ms: None,
        });
        if seen.is_away && !is_away {
            seen.back_ms = Some(now_ms);
        }
        seen.is_away = is_away;
    }

    /// The step of its slow start.
    pub fn step(&self, now_ms: u64, number: u64, whole: Duration) -> u16 {
        let all = self.0.lock().expect("no thread panics with it");
        match all.get(&number) {
            // It is back, and nobody has looked yet.
            Some(Seen { is_away: true, .. }) => 1,
            Some(Seen {
                back_ms: Some(back_ms),
                ..
            }) => ramp::step(
                Duration::from_millis(now_ms.saturating_sub(*back_ms)),
                whole,
            ),
            _ => ramp::STEPS,
        }
    }

    /// Another backend's.
    pub fn reset(&self) {
        self.0.lock().expect("no thread panics with it").clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: Duration = Duration::from_secs(10);

    #[test]
    fn who_comes_back_starts_slowly() {
        let recovery = Recovery::default();
        assert_eq!(recovery.step(0, 1, WHOLE), ramp::STEPS, "never looked at");
        recovery.note(0, 1, State::Unknown);
        recovery.note(100, 1, State::Up);
        assert_eq!(
            recovery.step(100, 1, WHOLE),
            ramp::STEPS,
            "it was never away"
        );
        recovery.note(200, 1, State::Busy);
        recovery.note(300, 1, State::Up);
        assert_eq!(recovery.step(300, 1, WHOLE), ramp::STEPS);
        recovery.note(400, 1, State::Down);
        assert_eq!(recovery.step(1400, 1, WHOLE), 1);
        recovery.note(1500, 1, State::Up);
        assert_eq!(recovery.step(1500, 1, WHOLE), 1);
        assert_eq!(recovery.step(6500, 1, WHOLE), 6);
        recovery.note(6500, 1, State::Busy);
        assert_eq!(recovery.step(11_500, 1, WHOLE), ramp::STEPS);
        assert_eq!(recovery.step(1500, 2, WHOLE), ramp::STEPS, "another one");
        recovery.note(20_000, 1, State::Silent);
        recovery.reset();
        assert_eq!(recovery.step(20_000, 1, WHOLE), ramp::STEPS);
    }
}
