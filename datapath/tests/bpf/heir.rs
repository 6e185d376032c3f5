//! Connections that a keeper's data path places: the record goes to the keeper's heir with the first packet, which
//! that one sends on to the backend.

use std::net::SocketAddrV4;

use trapeze_core::membership::lots::{LOTS, NOBODY as NO_ONE};
use trapeze_core::wire::geneve;
use trapeze_core::wire::meta::{Binding, Care, Kind, Meta, begins};
use trapeze_datapath::abi::{
    self, Decision, Flow, FlowKey, FlowState, MARK_ENTRUSTED, MARK_SPENT, MARK_STAYED, MARK_TUNNEL,
    MARK_UNSURE, Pod, Trust,
};
use trapeze_datapath::map::Update;
use trapeze_datapath::sent::{self, SharedSent};

use crate::bench::*;
use crate::keeper::{Daemon, KEEPER, KEEPERS_SLOT, among, arriving};
use crate::outcome::{Outcome, Verdict};
use crate::packet::*;
use crate::standing::{TO_SLOT, decide, first, prove, ready};

/// Of a pool whose answers are followed.
fn followed() -> Decision {
    let follow = Care {
        follow: true,
        ..Care::default()
    };
    Decision {
        care: follow.bits(),
        ..TO_SLOT
    }
}

/// It keeps all flows; [`KEEPER`] is its heir.
fn with_an_heir(hook: Hook) -> Bench {
    let bench = ready(hook);
    decide(&bench, REQUEST, &followed());
    heir_is(&bench, KEEPERS_SLOT);
    bench
}

fn heir_is(bench: &Bench, slot: u16) {
    among(bench, |_| NO_ONE, Daemon::Fit);
    let mut heirs: Box<abi::Lots> = Box::new(Pod::zeroed());
    heirs.slots = [slot; LOTS];
    bench.maps.heirs.put(&0, &heirs, Update::Any).unwrap();
}

/// What the heir is told of a record.
fn entrusted(flow: &Flow) -> Meta {
    let kept = Meta::decode(&flow.meta).expect("it is this version's");
    Meta {
        kind: Kind::Entrusted { backend: BACKEND },
        requests: flow.pool as u16,
        ..kept
    }
}

/// A record of the keeper, as its first packet leaves it.
fn placed(bench: &Bench) -> Flow {
    prove(bench);
    let outcome = bench.run(&first(REQUEST).frame());
    assert_eq!(sorted(&outcome), ["decided", "entrusted"]);
    bench.flow()
}

fn sorted(outcome: &Outcome) -> Vec<&'static str> {
    let mut counted = outcome.counted.clone();
    counted.sort_unstable();
    counted
}

#[test]
fn a_first_request_goes_to_its_backend_by_way_of_the_heir() {
    for hook in [Hook::Tc, Hook::Xdp] {
        let bench = with_an_heir(hook);
        sent::divide(&bench.maps.sent_rings, &[KEEPERS_SLOT]).unwrap();
        let kept = SharedSent::map(&bench.maps.sent).unwrap();
        prove(&bench);
        let frame = first(REQUEST).frame();
        let outcome = bench.run(&frame);
        let flow = bench.flow();
        assert_eq!((flow.version, flow.maker), (1, NODE.octets()));
        assert_eq!(flow.marks, MARK_ENTRUSTED | MARK_STAYED | MARK_SPENT);
        assert_eq!(flow.told, FlowState::Established as u32);
        let inner = &frame[ETHERNET..];
        let binding = Binding::of_packet(KEEPER.into(), inner).unwrap();
        let mut payload = Vec::new();
        geneve::write(
            &entrusted(&flow).seal(&keys(), &binding),
            inner,
            &mut payload,
        );
        let source = SocketAddrV4::new(NODE, CLIENT.port() | 0xc000);
        let outer = udp(source, SocketAddrV4::new(KEEPER, geneve::PORT), &payload);
        let packet = ethernet(EGRESS_MAC, BACKEND_MAC, 0x0800, &outer);
        let expected = Outcome::new(Verdict::Redirect, packet, &["decided", "entrusted"]);
        assert_eq!(outcome.difference(&expected), None, "{hook:?}");
        assert_eq!(bench.state().load.active, 11);
        // If the heir is dead, it comes in once more.
        let starts = to(&kept, KEEPERS_SLOT).into_iter();
        assert_eq!(starts.map(|it| it.start).collect::<Vec<_>>(), [inner]);
        // Repeated, since one of the two ways is broken: the other.
        let again = bench.run(&frame);
        let packet = to_backend(&begins(flow.meta), CLIENT.port(), &frame);
        assert_eq!(again.packet, Some(packet));
        assert_eq!(again.counted, ["forwarded"]);
    }
}

/// Somebody comes to keep the flow before anything has been told of it.
#[test]
fn what_the_next_keeper_has_not_heard_of_does_not_start_a_request_there() {
    for hook in [Hook::Tc, Hook::Xdp] {
        let bench = with_an_heir(hook);
        let flow = placed(&bench);
        let next = Tcp {
            seq: flow.next,
            ..first(REQUEST)
        };
        let fin = Tcp {
            flags: FIN | ACK,
            payload: Vec::new(),
            ..next.clone()
        };
        among(&bench, |_| KEEPERS_SLOT, Daemon::Fit);
        let goes = |tcp: &Tcp| bench.run(&tcp.frame()).counted;
        assert_eq!(goes(&next), ["unheard-of"], "{hook:?}");
        assert_eq!(goes(&fin), ["passed"]);
        assert_eq!(goes(&first(REQUEST)), ["forwarded"], "it is explained");
        let anew = Tcp {
            ack: flow.cookie.wrapping_sub(1 << 30),
            ..next.clone()
        };
        assert_eq!(goes(&anew), ["passed"], "another one's, of the same port");
        bench.put_flow(&Flow {
            marks: flow.marks & !MARK_STAYED,
            ..flow
        });
        assert_eq!(goes(&next), ["passed"], "it has been told");
    }
}

#[test]
fn without_an_heir_the_daemon_places_it_and_tells_the_others() {
    let bench = with_an_heir(Hook::Tc);
    let unnamed = KEEPERS_SLOT + 1;
    for (what, slot, daemon) in [
        ("nobody is left", NO_ONE, Daemon::Fit),
        ("one of another configuration", unnamed, Daemon::Fit),
        ("it is about to stop", KEEPERS_SLOT, Daemon::Leaving),
    ] {
        heir_is(&bench, slot);
        among(&bench, |_| NO_ONE, daemon);
        prove(&bench);
        let outcome = bench.run(&first(REQUEST).frame());
        assert!(!outcome.counted.contains(&"decided"), "{what}");
        assert!(!outcome.counted.contains(&"entrusted"), "{what}");
        assert_eq!(bench.state().flows, [], "{what}");
    }
}

/// What the heir knows then is what the keeper knows, but for what may have come of it since.
#[test]
fn the_heir_has_the_keepers_record_before_the_backend_has_the_packet() {
    for hook in [Hook::Tc, Hook::Xdp] {
        let bench = with_an_heir(hook);
        let frame = first(REQUEST).frame();
        for decision in [TO_SLOT, followed()] {
            decide(&bench, REQUEST, &decision);
            let kept = placed(&bench);
            knows_backend(&bench);
            bench.reset();
            let arriving = arriving(KEEPER, &entrusted(&kept), &frame);
            let outcome = bench.run(&arriving);
            let packet = to_backend(&begins(kept.meta), CLIENT.port(), &frame);
            assert_eq!(outcome.packet, Some(packet), "{hook:?}");
            assert_eq!(sorted(&outcome), ["accepted", "forwarded", "in-trust"]);
            assert_eq!(bench.state().flows, [], "most are never needed");
            // A copy goes on as well, and is of the same connection.
            assert_eq!(
                sorted(&bench.run(&arriving)),
                ["accepted", "forwarded", "in-trust"]
            );
            bench.claimer.claim().unwrap();
            let flow = bench.flow();
            let doubt = match kept.marks & MARK_TUNNEL {
                0 => MARK_UNSURE,
                _ => 0,
            };
            let expected = Flow {
                maker: KEEPER.octets(),
                marks: kept.marks & !(MARK_STAYED | MARK_SPENT) | doubt,
                created_ns: flow.created_ns,
                last_seen_ns: flow.last_seen_ns,
                refreshed_ns: flow.refreshed_ns,
                asked_ns: flow.asked_ns,
                charge_us: 0,
                lot: 0,
                ..kept
            };
            assert_eq!(flow, expected);
            assert_eq!(bench.state().load.active, 11);
            assert_eq!(bench.state().proofs, []);
            // A copy finds it as it is, now and later.
            assert_eq!(
                sorted(&bench.run(&arriving)),
                ["accepted", "forwarded", "in-trust"]
            );
            bench.claimer.claim().unwrap();
            assert_eq!(bench.flow(), flow);
            assert_eq!(bench.state().load.active, 11);
        }
    }
}

/// Its keeper tells of what goes on, and what is not told has ended.
#[test]
fn what_was_entrusted_long_ago_becomes_no_record() {
    let bench = with_an_heir(Hook::Tc);
    let kept = placed(&bench);
    knows_backend(&bench);
    bench.reset();
    bench.run(&arriving(
        KEEPER,
        &entrusted(&kept),
        &first(REQUEST).frame(),
    ));
    let noted = bench.trusts.get(&0).unwrap().unwrap();
    assert_eq!(
        (noted.client, noted.from),
        (CLIENT.ip().octets(), KEEPER.octets())
    );
    let old = Trust {
        at_ns: noted.at_ns - abi::TRUST_NS,
        ..noted
    };
    bench.trusts.put(&0, &old, Update::Any).unwrap();
    bench.claimer.claim().unwrap();
    assert_eq!(bench.state().flows, []);
}

/// A record that is told first stands, if it is later.
#[test]
fn a_note_takes_the_place_of_nothing_later() {
    let bench = with_an_heir(Hook::Tc);
    let kept = placed(&bench);
    knows_backend(&bench);
    let said = entrusted(&kept);
    for (ahead, holds) in [(0, true), (1, true), (u32::MAX, false)] {
        bench.reset();
        bench.run(&arriving(KEEPER, &said, &first(REQUEST).frame()));
        let told = Flow {
            meta: Meta {
                epoch: said.epoch.wrapping_add(ahead),
                ..flow_meta(Kind::Forward)
            }
            .encode(KEY_IDS[0]),
            report: 1,
            ..established()
        };
        bench.put_flow(&told);
        bench.claimer.claim().unwrap();
        let flow = bench.flow();
        assert_eq!(flow.maker == told.maker, holds, "{ahead}");
        assert_eq!(flow.report == told.report, holds, "{ahead}");
    }
}

/// Of many flows, those that are over, or told, or gone, are left out.
#[test]
fn only_what_is_to_be_told_is_looked_at_again() {
    let bench = with_an_heir(Hook::Tc);
    let live = placed(&bench);
    let key = |port: u16| flow_key(SocketAddrV4::new(*CLIENT.ip(), port), VIP);
    let over = Flow {
        state: FlowState::ClientFin as u32,
        ..live
    };
    let waits = Flow {
        last_seen_ns: over.created_ns + 1_000_000_001,
        ..over
    };
    let told = Flow {
        marks: live.marks & !MARK_STAYED,
        ..live
    };
    let known = Flow {
        marks: live.marks & !MARK_ENTRUSTED,
        ..over
    };
    let kinds = [live, over, waits, told, known];
    for port in 1..=999 {
        let flow = kinds[usize::from(port) % kinds.len()];
        bench
            .maps
            .flows
            .put(&key(port), &flow, Update::Any)
            .unwrap();
    }
    let all: Vec<FlowKey> = (1..=1300).map(key).collect();
    let expected: Vec<FlowKey> = (1..=999)
        .filter(|port| [0, 2, 4].contains(&(port % 5)))
        .map(key)
        .collect();
    assert_eq!(bench.sieve.sift(&all).unwrap(), expected);
    assert_eq!(bench.sieve.sift(&[]).unwrap(), []);
}

#[test]
fn what_is_entrusted_takes_the_place_of_nothing_later() {
    let bench = with_an_heir(Hook::Tc);
    let kept = placed(&bench);
    knows_backend(&bench);
    let said = entrusted(&kept);
    let arriving = arriving(KEEPER, &said, &first(REQUEST).frame());
    let record = |ahead: u32, cookie: u32| Flow {
        meta: Meta {
            epoch: said.epoch.wrapping_add(ahead),
            ..flow_meta(Kind::Forward)
        }
        .encode(KEY_IDS[0]),
        cookie,
        ..established()
    };
    let table = [
        (
            "an earlier connection of its port",
            record(u32::MAX, 77),
            true,
            true,
        ),
        ("a move since", record(1, SERVER_ISN), false, true),
        (
            "a later connection of its port",
            record(1, 77),
            false,
            false,
        ),
    ];
    for (what, known, replaces, goes_on) in table {
        bench.reset();
        bench.put_flow(&known);
        let outcome = bench.run(&arriving);
        assert_eq!(outcome.counted.contains(&"in-trust"), goes_on, "{what}");
        assert_eq!(outcome.counted.contains(&"stale-epoch"), !goes_on, "{what}");
        let cookie = bench.flow().cookie;
        assert_eq!(
            cookie,
            if replaces { SERVER_ISN } else { known.cookie },
            "{what}"
        );
        // The one before is over, and counted so.
        assert_eq!(bench.state().load.active, 10, "{what}");
    }
}

#[test]
fn what_is_forged_or_of_an_unknown_backend_makes_no_record() {
    let bench = with_an_heir(Hook::Tc);
    let kept = placed(&bench);
    let frame = first(REQUEST).frame();
    let said = entrusted(&kept);
    bench.reset();
    bench.expect(
        "nobody knows its backend",
        &arriving(KEEPER, &said, &frame),
        &Outcome::drop_counting(&["no-backend", "accepted"]),
    );
    knows_backend(&bench);
    let at = crate::agent::META_AT + 30;
    let sealed = arriving(KEEPER, &said, &frame);
    let forged = with(sealed.clone(), &[(at, sealed[at] ^ 1)]);
    bench.expect("forged", &forged, &Outcome::drop("bad-tag"));
    assert_eq!(bench.state().flows, []);
}

/// By the address that packets name it by.
fn knows_backend(bench: &Bench) {
    let address = u32::from_ne_bytes(BACKEND.octets());
    (bench.maps.slots.put(&address, &SLOT, Update::Any)).unwrap();
}
