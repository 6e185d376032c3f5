//! The option byte for byte, and what a tag does and does not accept.

use super::*;
use crate::config::ClusterKey;
use crate::flow::WindowScales;
use crate::membership::{Presence, SprayState, Workload};
use crate::policy::Feedback;
use crate::seq::ServerSeq;
use crate::siphash::siphash24;
use proptest::prelude::*;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};

fn keys(ids: &[u8]) -> Keys {
    let keys: Vec<_> = ids
        .iter()
        .map(|&id| ClusterKey {
            id,
            secret: [id; 16],
        })
        .collect();
    Keys::new(&keys).unwrap()
}

fn meta(kind: Kind) -> Meta {
    Meta {
        kind,
        epoch: 0x0102_0304,
        start: ClientSeq::new(0xa1a2_a3a4),
        handshake: Handshake {
            mss: 1380,
            window_scales: Some(WindowScales { client: 7, ours: 9 }),
            sack: true,
            timestamps: true,
            ecn: false,
        },
        server_port: 8080,
        requests: 0,
        care: Care::default(),
    }
}

fn binding() -> Binding {
    let backend = IpAddr::from([10, 0, 0, 9]);
    let client: SocketAddr = "192.0.2.1:40000".parse().unwrap();
    let vip: SocketAddr = "198.51.100.7:80".parse().unwrap();
    Binding::of_flow(backend, client, vip).unwrap()
}

#[test]
fn the_layout_is_that_of_abi_h() {
    let said = Meta {
        requests: 0x0c0d,
        care: Care {
            head: true,
            ..Care::default()
        },
        ..meta(Kind::Request {
            server_isn: ServerSeq::new(0xb1b2_b3b4),
        })
    };
    let raw = said.encode(5);
    #[rustfmt::skip]
    let expected = [
        1, 2, 5, 0,
        1, 2, 3, 4,
        0xa1, 0xa2, 0xa3, 0xa4,
        0x05, 0x64, 0x79, 0x27,
        0x1f, 0x90, 0x0c, 0x0d,
        0xb1, 0xb2, 0xb3, 0xb4,
        0, 0, 0, 0, 0, 0, 0, 0,
    ];
    assert_eq!(raw, expected);
}

#[test]
fn every_kind_is_read_as_written() {
    let kinds = [
        Kind::Forward,
        Kind::Request {
            server_isn: ServerSeq::new(1),
        },
        Kind::Probe,
        Kind::ProbeAnswer {
            received: ClientSeq::new(u32::MAX),
            sender: None,
        },
        Kind::Refused(Refusal::NoListener),
        Kind::Refused(Refusal::AcceptQueueFull),
        Kind::Refused(Refusal::Behind),
        Kind::Refused(Refusal::NoSeat),
        Kind::Icmp,
        Kind::Echo,
        Kind::EchoReply { feedback: None },
        Kind::EchoReply {
            feedback: Some(Feedback {
                accept_queue: 4095,
                cpu_permille: 1000,
                memory_permille: 1,
            }),
        },
        Kind::Unheard {
            server_isn: ServerSeq::new(7),
        },
        Kind::Next {
            server_isn: ServerSeq::new(12),
        },
        Kind::Reckon,
        Kind::Whose,
        Kind::Reckoned {
            received: ClientSeq::new(13),
        },
        Kind::ForwardAfter {
            predecessor: Ipv4Addr::new(10, 0, 0, 9),
        },
        Kind::Handoff {
            next: Ipv4Addr::new(10, 0, 0, 10),
        },
        Kind::Held(Held::Answering),
        Kind::Held(Held::Unacknowledged {
            end: ServerSeq::new(8),
        }),
        Kind::Held(Held::Closing),
        Kind::Held(Held::Stranger),
        Kind::Release {
            leave: Leave::HalfPipe,
            reach: ClientSeq::new(0),
        },
        Kind::Release {
            leave: Leave::HalfPipeUnprotected,
            reach: ClientSeq::new(0),
        },
        Kind::Release {
            leave: Leave::Drained,
            reach: ClientSeq::new(77),
        },
        Kind::Done,
        Kind::Sprayed { again: false },
        Kind::Sprayed { again: true },
        Kind::Passed {
            by_joining: true,
            again: false,
            before: 2,
        },
        Kind::Passed {
            by_joining: false,
            again: true,
            before: 0,
        },
        Kind::Entrusted {
            backend: Ipv4Addr::new(10, 0, 0, 12),
        },
        Kind::Records,
        Kind::Splice,
        Kind::Beat(Presence::Spray(SprayState::Yielding)),
        Kind::BeatReply(Presence::Dispatcher {
            workload: Workload::new(613),
        }),
        Kind::Vacated {
            end: ServerSeq::new(9),
            vacancy: Vacancy::Closed,
        },
        Kind::Vacated {
            end: ServerSeq::new(9),
            vacancy: Vacancy::Kept,
        },
        Kind::Vacated {
            end: ServerSeq::new(9),
            vacancy: Vacancy::Anew,
        },
        Kind::Answered {
            end: ServerSeq::new(u32::MAX),
        },
    ];
    for kind in kinds {
        assert_eq!(Meta::decode(&meta(kind).encode(0)), Ok(meta(kind)));
    }
}

#[test]
fn an_end_of_ours_stands_where_others_have_a_start() {
    let own = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 99), 0x1389);
    let (server_isn, echo) = (ServerSeq::new(0xc0de_0001), 0x8070_6050);
    let word = Kind::Split {
        own,
        server_isn,
        echo,
    };
    for kind in [word, Kind::SplitProbe { own }] {
        let said = Meta {
            epoch: if kind == word { 0 } else { 7 },
            start: ClientSeq::new(0),
            requests: 0,
            ..meta(kind)
        };
        let raw = said.encode(0);
        assert_eq!(raw[8..12], [10, 0, 0, 99]);
        assert_eq!(raw[18..20], [0x13, 0x89]);
        assert_eq!(Meta::decode(&raw), Ok(said));
    }
    assert_eq!(meta(word).encode(0)[4..8], [0x80, 0x70, 0x60, 0x50]);
    let start = ClientSeq::new(0xf1f2_f3f4);
    let reach = start + 0x04_0506;
    let release = Meta {
        start,
        requests: 0x0102,
        handshake: Handshake::default(),
        care: Care::default(),
        ..meta(Kind::SplitRelease { own, reach })
    };
    let raw = release.encode(0);
    assert_eq!(
        (raw[3], &raw[8..16], &raw[20..24]),
        (
            4,
            &[10, 0, 0, 99, 1, 2, 5, 6][..],
            &[0xf1, 0xf2, 0xf3, 0xf4][..]
        )
    );
    assert_eq!(Meta::decode(&raw), Ok(release));
}

#[test]
fn owners_tell_a_number_in_place_of_the_handshake() {
    let (end, reach) = (ServerSeq::new(10), ClientSeq::new(0x8070_0001));
    let owner = Ipv4Addr::new(10, 0, 0, 13);
    let elsewhere = Kind::Elsewhere {
        owner,
        end: ServerSeq::new(reach.raw()),
    };
    for kind in [
        Kind::Gc { end, reach },
        Kind::Retired { end, reach },
        elsewhere,
    ] {
        let said = Meta {
            handshake: Handshake::default(),
            care: Care::default(),
            ..meta(kind)
        };
        let raw = said.encode(0);
        assert_eq!(raw[12..16], [0x80, 0x70, 0, 1]);
        assert_eq!(Meta::decode(&raw), Ok(said));
    }
}

#[test]
fn a_probe_answer_tells_where_the_socket_stands() {
    for (how, is_idle, has_not_begun) in [(1, false, false), (2, true, false), (3, false, true)] {
        let said = Meta {
            kind: Kind::ProbeAnswer {
                received: ClientSeq::new(7),
                sender: Some(Sender {
                    next: ServerSeq::new(u32::MAX - 1),
                    clock: 0x8000_0001,
                    is_idle,
                    has_not_begun,
                }),
            },
            handshake: Handshake::default(),
            server_port: 0,
            requests: 0,
            care: Care::default(),
            ..meta(Kind::Probe)
        };
        let raw = said.encode(0);
        assert_eq!(raw[3], how);
        assert_eq!(raw[12..20], [0x80, 0, 0, 1, 0xff, 0xff, 0xff, 0xfe]);
        assert_eq!(Meta::decode(&raw), Ok(said));
    }
}

#[test]
fn released_tells_a_clock_in_place_of_the_handshake() {
    for drained in [true, false] {
        let released = Meta {
            handshake: Handshake::default(),
            care: Care::default(),
            ..meta(Kind::Released {
                end: ServerSeq::new(12),
                drained,
                clock: 0xfedc_ba98,
            })
        };
        let raw = released.encode(0);
        assert_eq!(raw[12..16], [0xfe, 0xdc, 0xba, 0x98]);
        assert_eq!(Meta::decode(&raw), Ok(released));
    }
}

#[test]
fn without_the_option_there_are_no_shifts() {
    let bare = Meta {
        handshake: Handshake {
            mss: 536,
            ..Handshake::default()
        },
        ..meta(Kind::Probe)
    };
    let raw = bare.encode(0);
    assert_eq!(raw[14..16], [0, 0]);
    assert_eq!(Meta::decode(&raw), Ok(bare));
}

#[test]
fn what_is_not_understood_is_refused() {
    let table = [
        (0, 2, MetaError::Version(2)),
        (1, 0, MetaError::Kind(0)),
        (1, 32, MetaError::Kind(32)),
        (3, 5, MetaError::Reason(5)),
        (14, 0xf0, MetaError::WindowScale),
        (14, 0x0f, MetaError::WindowScale),
    ];
    for (at, byte, expected) in table {
        let mut raw = meta(Kind::Refused(Refusal::NoListener)).encode(0);
        raw[at] = byte;
        assert_eq!(Meta::decode(&raw), Err(expected));
    }
}

#[test]
fn the_tag_is_the_hash_of_forty_bytes() {
    let raw = meta(Kind::Forward).seal(&keys(&[3]), &binding());
    let mut message = raw[..24].to_vec();
    message.extend_from_slice(&[10, 0, 0, 9, 0x9c, 0x40, 0, 80]);
    message.extend_from_slice(&[192, 0, 2, 1, 198, 51, 100, 7]);
    assert_eq!(raw[24..], siphash24(&[3; 16], &message).to_le_bytes());
}

#[test]
fn a_tag_holds_for_its_bytes_its_node_and_its_flow_only() {
    let keys = keys(&[1, 2]);
    let raw = meta(Kind::Forward).seal(&keys, &binding());
    assert_eq!(keys.verify(&raw, &binding()), Ok(()));
    for at in (0..LEN).filter(|&at| at != 2) {
        let mut damaged = raw;
        damaged[at] ^= 0x10;
        assert_eq!(
            keys.verify(&damaged, &binding()),
            Err(TagError::Mismatch),
            "byte {at}"
        );
    }
    for at in 0..16 {
        let mut other = binding();
        other.0[at] ^= 1;
        assert_eq!(
            keys.verify(&raw, &other),
            Err(TagError::Mismatch),
            "binding {at}"
        );
    }
}

/// Each packet says it for itself, under its flow's tag.
#[test]
fn whether_a_request_begins_is_not_under_the_tag() {
    let keys = keys(&[3]);
    for kept in [false, true] {
        let mut forward = meta(Kind::Forward);
        forward.care.kept = kept;
        let raw = forward.seal(&keys, &binding());
        let begun = begins(raw);
        assert_ne!(begun, raw);
        assert_eq!(as_sealed(begun), raw);
        assert_eq!(keys.verify(&begun, &binding()), Ok(()));
        assert_eq!(Meta::decode(&begun), Ok(forward));
    }
    let probe = meta(Kind::Probe).seal(&keys, &binding());
    assert_eq!(begins(probe), probe, "of a FORWARD alone");
}

#[test]
fn keys_change_without_a_pause() {
    let raw = meta(Kind::Forward).seal(&keys(&[1]), &binding());
    assert_eq!(
        keys(&[2, 1]).verify(&raw, &binding()),
        Ok(()),
        "still accepted"
    );
    assert_eq!(
        keys(&[2]).verify(&raw, &binding()),
        Err(TagError::UnknownKey(1)),
        "withdrawn"
    );
    assert!(Keys::new(&[]).is_none());
    assert_eq!(
        format!("{:?}", keys(&[2, 1])),
        "Keys { signing: 2, accepted: [1, 2] }"
    );
}

#[test]
fn a_packet_and_its_flow_bind_alike() {
    let segment = crate::wire::segment::Segment {
        source: "192.0.2.1:40000".parse().unwrap(),
        destination: "198.51.100.7:80".parse().unwrap(),
        header: Default::default(),
        payload: vec![1; 9],
    };
    let backend = IpAddr::from([10, 0, 0, 9]);
    let mut packet = segment.to_packet();
    assert_eq!(Binding::of_packet(backend, &packet), Some(binding()));
    packet[9] = 1; // ICMP has no ports
    assert_eq!(
        Binding::of_packet(backend, &packet).unwrap().0[4..8],
        [0; 4]
    );
    assert_eq!(Binding::of_packet(backend, &[]).unwrap().0[4..], [0; 12]);
    assert_eq!(Binding::of_packet(backend, &[0x60; 60]), None, "IPv6");
}

/// The number that wire.h gives a name, by `NAME = n` or `#define NAME n`.
fn in_wire_h(name: &str) -> u32 {
    let header = include_str!("../../../../bpf/include/abi/wire.h");
    let words: Vec<_> = header
        .split_whitespace()
        .filter(|word| *word != "=")
        .collect();
    let at = words.iter().position(|word| *word == name);
    let number = words[at.expect(name) + 1].trim_end_matches([',', 'u']);
    match number.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).unwrap(),
        None => number.parse().unwrap(),
    }
}

#[test]
fn the_numbers_are_those_of_wire_h() {
    assert_eq!(u32::from(VERSION), in_wire_h("META_VERSION"));
    let kinds = [
        (Kind::Forward, "META_FORWARD"),
        (
            Kind::Request {
                server_isn: ServerSeq::new(0),
            },
            "META_REQUEST",
        ),
        (Kind::Probe, "META_PROBE"),
        (
            Kind::ProbeAnswer {
                received: ClientSeq::new(0),
                sender: None,
            },
            "META_PROBE_ANSWER",
        ),
        (Kind::Refused(Refusal::NoListener), "META_REFUSED"),
        (Kind::Icmp, "META_ICMP"),
        (Kind::Echo, "META_ECHO"),
        (Kind::EchoReply { feedback: None }, "META_ECHO_REPLY"),
        (
            Kind::Unheard {
                server_isn: ServerSeq::new(0),
            },
            "META_UNHEARD",
        ),
        (
            Kind::Handoff {
                next: Ipv4Addr::UNSPECIFIED,
            },
            "META_HANDOFF",
        ),
        (Kind::Held(Held::Closing), "META_HELD"),
        (
            Kind::Release {
                leave: Leave::Drained,
                reach: ClientSeq::new(0),
            },
            "META_RELEASE",
        ),
        (Kind::Forsake, "META_RELEASE"),
        (Kind::Support, "META_SUPPORT"),
        (
            Kind::Answered {
                end: ServerSeq::new(0),
            },
            "META_ANSWERED",
        ),
        (
            Kind::Released {
                end: ServerSeq::new(0),
                drained: true,
                clock: 0,
            },
            "META_RELEASED",
        ),
        (Kind::Done, "META_DONE"),
        (
            Kind::Vacated {
                end: ServerSeq::new(0),
                vacancy: Vacancy::Closed,
            },
            "META_VACATED",
        ),
        (
            Kind::Gc {
                end: ServerSeq::new(0),
                reach: ClientSeq::new(0),
            },
            "META_GC",
        ),
        (
            Kind::Retired {
                end: ServerSeq::new(0),
                reach: ClientSeq::new(0),
            },
            "META_RETIRED",
        ),
    ];
    for (kind, name) in kinds {
        assert_eq!(u32::from(kind.encode().0), in_wire_h(name), "{name}");
    }
    let refusals = [
        (Refusal::NoListener, "REFUSAL_NO_LISTENER"),
        (Refusal::AcceptQueueFull, "REFUSAL_ACCEPT_QUEUE_FULL"),
        (Refusal::Behind, "REFUSAL_BEHIND"),
        (Refusal::NoSeat, "REFUSAL_NO_SEAT"),
    ];
    for (refusal, name) in refusals {
        assert_eq!(
            u32::from(Kind::Refused(refusal).encode().1),
            in_wire_h(name),
            "{name}"
        );
    }
    let options = [
        (WINDOW_SCALE, "TCP_OPTION_WINDOW_SCALE"),
        (SACK, "TCP_OPTION_SACK"),
        (TIMESTAMPS, "TCP_OPTION_TIMESTAMPS"),
        (ECN, "TCP_OPTION_ECN"),
    ];
    for (bit, name) in options {
        assert_eq!(u32::from(bit), in_wire_h(name), "{name}");
    }
    assert_eq!(
        u32::from(crate::wire::geneve::PORT),
        in_wire_h("GENEVE_PORT")
    );
    assert_eq!(
        20 + 8 + crate::wire::geneve::HEADER_LEN as u32,
        in_wire_h("ENCAP_LEN")
    );
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_option_panics(raw: [u8; 32]) {
        if let Ok(meta) = Meta::decode(&raw) {
            prop_assert_eq!(Meta::decode(&meta.encode(0)), Ok(meta));
        }
    }
}

#[test]
fn the_documented_vector_holds() {
    let page = include_str!("../../../../docs/protocol/encapsulation.md");
    let block = page.split("```vector\n").nth(1).unwrap();
    let bytes = |name: &str| -> Vec<u8> {
        let line = block.lines().find(|line| line.starts_with(name)).unwrap();
        let hex: String = line[name.len()..].split_whitespace().collect();
        let pair = |at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
        (0..hex.len()).step_by(2).map(pair).collect()
    };
    let mut raw = [0; LEN];
    raw[..TAG_AT].copy_from_slice(&bytes("option"));
    let binding = [bytes("to"), bytes("ports"), bytes("inner")].concat();
    let key = bytes("key").try_into().unwrap();
    let tag = tag(&raw, &key, &Binding(binding.try_into().unwrap()));
    assert_eq!(tag[..], bytes("tag"));

    let flow = Binding::of_flow(
        "10.77.0.21".parse().unwrap(),
        "192.0.2.1:40000".parse().unwrap(),
        "10.77.0.100:80".parse().unwrap(),
    );
    let signing = ClusterKey { id: 1, secret: key };
    let sealed = meta(Kind::Forward).seal(&Keys::new(&[signing]).unwrap(), &flow.unwrap());
    assert_eq!(sealed[..TAG_AT], raw[..TAG_AT]);
    assert_eq!(sealed[TAG_AT..], tag);
}
