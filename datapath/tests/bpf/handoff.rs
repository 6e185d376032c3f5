//! How a backend gives a connection up between two requests: HANDOFF and RELEASE
//! against a server's real socket (docs/protocol/handoff.md 4, 5).

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use trapeze_core::flow::Handshake;
use trapeze_core::seq::{ClientSeq, ServerSeq};
use trapeze_core::wire::geneve;
use trapeze_core::wire::meta::{Care, Held, Kind, Leave, Meta};
use trapeze_datapath::abi::Node;
use trapeze_datapath::clock;
use trapeze_datapath::map::Update;
use trapeze_datapath::packet_socket::{Batch, PacketSocket};

use crate::agent::{META_AT, START};
use crate::backend::*;
use crate::bench::*;
use crate::outcome::{Outcome, Verdict};
use crate::packet::*;
use crate::rebuild::accept;

pub const NEXT: Ipv4Addr = NEIGHBOUR;
pub const OTHER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 14);

/// `enum setup_state`.
pub const MOVED: u32 = 4;

pub const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
/// The server's first byte.
pub const FIRST: u32 = SERVER_ISN + 1;
/// Where the second request starts.
pub const SECOND: u32 = START.wrapping_add(REQUEST.len() as u32);
/// The epoch of the move.
pub const MOVE: u32 = EPOCH + 1;

pub fn end_of(answer: &[u8]) -> u32 {
    FIRST + answer.len() as u32
}

/// A server here that has been given a request.
pub struct Owner {
    pub agent: Agent,
    pub server: TcpListener,
    pub stream: TcpStream,
}

impl Owner {
    pub fn new() -> Self {
        Self::with(HANDSHAKE, request())
    }

    pub fn with(handshake: Handshake, request: Tcp) -> Self {
        Self::with_option(
            Meta {
                handshake,
                ..followed(Kind::Forward, EPOCH, START)
            },
            request,
        )
    }

    pub fn with_option(meta: Meta, request: Tcp) -> Self {
        let agent = Agent::on_the_wire();
        let server = TcpListener::bind(VIP).unwrap();
        let frame = sealed(&meta, &request.packet());
        agent.receive("the first", &frame, &["received", "rebuilt", "confirmed"]);
        let mut stream = accept(&server);
        assert_eq!(read(&mut stream), REQUEST);
        Self {
            agent,
            server,
            stream,
        }
    }

    /// And has answered it.
    pub fn answered() -> Self {
        let mut owner = Self::new();
        owner.answer(ANSWER);
        owner
    }

    pub fn answer(&mut self, bytes: &[u8]) {
        let before = self.agent.setup(&request()).unwrap().answers.next;
        self.stream.write_all(bytes).unwrap();
        wait_for("the answer is seen", || {
            let setup = self.agent.setup(&request()).unwrap();
            setup.answers.next == before + bytes.len() as u32
        });
    }

    /// The client's answer to that.
    pub fn acknowledge(&self, ack: u32) {
        let segment = segment(ACK, SECOND, ack, b"");
        let meta = followed(Kind::Forward, EPOCH, START);
        let frame = sealed(&meta, &segment.packet());
        self.agent.receive("an ACK", &frame, &["received"]);
    }

    pub fn run(&self, frame: &[u8]) -> Outcome {
        self.agent.run(&self.agent.ingress, frame)
    }

    pub fn expect(&self, what: &str, frame: &[u8], expected: &Outcome) {
        self.agent.expect(what, frame, expected);
    }

    /// The server's socket is gone.
    pub fn expect_reset(&mut self) {
        let error = self.stream.read(&mut [0; 9]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    }

    /// It is gone without a packet.
    pub fn expect_gone(&mut self) {
        let error = self.stream.read(&mut [0; 9]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionAborted);
    }

    /// It is there, and has nothing to read.
    pub fn expect_alive(&mut self) {
        std::thread::sleep(Duration::from_millis(20));
        self.stream.set_nonblocking(true).unwrap();
        let error = self.stream.read(&mut [0; 9]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        self.stream.set_nonblocking(false).unwrap();
    }
}

pub fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(2);
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub fn read(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = [0; 1000];
    let length = stream.read(&mut bytes).unwrap();
    bytes[..length].to_vec()
}

pub fn followed(kind: Kind, epoch: u32, start: u32) -> Meta {
    let care = Care {
        follow: true,
        ..Care::default()
    };
    Meta {
        care,
        ..meta(kind, epoch, start)
    }
}

/// Nothing that waits for it has been acknowledged.
pub fn asks_for(half_pipe: bool, start: u32) -> Kind {
    let leave = match half_pipe {
        true => Leave::HalfPipe,
        false => Leave::Drained,
    };
    Kind::Release {
        leave,
        reach: ClientSeq::new(start),
    }
}

pub fn handoff(next: Ipv4Addr) -> Meta {
    Meta {
        requests: 1,
        ..followed(Kind::Handoff { next }, MOVE, SECOND)
    }
}

pub fn release() -> Meta {
    Meta {
        requests: 1,
        ..followed(asks_for(false, SECOND), MOVE, SECOND)
    }
}

/// The second request, of a client that has had the first answer.
pub fn second() -> Tcp {
    segment(
        ACK | PSH,
        SECOND,
        end_of(ANSWER),
        b"GET /2 HTTP/1.1\r\n\r\n",
    )
}

pub fn probe() -> Tcp {
    segment(ACK, SECOND, end_of(ANSWER), b"")
}

/// As the dispatcher itself would have sent it there.
pub fn handed_on(tcp: &Tcp, counted: &[&'static str]) -> Outcome {
    let meta = followed(Kind::Forward, MOVE, SECOND);
    let frame = sealed_for(NEXT, &meta, &tcp.packet());
    Outcome::new(Verdict::SendBack, frame, counted)
}

pub fn held(reason: Held, of: &Tcp) -> Outcome {
    held_after(1, reason, of)
}

/// The question said that the owner had had so many requests; so does the answer.
fn held_after(requests: u16, reason: Held, of: &Tcp) -> Outcome {
    let meta = Meta {
        requests,
        ..followed(Kind::Held(reason), MOVE, SECOND)
    };
    Outcome::new(Verdict::SendBack, reply(&meta, of), &["held"])
}

#[test]
fn a_request_goes_on_to_the_next_owner() {
    let mut owner = Owner::answered();
    let sniffer = PacketSocket::open("lo").unwrap();
    let frame = sealed(&handoff(NEXT), &second().packet());
    let on = handed_on(&second(), &["given-up", "handed-on"]);
    owner.expect("the request", &frame, &on);
    owner.expect_reset();
    let setup = owner.agent.setup(&second()).unwrap();
    assert_eq!(
        (setup.state, setup.epoch, setup.start),
        (MOVED, MOVE, SECOND)
    );
    assert_eq!(setup.next, NEXT.octets());

    let again = handed_on(&second(), &["handed-on"]);
    owner.expect("again", &frame, &again);
    let ack = probe();
    let frame = sealed(&handoff(NEXT), &ack.packet());
    owner.expect("what follows", &frame, &handed_on(&ack, &["handed-on"]));

    let stale = Outcome::drop("stale-epoch");
    let late = followed(Kind::Forward, EPOCH, START);
    owner.expect(
        "a late copy of the first",
        &sealed(&late, &request().packet()),
        &stale,
    );
    owner.expect("a late ACK", &sealed(&late, &ack.packet()), &stale);
    let theirs = followed(Kind::Forward, MOVE, SECOND);
    owner.expect(
        "what the next owner has",
        &sealed(&theirs, &second().packet()),
        &stale,
    );
    owner.expect("and its ACK", &sealed(&theirs, &ack.packet()), &stale);
    let other = sealed(&handoff(OTHER), &second().packet());
    owner.expect("to yet another", &other, &stale);
    let release = sealed(&release(), &ack.packet());
    owner.expect("asked for otherwise", &release, &stale);
    let older = Meta {
        epoch: EPOCH,
        ..handoff(NEXT)
    };
    owner.expect("an older one", &sealed(&older, &second().packet()), &stale);

    let mut batch = Batch::default();
    sniffer.receive(&mut batch).unwrap();
    let to_client = |frame: &&[u8]| {
        frame[ETHERNET + 9] == TCP && frame[ETHERNET + 16..ETHERNET + 20] == CLIENT.ip().octets()
    };
    assert_eq!(
        batch.frames().filter(to_client).count(),
        0,
        "the client hears nothing"
    );
}

/// What its socket says after that never leaves.
#[test]
fn who_has_given_up_is_silent() {
    let owner = Owner::answered();
    let frame = sealed(&handoff(NEXT), &second().packet());
    let _ = owner.run(&frame);
    for flags in [ACK, ACK | FIN, RST] {
        let word = Tcp {
            source: VIP,
            dest: CLIENT,
            ..segment(flags, end_of(ANSWER), SECOND, b"")
        };
        let got = owner.agent.run(&owner.agent.egress, &word.frame());
        assert_eq!(got.difference(&Outcome::drop("moved")), None);
    }
}

#[test]
fn what_is_not_over_is_held() {
    type Say = (&'static [u8], bool);
    let table: [(&str, Say, u16, Held); 7] = [
        ("no answer yet", (b"", true), 1, Held::Answering),
        (
            "half a head",
            (b"HTTP/1.1 200 OK\r\n", true),
            1,
            Held::Answering,
        ),
        (
            "half a body",
            (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nx", true),
            1,
            Held::Answering,
        ),
        (
            "no end",
            (b"HTTP/1.1 200 OK\r\n\r\nx", true),
            1,
            Held::Answering,
        ),
        ("another answer owed", (ANSWER, true), 2, Held::Answering),
        (
            "it closes",
            (b"HTTP/1.1 204 x\r\nConnection: close\r\n\r\n", true),
            1,
            Held::Closing,
        ),
        (
            "not acknowledged",
            (ANSWER, false),
            1,
            Held::Unacknowledged {
                end: ServerSeq::new(end_of(ANSWER)),
            },
        ),
    ];
    for (what, (said, drained), requests, reason) in table {
        let mut owner = Owner::new();
        if !said.is_empty() {
            owner.answer(said);
        }
        let ack = end_of(said) - u32::from(!drained);
        let mut request = second();
        request.ack = ack;
        for meta in [handoff(NEXT), release()] {
            let meta = Meta { requests, ..meta };
            let frame = sealed(&meta, &request.packet());
            owner.expect(what, &frame, &held_after(requests, reason, &request));
            let setup = owner.agent.setup(&second()).unwrap();
            assert_eq!((setup.state, setup.epoch), (CONFIRMED, EPOCH), "{what}");
        }
        owner.expect_alive();
        assert_eq!(owner.agent.setup(&second()).unwrap().state, CONFIRMED);
    }
}

#[test]
fn strangers_are_told_so() {
    let agent = Agent::new();
    for meta in [handoff(NEXT), release()] {
        agent.forget();
        let frame = sealed(&meta, &second().packet());
        agent.expect("nothing known", &frame, &held(Held::Stranger, &second()));
        assert_eq!(agent.maps.setups.all().unwrap(), []);
        for state in [TRIED, CONFIRMED, REFUSED, MOVED] {
            agent.put_setup(&second(), EPOCH, START, state);
            agent.expect("no socket", &frame, &held(Held::Stranger, &second()));
            assert_eq!(agent.setup(&second()).unwrap().state, state);
        }
        agent.put_setup(&second(), MOVE + 1, START, CONFIRMED);
        agent.expect("late", &frame, &Outcome::drop("stale-epoch"));
    }
}

/// Its dispatcher may have sent the request another way since.
#[test]
fn a_handoff_that_was_held_is_held_for_ever() {
    let mut owner = Owner::new();
    let frame = sealed(&handoff(NEXT), &second().packet());
    owner.expect("too early", &frame, &held(Held::Answering, &second()));
    owner.answer(ANSWER);
    let end = ServerSeq::new(end_of(ANSWER));
    let unacknowledged = held(Held::Unacknowledged { end }, &second());
    owner.expect("a copy of it", &frame, &unacknowledged);
    let later = Meta {
        epoch: MOVE + 1,
        ..handoff(NEXT)
    };
    let got = owner.run(&sealed(&later, &second().packet()));
    assert_eq!(got.counted, ["given-up", "handed-on"], "another one");
}

/// A server that speaks unasked, or is asked already, keeps the flow.
#[test]
fn bytes_that_nobody_counts_keep_the_flow() {
    let owner = Owner::answered();
    let early = followed(Kind::Forward, EPOCH, START);
    let frame = sealed(&early, &second().packet());
    owner
        .agent
        .receive("the request is here", &frame, &["received"]);
    let frame = sealed(&handoff(NEXT), &second().packet());
    owner.expect("it runs here", &frame, &held(Held::Answering, &second()));

    let mut owner = Owner::answered();
    owner.answer(b"HTTP/1.1 408 ");
    let frame = sealed(&handoff(NEXT), &second().packet());
    owner.expect("more was said", &frame, &held(Held::Answering, &second()));
}

/// Until the client has heard from the next owner, its dispatcher sends all by way of us.
#[test]
fn what_comes_before_the_request_is_for_the_owner() {
    let owner = Owner::answered();
    let at = |seq: u32, flags: u8, payload: &[u8]| segment(flags, seq, end_of(ANSWER), payload);
    let ack = at(SECOND, ACK, b"");
    let heard = at(SECOND + 9, ACK, b"");
    let up = |tcp: &Tcp| delivered(&tcp.packet(), &["received"]);
    let early = || Outcome::drop("early");
    for (what, tcp, expected) in [
        ("an ACK", ack.clone(), up(&ack)),
        ("an ACK of who has asked", heard.clone(), up(&heard)),
        ("the first again", request(), up(&request())),
        ("an RST", at(SECOND, RST, b""), up(&at(SECOND, RST, b""))),
        ("a FIN behind it", at(SECOND, ACK | FIN, b""), early()),
        ("what follows it", at(SECOND + 9, ACK, b"x"), early()),
        ("an RST behind it", at(SECOND + 9, RST, b""), early()),
        (
            "the end of the first and more",
            at(SECOND.wrapping_sub(1), ACK, b"xy"),
            early(),
        ),
    ] {
        owner.expect(what, &sealed(&handoff(NEXT), &tcp.packet()), &expected);
        assert_eq!(
            owner.agent.setup(&second()).unwrap().state,
            CONFIRMED,
            "{what}"
        );
    }
    owner.agent.forget();
    owner.expect(
        "nothing known",
        &sealed(&handoff(NEXT), &ack.packet()),
        &early(),
    );
}

#[test]
fn a_flow_can_come_back() {
    let mut owner = Owner::answered();
    let _ = owner.run(&sealed(&handoff(NEXT), &second().packet()));
    owner.expect_reset();
    let mut third = second();
    third.seq = SECOND + 100;
    third.ack = end_of(ANSWER) + 1000;
    let meta = followed(Kind::Forward, MOVE + 1, third.seq);
    let frame = sealed(&meta, &third.packet());
    let rebuilt = ["received", "rebuilt", "confirmed"];
    owner.agent.receive("A, B, A", &frame, &rebuilt);
    owner.stream = accept(&owner.server);
    assert_eq!(read(&mut owner.stream), third.payload);
    let setup = owner.agent.setup(&second()).unwrap();
    assert_eq!((setup.epoch, setup.state), (MOVE + 1, CONFIRMED));
    assert_eq!((setup.answers.next, setup.answers.finished), (third.ack, 0));

    let stale = Outcome::drop("stale-epoch");
    let late = sealed(&handoff(NEXT), &second().packet());
    owner.expect("a late handoff", &late, &stale);
    let late = sealed(&release(), &probe().packet());
    owner.expect("a late release", &late, &stale);
    owner.expect_alive();
}

/// Even if the reset of its first socket has not come by.
#[test]
fn a_handoff_to_oneself_is_a_new_connection() {
    let mut owner = Owner::answered();
    let frame = sealed(&handoff(HERE), &second().packet());
    let counted = ["received", "rebuilt", "replaced", "confirmed", "given-up"];
    owner.agent.receive("to us", &frame, &counted);
    owner.expect_reset();
    owner.stream = accept(&owner.server);
    assert_eq!(read(&mut owner.stream), second().payload);
    let setup = owner.agent.setup(&second()).unwrap();
    assert_eq!(
        (setup.epoch, setup.start, setup.state),
        (MOVE, SECOND, CONFIRMED)
    );
    let forward = sealed(&followed(Kind::Forward, MOVE, SECOND), &second().packet());
    assert_eq!(
        setup.meta,
        forward[META_AT..META_AT + 32],
        "as its dispatcher seals it"
    );
    owner.agent.receive("again", &frame, &["received"]);
    owner.agent.receive("from then on", &forward, &["received"]);
    owner.expect_alive();
}

#[test]
fn the_next_owner_goes_on_from_the_clock_of_the_one_before() {
    let handshake = Handshake {
        timestamps: true,
        ..HANDSHAKE
    };
    let echo = 0xffff_fff0;
    let with_echo = |tcp: Tcp, echo| Tcp {
        options: timestamps(7, echo),
        ..tcp
    };
    let mut owner = Owner::with(handshake, with_echo(request(), echo));
    owner.answer(ANSWER);
    std::thread::sleep(Duration::from_millis(50));
    let second = with_echo(second(), echo);
    let on = |next| {
        let meta = Meta {
            handshake,
            ..handoff(next)
        };
        sealed(&meta, &second.packet())
    };
    let got = owner.run(&on(NEXT));
    let packet = got.packet.as_ref().unwrap();
    let at = packet.len() - second.payload.len() - 4;
    let clock = u32::from_be_bytes(*packet[at..].first_chunk().unwrap());
    assert!((50..5000).contains(&clock.wrapping_sub(echo)), "{clock:x}");
    // Its checksum is right, too.
    let meta = Meta {
        handshake,
        ..followed(Kind::Forward, MOVE, SECOND)
    };
    let frame = sealed_for(NEXT, &meta, &with_echo(second.clone(), clock).packet());
    let expected = Outcome::new(Verdict::SendBack, frame, &["given-up", "handed-on"]);
    assert_eq!(got.difference(&expected), None);
}

#[test]
fn a_release_is_answered_with_end_and_clock() {
    let handshake = Handshake {
        timestamps: true,
        ..HANDSHAKE
    };
    let echo = 0xffff_fff0;
    let request = Tcp {
        options: timestamps(7, echo),
        ..request()
    };
    let mut owner = Owner::with(handshake, request);
    let begun = Instant::now();
    owner.answer(ANSWER);
    let mut ack = probe();
    ack.options = timestamps(9, echo);
    let ask = Meta {
        handshake,
        ..release()
    };
    let frame = sealed(&ask, &ack.packet());
    let mut clocks = Vec::new();
    for (what, counted) in [("asked", &["given-up"][..]), ("again", &[])] {
        let got = owner.run(&frame);
        let packet = got.packet.as_ref().unwrap();
        let clock = u32::from_be_bytes(*packet[META_AT + 12..].first_chunk().unwrap());
        let end = ServerSeq::new(end_of(ANSWER));
        let meta = followed(
            Kind::Released {
                end,
                drained: true,
                clock,
            },
            MOVE,
            SECOND,
        );
        let expected = Outcome::new(Verdict::SendBack, reply(&meta, &ack), counted);
        assert_eq!(got.difference(&expected), None, "{what}");
        clocks.push(clock.wrapping_sub(echo));
    }
    let elapsed = begun.elapsed().as_millis() as u32 + 300;
    assert!(clocks[0] <= clocks[1] && clocks[1] <= elapsed, "{clocks:?}");
    owner.expect_reset();
    assert_eq!(owner.agent.setup(&second()).unwrap().next, [0; 4]);

    let stale = Outcome::drop("stale-epoch");
    let on = sealed(&handoff(NEXT), &second().packet());
    owner.expect("a handoff of the same epoch", &on, &stale);
    let other = Meta {
        epoch: MOVE + 1,
        ..ask
    };
    let stranger = {
        let meta = Meta {
            kind: Kind::Held(Held::Stranger),
            ..other
        };
        Outcome::new(Verdict::SendBack, reply(&meta, &ack), &["held"])
    };
    owner.expect(
        "of another epoch",
        &sealed(&other, &ack.packet()),
        &stranger,
    );
}

/// The socket may have heard what its dispatcher has not seen.
#[test]
fn a_release_believes_the_socket_too() {
    let owner = Owner::answered();
    let mut old = probe();
    old.ack = FIRST;
    let frame = sealed(&release(), &old.packet());
    let end = ServerSeq::new(end_of(ANSWER));
    let unacknowledged = held(Held::Unacknowledged { end }, &old);
    owner.expect("not heard", &frame, &unacknowledged);
    owner.acknowledge(end_of(ANSWER));
    assert_eq!(owner.run(&frame).counted, ["given-up"]);
}

/// What a dispatcher needs to know of an idle flow before its owner dies (handoff.md 9.1).
#[test]
fn a_probe_is_told_that_nothing_is_owed() {
    let mut owner = Owner::new();
    let is_idle = |owner: &Owner, requests: u16| {
        let ask = Meta {
            requests,
            ..followed(Kind::Probe, EPOCH, START)
        };
        let packet = segment(ACK, SECOND ^ 1 << 31, FIRST, b"").packet();
        let got = owner.run(&sealed(&ask, &packet)).packet.unwrap();
        let told = geneve::open(&got[ETHERNET + 28..], DISPATCHER.into(), &keys()).unwrap();
        let Kind::ProbeAnswer {
            received,
            sender: Some(sender),
        } = told.meta.kind
        else {
            panic!("{:?}", told.meta);
        };
        sender
            .is_idle
            .then_some((received.raw(), sender.next.raw()))
    };
    assert_eq!(is_idle(&owner, 1), None, "it has not answered");
    owner.answer(ANSWER);
    let end = end_of(ANSWER);
    assert_eq!(is_idle(&owner, 1), None, "the client has not heard it");
    owner.acknowledge(end);
    assert_eq!(is_idle(&owner, 1), Some((SECOND, end)));
    assert_eq!(is_idle(&owner, 2), None, "another one is on its way");
    let next = segment(ACK | PSH, SECOND, end, REQUEST).packet();
    let frame = sealed(&followed(Kind::Forward, EPOCH, START), &next);
    owner.agent.receive("the next", &frame, &["received"]);
    assert_eq!(is_idle(&owner, 1), None, "it has come");
    assert_eq!(is_idle(&owner, 2), None);
}

/// What a dispatcher needs to know of a flow that another one has kept (replication.md 4.6).
#[test]
fn who_does_not_know_how_many_it_was_given_is_told() {
    let mut owner = Owner::new();
    let ask = |owner: &Owner| {
        let ask = followed(Kind::Reckon, EPOCH, START);
        let packet = segment(ACK, SECOND ^ 1 << 31, FIRST, b"").packet();
        let got = owner.run(&sealed(&ask, &packet)).packet.unwrap();
        let told = geneve::open(&got[ETHERNET + 28..], DISPATCHER.into(), &keys()).unwrap();
        (told.meta.kind, told.meta.requests)
    };
    let is_at_work = |(kind, _): (Kind, u16)| match kind {
        Kind::ProbeAnswer {
            received,
            sender: Some(sender),
        } => !sender.is_idle && received.raw() == SECOND,
        _ => false,
    };
    let is_reckoned = |requests| {
        let received = ClientSeq::new(SECOND);
        (Kind::Reckoned { received }, requests)
    };
    assert!(is_at_work(ask(&owner)), "it has not answered");
    owner.answer(ANSWER);
    assert_eq!(
        ask(&owner),
        is_reckoned(1),
        "whether the client has heard it or not"
    );
    let next = segment(ACK | PSH, SECOND, end_of(ANSWER), REQUEST).packet();
    let frame = sealed(&followed(Kind::Forward, EPOCH, START), &next);
    owner.agent.receive("the next", &frame, &["received"]);
    assert!(
        !matches!(ask(&owner).0, Kind::Reckoned { .. }),
        "it has come"
    );
}

/// Kind, epoch and start of an answer.
pub fn told(outcome: Outcome) -> (Kind, u32, u32) {
    let got = outcome.packet.expect("an answer");
    let told = geneve::open(&got[ETHERNET + 28..], DISPATCHER.into(), &keys()).unwrap();
    (told.meta.kind, told.meta.epoch, told.meta.start.raw())
}

/// It has moved, and who keeps it next does not know (replication.md 4.6d).
#[test]
fn who_asks_an_owner_of_before_is_told_where_the_flow_is() {
    let ask = |owner: &Owner, kind: Kind, epoch: u32| {
        let packet = segment(ACK, SECOND ^ 1 << 31, FIRST, b"").packet();
        owner.run(&sealed(&followed(kind, epoch, START), &packet))
    };
    let there = |owner, end| Kind::Elsewhere {
        owner,
        end: ServerSeq::new(end),
    };
    let end = end_of(ANSWER);
    let mut owner = Owner::answered();
    let _ = owner.run(&sealed(&handoff(NEXT), &second().packet()));
    owner.expect_reset();
    let expected = (there(NEXT, end), MOVE, SECOND);
    assert_eq!(told(ask(&owner, Kind::Reckon, EPOCH)), expected);
    let early = Outcome::drop("early");
    assert_eq!(ask(&owner, Kind::Probe, EPOCH), early, "it keeps the flow");
    assert_eq!(ask(&owner, Kind::Reckon, MOVE), early, "the next one's");

    // And back.
    let mut third = second();
    (third.seq, third.ack) = (SECOND + 100, end + 1000);
    let meta = followed(Kind::Forward, MOVE + 1, third.seq);
    let frame = sealed(&meta, &third.packet());
    let rebuilt = ["received", "rebuilt", "confirmed"];
    owner.agent.receive("A, B, A", &frame, &rebuilt);
    owner.stream = accept(&owner.server);
    let expected = (there(HERE, third.ack), MOVE + 1, third.seq);
    assert_eq!(told(ask(&owner, Kind::Reckon, EPOCH)), expected);
    assert_eq!(told(ask(&owner, Kind::Reckon, MOVE)), expected);
    let (kind, epoch, _) = told(ask(&owner, Kind::Reckon, MOVE + 1));
    assert!(matches!(kind, Kind::ProbeAnswer { .. }), "{kind:?}");
    assert_eq!(epoch, MOVE + 1);

    // To whom a daemon has moved it only that one and the next owner know.
    let owner = Owner::answered();
    let _ = owner.run(&sealed(&release(), &probe().packet()));
    let expected = (there(Ipv4Addr::UNSPECIFIED, end), MOVE, SECOND);
    assert_eq!(told(ask(&owner, Kind::Reckon, EPOCH)), expected);
    assert_eq!(ask(&owner, Kind::Reckon, MOVE), early);
    assert_eq!(told(ask(&owner, Kind::Whose, EPOCH)), expected);
}

/// Its owner of before does not know, so all backends are asked (replication.md 4.6f).
#[test]
fn who_asks_whose_a_flow_is_is_told_by_each() {
    let ask = |agent: &Agent, epoch: u32| {
        let packet = segment(ACK, SECOND ^ 1 << 31, FIRST, b"").packet();
        agent.run(
            &agent.ingress,
            &sealed(&followed(Kind::Whose, epoch, START), &packet),
        )
    };
    let elsewhere = |owner, end| Kind::Elsewhere {
        owner,
        end: ServerSeq::new(end),
    };
    let not_here = elsewhere(Ipv4Addr::UNSPECIFIED, 0);
    let owner = Owner::new();
    let agent = &owner.agent;
    let here = elsewhere(HERE, FIRST);
    assert_eq!(told(ask(agent, EPOCH - 1)), (here, EPOCH, START));
    for epoch in [EPOCH, EPOCH + 1] {
        assert_eq!(told(ask(agent, epoch)), (not_here, epoch, START));
    }
    // What it has just lost by coming up anew it does not deny.
    let node = agent.maps.node.get(&0).unwrap().unwrap();
    let node = Node {
        since_ns: clock::cluster().as_nanos() as u64,
        ..node
    };
    agent.maps.node.put(&0, &node, Update::Any).unwrap();
    assert_eq!(ask(agent, EPOCH), Outcome::drop("early"));
}

/// Two of them may have come before the first one's answer began, and seem to be one.
#[test]
fn of_who_asks_ahead_nobody_knows_how_many_there_were() {
    let early = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n";
    let go_on = b"HTTP/1.1 100 Continue\r\n\r\n";
    let (begins, ends) = ANSWER.split_at(ANSWER.len() / 2);
    for (what, before, ahead, rest, is_known) in [
        ("behind 103", &early[..], true, ANSWER, false),
        ("behind 103, not yet", &early[..], false, ANSWER, false),
        ("the body, behind 100", &go_on[..], true, ANSWER, true),
        ("before the end", begins, true, ends, false),
        ("afterwards", begins, false, ends, true),
    ] {
        let mut owner = Owner::new();
        owner.answer(before);
        if ahead {
            let next = segment(ACK | PSH, SECOND, end_of(before), REQUEST).packet();
            let frame = sealed(&followed(Kind::Forward, EPOCH, START), &next);
            owner.agent.receive("more", &frame, &["received"]);
        }
        owner.answer(rest);
        let ask = followed(Kind::Reckon, EPOCH, START);
        let packet = segment(ACK, SECOND ^ 1 << 31, FIRST, b"").packet();
        let (kind, ..) = told(owner.run(&sealed(&ask, &packet)));
        let known = matches!(kind, Kind::Reckoned { .. });
        assert_eq!(known, is_known, "{what}: {kind:?}");
    }
}
