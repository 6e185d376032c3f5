//! The way of a packet through the intake.

use super::*;

impl Intake {
    pub(super) fn receive<Decision>(
        &mut self,
        now: Duration,
        arrived: &Arrived<'_>,
        inspect: impl FnMut(&[u8], &mut Progress) -> Looked<Decision>,
    ) -> Outcome<Decision> {
        if let Err(why) = check(arrived) {
            return Outcome::Ignored(why);
        }
        if arrived.later
            && let Some(flow) = self.table.take_retained(&arrived.key, arrived.cookie)
        {
            return self.on_rest(now, flow, arrived);
        }
        let Some(Flow {
            connection,
            serial,
            phase,
        }) = self.table.take_same(&arrived.key, arrived.isns)
        else {
            return self.on_new(now, arrived, inspect);
        };
        match phase {
            Phase::Reading(reading) if reading.decided => {
                self.on_decided(now, connection, serial, reading, arrived)
            }
            Phase::Reading(reading) => {
                self.on_reading(now, connection, serial, reading, arrived, inspect)
            }
            Phase::Retained(_) => {
                self.table.put(Flow {
                    connection,
                    serial,
                    phase,
                });
                Outcome::Assigned
            }
            Phase::Goodbye(goodbye) => self.on_parting(now, connection, serial, goodbye, arrived),
        }
    }

    /// What follows a request that a backend is still to confirm: it waits.
    fn on_rest<Decision>(
        &mut self,
        now: Duration,
        mut flow: Flow,
        arrived: &Arrived<'_>,
    ) -> Outcome<Decision> {
        let mut outcome = Outcome::Held;
        if let Phase::Retained(retained) = &mut flow.phase {
            let first_window = self.bounds.first_window.into();
            let (connection, reading) = &mut **retained.rest.get_or_insert_with(|| {
                let reading = Reading::new(now + self.bounds.head_timeout);
                Box::new((Connection::new(arrived, first_window), reading))
            });
            if connection.isns != arrived.isns || self.table.bytes() > self.bounds.bytes {
                outcome = Outcome::Ignored(Ignored::Full);
            } else if let Err(why) = reading.take_in(connection, arrived, self.capacity()) {
                outcome = Outcome::Ignored(why);
            }
        }
        self.table.put(flow);
        outcome
    }

    /// The first packet of a connection that we see.
    fn on_new<Decision>(
        &mut self,
        now: Duration,
        arrived: &Arrived<'_>,
        mut inspect: impl FnMut(&[u8], &mut Progress) -> Looked<Decision>,
    ) -> Outcome<Decision> {
        if arrived.is(Flags::RST) {
            return Outcome::Ignored(Ignored::Reset);
        }
        if !arrived.later && arrived.ack() != arrived.isns.server + 1 {
            return Outcome::Ignored(Ignored::BadAck);
        }
        let in_order = arrived.seq() == arrived.isns.client + 1;
        if arrived.payload.is_empty() {
            return if in_order && arrived.is(Flags::FIN) && !arrived.later {
                self.close_silently(arrived)
            } else {
                Outcome::Ignored(Ignored::Empty)
            };
        }

        let mut reading = Reading::new(now + self.bounds.head_timeout);
        let mut cut = None;
        if in_order && !arrived.later {
            match inspect(arrived.payload, &mut reading.progress) {
                Looked::Done(decision) => {
                    self.replace(&arrived.key);
                    return Outcome::Complete(decision);
                }
                Looked::Cut(decision, end) if end >= arrived.payload.len() => {
                    self.replace(&arrived.key);
                    return Outcome::Complete(decision);
                }
                Looked::Cut(decision, end) => cut = Some((decision, end)),
                Looked::Bad(answer) => {
                    self.answer(now, arrived, answer, Body::Full);
                    return Outcome::Answering;
                }
                Looked::More => reading.inspected = arrived.payload.len(),
            }
        }
        let mut connection = Connection::new(arrived, self.bounds.first_window.into());
        let taken = match reading.take_in(&mut connection, arrived, self.capacity()) {
            Ok(taken) => taken,
            Err(why) => return Outcome::Ignored(why),
        };
        if let Taken::Known(_, why) = taken {
            return Outcome::Ignored(why);
        }
        self.replace(&arrived.key);
        let serial = self.table.next_serial();
        if !self.make_room(serial, reading.assembly.bytes()) {
            return Outcome::Ignored(Ignored::Full);
        }
        if let Some((decision, end)) = cut {
            reading.decide(Some(end));
            self.table.put(Flow {
                connection,
                serial,
                phase: Phase::Reading(reading),
            });
            return Outcome::Decide(decision);
        }
        if !arrived.later {
            self.want_packets_of(&connection);
        }
        self.read_on(now, connection, serial, reading, taken, inspect)
    }

    /// A packet of a flow whose head is incomplete.
    fn on_reading<Decision>(
        &mut self,
        now: Duration,
        mut connection: Connection,
        serial: u64,
        mut reading: Reading,
        arrived: &Arrived<'_>,
        inspect: impl FnMut(&[u8], &mut Progress) -> Looked<Decision>,
    ) -> Outcome<Decision> {
        let heard_more = arrived.is(Flags::ACK) && arrived.ack() != connection.our_start();
        let taken = if heard_more && !connection.later {
            Err(Ignored::BadAck)
        } else if arrived.is(Flags::RST) {
            match reading.judge_reset(&connection, arrived.seq()) {
                Reset::Clients => {
                    self.end(&connection, End::ClientReset);
                    return Outcome::Ignored(Ignored::Reset);
                }
                Reset::Doubtful => {
                    self.acknowledge(now, &mut connection, &mut reading);
                    Err(Ignored::InexactReset)
                }
                Reset::Strangers => Err(Ignored::OutsideWindow),
            }
        } else {
            reading.take_in(&mut connection, arrived, self.capacity())
        };
        let taken = match taken {
            Ok(taken) => taken,
            Err(why) => {
                self.table.put(Flow {
                    connection,
                    serial,
                    phase: Phase::Reading(reading),
                });
                return Outcome::Ignored(why);
            }
        };
        if !self.make_room(serial, reading.assembly.bytes()) {
            self.evict(connection, &reading);
            return Outcome::Ignored(Ignored::Full);
        }
        self.read_on(now, connection, serial, reading, taken, inspect)
    }

    /// Looks at what has come together.
    pub(super) fn read_on<Decision>(
        &mut self,
        now: Duration,
        mut connection: Connection,
        serial: u64,
        mut reading: Reading,
        taken: Taken,
        mut inspect: impl FnMut(&[u8], &mut Progress) -> Looked<Decision>,
    ) -> Outcome<Decision> {
        let bytes = reading.assembly.contiguous();
        if bytes.len() > reading.inspected {
            match inspect(bytes, &mut reading.progress) {
                Looked::More => reading.inspected = bytes.len(),
                looked @ (Looked::Done(_) | Looked::Cut(..)) => {
                    let (decision, cut) = match looked {
                        Looked::Cut(decision, end) => (decision, Some(end)),
                        Looked::Done(decision) => (decision, None),
                        Looked::More | Looked::Bad(_) => unreachable!("not in this arm"),
                    };
                    reading.decide(cut);
                    if connection.later {
                        reading.wait_until(now + self.bounds.head_timeout * 3);
                    }
                    self.table.put(Flow {
                        connection,
                        serial,
                        phase: Phase::Reading(reading),
                    });
                    return Outcome::Decide(decision);
                }
                Looked::Bad(answer) => {
                    self.part(now, connection, &reading, answer, Body::Full);
                    return Outcome::Answering;
                }
            }
        }
        let too_large = reading.inspected >= self.bounds.head_bytes;
        if connection.later && (too_large || reading.closed()) {
            self.stay(now, connection, serial, reading);
            return Outcome::Assigned;
        }
        if too_large {
            let answer = if reading.is_tls() {
                Answer::RECORD_OVERFLOW
            } else {
                Answer::HeadTooLarge
            };
            self.part(now, connection, &reading, answer, Body::Full);
            return Outcome::Answering;
        }
        if reading.closed() {
            self.part(now, connection, &reading, Answer::Close, Body::Full);
            return Outcome::Answering;
        }
        let (urgency, outcome) = match taken {
            Taken::News(urgency) => (urgency, Outcome::Held),
            Taken::Known(urgency, why) => (urgency, Outcome::Ignored(why)),
        };
        if reading.wants_ack(urgency, now) {
            self.acknowledge(now, &mut connection, &mut reading);
        }
        self.table.put(Flow {
            connection,
            serial,
            phase: Phase::Reading(reading),
        });
        outcome
    }

    /// An acknowledgement covers all that lies before it, too. Where a backend's part
    /// lies there, it is asked first whether it has that.
    pub(super) fn acknowledge(
        &mut self,
        now: Duration,
        connection: &mut Connection,
        reading: &mut Reading,
    ) {
        if !connection.settled {
            reading.ack_later(now);
            self.actions.push_back(Action::Probe {
                key: connection.key,
                segment: connection.segment_to_backend(
                    connection.start(),
                    Flags::default(),
                    Vec::new(),
                ),
            });
            return;
        }
        let edge = self.edge(connection);
        if self.has_copied && reading.assembly.contiguous().len() > reading.acked {
            let kept = connection.kept(reading.acked, reading.assembly.contiguous());
            self.actions.push_back(Action::Keep(kept));
        }
        let ack = reading.acknowledge(connection, edge);
        // An owner goes on meanwhile: the next time it is asked again.
        connection.settled = !connection.later;
        self.counters.acks += 1;
        self.actions.push_back(Action::ToClient(ack));
    }

    /// A packet of a flow that the caller has not assigned yet.
    fn on_decided<Decision>(
        &mut self,
        now: Duration,
        mut connection: Connection,
        serial: u64,
        mut reading: Reading,
        arrived: &Arrived<'_>,
    ) -> Outcome<Decision> {
        // It waits for its owner to give it up, and what follows waits with it: perhaps longer than
        // its client would repeat it.
        if connection.later {
            let taken = reading.take_in(&mut connection, arrived, self.capacity());
            if matches!(taken, Ok(Taken::Known(_, Ignored::Duplicate))) {
                self.acknowledge(now, &mut connection, &mut reading);
            }
        }
        if arrived.is(Flags::RST)
            && reading.judge_reset(&connection, arrived.seq()) == Reset::Clients
        {
            self.end(&connection, End::ClientReset);
            return Outcome::Ignored(Ignored::Reset);
        }
        self.table.put(Flow {
            connection,
            serial,
            phase: Phase::Reading(reading),
        });
        Outcome::Assigned
    }

    /// A packet of a flow that we answer.
    fn on_parting<Decision>(
        &mut self,
        now: Duration,
        mut connection: Connection,
        serial: u64,
        mut goodbye: Goodbye,
        arrived: &Arrived<'_>,
    ) -> Outcome<Decision> {
        match goodbye.on_packet(&mut connection, arrived, now) {
            Ok(step) => {
                self.go_on_parting(connection, serial, goodbye, step);
                Outcome::Answering
            }
            Err(why) => {
                self.table.put(Flow {
                    connection,
                    serial,
                    phase: Phase::Goodbye(goodbye),
                });
                Outcome::Ignored(why)
            }
        }
    }

    /// A client that closes without a byte is answered without state: if the
    /// answer is lost, its FIN comes again.
    fn close_silently<Decision>(&mut self, arrived: &Arrived<'_>) -> Outcome<Decision> {
        self.replace(&arrived.key);
        let mut connection = Connection::new(arrived, self.bounds.first_window.into());
        let (seq, ack) = (connection.our_start(), connection.start() + 1);
        let segment = connection.segment_to_client(seq, ack, Flags::FIN, Vec::new(), ack);
        self.actions.push_back(Action::ToClient(segment));
        Outcome::Closed
    }

    /// Evicts flows older than `serial` until it may have `bytes`.
    fn make_room(&mut self, serial: u64, bytes: usize) -> bool {
        while self.table.held() >= self.bounds.flows
            || self.table.bytes() + bytes > self.bounds.bytes
        {
            let Some(Flow {
                connection,
                phase: Phase::Reading(reading),
                ..
            }) = self.table.take_reading_older_than(serial)
            else {
                return false;
            };
            self.evict(connection, &reading);
        }
        true
    }

    /// A flow of the same 4-tuple and other beginnings is over.
    pub(super) fn replace(&mut self, key: &FlowKey) {
        match self.table.take(key) {
            None => {}
            // Its record names a backend: what replaces it, replaces that too.
            Some(Flow {
                phase: Phase::Retained(_),
                ..
            }) => {
                self.counters.ended(End::Replaced);
            }
            Some(flow) => self.end(&flow.connection, End::Replaced),
        }
    }

    /// How far the client may send while its head is read.
    pub(super) fn edge(&self, connection: &Connection) -> ClientSeq {
        connection.start() + self.bounds.reach()
    }
}

/// What every packet must be like.
fn check(arrived: &Arrived<'_>) -> Result<(), Ignored> {
    if arrived.checksum == TcpChecksum::Wrong {
        return Err(Ignored::BadChecksum);
    }
    let ends_or_acks = arrived.is(Flags::ACK) || arrived.is(Flags::RST);
    if arrived.is(Flags::SYN) || !ends_or_acks {
        return Err(Ignored::BadFlags);
    }
    Ok(())
}
