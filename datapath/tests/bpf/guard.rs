//! What a dispatcher lets near its daemon: other nodes' packets with a good tag;
//! and what it leaves alone, because it is for somebody else.

use std::net::Ipv4Addr;

use trapeze_core::seq::{ClientSeq, ServerSeq};
use trapeze_core::wire::meta::{Kind, Refusal};
use trapeze_datapath::abi::SiphashKey;
use trapeze_datapath::map::Update;

use crate::agent::{GENEVE_AT, INNER_AT, META_AT, echo};
use crate::backend::sealed_for;
use crate::bench::*;
use crate::outcome::{Outcome, Verdict};
use crate::packet::*;

fn to_us(kind: Kind, inner: &[u8]) -> Vec<u8> {
    sealed_for(NODE, &flow_meta(kind), inner)
}

fn refused() -> Vec<u8> {
    to_us(Kind::Refused(Refusal::NoListener), &request().packet())
}

fn passed(frame: &[u8]) -> Outcome {
    Outcome::untouched(frame)
}

#[test]
fn what_is_proved_reaches_the_daemon() {
    let received = ClientSeq::new(7);
    let server_isn = ServerSeq::new(8);
    let inner = request().packet();
    let table = [
        ("a refusal", refused()),
        (
            "a probe's answer",
            to_us(
                Kind::ProbeAnswer {
                    received,
                    sender: None,
                },
                &inner,
            ),
        ),
        (
            "another dispatcher's request",
            to_us(Kind::Request { server_isn }, &inner),
        ),
        (
            "an echo",
            to_us(Kind::EchoReply { feedback: None }, &echo()),
        ),
        ("an ICMP error", {
            let error = icmp(NODE, *VIP.ip(), 3, 4, &inner[..28]);
            to_us(Kind::Icmp, &error)
        }),
        (
            "a bare IP header",
            to_us(
                Kind::EchoReply { feedback: None },
                &ipv4(NODE, NODE, 59, b""),
            ),
        ),
    ];
    for bench in Bench::both() {
        for (what, frame) in &table {
            bench.expect(what, frame, &passed(frame));
            let padded = [&frame[..], &[0xee; 9]].concat();
            bench.expect(what, &padded, &passed(&padded));
        }
        assert_eq!(bench.state().flows, []);
        assert_eq!(bench.state().proofs, []);
    }
}

#[test]
fn what_is_forged_does_not() {
    let addresses = INNER_AT + 12..INNER_AT + 20;
    let ports = INNER_AT + 20..INNER_AT + 24;
    let option = META_AT + 1..META_AT + 32;
    let no_ports = option.chain(addresses);
    let whole: Vec<usize> = no_ports.clone().chain(ports.clone()).collect();
    let no_ports: Vec<usize> = no_ports.collect();
    let echo = to_us(Kind::EchoReply { feedback: None }, &echo());
    for bench in Bench::both() {
        for (what, frame, covered) in [
            ("a refusal", refused(), &whole),
            ("an echo", echo.clone(), &no_ports),
        ] {
            for &at in covered {
                for bit in 0..8 {
                    let forged = with(frame.clone(), &[(at, frame[at] ^ 1 << bit)]);
                    let what = format!("{what}, byte {at}");
                    bench.expect(&what, &forged, &Outcome::drop("bad-tag"));
                }
            }
        }
        for at in ports.clone() {
            let frame = with(echo.clone(), &[(at, 0x5a)]);
            bench.expect("no ports in it", &frame, &passed(&frame));
        }
        let copy = sealed_for(
            BACKEND,
            &flow_meta(Kind::EchoReply { feedback: None }),
            &request().packet(),
        );
        let here = with(copy, &[(ETHERNET + 19, NODE.octets()[3])]);
        bench.expect("for another node", &here, &Outcome::drop("bad-tag"));
        let key = SiphashKey {
            k0: 0,
            k1: 0,
            generation: 0,
        };
        let id = KEY_IDS[0].into();
        bench.maps.tag_keys.put(&id, &key, Update::Any).unwrap();
        let frame = refused();
        bench.expect("its key is gone", &frame, &Outcome::drop("bad-tag"));
    }
}

#[test]
fn what_is_malformed_does_not() {
    let good = refused();
    let change = |at: usize, byte: u8| with(good.clone(), &[(at, byte)]);
    // A TCP packet that ends with its IP header has no ports.
    let mut no_ports = good[..INNER_AT + 20].to_vec();
    no_ports[INNER_AT + 3] = 20;
    let table = [
        ("an option too short", change(GENEVE_AT, 8)),
        ("two options", change(GENEVE_AT, 10)),
        ("another version of Geneve", change(GENEVE_AT, 0x49)),
        ("no critical option", change(GENEVE_AT + 1, 0)),
        ("a control packet", change(GENEVE_AT + 1, 0xc0)),
        ("a reserved flag", change(GENEVE_AT + 1, 0x41)),
        ("IPv6 inside", change(GENEVE_AT + 2, 0x86)),
        ("an option of another length", change(GENEVE_AT + 11, 7)),
        ("a version of tomorrow", change(META_AT, 2)),
        ("inner IP version 6", change(INNER_AT, 0x65)),
        ("inner IP options", change(INNER_AT, 0x46)),
        ("inner first fragment", change(INNER_AT + 6, 0x20)),
        ("inner last fragment", change(INNER_AT + 7, 1)),
        ("inner length beyond the frame", change(INNER_AT + 2, 1)),
        ("inner length below its header", change(INNER_AT + 3, 19)),
        ("nothing inside", good[..INNER_AT].to_vec()),
        (
            "cut within the inner header",
            good[..INNER_AT + 19].to_vec(),
        ),
        ("cut within the ports", good[..INNER_AT + 23].to_vec()),
        ("cut by a byte", good[..good.len() - 1].to_vec()),
        ("no ports", no_ports),
    ];
    for bench in Bench::both() {
        for (what, frame) in &table {
            bench.expect(what, frame, &Outcome::drop("bad-encapsulation"));
        }
    }
}

#[test]
fn what_else_is_sent_to_its_port_is_not_its_business() {
    let good = refused();
    let change = |at: usize, byte: u8| with(good.clone(), &[(at, byte)]);
    let meta = flow_meta(Kind::EchoReply { feedback: None });
    let to = |node: Ipv4Addr| sealed_for(node, &meta, &request().packet());
    let table = [
        ("another node's", to(BACKEND)),
        ("the service address's", to(*VIP.ip())),
        (
            "another node's, malformed",
            with(to(BACKEND), &[(META_AT, 9)]),
        ),
        (
            "another node's, forged",
            with(to(BACKEND), &[(INNER_AT - 1, 9)]),
        ),
        ("another UDP port", change(ETHERNET + 23, 0xc3)),
        ("another protocol", change(ETHERNET + 9, 132)),
        ("outer IP options", change(ETHERNET, 0x46)),
        ("another network", change(GENEVE_AT + 6, 0)),
        ("a network's last byte", change(GENEVE_AT + 7, 1)),
        ("another option class", change(GENEVE_AT + 8, 0)),
        ("another option", change(GENEVE_AT + 10, 1)),
        ("cut within the option", good[..INNER_AT - 1].to_vec()),
        ("cut within UDP", good[..ETHERNET + 24].to_vec()),
    ];
    for bench in Bench::both() {
        for (what, frame) in &table {
            bench.expect(what, frame, &Outcome::untouched(frame));
        }
    }
}

/// Of every kind that is dealt with, one.
fn ours() -> [(&'static str, Vec<u8>); 5] {
    let quoted = Tcp {
        source: VIP,
        dest: CLIENT,
        ..segment(ACK, SERVER_ISN + 1, 5, b"")
    };
    let error = icmp(NODE, *VIP.ip(), 3, 4, &quoted.packet()[..28]);
    [
        ("SYN", segment(SYN, 1, 0, b"").frame()),
        ("payload", request().frame()),
        ("ICMP", ethernet(THEIR_MAC, OUR_MAC, 0x0800, &error)),
        (
            "a fragment",
            with(request().frame(), &[(ETHERNET + 6, 0x20)]),
        ),
        ("a forged refusal", with(refused(), &[(INNER_AT - 1, 9)])),
    ]
}

/// A switch floods frames that it knows no port for; who is promiscuous sees all.
#[test]
fn frames_for_other_interfaces_pass_untouched() {
    for bench in Bench::both() {
        bench.put_flow(&established());
        for (what, frame) in ours() {
            for mac in OTHER_MACS {
                let frame = [&mac, &frame[6..]].concat();
                bench.expect(what, &frame, &Outcome::untouched(&frame));
            }
            assert_eq!(bench.flow(), established(), "{what}");
            let verdict = bench.run(&frame).verdict;
            assert!(![Verdict::Next, Verdict::Pass].contains(&verdict), "{what}");
            bench.put_flow(&established());
        }
    }
}

/// XDP has only the address that it was told.
#[test]
fn at_xdp_every_byte_of_the_interfaces_address_counts() {
    let bench = Bench::new(Hook::Xdp);
    let mac = [2, 0x5a, 3, 4, 5, 0x81];
    bench.set_mac(mac);
    bench.put_flow(&established());
    for (what, frame) in ours() {
        bench.expect(what, &frame, &Outcome::untouched(&frame));
        let frame = [&mac, &frame[6..]].concat();
        for bit in 0..48 {
            let other = with(frame.clone(), &[(bit / 8, frame[bit / 8] ^ 1 << (bit % 8))]);
            bench.expect(what, &other, &Outcome::untouched(&other));
        }
        assert_ne!(bench.run(&frame).verdict, Verdict::Pass, "{what}");
    }
}
