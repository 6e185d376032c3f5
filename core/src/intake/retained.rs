//! Bytes that we have acknowledged will not come again from the client: they
//! are kept until the backend says that it has them. So are those that it has no room for at once.

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
/// Of more than this a server is sent so many bytes ahead of what it has: a new socket has room for three times as many.
/// The client has sent what the owner before had room for; what there is none for would wait for that one's timer.
const WINDOW: usize = 32 << 10;
/// What it has taken whole it is sent so much more of, as its room grows while it reads, up to this.
const LARGEST_WINDOW: usize = 256 << 10;
/// The question goes another way than the bytes do, and may come there before them, or before the server has said
/// that it has them: then it is asked again, without them.
const ASK_AGAIN: Duration = Duration::from_micros(500);
/// It is a part of the way that loses there, and many windows are to follow.
const FIRST_RETRY_OF_LONG: Duration = Duration::from_millis(10);

/// How streams are cut for backends.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cut {
    mss: u16,
    burst: usize,
}

impl Cut {
    /// In segments of at most `mss` bytes of payload; behind the one with which a request starts in those of `burst`,
    /// if that is more, which somebody else cuts.
    pub(super) fn new(mss: u16, burst: usize) -> Self {
        let mss = mss.max(1);
        Self {
            mss,
            burst: burst.max(mss.into()),
        }
    }

    pub(super) fn mss(self) -> u16 {
        self.mss
    }
}

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
    /// How far that may be ahead of what it has, if the bytes are many.
    window: usize,
    /// Whether a FIN follows the bytes.
    pub(super) fin: bool,
    /// How they are cut.
    pub(super) cut: Cut,
    /// How long, when it was last due.
    pub(super) waited: Duration,
    retry_at: Duration,
    retry_after: Duration,
    /// The same of the question alone.
    ask_at: Duration,
    ask_after: Duration,
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
    /// Probe.
    Ask,
    /// No backend has them: it is over.
    GiveUp,
}

impl Retained {
    /// What was acknowledged is kept; and `all`, if the client's own repetition of it will
    /// not do, or it is long.
    pub(super) fn new(reading: &Reading, cut: Cut, all: bool, now: Duration) -> Self {
        let bytes = reading.assembly.contiguous();
        let all = all || bytes.len() > WINDOW;
        let mut retained = Self {
            bytes: bytes.to_vec(),
            rest: None,
            acked: reading.acked,
            wanted: if all { bytes.len() } else { reading.acked },
            confirmed: 0,
            sent: 0,
            window: WINDOW,
            fin: reading.closed(),
            cut,
            waited: Duration::ZERO,
            retry_at: now + FIRST_RETRY,
            retry_after: FIRST_RETRY,
            ask_at: now + ASK_AGAIN,
            ask_after: ASK_AGAIN,
            gives_up: now + GIVE_UP,
            loses_patience: now + PATIENCE,
            reached: None,
        };
        retained.start_over();
        retained
    }

    /// Starts over with another backend; the time to give up stays.
    pub(super) fn reassign(&mut self, cut: Cut, now: Duration) {
        self.cut = cut;
        self.start_over();
        self.retry_after = FIRST_RETRY;
        self.retry_at = now + FIRST_RETRY;
        self.ask_after = ASK_AGAIN;
        self.ask_at = now + ASK_AGAIN;
    }

    /// Has to wait so long; who says so is there, and may say so again.
    pub(super) fn put_off(&mut self, now: Duration, pause: Duration) {
        self.start_over();
        self.retry_after = pause;
        self.retry_at = now + pause;
        self.ask_at = now + pause;
        self.gets_on(now);
    }

    fn gets_on(&mut self, now: Duration) {
        self.gives_up = now + GIVE_UP;
        self.loses_patience = now + PATIENCE;
    }

    fn start_over(&mut self) {
        self.confirmed = 0;
        self.window = WINDOW;
        self.reached = None;
        self.sent = self.edge();
    }

    /// So far it is sent.
    fn edge(&self) -> usize {
        match self.is_long() {
            true => self.bytes.len().min(self.confirmed + self.window),
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
            self.ask_after = ASK_AGAIN;
            self.ask_at = now + ASK_AGAIN;
        }
        if confirmed > self.confirmed && confirmed == self.sent {
            self.window = LARGEST_WINDOW.min(self.window + WINDOW);
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

    /// Is there nothing to wait for? What its client repeats has only to be sent; but an owner after a half-pipe is set up
    /// by us alone (docs/protocol/handoff.md 6.7).
    pub(super) fn is_over(&self, connection: &Connection) -> bool {
        self.is_repeated(connection) && !self.is_long()
    }

    pub(super) fn on_timeout(&mut self, now: Duration) -> Option<Due> {
        if now >= self.gives_up {
            return Some(Due::GiveUp);
        }
        if now < self.retry_at {
            if now < self.ask_at {
                return None;
            }
            self.ask_after *= 2;
            self.ask_at = match self.is_long() || 2 * self.ask_after < FIRST_RETRY {
                true => now + self.ask_after,
                false => Duration::MAX,
            };
            return Some(Due::Ask);
        }
        self.waited = self.retry_after;
        let is_young = now + GIVE_UP < self.gives_up + FREQUENT;
        if !is_young || self.sent - self.confirmed > SHORT {
            self.retry_after = (self.retry_after * 2).min(LONGEST_RETRY);
        }
        self.retry_at = now + self.retry_after;
        self.window = WINDOW;
        self.sent = self.sent.min(self.edge());
        Some(Due::Resend)
    }

    pub(super) fn deadline(&self) -> Duration {
        self.retry_at.min(self.gives_up).min(self.ask_at)
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
        segments(connection, from, bytes, fin, self.cut)
    }

    /// Bytes held of what follows.
    pub(super) fn rest_bytes(&self) -> usize {
        (self.rest.as_ref()).map_or(0, |rest| rest.1.assembly.bytes())
    }

    /// Does its client repeat it, if it gets nowhere?
    pub(super) fn is_repeated(&self, connection: &Connection) -> bool {
        self.acked == 0 && !connection.half_piped
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
pub(super) fn all_segments(connection: &Connection, reading: &Reading, cut: Cut) -> Vec<Segment> {
    let bytes = reading.assembly.contiguous();
    let mut all = segments(connection, 0, bytes, reading.closed(), cut);
    all.extend(segments_ahead(connection, reading, cut));
    all
}

/// What waits beyond gaps, as segments.
pub(super) fn segments_ahead(connection: &Connection, reading: &Reading, cut: Cut) -> Vec<Segment> {
    let pieces = reading.assembly.ahead();
    pieces
        .flat_map(|(at, piece)| segments(connection, at, piece, false, cut))
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
    cut: Cut,
) -> Vec<Segment> {
    let first = if start == 0 { cut.mss.into() } else { 0 };
    let (first, rest) = bytes.split_at(bytes.len().min(first));
    let pieces = first.chunks(cut.mss.into()).chain(rest.chunks(cut.burst));
    let mut at = start;
    let cut = pieces.map(|piece| {
        let flags = match (at + piece.len() == start + bytes.len(), fin) {
            (false, _) => Flags::default(),
            (true, false) => Flags::PSH,
            (true, true) => Flags::PSH | Flags::FIN,
        };
        let seq = connection.start() + at as u32;
        let mut segment = connection.segment_to_backend(seq, flags, piece.to_vec());
        let options = &mut segment.header.options;
        if at > 0 {
            options.timestamps = None;
        } else if connection.later {
            options.aged = options.timestamps.take();
        }
        at += piece.len();
        segment
    });
    cut.collect()
}
