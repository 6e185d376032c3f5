//! One direction of an emulated link, in virtual time: frames go in, and come
//! out when it is their time. No sockets and no clock here.
//!
//! ```text
//!  frame ─► lost? ─► doubled? ─► wait for the sender ─► send ─► travel ─► out
//!                                (drop-tail, `limit`)  1/rate   delay
//! ```

use std::cmp::Ordering;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::settings::LinkSettings;
use crate::random::Random;

/// How long a reordered frame is held back: between once and twice this.
const HELD_BACK: Duration = Duration::from_millis(2);

/// Bytes on the way at most, whatever delay and rate say; more are dropped.
const BYTES_ON_THE_WAY: usize = 256 << 20;

/// What became of the frames of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Frames that came in.
    pub received: u64,
    /// Frames that went out, copies included.
    pub sent: u64,
    /// Lost because `loss` says so.
    pub lost: u64,
    /// Copies made because `duplicate` says so.
    pub duplicated: u64,
    /// Held back because `reorder` says so.
    pub reordered: u64,
    /// Dropped because more than `limit` waited for their turn at `rate`.
    pub overflowed: u64,
    /// Lost by the emulator itself, which nobody asked for: it was too slow, or
    /// an interface refused the frame.
    pub failed: u64,
}

/// One direction. Times are durations since any fixed moment.
pub struct Shaper {
    settings: LinkSettings,
    random: Random,
    /// When the sender will have sent all that waits.
    sender_free: Duration,
    /// When each frame that has not been sent wholly will have been.
    sending: VecDeque<Duration>,
    /// When the last frame that was not reordered arrives: none arrives before it.
    last_arrival: Duration,
    on_the_way: BinaryHeap<Frame>,
    bytes_on_the_way: usize,
    frames_taken: u64,
    /// What became of the frames so far.
    pub counters: Counters,
}

/// A frame on the way. The greatest is the next to arrive.
struct Frame {
    arrival: Duration,
    number: u64,
    bytes: Vec<u8>,
}

impl Shaper {
    /// A direction that treats frames as `settings` say; `name` tells it from
    /// others of the same seed.
    pub fn new(settings: LinkSettings, name: &str) -> Self {
        Shaper {
            random: Random::for_use(settings.seed, name),
            settings,
            sender_free: Duration::ZERO,
            sending: VecDeque::new(),
            last_arrival: Duration::ZERO,
            on_the_way: BinaryHeap::new(),
            bytes_on_the_way: 0,
            frames_taken: 0,
            counters: Counters::default(),
        }
    }

    /// Treats frames from now on as `settings` say. Those on the way arrive as
    /// they would have, and none overtakes them.
    pub fn change(&mut self, settings: LinkSettings, name: &str) {
        self.random = Random::for_use(settings.seed, name);
        if settings.rate.is_none() {
            self.sender_free = Duration::ZERO;
            self.sending.clear();
        }
        self.settings = settings;
    }

    /// Takes a frame that came in at `now`.
    pub fn accept(&mut self, now: Duration, bytes: &[u8]) {
        self.counters.received += 1;
        // As many draws for each frame, whatever the settings: which frames are
        // lost depends on the seed and the share alone.
        let lost = self.random.fraction() < self.settings.loss;
        let doubled = self.random.fraction() < self.settings.duplicate;
        let reordered = self.random.fraction() < self.settings.reorder;
        let swing = self.random.fraction();
        if lost {
            self.counters.lost += 1;
            return;
        }
        self.forward(now, bytes, reordered, swing);
        if doubled {
            self.counters.duplicated += 1;
            self.forward(now, bytes, false, swing);
        }
    }

    /// The next frame whose time has come by `now`.
    pub fn take_due(&mut self, now: Duration) -> Option<Vec<u8>> {
        if self.next_due()? > now {
            return None;
        }
        let bytes = self.on_the_way.pop()?.bytes;
        self.bytes_on_the_way -= bytes.len();
        self.counters.sent += 1;
        Some(bytes)
    }

    /// When the next frame is due.
    pub fn next_due(&self) -> Option<Duration> {
        self.on_the_way.peek().map(|frame| frame.arrival)
    }

    fn forward(&mut self, now: Duration, bytes: &[u8], reordered: bool, swing: f64) {
        let Some(sent) = self.send(now, bytes.len()) else {
            self.counters.overflowed += 1;
            return;
        };
        let LinkSettings { delay, jitter, .. } = self.settings;
        let on_time = (sent + delay + jitter.mul_f64(2.0 * swing)).saturating_sub(jitter);
        let mut arrival = on_time.max(sent).max(self.last_arrival);
        if reordered {
            self.counters.reordered += 1;
            arrival += HELD_BACK + HELD_BACK.mul_f64(swing);
        } else {
            self.last_arrival = arrival;
        }
        self.bytes_on_the_way += bytes.len();
        self.frames_taken += 1;
        self.on_the_way.push(Frame {
            arrival,
            number: self.frames_taken,
            bytes: bytes.to_vec(),
        });
    }

    /// When a frame of `length` bytes will have been sent, unless it must be dropped.
    fn send(&mut self, now: Duration, length: usize) -> Option<Duration> {
        if self.bytes_on_the_way + length > BYTES_ON_THE_WAY {
            return None;
        }
        let Some(rate) = self.settings.rate else {
            return Some(now);
        };
        while self.sending.front().is_some_and(|&sent| sent <= now) {
            self.sending.pop_front();
        }
        if self.sending.len() > self.settings.limit {
            return None;
        }
        let takes = Duration::from_nanos(length as u64 * 8 * 1_000_000_000 / rate);
        self.sender_free = self.sender_free.max(now) + takes;
        self.sending.push_back(self.sender_free);
        Some(self.sender_free)
    }
}

impl Ord for Frame {
    fn cmp(&self, other: &Self) -> Ordering {
        (other.arrival, other.number).cmp(&(self.arrival, self.number))
    }
}

impl PartialOrd for Frame {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Frame {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Frame {}

#[cfg(test)]
#[path = "shape_tests.rs"]
mod tests;
