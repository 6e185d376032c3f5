//! Several dispatchers: at one that does not keep a flow, what its record explains goes to
//! the backend, all else to the keeper; and what was passed is decided where it arrives.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;

use trapeze_core::config::SprayMode;
use trapeze_core::flow::addr_bytes;
use trapeze_core::membership::lots::{self, LOTS, NOBODY};
use trapeze_core::membership::{Presence, Workload};
use trapeze_core::wire::geneve;
use trapeze_core::wire::meta::{Binding, Kind, Meta};
use trapeze_datapath::abi::{self, Dispatcher, Flow, FlowState, Node, Pod, Spraying};
use trapeze_datapath::clock;
use trapeze_datapath::map::Update;
use trapeze_datapath::sent::{self, SharedSent};

use crate::backend::sealed_for;
use crate::bench::*;
use crate::outcome::{Outcome, Verdict};
use crate::packet::*;

const NEXT: u32 = CLIENT_ISN.wrapping_add(1);
const CLUSTER: &str = "test";
pub const KEEPER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
pub const KEEPERS_SLOT: u16 = 9;

/// Whether its own daemon is there, and keeps flows.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Daemon {
    Fit,
    Joining,
    Leaving,
    Away,
}

/// A dispatcher among others; the lots are dealt as `slot_of` says.
pub fn among(bench: &Bench, slot_of: impl Fn(usize) -> u16, daemon: Daemon) {
    let maps = &bench.maps;
    let node = maps.node.get(&0).unwrap().unwrap();
    let node = Node {
        behind: 1,
        among: 1,
        ..node
    };
    maps.node.put(&0, &node, Update::Any).unwrap();
    let by_flow = Spraying::new(SprayMode::FlowHash, CLUSTER);
    maps.spraying.put(&0, &by_flow, Update::Any).unwrap();
    let mut lots: Box<abi::Lots> = Box::new(Pod::zeroed());
    for lot in 0..LOTS {
        lots.slots[lot] = slot_of(lot);
    }
    maps.lots.put(&0, &lots, Update::Any).unwrap();
    let says = match daemon {
        Daemon::Joining => Presence::Joining,
        Daemon::Leaving => Presence::Leaving,
        Daemon::Fit | Daemon::Away => Presence::Dispatcher {
            workload: Some(Workload::IDLE),
        },
    };
    let afterwards = Presence::Dispatcher { workload: None };
    let lease = match daemon {
        Daemon::Fit | Daemon::Joining | Daemon::Leaving => Duration::from_secs(60),
        Daemon::Away => Duration::ZERO,
    };
    let now = clock::monotonic().saturating_sub(Duration::from_secs(1));
    let presence = abi::Presence::new(says, afterwards, now, lease);
    maps.presence.put(&0, &presence, Update::Any).unwrap();
    let mut name = [0; 32];
    name[..2].copy_from_slice(b"d2");
    let keeper = Dispatcher {
        addr: addr_bytes(KEEPER.into()),
        name,
        source: NODE.octets(),
        live: 1,
        resolved_ns: clock::monotonic().as_nanos() as u64 - 20_000_000,
        ifindex: ELSEWHERE,
        destination_mac: BACKEND_MAC,
        source_mac: EGRESS_MAC,
        ..Pod::zeroed()
    };
    let slot = u32::from(KEEPERS_SLOT);
    maps.dispatchers.put(&slot, &keeper, Update::Any).unwrap();
}

/// The same, and who has the lots is of another sub-cluster.
fn apart(bench: &Bench, slot_of: impl Fn(usize) -> u16, daemon: Daemon) {
    among(bench, slot_of, daemon);
    let maps = &bench.maps;
    let node = maps.node.get(&0).unwrap().unwrap();
    let node = Node {
        among: abi::AMONG_SUB_CLUSTERS,
        ..node
    };
    maps.node.put(&0, &node, Update::Any).unwrap();
    let slot = u32::from(KEEPERS_SLOT);
    let gate = maps.dispatchers.get(&slot).unwrap().unwrap();
    let gate = Dispatcher {
        elsewhere: 1,
        ..gate
    };
    maps.dispatchers.put(&slot, &gate, Update::Any).unwrap();
}

fn meta(by_joining: bool, before: u32) -> Meta {
    Meta::of(Kind::Passed {
        by_joining,
        again: false,
        before,
    })
}

/// On its way to the keeper.
fn passed(frame: &[u8]) -> Outcome {
    passed_saying(&meta(false, 0), frame)
}

fn passed_saying(meta: &Meta, frame: &[u8]) -> Outcome {
    let inner = &frame[ETHERNET..];
    let binding = Binding::of_packet(KEEPER.into(), inner).unwrap();
    let mut payload = Vec::new();
    geneve::write(&meta.seal(&keys(), &binding), inner, &mut payload);
    let source = SocketAddrV4::new(NODE, CLIENT.port() | 0xc000);
    let outer = udp(source, SocketAddrV4::new(KEEPER, geneve::PORT), &payload);
    let packet = ethernet(EGRESS_MAC, BACKEND_MAC, 0x0800, &outer);
    Outcome::new(Verdict::Redirect, packet, &["passed"])
}

fn forwarded(frame: &[u8]) -> Outcome {
    let packet = to_backend(&option(Kind::Forward), CLIENT.port() | 0xc000, frame);
    Outcome::new(Verdict::Redirect, packet, &["forwarded"])
}

/// Another dispatcher's record of a flow that is read up to its boundary, 100 bytes on.
fn told() -> Flow {
    Flow {
        marks: 0,
        next: NEXT.wrapping_add(100),
        version: 3,
        told: FlowState::Established as u32,
        packets: 0,
        lot: lot() as u32 + 1,
        ..established()
    }
}

/// The flow's, by the rule of core.
fn lot() -> usize {
    let flow = flow_key(CLIENT, VIP).into();
    lots::lot_of(&lots::key(CLUSTER), &flow).unwrap()
}

#[test]
fn a_record_keeps_its_flows_lot() {
    let beyond = segment(ACK | PSH, NEXT.wrapping_add(100), SERVER_ISN + 1, REQUEST).frame();
    for bench in Bench::both() {
        let keeps = |of: usize| {
            move |lot| match lot == of {
                true => KEEPERS_SLOT,
                false => NOBODY,
            }
        };
        among(&bench, keeps(lot()), Daemon::Fit);
        bench.put_flow(&Flow { lot: 0, ..told() });
        bench.expect("it has yet to be drawn", &beyond, &passed(&beyond));
        assert_eq!(bench.flow(), told(), "and is there from then on");
        // The hash is not asked any more.
        among(&bench, keeps(lot() ^ 1), Daemon::Fit);
        let elsewhere = Flow {
            lot: (lot() as u32 ^ 1) + 1,
            ..told()
        };
        bench.put_flow(&elsewhere);
        bench.expect("it is there", &beyond, &passed(&beyond));
    }
}

#[test]
fn what_the_record_explains_is_forwarded_and_all_else_is_the_keepers() {
    let tcp = |flags, at: u32, payload: &[u8]| {
        segment(flags, NEXT.wrapping_add(at), SERVER_ISN + 1, payload).frame()
    };
    let acking = |ack: u32| segment(ACK, NEXT, (SERVER_ISN + 1).wrapping_add(ack), b"").frame();
    let explained = [
        ("a bare ACK", tcp(ACK, 0, b"")),
        ("payload before the boundary", tcp(ACK, 0, &[7; 100])),
        ("an ACK far on", acking((1 << 24) - 1)),
        ("at the boundary", tcp(ACK, 100, b"")),
    ];
    let keepers = [
        (
            "payload up to behind the boundary",
            tcp(ACK | PSH, 0, &[7; 101]),
        ),
        ("the next request", tcp(ACK | PSH, 100, REQUEST)),
        ("FIN", tcp(ACK | FIN, 0, b"")),
        ("RST", tcp(RST, 0, b"")),
        ("a SYN", tcp(SYN, 0, b"")),
        ("no ACK", tcp(0, 0, b"")),
        ("far ahead", tcp(ACK, 1 << 20, b"")),
        ("behind the boundary", tcp(ACK, 101, b"")),
        ("an ACK too far on", acking(1 << 24)),
        (
            "an ACK too far back",
            acking((1u32 << 24).wrapping_neg() - 1),
        ),
    ];
    for bench in Bench::both() {
        among(&bench, |_| KEEPERS_SLOT, Daemon::Fit);
        for (what, frame) in &explained {
            bench.put_flow(&told());
            bench.expect(what, frame, &forwarded(frame));
            assert_eq!(bench.flow().packets, 1, "{what}: it ages the record");
        }
        for (what, frame) in &keepers {
            bench.put_flow(&told());
            bench.expect(what, frame, &passed(frame));
            assert_eq!(bench.flow(), told(), "{what}: it changes nothing here");
        }
        // Without boundaries all payload is explained.
        let request = tcp(ACK | PSH, 100, REQUEST);
        let tunnel = Flow {
            marks: abi::MARK_TUNNEL,
            ..told()
        };
        bench.put_flow(&tunnel);
        bench.expect("of a tunnel", &request, &forwarded(&request));
        let ack = tcp(ACK, 0, b"");
        for state in [
            FlowState::Reading,
            FlowState::ClientFin,
            FlowState::Reset,
            FlowState::Vacant,
        ] {
            let flow = Flow {
                state: state as u32,
                ..told()
            };
            bench.put_flow(&flow);
            bench.expect("not established", &ack, &passed(&ack));
        }
    }
}

#[test]
fn of_unknown_flows_only_syns_are_answered_here() {
    for bench in Bench::both() {
        among(&bench, |_| KEEPERS_SLOT, Daemon::Fit);
        let payload = segment(ACK | PSH, NEXT, SERVER_ISN + 1, REQUEST).frame();
        bench.expect("payload", &payload, &passed(&payload));
        let ack = segment(ACK, NEXT, SERVER_ISN + 1, b"").frame();
        bench.expect("an ACK", &ack, &passed(&ack));
        let syn = segment(SYN, NEXT, 0, b"").frame();
        assert_eq!(bench.run(&syn).counted, ["syn-answered"]);
        assert_eq!(bench.state().flows, []);
        assert_eq!(bench.state().proofs, []);
    }
}

#[test]
fn a_silent_backends_flows_are_the_keepers() {
    for bench in Bench::both() {
        among(&bench, |_| KEEPERS_SLOT, Daemon::Fit);
        bench.put_flow(&told());
        bench.resolve_next_hop(ELSEWHERE, 20_000_000);
        bench.silence_backend();
        let ack = segment(ACK, NEXT, SERVER_ISN + 1, b"").frame();
        let outcome = bench.run_as_resolved(&ack);
        assert_eq!(outcome.difference(&passed(&ack)), None);
    }
}

#[test]
fn what_it_keeps_itself_is_as_without_others() {
    let frames = [
        (
            "payload of a flow",
            segment(ACK, NEXT, SERVER_ISN + 1, b"x").frame(),
        ),
        ("FIN", segment(ACK | FIN, NEXT, SERVER_ISN + 1, b"").frame()),
        (
            "a stranger's ACK",
            Tcp {
                source: SocketAddrV4::new(*CLIENT.ip(), 9),
                ..segment(ACK, 7, 8, b"")
            }
            .frame(),
        ),
    ];
    for bench in Bench::both() {
        for (what, frame) in &frames {
            bench.reset();
            bench.put_flow(&established());
            let alone = bench.run(frame);
            among(&bench, |_| NOBODY, Daemon::Fit);
            bench.reset();
            bench.put_flow(&established());
            bench.expect(what, frame, &alone);
        }
    }
}

#[test]
fn without_its_daemon_it_keeps_nothing_while_there_is_another() {
    let frame = segment(ACK | PSH, NEXT.wrapping_add(100), SERVER_ISN + 1, REQUEST).frame();
    for bench in Bench::both() {
        // Every eighth lot is another's.
        let lots = |lot: usize| {
            if lot.is_multiple_of(8) {
                KEEPERS_SLOT
            } else {
                NOBODY
            }
        };
        among(&bench, lots, Daemon::Away);
        bench.put_flow(&told());
        bench.expect("a request", &frame, &passed_saying(&meta(true, 0), &frame));
        among(&bench, |_| NOBODY, Daemon::Away);
        assert!(
            !bench.run(&frame).counted.contains(&"passed"),
            "there is nobody"
        );
    }
}

/// Passed here by a dispatcher.
pub fn arriving(from: Ipv4Addr, meta: &Meta, frame: &[u8]) -> Vec<u8> {
    let mut arriving = sealed_for(NODE, meta, &frame[ETHERNET..]);
    arriving[OUTER_SOURCE..][..4].copy_from_slice(&from.octets());
    arriving
}

/// Of a frame: the outer packet's source address.
const OUTER_SOURCE: usize = ETHERNET + 12;
/// A dispatcher that is not the keeper.
const THIRD: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 3);

#[test]
fn what_the_keeper_passes_is_left_to_this_one() {
    for bench in Bench::both() {
        let frame = segment(ACK | FIN, NEXT, SERVER_ISN + 1, b"").frame();
        let arriving = arriving(KEEPER, &meta(false, 0), &frame);
        for keeper in [KEEPERS_SLOT, NOBODY] {
            among(&bench, |_| keeper, Daemon::Fit);
            bench.put_flow(&told());
            let outcome = bench.run(&arriving);
            let mut counted = outcome.counted.clone();
            counted.sort_unstable();
            assert_eq!(outcome.packet, forwarded(&frame).packet);
            assert_eq!(counted, ["accepted", "forwarded"]);
            assert_eq!(bench.flow().state, FlowState::ClientFin as u32);
        }
        // Forged, it changes nothing.
        bench.put_flow(&told());
        let at = crate::agent::META_AT + 30;
        let forged = with(arriving.clone(), &[(at, arriving[at] ^ 1)]);
        bench.expect("forged", &forged, &Outcome::drop("bad-tag"));
        assert_eq!(bench.flow(), told());
    }
}

/// As they came from their client: for the case that the keeper is dead.
#[test]
fn what_is_passed_on_is_kept() {
    for bench in Bench::both() {
        among(&bench, |_| KEEPERS_SLOT, Daemon::Fit);
        sent::divide(&bench.maps.sent_rings, &[KEEPERS_SLOT]).unwrap();
        let kept = SharedSent::map(&bench.maps.sent).unwrap();
        let next = segment(ACK | PSH, NEXT, SERVER_ISN + 1, REQUEST).frame();
        let end = segment(ACK | FIN, NEXT, SERVER_ISN + 1, b"").frame();
        bench.run(&next);
        bench.run(&arriving(THIRD, &meta(false, 0), &end));
        let expected = [&next, &end].map(|frame| frame[ETHERNET..].to_vec());
        let starts = to(&kept, KEEPERS_SLOT).into_iter();
        assert_eq!(starts.map(|it| it.start).collect::<Vec<_>>(), expected);
        // What had been sent to another one before is said to be so.
        let again = |before| {
            Meta::of(Kind::Passed {
                by_joining: false,
                again: true,
                before,
            })
        };
        let outcome = bench.run(&arriving(THIRD, &again(0), &end));
        assert_eq!(outcome.packet, passed_saying(&again(1), &end).packet);
    }
}

/// While somebody joins, views differ: the keeper that is told last decides.
#[test]
fn what_others_pass_goes_on_to_the_keeper() {
    let frame = segment(ACK | FIN, NEXT, SERVER_ISN + 1, b"").frame();
    let table = [
        (
            "another has passed it",
            THIRD,
            (false, 0),
            Daemon::Fit,
            (false, 1),
        ),
        (
            "the keeper, which joins and waits for us",
            KEEPER,
            (true, 0),
            Daemon::Fit,
            (false, 1),
        ),
        ("one that joins", THIRD, (true, 2), Daemon::Fit, (false, 3)),
        (
            "this one joins",
            THIRD,
            (false, 0),
            Daemon::Joining,
            (true, 1),
        ),
        (
            "this one leaves, and the keeper does not know that it is",
            KEEPER,
            (false, 0),
            Daemon::Leaving,
            (false, 1),
        ),
    ];
    for bench in Bench::both() {
        for (what, from, (by_joining, before), daemon, (joins, times)) in table {
            among(&bench, |_| KEEPERS_SLOT, daemon);
            bench.put_flow(&told());
            let outcome = bench.run(&arriving(from, &meta(by_joining, before), &frame));
            let expected = passed_saying(&meta(joins, times), &frame);
            assert_eq!(outcome.packet, expected.packet, "{what}");
            assert_eq!(outcome.counted, ["passed", "accepted"], "{what}");
            assert_eq!(bench.flow(), told(), "{what}: it changes nothing here");
        }
        // Left to one that joins by the one that has kept it.
        among(&bench, |_| KEEPERS_SLOT, Daemon::Joining);
        bench.put_flow(&told());
        let outcome = bench.run(&arriving(KEEPER, &meta(false, 0), &frame));
        assert_eq!(outcome.packet, forwarded(&frame).packet);
        // Not for ever.
        among(&bench, |_| KEEPERS_SLOT, Daemon::Fit);
        bench.put_flow(&told());
        let outcome = bench.run(&arriving(THIRD, &meta(false, 3), &frame));
        assert_eq!(outcome.verdict, Verdict::Drop);
        assert!(outcome.counted.contains(&"no-dispatcher"));
    }
}

#[test]
fn of_another_sub_clusters_flows_all_is_passed_on() {
    let frames = [
        ("a SYN", segment(SYN, NEXT, 0, b"").frame()),
        ("an ACK", segment(ACK, NEXT, SERVER_ISN + 1, b"").frame()),
        (
            "a request",
            segment(ACK | PSH, NEXT, SERVER_ISN + 1, REQUEST).frame(),
        ),
        ("FIN", segment(ACK | FIN, NEXT, SERVER_ISN + 1, b"").frame()),
        ("RST", segment(RST, NEXT, 0, b"").frame()),
    ];
    for bench in Bench::both() {
        apart(&bench, |_| KEEPERS_SLOT, Daemon::Fit);
        for (what, frame) in &frames {
            bench.expect(what, frame, &passed(frame));
            assert_eq!(bench.state().flows, [], "{what}");
            assert_eq!(bench.state().proofs, [], "{what}");
        }
        // It keeps none of them, whatever comes back from there.
        let (_, frame) = &frames[2];
        let outcome = bench.run(&arriving(KEEPER, &meta(false, 0), frame));
        assert_eq!(outcome.packet, passed_saying(&meta(false, 1), frame).packet);
        // What is this sub-cluster's is as ever.
        apart(&bench, |_| NOBODY, Daemon::Fit);
        assert_eq!(bench.run(&frames[0].1).counted, ["syn-answered"]);
    }
}

#[test]
fn what_another_sub_cluster_passes_is_as_any_packet() {
    let syn = segment(SYN, NEXT, 0, b"").frame();
    let fin = segment(ACK | FIN, NEXT, SERVER_ISN + 1, b"").frame();
    for bench in Bench::both() {
        among(&bench, |_| KEEPERS_SLOT, Daemon::Fit);
        let outcome = bench.run(&arriving(THIRD, &meta(false, 0), &syn));
        assert_eq!(outcome.counted, ["syn-answered", "accepted"]);
        bench.put_flow(&told());
        for frame in [&syn, &fin] {
            let outcome = bench.run(&arriving(THIRD, &meta(false, 0), frame));
            let expected = passed_saying(&meta(false, 1), frame);
            assert_eq!(outcome.packet, expected.packet);
        }
    }
}

#[test]
fn errors_about_another_sub_clusters_flows_are_passed_once() {
    let error = crate::icmp::error(3, 4, &crate::icmp::quoted(28));
    for bench in Bench::both() {
        apart(&bench, |_| KEEPERS_SLOT, Daemon::Fit);
        bench.expect("as it came", &error, &passed(&error));
        let outcome = bench.run(&arriving(THIRD, &meta(false, 0), &error));
        assert!(outcome.counted.contains(&"icmp-no-flow"), "{outcome:?}");
        // Of its own it knows all there is.
        among(&bench, |_| KEEPERS_SLOT, Daemon::Fit);
        bench.expect("its own", &error, &Outcome::drop("icmp-no-flow"));
    }
}
