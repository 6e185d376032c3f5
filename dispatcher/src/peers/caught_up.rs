//! Catching up, from both sides: all records of a peer in parts, and ours for one that asks.

use std::net::Ipv4Addr;
use std::time::Duration;

use trapeze_core::replica::part::{Asking, MESSAGES, Step};
use trapeze_core::replica::{Entry, Head, What};
use trapeze_core::wire::meta::Keys;
use trapeze_datapath::dispatcher::DispatcherMaps;
use trapeze_datapath::map::Cursor;
use trapeze_datapath::udp::Outbox;

use super::herald::{BODY_MAX, enclose};
use crate::records::Records;

/// A part that has not come by then is asked for again.
const RETRY: Duration = Duration::from_millis(50);
/// A peer that does not answer so often is not asked any more.
const TRIES: u32 = 20;
/// Entries of the table in one part.
const BATCH: usize = 512;

/// All records are wanted from somebody.
pub struct Pupil {
    pub teacher: Ipv4Addr,
    asking: Asking,
    asked_at: Duration,
    tries: u32,
}

impl Pupil {
    /// From that peer; `name` is not that of an earlier asking.
    pub fn new(teacher: Ipv4Addr, name: u32) -> Self {
        Self {
            teacher,
            asking: Asking::new(name),
            asked_at: Duration::ZERO,
            tries: 0,
        }
    }

    /// When to look again.
    pub fn due(&self) -> Duration {
        self.asked_at + RETRY
    }

    /// Asks for the part that is due, if it is time. False: nobody answers.
    pub fn ask(&mut self, now: Duration, own: Ipv4Addr, keys: &Keys, outbox: &mut Outbox) -> bool {
        if self.tries > 0 && now < self.due() {
            return true;
        }
        if self.tries == TRIES {
            return false;
        }
        self.tries += 1;
        self.asked_at = now;
        let head = Head {
            stream: self.asking.name,
            number: self.asking.part,
            what: What::Ask,
        };
        let message = head.seal(own, keys, &[]);
        enclose(outbox, own, self.teacher, keys, 0, &message);
        true
    }

    /// A message of a part.
    pub fn take(&mut self, head: &Head) -> Step {
        let What::Part {
            index,
            count,
            is_last,
        } = head.what
        else {
            return Step::Late;
        };
        let step = (self.asking).take(head.stream, head.number, (index, count), is_last);
        if step == Step::Next {
            self.tries = 0;
        }
        step
    }
}

/// Somebody wants all of ours.
#[derive(Default)]
pub struct Lesson {
    name: u32,
    part: u32,
    said: Part,
    /// The one behind it, made while the other side writes that one down.
    ahead: Option<Part>,
    cursor: Cursor,
}

#[derive(Default)]
struct Part {
    bodies: Vec<Vec<u8>>,
    is_last: bool,
}

impl Lesson {
    /// The part that is asked for, made anew or said again. Nothing for what is long past.
    pub fn answer(
        &mut self,
        (name, part): (u32, u32),
        maps: &DispatcherMaps,
        records: &Records,
    ) -> std::io::Result<bool> {
        if name != self.name || (part == 0 && self.said.bodies.is_empty()) {
            *self = Self {
                name,
                ..Self::default()
            };
            if part != 0 {
                return Ok(false);
            }
            self.said = self.next_part(maps, records)?;
        } else if part == self.part.wrapping_add(1) && !self.said.is_last {
            self.prepare(maps, records)?;
            self.part = part;
            self.said = self.ahead.take().unwrap_or_default();
        }
        Ok(part == self.part)
    }

    /// Makes the part that will be asked for next.
    pub fn prepare(&mut self, maps: &DispatcherMaps, records: &Records) -> std::io::Result<()> {
        if self.ahead.is_none() && !self.said.is_last {
            self.ahead = Some(self.next_part(maps, records)?);
        }
        Ok(())
    }

    /// The messages of the part, for that peer.
    pub fn say(&self, own: Ipv4Addr, peer: Ipv4Addr, keys: &Keys, outbox: &mut Outbox) {
        let Part { bodies, is_last } = &self.said;
        let count = bodies.len() as u8;
        for (index, body) in bodies.iter().enumerate() {
            let head = Head {
                stream: self.name,
                number: self.part,
                what: What::Part {
                    index: index as u8,
                    count,
                    is_last: *is_last,
                },
            };
            enclose(outbox, own, peer, keys, 0, &head.seal(own, keys, body));
        }
    }

    fn next_part(&mut self, maps: &DispatcherMaps, records: &Records) -> std::io::Result<Part> {
        let mut bodies = vec![Vec::with_capacity(BODY_MAX)];
        let mut batch = BATCH;
        loop {
            match maps.flows.walk(&mut self.cursor, batch) {
                Ok(found) => {
                    for (key, flow) in &found {
                        let Some(record) = records.to_be_told(key, flow)? else {
                            continue;
                        };
                        let entry = Entry::Record(record);
                        let full = |body: &Vec<u8>| body.len() + entry.length() > BODY_MAX;
                        if bodies.last().is_some_and(full) {
                            bodies.push(Vec::with_capacity(BODY_MAX));
                        }
                        entry.write(bodies.last_mut().expect("there is one"));
                    }
                    break;
                }
                // A bucket with more entries than the batch has room.
                Err(e) if e.raw_os_error() == Some(28) => batch += BATCH / 8,
                Err(e) => return Err(e),
            }
        }
        // A part has room for 700 records; a batch that needs more has a bucket of hundreds.
        bodies.truncate(MESSAGES);
        Ok(Part {
            bodies,
            is_last: self.cursor.at_start(),
        })
    }
}
