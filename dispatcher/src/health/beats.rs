//! The heartbeats that backends are asked by, and when who leaves them unanswered is silent.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Heartbeats missed in a row that mean dead [SPLICE06 §5].
const MISSED: usize = 3;
/// Who has never answered is taken to be up for so long at least.
const FIRST_MS: u64 = 1000;

/// The heartbeats that were sent.
pub struct Beats {
    interval_ms: AtomicU64,
    /// CLOCK_MONOTONIC, as are all times here.
    started_ms: u64,
    /// When the last ones were, the latest first; 0: not yet.
    asked_ms: [AtomicU64; MISSED + 1],
}

/// How late an answer may be: timers are late, networks jitter.
pub fn grace(interval: Duration) -> Duration {
    interval * 3 / 10 + Duration::from_millis(5)
}

impl Beats {
    pub fn new(interval: Duration, now_ms: u64) -> Self {
        Self {
            interval_ms: AtomicU64::new(interval.as_millis() as u64),
            started_ms: now_ms,
            asked_ms: Default::default(),
        }
    }

    pub fn set_interval(&self, interval: Duration) {
        let interval_ms = interval.as_millis() as u64;
        self.interval_ms.store(interval_ms, Ordering::Relaxed);
    }

    pub fn started_ms(&self) -> u64 {
        self.started_ms
    }

    pub fn sent(&self, now_ms: u64) {
        for beat in (1..=MISSED).rev() {
            let later = self.asked_ms[beat - 1].load(Ordering::Relaxed);
            self.asked_ms[beat].store(later, Ordering::Relaxed);
        }
        self.asked_ms[0].store(now_ms, Ordering::Relaxed);
    }

    /// Has a backend missed that many, last heard of at `heard_ms` (0: never)? Time alone does
    /// not tell: while the daemon itself waits for a processor it asks nobody, or does not hear
    /// what comes after `listened_ms`.
    pub fn are_missed(&self, heard_ms: u64, now_ms: u64, listened_ms: u64) -> bool {
        let first = self.interval_ms.load(Ordering::Relaxed) * MISSED as u64 + self.grace_ms();
        let at_ms = listened_ms.min(now_ms);
        (heard_ms != 0 || now_ms - self.started_ms > first.max(FIRST_MS))
            && (self.asked(MISSED) > heard_ms && self.is_late(1, at_ms)
                || self.asked(MISSED - 1) > heard_ms && self.is_late(0, at_ms))
    }

    /// Were the latest two sent after `heard_ms`, and is an answer to the second one late?
    pub fn are_two_missed(&self, heard_ms: u64, now_ms: u64, listened_ms: u64) -> bool {
        self.asked(1) > heard_ms && self.is_late(0, listened_ms.min(now_ms))
    }

    fn asked(&self, beat: usize) -> u64 {
        self.asked_ms[beat].load(Ordering::Relaxed)
    }

    fn is_late(&self, beat: usize, at_ms: u64) -> bool {
        at_ms.saturating_sub(self.asked(beat)) > self.grace_ms()
    }

    fn grace_ms(&self) -> u64 {
        let interval = Duration::from_millis(self.interval_ms.load(Ordering::Relaxed));
        grace(interval).as_millis() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn beating(at: impl IntoIterator<Item = u64>) -> Beats {
        let beats = Beats::new(Duration::from_millis(200), 10_000);
        at.into_iter().for_each(|ms| beats.sent(ms));
        beats
    }

    #[test]
    fn three_missed_beats_are_silence() {
        let beats = beating([20_000, 20_200, 20_400, 20_600]);
        assert!(
            !beats.are_missed(20_001, 20_665, 20_665),
            "the third may be answered"
        );
        assert!(beats.are_missed(20_001, 20_666, 20_666));
        assert!(!beats.are_missed(20_201, 20_700, 20_700), "two");
        beats.sent(20_800);
        assert!(beats.are_missed(20_001, 20_800, 20_800), "and so it stays");
    }

    /// Before anybody is silent.
    #[test]
    fn two_missed_beats_are_no_silence_yet() {
        let beats = beating([20_000, 20_200, 20_400]);
        assert!(
            !beats.are_two_missed(20_001, 20_450, 20_450),
            "may be answered"
        );
        assert!(beats.are_two_missed(20_001, 20_470, 20_470));
        assert!(!beats.are_missed(20_001, 20_470, 20_470));
        assert!(!beats.are_two_missed(20_201, 20_470, 20_470), "one");
        assert!(
            !beats.are_two_missed(20_001, 20_470, 20_400),
            "nobody has listened"
        );
    }

    #[test]
    fn who_was_not_asked_is_not_silent() {
        let beats = beating([20_000, 20_200]);
        assert!(!beats.are_missed(20_201, 25_000, 25_000));
        beats.sent(25_000);
        assert!(!beats.are_missed(20_201, 25_100, 25_100));
    }

    #[test]
    fn a_backend_has_time_to_be_heard_of_first() {
        let beats = beating([10_000, 10_200, 10_400, 10_600, 10_800]);
        assert!(!beats.are_missed(0, 11_000, 11_000));
        assert!(beats.are_missed(0, 11_001, 11_001));
    }

    #[test]
    fn an_answer_that_nobody_has_looked_at_is_no_silence() {
        let beats = beating([20_000, 20_200, 20_400, 20_600, 20_800]);
        assert!(beats.are_missed(19_900, 20_900, 20_900));
        // Its worker was at work on something else, and may have all answers in its queue.
        for listened_ms in [19_950, 20_265, 20_465] {
            assert!(
                !beats.are_missed(19_900, 20_900, listened_ms),
                "{listened_ms}"
            );
        }
        assert!(beats.are_missed(19_900, 20_900, 20_666));
    }
}
