//! The end of a connection that no backend takes: one answer and a FIN, and
//! patience until the client has read them. What the client still sends is
//! acknowledged and thrown away, because a reset would overtake the answer
//! (RFC 9112 §9.6).
//!
//! A backend that was taken for dead may answer all the same. So all that is said here has the
//! number and the clock that the client knew before: behind a word of that backend's it is refused
//! (PAWS, RFC 7323 §5.3), and a client that has heard one gets a reset, never a mixture.
//!
//! ```text
//!   answer + FIN ──► client's FIN, and its ACK of ours ──► 1 s quiet ──► gone
//!        │ 200 ms, 400 ms, ... six times                                  ▲
//!        └── 10 s in all: RST, or nothing if the client has closed ───────┘
//! ```

use super::answer::{Answer, Body};
use super::events::{Arrived, Ignored};
use super::flow::Connection;
use crate::seq::{ClientSeq, ServerSeq};
use crate::wire::segment::Segment;
use crate::wire::tcp::Flags;
use std::time::Duration;

const FIRST_RETRY: Duration = Duration::from_millis(200);
const TRIES: u32 = 6;
const LONGEST: Duration = Duration::from_secs(10);
const QUIET: Duration = Duration::from_secs(1);
/// What the client may send while we wait for its end.
const WINDOW: u32 = 65535;
/// What a client may have had of another's answer, as long as we do not know of it.
const PLAUSIBLE: u32 = 1 << 24;

/// The state of an answer.
#[derive(Clone, Debug)]
pub(super) struct Goodbye {
    pub(super) answer: Answer,
    body: Body,
    /// Where it begins.
    start: ServerSeq,
    /// Of all its segments, where there are clocks.
    clock: Option<u32>,
    /// The next byte of the client that we have not seen.
    received: ClientSeq,
    /// The client has said FIN.
    client_closed: bool,
    /// The client has acknowledged our FIN.
    answer_acked: bool,
    tries: u32,
    retry_at: Option<Duration>,
    ends: Duration,
    /// What the answer and its FIN use up.
    len: u32,
}

/// What a packet or the time did to it.
#[derive(Debug)]
pub(super) enum Step {
    /// Nothing to say.
    Wait,
    /// Say this.
    Send(Segment),
    /// Say the answer again.
    Resend(Segment),
    /// Both sides have closed, and it has been quiet.
    Done,
    /// The client reset it.
    Reset,
    /// Too long: say this reset and forget it.
    Abort(Segment),
}

impl Goodbye {
    /// An answer to a client of whom we have seen everything up to `received`.
    pub(super) fn new(
        connection: &Connection,
        answer: Answer,
        body: Body,
        received: ClientSeq,
        client_closed: bool,
        now: Duration,
    ) -> Self {
        Self {
            answer,
            body,
            start: connection.our_start(),
            clock: connection.known_clock(),
            received,
            client_closed,
            answer_acked: false,
            tries: 0,
            retry_at: Some(now + FIRST_RETRY),
            ends: now + LONGEST,
            len: answer.bytes(body).len() as u32 + 1,
        }
    }

    pub(super) fn deadline(&self) -> Duration {
        self.retry_at.map_or(self.ends, |at| at.min(self.ends))
    }

    /// The answer and our FIN.
    pub(super) fn segment(&self, connection: &mut Connection) -> Segment {
        let bytes = self.answer.bytes(self.body);
        let mut flags = Flags::FIN;
        if !bytes.is_empty() {
            flags |= Flags::PSH;
        }
        self.say(connection, self.start, flags, bytes)
    }

    /// The reset that ends it early.
    pub(super) fn reset(&self, connection: &mut Connection) -> Segment {
        let (seq, edge) = (self.end(), self.received);
        connection.segment_to_client(seq, self.received, Flags::RST, Vec::new(), edge)
    }

    fn say(
        &self,
        connection: &mut Connection,
        seq: ServerSeq,
        flags: Flags,
        payload: Vec<u8>,
    ) -> Segment {
        let edge = self.received + WINDOW;
        let mut segment = connection.segment_to_client(seq, self.received, flags, payload, edge);
        if let (Some(timestamps), Some(clock)) =
            (&mut segment.header.options.timestamps, self.clock)
        {
            timestamps.value = clock;
        }
        segment
    }

    pub(super) fn on_packet(
        &mut self,
        connection: &mut Connection,
        arrived: &Arrived<'_>,
        now: Duration,
    ) -> Result<Step, Ignored> {
        // Whatever is old, or lies within what we have allowed.
        let oldest = self.received + WINDOW.wrapping_neg();
        let allowed = oldest.distance_to(connection.edge()).max(0).cast_unsigned();
        let in_window = arrived.seq().within(oldest, allowed + 1);
        let (acked, has_ack) = (arrived.ack(), arrived.is(Flags::ACK));
        if in_window && self.hears_another(arrived) {
            let (flags, edge) = (Flags::RST, self.received);
            let reset = connection.segment_to_client(acked, edge, flags, Vec::new(), edge);
            return Ok(Step::Abort(reset));
        }
        if has_ack && !acked.within(self.start, self.len + 1) {
            return Err(Ignored::BadAck);
        }
        if !in_window {
            return Err(Ignored::OutsideWindow);
        }
        if arrived.is(Flags::RST) {
            return Ok(Step::Reset);
        }
        connection.note(arrived, self.received);
        if acked == self.end() {
            self.answer_acked = true;
            self.retry_at = None;
        }
        let answer = self.receive(arrived);
        if self.answer_acked && self.client_closed {
            self.ends = now + QUIET;
        }
        if !answer {
            return Ok(Step::Wait);
        }
        let next = self.end();
        Ok(Step::Send(self.say(
            connection,
            next,
            Flags::default(),
            Vec::new(),
        )))
    }

    /// Whether the client has had a part of another's answer: it echoes a clock that we have not
    /// said. If it has only heard that clock, it is ours from now on.
    fn hears_another(&mut self, arrived: &Arrived<'_>) -> bool {
        let echo = arrived.header.options.timestamps.map(|clocks| clocks.echo);
        let (Some(clock), Some(echo)) = (&mut self.clock, echo) else {
            return false;
        };
        if !arrived.is(Flags::ACK) || echo.wrapping_sub(*clock).cast_signed() <= 0 {
            return false;
        }
        let acked = arrived.ack();
        if acked == self.start {
            *clock = echo;
        }
        acked != self.start && acked.within(self.start, PLAUSIBLE)
    }

    /// Takes note of the client's bytes. What is thrown away need not have
    /// come: gaps count as received. True if it wants an acknowledgement.
    fn receive(&mut self, arrived: &Arrived<'_>) -> bool {
        let end = arrived.seq() + arrived.len();
        if !self.client_closed && self.received.before(end) {
            self.received = end;
            self.client_closed = arrived.is(Flags::FIN);
        }
        // A keepalive has no bytes either, but a number from before.
        arrived.len() > 0 || arrived.seq().before(self.received)
    }

    /// Behind all of it, the FIN included.
    fn end(&self) -> ServerSeq {
        self.start + self.len
    }

    pub(super) fn on_timeout(&mut self, connection: &mut Connection, now: Duration) -> Step {
        if now >= self.ends {
            return if self.client_closed {
                Step::Done
            } else {
                Step::Abort(self.reset(connection))
            };
        }
        match self.retry_at {
            Some(at) if at <= now => {
                self.tries += 1;
                self.retry_at = (self.tries < TRIES).then(|| now + FIRST_RETRY * (1 << self.tries));
                Step::Resend(self.segment(connection))
            }
            _ => Step::Wait,
        }
    }
}
