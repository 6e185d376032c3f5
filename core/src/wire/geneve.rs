//! The UDP payload of our encapsulation: a Geneve header (RFC 8926 §3.4) with
//! our one option, then the inner IP packet.
//!
//! ```text
//!  0                   1                   2                   3
//! +-----+-----------+-+-+---------+-------------------------------+
//! |ver 0| 9 words   |0|1|    0    |  protocol: 0x0800 or 0x86dd   |
//! +-----+-----------+-+-+---------+-------------------------------+
//! |        network identifier: "TPZ"              |       0       |
//! +-----------------------------------------------+-----+---------+
//! |     option class 0xff54       |   type 0x81   |  0  | 8 words |
//! +-------------------------------+---------------+-----+---------+
//! |             the option, 32 bytes: see meta.rs                 |
//! ```

use super::meta::{self, Binding, Keys, Meta, MetaError, TagError};
use std::net::IpAddr;

/// The UDP port of Geneve.
pub const PORT: u16 = 6081;
/// Bytes before the inner packet.
pub const HEADER_LEN: usize = 12 + meta::LEN;

const PROTOCOL_IPV4: [u8; 2] = [0x08, 0x00];
const PROTOCOL_IPV6: [u8; 2] = [0x86, 0xdd];
const OPTION_WORDS: u8 = 9;
const CRITICAL_OPTIONS: u8 = 0x40;
const NETWORK: [u8; 4] = [0x54, 0x50, 0x5a, 0];
const OPTION_HEADER: [u8; 4] = [0xff, 0x54, 0x81, 8];

/// What a payload holds, with or without proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Encapsulated<'a> {
    /// What is said about the packet.
    pub meta: Meta,
    /// The option's bytes.
    pub raw: &'a meta::Raw,
    /// The enclosed IP packet; may be empty.
    pub inner: &'a [u8],
}

/// Why a payload is none of ours, or proves nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GeneveError {
    /// Too short, or another use of the port.
    #[error("not our encapsulation")]
    NotOurs,
    /// An option that we do not understand.
    #[error(transparent)]
    Meta(#[from] MetaError),
    /// The enclosed packet is damaged, or IPv6: nothing that a tag binds to.
    #[error("the enclosed packet cannot be bound to a tag")]
    Inner,
    /// The tag does not prove it.
    #[error(transparent)]
    Tag(#[from] TagError),
}

/// Reads a payload **without** proof: for packets whose tag the data path has
/// checked. Everything else goes through [`open`].
pub fn parse(payload: &[u8]) -> Result<Encapsulated<'_>, GeneveError> {
    let (raw, inner) = split(payload)?;
    Ok(Encapsulated {
        meta: Meta::decode(raw)?,
        raw,
        inner,
    })
}

/// Reads a payload that came to `destination` (the outer packet's) and proves
/// it by its tag.
pub fn open<'a>(
    payload: &'a [u8],
    destination: IpAddr,
    keys: &Keys,
) -> Result<Encapsulated<'a>, GeneveError> {
    let (raw, inner) = split(payload)?;
    let binding = Binding::of_packet(destination, inner).ok_or(GeneveError::Inner)?;
    keys.verify(raw, &binding)?;
    Ok(Encapsulated {
        meta: Meta::decode(raw)?,
        raw,
        inner,
    })
}

/// Appends a payload: the headers, an option (see [`Meta::seal`]) and the
/// packet enclosed, whose version chooses the protocol; none counts as IPv4.
pub fn write(raw: &meta::Raw, inner: &[u8], out: &mut Vec<u8>) {
    let protocol = match inner.first() {
        Some(first) if first >> 4 == 6 => PROTOCOL_IPV6,
        _ => PROTOCOL_IPV4,
    };
    out.extend_from_slice(&[OPTION_WORDS, CRITICAL_OPTIONS, protocol[0], protocol[1]]);
    out.extend_from_slice(&NETWORK);
    out.extend_from_slice(&OPTION_HEADER);
    out.extend_from_slice(raw);
    out.extend_from_slice(inner);
}

fn split(payload: &[u8]) -> Result<(&meta::Raw, &[u8]), GeneveError> {
    let (header, rest) = payload
        .split_first_chunk::<12>()
        .ok_or(GeneveError::NotOurs)?;
    let (raw, inner) = rest.split_first_chunk().ok_or(GeneveError::NotOurs)?;
    let [versions, flags, p0, p1, network @ .., o0, o1, o2, o3] = *header;
    let ours = versions == OPTION_WORDS
        && flags == CRITICAL_OPTIONS
        && [PROTOCOL_IPV4, PROTOCOL_IPV6].contains(&[p0, p1])
        && network == NETWORK
        && [o0, o1, o2, o3] == OPTION_HEADER;
    if ours {
        Ok((raw, inner))
    } else {
        Err(GeneveError::NotOurs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ClusterKey;
    use crate::flow::Handshake;
    use crate::seq::ClientSeq;
    use crate::wire::meta::Kind;
    use crate::wire::segment::Segment;
    use proptest::prelude::*;

    const BACKEND: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 9));

    fn keys(id: u8) -> Keys {
        Keys::new(&[ClusterKey {
            id,
            secret: [id; 16],
        }])
        .unwrap()
    }

    fn packet() -> Vec<u8> {
        Segment {
            source: "192.0.2.1:40000".parse().unwrap(),
            destination: "198.51.100.7:80".parse().unwrap(),
            header: Default::default(),
            payload: b"GET / HTTP/1.0\r\n\r\n".to_vec(),
        }
        .to_packet()
    }

    fn meta() -> Meta {
        Meta {
            kind: Kind::Forward,
            epoch: 1,
            start: ClientSeq::new(2),
            handshake: Handshake {
                mss: 1460,
                ..Handshake::default()
            },
            server_port: 0,
            requests: 0,
            care: meta::Care::default(),
        }
    }

    fn payload(inner: &[u8]) -> Vec<u8> {
        let binding = Binding::of_packet(BACKEND, inner).unwrap();
        let mut out = Vec::new();
        write(&meta().seal(&keys(1), &binding), inner, &mut out);
        out
    }

    #[test]
    fn what_is_written_is_opened() {
        for inner in [packet(), Vec::new()] {
            let bytes = payload(&inner);
            assert_eq!(bytes.len(), HEADER_LEN + inner.len());
            let opened = open(&bytes, BACKEND, &keys(1)).unwrap();
            assert_eq!((opened.meta, opened.inner), (meta(), &inner[..]));
            assert_eq!(parse(&bytes), Ok(opened));
        }
    }

    #[test]
    fn the_header_is_that_of_the_drawing() {
        let expected = [9, 0x40, 8, 0, 0x54, 0x50, 0x5a, 0, 0xff, 0x54, 0x81, 8];
        assert_eq!(payload(&packet())[..12], expected);
    }

    #[test]
    fn a_flow_has_one_option_for_all_its_packets() {
        let (mut short, long) = (packet(), packet());
        short.truncate(50);
        short[3] = 50;
        assert_eq!(payload(&short)[12..44], payload(&long)[12..44]);
    }

    #[test]
    fn what_proves_nothing_is_refused() {
        type Damage = fn(&mut Vec<u8>);
        let table: [(&str, Damage, GeneveError); 8] = [
            ("too short", |p| p.truncate(43), GeneveError::NotOurs),
            ("a version", |p| p[0] |= 0x40, GeneveError::NotOurs),
            ("another network", |p| p[4] = 0, GeneveError::NotOurs),
            ("another option", |p| p[9] = 0, GeneveError::NotOurs),
            ("another protocol", |p| p[3] = 6, GeneveError::NotOurs),
            ("another epoch", |p| p[19] ^= 1, TagError::Mismatch.into()),
            (
                "another flow",
                |p| p[44 + 15] ^= 1,
                TagError::Mismatch.into(),
            ),
            ("half a packet", |p| p.truncate(44 + 19), GeneveError::Inner),
        ];
        for (what, damage, expected) in table {
            let mut bytes = payload(&packet());
            damage(&mut bytes);
            assert_eq!(open(&bytes, BACKEND, &keys(1)), Err(expected), "{what}");
        }
        let bytes = payload(&packet());
        let elsewhere = IpAddr::from([10, 0, 0, 8]);
        assert_eq!(
            open(&bytes, elsewhere, &keys(1)),
            Err(TagError::Mismatch.into())
        );
        assert_eq!(
            open(&bytes, BACKEND, &keys(2)),
            Err(TagError::UnknownKey(1).into())
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn no_payload_panics(
            inner in proptest::collection::vec(any::<u8>(), 0..100),
            hit: u16,
            byte: u8,
        ) {
            let _ = open(&inner, BACKEND, &keys(1));
            let mut bytes = payload(&packet());
            let at = usize::from(hit) % bytes.len();
            bytes[at] = byte;
            let _ = open(&bytes, BACKEND, &keys(1));
        }
    }
}
