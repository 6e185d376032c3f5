//! Connections that dispatchers open to servers at a backend: what becomes of the server's
//! packets, as the model in core has it (docs/protocol/splice.md 8).

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
use std::time::Duration;

use trapeze_core::config::Transfer;
use trapeze_core::flow::{FlowKey as CoreKey, Handshake, WindowScales};
use trapeze_core::intake::Isns;
use trapeze_core::seq::{ClientSeq, ServerSeq};
use trapeze_core::splice::Splice;
use trapeze_core::splice::connect::{Connect, Step};
use trapeze_core::wire::meta::{Care, Kind, Meta};
use trapeze_core::wire::segment::Segment;
use trapeze_core::wire::tcp::{Header, Timestamps};
use trapeze_datapath::abi::Split;

use crate::backend::*;
use crate::bench::*;
use crate::handoff::wait_for;
use crate::outcome::{Outcome, Verdict};
use crate::packet::*;
use crate::rebuild::accept;
use crate::splice::{ends, headers, option_lists};

const OWN: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 99), 5001);
const SERVER: SocketAddrV4 = SocketAddrV4::new(HERE, 8080);
const THEIR_ISN: u32 = 0xffff_fffe;
const CLOCKS: Timestamps = Timestamps {
    value: 0x0102_0304,
    echo: 0x8000_0000,
};
const KEY: (SocketAddrV4, SocketAddrV4) = (OWN, SERVER);

fn agreed() -> Vec<Handshake> {
    let whole = Handshake {
        window_scales: Some(WindowScales { client: 3, ours: 9 }),
        sack: true,
        timestamps: true,
        ecn: true,
        ..HANDSHAKE
    };
    vec![
        whole,
        Handshake {
            timestamps: false,
            ..whole
        },
        Handshake {
            mss: 536,
            ..Handshake::default()
        },
    ]
}

fn open(handshake: Handshake, client_isn: u32) -> (Connect, Tcp) {
    let isns = Isns {
        client: ClientSeq::new(client_isn),
        server: ServerSeq::new(SERVER_ISN),
    };
    let handshake = (handshake, Some(CLOCKS));
    let (connect, syn) =
        Connect::begin(Duration::ZERO, Transfer::SplitSplice, KEY, isns, handshake);
    (connect, of_client(&syn.header))
}

/// The client's, as the dispatcher encloses it.
fn of_client(header: &Header) -> Tcp {
    let key = CoreKey {
        client: CLIENT.into(),
        vip: VIP.into(),
    };
    let packet = Segment::of_client(&key, *header).to_packet();
    let length = usize::from(packet[32] >> 4) * 4;
    Tcp {
        options: packet[40..20 + length].to_vec(),
        window: header.window,
        ..segment(header.flags.bits(), header.seq, header.ack, b"")
    }
}

fn word(connect: &Connect, syn: &Tcp) -> Vec<u8> {
    sealed(
        &connect.word(Care::default()).expect("it is split"),
        &syn.packet(),
    )
}

fn from_server(flags: u8, seq: u32, options: Vec<u8>, payload: &[u8]) -> Tcp {
    Tcp {
        source: SERVER,
        dest: OWN,
        options,
        ..segment(flags, seq, CLIENT_ISN.wrapping_add(1), payload)
    }
}

fn syn_ack(options: Vec<u8>) -> Tcp {
    from_server(SYN | ACK, THEIR_ISN, options, b"")
}

fn noted(agent: &Agent) -> Option<Split> {
    agent.maps.splits.get(&flow_key(OWN, SERVER)).unwrap()
}

/// All that a server might answer.
fn answers() -> Vec<Vec<u8>> {
    let (mss, scale) = (vec![2, 4, 5, 0xb4], vec![1, 3, 3, 13]);
    let clocks = timestamps(0xffff_0000, CLOCKS.value);
    vec![
        vec![],
        mss.clone(),
        [mss.clone(), scale.clone()].concat(),
        [mss.clone(), vec![4, 2], clocks[2..].to_vec(), scale].concat(),
        [mss, clocks].concat(),
    ]
}

#[test]
fn a_syn_goes_up_as_the_dispatchers_own() {
    let agent = Agent::new();
    for handshake in agreed() {
        let (connect, syn) = open(handshake, CLIENT_ISN);
        let own = Tcp {
            source: OWN,
            dest: SERVER,
            ..syn.clone()
        };
        let frame = word(&connect, &syn);
        agent.expect("a SYN", &frame, &delivered(&own.packet(), &["received"]));
        let first = noted(&agent).expect("it is noted");
        assert_eq!(
            (first.client, first.vip),
            (CLIENT.ip().octets(), VIP.ip().octets())
        );
        assert_eq!(
            (first.client_isn, first.known_isn),
            (CLIENT_ISN, SERVER_ISN)
        );
        agent.expect("again", &frame, &delivered(&own.packet(), &["received"]));
        assert_eq!(noted(&agent), Some(first), "what is known stays");
    }
}

#[test]
fn only_a_proved_syn_is_noted() {
    let agent = Agent::new();
    let (connect, syn) = open(HANDSHAKE, CLIENT_ISN);
    let mut forged = word(&connect, &syn);
    forged[crate::agent::META_AT + 8] ^= 1;
    agent.expect("another address", &forged, &Outcome::drop("bad-tag"));
    for flags in [ACK, SYN | ACK, SYN | FIN, RST] {
        let other = Tcp {
            flags,
            ..syn.clone()
        };
        let frame = word(&connect, &other);
        agent.expect("no SYN", &frame, &Outcome::drop("bad-encapsulation"));
    }
    assert_eq!(noted(&agent), None);
}

/// The dispatcher knows the server's SYN-ACK, and so does the agent.
#[test]
fn what_a_server_says_becomes_the_services() {
    let agent = Agent::new();
    let key = CoreKey {
        client: CLIENT.into(),
        vip: VIP.into(),
    };
    for handshake in agreed() {
        for answer in answers() {
            for options in option_lists() {
                let (mut connect, syn) = open(handshake, CLIENT_ISN);
                agent.run(&agent.ingress, &word(&connect, &syn));
                let answer = syn_ack(answer.clone());
                let untouched = Outcome::untouched(&answer.frame());
                let what = format!("{handshake:?} {answer:?} {options:?}");
                let passed = agent.run(&agent.egress, &answer.frame());
                assert_eq!(passed.difference(&untouched), None, "{what}");
                let Step::Open(open) = connect.on_segment(&headers(&answer.frame()).0) else {
                    panic!("{what}: it is open");
                };
                let said = from_server(
                    ACK | PSH,
                    THEIR_ISN.wrapping_add(1),
                    options.clone(),
                    REQUEST,
                );
                let outcome = agent.run(&agent.egress, &said.frame());
                assert_eq!(outcome.verdict, Verdict::SendBack, "{what}");
                assert_eq!(outcome.counted, ["spliced-to-client", "split"], "{what}");
                let got = outcome.packet.unwrap();
                let (from, to, ..) = ends(&got);
                assert_eq!((from, to), (*VIP.ip(), *CLIENT.ip()), "{what}");
                let (header, bytes) = headers(&got);
                let to_client = Splice::to_client(&open.splice, &key, headers(&said.frame()).0);
                assert_eq!(header, to_client, "{what}");
                assert_eq!(bytes, REQUEST, "{what}");
                assert_eq!(noted(&agent), None, "its socket has it: {what}");
            }
        }
    }
}

#[test]
fn a_syn_ack_again_has_the_clock_of_the_first() {
    let agent = Agent::new();
    let (connect, syn) = open(agreed()[0], CLIENT_ISN);
    agent.run(&agent.ingress, &word(&connect, &syn));
    let at = |clock: u32| syn_ack([vec![2, 4, 5, 0xb4], timestamps(clock, CLOCKS.value)].concat());
    let pass = |answer: Tcp| headers(&agent.run(&agent.egress, &answer.frame()).packet.unwrap()).0;
    let first = pass(at(1000));
    assert_eq!(pass(at(4000)), first);
    // The SYN was sent again, too.
    agent.run(&agent.ingress, &word(&connect, &syn));
    assert_eq!(pass(at(9000)), first);
    assert_eq!(noted(&agent).unwrap().clock, 1000);
    // Not that socket's any more.
    let other = Tcp {
        seq: 77,
        ..at(9500)
    };
    assert_eq!(pass(other.clone()), headers(&other.frame()).0);
    assert_eq!(noted(&agent).unwrap().server_isn, 77);
}

#[test]
fn what_is_not_known_for_sure_is_left_to_the_dispatcher() {
    let agent = Agent::new();
    let expect = |what: &str, packet: &Tcp| {
        let outcome = agent.run(&agent.egress, &packet.frame());
        let untouched = Outcome::untouched(&packet.frame());
        assert_eq!(outcome.difference(&untouched), None, "{what}");
    };
    let next = THEIR_ISN.wrapping_add(1);
    let said = from_server(ACK, next, vec![], REQUEST);
    expect("of no word", &said);
    let (connect, syn) = open(HANDSHAKE, CLIENT_ISN);
    agent.run(&agent.ingress, &word(&connect, &syn));
    expect("before its SYN-ACK", &said);
    let other = Tcp {
        ack: CLIENT_ISN.wrapping_add(2),
        ..syn_ack(vec![])
    };
    expect("an answer to another SYN", &other);
    expect("before its own SYN-ACK", &said);
    agent.run(&agent.egress, &syn_ack(vec![]).frame());
    for seq in [THEIR_ISN, next.wrapping_add(1)] {
        expect("from elsewhere", &from_server(ACK, seq, vec![], REQUEST));
    }
    let other = Tcp {
        source: SocketAddrV4::new(HERE, 8081),
        ..said.clone()
    };
    expect("of another port", &other);
    let reset = from_server(RST | ACK, next, vec![], b"");
    let outcome = agent.run(&agent.egress, &reset.frame());
    assert_eq!(
        outcome.verdict,
        Verdict::Next,
        "dispatchers hear of a reset"
    );
    assert_eq!(outcome.packet.unwrap(), reset.frame());
}

/// A frame of the dispatcher's for the server itself.
fn plain(flags: u8, seq: u32, ack: u32, payload: &[u8]) -> Vec<u8> {
    Tcp {
        source: OWN,
        dest: SERVER,
        ..segment(flags, seq, ack, payload)
    }
    .frame()
}

fn on_the_wire() -> Agent {
    let agent = Agent::on_the_wire();
    let route = format!("route add {}/32 dev lo", OWN.ip());
    let added = std::process::Command::new("ip")
        .args(route.split(' '))
        .status();
    assert!(added.unwrap().success());
    agent
}

fn probe(seq: u32) -> (Meta, Tcp) {
    let probe = Meta {
        start: ClientSeq::new(0),
        server_port: SERVER.port(),
        ..meta(Kind::SplitProbe { own: OWN }, EPOCH, 0)
    };
    (probe, segment(ACK, seq, 0, b""))
}

#[test]
fn a_servers_socket_has_its_flow_until_it_goes_or_its_port_is_used_again() {
    let agent = on_the_wire();
    let server = TcpListener::bind(SERVER).unwrap();
    let bare = Handshake {
        mss: 1000,
        ..Handshake::default()
    };
    let (connect, syn) = open(bare, CLIENT_ISN);
    let frame = word(&connect, &syn);
    agent.receive("a SYN", &frame, &["received"]);
    wait_for("the SYN-ACK", || {
        noted(&agent).is_some_and(|n| n.answered == 1)
    });
    let isn = noted(&agent).unwrap().server_isn;
    let (first, theirs) = (CLIENT_ISN.wrapping_add(1), isn.wrapping_add(1));

    let reached = |seq: u32| {
        let (meta, question) = probe(seq);
        let outcome = agent.run(&agent.ingress, &sealed(&meta, &question.packet()));
        let packet = outcome.packet?;
        let at = crate::agent::META_AT;
        Some((
            packet[at + 3],
            u32::from_be_bytes(*packet[at + 20..].first_chunk().unwrap()),
        ))
    };
    assert_eq!(
        reached(first),
        None,
        "what ends its handshake is on its way"
    );
    // The listener speaks for it, and is none of the connection's.
    let elsewhere = plain(ACK, first.wrapping_add(1 << 30), theirs, b"x");
    agent.receive("what lies elsewhere", &elsewhere, &[]);
    assert!(noted(&agent).is_some());
    let request = plain(ACK | PSH, first, theirs, REQUEST);
    agent.receive("a request", &request, &["spliced-to-client", "split"]);
    assert_eq!(noted(&agent), None);
    let end = first.wrapping_add(REQUEST.len() as u32);
    assert_eq!(
        reached(7),
        Some((1, end)),
        "it stands, and has had the request"
    );
    let mut stream = accept(&server);
    agent.expect_count(
        "an answer",
        || {
            stream
                .write_all(b"HTTP/1.1 204 No Content\r\n\r\n")
                .unwrap()
        },
        &["spliced-to-client"],
    );

    // It stands: what it says to a SYN, its client can hear.
    agent.receive("the SYN again", &frame, &["received", "spliced-to-client"]);
    assert_eq!(noted(&agent), None, "it is open already");
    // Another flow's: that is for the dispatcher, who resets it.
    let (connect, syn) = open(bare, CLIENT_ISN.wrapping_add(0x1000_0000));
    let frame = word(&connect, &syn);
    agent.receive("another SYN", &frame, &["received"]);
    agent.expect_count(
        "what it says then",
        || stream.write_all(b"more").unwrap(),
        &[],
    );
    agent.receive("its reset", &plain(RST, end, 0, b""), &[]);
    agent.receive("the SYN again", &frame, &["received"]);
    wait_for("the SYN-ACK", || {
        noted(&agent).is_some_and(|n| n.answered == 1)
    });
    let theirs = noted(&agent).unwrap().server_isn.wrapping_add(1);
    let first = CLIENT_ISN.wrapping_add(0x1000_0001);
    let request = plain(ACK | PSH, first, theirs, REQUEST);
    agent.receive("its request", &request, &["spliced-to-client", "split"]);
    let end = first.wrapping_add(REQUEST.len() as u32);
    agent.receive("the end", &plain(RST, end, 0, b""), &[]);
    assert_eq!(reached(7), Some((0, 7)), "it has come and gone");
}

/// A connection of a dispatcher's to a server here, whose answers are followed; its first request has been read.
struct Opened {
    agent: Agent,
    stream: TcpStream,
    _server: TcpListener,
    /// The server's first byte, in its own numbers.
    theirs: u32,
    /// Where its next request starts.
    start: u32,
}

fn bare() -> Handshake {
    Handshake {
        mss: 1000,
        ..Handshake::default()
    }
}

fn follow() -> Care {
    Care {
        follow: true,
        ..Care::default()
    }
}

/// Kinds of words to a dispatcher.
const RELEASED: u8 = 13;
const HELD: u8 = 11;

impl Opened {
    fn new() -> Self {
        let agent = on_the_wire();
        let server = TcpListener::bind(SERVER).unwrap();
        let (connect, syn) = open(bare(), CLIENT_ISN);
        let word = sealed(&connect.word(follow()).unwrap(), &syn.packet());
        agent.receive("a SYN", &word, &["received"]);
        wait_for("the SYN-ACK", || {
            noted(&agent).is_some_and(|n| n.answered == 1)
        });
        let (first, theirs) = (
            CLIENT_ISN.wrapping_add(1),
            noted(&agent).unwrap().server_isn.wrapping_add(1),
        );
        let request = plain(ACK | PSH, first, theirs, REQUEST);
        agent.receive("a request", &request, &["spliced-to-client", "split"]);
        Self {
            stream: accept(&server),
            start: first.wrapping_add(REQUEST.len() as u32),
            agent,
            _server: server,
            theirs,
        }
    }

    /// May it leave before the request at `start`? Kind, reason, start and end of the answer.
    fn ask(&self, epoch: u32, start: u32, requests: u16, reach: u32) -> (u8, u8, u32, u32) {
        let release = Meta {
            server_port: SERVER.port(),
            requests,
            ..meta(
                Kind::SplitRelease {
                    own: OWN,
                    reach: ClientSeq::new(reach),
                },
                epoch,
                start,
            )
        };
        let segment = segment(ACK, start, SERVER_ISN + 1, b"");
        let frame = sealed(&release, &segment.packet());
        let outcome = self.agent.run(&self.agent.ingress, &frame);
        let at = crate::agent::META_AT;
        let packet = outcome.packet.as_ref().expect("it is answered");
        let word = |at: usize| u32::from_be_bytes(*packet[at..].first_chunk().unwrap());
        (packet[at + 1], packet[at + 3], word(at + 8), word(at + 20))
    }

    /// The server says this, of which its client has heard nothing yet.
    fn answer(&mut self, answer: &[u8]) {
        self.stream.write_all(answer).unwrap();
        wait_for("its answer has left", || {
            self.ask(EPOCH + 1, self.start, 1, self.start).1 == 2
        });
    }
}

const ANSWER: &[u8] = b"HTTP/1.1 204 No Content\r\n\r\n";

/// Between two requests its socket is given up, once, and what is late wakes nobody.
#[test]
fn a_connection_leaves_when_its_answer_has_been_had() {
    let mut opened = Opened::new();
    let start = opened.start;
    let ask = |opened: &Opened, epoch: u32, start: u32, requests: u16| {
        opened.ask(epoch, start, requests, start)
    };
    assert_eq!(
        ask(&opened, EPOCH + 1, start, 1),
        (HELD, 1, start, 0),
        "it owes an answer"
    );
    opened.answer(ANSWER);
    let end = (SERVER_ISN + 1).wrapping_add(ANSWER.len() as u32);
    let has_all = opened.theirs.wrapping_add(ANSWER.len() as u32);
    let agent = &opened.agent;
    agent.receive("the client has it", &plain(ACK, start, has_all, b""), &[]);
    let (another, before, behind) = (
        ask(&opened, EPOCH + 1, start, 2),
        ask(&opened, EPOCH + 1, start + 1, 1),
        ask(&opened, EPOCH + 1, start - 1, 0),
    );
    assert_eq!(another.1, 1, "of another request");
    assert_eq!(before.1, 1, "before another one");
    assert_eq!(behind.1, 3, "it has been given that");

    let given = (RELEASED, 1, start, end);
    assert_eq!(ask(&opened, EPOCH + 1, start, 1), given);
    let mut stream = opened.stream.try_clone().unwrap();
    wait_for("its socket is gone", || {
        std::io::ErrorKind::ConnectionReset
            == stream
                .write(b"x")
                .map_or_else(|e| e.kind(), |_| std::io::ErrorKind::Other)
            || stream.take_error().unwrap().is_some()
    });
    assert_eq!(ask(&opened, EPOCH + 1, start, 1), given, "again");
    let (meta, question) = probe(7);
    let question = sealed(&meta, &question.packet());
    agent.receive("whether it has gone", &question, &["early"]);
    let by_another = ask(&opened, EPOCH + 2, start, 1);
    assert_eq!(by_another, (HELD, 4, start, 0), "by another");
    let late = plain(ACK, start, has_all, b"");
    agent.receive("what is late", &late, &["moved"]);
    // The port is used again.
    let (connect, syn) = open(bare(), CLIENT_ISN.wrapping_add(0x2000_0000));
    let word = sealed(&connect.word(follow()).unwrap(), &syn.packet());
    agent.receive("another SYN", &word, &["received"]);
    assert_eq!(ask(&opened, EPOCH + 1, start, 1).1, 4, "not that one's");
}

/// From beyond its window a socket hears nothing (RFC 9293 §3.10.7.4); its client may have been told
/// that what waits at the dispatcher has come.
#[test]
fn who_asks_ahead_is_heard_from_the_edge_of_the_window() {
    let mut opened = Opened::new();
    let start = opened.start;
    opened.answer(ANSWER);
    let has_all = opened.theirs.wrapping_add(ANSWER.len() as u32);
    let far = start.wrapping_add(1 << 20);
    let agent = &opened.agent;
    let goes_from = |flags: u8, seq: u32, payload: &[u8]| {
        let outcome = agent.run(&agent.ingress, &plain(flags, seq, has_all, payload));
        assert_eq!(
            (outcome.verdict, &outcome.counted[..]),
            (Verdict::Next, &[][..])
        );
        headers(&outcome.packet.unwrap()).0.seq
    };
    let edge = goes_from(ACK, far, b"");
    assert!(
        edge.wrapping_sub(start) < 1 << 16,
        "a window without a scale"
    );
    for (seq, goes) in [(start, start), (edge, edge), (edge.wrapping_add(1), edge)] {
        assert_eq!(goes_from(ACK, seq, b""), goes);
    }
    assert_eq!(goes_from(ACK, far, b"bytes"), far, "they come again");
    for flags in [ACK | FIN, ACK | RST, RST, SYN] {
        assert_eq!(goes_from(flags, far, b""), far, "{flags}");
    }
    let other = Tcp {
        source: SocketAddrV4::new(*OWN.ip(), OWN.port() + 1),
        dest: SERVER,
        ..segment(ACK, far, has_all, b"")
    };
    agent.expect(
        "nobody's",
        &other.frame(),
        &Outcome::untouched(&other.frame()),
    );

    let held = opened.ask(EPOCH + 1, start, 1, start);
    assert_eq!((held.0, held.1), (HELD, 2), "its client has not had all");
    agent.receive("the client has it", &plain(ACK, far, has_all, b""), &[]);
    assert_eq!(opened.ask(EPOCH + 1, start, 1, start).0, RELEASED);
}
