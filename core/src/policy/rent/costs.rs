//! What an answer takes, by its bytes, from what was measured.

use super::super::Kind;

/// What answers take: of the processor and the link from memory, of the disk to be read.
#[derive(Debug)]
pub(super) struct Costs {
    pub(super) hit: Line,
    pub(super) read: Line,
    /// Of answers from memory beyond doubt: the processor work before them when they were
    /// asked for,
    before: Mean,
    /// and how much longer than it takes to answer they took.
    waited: Mean,
    /// Bytes of answers,
    pub(super) answers: Mean,
    /// and of what had to be read, by kind.
    pub(super) kinds: Vec<Mean>,
}

/// The mean of the last thousand values or so.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Mean {
    count: f32,
    mean: f32,
}

/// Half of the last hundred values or so are above it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Median {
    count: f32,
    value: f32,
}

/// A straight line through what was measured lately: microseconds over bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Line {
    count: f64,
    x: f64,
    y: f64,
    xx: f64,
    xy: f64,
}

const REMEMBERED: f64 = 1024.0;
/// By which a median follows at least: of logarithms, 2 % of what they stand for.
const SMALLEST_STEP: f32 = 1.0 / 32.0;
const ENOUGH: f64 = 8.0;

impl Mean {
    pub(super) fn add(&mut self, value: f64) {
        self.count = (self.count + 1.0).min(REMEMBERED as f32);
        self.mean += (value as f32 - self.mean) / self.count;
    }

    pub(super) fn get(&self) -> Option<f64> {
        (self.count > 0.0).then_some(self.mean.into())
    }
}

impl Median {
    pub(super) fn add(&mut self, value: f64) {
        self.count = (self.count + 1.0).min(1.0 / SMALLEST_STEP);
        self.value += (1.0f32).copysign(value as f32 - self.value) / self.count;
    }

    /// 0 at first.
    pub(super) fn get(&self) -> f64 {
        self.value.into()
    }
}

impl Line {
    pub(super) fn add(&mut self, x: f64, y: f64) {
        self.count = (self.count + 1.0).min(REMEMBERED);
        let part = 1.0 / self.count;
        let (dx, dy) = (x - self.x, y - self.y);
        self.x += dx * part;
        self.y += dy * part;
        self.xx += (dx * dx * (1.0 - part) - self.xx) * part;
        self.xy += (dx * dy * (1.0 - part) - self.xy) * part;
    }

    /// Never falling, never below nothing; none before enough is known.
    pub(super) fn at(&self, x: f64) -> Option<f64> {
        let steepest = if self.x > 0.0 { self.y / self.x } else { 0.0 };
        let slope = match self.xx > 0.0 {
            true => (self.xy / self.xx).clamp(0.0, steepest),
            false => 0.0,
        };
        (self.count >= ENOUGH).then_some(self.y + slope * (x - self.x))
    }
}

impl Costs {
    pub(super) fn new() -> Self {
        Costs {
            hit: Line::default(),
            read: Line::default(),
            before: Mean::default(),
            waited: Mean::default(),
            answers: Mean::default(),
            kinds: vec![Mean::default(); Kind::COUNT],
        }
    }

    /// Of an answer of unknown kind.
    pub(super) fn mean_bytes(&self) -> f64 {
        self.answers.get().unwrap_or(UNKNOWN_BYTES)
    }

    /// Of an object that was not answered before: like others of its kind.
    pub(super) fn bytes_of(&self, kind: Kind) -> f64 {
        let mean = self.kinds[usize::from(kind.number())].get();
        mean.unwrap_or_else(|| self.mean_bytes())
    }

    /// Microseconds for an answer from memory.
    pub(super) fn hit_us(&self, bytes: f64) -> f64 {
        self.hit.at(bytes).unwrap_or(UNKNOWN_US).max(1.0)
    }

    /// Microseconds of disk; before anything is measured, ten answers [LVSCAD07 §5.2].
    pub(super) fn read_us(&self, bytes: f64) -> f64 {
        let read_us = self.read.at(bytes);
        read_us
            .unwrap_or_else(|| 10.0 * self.hit_us(bytes))
            .max(1.0)
    }

    /// Each side of a handoff does what an answer without bytes takes.
    pub(super) fn handoff_us(&self) -> f64 {
        self.hit.at(0.0).unwrap_or(0.0)
    }

    /// An answer from memory came so late, with so much processor work before it.
    pub(super) fn waited(&mut self, before_us: f64, waited_us: f64) {
        self.before.add(before_us.max(0.0));
        self.waited.add(waited_us.max(0.0));
    }

    /// The part of the work before a request that it waits for: less than all where there
    /// are several processors, or they are shared.
    pub(super) fn waits(&self) -> f64 {
        match (self.before.get(), self.waited.get()) {
            // Work that has begun is half done in the mean: of one processor's, too, less
            // than all is waited for.
            (Some(before_us), Some(us)) if 2.0 * us < before_us => 2.0 * us / before_us,
            _ => 1.0,
        }
    }

    pub(super) fn memory(&self) -> usize {
        self.kinds.capacity() * size_of::<Mean>()
    }
}

const UNKNOWN_US: f64 = 1000.0;
const UNKNOWN_BYTES: f64 = 8192.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_that_nobody_waits_for_does_not_count() {
        let mut costs = Costs::new();
        assert_eq!(costs.waits(), 1.0);
        (0..5000).for_each(|_| costs.waited(7000.0, 5000.0));
        assert_eq!(costs.waits(), 1.0);
        (0..5000).for_each(|_| costs.waited(7000.0, 70.0));
        assert!((0.01..0.1).contains(&costs.waits()), "{}", costs.waits());
    }

    #[test]
    fn a_median_is_not_moved_by_what_is_far_away() {
        let mut median = Median::default();
        for i in 0..4000 {
            let near = f64::from(i % 10) / 10.0;
            median.add(if i % 5 == 0 { 1000.0 } else { 3.0 + near });
        }
        assert!((3.0..4.2).contains(&median.get()), "{}", median.get());
        for _ in 0..400 {
            median.add(1.0);
        }
        assert!((0.9..1.1).contains(&median.get()), "{}", median.get());
    }
}
