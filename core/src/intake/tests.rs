//! The intake in virtual time. Here is the bench on which one client's packets
//! are laid; reading is in tables.rs, what acknowledgements say of gaps in sack.rs,
//! answering in goodbyes.rs, going on elsewhere in copies.rs, later requests in later.rs, calls without
//! sense or order in noise.rs, whole conversations in simulated.rs.

mod arrived;
mod copies;
mod goodbyes;
mod later;
mod noise;
mod sack;
mod simulated;
mod tables;

use super::*;
use crate::flow::{Handshake, WindowScales};
use crate::seq::ServerSeq;
use crate::wire::segment::Segment;
use crate::wire::tcp::{Header, Options, Timestamps};

const HEAD: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
/// In our SYN-ACK.
const OUR_CLOCK: u32 = 77;

fn bounds() -> Bounds {
    Bounds {
        head_bytes: 32 * 1024,
        head_timeout: Duration::from_secs(10),
        flows: 8,
        answers: 2,
        bytes: 256 * 1024,
        burst: 0,
        first_window: 65535,
    }
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Stands in for the parser of heads: its decision is the head's length.
fn inspect(bytes: &[u8], _: &mut Progress) -> Looked<usize> {
    if bytes.starts_with(b"BAD") {
        return Looked::Bad(Answer::BadRequest);
    }
    if bytes.starts_with(b"HUGE") {
        return Looked::Bad(Answer::HeadTooLarge);
    }
    match bytes.windows(4).position(|end| end == b"\r\n\r\n") {
        Some(at) => Looked::Done(at + 4),
        None => Looked::More,
    }
}

/// One client's view of the conversation; numbers are offsets from its first
/// byte, and from ours.
struct Bench {
    intake: Intake,
    now: Duration,
    client: u16,
    isns: Isns,
    handshake: Handshake,
    /// The client's clock and what it has seen of ours.
    clocks: (u32, u32),
}

impl Bench {
    fn new(bounds: Bounds) -> Self {
        let isns = Isns {
            client: ClientSeq::new(u32::MAX - 3),
            server: ServerSeq::new(u32::MAX),
        };
        let window_scales = Some(WindowScales { client: 7, ours: 9 });
        Self {
            intake: Intake::new(bounds),
            now: ms(1_000_000),
            client: 40000,
            isns,
            handshake: Handshake {
                mss: 1460,
                window_scales,
                timestamps: true,
                ..Handshake::default()
            },
            clocks: (1000, OUR_CLOCK),
        }
    }

    fn key(&self) -> FlowKey {
        FlowKey {
            client: ([192, 0, 2, 1], self.client).into(),
            vip: ([198, 51, 100, 7], 80).into(),
        }
    }

    fn arrived<'a>(&self, at: i64, flags: Flags, payload: &'a [u8]) -> Arrived<'a> {
        let (value, echo) = self.clocks;
        Arrived {
            key: self.key(),
            isns: self.isns,
            cookie: self.isns.server,
            later: false,
            handshake: self.handshake,
            header: Header {
                seq: (self.isns.client + 1 + at as u32).raw(),
                ack: (self.isns.server + 1).raw(),
                flags,
                window: 500,
                options: Options {
                    timestamps: Some(Timestamps { value, echo }),
                    ..Options::default()
                },
                ..Header::default()
            },
            payload,
            checksum: TcpChecksum::Complete,
        }
    }

    fn give(&mut self, arrived: &Arrived<'_>) -> Outcome<usize> {
        let outcome = self.intake.on_packet(self.now, arrived, inspect);
        assert!(self.intake.held_flows() <= self.intake.bounds.flows);
        assert!(self.intake.held_bytes() <= self.intake.bounds.bytes);
        outcome
    }

    /// A packet of the client.
    fn packet(&mut self, at: i64, flags: Flags, payload: &[u8]) -> Outcome<usize> {
        self.give(&self.arrived(at, flags | Flags::ACK, payload))
    }

    fn data(&mut self, at: i64, payload: &[u8]) -> Outcome<usize> {
        self.packet(at, Flags::default(), payload)
    }

    fn assigned(&mut self, mss: u16) -> bool {
        self.intake.assigned(self.now, &self.key(), mss)
    }

    fn confirmed(&mut self, at: u32) {
        self.intake
            .on_probe_answer(self.now, &self.key(), self.isns.client + 1 + at, None);
    }

    /// So says a host whose socket stands.
    fn stands(&mut self, at: u32) {
        let sender = Sender {
            next: self.isns.server + 1,
            clock: 0,
            is_idle: false,
            has_not_begun: false,
        };
        let (key, received) = (self.key(), self.isns.client + 1 + at);
        (self.intake).on_probe_answer(self.now, &key, received, Some(sender));
    }

    /// Lets time pass to the next deadline within `limit`, and says how long
    /// that took.
    fn wait(&mut self, limit: Duration) -> Option<Duration> {
        let at = self.intake.poll_timeout()?;
        if at > self.now + limit {
            self.now += limit;
            return None;
        }
        let waited = at.saturating_sub(self.now);
        self.now = self.now.max(at);
        self.intake.on_timeout(self.now);
        assert!(
            self.intake
                .poll_timeout()
                .is_none_or(|next| next > self.now),
            "time must move"
        );
        Some(waited)
    }

    /// What the intake wants done, as text.
    fn actions(&mut self) -> Vec<String> {
        let actions: Vec<_> = std::iter::from_fn(|| self.intake.poll_action()).collect();
        actions
            .into_iter()
            .map(|action| self.text(action))
            .collect()
    }

    fn text(&self, action: Action) -> String {
        match action {
            Action::ToClient(segment) => {
                let Segment {
                    header, payload, ..
                } = segment;
                let seq = header.seq.wrapping_sub((self.isns.server + 1).raw());
                let ack = header.ack.wrapping_sub((self.isns.client + 1).raw());
                format!(
                    "client {:?} {seq}+{} ack {ack}",
                    header.flags,
                    payload.len()
                )
            }
            Action::ToBackend { segment, .. } => {
                let Segment {
                    header, payload, ..
                } = segment;
                let seq = header.seq.wrapping_sub((self.isns.client + 1).raw());
                format!("backend {:?} {seq}+{}", header.flags, payload.len())
            }
            Action::Probe { segment, .. } => {
                format!(
                    "probe {}",
                    segment
                        .header
                        .seq
                        .wrapping_sub((self.isns.client + 1).raw())
                )
            }
            Action::Acknowledge { seq, .. } => {
                format!(
                    "heard {}",
                    seq.raw().wrapping_sub((self.isns.client + 1).raw())
                )
            }
            Action::Keep(kept) => format!("keep {}+{}", kept.offset, kept.bytes.len()),
            Action::Reading { .. } => "reading".into(),
            Action::Stay { .. } => "stay".into(),
            Action::TooSlow { .. } => "too slow".into(),
            Action::Ended { why, .. } => format!("ended {why:?}"),
        }
    }
}
#[test]
fn a_stream_is_held_as_far_as_there_is_room() {
    let bounds = Bounds {
        head_bytes: 32_768,
        bytes: 32 << 20,
        burst: 0,
        ..Bounds::per_worker(&crate::config::Limits::default(), 1)
    };
    let held = [0, 28 << 20, 32 << 20, 33 << 20];
    let capacities = held.map(|held| bounds.capacity(held));
    assert_eq!(capacities, [1 << 20, 512 << 10, 98_303, 98_303]);
}
