//! What is known of a backend: what waits for its processor and its disk, and what its
//! memory is worth. It is seen from outside, by when answers come.

use std::collections::VecDeque;
use std::time::Duration;

use super::ages::{Age, Ages};
use super::costs::Median;
use super::known::Known;
use crate::policy::{BackendId, Candidate};

/// What a decision reads of every backend: one cache line.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(super) struct Server {
    /// Processor work of answers from memory that were not overtaken,
    pub(super) hits_us: f64,
    /// and of programs.
    pub(super) programs_us: f64,
    /// All charges for what it was asked for and has not answered. What its load has
    /// beyond that comes from elsewhere: other pools, or decisions that stand.
    pub(super) charged_us: f64,
    /// Disk work that was ordered,
    pub(super) reading_us: f64,
    /// when the last read ended, or the first began,
    pub(super) read_ended_us: f64,
    /// and how many there are.
    reads: u32,
    /// KiB that it has read; wraps after 4 TiB. Its memory does not age while it reads
    /// nothing.
    pub(super) clock_kib: u32,
    /// The mean weight over its own.
    pub(super) scale: f32,
    /// What a KiB costs that stays for a lifetime.
    pub(super) rent_us: f32,
    /// Lifetimes of memory in a microsecond; 0 while nothing leaves.
    pub(super) turnover: f32,
    /// How much it reads while it keeps a file; infinite while nothing leaves.
    lifetime_kib: f32,
}

pub(super) const NEW: Server = Server {
    hits_us: 0.0,
    programs_us: 0.0,
    charged_us: 0.0,
    reading_us: 0.0,
    read_ended_us: 0.0,
    reads: 0,
    clock_kib: 0,
    scale: 1.0,
    rent_us: 0.0,
    turnover: 0.0,
    lifetime_kib: f32::INFINITY,
};

/// What it does not read.
#[derive(Clone, Debug, Default)]
pub(super) struct History {
    /// When answers from memory were asked for, and their processor work: those after
    /// the last one that came.
    awaited: VecDeque<(Duration, f64)>,
    /// When the last answer came, and the last that was read.
    pub(super) answered: Duration,
    /// Requests placed meanwhile of which no answer is told.
    pub(super) unheard: u32,
    pub(super) read: Duration,
    /// How much longer answers from memory take than expected: logarithm to base 2. Not
    /// the mean: what is believed to be in memory, and is read, must not hide reads.
    delay: Median,
    pub(super) ages: Ages,
    /// KiB that were read and in what time, and the reads that answers late in their
    /// lifetime have spared; of the last 256 reads or so.
    kib: f64,
    kib_us: f64,
    pub(super) late_us: f64,
    kept: Option<Duration>,
    /// All that it has read.
    clock_kib: f64,
}

/// The same of all backends.
#[derive(Clone, Debug, Default)]
pub(super) struct Pool {
    pub(super) ages: Ages,
    kib: f64,
    pub(super) late_us: f64,
}

impl Server {
    /// Work that its processor has before it.
    pub(super) fn processor_us(&self, c: &Candidate) -> f64 {
        match c.outstanding {
            0 => 0.0,
            _ => {
                // Of a signed number it is one instruction.
                let load_us = c.cost_us.min(i64::MAX as u64) as i64 as f64;
                let elsewhere_us = (load_us - self.charged_us).max(0.0);
                self.hits_us + self.programs_us + elsewhere_us
            }
        }
    }

    /// What was charged so much is not its affair any more.
    pub(super) fn uncharge(&mut self, us: u32) {
        self.charged_us = (self.charged_us - f64::from(us)).max(0.0);
    }

    /// Work that its disk has before it; reads of mean size take `read_us`.
    pub(super) fn disk_us(&self, c: &Candidate, now_us: f64, read_us: f64) -> f64 {
        if c.outstanding == 0 {
            return 0.0;
        }
        // What is read takes longer than thought, and will as long again.
        let overdue_us = (now_us - self.read_ended_us - read_us).max(0.0);
        match self.reading_us > read_us / 2.0 {
            true => self.reading_us + overdue_us,
            false => self.reading_us,
        }
    }

    pub(super) fn begin_read(&mut self, now_us: f64, us: f64) {
        if self.reading_us < 1.0 {
            self.read_ended_us = now_us;
        }
        self.reads += u32::from(us > 0.0);
        self.reading_us += us;
    }

    pub(super) fn end_read(&mut self, us: f64) {
        self.reads -= u32::from(us > 0.0 && self.reads > 0);
        self.reading_us = match self.reads {
            0 => 0.0,
            _ => (self.reading_us - us).max(0.0),
        };
    }
}

impl History {
    /// Nothing is unfinished.
    pub(super) fn forget_unfinished(&mut self, server: &mut Server) {
        self.awaited.clear();
        (server.hits_us, server.programs_us, server.charged_us) = (0.0, 0.0, 0.0);
        (server.reads, server.reading_us) = (0, 0.0);
    }

    /// An answer from memory is expected.
    pub(super) fn await_hit(&mut self, server: &mut Server, now: Duration, us: f64) {
        if self.awaited.len() == AWAITED_MAX {
            self.drop_first(server);
        }
        self.awaited.push_back((now, us));
        server.hits_us += us;
    }

    /// What was asked for by then has its answer, or waits for the disk.
    pub(super) fn overtaken(&mut self, server: &mut Server, by: Duration) {
        while self.awaited.front().is_some_and(|&(at, _)| at <= by) {
            self.drop_first(server);
        }
        if self.awaited.is_empty() {
            server.hits_us = 0.0;
        }
    }

    fn drop_first(&mut self, server: &mut Server) {
        if let Some((_, us)) = self.awaited.pop_front() {
            server.hits_us = (server.hits_us - us).max(0.0);
        }
    }

    /// Whether it took so long that it must have been read.
    pub(super) fn is_slow(
        &mut self,
        known: &Known,
        at: usize,
        elapsed_us: f64,
        sure: bool,
    ) -> bool {
        let (hit, read) = known.expected(at);
        let delay = self.delay.get().max(0.0);
        if sure {
            self.delay.add(elapsed_us.max(1.0).log2() - hit);
        }
        let between_us = ((hit + read) / 2.0 + delay).exp2();
        // What delays all answers, such as the client's link, comes before a read, too: it
        // does not make reads as much longer.
        let most_us = (hit + delay).exp2() + MOST_OF_READ * (read.exp2() - hit.exp2());
        elapsed_us > between_us.min(most_us)
    }

    /// So much was read, and is kept.
    pub(super) fn kept(&mut self, server: &mut Server, pool: &mut Pool, now: Duration, kib: f64) {
        self.clock_kib += kib;
        server.clock_kib = self.clock_kib as u64 as u32;
        // The first one ends no time between reads.
        let Some(before) = self.kept.replace(now) else {
            return;
        };
        let us = now.saturating_sub(before).as_secs_f64() * 1e6;
        self.kib = self.kib * OWN + kib;
        self.kib_us = self.kib_us * OWN + us;
        self.late_us *= OWN;
        pool.kib = pool.kib * POOLED + kib;
        pool.late_us *= POOLED;
    }

    pub(super) fn bytes(&self) -> usize {
        size_of::<Self>() + self.awaited.capacity() * size_of::<(Duration, f64)>()
    }

    /// Works out what decisions need.
    pub(super) fn settle(
        &mut self,
        server: &mut Server,
        id: BackendId,
        pool: &Pool,
        mean_kib: f64,
    ) {
        let lifetime_kib = self.ages.lifetime_kib(&pool.ages);
        let Some(lifetime_kib) = lifetime_kib.filter(|&kib| kib >= FEWEST * mean_kib) else {
            server.lifetime_kib = f32::INFINITY;
            (server.rent_us, server.turnover) = (0.0, 0.0);
            return;
        };
        server.lifetime_kib = lifetime_kib as f32;
        let prior_kib = PRIOR * mean_kib;
        let pooled = pool.late_us / pool.kib.max(1.0);
        let late_us = (self.late_us + prior_kib * pooled) / (self.kib + prior_kib);
        // Nothing leaves a memory that is not full yet.
        let filled = (self.clock_kib / lifetime_kib).powi(4);
        let full = filled / (1.0 + filled);
        server.rent_us = (LATE * late_us * full * 2.0 * spread(id)) as f32;
        server.turnover = (self.kib / self.kib_us.max(1.0) / lifetime_kib) as f32;
    }
}

impl Server {
    /// The probability that a copy of that age is in memory.
    pub(super) fn chance(&self, age_kib: f64) -> f64 {
        1.0 / (1.0 + sixth(age_kib / f64::from(self.lifetime_kib)))
    }

    /// The same for one that is asked for by turns: every `turn_us`.
    pub(super) fn chance_by_turns(&self, turn_us: f64) -> f64 {
        1.0 / (1.0 + sixth(turn_us * f64::from(self.turnover)))
    }

    /// Whether it would be gone if memory were half as large.
    pub(super) fn is_late(&self, age: Age) -> bool {
        age != Age::ABSENT && age.kib() > f64::from(self.lifetime_kib) / 2.0
    }

    /// Whether it is in memory beyond doubt.
    pub(super) fn is_sure(&self, age: Age) -> bool {
        age != Age::ABSENT && age.kib() < f64::from(self.lifetime_kib) / 8.0
    }
}

/// Ages in lifetimes become probabilities by 1/(1+x^6): 0.98 at half a lifetime, 0.02 at
/// two. Files do not all leave at the same age.
pub(super) fn sixth(x: f64) -> f64 {
    let cube = x * x * x;
    cube * cube
}

/// Van der Corput's sequence: however many there are, they are spread evenly over 0..1.
fn spread(id: BackendId) -> f64 {
    (f64::from(id.0.reverse_bits()) + 0.5) / 65536.0
}

/// Of an answer's weight, with each read.
const OWN: f64 = 1.0 - 1.0 / 256.0;
const POOLED: f64 = 1.0 - 1.0 / 1024.0;
/// What the pool shows counts as so many reads of the backend.
const PRIOR: f64 = 32.0;
/// Late answers are those of half a lifetime: a whole one has twice as many. The other
/// two: what is kept will be asked for more than once.
const LATE: f64 = 4.0;
/// A memory that keeps fewer answers of mean size is none. Where a host is busy at times all its
/// answers seem to be read then, one after the other: it is that what such a lifetime would mean.
const FEWEST: f64 = 16.0;
/// Answers awaited from one backend.
const AWAITED_MAX: usize = 1024;
/// What takes so much of an expected read longer than an answer from memory is one, however
/// late all answers are.
const MOST_OF_READ: f64 = 0.7;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_decision_reads_of_a_backend_is_a_cache_line() {
        assert_eq!(size_of::<Server>(), 64);
    }

    /// 200 µs from memory and 30 ms from the disk, both behind a link of 50 ms.
    #[test]
    fn reads_are_told_from_answers_that_a_link_delays() {
        let mut history = History::default();
        let mut known = Known::default();
        let at = known.push(BackendId(3));
        known.begin(at, Age::of_kib(100), 200.0, 30_000.0, 30_000.0);
        for link_us in [0.0, 1000.0, 50_000.0] {
            for _ in 0..5000 {
                history.is_slow(&known, at, link_us + 200.0, true);
            }
            for (us, expected) in [
                (150.0, false),
                (400.0, false),
                (25_000.0, true),
                (40_000.0, true),
            ] {
                let slow = history.is_slow(&known, at, link_us + us, false);
                assert_eq!(slow, expected, "{us} behind {link_us}");
            }
        }
    }
}
