//! What is known of an object: where it was asked for, and when.

use std::time::Duration;

use super::ages::{Age, eighths, of_eighths};
use super::server::Server;
use crate::policy::BackendId;

/// An object, and up to four copies of it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Known {
    /// The largest answer lately; 0 before the first.
    pub(super) bytes: u32,
    /// When it was asked for last, from 1; wraps after 49 days.
    asked_ms: u32,
    /// Mean time between requests; 0 before the second.
    gap_us: f32,
    len: u8,
    /// A bit for each copy: asked for while no answer had come.
    reading: u8,
    /// A bit for each copy: asked for again meanwhile. Above them, in [`COUNT`], how often
    /// it was asked for in the latest lifetime.
    joined: u8,
    /// A bit for each copy: it is where the object is at home. And [`SPREAD`], [`SETTLED`].
    home: u8,
    ids: [u16; WIDTH],
    /// The backend's clock when it was asked last, in KiB.
    pub(super) used: [u32; WIDTH],
    /// How old the copy was before that.
    pub(super) before: [Age; WIDTH],
    /// Eight times logarithms of microseconds: an answer from memory as it was expected,
    expected: [u8; WIDTH],
    /// one that is read,
    expected_read: [u8; WIDTH],
    /// and the read itself by its probability; 0 if that is small.
    ordered: [u8; WIDTH],
}

const WIDTH: usize = 4;
const SPREAD: u8 = 0x80;
const SETTLED: u8 = 0x40;
const COUNT: u8 = 0xf0;
const COUNT_MAX: u32 = 15;
/// The longest time for which it is settled where it is asked for, and some more.
const SETTLED_MS: f64 = 4000.0;

impl Known {
    pub(super) fn position(&self, id: BackendId) -> Option<usize> {
        self.ids().iter().position(|&other| other == id.0)
    }

    pub(super) fn is_reading(&self, at: usize) -> bool {
        self.reading & 1 << at != 0
    }

    pub(super) fn is_nowhere(&self) -> bool {
        self.len == 0
    }

    pub(super) fn ids(&self) -> &[u16] {
        &self.ids[..self.len.into()]
    }

    /// How old the copy is: KiB on the backend's clock.
    pub(super) fn age_kib(&self, at: usize, server: &Server) -> u32 {
        match self.is_reading(at) {
            true => 0,
            false => server.clock_kib.wrapping_sub(self.used[at]),
        }
    }

    /// The same without the request that it is asked for now; none if there was none.
    pub(super) fn settled_age_kib(&self, at: usize, server: &Server) -> Option<f64> {
        match (self.is_reading(at), self.before[at]) {
            (true, Age::ABSENT) => None,
            (true, before) => Some(before.kib()),
            (false, _) => Some(self.age_kib(at, server).into()),
        }
    }

    /// The time between requests for it, the next one now; none if this is the first.
    pub(super) fn gap_us(&self, now: Duration) -> Option<f64> {
        if self.asked_ms == 0 {
            return None;
        }
        // A millisecond is the clock's grain.
        let last_ms = f64::from(millis(now).wrapping_sub(self.asked_ms)).max(0.5);
        if self.home & SETTLED != 0 && last_ms < SETTLED_MS && self.gap_us > 0.0 {
            return Some(self.gap_us.into());
        }
        Some(match self.gap_us {
            0.0 => 1000.0 * last_ms,
            gap_us => f64::from(gap_us) + LATEST * (1000.0 * last_ms - f64::from(gap_us)),
        })
    }

    /// It is asked for now; memory turns over so many times in a microsecond.
    pub(super) fn asked(&mut self, now: Duration, turnover: f64) {
        let last_us = 1000.0 * f64::from(millis(now).wrapping_sub(self.asked_ms));
        let left = self.count() * (1.0 - last_us * turnover).max(0.0);
        self.set_count(left.ceil() as u32 + 1);
        self.gap_us = self.gap_us(now).unwrap_or(0.0) as f32;
        self.asked_ms = millis(now);
        self.home &= !SETTLED;
    }

    /// Whether it was asked for often enough in a lifetime for what the time between
    /// requests says of the next: two that come one after the other may be the last.
    pub(super) fn is_often(&self) -> bool {
        self.count() >= f64::from(COUNT_MAX)
    }

    fn count(&self) -> f64 {
        f64::from(self.joined >> COUNT.trailing_zeros())
    }

    fn set_count(&mut self, count: u32) {
        let count = count.min(COUNT_MAX) as u8;
        self.joined = self.joined & !COUNT | count << COUNT.trailing_zeros();
    }

    /// It is asked for elsewhere from now on, unheard: that nobody asks here tells nothing.
    pub(super) fn settle(&mut self) {
        self.home |= SETTLED;
    }

    /// It was asked for so many times more in the time before the latest.
    pub(super) fn asked_meanwhile(&mut self, count: u32, time: Duration) {
        let time_us = time.as_secs_f64() * 1e6;
        self.set_count((self.count() as u32).saturating_add(count));
        self.gap_us = match count {
            0 => self.gap_us + (LATEST * (time_us - f64::from(self.gap_us))) as f32,
            count => (time_us / f64::from(count)) as f32,
        };
    }

    /// A place for another copy: if there is none, the oldest one's.
    pub(super) fn push(&mut self, id: BackendId) -> usize {
        if usize::from(self.len) == WIDTH {
            self.remove(0);
            self.home |= SPREAD;
        }
        let at = usize::from(self.len);
        self.ids[at] = id.0;
        self.len += 1;
        at
    }

    /// A copy of that age is asked for; an answer from memory takes `hit_us`, another one
    /// `read_us` more, and `ordered_us` is what the disk may expect.
    pub(super) fn begin(
        &mut self,
        at: usize,
        age: Age,
        hit_us: f64,
        read_us: f64,
        ordered_us: f64,
    ) {
        self.reading |= 1 << at;
        self.joined &= !(1 << at);
        self.before[at] = age;
        self.expected[at] = eighths(hit_us);
        self.expected_read[at] = eighths(hit_us + read_us);
        self.ordered[at] = eighths(ordered_us);
    }

    /// Microseconds that the disk is expected to work for it.
    pub(super) fn ordered_us(&self, at: usize) -> f64 {
        match self.ordered[at] {
            0 => 0.0,
            eighths => of_eighths(eighths),
        }
    }

    pub(super) fn set_home(&mut self, at: usize, is: bool) {
        self.home = self.home & !(1 << at) | u8::from(is) << at;
    }

    /// Whether more backends than these have it.
    pub(super) fn is_spread(&self) -> bool {
        self.home & SPREAD != 0
    }

    pub(super) fn is_home(&self, at: usize) -> bool {
        self.home & 1 << at != 0
    }

    /// It is asked for again while it is read.
    pub(super) fn join(&mut self, at: usize) {
        self.joined |= 1 << at;
    }

    pub(super) fn is_joined(&self, at: usize) -> bool {
        self.joined & 1 << at != 0
    }

    /// The answer is there.
    pub(super) fn end(&mut self, at: usize) {
        self.reading &= !(1 << at);
    }

    /// The copy was not used after all.
    pub(super) fn undo(&mut self, at: usize, server: &Server) {
        self.end(at);
        match self.before[at] {
            Age::ABSENT => self.remove(at),
            age => self.used[at] = server.clock_kib.wrapping_sub(age.kib() as u32),
        }
    }

    /// Answers may be parts; what is shorter counts by and by.
    pub(super) fn learn_bytes(&mut self, bytes: u32) {
        self.bytes = bytes.max(self.bytes - self.bytes / 8);
    }

    /// Logarithms to base 2 of what was expected of an answer from memory, and of one
    /// that is read.
    pub(super) fn expected(&self, at: usize) -> (f64, f64) {
        (
            f64::from(self.expected[at]) / 8.0,
            f64::from(self.expected_read[at]) / 8.0,
        )
    }

    fn remove(&mut self, at: usize) {
        let end = usize::from(self.len);
        self.ids.copy_within(at + 1..end, at);
        self.used.copy_within(at + 1..end, at);
        self.before.copy_within(at + 1..end, at);
        self.expected.copy_within(at + 1..end, at);
        self.expected_read.copy_within(at + 1..end, at);
        self.ordered.copy_within(at + 1..end, at);
        let below = (1u8 << at) - 1;
        let (flags, count) = (self.home & (SPREAD | SETTLED), self.joined & COUNT);
        self.home &= !flags;
        self.joined &= !count;
        for bits in [&mut self.reading, &mut self.joined, &mut self.home] {
            *bits = *bits & below | (*bits >> 1) & !below;
        }
        self.home |= flags;
        self.joined |= count;
        self.len -= 1;
    }
}

fn millis(now: Duration) -> u32 {
    (now.as_millis() as u32).max(1)
}

/// The share of the latest in the mean time between requests.
const LATEST: f64 = 0.3;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::rent::server;

    #[test]
    fn an_object_takes_what_is_promised() {
        // With its hash, in a table that is three quarters full: 86 bytes.
        assert_eq!(size_of::<Known>() + 8, 64);
    }

    #[test]
    fn the_oldest_of_five_copies_goes() {
        let mut known = Known::default();
        for id in 0..5 {
            let at = known.push(BackendId(id));
            known.begin(at, Age::ABSENT, 1000.0, 30_000.0, 30_000.0);
            if id % 2 == 0 {
                known.end(at);
            }
        }
        assert!(known.is_spread());
        assert_eq!(known.ids(), [1, 2, 3, 4]);
        let reading: Vec<bool> = (0..4).map(|at| known.is_reading(at)).collect();
        assert_eq!(reading, [true, false, true, false]);
    }

    #[test]
    fn what_was_not_used_is_as_old_as_before() {
        let mut server = server::NEW;
        server.clock_kib = 5000;
        let mut known = Known::default();
        let at = known.push(BackendId(3));
        known.used[at] = 1000;
        known.begin(at, Age::of_kib(4000), 1000.0, 30_000.0, 0.0);
        known.used[at] = server.clock_kib;
        known.undo(at, &server);
        assert!((3500..=4000).contains(&known.age_kib(at, &server)));
        known.begin(at, Age::ABSENT, 1000.0, 30_000.0, 30_000.0);
        known.undo(at, &server);
        assert!(known.is_nowhere());
    }

    #[test]
    fn nobody_asks_here_for_what_is_settled() {
        let mut known = Known::default();
        let at = Duration::from_millis;
        known.asked(at(1000), 0.0);
        known.asked(at(1020), 0.0);
        known.settle();
        assert_eq!(known.gap_us(at(3000)), Some(20_000.0));
        known.asked(at(3000), 0.0);
        known.asked_meanwhile(200, at(2000));
        known.settle();
        assert_eq!(known.gap_us(at(5000)), Some(10_000.0));
        known.asked(at(5000), 0.0);
        known.asked_meanwhile(0, at(2000));
        let cold_us = known.gap_us(at(7000)).unwrap();
        assert!(cold_us > 600_000.0, "{cold_us}");
        known.settle();
        assert!(known.gap_us(at(60_000)).unwrap() > 10e6, "long ago");
    }

    #[test]
    fn a_few_requests_at_once_are_not_often() {
        let mut known = Known::default();
        let at = Duration::from_millis;
        let turnover = 1e-6;
        for ms in 0..14 {
            known.asked(at(1000 + ms), turnover);
            assert!(!known.is_often(), "{ms}");
        }
        // Other flags stay beside it.
        let copy = known.push(BackendId(3));
        known.join(copy);
        known.asked(at(1014), turnover);
        assert!(known.is_often() && known.is_joined(copy));
        known.remove(copy);
        assert!(known.is_often() && !known.is_joined(copy));
        known.asked(at(1500), turnover);
        assert!(!known.is_often(), "half a lifetime without any");
        (0..40).for_each(|n| known.asked(at(2000 + 50 * n), turnover));
        assert!(known.is_often(), "twenty in each lifetime");
        (0..40).for_each(|n| known.asked(at(4000 + 200 * n), turnover));
        assert!(!known.is_often(), "five in each lifetime");
    }

    #[test]
    fn gaps_between_requests_are_a_mean() {
        let mut known = Known::default();
        let at = Duration::from_secs;
        assert_eq!(known.gap_us(at(1)), None);
        known.asked(at(1), 0.0);
        assert_eq!(known.gap_us(at(3)), Some(2e6));
        known.asked(at(3), 0.0);
        known.asked(at(5), 0.0);
        let gap_us = known.gap_us(at(15)).unwrap();
        assert!((4.3e6..4.5e6).contains(&gap_us), "{gap_us}");
    }
}
