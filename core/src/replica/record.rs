//! A flow record as it travels, and the other entries of a message.

use std::cmp::Ordering;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};

use crate::flow::{FlowKey, Handshake};
use crate::intake::{Isns, Kept};
use crate::seq::{ClientSeq, ServerSeq};
use crate::splice::Splice;
use crate::wire::meta;
use crate::wire::tcp::Timestamps;

/// Bytes of a record, without type and length.
pub const RECORD_LEN: usize = 120;
/// Bytes more of a flow that is spliced.
const SPLICE_LEN: usize = 20;
const SEEN_LEN: usize = 32;

const RECORD: u8 = 1;
const SEEN: u8 = 2;
const NUMBER: u8 = 3;
const BYTES: u8 = 4;
const PROVED: u8 = 5;
const PROVED_LEN: usize = 28;
/// Type and length.
const ENTRY_HEAD: usize = 3;
const BYTES_HEAD: usize = 52;
/// Bytes of a head in one entry.
pub const PIECE: usize = 1200;

/// A flow record: replication.md §4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// The flow; IPv4.
    pub key: FlowKey,
    /// Raised by each change within an epoch.
    pub version: u32,
    /// The dispatcher that made this version.
    pub maker: Ipv4Addr,
    /// The option for the flow's packets; its epoch is the record's.
    pub option: meta::Raw,
    /// ISNs as of the latest move.
    pub client_isn: ClientSeq,
    /// The same.
    pub server_isn: ServerSeq,
    /// The number of our SYN-ACK.
    pub cookie: ServerSeq,
    /// The backend's address; unspecified: none.
    pub backend: Ipv4Addr,
    /// Of the data path's `enum flow_state`.
    pub state: u8,
    /// Of the data path's `enum expected`: what starts at the boundary.
    pub expect: u8,
    /// Those of the data path's MARK_* that are everybody's.
    pub marks: u8,
    /// Of the latest request, as policies see it.
    pub class: u8,
    /// The pool that the backend was chosen from, by its place in the configuration.
    pub pool: u16,
    /// Of the latest request, as policies see it.
    pub kind: u16,
    /// Where the next request can start.
    pub next: ClientSeq,
    /// Where the latest request starts, as far as is known; else `next`.
    pub began: ClientSeq,
    /// Requests given to the owner since its setup.
    pub requests: u32,
    /// What its maker has seen of the client.
    pub numbers: Numbers,
    /// Whether the owner has said that it owes nothing to that many requests, and that the
    /// client has all of its answers.
    pub owes_nothing: bool,
    /// What the client had acknowledged when it last asked.
    pub asked_ack: ServerSeq,
    /// What it asked for, as policies see it.
    pub object: u64,
    /// Since its maker has seen a packet of it, in milliseconds.
    pub idle_ms: u32,
    /// Since it began, in milliseconds.
    pub age_ms: u32,
    /// How it is spliced, where its backend has no agent.
    pub splice: Option<Splice>,
}

/// How far a client has come, as somebody has seen it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbers {
    /// The end of what it has sent.
    pub end: ClientSeq,
    /// What it has acknowledged.
    pub heard: ServerSeq,
    /// The window field that came with that.
    pub window: u16,
}

/// A flow lives: somebody has seen packets of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The flow.
    pub key: FlowKey,
    /// Which of its 4-tuple's connections.
    pub cookie: ServerSeq,
    /// How far it has come.
    pub numbers: Numbers,
    /// How long ago, in milliseconds.
    pub idle_ms: u32,
}

/// A client has shown its cookie, and nothing else so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proved {
    /// The flow.
    pub key: FlowKey,
    /// The numbers with which both sides began.
    pub isns: Isns,
    /// What the handshake agreed.
    pub handshake: Handshake,
    /// How long ago, in milliseconds.
    pub age_ms: u32,
}

/// What a message consists of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A record has changed.
    Record(Record),
    /// A flow lives.
    Seen(Seen),
    /// A message's number.
    Number(u32),
    /// A part of a head that its client has been told to have arrived; at most [`PIECE`]
    /// bytes.
    Bytes {
        /// The bytes, and what they are of.
        kept: Kept,
        /// Milliseconds since the client was told that they have come.
        age_ms: u32,
    },
    /// A connection is open, and silent.
    Proved(Proved),
}

impl Record {
    /// Of the latest assignment.
    pub fn epoch(&self) -> u32 {
        let [.., a, b, c, d] = *self.option.first_chunk::<8>().expect("it is longer");
        u32::from_be_bytes([a, b, c, d])
    }

    /// Its place in the order of all records of its flow.
    pub fn place(&self) -> Place {
        Place {
            epoch: self.epoch(),
            version: self.version,
            maker: self.maker,
        }
    }
}

/// Where a record stands among those of its 4-tuple: the latest holds (4.2). Serial
/// numbers have no order in all: this is one for those that can meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Of the assignment.
    pub epoch: u32,
    /// Within the epoch.
    pub version: u32,
    /// Who made it.
    pub maker: Ipv4Addr,
}

impl Place {
    /// Does it come after the other one?
    pub fn is_after(&self, other: &Place) -> bool {
        let serial = |a: u32, b: u32| a.wrapping_sub(b).cast_signed().cmp(&0);
        serial(self.epoch, other.epoch)
            .then(serial(self.version, other.version))
            .then(self.maker.cmp(&other.maker))
            == Ordering::Greater
    }
}

impl Entry {
    /// Bytes with type and length.
    pub fn length(&self) -> usize {
        ENTRY_HEAD
            + match self {
                Entry::Record(record) => RECORD_LEN + record.splice.map_or(0, |_| SPLICE_LEN),
                Entry::Seen(_) => SEEN_LEN,
                Entry::Number(_) => 4,
                Entry::Bytes { kept, .. } => BYTES_HEAD + kept.bytes.len(),
                Entry::Proved(_) => PROVED_LEN,
            }
    }

    /// Appends it.
    pub fn write(&self, out: &mut Vec<u8>) {
        let start = out.len();
        let kind = match self {
            Entry::Record(_) => RECORD,
            Entry::Seen(_) => SEEN,
            Entry::Number(_) => NUMBER,
            Entry::Bytes { .. } => BYTES,
            Entry::Proved(_) => PROVED,
        };
        out.push(kind);
        out.extend(((self.length() - ENTRY_HEAD) as u16).to_be_bytes());
        match self {
            Entry::Record(record) => record.write(out),
            Entry::Seen(seen) => {
                write_key(&seen.key, out);
                out.extend(seen.cookie.raw().to_be_bytes());
                seen.numbers.write(0, out);
                out.extend(seen.idle_ms.to_be_bytes());
            }
            Entry::Number(number) => out.extend(number.to_be_bytes()),
            Entry::Bytes { kept, age_ms } => write_kept(kept, *age_ms, out),
            Entry::Proved(proved) => {
                write_key(&proved.key, out);
                out.extend(proved.isns.client.raw().to_be_bytes());
                out.extend(proved.isns.server.raw().to_be_bytes());
                out.extend(meta::handshake_bytes(&proved.handshake));
                out.extend(proved.age_ms.to_be_bytes());
            }
        }
        debug_assert_eq!(out.len() - start, self.length());
    }

    /// The entries in a message's bytes, up to the first that is cut short; those of
    /// unknown types, and those that cannot be, are left out.
    pub fn read_all(bytes: &[u8]) -> impl Iterator<Item = Entry> + '_ {
        let mut rest = bytes;
        let raw = std::iter::from_fn(move || {
            let (&[kind, a, b], after) = rest.split_first_chunk()?;
            let length = usize::from(u16::from_be_bytes([a, b]));
            let content = after.get(..length)?;
            rest = &after[length..];
            Some((kind, content))
        });
        raw.filter_map(|(kind, content)| Entry::read(kind, content))
    }

    fn read(kind: u8, content: &[u8]) -> Option<Self> {
        let mut from = Reader(content);
        match kind {
            RECORD => Record::read(&mut from).map(Entry::Record),
            SEEN => Some(Entry::Seen(Seen {
                key: from.key()?,
                cookie: ServerSeq::new(from.u32()?),
                numbers: from.numbers()?,
                idle_ms: from.u16().and_then(|_| from.u32())?,
            })),
            NUMBER => from.u32().map(Entry::Number),
            BYTES => from.kept(),
            PROVED => Some(Entry::Proved(Proved {
                key: from.key()?,
                isns: Isns {
                    client: ClientSeq::new(from.u32()?),
                    server: ServerSeq::new(from.u32()?),
                },
                handshake: meta::handshake_of(from.take()?)?,
                age_ms: from.u32()?,
            })),
            _ => None,
        }
    }
}

impl Record {
    fn write(&self, out: &mut Vec<u8>) {
        write_key(&self.key, out);
        out.extend(self.version.to_be_bytes());
        out.extend(self.maker.octets());
        out.extend(self.option);
        out.extend(self.client_isn.raw().to_be_bytes());
        out.extend(self.server_isn.raw().to_be_bytes());
        out.extend(self.cookie.raw().to_be_bytes());
        out.extend(self.backend.octets());
        out.extend([self.state, self.expect, self.marks, self.class]);
        out.extend(self.pool.to_be_bytes());
        out.extend(self.kind.to_be_bytes());
        out.extend(self.next.raw().to_be_bytes());
        out.extend(self.requests.to_be_bytes());
        self.numbers.write(self.owes_nothing.into(), out);
        out.extend(self.asked_ack.raw().to_be_bytes());
        out.extend(self.object.to_be_bytes());
        out.extend(self.idle_ms.to_be_bytes());
        out.extend(self.age_ms.to_be_bytes());
        if let Some(splice) = &self.splice {
            write_splice(splice, out);
        }
        // Behind all that there was before it: who does not know it does not miss it.
        out.extend(self.began.raw().to_be_bytes());
    }

    fn read(from: &mut Reader<'_>) -> Option<Self> {
        let mut record = Self {
            key: from.key()?,
            version: from.u32()?,
            maker: from.address()?,
            option: from.take()?,
            client_isn: ClientSeq::new(from.u32()?),
            server_isn: ServerSeq::new(from.u32()?),
            cookie: ServerSeq::new(from.u32()?),
            backend: from.address()?,
            state: from.u8()?,
            expect: from.u8()?,
            marks: from.u8()?,
            class: from.u8()?,
            pool: from.u16()?,
            kind: from.u16()?,
            next: ClientSeq::new(from.u32()?),
            began: ClientSeq::new(0),
            requests: from.u32()?,
            numbers: from.numbers()?,
            owes_nothing: from.u16()? & 1 != 0,
            asked_ack: ServerSeq::new(from.u32()?),
            object: u64::from_be_bytes(from.take()?),
            idle_ms: from.u32()?,
            age_ms: from.u32()?,
            splice: (from.0.len() >= SPLICE_LEN)
                .then(|| from.splice())
                .flatten(),
        };
        record.began = from.u32().map_or(record.next, ClientSeq::new);
        Some(record)
    }
}

impl Numbers {
    /// With two bytes of whoever has seen it.
    fn write(&self, more: u16, out: &mut Vec<u8>) {
        out.extend(self.end.raw().to_be_bytes());
        out.extend(self.heard.raw().to_be_bytes());
        out.extend(self.window.to_be_bytes());
        out.extend(more.to_be_bytes());
    }
}

/// Twelve bytes. Keys of other addresses than IPv4 are not made (1).
fn write_key(key: &FlowKey, out: &mut Vec<u8>) {
    for side in [key.client, key.vip] {
        let address = match side.ip() {
            IpAddr::V4(v4) => v4,
            IpAddr::V6(v6) => v6.to_ipv4_mapped().unwrap_or(Ipv4Addr::UNSPECIFIED),
        };
        out.extend(address.octets());
        out.extend(side.port().to_be_bytes());
    }
}

fn write_splice(splice: &Splice, out: &mut Vec<u8>) {
    out.extend(splice.own.ip().octets());
    out.extend(splice.own.port().to_be_bytes());
    out.extend(splice.server_port.to_be_bytes());
    out.extend(splice.ahead.to_be_bytes());
    out.extend(splice.clock_ahead.to_be_bytes());
    let changes =
        u8::from(splice.no_timestamps) | u8::from(splice.no_ecn) << 1 | u8::from(splice.split) << 2;
    let [to_client] = splice.to_client_shift.to_be_bytes();
    out.extend([splice.to_server_shift, to_client, changes, 0]);
}

fn write_kept(kept: &Kept, age_ms: u32, out: &mut Vec<u8>) {
    write_key(&kept.key, out);
    for word in [
        kept.isns.client.raw(),
        kept.isns.server.raw(),
        kept.cookie.raw(),
        kept.heard.raw(),
        kept.offset,
        kept.timestamps.map_or(0, |t| t.value),
        kept.timestamps.map_or(0, |t| t.echo),
    ] {
        out.extend(word.to_be_bytes());
    }
    out.extend(kept.window.to_be_bytes());
    out.extend(meta::handshake_bytes(&kept.handshake));
    out.extend([u8::from(kept.later), u8::from(kept.timestamps.is_some())]);
    out.extend(age_ms.to_be_bytes());
    out.extend_from_slice(&kept.bytes);
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (bytes, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*bytes)
    }

    fn u8(&mut self) -> Option<u8> {
        self.take::<1>().map(|[byte]| byte)
    }

    fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_be_bytes)
    }

    fn address(&mut self) -> Option<Ipv4Addr> {
        self.take::<4>().map(Ipv4Addr::from)
    }

    fn side(&mut self) -> Option<SocketAddr> {
        let address = self.address()?;
        Some(SocketAddrV4::new(address, self.u16()?).into())
    }

    fn key(&mut self) -> Option<FlowKey> {
        Some(FlowKey {
            client: self.side()?,
            vip: self.side()?,
        })
    }

    fn kept(&mut self) -> Option<Entry> {
        let key = self.key()?;
        let isns = Isns {
            client: ClientSeq::new(self.u32()?),
            server: ServerSeq::new(self.u32()?),
        };
        let (cookie, heard) = (ServerSeq::new(self.u32()?), ServerSeq::new(self.u32()?));
        let offset = self.u32()?;
        let (value, echo) = (self.u32()?, self.u32()?);
        let window = self.u16()?;
        let handshake: Handshake = meta::handshake_of(self.take()?)?;
        let (later, has_clock) = (self.u8()? == 1, self.u8()? == 1);
        let age_ms = self.u32()?;
        let kept = Kept {
            key,
            isns,
            cookie,
            heard,
            offset,
            timestamps: has_clock.then_some(Timestamps { value, echo }),
            window,
            handshake,
            later,
            bytes: self.0.to_vec(),
        };
        Some(Entry::Bytes { kept, age_ms })
    }

    /// None: it is not spliced.
    fn splice(&mut self) -> Option<Splice> {
        let SocketAddr::V4(own) = self.side()? else {
            return None;
        };
        let server_port = self.u16()?;
        let (ahead, clock_ahead) = (self.u32()?, self.u32()?);
        let [to_server_shift, to_client, changes, _] = self.take()?;
        let splice = Splice {
            own,
            server_port,
            ahead,
            clock_ahead,
            to_server_shift,
            to_client_shift: to_client.cast_signed(),
            no_timestamps: changes & 1 != 0,
            no_ecn: changes & 2 != 0,
            split: changes & 4 != 0,
        };
        (own.port() != 0).then_some(splice)
    }

    /// Without the two bytes behind them.
    fn numbers(&mut self) -> Option<Numbers> {
        Some(Numbers {
            end: ClientSeq::new(self.u32()?),
            heard: ServerSeq::new(self.u32()?),
            window: self.u16()?,
        })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;

    pub fn record(bytes: [u8; 32], words: [u32; 8]) -> Record {
        let [a, b, c, d, e, f, g, h] = words;
        let side = |ip: u32, port: u32| SocketAddrV4::new(ip.into(), port as u16).into();
        Record {
            key: FlowKey {
                client: side(a, b),
                vip: side(c, d),
            },
            version: e,
            maker: f.into(),
            option: bytes,
            client_isn: ClientSeq::new(g),
            server_isn: ServerSeq::new(h),
            cookie: ServerSeq::new(a ^ b),
            backend: (b ^ c).into(),
            state: a as u8,
            expect: b as u8,
            marks: c as u8,
            class: d as u8,
            pool: e as u16,
            kind: f as u16,
            next: ClientSeq::new(c ^ d),
            began: ClientSeq::new(c ^ e),
            requests: g ^ h,
            numbers: Numbers {
                end: ClientSeq::new(a ^ h),
                heard: ServerSeq::new(b ^ g),
                window: h as u16,
            },
            owes_nothing: c & 1 == 1,
            asked_ack: ServerSeq::new(d ^ e),
            object: u64::from(a) << 32 | u64::from(b),
            idle_ms: e ^ f,
            age_ms: f ^ g,
            splice: (a & 1 == 1).then(|| Splice {
                own: SocketAddrV4::new(g.into(), (h as u16).max(1)),
                server_port: c as u16,
                ahead: e,
                clock_ahead: f,
                to_server_shift: g as u8,
                to_client_shift: h as i8,
                no_timestamps: b & 1 == 1,
                no_ecn: b & 2 == 2,
                split: b & 4 == 4,
            }),
        }
    }

    fn proved(kept: &Kept) -> Proved {
        Proved {
            key: kept.key,
            isns: kept.isns,
            handshake: kept.handshake,
            age_ms: kept.offset,
        }
    }

    fn kept(record: &Record, bytes: &[u8]) -> Kept {
        Kept {
            key: record.key,
            isns: Isns {
                client: record.client_isn,
                server: record.server_isn,
            },
            cookie: record.cookie,
            later: record.marks & 1 == 1,
            handshake: Handshake {
                mss: record.pool,
                sack: record.marks & 2 == 2,
                ..Handshake::default()
            },
            offset: record.requests,
            heard: record.asked_ack,
            window: record.kind,
            timestamps: (record.marks & 4 == 4).then_some(Timestamps {
                value: record.version,
                echo: record.idle_ms,
            }),
            bytes: bytes.to_vec(),
        }
    }

    proptest! {
        #[test]
        fn entries_travel_whole(bytes: [u8; 32], words: [u32; 8], number: u32) {
            let record = record(bytes, words);
            let Record { key, cookie, numbers, idle_ms, .. } = record;
            let entries = [
                Entry::Number(number),
                Entry::Record(record),
                Entry::Seen(Seen { key, cookie, numbers, idle_ms }),
                Entry::Proved(proved(&kept(&record, &bytes))),
                Entry::Bytes {
                    kept: kept(&record, &bytes),
                    age_ms: 1234,
                },
            ];
            let mut out = Vec::new();
            entries.iter().for_each(|entry| entry.write(&mut out));
            prop_assert_eq!(out.len(), entries.iter().map(Entry::length).sum::<usize>());
            prop_assert_eq!(Entry::read_all(&out).collect::<Vec<_>>(), entries.clone());
            // Cut anywhere: the first ones, whole, and no more.
            for end in 0..out.len() {
                let read: Vec<_> = Entry::read_all(&out[..end]).collect();
                prop_assert!(read.len() < entries.len() && entries.starts_with(&read));
            }
        }

        #[test]
        fn nothing_panics_at_garbage(bytes: Vec<u8>) {
            let _ = Entry::read_all(&bytes).count();
        }

        #[test]
        fn of_two_different_places_one_is_after_the_other(a: (u32, u32, u32), b: (u32, u32, u32)) {
            let place = |(epoch, version, maker): (u32, u32, u32)| Place {
                epoch, version: version % 3, maker: (maker % 3).into(),
            };
            let (a, b) = (place((a.0 % 3, a.1, a.2)), place((b.0 % 3, b.1, b.2)));
            prop_assert_eq!(a.is_after(&b) || b.is_after(&a), a != b);
            prop_assert!(!(a.is_after(&b) && b.is_after(&a)));
        }
    }

    #[test]
    fn an_earlier_version_does_not_say_where_a_request_begins() {
        for first in [8, 9] {
            let record = record([7; 32], [first, 2, 3, 4, 5, 6, 7, 8]);
            let mut out = Vec::new();
            Entry::Record(record).write(&mut out);
            out.truncate(out.len() - 4);
            let length = (out.len() - ENTRY_HEAD) as u16;
            out[1..3].copy_from_slice(&length.to_be_bytes());
            let expected = Record {
                began: record.next,
                ..record
            };
            let read: Vec<_> = Entry::read_all(&out).collect();
            assert_eq!(read, [Entry::Record(expected)]);
        }
    }

    #[test]
    fn what_a_later_version_adds_is_skipped() {
        let mut out = vec![200, 0, 3, 1, 2, 3];
        let seen = record([7; 32], [9; 8]);
        Entry::Record(seen).write(&mut out);
        // A longer record of a later version.
        out[8] += 4;
        out.extend([1, 2, 3, 4]);
        Entry::Number(5).write(&mut out);
        let read: Vec<_> = Entry::read_all(&out).collect();
        assert_eq!(read, [Entry::Record(seen), Entry::Number(5)]);
    }

    #[test]
    fn epochs_count_before_versions_and_both_wrap() {
        let place = |epoch: u32, version: u32, maker: u32| Place {
            epoch,
            version,
            maker: maker.into(),
        };
        for (earlier, later) in [
            (place(1, 9, 9), place(2, 0, 0)),
            (place(u32::MAX, 9, 9), place(0, 0, 0)),
            (place(1, u32::MAX, 9), place(1, 0, 0)),
            (place(1, 1, 1), place(1, 1, 2)),
        ] {
            assert!(later.is_after(&earlier) && !earlier.is_after(&later));
            assert!(!earlier.is_after(&earlier));
        }
    }
}
