//! A head in the making: takes the client's bytes in, and knows when they must
//! be acknowledged.

use super::assembly::{Assembly, Inserted};
use super::events::{Arrived, Ignored};
use super::flow::Connection;
use super::sack::Sack;
use crate::head::Progress;
use crate::seq::ClientSeq;
use crate::wire::segment::Segment;
use crate::wire::tcp::Flags;
use std::time::Duration;

/// More unacknowledged bytes than this would stall a client's first window.
const ACK_BYTES: usize = 8 * 1024;
/// A client that waits for an acknowledgement before it goes on (RFC 896)
/// waits this long; a head in several packets has mostly come by then, and
/// what is not acknowledged need not be retained.
const ACK_DELAY: Duration = Duration::from_millis(10);

/// A head in the making.
#[derive(Clone, Debug)]
pub(super) struct Reading {
    pub(super) assembly: Assembly,
    /// Bytes at the beginning that an inspection has found incomplete.
    pub(super) inspected: usize,
    /// Where the inspection stands.
    pub(super) progress: Progress,
    /// Bytes at the beginning that we have acknowledged.
    pub(super) acked: usize,
    /// What acknowledgements say beyond their number.
    sack: Sack,
    /// Where the client's FIN stands.
    fin: Option<usize>,
    /// When bytes not yet acknowledged will be.
    ack_due: Option<Duration>,
    /// When the client has had time enough.
    expires: Duration,
    /// Complete: waits for the caller.
    pub(super) decided: bool,
    /// What follows from here on is not part of it.
    cut: Option<usize>,
}

/// What taking a packet in did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// Bytes or a FIN were new.
    News(Urgency),
    /// Nothing was.
    Known(Urgency, Ignored),
}

/// When the client wants to hear of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Urgency {
    /// At once (RFC 5681 §4.2: gaps, repetitions).
    Now,
    /// When there is enough to say.
    Later,
}

/// A reset, by its place (RFC 5961 §3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reset {
    /// Exactly where the client's must be.
    Clients,
    /// In the window: the client, if it is its own, answers an acknowledgement by
    /// one that is exact.
    Doubtful,
    /// Anywhere else.
    Strangers,
}

impl Reading {
    pub(super) fn new(expires: Duration) -> Self {
        Self {
            assembly: Assembly::default(),
            inspected: 0,
            progress: Progress::default(),
            acked: 0,
            sack: Sack::default(),
            fin: None,
            ack_due: None,
            expires,
            decided: false,
            cut: None,
        }
    }

    /// Does anything lie behind the place where it is cut? A FIN right there goes with what
    /// lies before.
    pub(super) fn has_rest(&self) -> bool {
        self.cut
            .is_some_and(|cut| self.assembly.end().max(self.fin.unwrap_or(0)) > cut)
    }

    /// Takes off what lies behind the place where it is cut, if anything does.
    pub(super) fn split_rest(&mut self, expires: Duration) -> Option<(usize, Self)> {
        let cut = self.cut.filter(|_| self.has_rest())?;
        let rest = Self {
            assembly: self.assembly.split_off(cut),
            acked: self.acked.saturating_sub(cut),
            fin: self.fin.and_then(|fin| fin.checked_sub(cut)),
            ..Self::new(expires)
        };
        self.acked = self.acked.min(cut);
        self.fin = self.fin.filter(|&fin| fin < cut);
        Some((cut, rest))
    }

    /// Takes in the bytes and the FIN of a packet, up to `capacity` bytes
    /// after the stream's start.
    pub(super) fn take_in(
        &mut self,
        connection: &mut Connection,
        arrived: &Arrived<'_>,
        capacity: usize,
    ) -> Result<Taken, Ignored> {
        let offset = connection.start().distance_to(arrived.seq());
        let early = usize::try_from(offset.min(0).unsigned_abs()).unwrap_or(usize::MAX);
        let offset = usize::try_from(offset.max(0)).unwrap_or(usize::MAX);
        if offset > capacity || early > capacity {
            return Err(Ignored::OutsideWindow);
        }
        connection.note(arrived, self.received(connection));

        let payload = arrived.payload.get(early..).unwrap_or(&[]);
        let limit = self.fin.unwrap_or(capacity).saturating_sub(offset);
        let had_gap = self.assembly.has_gap();
        let bytes = &payload[..payload.len().min(limit)];
        let place = offset..offset + bytes.len();
        let inserted = self.assembly.insert(offset, bytes);
        let fin_is_new = arrived.is(Flags::FIN) && self.note_fin(offset + payload.len(), capacity);

        let in_gap = had_gap || self.assembly.has_gap();
        let repeated = early > 0 || offset < self.acked || (in_gap && !bytes.is_empty());
        match inserted {
            Inserted::Ahead => self.sack.came(place),
            Inserted::Nothing if repeated => self.sack.came_again(place),
            _ => {}
        }
        Ok(match inserted {
            Inserted::Grew | Inserted::Ahead if in_gap => Taken::News(Urgency::Now),
            Inserted::Grew | Inserted::Ahead => Taken::News(Urgency::Later),
            Inserted::Scattered => Taken::Known(Urgency::Now, Ignored::Scattered),
            Inserted::Nothing if fin_is_new => Taken::News(Urgency::Later),
            Inserted::Nothing if repeated => Taken::Known(Urgency::Now, Ignored::Duplicate),
            Inserted::Nothing if arrived.payload.is_empty() => {
                Taken::Known(Urgency::Later, Ignored::Empty)
            }
            Inserted::Nothing => Taken::Known(Urgency::Later, Ignored::Duplicate),
        })
    }

    /// A FIN behind everything held ends the stream; the first one counts.
    fn note_fin(&mut self, at: usize, capacity: usize) -> bool {
        let news = self.fin.is_none() && at >= self.assembly.end() && at <= capacity;
        if news {
            self.fin = Some(at);
        }
        news
    }

    /// Whose may a reset at `seq` be?
    pub(super) fn judge_reset(&self, connection: &Connection, seq: ClientSeq) -> Reset {
        // At the end of what came beyond a gap too, as Linux has it: the client has
        // sent no more.
        let next = self.received(connection);
        if seq == next || seq == self.end(connection) {
            return Reset::Clients;
        }
        match next.at_or_before(seq) && seq.at_or_before(connection.edge()) {
            true => Reset::Doubtful,
            false => Reset::Strangers,
        }
    }

    /// Is an acknowledgement due at once? Else notes when.
    pub(super) fn wants_ack(&mut self, urgency: Urgency, now: Duration) -> bool {
        let waiting = self.assembly.contiguous().len() - self.acked;
        if urgency == Urgency::Now || waiting >= ACK_BYTES {
            return true;
        }
        if waiting > 0 && self.ack_due.is_none() {
            self.ack_due = Some(now + ACK_DELAY);
        }
        false
    }

    /// Is the delay of an acknowledgement over?
    pub(super) fn ack_is_due(&self, now: Duration) -> bool {
        self.ack_due.is_some_and(|due| due <= now)
    }

    /// It has to wait for a backend's word.
    pub(super) fn ack_later(&mut self, now: Duration) {
        self.ack_due = Some(now + ACK_DELAY);
    }

    /// The acknowledgement.
    pub(super) fn acknowledge(&mut self, connection: &mut Connection, edge: ClientSeq) -> Segment {
        self.ack_due = None;
        self.acked = self.assembly.contiguous().len();
        let (seq, ack) = (connection.our_next(), self.received(connection));
        let mut segment =
            connection.segment_to_client(seq, ack, Flags::default(), Vec::new(), edge);
        let start = connection.start();
        for block in self
            .sack
            .take_blocks(&self.assembly, connection.sack_room())
        {
            let (from, to) = (start + block.start as u32, start + block.end as u32);
            segment.header.options.sack.push(from.raw(), to.raw());
        }
        segment
    }

    /// That the backend lacks what follows `received`, though what is read here has come: so that
    /// the client sends the rest again without waiting for its timer (RFC 2018, RFC 5681 §3.2).
    pub(super) fn tell_gap(
        &mut self,
        connection: &mut Connection,
        received: ClientSeq,
        edge: ClientSeq,
    ) -> Segment {
        let seq = connection.our_next();
        let mut segment =
            connection.segment_to_client(seq, received, Flags::default(), Vec::new(), edge);
        let start = connection.start();
        let room = connection.sack_room();
        let first = 0..self.assembly.contiguous().len();
        let ahead = self.sack.take_blocks(&self.assembly, room);
        let blocks = std::iter::once(first).chain(ahead);
        for block in blocks.filter(|block| !block.is_empty()).take(room) {
            let (from, to) = (start + block.start as u32, start + block.end as u32);
            segment.header.options.sack.push(from.raw(), to.raw());
        }
        segment
    }

    /// Complete: only the caller's decision is missing.
    pub(super) fn decide(&mut self, cut: Option<usize>) {
        self.decided = true;
        self.ack_due = None;
        self.cut = cut;
    }

    /// It waits for its turn, not for the client.
    pub(super) fn wait_until(&mut self, expires: Duration) {
        self.expires = self.expires.max(expires);
    }

    /// The next byte in order.
    pub(super) fn received(&self, connection: &Connection) -> ClientSeq {
        connection.start() + self.assembly.contiguous().len() as u32
    }

    /// The number behind all that has come, FIN included, gaps or not.
    pub(super) fn end(&self, connection: &Connection) -> ClientSeq {
        let end = self.fin.map_or(self.assembly.end(), |fin| fin + 1);
        connection.start() + end as u32
    }

    /// Has the client said FIN, in order or not?
    pub(super) fn has_fin(&self) -> bool {
        self.fin.is_some()
    }

    /// Has everything up to the client's FIN come?
    pub(super) fn closed(&self) -> bool {
        self.fin == Some(self.assembly.contiguous().len())
    }

    /// Has the client had time enough?
    pub(super) fn expired(&self, now: Duration) -> bool {
        self.expires <= now
    }

    /// Does the stream start like a TLS handshake's record?
    pub(super) fn is_tls(&self) -> bool {
        self.assembly.contiguous().first() == Some(&22)
    }

    /// There is time until then.
    pub(super) fn prolong(&mut self, expires: Duration) {
        self.expires = expires;
    }

    pub(super) fn deadline(&self) -> Duration {
        self.ack_due
            .map_or(self.expires, |due| due.min(self.expires))
    }
}
