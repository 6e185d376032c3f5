//! A station: a place where work takes time (a processor, a disk, a link), with a
//! queue. Time is in nanoseconds of the simulated clock.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use serde::Serialize;

/// How a station divides itself among those that wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Discipline {
    /// One after the other, in order of arrival.
    Fifo,
    /// All at once, each with an equal share.
    Sharing,
}

/// Work in progress and work that waits.
#[derive(Clone, Debug)]
pub struct Station {
    /// Nanoseconds of work taken in, over all servers.
    accepted: f64,
    kind: Kind,
}

#[derive(Clone, Debug)]
enum Kind {
    /// When each server will have done what it has been given.
    Fifo(Vec<u64>),
    Sharing(Sharing),
}

/// What becomes of work that is brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// It will be done at that time, whatever comes.
    Done(u64),
    /// Ask again at that time by [`Station::tick`].
    Tick {
        /// When.
        at: u64,
        /// What to ask with.
        version: u32,
    },
}

impl Station {
    /// An idle station of so many equal servers.
    pub fn new(discipline: Discipline, servers: usize) -> Self {
        let kind = match discipline {
            Discipline::Fifo => Kind::Fifo(vec![0; servers.max(1)]),
            Discipline::Sharing => Kind::Sharing(Sharing::new(servers.max(1))),
        };
        Station {
            accepted: 0.0,
            kind,
        }
    }

    /// Brings work of that many nanoseconds, for whoever has this number.
    pub fn enter(&mut self, now: u64, work: u64, who: u32) -> Entry {
        self.accepted += work as f64;
        match &mut self.kind {
            Kind::Fifo(free_at) => {
                let next = free_at.iter_mut().min().expect("there is a server");
                *next = (*next).max(now) + work;
                Entry::Done(*next)
            }
            Kind::Sharing(sharing) => sharing.enter(now, work, who),
        }
    }

    /// Who is done by now, and when to ask next; none if the question is outdated.
    pub fn tick(&mut self, now: u64, version: u32, done: &mut Vec<u32>) -> Option<Entry> {
        match &mut self.kind {
            Kind::Fifo(_) => None,
            Kind::Sharing(sharing) => sharing.tick(now, version, done),
        }
    }

    /// Nanoseconds that its servers have worked until now, all together.
    pub fn busy_ns(&self, now: u64) -> f64 {
        match &self.kind {
            // What is accepted and not yet done is in one piece, ending at `free_at`.
            Kind::Fifo(free_at) => {
                let ahead: u64 = free_at.iter().map(|&at| at.saturating_sub(now)).sum();
                self.accepted - ahead as f64
            }
            Kind::Sharing(sharing) => sharing.busy_until(now),
        }
    }

    /// How many servers.
    pub fn servers(&self) -> usize {
        match &self.kind {
            Kind::Fifo(free_at) => free_at.len(),
            Kind::Sharing(sharing) => sharing.servers,
        }
    }
}

/// Egalitarian processor sharing by a clock of its own: it counts the work that
/// each one present has been given. Whoever comes when it shows v with work w
/// is done when it shows v + w.
#[derive(Clone, Debug)]
struct Sharing {
    servers: usize,
    /// The station's clock, nanoseconds of work for each.
    clock: f64,
    /// When `clock` was right.
    updated: u64,
    busy: f64,
    version: u32,
    order: u32,
    present: BinaryHeap<Reverse<Guest>>,
}

#[derive(Clone, Copy, Debug)]
struct Guest {
    leaves: f64,
    order: u32,
    who: u32,
}

impl Sharing {
    fn new(servers: usize) -> Self {
        Sharing {
            servers,
            clock: 0.0,
            updated: 0,
            busy: 0.0,
            version: 0,
            order: 0,
            present: BinaryHeap::new(),
        }
    }

    fn enter(&mut self, now: u64, work: u64, who: u32) -> Entry {
        self.advance(now);
        self.order = self.order.wrapping_add(1);
        self.present.push(Reverse(Guest {
            leaves: self.clock + work as f64,
            order: self.order,
            who,
        }));
        self.next(now).expect("somebody is present")
    }

    fn tick(&mut self, now: u64, version: u32, done: &mut Vec<u32>) -> Option<Entry> {
        if version != self.version {
            return None;
        }
        self.advance(now);
        while let Some(Reverse(guest)) = self.present.peek() {
            // A nanosecond's rounding is no work left.
            if guest.leaves > self.clock + 0.5 {
                break;
            }
            done.push(guest.who);
            self.present.pop();
        }
        self.next(now)
    }

    /// The share of a server that each has now.
    fn rate(&self) -> f64 {
        (self.servers as f64 / self.present.len() as f64).min(1.0)
    }

    fn advance(&mut self, now: u64) {
        let passed = (now - self.updated) as f64;
        if !self.present.is_empty() {
            self.clock += passed * self.rate();
        }
        self.busy += passed * self.present.len().min(self.servers) as f64;
        self.updated = now;
    }

    fn next(&mut self, now: u64) -> Option<Entry> {
        self.version = self.version.wrapping_add(1);
        let Reverse(first) = self.present.peek()?;
        let wait = ((first.leaves - self.clock) / self.rate()).max(0.0).ceil();
        Some(Entry::Tick {
            at: now + wait as u64,
            version: self.version,
        })
    }

    fn busy_until(&self, now: u64) -> f64 {
        let working = self.present.len().min(self.servers) as f64;
        self.busy + now.saturating_sub(self.updated) as f64 * working
    }
}

impl Ord for Guest {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.leaves.total_cmp(&other.leaves)).then(self.order.cmp(&other.order))
    }
}

impl PartialOrd for Guest {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Guest {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Guest {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dist::Dice;

    /// Mean time in the station over many arrivals, in units of the mean work.
    fn sojourn(discipline: Discipline, load: f64, work: impl Fn(&mut Dice) -> f64) -> f64 {
        const MEAN_NS: f64 = 1e6;
        let mut dice = Dice::new(7, 0);
        let mut station = Station::new(discipline, 1);
        let mut came = Vec::new();
        let mut total = 0.0;
        let mut at = 0.0;
        let mut tick: Option<(u64, u32)> = None;
        let mut done = Vec::new();
        const COUNT: u32 = 400_000;
        for who in 0..COUNT {
            at += dice.exponential(MEAN_NS / load);
            let now = at as u64;
            while let Some((when, version)) = tick.filter(|(when, _)| *when <= now) {
                let next = station.tick(when, version, &mut done);
                total += done
                    .drain(..)
                    .map(|w| (when - came[w as usize]) as f64)
                    .sum::<f64>();
                tick = next.map(ticked);
            }
            came.push(now);
            match station.enter(now, (work(&mut dice) * MEAN_NS) as u64, who) {
                Entry::Done(end) => total += (end - now) as f64,
                entry => tick = Some(ticked(entry)),
            }
        }
        let busy = station.busy_ns(at as u64) / at;
        assert!(busy <= 1.0 && (busy - load).abs() < 0.02, "busy {busy}");
        total / f64::from(COUNT) / MEAN_NS
    }

    fn ticked(entry: Entry) -> (u64, u32) {
        match entry {
            Entry::Tick { at, version } => (at, version),
            Entry::Done(_) => unreachable!("it shares"),
        }
    }

    fn near(measured: f64, theory: f64) {
        assert!(
            (measured / theory - 1.0).abs() < 0.05,
            "{measured} is not {theory}"
        );
    }

    #[test]
    fn with_exponential_work_it_is_m_m_1() {
        for load in [0.3, 0.6, 0.8] {
            let measured = sojourn(Discipline::Fifo, load, |dice| dice.exponential(1.0));
            near(measured, 1.0 / (1.0 - load));
        }
    }

    #[test]
    fn with_equal_work_it_is_m_d_1() {
        for load in [0.3, 0.6, 0.8] {
            let measured = sojourn(Discipline::Fifo, load, |_| 1.0);
            near(measured, 1.0 + load / (2.0 * (1.0 - load)));
        }
    }

    #[test]
    fn sharing_does_not_care_how_work_is_distributed() {
        let theory = 1.0 / (1.0 - 0.6);
        near(sojourn(Discipline::Sharing, 0.6, |_| 1.0), theory);
        near(
            sojourn(Discipline::Sharing, 0.6, |dice| dice.exponential(1.0)),
            theory,
        );
        near(
            sojourn(Discipline::Sharing, 0.6, |dice| {
                9.0 * f64::from(u8::from(dice.chance(0.1))) + 0.1
            }),
            theory,
        );
    }

    #[test]
    fn two_servers_take_two_at_once() {
        for discipline in [Discipline::Fifo, Discipline::Sharing] {
            let mut station = Station::new(discipline, 2);
            let first = station.enter(0, 100, 0);
            let second = station.enter(0, 100, 1);
            let time = |entry| match entry {
                Entry::Done(at) | Entry::Tick { at, .. } => at,
            };
            assert_eq!((time(first), time(second)), (100, 100));
            assert_eq!(station.busy_ns(50), 100.0);
        }
    }
}
