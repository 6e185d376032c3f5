//! What a capture tells of one connection: what matters singly, and all else in sums.

use std::time::Duration;

use trapeze_core::wire::geneve;
use trapeze_core::wire::ipv4;
use trapeze_core::wire::meta::Kind;
use trapeze_core::wire::tcp::{Flags, Header};

use crate::capture::Arrival;

/// A line of the story.
pub enum Event {
    /// Something goes from one host to another.
    Message {
        at: Duration,
        from: String,
        to: String,
        says: String,
    },
    /// What the one who tells it knows.
    Remark { at: Duration, says: String },
}

impl Event {
    pub fn at(&self) -> Duration {
        match self {
            Self::Message { at, .. } | Self::Remark { at, .. } => *at,
        }
    }
}

/// Where wedges listen (docs/protocol/takeover.md 4.3).
const WEDGE_PORT: u16 = 6083;

/// What one arrival says.
enum Word {
    /// Worth a line.
    Single(String),
    /// Bytes of the answer, from one number of it to another.
    Data(u32, u32),
    /// Up to where the client has the answer.
    Ack(u32),
    /// The same, on its way to the owner.
    Forwarded(u32),
}

/// Sums until the next line of its own.
#[derive(Default)]
struct Sums(Vec<(String, String, Sum)>);

struct Sum {
    at: Duration,
    count: usize,
    first: u32,
    last: u32,
    what: &'static str,
}

/// Tells it. `remarks` are put where they belong.
pub fn tell(arrivals: &[Arrival], remarks: Vec<(Duration, String)>) -> Vec<Event> {
    let mut numbers = Numbers::default();
    let mut events = Vec::new();
    let mut sums = Sums::default();
    let mut remarks = remarks.into_iter().peekable();
    let mut asked = false;
    for arrival in arrivals {
        while let Some((at, says)) = remarks.next_if(|(at, _)| *at <= arrival.at) {
            sums.flush(&mut events);
            events.push(Event::Remark { at, says });
        }
        let Some(word) = numbers.read(arrival) else {
            continue;
        };
        let what = match word {
            Word::Single(says) => {
                asked = says.starts_with("an octet");
                sums.flush(&mut events);
                events.push(Event::Message {
                    at: arrival.at,
                    from: arrival.from.clone(),
                    to: arrival.to.clone(),
                    says,
                });
                continue;
            }
            // The answer to the question.
            Word::Ack(ack) if asked => {
                asked = false;
                sums.flush(&mut events);
                events.push(Event::Message {
                    at: arrival.at,
                    from: arrival.from.clone(),
                    to: arrival.to.clone(),
                    says: format!("ack {ack}"),
                });
                continue;
            }
            Word::Ack(ack) => ("ack", ack, ack),
            Word::Forwarded(ack) => ("FORWARD, ack", ack, ack),
            Word::Data(from, to) => ("seq", from, to),
        };
        sums.add(arrival, what);
    }
    sums.flush(&mut events);
    events.extend(remarks.map(|(at, says)| Event::Remark { at, says }));
    events
}

impl Sums {
    fn add(&mut self, arrival: &Arrival, (what, first, last): (&'static str, u32, u32)) {
        let known = (self.0.iter_mut())
            .find(|(from, to, sum)| *from == arrival.from && *to == arrival.to && sum.what == what);
        match known {
            Some((_, _, sum)) => {
                sum.count += 1;
                sum.first = sum.first.min(first);
                sum.last = sum.last.max(last);
            }
            None => self.0.push((
                arrival.from.clone(),
                arrival.to.clone(),
                Sum {
                    at: arrival.at,
                    count: 1,
                    first,
                    last,
                    what,
                },
            )),
        }
    }

    fn flush(&mut self, events: &mut Vec<Event>) {
        for (from, to, sum) in self.0.drain(..) {
            let times = match sum.count {
                1 => String::new(),
                count => format!(" ({count} segments)"),
            };
            let numbers = match sum.first == sum.last {
                true => format!("{}", sum.last),
                false => format!("{}:{}", sum.first, sum.last),
            };
            events.push(Event::Message {
                at: sum.at,
                from,
                to,
                says: format!("{} {numbers}{times}", sum.what),
            });
        }
    }
}

/// The connection's beginnings: numbers are told from there.
#[derive(Default)]
struct Numbers {
    client: u32,
    server: Option<u32>,
}

impl Numbers {
    fn read(&mut self, arrival: &Arrival) -> Option<Word> {
        let packet = ipv4::Packet::parse(&arrival.packet).ok()?;
        if packet.protocol() == ipv4::PROTOCOL_TCP {
            let (header, payload) = Header::parse(packet.payload()).ok()?;
            return self.read_segment(arrival, &header, payload);
        }
        let enclosed = geneve::parse(packet.payload().get(8..)?).ok()?;
        let inner = ipv4::Packet::parse(enclosed.inner).ok()?;
        let segment = Header::parse(inner.payload()).ok();
        let ack = |header: &Header| header.ack.wrapping_sub(self.server.unwrap_or(header.ack));
        Some(match (enclosed.meta.kind, segment) {
            (Kind::Forward, Some((_, payload))) if !payload.is_empty() => {
                Word::Single(match enclosed.meta.server_port {
                    WEDGE_PORT => "TAKE".to_owned(),
                    _ => "FORWARD, the request".to_owned(),
                })
            }
            (Kind::Forward, Some((header, _))) => Word::Forwarded(ack(&header)),
            (Kind::Support, Some((_, payload))) => Word::Single(
                match payload.get(10)? {
                    1 => "UPDATE",
                    3 => "REFUSAL",
                    _ => return None,
                }
                .to_owned(),
            ),
            (Kind::Forsake, _) => Word::Single("RELEASE, another goes on".to_owned()),
            (Kind::Released { .. }, _) => Word::Single("RELEASED".to_owned()),
            (Kind::Refused(_), _) => Word::Single("REFUSED".to_owned()),
            _ => return None,
        })
    }

    fn read_segment(&mut self, arrival: &Arrival, header: &Header, payload: &[u8]) -> Option<Word> {
        let length = payload.len() as u32;
        let has = |flags| header.flags.has(flags);
        if has(Flags::SYN) {
            let answers = has(Flags::ACK);
            match answers {
                true => self.server = Some(header.seq),
                false => self.client = header.seq,
            }
            return Some(Word::Single(
                if answers { "SYN, ACK" } else { "SYN" }.to_owned(),
            ));
        }
        let from_client = header.destination_port == 80;
        // What overtakes the SYN-ACK on its way to us says nothing.
        let server = self.server?;
        let own = if from_client { self.client } else { server };
        let seq = header.seq.wrapping_sub(own);
        if has(Flags::RST) {
            return Some(Word::Single(format!("RST {seq}")));
        }
        match (from_client, length) {
            (true, 0) => Some(Word::Ack(header.ack.wrapping_sub(server))),
            (true, _) => Some(Word::Single("the request".to_owned())),
            (false, 1) if arrival.from == "d1" => {
                Some(Word::Single(format!("an octet that it has had: seq {seq}")))
            }
            (false, 0) => None,
            (false, _) => Some(Word::Data(seq, seq.wrapping_add(length))),
        }
    }
}
