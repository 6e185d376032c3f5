//! What an agent says of its servers: it goes with the heartbeat's answer, in the place of the
//! padding that was asked for (docs/protocol/encapsulation.md 7.12a). The data path only copies
//! it, so it has a seal of its own.

use std::net::Ipv4Addr;

use super::{Outcome, Standing};
use crate::siphash::siphash24;
use crate::wire::meta::Keys;

/// Its bytes, always.
pub const LEN: usize = 512;
const SEAL_LEN: usize = 8;
/// Seal, key, number of entries, 2 bytes of nothing, time.
const HEAD_LEN: usize = 20;
const ENTRY_LEN: usize = 12;
/// Servers that a word has room for.
pub const MOST: usize = (LEN - HEAD_LEN) / ENTRY_LEN;

/// What is said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Word {
    /// When it was said: the agent's time, in milliseconds, which never steps back.
    pub at_ms: u64,
    /// Of each server that is checked; the first [`MOST`].
    pub entries: Vec<Entry>,
}

/// What is held of one server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// [`super::TargetKey::number`].
    pub number: u64,
    /// What is held of it.
    pub standing: Standing,
    /// What came of the last check.
    pub last: Option<Outcome>,
}

impl Word {
    /// Its bytes, as that backend says them.
    pub fn seal(&self, keys: &Keys, backend: Ipv4Addr) -> [u8; LEN] {
        let (key_id, key) = keys.signing();
        let mut out = [0; LEN];
        let entries = &self.entries[..self.entries.len().min(MOST)];
        out[8] = key_id;
        out[9] = entries.len() as u8;
        out[12..20].copy_from_slice(&self.at_ms.to_be_bytes());
        let places = out[HEAD_LEN..].chunks_exact_mut(ENTRY_LEN);
        for (entry, place) in entries.iter().zip(places) {
            let (outcome, status) = entry.last.map_or((0, 0), Outcome::encode);
            place[..8].copy_from_slice(&entry.number.to_be_bytes());
            place[8] = match entry.standing {
                Standing::Unknown => 0,
                Standing::Up => 1,
                Standing::Down => 2,
            };
            place[9] = outcome;
            place[10..].copy_from_slice(&status.to_be_bytes());
        }
        let seal = seal(key, &out, backend);
        out[..SEAL_LEN].copy_from_slice(&seal);
        out
    }

    /// Reads it. None: too short, or not sealed with a key of the cluster by that backend.
    pub fn open(bytes: &[u8], keys: &Keys, backend: Ipv4Addr) -> Option<Self> {
        let bytes: &[u8; LEN] = bytes.first_chunk()?;
        let expected = seal(keys.accepted(bytes[8])?, bytes, backend);
        let difference = (expected.iter().zip(bytes)).fold(0, |d, (a, b)| d | (a ^ b));
        if difference != 0 {
            return None;
        }
        let read = |place: &[u8]| {
            Some(Entry {
                number: u64::from_be_bytes(*place.first_chunk()?),
                standing: match place[8] {
                    0 => Standing::Unknown,
                    1 => Standing::Up,
                    2 => Standing::Down,
                    _ => return None,
                },
                last: Outcome::decode(place[9], u16::from_be_bytes([place[10], place[11]])),
            })
        };
        let places = bytes[HEAD_LEN..].chunks_exact(ENTRY_LEN);
        Some(Self {
            at_ms: u64::from_be_bytes(*bytes[12..].first_chunk()?),
            entries: places
                .take(bytes[9].into())
                .map(read)
                .collect::<Option<_>>()?,
        })
    }
}

fn seal(key: &[u8; 16], bytes: &[u8; LEN], backend: Ipv4Addr) -> [u8; SEAL_LEN] {
    let mut sealed = bytes[SEAL_LEN..].to_vec();
    sealed.extend(backend.octets());
    siphash24(key, &sealed).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::config::ClusterKey;

    const BACKEND: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 21);

    fn keys(secret: u8) -> Keys {
        let secret = [secret; 16];
        Keys::new(&[ClusterKey { id: 7, secret }]).unwrap()
    }

    fn word() -> Word {
        let entry = |number, standing, last| Entry {
            number,
            standing,
            last,
        };
        Word {
            at_ms: 1_700_000_000_000,
            entries: vec![
                entry(1, Standing::Unknown, None),
                entry(2, Standing::Up, Some(Outcome::Passed)),
                entry(3, Standing::Down, Some(Outcome::Status(503))),
            ],
        }
    }

    #[test]
    fn what_is_sealed_is_read() {
        let bytes = word().seal(&keys(1), BACKEND);
        assert_eq!(Word::open(&bytes, &keys(1), BACKEND), Some(word()));
        assert_eq!(Word::open(&bytes, &keys(2), BACKEND), None);
        let other = Ipv4Addr::new(10, 0, 0, 22);
        assert_eq!(Word::open(&bytes, &keys(1), other), None, "another's");
        for at in 0..LEN {
            let mut damaged = bytes;
            damaged[at] ^= 1;
            assert_eq!(Word::open(&damaged, &keys(1), BACKEND), None, "{at}");
        }
        assert_eq!(Word::open(&bytes[1..], &keys(1), BACKEND), None);
        assert_eq!(Word::open(&[0; LEN], &keys(1), BACKEND), None);
    }

    #[test]
    fn what_has_no_room_is_left_out() {
        let mut word = word();
        let one = word.entries[0];
        word.entries = vec![one; MOST + 5];
        let bytes = word.seal(&keys(1), BACKEND);
        let read = Word::open(&bytes, &keys(1), BACKEND).unwrap();
        assert_eq!(read.entries.len(), MOST);
    }

    proptest! {
        #[test]
        fn nothing_that_comes_panics(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            Word::open(&bytes, &keys(1), BACKEND);
            // Sealed by somebody who knows the key, and nonsense.
            if let Some(mut bytes) = bytes.first_chunk::<LEN>().copied() {
                bytes[8] = 7;
                let sealed = seal(&[1; 16], &bytes, BACKEND);
                bytes[..SEAL_LEN].copy_from_slice(&sealed);
                Word::open(&bytes, &keys(1), BACKEND);
            }
        }
    }
}
