//! Later requests of a connection that has an owner: which of them are placed in the
//! data path, how the record moves, and what is the daemon's (bpf/lib/boundary.bpf.h).

use std::net::Ipv4Addr;

use trapeze_core::flow::addr_bytes;
use trapeze_core::head::{Expected, likeness};
use trapeze_core::membership::lots::NOBODY;
use trapeze_core::seq::{ClientSeq, ServerSeq};
use trapeze_core::wire::geneve;
use trapeze_core::wire::meta::{Binding, Care, Held, Kind, Meta, Raw, begins};
use trapeze_datapath::abi::{
    Backend, BackendLoad, Decision, DecisionKey, EPOCH_LEAD_MAX, EPOCH_SHIFT, Flow, FlowState,
    HELD_MARK, MARK_ENDS, MARK_ENTRUSTED, MARK_HELD, MARK_MOVING, MARK_PIPELINES, MARK_PROTECTED,
    MARK_REFUSED, MARK_SHORT, MARK_SHORT_BEFORE, MARK_STAYED, MARK_TUNNEL, MARK_UNSURE, Pod,
    SPLICE_SPLIT, Splice, Standing, Turn,
};
use trapeze_datapath::clock;
use trapeze_datapath::map::Update;

use crate::bench::*;
use crate::keeper::{Daemon, among, arriving};
use crate::outcome::{Outcome, Verdict};
use crate::packet::*;

const KEY: [u8; 16] = [7; 16];
const GENERATION: u32 = 5;
/// Where the first request ends, and the second can start.
const NEXT: u32 = CLIENT_ISN.wrapping_add(1 + REQUEST.len() as u32);
const END: u32 = NEXT.wrapping_add(REQUEST.len() as u32);
/// Where the first answer ends.
const ANSWERED: u32 = SERVER_ISN + 1 + 5000;
/// Another backend, as near as the first.
const OTHER_SLOT: u32 = 40;
const OTHER: Ipv4Addr = Ipv4Addr::new(10, 1, 2, 99);
const HEAD: &[u8] = b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n";
const FOLLOW: Care = Care {
    follow: true,
    head: false,
    outlive: true,
    park: false,
    kept: false,
};

/// A flow with a protected answer that ends there.
fn protected_until(end: u32) -> Flow {
    Flow {
        marks: MARK_PROTECTED | MARK_ENDS,
        answer_end: end,
        ..asked_once()
    }
}

/// A flow whose first request has been forwarded and answered.
fn asked_once() -> Flow {
    Flow {
        meta: own_option(Kind::Forward, |meta| Meta {
            epoch: epoch_now(),
            ..meta
        }),
        marks: 0,
        next: NEXT,
        last_seq: NEXT,
        last_ack: ANSWERED,
        packets: 3,
        pool: 4,
        ..established()
    }
}

fn epoch_now() -> u32 {
    (clock::cluster().as_nanos() >> EPOCH_SHIFT) as u32
}

/// The flow's option to its owner.
fn own_option(kind: Kind, change: impl FnOnce(Meta) -> Meta) -> Raw {
    let meta = Meta {
        care: FOLLOW,
        ..flow_meta(kind)
    };
    sealed(BACKEND, change(meta))
}

fn sealed(to: Ipv4Addr, meta: Meta) -> Raw {
    let binding = Binding::of_flow(to.into(), CLIENT.into(), VIP.into()).unwrap();
    meta.seal(&keys(), &binding)
}

fn epoch_of(flow: &Flow) -> u32 {
    u32::from_be_bytes(*flow.meta[4..].first_chunk().unwrap())
}

/// A bench on which requests like REQUEST and HEAD go to that slot.
fn bench(hook: Hook, slot: u32) -> Bench {
    let bench = Bench::new(hook);
    put_standing(&bench, u64::MAX);
    decide(&bench, slot, FOLLOW.bits());
    bench
}

fn put_standing(bench: &Bench, valid_until_ns: u64) {
    let standing = Standing {
        valid_until_ns,
        k0: u64::from_le_bytes([7; 8]),
        k1: u64::from_le_bytes([7; 8]),
        generation: GENERATION,
        epoch_floor: 0,
    };
    bench.maps.standing.put(&0, &standing, Update::Any).unwrap();
}

fn decide(bench: &Bench, slot: u32, care: u8) {
    decide_so(bench, &decision_for(slot, care));
}

fn decision_for(slot: u32, care: u8) -> Decision {
    Decision {
        generation: GENERATION,
        pool: 6,
        slot,
        server_port: 8080u16.to_be_bytes(),
        care,
        ..Decision::zeroed()
    }
}

fn key_of(head: &[u8]) -> DecisionKey {
    DecisionKey {
        likeness: likeness(head, &KEY).unwrap().get(),
        service: SERVICE.id,
        pad: 0,
    }
}

fn decide_so(bench: &Bench, decision: &Decision) {
    for head in [REQUEST, HEAD] {
        (bench
            .maps
            .decisions
            .put(&key_of(head), decision, Update::Any))
        .unwrap();
    }
}

/// The ways to both backends are known; both have ten connections.
fn put_ways(bench: &Bench) {
    bench.resolve_next_hop(ELSEWHERE, 20_000_000);
    let own = bench.maps.backends.get(&SLOT).unwrap().unwrap();
    let other = Backend {
        addr: addr_bytes(OTHER.into()),
        name: Backend::name_bytes("be3"),
        ..own
    };
    let load = BackendLoad {
        active: 10,
        total: 10,
        cost_us: 0,
        stood: 0,
    };
    bench
        .maps
        .backends
        .put(&OTHER_SLOT, &other, Update::Any)
        .unwrap();
    bench
        .maps
        .loads
        .put(&OTHER_SLOT, &load, Update::Any)
        .unwrap();
}

fn run(bench: &Bench, flow: &Flow, frame: &[u8]) -> Outcome {
    bench.reset();
    put_ways(bench);
    bench.put_flow(flow);
    bench.run_as_resolved(frame)
}

fn later(payload: &[u8]) -> Tcp {
    segment(ACK | PSH, NEXT, ANSWERED, payload)
}

fn opened(outcome: &Outcome, by: Ipv4Addr) -> (Meta, Vec<u8>) {
    let packet = outcome.packet.as_ref().expect("a packet");
    let opened = geneve::open(&packet[ETHERNET + 28..], by.into(), &keys()).expect("a good tag");
    (opened.meta, opened.inner.to_vec())
}

#[test]
fn a_request_for_the_owner_only_moves_the_boundary() {
    for hook in [Hook::Tc, Hook::Xdp] {
        let bench = bench(hook, SLOT);
        let before = asked_once();
        let frame = later(REQUEST).frame();
        let outcome = run(&bench, &before, &frame);
        let packet = to_backend(&begins(before.meta), CLIENT.port(), &frame);
        let expected = Outcome::new(Verdict::Redirect, packet, &["stayed", "forwarded"]);
        assert_eq!(outcome.difference(&expected), None, "{hook:?}");
        let after = bench.flow();
        let expected = Flow {
            next: END,
            requests: 2,
            asked_ns: after.asked_ns,
            asked_ack: ANSWERED,
            pool: 6,
            began: NEXT,
            last_seq: END,
            packets: 4,
            bytes: REQUEST.len() as u64,
            last_seen_ns: after.last_seen_ns,
            window: 502,
            ..before
        };
        assert_eq!(after, expected, "{hook:?}");
        let load = bench.state().load;
        assert_eq!((load.active, load.total), (10, 10));
        // The same packet again is a repetition: forwarded, and nothing else.
        let again = bench.run_as_resolved(&frame);
        assert_eq!(again.counted, ["forwarded"]);
        assert_eq!((bench.flow().next, bench.flow().requests), (END, 2));
        // A third one, before a word of the second answer: the daemon cuts from now on.
        let third = segment(ACK | PSH, END, ANSWERED, REQUEST).frame();
        assert_eq!(bench.run_as_resolved(&third).counted, ["to-daemon"]);
        assert_eq!(bench.flow().marks, MARK_PIPELINES | MARK_HELD);
    }
}

/// Its client has had it (takeover.md 2.2b): what it asks then is as any other request.
#[test]
fn what_is_asked_behind_a_protected_answer_is_not_the_daemons() {
    for hook in [Hook::Tc, Hook::Xdp] {
        for (slot, counted) in [(SLOT, "stayed"), (OTHER_SLOT, "moved")] {
            let bench = bench(hook, slot);
            let before = protected_until(ANSWERED);
            let outcome = run(&bench, &before, &later(REQUEST).frame());
            assert_eq!(outcome.counted, [counted, "forwarded"], "{hook:?}");
            assert_eq!(bench.flow().marks & (MARK_PROTECTED | MARK_ENDS), 0);
        }
    }
}

/// By a policy that looks at loads: the request before is told of, its charge is taken
/// back where it was, and the next one is charged where it goes, as a first one is.
#[test]
fn what_is_settled_charges_the_later_request_and_gives_the_earlier_one_back() {
    const BEFORE: u32 = 3000;
    const CHARGE: u32 = 500;
    let later_ns = clock::monotonic().as_nanos() as u64 + 3_600_000_000_000;
    for hook in [Hook::Tc, Hook::Xdp] {
        for (slot, counted) in [(SLOT, "stayed"), (OTHER_SLOT, "moved")] {
            let bench = bench(hook, slot);
            decide_so(
                &bench,
                &Decision {
                    until_ns: later_ns,
                    most_us: 10_000,
                    charge_us: CHARGE,
                    ..decision_for(slot, FOLLOW.bits())
                },
            );
            let before = Flow {
                object: 77,
                charge_us: BEFORE,
                report: 1,
                asked_ns: clock::monotonic().as_nanos() as u64 - 1_000_000,
                ..asked_once()
            };
            let own = Flow {
                charge_us: BEFORE,
                ..asked_once()
            };
            for before in [before, own] {
                let frame = later(REQUEST).frame();
                let outcome = run(&bench, &before, &frame);
                assert_eq!(outcome.counted, [counted, "forwarded"], "{hook:?}");
                let told = bench.finished.take().unwrap();
                assert_eq!(told.len(), usize::from(before.report), "{told:?}");
                if let [told] = told[..] {
                    assert_eq!((told.object, told.slot, told.pool), (77, SLOT, 4));
                    assert_eq!((told.bytes, told.lost, told.stood), (5000, 0, 0));
                }
                let after = bench.flow();
                assert_eq!((after.backend, after.charge_us), (slot, CHARGE));
                assert_eq!((after.object, after.report), (0, 0));
                let load = |slot| bench.maps.loads.get(&slot).unwrap().unwrap();
                let given_back = 7000 - i64::from(BEFORE);
                let charge = i64::from(CHARGE);
                let expected = match slot == SLOT {
                    true => ((given_back + charge, 1), (0, 0)),
                    false => ((given_back, 0), (charge, 1)),
                };
                let of = |slot| (load(slot).cost_us, load(slot).stood);
                assert_eq!((of(SLOT), of(OTHER_SLOT)), expected, "{hook:?}");
                // A copy of the packet is charged to nobody.
                bench.run_as_resolved(&frame);
                assert_eq!((of(SLOT), of(OTHER_SLOT)), expected, "a copy");
                // Its own end: the client has heard some of the answer, and closes.
                let close = segment(ACK | FIN, END, ANSWERED + 100, b"").frame();
                bench.run_as_resolved(&close);
                assert_eq!(load(SLOT).cost_us, given_back);
                assert_eq!(load(OTHER_SLOT).cost_us, 0);
                assert_eq!(bench.flow().charge_us, 0);
            }
            let used = bench.maps.decisions.get(&key_of(REQUEST)).unwrap().unwrap();
            assert_eq!(used.placed, 2);
        }
    }
}

/// A move costs something: who has the connection keeps it, unless it has more to do than
/// another one by that.
#[test]
fn the_owner_keeps_a_connection_while_a_move_costs_more() {
    const MOVE: u32 = 200;
    let later_ns = clock::monotonic().as_nanos() as u64 + 3_600_000_000_000;
    let turn = |slot| Turn {
        slot,
        server_port: 8080u16.to_be_bytes(),
        pad: 0,
    };
    for hook in [Hook::Tc, Hook::Xdp] {
        // The owner is the decision's first, or one of the others.
        for (first, other) in [(SLOT, OTHER_SLOT), (OTHER_SLOT, SLOT)] {
            for (owners, others, expected) in [
                (0, 0, SLOT),
                (1200, 1000, SLOT),
                (1201, 1000, OTHER_SLOT),
                (0, 1000, SLOT),
                (1000, -50, OTHER_SLOT),
            ] {
                let bench = bench(hook, SLOT);
                let mut decision = Decision {
                    until_ns: later_ns,
                    most_us: 10_000,
                    others_count: 1,
                    move_us: MOVE,
                    ..decision_for(first, FOLLOW.bits())
                };
                decision.others[0] = turn(other);
                decide_so(&bench, &decision);
                bench.reset();
                put_ways(&bench);
                for (slot, cost_us) in [(SLOT, owners), (OTHER_SLOT, others)] {
                    let load = BackendLoad {
                        active: 10,
                        total: 10,
                        cost_us,
                        stood: 0,
                    };
                    bench.maps.loads.put(&slot, &load, Update::Any).unwrap();
                }
                bench.put_flow(&asked_once());
                bench.run_as_resolved(&later(REQUEST).frame());
                let found = bench.flow().backend;
                assert_eq!(found, expected, "{hook:?} {first} {owners} {others}");
            }
        }
    }
}

/// Everybody is busy, or the time is over: a later request is the sample, and the daemon
/// hears that the one before is finished.
#[test]
fn a_later_request_is_a_sample_too() {
    let now_ns = clock::monotonic().as_nanos() as u64;
    let hour = 3_600_000_000_000;
    for (until_ns, most_us) in [(now_ns + hour, 3999), (now_ns - 50_000_000, 10_000)] {
        for hook in [Hook::Tc, Hook::Xdp] {
            let bench = bench(hook, SLOT);
            decide_so(
                &bench,
                &Decision {
                    until_ns,
                    most_us,
                    charge_us: 500,
                    ..decision_for(SLOT, FOLLOW.bits())
                },
            );
            let before = Flow {
                charge_us: 3000,
                ..asked_once()
            };
            let outcome = run(&bench, &before, &later(REQUEST).frame());
            assert_eq!(outcome.counted, ["to-daemon"], "{hook:?}");
            let flow = bench.flow();
            assert_eq!((flow.next, flow.marks), (NEXT, MARK_HELD));
            assert_eq!((flow.charge_us, bench.state().load.cost_us), (0, 4000));
            let unused = bench.maps.decisions.get(&key_of(REQUEST)).unwrap().unwrap();
            assert_eq!(unused.placed, 0);
        }
    }
}

#[test]
fn a_request_for_another_backend_goes_by_way_of_the_owner() {
    for hook in [Hook::Tc, Hook::Xdp] {
        for (head, is_head) in [(REQUEST, false), (HEAD, true)] {
            let bench = bench(hook, OTHER_SLOT);
            let before = Flow {
                requests: 3,
                ..asked_once()
            };
            let frame = later(head).frame();
            let outcome = run(&bench, &before, &frame);
            assert_eq!(outcome.verdict, Verdict::Redirect);
            assert_eq!(outcome.counted, ["moved", "forwarded"]);
            let epoch = epoch_of(&before) + 1;
            let care = Care {
                head: is_head,
                ..FOLLOW
            };
            let forward = Meta {
                epoch,
                start: ClientSeq::new(NEXT),
                care,
                ..flow_meta(Kind::Forward)
            };
            let handoff = Meta {
                kind: Kind::Handoff { next: OTHER },
                requests: 3,
                ..forward
            };
            let (meta, inner) = opened(&outcome, BACKEND);
            assert_eq!(meta, handoff);
            assert_eq!(inner, later(head).packet());
            let after = bench.flow();
            let end = NEXT.wrapping_add(head.len() as u32);
            let expected = Flow {
                meta: sealed(OTHER, forward),
                client_isn: NEXT.wrapping_sub(1),
                server_isn: ANSWERED - 1,
                backend: OTHER_SLOT,
                pool: 6,
                marks: MARK_MOVING | MARK_SHORT,
                next: end,
                began: NEXT,
                last_seq: end,
                asked_ns: after.asked_ns,
                asked_ack: ANSWERED,
                requests: 1,
                before: before.meta,
                previous: SLOT,
                server_isn_before: SERVER_ISN,
                requests_before: 3,
                packets: 4,
                bytes: head.len() as u64,
                last_seen_ns: after.last_seen_ns,
                window: 502,
                ..before
            };
            assert_eq!(after, expected, "{hook:?}");
            let other = bench.maps.loads.get(&OTHER_SLOT).unwrap().unwrap();
            assert_eq!(bench.state().load.active, 9);
            assert_eq!((other.active, other.total), (11, 11));

            // Until the client has heard the new owner, everything goes the same way.
            for (what, tcp) in [
                ("the request again", later(head)),
                ("a bare ACK", segment(ACK, end, ANSWERED, b"")),
                ("FIN", segment(ACK | FIN, end, ANSWERED, b"")),
            ] {
                bench.put_flow(&after);
                let outcome = bench.run_as_resolved(&tcp.frame());
                assert_eq!(opened(&outcome, BACKEND), (handoff, tcp.packet()), "{what}");
            }
            bench.put_flow(&after);
            let ack = segment(ACK, end, ANSWERED + 1, b"");
            let outcome = bench.run_as_resolved(&ack.frame());
            assert_eq!(opened(&outcome, OTHER), (forward, ack.packet()));
            assert_eq!(bench.flow().marks, MARK_SHORT);
        }
    }
}

/// The record of a flow that has just moved from the first backend to the other.
fn moved(bench: &Bench) -> Flow {
    run(bench, &asked_once(), &later(REQUEST).frame());
    bench.flow()
}

/// The owner's word on that move, or on the one after so many more.
fn held(reason: Held, later_by: u32, moved: &Flow) -> Vec<u8> {
    let meta = Meta {
        epoch: epoch_of(moved) + later_by,
        start: ClientSeq::new(NEXT),
        ..flow_meta(Kind::Held(reason))
    };
    arriving(BACKEND, &meta, &later(REQUEST).frame())
}

/// What the client acknowledges of its answer looks as if the next owner were heard.
#[test]
fn what_an_owner_refuses_goes_by_way_of_it() {
    for hook in [Hook::Tc, Hook::Xdp] {
        let bench = bench(hook, OTHER_SLOT);
        let moved = moved(&bench);
        let further = ANSWERED.wrapping_add(5000);
        let ack = segment(ACK, END, further, b"");
        let again = segment(ACK | PSH, NEXT, further, REQUEST);
        let end = ServerSeq::new(further);
        let told = |word: &[u8]| {
            bench.reset();
            put_ways(&bench);
            bench.put_flow(&moved);
            let outcome = bench.run(word);
            let to_daemon = [Verdict::Next, Verdict::Pass];
            assert!(
                to_daemon.contains(&outcome.verdict),
                "its daemon hears it too"
            );
            bench.flow()
        };
        let sent = |flow: &Flow, tcp: &Tcp, by| {
            let (meta, inner) = opened(&run(&bench, flow, &tcp.frame()), by);
            assert_eq!(inner, tcp.packet());
            (meta.kind, bench.flow().marks)
        };
        let refusals = [Held::Answering, Held::Unacknowledged { end }, Held::Closing];
        for refusal in refusals {
            let refused = told(&held(refusal, 0, &moved));
            let marks = MARK_MOVING | MARK_SHORT | MARK_REFUSED;
            assert_eq!(refused, Flow { marks, ..moved });
            let by_owner = (Kind::Handoff { next: OTHER }, marks);
            assert_eq!(sent(&refused, &ack, BACKEND), by_owner);
            assert_eq!(sent(&refused, &again, BACKEND), by_owner);
            let third = segment(ACK | PSH, END, further, REQUEST);
            let outcome = run(&bench, &refused, &third.frame());
            assert_eq!(outcome.counted, ["to-daemon"], "it has asked ahead");
        }
        for (what, word) in [
            ("who never had it", held(Held::Stranger, 0, &moved)),
            ("of another move", held(Held::Answering, 1, &moved)),
        ] {
            let flow = told(&word);
            assert_eq!(flow, moved, "{what}");
            assert_eq!(sent(&flow, &ack, OTHER), (Kind::Forward, MARK_SHORT));
        }
    }
}

/// The word of who has refused may be lost, and nobody be there to hear it.
#[test]
fn the_request_of_a_move_sets_nobody_up_without_the_owner_before() {
    for hook in [Hook::Tc, Hook::Xdp] {
        let bench = bench(hook, OTHER_SLOT);
        let moved = moved(&bench);
        let further = ANSWERED.wrapping_add(5000);
        let seemingly_arrived = Flow {
            last_ack: further,
            ..moved
        };
        let copy = run(&bench, &seemingly_arrived, &later(REQUEST).frame());
        assert_eq!(copy, Outcome::drop("repeated"));
        let again = segment(ACK | PSH, NEXT, further, REQUEST);
        let outcome = run(&bench, &seemingly_arrived, &again.frame());
        let (meta, _) = opened(&outcome, BACKEND);
        assert_eq!(meta.kind, Kind::Handoff { next: OTHER });
    }
}

#[test]
fn without_a_daemon_who_refuses_has_the_flow_again() {
    let bench = bench(Hook::Tc, OTHER_SLOT);
    let refused = Flow {
        marks: MARK_MOVING | MARK_SHORT | MARK_REFUSED,
        ..moved(&bench)
    };
    let now = clock::monotonic().as_nanos() as u64;
    let ack = segment(ACK, END, ANSWERED.wrapping_add(5000), b"");
    let again = segment(ACK | PSH, NEXT, ANSWERED.wrapping_add(5000), REQUEST);
    put_standing(&bench, now - 50_000_000);
    for (tcp, marks) in [(&ack, 0), (&again, MARK_TUNNEL)] {
        let outcome = run(&bench, &refused, &tcp.frame());
        let (meta, inner) = opened(&outcome, BACKEND);
        assert_eq!((meta.kind, inner), (Kind::Forward, tcp.packet()));
        let flow = bench.flow();
        let before = asked_once();
        assert_eq!(flow.meta[4..12], refused.before[4..12], "epoch and start");
        assert_eq!(
            (flow.backend, flow.requests, flow.marks),
            (SLOT, before.requests, marks)
        );
        assert_eq!(
            (flow.client_isn, flow.server_isn, flow.next),
            (CLIENT_ISN, SERVER_ISN, NEXT)
        );
        let other = bench.maps.loads.get(&OTHER_SLOT).unwrap().unwrap();
        assert_eq!((bench.state().load.active, other.active), (11, 9));
    }
}

/// Not all servers say in their answer that they close behind it, and such a client waits
/// for the close: so it is a setup of its own, by which no server's close is hidden.
#[test]
fn a_last_request_is_told_apart() {
    let last: &[u8] = b"GET / HTTP/1.1\r\nConnection: close\r\nHost: a\r\n\r\n";
    let kept: &[u8] = b"GET / HTTP/1.1\r\nConnection: Keep-Alive\r\nHost: a\r\n\r\n";
    let bench = bench(Hook::Tc, SLOT);
    let outcome = run(&bench, &asked_once(), &later(kept).frame());
    assert_eq!(outcome.counted, ["stayed", "forwarded"]);
    let outcome = run(&bench, &asked_once(), &later(last).frame());
    assert_eq!(outcome.counted, ["moved", "forwarded"]);
    let (meta, _) = opened(&outcome, BACKEND);
    assert_eq!(meta.kind, Kind::Handoff { next: BACKEND });
    assert!(!meta.care.outlive && meta.care.follow);
    let load = bench.state().load;
    assert_eq!((load.active, load.total), (10, 11));
}

#[test]
fn what_an_owner_may_still_refuse_is_remembered() {
    let bench = bench(Hook::Tc, OTHER_SLOT);
    for (had, has) in [
        (0, 0),
        (MARK_SHORT, MARK_SHORT_BEFORE),
        (MARK_SHORT_BEFORE, 0),
    ] {
        let flow = Flow {
            marks: had,
            ..asked_once()
        };
        run(&bench, &flow, &later(REQUEST).frame());
        assert_eq!(bench.flow().marks, MARK_MOVING | MARK_SHORT | has);
    }
}

/// With its owner on another port, a backend is another one.
#[test]
fn a_server_on_another_port_is_another_owner() {
    let bench = bench(Hook::Tc, SLOT);
    let flow = Flow {
        meta: own_option(Kind::Forward, |meta| Meta {
            server_port: 8081,
            epoch: epoch_now(),
            ..meta
        }),
        ..asked_once()
    };
    let outcome = run(&bench, &flow, &later(REQUEST).frame());
    assert_eq!(outcome.counted, ["moved", "forwarded"]);
    let load = bench.state().load;
    assert_eq!((load.active, load.total), (10, 11));
}

#[test]
fn what_the_data_path_cannot_place_is_the_daemons() {
    let two = [REQUEST, REQUEST].concat();
    let fin = Tcp {
        flags: ACK | PSH | FIN,
        ..later(REQUEST)
    };
    let with_marks = |marks| Flow {
        marks,
        ..asked_once()
    };
    let body = Flow {
        expect: Expected::Chunk.number(),
        ..asked_once()
    };
    let closing = Flow {
        state: FlowState::ClientFin as u32,
        ..asked_once()
    };
    let ahead = Flow {
        meta: own_option(Kind::Forward, |meta| Meta {
            epoch: epoch_now() + EPOCH_LEAD_MAX as u32 + 1_000_000,
            ..meta
        }),
        ..asked_once()
    };
    let table: [(&str, Flow, Tcp, u32); 16] = [
        ("two at once", asked_once(), later(&two), 0),
        ("half a head", asked_once(), later(&REQUEST[..20]), 0),
        (
            "an unknown one",
            asked_once(),
            later(b"GET /b HTTP/1.1\r\nHost: a\r\n\r\n"),
            0,
        ),
        (
            "a POST",
            asked_once(),
            later(b"POST / HTTP/1.1\r\nHost: a\r\n\r\n"),
            0,
        ),
        ("with FIN", asked_once(), fin, 0),
        (
            "behind a gap",
            asked_once(),
            segment(ACK, NEXT.wrapping_add(3), ANSWERED, REQUEST),
            0,
        ),
        (
            "across the boundary",
            asked_once(),
            segment(ACK, NEXT.wrapping_sub(3), ANSWERED, REQUEST),
            0,
        ),
        (
            "while the daemon is at work",
            with_marks(MARK_HELD),
            later(REQUEST),
            0,
        ),
        (
            "of one who pipelines",
            with_marks(MARK_PIPELINES),
            later(REQUEST),
            MARK_PIPELINES,
        ),
        (
            "perhaps ahead of a protected answer's end",
            with_marks(MARK_PROTECTED),
            later(REQUEST),
            MARK_PROTECTED,
        ),
        (
            "ahead of it",
            protected_until(ANSWERED.wrapping_add(1)),
            later(REQUEST),
            MARK_PROTECTED | MARK_ENDS,
        ),
        (
            "no word since the last",
            asked_once(),
            segment(ACK, NEXT, SERVER_ISN + 1, REQUEST),
            MARK_PIPELINES,
        ),
        ("a chunk is due", body, later(REQUEST), 0),
        ("the client has closed", closing, later(REQUEST), 0),
        ("too many moves", ahead, later(REQUEST), 0),
        (
            "an RST with payload",
            asked_once(),
            Tcp {
                flags: RST,
                ..later(REQUEST)
            },
            0,
        ),
    ];
    for hook in [Hook::Tc, Hook::Xdp] {
        let bench = bench(hook, OTHER_SLOT);
        for (what, flow, tcp, marks) in &table {
            let outcome = run(&bench, flow, &tcp.frame());
            assert_eq!(outcome.verdict, Verdict::Pass, "{what}");
            assert_eq!(outcome.counted, ["to-daemon"], "{what}");
            let (meta, inner) = opened(&outcome, NODE);
            let expected = Meta {
                kind: Kind::Next {
                    server_isn: ServerSeq::new(SERVER_ISN),
                },
                epoch: 0,
                start: ClientSeq::new(NEXT),
                server_port: 0,
                care: FOLLOW,
                ..flow_meta(Kind::Forward)
            };
            assert_eq!((meta, inner), (expected, tcp.packet()), "{what}");
            let after = bench.flow();
            assert_eq!(after.marks, marks | MARK_HELD, "{what}");
            assert_eq!((after.next, after.backend), (NEXT, SLOT), "{what}");
        }
    }
}

/// What the daemon has held it gives back, as from the client: it is not asked again.
#[test]
fn what_was_held_goes_where_the_record_says() {
    let bench = bench(Hook::Tc, OTHER_SLOT);
    let frame = later(REQUEST).frame();
    let held = Flow {
        marks: MARK_HELD,
        ..asked_once()
    };
    bench.put_flow(&held);
    let outcome = bench.run_marked(&frame, HELD_MARK);
    let packet = to_backend(&held.meta, CLIENT.port(), &frame);
    let expected = Outcome::new(Verdict::Redirect, packet, &["forwarded"]);
    assert_eq!(outcome, expected);
    for state in [FlowState::Reading, FlowState::Vacant, FlowState::Reset] {
        bench.put_flow(&Flow {
            state: state as u32,
            ..held
        });
        let outcome = bench.run_marked(&frame, HELD_MARK);
        assert_eq!(outcome.counted, ["stale-epoch"], "{state:?}");
    }
}

/// The owner has not had all that its client has sent: a reset is exact there where its part ends.
#[test]
fn a_reset_behind_what_waits_is_the_owners_at_its_boundary() {
    let ahead = Flow {
        marks: MARK_HELD,
        last_seq: END,
        ..asked_once()
    };
    let reset = |seq| segment(RST, seq, ANSWERED, b"");
    for hook in [Hook::Tc, Hook::Xdp] {
        let bench = bench(hook, OTHER_SLOT);
        let tunnel = Flow {
            marks: MARK_TUNNEL,
            ..ahead
        };
        let near = Flow {
            last_seq: NEXT,
            ..ahead
        };
        let closed = Flow {
            last_seq: NEXT.wrapping_add(1),
            ..ahead
        };
        let table = [
            ("it waits", ahead, END, NEXT),
            ("the owner has had its FIN", closed, NEXT + 1, NEXT + 1),
            ("inexact", ahead, END - 1, END - 1),
            ("nothing waits", near, NEXT, NEXT),
            ("all is the owner's", tunnel, END, END),
        ];
        for (what, flow, seq, owners) in table {
            let outcome = run(&bench, &flow, &reset(seq).frame());
            let (meta, inner) = opened(&outcome, BACKEND);
            assert_eq!(meta.kind, Kind::Forward, "{what}");
            assert_eq!(inner, reset(owners).packet(), "{what}");
        }
    }
}

#[test]
fn a_silent_or_missing_backend_and_a_pool_that_keeps_get_nothing() {
    let bench = bench(Hook::Tc, OTHER_SLOT);
    let counted = |slot, care| {
        decide(&bench, slot, care);
        run(&bench, &asked_once(), &later(REQUEST).frame()).counted
    };
    assert_eq!(counted(OTHER_SLOT, FOLLOW.bits()), ["moved", "forwarded"]);
    assert_eq!(counted(OTHER_SLOT, 0), ["to-daemon"]);
    assert_eq!(counted(EMPTY_SLOT, FOLLOW.bits()), ["to-daemon"]);
    assert_eq!(bench.flow().busy, 0, "nothing is left locked");
    decide(&bench, OTHER_SLOT, FOLLOW.bits());
    bench.reset();
    put_ways(&bench);
    let other = bench.maps.backends.get(&OTHER_SLOT).unwrap().unwrap();
    let silent = Backend { silent: 1, ..other };
    (bench.maps.backends.put(&OTHER_SLOT, &silent, Update::Any)).unwrap();
    bench.put_flow(&asked_once());
    let outcome = bench.run_as_resolved(&later(REQUEST).frame());
    assert_eq!(outcome.counted, ["to-daemon"]);
}

#[test]
fn what_lies_before_the_boundary_or_far_off_is_the_owners() {
    let bench = bench(Hook::Tc, OTHER_SLOT);
    let far = 1 << 26;
    let table = [
        ("the first request again", asked_once(), request()),
        (
            "a bare ACK",
            asked_once(),
            segment(ACK, NEXT, ANSWERED, b""),
        ),
        ("FIN", asked_once(), segment(ACK | FIN, NEXT, ANSWERED, b"")),
        ("RST", asked_once(), segment(RST, NEXT, ANSWERED, b"")),
        (
            "no boundaries",
            Flow {
                marks: MARK_TUNNEL,
                ..asked_once()
            },
            later(REQUEST),
        ),
        (
            "too far",
            asked_once(),
            segment(ACK, NEXT.wrapping_add(far), ANSWERED, REQUEST),
        ),
        (
            "far behind",
            asked_once(),
            segment(ACK, NEXT.wrapping_sub(far), ANSWERED, REQUEST),
        ),
    ];
    for (what, flow, tcp) in table {
        let outcome = run(&bench, &flow, &tcp.frame());
        assert_eq!(outcome.counted, ["forwarded"], "{what}");
        assert_eq!(bench.flow().next, NEXT, "{what}");
        assert_eq!(bench.flow().marks, flow.marks, "{what}");
    }
    // So far that nobody could hold it: the daemon may look, and nothing waits for it.
    let tcp = segment(ACK, NEXT.wrapping_add(1 << 18), ANSWERED, REQUEST);
    assert_eq!(
        run(&bench, &asked_once(), &tcp.frame()).counted,
        ["to-daemon"]
    );
    assert_eq!(bench.flow().marks, 0);
}

/// Two copies on two CPUs: one of them moves the flow, the other has to come again.
#[test]
fn a_copy_of_the_packet_that_moves_a_flow_is_dropped() {
    let bench = bench(Hook::Tc, OTHER_SLOT);
    let flow = Flow {
        busy: 1,
        ..asked_once()
    };
    let outcome = run(&bench, &flow, &later(REQUEST).frame());
    assert_eq!(outcome, Outcome::drop("repeated"));
    assert_eq!((bench.flow().next, bench.flow().backend), (NEXT, SLOT));
}

/// Its owner begins where its client has not come yet, and is not heard: the daemon tells that client what has come.
#[test]
fn what_would_start_an_owner_too_early_is_the_daemons() {
    for hook in [Hook::Tc, Hook::Xdp] {
        let bench = bench(hook, OTHER_SLOT);
        let behind = Flow {
            server_isn: ANSWERED,
            ..asked_once()
        };
        let start = CLIENT_ISN.wrapping_add(1);
        let too_early = segment(ACK, start, ANSWERED, REQUEST).frame();
        assert_eq!(run(&bench, &behind, &too_early).counted, ["to-daemon"]);
        assert_eq!(
            (bench.flow().next, bench.flow().marks),
            (NEXT, behind.marks)
        );
        let in_time = segment(ACK, start, ANSWERED.wrapping_add(1), REQUEST).frame();
        assert_eq!(run(&bench, &behind, &in_time).counted, ["forwarded"]);
    }
}

/// An option of two moments has the wrong tag, unless it is sealed as it is.
#[test]
fn of_a_record_that_is_being_changed_nothing_is_sealed() {
    for hook in [Hook::Tc, Hook::Xdp] {
        let bench = bench(hook, OTHER_SLOT);
        let ack = segment(ACK, END, ANSWERED, b"").frame();
        run(&bench, &asked_once(), &later(REQUEST).frame());
        let moving = Flow {
            busy: 1,
            ..bench.flow()
        };
        assert_eq!(run(&bench, &moving, &ack), Outcome::drop("repeated"));
        let staying = Flow {
            busy: 1,
            ..asked_once()
        };
        assert_eq!(run(&bench, &staying, &ack).counted, ["forwarded"]);
    }
}

/// Its owner's server may have closed, unheard: what starts here may be a new connection's there, and its closing is the
/// client's to hear from then on.
#[test]
fn without_a_daemon_a_connection_stays() {
    let bench = bench(Hook::Tc, OTHER_SLOT);
    let now = clock::monotonic().as_nanos() as u64;
    let unheard = asked_once();
    let epoch = epoch_of(&unheard);
    let heard = own_option(Kind::Forward, |meta| Meta {
        care: Care {
            outlive: false,
            ..FOLLOW
        },
        epoch,
        ..meta
    });
    for (until, stays) in [(0, false), (now - 50_000_000, true), (u64::MAX, false)] {
        put_standing(&bench, until);
        let first = later(b"POST");
        let outcome = run(&bench, &unheard, &first.frame());
        let counted = if stays { "forwarded" } else { "to-daemon" };
        assert_eq!(outcome.counted, [counted], "{until}");
        let after = bench.flow();
        let marks = if stays { MARK_TUNNEL } else { MARK_HELD };
        assert_eq!(after.marks, marks, "{until}");
        if !stays {
            continue;
        }
        assert_eq!((after.began, after.next), (NEXT, NEXT));
        let second = segment(ACK | PSH, NEXT + 4, ANSWERED, b" / H");
        for (tcp, option) in [
            (&first, begins(heard)),
            (&second, heard),
            (&first, begins(heard)),
        ] {
            let frame = tcp.frame();
            let outcome = run(&bench, &after, &frame);
            let packet = to_backend(&option, CLIENT.port(), &frame);
            assert_eq!(outcome.packet, Some(packet));
        }
    }
}

#[test]
fn a_vacant_flow_is_as_one_that_has_proved_itself() {
    let vacant = Flow {
        state: FlowState::Vacant as u32,
        client_isn: NEXT.wrapping_sub(1),
        server_isn: ANSWERED - 1,
        asked_ack: ANSWERED,
        ..asked_once()
    };
    for hook in [Hook::Tc, Hook::Xdp] {
        let bench = bench(hook, OTHER_SLOT);
        for (what, tcp) in [
            ("a request", later(REQUEST)),
            ("FIN", segment(ACK | FIN, NEXT, ANSWERED, b"")),
        ] {
            let outcome = run(&bench, &vacant, &tcp.frame());
            assert_eq!(outcome.counted, ["to-daemon"], "{what}");
            let (meta, inner) = opened(&outcome, NODE);
            let server_isn = ServerSeq::new(ANSWERED - 1);
            assert_eq!(meta.kind, Kind::Request { server_isn }, "{what}");
            assert_eq!(meta.start, ClientSeq::new(NEXT), "{what}");
            assert_eq!(inner, tcp.packet(), "{what}");
        }
        let ack = segment(ACK, NEXT, ANSWERED, b"").frame();
        assert_eq!(run(&bench, &vacant, &ack), Outcome::drop("vacant"));
        let keep_alive = segment(ACK, NEXT.wrapping_sub(1), ANSWERED, b"").frame();
        assert_eq!(run(&bench, &vacant, &keep_alive).verdict, Verdict::SendBack);
        let reset = segment(RST, NEXT, ANSWERED, b"").frame();
        assert_eq!(run(&bench, &vacant, &reset), Outcome::drop("vacant"));
        assert_eq!(bench.flow().state, FlowState::Reset as u32);
        let forged = segment(RST, NEXT.wrapping_add(1), ANSWERED, b"").frame();
        assert_eq!(run(&bench, &vacant, &forged), Outcome::drop("vacant"));
        assert_eq!(bench.flow().state, FlowState::Vacant as u32);
    }
}

/// The others are told of it by the daemon, once for all that stay until then (replication.md 4.6).
#[test]
fn among_others_what_stays_or_moves_is_marked() {
    for hook in [Hook::Tc, Hook::Xdp] {
        let known = Flow {
            version: 3,
            ..asked_once()
        };
        let kept = bench(hook, SLOT);
        among(&kept, |_| NOBODY, Daemon::Fit);
        let outcome = run(&kept, &known, &later(REQUEST).frame());
        assert_eq!(outcome.counted, ["stayed", "forwarded"], "{hook:?}");
        let after = kept.flow();
        assert_eq!((after.next, after.requests), (END, 2));
        assert_eq!((after.marks, after.version), (MARK_STAYED, 3));

        let asks = |what: &str, bench: &Bench, flow: &Flow| {
            let outcome = run(bench, flow, &later(REQUEST).frame());
            assert_eq!(outcome.counted, ["to-daemon"], "{what}, {hook:?}");
            let after = bench.flow();
            assert_eq!((after.next, after.requests), (NEXT, 1), "{what}, {hook:?}");
        };
        asks("nobody else knows the flow", &kept, &asked_once());
        let split = Splice {
            port: 7000u16.to_be_bytes(),
            changes: SPLICE_SPLIT,
            ..Splice::zeroed()
        };
        let split = Flow {
            splice: split,
            ..known
        };
        asks(
            "its owner cannot be asked how far it has come",
            &kept,
            &split,
        );
        let told = Flow {
            marks: MARK_UNSURE,
            ..known
        };
        asks("another one has kept it", &kept, &told);
        let moves = bench(hook, OTHER_SLOT);
        among(&moves, |_| NOBODY, Daemon::Fit);
        let entrusted = Flow {
            marks: MARK_ENTRUSTED,
            ..known
        };
        for flow in [known, entrusted] {
            let outcome = run(&moves, &flow, &later(REQUEST).frame());
            assert_eq!(outcome.counted, ["moved", "forwarded"], "{hook:?}");
            let after = moves.flow();
            assert_eq!((after.next, after.backend), (END, OTHER_SLOT));
            let marks = MARK_STAYED | MARK_MOVING | MARK_SHORT;
            assert_eq!((after.marks, after.version), (marks, 3));
        }
        asks("it would move, and nobody knows it", &moves, &asked_once());
        let joins = bench(hook, SLOT);
        among(&joins, |_| NOBODY, Daemon::Joining);
        asks("it does not keep flows yet", &joins, &known);
    }
}

/// The request that its client has made since went elsewhere, perhaps, and so does what acknowledges its answer
/// (replication.md 4.6a).
#[test]
fn what_lies_behind_a_boundary_of_before_waits_for_its_owner_be_it_empty() {
    for hook in [Hook::Tc, Hook::Xdp] {
        let kept = bench(hook, SLOT);
        among(&kept, |_| NOBODY, Daemon::Fit);
        let known = |marks: u32| Flow {
            version: 3,
            marks,
            ..asked_once()
        };
        for (seq, marks, counted) in [
            (END, MARK_UNSURE, ["to-daemon", "to-daemon"]),
            (NEXT, MARK_UNSURE, ["forwarded", "forwarded"]),
            // A FIN is behind a request that the daemon has.
            (END, 0, ["forwarded", "to-daemon"]),
            (NEXT, 0, ["forwarded", "forwarded"]),
            (END, MARK_UNSURE | MARK_TUNNEL, ["forwarded", "forwarded"]),
        ] {
            for (flags, counted) in [ACK, ACK | FIN].into_iter().zip(counted) {
                let frame = segment(flags, seq, ANSWERED, b"").frame();
                let outcome = run(&kept, &known(marks), &frame);
                assert_eq!(outcome.counted, [counted], "{seq}, {marks}, {hook:?}");
            }
        }
    }
}
