//! A packet that was kept as it came, or its first bytes, made fit to be sent once more.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use super::checksum::{self, TcpChecksum};
use super::{ipv4, tcp};
use crate::flow::FlowKey;

/// Whose connection a TCP packet is of, as lots are drawn; `packet` begins with an IPv4 header.
pub fn flow_of(packet: &[u8]) -> Option<FlowKey> {
    let ports = packet.get(ipv4::HEADER_LEN..ipv4::HEADER_LEN + 4)?;
    let address = |at: usize| -> Option<IpAddr> {
        let octets: [u8; 4] = packet.get(at..at + 4)?.try_into().ok()?;
        Some(octets.into())
    };
    Some(FlowKey {
        client: SocketAddr::new(address(12)?, u16::from_be_bytes([ports[0], ports[1]])),
        vip: SocketAddr::new(address(16)?, u16::from_be_bytes([ports[2], ports[3]])),
    })
}

/// Of packets in their order those that may have been lost: of each flow what its sender has said since it was last
/// answered, as far as its acknowledgements tell, and of what only acknowledges the last. The others are no loss, if they
/// are one: what is behind them would be taken for older than the answer to them (RFC 7323 §5.3).
pub fn unanswered(packets: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    /// Of a flow: what it acknowledges in the end, and which packet says something last.
    struct End {
        ack: Option<u32>,
        last: usize,
    }
    let read: Vec<Option<(FlowKey, tcp::Header, bool)>> =
        packets.iter().map(|packet| read(packet)).collect();
    let mut ends: HashMap<FlowKey, End> = HashMap::new();
    for (place, (flow, header, _)) in
        (read.iter().enumerate()).filter_map(|(place, read)| Some((place, read.as_ref()?)))
    {
        let end = ends.entry(*flow).or_insert(End {
            ack: None,
            last: place,
        });
        let is_later = |ack: u32| header.ack.wrapping_sub(ack).cast_signed() >= 0;
        if header.flags.has(tcp::Flags::ACK) && end.ack.is_none_or(is_later) {
            end.ack = Some(header.ack);
            end.last = place;
        } else if end.ack.is_none() {
            end.last = place;
        }
    }
    let is_unanswered = |place: usize| {
        let Some((flow, header, is_bare)) = &read[place] else {
            return false;
        };
        let end = &ends[flow];
        let acks = header.flags.has(tcp::Flags::ACK).then_some(header.ack);
        place == end.last
            || header.flags.has(tcp::Flags::RST)
            || acks.is_some() && acks == end.ack && !is_bare
    };
    let left = packets.into_iter().enumerate();
    left.filter(|(place, _)| is_unanswered(*place))
        .map(|(_, packet)| packet)
        .collect()
}

/// Its flow, its header, and whether it only acknowledges.
fn read(packet: &[u8]) -> Option<(FlowKey, tcp::Header, bool)> {
    let flow = flow_of(packet)?;
    let (header, payload) = tcp::Header::parse(packet.get(ipv4::HEADER_LEN..)?).ok()?;
    let others = tcp::Flags::SYN | tcp::Flags::FIN | tcp::Flags::RST;
    let is_bare = payload.is_empty() && header.flags == header.flags.without(others);
    Some((flow, header, is_bare))
}

/// A packet, or the first bytes of one, as a wire carries it. Of several segments in one, which a virtual link has
/// not divided, this is the first, and no longer than `most` bytes with its IPv4 header. None: it is damaged, or
/// nobody can tell.
pub fn first_segment(packet: &[u8], most: usize) -> Option<Vec<u8>> {
    let (header, segment) = packet.split_at_checked(ipv4::HEADER_LEN)?;
    let total = usize::from(u16::from_be_bytes([header[2], header[3]]));
    let flow = flow_of(packet)?;
    let (source, destination) = (flow.client.ip(), flow.vip.ip());
    // The sum of what is not all here cannot be checked.
    let is_sound = match total == packet.len() {
        true => checksum::verify_tcp(source, destination, segment) != TcpChecksum::Wrong,
        false => checksum::is_tcp_begun(
            source,
            destination,
            segment,
            total.checked_sub(header.len())?,
        ),
    };
    let mut segment = segment[..segment.len().min(most.checked_sub(header.len())?)].to_vec();
    let flags = tcp::Header::parse(&segment).ok()?.0.flags;
    if !is_sound {
        return None;
    }
    if header.len() + segment.len() < total {
        // They are about what is behind it.
        segment[tcp::FLAGS_AT] = flags.without(tcp::Flags::FIN | tcp::Flags::PSH).bits();
    }
    checksum::complete_tcp(source, destination, &mut segment);
    let mut out = header.to_vec();
    out[2..4].copy_from_slice(&((header.len() + segment.len()) as u16).to_be_bytes());
    out[10..12].fill(0);
    let sum = checksum::ipv4_header(&out);
    out[10..12].copy_from_slice(&sum.to_be_bytes());
    out.extend_from_slice(&segment);
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::segment::Segment;
    use crate::wire::tcp::Flags;

    fn segment(payload: usize) -> Segment {
        Segment {
            source: "192.0.2.1:40000".parse().unwrap(),
            destination: "198.51.100.7:80".parse().unwrap(),
            header: tcp::Header {
                seq: 7,
                ack: 9,
                flags: Flags::ACK | Flags::PSH | Flags::FIN,
                window: 5,
                ..tcp::Header::default()
            },
            payload: (0..payload).map(|at| at as u8).collect(),
        }
    }

    /// As a virtual interface carries it: a sum is to be made of it yet.
    fn uncompleted(payload: usize) -> Vec<u8> {
        let mut packet = Vec::new();
        segment(payload).write_uncompleted(&mut packet);
        packet
    }

    #[test]
    fn what_is_whole_stays_as_it_is() {
        let packet = segment(100).to_packet();
        assert_eq!(first_segment(&packet, 1428), Some(packet.clone()));
        assert_eq!(first_segment(&uncompleted(100), 1428), Some(packet));
    }

    #[test]
    fn of_many_segments_in_one_the_first_is_made_whole() {
        let long = uncompleted(30_000);
        let first = Segment {
            payload: segment(30_000).payload[..1388].to_vec(),
            header: tcp::Header {
                flags: Flags::ACK,
                ..segment(0).header
            },
            ..segment(0)
        };
        assert_eq!(first_segment(&long[..1428], 1428), Some(first.to_packet()));
        assert_eq!(first_segment(&long[..1428], 1000).unwrap().len(), 1000);
        // What is complete, and longer than fits.
        let whole = segment(1440).to_packet();
        assert_eq!(first_segment(&whole, 1428), Some(first.to_packet()));
    }

    #[test]
    fn nothing_is_made_whole_that_is_damaged_or_may_be() {
        let mut packet = segment(100).to_packet();
        packet[80] ^= 1;
        assert_eq!(first_segment(&packet, 1428), None);
        // Nobody can tell.
        assert_eq!(
            first_segment(&segment(3000).to_packet()[..1428], 1428),
            None
        );
        for length in 0..40 {
            assert_eq!(first_segment(&uncompleted(100)[..length], 1428), None);
        }
        assert_eq!(first_segment(&packet, 10), None);
    }

    #[test]
    fn what_was_answered_is_left_out() {
        const ACK: Flags = Flags::ACK;
        let packet = |port: u16, ack: u32, flags: Flags, payload: usize| {
            let mut segment = segment(payload);
            segment.source.set_port(port);
            (segment.header.ack, segment.header.flags) = (ack, flags);
            segment.to_packet()
        };
        // In order; true: it stays.
        let table = [
            (
                "a SYN that was answered",
                packet(1, 0, Flags::SYN, 0),
                false,
            ),
            ("a request that was", packet(1, 1, ACK, 100), false),
            ("a SYN that was not", packet(2, 0, Flags::SYN, 0), false),
            (
                "the same, the last thing that is said",
                packet(2, 0, Flags::SYN, 0),
                true,
            ),
            ("an upload's first segment", packet(3, 7, ACK, 1000), true),
            ("the answer has come", packet(1, 900, ACK, 0), false),
            ("an old acknowledgement", packet(4, u32::MAX, ACK, 0), false),
            (
                "the next request",
                packet(1, 900, ACK | Flags::PSH, 100),
                true,
            ),
            ("an upload's next segment", packet(3, 7, ACK, 1000), true),
            (
                "an acknowledgement that was overtaken",
                packet(4, u32::MAX - 9, ACK, 0),
                false,
            ),
            ("the latest, around zero", packet(4, 5, ACK, 0), true),
            ("an end", packet(1, 900, ACK | Flags::FIN, 0), true),
            ("a reset", packet(5, 0, Flags::RST, 0), true),
            ("what is behind it", packet(5, 0, Flags::SYN, 0), true),
        ];
        let all: Vec<Vec<u8>> = table.iter().map(|(_, packet, _)| packet.clone()).collect();
        let left = unanswered(all);
        let expected: Vec<Vec<u8>> = (table.iter().filter(|(.., stays)| *stays))
            .map(|(_, packet, _)| packet.clone())
            .collect();
        for (what, packet, stays) in &table {
            let count = |all: &[Vec<u8>]| all.iter().filter(|it| *it == packet).count();
            assert_eq!(count(&left), count(&expected), "{what}, {stays}");
        }
        assert_eq!(left, expected);
        assert!(
            unanswered(vec![vec![0; 30]]).is_empty(),
            "what cannot be read"
        );
    }

    #[test]
    fn a_packet_is_of_its_flow() {
        let flow = flow_of(&uncompleted(10)).unwrap();
        let is = segment(0);
        assert_eq!((flow.client, flow.vip), (is.source, is.destination));
        assert_eq!(flow_of(&uncompleted(10)[..23]), None);
    }
}
