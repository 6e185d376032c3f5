//! A recorded trace as a workload: as fast as the cluster can, or at the times at
//! which it was recorded.

use super::{Ask, Connections, Object, Pace, Source, Workload};
use crate::trace::{Record, Trace};

/// A trace, and how to replay it.
#[derive(Clone, Debug)]
pub struct Recorded {
    name: String,
    /// Of all copies, one copy after the other.
    objects: Vec<Object>,
    in_a_copy: u32,
    records: Vec<Record>,
    options: RecordedOptions,
}

/// How to replay a trace.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RecordedOptions {
    /// [`Pace::Open`]: at the recorded times, this many times as fast; others ignore
    /// the times.
    pub speed: f64,
    /// Who asks.
    pub pace: Pace,
    /// So many sites like the recorded one: the trace, interleaved with itself, each
    /// copy with URLs of its own and begun at another place.
    pub copies: u32,
    /// Requests of a connection.
    pub requests_per_connection: u32,
}

impl Default for RecordedOptions {
    fn default() -> Self {
        RecordedOptions {
            speed: 1.0,
            pace: Pace::Admission,
            copies: 1,
            requests_per_connection: 1,
        }
    }
}

impl Recorded {
    /// A trace under a name; it has a record.
    pub fn new(name: &str, trace: Trace, options: RecordedOptions) -> Self {
        let options = RecordedOptions {
            copies: options.copies.max(1),
            ..options
        };
        let copies = (0..options.copies).flat_map(|copy| {
            trace.objects.iter().map(move |object| match copy {
                0 => object.clone(),
                _ => Object {
                    path: [format!("/~{copy}").as_bytes(), &object.path]
                        .concat()
                        .into(),
                    ..object.clone()
                },
            })
        });
        Recorded {
            name: name.to_owned(),
            objects: copies.collect(),
            in_a_copy: trace.objects.len() as u32,
            records: trace.records,
            options,
        }
    }
}

impl Workload for Recorded {
    fn name(&self) -> &str {
        &self.name
    }

    fn objects(&self) -> &[Object] {
        &self.objects
    }

    fn pace(&self) -> Pace {
        self.options.pace
    }

    fn requests(&self) -> Option<u64> {
        Some(self.records.len() as u64 * u64::from(self.options.copies))
    }

    /// The seed changes nothing: what was recorded is replayed.
    fn start(&self, _seed: u64, users: usize) -> Box<dyn Source + '_> {
        Box::new(Replay {
            workload: self,
            index: 0,
            copy: 0,
            connections: Connections::new(self.options.requests_per_connection, users.max(1)),
        })
    }
}

struct Replay<'w> {
    workload: &'w Recorded,
    index: usize,
    copy: u32,
    connections: Connections,
}

impl Source for Replay<'_> {
    fn next(&mut self, user: u32) -> Option<Ask> {
        let Recorded {
            records, options, ..
        } = self.workload;
        // Times are those of the first copy.
        let now = records.get(self.index)?;
        let offset = records.len() * self.copy as usize / options.copies as usize;
        let record = records[(self.index + offset) % records.len()];
        let wait_ns = match (options.pace, self.copy, self.index) {
            (Pace::Open, 0, 1..) => {
                let gap_ns = now.at_ns - records[self.index - 1].at_ns;
                (gap_ns as f64 / options.speed) as u64
            }
            _ => 0,
        };
        let ask = Ask {
            object: record.object + self.copy * self.workload.in_a_copy,
            bytes: record.bytes,
            wait_ns,
            content: record.content,
            then: match options.pace {
                Pace::Open => super::Then::Close,
                _ => self.connections.then(user),
            },
        };
        self.copy += 1;
        if self.copy == options.copies {
            self.copy = 0;
            self.index += 1;
        }
        Some(ask)
    }
}
