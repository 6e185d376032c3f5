//! Encapsulated packets at a backend: which are believed, and what they do by
//! what is known of their flow (the table at the head of bpf/agent.bpf.c, where
//! no socket stands; rebuild.rs has the rest).

use std::net::Ipv4Addr;

use trapeze_core::health::word;
use trapeze_core::policy;
use trapeze_core::seq::{ClientSeq, ServerSeq};
use trapeze_core::wire::meta::{Binding, Keys, Kind, Meta, Refusal};
use trapeze_datapath::abi::{self, SiphashKey};
use trapeze_datapath::clock;
use trapeze_datapath::map::Update;

use crate::backend::*;
use crate::bench::*;
use crate::outcome::{Outcome, Verdict};
use crate::packet::*;

pub const START: u32 = CLIENT_ISN.wrapping_add(1);
/// Where things stand in an encapsulated frame.
pub const GENEVE_AT: usize = ETHERNET + 28;
pub const META_AT: usize = GENEVE_AT + 12;
pub const INNER_AT: usize = META_AT + 32;

pub fn forward(tcp: &Tcp) -> Vec<u8> {
    sealed(&meta(Kind::Forward, EPOCH, START), &tcp.packet())
}

/// What a dispatcher encloses in its echoes: nothing that any protocol takes.
pub fn echo() -> Vec<u8> {
    ipv4(DISPATCHER, HERE, 59, &[0; 20])
}

fn later() -> Tcp {
    segment(ACK, START.wrapping_add(500), SERVER_ISN + 1, b"more")
}

#[test]
fn what_is_not_ours_passes_untouched() {
    let frame = forward(&request());
    let table = [
        ("a plain request", request().frame()),
        (
            "another UDP port",
            with(frame.clone(), &[(ETHERNET + 23, 0xc2)]),
        ),
        (
            "another protocol",
            with(frame.clone(), &[(ETHERNET + 9, TCP)]),
        ),
        ("outer IP options", with(frame.clone(), &[(ETHERNET, 0x46)])),
        (
            "another network",
            with(frame.clone(), &[(GENEVE_AT + 6, 0)]),
        ),
        (
            "another option class",
            with(frame.clone(), &[(GENEVE_AT + 8, 0)]),
        ),
        (
            "another option",
            with(frame.clone(), &[(GENEVE_AT + 10, 1)]),
        ),
        ("ARP", ethernet(THEIR_MAC, OUR_MAC, 0x0806, &[0; 100])),
        ("IPv6", ethernet(THEIR_MAC, OUR_MAC, 0x86dd, &[0x60; 100])),
        ("cut within the option", frame[..INNER_AT - 1].to_vec()),
    ];
    let agent = Agent::new();
    for (what, frame) in table {
        agent.expect(what, &frame, &Outcome::untouched(&frame));
    }
}

/// Another program at the hook, or the stack, has to see it.
#[test]
fn frames_for_other_interfaces_pass_untouched() {
    let agent = Agent::new();
    for frame in [
        forward(&request()),
        sealed(&meta(Kind::Echo, EPOCH, START), &echo()),
        with(forward(&request()), &[(META_AT + 31, 0)]),
        with(forward(&request()), &[(META_AT, 9)]),
    ] {
        for mac in OTHER_MACS {
            let frame = [&mac, &frame[6..]].concat();
            agent.expect("flooded", &frame, &Outcome::untouched(&frame));
        }
        assert_ne!(agent.run(&agent.ingress, &frame).verdict, Verdict::Next);
    }
}

/// A dispatcher may run on the same host: its own program proves these.
#[test]
fn what_is_for_a_daemon_passes_untouched() {
    let agent = Agent::new();
    let request = request().packet();
    let refused = |refusal| meta(Kind::Refused(refusal), EPOCH, START);
    let received = ClientSeq::new(9);
    let server_isn = ServerSeq::new(SERVER_ISN);
    for (what, meta, inner) in [
        ("not here", refused(Refusal::NoListener), &request),
        ("not now", refused(Refusal::AcceptQueueFull), &request),
        (
            "a probe's answer",
            meta(
                Kind::ProbeAnswer {
                    received,
                    sender: None,
                },
                EPOCH,
                START,
            ),
            &request,
        ),
        (
            "a request",
            meta(Kind::Request { server_isn }, 0, START),
            &request,
        ),
        (
            "an echo's answer",
            meta(Kind::EchoReply { feedback: None }, 5, 0),
            &echo(),
        ),
    ] {
        let frame = sealed(&meta, inner);
        agent.expect(what, &frame, &Outcome::untouched(&frame));
        let forged = with(frame, &[(META_AT + 31, 0)]);
        agent.expect(what, &forged, &Outcome::untouched(&forged));
    }
    assert_eq!(agent.maps.setups.all().unwrap(), []);
}

/// Its tag is good, but for its true receiver: a copy that was sent here on
/// the same link must not run the request a second time.
#[test]
fn what_is_for_another_node_passes_untouched() {
    let agent = Agent::new();
    let other = Ipv4Addr::new(10, 0, 0, 13);
    for kind in [Kind::Forward, Kind::Probe, Kind::Echo] {
        let frame = sealed_for(other, &meta(kind, EPOCH, START), &request().packet());
        agent.expect("another node's", &frame, &Outcome::untouched(&frame));
    }
}

#[test]
fn malformed_encapsulations_have_their_reason() {
    let good = forward(&request());
    let length = good.len();
    let change = |at: usize, byte: u8| with(good.clone(), &[(at, byte)]);
    let mut udp_inside = request().packet();
    udp_inside[9] = UDP;
    let mut table = vec![
        ("an option too short", change(GENEVE_AT, 8)),
        ("two options", change(GENEVE_AT, 10)),
        ("another version of Geneve", change(GENEVE_AT, 0x49)),
        ("no critical option", change(GENEVE_AT + 1, 0)),
        ("a control packet", change(GENEVE_AT + 1, 0xc0)),
        ("a reserved flag", change(GENEVE_AT + 1, 0x41)),
        ("an option of another length", change(GENEVE_AT + 11, 7)),
        ("IPv6 inside", change(GENEVE_AT + 2, 0x86)),
        ("a version of tomorrow", change(META_AT, 2)),
        ("inner IP version 6", change(INNER_AT, 0x65)),
        ("inner IP options", change(INNER_AT, 0x46)),
        ("inner first fragment", change(INNER_AT + 6, 0x20)),
        ("inner last fragment", change(INNER_AT + 7, 1)),
        ("inner length beyond the frame", change(INNER_AT + 2, 1)),
        ("inner length below the headers", change(INNER_AT + 3, 39)),
        (
            "UDP in a forwarded packet",
            sealed(&meta(Kind::Forward, EPOCH, START), &udp_inside),
        ),
        (
            "UDP in a probe",
            sealed(&meta(Kind::Probe, EPOCH, START), &udp_inside),
        ),
        (
            "TCP as an ICMP error",
            sealed(&meta(Kind::Icmp, EPOCH, START), &request().packet()),
        ),
        (
            "cut within the inner IP header",
            good[..INNER_AT + 10].to_vec(),
        ),
        (
            "cut within the inner TCP header",
            good[..INNER_AT + 39].to_vec(),
        ),
        ("cut within the payload", good[..length - 1].to_vec()),
    ];
    // Other kinds are of tomorrow.
    table.extend([0, 19, 255].map(|kind| ("another kind", change(META_AT + 1, kind))));
    let agent = Agent::new();
    for (what, frame) in table {
        agent.expect(what, &frame, &Outcome::drop("bad-encapsulation"));
    }
    for words in [0, 4, 15] {
        let frame = with(good.clone(), &[(INNER_AT + 20 + 12, words << 4)]);
        agent.expect(
            "a TCP header that cannot be",
            &frame,
            &Outcome::drop("malformed"),
        );
    }
    assert_eq!(agent.maps.setups.all().unwrap(), []);
}

#[test]
fn every_byte_under_the_tag_counts() {
    let agent = Agent::new();
    let icmp = icmp(NODE, *VIP.ip(), 3, 4, &request().packet());
    let icmp = sealed(&meta(Kind::Icmp, EPOCH, START), &icmp);
    let addresses = INNER_AT + 12..INNER_AT + 20;
    let ports = INNER_AT + 20..INNER_AT + 24;
    let option = META_AT + 2..META_AT + 32;
    let whole: Vec<usize> = option
        .clone()
        .chain(addresses.clone())
        .chain(ports)
        .collect();
    let no_ports: Vec<usize> = option.chain(addresses).collect();
    for (what, frame, covered) in [
        ("forward", forward(&request()), &whole),
        ("forward, later", forward(&later()), &whole),
        (
            "probe",
            sealed(&meta(Kind::Probe, EPOCH, START), &request().packet()),
            &whole,
        ),
        ("ICMP", icmp, &no_ports),
        (
            "echo",
            sealed(&meta(Kind::Echo, EPOCH, START), &echo()),
            &no_ports,
        ),
    ] {
        assert!(
            !agent
                .run(&agent.ingress, &frame)
                .counted
                .contains(&"bad-tag"),
            "{what}: good"
        );
        for &at in covered {
            for bit in 0..8 {
                // Whether a request begins there is each packet's own.
                if what.starts_with("forward") && (at, bit) == (META_AT + 3, 1) {
                    continue;
                }
                let frame = with(frame.clone(), &[(at, frame[at] ^ 1 << bit)]);
                agent.expect(
                    &format!("{what}, byte {at}"),
                    &frame,
                    &Outcome::drop("bad-tag"),
                );
            }
        }
        for kind in [1, 3] {
            if kind != frame[META_AT + 1] && covered == &whole {
                let frame = with(frame.clone(), &[(META_AT + 1, kind)]);
                agent.expect(
                    &format!("{what} as {kind}"),
                    &frame,
                    &Outcome::drop("bad-tag"),
                );
            }
        }
    }
}

#[test]
fn keys_change_without_a_pause() {
    let agent = Agent::new();
    let [first, second] = cluster_keys();
    let by_second = Keys::new(std::slice::from_ref(&second)).unwrap();
    let by_second = |tcp: &Tcp| {
        let mut frame = forward(tcp);
        let binding = Binding::of_packet(HERE.into(), &tcp.packet()).unwrap();
        let raw = meta(Kind::Forward, EPOCH, START).seal(&by_second, &binding);
        frame[META_AT..INNER_AT].copy_from_slice(&raw);
        frame
    };
    let frame = by_second(&later());
    let answer = meta(Kind::Refused(Refusal::NoListener), EPOCH, START);
    let answer = reply(&answer, &request());
    let refused = Outcome::new(Verdict::SendBack, answer, &["no-listener", "refused"]);
    agent.expect("our own signs", &by_second(&request()), &refused);
    agent.forget();
    agent.expect("the other key", &frame, &Outcome::drop("early"));
    let none = SiphashKey {
        k0: 0,
        k1: 0,
        generation: 0,
    };
    agent
        .maps
        .tag_keys
        .put(&second.id.into(), &none, Update::Any)
        .unwrap();
    agent.expect("taken away", &frame, &Outcome::drop("bad-tag"));
    agent.expect(
        "the first one stays",
        &forward(&later()),
        &Outcome::drop("early"),
    );
    agent
        .maps
        .tag_keys
        .put(&first.id.into(), &none, Update::Any)
        .unwrap();
    agent.expect(
        "taken away too",
        &forward(&later()),
        &Outcome::drop("bad-tag"),
    );
}

#[test]
fn an_echos_answer_tells_how_busy_the_host_is_as_long_as_that_is_fresh() {
    let agent = Agent::new();
    let now = clock::monotonic().as_nanos() as u64;
    let feedback = policy::Feedback {
        accept_queue: 0,
        cpu_permille: 999,
        memory_permille: 512,
    };
    for (what, sampled_ns, feedback) in [
        ("just now", now, Some(feedback)),
        ("a second ago", now - 1_000_000_000, Some(feedback)),
        ("too long ago", now - 3_000_000_000, None),
        ("never", 0, None),
    ] {
        let sample = abi::Feedback {
            sampled_ns,
            cpu_permille: 999,
            memory_permille: 512,
        };
        agent.maps.feedback.put(&0, &sample, Update::Any).unwrap();
        let ask = meta(Kind::Echo, 9, 0);
        let answer = Meta {
            kind: Kind::EchoReply { feedback },
            ..ask
        };
        let answer = Outcome::new(Verdict::SendBack, reply_to(&answer, &echo()), &[]);
        agent.expect(what, &sealed(&ask, &echo()), &answer);
    }
}

/// What the daemon holds of its servers takes the place of the padding, if there is room for it.
#[test]
fn an_echos_answer_has_the_daemons_word_as_long_as_that_is_fresh() {
    let agent = Agent::new();
    let now = clock::monotonic().as_nanos() as u64;
    let said: [u8; word::LEN] = std::array::from_fn(|at| at as u8);
    let long = |padding: &[u8]| ipv4(DISPATCHER, HERE, 59, padding);
    let nothing = [0; word::LEN];
    for (what, said_ns, asked, answered) in [
        ("just now", now, long(&nothing), long(&said)),
        (
            "too long ago",
            now - 3_000_000_000,
            long(&nothing),
            long(&nothing),
        ),
        ("never", 0, long(&nothing), long(&nothing)),
        ("nobody asks", now, echo(), echo()),
        (
            "a byte too few",
            now,
            long(&nothing[1..]),
            long(&nothing[1..]),
        ),
    ] {
        let word = abi::HealthWord {
            said_ns,
            bytes: said,
        };
        agent.maps.health_word.put(&0, &word, Update::Any).unwrap();
        let ask = meta(Kind::Echo, 9, 0);
        let answer = Meta {
            kind: Kind::EchoReply { feedback: None },
            ..ask
        };
        let answer = Outcome::new(Verdict::SendBack, reply_to(&answer, &answered), &[]);
        agent.expect(what, &sealed(&ask, &asked), &answer);
    }
}

#[test]
fn echoes_are_answered_by_the_program() {
    let agent = Agent::new();
    let node = agent.maps.node.get(&0).unwrap().unwrap();
    let node = abi::Node {
        incarnation: 0x1234_5678,
        ..node
    };
    agent.maps.node.put(&0, &node, Update::Any).unwrap();
    let answer = |meta: &Meta, inner: &[u8]| {
        let answer = Meta {
            kind: Kind::EchoReply { feedback: None },
            start: ClientSeq::new(0x1234_5678),
            ..*meta
        };
        let frame = reply_to(&answer, inner);
        Outcome::new(Verdict::SendBack, frame, &[])
    };
    let ask = |number| meta(Kind::Echo, number, 0);
    // Nothing of what it says is judged or remembered: it comes back.
    for (what, meta, inner) in [
        ("the first", ask(1), echo()),
        ("the same again", ask(1), echo()),
        ("an earlier one", ask(0), echo()),
        ("the last", ask(u32::MAX), echo()),
        ("with all that fits", meta(Kind::Echo, EPOCH, START), echo()),
        (
            "between others",
            ask(2),
            ipv4(*CLIENT.ip(), *VIP.ip(), 59, &[0; 20]),
        ),
        (
            "a large one",
            ask(3),
            ipv4(DISPATCHER, HERE, UDP, &[0x5a; 1400]),
        ),
    ] {
        agent.expect(what, &sealed(&meta, &inner), &answer(&meta, &inner));
    }
    let padded = [sealed(&ask(4), &echo()), vec![0xee; 9]].concat();
    let mut expected = answer(&ask(4), &echo());
    expected.packet.as_mut().unwrap().extend([0xee; 9]);
    agent.expect("padding stays", &padded, &expected);

    let tcp = sealed(&ask(1), &request().packet());
    agent.expect("not about a flow", &tcp, &Outcome::drop("bad-tag"));
    let short = sealed(&ask(1), &ipv4(DISPATCHER, HERE, 59, &[0; 19]));
    let bad = Outcome::drop("bad-encapsulation");
    agent.expect("too short for a flow's packet", &short, &bad);
    assert_eq!(agent.maps.setups.all().unwrap(), []);

    // In another key than one's own it is answered in one's own.
    let [first, second] = cluster_keys();
    let keys = Keys::new(std::slice::from_ref(&second)).unwrap();
    let binding = Binding::of_packet(HERE.into(), &echo()).unwrap();
    let mut frame = sealed(&ask(5), &echo());
    frame[META_AT..INNER_AT].copy_from_slice(&ask(5).seal(&keys, &binding));
    agent.expect("by the other key", &frame, &answer(&ask(5), &echo()));
    let none = SiphashKey {
        k0: 0,
        k1: 0,
        generation: 0,
    };
    let id = first.id.into();
    agent.maps.tag_keys.put(&id, &none, Update::Any).unwrap();
    agent.expect("no key to sign with", &frame, &Outcome::drop("bad-tag"));
}

/// The agent's table, where no socket stands.
#[test]
fn without_a_socket() {
    let agent = Agent::new();
    let (old, new) = (EPOCH - 1, EPOCH + 1);
    let far = EPOCH.wrapping_add(1 << 31); // RFC 1982: as far ahead as behind
    let start = || forward(&request());
    let more = || forward(&later());
    let up = |tcp: &Tcp, counted: &[&'static str]| delivered(&tcp.packet(), counted);
    let refused = || {
        let meta = meta(Kind::Refused(Refusal::NoListener), EPOCH, START);
        let counted = ["no-listener", "refused"];
        Outcome::new(Verdict::SendBack, reply(&meta, &request()), &counted)
    };
    let given_back = || Outcome {
        counted: vec!["refused"],
        ..refused()
    };
    let early = || Outcome::drop("early");
    let stale = || Outcome::drop("stale-epoch");
    type Known = Option<(u32, u32, u32)>;
    let table: [(&str, Known, Vec<u8>, Outcome); 22] = [
        ("a start, nothing known", None, start(), refused()),
        (
            "a start, an older one tried",
            Some((old, START, TRIED)),
            start(),
            refused(),
        ),
        (
            "a start, an older one confirmed",
            Some((old, START, CONFIRMED)),
            start(),
            refused(),
        ),
        (
            "a start, tried",
            Some((EPOCH, START, TRIED)),
            start(),
            refused(),
        ),
        (
            "a ghost",
            Some((EPOCH, START, CONFIRMED)),
            start(),
            up(&request(), &["received", "ghost"]),
        ),
        (
            "a start, and another one since",
            Some((EPOCH, 5, CONFIRMED)),
            start(),
            up(&request(), &["received"]),
        ),
        (
            "a start, a newer one tried",
            Some((new, START, TRIED)),
            start(),
            stale(),
        ),
        (
            "a start, a newer one confirmed",
            Some((new, START, CONFIRMED)),
            start(),
            stale(),
        ),
        (
            "a start, half the circle off",
            Some((far, START, CONFIRMED)),
            start(),
            stale(),
        ),
        (
            "a start, given back: nobody else may run it as well",
            Some((EPOCH, START, REFUSED)),
            start(),
            given_back(),
        ),
        (
            "a start, an older one given back",
            Some((old, START, REFUSED)),
            start(),
            refused(),
        ),
        (
            "a start, and another one since given back",
            Some((EPOCH, 5, REFUSED)),
            start(),
            early(),
        ),
        (
            "a start, a newer one given back",
            Some((new, START, REFUSED)),
            start(),
            stale(),
        ),
        (
            "more, given back",
            Some((EPOCH, START, REFUSED)),
            more(),
            early(),
        ),
        ("more, nothing known", None, more(), early()),
        (
            "more, an older one tried",
            Some((old, START, TRIED)),
            more(),
            early(),
        ),
        (
            "more, an older one confirmed",
            Some((old, START, CONFIRMED)),
            more(),
            early(),
        ),
        ("more, tried", Some((EPOCH, START, TRIED)), more(), early()),
        (
            "more, confirmed",
            Some((EPOCH, START, CONFIRMED)),
            more(),
            up(&later(), &["received"]),
        ),
        (
            "more, a newer one tried",
            Some((new, START, TRIED)),
            more(),
            stale(),
        ),
        (
            "more, a newer one confirmed",
            Some((new, START, CONFIRMED)),
            more(),
            stale(),
        ),
        (
            "RST at the start",
            Some((EPOCH, START, TRIED)),
            forward(&segment(RST, START, 0, b"x")),
            early(),
        ),
    ];
    for (what, known, frame, expected) in table {
        agent.forget();
        if let Some((epoch, start, state)) = known {
            agent.put_setup(&request(), epoch, start, state);
        }
        let before = agent.maps.setups.all().unwrap();
        agent.expect(what, &frame, &expected);
        if expected.counted.contains(&"no-listener") {
            let setup = agent.setup(&request()).expect("it is remembered");
            let found = (setup.epoch, setup.start, setup.state);
            assert_eq!(found, (EPOCH, START, REFUSED), "{what}");
            assert_eq!(setup.meta, frame[META_AT..INNER_AT], "{what}");
        } else {
            assert_eq!(agent.maps.setups.all().unwrap(), before, "{what}");
        }
    }
}

#[test]
fn probes_are_answered_for_what_was_set_up() {
    let agent = Agent::new();
    let probe = sealed(&meta(Kind::Probe, EPOCH, START), &later().packet());
    let received = ClientSeq::new(later().seq);
    let answer = meta(
        Kind::ProbeAnswer {
            received,
            sender: None,
        },
        EPOCH,
        START,
    );
    let answered = Outcome::new(Verdict::SendBack, reply(&answer, &later()), &[]);
    let early = Outcome::drop("early");
    agent.expect("nothing known", &probe, &early);
    for (what, epoch, state, expected) in [
        ("come and gone", EPOCH, CONFIRMED, &answered),
        ("only tried", EPOCH, TRIED, &early),
        ("given back", EPOCH, REFUSED, &early),
        ("an older one", EPOCH - 1, CONFIRMED, &early),
        ("a newer one", EPOCH + 1, CONFIRMED, &early),
    ] {
        agent.put_setup(&request(), epoch, START, state);
        agent.expect(what, &probe, expected);
    }
}

#[test]
fn icmp_errors_are_unpacked() {
    let agent = Agent::new();
    let error = icmp(
        Ipv4Addr::new(203, 0, 113, 5),
        *VIP.ip(),
        3,
        4,
        &request().packet()[..28],
    );
    let frame = sealed(&meta(Kind::Icmp, EPOCH, START), &error);
    agent.expect(
        "fragmentation needed",
        &frame,
        &delivered(&error, &["received"]),
    );
}

#[test]
fn padding_goes_up_with_the_packet() {
    let agent = Agent::new();
    agent.put_setup(&later(), EPOCH, START, CONFIRMED);
    let padding = [0xee; 9];
    let frame = [forward(&later()), padding.to_vec()].concat();
    let inner = [later().packet(), padding.to_vec()].concat();
    agent.expect("rubbish behind", &frame, &delivered(&inner, &["received"]));
}

#[test]
fn what_leaves_shows_that_the_socket_came_to_be() {
    let agent = Agent::new();
    let answer = Tcp {
        source: VIP,
        dest: CLIENT,
        ..segment(ACK, SERVER_ISN + 1, START, b"HTTP/1.1 200 OK")
    };
    let run = |frame: &[u8], counted: &[&'static str]| {
        let expected = Outcome::new(Verdict::Next, frame.to_vec(), counted);
        assert_eq!(agent.run(&agent.egress, frame).difference(&expected), None);
    };
    run(&answer.frame(), &[]);
    agent.put_setup(&request(), EPOCH, START, TRIED);
    run(&request().frame(), &[]);
    run(&with(answer.frame(), &[(ETHERNET + 9, UDP)]), &[]);
    run(&ethernet(OUR_MAC, THEIR_MAC, 0x86dd, &[0; 60]), &[]);
    run(&answer.frame()[..TCP_AT + 3], &[]);
    assert_eq!(agent.setup(&request()).unwrap().state, TRIED);
    run(&answer.frame(), &["confirmed"]);
    assert_eq!(agent.setup(&request()).unwrap().state, CONFIRMED);
    run(&answer.frame(), &[]);
    agent.put_setup(&request(), EPOCH, START, REFUSED);
    run(&answer.frame(), &[]);
    assert_eq!(agent.setup(&request()).unwrap().state, REFUSED);
}
