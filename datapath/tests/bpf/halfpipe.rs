//! Two owners of one stream: what the newer one makes of a client's word for itself and
//! for the one before it, and how that one ends (docs/protocol/handoff.md 1.4, 6).

use std::io::Write;
use std::net::Ipv4Addr;
use std::time::Duration;

use trapeze_core::flow::Handshake;
use trapeze_core::seq::{ClientSeq, ServerSeq};
use trapeze_core::wire::geneve;
use trapeze_core::wire::meta::{Care, Kind, Leave, Meta};
use trapeze_datapath::map::Update;
use trapeze_datapath::packet_socket::{Batch, PacketSocket};

use crate::agent::START;
use crate::backend::*;
use crate::bench::*;
use crate::closing;
use crate::handoff::*;
use crate::outcome::{Outcome, Verdict};
use crate::packet::*;

/// Its daemon was told.
const SAVED_TOLD: u8 = 1;
/// `enum setup_state`.
pub const OLDER: u32 = 6;

/// Where the older owner is, and where the newer one's range starts: 5000 bytes on.
pub const BEFORE: Ipv4Addr = NEIGHBOUR;
pub const RANGE: u32 = FIRST + 5000;

fn after() -> Meta {
    let predecessor = BEFORE;
    followed(Kind::ForwardAfter { predecessor }, MOVE, SECOND)
}

/// The request, as the dispatcher's daemon sends it: with the range's start.
fn begun() -> Tcp {
    segment(ACK | PSH, SECOND, RANGE, REQUEST)
}

/// An owner here, with one before it.
fn newer() -> Owner {
    Owner::with_option(after(), begun())
}

pub fn sack(blocks: &[(u32, u32)]) -> Vec<u8> {
    let mut out = vec![1, 1, 5, 2 + 8 * blocks.len() as u8];
    for (left, right) in blocks {
        out.extend(left.to_be_bytes());
        out.extend(right.to_be_bytes());
    }
    out
}

/// A packet as the newer owner's socket gets it.
pub fn up(tcp: &Tcp) -> Outcome {
    delivered(&tcp.packet(), &["received"])
}

/// As [`Owner::expect`], whether or not the copy for the other has come round by then.
pub fn expect(owner: &Owner, what: &str, frame: &[u8], expected: &Outcome) {
    let mut got = owner.run(frame);
    got.counted.retain(|&counted| counted != "gc");
    assert_eq!(got.difference(expected), None, "{what}");
}

/// GCs on the wire, with what they enclose.
pub fn gcs(sniffer: &PacketSocket) -> Vec<(Meta, Vec<u8>)> {
    std::thread::sleep(Duration::from_millis(20));
    let mut batch = Batch::default();
    sniffer.receive(&mut batch).unwrap();
    let frames = batch.frames();
    let told = frames.filter(|f| f[ETHERNET + 16..ETHERNET + 20] == BEFORE.octets());
    let told = told.map(|frame| {
        assert_eq!(frame[ETHERNET + 12..ETHERNET + 16], HERE.octets());
        let told = geneve::open(&frame[ETHERNET + 28..], BEFORE.into(), &keys());
        let told = told.expect("its tag is good");
        (told.meta, told.inner.to_vec())
    });
    let mut told: Vec<_> = told.collect();
    told.dedup(); // the loopback device shows each twice
    told
}

/// What the newer owner makes of it; its socket has had the request.
fn gc() -> Meta {
    gc_with(RANGE, SECOND + REQUEST.len() as u32)
}

fn gc_with(end: u32, reach: u32) -> Meta {
    let kind = Kind::Gc {
        end: ServerSeq::new(end),
        reach: ClientSeq::new(reach),
    };
    without_handshake(followed(kind, MOVE, SECOND))
}

/// Another word stands there.
fn without_handshake(meta: Meta) -> Meta {
    Meta {
        handshake: Handshake::default(),
        care: Care::default(),
        ..meta
    }
}

fn retired_with(end: u32, reach: u32, epoch: u32) -> Meta {
    let kind = Kind::Retired {
        end: ServerSeq::new(end),
        reach: ClientSeq::new(reach),
    };
    without_handshake(followed(kind, epoch, SECOND))
}

/// Whose range ends at `end`, from the owner before.
fn retired_frame(end: u32, epoch: u32, start: u32) -> Vec<u8> {
    let retired = Meta {
        start: ClientSeq::new(start),
        ..retired_with(end, start, epoch)
    };
    let says = segment(ACK, start + 9, FIRST, b"");
    let mut frame = sealed(&retired, &says.packet());
    // Its sender is that owner.
    frame[ETHERNET + 12..ETHERNET + 16].copy_from_slice(&BEFORE.octets());
    frame
}

/// The owner before says that it has retired.
pub fn retire_before(agent: &Agent, end: u32, epoch: u32, start: u32) {
    let frame = retired_frame(end, epoch, start);
    agent.expect("it has retired", &frame, &Outcome::drop_counting(&[]));
}

#[test]
fn the_newer_owner_hears_of_its_own_range() {
    let owner = newer();
    let seq = SECOND + REQUEST.len() as u32;
    let says = |ack: u32, window: u16, options: Vec<u8>| Tcp {
        window,
        options,
        ..segment(ACK, seq, ack, b"")
    };
    let ts = || timestamps(8, 9);
    // The clock that it echoes may be the other's.
    let mute = || timestamps(8, 0);
    let with = |blocks: &[(u32, u32)]| [ts(), sack(blocks)].concat();
    let without = |blocks: &[(u32, u32)]| [mute(), sack(blocks)].concat();
    let nops = |count: usize| vec![1u8; count];
    let first = RANGE;
    let table = [
        (
            "nothing of it",
            says(FIRST, 502, vec![]),
            says(first, 492, vec![]),
        ),
        (
            "a byte of the other",
            says(FIRST + 1, 502, ts()),
            says(first, 492, mute()),
        ),
        (
            "almost all of that",
            says(first - 1, 502, ts()),
            says(first, 501, mute()),
        ),
        (
            "a small window",
            says(FIRST, 7, vec![]),
            says(first, 0, vec![]),
        ),
        (
            "all of that",
            says(first, 502, ts()),
            says(first, 502, mute()),
        ),
        (
            "some of its own",
            says(first + 9, 502, ts()),
            says(first + 9, 502, mute()),
        ),
        (
            "a block of its own",
            says(FIRST, 502, with(&[(first, first + 10)])),
            says(first, 492, without(&[(first, first + 10)])),
        ),
        (
            "a block of both",
            says(FIRST, 502, with(&[(first - 10, first + 10)])),
            says(first, 492, without(&[(first, first + 10)])),
        ),
        (
            "a block of the other",
            says(FIRST, 502, with(&[(first - 10, first)])),
            says(first, 492, [mute(), nops(12)].concat()),
        ),
        (
            "three, one of its own",
            says(
                FIRST,
                502,
                with(&[
                    (first - 30, first - 20),
                    (first + 1, first + 2),
                    (first - 10, first - 5),
                ]),
            ),
            says(
                first,
                492,
                [mute(), sack(&[(first + 1, first + 2)]), nops(16)].concat(),
            ),
        ),
        (
            "four without timestamps",
            says(
                FIRST,
                502,
                sack(&[
                    (first - 3, first - 2),
                    (first + 5, first + 9),
                    (first - 1, first + 2),
                    (first + 20, first + 30),
                ]),
            ),
            says(
                first,
                492,
                [
                    sack(&[
                        (first + 5, first + 9),
                        (first, first + 2),
                        (first + 20, first + 30),
                    ]),
                    nops(8),
                ]
                .concat(),
            ),
        ),
    ];
    let sniffer = PacketSocket::open("lo").unwrap();
    for (what, came, goes) in table {
        expect(&owner, what, &sealed(&after(), &came.packet()), &up(&goes));
        assert_eq!(gcs(&sniffer), [(gc(), came.packet())], "{what}");
    }
}

/// All that it says lies behind the older owner's range; a client takes nothing from beyond its window.
#[test]
fn the_newer_owner_acknowledges_from_where_the_client_hears_it() {
    let owner = newer();
    let seq = SECOND + REQUEST.len() as u32;
    let said = |flags: u8, at: u32, payload: &[u8]| Tcp {
        source: VIP,
        dest: CLIENT,
        ..segment(flags, at, seq, payload)
    };
    let leaves_as = |what: &str, said: &Tcp, goes: &Tcp| {
        let got = owner.agent.run(&owner.agent.egress, &said.frame());
        let expected = Outcome::new(Verdict::Next, goes.frame(), &[]);
        assert_eq!(got.difference(&expected), None, "{what}");
    };
    let ack = said(ACK, RANGE, b"");
    leaves_as("nothing is known of a window", &ack, &ack);
    // In units of 512 bytes.
    for (what, heard, window, at) in [
        ("a small one", FIRST, 7, FIRST + (7 << 9) - 1),
        ("further on", FIRST + 1000, 6, FIRST + 1000 + (6 << 9) - 1),
        ("an older word", FIRST, 7, FIRST + 1000 + (6 << 9) - 1),
        ("all but a byte", FIRST + 904, 8, RANGE - 1),
        ("one that has room", FIRST + 905, 8, RANGE),
    ] {
        let says = Tcp {
            window,
            ..segment(ACK, seq, heard, b"")
        };
        owner.run(&sealed(&after(), &says.packet()));
        leaves_as(what, &ack, &said(ACK, at, b""));
        for other in [said(ACK, RANGE, b"x"), said(ACK | RST, RANGE, b"")] {
            leaves_as(what, &other, &other);
        }
    }
}

/// With payload, or FIN: the older owner gets neither.
#[test]
fn the_older_owner_hears_acknowledgements_only() {
    let owner = newer();
    let seq = SECOND + REQUEST.len() as u32;
    let sniffer = PacketSocket::open("lo").unwrap();
    for (flags, payload) in [
        (ACK | PSH, &b"odd"[..]),
        (ACK | FIN, b""),
        (ACK | FIN | PSH, b"x"),
    ] {
        let came = Tcp {
            options: timestamps(1, 2),
            ..segment(flags, seq, FIRST + 77, payload)
        };
        let goes = Tcp {
            ack: RANGE,
            window: 492,
            options: timestamps(1, 0),
            ..came.clone()
        };
        let heard = Tcp {
            flags: ACK,
            payload: vec![],
            ..came.clone()
        };
        expect(
            &owner,
            "with more",
            &sealed(&after(), &came.packet()),
            &up(&goes),
        );
        assert_eq!(gcs(&sniffer), [(gc(), heard.packet())]);
    }
    // But not of the request that begins the range: its daemon's copy acknowledges what
    // nobody has heard yet.
    let again = Tcp {
        ack: FIRST,
        ..begun()
    };
    let goes = Tcp {
        window: 492,
        ..begun()
    };
    for (what, came, goes) in [
        ("the daemon's", begun(), begun()),
        ("the client's", again, goes),
    ] {
        expect(&owner, what, &sealed(&after(), &came.packet()), &up(&goes));
        assert_eq!(gcs(&sniffer), [], "{what}");
    }
}

/// Its dispatcher's data path sends what the client says: that may be all that the older
/// owner ever hears of its range's end. It hears the client by us alone: until it has retired,
/// the flow does not leave without us (6.5).
#[test]
fn a_handoff_is_heard_by_the_older_owner_too() {
    let mut owner = newer();
    owner.stream.write_all(ANSWER).unwrap();
    let end = RANGE + ANSWER.len() as u32;
    wait_for("it is seen", || {
        owner.agent.setup(&request()).unwrap().answers.next == end
    });
    let seq = SECOND + REQUEST.len() as u32;
    let request = segment(ACK | PSH, seq, end, REQUEST);
    let meta = |epoch| Meta {
        requests: 1,
        ..followed(Kind::Handoff { next: NEXT }, epoch, seq)
    };
    let sniffer = PacketSocket::open("lo").unwrap();
    let mut got = owner.run(&sealed(&meta(MOVE + 1), &request.packet()));
    got.counted.retain(|&counted| counted != "gc");
    assert_eq!(got.counted, ["held"]);
    let ack = Tcp {
        flags: ACK,
        payload: vec![],
        ..request.clone()
    };
    assert_eq!(gcs(&sniffer), [(gc(), ack.packet())]);
    retire_before(&owner.agent, RANGE, MOVE, SECOND);
    let got = owner.run(&sealed(&meta(MOVE + 2), &request.packet()));
    assert_eq!(got.counted, ["given-up", "handed-on"]);
}

/// At an even place among the options; at an odd one it is left alone, as no system sends it.
#[test]
fn the_echo_of_a_clock_is_no_measure() {
    let owner = newer();
    let echo = |value, echo, before: usize| {
        let nops = vec![1; before];
        let clock = options(&[Opt::Timestamps(value, echo)]);
        let mut all = [nops, clock[..10].to_vec()].concat();
        all.resize(all.len().next_multiple_of(4), 0);
        all
    };
    for before in 0..8 {
        for (came, payload) in [
            (0x1234_5678, &b""[..]),
            (u32::MAX, b"odd"),
            (1, b"x"),
            (0, b""),
        ] {
            let tcp = Tcp {
                options: echo(0xfedc_ba98, came, before),
                ..segment(ACK, SECOND + 99, RANGE, payload)
            };
            let kept = if before % 2 == 0 { 0 } else { came };
            let goes = Tcp {
                options: echo(0xfedc_ba98, kept, before),
                ..tcp.clone()
            };
            let what = format!("{came} behind {before}");
            expect(&owner, &what, &sealed(&after(), &tcp.packet()), &up(&goes));
        }
    }
}

#[test]
fn who_has_retired_is_not_told_any_more() {
    let owner = newer();
    let says = segment(ACK, SECOND + 9, FIRST, b"");
    let frame = sealed(&after(), &says.packet());
    let stale = Outcome::drop("stale-epoch");
    owner.expect(
        "another range's",
        &retired_frame(RANGE + 1, MOVE, SECOND),
        &stale,
    );
    owner.expect(
        "another epoch's",
        &retired_frame(RANGE, MOVE - 1, SECOND),
        &stale,
    );
    let from_elsewhere = sealed(&retired_with(RANGE, SECOND, MOVE), &says.packet());
    owner.expect("another's", &from_elsewhere, &stale);
    assert_eq!(owner.agent.setup(&says).unwrap().before, BEFORE.octets());
    retire_before(&owner.agent, RANGE, MOVE, SECOND);
    assert_eq!(owner.agent.setup(&says).unwrap().before, [0; 4]);
    let sniffer = PacketSocket::open("lo").unwrap();
    // Its socket would not take what acknowledges less than its first byte.
    let taken = Tcp {
        window: says.window - 10,
        ..segment(ACK, SECOND + 9, RANGE, b"")
    };
    owner.expect("from then on", &frame, &up(&taken));
    // Until the client has had much: numbers come round.
    for (on, goes) in [(1 << 23, RANGE), (1 << 24, FIRST), (1 << 31, FIRST)] {
        let far = segment(ACK, SECOND + 9, RANGE.wrapping_add(on), b"");
        owner.expect("far on", &sealed(&after(), &far.packet()), &up(&far));
        let expected = if goes == RANGE { &taken } else { &says };
        owner.expect("and old again", &frame, &up(expected));
    }
    assert_eq!(gcs(&sniffer), []);
}

pub fn ask_half() -> Meta {
    Meta {
        requests: 1,
        ..followed(asks_for(true, SECOND), MOVE, SECOND)
    }
}

pub fn released(drained: bool, end: u32) -> Meta {
    let end = ServerSeq::new(end);
    followed(
        Kind::Released {
            end,
            drained,
            clock: 0,
        },
        MOVE,
        SECOND,
    )
}

/// A GC from the owner after this one.
pub fn heard(ack: u32) -> Tcp {
    segment(ACK, SECOND + 1000, ack, b"")
}

pub fn gc_of(end: u32) -> Meta {
    gc_with(end, SECOND)
}

/// Gives the flow up with bytes on the way.
pub fn older() -> Owner {
    let owner = Owner::answered();
    let ask = segment(ACK, SECOND, FIRST, b"");
    let counted = ["given-up", "half-pipe"];
    let expected = Outcome::new(
        Verdict::SendBack,
        reply(&released(false, end_of(ANSWER)), &ask),
        &counted,
    );
    let frame = sealed(&ask_half(), &ask.packet());
    owner.expect("half-pipe", &frame, &expected);
    let again = Outcome {
        counted: vec![],
        ..expected
    };
    owner.expect("again", &frame, &again);
    let setup = owner.agent.setup(&ask).unwrap();
    assert_eq!(
        (setup.state, setup.epoch, setup.end),
        (OLDER, MOVE, end_of(ANSWER))
    );
    owner
}

/// Of what a socket is given.
fn number_of(outcome: &Outcome) -> u32 {
    let packet = outcome.packet.as_ref().expect("it is given something");
    u32::from_be_bytes(packet[TCP_AT + 4..TCP_AT + 8].try_into().unwrap())
}

/// Its dispatcher may have acknowledged more than the socket takes (handoff.md 5.1a).
#[test]
fn an_owner_hears_who_asks_far_ahead() {
    let owner = Owner::answered();
    let says = |ahead: u32| segment(ACK, SECOND + ahead, FIRST + 3, b"");
    let frame = |ahead| {
        let meta = followed(Kind::Forward, EPOCH, START);
        sealed(&meta, &says(ahead).packet())
    };
    let edge = number_of(&owner.run(&frame(1 << 30))) - SECOND;
    assert!((16_384..1 << 20).contains(&edge), "{edge}");
    for (ahead, goes) in [(0, 0), (16_385, 16_385), (edge, edge), (edge + 1, edge)] {
        owner.expect("its number", &frame(ahead), &up(&says(goes)));
    }
    // Without its answers being followed nobody acknowledges in its place.
    let owner = Owner::with_option(meta(Kind::Forward, EPOCH, START), request());
    let tunnel = sealed(&meta(Kind::Forward, EPOCH, START), &says(1 << 20).packet());
    owner.expect("as it came", &tunnel, &up(&says(1 << 20)));
}

/// Of a server that answers, and reads nothing meanwhile, the window closes.
#[test]
fn an_owner_without_a_window_hears_who_asks_ahead() {
    const ROOM: usize = 500;
    let mut owner = Owner::new();
    let meta = followed(Kind::Forward, EPOCH, START);
    let frame = |seq: u32, payload: &[u8]| {
        let says = segment(ACK, seq, FIRST, payload);
        sealed(&meta, &says.packet())
    };
    let mut end = SECOND;
    for _ in 0..400 {
        let more = frame(end, &[b'x'; ROOM]);
        owner.agent.receive("more", &more, &["received"]);
        end += ROOM as u32;
    }
    owner.answer(ANSWER);
    let edge = number_of(&owner.run(&frame(SECOND + (1 << 30), b"")));
    assert!(edge.wrapping_sub(SECOND) < 1 << 20);
    let taken = owner.agent.setup(&request()).unwrap().answers.taken;
    assert!(edge.wrapping_sub(taken) < 16_384, "it is full");
    for ahead in [1, 9000, 16_384] {
        let got = number_of(&owner.run(&frame(edge + ahead, b"")));
        assert_eq!(got, edge, "{ahead}");
    }
}

/// Nor has it to have said anything before: with its window closed it cannot.
#[test]
fn an_owner_that_has_not_begun_hears_who_asks_far_ahead() {
    for start in [7, 0x7fff_0000, 0x8000_0000, START] {
        let first = Tcp {
            seq: start,
            window: 0,
            ..request()
        };
        let option = followed(Kind::Forward, EPOCH, start);
        let owner = Owner::with_option(option, first);
        (&owner.stream).write_all(ANSWER).unwrap();
        let next = start.wrapping_add(REQUEST.len() as u32);
        let says = segment(ACK, next.wrapping_add(1 << 20), FIRST, b"");
        let frame = sealed(&option, &says.packet());
        let edge = number_of(&owner.run(&frame)).wrapping_sub(next);
        assert!((16_384..1 << 20).contains(&edge), "{start}: {edge}");
        let sniffer = PacketSocket::open("lo").unwrap();
        let receive = |what, frame| owner.agent.receive(what, frame, &["received"]);
        receive("its window is open", &frame);
        wait_for("the answer leaves", || {
            let (left, _) = closing::heard(&sniffer);
            left.iter().any(|header| header.seq == FIRST)
        });
    }
}

#[test]
fn an_older_owner_hears_what_concerns_its_range() {
    let end = end_of(ANSWER);
    let mut owner = older();
    let frame = |tcp: &Tcp| sealed(&gc_of(end), &tcp.packet());
    let table = [
        ("nothing", heard(FIRST), FIRST, vec![], vec![]),
        ("some", heard(FIRST + 3), FIRST + 3, vec![], vec![]),
        (
            "with blocks",
            heard(FIRST),
            FIRST,
            sack(&[(end, end + 9), (FIRST + 2, FIRST + 4), (end - 1, end + 1)]),
            [sack(&[(FIRST + 2, FIRST + 4), (end - 1, end)]), vec![1; 8]].concat(),
        ),
    ];
    for (what, tcp, ack, came, goes) in table {
        let came = Tcp {
            options: came,
            ..tcp.clone()
        };
        let goes = Tcp {
            ack,
            options: goes,
            ..tcp
        };
        owner.expect(what, &frame(&came), &up(&goes));
    }
    // Its socket expects the next request for ever: the number is the client's, for news of
    // its window to be news, as far as the socket takes it.
    let far = Tcp {
        seq: SECOND + (1 << 30),
        ..heard(FIRST + 3)
    };
    let edge = number_of(&owner.run(&frame(&far))).wrapping_sub(SECOND) as i32;
    assert!((16_384..1 << 20).contains(&edge), "{edge}");
    for (ahead, goes) in [
        (-1, 0),
        (0, 0),
        (1, 1),
        (edge, edge),
        (edge + 1, edge),
        (1 << 30, edge),
    ] {
        let came = Tcp {
            seq: SECOND.wrapping_add_signed(ahead),
            window: 77,
            ..heard(FIRST + 3)
        };
        let goes = Tcp {
            seq: SECOND.wrapping_add_signed(goes),
            ..came.clone()
        };
        owner.expect("its number", &frame(&came), &up(&goes));
    }
    owner.expect_alive();

    let all = heard(end);
    let retired = reply(&retired_with(end, SECOND, MOVE), &all);
    let over = Outcome::new(Verdict::SendBack, retired.clone(), &["retired"]);
    owner.expect("all", &frame(&all), &over);
    owner.expect_reset();
    let again = Outcome::new(Verdict::SendBack, retired, &[]);
    owner.expect("once more", &frame(&all), &again);
    assert_eq!(owner.agent.setup(&all).unwrap().state, MOVED);
    // And to those who ask about what nobody knows any more.
    owner.agent.forget();
    owner.expect("forgotten", &frame(&all), &again);
    owner.expect(
        "not had",
        &frame(&heard(end - 1)),
        &Outcome::drop("stale-epoch"),
    );
}

#[test]
fn a_client_that_resets_ends_all_owners() {
    let end = end_of(ANSWER);
    let mut owner = older();
    let mut reset = heard(FIRST);
    reset.flags = RST;
    let got = owner.run(&sealed(&gc_of(end), &reset.packet()));
    assert_eq!(
        (got.verdict, got.counted),
        (Verdict::SendBack, vec!["retired"])
    );
    owner.expect_reset();
}

#[test]
fn from_an_older_owner_leaves_what_lies_in_its_range() {
    let owner = older();
    let end = end_of(ANSWER);
    let says = |flags: u8, seq: u32, payload: &[u8]| Tcp {
        source: VIP,
        dest: CLIENT,
        ..segment(flags, seq, SECOND, payload)
    };
    let next = |tcp: &Tcp| Outcome::new(Verdict::Next, tcp.frame(), &[]);
    let moved = || Outcome::drop("moved");
    let whole = says(ACK | PSH, FIRST, ANSWER);
    let table = [
        ("its answer", whole.clone(), next(&whole)),
        (
            "with a FIN",
            says(ACK | PSH | FIN, FIRST, ANSWER),
            next(&whole),
        ),
        ("an ACK", says(ACK, end, b""), moved()),
        ("a FIN", says(ACK | FIN, end, b""), moved()),
        ("a byte too many", says(ACK, end - 1, b"xy"), moved()),
        ("behind it", says(ACK, end, b"x"), moved()),
        (
            "that it breaks",
            says(ACK | RST, end, b""),
            next(&says(ACK | RST, end, b"")),
        ),
        (
            "that it closes before its end",
            says(ACK | FIN, end - 1, b""),
            next(&says(ACK | FIN, end - 1, b"")),
        ),
        (
            "the same with the last that it says",
            says(ACK | PSH | FIN, FIRST, &ANSWER[1..]),
            next(&says(ACK | PSH | FIN, FIRST, &ANSWER[1..])),
        ),
    ];
    for (what, tcp, expected) in table {
        let got = owner.agent.run(&owner.agent.egress, &tcp.frame());
        assert_eq!(got.difference(&expected), None, "{what}");
    }
}

/// What its socket acknowledges the client has long forgotten (RFC 5961 §5.2); the owners
/// after it know better.
#[test]
fn an_older_owner_acknowledges_what_has_come_to_those_after_it() {
    let owner = older();
    let end = end_of(ANSWER);
    let answer = |ack: u32| Tcp {
        source: VIP,
        dest: CLIENT,
        ..segment(ACK | PSH, FIRST, ack, ANSWER)
    };
    // What comes late says less; nobody can say less than its socket.
    for (reach, acknowledged) in [
        (SECOND + 100_000, SECOND + 100_000),
        (SECOND + 90_000, SECOND + 100_000),
        (SECOND - 1, SECOND + 100_000),
        (SECOND + 100_001, SECOND + 100_001),
    ] {
        owner.run(&sealed(&gc_with(end, reach), &heard(FIRST).packet()));
        let got = owner
            .agent
            .run(&owner.agent.egress, &answer(SECOND).frame());
        let goes = answer(acknowledged - 16_384).frame();
        let expected = Outcome::new(Verdict::Next, goes, &[]);
        assert_eq!(got.difference(&expected), None, "{reach}");
    }
}

/// What waits at the dispatcher has been acknowledged, too: the RELEASE says so (handoff.md 5.1a1).
#[test]
fn an_older_owner_acknowledges_what_its_client_has_been_told() {
    const TOLD: u32 = SECOND + 100_000;
    let tells = Kind::Release {
        leave: Leave::HalfPipe,
        reach: ClientSeq::new(TOLD),
    };
    let release = |epoch, start| Meta {
        requests: 1,
        ..followed(tells, epoch, start)
    };
    let owner = Owner::answered();
    let says = segment(ACK, SECOND, FIRST, b"");
    let frame = sealed(&release(MOVE, SECOND), &says.packet());
    assert_eq!(owner.run(&frame).counted, ["given-up", "half-pipe"]);
    let answer = |ack: u32| {
        let says = segment(ACK | PSH, FIRST, ack, ANSWER);
        Tcp {
            source: VIP,
            dest: CLIENT,
            ..says
        }
    };
    let got = owner
        .agent
        .run(&owner.agent.egress, &answer(SECOND).frame());
    let expected = Outcome::new(Verdict::Next, answer(TOLD - 16_384).frame(), &[]);
    assert_eq!(got.difference(&expected), None);

    // Who comes after it is told so for a request that waits behind its own.
    let owner = newer();
    let next = SECOND + REQUEST.len() as u32;
    let says = segment(ACK, next, FIRST + 9, b"");
    owner.run(&sealed(&release(MOVE + 1, next), &says.packet()));
    let sniffer = PacketSocket::open("lo").unwrap();
    owner.run(&sealed(&after(), &says.packet()));
    let told = gcs(&sniffer);
    assert!(!told.is_empty());
    for (word, _) in told {
        assert_eq!(word.kind, gc_with(RANGE, TOLD).kind);
    }
}

/// A client takes what is older by its clock than what it has had last for a late repetition
/// (RFC 7323 §5): what the owner after it has said meanwhile must not be that.
#[test]
fn the_clock_of_an_older_owner_stands_still() {
    let owner = older();
    let key = flow_key(CLIENT, VIP);
    let setups = &owner.agent.maps.setups;
    let mut setup = setups.get(&key).unwrap().unwrap();
    for last in [7_000_000, u32::MAX] {
        setup.last_clock = last;
        setups.put(&key, &setup, Update::Any).unwrap();
        let answer = |clock| Tcp {
            source: VIP,
            dest: CLIENT,
            options: timestamps(clock, 9),
            ..segment(ACK | PSH, FIRST, SECOND, ANSWER)
        };
        for (clock, leaves) in [
            (last - 1, last - 1),
            (last, last),
            (last.wrapping_add(1), last),
            (last.wrapping_add(100_000), last),
        ] {
            let got = owner.agent.run(&owner.agent.egress, &answer(clock).frame());
            let expected = Outcome::new(Verdict::Next, answer(leaves).frame(), &[]);
            assert_eq!(got.difference(&expected), None, "{clock} {last}");
        }
    }
}

/// It has had a later clock than that of some owner or of a dispatcher.
#[test]
fn the_clock_of_an_older_owner_is_not_behind_what_its_client_echoes() {
    let owner = older();
    let (key, setups) = (flow_key(CLIENT, VIP), &owner.agent.maps.setups);
    let mut setup = setups.get(&key).unwrap().unwrap();
    setup.last_clock = u32::MAX - 5;
    setups.put(&key, &setup, Update::Any).unwrap();
    let end = end_of(ANSWER);
    for (echo, stands_at) in [(0, u32::MAX - 5), (u32::MAX - 9, u32::MAX - 5), (7, 7)] {
        let says = Tcp {
            options: timestamps(8, echo),
            ..heard(FIRST)
        };
        let frame = sealed(&gc_of(end), &says.packet());
        owner.agent.receive("a GC", &frame, &["received"]);
        let setup = setups.get(&key).unwrap().unwrap();
        assert_eq!(setup.last_clock, stands_at, "{echo}");
    }
}

/// What starts the newer one's range may be lost with the dispatcher that has said so, and
/// the client's own repetition will not do before it has all of the older one's.
#[test]
fn who_has_not_begun_passes_on_what_it_hears() {
    let agent = Agent::on_the_wire();
    let sniffer = PacketSocket::open("lo").unwrap();
    let seq = SECOND + REQUEST.len() as u32;
    let says = segment(ACK, seq, FIRST + 9, b"");
    let mut got = agent.run(&agent.ingress, &sealed(&after(), &says.packet()));
    got.counted.retain(|&counted| counted != "gc");
    assert_eq!(got.difference(&Outcome::drop("early")), None);
    let gc = gc_with(FIRST + 10, SECOND);
    assert_eq!(gcs(&sniffer), [(gc, says.packet())]);
}

/// The older one knows best where it ends.
#[test]
fn an_older_owner_is_over_at_its_own_end() {
    let owner = older();
    let end = end_of(ANSWER);
    for (acked, told, over) in [
        (end - 1, end - 1, false),
        (end - 1, end, false),
        (end, end + 1, true),
    ] {
        let got = owner.run(&sealed(&gc_of(told), &heard(acked).packet()));
        assert_eq!(got.counted.contains(&"retired"), over, "{acked} {told}");
    }
}

/// A body whose length is known need not have been said to its end.
#[test]
fn the_end_of_a_known_length_is_known_ahead() {
    let half = ANSWER.len() - 3;
    let ask = segment(ACK, SECOND, FIRST, b"");
    let frame = sealed(&ask_half(), &ask.packet());
    let mut owner = Owner::new();
    owner.answer(&ANSWER[..20]);
    assert_eq!(owner.run(&frame).counted, ["held"], "in the head");
    owner.answer(&ANSWER[20..half]);
    let looked_at = owner.agent.setup(&request()).unwrap();
    let mut looking = looked_at;
    looking.answers.busy = 1;
    looking.answers.remaining += 3;
    let key = flow_key(request().source, request().dest);
    let put = |setup| {
        owner
            .agent
            .maps
            .setups
            .put(&key, setup, Update::Any)
            .unwrap()
    };
    put(&looking);
    let counted = owner.run(&frame).counted;
    assert_eq!(counted, ["held"], "while a packet of it is looked at");
    put(&looked_at);
    let counted = ["given-up", "half-pipe"];
    let meta = released(false, end_of(ANSWER));
    let expected = Outcome::new(Verdict::SendBack, reply(&meta, &ask), &counted);
    owner.expect("in the body", &frame, &expected);
    owner.stream.write_all(&ANSWER[half..]).unwrap();
    let rest = Tcp {
        source: VIP,
        dest: CLIENT,
        ..segment(ACK, FIRST + half as u32, SECOND, &ANSWER[half..])
    };
    let got = owner.agent.run(&owner.agent.egress, &rest.frame());
    assert_eq!(
        got.difference(&Outcome::new(Verdict::Next, rest.frame(), &[])),
        None
    );

    let mut owner = Owner::new();
    owner.answer(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nab");
    assert_eq!(owner.run(&frame).counted, ["held"], "in a chunk");
}

/// What its client says of that may be lost, and nobody else can ask.
#[test]
fn an_older_owner_asks_whether_the_window_is_open() {
    let half = ANSWER.len() - 3;
    let mut owner = Owner::new();
    owner.answer(&ANSWER[..half]);
    let ask = sealed(&ask_half(), &segment(ACK, SECOND, FIRST, b"").packet());
    assert_eq!(owner.run(&ask).counted, ["given-up", "half-pipe"]);
    let had = FIRST + half as u32;
    let says = |window: u16| {
        let packet = Tcp {
            window,
            ..heard(had)
        };
        let frame = sealed(&gc_of(end_of(ANSWER)), &packet.packet());
        owner.agent.receive("of its window", &frame, &["received"]);
    };
    says(0);
    let sniffer = PacketSocket::open("lo").unwrap();
    (&owner.stream).write_all(&ANSWER[half..]).unwrap();
    let leaves = |what: &str, seq: u32| {
        wait_for(what, || {
            let (left, _) = closing::heard(&sniffer);
            left.iter().any(|header| header.seq == seq)
        });
    };
    leaves("it asks, from before what the client has", had - 1);
    says(500);
    leaves("the rest", had);
}

/// The packet that opened it may be lost, and others say so from before the one that closed it.
#[test]
fn an_open_window_is_heard_from_wherever_it_comes() {
    let half = ANSWER.len() - 3;
    let mut owner = Owner::new();
    owner.answer(&ANSWER[..half]);
    let ask = sealed(&ask_half(), &segment(ACK, SECOND, FIRST, b"").packet());
    assert_eq!(owner.run(&ask).counted, ["given-up", "half-pipe"]);
    let had = FIRST + half as u32;
    let says = |window: u16, ahead: u32| {
        let packet = Tcp {
            window,
            seq: heard(had).seq + ahead,
            ..heard(had)
        };
        let frame = sealed(&gc_of(end_of(ANSWER)), &packet.packet());
        owner.agent.receive("of its window", &frame, &["received"]);
    };
    says(0, 90);
    let sniffer = PacketSocket::open("lo").unwrap();
    (&owner.stream).write_all(&ANSWER[half..]).unwrap();
    says(500, 0);
    wait_for("the rest leaves", || {
        let (left, _) = closing::heard(&sniffer);
        left.iter().any(|header| header.seq == had)
    });
}

#[test]
fn what_is_drained_is_drained() {
    let owner = Owner::answered();
    let ask = probe();
    let counted = ["given-up"];
    let meta = released(true, end_of(ANSWER));
    let expected = Outcome::new(Verdict::SendBack, reply(&meta, &ask), &counted);
    let frame = sealed(&ask_half(), &ask.packet());
    owner.expect("nothing on the way", &frame, &expected);
}

/// Its daemon was told of the answer, or not (takeover.md 2.2b1).
#[test]
fn what_may_outlive_its_owner_is_drained_where_that_is_asked_for() {
    let half = ANSWER.len() - 3;
    let asks = |owner: &Owner, leave: Leave| {
        let reach = ClientSeq::new(SECOND);
        let release = Meta {
            kind: Kind::Release { leave, reach },
            ..ask_half()
        };
        let ask = segment(ACK, SECOND, FIRST, b"");
        owner.run(&sealed(&release, &ask.packet())).counted
    };
    for (told, leave, expected) in [
        (
            false,
            Leave::HalfPipeUnprotected,
            &["given-up", "half-pipe"][..],
        ),
        (true, Leave::HalfPipeUnprotected, &["held"]),
        (true, Leave::HalfPipe, &["given-up", "half-pipe"]),
    ] {
        let mut owner = Owner::new();
        owner.answer(&ANSWER[..half]);
        if told {
            let key = flow_key(CLIENT, VIP);
            let setups = &owner.agent.maps.setups;
            let mut setup = setups.get(&key).unwrap().unwrap();
            setup.saved |= SAVED_TOLD;
            setups.put(&key, &setup, Update::Any).unwrap();
        }
        assert_eq!(asks(&owner, leave), expected, "{leave:?}, {told}");
    }
}

/// It repeats what the client has said, at intervals shorter than any timer: each would put off an older owner's question
/// whether a window that was too small has opened (handoff.md 5.1b).
#[test]
fn of_a_release_the_older_owner_hears_only_that_its_part_is_over() {
    let next = SECOND + REQUEST.len() as u32;
    for (ack, is_over) in [(FIRST + 9, false), (RANGE - 1, false), (RANGE, true)] {
        let owner = newer();
        let release = Meta {
            requests: 1,
            ..followed(asks_for(true, next), MOVE + 1, next)
        };
        let sniffer = PacketSocket::open("lo").unwrap();
        owner.run(&sealed(&release, &segment(ACK, next, ack, b"").packet()));
        assert_eq!(!gcs(&sniffer).is_empty(), is_over, "{ack}");
    }
}

/// Three in a row: the one in the middle clamps to its range and hears for the first.
#[test]
fn owners_form_a_chain() {
    let mut owner = newer();
    let seq = SECOND + REQUEST.len() as u32;
    owner.stream.write_all(ANSWER).unwrap();
    let end = RANGE + ANSWER.len() as u32;
    wait_for("it is seen", || {
        owner.agent.setup(&request()).unwrap().answers.next == end
    });
    let ask = segment(ACK, seq, FIRST, b"");
    let release = Meta {
        requests: 1,
        ..followed(asks_for(true, seq), MOVE + 1, seq)
    };
    let mut got = owner.run(&sealed(&release, &ask.packet()));
    got.counted.retain(|&counted| counted != "gc");
    assert_eq!(got.counted, ["given-up", "half-pipe"]);

    let sniffer = PacketSocket::open("lo").unwrap();
    let reach = seq + 44;
    let gc_to_us = Meta {
        epoch: MOVE + 1,
        start: ClientSeq::new(seq),
        ..gc_with(end, reach)
    };
    let passed_on = || gc_with(RANGE, reach);
    let came = segment(ACK, seq + 50, FIRST + 9, b"");
    let goes = Tcp {
        ack: RANGE,
        window: 492,
        ..came.clone()
    };
    expect(
        &owner,
        "for the first",
        &sealed(&gc_to_us, &came.packet()),
        &up(&goes),
    );
    assert_eq!(gcs(&sniffer), [(passed_on(), came.packet())]);
    // The first hears the client by us alone, until it has retired.
    let came = segment(ACK, seq + 50, end + 9, b"");
    let all = sealed(&gc_to_us, &came.packet());
    let got = owner.run(&all);
    assert_eq!(got.verdict, Verdict::Drop);
    assert!(got.counted.contains(&"retired"));
    assert_eq!(gcs(&sniffer), [(passed_on(), came.packet())]);
    owner.expect_reset();
    assert_eq!(owner.run(&all).verdict, Verdict::Drop);
    let told = gcs(&sniffer);
    assert_eq!(told.len(), 1, "once more");
    assert_eq!(told[0].1, came.packet());
    retire_before(&owner.agent, RANGE, MOVE, SECOND);
    assert_eq!(owner.run(&all).verdict, Verdict::SendBack);
    assert_eq!(gcs(&sniffer), []);
}

/// Who hears nothing for long is found by the daemon.
#[test]
fn half_pipes_are_listed_until_they_end() {
    let mut owner = older();
    let key = flow_key(CLIENT, VIP);
    assert_eq!(owner.agent.maps.older.all().unwrap(), [(key, MOVE)]);
    let end = end_of(ANSWER);
    let maps = &owner.agent.maps;
    let now = || trapeze_datapath::clock::monotonic();
    assert_eq!(
        maps.forsake_silent(now(), Duration::from_secs(60)).unwrap(),
        0
    );
    owner.expect_alive();
    let later = now() + Duration::from_secs(61);
    let maps = &owner.agent.maps;
    let sniffer = PacketSocket::open("lo").unwrap();
    assert_eq!(
        maps.forsake_silent(later, Duration::from_secs(60)).unwrap(),
        1
    );
    assert_eq!(maps.older.all().unwrap(), []);
    assert_eq!(owner.agent.setup(&second()).unwrap().state, MOVED);
    owner.expect_gone();
    let mut batch = Batch::default();
    sniffer.receive(&mut batch).unwrap();
    let to_client = |frame: &&[u8]| frame[ETHERNET + 16..ETHERNET + 20] == CLIENT.ip().octets();
    assert_eq!(batch.frames().filter(to_client).count(), 0, "in silence");

    let owner = older();
    let _ = owner.run(&sealed(&gc_of(end), &heard(end).packet()));
    assert_eq!(owner.agent.maps.older.all().unwrap(), []);
}
