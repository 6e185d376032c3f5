//! Which backends can be given work: whose data path answers our heartbeats,
//! and has not refused lately, and whose servers pass their checks. A refusal is about one
//! port, a check about one pool's server: other servers of that host may be well.

mod beats;
mod checked;
mod ejected;
mod history;
mod recovery;

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use trapeze_core::health::{Outcome, Standing, Word};
use trapeze_core::policy::Feedback;
use trapeze_core::wire::meta::Refusal;
use trapeze_datapath::abi::BACKENDS_MAX;
use trapeze_datapath::clock;
use trapeze_datapath::dispatcher::Loads;

use crate::listening::Listening;

pub use beats::grace;
pub use checked::Checked;
pub use history::Change;

use beats::Beats;
use checked::Checks;
use ejected::Ejected;
use history::History;
use recovery::Recovery;

/// Nothing is sent to a backend without a listener for this long.
const NO_LISTENER_PAUSE: Duration = Duration::from_secs(1);
/// Unless there is nobody else: a server that is being restarted may listen again by then.
const NO_LISTENER_FOR_SURE: Duration = Duration::from_millis(50);
/// Nor to one whose server accepts too slowly.
const QUEUE_FULL_PAUSE: Duration = Duration::from_millis(100);

/// What an agent said is worth something for this long, however rare heartbeats are.
const FEEDBACK_LIFETIME: Duration = Duration::from_secs(10);

/// What is known of each slot. Times are milliseconds of CLOCK_MONOTONIC.
pub struct Health {
    loads: Arc<Loads>,
    beats: Beats,
    listening: Listening,
    slots: Vec<Slot>,
    /// When any of them was heard last.
    heard_ms: AtomicU64,
    /// This host hears nobody: whoever does not answer may be well.
    is_deaf: AtomicBool,
    /// How often backends have become down, and have been ejected.
    downs: AtomicU64,
    ejections: AtomicU64,
    /// Connections that have ended with their backends.
    lost: AtomicU64,
    /// And those that owed nothing, and wait for another one.
    vacated: AtomicU64,
}

#[derive(Default)]
struct Slot {
    heard_ms: AtomicU64,
    /// The number of the latest answer: an older one repeated says nothing.
    beat: AtomicU64,
    /// Which of its network stacks has given it; 0: not known.
    incarnation: AtomicU32,
    /// When another one than before was first heard of: it has nothing of what was given to it until then. 0: never.
    anew_ms: AtomicU64,
    /// No port is refused from here on: without a lock, the usual answer.
    refused_until_ms: AtomicU64,
    refusals: Mutex<Vec<Refused>>,
    /// It was silent already when nobody was heard any more.
    was_silent: AtomicBool,
    /// It is to have no connections any more.
    drained: AtomicBool,
    /// What its agent said with its latest answer, and when.
    feedback: Mutex<Option<(u64, Feedback)>>,
    /// What checks hold of its servers.
    checks: Checks,
    /// Which of them are left out for a while.
    ejected: Ejected,
    /// Connections that its servers have reset while they owed something.
    resets: AtomicU64,
    /// Since when they are back.
    recovery: Recovery,
    history: Mutex<History>,
}

/// Until when a port is not to be asked.
struct Refused {
    port: u16,
    no_server_until_ms: u64,
    busy_until_ms: u64,
}

/// What an answer to a heartbeat is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// One that has been overtaken.
    Late,
    /// By whom the last one was.
    AsBefore,
    /// By a host that has lost all it had since, its power perhaps: however soon it is back.
    Anew,
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
    /// Its server fails its checks.
    Down,
    /// It stands out by what becomes of clients' requests, and is left out for a while.
    Ejected,
    /// It had no listener when it was asked last.
    NoServer {
        /// Just now.
        for_sure: bool,
    },
    /// Its server accepts too slowly, as it told us just now.
    Busy,
    /// An operator wants it to have no connections.
    Drained,
}

impl State {
    /// Whether it is to be given connections.
    pub fn is_free(self) -> bool {
        matches!(self, Self::Up | Self::Unknown)
    }

    /// As people see it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Unknown => "unknown",
            Self::Silent => "silent",
            Self::Down => "down",
            Self::Ejected => "ejected",
            Self::NoServer { .. } => "no-server",
            Self::Busy => "busy",
            Self::Drained => "drained",
        }
    }
}

impl Health {
    pub fn new(loads: Arc<Loads>, interval: Duration, workers: usize) -> Self {
        Self {
            listening: Listening::new(workers),
            loads,
            heard_ms: AtomicU64::new(0),
            is_deaf: AtomicBool::new(false),
            downs: AtomicU64::new(0),
            ejections: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            vacated: AtomicU64::new(0),
            beats: Beats::new(interval, now_ms()),
            slots: std::iter::repeat_with(Slot::default)
                .take(BACKENDS_MAX)
                .collect(),
        }
    }

    pub fn set_interval(&self, interval: Duration) {
        self.beats.set_interval(interval);
    }

    /// All backends were asked. By one thread.
    pub fn asked(&self) {
        self.beats.sent(now_ms());
    }

    /// Whether answers have been heard, if there were any.
    pub fn listening(&self) -> &Listening {
        &self.listening
    }

    /// Something has come from one of them, on another host.
    pub fn heard_from_outside(&self) {
        self.heard_ms.fetch_max(now_ms(), Ordering::Relaxed);
    }

    /// When it has, last.
    pub fn last_heard(&self) -> Duration {
        Duration::from_millis(self.heard_ms.load(Ordering::Relaxed))
    }

    /// Has no backend answered the latest two heartbeats, both of them sent after that? A third would make them silent.
    pub fn is_answered_by_none_since(&self, since: Duration) -> bool {
        let heard = self.heard_ms.load(Ordering::Relaxed);
        let since = since.as_millis() as u64;
        (self.beats).are_two_missed(heard.max(since), now_ms(), self.listening.until_ms())
    }

    /// Nobody can be heard from now on: whoever was not silent does not become so.
    pub fn be_deaf(&self) {
        let now = now_ms();
        for slot in &self.slots {
            let is_silent = self.is_silent(slot, now);
            slot.was_silent.store(is_silent, Ordering::Relaxed);
        }
        self.is_deaf.store(true, Ordering::Release);
    }

    /// Can nobody be heard?
    pub fn is_deaf(&self) -> bool {
        self.is_deaf.load(Ordering::Acquire)
    }

    /// Somebody has been heard again: what was asked meanwhile counts against nobody.
    pub fn hear_again(&self) {
        let now = now_ms();
        for slot in &self.slots {
            let was_heard = slot.heard_ms.load(Ordering::Relaxed) != 0;
            if was_heard && !slot.was_silent.load(Ordering::Relaxed) {
                slot.heard_ms.fetch_max(now, Ordering::Relaxed);
            }
        }
        self.is_deaf.store(false, Ordering::Release);
    }

    /// Workers that wait have heard all. Before and after a heartbeat.
    pub fn listen(&self) {
        self.listening.look(now_ms());
    }

    /// An answer to heartbeat number `beat`, by that `incarnation` of the host's network stack (0: it does not say).
    pub fn heard(&self, slot: u32, beat: u32, incarnation: u32) -> Heard {
        let entry = &self.slots[slot as usize];
        if has_answered(entry, beat) {
            return Heard::Late;
        }
        entry
            .beat
            .store(u64::from(beat) | 1 << 32, Ordering::Relaxed);
        let now = now_ms();
        entry.heard_ms.store(now, Ordering::Relaxed);
        if incarnation == 0 {
            return Heard::AsBefore;
        }
        let before = entry.incarnation.swap(incarnation, Ordering::Relaxed);
        if before == 0 || before == incarnation {
            return Heard::AsBefore;
        }
        entry.anew_ms.store(now, Ordering::Relaxed);
        let mut history = entry.history.lock().expect("no thread panics with it");
        history.note(State::Silent.name(), || {
            "it has come up anew, and has lost what it had".into()
        });
        Heard::Anew
    }

    /// For how long it has been known that its host has lost what it was given at that time; zero: it has not,
    /// as far as is known.
    pub fn lost_for(&self, slot: u32, given: Duration) -> Duration {
        let anew = self.slots[slot as usize].anew_ms.load(Ordering::Relaxed);
        match (given.as_millis() as u64) < anew {
            true => Duration::from_millis(now_ms().saturating_sub(anew).max(1)),
            false => Duration::ZERO,
        }
    }

    /// Has its host lost what it was given at that time (CLOCK_MONOTONIC)?
    pub fn has_lost(&self, slot: u32, given: Duration) -> bool {
        !self.lost_for(slot, given).is_zero()
    }

    /// So many connections have ended with their backends.
    pub fn count_lost(&self, connections: u64) {
        self.lost.fetch_add(connections, Ordering::Relaxed);
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
            Refusal::NoListener | Refusal::Behind => {
                (&mut refused.no_server_until_ms, NO_LISTENER_PAUSE)
            }
            // The latter is about one flow alone, and does not come here.
            Refusal::AcceptQueueFull | Refusal::NoSeat => {
                (&mut refused.busy_until_ms, QUEUE_FULL_PAUSE)
            }
        };
        *until = now + pause.as_millis() as u64;
        (entry.refused_until_ms).fetch_max(*until, Ordering::Relaxed);
    }

    /// Its server at that port has taken a connection: it listens again, if it did not.
    pub fn listens(&self, slot: u32, port: u16) {
        let entry = &self.slots[slot as usize];
        if now_ms() < entry.refused_until_ms.load(Ordering::Relaxed) {
            let mut refusals = entry.refusals();
            let of_port = refusals.iter_mut().filter(|refused| refused.port == port);
            of_port.for_each(|refused| refused.no_server_until_ms = 0);
        }
    }

    /// What its agent holds of the servers there that are checked. True: that is news.
    pub fn hear_word(&self, slot: u32, word: &Word, is_checked: impl Fn(u64) -> bool) -> bool {
        let checks = &self.slots[slot as usize].checks;
        if checks.is_old(word.at_ms) {
            return false;
        }
        let now = now_ms();
        let known = word.entries.iter().filter(|entry| is_checked(entry.number));
        known.fold(false, |news, entry| {
            checks.hear(now, entry.number, entry.standing, entry.last) | news
        })
    }

    /// What has been found out here about a server. True: that is news.
    pub fn checked(
        &self,
        slot: u32,
        number: u64,
        standing: Standing,
        last: Option<Outcome>,
    ) -> bool {
        let checks = &self.slots[slot as usize].checks;
        checks.hear(now_ms(), number, standing, last)
    }

    /// Only these servers of it are checked from now on.
    pub fn check_only(&self, slot: u32, numbers: &[u64]) {
        self.slots[slot as usize].checks.retain(numbers);
    }

    /// What checks hold of a server.
    pub fn check(&self, slot: u32, number: u64) -> Option<Checked> {
        self.slots[slot as usize].checks.of(now_ms(), number)
    }

    /// Is that server dead, for all that is known: its host is silent, or it does not answer its
    /// checks? What it has in hand is another's then. `number` is that of its checks.
    pub fn is_dead(&self, slot: u32, number: impl FnOnce() -> Option<u64>) -> bool {
        let entry = &self.slots[slot as usize];
        let now = now_ms();
        if self.is_silent(entry, now) {
            return true;
        }
        // The usual answers, before anybody looks for the number.
        entry.checks.is_dead(now, |_| true)
            && number().is_some_and(|number| entry.checks.is_dead(now, |other| other == number))
    }

    /// Has its host missed its heartbeats?
    pub fn is_host_silent(&self, slot: u32) -> bool {
        self.is_silent(&self.slots[slot as usize], now_ms())
    }

    /// For how long its host has missed its heartbeats; zero: it has not.
    pub fn silence(&self, slot: u32) -> Duration {
        let (entry, now) = (&self.slots[slot as usize], now_ms());
        let since = entry.heard_ms.load(Ordering::Relaxed);
        match self.is_silent(entry, now) {
            true => Duration::from_millis(now - since.max(self.beats.started_ms())),
            false => Duration::ZERO,
        }
    }

    /// Does one of its servers, whichever, not answer its checks?
    pub fn may_be_down(&self, slot: u32) -> bool {
        self.slots[slot as usize].checks.is_dead(now_ms(), |_| true)
    }

    /// A server of it is left out until then (CLOCK_MONOTONIC).
    pub fn eject(&self, slot: u32, number: u64, until: Duration) {
        let ejected = &self.slots[slot as usize].ejected;
        ejected.set(now_ms(), number, until.as_millis() as u64);
    }

    /// A server of it has reset a connection that it owed something.
    pub fn has_reset(&self, slot: u32) {
        let resets = &self.slots[slot as usize].resets;
        resets.fetch_add(1, Ordering::Relaxed);
    }

    /// How many it has reset so.
    pub fn resets(&self, slot: u32) -> u64 {
        self.slots[slot as usize].resets.load(Ordering::Relaxed)
    }

    /// The backend's, whichever server is asked: that of the worst one.
    pub fn state(&self, slot: u32) -> State {
        self.state_of(slot, |_| true, |_| true)
    }

    /// The state of its server at one port, whose checks have that number.
    pub fn state_at(&self, slot: u32, port: u16, number: impl Fn() -> u64) -> State {
        let of_port = |refused: &Refused| refused.port == port;
        self.state_of(slot, of_port, |other| other == number())
    }

    /// The states of a backend's servers now, by their numbers; looked at regularly. `why` tells of
    /// the backend's own.
    pub fn note(
        &self,
        slot: u32,
        servers: impl IntoIterator<Item = (u64, State)>,
        why: impl FnOnce() -> String,
    ) {
        let entry = &self.slots[slot as usize];
        let now = now_ms();
        for (number, state) in servers {
            entry.recovery.note(now, number, state);
        }
        let state = self.state(slot);
        let mut history = entry.history.lock().expect("no thread panics with it");
        if history.note(state.name(), why) {
            match state {
                State::Down => self.downs.fetch_add(1, Ordering::Relaxed),
                State::Ejected => self.ejections.fetch_add(1, Ordering::Relaxed),
                _ => 0,
            };
        }
    }

    /// A connection whose backend has come up anew without it owed nothing.
    pub fn count_vacated(&self) {
        self.vacated.fetch_add(1, Ordering::Relaxed);
    }

    /// How many did.
    pub fn vacated(&self) -> u64 {
        self.vacated.load(Ordering::Relaxed)
    }

    /// How often backends have become down, and have been ejected, and how many connections have ended with theirs.
    pub fn counts(&self) -> (u64, u64, u64) {
        let count = |of: &AtomicU64| of.load(Ordering::Relaxed);
        (
            count(&self.downs),
            count(&self.ejections),
            count(&self.lost),
        )
    }

    /// The step of a server's slow start.
    pub fn step(&self, slot: u32, number: u64, whole: Duration) -> u16 {
        let recovery = &self.slots[slot as usize].recovery;
        recovery.step(now_ms(), number, whole)
    }

    /// What it has been, the latest last.
    pub fn history(&self, slot: u32) -> Vec<Change> {
        let history = self.slots[slot as usize].history.lock();
        history.expect("no thread panics with it").changes()
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

    fn state_of(
        &self,
        slot: u32,
        concerns: impl Fn(&Refused) -> bool,
        is_of: impl Fn(u64) -> bool,
    ) -> State {
        let entry = &self.slots[slot as usize];
        let now = now_ms();
        if self.is_silent(entry, now) {
            State::Silent
        } else if entry.drained.load(Ordering::Relaxed) {
            State::Drained
        } else if entry.checks.down(now, &is_of).is_some() {
            State::Down
        } else if entry.ejected.is_any(now, &is_of) {
            State::Ejected
        } else if let Some(state) = entry.refused_now(now, concerns) {
            state
        } else if entry.heard_ms.load(Ordering::Relaxed) == 0 {
            State::Unknown
        } else {
            State::Up
        }
    }

    fn is_silent(&self, entry: &Slot, now_ms: u64) -> bool {
        if self.is_deaf() {
            return entry.was_silent.load(Ordering::Relaxed);
        }
        let heard = entry.heard_ms.load(Ordering::Relaxed);
        (self.beats).are_missed(heard, now_ms, self.listening.until_ms())
    }

    /// Is it there, as far as is known, and has it not answered that heartbeat or a later one?
    pub fn is_late(&self, slot: u32, beat: u32) -> bool {
        let entry = &self.slots[slot as usize];
        !has_answered(entry, beat) && !self.is_silent(entry, now_ms())
    }

    /// Whether it is to have connections.
    pub fn drain(&self, slot: u32, drained: bool) {
        self.slots[slot as usize]
            .drained
            .store(drained, Ordering::Relaxed);
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
        entry.incarnation.store(0, Ordering::Relaxed);
        entry.anew_ms.store(0, Ordering::Relaxed);
        entry.refused_until_ms.store(0, Ordering::Relaxed);
        entry.refusals().clear();
        entry.checks.reset();
        entry.ejected.reset();
        entry.recovery.reset();
        *entry.history.lock().expect("no thread panics with it") = History::default();
        self.loads.reset(slot);
    }
}

/// That one, or a later one (RFC 1982).
fn has_answered(entry: &Slot, beat: u32) -> bool {
    let last = entry.beat.load(Ordering::Relaxed);
    last != 0 && (beat.wrapping_sub(last as u32) as i32) <= 0
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
        let no_server_until_ms = concerned().map(|refused| refused.no_server_until_ms);
        let no_server_until_ms = no_server_until_ms.max().unwrap_or(0);
        if now_ms < no_server_until_ms {
            let doubtful_for = NO_LISTENER_PAUSE - NO_LISTENER_FOR_SURE;
            let for_sure = no_server_until_ms - now_ms > doubtful_for.as_millis() as u64;
            Some(State::NoServer { for_sure })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_had_no_listener_may_have_one_soon() {
        let slot = Slot::default();
        slot.refusals().push(Refused {
            port: 80,
            no_server_until_ms: 2000,
            busy_until_ms: 0,
        });
        slot.refused_until_ms.store(2000, Ordering::Relaxed);
        let at = |now_ms| slot.refused_now(now_ms, |refused| refused.port == 80);
        let no_server = |for_sure| Some(State::NoServer { for_sure });
        assert_eq!([at(1000), at(1049)], [no_server(true); 2]);
        assert_eq!([at(1050), at(1999)], [no_server(false); 2]);
        assert_eq!(at(2000), None);
        assert_eq!(slot.refused_now(1000, |refused| refused.port == 81), None);
    }
}
