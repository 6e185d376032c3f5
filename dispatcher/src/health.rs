//! Which backends can be given work: whose data path answers our heartbeats,
//! and has not refused lately. A refusal is about one port: other servers of
//! that host may be well.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use trapeze_core::policy::Feedback;
use trapeze_core::wire::meta::Refusal;
use trapeze_datapath::abi::BACKENDS_MAX;
use trapeze_datapath::clock;
use trapeze_datapath::dispatcher::Loads;

/// Heartbeats missed in a row that mean dead [SPLICE06 §5].
const MISSED: u32 = 3;
/// Nothing is sent to a backend without a listener for this long.
const NO_LISTENER_PAUSE: Duration = Duration::from_secs(1);
/// Nor to one whose server accepts too slowly.
const QUEUE_FULL_PAUSE: Duration = Duration::from_millis(100);

/// What an agent said is worth something for this long, however rare heartbeats are.
const FEEDBACK_LIFETIME: Duration = Duration::from_secs(10);

/// What is known of each slot. Times are milliseconds of CLOCK_MONOTONIC.
pub struct Health {
    loads: Arc<Loads>,
    interval_ms: AtomicU64,
    started_ms: u64,
    slots: Vec<Slot>,
}

#[derive(Default)]
struct Slot {
    heard_ms: AtomicU64,
    /// The number of the latest answer: an older one repeated says nothing.
    beat: AtomicU64,
    /// No port is refused from here on: without a lock, the usual answer.
    refused_until_ms: AtomicU64,
    refusals: Mutex<Vec<Refused>>,
    /// What its agent said with its latest answer, and when.
    feedback: Mutex<Option<(u64, Feedback)>>,
}

/// Until when a port is not to be asked.
struct Refused {
    port: u16,
    no_server_until_ms: u64,
    busy_until_ms: u64,
}

/// A backend's state, as shown to people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It takes connections.
    Up,
    /// Not heard of yet; taken to be up for the first moments.
    Unknown,
    /// It does not answer.
    Silent,
    /// It has no listener, as it told us just now.
    NoServer,
    /// Its server accepts too slowly, as it told us just now.
    Busy,
}

impl State {
    /// Whether it is to be given connections.
    pub fn is_free(self) -> bool {
        matches!(self, Self::Up | Self::Unknown)
    }
}

impl Health {
    pub fn new(loads: Arc<Loads>, interval: Duration) -> Self {
        Self {
            loads,
            interval_ms: AtomicU64::new(interval.as_millis() as u64),
            started_ms: now_ms(),
            slots: std::iter::repeat_with(Slot::default)
                .take(BACKENDS_MAX)
                .collect(),
        }
    }

    pub fn set_interval(&self, interval: Duration) {
        self.interval_ms
            .store(interval.as_millis() as u64, Ordering::Relaxed);
    }

    /// An answer to heartbeat number `beat`. False: it is old.
    pub fn heard(&self, slot: u32, beat: u32) -> bool {
        let entry = &self.slots[slot as usize];
        let last = entry.beat.load(Ordering::Relaxed);
        // RFC 1982; the first one is taken as it comes.
        if last != 0 && (beat.wrapping_sub(last as u32) as i32) <= 0 {
            return false;
        }
        entry
            .beat
            .store(u64::from(beat) | 1 << 32, Ordering::Relaxed);
        entry.heard_ms.store(now_ms(), Ordering::Relaxed);
        true
    }

    /// What came with an answer.
    pub fn said(&self, slot: u32, feedback: Option<Feedback>) {
        let mut entry = self.slots[slot as usize].feedback.lock();
        let entry = entry.as_mut().expect("no thread panics with it");
        **entry = feedback.map(|feedback| (now_ms(), feedback));
    }

    /// How busy its agent found its host lately.
    pub fn feedback(&self, slot: u32) -> Option<Feedback> {
        let entry = self.slots[slot as usize].feedback.lock();
        let (when_ms, feedback) = (*entry.expect("no thread panics with it"))?;
        (now_ms().saturating_sub(when_ms) < FEEDBACK_LIFETIME.as_millis() as u64)
            .then_some(feedback)
    }

    /// Its server at that port was asked, in vain.
    pub fn refused(&self, slot: u32, port: u16, why: Refusal) {
        let now = now_ms();
        let entry = &self.slots[slot as usize];
        let mut refusals = entry.refusals();
        refusals.retain(|refused| refused.port == port || refused.until_ms() > now);
        let at = refusals.iter().position(|refused| refused.port == port);
        let at = at.unwrap_or_else(|| {
            refusals.push(Refused {
                port,
                no_server_until_ms: 0,
                busy_until_ms: 0,
            });
            refusals.len() - 1
        });
        let refused = &mut refusals[at];
        let (until, pause) = match why {
            Refusal::NoListener => (&mut refused.no_server_until_ms, NO_LISTENER_PAUSE),
            Refusal::AcceptQueueFull => (&mut refused.busy_until_ms, QUEUE_FULL_PAUSE),
        };
        *until = now + pause.as_millis() as u64;
        (entry.refused_until_ms).fetch_max(*until, Ordering::Relaxed);
    }

    /// The backend's, whichever port is asked: that of the worst one.
    pub fn state(&self, slot: u32) -> State {
        self.state_of(slot, |_| true)
    }

    /// The state of its server at one port.
    pub fn state_at(&self, slot: u32, port: u16) -> State {
        self.state_of(slot, |refused| refused.port == port)
    }

    /// The ports at which no server listens, as it told us just now.
    pub fn ports_without_server(&self, slot: u32) -> Vec<u16> {
        let now = now_ms();
        let refusals = self.slots[slot as usize].refusals();
        let mut ports: Vec<u16> = (refusals.iter())
            .filter(|refused| now < refused.no_server_until_ms)
            .map(|refused| refused.port)
            .collect();
        ports.sort_unstable();
        ports
    }

    fn state_of(&self, slot: u32, concerns: impl Fn(&Refused) -> bool) -> State {
        let entry = &self.slots[slot as usize];
        let now = now_ms();
        // A tenth more than three intervals: timers are late, networks jitter.
        let patience = self.interval_ms.load(Ordering::Relaxed) * u64::from(MISSED) * 11 / 10 + 5;
        let heard = entry.heard_ms.load(Ordering::Relaxed);
        if heard == 0 && now - self.started_ms > patience.max(1000)
            || heard != 0 && now.saturating_sub(heard) > patience
        {
            State::Silent
        } else if let Some(state) = entry.refused_now(now, concerns) {
            state
        } else if heard == 0 {
            State::Unknown
        } else {
            State::Up
        }
    }

    pub fn loads(&self) -> &Loads {
        &self.loads
    }

    pub fn active(&self, slot: u32) -> u64 {
        self.loads.active(slot)
    }

    pub fn total(&self, slot: u32) -> u64 {
        self.loads.total(slot)
    }

    /// A slot that another backend has now.
    pub fn reset(&self, slot: u32) {
        let entry = &self.slots[slot as usize];
        entry.heard_ms.store(0, Ordering::Relaxed);
        entry.beat.store(0, Ordering::Relaxed);
        entry.refused_until_ms.store(0, Ordering::Relaxed);
        entry.refusals().clear();
        self.loads.reset(slot);
    }
}

impl Slot {
    fn refusals(&self) -> MutexGuard<'_, Vec<Refused>> {
        self.refusals.lock().expect("no thread panics with it")
    }

    fn refused_now(&self, now_ms: u64, concerns: impl Fn(&Refused) -> bool) -> Option<State> {
        if now_ms >= self.refused_until_ms.load(Ordering::Relaxed) {
            return None;
        }
        let refusals = self.refusals();
        let concerned = || refusals.iter().filter(|refused| concerns(refused));
        if concerned().any(|refused| now_ms < refused.no_server_until_ms) {
            Some(State::NoServer)
        } else if concerned().any(|refused| now_ms < refused.busy_until_ms) {
            Some(State::Busy)
        } else {
            None
        }
    }
}

impl Refused {
    fn until_ms(&self) -> u64 {
        self.no_server_until_ms.max(self.busy_until_ms)
    }
}

fn now_ms() -> u64 {
    clock::monotonic().as_millis() as u64
}
