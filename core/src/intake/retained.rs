//! Bytes that we have acknowledged will not come again from the client: they
//! are kept until the backend says that it has them.

use super::flow::Connection;
use super::reading::Reading;
use crate::seq::ClientSeq;
use crate::wire::segment::Segment;
use crate::wire::tcp::Flags;
use std::time::Duration;

const FIRST_RETRY: Duration = Duration::from_millis(50);
/// What is short is repeated as often for so long: what a server without an agent acknowledges may come by any of
/// several dispatchers, and so by this one only now and then.
const FREQUENT: Duration = Duration::from_secs(1);
const SHORT: usize = 16 << 10;
const LONGEST_RETRY: Duration = Duration::from_secs(2);
/// Nobody has said for so long that the bytes get anywhere.
const GIVE_UP: Duration = Duration::from_secs(10);
/// A server whose host says that its socket stands, and which reads nothing, is busy or asleep. So long
/// proxies' users wait for theirs, and longer.
const PATIENCE: Duration = Duration::from_secs(120);
/// Of what the client does not repeat a server is sent so many bytes ahead of what it has: it has so much
/// room at its beginning.
const WINDOW: usize = 48 << 10;
/// It is a part of the way that loses there, and many windows are to follow.
const FIRST_RETRY_OF_LONG: Duration = Duration::from_millis(10);

/// The bytes of a flow that has been assigned.
#[derive(Clone, Debug)]
pub(super) struct Retained {
    /// From the client's first byte on.
    pub(super) bytes: Vec<u8>,
    /// What starts at the boundary behind them: looked at once they are confirmed.
    pub(super) rest: Option<Box<(Connection, Reading)>>,
    /// Bytes at the beginning that we have acknowledged.
    acked: usize,
    /// Bytes at the beginning that the backend must say it has.
    wanted: usize,
    /// Bytes at the beginning that the backend has.
    confirmed: usize,
    /// Bytes at the beginning that it has been sent.
    sent: usize,
    /// Whether a FIN follows the bytes.
    pub(super) fin: bool,
    /// Segment size towards the backend.
    mss: usize,
    /// How long, when it was last due.
    pub(super) waited: Duration,
    retry_at: Duration,
    retry_after: Duration,
    gives_up: Duration,
    /// From then on it is no excuse that the socket stands.
    loses_patience: Duration,
    /// The byte that the backend's socket has said last that it expects.
    reached: Option<ClientSeq>,
}

/// What the host says of the socket that is to have the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Socket {
    /// It stands, and there is room to wait for it.
    Stands,
    /// It has gone; or others need the room.
    NotWaitedFor,
}

/// What is due.
pub(super) enum Due {
    /// Send the unconfirmed bytes again, and probe.
    Resend,
    /// No backend has them: it is over.
    GiveUp,
}

impl Retained {
    /// What was acknowledged is kept; and `all`, if the client's own repetition of it will
    /// not do.
    pub(super) fn new(reading: &Reading, mss: usize, all: bool, now: Duration) -> Self {
        let bytes = reading.assembly.contiguous();
        let mut retained = Self {
            bytes: bytes.to_vec(),
            rest: None,
            acked: reading.acked,
            wanted: if all { bytes.len() } else { reading.acked },
            confirmed: 0,
            sent: 0,
            fin: reading.closed(),
            mss,
            waited: Duration::ZERO,
            retry_at: now + FIRST_RETRY,
            retry_after: FIRST_RETRY,
            gives_up: now + GIVE_UP,
            loses_patience: now + PATIENCE,
            reached: None,
        };
        retained.start_over();
        retained
    }

    /// Starts over with another backend; the time to give up stays.
    pub(super) fn reassign(&mut self, mss: usize, now: Duration) {
        self.mss = mss;
        self.start_over();
        self.retry_after = FIRST_RETRY;
        self.retry_at = now + FIRST_RETRY;
    }

    /// Has to wait so long; who says so is there, and may say so again.
    pub(super) fn put_off(&mut self, now: Duration, pause: Duration) {
        self.start_over();
        self.retry_after = pause;
        self.retry_at = now + pause;
        self.gets_on(now);
    }

    fn gets_on(&mut self, now: Duration) {
        self.gives_up = now + GIVE_UP;
        self.loses_patience = now + PATIENCE;
    }

    fn start_over(&mut self) {
        self.confirmed = 0;
        self.reached = None;
        self.sent = self.edge();
    }

    /// So far it is sent.
    fn edge(&self) -> usize {
        match self.is_long() {
            true => self.bytes.len().min(self.confirmed + WINDOW),
            false => self.bytes.len(),
        }
    }

    /// Is it sent piece by piece?
    fn is_long(&self) -> bool {
        self.wanted == self.bytes.len() && self.wanted > WINDOW
    }

    /// The backend has everything before `received`. True when that is all that it was
    /// kept for.
    pub(super) fn confirm(
        &mut self,
        now: Duration,
        start: ClientSeq,
        received: ClientSeq,
        socket: Socket,
    ) -> bool {
        let so_far = usize::try_from(start.distance_to(received)).unwrap_or(0);
        let confirmed = so_far.min(self.bytes.len());
        // It may lack what lies before the bytes, and read that.
        let before = self.reached.replace(received);
        if confirmed > self.confirmed || before.is_some_and(|before| before.before(received)) {
            self.gets_on(now);
        } else if socket == Socket::Stands {
            let longer = (now + GIVE_UP).min(self.loses_patience);
            self.gives_up = self.gives_up.max(longer);
        }
        if confirmed > self.confirmed && self.is_long() {
            self.retry_after = FIRST_RETRY_OF_LONG;
            self.retry_at = now + FIRST_RETRY_OF_LONG;
        }
        self.confirmed = self.confirmed.max(confirmed);
        self.confirmed >= self.wanted
    }

    /// What there is room for since the backend has said that it has more.
    pub(super) fn more(&mut self, connection: &Connection) -> Vec<Segment> {
        let from = self.sent;
        self.sent = self.edge();
        self.cut(connection, from)
    }

    pub(super) fn on_timeout(&mut self, now: Duration) -> Option<Due> {
        if now >= self.gives_up {
            return Some(Due::GiveUp);
        }
        if now < self.retry_at {
            return None;
        }
        self.waited = self.retry_after;
        let is_young = now + GIVE_UP < self.gives_up + FREQUENT;
        if !is_young || self.sent - self.confirmed > SHORT {
            self.retry_after = (self.retry_after * 2).min(LONGEST_RETRY);
        }
        self.retry_at = now + self.retry_after;
        Some(Due::Resend)
    }

    pub(super) fn deadline(&self) -> Duration {
        self.retry_at.min(self.gives_up)
    }

    /// The bytes that were sent and are not yet confirmed, as segments.
    pub(super) fn segments(&self, connection: &Connection) -> Vec<Segment> {
        self.cut(connection, self.confirmed)
    }

    /// The same once more: the backend may have heard later packets of the client's meanwhile.
    pub(super) fn repeated(&self, connection: &Connection) -> Vec<Segment> {
        let mut segments = self.segments(connection);
        for segment in &mut segments {
            segment.header.options = segment.header.options.aged();
        }
        segments
    }

    fn cut(&self, connection: &Connection, from: usize) -> Vec<Segment> {
        let fin = self.fin && self.sent == self.bytes.len();
        let bytes = &self.bytes[from..self.sent];
        segments(connection, from, bytes, fin, self.mss)
    }

    /// Bytes held of what follows.
    pub(super) fn rest_bytes(&self) -> usize {
        (self.rest.as_ref()).map_or(0, |rest| rest.1.assembly.bytes())
    }

    /// The number behind all that has come, FIN included.
    pub(super) fn end(&self, connection: &Connection) -> ClientSeq {
        connection.start() + self.bytes.len() as u32 + u32::from(self.fin)
    }

    /// The next byte that we have told the client to send.
    pub(super) fn received(&self, connection: &Connection) -> ClientSeq {
        connection.start() + self.acked as u32
    }

    /// An empty segment behind what the backend must say it has: when its socket has come and
    /// gone it says so of all that it is asked about, and no more.
    pub(super) fn probe(&self, connection: &Connection) -> Segment {
        let end = connection.start() + self.wanted as u32;
        connection.segment_to_backend(end, Flags::default(), Vec::new())
    }
}

/// What a reading holds, as segments for the backend. What waits beyond gaps goes
/// along behind the rest and is forgotten: the client may not send again what a SACK
/// has named, unless the server's own does not (RFC 2018 §8).
pub(super) fn all_segments(connection: &Connection, reading: &Reading, mss: usize) -> Vec<Segment> {
    let bytes = reading.assembly.contiguous();
    let mut all = segments(connection, 0, bytes, reading.closed(), mss);
    all.extend(segments_ahead(connection, reading, mss));
    all
}

/// What waits beyond gaps, as segments.
pub(super) fn segments_ahead(
    connection: &Connection,
    reading: &Reading,
    mss: usize,
) -> Vec<Segment> {
    let pieces = reading.assembly.ahead();
    pieces
        .flat_map(|(at, piece)| segments(connection, at, piece, false, mss))
        .collect()
}

/// Cuts `bytes`, of which the first is at `start` in the stream, into segments for
/// the backend: PSH on the last one, and FIN if the client's follows.
///
/// Only the one that starts the connection has timestamps. A retransmission of the
/// client's may have overtaken it and started the connection with a later clock; the
/// others would be refused by that one's (PAWS, RFC 7323 §5.3), for ever. So would all of
/// a later request that stays with its owner: what the client has said to that one while
/// the request waited here has a later clock. Linux takes segments without (against RFC
/// 7323 §3.2), and every backend is Linux. That owner's server may have closed, though, and
/// the request be the first of a new connection: then the clocks are needed.
fn segments(
    connection: &Connection,
    start: usize,
    bytes: &[u8],
    fin: bool,
    mss: usize,
) -> Vec<Segment> {
    let mss = mss.max(1);
    let last = bytes.len().saturating_sub(1) / mss;
    let cut = bytes.chunks(mss).enumerate().map(|(number, piece)| {
        let flags = match (number == last, fin) {
            (false, _) => Flags::default(),
            (true, false) => Flags::PSH,
            (true, true) => Flags::PSH | Flags::FIN,
        };
        let at = start + number * mss;
        let seq = connection.start() + at as u32;
        let mut segment = connection.segment_to_backend(seq, flags, piece.to_vec());
        let options = &mut segment.header.options;
        if at > 0 {
            options.timestamps = None;
        } else if connection.later {
            options.aged = options.timestamps.take();
        }
        segment
    });
    cut.collect()
}
