use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;

use super::connect::{Connect, Open, PATIENCE, Step};
use super::*;
use crate::config::Transfer;
use crate::flow::{Handshake, WindowScales};
use crate::intake::Isns;
use crate::seq::{ClientSeq, ServerSeq};
use crate::wire::meta::{Care, Kind};
use crate::wire::tcp::{Options, Timestamps};

const OWN: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 99), 4001);
const SERVER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 21), 8080);
const ISNS: Isns = Isns {
    client: ClientSeq::new(u32::MAX - 5),
    server: ServerSeq::new(1000),
};
const CLOCKS: Timestamps = Timestamps {
    value: 70_000,
    echo: 3,
};

fn agreed() -> Handshake {
    Handshake {
        mss: 1460,
        window_scales: Some(WindowScales { client: 8, ours: 9 }),
        sack: true,
        timestamps: true,
        ecn: true,
    }
}

fn begin(handshake: Handshake) -> (Connect, Segment) {
    begin_by(Transfer::Splice, handshake)
}

fn begin_by(transfer: Transfer, handshake: Handshake) -> (Connect, Segment) {
    let handshake = (handshake, Some(CLOCKS));
    Connect::begin(Duration::ZERO, transfer, (OWN, SERVER), ISNS, handshake)
}

fn answer(options: Options) -> Header {
    Header {
        seq: 5000,
        ack: ISNS.client.raw().wrapping_add(1),
        flags: Flags::SYN | Flags::ACK | Flags::ECE,
        window: 65_160,
        options,
        ..Header::default()
    }
}

fn whole() -> Options {
    Options {
        mss: Some(1400),
        window_scale: Some(7),
        sack_permitted: true,
        timestamps: Some(Timestamps {
            value: 10,
            echo: CLOCKS.value,
        }),
        ..Options::default()
    }
}

fn open(handshake: Handshake, options: Options) -> Open {
    match begin(handshake).0.on_segment(&answer(options)) {
        Step::Open(open) => open,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_syn_has_the_clients_number_and_offers_what_was_agreed() {
    let (_, syn) = begin(agreed());
    assert_eq!(syn.header.seq, ISNS.client.raw());
    assert_eq!(syn.header.flags, Flags::SYN | Flags::ECE | Flags::CWR);
    let options = syn.header.options;
    assert_eq!((options.mss, options.window_scale), (Some(1460), Some(8)));
    assert!(options.sack_permitted);
    let clocks = options.timestamps.unwrap();
    assert_eq!((clocks.value, clocks.echo), (70_000, 0));

    let (_, bare) = begin(Handshake {
        mss: 536,
        ..Handshake::default()
    });
    assert_eq!(bare.header.flags, Flags::SYN);
    let options = Options {
        mss: Some(536),
        ..Options::default()
    };
    assert_eq!(bare.header.options, options);
}

#[test]
fn a_host_that_rewrites_is_told_with_each_syn() {
    assert_eq!(begin(agreed()).0.word(Care::default()), None);
    let (mut connect, _) = begin_by(Transfer::SplitSplice, agreed());
    let word = connect.word(Care::default()).unwrap();
    let told = Kind::Split {
        own: OWN,
        server_isn: ISNS.server,
        echo: CLOCKS.echo,
    };
    assert_eq!((word.kind, word.server_port), (told, SERVER.port()));
    assert_eq!(word.handshake, agreed());
    let Step::Send(again) = connect.on_timeout(Duration::from_millis(200)) else {
        panic!("the SYN again");
    };
    assert!(again[0].header.flags.has(Flags::SYN));
    assert_eq!(
        connect.word(Care::default()),
        Some(word),
        "and the same word with it"
    );
    let Step::Open(open) = connect.on_segment(&answer(whole())) else {
        panic!("it is open");
    };
    assert!(open.splice.split);
    assert!(!self::open(agreed(), whole()).splice.split);
}

#[test]
fn numbers_go_there_and_back() {
    let Open { splice, mss, .. } = open(agreed(), whole());
    assert_eq!(mss, 1400);
    assert_eq!(splice.to_client_shift, -2);
    let key = FlowKey {
        client: "192.0.2.1:4000".parse().unwrap(),
        vip: "198.51.100.1:80".parse().unwrap(),
    };
    let from_server = Header {
        seq: 5001,
        ack: 7,
        flags: Flags::ACK,
        window: 4099,
        options: Options {
            timestamps: Some(Timestamps {
                value: 12,
                echo: 70_000,
            }),
            ..Options::default()
        },
        ..Header::default()
    };
    let to_client = splice.to_client(&key, from_server);
    assert_eq!((to_client.seq, to_client.ack), (1001, 7));
    assert_eq!(
        to_client.window, 1024,
        "65160 bytes less the part of a scale"
    );
    assert_eq!(
        to_client.options.timestamps.unwrap().value,
        5,
        "as it goes on"
    );
    let mut sack = SackBlocks::default();
    sack.push(1101, 1201);
    let from_client = Header {
        seq: 7,
        ack: 1001,
        flags: Flags::ACK | Flags::ECE,
        window: 500,
        options: Options {
            timestamps: Some(Timestamps {
                value: 70_001,
                echo: 5,
            }),
            sack,
            ..Options::default()
        },
        ..Header::default()
    };
    let to_server = splice.to_server(from_client);
    assert_eq!((to_server.seq, to_server.ack), (7, 5001));
    assert_eq!(to_server.options.timestamps.unwrap().echo, 12);
    assert_eq!(to_server.options.sack.as_slice(), [(5101, 5201)]);
    assert_eq!(
        (to_server.window, to_server.flags),
        (500, from_client.flags)
    );
    assert_eq!(
        (to_server.source_port, to_server.destination_port),
        (4001, 8080)
    );
}

#[test]
fn what_the_server_does_not_know_is_left_out() {
    let bare = Options {
        mss: None,
        ..Options::default()
    };
    let mut connect = begin(agreed()).0;
    let plain = Header {
        flags: Flags::SYN | Flags::ACK,
        ..answer(bare)
    };
    let Step::Open(Open { splice, mss, clock }) = connect.on_segment(&plain) else {
        panic!("it is open");
    };
    assert_eq!((mss, clock), (536, 0));
    assert!(splice.no_timestamps && splice.no_ecn);
    assert_eq!((splice.to_server_shift, splice.to_client_shift), (8, -9));
    let sent = splice.to_server(Header {
        flags: Flags::ACK | Flags::ECE | Flags::CWR,
        window: 300,
        options: Options {
            timestamps: Some(CLOCKS),
            ..Options::default()
        },
        ..Header::default()
    });
    assert_eq!(sent.flags, Flags::ACK);
    assert_eq!(sent.options.timestamps, None);
    assert_eq!(sent.window, u16::MAX, "76800 bytes do not fit");
}

#[test]
fn nothing_changes_that_neither_side_wants() {
    let bare = Handshake {
        mss: 1460,
        ..Handshake::default()
    };
    let splice = open(bare, whole()).splice;
    assert_eq!((splice.to_server_shift, splice.to_client_shift), (0, 0));
    assert!(!splice.no_timestamps && !splice.no_ecn);
    assert_eq!(splice.clock_ahead, 0);
}

#[test]
fn a_server_that_is_not_there_is_given_up() {
    let (mut connect, syn) = begin(agreed());
    let mut sent = 0;
    loop {
        match connect.on_timeout(connect.due()) {
            Step::Send(segments) => {
                assert_eq!(segments, std::slice::from_ref(&syn));
                sent += 1;
            }
            Step::Unreachable => break,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(sent, 7, "after 200 and 600 ms, then each 400 ms");
    assert_eq!(connect.due(), PATIENCE);
}

#[test]
fn a_refusal_must_be_of_this_syn() {
    let (mut connect, _) = begin(agreed());
    let reset = |ack| Header {
        ack,
        flags: Flags::RST | Flags::ACK,
        ..Header::default()
    };
    assert_eq!(connect.on_segment(&reset(77)), Step::Wait);
    let ours = ISNS.client.raw().wrapping_add(1);
    assert_eq!(connect.on_segment(&reset(ours)), Step::Refused);
}

/// RFC 9293 §3.10.7.3: an acknowledgement of something else is answered by a reset.
#[test]
fn what_is_left_of_an_earlier_connection_is_ended() {
    let (mut connect, syn) = begin(agreed());
    let old = Header {
        seq: 1,
        ack: 4242,
        flags: Flags::ACK,
        ..Header::default()
    };
    for _ in 0..3 {
        let Step::Send(segments) = connect.on_segment(&old) else {
            panic!("a reset");
        };
        assert_eq!(
            (segments[0].header.seq, segments[0].header.flags),
            (4242, Flags::RST)
        );
        assert_eq!(segments[1], syn);
    }
    assert_eq!(connect.on_segment(&old), Step::Unreachable);
}
