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

/// A packet as it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// From its IPv4 header on, all of it or as much as there was room for;
    pub start: Vec<u8>,
    /// then its last bytes, as far as they are behind those.
    pub end: Vec<u8>,
}

/// Of packets to several nodes, by slot, those to `dead` that may have been lost: of each flow what its sender has said
/// since it was last answered, as far as its acknowledgements tell, the last of what is more than an acknowledgement, and the last
/// of all. The others are no loss, if they are one: what is behind them would be taken for older than the answer to them
/// (RFC 7323 §5.3). Nothing of a connection whose client has begun another one under its port: nobody waits for that, and
/// what asks for something may have been answered.
///
/// They are in their order, as far as that is known: where their numbers say otherwise, those count.
pub fn unanswered(packets: Vec<(u16, Kept)>, dead: u16) -> Vec<Kept> {
    /// Of a flow's latest connection: its first number, what it acknowledges in the end, and its last packets.
    #[derive(Default)]
    struct Latest {
        isn: Option<u32>,
        ack: Option<u32>,
        last: usize,
        said: Option<(u32, usize)>,
    }
    let is_later = |number: u32, than: u32| number.wrapping_sub(than).cast_signed() >= 0;
    let read: Vec<Option<(FlowKey, tcp::Header, bool)>> = (packets.iter())
        .map(|(_, packet)| read(&packet.start))
        .collect();
    let each = || {
        let each = read.iter().enumerate();
        each.filter_map(|(place, it)| it.as_ref().map(|it| (place, it)))
    };
    let mut all: HashMap<FlowKey, Latest> = HashMap::new();
    for (_, (flow, header, _)) in each().filter(|(_, it)| it.1.flags.has(tcp::Flags::SYN)) {
        all.entry(*flow).or_default().isn = Some(header.seq);
    }
    let is_before = |latest: &Latest, header: &tcp::Header| {
        latest.isn.is_some_and(|isn| !is_later(header.seq, isn))
    };
    for (place, (flow, header, is_bare)) in each() {
        let latest = all.entry(*flow).or_default();
        if is_before(latest, header) {
            continue;
        }
        let acks = header.flags.has(tcp::Flags::ACK);
        if acks && latest.ack.is_none_or(|ack| is_later(header.ack, ack)) {
            latest.ack = Some(header.ack);
            latest.last = place;
        } else if latest.ack.is_none() {
            latest.last = place;
        }
        if acks && !is_bare && latest.said.is_none_or(|(seq, _)| is_later(header.seq, seq)) {
            latest.said = Some((header.seq, place));
        }
    }
    let is_unanswered = |place: usize| {
        let Some((flow, header, is_bare)) = &read[place] else {
            return false;
        };
        let latest = &all[flow];
        let acks = header.flags.has(tcp::Flags::ACK).then_some(header.ack);
        !is_before(latest, header)
            && (place == latest.last
                || latest.said.is_some_and(|(_, said)| said == place)
                || header.flags.has(tcp::Flags::RST)
                || acks.is_some() && acks == latest.ack && !is_bare)
    };
    let lost: Vec<bool> = (packets.iter().enumerate())
        .map(|(place, (slot, _))| *slot == dead && is_unanswered(place))
        .collect();
    let left = packets.into_iter().zip(lost);
    left.filter(|(_, is_lost)| *is_lost)
        .map(|((_, packet), _)| packet)
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

/// A packet as a wire carries it. Of several segments in one, which a virtual link has not divided, these are the first
/// and the last, by which their sender finds out about the others. None is longer than `most` bytes with its IPv4
/// header. Nothing: it is damaged, or nobody can tell.
pub fn segments(packet: &Kept, most: usize) -> Vec<Vec<u8>> {
    let Some((first, last)) = first_and_last(packet, most) else {
        return Vec::new();
    };
    [Some(first), last].into_iter().flatten().collect()
}

fn first_and_last(packet: &Kept, most: usize) -> Option<(Vec<u8>, Option<Vec<u8>>)> {
    let (header, segment) = packet.start.split_at_checked(ipv4::HEADER_LEN)?;
    let total = usize::from(u16::from_be_bytes([header[2], header[3]]));
    let flow = flow_of(&packet.start)?;
    let (source, destination) = (flow.client.ip(), flow.vip.ip());
    // The sum of what is not all here cannot be checked.
    let is_sound = match total == packet.start.len() {
        true => checksum::verify_tcp(source, destination, segment) != TcpChecksum::Wrong,
        false => {
            let length = total.checked_sub(header.len())?;
            checksum::is_tcp_begun(source, destination, segment, length)
        }
    };
    let (fields, payload) = tcp::Header::parse(segment).ok()?;
    let fixed = segment.len() - payload.len();
    let room = most.checked_sub(header.len() + fixed)?;
    if !is_sound {
        return None;
    }
    let whole = |payload: &[u8], change: &dyn Fn(&mut [u8])| {
        let mut segment = [&segment[..fixed], payload].concat();
        change(&mut segment);
        checksum::complete_tcp(source, destination, &mut segment);
        let mut out = header.to_vec();
        out[2..4].copy_from_slice(&((header.len() + segment.len()) as u16).to_be_bytes());
        out[10..12].fill(0);
        let sum = checksum::ipv4_header(&out);
        out[10..12].copy_from_slice(&sum.to_be_bytes());
        out.extend_from_slice(&segment);
        out
    };
    let first = &payload[..payload.len().min(room)];
    let behind = total.checked_sub(header.len() + fixed + first.len())?;
    let shown = whole(first, &|segment| {
        if behind > 0 {
            // They are about what is at the end.
            let left = fields.flags.without(tcp::Flags::FIN | tcp::Flags::PSH);
            segment[tcp::FLAGS_AT] = left.bits();
        }
    });
    let end = match packet.end.is_empty() {
        true => &payload[first.len()..],
        false => &packet.end[..],
    };
    let end = &end[end.len().saturating_sub(room)..];
    let seq = fields
        .seq
        .wrapping_add((first.len() + behind).checked_sub(end.len())? as u32);
    let last = whole(end, &|segment| {
        segment[tcp::SEQ_AT..tcp::SEQ_AT + 4].copy_from_slice(&seq.to_be_bytes());
    });
    Some((shown, (!end.is_empty()).then_some(last)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::segment::Segment;
    use crate::wire::tcp::Flags;

    const DEAD: u16 = 3;

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

    /// As a data path keeps it.
    fn kept(packet: &[u8]) -> Kept {
        let (start, rest) = packet.split_at(packet.len().min(1428));
        Kept {
            start: start.to_vec(),
            end: rest[rest.len().saturating_sub(1376)..].to_vec(),
        }
    }

    /// Some bytes of a long segment, as one of its own.
    fn part(of: usize, bytes: std::ops::Range<usize>, flags: Flags) -> Vec<u8> {
        let long = segment(of);
        let part = Segment {
            header: tcp::Header {
                seq: long.header.seq + bytes.start as u32,
                flags,
                ..long.header
            },
            payload: long.payload[bytes].to_vec(),
            ..long
        };
        part.to_packet()
    }

    #[test]
    fn what_is_whole_stays_as_it_is() {
        let packet = segment(100).to_packet();
        assert_eq!(
            segments(&kept(&packet), 1428),
            std::slice::from_ref(&packet)
        );
        assert_eq!(segments(&kept(&uncompleted(100)), 1428), [packet]);
    }

    #[test]
    fn many_segments_in_one_become_the_first_and_the_last() {
        let all = segment(0).header.flags;
        for (length, most, first, last) in [
            (30_000, 1428, 1388, 28_624),
            (30_000, 1000, 960, 29_040),
            (1_500, 1428, 1388, 1_388),
            (2_764, 1428, 1388, 1_388),
            // It would fit but for the room.
            (1_300, 1000, 960, 960),
        ] {
            let expected = [
                part(length, 0..first, Flags::ACK),
                part(length, last..length, all),
            ];
            assert_eq!(
                segments(&kept(&uncompleted(length)), most),
                expected,
                "{length}"
            );
        }
    }

    #[test]
    fn nothing_is_made_whole_that_is_damaged_or_may_be() {
        let none: [Vec<u8>; 0] = [];
        let mut packet = segment(100).to_packet();
        packet[80] ^= 1;
        assert_eq!(segments(&kept(&packet), 1428), none);
        // Nobody can tell.
        assert_eq!(segments(&kept(&segment(3000).to_packet()), 1428), none);
        for length in 0..40 {
            assert_eq!(segments(&kept(&uncompleted(100)[..length]), 1428), none);
        }
        assert_eq!(segments(&kept(&segment(100).to_packet()), 10), none);
    }

    #[test]
    fn what_was_answered_is_left_out() {
        const ACK: Flags = Flags::ACK;
        let packet = |port: u16, ack: u32, flags: Flags, payload: usize| {
            let mut segment = segment(payload);
            segment.source.set_port(port);
            (segment.header.ack, segment.header.flags) = (ack, flags);
            kept(&segment.to_packet())
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
            (
                "of requests ahead the last, answered in part",
                packet(6, 3, ACK, 300),
                true,
            ),
            ("some of their answers", packet(6, 700, ACK, 0), true),
            ("a reset", packet(5, 0, Flags::RST, 0), true),
            ("what is behind it", packet(5, 9, ACK, 0), true),
        ];
        let all = table.iter().map(|(_, packet, _)| (DEAD, packet.clone()));
        let left = unanswered(all.collect(), DEAD);
        let expected: Vec<Kept> = (table.iter().filter(|(.., stays)| *stays))
            .map(|(_, packet, _)| packet.clone())
            .collect();
        for (what, packet, stays) in &table {
            let count = |all: &[Kept]| all.iter().filter(|it| *it == packet).count();
            assert_eq!(count(&left), count(&expected), "{what}, {stays}");
        }
        assert_eq!(left, expected);
        assert!(
            unanswered(vec![(DEAD, kept(&[0; 30]))], DEAD).is_empty(),
            "what cannot be read"
        );
    }

    /// What goes to others tells what has become of it.
    #[test]
    fn only_what_has_gone_to_the_dead_is_left_and_not_what_others_show_to_be_answered() {
        const ACK: Flags = Flags::ACK;
        let packet = |port: u16, seq: u32, ack: u32, flags: Flags, payload: usize| {
            let mut segment = segment(payload);
            segment.source.set_port(port);
            (segment.header.seq, segment.header.ack, segment.header.flags) = (seq, ack, flags);
            kept(&segment.to_packet())
        };
        let other = DEAD + 1;
        let answered = packet(1, 7, 1, ACK, 100);
        let waits = packet(2, 7, 1, ACK, 100);
        let of_before = packet(3, 7, 1, ACK, 100);
        // As read in another order than they were sent in.
        let of_next = packet(3, 9001, 50, ACK, 100);
        let all = vec![
            (DEAD, answered),
            (DEAD, waits.clone()),
            (DEAD, of_before),
            (DEAD, packet(3, 107, 900, Flags::RST | ACK, 0)),
            (DEAD, of_next.clone()),
            (other, packet(1, 107, 900, ACK, 0)),
            (other, packet(1, 107, 900, ACK, 20)),
            (other, packet(2, 7, 1, ACK, 0)),
            (other, packet(3, 9000, 0, Flags::SYN, 0)),
        ];
        assert_eq!(unanswered(all, DEAD), [waits, of_next]);
    }

    #[test]
    fn a_packet_is_of_its_flow() {
        let flow = flow_of(&uncompleted(10)).unwrap();
        let is = segment(0);
        assert_eq!((flow.client, flow.vip), (is.source, is.destination));
        assert_eq!(flow_of(&uncompleted(10)[..23]), None);
    }
}
