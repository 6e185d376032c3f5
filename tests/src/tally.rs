//! What clients have had to bear while something went wrong.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Nobody waits for a client's patience to end; how long a stall takes is not for tests.
const STUCK: Duration = Duration::from_secs(10);

/// Fewer say little of whether work went on.
const PLENTY: u32 = 50;

/// Of one kind of transfer: how many there were, and how long the longest took.
#[derive(Debug, Default)]
pub struct Tally {
    done: AtomicU32,
    longest_us: AtomicU32,
}

impl Tally {
    /// One that began then is over.
    fn note(&self, started: Instant) {
        self.done.fetch_add(1, Ordering::Relaxed);
        let took = started.elapsed().as_micros() as u32;
        self.longest_us.fetch_max(took, Ordering::Relaxed);
    }

    /// One transfer after another while there is need, with a pause after each.
    pub fn note_each(&self, going: impl Fn() -> bool, pause: Duration, mut transfer: impl FnMut()) {
        while going() {
            let started = Instant::now();
            transfer();
            self.note(started);
            std::thread::sleep(pause);
        }
    }

    /// Whether there were as many as [`Self::expect_steady`] wants.
    pub fn is_plenty(&self) -> bool {
        self.done.load(Ordering::Relaxed) > PLENTY
    }

    /// Shows it, and holds it against what every test expects: work went on, and nothing hung.
    pub fn expect_steady(&self, what: &str) {
        let done = self.done.load(Ordering::Relaxed);
        let longest = Duration::from_micros(self.longest_us.load(Ordering::Relaxed).into());
        println!("{what}: {done} done, the longest took {longest:?}");
        assert!(
            done > PLENTY && longest < STUCK,
            "{what}: {done}, {longest:?}"
        );
    }
}
