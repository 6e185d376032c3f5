//! Reading and handing over, packet by packet.

use super::*;

const NOTHING: [&str; 0] = [];
/// So long after the bytes, and then after each other, a backend is asked how far it has come.
const QUESTIONS: [Duration; 6] = [
    Duration::from_micros(500),
    Duration::from_millis(1),
    Duration::from_millis(2),
    Duration::from_millis(4),
    Duration::from_millis(8),
    Duration::from_millis(16),
];
/// The bytes go again 50 ms after they went first.
const RETRY_BEHIND_QUESTIONS: Duration = Duration::from_micros(18_500);

#[test]
fn a_head_in_one_packet_leaves_nothing_behind() {
    let mut bench = Bench::new(bounds());
    assert_eq!(bench.data(0, HEAD), Outcome::Complete(HEAD.len()));
    assert_eq!(bench.actions(), NOTHING);
    assert_eq!(
        (bench.intake.held_flows(), bench.intake.poll_timeout()),
        (0, None)
    );
}

#[test]
fn pieces_in_any_order_are_decided_once_and_forgotten() {
    let parts: [&[(usize, usize)]; 5] = [
        &[(0, 10), (10, 27)],
        &[(10, 27), (0, 10)],
        &[(5, 20), (20, 27), (0, 8)],
        &[(20, 27), (10, 22), (10, 20), (8, 12), (0, 10)],
        &[(0, 26), (26, 27)],
    ];
    for pieces in parts {
        let mut bench = Bench::new(bounds());
        let (last, before) = pieces.split_last().unwrap();
        for &(from, to) in before {
            let outcome = bench.data(from as i64, &HEAD[from..to]);
            let held = [Outcome::Held, Outcome::Ignored(Ignored::Duplicate)].contains(&outcome);
            assert!(held, "{pieces:?}");
        }
        assert_eq!(
            bench.data(last.0 as i64, &HEAD[last.0..last.1]),
            Outcome::Decide(27)
        );
        assert_eq!(bench.intake.head(&bench.key()), Some(HEAD));
        assert_eq!(bench.data(0, HEAD), Outcome::Assigned, "decided once");
        let actions = bench.actions();
        assert_eq!(actions[0], "reading");
        assert!(
            actions[1..].iter().all(|a| a == "client ACK 0+0 ack 0"),
            "{actions:?}"
        );
        assert!(bench.assigned(10));
        let expected = [
            "backend ACK 0+10",
            "backend ACK 10+10",
            "backend PSH|ACK 20+7",
        ];
        assert_eq!(bench.actions(), expected);
        assert_eq!(
            (bench.intake.held_flows(), bench.intake.held_bytes()),
            (0, 0)
        );
        assert!(!bench.assigned(10), "nothing is held any more");
    }
}

#[test]
fn bytes_that_come_with_the_head_go_along_and_so_do_those_beyond_a_gap() {
    let mut bench = Bench::new(bounds());
    bench.data(100, b"later");
    bench.data(0, &HEAD[..10]);
    let rest = [&HEAD[10..], b"body"].concat();
    assert_eq!(bench.packet(10, Flags::FIN, &rest), Outcome::Decide(27));
    assert_eq!(bench.intake.held_bytes(), 36);
    bench.actions();
    bench.confirmed(0); // not retained, no harm
    assert!(bench.assigned(1460));
    // The gap made us acknowledge the first ten bytes at once, so they are
    // retained; the FIN before bytes that we hold cannot be one. What lay beyond the
    // gap is the server's to name from now on.
    let expected = ["backend PSH|ACK 0+31", "probe 10", "backend PSH|ACK 100+5"];
    assert_eq!(bench.actions(), expected);
    assert_eq!(bench.intake.held_bytes(), 31);
}

#[test]
fn the_clients_fin_goes_along() {
    let mut bench = Bench::new(bounds());
    bench.data(0, &HEAD[..10]);
    assert_eq!(
        bench.packet(10, Flags::FIN, &HEAD[10..]),
        Outcome::Decide(27)
    );
    bench.actions();
    assert!(bench.assigned(1460));
    assert_eq!(bench.actions(), ["backend FIN|PSH|ACK 0+27"]);
}

#[test]
fn segments_to_the_backend_look_like_the_clients_latest() {
    let mut bench = Bench::new(bounds());
    bench.data(0, &HEAD[..10]);
    bench.clocks = (1005, 78);
    bench.data(20, &HEAD[20..]);
    bench.clocks = (1004, 77); // overtaken
    let mut last = bench.arrived(10, Flags::ACK, &HEAD[10..20]);
    last.header.window = 123;
    assert_eq!(bench.give(&last), Outcome::Decide(27));
    bench.assigned(1460);
    let actions: Vec<_> = std::iter::from_fn(|| bench.intake.poll_action()).collect();
    let [
        Action::Reading { isns, .. },
        Action::ToClient(_),
        Action::ToBackend { key, segment, .. },
        Action::Probe { .. },
    ] = &actions[..]
    else {
        panic!("{actions:?}");
    };
    assert_eq!((*isns, *key), (bench.isns, bench.key()));
    assert_eq!((segment.source, segment.destination), (key.client, key.vip));
    assert_eq!(segment.header.seq, 0xffff_fffd);
    assert_eq!(segment.header.ack, 0);
    assert_eq!(segment.header.window, 123);
    let timestamps = Some(Timestamps {
        value: 1005,
        echo: 78,
    });
    assert_eq!(
        segment.header.options,
        Options {
            timestamps,
            ..Options::default()
        }
    );
    assert_eq!(segment.payload, HEAD);
}

#[test]
fn a_slow_writer_is_acknowledged_after_ten_milliseconds() {
    let mut bench = Bench::new(bounds());
    bench.data(0, b"G");
    assert_eq!(bench.actions(), ["reading"]);
    bench.now += ms(4);
    bench.data(1, b"E");
    assert_eq!(bench.wait(ms(100)), Some(ms(6)));
    assert_eq!(bench.actions(), ["client ACK 0+0 ack 2"]);
    // What has been acknowledged and comes again is acknowledged again.
    assert_eq!(bench.data(0, b"GE"), Outcome::Ignored(Ignored::Duplicate));
    assert_eq!(bench.actions(), ["client ACK 0+0 ack 2"]);
    // A keepalive too (RFC 9293 §3.8.4).
    assert_eq!(bench.data(1, b""), Outcome::Ignored(Ignored::Duplicate));
    assert_eq!(bench.actions(), ["client ACK 0+0 ack 2"]);
    assert_eq!(bench.wait(ms(100)), None, "nothing more to say");
}

#[test]
fn many_bytes_are_acknowledged_at_once() {
    let mut bench = Bench::new(bounds());
    let bytes = vec![b'x'; 9000];
    bench.data(0, &bytes[..8191]);
    assert_eq!(bench.actions(), ["reading"]);
    bench.data(8191, &bytes[8191..]);
    assert_eq!(bench.actions(), ["client ACK 0+0 ack 9000"]);
}

#[test]
fn acknowledgements_carry_standing_clocks_and_a_steady_edge() {
    let mut bench = Bench::new(bounds());
    bench.data(0, b"G");
    bench.clocks = (1010, 77);
    bench.data(2, b"T"); // out of order: its clock is not echoed
    bench.actions();
    bench.clocks = (1020, 77);
    bench.data(1, b"E");
    let Some(Action::ToClient(ack)) = bench.intake.poll_action() else {
        panic!("no ACK")
    };
    let timestamps = Some(Timestamps {
        value: 77,
        echo: 1020,
    });
    assert_eq!(ack.header.options.timestamps, timestamps);
    assert_eq!(
        (ack.source, ack.destination),
        (bench.key().vip, bench.key().client)
    );
    // 65535 from the start, less 3, in units of 512, rounded up.
    assert_eq!(ack.header.window, 128);
}

#[test]
fn acknowledged_bytes_stay_until_the_backend_has_them() {
    let mut bench = Bench::new(bounds());
    bench.data(0, &HEAD[..10]);
    bench.wait(ms(100));
    assert_eq!(bench.data(10, &HEAD[10..]), Outcome::Decide(27));
    bench.actions();
    assert!(bench.assigned(20));
    let all = ["backend ACK 0+20", "backend PSH|ACK 20+7", "probe 10"];
    assert_eq!(bench.actions(), all);
    assert_eq!(bench.data(27, b"more"), Outcome::Assigned);
    assert_eq!(bench.intake.head(&bench.key()), Some(HEAD));

    // It is asked soon again, as the question may have overtaken the bytes; they go again later.
    for asked in QUESTIONS {
        assert_eq!(bench.wait(ms(100)), Some(asked));
        assert_eq!(bench.actions(), ["probe 10"]);
    }
    assert_eq!(bench.wait(ms(100)), Some(RETRY_BEHIND_QUESTIONS));
    assert_eq!(bench.actions(), all);
    bench.confirmed(5);
    assert_eq!(bench.wait(ms(100)), Some(ms(50)));
    assert_eq!(
        bench.actions(),
        ["backend ACK 5+20", "backend PSH|ACK 25+2", "probe 10"]
    );

    // The backend refused it: another one gets everything.
    assert!(bench.assigned(1000));
    assert_eq!(bench.actions(), ["backend PSH|ACK 0+27", "probe 10"]);
    bench.confirmed(10);
    assert_eq!(bench.actions(), NOTHING);
    assert_eq!(
        (bench.intake.held_flows(), bench.intake.held_bytes()),
        (0, 0)
    );
    assert_eq!(bench.intake.counters().confirmed, 1);
}

#[test]
fn a_backend_that_never_confirms_ends_the_flow() {
    let mut bench = Bench::new(bounds());
    bench.data(0, &HEAD[..10]);
    bench.wait(ms(100));
    bench.data(10, &HEAD[10..]);
    bench.assigned(1000);
    bench.actions();
    let start = bench.now;
    let mut waits = Vec::new();
    while let Some(waited) = bench.wait(ms(5000)) {
        waits.push(waited);
    }
    assert_eq!(waits[..6], QUESTIONS);
    assert_eq!(waits[6], RETRY_BEHIND_QUESTIONS);
    assert_eq!(waits[7..26], [ms(50); 19], "for a second");
    let later = [100, 200, 400, 800, 1600, 2000, 2000, 1900];
    assert_eq!(waits[26..], later.map(ms));
    assert_eq!(bench.now - start, ms(10_000));
    let actions = bench.actions();
    assert_eq!(
        actions[actions.len() - 2..],
        ["client RST|ACK 0+0 ack 10", "ended Unconfirmed"]
    );
    assert_eq!(bench.intake.held_flows(), 0);
}

/// Bytes that a backend is to confirm.
fn unconfirmed(bounds: Bounds) -> Bench {
    let mut bench = Bench::new(bounds);
    bench.data(0, &HEAD[..10]);
    bench.wait(ms(100));
    bench.data(10, &HEAD[10..]);
    bench.assigned(1000);
    bench.actions();
    bench
}

/// For how long it is waited for, in seconds, by a host that answers each question so.
fn waited_for(bench: &mut Bench, mut answer: impl FnMut(&mut Bench)) -> u64 {
    let start = bench.now;
    while bench.intake.held_flows() > 0 {
        bench.wait(ms(5000));
        if bench.actions().contains(&"probe 10".into()) {
            answer(bench);
        }
    }
    assert_eq!(bench.intake.counters().ended_unconfirmed, 1);
    (bench.now - start).as_secs()
}

#[test]
fn a_server_that_reads_nothing_is_waited_for_while_its_socket_stands() {
    let mut bench = unconfirmed(bounds());
    let waited = waited_for(&mut bench, |bench| bench.stands(0));
    assert_eq!(waited, 120);
    // It wakes up in time.
    let mut bench = unconfirmed(bounds());
    for _ in 0..30 {
        bench.wait(ms(5000));
        bench.stands(0);
    }
    bench.stands(10);
    assert_eq!(bench.intake.counters().confirmed, 1);
}

#[test]
fn each_byte_that_it_reads_begins_its_time_anew() {
    let mut bench = unconfirmed(bounds());
    let start = bench.now;
    // What lies before the bytes is missing there, and comes; then a part of them does.
    let waited = waited_for(&mut bench, |bench| {
        let at = [u32::MAX - 9, u32::MAX - 4, 3];
        bench.stands(at[(((bench.now - start).as_secs() / 60) as usize).min(2)]);
    });
    assert!((239..=242).contains(&waited), "{waited}");
}

#[test]
fn one_whose_socket_has_gone_is_waited_for_no_longer_than_one_that_says_nothing() {
    let mut bench = unconfirmed(bounds());
    assert_eq!(waited_for(&mut bench, |bench| bench.confirmed(0)), 10);
    let mut bench = unconfirmed(bounds());
    let start = bench.now;
    let waited = waited_for(&mut bench, |bench| {
        if bench.now - start < ms(30_000) {
            bench.stands(0);
        }
    });
    assert!((38..=40).contains(&waited), "{waited}");
}

#[test]
fn nobody_is_waited_for_longer_where_others_want_the_room() {
    let crowded = Bounds {
        flows: 2,
        ..bounds()
    };
    let mut bench = unconfirmed(crowded);
    // Taken out of the table while it is looked at: one other is the half.
    bench.client += 1;
    bench.data(0, &HEAD[..10]);
    bench.client -= 1;
    let start = bench.now;
    while bench.intake.counters().ended_unconfirmed == 0 {
        bench.wait(ms(5000));
        bench.stands(0);
    }
    assert_eq!((bench.now - start).as_secs(), 10);
}

/// Nobody could tell its client that it has come.
#[test]
fn a_head_behind_what_waits_has_all_its_time_when_that_is_over() {
    let mut bench = unconfirmed(bounds());
    let mut arrived = bench.arrived(27, Flags::ACK, &HEAD[..10]);
    arrived.later = true;
    arrived.isns.client += 27;
    bench.give(&arrived);
    for _ in 0..10 {
        bench.wait(ms(5000));
        bench.stands(0);
    }
    bench.stands(10);
    bench.actions();
    let until = bench.now + bounds().head_timeout;
    while bench.intake.poll_timeout().is_some_and(|at| at < until) {
        bench.wait(ms(5000));
        assert!(!bench.actions().contains(&"too slow".into()));
    }
}

#[test]
fn packets_that_prove_nothing_change_nothing() {
    type Change = fn(&mut Arrived<'_>);
    let table: [(&str, Change, Ignored); 8] = [
        (
            "damaged",
            |p| p.checksum = TcpChecksum::Wrong,
            Ignored::BadChecksum,
        ),
        ("a SYN", |p| p.header.flags |= Flags::SYN, Ignored::BadFlags),
        ("no ACK", |p| p.header.flags = Flags::PSH, Ignored::BadFlags),
        ("another ACK", |p| p.header.ack ^= 1, Ignored::BadAck),
        (
            "far ahead",
            |p| p.header.seq = p.header.seq.wrapping_add(200_000),
            Ignored::OutsideWindow,
        ),
        (
            "far behind",
            |p| p.header.seq = p.header.seq.wrapping_sub(200_000),
            Ignored::OutsideWindow,
        ),
        ("a bare ACK", |p| p.payload = b"", Ignored::Empty),
        (
            "before the start",
            |p| p.header.seq = p.header.seq.wrapping_sub(30),
            Ignored::Duplicate,
        ),
    ];
    for (what, change, expected) in table {
        let mut bench = Bench::new(bounds());
        let mut arrived = bench.arrived(0, Flags::ACK, &HEAD[..10]);
        change(&mut arrived);
        assert_eq!(
            bench.give(&arrived),
            Outcome::Ignored(expected),
            "{what}, new"
        );
        assert_eq!(bench.actions(), NOTHING, "{what}");
        bench.data(0, b"G");
        bench.actions();
        let outcome = bench.give(&arrived);
        assert_eq!(outcome, Outcome::Ignored(expected), "{what}, known");
        assert_eq!(bench.intake.held_bytes(), 1, "{what}");
    }
}

#[test]
fn partial_checksums_are_whole() {
    let mut bench = Bench::new(bounds());
    let mut arrived = bench.arrived(0, Flags::ACK, HEAD);
    arrived.checksum = TcpChecksum::Partial;
    assert_eq!(bench.give(&arrived), Outcome::Complete(27));
}

#[test]
fn only_an_exact_reset_ends_reading() {
    let reset = |bench: &mut Bench, at| bench.packet(at, Flags::RST, b"");
    let outside = Outcome::Ignored(Ignored::OutsideWindow);
    let inexact = Outcome::Ignored(Ignored::InexactReset);
    let mut bench = Bench::new(bounds());
    assert_eq!(reset(&mut bench, 0), Outcome::Ignored(Ignored::Reset));
    bench.data(0, &HEAD[..10]);
    bench.actions();
    for (at, outcome) in [
        (-100, &outside),
        (-1, &outside),
        (9, &outside),
        (11, &inexact),
        (65_000, &inexact),
        (100_000, &outside),
    ] {
        assert_eq!(&reset(&mut bench, at), outcome, "at {at}");
        // RFC 5961 §3.2: a client that has reset it answers with an exact one.
        let challenge: &[&str] = match outcome == &inexact {
            true => &["client ACK 0+0 ack 10"],
            false => &[],
        };
        assert_eq!(bench.actions(), challenge, "at {at}");
    }
    assert_eq!(bench.data(10, &HEAD[10..20]), Outcome::Held);
    let bare = bench.arrived(20, Flags::RST, b"");
    assert_eq!(bench.give(&bare), Outcome::Ignored(Ignored::Reset));
    assert_eq!(bench.actions().last().unwrap(), "ended ClientReset");
    assert_eq!(bench.intake.held_flows(), 0);

    // The bytes before it are lost or late: the client has sent up to there.
    bench.data(0, &HEAD[..10]);
    bench.data(15, &HEAD[15..20]);
    assert_eq!(reset(&mut bench, 15), inexact);
    assert_eq!(reset(&mut bench, 20), Outcome::Ignored(Ignored::Reset));
    assert_eq!(bench.intake.held_flows(), 0);
}

#[test]
fn an_inexact_reset_does_not_undo_a_decision() {
    let mut bench = Bench::new(bounds());
    bench.data(0, &HEAD[..10]);
    assert_eq!(bench.data(10, &HEAD[10..]), Outcome::Decide(27));
    assert_eq!(bench.packet(28, Flags::RST, b""), Outcome::Assigned);
    assert_eq!(
        bench.packet(27, Flags::RST, b""),
        Outcome::Ignored(Ignored::Reset)
    );
}

#[test]
fn a_new_connection_replaces_an_old_one() {
    let mut bench = Bench::new(bounds());
    bench.data(0, &HEAD[..10]);
    bench.actions();
    bench.isns.client += 500_000;
    let mut forged = bench.arrived(0, Flags::ACK, HEAD);
    forged.header.ack = 9;
    assert_eq!(bench.give(&forged), Outcome::Ignored(Ignored::BadAck));
    assert_eq!(bench.intake.held_flows(), 1, "a forger replaces nothing");
    assert_eq!(bench.data(0, &HEAD[..5]), Outcome::Held);
    assert_eq!(bench.actions(), ["ended Replaced", "reading"]);
    bench.isns.server += 1;
    assert_eq!(bench.data(0, HEAD), Outcome::Complete(27));
    assert_eq!(bench.actions(), ["ended Replaced"]);
    assert_eq!(bench.intake.held_flows(), 0);
}

#[test]
fn the_oldest_flow_makes_way() {
    let mut bench = Bench::new(Bounds {
        flows: 2,
        ..bounds()
    });
    for client in [1, 2, 3] {
        bench.client = client;
        assert_eq!(bench.data(0, &HEAD[..10]), Outcome::Held);
    }
    let expected = [
        "reading",
        "reading",
        "client RST|ACK 0+0 ack 10",
        "ended Evicted",
        "reading",
    ];
    assert_eq!(bench.actions(), expected);
    assert_eq!(bench.intake.counters().ended_evicted, 1);
    bench.client = 2;
    assert_eq!(
        bench.data(10, &HEAD[10..]),
        Outcome::Decide(27),
        "the second was kept"
    );
}

#[test]
fn bytes_are_bounded_in_all() {
    let mut bench = Bench::new(Bounds {
        bytes: 30,
        ..bounds()
    });
    bench.client = 1;
    bench.data(0, &[b'a'; 20]);
    bench.client = 2;
    bench.data(0, &[b'b'; 10]);
    bench.actions();
    // The oldest wants more than there is: nobody else suffers for it.
    bench.client = 1;
    assert_eq!(bench.data(20, b"a"), Outcome::Ignored(Ignored::Full));
    assert_eq!(
        bench.actions(),
        ["client RST|ACK 0+0 ack 21", "ended Evicted"]
    );
    assert_eq!(bench.intake.held_bytes(), 10);
    // More than there will ever be.
    bench.client = 3;
    assert_eq!(bench.data(0, &[b'c'; 31]), Outcome::Ignored(Ignored::Full));
    assert_eq!(bench.intake.held_flows(), 0);
}

#[test]
fn a_daemon_that_ends_resets_what_nobody_can_read_on() {
    let mut bench = Bench::new(bounds());
    bench.client = 1;
    bench.data(0, &HEAD[..10]);
    bench.wait(ms(100));
    bench.client = 2;
    bench.data(0, &HEAD[..10]);
    bench.client = 3;
    bench.data(0, b"BAD");
    bench.actions();
    bench.intake.abandon();
    // The second's bytes are not acknowledged: they come again. The third is answered.
    let expected = ["client RST|ACK 0+0 ack 10", "ended Abandoned"];
    assert_eq!(bench.actions(), expected);
    assert_eq!(bench.intake.held_flows(), 0);
}

#[test]
fn retained_flows_are_not_evicted() {
    let mut bench = Bench::new(Bounds {
        flows: 1,
        ..bounds()
    });
    bench.data(0, &HEAD[..10]);
    bench.wait(ms(100));
    bench.data(10, &HEAD[10..]);
    bench.assigned(1000);
    bench.client += 1;
    assert_eq!(bench.data(0, &HEAD[..10]), Outcome::Ignored(Ignored::Full));
    assert_eq!(
        bench.data(0, HEAD),
        Outcome::Complete(27),
        "which needs no room"
    );
}

#[test]
fn every_packet_is_counted_once() {
    let mut bench = Bench::new(bounds());
    bench.data(0, b"G");
    bench.data(0, b"G");
    bench.data(1, &HEAD[1..]);
    bench.data(1, &HEAD[1..]);
    bench.packet(5, Flags::SYN, b"");
    let counters = bench.intake.counters();
    let named: std::collections::HashMap<_, _> = counters.iter().collect();
    assert_eq!(named["packets"], 5);
    let outcomes = [
        "held",
        "ignored_duplicate",
        "decided",
        "assigned",
        "ignored_bad_flags",
    ];
    for outcome in outcomes {
        assert_eq!(named[outcome], 1, "{outcome}");
    }
}
