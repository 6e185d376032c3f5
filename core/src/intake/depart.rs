//! How flows leave the intake: to a backend, with an answer, or with a reset.

use super::*;
use crate::wire::segment::Segment;

/// Fits every path (RFC 9293 §3.7.1).
const SMALLEST_SEGMENT: u16 = 536;

impl Intake {
    pub(super) fn on_reading_due(
        &mut self,
        now: Duration,
        mut connection: Connection,
        serial: u64,
        mut reading: Reading,
    ) {
        if !reading.expired(now) {
            if reading.ack_is_due(now) {
                self.acknowledge(now, &mut connection, &mut reading);
            }
            self.table.put(Flow {
                connection,
                serial,
                phase: Phase::Reading(reading),
            });
            return;
        }
        if connection.later && reading.assembly.contiguous().is_empty() {
            self.stay(now, connection, serial, reading);
            return;
        }
        // It waits for the owner of the request before, which may be long in answering that.
        if connection.later {
            let key = connection.key;
            self.actions.push_back(Action::TooSlow { key });
            reading.prolong(now + self.bounds.head_timeout);
            self.table.put(Flow {
                connection,
                serial,
                phase: Phase::Reading(reading),
            });
            return;
        }
        self.counters.head_timeouts += 1;
        if reading.decided || reading.assembly.contiguous().is_empty() {
            self.reset(&mut connection, &reading);
            self.end(&connection, End::TimedOut);
        } else {
            let answer = if reading.is_tls() {
                Answer::Close
            } else {
                Answer::RequestTimeout
            };
            self.part(now, connection, &reading, answer, Body::Full);
        }
    }

    pub(super) fn on_retained_due(
        &mut self,
        now: Duration,
        mut connection: Connection,
        serial: u64,
        mut retained: Retained,
    ) {
        match retained.on_timeout(now) {
            // Its client says it again, or is gone.
            Some(Due::GiveUp) if retained.is_repeated(&connection) => return,
            Some(Due::GiveUp) => {
                let (seq, ack) = (connection.our_start(), retained.received(&connection));
                let reset = connection.segment_to_client(seq, ack, Flags::RST, Vec::new(), ack);
                self.send_reset(reset);
                self.end(&connection, End::Unconfirmed);
                return;
            }
            Some(Due::Resend) => {
                self.counters.resent += 1;
                connection.clock_goes_on(retained.waited);
                self.send_retained(&connection, &retained, retained.segments(&connection));
            }
            Some(Due::Ask) => self.ask(&connection, &retained),
            None => {}
        }
        self.table.put(Flow {
            connection,
            serial,
            phase: Phase::Retained(retained),
        });
    }

    /// Sends bytes of a retained flow, and asks how far they got.
    pub(super) fn send_retained(
        &mut self,
        connection: &Connection,
        retained: &Retained,
        segments: Vec<Segment>,
    ) {
        self.send_to_backend(connection, segments, retained.cut);
        if !retained.is_over(connection) {
            self.ask(connection, retained);
        }
    }

    fn ask(&mut self, connection: &Connection, retained: &Retained) {
        let (key, segment) = (connection.key, retained.probe(connection));
        self.actions.push_back(Action::Probe { key, segment });
    }

    fn send_to_backend(&mut self, connection: &Connection, segments: Vec<Segment>, cut: Cut) {
        let (key, mss) = (connection.key, cut.mss());
        let actions = segments
            .into_iter()
            .map(|segment| Action::ToBackend { key, segment, mss });
        self.actions.extend(actions);
    }

    /// Answers a flow whose bytes were held.
    pub(super) fn part(
        &mut self,
        now: Duration,
        connection: Connection,
        reading: &Reading,
        answer: Answer,
        body: Body,
    ) {
        let (received, fin) = (reading.end(&connection), reading.has_fin());
        let goodbye = Goodbye::new(&connection, answer, body, received, fin, now);
        self.say_goodbye(connection, goodbye);
    }

    /// Answers a connection of which this packet is all that we have.
    pub(super) fn part_at_packet(
        &mut self,
        now: Duration,
        arrived: &Arrived<'_>,
        answer: Answer,
        body: Body,
    ) {
        let connection = Connection::new(arrived, self.bounds.first_window.into());
        let received = connection.start().later_of(arrived.seq() + arrived.len());
        let fin = arrived.is(Flags::FIN);
        self.want_packets_of(&connection);
        let goodbye = Goodbye::new(&connection, answer, body, received, fin, now);
        self.say_goodbye(connection, goodbye);
    }

    pub(super) fn say_goodbye(&mut self, mut connection: Connection, goodbye: Goodbye) {
        while self.table.parting() >= self.bounds.answers.max(1) {
            let Some(Flow {
                mut connection,
                phase: Phase::Goodbye(oldest),
                ..
            }) = self.table.take_oldest_parting()
            else {
                break;
            };
            let reset = oldest.reset(&mut connection);
            self.send_reset(reset);
            self.end(&connection, End::Evicted);
        }
        self.counters.answers += 1;
        let is_too_large = matches!(
            goodbye.answer,
            Answer::HeadTooLarge | Answer::RECORD_OVERFLOW
        );
        self.counters.heads_too_large += u64::from(is_too_large);
        let segment = goodbye.segment(&mut connection);
        self.actions.push_back(Action::ToClient(segment));
        self.table.put_youngest(connection, Phase::Goodbye(goodbye));
    }

    pub(super) fn go_on_parting(
        &mut self,
        connection: Connection,
        serial: u64,
        goodbye: Goodbye,
        step: Step,
    ) {
        match step {
            Step::Wait => {}
            Step::Send(segment) => self.actions.push_back(Action::ToClient(segment)),
            Step::Resend(segment) => {
                self.counters.answers_resent += 1;
                self.actions.push_back(Action::ToClient(segment));
            }
            Step::Done => return self.end(&connection, End::Closed),
            Step::Reset => return self.end(&connection, End::ClientReset),
            Step::Abort(reset) => {
                self.send_reset(reset);
                return self.end(&connection, End::Lingered);
            }
        }
        self.table.put(Flow {
            connection,
            serial,
            phase: Phase::Goodbye(goodbye),
        });
    }

    /// What starts at an owner's boundary is the owner's, whatever it is.
    pub(super) fn stay(
        &mut self,
        now: Duration,
        connection: Connection,
        serial: u64,
        reading: Reading,
    ) {
        self.counters.stayed += 1;
        let key = connection.key;
        self.actions.push_back(Action::Stay { key });
        self.depart(now, connection, serial, reading, self.cut(SMALLEST_SEGMENT));
    }

    /// Sends what was read to its backend, and keeps what has been acknowledged.
    pub(super) fn depart(
        &mut self,
        now: Duration,
        connection: Connection,
        serial: u64,
        mut reading: Reading,
        cut: Cut,
    ) {
        let rest = reading.split_rest(now + self.bounds.head_timeout);
        let rest = rest.map(|(cut, rest)| (connection.rest(cut), rest));
        let ahead = retained::segments_ahead(&connection, &reading, cut);
        let mut retained = Retained::new(&reading, cut, connection.half_piped, now);
        self.send_retained(&connection, &retained, retained.segments(&connection));
        self.send_to_backend(&connection, ahead, cut);
        if !retained.is_over(&connection) {
            retained.rest = rest.map(Box::new);
            self.table.put(Flow {
                connection,
                serial,
                phase: Phase::Retained(retained),
            });
        } else if let Some((connection, reading)) = rest {
            self.table.put(Flow {
                connection,
                serial,
                phase: Phase::Reading(reading),
            });
        }
    }

    /// A flow that has to go for another one.
    pub(super) fn evict(&mut self, mut connection: Connection, reading: &Reading) {
        if connection.later {
            let key = connection.key;
            self.actions.push_back(Action::Stay { key });
            let cut = self.cut(SMALLEST_SEGMENT);
            let all = retained::all_segments(&connection, reading, cut);
            self.send_to_backend(&connection, all, cut);
            self.counters.ended(End::Evicted);
            return;
        }
        self.reset(&mut connection, reading);
        self.end(&connection, End::Evicted);
    }

    /// Nobody reads on here. What has been acknowledged of a head is lost with us, unless
    /// others have been told of it: its client hears of it at once. All other bytes come again,
    /// for whoever is next.
    pub fn abandon(&mut self) {
        if self.has_copied {
            return;
        }
        while let Some(flow) = self.table.take_reading_older_than(u64::MAX) {
            let mut connection = flow.connection;
            if let Phase::Reading(reading) = flow.phase
                && reading.acked > 0
            {
                self.reset(&mut connection, &reading);
                self.end(&connection, End::Abandoned);
            }
        }
    }

    fn reset(&mut self, connection: &mut Connection, reading: &Reading) {
        let (seq, ack) = (connection.our_start(), reading.received(connection));
        let reset = connection.segment_to_client(seq, ack, Flags::RST, Vec::new(), ack);
        self.send_reset(reset);
    }

    fn send_reset(&mut self, reset: Segment) {
        self.counters.resets += 1;
        self.actions.push_back(Action::ToClient(reset));
    }

    pub(super) fn want_packets_of(&mut self, connection: &Connection) {
        let Connection {
            key,
            isns,
            handshake,
            ..
        } = *connection;
        self.actions.push_back(Action::Reading {
            key,
            isns,
            handshake,
        });
    }

    pub(super) fn end(&mut self, connection: &Connection, why: End) {
        self.counters.ended(why);
        let Connection { key, isns, .. } = *connection;
        self.actions.push_back(Action::Ended { key, isns, why });
    }
}
