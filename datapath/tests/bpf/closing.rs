//! Servers that close while they owe nothing: their clients do not hear of it, and
//! their next request is served (docs/protocol/handoff.md 7). And what held a flow up
//! is told of when it changes (5.3).

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddrV4, TcpListener};
use std::time::Duration;

use trapeze_core::flow::{FlowKey, Handshake};
use trapeze_core::seq::{ClientSeq, ServerSeq};
use trapeze_core::wire::geneve;
use trapeze_core::wire::meta::{Care, Kind, Meta, Refusal, Vacancy};
use trapeze_core::wire::segment::Segment;
use trapeze_core::wire::tcp::Timestamps;
use trapeze_core::wire::{ipv4 as core_ipv4, tcp as core_tcp};
use trapeze_datapath::agent::withheld;
use trapeze_datapath::map::Update;
use trapeze_datapath::packet_socket::{Batch, PacketSocket};
use trapeze_datapath::raw::RawSocket;
use trapeze_datapath::udp::Outbox;

use crate::agent::START;
use crate::backend::*;
use crate::bench::*;
use crate::handoff::*;
use crate::outcome::{Outcome, Verdict};
use crate::packet::*;
use crate::rebuild::{accept, set_option, stop};

/// `enum setup_state`.
const VACANT: u32 = 5;

fn outliving() -> Meta {
    let care = Care {
        follow: true,
        head: false,
        outlive: true,
        park: false,
        kept: false,
    };
    Meta {
        care,
        ..meta(Kind::Forward, EPOCH, START)
    }
}

fn owner() -> Owner {
    Owner::with_option(outliving(), request())
}

/// The option and first packet of a connection with timestamps, and what that one echoes.
fn with_clocks() -> (Meta, Tcp, u32) {
    let meta = Meta {
        handshake: Handshake {
            timestamps: true,
            ..HANDSHAKE
        },
        ..outliving()
    };
    let echo = 0x7fff_ff00;
    let first = Tcp {
        options: timestamps(1000, echo),
        ..request()
    };
    (meta, first, echo)
}

fn acknowledge(owner: &Owner, ack: u32) {
    let segment = segment(ACK, SECOND, ack, b"");
    let frame = sealed(&outliving(), &segment.packet());
    owner.agent.receive("an ACK", &frame, &["received"]);
}

/// Its server has answered, and closed; the client has not acknowledged that.
fn hung_up() -> Owner {
    let mut owner = owner();
    owner.answer(ANSWER);
    let close = || owner.stream.shutdown(Shutdown::Both).unwrap();
    owner
        .agent
        .expect_count("it closes", close, &["server-close"]);
    owner
}

/// The client has acknowledged the answer, and the server closed.
fn vacated() -> Owner {
    vacated_behind(owner(), ANSWER)
}

fn vacated_behind(mut owner: Owner, answer: &[u8]) -> Owner {
    owner.answer(answer);
    acknowledge(&owner, end_of(answer));
    let close = || owner.stream.shutdown(Shutdown::Both).unwrap();
    owner.agent.expect_count("it closes", close, &["vacated"]);
    owner
}

/// A new connection has the second request.
fn expect_second(owner: &mut Owner) {
    owner.stream = accept(&owner.server);
    assert_eq!(read(&mut owner.stream), second().payload);
}

/// What has left since the sniffer was opened: to the client, and to the dispatcher.
pub fn heard(sniffer: &PacketSocket) -> (Vec<core_tcp::Header>, Vec<Vec<u8>>) {
    let mut batch = Batch::default();
    sniffer.receive(&mut batch).unwrap();
    let (mut client, mut dispatcher) = (Vec::new(), Vec::new());
    for frame in batch.frames() {
        let to = Ipv4Addr::from(*frame[ETHERNET + 16..].first_chunk::<4>().unwrap());
        if to == *CLIENT.ip() {
            client.push(core_tcp::Header::parse(&frame[TCP_AT..]).unwrap().0);
        } else if to == DISPATCHER {
            dispatcher.push(frame[ETHERNET + 28..].to_vec());
        }
    }
    (client, dispatcher)
}

#[test]
fn a_server_that_owes_nothing_closes_for_itself() {
    let mut owner = owner();
    owner.answer(ANSWER);
    acknowledge(&owner, end_of(ANSWER));
    let sniffer = PacketSocket::open("lo").unwrap();
    let close = || owner.stream.shutdown(Shutdown::Both).unwrap();
    owner.agent.expect_count("it closes", close, &["vacated"]);
    let setup = owner.agent.setup(&request()).unwrap();
    assert_eq!((setup.state, setup.start), (VACANT, SECOND));

    let (client, dispatcher) = heard(&sniffer);
    assert_eq!(client, [], "nobody else hears");
    // On the loopback device each frame is seen as it leaves, or as it comes.
    let told = dispatcher.first().expect("the dispatcher does");
    let told = geneve::open(told, DISPATCHER.into(), &keys()).expect("its tag is good");
    let end = ServerSeq::new(end_of(ANSWER));
    let expected = Meta {
        kind: Kind::Vacated {
            end,
            vacancy: Vacancy::Closed,
        },
        start: ClientSeq::new(SECOND),
        requests: 1,
        ..outliving()
    };
    assert_eq!(told.meta, expected);
    let inner = core_ipv4::Packet::parse(told.inner).unwrap();
    assert_eq!(
        (inner.source(), inner.destination()),
        (*CLIENT.ip(), *VIP.ip())
    );
    let (header, payload) = core_tcp::Header::parse(inner.payload()).unwrap();
    assert_eq!(
        (header.source_port, header.destination_port),
        (CLIENT.port(), VIP.port())
    );
    assert_eq!(
        (header.seq, header.ack, payload),
        (SECOND, end_of(ANSWER), &b""[..])
    );
    assert_eq!(header.flags, core_tcp::Flags::ACK);

    // Its socket is gone: the next request has a new one, and runs once.
    let vacant = Outcome::drop("vacant");
    let bare = sealed(&outliving(), &probe().packet());
    owner.expect("an ACK", &bare, &vacant);
    let old = sealed(&outliving(), &request().packet());
    owner.expect("the first again", &old, &vacant);
    let next = beginning(&outliving(), &second().packet());
    let rebuilt = ["received", "rebuilt", "confirmed"];
    owner.agent.receive("the next", &next, &rebuilt);
    expect_second(&mut owner);
    owner.agent.receive("again", &next, &["received"]);
    owner.agent.receive("the first again", &old, &["received"]);
    owner.expect_alive();
    let setup = owner.agent.setup(&request()).unwrap();
    assert_eq!((setup.epoch, setup.state), (EPOCH, CONFIRMED));
    assert_eq!(
        (setup.answers.next, setup.answers.finished),
        (end_of(ANSWER), 1)
    );
}

/// It has answered before it had all of the request, and owes nothing all the same. Whether that was all its dispatcher
/// knows.
#[test]
fn a_server_that_answered_early_closes_for_itself() {
    let mut owner = owner();
    owner.answer(ANSWER);
    let body = segment(ACK, SECOND, end_of(ANSWER), b"the body");
    let frame = sealed(&outliving(), &body.packet());
    owner.agent.receive("the body", &frame, &["received"]);
    assert_eq!(read(&mut owner.stream), body.payload);
    let close = || owner.stream.shutdown(Shutdown::Both).unwrap();
    owner.agent.expect_count("it closes", close, &["vacated"]);
    let setup = owner.agent.setup(&request()).unwrap();
    let behind = SECOND + body.payload.len() as u32;
    assert_eq!((setup.state, setup.start), (VACANT, behind));
    assert_eq!(setup.answers.finished, 1);
}

/// What the client has not acknowledged is the socket's to repeat.
#[test]
fn a_close_waits_until_the_client_has_all() {
    let mut owner = owner();
    owner.answer(ANSWER);
    let sniffer = PacketSocket::open("lo").unwrap();
    let close = || owner.stream.shutdown(Shutdown::Both).unwrap();
    owner
        .agent
        .expect_count("it closes", close, &["server-close"]);
    let setup = owner.agent.setup(&request()).unwrap();
    assert_eq!(setup.state, CONFIRMED);

    // The next request does not wait for that.
    let mut request = second();
    request.ack -= 1;
    let frame = sealed(
        &Meta {
            care: outliving().care,
            ..handoff(NEXT)
        },
        &request.packet(),
    );
    assert_eq!(
        owner.run(&frame).counted,
        ["held"],
        "not while bytes may be lost"
    );
    let meta = Meta {
        epoch: MOVE + 1,
        care: outliving().care,
        ..handoff(NEXT)
    };
    let frame = sealed(&meta, &second().packet());
    assert_eq!(owner.run(&frame).counted, ["given-up", "handed-on"]);
    let (client, _) = heard(&sniffer);
    assert!(
        client.iter().all(|h| !h.flags.has(core_tcp::Flags::FIN)),
        "{client:?}"
    );
}

/// It comes again, and is turned round then.
#[test]
fn a_close_that_waited_is_seen_when_it_comes_again() {
    let owner = hung_up();
    let ack = segment(ACK, SECOND, end_of(ANSWER), b"");
    let frame = sealed(&outliving(), &ack.packet());
    owner
        .agent
        .receive("the FIN again", &frame, &["received", "vacated"]);
}

/// The client's next word may be a request: its server will not hear it there.
#[test]
fn a_request_that_meets_a_closed_socket_has_a_new_one() {
    let mut owner = hung_up();
    let mut late = second();
    late.ack -= 1;
    let vacant = Outcome::drop("vacant");
    let frame = beginning(&outliving(), &late.packet());
    owner.expect("not yet all", &frame, &vacant);
    assert_eq!(owner.agent.setup(&request()).unwrap().state, CONFIRMED);
    let next = beginning(&outliving(), &second().packet());
    let rebuilt = ["received", "rebuilt", "replaced", "confirmed", "vacated"];
    owner.agent.receive("the next", &next, &rebuilt);
    expect_second(&mut owner);
    owner.expect_alive();
}

/// Copies of it may come at once: each finds no socket. How many answers have ended before stays known, or its
/// dispatcher would be told of one that is owed.
#[test]
fn a_request_that_is_rebuilt_twice_counts_on() {
    let mut owner = vacated();
    // The kernel takes no packet whose checksum is wrong: its socket does not come to be.
    let mut spoilt = second().packet();
    spoilt[TCP_AT - ETHERNET + 16] ^= 1;
    let first = beginning(&outliving(), &spoilt);
    let rebuilt = ["received", "rebuilt"];
    owner.agent.receive("the first copy", &first, &rebuilt);
    let setup = owner.agent.setup(&request()).unwrap();
    assert_eq!((setup.state, setup.answers.finished), (TRIED, 1));

    let next = beginning(&outliving(), &second().packet());
    let rebuilt = ["received", "rebuilt", "confirmed"];
    owner.agent.receive("the second", &next, &rebuilt);
    expect_second(&mut owner);
    owner.answer(ANSWER);
    let setup = owner.agent.setup(&request()).unwrap();
    assert_eq!((setup.state, setup.answers.finished), (CONFIRMED, 2));
}

/// Of copies that come at once one removes the old socket: what the others would remove is the new one, which
/// stands at the same number.
#[test]
fn a_closed_socket_is_replaced_by_one_copy() {
    let mut owner = hung_up();
    let key = flow_key(CLIENT, VIP);
    let next = beginning(&outliving(), &second().packet());
    let replacing = |owner: &Owner| owner.agent.setup(&request()).unwrap().replacing;
    let mut setup = owner.agent.setup(&request()).unwrap();
    (setup.state, setup.start, setup.replacing) = (VACANT, SECOND, 1);
    owner
        .agent
        .maps
        .setups
        .put(&key, &setup, Update::Any)
        .unwrap();
    let round = Outcome::new(Verdict::SendBack, next.clone(), &[]);
    owner.expect("another one is at it", &next, &round);
    assert_eq!(replacing(&owner), 1);

    // Where that one is lost the next one removes it.
    let lost = ["not-rebuilt"];
    owner.agent.receive("it is there still", &next, &lost);
    assert_eq!(replacing(&owner), 0);
    let rebuilt = ["received", "rebuilt", "replaced", "confirmed"];
    owner.agent.receive("the next", &next, &rebuilt);
    expect_second(&mut owner);
    owner.expect_alive();
}

/// A client that asks ahead does not know that its server has closed before.
#[test]
fn who_asks_ahead_of_a_server_that_has_closed_has_a_new_one() {
    let mut owner = vacated();
    let mut ahead = outliving();
    ahead.care.outlive = false;
    let next = beginning(&ahead, &second().packet());
    let rebuilt = ["received", "rebuilt", "confirmed"];
    owner.agent.receive("the next", &next, &rebuilt);
    expect_second(&mut owner);
    assert_eq!(owner.agent.setup(&request()).unwrap().start, SECOND);
    owner.agent.receive("a copy", &next, &["received"]);
    owner.expect_alive();
}

/// It may be another's server's first request; the option tells of the one that was the first before.
#[test]
fn a_request_behind_a_head_has_an_answer_with_a_body() {
    let mut first = outliving();
    first.care.head = true;
    let head = &ANSWER[..ANSWER.len() - b"hello".len()];
    let mut owner = vacated_behind(Owner::with_option(first, request()), head);
    let mut request_behind = second();
    request_behind.ack = end_of(head);
    let next = beginning(&first, &request_behind.packet());
    let rebuilt = ["received", "rebuilt", "confirmed"];
    owner.agent.receive("the next", &next, &rebuilt);
    expect_second(&mut owner);
    owner.answer(ANSWER);
    // Where it ends is known: what is said behind it is not heard.
    let close = || owner.stream.shutdown(Shutdown::Both).unwrap();
    let closed = ["server-close"];
    owner.agent.expect_count("it closes", close, &closed);
}

/// Its beginning waits at the dispatcher, perhaps: a closed socket would reset the client for what lies behind it.
#[test]
fn what_overtakes_a_request_does_not_meet_a_closed_socket() {
    let mut owner = hung_up();
    let mut behind = second();
    behind.seq += behind.payload.len() as u32;
    let frame = sealed(&outliving(), &behind.packet());
    owner.expect("behind the next", &frame, &Outcome::drop("vacant"));
    let next = beginning(&outliving(), &second().packet());
    let rebuilt = ["received", "rebuilt", "replaced", "confirmed", "vacated"];
    owner.agent.receive("the next", &next, &rebuilt);
    expect_second(&mut owner);
    owner.expect_alive();
}

/// It may be the body of a request that was answered before all of it had come: its dispatcher has not
/// said that it begins one.
#[test]
fn what_begins_no_request_has_no_new_connection() {
    let owner = vacated();
    let word = Meta {
        kind: Kind::Vacated {
            end: ServerSeq::new(end_of(ANSWER)),
            vacancy: Vacancy::Anew,
        },
        start: ClientSeq::new(SECOND),
        requests: 1,
        ..outliving()
    };
    let mut far = second();
    far.seq += 100;
    for (body, begins) in [(second(), false), (far, true)] {
        let frame = match begins {
            false => sealed(&outliving(), &body.packet()),
            true => beginning(&outliving(), &body.packet()),
        };
        let told = Outcome::new(Verdict::SendBack, reply(&word, &body), &["vacant"]);
        owner.expect("its dispatcher is told", &frame, &told);
    }
    assert_eq!(owner.agent.setup(&request()).unwrap().state, VACANT);
    owner.server.set_nonblocking(true).unwrap();
    assert!(owner.server.accept().is_err(), "nobody is given it");
}

/// The same while the server's FIN waits, and where that has had what nobody reads.
#[test]
fn what_begins_no_request_is_its_sockets() {
    let mut owner = owner();
    owner.answer(ANSWER);
    let close = || owner.stream.shutdown(Shutdown::Write).unwrap();
    owner
        .agent
        .expect_count("it closes", close, &["server-close"]);
    let body = sealed(&outliving(), &second().packet());
    owner.agent.receive("a body", &body, &["received"]);
    let Owner {
        agent,
        server,
        stream,
    } = owner;
    let sniffer = PacketSocket::open("lo").unwrap();
    agent.expect_count("nobody reads it", || drop(stream), &[]);
    let (client, _) = heard(&sniffer);
    let is_reset = |header: &core_tcp::Header| header.flags.has(core_tcp::Flags::RST);
    assert!(client.iter().any(is_reset), "{client:?}");
    server.set_nonblocking(true).unwrap();
    assert!(server.accept().is_err(), "nobody is given it");
}

/// Data behind which the server has closed at once has the FIN with it.
#[test]
fn a_fin_with_the_end_of_an_answer_stays_back() {
    let mut owner = owner();
    let sniffer = PacketSocket::open("lo").unwrap();
    let (head, body) = ANSWER.split_at(ANSWER.len() / 2);
    // The second part waits for the first one's acknowledgement, and leaves with the FIN.
    owner.stream.write_all(head).unwrap();
    owner.stream.write_all(body).unwrap();
    owner.stream.shutdown(Shutdown::Write).unwrap();
    let next = || owner.agent.setup(&request()).unwrap().answers.next;
    wait_for("the answer is seen", || next() == end_of(ANSWER));
    let (client, _) = heard(&sniffer);
    assert!(client.len() >= 2, "{client:?}");
    let fin = |header: &core_tcp::Header| header.flags.has(core_tcp::Flags::FIN);
    assert!(!client.iter().any(fin), "{client:?}");
    let ack = segment(ACK, SECOND, end_of(ANSWER), b"");
    let frame = sealed(&outliving(), &ack.packet());
    let both = ["received", "vacated"];
    owner.agent.receive("all is there", &frame, &both);
}

/// A client that asks ahead hears what its server does from then on.
#[test]
fn who_asks_ahead_hears_of_a_close() {
    let mut owner = owner();
    owner.answer(ANSWER);
    acknowledge(&owner, end_of(ANSWER));
    let mut ahead = outliving();
    ahead.care.outlive = false;
    let ack = segment(ACK, SECOND, end_of(ANSWER), b"");
    let frame = sealed(&ahead, &ack.packet());
    owner.agent.receive("an ACK", &frame, &["received"]);
    let sniffer = PacketSocket::open("lo").unwrap();
    let close = || owner.stream.shutdown(Shutdown::Both).unwrap();
    owner.agent.expect_count("it closes", close, &[]);
    let (client, _) = heard(&sniffer);
    let fin = |header: &core_tcp::Header| header.flags.has(core_tcp::Flags::FIN);
    assert!(client.iter().any(fin), "{client:?}");
}

/// So does one whose request begins before the one before it was answered, as its dispatcher may not
/// know: it has heard of an interim answer, which looked as if it were one.
#[test]
fn who_is_seen_to_ask_ahead_hears_of_a_close() {
    let mut owner = owner();
    let interim = b"HTTP/1.1 103 Early Hints\r\n\r\n";
    owner.answer(interim);
    let mut ahead = second();
    ahead.ack = end_of(interim);
    let frame = beginning(&outliving(), &ahead.packet());
    owner.agent.receive("a request", &frame, &["received"]);
    owner.answer(ANSWER);
    let end = end_of(interim) + ANSWER.len() as u32;
    let ack = segment(ACK, SECOND + second().payload.len() as u32, end, b"");
    let frame = sealed(&outliving(), &ack.packet());
    owner.agent.receive("an ACK", &frame, &["received"]);
    let sniffer = PacketSocket::open("lo").unwrap();
    let close = || owner.stream.shutdown(Shutdown::Write).unwrap();
    owner.agent.expect_count("it closes", close, &[]);
    let (client, _) = heard(&sniffer);
    let fin = |header: &core_tcp::Header| header.flags.has(core_tcp::Flags::FIN);
    assert!(client.iter().any(fin), "{client:?}");
}

/// A copy of a request that was answered long ago is no request ahead.
#[test]
fn who_repeats_a_request_does_not_ask_ahead() {
    let mut owner = owner();
    owner.answer(ANSWER);
    let (mut seq, mut end) = (SECOND, end_of(ANSWER));
    for _ in 0..3 {
        let next = Tcp {
            seq,
            ack: end,
            ..second()
        };
        let frame = beginning(&outliving(), &next.packet());
        owner.agent.receive("a request", &frame, &["received"]);
        owner.answer(ANSWER);
        seq += second().payload.len() as u32;
        end += ANSWER.len() as u32;
        let copy = beginning(&outliving(), &second().packet());
        owner
            .agent
            .receive("an older one again", &copy, &["received"]);
    }
    let ack = sealed(&outliving(), &segment(ACK, seq, end, b"").packet());
    owner.agent.receive("an ACK", &ack, &["received"]);
    let close = || owner.stream.shutdown(Shutdown::Both).unwrap();
    owner.agent.expect_count("it closes", close, &["vacated"]);
}

/// Its dispatcher has held it, and does not know whether the owner's server has closed
/// since: an open socket is not to mind its old clock, a new one goes on from its echo.
#[test]
fn a_request_that_waited_has_its_clocks_with_it() {
    let (meta, first, echo) = with_clocks();
    let mut owner = Owner::with_option(meta, first);
    owner.answer(ANSWER);
    let mut waited = second();
    waited.options = options(&[Opt::Nop, Opt::Nop, Opt::Aged(900, echo)]);
    let frame = beginning(&meta, &waited.packet());
    owner.agent.receive("to its owner", &frame, &["received"]);
    assert_eq!(read(&mut owner.stream), second().payload);

    owner.answer(ANSWER);
    let third = SECOND + second().payload.len() as u32;
    let mut ack = segment(ACK, third, end_of(ANSWER) + ANSWER.len() as u32, b"");
    ack.options = timestamps(1001, echo);
    let heard_all = sealed(&meta, &ack.packet());
    owner.agent.receive("an ACK", &heard_all, &["received"]);
    let close = || owner.stream.shutdown(Shutdown::Both).unwrap();
    owner.agent.expect_count("it closes", close, &["vacated"]);
    (waited.seq, waited.ack) = (ack.seq, ack.ack);
    let frame = beginning(&meta, &waited.packet());
    let sniffer = PacketSocket::open("lo").unwrap();
    let rebuilt = ["received", "rebuilt", "confirmed"];
    owner.agent.receive("to a new socket", &frame, &rebuilt);
    expect_second(&mut owner);
    owner.stream.write_all(ANSWER).unwrap();
    let mut said = Timestamps::default();
    wait_for("it speaks", || {
        let (client, _) = heard(&sniffer);
        let clocks = client.last().and_then(|header| header.options.timestamps);
        said = clocks.unwrap_or(said);
        clocks.is_some()
    });
    assert!(said.value.wrapping_sub(echo) < 5000, "{said:?}");
}

/// Has answered, and its next request lies there.
fn asked_again() -> Owner {
    let mut owner = owner();
    owner.answer(ANSWER);
    let next = beginning(&outliving(), &second().packet());
    owner.agent.receive("the next", &next, &["received"]);
    owner
}

/// It has not run, though it was acknowledged: it is the first of a new connection.
#[test]
fn a_request_that_nobody_has_read_comes_again() {
    let owner = asked_again();
    let Owner {
        agent,
        server,
        mut stream,
    } = owner;
    let sniffer = PacketSocket::open("lo").unwrap();
    let is_reset = |header: &core_tcp::Header| header.flags.has(core_tcp::Flags::RST);
    let again = ["received", "rebuilt", "confirmed", "unread"];
    for _ in 0..2 {
        agent.expect_count("it closes", || drop(stream), &again);
        stream = accept(&server);
        let (client, _) = heard(&sniffer);
        assert!(!client.iter().any(is_reset), "{client:?}");
    }
    let setup = agent.setup(&request()).unwrap();
    assert_eq!((setup.epoch, setup.state), (EPOCH, CONFIRMED));
    assert_eq!((setup.answers.finished, setup.answers.unread), (1, 2));
    // Whole, and acknowledging all of the answer before.
    assert_eq!(setup.answers.next, end_of(ANSWER));
    stream.set_nonblocking(true).unwrap();
    let mut bytes = [0; 100];
    let length = stream.peek(&mut bytes).unwrap();
    assert_eq!(bytes[..length], second().payload);
    // A server that never reads is not asked for ever.
    agent.expect_count("it closes once more", || drop(stream), &[]);
    let (client, _) = heard(&sniffer);
    assert!(client.iter().any(is_reset), "{client:?}");
}

/// The client has heard of its clock since it asked: what comes again goes on from there, not from
/// what it said then (RFC 7323 §5.3).
#[test]
fn an_unread_request_comes_again_with_its_servers_clock() {
    const LATER_MS: u64 = 300;
    let (meta, first, echo) = with_clocks();
    for aged in [false, true] {
        let mut owner = Owner::with_option(meta, first.clone());
        owner.answer(ANSWER);
        let mut next = second();
        next.options = match aged {
            false => timestamps(1001, echo),
            true => options(&[Opt::Nop, Opt::Nop, Opt::Aged(1001, echo)]),
        };
        let frame = beginning(&meta, &next.packet());
        owner.agent.receive("the next", &frame, &["received"]);
        std::thread::sleep(Duration::from_millis(LATER_MS));
        let Owner {
            agent,
            server,
            stream,
        } = owner;
        let sniffer = PacketSocket::open("lo").unwrap();
        let again = ["received", "rebuilt", "confirmed", "unread"];
        agent.expect_count("it closes", || drop(stream), &again);
        let mut stream = accept(&server);
        assert_eq!(read(&mut stream), second().payload);
        let (client, _) = heard(&sniffer);
        let said = client.last().and_then(|header| header.options.timestamps);
        let ahead = said.expect("it has a clock").value.wrapping_sub(echo);
        assert!((LATER_MS as u32..9000).contains(&ahead), "{aged}: {ahead}");
    }
}

/// And the client's FIN with it, whether that came in the same packet or behind it.
#[test]
fn an_unread_request_comes_again_with_its_clients_end() {
    for in_one_packet in [true, false] {
        let mut owner = owner();
        owner.answer(ANSWER);
        let mut next = second();
        let end = SECOND + next.payload.len() as u32;
        if in_one_packet {
            next.flags |= FIN;
        }
        let frame = beginning(&outliving(), &next.packet());
        owner.agent.receive("the next", &frame, &["received"]);
        if !in_one_packet {
            let fin = segment(ACK | FIN, end, end_of(ANSWER), b"");
            let frame = sealed(&outliving(), &fin.packet());
            owner.agent.receive("its end", &frame, &["received"]);
        }
        let Owner {
            agent,
            server,
            stream,
        } = owner;
        let again = ["received", "rebuilt", "confirmed", "unread"];
        agent.expect_count("it closes", || drop(stream), &again);
        let mut stream = accept(&server);
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes, second().payload);
    }
}

/// It may have run, and may not run twice (RFC 9110 §9.2.2).
#[test]
fn a_post_of_which_a_byte_was_read_does_not_come_again() {
    let mut owner = owner();
    owner.answer(ANSWER);
    let mut next = second();
    next.payload = b"POST / HTTP/1.1\r\nHost: a\r\n\r\n".into();
    let next = beginning(&outliving(), &next.packet());
    owner.agent.receive("the next", &next, &["received"]);
    owner.stream.read_exact(&mut [0]).unwrap();
    let sniffer = PacketSocket::open("lo").unwrap();
    let Owner { agent, stream, .. } = owner;
    agent.expect_count("it closes", || drop(stream), &[]);
    let (client, _) = heard(&sniffer);
    let reset = |header: &core_tcp::Header| header.flags.has(core_tcp::Flags::RST);
    assert!(client.iter().any(reset), "{client:?}");
}

/// One that may run twice does, where its server has read of it and resets without a word.
#[test]
fn a_get_of_which_a_byte_was_read_comes_again() {
    let mut owner = asked_again();
    owner.stream.read_exact(&mut [0]).unwrap();
    let Owner {
        agent,
        server,
        stream,
    } = owner;
    let again = ["received", "rebuilt", "confirmed", "retried"];
    agent.expect_count("it resets", || drop(stream), &again);
    let mut stream = accept(&server);
    assert!(read(&mut stream).starts_with(b"GET "));
}

/// And where it says FIN, when its timer says it again: its lock is free then.
#[test]
fn a_get_that_was_read_comes_again_with_the_second_fin() {
    let mut owner = asked_again();
    read(&mut owner.stream);
    let Owner {
        agent,
        server,
        stream,
    } = owner;
    let sniffer = PacketSocket::open("lo").unwrap();
    let close = || stream.shutdown(Shutdown::Write).unwrap();
    agent.expect_count("the first FIN", close, &["server-close", "retried"]);
    let mut stream = accept(&server);
    assert!(read(&mut stream).starts_with(b"GET "));
    let (client, _) = heard(&sniffer);
    let is_over = |header: &core_tcp::Header| {
        header.flags.has(core_tcp::Flags::RST) || header.flags.has(core_tcp::Flags::FIN)
    };
    assert!(!client.iter().any(is_over), "{client:?}");
}

/// Without a listener its dispatcher has it back, as it came; of another server before,
/// too, which has not read it either.
#[test]
fn an_unread_request_goes_back_where_no_server_listens() {
    for servers_before in 0..2 {
        let owner = asked_again();
        let Owner {
            agent,
            server,
            mut stream,
        } = owner;
        for _ in 0..servers_before {
            let again = ["received", "rebuilt", "confirmed", "unread"];
            agent.expect_count("it closes", || drop(stream), &again);
            stream = accept(&server);
        }
        stop(server);
        let sniffer = PacketSocket::open("lo").unwrap();
        let counted = ["no-listener", "refused", "unread"];
        agent.expect_count("it closes", || drop(stream), &counted);
        let (client, dispatcher) = heard(&sniffer);
        assert!(client.is_empty(), "{client:?}");
        let told = dispatcher.first().expect("the dispatcher has it");
        let told = geneve::open(told, DISPATCHER.into(), &keys()).expect("its tag is good");
        let refused = Meta {
            kind: Kind::Refused(Refusal::NoListener),
            ..outliving()
        };
        assert_eq!(told.meta, refused);
        let inner = core_ipv4::Packet::parse(told.inner).unwrap();
        let (header, payload) = core_tcp::Header::parse(inner.payload()).unwrap();
        assert_eq!((header.seq, header.ack), (SECOND, end_of(ANSWER)));
        assert_eq!(payload, second().payload);

        // Whoever asks after it has not got that: the same again, though a server may listen.
        let _server = TcpListener::bind(VIP).unwrap();
        let probe = Meta {
            kind: Kind::Probe,
            ..outliving()
        };
        let ask = segment(ACK, SECOND ^ 1 << 31, end_of(ANSWER), b"").packet();
        let sniffer = PacketSocket::open("lo").unwrap();
        agent.receive("it is asked", &sealed(&probe, &ask), &["refused"]);
        let (_, dispatcher) = heard(&sniffer);
        let again = dispatcher.iter().find_map(|word| {
            let word = geneve::open(word, DISPATCHER.into(), &keys()).ok()?;
            (word.meta == refused).then(|| word.inner.to_vec())
        });
        assert_eq!(again.expect("it is told again"), told.inner);
    }
}

/// A request of several packets, of which the server has read none.
#[test]
fn all_packets_of_an_unread_request_come_again() {
    let Owner {
        agent,
        server,
        mut stream,
    } = asked_again();
    let parts = [second().payload, vec![b'b'; 1400], b"the end".to_vec()];
    let whole = parts.concat();
    send_parts(&agent, &parts);
    let again = [
        "received",
        "received",
        "received",
        "rebuilt",
        "confirmed",
        "unread",
    ];
    for _ in 0..2 {
        agent.expect_count("it closes", || drop(stream), &again);
        stream = accept(&server);
    }
    let mut got = vec![0; whole.len()];
    stream.read_exact(&mut got).unwrap();
    assert_eq!(got, whole);
    assert_eq!(agent.setup(&request()).unwrap().answers.unread, 2);
}

/// The kernel's word to the client: a packet has met no socket.
fn met_nobody(agent: &Agent) -> Outcome {
    let mut word = segment(RST, end_of(ANSWER), 0, b"");
    (word.source, word.dest) = (VIP, CLIENT);
    agent.run(&agent.egress, &word.frame())
}

/// While a socket is closed its packets meet nobody, though it has had the request, and perhaps read it: it
/// says so itself.
#[test]
fn what_a_socket_has_had_it_speaks_for_itself() {
    let Owner {
        agent,
        server,
        stream,
    } = asked_again();
    let parts = [second().payload, b"the end".to_vec()];
    send_parts(&agent, &parts);
    let stays_back = Outcome::drop("server-close");
    assert_eq!(met_nobody(&agent).difference(&stays_back), None);
    let again = ["received", "received", "rebuilt", "confirmed", "unread"];
    agent.expect_count("it closes", || drop(stream), &again);
    let mut got = vec![0; parts.concat().len()];
    accept(&server).read_exact(&mut got).unwrap();
    assert_eq!(got, parts.concat());
}

/// What packets met before their request came again is no word of its new connection: that has been read.
#[test]
fn a_late_word_does_not_end_the_next_connection() {
    let Owner {
        agent,
        server,
        stream,
    } = asked_again();
    let again = ["received", "rebuilt", "confirmed", "unread"];
    agent.expect_count("it closes", || drop(stream), &again);
    let mut stream = accept(&server);
    assert_eq!(read(&mut stream), second().payload);
    let stays_back = Outcome::drop("server-close");
    assert_eq!(met_nobody(&agent).difference(&stays_back), None);
    let mut owner = Owner {
        agent,
        server,
        stream,
    };
    owner.expect_alive();
}

/// What is behind its first packet goes where that goes.
#[test]
fn all_packets_of_an_unread_request_go_back_where_no_server_listens() {
    let Owner {
        agent,
        server,
        stream,
    } = asked_again();
    let parts = [second().payload, vec![b'b'; 1400], b"the end".to_vec()];
    send_parts(&agent, &parts);
    stop(server);
    let sniffer = PacketSocket::open("lo").unwrap();
    let counted = ["no-listener", "refused", "refused", "refused", "unread"];
    agent.expect_count("it closes", || drop(stream), &counted);
    let (client, dispatcher) = heard(&sniffer);
    assert!(client.is_empty(), "{client:?}");
    let mut came = Vec::new();
    for told in &dispatcher {
        let told = geneve::open(told, DISPATCHER.into(), &keys()).expect("its tag is good");
        let inner = core_ipv4::Packet::parse(told.inner).unwrap();
        let (header, payload) = core_tcp::Header::parse(inner.payload()).unwrap();
        came.push((told.meta.kind, header.seq, header.ack, payload.to_vec()));
    }
    came.dedup(); // the loopback device shows each twice
    let mut seq = SECOND;
    let mut expected = Vec::new();
    for (place, part) in parts.into_iter().enumerate() {
        let why = match place {
            0 => Refusal::NoListener,
            _ => Refusal::Behind,
        };
        let next = seq + part.len() as u32;
        expected.push((Kind::Refused(why), seq, end_of(ANSWER), part));
        seq = next;
    }
    assert_eq!(came, expected);
}

/// A gap in the copies: nobody can send that again.
#[test]
fn a_request_that_is_not_all_kept_does_not_come_again() {
    let Owner { agent, stream, .. } = asked_again();
    // More packets than are sent again.
    let mut parts = vec![second().payload];
    parts.extend((0..64).map(|byte| vec![byte; 10]));
    send_parts(&agent, &parts);
    let sniffer = PacketSocket::open("lo").unwrap();
    agent.expect_count("it closes", || drop(stream), &[]);
    let (client, _) = heard(&sniffer);
    let reset = |header: &core_tcp::Header| header.flags.has(core_tcp::Flags::RST);
    assert!(client.iter().any(reset), "{client:?}");
}

/// Nor is that all that has come: of what is beyond the copies the client is not told.
#[test]
fn what_lies_behind_the_copies_is_not_acknowledged_before_it_is_read() {
    let Owner {
        agent,
        server,
        mut stream,
    } = asked_again();
    set_option(&stream, libc::SOL_SOCKET, libc::SO_RCVBUF, 1 << 20);
    let mut parts = vec![second().payload];
    parts.extend((0..60).map(|byte| vec![byte; 1388]));
    let before = agent.counters();
    let (mut seq, mut told) = (SECOND + parts[0].len() as u32, 0);
    for part in &parts[1..] {
        let sniffer = PacketSocket::open("lo").unwrap();
        let packet = segment(ACK | PSH, seq, end_of(ANSWER), part).packet();
        agent.send("more of it", &sealed(&outliving(), &packet));
        seq += part.len() as u32;
        let (client, _) = heard(&sniffer);
        let acks = client.iter().map(|header| header.ack.wrapping_sub(SECOND));
        told = acks.fold(told, u32::max);
    }
    wait_for("an acknowledgement has stayed back", || {
        difference(&before, &agent.counters()).contains(&"unread")
    });
    // Its kernel says so at once, or some parts later.
    assert!((1..=65_536).contains(&told), "{told}");
    let sniffer = PacketSocket::open("lo").unwrap();
    drop(stream);
    stream = accept(&server);
    let mut got = vec![0; told as usize];
    stream.read_exact(&mut got).unwrap();
    assert_eq!(got, parts.concat()[..told as usize]);
    let (client, _) = heard(&sniffer);
    let is_reset = |header: &core_tcp::Header| header.flags.has(core_tcp::Flags::RST);
    assert!(!client.iter().any(is_reset), "{client:?}");
}

/// Linux does not say it when its server reads: the daemon has its socket asked, which says it once more.
#[test]
fn what_was_not_acknowledged_is_once_it_is_read_and_its_socket_asked() {
    let Owner {
        agent, mut stream, ..
    } = asked_again();
    let told = withheld(agent.pins.path()).unwrap();
    set_option(&stream, libc::SOL_SOCKET, libc::SO_RCVBUF, 1 << 20);
    let before = agent.counters();
    let mut seq = SECOND + second().payload.len() as u32;
    for byte in 0..60 {
        let packet = segment(ACK | PSH, seq, end_of(ANSWER), &[byte; 1388]).packet();
        agent.send("more of it", &sealed(&outliving(), &packet));
        seq += 1388;
    }
    wait_for("an acknowledgement has stayed back", || {
        difference(&before, &agent.counters()).contains(&"unread")
    });
    let said = told.take().unwrap();
    let [said] = &said[..] else {
        panic!("once: {said:?}");
    };
    assert_eq!(agent.setup(&request()).unwrap().withheld, 1);
    let ask = || {
        let header = core_tcp::Header {
            seq: said.seq,
            ack: said.ack - 65_536,
            flags: core_tcp::Flags::ACK,
            ..core_tcp::Header::default()
        };
        let flow = FlowKey {
            client: VIP.into(),
            vip: CLIENT.into(),
        };
        let mut question = Segment::of_client(&flow, header);
        question.payload = vec![0];
        let mut questions = Outbox::default();
        questions.push(SocketAddrV4::new(*CLIENT.ip(), 0), |out| {
            question.write(out)
        });
        assert_eq!(RawSocket::to_own_sockets().unwrap().send(&questions), 0);
    };
    agent.expect_count("it is not read", ask, &["unread"]);
    stream.read_exact(&mut [0; 10]).unwrap();
    let sniffer = PacketSocket::open("lo").unwrap();
    agent.expect_count("it is", ask, &[]);
    let (client, _) = heard(&sniffer);
    assert!(client.iter().any(|header| header.ack == seq), "{client:?}");
    assert_eq!(agent.setup(&request()).unwrap().withheld, 0);
    // Nobody asks a socket that has said all.
    let sniffer = PacketSocket::open("lo").unwrap();
    agent.expect_count("it has left", ask, &[]);
    assert_eq!(heard(&sniffer).0, []);
}

/// The packets behind the first, which has come.
fn send_parts(agent: &Agent, parts: &[Vec<u8>]) {
    let mut seq = SECOND + parts[0].len() as u32;
    for part in &parts[1..] {
        let packet = segment(ACK | PSH, seq, end_of(ANSWER), part).packet();
        agent.receive("more of it", &sealed(&outliving(), &packet), &["received"]);
        seq += part.len() as u32;
    }
}

/// Whoever else's requests came since.
#[test]
fn every_flow_has_a_copy_of_its_request() {
    let Owner {
        agent,
        server,
        mut stream,
    } = asked_again();
    for port in 10_000..10_300 {
        let mut other = request();
        other.source = SocketAddrV4::new(*CLIENT.ip(), port);
        let frame = sealed(&outliving(), &other.packet());
        let rebuilt = ["received", "rebuilt", "confirmed"];
        agent.receive("another's", &frame, &rebuilt);
        (other.flags, other.payload) = (RST, Vec::new());
        other.seq = SECOND;
        let frame = sealed(&outliving(), &other.packet());
        agent.receive("its end", &frame, &["received"]);
        drop(accept(&server));
    }
    let again = ["received", "rebuilt", "confirmed", "unread"];
    agent.expect_count("it closes", || drop(stream), &again);
    stream = accept(&server);
    assert_eq!(read(&mut stream), second().payload);
}

#[test]
fn a_close_that_means_something_leaves() {
    let request = request();
    let no_care = followed(Kind::Forward, EPOCH, START);
    let closing = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
    let table: [(&str, Meta, &[u8], bool); 4] = [
        ("nobody asked", no_care, ANSWER, false),
        (
            "half an answer",
            outliving(),
            &ANSWER[..ANSWER.len() - 1],
            false,
        ),
        ("it said so", outliving(), closing, false),
        ("the next request is here", outliving(), ANSWER, true),
    ];
    for (what, meta, said, asked) in table {
        let mut owner = Owner::with_option(meta, request.clone());
        if !said.is_empty() {
            owner.answer(said);
        }
        let mut next = segment(ACK, SECOND, end_of(said), b"");
        if asked {
            next.payload = b"POST / HTTP/1.1\r\n\r\n".into();
        }
        let frame = match asked {
            true => beginning(&meta, &next.packet()),
            false => sealed(&meta, &next.packet()),
        };
        owner.agent.receive("an ACK", &frame, &["received"]);
        if asked {
            read(&mut owner.stream);
        }
        let sniffer = PacketSocket::open("lo").unwrap();
        let close = || owner.stream.shutdown(Shutdown::Both).unwrap();
        owner.agent.expect_count(what, close, &[]);
        let (client, dispatcher) = heard(&sniffer);
        assert!(
            client.iter().any(|h| h.flags.has(core_tcp::Flags::FIN)),
            "{what}"
        );
        assert_eq!(dispatcher, [[0u8; 0]; 0], "{what}");
        assert_eq!(
            owner.agent.setup(&request).unwrap().state,
            CONFIRMED,
            "{what}"
        );
    }
}

/// Whoever asks for a flow without a server can have it.
#[test]
fn a_vacant_flow_can_go() {
    for meta in [handoff(NEXT), release()] {
        let mut owner = owner();
        owner.answer(ANSWER);
        acknowledge(&owner, end_of(ANSWER));
        let close = || owner.stream.shutdown(Shutdown::Both).unwrap();
        owner.agent.expect_count("it closes", close, &["vacated"]);
        let owed = Meta {
            requests: 2,
            epoch: MOVE,
            ..meta
        };
        let got = owner.run(&sealed(&owed, &second().packet()));
        assert_eq!(got.counted, ["held"]);
        let meta = Meta {
            epoch: MOVE + 1,
            ..meta
        };
        let got = owner.run(&sealed(&meta, &second().packet()));
        assert_eq!(got.counted[0], "given-up");
        let late = beginning(&outliving(), &second().packet());
        owner.expect("not here as well", &late, &Outcome::drop("stale-epoch"));
    }
}

/// Its dispatcher knows, should it die.
#[test]
fn where_an_answer_ends_is_told_when_it_does() {
    let mut owner = owner();
    owner.answer(&ANSWER[..20]);
    assert_eq!(owner.agent.to_tell(29), [], "it has not");
    owner.answer(&ANSWER[20..]);
    let [told] = owner.agent.to_tell(29)[..] else {
        panic!("it is told once");
    };
    assert_eq!(told.dispatcher, DISPATCHER.octets());
    assert_eq!(told.key, flow_key(CLIENT, VIP));
    let end = ServerSeq::new(end_of(ANSWER));
    let expected = Meta {
        kind: Kind::Answered { end },
        requests: 1,
        start: ClientSeq::new(SECOND),
        ..outliving()
    };
    assert_eq!(Meta::decode(&told.meta), Ok(expected));
    // Two in one packet end once.
    acknowledge(&owner, end_of(ANSWER));
    owner.answer(&[ANSWER, ANSWER].concat());
    let [told] = owner.agent.to_tell(29)[..] else {
        panic!("and so are they");
    };
    let told = Meta::decode(&told.meta).unwrap();
    let end = end + 2 * ANSWER.len() as u32;
    assert_eq!((told.kind, told.requests), (Kind::Answered { end }, 3));
}

#[test]
fn one_behind_which_the_server_closes_is_not() {
    let mut owner = owner();
    owner.answer(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 1\r\n\r\na");
    assert_eq!(owner.agent.to_tell(29), []);
}

#[test]
fn what_held_a_flow_up_is_told_of_once() {
    let told = |owner: &Owner| owner.agent.to_tell(14);
    let mut owner = owner();
    let ask = sealed(&release(), &segment(ACK, SECOND, FIRST, b"").packet());
    owner.answer(&ANSWER[..20]);
    assert_eq!(told(&owner), [], "nobody has asked");
    assert_eq!(owner.run(&ask).counted, ["held"]);
    assert_eq!(owner.run(&ask).counted, ["held"]);
    assert_eq!(told(&owner), [], "nothing has changed");
    owner.answer(&ANSWER[20..]);
    let dones = told(&owner);
    assert_eq!(dones.len(), 1);
    assert_eq!(dones[0].dispatcher, DISPATCHER.octets());
    assert_eq!(dones[0].key, flow_key(CLIENT, VIP));
    assert_eq!(dones[0].end, end_of(ANSWER));
    let meta = Meta::decode(&dones[0].meta).unwrap();
    assert_eq!((meta.epoch, meta.start.raw()), (EPOCH, SECOND));

    assert_eq!(owner.run(&ask).counted, ["held"], "not acknowledged");
    acknowledge(&owner, end_of(ANSWER) - 1);
    assert_eq!(told(&owner), []);
    acknowledge(&owner, end_of(ANSWER));
    assert_eq!(told(&owner).len(), 1);
    acknowledge(&owner, end_of(ANSWER));
    assert_eq!(told(&owner), [], "once");
    assert_eq!(owner.run(&ask).counted, ["given-up"]);
}
