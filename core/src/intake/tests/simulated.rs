//! A whole conversation in virtual time: a client with a small TCP of its own,
//! a network that loses, repeats and reorders, the intake with a data path
//! before it, and a backend that rebuilds the connection. Whatever the
//! schedule, the backend must get exactly the client's bytes, and the head be
//! decided once (once more for every refusal).

use super::*;
use client::Client;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use server::Server;
use std::collections::BTreeMap;

mod client;
mod server;

/// A segment on its way; places are offsets in the client's stream.
#[derive(Clone, Debug)]
struct Packet {
    at: usize,
    payload: Vec<u8>,
    fin: bool,
    /// The client's clock, and what it has seen of ours.
    clocks: Option<(u32, u32)>,
}

/// An acknowledgement on its way to the client.
#[derive(Clone, Copy, Debug)]
struct Ack {
    at: usize,
    /// How far the client may send.
    edge: usize,
    clock: u32,
}

#[derive(Clone, Debug)]
enum Event {
    AtDispatcher(Packet),
    AtBackend(Packet),
    AtClient(Ack),
    ProbeAtBackend,
    ProbeAnswered(usize),
    Refused(Packet),
    ClientWakes,
    ClientWrites,
}

/// How bad the world is.
struct Weather {
    loss: f64,
    repeat: f64,
    /// Longest delay, in milliseconds.
    delay: u64,
}

struct World {
    rng: SmallRng,
    weather: Weather,
    events: BTreeMap<(Duration, u64), Event>,
    sent: u64,
    bench: Bench,
    client: Client,
    server: Server,
    /// The flow's record says that a backend has it.
    assigned: bool,
    decisions: usize,
    refusals: usize,
    /// Of our clock by the client, as far as the daemon has read.
    seen: u32,
    edge: usize,
    /// When the client's timer goes off.
    waking: Option<Duration>,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed);
        let calm = Weather {
            loss: 0.0,
            repeat: 0.0,
            delay: 1,
        };
        let weather = match rng.random_range(0..4) {
            0 => calm,
            1 => Weather { delay: 30, ..calm },
            2 => Weather {
                loss: 0.05,
                repeat: 0.05,
                delay: 5,
            },
            _ => Weather {
                loss: 0.2,
                repeat: 0.2,
                delay: 30,
            },
        };
        let head = *[27, 100, 1500, 6000, 30_000]
            .get(rng.random_range(0..5))
            .unwrap();
        let body = *[0, 10, 40_000].get(rng.random_range(0..3)).unwrap();
        let mut bench = Bench::new(Bounds {
            head_timeout: Duration::from_secs(600),
            ..bounds()
        });
        bench.isns.client = ClientSeq::new(rng.random());
        if rng.random_bool(0.3) {
            bench.isns.client = ClientSeq::new(0) + rng.random_range(0..40_000u32).wrapping_neg();
        }
        if rng.random_bool(0.3) {
            bench.handshake.window_scales = None;
        }
        let client = Client::new(&mut rng, head, body);
        let refusals = if rng.random_bool(0.3) {
            rng.random_range(1..4)
        } else {
            0
        };
        let server = Server::new(client.stream.len(), refusals);
        let edge = usize::from(bench.intake.bounds.first_window);
        Self {
            rng,
            weather,
            events: BTreeMap::new(),
            sent: 0,
            bench,
            client,
            server,
            assigned: false,
            decisions: 0,
            refusals: 0,
            seen: OUR_CLOCK,
            edge,
            waking: None,
        }
    }

    fn schedule(&mut self, after: Duration, event: Event) {
        self.sent += 1;
        self.events
            .insert((self.bench.now + after, self.sent), event);
    }

    /// Sends something through the weather.
    fn send(&mut self, event: Event) {
        let copies = if self.rng.random_bool(self.weather.loss) {
            0
        } else if self.rng.random_bool(self.weather.repeat) {
            2
        } else {
            1
        };
        for _ in 0..copies {
            let delay =
                Duration::from_micros(self.rng.random_range(50..=1000 * self.weather.delay));
            self.schedule(delay, event.clone());
        }
    }

    fn run(&mut self) {
        let start = self.bench.now;
        self.schedule(ms(0), Event::ClientWrites);
        while !self.over() {
            assert!(self.bench.now - start < Duration::from_secs(300), "stuck");
            let event = self.events.first_key_value().map(|((at, _), _)| *at);
            let deadline = self.bench.intake.poll_timeout();
            if deadline.is_some_and(|deadline| event.is_none_or(|event| deadline <= event)) {
                self.bench.wait(Duration::from_secs(300));
            } else {
                let ((at, _), event) = self.events.pop_first().expect("nothing left to happen");
                self.bench.now = at;
                self.happen(event);
            }
            self.act();
            assert!(self.bench.intake.held_bytes() <= self.bench.intake.bounds.bytes);
        }
    }

    /// The client knows that all has come, and nothing is held for it.
    fn over(&self) -> bool {
        self.client.done() && self.bench.intake.held_flows() == 0
    }

    fn happen(&mut self, event: Event) {
        let now = self.clock();
        match event {
            Event::ClientWrites => {
                if let Some(pause) = self.client.write() {
                    self.schedule(pause, Event::ClientWrites);
                }
                self.client_sends();
            }
            Event::ClientWakes => {
                self.client.on_timer(self.bench.now);
                self.client_sends();
            }
            Event::AtClient(ack) => {
                self.client.on_ack(ack, self.bench.now);
                self.client_sends();
            }
            Event::AtDispatcher(packet) if self.assigned => self.send(Event::AtBackend(packet)),
            Event::AtDispatcher(packet) => self.read(packet),
            Event::AtBackend(packet) => {
                if self.server.refuses(&packet) {
                    self.send(Event::Refused(packet));
                } else if let Some(ack) = self.server.receive(&self.client.stream, packet, now) {
                    self.send(Event::AtClient(ack));
                }
            }
            Event::ProbeAtBackend => {
                if let Some(received) = self.server.received() {
                    self.send(Event::ProbeAnswered(received));
                }
            }
            Event::ProbeAnswered(received) => self.bench.confirmed(received as u32),
            Event::Refused(packet) => {
                self.refusals += 1;
                if !self.bench.assigned(1000) {
                    self.read(packet);
                }
            }
        }
    }

    fn clock(&self) -> u32 {
        self.bench.now.as_millis() as u32
    }

    fn client_sends(&mut self) {
        for packet in self.client.send(&mut self.rng, self.bench.now) {
            self.send(Event::AtDispatcher(packet));
        }
        let wake_at = self.client.wake_at();
        if let Some(at) = wake_at
            && self.waking != wake_at
        {
            self.waking = wake_at;
            self.schedule(at.saturating_sub(self.bench.now), Event::ClientWakes);
        }
    }

    /// What the daemon does with a packet.
    fn read(&mut self, packet: Packet) {
        let flags = if packet.fin {
            Flags::FIN
        } else {
            Flags::default()
        };
        self.bench.clocks = packet.clocks.expect("only starts come back");
        // A backend that had refused one copy of the start, and taken another, has been heard since.
        self.seen = self.seen.max(self.bench.clocks.1);
        match self.bench.packet(packet.at as i64, flags, &packet.payload) {
            Outcome::Complete(head) => {
                assert_eq!(head, self.client.head);
                self.decisions += 1;
                self.assigned = true;
                self.send(Event::AtBackend(packet));
            }
            Outcome::Decide(head) => {
                assert_eq!(head, self.client.head);
                self.decisions += 1;
                self.assigned = true;
                assert!(self.bench.assigned(1000));
            }
            Outcome::Answering | Outcome::Closed => panic!("nothing is wrong with this client"),
            Outcome::Held | Outcome::Assigned | Outcome::Ignored(_) => {}
        }
    }

    /// Does what the intake wants.
    fn act(&mut self) {
        let start = self.bench.isns.client + 1;
        let place = |seq: u32| start.distance_to(ClientSeq::new(seq)) as usize;
        while let Some(action) = self.bench.intake.poll_action() {
            match action {
                Action::ToClient(Segment { header, .. }) => {
                    assert_eq!(header.flags, Flags::ACK);
                    let timestamps = header.options.timestamps.unwrap();
                    assert_eq!(timestamps.value, self.seen, "our clock stands still");
                    assert!(timestamps.echo <= self.clock());
                    let shift = self.bench.handshake.window_scales.map_or(0, |s| s.ours);
                    let at = place(header.ack);
                    let edge = at + (usize::from(header.window) << shift);
                    assert!(edge >= self.edge, "the window shrank");
                    self.edge = edge;
                    self.send(Event::AtClient(Ack {
                        at,
                        edge,
                        clock: timestamps.value,
                    }));
                }
                Action::ToBackend { segment, .. } => {
                    assert!((1..=1000).contains(&segment.payload.len()));
                    assert_eq!(segment.header.ack, (self.bench.isns.server + 1).raw());
                    let timestamps = segment.header.options.timestamps;
                    self.send(Event::AtBackend(Packet {
                        at: place(segment.header.seq),
                        fin: segment.header.flags.has(Flags::FIN),
                        payload: segment.payload,
                        clocks: timestamps.map(|clocks| (clocks.value, clocks.echo)),
                    }));
                }
                Action::Probe { .. } => self.send(Event::ProbeAtBackend),
                Action::Reading { .. } => self.assigned = false,
                Action::Acknowledge { .. } | Action::Stay { .. } | Action::TooSlow { .. } => {
                    panic!("nothing has an owner")
                }
                Action::Keep(_) => panic!("there is nobody else"),
                Action::Ended { why, .. } => panic!("ended: {why:?}"),
            }
        }
    }
}

#[test]
fn the_backend_gets_exactly_what_the_client_sent() {
    let (mut alone, mut together, mut retained) = (0, 0, 0);
    for seed in 0..200 {
        let mut world = World::new(seed);
        // Only the last words before a panic name the seed.
        println!("seed {seed}");
        world.run();
        assert_eq!(world.server.received(), Some(world.client.end()));
        let allowed = 1..=1 + world.refusals;
        assert!(
            allowed.contains(&world.decisions),
            "decided {} times",
            world.decisions
        );
        let counters = world.bench.intake.counters();
        alone += counters.complete;
        together += counters.decided;
        retained += counters.confirmed;
    }
    // All three ways were taken often.
    assert!(
        alone > 50 && together > 50 && retained > 50,
        "{alone} {together} {retained}"
    );
}
