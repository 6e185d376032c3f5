//! Flows whose server has no agent: what becomes of their packets, as the model in core
//! has it (docs/protocol/splice.md 2).

use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;

use trapeze_core::flow::FlowKey as CoreKey;
use trapeze_core::membership::lots::NOBODY;
use trapeze_core::splice::Splice;
use trapeze_core::wire::checksum::{TcpChecksum, verify_tcp};
use trapeze_core::wire::{ipv4, tcp};
use trapeze_datapath::abi::{
    self, Flow, FlowState, SPLICED_CONNECTING, SPLICED_OPEN, Service, ServiceKey, Spliced,
};
use trapeze_datapath::clock;
use trapeze_datapath::map::Update;

use crate::bench::*;
use crate::keeper::{Daemon, KEEPERS_SLOT, among};
use crate::outcome::Verdict;
use crate::packet::*;

pub const OWN: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 99), 5001);
pub const SERVER: SocketAddrV4 = SocketAddrV4::new(BACKEND, 8080);

pub fn splices() -> Vec<Splice> {
    let plain = Splice {
        own: OWN,
        server_port: SERVER.port(),
        ahead: 0,
        clock_ahead: 0,
        to_server_shift: 0,
        to_client_shift: 0,
        no_timestamps: false,
        no_ecn: false,
        split: false,
    };
    let far = Splice {
        ahead: 0x9000_0001,
        clock_ahead: 0xffff_0003,
        to_client_shift: -2,
        ..plain
    };
    let poor = Splice {
        to_server_shift: 9,
        to_client_shift: 5,
        no_timestamps: true,
        no_ecn: true,
        ..far
    };
    vec![plain, far, poor]
}

/// Options in all places, and those that nobody knows.
pub fn option_lists() -> Vec<Vec<u8>> {
    let sack = |blocks: usize| {
        let edges = (0..2 * blocks as u32).flat_map(|n| (n * 0x1000_0001).to_be_bytes());
        let mut option = vec![1, 1, 5, 2 + 8 * blocks as u8];
        option.extend(edges);
        option
    };
    let clocks = timestamps(0x0102_0304, 0xfffe_fdfc);
    vec![
        vec![],
        clocks.clone(),
        timestamps(7, 0),
        sack(1),
        sack(4),
        [clocks.clone(), sack(3)].concat(),
        [sack(2), clocks.clone()].concat(),
        [vec![253, 3, 9, 1], clocks.clone()].concat(),
        // At odd places, and an end in front of more.
        [vec![1], clocks[2..].to_vec(), vec![1]].concat(),
        [vec![0, 0, 0, 0], clocks].concat(),
    ]
}

pub fn headers(packet: &[u8]) -> (tcp::Header, Vec<u8>) {
    let packet = ipv4::Packet::parse(&packet[ETHERNET..]).expect("an IP packet");
    let (source, destination) = (packet.source().into(), packet.destination().into());
    let whole = verify_tcp(source, destination, packet.payload());
    assert_eq!(whole, TcpChecksum::Complete, "its checksum holds");
    let (header, payload) = tcp::Header::parse(packet.payload()).expect("a segment");
    (header, payload.to_vec())
}

/// Between which addresses, and the link's; the IP header's sum holds.
pub fn ends(packet: &[u8]) -> (Ipv4Addr, Ipv4Addr, [u8; 6], [u8; 6]) {
    assert_eq!(
        sum(&packet[ETHERNET..TCP_AT], 0),
        0xffff,
        "of the IP header"
    );
    let ip = ipv4::Packet::parse(&packet[ETHERNET..]).unwrap();
    let mac = |at: usize| *packet[at..].first_chunk().unwrap();
    (ip.source(), ip.destination(), mac(0), mac(6))
}

pub fn spliced(bench: &Bench, splice: &Splice, state: u32) -> abi::FlowKey {
    let splice = abi::Splice::from(splice);
    bench.put_flow(&Flow {
        splice,
        ..established()
    });
    let key = splice.key(BACKEND);
    let value = Spliced {
        flow: flow_key(CLIENT, VIP),
        state,
        splice,
        server_ack: CLIENT_ISN,
        clock: 0,
        pad: 0,
        resolved_ns: clock::monotonic().as_nanos() as u64 - 20_000_000,
        ifindex: ELSEWHERE,
        destination_mac: BACKEND_MAC,
        source_mac: EGRESS_MAC,
    };
    bench.maps.splices.put(&key, &value, Update::Any).unwrap();
    let address = ServiceKey::new((*OWN.ip()).into(), 0);
    let own = Service {
        id: 0xffff,
        mss: 0,
        window_scale: 0,
        ecn: 0,
    };
    bench
        .maps
        .services
        .put(&address, &own, Update::Any)
        .unwrap();
    key
}

fn from_server(flags: u8, options: Vec<u8>, payload: &[u8]) -> Tcp {
    Tcp {
        source: SERVER,
        dest: OWN,
        options,
        ..segment(flags, 0x7000_0000, CLIENT_ISN.wrapping_add(30), payload)
    }
}

#[test]
fn clients_packets_become_a_dispatchers() {
    for bench in Bench::both() {
        for splice in &splices() {
            spliced(&bench, splice, SPLICED_OPEN);
            for options in option_lists() {
                for (flags, payload) in [
                    (ACK, &b""[..]),
                    (ACK | PSH | ECE | CWR, REQUEST),
                    (RST, b""),
                ] {
                    let sent = Tcp {
                        options: options.clone(),
                        ..segment(flags, CLIENT_ISN.wrapping_add(1), SERVER_ISN + 1, payload)
                    };
                    let what = format!("{:?} {splice:?} {sent:?}", bench.hook);
                    let outcome = bench.run(&sent.frame());
                    assert_eq!(outcome.verdict, Verdict::Redirect, "{what}");
                    assert_eq!(
                        outcome.counted,
                        ["forwarded", "spliced-to-server"],
                        "{what}"
                    );
                    let got = outcome.packet.unwrap();
                    assert_eq!(
                        ends(&got),
                        (*OWN.ip(), BACKEND, BACKEND_MAC, EGRESS_MAC),
                        "{what}"
                    );
                    let (header, bytes) = headers(&got);
                    let (mut wanted, _) = headers(&sent.frame());
                    // The model leaves nothing that it does not know, the data path all.
                    wanted = splice.to_server(wanted);
                    wanted.options.aged = header.options.aged;
                    assert_eq!(header, wanted, "{what}");
                    assert_eq!(bytes, payload, "{what}");
                    assert_eq!(got.len(), sent.frame().len(), "{what}");
                }
            }
        }
    }
}

/// Its client may have heard a later clock of the owner before, or an older one: until the handshake is over Linux takes
/// no echo but of its SYN-ACK.
#[test]
fn what_starts_a_connection_echoes_its_servers_first_clock() {
    const CLOCK: u32 = 0x0a0b_0c0d;
    let (first, heard) = (CLIENT_ISN.wrapping_add(1), SERVER_ISN + 1);
    for bench in Bench::both() {
        for splice in splices().iter().filter(|splice| !splice.no_timestamps) {
            let key = spliced(&bench, splice, SPLICED_OPEN);
            let entry = bench.maps.splices.get(&key).unwrap().unwrap();
            let echo = |clock, seq, ack, payload| {
                let entry = Spliced { clock, ..entry };
                bench.maps.splices.put(&key, &entry, Update::Any).unwrap();
                let sent = Tcp {
                    options: timestamps(1000, 777),
                    ..segment(ACK | PSH, seq, ack, payload)
                };
                let got = bench.run(&sent.frame()).packet.expect("it goes there");
                headers(&got).0.options.timestamps.expect("clocks").echo
            };
            let usual = 777u32.wrapping_sub(splice.clock_ahead);
            assert_eq!(echo(CLOCK, first, heard, REQUEST), CLOCK, "{splice:?}");
            assert_eq!(echo(0, first, heard, REQUEST), usual, "not heard here");
            assert_eq!(echo(CLOCK, first + 3, heard, REQUEST), usual, "behind it");
            assert_eq!(echo(CLOCK, first, heard + 1, REQUEST), usual, "answered");
            assert_eq!(echo(CLOCK, first, heard, b""), usual, "nothing");
        }
    }
}

#[test]
fn servers_packets_become_the_services() {
    let key = CoreKey {
        client: CLIENT.into(),
        vip: VIP.into(),
    };
    for bench in Bench::both() {
        for splice in &splices() {
            let entry = spliced(&bench, splice, SPLICED_OPEN);
            for options in option_lists() {
                for (flags, payload) in [(ACK, &b""[..]), (ACK | PSH, REQUEST), (ACK | FIN, b"end")]
                {
                    // To the client its blocks are its own numbers.
                    let sent = from_server(flags, options.clone(), payload);
                    let what = format!("{:?} {splice:?} {sent:?}", bench.hook);
                    let plain = Splice {
                        no_timestamps: false,
                        ..*splice
                    };
                    let outcome = bench.run(&sent.frame());
                    assert_eq!(outcome.verdict, Verdict::Redirect, "{what}");
                    assert_eq!(outcome.counted, ["spliced-to-client"], "{what}");
                    let got = outcome.packet.unwrap();
                    assert_eq!(
                        ends(&got),
                        (*VIP.ip(), *CLIENT.ip(), BACKEND_MAC, EGRESS_MAC),
                        "{what}"
                    );
                    let (header, bytes) = headers(&got);
                    let (wanted, _) = headers(&sent.frame());
                    assert_eq!(header, plain.to_client(&key, wanted), "{what}");
                    assert_eq!(bytes, payload, "{what}");
                }
            }
            let heard = bench.maps.splices.get(&entry).unwrap().unwrap().server_ack;
            assert_eq!(heard, CLIENT_ISN.wrapping_add(30));
            assert_eq!(bench.flow().state, FlowState::Established as u32);
            let reset = bench.run(&from_server(RST | ACK, vec![], b"").frame());
            assert_eq!(reset.verdict, Verdict::Redirect);
            assert_eq!(bench.flow().state, FlowState::Reset as u32);
        }
    }
}

#[test]
fn what_is_not_open_is_the_daemons_or_nobodys() {
    for bench in Bench::both() {
        let splice = splices()[1];
        let key = spliced(&bench, &splice, SPLICED_CONNECTING);
        let answer = from_server(SYN | ACK, vec![2, 4, 5, 0xb4], b"");
        assert_eq!(bench.run(&answer.frame()).counted, ["to-daemon"]);
        spliced(&bench, &splice, SPLICED_OPEN);
        assert_eq!(bench.run(&answer.frame()).counted, ["to-daemon"], "again");
        let other = Tcp {
            source: SocketAddrV4::new(BACKEND, 8081),
            ..answer.clone()
        };
        let outcome = bench.run(&other.frame());
        assert_eq!(
            (outcome.verdict, outcome.counted),
            (Verdict::Drop, vec!["no-splice"])
        );
        bench.maps.splices.delete(&key).unwrap();
        assert_eq!(bench.run(&answer.frame()).counted, ["no-splice"]);
        // No splice address: the host's.
        let hosts = Tcp {
            dest: SocketAddrV4::new(NODE, 5001),
            ..answer
        };
        assert!(bench.run(&hosts.frame()).counted.is_empty());
    }
}

/// It is of what another owner has said: a server whose handshake is not over would reset
/// its connection.
#[test]
fn what_acknowledges_less_than_the_connections_beginning_goes_to_nobody() {
    for bench in Bench::both() {
        spliced(&bench, &splices()[1], SPLICED_OPEN);
        let at = |ack: u32, flags: u8| {
            bench.run(&segment(flags, CLIENT_ISN.wrapping_add(1), ack, b"").frame())
        };
        let old = at(SERVER_ISN, ACK);
        assert_eq!(
            (old.verdict, old.counted),
            (Verdict::Drop, vec!["repeated"])
        );
        assert_eq!(at(SERVER_ISN + 1, ACK).verdict, Verdict::Redirect);
        assert_eq!(at(0, RST).verdict, Verdict::Redirect, "it says nothing");
    }
}

/// Half of all numbers, and more, behind the beginning: that looks as what lies before it, which no client
/// acknowledges any more so long after its server was connected to.
#[test]
fn what_is_acknowledged_of_a_long_download_goes_to_its_server() {
    for bench in Bench::both() {
        spliced(&bench, &splices()[1], SPLICED_OPEN);
        let acknowledge = |had: u32| {
            let ack = (SERVER_ISN + 1).wrapping_add(had);
            bench.run(&segment(ACK, CLIENT_ISN.wrapping_add(1), ack, b"").frame())
        };
        for (seconds, is_old) in [(0, false), (10, true)] {
            let began = clock::cluster() - Duration::from_secs(seconds);
            let mut flow = bench.flow();
            flow.meta[4..8].copy_from_slice(&abi::epoch(began).to_be_bytes());
            bench.put_flow(&flow);
            for (had, passes) in [
                ((1 << 31) - 1, true),
                ((1 << 31) + 1, true),
                (3 << 30, is_old),
                (u32::MAX, is_old),
            ] {
                let sent = acknowledge(had).verdict == Verdict::Redirect;
                assert_eq!(sent, passes, "{had} bytes after {seconds} s");
            }
        }
    }
}

/// Another dispatcher has connected from its address and a port that this one knows from before. Only what acknowledges
/// that flow's numbers is that flow's client's, or who knows of it nothing else.
#[test]
fn what_is_for_a_port_that_was_taken_again_is_its_dispatchers() {
    let near = CLIENT_ISN.wrapping_add(30);
    let far = CLIENT_ISN.wrapping_add(1 << 27);
    let ended = FlowState::ClientFin;
    for bench in Bench::both() {
        among(&bench, |_| NOBODY, Daemon::Fit);
        for (what, state, ack, flags, counted) in [
            ("over, its own", Some(ended), near, ACK, "spliced-to-client"),
            ("over, another's", Some(ended), far, ACK, "passed"),
            (
                "over, another's, with bytes",
                Some(ended),
                far,
                ACK | PSH,
                "passed",
            ),
            ("over, a handshake", Some(ended), far, SYN | ACK, "passed"),
            (
                "over, a reset without a number",
                Some(ended),
                far,
                RST,
                "spliced-to-client",
            ),
            (
                "open",
                Some(FlowState::Established),
                far,
                ACK,
                "spliced-to-client",
            ),
            ("not known, its own", None, near, ACK, "spliced-to-client"),
            ("not known, another's", None, far, ACK, "passed"),
        ] {
            let splice = splices()[1];
            spliced(&bench, &splice, SPLICED_OPEN);
            match state {
                Some(state) => bench.put_flow(&Flow {
                    splice: abi::Splice::from(&splice),
                    last_seq: near,
                    state: state as u32,
                    ..established()
                }),
                None => drop(bench.maps.flows.delete(&flow_key(CLIENT, VIP)).unwrap()),
            }
            let address = ServiceKey::new((*OWN.ip()).into(), 0);
            let keepers = Service::splice_address(KEEPERS_SLOT.into());
            (bench.maps.services)
                .put(&address, &keepers, Update::Any)
                .unwrap();
            let payload: &[u8] = if flags & PSH != 0 { b"HTTP" } else { b"" };
            let said = Tcp {
                source: SERVER,
                dest: OWN,
                ..segment(flags, 0x7000_0000, ack, payload)
            };
            assert_eq!(bench.run(&said.frame()).counted, [counted], "{what}");
        }
    }
}
