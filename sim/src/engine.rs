//! The event loop: users, dispatchers and backends in virtual time. One thread, no
//! clock, no randomness but the workload's; the same inputs give the same outcome,
//! event for event.
//!
//! A request's way; what costs nothing takes no event:
//! ```text
//!  begin ──► dispatcher ──► place() ──► backend's CPU ──► in memory? ──► disk
//!    ▲      (connection,   (the very     (connect or         │ yes         │
//!    │       request)       policies)     take over)         ▼             │
//!    └── done ◄── CPU: send, and both links, at once ◄───────┴─────────────┘
//! ```
//! A connection that moves costs both backends: who takes it and who gives it away.
//! Reads of a file that is being read already wait for that read.

mod agenda;
mod entrant;
mod placement;
mod tally;

use trapeze_core::policy::{BackendId, Request};

use crate::cache::Cache;
use crate::hardware::{
    Change, Condition, Hardware, LoadUntil, acknowledgements, link_ns, wire_bytes,
};
use crate::outcome::Outcome;
use crate::station::{Discipline, Entry, Station};
use crate::workload::{Ask, Content, Kind, Object, Pace, Source, Then, Workload};
use agenda::{Agenda, Event};
pub use entrant::{Decides, Entrant, Span, Until};
use placement::Placement;
use tally::Tally;

/// One run.
#[derive(Clone, Copy, Debug)]
pub struct Run<'a> {
    /// On what.
    pub hardware: &'a Hardware,
    /// What is asked.
    pub workload: &'a dyn Workload,
    /// Who decides.
    pub entrant: &'a Entrant,
    /// How long.
    pub span: Span,
    /// Of the workload's randomness, and of policies that draw lots.
    pub seed: u64,
}

impl Run<'_> {
    /// Simulates it.
    pub fn go(&self) -> Outcome {
        self.go_watched(|_| {})
    }

    /// Simulates it, and says now and then how many requests have been answered.
    pub fn go_watched(&self, watch: impl FnMut(u64)) -> Outcome {
        Engine::new(self).run(self, watch)
    }
}

/// Nobody waits for this work.
const NOBODY: u32 = u32::MAX;

/// Somebody who has at most one request at a time.
#[derive(Clone, Debug)]
struct Slot {
    ask: Ask,
    request: Request,
    stage: Stage,
    /// Who has the connection; none if there is none.
    connected: Option<BackendId>,
    began_ns: u64,
    /// Of processor and links, how many have not sent the answer yet.
    sending: u8,
    hit: bool,
    moved: bool,
    placed: placement::Placed,
    /// Whether the placement is for the connection and lasts beyond this answer.
    open: bool,
    /// Whether the one before has its answer, and is load still.
    lingers: bool,
    /// How often the backend had gone when it was placed there.
    deaths: u32,
    bytes: u64,
}

/// What the slot's visit to a station is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Idle,
    Client,
    Dispatcher,
    Handoff,
    BeforeDisk,
    Disk,
    /// Before it is sent, all that was needed.
    Ready,
    Sending,
}

struct Engine<'a> {
    hardware: &'a Hardware,
    objects: &'a [Object],
    decides: Decides,
    pace: Pace,
    source: Box<dyn Source + 'a>,
    now: u64,
    agenda: Agenda,
    stations: Vec<Station>,
    map: Map,
    caches: Vec<Cache>,
    /// How often each backend has gone.
    deaths: Vec<u32>,
    placements: Vec<Placement>,
    slots: Vec<Slot>,
    /// Slots of an open workload that nobody uses.
    free: Vec<u32>,
    requests: Vec<Request>,
    tally: Tally,
    /// Whether the workload has no more to ask.
    at_end: bool,
    done: Vec<u32>,
}

/// Where in `stations` things are.
#[derive(Clone, Copy)]
struct Map {
    dispatchers: usize,
    backends: usize,
    hosts: usize,
}

impl Map {
    fn cpu(self, backend: BackendId) -> usize {
        self.dispatchers + backend.index()
    }

    fn disk(self, backend: BackendId) -> usize {
        self.dispatchers + self.backends + backend.index()
    }

    fn link(self, backend: BackendId) -> usize {
        self.dispatchers + 2 * self.backends + backend.index()
    }

    fn host_link(self, slot: u32) -> usize {
        self.dispatchers + 3 * self.backends + slot as usize % self.hosts
    }

    fn host_cpu(self, slot: u32) -> usize {
        self.host_link(slot) + self.hosts
    }
}

impl<'a> Engine<'a> {
    fn new(run: &Run<'a>) -> Self {
        let Hardware {
            backends,
            dispatchers,
            backend,
            clients,
            ..
        } = run.hardware;
        let map = Map {
            dispatchers: (*dispatchers).max(1),
            backends: (*backends).max(1),
            hosts: clients.hosts.max(1),
        };
        let objects = run.workload.objects();
        let users = run.workload.pace().users(map.backends);
        let station = |discipline, servers, count| {
            std::iter::repeat_n(Station::new(discipline, servers), count)
        };
        let stations: Vec<Station> = station(Discipline::Fifo, 1, map.dispatchers)
            .chain(station(backend.discipline, backend.cpus, map.backends))
            .chain(station(Discipline::Fifo, 1, map.backends))
            .chain(station(
                Discipline::Sharing,
                1,
                map.backends + 2 * map.hosts,
            ))
            .collect();
        let cache = Cache::new(backend.replacement, backend.cache_bytes, objects.len());
        let mut engine = Engine {
            hardware: run.hardware,
            objects,
            decides: run.entrant.decides,
            pace: run.workload.pace(),
            source: run.workload.start(run.seed, users.unwrap_or(0)),
            now: 0,
            agenda: Agenda::default(),
            tally: Tally::new(run.span, &stations, map.backends),
            at_end: false,
            stations,
            map,
            caches: vec![cache; map.backends],
            deaths: vec![0; map.backends],
            placements: (0..map.dispatchers as u64)
                .map(|d| Placement::new(run.entrant, map.backends, run.seed ^ d))
                .collect(),
            slots: Vec::new(),
            free: Vec::new(),
            requests: objects.iter().map(placement::request).collect(),
            done: Vec::new(),
        };
        for (number, change) in (0..).zip(&run.hardware.changes) {
            engine.agenda.add(change.at_ns, Event::Change(number));
        }
        match users {
            Some(users) => (0..users as u32).for_each(|user| {
                engine.slots.push(Slot::idle());
                engine.next_of_user(user);
            }),
            None => engine.next_arrival(),
        }
        engine
    }

    fn run(mut self, run: &Run<'_>, mut watch: impl FnMut(u64)) -> Outcome {
        let mut seen = 0;
        let mut nothing_happens = true;
        while let Some((at, event)) = self.agenda.next() {
            if at > run.span.most_ns {
                self.now = run.span.most_ns;
                nothing_happens = false;
                break;
            }
            self.now = at;
            match event {
                Event::Begin(slot) => self.begin(slot),
                Event::Arrival(slot) => {
                    self.begin(slot);
                    self.next_arrival();
                }
                Event::Visited(slot) => self.advance(slot),
                Event::Change(number) => self.change(number),
                Event::Tick { station, version } => self.tick(station, version),
            }
            let answered = self.tally.answered();
            if self.is_over(&run.span) {
                nothing_happens = false;
                break;
            }
            if answered >= seen + WATCH_EVERY {
                seen = answered;
                watch(answered);
            }
        }
        watch(self.tally.answered());
        let outstanding: Vec<f64> = self.outstanding_ns();
        // Who waits, and nothing more happens, waits for a backend and not for a turn.
        let waiting = self
            .placements
            .iter()
            .map(Placement::waiting)
            .sum::<usize>();
        let unanswered = if nothing_happens { waiting as u64 } else { 0 };
        (self.tally).outcome(
            run,
            self.now,
            &self.stations,
            &outstanding,
            (self.map.dispatchers, unanswered),
        )
    }

    fn is_over(&self, span: &Span) -> bool {
        let counted = self.tally.answered().saturating_sub(span.warmup);
        let runs_empty = self.at_end && counted > 4 * self.slots.len() as u64;
        self.tally.answered() >= span.requests
            || (runs_empty && span.until == Until::UserWithoutRequest)
    }

    /// The integral of unfinished requests over time, for each backend.
    fn outstanding_ns(&self) -> Vec<f64> {
        (0..self.map.backends)
            .map(|b| {
                (self.placements.iter())
                    .map(|p| p.outstanding_ns(BackendId(b as u16), self.now))
                    .sum()
            })
            .collect()
    }

    // ------------------------------------------------------------- who asks

    fn next_of_user(&mut self, user: u32) {
        let Some(ask) = self.source.next(user) else {
            self.at_end = true;
            return self.leave(user);
        };
        let slot = &mut self.slots[user as usize];
        slot.ask = ask;
        slot.began_ns = self.now + ask.wait_ns;
        self.reach(user, Event::Begin(user));
    }

    /// The user has no more to ask. A connection that was kept for it ends, and lets
    /// somebody in.
    fn leave(&mut self, user: u32) {
        let dispatcher = self.dispatcher(user);
        let state = &mut self.slots[user as usize];
        state.connected = None;
        let placement = &mut self.placements[dispatcher];
        if std::mem::take(&mut state.lingers) {
            placement.released(self.now, &state.placed);
        }
        if !std::mem::take(&mut state.open) {
            return;
        }
        placement.finished(self.now, &state.request, &state.placed, state.bytes);
        if let Some(waiting) = placement.admitted() {
            self.decide(waiting);
        }
    }

    fn next_arrival(&mut self) {
        let Some(ask) = self.source.next(0) else {
            return;
        };
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::idle());
            self.slots.len() as u32 - 1
        });
        self.slots[slot as usize].ask = ask;
        self.slots[slot as usize].began_ns = self.now + ask.wait_ns;
        self.reach(slot, Event::Arrival(slot));
    }

    /// What is on its way besides waiting for anybody is spent before the request
    /// reaches the dispatcher.
    fn reach(&mut self, slot: u32, event: Event) {
        let at = self.slots[slot as usize].began_ns + self.hardware.clients.round_trip_ns;
        match at == self.now && matches!(event, Event::Begin(_)) {
            true => self.begin(slot),
            false => self.agenda.add(at, event),
        }
    }

    // ---------------------------------------------------------- a request's way

    fn begin(&mut self, slot: u32) {
        let state = &mut self.slots[slot as usize];
        state.stage = Stage::Client;
        let work_ns = self.hardware.clients.work_ns(state.ask.bytes);
        self.visit_or_go_on(self.map.host_cpu(slot), work_ns, slot);
    }

    fn enter(&mut self, slot: u32) {
        let costs = &self.hardware.dispatcher;
        let state = &mut self.slots[slot as usize];
        let is_new = state.connected.is_none();
        let work_ns = match (self.decides, is_new) {
            (Decides::Blindly, true) => costs.connection_ns,
            (Decides::Requests | Decides::Connections, true) => {
                costs.handshake_ns + costs.request_ns
            }
            (Decides::Requests, false) => costs.request_ns,
            (Decides::Connections | Decides::Blindly, false) => costs.packet_ns,
        };
        state.stage = Stage::Dispatcher;
        let dispatcher = self.dispatcher(slot);
        self.visit_or_go_on(dispatcher, work_ns, slot);
    }

    fn dispatcher(&self, slot: u32) -> usize {
        slot as usize % self.map.dispatchers
    }

    /// The visit that the slot's stage was for is over.
    fn advance(&mut self, slot: u32) {
        let state = &mut self.slots[slot as usize];
        let is_there = matches!(
            state.stage,
            Stage::Handoff | Stage::BeforeDisk | Stage::Disk | Stage::Ready
        );
        if is_there && state.deaths != self.deaths[state.placed.backend.index()] {
            return self.lose(slot);
        }
        match state.stage {
            Stage::Idle => unreachable!("nobody visits anything while idle"),
            Stage::Client => self.enter(slot),
            Stage::Dispatcher => self.decide(slot),
            Stage::Handoff => self.arrive(slot),
            Stage::BeforeDisk => self.read(slot),
            Stage::Disk | Stage::Ready => self.send(slot),
            Stage::Sending => {
                state.sending -= 1;
                let survived = state.deaths == self.deaths[state.placed.backend.index()];
                match (state.sending, survived) {
                    (0, true) => self.complete(slot),
                    (0, false) => self.lose(slot),
                    _ => {}
                }
            }
        }
    }

    /// The backend went away with it: the user connects anew, and asks again.
    fn lose(&mut self, slot: u32) {
        let dispatcher = self.dispatcher(slot);
        let state = &mut self.slots[slot as usize];
        state.stage = Stage::Idle;
        state.connected = None;
        state.open = false;
        self.placements[dispatcher].lost(self.now, &state.request, &state.placed);
        self.tally.lost();
        self.begin(slot);
    }

    /// Something happens to a backend.
    fn change(&mut self, number: u32) {
        let Change { backend, into, .. } = self.hardware.changes[number as usize];
        if into == Condition::Gone {
            self.deaths[backend] += 1;
            let costs = &self.hardware.backend;
            self.caches[backend] =
                Cache::new(costs.replacement, costs.cache_bytes, self.objects.len());
            // Connections that rest there are gone too.
            for slot in 0..self.slots.len() {
                let state = &mut self.slots[slot];
                let rests = matches!(state.stage, Stage::Idle | Stage::Client | Stage::Dispatcher);
                if !rests || state.connected.map(BackendId::index) != Some(backend) {
                    continue;
                }
                state.connected = None;
                if std::mem::take(&mut state.lingers) {
                    let dispatcher = slot % self.map.dispatchers;
                    self.placements[dispatcher].released(self.now, &state.placed);
                }
                if std::mem::take(&mut state.open) {
                    let dispatcher = slot % self.map.dispatchers;
                    self.placements[dispatcher].lost(self.now, &state.request, &state.placed);
                }
            }
        }
        for placement in &mut self.placements {
            placement.condition(backend, into);
        }
        // Who had nobody to go to tries again.
        for dispatcher in 0..self.placements.len() {
            while let Some(waiting) = self.placements[dispatcher].admitted() {
                self.decide(waiting);
                if self.placements[dispatcher].is_last(waiting) {
                    break;
                }
            }
        }
    }

    fn decide(&mut self, slot: u32) {
        let dispatcher = self.dispatcher(slot);
        let state = &mut self.slots[slot as usize];
        let placement = &mut self.placements[dispatcher];
        state.moved = false;
        if std::mem::take(&mut state.lingers) {
            placement.released(self.now, &state.placed);
        }
        if !state.open {
            state.request = Request {
                current: state.connected,
                ..self.requests[state.ask.object as usize]
            };
            let Some(placed) = placement.place(self.now, &mut state.request) else {
                // The policy's admission limit: somebody's end lets it in.
                placement.wait(slot);
                return;
            };
            state.placed = placed;
            state.deaths = self.deaths[placed.backend.index()];
            state.bytes = 0;
            state.open = true;
            state.moved = state.connected.is_some_and(|b| b != placed.backend);
        }
        state.stage = Stage::Handoff;
        let work_ns = match state.moved {
            true => self.hardware.dispatcher.handoff_ns,
            false => 0,
        };
        self.visit_or_go_on(dispatcher, work_ns, slot);
    }

    /// The request is with its backend.
    fn arrive(&mut self, slot: u32) {
        let costs = &self.hardware.backend;
        let state = &mut self.slots[slot as usize];
        let ask = state.ask;
        let backend = state.placed.backend;
        let mut work_ns = costs.request_ns;
        match state.connected.replace(backend) {
            None => {
                work_ns += match self.decides {
                    Decides::Blindly => costs.connect_ns,
                    Decides::Requests | Decides::Connections => costs.rebuild_ns,
                }
            }
            Some(before) if before != backend => {
                work_ns += costs.handoff_ns;
                let cpu = self.map.cpu(before);
                self.visit(cpu, costs.handoff_ns, NOBODY);
            }
            Some(_) => {}
        }
        let ready = match (self.objects[ask.object as usize].kind, ask.content) {
            (Kind::Dynamic { work_ns: program }, _) => {
                work_ns += program;
                true
            }
            (Kind::Static, Content::Spared) => true,
            (Kind::Static, Content::Needed) => {
                let ready_at = self.caches[backend.index()].touch(ask.object);
                ready_at.is_some_and(|at| at <= self.now)
            }
        };
        let limited = self.is_network_limited();
        let sending_ns = self.sending_ns(&ask);
        let state = &mut self.slots[slot as usize];
        state.hit = ready;
        state.stage = match ready {
            true => Stage::Ready,
            false => Stage::BeforeDisk,
        };
        if ready && !limited {
            // Nothing to wait for in between: one visit.
            work_ns += sending_ns;
            state.stage = Stage::Sending;
            state.sending = 1;
            self.acknowledge(slot);
        }
        self.visit(self.map.cpu(backend), work_ns, slot);
    }

    fn is_network_limited(&self) -> bool {
        self.hardware.backend.link_bps.is_some() || self.hardware.clients.link_bps.is_some()
    }

    fn sending_ns(&self, ask: &Ask) -> u64 {
        let costs = &self.hardware.backend;
        let close_ns = match ask.then {
            Then::Close => costs.close_ns,
            Then::Keep => 0,
        };
        costs.send_ns(ask.bytes) + close_ns
    }

    fn read(&mut self, slot: u32) {
        let state = &mut self.slots[slot as usize];
        state.stage = Stage::Disk;
        let (object, backend) = (state.ask.object, state.placed.backend);
        let cache = &mut self.caches[backend.index()];
        if let Some(ready_at) = cache.touch(object) {
            let at = ready_at.max(self.now);
            return self.agenda.add(at, Event::Visited(slot));
        }
        let bytes = self.objects[object as usize].bytes;
        let work_ns = self.hardware.backend.disk.read_ns(bytes);
        let disk = self.map.disk(backend);
        let Entry::Done(at) = self.stations[disk].enter(self.now, work_ns, slot) else {
            unreachable!("disks are first come first served")
        };
        self.caches[backend.index()].insert(object, bytes, at);
        self.tally.disk_read();
        self.agenda.add(at, Event::Visited(slot));
    }

    /// The processor sends while both links carry what it has sent: the answer is there
    /// when the slowest is done.
    fn send(&mut self, slot: u32) {
        let state = &mut self.slots[slot as usize];
        let (ask, backend) = (state.ask, state.placed.backend);
        let wire = wire_bytes(ask.bytes);
        let links = [
            (self.map.link(backend), self.hardware.backend.link_bps),
            (self.map.host_link(slot), self.hardware.clients.link_bps),
        ];
        state.stage = Stage::Sending;
        state.sending = 1 + links.iter().filter(|(_, bps)| bps.is_some()).count() as u8;
        let work_ns = self.sending_ns(&ask);
        self.visit(self.map.cpu(backend), work_ns, slot);
        for (station, bps) in links {
            if let Some(bps) = bps {
                self.visit(station, link_ns(wire, bps), slot);
            }
        }
        self.acknowledge(slot);
    }

    /// The client's acknowledgements cost the dispatcher.
    fn acknowledge(&mut self, slot: u32) {
        let acks = acknowledgements(self.slots[slot as usize].ask.bytes);
        let work_ns = acks * self.hardware.dispatcher.packet_ns;
        if work_ns > 0 {
            let dispatcher = self.dispatcher(slot);
            self.visit(dispatcher, work_ns, NOBODY);
        }
    }

    fn complete(&mut self, slot: u32) {
        let dispatcher = self.dispatcher(slot);
        let state = &mut self.slots[slot as usize];
        state.stage = Stage::Idle;
        state.bytes += state.ask.bytes;
        let ask = state.ask;
        self.tally.answer(tally::Answer {
            backend: state.placed.backend,
            latency_ns: self.now - state.began_ns,
            bytes: ask.bytes,
            hit: state.hit,
            file: self.objects[ask.object as usize].kind == Kind::Static
                && ask.content == Content::Needed,
            moved: state.moved,
        });
        if ask.then == Then::Close {
            state.connected = None;
        }
        let placement = &mut self.placements[dispatcher];
        if self.decides == Decides::Requests || ask.then == Then::Close {
            state.open = false;
            placement.answered(self.now, &state.request, &state.placed, state.bytes);
            state.lingers = ask.then == Then::Keep
                && self.hardware.dispatcher.load_until == LoadUntil::NextRequest;
            if !state.lingers {
                placement.released(self.now, &state.placed);
            }
        }
        let admitted = placement.admitted();
        if self.tally.begins_to_count() {
            let outstanding = self.outstanding_ns();
            self.tally.count_from(self.now, &self.stations, outstanding);
        }
        if let Some(waiting) = admitted {
            self.decide(waiting);
        }
        match self.pace {
            Pace::Open => self.free.push(slot),
            Pace::Users(_) | Pace::Admission => self.next_of_user(slot),
        }
    }

    // ------------------------------------------------------------- stations

    fn visit_or_go_on(&mut self, station: usize, work_ns: u64, slot: u32) {
        match work_ns {
            0 => self.advance(slot),
            _ => self.visit(station, work_ns, slot),
        }
    }

    fn visit(&mut self, station: usize, work_ns: u64, slot: u32) {
        match self.stations[station].enter(self.now, work_ns, slot) {
            Entry::Done(_) if slot == NOBODY => {}
            Entry::Done(at) => self.agenda.add(at, Event::Visited(slot)),
            Entry::Tick { at, version } => self.agenda.add(
                at,
                Event::Tick {
                    station: station as u32,
                    version,
                },
            ),
        }
    }

    fn tick(&mut self, station: u32, version: u32) {
        let mut done = std::mem::take(&mut self.done);
        let next = self.stations[station as usize].tick(self.now, version, &mut done);
        if let Some(Entry::Tick { at, version }) = next {
            self.agenda.add(at, Event::Tick { station, version });
        }
        for slot in done.drain(..).filter(|&slot| slot != NOBODY) {
            self.advance(slot);
        }
        self.done = done;
    }
}

/// How often a watcher is told, in requests.
const WATCH_EVERY: u64 = 20_000;

impl Slot {
    fn idle() -> Self {
        Slot {
            ask: Ask {
                object: 0,
                bytes: 0,
                wait_ns: 0,
                content: Content::Spared,
                then: Then::Close,
            },
            request: Request::new(0, trapeze_core::policy::Class::Static),
            stage: Stage::Idle,
            connected: None,
            began_ns: 0,
            sending: 0,
            hit: false,
            moved: false,
            placed: placement::Placed::default(),
            open: false,
            lingers: false,
            deaths: 0,
            bytes: 0,
        }
    }
}
