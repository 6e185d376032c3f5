//! TCP headers (RFC 9293 §3.1) with the options that a connection needs after
//! and during its handshake. Unknown options are skipped.

use super::Malformed;
use std::fmt;
use std::ops::{BitOr, BitOrAssign};

/// Bytes of a header without options.
pub const HEADER_LEN: usize = 20;
/// Where its sequence number is,
pub const SEQ_AT: usize = 4;
/// and its control bits.
pub const FLAGS_AT: usize = 13;

/// The control bits of a header.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Flags(u8);

impl Flags {
    /// No more data from the sender.
    pub const FIN: Self = Self(0x01);
    /// Synchronise sequence numbers.
    pub const SYN: Self = Self(0x02);
    /// Reset the connection.
    pub const RST: Self = Self(0x04);
    /// Push.
    pub const PSH: Self = Self(0x08);
    /// The acknowledgement field counts.
    pub const ACK: Self = Self(0x10);
    /// The urgent field counts.
    pub const URG: Self = Self(0x20);
    /// ECN echo (RFC 3168).
    pub const ECE: Self = Self(0x40);
    /// Congestion window reduced (RFC 3168).
    pub const CWR: Self = Self(0x80);

    /// The byte as it stands in a header.
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits)
    }

    /// The byte to put into a header.
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// These flags but for those of `other`.
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Are all of these set?
    pub const fn has(self, flags: Self) -> bool {
        self.0 & flags.0 == flags.0
    }
}

impl BitOr for Flags {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOrAssign for Flags {
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

impl fmt::Debug for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = ["FIN", "SYN", "RST", "PSH", "ACK", "URG", "ECE", "CWR"];
        let set = names
            .iter()
            .enumerate()
            .filter(|(bit, _)| self.0 >> bit & 1 == 1);
        f.write_str(&set.map(|(_, name)| *name).collect::<Vec<_>>().join("|"))
    }
}

/// The timestamps option (RFC 7323 §3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Timestamps {
    /// The sender's clock: TSval.
    pub value: u32,
    /// The latest of the other side's that it has seen: TSecr.
    pub echo: u32,
}

/// The later of two clocks: they come round like sequence numbers (RFC 7323 §5.2).
pub fn later_clock(a: u32, b: u32) -> u32 {
    if b.wrapping_sub(a).cast_signed() > 0 {
        b
    } else {
        a
    }
}

/// The blocks of the SACK option (RFC 2018 §3): runs of bytes that have come out of
/// order, each from its first number up to the one behind its last, the newest
/// first. As many as the options of a header have room for: four, three beside
/// timestamps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct SackBlocks {
    blocks: [(u32, u32); Self::MOST],
    count: usize,
}

impl SackBlocks {
    /// How many fit a header that has no other option.
    pub const MOST: usize = 4;
    /// How many fit beside timestamps.
    pub const MOST_BESIDE_TIMESTAMPS: usize = 3;

    /// Adds a block behind the others; false if there is no room.
    pub fn push(&mut self, start: u32, end: u32) -> bool {
        let Some(block) = self.blocks.get_mut(self.count) else {
            return false;
        };
        *block = (start, end);
        self.count += 1;
        true
    }

    /// The blocks in their order.
    pub fn as_slice(&self) -> &[(u32, u32)] {
        &self.blocks[..self.count]
    }
}

/// The options of a header that we know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Options {
    /// Maximum segment size (RFC 9293 §3.7.1); of a SYN.
    pub mss: Option<u16>,
    /// Window shift as sent (RFC 7323 §2.2); of a SYN.
    pub window_scale: Option<u8>,
    /// Selective acknowledgements are welcome (RFC 2018 §2); of a SYN.
    pub sack_permitted: bool,
    /// Timestamps.
    pub timestamps: Option<Timestamps>,
    /// Timestamps that the client may have overtaken since, for whoever has the packet as
    /// the first of a connection: a server's TCP that has later ones does not know the
    /// option, and does not refuse the packet for it (docs/protocol/handoff.md 5.4d).
    pub aged: Option<Timestamps>,
    /// What has come out of order.
    pub sack: SackBlocks,
}

/// A header's fields. Sequence numbers are raw: see [`crate::seq`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Header {
    /// The sender's port.
    pub source_port: u16,
    /// The receiver's port.
    pub destination_port: u16,
    /// Of the first byte (or of the SYN), in the sender's space.
    pub seq: u32,
    /// The next byte that the sender expects, in the receiver's space.
    pub ack: u32,
    /// Control bits.
    pub flags: Flags,
    /// The window field as sent: not yet shifted.
    pub window: u16,
    /// Options.
    pub options: Options,
}

impl Header {
    /// Parses a segment into its header and its payload. The checksum is
    /// [`super::checksum::verify_tcp`]'s matter.
    pub fn parse(segment: &[u8]) -> Result<(Self, &[u8]), Malformed> {
        let (fixed, _) = segment
            .split_first_chunk::<HEADER_LEN>()
            .ok_or(Malformed::Truncated)?;
        let header_len = usize::from(fixed[12] >> 4) * 4;
        if header_len < HEADER_LEN || header_len > segment.len() {
            return Err(Malformed::HeaderLength);
        }
        let (header, payload) = segment.split_at(header_len);
        let header = Self {
            source_port: u16_at(fixed, 0),
            destination_port: u16_at(fixed, 2),
            seq: u32_at(fixed, 4),
            ack: u32_at(fixed, 8),
            flags: Flags(fixed[13]),
            window: u16_at(fixed, 14),
            options: Options::parse(&header[HEADER_LEN..])?,
        };
        Ok((header, payload))
    }

    /// Appends the header, with a checksum field of zero.
    pub fn write(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&self.source_port.to_be_bytes());
        out.extend_from_slice(&self.destination_port.to_be_bytes());
        out.extend_from_slice(&self.seq.to_be_bytes());
        out.extend_from_slice(&self.ack.to_be_bytes());
        out.extend_from_slice(&[0, self.flags.0]);
        out.extend_from_slice(&self.window.to_be_bytes());
        out.extend_from_slice(&[0; 4]); // checksum, urgent pointer
        self.options.write(out);
        out[start + 12] = (((out.len() - start) / 4) as u8) << 4;
    }
}

impl Options {
    const END: u8 = 0;
    const NO_OPERATION: u8 = 1;
    const MSS: u8 = 2;
    const WINDOW_SCALE: u8 = 3;
    const SACK_PERMITTED: u8 = 4;
    const SACK: u8 = 5;
    const TIMESTAMPS: u8 = 8;
    /// For experiments (RFC 4727 §7.3): no other one is free.
    const AGED: u8 = 253;

    fn parse(mut bytes: &[u8]) -> Result<Self, Malformed> {
        let mut options = Self::default();
        while let Some((&kind, rest)) = bytes.split_first() {
            match kind {
                Self::END => break,
                Self::NO_OPERATION => {
                    bytes = rest;
                    continue;
                }
                _ => {}
            }
            let len = usize::from(*rest.first().ok_or(Malformed::TcpOption)?);
            let body = bytes.get(2..len).ok_or(Malformed::TcpOption)?;
            match (kind, body) {
                (Self::MSS, &[a, b]) => options.mss = Some(u16::from_be_bytes([a, b])),
                (Self::WINDOW_SCALE, &[shift]) => options.window_scale = Some(shift),
                (Self::SACK_PERMITTED, &[]) => options.sack_permitted = true,
                (Self::SACK, blocks) if blocks.len() % 8 == 0 => {
                    options.sack = SackBlocks::default();
                    for block in blocks.chunks_exact(8) {
                        let number = |at: usize| {
                            u32::from_be_bytes(std::array::from_fn(|byte| block[at + byte]))
                        };
                        options.sack.push(number(0), number(4));
                    }
                }
                (Self::TIMESTAMPS | Self::AGED, &[a, b, c, d, e, f, g, h]) => {
                    let timestamps = Some(Timestamps {
                        value: u32::from_be_bytes([a, b, c, d]),
                        echo: u32::from_be_bytes([e, f, g, h]),
                    });
                    match kind {
                        Self::TIMESTAMPS => options.timestamps = timestamps,
                        _ => options.aged = timestamps,
                    }
                }
                // Unknown, or of a length that it cannot have: as if absent.
                _ => {}
            }
            bytes = &bytes[len..];
        }
        Ok(options)
    }

    /// The same, where later ones of the client's may have come to the receiver meanwhile.
    pub fn aged(self) -> Self {
        Self {
            timestamps: None,
            aged: self.timestamps.or(self.aged),
            ..self
        }
    }

    /// In whole words each, in the order in which Linux writes them.
    fn write(&self, out: &mut Vec<u8>) {
        if let Some(mss) = self.mss {
            out.extend_from_slice(&[Self::MSS, 4]);
            out.extend_from_slice(&mss.to_be_bytes());
        }
        if self.sack_permitted {
            out.extend_from_slice(&[1, 1, Self::SACK_PERMITTED, 2]);
        }
        let kinds = [(Self::TIMESTAMPS, self.timestamps), (Self::AGED, self.aged)];
        for (kind, timestamps) in kinds {
            let Some(timestamps) = timestamps else {
                continue;
            };
            out.extend_from_slice(&[1, 1, kind, 10]);
            out.extend_from_slice(&timestamps.value.to_be_bytes());
            out.extend_from_slice(&timestamps.echo.to_be_bytes());
        }
        if let Some(shift) = self.window_scale {
            out.extend_from_slice(&[1, Self::WINDOW_SCALE, 3, shift]);
        }
        let blocks = self.sack.as_slice();
        if !blocks.is_empty() {
            out.extend_from_slice(&[1, 1, Self::SACK, 2 + 8 * blocks.len() as u8]);
            for (start, end) in blocks {
                out.extend_from_slice(&start.to_be_bytes());
                out.extend_from_slice(&end.to_be_bytes());
            }
        }
    }
}

fn u16_at(bytes: &[u8; HEADER_LEN], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8; HEADER_LEN], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn header(options: Options) -> Header {
        Header {
            source_port: 40000,
            destination_port: 80,
            seq: 0xffff_fff0,
            ack: 7,
            flags: Flags::ACK | Flags::PSH,
            window: 512,
            options,
        }
    }

    fn sack(blocks: usize) -> SackBlocks {
        let mut sack = SackBlocks::default();
        for block in 0..blocks as u32 {
            assert!(sack.push((u32::MAX - 5).wrapping_add(block * 100), block * 100 + 50));
        }
        assert_eq!(sack.as_slice().len(), blocks);
        sack
    }

    #[test]
    fn more_blocks_than_a_header_can_have_are_refused() {
        assert!(!sack(SackBlocks::MOST).push(1, 2));
    }

    #[test]
    fn what_is_written_is_read() {
        let timestamps = Some(Timestamps {
            value: 1,
            echo: 0xdead_beef,
        });
        let table = [
            Options::default(),
            Options {
                timestamps,
                ..Options::default()
            },
            Options {
                aged: timestamps,
                ..Options::default()
            },
            Options {
                mss: Some(1380),
                window_scale: Some(9),
                sack_permitted: true,
                timestamps,
                ..Options::default()
            },
            Options {
                timestamps,
                sack: sack(SackBlocks::MOST_BESIDE_TIMESTAMPS),
                ..Options::default()
            },
            Options {
                sack: sack(SackBlocks::MOST),
                ..Options::default()
            },
        ];
        for options in table {
            let mut bytes = Vec::new();
            header(options).write(&mut bytes);
            assert_eq!(bytes.len() % 4, 0);
            assert!(bytes.len() <= 60);
            bytes.extend_from_slice(b"GET /");
            assert_eq!(Header::parse(&bytes), Ok((header(options), &b"GET /"[..])));
        }
    }

    #[test]
    fn odd_options_are_skipped_and_impossible_ones_refused() {
        let table: [(&[u8], Result<Options, Malformed>); 7] = [
            (&[0, 2, 4, 0], Ok(Options::default())), // behind the end of the list
            (&[2, 3, 5, 1], Ok(Options::default())), // an MSS of one byte
            (&[254, 4, 9, 9], Ok(Options::default())),
            (&[5, 9, 1, 2, 3, 4, 5, 6, 7], Ok(Options::default())), // half a block
            (&[1, 1, 1, 2], Err(Malformed::TcpOption)),
            (&[8, 10, 0, 0], Err(Malformed::TcpOption)),
            (&[254, 1, 0, 0], Err(Malformed::TcpOption)),
        ];
        for (bytes, expected) in table {
            assert_eq!(Options::parse(bytes), expected, "{bytes:?}");
        }
    }

    #[test]
    fn flags_have_names() {
        assert_eq!(format!("{:?}", Flags::FIN | Flags::ACK), "FIN|ACK");
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = Header::parse(&bytes);
        }

        #[test]
        fn no_options_panic(
            data_offset in 5..16u8,
            options in proptest::collection::vec(0..12u8, 40),
        ) {
            let mut bytes = vec![0; HEADER_LEN];
            bytes[12] = data_offset << 4;
            bytes.extend_from_slice(&options);
            let _ = Header::parse(&bytes);
        }
    }
}
