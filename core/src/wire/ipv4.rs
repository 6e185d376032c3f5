//! IPv4 headers (RFC 791): a checked view and a writer.

use super::{Malformed, checksum};
use std::net::Ipv4Addr;

/// Bytes of a header without options.
pub const HEADER_LEN: usize = 20;
/// The protocol number of TCP.
pub const PROTOCOL_TCP: u8 = 6;
/// The protocol number of UDP.
pub const PROTOCOL_UDP: u8 = 17;

/// A packet whose header agrees with its length. The header's own checksum is
/// not judged: the kernel or the data path has done that.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    header: &'a [u8],
    payload: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Checks the header against the bytes; what follows the total length
    /// (padding of short Ethernet frames) is cut off.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let first = *bytes.first().ok_or(Malformed::Truncated)?;
        if first >> 4 != 4 {
            return Err(Malformed::NotIpv4);
        }
        if bytes.len() < HEADER_LEN {
            return Err(Malformed::Truncated);
        }
        let header_len = usize::from(first & 0xf) * 4;
        if header_len < HEADER_LEN || header_len > bytes.len() {
            return Err(Malformed::HeaderLength);
        }
        let total_len = usize::from(u16::from_be_bytes([bytes[2], bytes[3]]));
        if total_len < header_len || total_len > bytes.len() {
            return Err(Malformed::TotalLength);
        }
        let (header, payload) = bytes[..total_len].split_at(header_len);
        Ok(Self { header, payload })
    }

    /// Where it comes from.
    pub fn source(&self) -> Ipv4Addr {
        Ipv4Addr::new(
            self.header[12],
            self.header[13],
            self.header[14],
            self.header[15],
        )
    }

    /// Where it goes.
    pub fn destination(&self) -> Ipv4Addr {
        Ipv4Addr::new(
            self.header[16],
            self.header[17],
            self.header[18],
            self.header[19],
        )
    }

    /// The transport's number.
    pub fn protocol(&self) -> u8 {
        self.header[9]
    }

    /// Hops left.
    pub fn ttl(&self) -> u8 {
        self.header[8]
    }

    /// Is it only a piece of a packet?
    pub fn is_fragment(&self) -> bool {
        // More fragments, or an offset (RFC 791 §3.1).
        u16::from_be_bytes([self.header[6], self.header[7]]) & 0x3fff != 0
    }

    /// What follows the header.
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }
}

/// Appends a header without options for `payload_len` bytes, checksum
/// included: do not fragment, identification 0 (RFC 6864 §4.1), 64 hops.
/// A payload that does not fit the length field is the caller's mistake; its
/// length is cut to what fits.
pub fn write_header(
    source: Ipv4Addr,
    destination: Ipv4Addr,
    protocol: u8,
    payload_len: usize,
    out: &mut Vec<u8>,
) {
    let total_len = u16::try_from(HEADER_LEN + payload_len).unwrap_or(u16::MAX);
    let mut header = [0; HEADER_LEN];
    header[0] = 0x45;
    header[2..4].copy_from_slice(&total_len.to_be_bytes());
    header[6] = 0x40; // do not fragment
    header[8] = 64;
    header[9] = protocol;
    header[12..16].copy_from_slice(&source.octets());
    header[16..20].copy_from_slice(&destination.octets());
    let checksum = checksum::ipv4_header(&header);
    header[10..12].copy_from_slice(&checksum.to_be_bytes());
    out.extend_from_slice(&header);
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
    const B: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 7);

    fn packet(payload: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        write_header(A, B, PROTOCOL_TCP, payload.len(), &mut out);
        out.extend_from_slice(payload);
        out
    }

    #[test]
    fn what_is_written_is_read() {
        let mut bytes = packet(b"hello");
        bytes.extend_from_slice(&[0; 9]); // padding
        let packet = Packet::parse(&bytes).unwrap();
        assert_eq!((packet.source(), packet.destination()), (A, B));
        assert_eq!((packet.protocol(), packet.ttl()), (PROTOCOL_TCP, 64));
        assert_eq!(packet.payload(), b"hello");
        assert!(!packet.is_fragment());
        assert_eq!(checksum::ipv4_header(&bytes[..HEADER_LEN]), 0);
    }

    #[test]
    fn headers_that_cannot_be_are_refused() {
        type Damage = fn(&mut Vec<u8>);
        let table: [(&str, Damage, Malformed); 7] = [
            ("nothing", |p| p.clear(), Malformed::Truncated),
            ("half a header", |p| p.truncate(19), Malformed::Truncated),
            ("version 6", |p| p[0] = 0x65, Malformed::NotIpv4),
            (
                "header of 16 bytes",
                |p| p[0] = 0x44,
                Malformed::HeaderLength,
            ),
            (
                "header beyond the end",
                |p| p[0] = 0x4f,
                Malformed::HeaderLength,
            ),
            ("total below header", |p| p[3] = 19, Malformed::TotalLength),
            (
                "total beyond the end",
                |p| p[3] += 1,
                Malformed::TotalLength,
            ),
        ];
        for (what, damage, expected) in table {
            let mut bytes = packet(b"hello");
            damage(&mut bytes);
            assert_eq!(Packet::parse(&bytes).unwrap_err(), expected, "{what}");
        }
    }

    #[test]
    fn fragments_are_seen() {
        let mut bytes = packet(b"hello");
        bytes[6] = 0x20; // more fragments
        assert!(Packet::parse(&bytes).unwrap().is_fragment());
        bytes[6..8].copy_from_slice(&[0, 1]); // offset 8
        assert!(Packet::parse(&bytes).unwrap().is_fragment());
    }
}
