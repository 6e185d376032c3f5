//! A flow that comes back to a backend whose older socket for it is needed still: it sits
//! under another client port, and nobody but its server sees that
//! (docs/protocol/handoff.md 6.8).

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, SocketAddrV4, TcpStream};
use std::time::Duration;

use trapeze_core::flow::Handshake;
use trapeze_core::seq::{ClientSeq, ServerSeq};
use trapeze_core::wire::geneve;
use trapeze_core::wire::meta::{Care, Held, Kind, Meta, Refusal, Sender, Vacancy};
use trapeze_datapath::abi::Setup;
use trapeze_datapath::map::Update;
use trapeze_datapath::packet_socket::{Batch, PacketSocket};

use crate::backend::*;
use crate::bench::*;
use crate::halfpipe::*;
use crate::handoff::*;
use crate::outcome::{Outcome, Verdict};
use crate::packet::*;
use crate::rebuild::{accept, stop};

/// The epoch in which it comes back, where its request starts, and where its answers do.
const BACK: u32 = MOVE + 1;
const THIRD: u32 = SECOND + 100;
const THERE: u32 = RANGE + 1000;
const SEATED: [&str; 4] = ["received", "rebuilt", "confirmed", "seated"];
const NEW: [&str; 3] = ["received", "rebuilt", "confirmed"];

fn care() -> Care {
    Care {
        follow: true,
        head: false,
        outlive: true,
        park: false,
        kept: false,
    }
}

/// What its dispatcher says of it: the owner before is elsewhere.
fn back() -> Meta {
    let predecessor = BEFORE;
    Meta {
        care: care(),
        ..meta(Kind::ForwardAfter { predecessor }, BACK, THIRD)
    }
}

fn third() -> Tcp {
    segment(ACK | PSH, THIRD, THERE, REQUEST)
}

fn says(ack: u32) -> Tcp {
    segment(ACK, THIRD + REQUEST.len() as u32, ack, b"")
}

/// The packet as the seat's socket knows it.
fn on(port: u16, tcp: &Tcp) -> Tcp {
    Tcp {
        source: SocketAddrV4::new(*CLIENT.ip(), port),
        ..tcp.clone()
    }
}

/// As it leaves the socket on that port.
fn from_server(port: u16, seq: u32, payload: &[u8]) -> Tcp {
    Tcp {
        source: VIP,
        dest: SocketAddrV4::new(*CLIENT.ip(), port),
        ..segment(ACK | PSH, seq, THIRD, payload)
    }
}

fn port_of(stream: &TcpStream) -> u16 {
    let SocketAddr::V4(peer) = stream.peer_addr().unwrap() else {
        panic!("IPv4");
    };
    assert_eq!(peer.ip(), CLIENT.ip());
    peer.port()
}

/// An owner with an older socket, and one on a seat.
struct Seated {
    older: Owner,
    stream: TcpStream,
    port: u16,
}

impl Seated {
    fn new() -> Self {
        Self::with(back(), third())
    }

    fn with(back: Meta, third: Tcp) -> Self {
        let older = older();
        let frame = sealed(&back, &third.packet());
        older.agent.receive("it comes back", &frame, &SEATED);
        let mut stream = accept(&older.server);
        assert_eq!(read(&mut stream), third.payload);
        let port = port_of(&stream);
        assert!((1..1024).contains(&port), "{port}");
        Self {
            older,
            stream,
            port,
        }
    }

    fn setup(&self) -> Setup {
        self.older.agent.setup(&on(self.port, &third())).unwrap()
    }

    /// The client has all that the older one had to say.
    fn retire_older(&mut self) {
        let end = end_of(ANSWER);
        let frame = sealed(&gc_of(end), &heard(end).packet());
        assert_eq!(self.older.run(&frame).counted, ["retired"]);
        self.older.expect_reset();
    }

    fn put(&self, setup: &Setup) {
        let key = flow_key(on(self.port, &third()).source, VIP);
        let setups = &self.older.agent.maps.setups;
        setups.put(&key, setup, Update::Any).unwrap();
    }

    fn answer(&mut self, bytes: &[u8]) {
        let before = self.setup().answers.next;
        self.stream.write_all(bytes).unwrap();
        wait_for("the answer is seen", || {
            self.setup().answers.next == before + bytes.len() as u32
        });
    }

    /// The one before it, elsewhere, has retired.
    fn retire_before(&self) {
        retire_before(&self.older.agent, THERE, BACK, THIRD);
    }

    /// Its socket has nothing to read, and is there.
    fn expect_alive(&mut self) {
        std::thread::sleep(Duration::from_millis(20));
        self.stream.set_nonblocking(true).unwrap();
        let error = self.stream.read(&mut [0; 9]).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
        self.stream.set_nonblocking(false).unwrap();
    }
}

#[test]
fn a_flow_that_comes_back_sits_elsewhere() {
    let mut seated = Seated::new();
    let setup = seated.setup();
    assert_eq!((setup.epoch, setup.start), (BACK, THIRD));
    assert_eq!(setup.origin, CLIENT.port().to_be());
    assert_eq!((setup.before, setup.first), (BEFORE.octets(), THERE));
    let own = seated.older.agent.setup(&third()).unwrap();
    assert_eq!((own.state, own.epoch, own.seated), (OLDER, MOVE, 1));

    // Each epoch's packets find their socket.
    let came = Tcp {
        options: [timestamps(1, 2), sack(&[(THERE - 9, THERE + 9)])].concat(),
        ..says(THERE)
    };
    let goes = Tcp {
        options: [timestamps(1, 0), sack(&[(THERE, THERE + 9)])].concat(),
        ..on(seated.port, &came)
    };
    let frame = sealed(&back(), &came.packet());
    expect(&seated.older, "of its epoch", &frame, &up(&goes));
    let again = sealed(&back(), &third().packet());
    let goes = up(&on(seated.port, &third()));
    seated.older.expect("the request again", &again, &goes);
    let end = end_of(ANSWER);
    let gc = sealed(&gc_of(end), &heard(FIRST + 3).packet());
    let frame = up(&heard(FIRST + 3));
    seated.older.expect("a GC of the older", &gc, &frame);
    let late = sealed(&followed(Kind::Forward, MOVE, SECOND), &second().packet());
    let stale = Outcome::drop("stale-epoch");
    seated.older.expect("the other's", &late, &stale);
    seated.older.expect_alive();
    seated.expect_alive();

    // The older one ends, and the other stays.
    let frame = sealed(&gc_of(end), &heard(end).packet());
    assert_eq!(seated.older.run(&frame).counted, ["retired"]);
    seated.older.expect_reset();
    seated.expect_alive();
    let frame = sealed(&back(), &says(THERE).packet());
    let goes = up(&on(seated.port, &says(THERE)));
    expect(&seated.older, "from then on", &frame, &goes);
}

/// The client knows its own port only.
#[test]
fn what_leaves_a_seat_has_the_flows_own_port() {
    let seated = Seated::new();
    let agent = &seated.older.agent;
    let seq = seated.setup().answers.next;
    assert_eq!(seq, THERE);
    let mut options_of = vec![vec![], timestamps(5, 6)];
    options_of.push([timestamps(5, 6), sack(&[(THIRD, THIRD + 9)])].concat());
    for options in options_of {
        for payload in [&b""[..], b"x", b"even", ANSWER] {
            let said = Tcp {
                options: options.clone(),
                ..from_server(seated.port, seq, payload)
            };
            let leaves = Tcp {
                dest: CLIENT,
                ..said.clone()
            };
            let expected = Outcome::new(Verdict::Next, leaves.frame(), &[]);
            let mut got = agent.run(&agent.egress, &said.frame());
            got.counted.clear(); // it is no answer that could be followed
            assert_eq!(got.difference(&expected), None);
        }
    }
    // A real one, whose checksum is its card's to complete.
    let sniffer = PacketSocket::open("lo").unwrap();
    (&seated.stream).write_all(b"more").unwrap();
    std::thread::sleep(Duration::from_millis(20));
    let mut batch = Batch::default();
    sniffer.receive(&mut batch).unwrap();
    let told = batch
        .frames()
        .filter(|f| f[ETHERNET + 16..ETHERNET + 20] == CLIENT.ip().octets());
    let ports: Vec<_> = told
        .map(|f| u16::from_be_bytes([f[TCP_AT + 2], f[TCP_AT + 3]]))
        .collect();
    assert!(
        !ports.is_empty() && ports.iter().all(|&p| p == CLIENT.port()),
        "{ports:?}"
    );
}

/// HELD, RELEASED, DONE and the answer to a PROBE name the flow as its dispatcher knows it.
#[test]
fn what_is_said_of_a_seat_names_the_flow() {
    let mut seated = Seated::new();
    seated.retire_before();
    let agent = &seated.older.agent;
    let next = THIRD + REQUEST.len() as u32;
    let ask = segment(ACK, next, THERE, b"");
    let release = Meta {
        requests: 1,
        ..followed(asks_for(false, next), BACK + 1, next)
    };
    let word = |kind: Kind| Meta {
        requests: 0,
        kind,
        ..release
    };
    let sent_back = |meta: &Meta, counted: &[&'static str]| {
        Outcome::new(Verdict::SendBack, reply(meta, &ask), counted)
    };
    let held = |reason| Meta {
        requests: release.requests,
        ..word(Kind::Held(reason))
    };
    let frame = sealed(&release, &ask.packet());
    agent.expect(
        "no answer yet",
        &frame,
        &sent_back(&held(Held::Answering), &["held"]),
    );

    let probe = Meta {
        kind: Kind::Probe,
        ..back()
    };
    let sender = Sender {
        next: ServerSeq::new(THERE),
        clock: 0,
        is_idle: false,
        has_not_begun: true,
    };
    let received = ClientSeq::new(next);
    let answer = Kind::ProbeAnswer {
        received,
        sender: Some(sender),
    };
    let got = agent.run(&agent.ingress, &sealed(&probe, &ask.packet()));
    let told = got.packet.expect("an answer");
    let told =
        geneve::open(&told[ETHERNET + 28..], DISPATCHER.into(), &keys()).expect("its tag is good");
    assert_eq!((told.meta.kind, told.inner), (answer, &ask.packet()[..]));

    // Who asks whose the flow is knows of no seat (replication.md 4.6f).
    let whose = Meta {
        kind: Kind::Whose,
        ..followed(Kind::Forward, MOVE, SECOND)
    };
    let got = agent.run(&agent.ingress, &sealed(&whose, &ask.packet()));
    let here = Kind::Elsewhere {
        owner: HERE,
        end: ServerSeq::new(THERE),
    };
    assert_eq!(crate::handoff::told(got), (here, BACK, THIRD));

    let held_up = |seated: &Seated| seated.older.agent.to_tell(14);
    assert_eq!(held_up(&seated), []);
    seated.answer(ANSWER);
    let dones = held_up(&seated);
    assert_eq!(dones.len(), 1);
    assert_eq!(dones[0].key, flow_key(CLIENT, VIP));
    assert_eq!(dones[0].end, THERE + ANSWER.len() as u32);

    let agent = &seated.older.agent;
    let end = ServerSeq::new(THERE + ANSWER.len() as u32);
    let unacked = sent_back(&held(Held::Unacknowledged { end }), &["held"]);
    agent.expect("not acknowledged", &frame, &unacked);
    let all = segment(ACK, next, end.raw(), b"");
    let released = Kind::Released {
        end,
        drained: true,
        clock: 0,
    };
    let expected = Outcome::new(
        Verdict::SendBack,
        reply(&word(released), &all),
        &["given-up"],
    );
    agent.expect("given up", &sealed(&release, &all.packet()), &expected);
    let error = seated.stream.read(&mut [0; 9]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    seated.older.expect_alive();
}

#[test]
fn a_server_that_closes_on_a_seat_leaves_the_client_alone() {
    let mut seated = Seated::new();
    seated.answer(ANSWER);
    let end = THERE + ANSWER.len() as u32;
    let next = THIRD + REQUEST.len() as u32;
    let ack = segment(ACK, next, end, b"");
    let all = sealed(&back(), &ack.packet());
    let agent = &seated.older.agent;
    agent.receive("all of it", &all, &["received", "gc"]);
    let sniffer = PacketSocket::open("lo").unwrap();
    let close = || seated.stream.shutdown(Shutdown::Both).unwrap();
    agent.expect_count("it closes", close, &["vacated"]);
    let mut batch = Batch::default();
    sniffer.receive(&mut batch).unwrap();
    let to = |there: Ipv4Addr| {
        let frames = batch.frames();
        frames
            .filter(move |f| f[ETHERNET + 16..ETHERNET + 20] == there.octets())
            .collect::<Vec<_>>()
    };
    assert_eq!(to(*CLIENT.ip()).len(), 0);
    let told = to(DISPATCHER)[0];
    let told =
        geneve::open(&told[ETHERNET + 28..], DISPATCHER.into(), &keys()).expect("its tag is good");
    assert_eq!(
        told.meta.kind,
        Kind::Vacated {
            end: ServerSeq::new(end),
            vacancy: Vacancy::Closed,
        }
    );
    assert_eq!(
        (told.meta.epoch, told.meta.start.raw(), told.meta.requests),
        (BACK, next, 1)
    );
    assert_eq!(told.inner[20..22], CLIENT.port().to_be_bytes());

    // The next request has a new socket, on the same seat.
    let request = segment(ACK | PSH, next, end, REQUEST);
    let frame = beginning(&back(), &request.packet());
    agent.receive(
        "the next",
        &frame,
        &["received", "rebuilt", "confirmed", "gc"],
    );
    assert_eq!(port_of(&accept(&seated.older.server)), seated.port);
}

/// A client whose own port is the seat of another.
#[test]
fn who_would_sit_on_anothers_seat_is_refused() {
    let mut seated = Seated::new();
    let before = seated.setup();
    let theirs = on(seated.port, &request());
    let fresh = followed(Kind::Forward, BACK + 9, crate::agent::START);
    let refused = Meta {
        kind: Kind::Refused(Refusal::NoSeat),
        ..fresh
    };
    let expected = Outcome::new(
        Verdict::SendBack,
        reply(&refused, &theirs),
        &["older-range", "refused"],
    );
    seated
        .older
        .expect("it starts", &sealed(&fresh, &theirs.packet()), &expected);
    let more = on(seated.port, &says(THERE));
    let early = Outcome::drop("early");
    for kind in [
        Kind::Forward,
        Kind::Probe,
        asks_for(true, THIRD),
        Kind::Handoff { next: NEXT },
    ] {
        for epoch in [BACK, BACK + 9] {
            let frame = sealed(&followed(kind, epoch, THIRD), &more.packet());
            seated.older.expect("more of it", &frame, &early);
        }
    }
    assert_eq!(seated.setup(), before);
    seated.expect_alive();
    // Nor does the option of the flow prove a packet of that port.
    let mut forged = sealed(&back(), &says(THERE).packet());
    let at = ETHERNET + 72 + 20;
    forged[at..at + 2].copy_from_slice(&seated.port.to_be_bytes());
    seated
        .older
        .expect("forged", &forged, &Outcome::drop("bad-tag"));
}

/// Eight sockets of one flow, of which each has something to repeat.
#[test]
fn seats_are_few() {
    let owner = older();
    let mut streams = Vec::new();
    let mut ports = vec![CLIENT.port()];
    let (mut start, mut epoch, mut first) = (THIRD, BACK, THERE);
    for round in 0..8 {
        let predecessor = BEFORE;
        let meta = followed(Kind::ForwardAfter { predecessor }, epoch, start);
        let request = segment(ACK | PSH, start, first, REQUEST);
        let frame = sealed(&meta, &request.packet());
        if round == 7 {
            let refused = Meta {
                kind: Kind::Refused(Refusal::NoSeat),
                ..meta
            };
            let mut expected = reply(&refused, &request);
            // The word of the owner before comes back as it was.
            let at = ETHERNET + 20 + 8 + 8 + 4;
            expected[at + 20..at + 32].fill(0);
            let mut got = owner.run(&frame);
            assert_eq!(
                (got.verdict, &got.counted[..]),
                (Verdict::SendBack, &["older-range", "refused"][..])
            );
            got.packet.as_mut().unwrap()[at + 20..at + 32].fill(0);
            assert_eq!(got.packet.unwrap(), expected);
            break;
        }
        owner.agent.receive("one more", &frame, &SEATED);
        let mut stream = accept(&owner.server);
        let port = port_of(&stream);
        assert!(!ports.contains(&port), "{port} of {ports:?}");
        ports.push(port);
        stream.write_all(ANSWER).unwrap();
        let seat = on(port, &request);
        let end = first + ANSWER.len() as u32;
        wait_for("it is seen", || {
            owner.agent.setup(&seat).unwrap().answers.next == end
        });
        let next = start + REQUEST.len() as u32;
        let ask = segment(ACK, next, first, b"");
        let release = Meta {
            requests: 1,
            ..followed(asks_for(true, next), epoch + 1, next)
        };
        let mut got = owner.run(&sealed(&release, &ask.packet()));
        got.counted.retain(|&counted| counted != "gc");
        assert_eq!(got.counted, ["given-up", "half-pipe"]);
        streams.push(stream);
        (start, epoch, first) = (next + 100, epoch + 2, end + 1000);
    }
    // One that ends makes room, when the one before it has retired: that one hears us alone.
    let last = owner.agent.setup(&on(ports[3], &third())).unwrap();
    let end = ServerSeq::new(last.end);
    let reach = ClientSeq::new(last.start);
    let gc = followed(Kind::Gc { end, reach }, last.epoch, last.start);
    let over = segment(ACK, last.start + 9, last.end, b"");
    let got = owner.run(&sealed(&gc, &over.packet()));
    assert!(got.counted.contains(&"retired"), "{:?}", got.counted);
    let predecessor = BEFORE;
    let meta = followed(Kind::ForwardAfter { predecessor }, epoch, start);
    let request = segment(ACK | PSH, start, first, REQUEST);
    let frame = sealed(&meta, &request.packet());
    assert_eq!(owner.run(&frame).counted, ["older-range", "refused"]);
    retire_before(
        &owner.agent,
        last.first,
        last.before_epoch,
        last.before_start,
    );
    let error = streams[2].read_to_end(&mut Vec::new()).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    owner.agent.receive("room", &frame, &SEATED);
    assert_eq!(port_of(&accept(&owner.server)), ports[3]);
}

/// It has given up what it has, and its client has had all of that, but not the one before it.
fn relaying() -> (Seated, Meta, Tcp) {
    let mut seated = Seated::new();
    seated.answer(ANSWER);
    let next = THIRD + REQUEST.len() as u32;
    let ask = segment(ACK, next, THERE, b"");
    let release = Meta {
        requests: 1,
        ..followed(asks_for(true, next), BACK + 1, next)
    };
    let mut got = seated.older.run(&sealed(&release, &ask.packet()));
    got.counted.retain(|&counted| counted != "gc");
    assert_eq!(got.counted, ["given-up", "half-pipe"]);
    let end = ServerSeq::new(THERE + ANSWER.len() as u32);
    let reach = ClientSeq::new(next);
    let gc = followed(Kind::Gc { end, reach }, BACK + 1, next);
    let over = segment(ACK, next + 9, end.raw(), b"");
    let got = seated.older.run(&sealed(&gc, &over.packet()));
    assert!(got.counted.contains(&"retired"), "{:?}", got.counted);
    (seated, gc, over)
}

fn expect_retired(got: &Outcome) {
    assert_eq!(got.verdict, Verdict::SendBack);
    let packet = got.packet.as_ref().expect("an answer");
    let told = geneve::open(&packet[ETHERNET + 28..], DISPATCHER.into(), &keys());
    let kind = told.expect("its tag is good").meta.kind;
    assert!(matches!(kind, Kind::Retired { .. }), "{kind:?}");
}

/// The word of the one before would find another connection there.
#[test]
fn who_passes_words_on_keeps_its_seat() {
    let (seated, gc, over) = relaying();
    let wanted = |epoch: u32| {
        let at = (u32::from(CLIENT.port()) ^ epoch).wrapping_mul(0x9e37_79b1) >> 16;
        1 + at % 1023 == u32::from(seated.port)
    };
    let epoch = (BACK + 2..).find(|&epoch| wanted(epoch)).unwrap();
    let start = gc.start.raw() + 9;
    let predecessor = BEFORE;
    let meta = followed(Kind::ForwardAfter { predecessor }, epoch, start);
    let request = segment(ACK | PSH, start, over.ack + 9, REQUEST);
    let agent = &seated.older.agent;
    agent.receive("once more", &sealed(&meta, &request.packet()), &SEATED);
    assert_ne!(port_of(&accept(&seated.older.server)), seated.port);
    let got = seated.older.run(&sealed(&gc, &over.packet()));
    assert_eq!(got.verdict, Verdict::Drop);
    seated.retire_before();
    expect_retired(&seated.older.run(&sealed(&gc, &over.packet())));
}

/// To who asks it is as if it were not known here.
#[test]
fn an_older_owner_whose_seat_is_anothers_has_retired() {
    let (seated, gc, over) = relaying();
    let others = Setup {
        origin: 50_000u16.to_be(),
        ..seated.setup()
    };
    seated.put(&others);
    expect_retired(&seated.older.run(&sealed(&gc, &over.packet())));
    assert_eq!(seated.setup(), others);
}

/// Who comes alone needs no seat, once the own port is free, whatever is known of the seat.
#[test]
fn a_new_connection_sits_on_its_own_port() {
    for forgotten in [false, true] {
        let mut seated = Seated::new();
        seated.retire_older();
        let setups = &seated.older.agent.maps.setups;
        if forgotten {
            let seat = flow_key(on(seated.port, &third()).source, VIP);
            setups.delete(&seat).unwrap();
        }
        let fresh = followed(Kind::Forward, BACK + 9, crate::agent::START);
        let frame = sealed(&fresh, &request().packet());
        let rebuilt = ["received", "rebuilt", "confirmed"];
        seated.older.agent.receive("a new one", &frame, &rebuilt);
        assert_eq!(port_of(&accept(&seated.older.server)), CLIENT.port());
        let own = seated.older.agent.setup(&request()).unwrap();
        assert_eq!((own.epoch, own.seated, own.origin), (BACK + 9, 0, 0));
        let ack = segment(ACK, SECOND, FIRST, b"");
        let frame = sealed(&fresh, &ack.packet());
        seated.older.expect("its ACK", &frame, &up(&ack));
        let late = sealed(&back(), &says(THERE).packet());
        let stale = Outcome::drop("stale-epoch");
        seated.older.expect("late", &late, &stale);
    }
}

/// Not the own port, for which its place in the list would be lost.
#[test]
fn a_free_seat_is_taken_again() {
    let mut seated = Seated::new();
    seated.answer(ANSWER);
    seated.retire_older();
    seated.retire_before();
    let end = THERE + ANSWER.len() as u32;
    let next = THIRD + REQUEST.len() as u32;
    let release = Meta {
        requests: 1,
        ..followed(asks_for(false, next), BACK + 1, next)
    };
    let all = segment(ACK, next, end, b"");
    let got = seated.older.run(&sealed(&release, &all.packet()));
    assert_eq!(got.counted, ["given-up"]);
    let predecessor = BEFORE;
    let meta = followed(Kind::ForwardAfter { predecessor }, BACK + 2, next + 9);
    let request = segment(ACK | PSH, next + 9, end + 9, REQUEST);
    let frame = sealed(&meta, &request.packet());
    seated.older.agent.receive("once more", &frame, &SEATED);
    assert_eq!(port_of(&accept(&seated.older.server)), seated.port);
}

/// Both maps forget what was used least: no packet may go to another connection for that.
#[test]
fn what_is_forgotten_of_seats_misleads_nobody() {
    let mut seated = Seated::new();
    let own = flow_key(CLIENT, VIP);
    let agent = &seated.older.agent;
    let ack = says(THERE);
    let frame = sealed(&back(), &ack.packet());
    let first = agent.maps.setups.get(&own).unwrap().unwrap();
    agent.maps.setups.delete(&own).unwrap();
    let goes = up(&on(seated.port, &ack));
    expect(&seated.older, "the own port's setup is gone", &frame, &goes);
    agent.maps.setups.put(&own, &first, Update::Any).unwrap();

    let seat = flow_key(on(seated.port, &ack).source, VIP);
    let setup = seated.setup();
    agent.maps.setups.delete(&seat).unwrap();
    expect(&seated.older, "the seat's is gone", &frame, &goes);
    let made = seated.setup();
    assert_eq!(
        (made.epoch, made.state, made.origin),
        (BACK, CONFIRMED, setup.origin)
    );

    // Another flow sits there meanwhile.
    let others = Setup {
        origin: 50_000u16.to_be(),
        ..setup
    };
    seated.put(&others);
    let early = Outcome::drop("early");
    seated.older.expect("its packets", &frame, &early);
    let gc = sealed(&gc_of(end_of(ANSWER)), &heard(FIRST + 1).packet());
    seated
        .older
        .expect("the older", &gc, &up(&heard(FIRST + 1)));
    assert_eq!(seated.setup(), others);
    seated.expect_alive();
}

/// The client uses its port again after another flow has got the seat that the connection
/// before had: all of the new one's packets find it on its own port.
#[test]
fn a_new_connection_has_nothing_of_the_seats_before() {
    let mut seated = Seated::new();
    seated.retire_older();
    let others = Setup {
        origin: 50_000u16.to_be(),
        ..seated.setup()
    };
    seated.put(&others);
    let (begin, cookie) = (THIRD + 1_000_000, THERE + 7_000_000);
    let fresh = followed(Kind::Forward, BACK + 500, begin);
    let request = segment(ACK | PSH, begin, cookie, REQUEST);
    let agent = &seated.older.agent;
    agent.receive("a new one", &sealed(&fresh, &request.packet()), &NEW);
    let stream = accept(&seated.older.server);
    assert_eq!(port_of(&stream), CLIENT.port());
    let ack = segment(ACK, begin + REQUEST.len() as u32, cookie, b"");
    expect(
        &seated.older,
        "its next packet",
        &sealed(&fresh, &ack.packet()),
        &up(&ack),
    );
    assert_eq!(seated.setup(), others);
}

/// It had a seat, but its server did not take it; then somebody else got the request.
#[test]
fn a_seat_that_was_not_taken_hides_no_older_owner() {
    let owner = older();
    let server = owner.server;
    stop(server);
    let got = owner
        .agent
        .run(&owner.agent.ingress, &sealed(&back(), &third().packet()));
    assert_eq!(got.counted, ["no-listener", "refused", "seated"]);
    let later = Meta {
        epoch: BACK + 5,
        ..gc_of(end_of(ANSWER))
    };
    let some = heard(FIRST + 3);
    owner
        .agent
        .expect("a GC", &sealed(&later, &some.packet()), &up(&some));
}

/// Who was to have the flow next had no room: it comes back to where it was, while that
/// sends still, and is its own owner before.
#[test]
fn an_owner_can_come_after_itself() {
    let end = end_of(ANSWER);
    let predecessor = HERE;
    let meta = followed(Kind::ForwardAfter { predecessor }, BACK, SECOND);
    let request = segment(ACK | PSH, SECOND, end, REQUEST);
    let mut seated = Seated::with(meta, request.clone());
    let agent = &seated.older.agent;
    let says = |ack: u32| segment(ACK, SECOND + REQUEST.len() as u32, ack, b"");
    let some = sealed(&meta, &says(end - 3).packet());
    agent.receive("a part", &some, &["received", "received", "gc"]);
    seated.older.expect_alive();
    let agent = &seated.older.agent;
    let all = sealed(&meta, &says(end).packet());
    agent.receive("all", &all, &["received", "gc", "retired"]);
    seated.older.expect_reset();
    assert_eq!(seated.setup().before, [0; 4]);
    seated.expect_alive();
}

/// With timestamps, the clock of the socket too.
#[test]
fn a_probe_is_told_where_the_socket_is() {
    let handshake = Handshake {
        timestamps: true,
        ..HANDSHAKE
    };
    let echo = 0xffff_fff0u32;
    let first = Tcp {
        options: timestamps(7, echo),
        ..request()
    };
    let mut owner = Owner::with(handshake, first);
    owner.answer(ANSWER);
    let mut ask = segment(ACK, SECOND, FIRST, b"");
    ask.options = timestamps(9, echo);
    let probe = Meta {
        handshake,
        ..followed(Kind::Probe, EPOCH, crate::agent::START)
    };
    let got = owner.run(&sealed(&probe, &ask.packet()));
    assert_eq!(
        (got.verdict, &got.counted[..]),
        (Verdict::SendBack, &[][..])
    );
    let told = got.packet.unwrap();
    let told =
        geneve::open(&told[ETHERNET + 28..], DISPATCHER.into(), &keys()).expect("its tag is good");
    let Kind::ProbeAnswer {
        received,
        sender: Some(sender),
    } = told.meta.kind
    else {
        panic!("{:?}", told.meta);
    };
    assert_eq!(
        (received.raw(), sender.next.raw()),
        (SECOND, end_of(ANSWER))
    );
    let ahead = sender.clock.wrapping_sub(echo);
    assert!(ahead < 3000, "{ahead} ms after what its client echoed");
}
