//! From the bytes of an encapsulation to a packet of a flow.

use super::*;
use crate::wire::Malformed;
use crate::wire::meta::{Care, Kind, Meta, Refusal};

/// A client's packet as it was sent, and what the data path says of it.
fn sent(bench: &Bench, kind: Kind) -> (Meta, Vec<u8>) {
    let arrived = bench.arrived(0, Flags::ACK | Flags::PSH, HEAD);
    let segment = Segment {
        source: arrived.key.client,
        destination: arrived.key.vip,
        header: arrived.header,
        payload: HEAD.to_vec(),
    };
    let start = bench.isns.client + 1;
    let meta = Meta {
        kind,
        epoch: 1,
        start,
        handshake: bench.handshake,
        server_port: 0,
        requests: 0,
        care: Care::default(),
    };
    (meta, segment.to_packet())
}

#[test]
fn a_packet_is_taken_apart() {
    let bench = Bench::new(bounds());
    let kinds = [
        Kind::Request {
            server_isn: bench.isns.server,
        },
        Kind::Refused(Refusal::NoListener),
    ];
    for kind in kinds {
        let (meta, packet) = sent(&bench, kind);
        let arrived = Arrived::parse(&meta, &packet).unwrap();
        assert_eq!((arrived.key, arrived.isns), (bench.key(), bench.isns));
        assert_eq!(
            (arrived.payload, arrived.handshake),
            (HEAD, bench.handshake)
        );
        assert_eq!(arrived.checksum, TcpChecksum::Complete);
        assert_eq!(arrived.header.flags, Flags::ACK | Flags::PSH);
    }
}

#[test]
fn what_is_no_segment_is_refused() {
    type Damage = fn(&mut Vec<u8>);
    let table: [(&str, Damage, Malformed); 4] = [
        ("a fragment", |p| p[6] = 0x20, Malformed::Fragment),
        ("UDP", |p| p[9] = 17, Malformed::NotTcp),
        ("half a header", |p| p[3] = 39, Malformed::Truncated),
        (
            "a header beyond the end",
            |p| p[32] = 0xf0,
            Malformed::HeaderLength,
        ),
    ];
    let bench = Bench::new(bounds());
    for (what, damage, expected) in table {
        let (meta, mut packet) = sent(
            &bench,
            Kind::Request {
                server_isn: bench.isns.server,
            },
        );
        damage(&mut packet);
        packet.truncate(59); // the shortest of these headers' ends
        packet[2] = 0;
        packet[3] = packet[3].min(59);
        assert_eq!(
            Arrived::parse(&meta, &packet).unwrap_err(),
            expected,
            "{what}"
        );
    }
}

#[test]
fn damage_is_seen() {
    let bench = Bench::new(bounds());
    let (meta, mut packet) = sent(
        &bench,
        Kind::Request {
            server_isn: bench.isns.server,
        },
    );
    let last = packet.len() - 1;
    packet[last] ^= 1;
    assert_eq!(
        Arrived::parse(&meta, &packet).unwrap().checksum,
        TcpChecksum::Wrong
    );
}
