//! First requests that are placed in the data path by a decision that stands.

use proptest::prelude::*;
use trapeze_core::head::likeness;
use trapeze_core::seq::ClientSeq;
use trapeze_core::wire::meta::{Binding, Kind, Meta, begins};
use trapeze_datapath::abi::{
    BackendLoad, Decision, DecisionKey, EPOCH_SHIFT, Flow, FlowState, MARK_SPENT, OTHERS_MAX,
    Proof, SLOT_BY_TURNS, Standing, Turn,
};
use trapeze_datapath::clock;
use trapeze_datapath::dispatcher::SharedTurns;
use trapeze_datapath::map::Update;

use crate::bench::*;
use crate::outcome::{Outcome, Verdict};
use crate::packet::*;

const KEY: [u8; 16] = [7; 16];
const GENERATION: u32 = 5;
const POOL: u32 = 40_000;
const ROW: usize = 4;
pub const TO_SLOT: Decision = Decision {
    generation: GENERATION,
    pool: POOL,
    slot: SLOT,
    server_port: 8080u16.to_be_bytes(),
    care: 0,
    stays: 0,
    since_ns: 0,
    until_ns: 0,
    most_us: 0,
    charge_us: 0,
    placed: 0,
    others_count: 0,
    row: ROW as u16,
    move_us: 0,
    others: [NOBODY; OTHERS_MAX],
};
const NOBODY: Turn = Turn {
    slot: 0,
    server_port: [0; 2],
    pad: 0,
};

fn standing() -> Standing {
    Standing {
        valid_until_ns: u64::MAX,
        k0: u64::from_le_bytes([7; 8]),
        k1: u64::from_le_bytes([7; 8]),
        generation: GENERATION,
        epoch_floor: 0,
    }
}

fn put_standing(bench: &Bench, standing: &Standing) {
    bench.maps.standing.put(&0, standing, Update::Any).unwrap();
}

fn key_of(head: &[u8], service: u32) -> DecisionKey {
    DecisionKey {
        likeness: likeness(head, &KEY).expect("a usual head").get(),
        service,
        pad: 0,
    }
}

pub fn decide(bench: &Bench, head: &[u8], decision: &Decision) {
    let key = key_of(head, SERVICE.id);
    (bench.maps.decisions.put(&key, decision, Update::Any)).unwrap();
}

/// Nothing is known but that the client has shown its cookie.
pub fn prove(bench: &Bench) {
    bench.reset();
    let proof = Proof {
        client_isn: CLIENT_ISN,
        server_isn: SERVER_ISN,
        mss: 1388,
        window_scales: 9 << 4 | 7,
        tcp_options: 1 | 2 | 8,
        older_epoch: 0,
        // The coarse clock may be behind by a tick.
        created_ns: clock::monotonic().as_nanos() as u64 - 20_000_000,
    };
    let key = flow_key(CLIENT, VIP);
    bench.proofs.put(&key, &proof, Update::Any).unwrap();
}

pub fn ready(hook: Hook) -> Bench {
    let bench = Bench::new(hook);
    put_standing(&bench, &standing());
    decide(&bench, REQUEST, &TO_SLOT);
    bench
}

fn is_decided(outcome: &Outcome) -> bool {
    match &outcome.counted[..] {
        ["decided", "forwarded"] => true,
        ["to-daemon"] => false,
        other => panic!("{other:?}"),
    }
}

pub fn first(payload: &[u8]) -> Tcp {
    Tcp {
        payload: payload.into(),
        ..request()
    }
}

#[test]
fn a_request_like_one_decided_before_gets_the_record_that_the_daemon_would_write() {
    for hook in [Hook::Tc, Hook::Xdp] {
        let bench = ready(hook);
        let longer = b"GET / HTTP/1.1\r\nAccept: */*\r\nHOST: a\r\nCookie: b=c\r\n\r\n";
        for head in [REQUEST, longer] {
            prove(&bench);
            let frame = first(head).frame();
            let clock = || (clock::cluster().as_nanos() >> EPOCH_SHIFT) as u32;
            let before = clock();
            let outcome = bench.run(&frame);
            let elapsed = clock() - before;
            let flow = bench.flow();
            let epoch = u32::from_be_bytes(*flow.meta[4..].first_chunk().unwrap());
            let within = (epoch + 1).wrapping_sub(before) <= elapsed + 2;
            assert!(within, "{epoch} at {before}");
            let meta = Meta {
                epoch,
                ..flow_meta(Kind::Forward)
            };
            let binding = Binding::of_flow(BACKEND.into(), CLIENT.into(), VIP.into()).unwrap();
            let option = meta.seal(&keys(), &binding);
            let expected = Flow {
                meta: option,
                pool: POOL,
                last_seq: (ClientSeq::new(CLIENT_ISN) + 1 + head.len() as u32).raw(),
                bytes: head.len() as u64,
                created_ns: flow.created_ns,
                last_seen_ns: flow.last_seen_ns,
                asked_ns: flow.created_ns,
                next: (ClientSeq::new(CLIENT_ISN) + 1 + head.len() as u32).raw(),
                began: (ClientSeq::new(CLIENT_ISN) + 1).raw(),
                window: 502,
                marks: established().marks | MARK_SPENT,
                ..established()
            };
            assert_eq!(flow, expected);
            let proofs = bench.state().proofs;
            assert_eq!(
                proofs.iter().map(|(_, it)| it.mss).collect::<Vec<_>>(),
                [0],
                "spent"
            );
            let packet = to_backend(&begins(option), CLIENT.port(), &frame);
            let counted = ["decided", "forwarded"];
            let difference = outcome.difference(&Outcome::new(Verdict::Redirect, packet, &counted));
            assert_eq!(difference, None, "{hook:?}");
            let load = bench.state().load;
            assert_eq!((load.active, load.total), (11, 11));
        }
    }
}

#[test]
fn what_does_not_stand_is_the_daemons() {
    let bench = ready(Hook::Tc);
    let decided = |what: &str, packet: Tcp, expected: bool| {
        prove(&bench);
        let outcome = bench.run(&packet.frame());
        assert_eq!(is_decided(&outcome), expected, "{what}");
        assert_eq!(bench.state().flows.len(), usize::from(expected), "{what}");
    };
    decided("a decision", first(REQUEST), true);
    let cases: [(&str, &[u8]); 5] = [
        ("another path", b"GET /b HTTP/1.1\r\nHost: a\r\n\r\n"),
        ("another host", b"GET / HTTP/1.1\r\nHost: b\r\n\r\n"),
        ("half a head", b"GET / HTTP/1.1\r\nHost: a\r\n"),
        (
            "two requests",
            b"GET / HTTP/1.1\r\nHost: a\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
        ),
        ("two hosts", b"GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n"),
    ];
    for (what, head) in cases {
        decided(what, first(head), false);
    }
    let end = Tcp {
        flags: ACK | PSH | FIN,
        ..first(REQUEST)
    };
    decided("it ends at once", end, false);
    let later = Tcp {
        seq: request().seq.wrapping_add(1),
        ..first(REQUEST)
    };
    decided("not the first bytes", later, false);
    let key = key_of(REQUEST, PLAIN_SERVICE.id);
    bench
        .maps
        .decisions
        .put(&key, &TO_SLOT, Update::Any)
        .unwrap();
    bench
        .maps
        .decisions
        .delete(&key_of(REQUEST, SERVICE.id))
        .unwrap();
    decided("of another service", first(REQUEST), false);
    let older = Decision {
        generation: GENERATION - 1,
        ..TO_SLOT
    };
    decide(&bench, REQUEST, &older);
    decided("of an older generation", first(REQUEST), false);
    decide(
        &bench,
        REQUEST,
        &Decision {
            slot: EMPTY_SLOT,
            ..TO_SLOT
        },
    );
    decided("a backend that is not there", first(REQUEST), false);
    decide(&bench, REQUEST, &TO_SLOT);
    let now = clock::monotonic().as_nanos() as u64;
    for (what, until, expected) in [
        ("nothing stands", 0, false),
        ("the lease is over", now - 50_000_000, false),
        ("the lease runs", now + 3_600_000_000_000, true),
    ] {
        put_standing(
            &bench,
            &Standing {
                valid_until_ns: until,
                ..standing()
            },
        );
        decided(what, first(REQUEST), expected);
    }
}

#[test]
fn a_silent_backend_gets_nothing() {
    let bench = ready(Hook::Tc);
    prove(&bench);
    bench.resolve_next_hop(77, 0);
    bench.silence_backend();
    assert!(!is_decided(&bench.run_as_resolved(&first(REQUEST).frame())));
}

#[test]
fn epochs_are_above_those_before() {
    let bench = ready(Hook::Tc);
    let epoch = || u32::from_be_bytes(*bench.flow().meta[4..].first_chunk().unwrap());
    let now = (clock::cluster().as_nanos() >> EPOCH_SHIFT) as u32;
    prove(&bench);
    put_standing(
        &bench,
        &Standing {
            epoch_floor: now + 1000,
            ..standing()
        },
    );
    assert!(is_decided(&bench.run(&first(REQUEST).frame())));
    assert_eq!(epoch(), now + 1000);
    // The 4-tuple had a connection of a later epoch: it ends, the next one is later still.
    prove(&bench);
    let ended = Flow {
        client_isn: CLIENT_ISN.wrapping_sub(1 << 20),
        server_isn: SERVER_ISN + 99,
        cookie: SERVER_ISN + 99,
        state: FlowState::ClientFin as u32,
        syn_isn: CLIENT_ISN,
        syn_seen_ns: clock::monotonic().as_nanos() as u64 - 20_000_000,
        meta: {
            let mut meta = established().meta;
            meta[4..8].copy_from_slice(&(now + 5000).to_be_bytes());
            meta
        },
        ..established()
    };
    bench.put_flow(&ended);
    assert!(is_decided(&bench.run(&first(REQUEST).frame())));
    assert_eq!(
        epoch(),
        now + 5002,
        "and above what that one may have moved to"
    );
}

#[test]
fn backends_take_turns() {
    let bench = ready(Hook::Tc);
    let turns = SharedTurns::map(&bench.maps.turns).unwrap();
    decide(
        &bench,
        REQUEST,
        &Decision {
            slot: SLOT_BY_TURNS,
            ..TO_SLOT
        },
    );
    let run = || {
        prove(&bench);
        is_decided(&bench.run(&first(REQUEST).frame()))
    };
    assert!(!run(), "nobody takes turns yet");
    let turn = |slot, port: u16| Turn {
        slot,
        server_port: port.to_be_bytes(),
        pad: 0,
    };
    turns.set(ROW, &[turn(SLOT, 1), turn(EMPTY_SLOT, 2), turn(SLOT, 3)]);
    let start = turns.peek(ROW).unwrap();
    assert_eq!(start, turn(SLOT, 1));
    for round in 0..3 {
        for (at, there) in [true, false, true].into_iter().enumerate() {
            assert_eq!(run(), there, "{round} {at}");
            if there {
                let port = bench.flow().meta[16..18].to_vec();
                assert_eq!(port, (at as u16 + 1).to_be_bytes());
            }
        }
    }
    assert_eq!(turns.take(ROW), Some(turn(SLOT, 1)));
    assert_eq!(turns.take(ROW), Some(turn(EMPTY_SLOT, 2)));
}

/// A policy that looks at loads has left a choice of two, the first of which is busy.
#[test]
fn of_several_the_one_with_the_least_to_do_has_it_up_to_a_limit_and_for_a_while() {
    const OTHER: u32 = 9;
    const CHARGE: u32 = 500;
    let bench = ready(Hook::Tc);
    let now = || clock::monotonic().as_nanos() as u64;
    let decision = |until_ns, most_us| {
        let mut decision = Decision {
            until_ns,
            most_us,
            charge_us: CHARGE,
            others_count: 1,
            ..TO_SLOT
        };
        decision.others[0] = Turn {
            slot: OTHER,
            server_port: 8081u16.to_be_bytes(),
            pad: 0,
        };
        decision
    };
    let load = |slot| bench.maps.loads.get(&slot).unwrap().unwrap();
    let run = |decision: &Decision, work: [i64; 2]| {
        decide(&bench, REQUEST, decision);
        prove(&bench);
        for (slot, cost_us) in [SLOT, OTHER].into_iter().zip(work) {
            let load = BackendLoad {
                active: 3,
                total: 3,
                cost_us,
                stood: 0,
            };
            bench.maps.loads.put(&slot, &load, Update::Any).unwrap();
        }
        bench.resolve_next_hop(ELSEWHERE, 20_000_000);
        let backend = bench.maps.backends.get(&SLOT).unwrap().unwrap();
        (bench.maps.backends.put(&OTHER, &backend, Update::Any)).unwrap();
        is_decided(&bench.run_as_resolved(&first(REQUEST).frame()))
    };
    let later = now() + 3_600_000_000_000;
    for (work, limit, expected) in [
        ([7000, 100], 1000, Some(OTHER)),
        ([100, 7000], 1000, Some(SLOT)),
        ([100, 100], 1000, Some(SLOT)),
        ([1000, 1000], 1000, Some(SLOT)),
        ([1001, 1001], 1000, None),
        ([i64::MAX, 1001], 1000, None),
    ] {
        let decided = run(&decision(later, limit), work);
        assert_eq!(decided, expected.is_some(), "{work:?}");
        let Some(slot) = expected else { continue };
        let flow = bench.flow();
        assert_eq!((flow.backend, flow.charge_us), (slot, CHARGE), "{work:?}");
        let port = if slot == OTHER { 8081u16 } else { 8080 };
        assert_eq!(flow.meta[16..18], port.to_be_bytes());
        let before = work[usize::from(slot == OTHER)];
        assert_eq!(load(slot).cost_us, before + i64::from(CHARGE));
        assert_eq!(load(slot).active, 4);
        let used = bench.maps.decisions.get(&key_of(REQUEST, SERVICE.id));
        assert_eq!(used.unwrap().unwrap().placed, 1);
    }
    assert!(!run(&decision(now() - 50_000_000, 1000), [0, 0]), "over");
    // Who asks again has had the answer: the work is done, and nobody needs to be told.
    assert!(run(&decision(later, 1000), [0, 0]));
    let after = CLIENT_ISN.wrapping_add(1 + REQUEST.len() as u32);
    bench.run(&segment(ACK | PSH, after, SERVER_ISN + 5001, REQUEST).frame());
    assert_eq!(load(SLOT).cost_us, 0);
    assert_eq!(bench.flow().charge_us, 0);
}

/// Heads of all kinds, and rubbish that looks like them.
fn heads() -> impl Strategy<Value = Vec<u8>> {
    let line = prop_oneof![
        4 => "[A-Za-z-]{1,12}: [ -~]{0,60}",
        1 => "(Content-Length|content|CONTENT-|transfer|Upgrade|UPGRADE-Insecure|\t| )[:;]? ?[0-9]{0,3}",
        2 => "(Host|host|HOST|Hos|Host |XHost|hoſt):[ -~]{0,40}",
        1 => "[ -~]{0,20}",
        1 => Just(String::new()),
    ];
    let ending = prop_oneof![8 => Just("\r\n"), 1 => Just("\n"), 1 => Just("\r")];
    let lines = prop::collection::vec((line, ending), 0..24);
    let method =
        prop_oneof![6 => Just("GET"), 2 => Just("HEAD"), 1 => Just("POST"), 1 => Just("GETS")];
    let first =
        (method, "/[ -~]{0,90} HTTP/1.[01]").prop_map(|(method, rest)| format!("{method} {rest}"));
    (first, lines, 0..4u8).prop_map(|(first, lines, end)| {
        let mut head = format!("{first}\r\n");
        for (line, ending) in lines {
            head += &line;
            head += ending;
        }
        head += ["\r\n", "\r\n", "\n", "x"][usize::from(end)];
        head.into_bytes()
    })
}

#[test]
fn the_data_path_finds_the_same_requests_alike() {
    let bench = Bench::new(Hook::Tc);
    put_standing(&bench, &standing());
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(2000));
    let mut found = 0;
    runner
        .run(&heads(), |head| {
            prove(&bench);
            let packet = first(&head).frame();
            // Nothing stands for it yet; then the very number that core computes.
            prop_assert!(!is_decided(&bench.run(&packet)));
            if let Some(likeness) = likeness(&head, &KEY) {
                let key = DecisionKey {
                    likeness: likeness.get(),
                    service: SERVICE.id,
                    pad: 0,
                };
                bench
                    .maps
                    .decisions
                    .put(&key, &TO_SLOT, Update::Any)
                    .unwrap();
                prove(&bench);
                prop_assert!(is_decided(&bench.run(&packet)));
                bench.maps.decisions.delete(&key).unwrap();
            }
            Ok(())
        })
        .unwrap();
    // And a long one, at every length around the limit and around words.
    for length in (60..90).chain(2040..2060) {
        let fill = "a".repeat(length - 28 - 5);
        let head = format!("GET / HTTP/1.1\r\nHost: b\r\nX: {fill}\r\n\r\n").into_bytes();
        prove(&bench);
        let alike = likeness(&head, &KEY);
        let key = DecisionKey {
            likeness: alike.map_or(1, Into::into),
            service: SERVICE.id,
            pad: 0,
        };
        bench
            .maps
            .decisions
            .put(&key, &TO_SLOT, Update::Any)
            .unwrap();
        assert_eq!(
            is_decided(&bench.run(&first(&head).frame())),
            alike.is_some(),
            "{length}"
        );
        found += usize::from(alike.is_some());
    }
    assert!(found > 30, "{found}");
}
