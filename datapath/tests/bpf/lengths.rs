//! Headers that lie about lengths, pieces of packets, and all that is not for
//! a service of ours and must pass as if we were not there.

use std::net::{Ipv4Addr, SocketAddrV4};

use crate::bench::*;
use crate::cookie::{self, NO_SCALE, Terms, key_of};
use crate::outcome::{Outcome, Verdict};
use crate::packet::*;

/// A whole TCP header with options: the most there is to cut.
fn syn() -> Tcp {
    Tcp {
        options: options(&[Opt::Mss(1460), Opt::SackPermitted, Opt::Timestamps(1, 0)]),
        ..segment(SYN, CLIENT_ISN, 0, b"")
    }
}

#[test]
fn a_frame_cut_anywhere_is_passed_or_malformed() {
    let whole = syn().frame();
    for bench in Bench::both() {
        // The kernel itself runs no shorter ones (6.18).
        let shortest = match bench.hook {
            Hook::Tc => ETHERNET + 20,
            Hook::Xdp => ETHERNET,
        };
        for length in shortest..whole.len() {
            let frame = &whole[..length];
            let what = format!("{length} bytes");
            if length < TCP_AT + 20 {
                // Not enough to see that it is for us; the host's stack drops it too.
                bench.expect(&what, frame, &Outcome::untouched(frame));
            } else {
                bench.expect(&what, frame, &Outcome::drop("malformed"));
            }
        }
        assert_eq!(bench.run(&whole).verdict, Verdict::SendBack);
    }
}

#[test]
fn a_total_length_must_hold_the_headers_and_be_held_by_the_frame() {
    let frame = syn().frame();
    let right = frame.len() - ETHERNET;
    for bench in Bench::both() {
        for total in (0..120).chain([255, 256, 1500, 32768, 65535]) {
            if total == right {
                continue;
            }
            let bytes = (total as u16).to_be_bytes();
            let frame = with(
                frame.clone(),
                &[(ETHERNET + 2, bytes[0]), (ETHERNET + 3, bytes[1])],
            );
            bench.expect(
                &format!("total length {total}"),
                &frame,
                &Outcome::drop("malformed"),
            );
        }
    }
}

#[test]
fn a_tcp_header_must_have_a_length_that_can_be() {
    let frame = syn().frame();
    for bench in Bench::both() {
        for words in 0..16u8 {
            let frame = with(frame.clone(), &[(TCP_AT + 12, words << 4)]);
            let got = bench.run(&frame);
            // Others than the true one hold, if they do, a wrong checksum or payload.
            match words {
                0..5 | 10.. => assert_eq!(got, Outcome::drop("malformed"), "{words}"),
                5..=8 => assert_eq!(
                    got.verdict,
                    Verdict::SendBack,
                    "{words}: options or payload"
                ),
                _ => assert_eq!(got.verdict, Verdict::SendBack, "{words}"),
            }
        }
    }
}

#[test]
fn fragments_and_ip_options_have_their_reasons() {
    const AT: usize = ETHERNET + 6;
    type Changes = &'static [(usize, u8)];
    let table: [(&str, Changes, &str); 8] = [
        ("first fragment", &[(AT, 0x20)], "fragment"),
        ("middle fragment", &[(AT, 0x20), (AT + 1, 10)], "fragment"),
        ("last fragment", &[(AT, 0), (AT + 1, 10)], "fragment"),
        (
            "at the highest offset",
            &[(AT, 0x1f), (AT + 1, 0xff)],
            "fragment",
        ),
        ("IP options", &[(ETHERNET, 0x46)], "ip-options"),
        ("the longest IP header", &[(ETHERNET, 0x4f)], "ip-options"),
        ("an IP header too short", &[(ETHERNET, 0x44)], "ip-options"),
        ("no IP header", &[(ETHERNET, 0x40)], "ip-options"),
    ];
    let icmp = ethernet(
        THEIR_MAC,
        OUR_MAC,
        0x0800,
        &icmp(NODE, *VIP.ip(), 8, 0, &[0; 30]),
    );
    for bench in Bench::both() {
        bench.put_flow(&established());
        for (what, changes, reason) in table {
            for frame in [syn().frame(), request().frame(), icmp.clone()] {
                let frame = with(frame, changes);
                bench.expect(what, &frame, &Outcome::drop(reason));
            }
            let mut elsewhere = syn();
            elsewhere.dest.set_ip([198, 51, 100, 99].into());
            let frame = with(elsewhere.frame(), changes);
            bench.expect(
                &format!("{what}, elsewhere"),
                &frame,
                &Outcome::untouched(&frame),
            );
        }
        assert_eq!(bench.flow(), established());
        for bits in [0x00, 0x40, 0x80] {
            let frame = summed(with(syn().frame(), &[(AT, bits)]));
            assert_eq!(
                bench.run(&frame).verdict,
                Verdict::SendBack,
                "whole: {bits:x}"
            );
        }
    }
}

#[test]
fn what_is_not_for_a_service_passes_untouched() {
    let to = |ip: [u8; 4], port| {
        Tcp {
            dest: SocketAddrV4::new(Ipv4Addr::from(ip), port),
            ..syn()
        }
        .frame()
    };
    let vip = VIP.ip().octets();
    let kind = |kind: u16, payload: &[u8]| ethernet(THEIR_MAC, OUR_MAC, kind, payload);
    let inner = syn().packet();
    let table = [
        ("another port", to(vip, 8080)),
        ("one more port", to(vip, 82)),
        ("port 0", to(vip, 0)),
        ("another address", to([198, 51, 100, 8], 80)),
        ("the node itself", to(NODE.octets(), 80)),
        (
            "UDP to the service",
            kind(0x0800, &udp(CLIENT, VIP, b"hello")),
        ),
        (
            "our own encapsulation",
            kind(
                0x0800,
                &udp(CLIENT, SocketAddrV4::new(NODE, 6081), &[0; 64]),
            ),
        ),
        ("ARP", kind(0x0806, &[0; 28])),
        ("IPv6", kind(0x86dd, &[0x60; 80])),
        (
            "IPv4 in a VLAN",
            kind(0x8100, &[&[0, 7, 8, 0], &inner[..]].concat()),
        ),
        (
            "Ethernet says IPv4, IP says 6",
            with(kind(0x0800, &inner), &[(ETHERNET, 0x65)]),
        ),
        ("IPv4 behind another type", kind(0x0801, &inner)),
        (
            "ICMP echo",
            kind(0x0800, &icmp(NODE, *VIP.ip(), 8, 0, &[0; 30])),
        ),
        (
            "GRE to the service",
            with(kind(0x0800, &inner), &[(ETHERNET + 9, 47)]),
        ),
    ];
    for bench in Bench::both() {
        for (what, frame) in &table {
            bench.expect(what, frame, &Outcome::untouched(frame));
        }
    }
}

/// Ethernet frames have at least 60 bytes: what fills them up is no payload.
#[test]
fn padding_is_no_payload() {
    let terms = Terms {
        mss: 536,
        shift: NO_SCALE,
        sack: false,
        ecn: false,
        timestamps: false,
    };
    for bench in Bench::both() {
        let period = cookie::period();
        let cookie = terms.cookie(&key_of(period), &flow_key(CLIENT, VIP), 9, period);
        for length in [54, 55, 60, 1514] {
            bench.reset();
            let mut bare = segment(ACK, 10, cookie.wrapping_add(1), b"").frame();
            bare.resize(length, 0xaa);
            let expected = Outcome::drop_counting(&["handshake-ack", "cookie-valid"]);
            bench.expect(&format!("bare ACK in {length}"), &bare, &expected);

            let mut syn = segment(SYN, 9, 0, b"").frame();
            syn.resize(length, 0xaa);
            let answer = bench.run(&syn).packet.expect("an answer");
            assert_eq!(
                answer.len(),
                TCP_AT + 24,
                "the answer has no padding of {length}"
            );
        }
    }
}
