//! Packets byte by byte, right or wrong in any field. Written for the tests
//! alone, so that a mistake in core's writers does not hide one in the programs.

use std::net::{Ipv4Addr, SocketAddrV4};

pub const FIN: u8 = 0x01;
pub const SYN: u8 = 0x02;
pub const RST: u8 = 0x04;
pub const PSH: u8 = 0x08;
pub const ACK: u8 = 0x10;
pub const URG: u8 = 0x20;
pub const ECE: u8 = 0x40;
pub const CWR: u8 = 0x80;

pub const ETHERNET: usize = 14;
/// Where the TCP header stands in a frame.
pub const TCP_AT: usize = ETHERNET + 20;

/// The side that sends to us, and we: test runs happen on the loopback device.
pub const THEIR_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0x11];
pub const OUR_MAC: [u8; 6] = [0; 6];
/// To whom frames are sent that a switch floods, or a group has.
pub const OTHER_MACS: [[u8; 6]; 5] = [
    [2, 0, 0, 0, 0, 0x22],
    [0, 0, 0, 0, 0, 1],
    [0x80, 0, 0, 0, 0, 0],
    [0xff; 6],
    [1, 0, 0x5e, 0, 0, 1],
];

pub const TCP: u8 = 6;
pub const UDP: u8 = 17;
pub const ICMP: u8 = 1;

/// A TCP segment; every field as it will stand on the wire.
#[derive(Clone, Debug)]
pub struct Tcp {
    pub source: SocketAddrV4,
    pub dest: SocketAddrV4,
    pub seq: u32,
    pub ack: u32,
    pub flags: u8,
    pub window: u16,
    pub options: Vec<u8>,
    pub payload: Vec<u8>,
}

impl Tcp {
    /// The IP packet with right checksums.
    pub fn packet(&self) -> Vec<u8> {
        let mut segment = self.segment();
        let sum = sum(&segment, self.pseudo_sum(segment.len()));
        segment[16..18].copy_from_slice(&(!sum).to_be_bytes());
        ipv4(*self.source.ip(), *self.dest.ip(), TCP, &segment)
    }

    /// In an Ethernet frame to us.
    pub fn frame(&self) -> Vec<u8> {
        ethernet(THEIR_MAC, OUR_MAC, 0x0800, &self.packet())
    }

    /// As [`Self::frame`] from a sender who leaves the checksum to its card.
    pub fn frame_partial(&self) -> Vec<u8> {
        let mut frame = self.frame();
        let pseudo = self.pseudo_sum(frame.len() - TCP_AT) as u16;
        frame[TCP_AT + 16..TCP_AT + 18].copy_from_slice(&pseudo.to_be_bytes());
        frame
    }

    fn segment(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend(self.source.port().to_be_bytes());
        out.extend(self.dest.port().to_be_bytes());
        out.extend(self.seq.to_be_bytes());
        out.extend(self.ack.to_be_bytes());
        let words = (20 + self.options.len()) / 4;
        out.extend([(words as u8) << 4, self.flags]);
        out.extend(self.window.to_be_bytes());
        out.extend([0; 4]);
        out.extend(&self.options);
        out.extend(&self.payload);
        out
    }

    fn pseudo_sum(&self, length: usize) -> u32 {
        let mut header = Vec::new();
        header.extend(self.source.ip().octets());
        header.extend(self.dest.ip().octets());
        header.extend([0, TCP]);
        header.extend((length as u16).to_be_bytes());
        sum(&header, 0).into()
    }
}

/// A TCP option.
#[derive(Clone, Copy, Debug)]
pub enum Opt {
    Mss(u16),
    WindowScale(u8),
    SackPermitted,
    Timestamps(u32, u32),
    /// Timestamps that an open socket is not to mind (docs/protocol/handoff.md 5.4d).
    Aged(u32, u32),
    Nop,
}

/// Options in this order, filled up with end-of-list to whole words.
pub fn options(list: &[Opt]) -> Vec<u8> {
    let mut out = Vec::new();
    for option in list {
        match *option {
            Opt::Mss(mss) => out.extend([&[2, 4], &mss.to_be_bytes()[..]].concat()),
            Opt::WindowScale(shift) => out.extend([3, 3, shift]),
            Opt::SackPermitted => out.extend([4, 2]),
            Opt::Timestamps(value, echo) | Opt::Aged(value, echo) => {
                let kind = if matches!(option, Opt::Aged(..)) {
                    253
                } else {
                    8
                };
                out.extend([kind, 10]);
                out.extend(value.to_be_bytes());
                out.extend(echo.to_be_bytes());
            }
            Opt::Nop => out.push(1),
        }
    }
    out.resize(out.len().next_multiple_of(4), 0);
    out
}

/// The usual options of a segment that is no SYN.
pub fn timestamps(value: u32, echo: u32) -> Vec<u8> {
    options(&[Opt::Nop, Opt::Nop, Opt::Timestamps(value, echo)])
}

/// An Ethernet frame.
pub fn ethernet(source: [u8; 6], dest: [u8; 6], kind: u16, payload: &[u8]) -> Vec<u8> {
    [&dest[..], &source, &kind.to_be_bytes(), payload].concat()
}

/// An IPv4 packet as our programs and most stacks make it: 64 hops, no
/// fragments, identification 0.
pub fn ipv4(source: Ipv4Addr, dest: Ipv4Addr, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut out = vec![0x45, 0];
    out.extend(((20 + payload.len()) as u16).to_be_bytes());
    out.extend([0, 0, 0x40, 0, 64, protocol, 0, 0]);
    out.extend(source.octets());
    out.extend(dest.octets());
    let check = !sum(&out, 0);
    out[10..12].copy_from_slice(&check.to_be_bytes());
    out.extend(payload);
    out
}

/// A UDP datagram in IPv4, without the checksum that IPv4 does not ask for.
pub fn udp(source: SocketAddrV4, dest: SocketAddrV4, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    out.extend(source.port().to_be_bytes());
    out.extend(dest.port().to_be_bytes());
    out.extend(((8 + payload.len()) as u16).to_be_bytes());
    out.extend([0, 0]);
    out.extend(payload);
    ipv4(*source.ip(), *dest.ip(), UDP, &out)
}

/// An ICMP message (RFC 792) about `quoted`.
pub fn icmp(source: Ipv4Addr, dest: Ipv4Addr, kind: u8, code: u8, quoted: &[u8]) -> Vec<u8> {
    let mut out = vec![kind, code, 0, 0, 0, 0, 0x05, 0x14];
    out.extend(quoted);
    let check = !sum(&out, 0);
    out[2..4].copy_from_slice(&check.to_be_bytes());
    ipv4(source, dest, ICMP, &out)
}

/// The frame with other bytes at some places.
pub fn with(mut frame: Vec<u8>, changes: &[(usize, u8)]) -> Vec<u8> {
    for &(at, byte) in changes {
        frame[at] = byte;
    }
    frame
}

/// The frame with the IP checksum that it should have.
pub fn summed(mut frame: Vec<u8>) -> Vec<u8> {
    frame[ETHERNET + 10..ETHERNET + 12].fill(0);
    let check = !sum(&frame[ETHERNET..TCP_AT], 0);
    frame[ETHERNET + 10..ETHERNET + 12].copy_from_slice(&check.to_be_bytes());
    frame
}

/// RFC 1071, sixteen bits at a time.
pub fn sum(bytes: &[u8], start: u32) -> u16 {
    let mut sum = start;
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}
