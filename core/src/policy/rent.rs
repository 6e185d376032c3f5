//! Rent, our own (docs/policies.md, "rent"): a request goes where it costs least, and
//! memory has a price. What is asked for seldom, or is large, is kept where it displaces
//! least, so that backends come to differ: some read much and keep little, others keep
//! what is worth it.
//!
//! ```text
//!   price at b = processor work before it, handoff
//!              + scarcity of disks * ( P(not in memory) * (queue of its disk + read)
//!                                    + rent of the bytes while they are kept,
//!                                      and of another copy's for a lifetime
//!                                    + P(gone before it is asked for again) * read )
//! ```
//! Nothing is set by hand: what a backend's processor, disk and memory can do is learnt
//! from when answers come.

mod ages;
mod costs;
mod known;
mod server;

use std::time::Duration;

use super::objects::Objects;
use super::{
    BackendId, Backends, Candidate, Finished, Memory, Policy, Request, Settled, Stands, hrw,
};
use crate::config::PolicyKind;
use ages::Age;
use costs::{Costs, Mean};
use known::Known;
use server::{History, Pool, Server, sixth};

/// Parameters of rent: how much it may remember, nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RentParameters {
    /// Objects that are remembered (1..=100,000,000; default a million), 86 bytes each.
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
    /// By id: what each decision reads of all backends,
    servers: Vec<Server>,
    /// and what it does not.
    histories: Vec<History>,
    /// Of all backends together: a prior for each.
    pool: Pool,
    costs: Costs,
    disks: Disks,
    /// How often an object without a known copy was in the memory of its home all the
    /// same: other dispatchers have it there.
    homes: Mean,
    /// So many placements later `disks` is worked out again.
    refresh_in: usize,
    /// The backends whose weights `servers` have.
    weighed: u64,
}

/// How all disks are doing.
#[derive(Clone, Copy, Debug)]
struct Disks {
    /// A read of mean size, in microseconds.
    read_us: f64,
    /// The mean queue.
    queue_us: f64,
    /// Lifetimes of memory in a microsecond; 0 while nothing leaves.
    turnover: f64,
}

/// What is the same for all candidates.
struct Terms<'r> {
    known: &'r Known,
    current: Option<BackendId>,
    now_us: f64,
    handoff_us: f64,
    /// Whether a file is needed, not a program.
    file: bool,
    /// The part of the processor work before it that it waits for.
    waits: f64,
    /// Time between requests for it,
    gap_us: f64,
    /// and between those that each backend would get by turns.
    turn_us: f64,
    /// A read of mean size.
    mean_us: f64,
    /// Its own read, as scarce as disks are,
    read: f64,
    /// what of it this request pays if there is no copy,
    share: f64,
    /// what is added for each microsecond of queue,
    queue: f64,
    /// for each microsecond of rent,
    kib: f64,
    /// and for each of another copy's,
    copy: f64,
    /// and how busy a disk is with each microsecond of queue.
    busy: f64,
}

impl Rent {
    pub(super) fn new(parameters: RentParameters) -> Self {
        let costs = Costs::new();
        Rent {
            objects: Objects::new(parameters.objects),
            servers: Vec::new(),
            histories: Vec::new(),
            pool: Pool::default(),
            disks: Disks {
                read_us: costs.read_us(costs.mean_bytes()),
                queue_us: 0.0,
                turnover: 0.0,
            },
            costs,
            homes: Mean::default(),
            refresh_in: 0,
            weighed: 0,
        }
    }

    fn terms<'r>(
        &self,
        now: Duration,
        request: &Request,
        known: &'r Known,
        backends: &Backends,
    ) -> Terms<'r> {
        let Disks {
            read_us: mean_us,
            queue_us,
            turnover,
        } = self.disks;
        let count = backends.open().len().max(1) as f64;
        let bytes = match known.bytes {
            0 => self.costs.bytes_of(request.kind),
            bytes => bytes.into(),
        };
        let gap_us = known.gap_us(now).unwrap_or(NEVER_US);
        // Where disks have queues, a read makes as many wait.
        let usual_us = queue_us.max(mean_us);
        let scarcity = usual_us / mean_us;
        let read = self.costs.read_us(bytes) * scarcity;
        let kib = bytes / 1024.0 * scarcity;
        let share = match turnover > 0.0 && known.is_often() {
            true => (LATER * gap_us * turnover).min(1.0),
            false => 1.0,
        };
        Terms {
            known,
            current: request.current,
            now_us: micros(now),
            handoff_us: self.costs.handoff_us(),
            file: !request.class.is_dynamic(),
            waits: self.costs.waits(),
            gap_us,
            turn_us: gap_us * count,
            mean_us,
            read,
            share: read * share,
            queue: QUEUE / usual_us,
            kib,
            copy: COPY * share * kib,
            busy: 1.0 / (queue_us + mean_us),
        }
    }

    /// What the request would cost at the candidate, in microseconds, if the object is in
    /// its memory with that probability. What waits there counts for its weight, the rest
    /// as on a backend of mean weight.
    fn price(&self, terms: &Terms<'_>, c: &Candidate, chance: f64) -> f64 {
        let server = self.server(c.id);
        let scale = f64::from(server.scale);
        let waits = if terms.file { terms.waits } else { 1.0 };
        let mut us = waits * scale * server.processor_us(c);
        if terms.current.is_some_and(|current| current != c.id) {
            us += terms.handoff_us;
        }
        if !terms.file {
            return us;
        }
        let queue_us = scale * server.disk_us(c, terms.now_us, terms.mean_us);
        // Lifetimes until it is asked for again.
        let idle = terms.gap_us * f64::from(server.turnover);
        let gone_by_then = sixth(idle).min(1.0);
        // Reads that a disk with nothing to do makes later cost nobody anything.
        let busy = (terms.busy * (queue_us + terms.mean_us)).min(1.0);
        let rent = terms.kib * f64::from(server.rent_us) * idle.min(1.0);
        us + (1.0 - chance) * terms.share * (1.0 + terms.queue * queue_us)
            + busy * (rent + gone_by_then * terms.read)
    }

    /// The same where there is no copy, and the surest one elsewhere is in memory with that
    /// probability: then there will be two.
    fn price_of_another(&self, terms: &Terms<'_>, c: &Candidate, surest: f64) -> f64 {
        let rent_us = f64::from(self.server(c.id).rent_us);
        self.price(terms, c, 0.0) + surest * terms.copy * rent_us
    }

    /// As either, whatever is known of copies.
    fn price_with_copies(&self, terms: &Terms<'_>, c: &Candidate, surest: f64) -> f64 {
        let known = terms.known;
        if !known.is_spread() && known.position(c.id).is_none() {
            return self.price_of_another(terms, c, surest);
        }
        let chance = chance(terms.known, c.id, self.server(c.id), terms.turn_us);
        self.price(terms, c, chance)
    }

    /// Where other dispatchers look for an object first: at the price that follows from
    /// how often they have been met there, if they have been at all.
    fn offer_home(
        &self,
        least: &mut Least,
        request: &Request,
        terms: &Terms<'_>,
        backends: &Backends,
    ) {
        let Some(chance) = self.homes.get().filter(|&chance| chance > MET) else {
            return;
        };
        let home = hrw::winner(request.object, backends.open().iter());
        if let Some(home) = home.filter(|home| terms.known.position(home.id).is_none()) {
            // A copy elsewhere would be another one.
            let spared = chance * terms.share * (1.0 + QUEUE);
            least.offer(self.price(terms, home, chance) - spared, home.id);
        }
    }

    fn server(&self, id: BackendId) -> &Server {
        self.servers.get(id.index()).unwrap_or(&server::NEW)
    }

    fn grow(&mut self, id: BackendId) {
        if self.servers.len() <= id.index() {
            self.servers.resize(id.index() + 1, server::NEW);
            (self.histories).resize_with(id.index() + 1, History::default);
        }
    }

    /// Means over all backends change slowly: the more there are, the seldomer they are
    /// worked out.
    fn refresh(&mut self, now: Duration, backends: &Backends) {
        if self.weighed != backends.fingerprint() {
            self.weighed = backends.fingerprint();
            self.refresh_in = 0;
            let mean = backends.weight_total() as f64 / backends.open().len().max(1) as f64;
            for c in backends.open() {
                self.grow(c.id);
                self.servers[c.id.index()].scale = (mean / f64::from(c.weight)) as f32;
            }
        }
        if self.refresh_in > 0 {
            self.refresh_in -= 1;
            return;
        }
        self.refresh_in = backends.open().len() / 8;
        let read_us = self.costs.read_us(self.costs.mean_bytes());
        let (mut queues_us, mut turnovers, mut turning) = (0.0, 0.0, 0.0);
        for c in backends.open() {
            let server = self.server(c.id);
            queues_us += server.disk_us(c, micros(now), read_us);
            if server.turnover > 0.0 {
                turnovers += f64::from(server.turnover);
                turning += 1.0;
            }
        }
        self.disks = Disks {
            read_us,
            queue_us: queues_us / backends.open().len().max(1) as f64,
            turnover: if turning > 0.0 {
                turnovers / turning
            } else {
                0.0
            },
        };
    }
}

impl Policy for Rent {
    fn kind(&self) -> PolicyKind {
        PolicyKind::Rent
    }

    fn choose(
        &mut self,
        now: Duration,
        request: &Request,
        backends: &Backends,
    ) -> Option<BackendId> {
        let file = !request.class.is_dynamic();
        let known = file.then(|| self.objects.get(request.object)).flatten();
        let nothing = Known::default();
        let terms = self.terms(now, request, known.unwrap_or(&nothing), backends);
        let mut least = Least::default();
        let mut surest = 0.0f64;
        if terms.known.is_spread() {
            for c in backends.open() {
                least.offer(self.price_with_copies(&terms, c, surest), c.id);
            }
        } else {
            for &id in terms.known.ids() {
                if let Some(c) = backends.get_open(BackendId(id)) {
                    let chance = chance(terms.known, c.id, self.server(c.id), terms.turn_us);
                    least.offer(self.price(&terms, c, chance), c.id);
                    surest = surest.max(chance);
                }
            }
            // Where there is no copy its share of a read is paid at least.
            if surest < SURE || least.price >= terms.share {
                for c in backends.open() {
                    least.offer(self.price_of_another(&terms, c, surest), c.id);
                }
            }
            if file && surest < SURE {
                self.offer_home(&mut least, request, &terms, backends);
            }
        }
        let holder = least.holder?;
        if least.equals == 1 {
            return Some(holder);
        }
        let equal = |c: &&Candidate| self.price_with_copies(&terms, c, surest) <= least.price;
        let winner = hrw::winner(request.object, backends.open().iter().filter(equal));
        Some(winner.map_or(holder, |c| c.id))
    }

    fn placed(&mut self, now: Duration, request: &Request, backends: &Backends, chosen: BackendId) {
        self.grow(chosen);
        self.refresh(now, backends);
        let server = &mut self.servers[chosen.index()];
        let history = &mut self.histories[chosen.index()];
        let Some(c) = backends.get(chosen) else {
            return;
        };
        if c.outstanding == 0 {
            // What was never reported.
            history.forget_unfinished(server);
        }
        let before_us = server.processor_us(c);
        server.charged_us += f64::from(request.cost_us);
        if request.class.is_dynamic() {
            server.programs_us += f64::from(request.cost_us);
            return;
        }
        let known = self.objects.touch_or_insert(request.object);
        let bytes = match known.bytes {
            0 => self.costs.bytes_of(request.kind),
            bytes => bytes.into(),
        };
        let (hit_us, read_us) = (self.costs.hit_us(bytes), self.costs.read_us(bytes));
        known.asked(now, self.disks.turnover);
        let turn_us = known.gap_us(now).unwrap_or(NEVER_US) * backends.open().len() as f64;
        let chance = chance(known, chosen, server, turn_us);
        let (age, at) = match known.position(chosen) {
            Some(at) => (Age::of_kib(known.age_kib(at, server)), at),
            None => (Age::ABSENT, known.push(chosen)),
        };
        let in_memory = match known.is_reading(at) {
            // Who waits for a read does not wait for the processor.
            true => {
                known.join(at);
                known.before[at] != Age::ABSENT && server.chance(known.before[at].kib()) > 0.5
            }
            false => {
                let (cpu_us, queue_us) = (before_us, server.reading_us);
                let ordered_us = (1.0 - chance) * read_us;
                if age == Age::ABSENT {
                    let home = hrw::winner(request.object, backends.open().iter());
                    known.set_home(at, home.is_some_and(|home| home.id == chosen));
                }
                known.begin(at, age, cpu_us + hit_us, queue_us + read_us, ordered_us);
                server.begin_read(micros(now), known.ordered_us(at));
                chance > 0.5
            }
        };
        if in_memory {
            history.await_hit(server, now, hit_us);
        }
        known.used[at] = server.clock_kib;
    }

    fn finished(&mut self, now: Duration, finished: &Finished) {
        let id = finished.backend;
        self.grow(id);
        let server = &mut self.servers[id.index()];
        let history = &mut self.histories[id.index()];
        server.uncharge(finished.request.cost_us);
        let began = now.saturating_sub(finished.elapsed);
        history.overtaken(server, began);
        let since = |last: Duration| micros(now.saturating_sub(last.max(began)));
        let since_read_us = since(history.read);
        // Answers that nobody has told of lie in between.
        let answers = 1.0 + f64::from(std::mem::take(&mut history.unheard));
        let since_answer_us =
            (micros(now.saturating_sub(history.answered)) / answers).min(micros(finished.elapsed));
        history.answered = now;
        let request = &finished.request;
        if request.class.is_dynamic() {
            server.programs_us = (server.programs_us - f64::from(request.cost_us)).max(0.0);
            return;
        }
        let bytes = finished.bytes.min(u32::MAX.into()) as u32;
        self.costs.answers.add(bytes.into());
        let Some(known) = self.objects.get_mut(request.object) else {
            return;
        };
        let Some(at) = known.position(id) else {
            return;
        };
        if !known.is_reading(at) {
            return self.costs.hit.add(bytes.into(), since_answer_us);
        }
        let age = known.before[at];
        let chance = if age == Age::ABSENT {
            0.0
        } else {
            server.chance(age.kib())
        };
        server.end_read(known.ordered_us(at));
        let elapsed_us = micros(finished.elapsed);
        let slow = match finished.hit {
            Some(hit) => !hit,
            None => {
                if server.is_sure(age) {
                    let hit_us = self.costs.hit_us(known.bytes.into());
                    let hit_and_before_us = known.expected(at).0.exp2();
                    self.costs
                        .waited(hit_and_before_us - hit_us, elapsed_us - hit_us);
                }
                history.is_slow(known, at, elapsed_us, server.is_sure(age))
            }
        };
        if slow || chance < 0.5 {
            server.read_ended_us = micros(now);
        }
        // Nothing but a head: no file was read, and none was used.
        let spared = bytes < HEAD_BYTES && (age == Age::ABSENT || known.bytes >= 4 * HEAD_BYTES);
        if spared && !slow {
            match known.is_joined(at) {
                true => known.end(at),
                false => known.undo(at, server),
            }
            return self.costs.hit.add(bytes.into(), since_answer_us);
        }
        known.end(at);
        known.learn_bytes(bytes);
        let whole = known.bytes;
        let read_us = self.costs.read_us(whole.into());
        if slow {
            history.read = now;
            self.costs.kinds[usize::from(request.kind.number())].add(bytes.into());
            let kib = f64::from(whole) / 1024.0;
            history.kept(server, &mut self.pool, now, kib);
            if chance < 0.2 {
                self.costs.read.add(bytes.into(), since_read_us);
            }
        } else {
            self.costs.hit.add(bytes.into(), since_answer_us);
            if server.is_late(age) {
                history.late_us += read_us;
                self.pool.late_us += read_us;
            }
        }
        if age == Age::ABSENT {
            if known.is_home(at) {
                self.homes.add(f64::from(u8::from(!slow)));
            }
        } else {
            self.pool.ages.add(age, slow);
            history.ages.add(age, slow);
        }
        let mean_kib = self.costs.mean_bytes() / 1024.0;
        history.settle(server, id, &self.pool, mean_kib);
    }

    fn lost(&mut self, _now: Duration, request: &Request, backend: BackendId) {
        self.grow(backend);
        let server = &mut self.servers[backend.index()];
        server.uncharge(request.cost_us);
        if request.class.is_dynamic() {
            server.programs_us = (server.programs_us - f64::from(request.cost_us)).max(0.0);
            return;
        }
        let server = &mut self.servers[backend.index()];
        let Some(known) = self.objects.get_mut(request.object) else {
            return;
        };
        if let Some(at) = known.position(backend)
            && known.is_reading(at)
        {
            server.end_read(known.ordered_us(at));
            known.undo(at, server);
            if known.is_nowhere() {
                self.objects.remove(request.object);
            }
        }
    }

    fn stands(&self) -> Stands {
        Stands::WhileSettled
    }

    /// What is in memory beyond doubt and will be asked for long before it leaves, goes
    /// where it is: to any of its copies, as long as that one's processor has less before
    /// it than the mean twice, and a read.
    fn settled(
        &mut self,
        now: Duration,
        request: &Request,
        backends: &Backends,
        chosen: BackendId,
    ) -> Option<Settled> {
        let known = self.objects.get(request.object)?;
        if request.class.is_dynamic() || known.bytes == 0 {
            return None;
        }
        let lifetimes = known.gap_us(now)? * self.disks.turnover;
        let is_there = |id: BackendId| {
            let server = self.server(id);
            let age_kib = known.settled_age_kib(known.position(id)?, server)?;
            (server.chance(age_kib) > SURE && backends.get_open(id).is_some()).then_some(())
        };
        is_there(chosen)?;
        if lifetimes > OFTEN {
            return None;
        }
        let lasts_us = (OFTEN / self.disks.turnover.max(1e-12)).min(micros(LASTS));
        let count = backends.open().len().max(1) as u64;
        let mean_us = backends.open().iter().map(|c| c.cost_us).sum::<u64>() / count;
        let mut settled = Settled::on(
            chosen,
            Duration::from_micros(lasts_us as u64),
            2 * mean_us + self.disks.read_us as u64,
            self.costs.hit_us(known.bytes.into()) as u32,
        );
        settled.move_us = self.costs.handoff_us() as u32;
        for &id in known.ids() {
            if is_there(BackendId(id)).is_some() {
                settled.or_on(BackendId(id));
            }
        }
        if let Some(known) = self.objects.get_mut(request.object) {
            known.settle();
        }
        Some(settled)
    }

    fn settled_took(&mut self, request: &Request, count: u32, time: Duration) {
        if let Some(known) = self.objects.get_mut(request.object) {
            known.asked_meanwhile(count, time);
        }
    }

    fn settled_at(&mut self, backend: BackendId, count: u32) {
        self.grow(backend);
        let unheard = &mut self.histories[backend.index()].unheard;
        *unheard = unheard.saturating_add(count);
    }

    fn memory(&self) -> Memory {
        let queued: usize = self.histories.iter().map(History::bytes).sum();
        Memory {
            objects: self.objects.len(),
            objects_max: self.objects.max(),
            bytes: self.objects.bytes()
                + self.costs.memory()
                + self.servers.capacity() * size_of::<Server>()
                + queued,
        }
    }
}

/// The least price, and who has it.
#[derive(Clone, Copy, Debug)]
struct Least {
    price: f64,
    holder: Option<BackendId>,
    equals: u32,
}

impl Default for Least {
    fn default() -> Self {
        Least {
            price: f64::INFINITY,
            holder: None,
            equals: 0,
        }
    }
}

impl Least {
    fn offer(&mut self, price: f64, id: BackendId) {
        if price < self.price || self.holder.is_none() {
            *self = Least {
                price,
                holder: Some(id),
                equals: 1,
            };
        } else if price == self.price {
            self.equals += 1;
        }
    }
}

/// The probability that the backend has the object in memory; it would be asked every
/// `turn_us` if all were asked by turns.
fn chance(known: &Known, id: BackendId, server: &Server, turn_us: f64) -> f64 {
    match known.position(id) {
        Some(at) => server.chance(known.age_kib(at, server).into()),
        None if known.is_spread() => server.chance_by_turns(turn_us),
        None => 0.0,
    }
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// A queue as long as the mean counts as two reads. Less leaves disks idle, more moves
/// what has its place: 1 to 6 were tried, and differ by some per cent.
const QUEUE: f64 = 6.0;
/// Answers below this are heads: 304, HEAD, errors.
const HEAD_BYTES: u32 = 512;
/// Another copy is paid for by the requests of a lifetime: each pays this many shares, at
/// most the whole, since not all of them will go to it.
const LATER: f64 = 16.0;
/// Another copy stays for a lifetime, and so does the one that is not used meanwhile.
const COPY: f64 = 2.0;
/// Of a copy that need not be asked after: the probability that it is in memory,
const SURE: f64 = 0.9;
/// and the most lifetimes between requests for it, and between questions.
const OFTEN: f64 = 1.0 / 8.0;
/// Nor is it longer than this: what becomes popular has to get copies.
const LASTS: Duration = Duration::from_secs(2);
/// Homes count when so many of their objects have been met there.
const MET: f64 = 0.02;
/// For what has been asked for once.
const NEVER_US: f64 = 1e18;
