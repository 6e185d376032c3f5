//! ICMP errors about packets that backends have sent from the service address:
//! they come to the dispatcher and belong to the backend.

use std::net::{Ipv4Addr, SocketAddrV4};

use trapeze_core::wire::geneve;
use trapeze_core::wire::meta::{Binding, Kind};
use trapeze_datapath::abi::{Flow, FlowState};

use crate::bench::*;
use crate::outcome::{Outcome, Verdict};
use crate::packet::*;

const ROUTER: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 5);

/// The packet that a backend has sent to the client, as far as routers quote it.
pub fn quoted(length: usize) -> Vec<u8> {
    quoted_of(VIP, CLIENT, length)
}

fn quoted_of(from: SocketAddrV4, to: SocketAddrV4, length: usize) -> Vec<u8> {
    let mut packet = Tcp {
        source: from,
        dest: to,
        ..segment(ACK, SERVER_ISN + 1, 5, &[0; 1400])
    }
    .packet();
    packet.truncate(length);
    packet
}

pub fn error(kind: u8, code: u8, quoted: &[u8]) -> Vec<u8> {
    error_to(*VIP.ip(), kind, code, quoted)
}

fn error_to(to: Ipv4Addr, kind: u8, code: u8, quoted: &[u8]) -> Vec<u8> {
    let packet = icmp(ROUTER, to, kind, code, quoted);
    ethernet(THEIR_MAC, OUR_MAC, 0x0800, &packet)
}

fn forwarded(frame: &[u8]) -> Outcome {
    let inner = &frame[ETHERNET..];
    let binding = Binding::of_packet(BACKEND.into(), inner).unwrap();
    let raw = flow_meta(Kind::Icmp).seal(&keys(), &binding);
    let packet = to_backend(&raw, CLIENT.port(), frame);
    let opened = geneve::open(&packet[ETHERNET + 28..], BACKEND.into(), &keys());
    assert_eq!(opened.expect("a good tag").inner, inner);
    Outcome::new(Verdict::Redirect, packet, &["icmp-forwarded"])
}

#[test]
fn errors_about_a_flow_reach_its_backend() {
    let table = [
        ("fragmentation needed", error(3, 4, &quoted(28))),
        ("a long quote", error(3, 4, &quoted(548))),
        ("port unreachable", error(3, 3, &quoted(40))),
        ("hops used up", error(11, 0, &quoted(28))),
        ("parameter problem", error(12, 0, &quoted(28))),
        ("no more than the ports", error(3, 4, &quoted(24))),
    ];
    for bench in Bench::both() {
        for state in [
            FlowState::Established,
            FlowState::ClientFin,
            FlowState::Reset,
        ] {
            bench.put_flow(&record(state));
            for (what, frame) in &table {
                bench.expect(what, frame, &forwarded(frame));
            }
            assert_eq!(bench.flow(), record(state), "they do not age it");
        }
    }
}

#[test]
fn errors_about_no_flow_are_dropped() {
    let elsewhere = SocketAddrV4::new(*CLIENT.ip(), 1);
    let stranger = error(3, 4, &quoted_of(VIP, elsewhere, 28));
    let known = error(3, 4, &quoted(28));
    for bench in Bench::both() {
        let no_flow = Outcome::drop("icmp-no-flow");
        bench.expect("no record", &known, &no_flow);
        bench.put_flow(&established());
        bench.expect("another port", &stranger, &no_flow);
        bench.put_flow(&record(FlowState::Reading));
        bench.expect("no backend yet", &known, &no_flow);
        bench.put_flow(&Flow {
            backend: EMPTY_SLOT,
            ..established()
        });
        bench.expect("its backend is gone", &known, &Outcome::drop("no-backend"));
        let mut unsigned = established();
        unsigned.meta[2] = 200;
        bench.put_flow(&unsigned);
        bench.expect("its key is gone", &known, &no_flow);
    }
}

#[test]
fn other_messages_are_the_hosts() {
    let reply = quoted(28);
    let other_port = SocketAddrV4::new(*VIP.ip(), 8080);
    let other_host = SocketAddrV4::new(Ipv4Addr::new(198, 51, 100, 8), 80);
    let table = [
        ("echo request", error(8, 0, &reply)),
        ("echo reply", error(0, 0, &reply)),
        ("source quench", error(4, 0, &reply)),
        ("redirect", error(5, 1, &reply)),
        (
            "about another port",
            error(3, 4, &quoted_of(other_port, CLIENT, 28)),
        ),
        (
            "about another host",
            error_to(*other_host.ip(), 3, 4, &quoted_of(other_host, CLIENT, 28)),
        ),
        ("to another than it is about", error_to(NODE, 3, 4, &reply)),
        (
            "about a packet to us",
            error(3, 4, &quoted_of(CLIENT, VIP, 28)),
        ),
        (
            "about a UDP packet",
            with(error(3, 4, &reply), &[(ETHERNET + 28 + 9, UDP)]),
        ),
        (
            "about a packet with IP options",
            with(error(3, 4, &reply), &[(ETHERNET + 28, 0x46)]),
        ),
        (
            "a total length below the quote",
            with(error(3, 4, &reply), &[(ETHERNET + 3, 51)]),
        ),
        (
            "a total length beyond the frame",
            with(error(3, 4, &reply), &[(ETHERNET + 3, 57)]),
        ),
    ];
    for bench in Bench::both() {
        bench.put_flow(&established());
        for (what, frame) in &table {
            bench.expect(what, frame, &Outcome::untouched(frame));
        }
        for length in 0..24 {
            let frame = error(3, 4, &quoted(length));
            bench.expect(
                &format!("a quote of {length}"),
                &frame,
                &Outcome::untouched(&frame),
            );
        }
    }
}
