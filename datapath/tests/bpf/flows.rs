//! Packets of flows with a record: where they go, byte for byte, and how they
//! age the record; and how a new connection under an old name is told.

use trapeze_core::wire::geneve;
use trapeze_core::wire::meta::Kind;
use trapeze_datapath::abi::{Flow, FlowState, Pod, Proof, SiphashKey};
use trapeze_datapath::map::Update;
use trapeze_datapath::{clock, netns};

use crate::bench::*;
use crate::cookie::{self, NO_SCALE, Terms, key_of};
use crate::handshake::agreed;
use crate::outcome::{Outcome, Verdict};
use crate::packet::*;

const NEXT: u32 = CLIENT_ISN.wrapping_add(1);

fn forwarded(frame: &[u8]) -> Outcome {
    let packet = to_backend(&option(Kind::Forward), CLIENT.port(), frame);
    Outcome::new(Verdict::Redirect, packet, &["forwarded"])
}

#[test]
fn packets_of_an_assigned_flow_go_to_its_backend_whole() {
    let tcp = |flags, payload: &[u8]| segment(flags, NEXT, SERVER_ISN + 1, payload);
    let sack = |mut tcp: Tcp| {
        tcp.options = [&[1, 1, 5, 10][..], &[9; 8]].concat();
        tcp
    };
    let padded = |mut frame: Vec<u8>, length| {
        frame.resize(length, 0xee);
        frame
    };
    let table = [
        ("payload", tcp(ACK | PSH, REQUEST).frame()),
        ("a bare ACK", tcp(ACK, b"").frame()),
        ("a full segment", tcp(ACK, &[0x5a; 1388]).frame()),
        ("with SACK blocks", sack(tcp(ACK, b"")).frame()),
        ("FIN", tcp(ACK | FIN, b"").frame()),
        ("RST", tcp(RST, b"").frame()),
        ("no flag at all: the server decides", tcp(0, b"").frame()),
        ("a checksum for the card", tcp(ACK, REQUEST).frame_partial()),
        (
            "a wrong checksum: the server decides",
            with(tcp(ACK, REQUEST).frame(), &[(TCP_AT + 16, 0)]),
        ),
        (
            "padding of a short Ethernet frame",
            padded(tcp(ACK, b"").frame(), 60),
        ),
        (
            "rubbish after the packet",
            padded(tcp(ACK, REQUEST).frame(), 300),
        ),
    ];
    for bench in Bench::both() {
        for (what, frame) in &table {
            bench.put_flow(&established());
            bench.expect(what, frame, &forwarded(frame));
            assert_eq!(bench.state().proofs, [], "{what}");
        }
    }
}

#[test]
fn what_a_packet_proves_to_its_backend() {
    for bench in Bench::both() {
        bench.put_flow(&established());
        let packet = bench.run(&request().frame()).packet.unwrap();
        let payload = &packet[ETHERNET + 28..];
        let opened = geneve::open(payload, BACKEND.into(), &keys()).expect("a good tag");
        assert_eq!(opened.meta, flow_meta(Kind::Forward));
        assert_eq!(opened.inner, request().packet());
    }
}

/// A small state machine: what the record and the backend's load say after each packet.
#[test]
fn packets_age_the_record() {
    use FlowState::{ClientFin, Established, Reset};
    let table: [(&str, &[u8], FlowState, i64); 8] = [
        ("ACKs leave it open", &[ACK, ACK | PSH], Established, 10),
        ("FIN closes it", &[ACK | FIN], ClientFin, 9),
        (
            "FIN again does not close it twice",
            &[ACK | FIN, ACK | FIN],
            ClientFin,
            9,
        ),
        ("RST ends it", &[RST], Reset, 9),
        ("RST again", &[RST, RST | ACK], Reset, 9),
        ("RST after FIN", &[ACK | FIN, RST], Reset, 9),
        (
            "life after an RST: it was not the client's",
            &[RST, ACK],
            ClientFin,
            9,
        ),
        ("and FIN after that", &[RST, ACK, ACK | FIN], ClientFin, 9),
    ];
    for bench in Bench::both() {
        for (what, packets, state, load) in table {
            bench.reset();
            bench.put_flow(&established());
            for flags in packets {
                bench.run(&segment(*flags, NEXT, 5, b"abc").frame());
            }
            let flow = bench.flow();
            assert_eq!(FlowState::from_raw(flow.state), Some(state), "{what}");
            assert_eq!(bench.state().load.active, load, "{what}");
            assert_eq!(bench.state().load.total, 10, "{what}");
            let age = clock::monotonic().as_nanos() as u64 - flow.last_seen_ns;
            assert!(age < 1_000_000_000, "{what}: seen just now");
            let expected = Flow {
                state: state as u32,
                last_seq: NEXT.wrapping_add(3),
                last_ack: 5,
                packets: packets.len() as u64,
                bytes: 3 * packets.len() as u64,
                last_seen_ns: flow.last_seen_ns,
                ..established()
            };
            assert_eq!(flow, expected, "{what}: all else stays");
        }
    }
}

#[test]
fn while_the_head_is_read_everything_goes_to_the_daemon() {
    let tcp =
        |flags, payload: &[u8]| segment(flags, NEXT.wrapping_add(700), SERVER_ISN + 1, payload);
    for bench in Bench::both() {
        bench.put_flow(&record(FlowState::Reading));
        for (what, tcp) in [
            ("payload", tcp(ACK | PSH, REQUEST)),
            ("a bare ACK", tcp(ACK, b"")),
            ("FIN", tcp(ACK | FIN, b"")),
            ("RST", tcp(RST, b"")),
        ] {
            let frame = tcp.frame();
            let packet = to_daemon(HANDSHAKE, CLIENT_ISN, SERVER_ISN, &frame);
            let opened = geneve::open(&packet[ETHERNET + 28..], NODE.into(), &keys());
            assert_eq!(opened.expect("a good tag").inner, tcp.packet());
            let expected = Outcome::new(Verdict::Pass, packet, &["to-daemon"]);
            bench.expect(what, &frame, &expected);
        }
        let flow = bench.flow();
        assert_eq!(flow.state, FlowState::Reading as u32);
        assert_ne!(flow.last_seen_ns, 0);
        assert_eq!(bench.state().load.active, 10, "no backend has it yet");
    }
}

#[test]
fn without_a_backend_there_is_a_reason() {
    for bench in Bench::both() {
        for slot in [EMPTY_SLOT, 1023, 1024, u32::MAX] {
            bench.put_flow(&Flow {
                backend: slot,
                ..established()
            });
            let frame = request().frame();
            bench.expect(
                &format!("slot {slot}"),
                &frame,
                &Outcome::drop("no-backend"),
            );
        }
    }
}

/// In a namespace without a route, only what is known already leads anywhere.
#[test]
fn a_way_is_known_for_a_second() {
    netns::enter_new().expect("these tests need root");
    let (here, second) = (1, 1_000_000_000);
    for bench in Bench::both() {
        bench.put_flow(&established());
        let frame = request().frame();
        let expected = forwarded(&frame);
        bench.resolve_next_hop(77, second / 2);
        let got = bench.run_as_resolved(&frame);
        assert_eq!(got.difference(&expected), None);

        bench.resolve_next_hop(77, second * 12 / 10);
        let got = bench.run_as_resolved(&frame);
        assert_eq!(got, Outcome::drop("no-route"), "{:?}", bench.hook);

        // Out where it came in, XDP need not redirect.
        bench.resolve_next_hop(here, second / 10);
        let expected = Outcome {
            verdict: match bench.hook {
                Hook::Tc => Verdict::Redirect,
                Hook::Xdp => Verdict::SendBack,
            },
            ..expected
        };
        let got = bench.run_as_resolved(&frame);
        assert_eq!(got.difference(&expected), None);
    }
}

/// RFC 5961 §4 in our place: anyone can send a SYN, and it must do nothing.
#[test]
fn a_forged_syn_does_not_disturb_a_flow() {
    for bench in Bench::both() {
        bench.put_flow(&established());
        let got = bench.run(&segment(SYN, 12345, 0, b"").frame());
        assert_eq!(got.verdict, Verdict::SendBack);
        assert_eq!(got.counted, ["syn-answered"]);
        let flow = bench.flow();
        assert_ne!(flow.syn_seen_ns, 0);
        let expected = Flow {
            syn_seen_ns: flow.syn_seen_ns,
            ..established()
        };
        assert_eq!(flow, expected, "nothing but the hint");
        for (what, tcp) in [
            ("payload", request()),
            (
                "other ISNs without their cookie",
                segment(ACK, 12346, 777, REQUEST),
            ),
            ("a bare ACK of it", segment(ACK, 12346, 777, b"")),
        ] {
            let frame = tcp.frame();
            bench.expect(what, &frame, &forwarded(&frame));
        }
        assert_eq!(bench.state().proofs, []);
    }
}

/// Of a connection that shows its cookie in bare numbers.
const TERMS: Terms = Terms {
    mss: 1400,
    shift: NO_SCALE,
    sack: true,
    ecn: false,
    timestamps: false,
};

/// The client's port comes round: its cookie, not its SYN, shows the new connection.
#[test]
fn a_reused_port_is_known_by_its_cookie() {
    let isn = 0x1000_0000;
    for bench in Bench::both() {
        for old in [
            FlowState::Established,
            FlowState::ClientFin,
            FlowState::Reading,
        ] {
            bench.reset();
            let period = cookie::period();
            let cookie = TERMS.cookie(&key_of(period), &flow_key(CLIENT, VIP), isn, period);
            let new =
                |flags, payload: &[u8]| segment(flags, isn + 1, cookie.wrapping_add(1), payload);
            let to_daemon = |frame: &[u8], counted: &[&'static str]| {
                let packet = to_daemon(agreed(&TERMS, &SERVICE), isn, cookie, frame);
                Outcome::new(Verdict::Pass, packet, counted)
            };
            let first = new(ACK | PSH, REQUEST).frame();

            bench.put_flow(&record(old));
            if old != FlowState::Reading {
                bench.expect(
                    "without a SYN it is the old one's",
                    &first,
                    &forwarded(&first),
                );
                bench.put_flow(&record(old));
            }
            bench.run(&segment(SYN, isn, 0, b"").frame());
            let hinted = bench.flow();
            bench.expect(
                "first payload",
                &first,
                &to_daemon(&first, &["cookie-valid", "to-daemon"]),
            );

            let bare = new(ACK, b"").frame();
            let proved = Outcome::drop_counting(&["handshake-ack", "cookie-valid"]);
            bench.expect("bare ACK", &bare, &proved);
            let later = segment(ACK, isn + 1400, cookie.wrapping_add(1), REQUEST).frame();
            bench.expect("a later piece", &later, &to_daemon(&later, &["to-daemon"]));
            assert_eq!(
                bench.flow(),
                hinted,
                "the record is the daemon's to replace"
            );

            if old != FlowState::Reading {
                bench
                    .proofs
                    .delete(&flow_key(CLIENT, VIP))
                    .expect("the map is there");
                let byte = bare[TCP_AT + 14] ^ 1;
                let damaged = with(bare.clone(), &[(TCP_AT + 14, byte)]);
                bench.expect("damaged, it proves nothing", &damaged, &forwarded(&damaged));
                let ack = segment(ACK, NEXT, SERVER_ISN + 1, b"").frame();
                bench.expect("the old one's stray ACK", &ack, &forwarded(&ack));
            }
        }
    }
}

/// Its cookie is still good, but it is this very connection's.
#[test]
fn a_flows_own_first_payload_stays_with_its_backend_after_a_syn() {
    for bench in Bench::both() {
        let period = cookie::period();
        let cookie = TERMS.cookie(&key_of(period), &flow_key(CLIENT, VIP), CLIENT_ISN, period);
        bench.put_flow(&Flow {
            server_isn: cookie,
            ..established()
        });
        bench.run(&segment(SYN, CLIENT_ISN, 0, b"").frame());
        for payload in [REQUEST, b""] {
            let frame = segment(ACK, NEXT, cookie.wrapping_add(1), payload).frame();
            bench.expect("again", &frame, &forwarded(&frame));
        }
        assert_eq!(bench.state().proofs, []);
        // Nor do proofs, its own or of an earlier one, take its packets away.
        for server_isn in [cookie, 0x0bad] {
            let proof = Proof {
                client_isn: CLIENT_ISN,
                server_isn,
                created_ns: clock::monotonic().as_nanos() as u64 - 1_000_000_000,
                ..Proof::zeroed()
            };
            let key = flow_key(CLIENT, VIP);
            bench.proofs.put(&key, &proof, Update::Any).unwrap();
            let later = segment(
                ACK,
                NEXT.wrapping_add(1400),
                cookie.wrapping_add(1),
                REQUEST,
            );
            let frame = later.frame();
            bench.expect("a later piece", &frame, &forwarded(&frame));
            let first = segment(ACK, NEXT, cookie.wrapping_add(1), REQUEST).frame();
            bench.expect("the first", &first, &forwarded(&first));
        }
    }
}

#[test]
fn a_hint_is_forgotten() {
    for bench in Bench::both() {
        let period = cookie::period();
        let cookie = TERMS.cookie(&key_of(period), &flow_key(CLIENT, VIP), 9, period);
        let frame = segment(ACK, 10, cookie.wrapping_add(1), REQUEST).frame();
        let now = clock::monotonic().as_nanos() as u64;
        for (seconds, old) in [(100, false), (130, true)] {
            // The clock may be younger; the difference is what counts.
            let syn_seen_ns = now.wrapping_sub(seconds * 1_000_000_000);
            bench.put_flow(&Flow {
                syn_seen_ns,
                ..established()
            });
            let verdict = bench.run(&frame).verdict;
            assert_eq!(verdict == Verdict::Redirect, old, "after {seconds} s");
        }
    }
}

#[test]
fn nothing_is_sent_in_an_unknown_nodes_name() {
    for bench in Bench::both() {
        bench.put_flow(&record(FlowState::Reading));
        bench
            .maps
            .tag_keys
            .put(&KEY_IDS[0].into(), &SiphashKey::zeroed(), Update::Any)
            .unwrap();
        bench.expect(
            "without a key",
            &request().frame(),
            &Outcome::drop("bad-tag"),
        );
    }
}
