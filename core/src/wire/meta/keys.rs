//! The tag of an option: what it binds, and the cluster's keys.

use std::fmt;
use std::net::IpAddr;

use super::{Raw, TAG_AT};
use crate::config::ClusterKey;
use crate::siphash::siphash24;
use crate::wire::ipv4;

/// A tag that proves nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TagError {
    /// No such key here.
    #[error("signed with key {0}, which is not configured here")]
    UnknownKey(u8),
    /// Forged, damaged, or for somebody else.
    #[error("the tag does not fit")]
    Mismatch,
}

/// What a tag binds its option to: the node that it is for, and the flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Binding(pub(super) [u8; 16]);

impl Binding {
    /// For a packet of one TCP flow: the outer destination, and the inner
    /// packet's addresses and ports. `None` unless all addresses are IPv4.
    pub fn of_flow(
        outer_destination: IpAddr,
        source: std::net::SocketAddr,
        destination: std::net::SocketAddr,
    ) -> Option<Self> {
        let ports = [
            source.port().to_be_bytes(),
            destination.port().to_be_bytes(),
        ]
        .concat();
        match (outer_destination, source.ip(), destination.ip()) {
            (IpAddr::V4(outer), IpAddr::V4(source), IpAddr::V4(destination)) => Some(Self::new([
                outer.octets(),
                [ports[0], ports[1], ports[2], ports[3]],
                source.octets(),
                destination.octets(),
            ])),
            _ => None,
        }
    }

    /// For this very inner packet. The ports count as zero unless it is TCP;
    /// a packet with nothing enclosed has addresses of zero. `None` when it is
    /// neither empty nor IPv4, or the outer destination is not IPv4.
    pub fn of_packet(outer_destination: IpAddr, inner: &[u8]) -> Option<Self> {
        let IpAddr::V4(outer) = outer_destination else {
            return None;
        };
        if inner.is_empty() {
            return Some(Self::new([outer.octets(), [0; 4], [0; 4], [0; 4]]));
        }
        let packet = ipv4::Packet::parse(inner).ok()?;
        let ports = match packet.protocol() {
            ipv4::PROTOCOL_TCP => *packet.payload().first_chunk()?,
            _ => [0; 4],
        };
        let (source, destination) = (packet.source().octets(), packet.destination().octets());
        Some(Self::new([outer.octets(), ports, source, destination]))
    }

    fn new(parts: [[u8; 4]; 4]) -> Self {
        let mut bytes = [0; 16];
        bytes.copy_from_slice(parts.as_flattened());
        Self(bytes)
    }
}

/// The tag of an option: SipHash-2-4 over its first 24 bytes and the binding's
/// 16, as five little-endian words.
///
/// The hash is that of a message of exactly these 40 bytes, so it is followed
/// by SipHash's own last word, which carries the length.
pub fn tag(raw: &Raw, key: &[u8; 16], binding: &Binding) -> [u8; 8] {
    let mut message = [0; TAG_AT + 16];
    message[..TAG_AT].copy_from_slice(&raw[..TAG_AT]);
    message[TAG_AT..].copy_from_slice(&binding.0);
    siphash24(key, &message).to_le_bytes()
}

/// The cluster's keys: one signs, all of them are accepted, so that keys can
/// change without a pause.
#[derive(Clone)]
pub struct Keys {
    signing: (u8, [u8; 16]),
    accepted: Box<[Option<[u8; 16]>; 256]>,
}

/// The key that an option's tag was made with.
pub fn key_id(raw: &Raw) -> u8 {
    raw[2]
}

impl Keys {
    /// The id of the key that signs.
    pub fn signing_id(&self) -> u8 {
        self.signing.0
    }

    /// The same option with the tag that the signing key gives it.
    pub fn seal_again(&self, raw: &Raw, binding: &Binding) -> Raw {
        let (key_id, key) = &self.signing;
        let mut raw = *raw;
        raw[2] = *key_id;
        let tag = tag(&raw, key, binding);
        raw[TAG_AT..].copy_from_slice(&tag);
        raw
    }

    /// The keys as configured: the first one signs. `None` without any.
    pub fn new(keys: &[ClusterKey]) -> Option<Self> {
        let first = keys.first()?;
        let mut accepted = Box::new([None; 256]);
        // Backwards: of two keys with one number the first counts.
        for key in keys.iter().rev() {
            accepted[usize::from(key.id)] = Some(key.secret);
        }
        Some(Self {
            signing: (first.id, first.secret),
            accepted,
        })
    }

    /// The key that signs, and its number.
    pub fn signing(&self) -> (u8, &[u8; 16]) {
        (self.signing.0, &self.signing.1)
    }

    /// The key of that number, if there is one.
    pub fn accepted(&self, id: u8) -> Option<&[u8; 16]> {
        self.accepted[usize::from(id)].as_ref()
    }

    /// Does the tag prove the option, for this binding? Takes the same time
    /// wherever the tags differ.
    pub fn verify(&self, raw: &Raw, binding: &Binding) -> Result<(), TagError> {
        let key_id = raw[2];
        let key = self.accepted[usize::from(key_id)].as_ref();
        let sealed = super::as_sealed(*raw);
        let expected = tag(&sealed, key.ok_or(TagError::UnknownKey(key_id))?, binding);
        let difference = expected
            .iter()
            .zip(&raw[TAG_AT..])
            .fold(0, |d, (a, b)| d | (a ^ b));
        if difference == 0 {
            Ok(())
        } else {
            Err(TagError::Mismatch)
        }
    }
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ids = (0..=255u8).filter(|id| self.accepted[usize::from(*id)].is_some());
        write!(f, "Keys {{ signing: {}, ", self.signing.0)?;
        write!(f, "accepted: {:?} }}", ids.collect::<Vec<_>>())
    }
}
