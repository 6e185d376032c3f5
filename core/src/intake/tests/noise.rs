//! Packets and calls without sense or order: nothing panics, no bound is
//! exceeded, time always moves, and in the end nothing is left.

use super::*;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

const FEW: Bounds = Bounds {
    head_bytes: 600,
    head_timeout: Duration::from_secs(3),
    flows: 5,
    answers: 3,
    bytes: 2000,
    burst: 0,
    first_window: 8000,
};

struct Noise {
    rng: SmallRng,
    bench: Bench,
}

impl Noise {
    fn new(seed: u64) -> Self {
        let mut bench = Bench::new(FEW);
        let mut rng = SmallRng::seed_from_u64(seed);
        bench.isns.client = ClientSeq::new(rng.random());
        Self { rng, bench }
    }

    fn number(&mut self, base: u32) -> u32 {
        match self.rng.random_range(0..20) {
            0 => self.rng.random(),
            1 => base.wrapping_add(0x8000_0000),
            2..4 => base.wrapping_sub(self.rng.random_range(0..400)),
            4..10 => base,
            _ => base.wrapping_add(self.rng.random_range(0..400)),
        }
    }

    fn flags(&mut self) -> Flags {
        let usual = [
            Flags::ACK,
            Flags::ACK | Flags::PSH,
            Flags::ACK | Flags::FIN,
            Flags::RST,
        ];
        match self.rng.random_range(0..20) {
            0 => Flags::from_bits(self.rng.random()),
            1 => usual[self.rng.random_range(2..4)],
            _ => usual[self.rng.random_range(0..2)],
        }
    }

    fn step(&mut self) {
        self.bench.client = self.rng.random_range(1..8);
        if self.rng.random_range(0..100) == 0 {
            self.bench.isns.server += 1000;
        }
        let bytes: Vec<u8> = match self.rng.random_range(0..30) {
            0 => HEAD.to_vec(),
            1 => b"BAD".to_vec(),
            2..6 => Vec::new(),
            6..9 => b"\r\n\r\n".to_vec(),
            _ => (0..self.rng.random_range(1..150))
                .map(|_| b'a' + self.rng.random_range(0..9))
                .collect(),
        };
        let mut arrived = self.bench.arrived(0, Flags::ACK, &bytes);
        arrived.header.seq = self.number(arrived.header.seq);
        if self.rng.random_range(0..10) == 0 {
            arrived.header.ack = self.number(arrived.header.ack);
        }
        arrived.header.flags = self.flags();
        arrived.header.window = self.rng.random();
        arrived.header.options.timestamps = self.rng.random_bool(0.9).then(|| Timestamps {
            value: self.rng.random(),
            echo: self.rng.random(),
        });
        let key = self.bench.key();
        match self.rng.random_range(0..40) {
            0 => self
                .bench
                .intake
                .answer(self.bench.now, &arrived, Answer::NotFound, Body::Full),
            1 => {
                let received = self.number(self.bench.isns.client.raw());
                self.bench.intake.on_probe_answer(
                    self.bench.now,
                    &key,
                    ClientSeq::new(received),
                    None,
                );
            }
            2 => drop(self.bench.assigned(self.rng.random_range(0..2000))),
            3 => self.bench.intake.forget(&key),
            4..10 => drop(self.bench.wait(ms(self.rng.random_range(0..300)))),
            _ => {
                let outcome = self.bench.give(&arrived);
                if let Outcome::Decide(_) = outcome
                    && self.rng.random_bool(0.7)
                {
                    assert!(self.bench.assigned(100));
                }
            }
        }
        self.check();
    }

    fn check(&mut self) {
        let intake = &self.bench.intake;
        assert!(intake.held_flows() <= FEW.flows);
        assert!(intake.held_bytes() <= FEW.bytes);
        assert!(intake.answering_flows() <= FEW.answers);
        while let Some(action) = self.bench.intake.poll_action() {
            if let Action::ToBackend { segment, .. } = action {
                assert!(!segment.payload.is_empty());
            }
        }
    }
}

#[test]
fn nothing_breaks_and_everything_ends() {
    let mut outcomes = Counters::default();
    for seed in 0..150 {
        let mut noise = Noise::new(seed);
        for _ in 0..400 {
            noise.step();
        }
        while noise.bench.intake.poll_timeout().is_some() {
            noise.bench.wait(ms(60_000));
            noise.check();
        }
        let intake = &noise.bench.intake;
        assert_eq!(
            (intake.held_flows(), intake.held_bytes()),
            (0, 0),
            "seed {seed}"
        );
        assert_eq!(intake.answering_flows(), 0, "seed {seed}");
        outcomes.packets += intake.counters().packets;
        let counted: u64 = intake
            .counters()
            .iter()
            .filter(|(name, _)| {
                let outcomes = [
                    "complete",
                    "decided",
                    "held",
                    "assigned",
                    "answering",
                    "closed_silent",
                ];
                outcomes.contains(name) || name.starts_with("ignored_")
            })
            .map(|(_, count)| count)
            .sum();
        assert_eq!(counted, intake.counters().packets, "seed {seed}");
        outcomes.decided += intake.counters().decided;
        outcomes.ended_evicted += intake.counters().ended_evicted;
        outcomes.ended_unconfirmed += intake.counters().ended_unconfirmed;
        outcomes.ended_lingered += intake.counters().ended_lingered;
    }
    // The noise reached every corner.
    assert!(outcomes.decided > 100, "{outcomes:?}");
    assert!(outcomes.ended_evicted > 100, "{outcomes:?}");
    assert!(outcomes.ended_unconfirmed > 0, "{outcomes:?}");
    assert!(outcomes.ended_lingered > 0, "{outcomes:?}");
}
