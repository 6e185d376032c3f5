//! SYN in, SYN-ACK out: its every byte, for every combination of options; and
//! the SYNs that get no answer.

use std::net::SocketAddrV4;
use std::time::Duration;

use trapeze_core::flow::{Handshake, WindowScales};
use trapeze_datapath::abi::{Service, SiphashKey};
use trapeze_datapath::clock;

use crate::bench::*;
use crate::cookie::{self, NO_SCALE, Terms, key_of};
use crate::outcome::{Outcome, Verdict};
use crate::packet::{self, *};

/// What a client says in its SYN.
#[derive(Clone, Copy, Debug)]
pub struct Offer {
    pub mss: Option<u16>,
    pub scale: Option<u8>,
    pub sack: bool,
    pub timestamps: bool,
    pub ecn: bool,
}

pub const ALL: Offer = Offer {
    mss: Some(1460),
    scale: Some(9),
    sack: true,
    timestamps: true,
    ecn: true,
};
pub const NOTHING: Offer = Offer {
    mss: None,
    scale: None,
    sack: false,
    timestamps: false,
    ecn: false,
};

/// The client's clock in its SYN.
pub const THEIR_TIME: u32 = 0x0102_0304;

impl Offer {
    pub fn every() -> Vec<Self> {
        let scales = || std::iter::once(None).chain((0..=15).map(Some));
        let mut offers = Vec::new();
        for mss in [
            None,
            Some(0),
            Some(535),
            Some(536),
            Some(1459),
            Some(8960),
            Some(65535),
        ] {
            for scale in scales() {
                for bits in 0..8 {
                    offers.push(Self {
                        mss,
                        scale,
                        sack: bits & 1 != 0,
                        timestamps: bits & 2 != 0,
                        ecn: bits & 4 != 0,
                    });
                }
            }
        }
        offers
    }

    pub fn syn(&self, vip: SocketAddrV4) -> Tcp {
        let mut list = Vec::new();
        list.extend(self.mss.map(Opt::Mss));
        list.extend(self.sack.then_some(Opt::SackPermitted));
        list.extend(self.timestamps.then_some(Opt::Timestamps(THEIR_TIME, 0)));
        list.extend(self.scale.map(Opt::WindowScale));
        let ecn = if self.ecn { ECE | CWR } else { 0 };
        Tcp {
            dest: vip,
            options: options(&list),
            ..segment(SYN | ecn, CLIENT_ISN, 0, b"")
        }
    }

    /// What a service agrees to.
    pub fn terms(&self, service: &Service) -> Terms {
        Terms {
            mss: self.mss.filter(|&mss| mss != 0).unwrap_or(536),
            shift: self.scale.map_or(NO_SCALE, |shift| shift.min(14)),
            sack: self.sack,
            ecn: self.ecn && service.ecn == 1,
            timestamps: self.timestamps,
        }
    }
}

/// The handshake as daemons and backends will know it.
pub fn agreed(terms: &Terms, service: &Service) -> Handshake {
    Handshake {
        mss: terms.remembered_mss(),
        window_scales: (terms.shift != NO_SCALE).then_some(WindowScales {
            client: terms.shift,
            ours: service.window_scale,
        }),
        sack: terms.sack,
        timestamps: terms.timestamps,
        ecn: terms.ecn,
    }
}

/// The answer to a SYN, whole; TSval is the one thing that only the clock knows.
fn syn_ack(syn: &Tcp, terms: &Terms, service: &Service, isn: u32, tsval: u32) -> Tcp {
    let or_nops = |option: Option<Opt>, nops| option.map_or(vec![Opt::Nop; nops], |o| vec![o]);
    let scale = (terms.shift != NO_SCALE).then_some(Opt::WindowScale(service.window_scale));
    let sack = terms.sack.then_some(Opt::SackPermitted);
    let mut list = vec![Opt::Mss(service.mss)];
    if terms.timestamps {
        list.extend(or_nops(sack, 2));
        list.push(Opt::Timestamps(tsval, THEIR_TIME));
        list.extend(scale.iter().flat_map(|&scale| [Opt::Nop, scale]));
    } else if sack.is_some() || scale.is_some() {
        list.extend([Opt::Nop; 2]);
        list.extend(or_nops(sack, 2));
        list.push(Opt::Nop);
        list.extend(or_nops(scale, 3));
    }
    Tcp {
        source: syn.dest,
        dest: syn.source,
        seq: isn,
        ack: syn.seq.wrapping_add(1),
        flags: SYN | ACK | if terms.ecn { ECE } else { 0 },
        window: 65535,
        options: options(&list),
        payload: Vec::new(),
    }
}

fn back(packet: &[u8]) -> Vec<u8> {
    ethernet(OUR_MAC, THEIR_MAC, 0x0800, packet)
}

/// The answer's TSval, if it has one.
fn tsval_of(answer: &[u8]) -> u32 {
    let at = packet::TCP_AT + 20 + 4 + 4;
    answer
        .get(at..at + 4)
        .map_or(0, |bytes| u32::from_be_bytes(*bytes.first_chunk().unwrap()))
}

/// Sends the SYN, checks the answer whole, and returns cookie and TSval.
pub fn shake(bench: &Bench, offer: &Offer, vip: SocketAddrV4, service: &Service) -> (u32, u32) {
    let period = cookie::period();
    shake_at(bench, offer, vip, service, period, clock::cluster())
}

/// As [`shake`], at some time of the cluster's clock, of a period.
pub fn shake_at(
    bench: &Bench,
    offer: &Offer,
    vip: SocketAddrV4,
    service: &Service,
    period: u64,
    time: Duration,
) -> (u32, u32) {
    let syn = offer.syn(vip);
    let terms = offer.terms(service);
    let isn = terms.cookie(&key_of(period), &flow_key(CLIENT, vip), CLIENT_ISN, period);
    let before = time.as_millis() as u32;
    let got = bench.run(&syn.frame());
    let tsval = tsval_of(got.packet.as_deref().unwrap_or(&[]));
    let answer = syn_ack(&syn, &terms, service, isn, tsval);
    let expected = Outcome::new(Verdict::SendBack, back(&answer.packet()), &["syn-answered"]);
    if let Some(difference) = got.difference(&expected) {
        panic!("{:?}: {offer:?}: {difference}", bench.hook);
    }
    if terms.timestamps {
        assert_eq!(tsval & 63, terms.tsval_bits(), "{offer:?}");
        let late = (tsval | 63).wrapping_sub(before);
        assert!(late < 5000, "TSval is our clock in milliseconds: {offer:?}");
    }
    (isn, tsval)
}

/// The packet that ends the handshake, or the first one with payload.
pub fn echo(offer: &Offer, vip: SocketAddrV4, isn: u32, tsval: u32, payload: &[u8]) -> Tcp {
    Tcp {
        dest: vip,
        options: match offer.timestamps {
            true => timestamps(THEIR_TIME + 1, tsval),
            false => Vec::new(),
        },
        ..segment(
            ACK,
            CLIENT_ISN.wrapping_add(1),
            isn.wrapping_add(1),
            payload,
        )
    }
}

#[test]
fn every_combination_of_options_is_answered_and_its_echo_believed() {
    for bench in Bench::both() {
        for (vip, service) in [(VIP, SERVICE), (PLAIN_VIP, PLAIN_SERVICE)] {
            for offer in Offer::every() {
                let (isn, tsval) = shake(&bench, &offer, vip, &service);
                assert!(bench.state().proofs.is_empty(), "a SYN makes no state");

                let first = echo(&offer, vip, isn, tsval, REQUEST).frame();
                let handshake = agreed(&offer.terms(&service), &service);
                let expected = to_daemon(handshake, CLIENT_ISN, isn, &first);
                let expected =
                    Outcome::new(Verdict::Pass, expected, &["cookie-valid", "to-daemon"]);
                bench.expect(&format!("first payload after {offer:?}"), &first, &expected);
                assert!(bench.state().proofs.is_empty(), "payload speaks for itself");
            }
        }
    }
}

#[test]
fn a_bare_ack_is_dropped_and_leaves_a_proof_that_serves_without_the_cookie() {
    for bench in Bench::both() {
        for offer in [ALL, NOTHING, Offer { scale: None, ..ALL }] {
            bench.reset();
            let (isn, tsval) = shake(&bench, &offer, VIP, &SERVICE);
            let ack = echo(&offer, VIP, isn, tsval, b"");
            let dropped = Outcome::drop_counting(&["handshake-ack", "cookie-valid"]);
            bench.expect("bare ACK", &ack.frame(), &dropped);

            let proofs = bench.state().proofs;
            assert_eq!(proofs.len(), 1);
            assert_eq!(proofs[0].0, flow_key(CLIENT, VIP));
            let (proof, handshake) = (proofs[0].1, agreed(&offer.terms(&SERVICE), &SERVICE));
            assert_eq!((proof.client_isn, proof.server_isn), (CLIENT_ISN, isn));
            assert_eq!(proof.mss, handshake.mss);

            // A later piece of a request comes first; nothing in it shows the cookie.
            let later = Tcp {
                seq: CLIENT_ISN.wrapping_add(1 + 1388),
                options: Vec::new(),
                ..echo(&offer, VIP, isn, tsval, REQUEST)
            }
            .frame();
            let expected = to_daemon(handshake, CLIENT_ISN, isn, &later);
            let expected = Outcome::new(Verdict::Pass, expected, &["to-daemon"]);
            bench.expect("out of order", &later, &expected);

            let fin = Tcp {
                flags: FIN | ACK,
                ..echo(&offer, VIP, isn, tsval, b"")
            }
            .frame();
            let expected = to_daemon(handshake, CLIENT_ISN, isn, &fin);
            let expected = Outcome::new(Verdict::Pass, expected, &["to-daemon"]);
            bench.expect("FIN without data", &fin, &expected);

            for (what, seq) in [
                ("beyond any window", CLIENT_ISN.wrapping_add(1 << 20)),
                ("before the SYN", CLIENT_ISN.wrapping_sub(1)),
            ] {
                let far = Tcp { seq, ..ack.clone() }.frame();
                bench.expect(what, &far, &Outcome::drop("bad-cookie"));
            }
            for ack in [isn, isn.wrapping_add(2)] {
                let other = Tcp {
                    ack,
                    seq: CLIENT_ISN.wrapping_add(9),
                    ..echo(&offer, VIP, isn, tsval, REQUEST)
                };
                let frame = other.frame();
                bench.expect("of another handshake", &frame, &Outcome::drop("bad-cookie"));
            }
            assert_eq!(bench.state().proofs, proofs, "a proof is not renewed");
        }
    }
}

#[test]
fn a_silent_connection_is_kept_alive_once_it_is_proved() {
    for bench in Bench::both() {
        for (offer, options, window) in [
            (ALL, timestamps(77, 66), 65535 >> 7),
            (
                Offer {
                    timestamps: false,
                    ..ALL
                },
                vec![],
                65535 >> 7,
            ),
            (NOTHING, vec![], 65535),
        ] {
            bench.reset();
            let (isn, tsval) = shake(&bench, &offer, VIP, &SERVICE);
            for payload in [&b""[..], &b"\0"[..]] {
                let probe = Tcp {
                    seq: CLIENT_ISN,
                    options: options.clone(),
                    ..echo(&offer, VIP, isn, tsval, payload)
                };
                if bench.state().proofs.is_empty() {
                    bench.expect("too early", &probe.frame(), &Outcome::drop("bad-cookie"));
                    bench.run(&echo(&offer, VIP, isn, tsval, b"").frame());
                }
                let answer = Tcp {
                    source: VIP,
                    dest: CLIENT,
                    seq: isn.wrapping_add(1),
                    ack: CLIENT_ISN.wrapping_add(1),
                    flags: ACK,
                    window,
                    options: match options.is_empty() {
                        true => vec![],
                        false => timestamps(66, 77),
                    },
                    payload: vec![],
                };
                let expected = Outcome::new(Verdict::SendBack, back(&answer.packet()), &[]);
                bench.expect("keep-alive", &probe.frame(), &expected);
            }
        }
    }
}

#[test]
fn a_sender_with_checksum_offload_gets_its_answer_in_kind() {
    for bench in Bench::both() {
        let syn = ALL.syn(VIP);
        let got = bench.run(&syn.frame_partial());
        let tsval = tsval_of(got.packet.as_ref().unwrap());
        let period = cookie::period();
        let terms = ALL.terms(&SERVICE);
        let isn = terms.cookie(&key_of(period), &flow_key(CLIENT, VIP), CLIENT_ISN, period);
        let answer = syn_ack(&syn, &terms, &SERVICE, isn, tsval).frame_partial();
        let expected = Outcome::new(
            Verdict::SendBack,
            back(&answer[ETHERNET..]),
            &["syn-answered"],
        );
        assert_eq!(got.difference(&expected), None, "{:?}", bench.hook);
    }
}

/// One SYN in 65536 has a whole checksum that equals its pseudo-header's sum.
/// Its answer must be whole too, or that client never gets in.
#[test]
fn a_whole_checksum_that_looks_partial_is_taken_for_whole() {
    let lookalike = (0..=u32::MAX)
        .map(|seq| Tcp {
            seq,
            ..NOTHING.syn(VIP)
        })
        .find(|syn| syn.frame() == syn.frame_partial())
        .expect("one in 65536");
    for bench in Bench::both() {
        let answer = bench.run(&lookalike.frame()).packet.expect("an answer");
        let pseudo = [&answer[26..34], &[0, TCP, 0, (answer.len() - TCP_AT) as u8]].concat();
        let sum = packet::sum(&answer[TCP_AT..], packet::sum(&pseudo, 0).into());
        assert_eq!(sum, 0xffff, "{:?}: {answer:02x?}", bench.hook);
    }
}

#[test]
fn some_syns_get_no_answer() {
    let syn = ALL.syn(VIP);
    let flags = |flags| {
        Tcp {
            flags,
            ..syn.clone()
        }
        .frame()
    };
    let wrong = |at: usize| {
        let frame = syn.frame();
        let byte = frame[at] ^ 0x10;
        with(frame, &[(at, byte)])
    };
    let from = |address: [u8; 4]| {
        let source = SocketAddrV4::new(address.into(), 5555);
        Tcp {
            source,
            ..syn.clone()
        }
        .frame()
    };
    let table = [
        ("SYN and FIN", flags(SYN | FIN), "bad-flags"),
        ("SYN and RST", flags(SYN | RST), "bad-flags"),
        ("SYN and ACK", flags(SYN | ACK), "bad-flags"),
        ("all flags", flags(0xff), "bad-flags"),
        ("no flags", flags(0), "bad-flags"),
        ("xmas", flags(FIN | PSH | URG), "bad-flags"),
        ("FIN alone", flags(FIN), "bad-flags"),
        ("RST alone", flags(RST), "bad-cookie"),
        ("RST and ACK", flags(RST | ACK), "bad-cookie"),
        ("wrong checksum", wrong(TCP_AT + 16), "malformed"),
        ("damaged option", wrong(TCP_AT + 22), "malformed"),
        ("damaged client port", wrong(TCP_AT), "malformed"),
        ("damaged client address", wrong(ETHERNET + 13), "malformed"),
        ("damaged time to live", wrong(ETHERNET + 8), "malformed"),
        ("wrong IP checksum", wrong(ETHERNET + 10), "malformed"),
        ("from the VIP itself", from(VIP.ip().octets()), "martian"),
        ("from nobody", from([0, 0, 0, 0]), "martian"),
        ("from loopback", from([127, 0, 0, 1]), "martian"),
        ("from a group", from([224, 0, 0, 1]), "martian"),
        ("from a reserved one", from([240, 0, 0, 1]), "martian"),
        ("from everybody", from([255; 4]), "martian"),
    ];
    for bench in Bench::both() {
        for (what, frame, reason) in &table {
            bench.expect(what, frame, &Outcome::drop(reason));
        }
        bench.publish_cookie_keys(|period| SiphashKey {
            generation: 1,
            ..key_of(period)
        });
        bench.expect(
            "without a key",
            &syn.frame(),
            &Outcome::drop("no-cookie-key"),
        );
        assert_eq!(bench.state().proofs, []);
    }
}

#[test]
fn payload_in_a_syn_is_left_for_later() {
    for bench in Bench::both() {
        for payload in [&b"x"[..], &[7; 1000]] {
            let syn = Tcp {
                payload: payload.into(),
                ..NOTHING.syn(VIP)
            };
            let terms = NOTHING.terms(&SERVICE);
            let period = cookie::period();
            let isn = terms.cookie(&key_of(period), &flow_key(CLIENT, VIP), CLIENT_ISN, period);
            let answer = syn_ack(&syn, &terms, &SERVICE, isn, 0);
            let expected =
                Outcome::new(Verdict::SendBack, back(&answer.packet()), &["syn-answered"]);
            bench.expect("the payload is not acknowledged", &syn.frame(), &expected);
        }
    }
}

/// RFC 9293 §3.1: what is cut short or senseless ends the list, and no more.
#[test]
fn options_that_make_no_sense_end_the_list() {
    let table: [(&str, &[u8], Offer); 9] = [
        (
            "cut short at the end",
            &[2, 4, 5, 180, 8, 10, 0, 0],
            Offer {
                mss: Some(1460),
                ..NOTHING
            },
        ),
        (
            "longer than the header",
            &[2, 4, 5, 180, 9, 255, 4, 2],
            Offer {
                mss: Some(1460),
                ..NOTHING
            },
        ),
        ("of length 0", &[9, 0, 4, 2], NOTHING),
        ("of length 1", &[9, 1, 4, 2], NOTHING),
        ("a kind without length", &[1, 1, 1, 8], NOTHING),
        ("after the end of the list", &[0, 4, 2, 0], NOTHING),
        (
            "MSS of a wrong length",
            &[2, 3, 5, 1, 4, 2, 0, 0],
            Offer {
                sack: true,
                ..NOTHING
            },
        ),
        (
            "unknown ones are skipped",
            &[253, 4, 1, 2, 4, 2, 1, 1],
            Offer {
                sack: true,
                ..NOTHING
            },
        ),
        (
            "the last of two counts",
            &[2, 4, 2, 24, 2, 4, 5, 180],
            Offer {
                mss: Some(1460),
                ..NOTHING
            },
        ),
    ];
    for bench in Bench::both() {
        for (what, bytes, offer) in table {
            let syn = Tcp {
                options: bytes.into(),
                ..NOTHING.syn(VIP)
            };
            let terms = offer.terms(&SERVICE);
            let period = cookie::period();
            let isn = terms.cookie(&key_of(period), &flow_key(CLIENT, VIP), CLIENT_ISN, period);
            let answer = syn_ack(&syn, &terms, &SERVICE, isn, 0);
            let expected =
                Outcome::new(Verdict::SendBack, back(&answer.packet()), &["syn-answered"]);
            bench.expect(what, &syn.frame(), &expected);
        }
    }
}
