//! Sockets that wait for their flow to come back, and go on by their own numbers
//! (docs/protocol/handoff.md 8).

use std::io::Write;
use std::net::Shutdown;
use std::time::Duration;

use trapeze_core::flow::Handshake;
use trapeze_core::seq::{ClientSeq, ServerSeq};
use trapeze_core::wire::meta::{Care, Kind, Meta};
use trapeze_core::wire::tcp as core_tcp;
use trapeze_datapath::abi::Setup;
use trapeze_datapath::agent::PARKED_FOR;
use trapeze_datapath::clock;
use trapeze_datapath::map::Update;
use trapeze_datapath::packet_socket::{Batch, PacketSocket};

use crate::agent::START;
use crate::backend::*;
use crate::bench::*;
use crate::halfpipe::sack;
use crate::handoff::*;
use crate::packet::*;
use crate::rebuild::accept;

/// The epoch in which the flow comes back, and where it stands then: so much have others
/// heard and said.
const BACK: u32 = MOVE + 1;
const LATER: u32 = SECOND + 70_000;
const THERE: u32 = FIRST + 900_000;
/// What the client has echoed last, and will echo: clocks of others.
const ECHO: u32 = 0xffff_fff0;
const ECHO_THERE: u32 = 50_000_000;
const GET: &[u8] = b"GET /3 HTTP/1.1\r\n\r\n";
/// The socket that waits hears the acknowledgement, and says nothing to it.
const AWAY: [&str; 3] = ["received", "given-up", "handed-on"];

const CARE: Care = Care {
    follow: true,
    head: false,
    outlive: true,
    park: true,
    kept: false,
};

fn with_clock(meta: Meta) -> Meta {
    Meta {
        handshake: Handshake {
            timestamps: true,
            ..HANDSHAKE
        },
        care: CARE,
        ..meta
    }
}

fn forward(epoch: u32, start: u32) -> Meta {
    with_clock(meta(Kind::Forward, epoch, start))
}

fn with_echo(tcp: Tcp, echo: u32) -> Tcp {
    Tcp {
        options: timestamps(9, echo),
        ..tcp
    }
}

/// The request with which the flow is back.
fn third() -> Tcp {
    with_echo(segment(ACK | PSH, LATER, THERE, GET), ECHO_THERE)
}

fn setup(owner: &Owner) -> Setup {
    owner.agent.setup(&request()).unwrap()
}

/// The owner gives the flow up before that request.
fn give_up(owner: &Owner, epoch: u32, next: &Tcp) {
    let meta = Meta {
        epoch,
        start: ClientSeq::new(next.seq),
        ..with_clock(handoff(NEXT))
    };
    let frame = sealed(&meta, &next.packet());
    let give_up = || drop(owner.run(&frame));
    owner.agent.expect_count("it goes on", give_up, &AWAY);
}

/// An owner that has given the flow up, and whose socket waits.
fn parked() -> Owner {
    let mut owner = Owner::with_option(forward(EPOCH, START), with_echo(request(), ECHO));
    owner.answer(ANSWER);
    give_up(&owner, MOVE, &with_echo(second(), ECHO));
    assert_eq!((setup(&owner).state, setup(&owner).parked), (MOVED, 1));
    assert_eq!(owner.agent.maps.parked.all().unwrap().len(), 1);
    owner.expect_alive();
    owner
}

fn come_back(owner: &Owner, counted: &[&'static str]) {
    let frame = sealed(&forward(BACK, LATER), &third().packet());
    owner.agent.receive("it is back", &frame, counted);
}

/// What has left for the client since.
fn said(sniffer: &PacketSocket) -> Vec<(core_tcp::Header, Vec<u8>)> {
    let mut batch = Batch::default();
    sniffer.receive(&mut batch).unwrap();
    let to_client = |frame: &&[u8]| {
        frame[ETHERNET + 9] == TCP && frame[ETHERNET + 16..ETHERNET + 20] == CLIENT.ip().octets()
    };
    let parse = |frame: &[u8]| {
        let (header, payload) = core_tcp::Header::parse(&frame[TCP_AT..]).unwrap();
        (header, payload.to_vec())
    };
    batch.frames().filter(to_client).map(parse).collect()
}

#[test]
fn a_flow_comes_back_to_its_own_socket_again_and_again() {
    let mut owner = parked();
    for round in 0..3u32 {
        let (seq, ack) = (LATER + round * 1000, THERE + round * 9000);
        let request = with_echo(segment(ACK | PSH, seq, ack, GET), ECHO_THERE + round * 500);
        let frame = sealed(&forward(BACK + 2 * round, seq), &request.packet());
        let sniffer = PacketSocket::open("lo").unwrap();
        owner
            .agent
            .receive("it is back", &frame, &["received", "resumed"]);
        assert_eq!(read(&mut owner.stream), GET);
        assert_eq!(owner.agent.maps.parked.all().unwrap(), []);
        owner.agent.receive("again", &frame, &["received"]);
        owner.answer(ANSWER);
        let answered = said(&sniffer);
        let (header, _) = (answered.iter())
            .find(|(_, payload)| payload == ANSWER)
            .expect("the answer leaves");
        let next = seq + GET.len() as u32;
        assert_eq!((header.seq, header.ack), (ack, next));
        let clock = header.options.timestamps.expect("as agreed").value;
        let ahead = clock.wrapping_sub(ECHO_THERE + round * 500);
        assert!(
            ahead < 1000,
            "{ahead} ms ahead of what the client has heard"
        );

        let end = ack + ANSWER.len() as u32;
        let away = segment(ACK | PSH, next, end, GET);
        give_up(&owner, BACK + 2 * round + 1, &with_echo(away, clock));
        owner.expect_alive();
    }
}

/// The request may have waited at its dispatcher, while its client went on talking: by that clock it
/// is late (RFC 7323 §5.3), and it will say no other.
#[test]
fn a_request_that_has_waited_is_heard() {
    let says = |value: u32, seq: u32, ack: u32, payload: &[u8], echo: u32| Tcp {
        options: timestamps(value, echo),
        ..segment(ACK | PSH, seq, ack, payload)
    };
    for (clock, late) in [(10, false), (10, true), (0x8000_0010, true)] {
        let first = says(clock, START, FIRST, REQUEST, ECHO);
        let mut owner = Owner::with_option(forward(EPOCH, START), first);
        owner.answer(ANSWER);
        let heard = says(clock + 40, SECOND, FIRST, b"", ECHO);
        let frame = sealed(&forward(EPOCH, START), &heard.packet());
        owner.agent.receive("it is heard", &frame, &["received"]);
        give_up(
            &owner,
            MOVE,
            &says(clock + 40, SECOND, end_of(ANSWER), GET, ECHO),
        );
        let value = clock + if late { 5 } else { 45 };
        let request = says(value, LATER, THERE, GET, ECHO_THERE);
        let frame = sealed(&forward(BACK, LATER), &request.packet());
        let counted = ["received", "resumed"];
        owner.agent.receive("it is back", &frame, &counted);
        assert_eq!(read(&mut owner.stream), GET, "{clock} {late}");
        // So does its repetition, for all that its dispatcher knows.
        let shifted = setup(&owner);
        let echo = ECHO_THERE.wrapping_sub(shifted.clock_shift);
        let option = match late {
            true => Opt::Aged(value, echo),
            false => Opt::Timestamps(value, echo),
        };
        let own = Tcp {
            seq: LATER - shifted.client_shift,
            ack: THERE - shifted.server_shift,
            options: options(&[Opt::Nop, Opt::Nop, option]),
            ..request
        };
        owner.expect("again", &frame, &delivered(&own.packet(), &["received"]));
    }
}

/// What the client says then is the socket's, number by number.
#[test]
fn numbers_are_the_sockets_own_on_the_way_in() {
    let owner = parked();
    come_back(&owner, &["received", "resumed"]);
    let shifted = setup(&owner);
    let (next, begin) = (LATER + GET.len() as u32, THERE);
    assert_eq!(shifted.client_shift, LATER - SECOND);
    assert_eq!(shifted.server_shift, THERE - end_of(ANSWER));
    let option = forward(BACK, LATER);
    let blocks = |by: u32| {
        sack(&[
            (begin + 10 - by, begin + 20 - by),
            (begin + 40 - by, begin + 50 - by),
        ])
    };
    let table = [
        ("an ACK", vec![], vec![]),
        (
            "a clock",
            timestamps(8, ECHO_THERE),
            timestamps(8, ECHO_THERE - shifted.clock_shift),
        ),
        ("no echo", timestamps(8, 0), timestamps(8, 0)),
        ("SACK blocks", blocks(0), blocks(shifted.server_shift)),
        (
            "both",
            [timestamps(8, ECHO_THERE), blocks(0)].concat(),
            [
                timestamps(8, ECHO_THERE.wrapping_sub(shifted.clock_shift)),
                blocks(shifted.server_shift),
            ]
            .concat(),
        ),
    ];
    for (what, came, goes) in table {
        for payload in [&b""[..], b"more"] {
            let on_the_wire = Tcp {
                options: came.clone(),
                ..segment(ACK, next, begin + 5, payload)
            };
            let own = Tcp {
                seq: next - shifted.client_shift,
                ack: begin + 5 - shifted.server_shift,
                options: goes.clone(),
                ..on_the_wire.clone()
            };
            let frame = sealed(&option, &on_the_wire.packet());
            owner.expect(what, &frame, &delivered(&own.packet(), &["received"]));
        }
    }
}

/// Its server need not know why, and nobody else hears of it.
#[test]
fn a_server_closes_what_is_parked_for_itself() {
    let mut owner = parked();
    let sniffer = PacketSocket::open("lo").unwrap();
    let close = || owner.stream.shutdown(Shutdown::Both).unwrap();
    owner.agent.expect_count("it closes", close, &["moved"]);
    assert_eq!(setup(&owner).parked, 0);
    assert_eq!(owner.agent.maps.parked.all().unwrap(), []);
    assert_eq!(said(&sniffer), []);
    come_back(&owner, &["received", "rebuilt", "confirmed"]);
    owner.stream = accept(&owner.server);
    assert_eq!(read(&mut owner.stream), GET);
}

/// What it said is not what the client knows: it cannot go on there.
#[test]
fn a_server_that_speaks_while_it_is_parked_is_not_taken_up() {
    let mut owner = parked();
    let sniffer = PacketSocket::open("lo").unwrap();
    let speak = || owner.stream.write_all(b"HTTP/1.1 408 x\r\n\r\n").unwrap();
    owner.agent.expect_count("it speaks", speak, &["moved"]);
    come_back(&owner, &["received", "rebuilt", "replaced", "confirmed"]);
    owner.stream = accept(&owner.server);
    assert_eq!(read(&mut owner.stream), GET);
    let leaked = said(&sniffer);
    assert!(
        leaked.iter().all(|(_, payload)| payload.is_empty()),
        "{leaked:?}"
    );
}

#[test]
fn nobody_waits_for_long() {
    let mut owner = parked();
    let sniffer = PacketSocket::open("lo").unwrap();
    let now = clock::monotonic();
    assert_eq!(owner.agent.maps.end_parked(now).unwrap(), 0);
    let later = now + PARKED_FOR + Duration::from_millis(10);
    assert_eq!(owner.agent.maps.end_parked(later).unwrap(), 1);
    owner.expect_gone();
    assert_eq!(said(&sniffer), [], "the client does not hear");
    come_back(&owner, &["received", "rebuilt", "confirmed"]);
    owner.stream = accept(&owner.server);
    assert_eq!(read(&mut owner.stream), GET);
}

/// Nor does the listener go in its place: the kernel finds that for a client without a socket.
#[test]
fn who_has_gone_already_takes_nobody_along() {
    let mut owner = parked();
    let (key, _) = owner.agent.maps.parked.all().unwrap()[0];
    let close = || owner.stream.shutdown(Shutdown::Both).unwrap();
    owner.agent.expect_count("it closes", close, &["moved"]);
    owner
        .agent
        .maps
        .parked
        .put(&key, &0, Update::Create)
        .unwrap();
    let ended = owner.agent.maps.end_parked(clock::monotonic()).unwrap();
    assert_eq!(ended, 0);
    come_back(&owner, &["received", "rebuilt", "confirmed"]);
    owner.stream = accept(&owner.server);
    assert_eq!(read(&mut owner.stream), GET);
}

/// What its server closes on there is known by its own numbers, too.
#[test]
fn a_connection_that_was_taken_up_can_be_closed() {
    for asked in [false, true] {
        let mut owner = parked();
        come_back(&owner, &["received", "resumed"]);
        assert_eq!(read(&mut owner.stream), GET);
        owner.answer(ANSWER);
        let (next, end) = (LATER + GET.len() as u32, THERE + ANSWER.len() as u32);
        let more = if asked { GET } else { b"" };
        let heard = with_echo(segment(ACK | PSH, next, end, more), ECHO_THERE);
        let frame = beginning(&forward(BACK, LATER), &heard.packet());
        owner.agent.receive("the next", &frame, &["received"]);
        let Owner {
            agent,
            server,
            stream,
        } = owner;
        let sniffer = PacketSocket::open("lo").unwrap();
        let counted = match asked {
            false => &["vacated"][..],
            true => &["received", "rebuilt", "confirmed", "unread"],
        };
        agent.expect_count("it closes", || drop(stream), counted);
        let closed = |header: &core_tcp::Header| {
            header.flags.has(core_tcp::Flags::RST) || header.flags.has(core_tcp::Flags::FIN)
        };
        assert!(!said(&sniffer).iter().any(|(header, _)| closed(header)));
        if asked {
            assert_eq!(read(&mut accept(&server)), GET);
        }
    }
}

#[test]
fn only_the_same_connection_is_taken_up() {
    let rebuilt = ["received", "rebuilt", "replaced", "confirmed"];
    type Change = fn(&mut Meta, &mut Tcp);
    let table: [(&str, Change); 5] = [
        ("behind", |meta, tcp| {
            tcp.seq = SECOND - 1;
            meta.start = ClientSeq::new(tcp.seq);
        }),
        ("far ahead", |meta, tcp| {
            tcp.seq = SECOND + (1 << 27);
            meta.start = ClientSeq::new(tcp.seq);
        }),
        ("of another server's numbers", |_, tcp| {
            tcp.ack = end_of(ANSWER) + (1 << 30)
        }),
        ("another window", |meta, _| {
            meta.handshake.window_scales = None
        }),
        ("another MSS", |meta, _| meta.handshake.mss -= 1),
    ];
    for (what, change) in table {
        let mut owner = parked();
        let (mut meta, mut tcp) = (forward(BACK, LATER), third());
        change(&mut meta, &mut tcp);
        let frame = sealed(&meta, &tcp.packet());
        owner.agent.receive(what, &frame, &rebuilt);
        owner.expect_reset();
        owner.stream = accept(&owner.server);
        assert_eq!(read(&mut owner.stream), GET);
    }
}

/// Neither where the pool does not want it, nor where the dispatcher takes the flow away.
#[test]
fn parking_is_asked_for() {
    let without = Care {
        park: false,
        ..CARE
    };
    for (first, word) in [(without, CARE), (CARE, without)] {
        let first = Meta {
            care: first,
            ..forward(EPOCH, START)
        };
        let mut owner = Owner::with_option(first, with_echo(request(), ECHO));
        owner.answer(ANSWER);
        let word = Meta {
            care: word,
            ..with_clock(release())
        };
        let frame = sealed(&word, &with_echo(probe(), ECHO).packet());
        assert_eq!(owner.run(&frame).counted, ["given-up"]);
        owner.expect_reset();
        assert_eq!(owner.agent.maps.parked.all().unwrap(), []);
    }
}

/// The half-pipe of a connection that was taken up keeps to its own numbers.
#[test]
fn a_connection_that_was_taken_up_can_become_an_older_owner() {
    let mut owner = parked();
    come_back(&owner, &["received", "resumed"]);
    assert_eq!(read(&mut owner.stream), GET);
    owner.answer(ANSWER);
    let end = THERE + ANSWER.len() as u32;
    let next = LATER + GET.len() as u32;
    let release = Meta {
        start: ClientSeq::new(next),
        epoch: BACK + 1,
        requests: 1,
        ..with_clock(meta(asks_for(true, next), 0, 0))
    };
    let ask = with_echo(segment(ACK, next, THERE, b""), ECHO_THERE);
    let got = owner.run(&sealed(&release, &ask.packet()));
    assert_eq!(got.counted, ["given-up", "half-pipe"]);
    let shifted = setup(&owner);
    assert_eq!((shifted.end, shifted.start), (end, next));
    let gc = Meta {
        start: ClientSeq::new(next),
        epoch: BACK + 1,
        ..with_clock(meta(
            Kind::Gc {
                end: ServerSeq::new(end),
                reach: ClientSeq::new(0),
            },
            0,
            0,
        ))
    };
    let heard = segment(ACK, next, THERE + 7, b"");
    let own = Tcp {
        seq: next - shifted.client_shift,
        ack: THERE + 7 - shifted.server_shift,
        ..heard.clone()
    };
    let frame = sealed(&gc, &heard.packet());
    owner.expect(
        "the client has some",
        &frame,
        &delivered(&own.packet(), &["received"]),
    );
}
