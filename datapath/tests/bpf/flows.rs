//! Packets of flows with a record: where they go, byte for byte, and how they
//! age the record; and how a new connection under an old name is told.

use trapeze_core::membership::lots::NOBODY;
use trapeze_core::wire::geneve;
use trapeze_core::wire::meta::Kind;
use trapeze_datapath::abi::{ENCAP_LEN, Flow, FlowState, Node, Pod, Proof, SiphashKey};
use trapeze_datapath::map::Update;
use trapeze_datapath::{clock, netns};

use crate::bench::*;
use crate::cookie::{self, NO_SCALE, Terms, key_of};
use crate::handshake::agreed;
use crate::keeper::{Daemon, among};
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

/// To the agent behind us at the same hook, or behind XDP; nothing has to be known of the way.
#[test]
fn a_backend_on_this_host_has_its_packets_from_here() {
    for bench in Bench::both() {
        bench.put_flow(&established());
        bench.backend_is_here();
        let frame = segment(ACK | PSH, NEXT, SERVER_ISN + 1, REQUEST).frame();
        let outcome = bench.run_as_resolved(&frame);
        assert!([Verdict::Next, Verdict::Pass].contains(&outcome.verdict));
        assert_eq!(outcome.counted, ["forwarded", "to-own-host"]);
        let packet = outcome.packet.unwrap();
        assert_eq!(packet[ETHERNET + 16..ETHERNET + 20], NODE.octets());
        assert_eq!(packet[ETHERNET + ENCAP_LEN..], frame[ETHERNET..]);
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

/// A packet of the flow, its numbers counted from where the record stands.
#[derive(Clone, Copy, Debug)]
struct Step {
    flags: u8,
    seq: i64,
    ack: i64,
    length: usize,
}

const fn step(flags: u8, seq: i64, ack: i64, length: usize) -> Step {
    Step {
        flags,
        seq,
        ack,
        length,
    }
}

impl Step {
    fn frame(&self) -> Vec<u8> {
        let ack = moved(SERVER_ISN + 1, self.ack);
        segment(
            self.flags,
            moved(NEXT, self.seq),
            ack,
            &REQUEST[..self.length],
        )
        .frame()
    }
}

fn moved(number: u32, by: i64) -> u32 {
    number.wrapping_add(by as u32)
}

/// How far numbers may lie from those before them (RFC 5961 in our place).
const SEQ_REACH: i64 = 1 << 20;
const ACK_REACH: i64 = 1 << 24;

/// A small state machine: what the record and the backend's load say after
/// packets. The last columns are state, load, and how far seq and ack have moved.
#[test]
fn packets_age_the_record() {
    use FlowState::{ClientFin, Established, Reset};
    const FIN_ACK: u8 = FIN | ACK;
    const OPEN: i64 = 10;
    const OVER: i64 = 9;
    type Row<'a> = (&'static str, &'a [Step], FlowState, i64, i64, i64);
    #[rustfmt::skip]
    let table: [Row<'_>; 36] = [
        ("a bare ACK", &[step(ACK, 0, 0, 0)], Established, OPEN, 0, 0),
        ("payload and ACK", &[step(ACK, 0, 0, 3), step(ACK | PSH, 3, 5, 3)], Established, OPEN, 6, 5),
        ("overtaken", &[step(ACK, 3, 7, 10), step(ACK, 0, 2, 3)], Established, OPEN, 13, 7),
        ("FIN", &[step(FIN_ACK, 0, 0, 0)], ClientFin, OVER, 1, 0),
        ("FIN with payload", &[step(FIN_ACK, 0, 1, 3)], ClientFin, OVER, 4, 1),
        ("FIN twice", &[step(FIN_ACK, 0, 0, 3), step(FIN_ACK, 0, 0, 3)], ClientFin, OVER, 4, 0),
        ("ACK after FIN", &[step(FIN_ACK, 0, 0, 3), step(ACK, 4, 9, 0)], ClientFin, OVER, 4, 9),
        ("FIN of old", &[step(ACK, 0, 0, 3), step(FIN_ACK, 0, 0, 2)], ClientFin, OVER, 3, 0),
        ("RST", &[step(RST, 0, 0, 0)], Reset, OVER, 0, 0),
        ("RST, its ACK is nothing", &[step(RST, 0, ACK_REACH, 0)], Reset, OVER, 0, 0),
        ("RST with ACK", &[step(RST | ACK, 0, 8, 0)], Reset, OVER, 0, 0),
        ("RST and FIN", &[step(RST | FIN, 0, 0, 0)], Reset, OVER, 0, 0),
        ("RST twice", &[step(RST, 0, 0, 0), step(RST, 0, 0, 0)], Reset, OVER, 0, 0),
        ("RST after payload", &[step(ACK, 0, 0, 3), step(RST, 3, 0, 0)], Reset, OVER, 3, 0),
        ("RST before that", &[step(ACK, 0, 0, 3), step(RST, 0, 0, 0)], Established, OPEN, 3, 0),
        ("RST one ahead", &[step(RST, 1, 0, 0)], Established, OPEN, 0, 0),
        ("RST one behind", &[step(RST, -1, 0, 0)], Established, OPEN, 0, 0),
        ("RST within any window", &[step(RST, 1400, 0, 0)], Established, OPEN, 0, 0),
        ("RST with payload up to there", &[step(RST, -3, 0, 3)], Established, OPEN, 0, 0),
        ("RST after FIN", &[step(FIN_ACK, 0, 0, 0), step(RST, 1, 0, 0)], Reset, OVER, 1, 0),
        ("RST before FIN's number", &[step(FIN_ACK, 0, 0, 0), step(RST, 0, 0, 0)], ClientFin, OVER, 1, 0),
        ("life after an RST", &[step(RST, 0, 0, 0), step(ACK, 0, 0, 3)], ClientFin, OVER, 3, 0),
        ("FIN after an RST", &[step(RST, 0, 0, 0), step(FIN_ACK, 0, 0, 0)], ClientFin, OVER, 1, 0),
        ("an RST, and what is too far off", &[step(RST, 0, 0, 0), step(ACK, SEQ_REACH, 0, 0)], Reset, OVER, 0, 0),
        ("far ahead", &[step(ACK, SEQ_REACH - 1, 0, 0)], Established, OPEN, SEQ_REACH - 1, 0),
        ("too far ahead", &[step(ACK, SEQ_REACH, 5, 0)], Established, OPEN, 0, 0),
        ("too far by its payload", &[step(ACK, SEQ_REACH - 3, 5, 3)], Established, OPEN, 0, 0),
        ("FIN far ahead", &[step(FIN_ACK, SEQ_REACH - 1, 0, 0)], ClientFin, OVER, SEQ_REACH, 0),
        ("FIN too far ahead", &[step(FIN_ACK, SEQ_REACH, 0, 0)], Established, OPEN, 0, 0),
        ("FIN far behind", &[step(FIN_ACK, -SEQ_REACH, 0, 0)], ClientFin, OVER, 0, 0),
        ("FIN too far behind", &[step(FIN_ACK, -SEQ_REACH - 1, 0, 0)], Established, OPEN, 0, 0),
        ("an ACK far ahead", &[step(ACK, 2, ACK_REACH - 1, 0)], Established, OPEN, 2, ACK_REACH - 1),
        ("an ACK too far ahead", &[step(ACK, 2, ACK_REACH, 0)], Established, OPEN, 0, 0),
        ("FIN, its ACK far behind", &[step(FIN_ACK, 0, -ACK_REACH, 0)], ClientFin, OVER, 1, 0),
        ("FIN, its ACK too far behind", &[step(FIN_ACK, 0, -ACK_REACH - 1, 0)], Established, OPEN, 0, 0),
        ("FIN, its ACK too far ahead", &[step(FIN_ACK, 0, ACK_REACH, 0)], Established, OPEN, 0, 0),
    ];
    for bench in Bench::both() {
        for (what, steps, state, load, seq, ack) in table {
            bench.reset();
            bench.put_flow(&established());
            for step in steps {
                let frame = step.frame();
                bench.expect(what, &frame, &forwarded(&frame));
            }
            let flow = bench.flow();
            assert_eq!(FlowState::from_raw(flow.state), Some(state), "{what}");
            assert_eq!(bench.state().load.active, load, "{what}");
            assert_eq!(bench.state().load.total, 10, "{what}");
            let age = clock::monotonic().as_nanos() as u64 - flow.last_seen_ns;
            assert!(age < 1_000_000_000, "{what}: seen just now");
            let expected = Flow {
                state: state as u32,
                last_seq: moved(NEXT, seq),
                last_ack: moved(SERVER_ISN + 1, ack),
                packets: 1 + steps.len() as u64,
                bytes: steps.iter().map(|step| step.length as u64).sum(),
                last_seen_ns: flow.last_seen_ns,
                window: flow.window,
                ..established()
            };
            assert_eq!(flow, expected, "{what}: all else stays");
        }
    }
}

/// What others have not been told of goes to the daemon, so that nothing follows from it. What the client has said is
/// known here all the same: a server without an agent is left by what its client has had.
#[test]
fn packets_age_a_record_that_nobody_else_knows() {
    for bench in Bench::both() {
        bench.maps.told.put(&0, &6, Update::Any).unwrap();
        for (what, turn, counted) in [("told", 6, "forwarded"), ("untold", 7, "to-daemon")] {
            bench.put_flow(&Flow {
                turn,
                ..established()
            });
            let outcome = bench.run(&step(ACK, 3, 9, 0).frame());
            assert_eq!(outcome.counted, [counted], "{what}");
            let flow = bench.flow();
            assert_eq!(flow.last_ack, moved(SERVER_ISN + 1, 9), "{what}");
            assert_eq!(flow.last_seq, moved(NEXT, 3), "{what}");
        }
    }
}

/// Repetitions that come late, of a request of which nothing is heard: not the first one, which may
/// have been lost by chance.
#[test]
fn what_clients_repeat_in_vain_is_counted() {
    const LATE: u64 = 800;
    const SOON: u64 = 400;
    let repeat = step(ACK | PSH, 0, 0, 9);
    let table = [
        ("late", LATE, repeat, 0, 1),
        ("soon", SOON, repeat, 0, 0),
        ("something new", LATE, step(ACK | PSH, 9, 0, 3), 0, 0),
        ("the beginning alone", LATE, step(ACK | PSH, 0, 0, 3), 0, 0),
        ("without payload", LATE, step(ACK, 9, 0, 0), 0, 0),
        ("hearing something", LATE, step(ACK | PSH, 0, 5, 9), 0, 0),
        ("of an answered one", LATE, step(ACK | PSH, 0, 7, 9), 7, 0),
    ];
    for bench in Bench::both() {
        for (what, before_ms, step, answered, expected) in table {
            bench.maps.stalls.put(&SLOT, &0, Update::Any).unwrap();
            let seen = clock::monotonic().as_nanos() as u64 - before_ms * 1_000_000;
            bench.put_flow(&Flow {
                last_seq: moved(NEXT, 9),
                last_ack: moved(SERVER_ISN + 1, answered),
                last_seen_ns: seen,
                ..established()
            });
            let frame = step.frame();
            bench.expect(what, &frame, &forwarded(&frame));
            let stalls = bench.maps.stalls.get(&SLOT).unwrap();
            assert_eq!(stalls, Some(expected), "{what}");
        }
    }
}

/// For who speaks for the client later: the window that came with the latest acknowledgement.
#[test]
fn the_record_has_the_window_that_came_last() {
    for bench in Bench::both() {
        bench.put_flow(&established());
        let begun = SERVER_ISN + 1;
        for (what, ack, came, known) in [
            ("the first", begun, 502, 502),
            ("the same number again", begun, 77, 77),
            ("with news", begun + 9, 0, 0),
            ("late", begun + 8, 300, 0),
            ("open again", begun + 9, 300, 300),
            (
                "too far ahead",
                begun.wrapping_add(ACK_REACH as u32 + 9),
                9,
                300,
            ),
        ] {
            let mut segment = segment(ACK, CLIENT_ISN.wrapping_add(1), ack, b"");
            segment.window = came;
            let frame = segment.frame();
            bench.expect(what, &frame, &forwarded(&frame));
            assert_eq!(bench.flow().window, known, "{what}");
        }
    }
}

/// What the proof was for is done, once a packet follows the daemon's: a late
/// repetition must not be taken for a new connection.
#[test]
fn the_first_packet_that_is_forwarded_spends_the_proof() {
    let proof = Proof {
        client_isn: CLIENT_ISN,
        server_isn: SERVER_ISN,
        mss: 1460,
        ..Proof::zeroed()
    };
    let key = flow_key(CLIENT, VIP);
    for bench in Bench::both() {
        for (what, flow, stays) in [
            ("the first", established(), false),
            (
                "a later one",
                Flow {
                    packets: 2,
                    ..established()
                },
                true,
            ),
            (
                "none, while the head is read",
                record(FlowState::Reading),
                true,
            ),
        ] {
            bench.put_flow(&flow);
            bench.proofs.put(&key, &proof, Update::Any).unwrap();
            bench.run(&request().frame());
            let after = bench.proofs.get(&key).unwrap();
            let mss = if stays { proof.mss } else { 0 };
            assert_eq!(after, Some(Proof { mss, ..proof }), "{what}");
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
            syn_isn: 12345,
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

/// The client's port comes round: its cookie, not its SYN, shows the new
/// connection. Its first payload ends the older one, and tells the daemon its epoch.
#[test]
fn a_reused_port_is_known_by_its_cookie() {
    use FlowState::{ClientFin, Established, Reading, Reset};
    let isn = 0x1000_0000;
    for bench in Bench::both() {
        let period = cookie::period();
        let cookie = TERMS.cookie(&key_of(period), &flow_key(CLIENT, VIP), isn, period);
        let new = |flags, payload: &[u8]| segment(flags, isn + 1, cookie.wrapping_add(1), payload);
        let first = new(ACK | PSH, REQUEST).frame();
        let empty = new(ACK | FIN, b"").frame();
        let bare = new(ACK, b"").frame();
        let later = segment(ACK, isn + 1400, cookie.wrapping_add(1), REQUEST).frame();
        let to_daemon = |epoch, frame: &[u8], counted: &[&'static str]| {
            let terms = agreed(&TERMS, &SERVICE);
            let packet = to_daemon_after(epoch, terms, isn, cookie, frame);
            Outcome::new(Verdict::Pass, packet, counted)
        };
        let by_cookie = ["cookie-valid", "to-daemon"];
        // A record that is not decided yet is the daemon's to replace.
        for (old, epoch, load) in [
            (Established, EPOCH + 1, 9),
            (ClientFin, EPOCH + 1, 10),
            (Reset, EPOCH + 1, 10),
            (Reading, 0, 10),
        ] {
            let hinted = || {
                bench.reset();
                bench.put_flow(&record(old));
                bench.run(&segment(SYN, isn, 0, b"").frame());
                bench.flow()
            };
            let ended = |what: &str, hinted: Flow| {
                let key = flow_key(CLIENT, VIP);
                // One that was open is left, ended, for the daemon (a_record_that_was_open_is_left_for_the_daemon).
                let left = match old {
                    Reading => Some(hinted),
                    Established => Some(Flow {
                        state: Reset as u32,
                        ..hinted
                    }),
                    _ => None,
                };
                assert_eq!(bench.maps.flows.get(&key).unwrap(), left, "{old:?}: {what}");
                assert_eq!(bench.state().load.active, load, "{old:?}: {what}");
            };
            if old != Reading {
                bench.reset();
                bench.put_flow(&record(old));
                let what = "without a SYN it is the old one's";
                bench.expect(what, &first, &forwarded(&first));
            }
            for (what, frame) in [("first payload", &first), ("FIN", &empty)] {
                let before = hinted();
                bench.expect(what, frame, &to_daemon(epoch, frame, &by_cookie));
                ended(what, before);
                let what = "again: the older one is gone";
                if old == Established {
                    bench.expect(what, frame, &to_daemon(epoch, frame, &by_cookie));
                }
                bench.expect(what, frame, &to_daemon(0, frame, &by_cookie));
            }

            let before = hinted();
            let proved = Outcome::drop_counting(&["handshake-ack", "cookie-valid"]);
            bench.expect("bare ACK", &bare, &proved);
            assert_eq!(bench.flow(), before, "it ends nothing");
            let what = "a later piece";
            bench.expect(what, &later, &to_daemon(epoch, &later, &["to-daemon"]));
            ended(what, before);

            if old != Reading {
                hinted();
                let byte = bare[TCP_AT + 14] ^ 1;
                let damaged = with(bare.clone(), &[(TCP_AT + 14, byte)]);
                bench.expect("damaged, it proves nothing", &damaged, &forwarded(&damaged));
                let ack = segment(ACK, NEXT, SERVER_ISN + 1, b"").frame();
                bench.expect("the old one's stray ACK", &ack, &forwarded(&ack));
            }
        }
    }
}

/// What it asked for may be at the daemon, on its way to a backend that nobody else would tell.
#[test]
fn a_reset_before_there_is_a_record_is_the_daemons() {
    let isn = 0x1000_0000;
    for bench in Bench::both() {
        let period = cookie::period();
        let cookie = TERMS.cookie(&key_of(period), &flow_key(CLIENT, VIP), isn, period);
        let new = |flags, seq, payload: &[u8]| {
            segment(flags, isn + seq, cookie.wrapping_add(1), payload).frame()
        };
        let asked = 1 + REQUEST.len() as u32;
        let reset = new(RST | ACK, asked, b"");
        let nobodys = Outcome::drop("bad-cookie");
        bench.expect("nobody has proved it", &reset, &nobodys);
        bench.run(&new(ACK | PSH, 1, REQUEST));
        let packet = to_daemon_after(0, agreed(&TERMS, &SERVICE), isn, cookie, &reset);
        let daemons = Outcome::new(Verdict::Pass, packet, &["to-daemon"]);
        bench.expect("behind what was asked", &reset, &daemons);
        let asks_nothing = Outcome::drop("handshake-ack");
        bench.expect("of nothing", &new(RST | ACK, 1, b""), &asks_nothing);
        let bare = segment(RST, isn + asked, 0, b"").frame();
        bench.expect("without an acknowledgement", &bare, &nobodys);
    }
}

/// That may be there while the port is used again: its owner is known until the daemon has placed the next one.
#[test]
fn a_record_that_was_open_is_left_for_the_daemon() {
    let isn = CLIENT_ISN.wrapping_add(1 << 10);
    for bench in Bench::both() {
        let (_, first, its_own) = begun_anew(isn, &["cookie-valid", "to-daemon"]);
        for (old, is_left) in [(FlowState::Established, true), (FlowState::Reset, false)] {
            bench.reset();
            among(&bench, |_| NOBODY, Daemon::Fit);
            bench.put_flow(&record(old));
            bench.run(&segment(SYN, isn, 0, b"").frame());
            bench.expect("its first request", &first, &its_own);
            let key = flow_key(CLIENT, VIP);
            let left = bench.maps.flows.get(&key).unwrap().map(|flow| flow.state);
            let expected = is_left.then_some(FlowState::Reset as u32);
            assert_eq!(left, expected, "{old:?}");
        }
    }
}

/// To the backend of the connection before it would be a stranger's: its RST would end the new one. Its client repeats it.
#[test]
fn what_overtakes_the_beginning_of_a_reused_port_goes_to_nobody() {
    let isn = CLIENT_ISN.wrapping_add(1 << 17);
    for bench in Bench::both() {
        let period = cookie::period();
        let cookie = TERMS.cookie(&key_of(period), &flow_key(CLIENT, VIP), isn, period);
        let ahead =
            |bytes: u32, ack: u32| segment(ACK, isn.wrapping_add(1 + bytes), ack, REQUEST).frame();
        let piece = ahead(1, cookie.wrapping_add(1));
        for old in [
            FlowState::Established,
            FlowState::ClientFin,
            FlowState::Reset,
        ] {
            bench.reset();
            bench.put_flow(&record(old));
            bench.expect("without a SYN", &piece, &forwarded(&piece));

            bench.reset();
            bench.put_flow(&record(old));
            bench.run(&segment(SYN, isn, 0, b"").frame());
            let before = bench.flow();
            let nobodys = Outcome::drop("bad-cookie");
            bench.expect("a later piece", &piece, &nobodys);
            bench.expect(
                "one far behind",
                &ahead(60_000, cookie.wrapping_add(1)),
                &nobodys,
            );
            assert_eq!(bench.flow(), before, "{old:?}");
            let of_old = ahead(1, cookie);
            bench.expect("without the cookie", &of_old, &forwarded(&of_old));
        }
    }
}

/// Of a new connection from the port of one of [`EPOCH`], which may have been about to move: the handshake's ACK, the
/// first payload, and that this is the daemon's.
fn begun_anew(isn: u32, counted: &[&'static str]) -> (Vec<u8>, Vec<u8>, Outcome) {
    let period = cookie::period();
    let cookie = TERMS.cookie(&key_of(period), &flow_key(CLIENT, VIP), isn, period);
    let frame =
        |flags, payload: &[u8]| segment(flags, isn + 1, cookie.wrapping_add(1), payload).frame();
    let first = frame(ACK | PSH, REQUEST);
    let packet = to_daemon_after(EPOCH + 1, agreed(&TERMS, &SERVICE), isn, cookie, &first);
    let outcome = Outcome::new(Verdict::Pass, packet, counted);
    (frame(ACK, b""), first, outcome)
}

/// Its SYN met no record: the daemon had the request of the connection before.
#[test]
fn a_port_reused_while_the_daemon_decided_is_known() {
    let isn = CLIENT_ISN.wrapping_add(1 << 10);
    for bench in Bench::both() {
        let (bare, first, its_own) = begun_anew(isn, &["to-daemon"]);
        let proved = Outcome::drop_counting(&["handshake-ack", "cookie-valid"]);
        for (is_proved_before, has_older_spoken) in [(true, false), (true, true), (false, false)] {
            bench.reset();
            if is_proved_before {
                bench.expect("the new one's handshake", &bare, &proved);
            }
            bench.put_flow(&Flow {
                packets: 1,
                last_seen_ns: clock::monotonic().as_nanos() as u64,
                next: NEXT,
                marks: 0,
                ..established()
            });
            if has_older_spoken {
                let ack = segment(ACK, NEXT, SERVER_ISN + 1, b"").frame();
                bench.expect("the older one", &ack, &forwarded(&ack));
            }
            if !is_proved_before {
                bench.expect("the new one's handshake", &bare, &proved);
            }
            bench.expect("the new one", &first, &its_own);
        }
    }
}

/// ISNs come round in less than five minutes (RFC 6528): of a record that has been idle for as long as a segment may
/// be on its way, none of an older connection can come.
#[test]
fn a_port_reused_late_is_known_whatever_its_isn() {
    let isn = CLIENT_ISN.wrapping_sub(1 << 28);
    for bench in Bench::both() {
        let (_, first, its_own) = begun_anew(isn, &["cookie-valid", "to-daemon"]);
        let now = clock::monotonic().as_nanos() as u64;
        for (idle_s, expected) in [(100, forwarded(&first)), (130, its_own)] {
            bench.reset();
            among(&bench, |_| NOBODY, Daemon::Fit);
            bench.put_flow(&Flow {
                version: 3,
                // The clock may be younger; the difference is what counts.
                last_seen_ns: now.wrapping_sub(idle_s * 1_000_000_000),
                ..record(FlowState::Established)
            });
            bench.expect(&format!("idle for {idle_s} s"), &first, &expected);
        }
    }
}

/// One SYN of many: it has gone by at another dispatcher, of those that came when this record was there already.
#[test]
fn a_reused_port_is_known_among_others_without_its_syn() {
    let benches = Bench::both();
    // Used again at once, its ISN is near.
    for (bench, ahead) in benches.iter().flat_map(|it| [(it, 1 << 28), (it, 1 << 10)]) {
        let isn = CLIENT_ISN.wrapping_add(ahead);
        let (_, first, its_own) = begun_anew(isn, &["cookie-valid", "to-daemon"]);
        for old in [FlowState::Established, FlowState::ClientFin] {
            for (what, has_others, version, expected) in [
                ("alone", false, 0, &forwarded(&first)),
                ("made alone", true, 0, &its_own),
                ("made among others", true, 3, &its_own),
                ("alone again", false, 3, &its_own),
            ] {
                bench.reset();
                among(bench, |_| NOBODY, Daemon::Fit);
                if !has_others {
                    let node = bench.maps.node.get(&0).unwrap().unwrap();
                    let alone = Node { among: 0, ..node };
                    bench.maps.node.put(&0, &alone, Update::Any).unwrap();
                }
                bench.put_flow(&Flow {
                    version,
                    ..record(old)
                });
                bench.expect(&format!("{old:?}, {what}"), &first, expected);
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
            cookie,
            packets: 2, // proofs stay
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
                last_seen_ns: now,
                packets: 2, // nor is it new
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
