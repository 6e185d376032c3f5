//! What is acknowledged is told to others before, and another intake reads on from that.

use super::*;

/// Bytes that an intake has others keep, put together as they come, and its actions as text.
fn kept(bench: &mut Bench, bytes: &mut Vec<u8>) -> Vec<String> {
    let actions: Vec<_> = std::iter::from_fn(|| bench.intake.poll_action()).collect();
    for action in &actions {
        if let Action::Keep(kept) = action {
            assert_eq!(kept.offset as usize, bytes.len());
            assert_eq!((kept.key, kept.isns), (bench.key(), bench.isns));
            bytes.extend(&kept.bytes);
        }
    }
    actions
        .into_iter()
        .map(|action| bench.text(action))
        .collect()
}

#[test]
fn nothing_is_copied_unless_that_is_wanted() {
    let mut bench = Bench::new(bounds());
    bench.data(0, &HEAD[..10]);
    bench.wait(ms(10));
    assert_eq!(bench.actions(), ["reading", "client ACK 0+0 ack 10"]);
}

#[test]
fn a_head_whose_intake_dies_is_read_on_by_another() {
    let mut first = Bench::new(bounds());
    first.intake.have_copied(true);
    let mut bytes = Vec::new();
    first.data(0, &HEAD[..10]);
    assert_eq!(
        kept(&mut first, &mut bytes),
        ["reading"],
        "nothing is acknowledged"
    );
    first.wait(ms(10));
    assert_eq!(
        kept(&mut first, &mut bytes),
        ["keep 0+10", "client ACK 0+0 ack 10"]
    );
    first.data(10, &HEAD[10..14]);
    first.wait(ms(10));
    assert_eq!(
        kept(&mut first, &mut bytes),
        ["keep 10+4", "client ACK 0+0 ack 14"]
    );

    let mut second = Bench::new(bounds());
    let arrived = second.arrived(0, Flags::ACK, &bytes);
    let (intake, now) = (&mut second.intake, second.now);
    assert!(intake.restore(now, &arrived));
    assert!(!intake.restore(now, &arrived), "it is known");
    assert!(
        intake
            .resume(now, &arrived.key, inspect)
            .is_some_and(|o| o == Outcome::Held)
    );
    assert_eq!(second.actions(), ["reading"]);
    // Part of it comes again, and the rest: what was acknowledged is kept until a backend has it.
    assert_eq!(second.data(10, &HEAD[10..]), Outcome::Decide(HEAD.len()));
    assert!(second.assigned(1400));
    assert_eq!(second.actions(), ["backend PSH|ACK 0+27", "probe 14"]);
    assert_eq!(second.intake.held_flows(), 1);
    second.confirmed(14);
    assert_eq!(second.intake.held_flows(), 0);
}

/// Its client repeats nothing of it, and its server has room for so much at a time.
#[test]
fn what_is_long_goes_to_its_backend_as_that_takes_it() {
    const PIECE: usize = 32 << 10;
    let mut bench = Bench::new(bounds());
    let bytes = [HEAD, &[b'x'; 2 * PIECE]].concat();
    let arrived = bench.arrived(0, Flags::ACK, &bytes);
    let now = bench.now;
    assert!(bench.intake.restore(now, &arrived));
    let found = bench.intake.resume(now, &bench.key(), |_, _| {
        Looked::Cut(bytes.len(), bytes.len())
    });
    assert_eq!(found, Some(Outcome::Decide(bytes.len())));
    assert_eq!(bench.actions(), ["reading"]);
    assert!(bench.assigned(PIECE as u16 / 2));
    let end = bytes.len();
    let probe = format!("probe {end}");
    let first = ["backend ACK 0+16384", "backend PSH|ACK 16384+16384"];
    assert_eq!(bench.actions(), [first[0], first[1], &*probe]);
    // A part of it, and what there is room for then.
    bench.confirmed(16_384);
    assert_eq!(bench.actions(), ["backend PSH|ACK 32768+16384", &probe]);
    bench.confirmed(16_384);
    assert!(bench.actions().is_empty());
    // Some is lost, or the question came there before.
    for _ in 0..4 {
        bench.wait(ms(50));
        assert_eq!(bench.actions(), [&*probe]);
    }
    bench.wait(ms(50));
    let again = ["backend ACK 16384+16384", "backend PSH|ACK 32768+16384"];
    assert_eq!(bench.actions(), [again[0], again[1], &*probe]);
    bench.confirmed(3 * 16_384);
    let rest = ["backend ACK 49152+16384", "backend PSH|ACK 65536+27"];
    assert_eq!(bench.actions(), [rest[0], rest[1], &*probe]);
    bench.confirmed(end as u32);
    assert_eq!(bench.intake.held_flows(), 0);
}

/// A later request, and nothing behind it.
fn whole_later(bench: &mut Bench, bytes: &[u8]) -> Outcome<usize> {
    let mut arrived = bench.arrived(0, Flags::ACK, bytes);
    arrived.later = true;
    let cut = |bytes: &[u8], _: &mut Progress| Looked::Cut(bytes.len(), bytes.len());
    bench.intake.on_packet(bench.now, &arrived, cut)
}

/// Nor has a new owner room at once for all that the owner before let its client send.
#[test]
fn what_is_long_and_not_acknowledged_goes_in_windows_too() {
    let mut bench = Bench::new(Bounds {
        bytes: 8 << 20,
        burst: 60_000,
        ..bounds()
    });
    let bytes = [HEAD, &[b'x'; 200 << 10]].concat();
    let end = bytes.len();
    assert_eq!(whole_later(&mut bench, &bytes), Outcome::Decide(end));
    assert!(bench.actions().is_empty());
    assert!(bench.assigned(1400));
    let probe = format!("probe {end}");
    let first = ["backend ACK 0+1400", "backend PSH|ACK 1400+31368"];
    assert_eq!(bench.actions(), [first[0], first[1], &*probe]);
    // It has all of that, and room for twice as much.
    bench.confirmed(32_768);
    let second = ["backend ACK 32768+60000", "backend PSH|ACK 92768+5536"];
    assert_eq!(bench.actions(), [second[0], second[1], &*probe]);
    // It had not.
    while bench.wait(ms(1000)).is_some() {
        let again = bench.actions();
        if again != [&*probe] {
            assert_eq!(again, ["backend PSH|ACK 32768+32768", &*probe]);
            break;
        }
    }
    bench.confirmed(2 * 32_768);
    bench.actions();
    bench.confirmed(4 * 32_768);
    let last = ["backend ACK 131072+60000", "backend PSH|ACK 191072+13755"];
    assert_eq!(bench.actions(), [last[0], last[1], &*probe]);
    bench.confirmed(end as u32);
    assert_eq!(bench.intake.held_flows(), 0);
}

/// If its backend takes nothing of it, its client will hear of that: nobody has told it anything.
#[test]
fn what_is_long_and_gets_nowhere_is_given_up_without_a_word() {
    let mut bench = Bench::new(bounds());
    let bytes = [HEAD, &[b'x'; 60 << 10]].concat();
    let outcome = whole_later(&mut bench, &bytes);
    assert_eq!(outcome, Outcome::Decide(bytes.len()));
    assert!(bench.assigned(1400));
    while bench.intake.held_flows() > 0 {
        bench.wait(ms(2000)).expect("something is due");
        let all = bench.actions();
        assert!(all.iter().all(|a| !a.starts_with("client")), "{all:?}");
    }
}

#[test]
fn what_does_not_fit_is_not_restored() {
    let mut bench = Bench::new(Bounds {
        bytes: 20,
        ..bounds()
    });
    let arrived = bench.arrived(0, Flags::ACK, HEAD);
    let now = bench.now;
    assert!(!bench.intake.restore(now, &arrived));
    let nothing = bench.arrived(0, Flags::ACK, b"");
    assert!(!bench.intake.restore(now, &nothing));
}

/// What another intake has given to a backend goes there again until that says that it has it. Its clock, if it has
/// heard nothing yet, is one that the client takes; what lies behind is read on then.
#[test]
fn what_another_has_given_is_repeated_and_what_lies_behind_is_read_on() {
    let mut bench = Bench::new(bounds());
    let (mut given, mut rest) = (
        bench.arrived(0, Flags::ACK, HEAD),
        bench.arrived(HEAD.len() as i64, Flags::ACK, &HEAD[..10]),
    );
    (given.later, rest.later) = (true, true);
    rest.isns.client += HEAD.len() as u32;
    let now = bench.now;
    assert!(bench.intake.retain(now, &given, Some(&rest), 5000, 1400));
    let mut echoes = Vec::new();
    while let Some(action) = bench.intake.poll_action() {
        if let Action::ToBackend { segment, .. } = action {
            assert_eq!(segment.payload, HEAD);
            echoes.extend(segment.header.options.aged.map(|clocks| clocks.echo));
        }
    }
    assert_eq!(echoes, [5000]);
    let key = bench.key();
    assert!(!bench.intake.is_undecided(&key), "it waits for the first");
    bench.confirmed(HEAD.len() as u32);
    assert!(bench.intake.is_undecided(&key));
    assert_eq!(bench.intake.held_bytes(), 10);
    assert!(
        !bench.intake.retain(now, &given, None, 0, 1400),
        "it is known"
    );
}
