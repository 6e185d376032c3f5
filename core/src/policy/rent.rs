//! Rent, our own (docs/policies.md, "rent"): a request goes where it costs least, in
//! microseconds of waiting, and what it keeps in memory is part of the price.
//!
//! ```text
//!   price at b = processor work before it
//!              + in memory:  disk * age / lifetime      (rent: it is kept so much longer)
//!              + else:       disk work before it + 2 disk  (its own read, and that of
//!                                                        what it displaces)
//! ```
//! Nothing is set by hand: what a hit and a read take is told by the gaps between
//! answers, and how long a backend keeps a file by which answers were slow.

use std::time::Duration;

use super::objects::Objects;
use super::{BackendId, Backends, Candidate, Finished, Memory, Policy, Request, hrw};
use crate::config::PolicyKind;

/// Parameters of rent: how much it may remember, nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RentParameters {
    /// Objects that are remembered (1..=100,000,000; default a million), 96 bytes each.
    pub objects: usize,
}

impl Default for RentParameters {
    fn default() -> Self {
        RentParameters {
            objects: super::OBJECTS,
        }
    }
}

#[derive(Debug)]
pub(super) struct Rent {
    objects: Objects<Known>,
    /// By id.
    servers: Vec<Server>,
    /// Processor and link, for an answer from memory.
    hit: Line,
    /// Disk.
    read: Line,
    mean_bytes: f64,
}

/// What is known of an object. Where more than eight backends have it, the copy that
/// was used longest ago is forgotten.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    /// The answer's size; 0 before the first.
    bytes: u32,
    len: u8,
    /// A bit for each copy: not answered yet.
    reading: u8,
    ids: [u16; WIDTH],
    /// The backend's clock when it was asked for the object last.
    used: [u32; WIDTH],
    /// How old the copy was then, in 64ths of its lifetime; or one of those below.
    idle: [u8; WIDTH],
}

const WIDTH: usize = 8;
/// The object had never been asked for.
const FIRST: u8 = 255;
/// It was taken to be gone.
const GONE: u8 = 254;
const LIFETIME: f64 = 64.0;

#[derive(Clone, Copy, Debug, Default)]
struct Server {
    /// KiB that it has read. Time stands still for its memory while it reads nothing.
    clock: f64,
    /// Age on that clock at which a file leaves memory (C_T of Che's approximation); 0
    /// as long as nothing is known to have left.
    lifetime: f64,
    /// Reads that are not answered yet, and their microseconds.
    reads: u32,
    reading_us: f64,
    last_answer: Duration,
    last_read: Duration,
    /// Means of the logarithm to base 2 of microseconds, of what is surely a hit, and of
    /// what surely is none.
    hit: Mean,
    miss: Mean,
}

impl Rent {
    pub(super) fn new(parameters: RentParameters) -> Self {
        Rent {
            objects: Objects::new(parameters.objects),
            servers: Vec::new(),
            hit: Line::default(),
            read: Line::default(),
            mean_bytes: 8192.0,
        }
    }

    fn server(&self, id: BackendId) -> Server {
        self.servers.get(id.index()).copied().unwrap_or_default()
    }

    fn server_mut(&mut self, id: BackendId) -> &mut Server {
        if self.servers.len() <= id.index() {
            self.servers.resize(id.index() + 1, Server::default());
        }
        &mut self.servers[id.index()]
    }

    /// Microseconds of processor for an answer from memory.
    fn hit_us(&self, known: Option<&Known>) -> f64 {
        self.hit
            .at(self.bytes(known))
            .unwrap_or(UNKNOWN_US)
            .max(1.0)
    }

    /// Microseconds of disk; before anything is measured, ten answers [LVSCAD07 §5.2].
    fn read_us(&self, known: Option<&Known>) -> f64 {
        let bytes = self.bytes(known);
        self.read.at(bytes).unwrap_or(10.0 * self.hit_us(known))
    }

    fn bytes(&self, known: Option<&Known>) -> f64 {
        match known.map_or(0, |k| k.bytes) {
            0 => self.mean_bytes,
            bytes => bytes.into(),
        }
    }

    /// What the request would cost at the candidate.
    fn price(&self, terms: &Terms<'_>, c: &Candidate, mean_weight: f64) -> f64 {
        let server = self.server(c.id);
        let waiting = f64::from(server.reads.min(c.outstanding));
        let mut us = (c.cost_us as f64 - waiting * terms.mean_hit_us).max(0.0);
        if terms.current.is_some_and(|current| current != c.id) {
            us += terms.handoff_us;
        }
        if terms.file {
            us += match terms.copy(c.id).map(|at| terms.known.age(at, &server)) {
                Some(age) if age < 1.0 => terms.read_us * age,
                _ => server.queue_us(c) + 2.0 * terms.read_us,
            };
        }
        us * mean_weight / f64::from(c.weight)
    }
}

/// What is the same for all candidates.
struct Terms<'r> {
    known: &'r Known,
    current: Option<BackendId>,
    file: bool,
    read_us: f64,
    mean_hit_us: f64,
    handoff_us: f64,
}

impl Terms<'_> {
    fn copy(&self, id: BackendId) -> Option<usize> {
        self.known.position(id)
    }
}

impl Policy for Rent {
    fn kind(&self) -> PolicyKind {
        PolicyKind::Rent
    }

    fn choose(
        &mut self,
        _now: Duration,
        request: &Request,
        backends: &Backends,
    ) -> Option<BackendId> {
        let file = !request.class.is_dynamic();
        let known = file.then(|| self.objects.get(request.object)).flatten();
        let nothing = Known::default();
        let terms = Terms {
            known: known.unwrap_or(&nothing),
            current: request.current,
            file,
            read_us: self.read_us(known),
            mean_hit_us: self.hit_us(None),
            // Each side does what an answer without bytes takes.
            handoff_us: self.hit.at(0.0).unwrap_or(0.0),
        };
        let mean_weight = backends.mean_weight() as f64;
        let price = |c: &Candidate| self.price(&terms, c, mean_weight);
        let (mut least, mut holder, mut equals) = (f64::INFINITY, None, 0);
        for c in backends.open() {
            let own = price(c);
            if own < least {
                (least, holder, equals) = (own, Some(c.id), 1);
            } else if own == least {
                equals += 1;
            }
        }
        if equals == 1 {
            return holder;
        }
        let equal = |c: &&Candidate| price(c) == least;
        hrw::winner(request.object, backends.open().iter().filter(equal)).map(|c| c.id)
    }

    fn placed(
        &mut self,
        _now: Duration,
        request: &Request,
        backends: &Backends,
        chosen: BackendId,
    ) {
        if request.class.is_dynamic() {
            return;
        }
        let read_us = self.read_us(self.objects.get(request.object));
        let mean_kib = self.mean_bytes / 1024.0;
        let outstanding = backends.get(chosen).map_or(0, |c| c.outstanding);
        self.server_mut(chosen);
        let server = &mut self.servers[chosen.index()];
        if outstanding == 0 {
            // What was forgotten while it was read.
            (server.reads, server.reading_us) = (0, 0.0);
        }
        let known = self.objects.touch_or_insert(request.object);
        let first = known.len == 0 && known.bytes == 0;
        let at = known.position(chosen);
        let age = at.map(|at| known.age(at, server));
        let at = at.unwrap_or_else(|| known.push(chosen));
        let reading = known.reading & 1 << at != 0;
        known.idle[at] = match age {
            _ if reading => known.idle[at],
            Some(age) if age < 1.0 => (age * LIFETIME) as u8,
            Some(_) => GONE,
            None if first => FIRST,
            None => GONE,
        };
        if known.idle[at] >= GONE && !reading {
            known.reading |= 1 << at;
            server.reads += 1;
            server.reading_us += read_us;
            server.clock += match known.bytes {
                0 => mean_kib,
                bytes => f64::from(bytes) / 1024.0,
            };
        }
        known.used[at] = server.clock as u64 as u32;
    }

    fn finished(&mut self, now: Duration, finished: &Finished) {
        let id = finished.backend;
        let began = now.saturating_sub(finished.elapsed);
        let server = *self.server_mut(id);
        let gap = |last: Duration| (now.saturating_sub(last.max(began))).as_secs_f64() * 1e6;
        let (since_answer, since_read) = (gap(server.last_answer), gap(server.last_read));
        self.servers[id.index()].last_answer = now;
        if finished.request.class.is_dynamic() {
            return;
        }
        let bytes = finished.bytes.min(u32::MAX.into()) as u32;
        self.mean_bytes += (f64::from(bytes) - self.mean_bytes) / REMEMBERED;
        let read_us = self.read_us(self.objects.get(finished.request.object));
        let Some(known) = self.objects.get_mut(finished.request.object) else {
            return;
        };
        let Some(at) = known.position(id) else {
            return;
        };
        if bytes > 0 {
            known.bytes = bytes;
        }
        let (idle, bit) = (known.idle[at], 1 << at);
        let server = &mut self.servers[id.index()];
        let reading = known.reading & bit != 0;
        if reading {
            known.reading &= !bit;
            known.idle[at] = 0;
            server.read_ended(read_us);
        }
        let log_us = (finished.elapsed.as_secs_f64() * 1e6).max(1.0).log2();
        match idle {
            FIRST if reading => server.miss.add(log_us),
            _ if !reading && f64::from(idle) < LIFETIME / 8.0 => server.hit.add(log_us),
            _ => {}
        }
        let slow = match finished.hit {
            Some(hit) => Some(!hit),
            None => server.is_slow(log_us),
        };
        let slow_or = slow.unwrap_or(reading);
        if slow_or {
            server.last_read = now;
            self.read.add(bytes.into(), since_read);
        } else {
            self.hit.add(bytes.into(), since_answer);
        }
        if let Some(slow) = slow {
            server.learn_lifetime(idle, slow);
        }
    }

    fn lost(&mut self, _now: Duration, request: &Request, backend: BackendId) {
        let read_us = self.read_us(self.objects.get(request.object));
        self.server_mut(backend);
        let Some(known) = self.objects.get_mut(request.object) else {
            return;
        };
        if let Some(at) = known.position(backend)
            && known.reading & 1 << at != 0
        {
            known.remove(at);
            self.servers[backend.index()].read_ended(read_us);
            if known.len == 0 {
                self.objects.remove(request.object);
            }
        }
    }

    fn charge(&self, request: &Request, _backends: &Backends, _chosen: BackendId) -> u64 {
        match request.class.is_dynamic() {
            true => request.cost_us.into(),
            false => self.hit_us(self.objects.get(request.object)) as u64,
        }
    }

    fn memory(&self) -> Memory {
        Memory {
            objects: self.objects.len(),
            objects_max: self.objects.max(),
            bytes: self.objects.bytes() + self.servers.capacity() * size_of::<Server>(),
        }
    }
}

impl Server {
    fn queue_us(&self, c: &Candidate) -> f64 {
        match c.outstanding {
            0 => 0.0,
            _ => self.reading_us,
        }
    }

    fn read_ended(&mut self, us: f64) {
        self.reads = self.reads.saturating_sub(1);
        self.reading_us = match self.reads {
            0 => 0.0,
            // Estimates may have changed meanwhile.
            _ => (self.reading_us - us).max(0.0),
        };
    }

    /// Nearer to what misses take than to what hits take; none if these are alike.
    fn is_slow(&self, log_us: f64) -> Option<bool> {
        let known = self.hit.count >= 8.0 && self.miss.count >= 8.0;
        (known && self.miss.mean > self.hit.mean + 1.0)
            .then(|| log_us > (self.hit.mean + self.miss.mean) / 2.0)
    }

    /// The boundary between the ages that were fast and those that were slow.
    fn learn_lifetime(&mut self, idle: u8, slow: bool) {
        let late = idle as f64 >= LIFETIME / 2.0 && idle != FIRST;
        match (slow, idle) {
            (_, FIRST) => {}
            (false, GONE) => self.lifetime *= 1.0 + STEP,
            (true, GONE) => {}
            (true, _) if self.lifetime == 0.0 && idle > 0 => self.lifetime = self.clock,
            (true, _) if late => self.lifetime *= 1.0 - STEP,
            // One of five may be slow: the boundary is there or a little before.
            (false, _) if late => self.lifetime *= 1.0 + STEP / 4.0,
            _ => {}
        }
    }
}

impl Known {
    /// 0 just used, 1 gone.
    fn age(&self, at: usize, server: &Server) -> f64 {
        if self.reading & 1 << at != 0 {
            return 0.0;
        }
        let age = f64::from((server.clock as u64 as u32).wrapping_sub(self.used[at]));
        match server.lifetime {
            // It may be as long as all that was read; then nothing is gone.
            0.0 => age / (server.clock * 1.01 + 1.0),
            lifetime => age / lifetime,
        }
    }

    fn position(&self, id: BackendId) -> Option<usize> {
        (self.ids[..self.len.into()].iter()).position(|&other| other == id.0)
    }

    fn push(&mut self, id: BackendId) -> usize {
        if usize::from(self.len) == WIDTH {
            self.remove(0);
        }
        let at = usize::from(self.len);
        self.ids[at] = id.0;
        self.reading &= !(1 << at);
        self.len += 1;
        at
    }

    fn remove(&mut self, at: usize) {
        let end = usize::from(self.len);
        self.ids.copy_within(at + 1..end, at);
        self.used.copy_within(at + 1..end, at);
        self.idle.copy_within(at + 1..end, at);
        let below = (1u8 << at) - 1;
        self.reading = self.reading & below | (self.reading >> 1) & !below;
        self.len -= 1;
    }
}

/// A straight line through what was measured lately: microseconds over bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Line {
    count: f64,
    x: f64,
    y: f64,
    xx: f64,
    xy: f64,
}

impl Line {
    fn add(&mut self, x: f64, y: f64) {
        self.count = (self.count + 1.0).min(REMEMBERED);
        let part = 1.0 / self.count;
        let (dx, dy) = (x - self.x, y - self.y);
        self.x += dx * part;
        self.y += dy * part;
        self.xx += (dx * dx * (1.0 - part) - self.xx) * part;
        self.xy += (dx * dy * (1.0 - part) - self.xy) * part;
    }

    /// Never falling, never below nothing.
    fn at(&self, x: f64) -> Option<f64> {
        let steepest = if self.x > 0.0 { self.y / self.x } else { 0.0 };
        let slope = match self.xx > 0.0 {
            true => (self.xy / self.xx).clamp(0.0, steepest),
            false => 0.0,
        };
        (self.count >= 8.0).then(|| self.y + slope * (x - self.x))
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    count: f64,
    mean: f64,
}

impl Mean {
    fn add(&mut self, value: f64) {
        self.count = (self.count + 1.0).min(64.0);
        self.mean += (value - self.mean) / self.count;
    }
}

const REMEMBERED: f64 = 1024.0;
const UNKNOWN_US: f64 = 1000.0;
const STEP: f64 = 0.02;
