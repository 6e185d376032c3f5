//! The Internet checksum (RFC 1071), and what a TCP segment's says of it.

use std::net::IpAddr;

/// A one's complement sum in the making. Sums of pieces may be added as long
/// as every piece but the last has an even length.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sum(u64);

impl Sum {
    /// The sum so far and these bytes.
    #[must_use]
    pub fn plus(self, bytes: &[u8]) -> Self {
        let mut sum = self.0;
        // Words of four bytes: 2^16 is 1 in this arithmetic, so they fold alike.
        let (words, rest) = bytes.as_chunks::<4>();
        for word in words {
            sum += u64::from(u32::from_be_bytes(*word));
        }
        let mut last = [0; 4];
        last[..rest.len()].copy_from_slice(rest);
        Self(Self::reduce(sum + u64::from(u32::from_be_bytes(last))))
    }

    /// The sum as it would stand in a header without being complemented.
    pub fn fold(self) -> u16 {
        let mut sum = self.0;
        while sum > 0xffff {
            sum = (sum >> 16) + (sum & 0xffff);
        }
        sum as u16
    }

    /// The checksum: the sum's complement.
    pub fn finish(self) -> u16 {
        !self.fold()
    }

    // Keeps room for any number of further pieces.
    fn reduce(sum: u64) -> u64 {
        (sum >> 32) + (sum & 0xffff_ffff)
    }
}

/// The checksum of an IPv4 header whose checksum field is zero (RFC 791 §3.1).
pub fn ipv4_header(header: &[u8]) -> u16 {
    Sum::default().plus(header).finish()
}

/// The pseudo-header's sum for a TCP segment of `len` bytes, header included
/// (RFC 9293 §3.1, RFC 8200 §8.1). An address of the other family than its
/// partner counts in its mapped form.
pub fn tcp_pseudo_header(source: IpAddr, destination: IpAddr, len: usize) -> Sum {
    const TCP: u32 = 6;
    let sum = match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => Sum::default()
            .plus(&source.octets())
            .plus(&destination.octets()),
        _ => Sum::default()
            .plus(&crate::flow::addr_bytes(source))
            .plus(&crate::flow::addr_bytes(destination)),
    };
    sum.plus(&TCP.to_be_bytes())
        .plus(&(len as u32).to_be_bytes())
}

/// What a segment's checksum field turns out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TcpChecksum {
    /// It covers the segment and agrees with it.
    Complete,
    /// It holds the folded sum of the pseudo-header only: Linux leaves it so
    /// for a network card to complete (`CHECKSUM_PARTIAL`), and a packet that
    /// never met one arrives so. The bytes never left a machine's memory.
    Partial,
    /// The segment was damaged.
    Wrong,
}

/// Judges the checksum of a segment, from its TCP header to its end.
/// A segment too short to hold the field is [`TcpChecksum::Wrong`].
pub fn verify_tcp(source: IpAddr, destination: IpAddr, segment: &[u8]) -> TcpChecksum {
    if segment.len() < TCP_FIELD + 2 {
        return TcpChecksum::Wrong;
    }
    let pseudo = tcp_pseudo_header(source, destination, segment.len());
    if pseudo.plus(segment).fold() == 0xffff {
        TcpChecksum::Complete
    } else if is_tcp_begun(source, destination, segment, segment.len()) {
        TcpChecksum::Partial
    } else {
        TcpChecksum::Wrong
    }
}

/// Whether the checksum of a segment of `len` bytes, of which the first ones are given, is [`TcpChecksum::Partial`].
pub fn is_tcp_begun(source: IpAddr, destination: IpAddr, start: &[u8], len: usize) -> bool {
    let sum = tcp_pseudo_header(source, destination, len).fold();
    start.get(TCP_FIELD..TCP_FIELD + 2) == Some(&sum.to_be_bytes()[..])
}

/// Writes the pseudo-header's sum into a segment, as [`TcpChecksum::Partial`] has it, whatever its field held.
/// A segment too short to hold the field is left alone.
pub fn begin_tcp(source: IpAddr, destination: IpAddr, segment: &mut [u8]) {
    let pseudo = tcp_pseudo_header(source, destination, segment.len());
    if let Some(field) = segment.get_mut(TCP_FIELD..TCP_FIELD + 2) {
        field.copy_from_slice(&pseudo.fold().to_be_bytes());
    }
}

/// Writes the complete checksum into a segment, whatever its field held.
/// A segment too short to hold the field is left alone.
pub fn complete_tcp(source: IpAddr, destination: IpAddr, segment: &mut [u8]) {
    let pseudo = tcp_pseudo_header(source, destination, segment.len());
    let Some(field) = segment.get_mut(TCP_FIELD..TCP_FIELD + 2) else {
        return;
    };
    field.copy_from_slice(&[0, 0]);
    let checksum = pseudo.plus(segment).finish();
    segment[TCP_FIELD..TCP_FIELD + 2].copy_from_slice(&checksum.to_be_bytes());
}

/// Where the checksum stands in a TCP header.
const TCP_FIELD: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// RFC 1071's own way: 16 bits at a time.
    fn slowly(bytes: &[u8]) -> u16 {
        let mut sum = 0u32;
        for pair in bytes.chunks(2) {
            sum += u32::from(u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)]));
            sum = (sum >> 16) + (sum & 0xffff);
        }
        sum as u16
    }

    #[test]
    fn the_example_of_rfc_1071_holds() {
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(Sum::default().plus(&bytes).fold(), 0xddf2);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn wide_sums_equal_narrow_ones(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert_eq!(Sum::default().plus(&bytes).fold(), slowly(&bytes));
        }

        #[test]
        fn a_field_is_told_apart(
            mut segment in proptest::collection::vec(any::<u8>(), 20..200),
            source: [u8; 4], destination: [u8; 4], hit: u16, flip in 1..=255u8,
        ) {
            let (source, destination) = (IpAddr::from(source), IpAddr::from(destination));
            complete_tcp(source, destination, &mut segment);
            prop_assert_eq!(verify_tcp(source, destination, &segment), TcpChecksum::Complete);

            let at = usize::from(hit) % segment.len();
            segment[at] ^= flip;
            prop_assert_ne!(verify_tcp(source, destination, &segment), TcpChecksum::Complete);
            segment[at] ^= flip;

            let partial = tcp_pseudo_header(source, destination, segment.len()).fold();
            segment[16..18].copy_from_slice(&partial.to_be_bytes());
            prop_assume!(verify_tcp(source, destination, &segment) != TcpChecksum::Complete);
            prop_assert_eq!(verify_tcp(source, destination, &segment), TcpChecksum::Partial);
        }
    }
}
