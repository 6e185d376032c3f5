//! What sprays send, at a dispatcher: a client's packet in the encapsulation is as good
//! as one that came by itself, and heartbeats are answered.

use std::time::Duration;

use trapeze_core::membership::{Presence, Workload};
use trapeze_core::wire::meta::{Kind, Meta};
use trapeze_datapath::abi::{self, Flow, MARK_TAKING};
use trapeze_datapath::clock;
use trapeze_datapath::map::Update;

use crate::backend::sealed_for;
use crate::bench::*;
use crate::outcome::Outcome;
use crate::packet::*;
use crate::spray::{ACTIVE, beat, beat_reply};

const NEXT: u32 = CLIENT_ISN.wrapping_add(1);

/// As a spray on another subnet sends it.
fn sprayed(frame: &[u8]) -> Vec<u8> {
    sealed_for(
        NODE,
        &Meta::of(Kind::Sprayed { again: false }),
        &frame[ETHERNET..],
    )
}

/// The same, and it was unpacked first.
fn after_unpacking(outcome: &Outcome) -> Outcome {
    let mut outcome = outcome.clone();
    outcome.counted.push("unpacked");
    outcome
}

#[test]
fn a_packet_that_was_encapsulated_is_as_one_that_was_not() {
    let tcp = |flags, payload: &[u8]| segment(flags, NEXT, SERVER_ISN + 1, payload).frame();
    let quoted = Tcp {
        source: VIP,
        dest: CLIENT,
        ..segment(ACK, 6, 5, b"")
    };
    let error = icmp(BACKEND, *VIP.ip(), 3, 4, &quoted.packet()[..28]);
    let table = [
        ("payload of a flow", tcp(ACK | PSH, REQUEST)),
        ("its ACK", tcp(ACK, b"")),
        ("a full segment", tcp(ACK, &[3; 1388])),
        ("its RST", tcp(RST, b"")),
        (
            "an ICMP error about it",
            ethernet(THEIR_MAC, OUR_MAC, 0x0800, &error),
        ),
        ("nobody's", {
            let stranger = Tcp {
                source: PLAIN_VIP,
                ..segment(ACK, 1, 2, b"")
            };
            stranger.frame()
        }),
        ("to a port of nobody", {
            let dest = std::net::SocketAddrV4::new(*VIP.ip(), 9);
            Tcp {
                dest,
                ..segment(SYN, 1, 2, b"")
            }
            .frame()
        }),
    ];
    for bench in Bench::both() {
        for (what, frame) in &table {
            bench.put_flow(&established());
            let plain = bench.run(frame);
            let record = bench.flow();
            bench.put_flow(&established());
            let outcome = bench.run(&sprayed(frame));
            let expected = after_unpacking(&plain);
            if let Some(difference) = outcome.difference(&expected) {
                panic!("{:?}: {what}: {difference}", bench.hook);
            }
            let mut aged = bench.flow();
            aged.last_seen_ns = record.last_seen_ns;
            assert_eq!(aged, record, "{what}");
        }
    }
}

/// A client is asked how far it has come, and this may be older than the question (replication.md 2.3b).
#[test]
fn what_was_sent_to_a_dead_dispatcher_is_no_answer() {
    let ack = segment(ACK, NEXT, SERVER_ISN + 1, b"").frame();
    let again = sealed_for(
        NODE,
        &Meta::of(Kind::Sprayed { again: true }),
        &ack[ETHERNET..],
    );
    for bench in Bench::both() {
        for (marks, is_taken) in [(0, true), (MARK_TAKING, false)] {
            let flow = Flow {
                marks,
                ..established()
            };
            let refused = |outcome: &Outcome| outcome.counted.contains(&"came-again");
            bench.put_flow(&flow);
            assert!(!refused(&bench.run(&sprayed(&ack))));
            assert_eq!(refused(&bench.run(&again)), !is_taken);
            if bench.hook == Hook::Tc {
                let outcome = bench.run_marked(&ack, abi::AGAIN_MARK);
                assert_eq!(refused(&outcome), !is_taken);
            }
        }
    }
}

/// A client that uses its port again at once is not taken back to the connection before: else the request of that
/// one, which comes again, too, would run twice.
#[test]
fn a_syn_that_comes_again_announces_no_earlier_connection() {
    let table = [
        (
            "again, of the one before",
            true,
            CLIENT_ISN.wrapping_sub(1000),
            false,
        ),
        ("again, of this one", true, CLIENT_ISN, false),
        (
            "again, of the next",
            true,
            CLIENT_ISN.wrapping_add(1000),
            true,
        ),
        ("not again", false, CLIENT_ISN.wrapping_sub(1000), true),
    ];
    for bench in Bench::both() {
        for (what, again, isn, is_noted) in table {
            let syn = segment(SYN, isn, 0, b"").frame();
            let sprayed = Meta::of(Kind::Sprayed { again });
            bench.put_flow(&established());
            let outcome = bench.run(&sealed_for(NODE, &sprayed, &syn[ETHERNET..]));
            assert!(outcome.counted.contains(&"syn-answered"), "{what}");
            assert_eq!(bench.flow().syn_seen_ns != 0, is_noted, "{what}");
        }
    }
}

#[test]
fn a_forged_one_is_not() {
    let good = sprayed(&segment(ACK | PSH, NEXT, SERVER_ISN + 1, REQUEST).frame());
    let (meta_at, inner_at) = (crate::agent::META_AT, crate::agent::INNER_AT);
    for bench in Bench::both() {
        bench.put_flow(&established());
        for at in (meta_at + 1..meta_at + 32).chain(inner_at + 12..inner_at + 24) {
            let forged = with(good.clone(), &[(at, good[at] ^ 1)]);
            bench.expect(&format!("byte {at}"), &forged, &Outcome::drop("bad-tag"));
        }
        for length in [ETHERNET + 40, inner_at + 10, inner_at + 30] {
            let cut = &good[..length];
            let outcome = bench.run(cut);
            assert!(outcome.counted != ["unpacked"], "{length}");
            assert!(!outcome.counted.contains(&"forwarded"), "{length}");
        }
        assert_eq!(bench.flow(), established());
    }
}

#[test]
fn a_dispatcher_says_what_it_has_to_spare() {
    let says = |workload| Presence::Dispatcher { workload };
    for bench in Bench::both() {
        let frame = beat(ACTIVE, 3);
        bench.expect("before the daemon", &frame, &Outcome::untouched(&frame));
        let some = says(Workload::new(613));
        let lease = Duration::from_secs(60);
        let presence = abi::Presence::new(some, says(None), clock::monotonic(), lease);
        bench.maps.presence.put(&0, &presence, Update::Any).unwrap();
        bench.expect("a beat", &frame, &beat_reply(some, 3));
        let over = abi::Presence::new(some, says(None), Duration::ZERO, Duration::ZERO);
        bench.maps.presence.put(&0, &over, Update::Any).unwrap();
        bench.expect("without its daemon", &frame, &beat_reply(says(None), 3));
        assert_eq!(bench.maps.peers.all().unwrap().len(), 1);
    }
}
