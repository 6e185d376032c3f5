//! A message between dispatchers' daemons: what stands in the inner packet of RECORDS, and
//! its seal (docs/protocol/replication.md §3).

use std::net::Ipv4Addr;

use super::record::Entry;
use crate::siphash::siphash24;
use crate::wire::meta::Keys;

/// Bytes in front of the entries.
pub const HEAD_LEN: usize = 20;
const SEAL_LEN: usize = 8;

/// What a message is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// Something has changed.
    News,
    /// So many news there have been; and how the two dispatchers stand.
    Tail {
        /// The sender takes the receiver for one that keeps flows.
        takes_you: bool,
        /// The sender keeps flows.
        keeps: bool,
    },
    /// These of the receiver's did not come.
    Lacking,
    /// These cannot be said again.
    Gone,
    /// All records, that part of them.
    Ask,
    /// That part, in so many messages, of which this is one.
    Part {
        /// From 0.
        index: u8,
        /// At least 1.
        count: u8,
        /// No part follows.
        is_last: bool,
    },
}

/// What stands in front of the entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Whose news these are, since when; of an asking, its name.
    pub stream: u32,
    /// Of the news, or of the part.
    pub number: u32,
    /// What for.
    pub what: What,
}

/// A message that was sealed with a key of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// In front.
    pub head: Head,
    /// Its entries' bytes.
    pub body: &'a [u8],
}

impl Message<'_> {
    /// What it consists of.
    pub fn entries(&self) -> impl Iterator<Item = Entry> + '_ {
        Entry::read_all(self.body)
    }
}

impl Head {
    /// The message of these entries' bytes, sealed.
    pub fn seal(&self, sender: Ipv4Addr, keys: &Keys, body: &[u8]) -> Vec<u8> {
        let (key_id, key) = keys.signing();
        let (what, extra) = self.what.encode();
        let mut out = Vec::with_capacity(HEAD_LEN + body.len());
        out.extend([0; SEAL_LEN]);
        out.extend(self.stream.to_be_bytes());
        out.extend(self.number.to_be_bytes());
        out.extend([what, key_id]);
        out.extend(extra.to_be_bytes());
        out.extend_from_slice(body);
        let seal = seal(key, &out, sender);
        out[..SEAL_LEN].copy_from_slice(&seal);
        out
    }
}

/// Reads a message from that sender. None: cut short, of an unknown kind, or not sealed
/// with a key of the cluster.
pub fn open<'a>(bytes: &'a [u8], sender: Ipv4Addr, keys: &Keys) -> Option<Message<'a>> {
    let (head, body) = bytes.split_first_chunk::<HEAD_LEN>()?;
    let expected = seal(keys.accepted(head[17])?, bytes, sender);
    let difference = (expected.iter().zip(head)).fold(0, |d, (a, b)| d | (a ^ b));
    if difference != 0 {
        return None;
    }
    let word = |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    Some(Message {
        head: Head {
            stream: word(8),
            number: word(12),
            what: What::decode(head[16], u16::from_be_bytes([head[18], head[19]]))?,
        },
        body,
    })
}

/// Over all that lies behind it, and the sender's address.
fn seal(key: &[u8; 16], message: &[u8], sender: Ipv4Addr) -> [u8; SEAL_LEN] {
    let mut covered = Vec::with_capacity(message.len());
    covered.extend_from_slice(&message[SEAL_LEN..]);
    covered.extend(sender.octets());
    siphash24(key, &covered).to_le_bytes()
}

impl What {
    fn encode(self) -> (u8, u16) {
        match self {
            What::News => (1, 0),
            What::Tail { takes_you, keeps } => (2, u16::from(takes_you) | u16::from(keeps) << 1),
            What::Lacking => (3, 0),
            What::Gone => (4, 0),
            What::Ask => (5, 0),
            What::Part {
                index,
                count,
                is_last,
            } => (
                6,
                u16::from(is_last) << 15 | u16::from(index & 0x7f) << 8 | u16::from(count),
            ),
        }
    }

    fn decode(what: u8, extra: u16) -> Option<Self> {
        Some(match what {
            1 => What::News,
            2 => What::Tail {
                takes_you: extra & 1 != 0,
                keeps: extra & 2 != 0,
            },
            3 => What::Lacking,
            4 => What::Gone,
            5 => What::Ask,
            6 => What::Part {
                index: (extra >> 8) as u8 & 0x7f,
                count: extra as u8,
                is_last: extra >> 15 == 1,
            },
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::tests::record;
    use super::*;
    use crate::config::ClusterKey;

    const SENDER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);

    fn keys(id: u8) -> Keys {
        let secret = [id; 16];
        Keys::new(&[ClusterKey { id, secret }]).expect("one key")
    }

    #[test]
    fn a_message_travels_whole_and_only_under_its_key() {
        let part = What::Part {
            index: 47,
            count: 48,
            is_last: true,
        };
        let all = [
            What::News,
            What::Tail {
                takes_you: true,
                keeps: false,
            },
            What::Lacking,
            What::Gone,
            What::Ask,
            part,
        ];
        for what in all {
            let head = Head {
                stream: 7,
                number: 9,
                what,
            };
            let entry = Entry::Record(record([3; 32], [5; 8]));
            let mut body = Vec::new();
            entry.write(&mut body);
            let mut bytes = head.seal(SENDER, &keys(1), &body);
            let message = open(&bytes, SENDER, &keys(1)).expect("it is whole");
            assert_eq!((message.head, message.body), (head, &body[..]));
            assert_eq!(
                message.entries().collect::<Vec<_>>(),
                std::slice::from_ref(&entry)
            );
            assert_eq!(open(&bytes, SENDER, &keys(2)), None, "another cluster's");
            let other = Ipv4Addr::new(10, 0, 0, 2);
            assert_eq!(open(&bytes, other, &keys(1)), None, "another's word");
            for at in 0..bytes.len() {
                bytes[at] ^= 1;
                assert_eq!(open(&bytes, SENDER, &keys(1)), None, "byte {at}");
                bytes[at] ^= 1;
                assert_eq!(open(&bytes[..at], SENDER, &keys(1)), None, "cut at {at}");
            }
        }
    }
}
