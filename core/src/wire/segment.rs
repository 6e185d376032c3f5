//! A whole TCP segment with its addresses, ready to become an IP packet.

use super::{checksum, ipv4, tcp};
use crate::flow::{FlowKey, addr_bytes};
use std::net::{IpAddr, SocketAddr};

/// A TCP segment that we send. The header's ports are those of the addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Whom it claims to be from.
    pub source: SocketAddr,
    /// Whom it is for.
    pub destination: SocketAddr,
    /// The header; its port fields are filled in from the addresses.
    pub header: tcp::Header,
    /// The payload, at most what fits an IP packet.
    pub payload: Vec<u8>,
}

impl Segment {
    /// One without payload, as the flow's client would send it.
    pub fn of_client(key: &FlowKey, header: tcp::Header) -> Self {
        Self {
            source: key.client,
            destination: key.vip,
            header,
            payload: Vec::new(),
        }
    }

    /// Appends the IP packet, checksums included: IPv4 when both addresses
    /// are, else IPv6.
    pub fn write(&self, out: &mut Vec<u8>) {
        self.write_with(checksum::complete_tcp, out);
    }

    /// The same, with the sum of the pseudo-header alone where TCP's checksum is, for whoever cuts the segment to
    /// complete (`CHECKSUM_PARTIAL`).
    pub fn write_uncompleted(&self, out: &mut Vec<u8>) {
        self.write_with(checksum::begin_tcp, out);
    }

    fn write_with(&self, sum: fn(IpAddr, IpAddr, &mut [u8]), out: &mut Vec<u8>) {
        let mut segment = Vec::with_capacity(60 + self.payload.len());
        let header = tcp::Header {
            source_port: self.source.port(),
            destination_port: self.destination.port(),
            ..self.header
        };
        header.write(&mut segment);
        segment.extend_from_slice(&self.payload);
        let (source, destination) = (self.source.ip(), self.destination.ip());
        sum(source, destination, &mut segment);
        match (source, destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                ipv4::write_header(source, destination, ipv4::PROTOCOL_TCP, segment.len(), out);
            }
            _ => write_ipv6_header(source, destination, segment.len(), out),
        }
        out.extend_from_slice(&segment);
    }

    /// The IP packet.
    pub fn to_packet(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(100 + self.payload.len());
        self.write(&mut out);
        out
    }
}

/// RFC 8200 §3: no extension headers, 64 hops.
fn write_ipv6_header(source: IpAddr, destination: IpAddr, len: usize, out: &mut Vec<u8>) {
    out.extend_from_slice(&[0x60, 0, 0, 0]);
    out.extend_from_slice(&u16::try_from(len).unwrap_or(u16::MAX).to_be_bytes());
    out.extend_from_slice(&[ipv4::PROTOCOL_TCP, 64]);
    out.extend_from_slice(&addr_bytes(source));
    out.extend_from_slice(&addr_bytes(destination));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::checksum::{TcpChecksum, verify_tcp};

    fn segment(source: &str, destination: &str) -> Segment {
        Segment {
            source: source.parse().unwrap(),
            destination: destination.parse().unwrap(),
            header: tcp::Header {
                seq: 9,
                flags: tcp::Flags::ACK,
                ..tcp::Header::default()
            },
            payload: b"odd".to_vec(),
        }
    }

    #[test]
    fn a_packet_parses_and_its_checksum_holds() {
        let segment = segment("192.0.2.1:80", "198.51.100.7:4000");
        let bytes = segment.to_packet();
        let packet = ipv4::Packet::parse(&bytes).unwrap();
        let (source, destination) = (packet.source().into(), packet.destination().into());
        assert_eq!(
            verify_tcp(source, destination, packet.payload()),
            TcpChecksum::Complete
        );
        let (header, payload) = tcp::Header::parse(packet.payload()).unwrap();
        assert_eq!((header.source_port, header.destination_port), (80, 4000));
        assert_eq!((header.seq, payload), (9, &b"odd"[..]));
    }

    #[test]
    fn ipv6_addresses_make_an_ipv6_packet() {
        let segment = segment("[2001:db8::1]:80", "[2001:db8::2]:4000");
        let bytes = segment.to_packet();
        assert_eq!(bytes.len(), 40 + 20 + 3);
        let (source, destination) = (segment.source.ip(), segment.destination.ip());
        assert_eq!(
            verify_tcp(source, destination, &bytes[40..]),
            TcpChecksum::Complete
        );
    }
}
