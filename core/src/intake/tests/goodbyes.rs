//! Answers of our own, and their lingering end.

use super::*;

/// The length of an answer.
fn len(answer: Answer) -> usize {
    answer.bytes(Body::Full).len()
}

impl Bench {
    /// A packet of a client that has seen `acked` of our numbers.
    fn after(&mut self, acked: u32, at: i64, flags: Flags, payload: &[u8]) -> Outcome<usize> {
        let mut arrived = self.arrived(at, flags | Flags::ACK, payload);
        arrived.header.ack = (self.isns.server + 1 + acked).raw();
        self.give(&arrived)
    }

    /// Of our segments to the client since last asked.
    fn clocks_said(&mut self) -> Vec<u32> {
        let actions = std::iter::from_fn(|| self.intake.poll_action());
        let clocks = actions.filter_map(|action| match action {
            Action::ToClient(segment) => segment.header.options.timestamps,
            _ => None,
        });
        clocks.map(|clocks| clocks.value).collect()
    }

    /// Answers the client's first packet with 503.
    fn unavailable(&mut self) -> u32 {
        let arrived = self.arrived(0, Flags::ACK, HEAD);
        self.intake
            .answer(self.now, &arrived, Answer::ServiceUnavailable, Body::Full);
        let n = len(Answer::ServiceUnavailable);
        assert_eq!(
            self.actions(),
            ["reading".into(), format!("client FIN|PSH|ACK 0+{n} ack 27")]
        );
        n as u32 + 1
    }
}

#[test]
fn an_answer_is_read_and_both_sides_close() {
    let mut bench = Bench::new(bounds());
    let n = bench.unavailable();
    assert_eq!(
        (bench.intake.answering_flows(), bench.intake.held_flows()),
        (1, 0)
    );
    assert_eq!(
        bench.after(n, 27, Flags::default(), b""),
        Outcome::Answering
    );
    assert_eq!(bench.actions(), [""; 0]);
    assert_eq!(bench.after(n, 27, Flags::FIN, b""), Outcome::Answering);
    assert_eq!(bench.actions(), [format!("client ACK {n}+0 ack 28")]);
    // Nothing comes after a FIN.
    assert_eq!(
        bench.after(n, 28, Flags::default(), b"x"),
        Outcome::Answering
    );
    assert_eq!(bench.actions(), [format!("client ACK {n}+0 ack 28")]);
    // Our ACK was lost.
    bench.now += ms(300);
    assert_eq!(bench.after(n, 27, Flags::FIN, b""), Outcome::Answering);
    assert_eq!(bench.actions(), [format!("client ACK {n}+0 ack 28")]);
    assert_eq!(bench.wait(ms(5000)), Some(ms(1000)));
    assert_eq!(bench.actions(), ["ended Closed"]);
    assert_eq!(bench.intake.answering_flows(), 0);
}

#[test]
fn an_answer_is_repeated_and_then_given_up() {
    let mut bench = Bench::new(bounds());
    let n = bench.unavailable();
    let mut waits = Vec::new();
    while let Some(waited) = bench.wait(ms(20_000)) {
        waits.push(waited.as_millis());
    }
    assert_eq!(waits, [200, 400, 800, 1600, 3200, 3800]);
    let actions = bench.actions();
    assert_eq!(actions.len(), 5 + 2);
    assert_eq!(
        actions[5..],
        [
            format!("client RST|ACK {n}+0 ack 27"),
            "ended Lingered".into()
        ]
    );
}

#[test]
fn a_huge_body_is_thrown_away_without_a_reset() {
    let mut bench = Bench::new(bounds());
    let n = bench.unavailable();
    let body = vec![0; 50_000];
    let mut at = 27;
    for i in 1..200 {
        assert_eq!(
            bench.after(0, at, Flags::default(), &body),
            Outcome::Answering
        );
        at += body.len() as i64;
        assert_eq!(
            bench.actions(),
            [format!("client ACK {n}+0 ack {at}")],
            "{i}"
        );
        bench.now += ms(1);
    }
    assert_eq!(bench.intake.held_bytes(), 0);
    // A lost piece need not be sent again.
    bench.after(0, at + 1000, Flags::default(), b"x");
    assert_eq!(
        bench.actions(),
        [format!("client ACK {n}+0 ack {}", at + 1001)]
    );
    bench.after(n, at + 1001, Flags::FIN, b"");
    assert_eq!(
        bench.actions(),
        [format!("client ACK {n}+0 ack {}", at + 1002)]
    );
    bench.wait(ms(2000));
    assert_eq!(bench.actions(), ["ended Closed"]);
}

/// The backend was not dead: what it says with a later clock is not mixed with what we say.
#[test]
fn an_answer_is_not_mixed_with_that_of_a_backend_that_speaks_after_all() {
    const CLOCK: u32 = 1000;
    // How much the client has had, of an answer that is shorter or longer than ours.
    for had in [0, 20, 200_000] {
        let mut bench = Bench::new(bounds());
        let clocks = |echo| Some(Timestamps { value: 5, echo });
        let with = |bench: &Bench, acked: u32, echo| {
            let mut arrived = bench.arrived(0, Flags::ACK, HEAD);
            arrived.header.ack = (bench.isns.server + 1 + acked).raw();
            arrived.header.options.timestamps = clocks(echo);
            // A request on a connection that had others before: its numbers follow the client's.
            arrived.later = true;
            arrived
        };
        let first = with(&bench, 0, CLOCK);
        let answer = Answer::ServiceUnavailable;
        bench.intake.answer(bench.now, &first, answer, Body::Full);
        let said = bench.clocks_said();
        assert_eq!(said, [CLOCK]);
        let mut ack = with(&bench, had, CLOCK + 1);
        ack.payload = b"";
        ack.header.seq = ack.header.seq.wrapping_add(HEAD.len() as u32);
        bench.give(&ack);
        if had > 0 {
            let reset = format!("client RST|ACK {had}+0 ack 27");
            assert_eq!(bench.actions(), [reset, "ended Lingered".into()], "{had}");
            continue;
        }
        // It has only heard that it lives: the answer has its place yet.
        bench.wait(ms(250));
        assert_eq!(bench.clocks_said(), [CLOCK + 1]);
    }
}

#[test]
fn forgers_do_not_disturb_an_answer() {
    let mut bench = Bench::new(bounds());
    let n = bench.unavailable();
    assert_eq!(
        bench.after(n + 1, 27, Flags::RST, b""),
        Outcome::Ignored(Ignored::BadAck)
    );
    assert_eq!(
        bench.after(0, 27 + 70_000, Flags::RST, b""),
        Outcome::Ignored(Ignored::OutsideWindow)
    );
    assert_eq!(
        bench.after(0, 27 - 70_000, Flags::FIN, b""),
        Outcome::Ignored(Ignored::OutsideWindow)
    );
    assert_eq!(bench.after(0, 27, Flags::RST, b""), Outcome::Answering);
    assert_eq!(bench.actions(), ["ended ClientReset"]);
}

#[test]
fn a_held_flow_is_answered_where_it_stands() {
    for retain in [false, true] {
        let mut bench = Bench::new(bounds());
        bench.data(0, &HEAD[..10]);
        bench.wait(ms(100));
        bench.data(10, &HEAD[10..]);
        if retain {
            bench.assigned(1000);
        }
        bench.actions();
        let first = bench.arrived(0, Flags::ACK, &HEAD[..5]);
        bench
            .intake
            .answer(bench.now, &first, Answer::NotFound, Body::Omitted);
        let n = Answer::NotFound.bytes(Body::Omitted).len();
        assert_eq!(
            bench.actions().last().unwrap(),
            &format!("client FIN|PSH|ACK 0+{n} ack 27")
        );
        assert_eq!(
            (bench.intake.held_flows(), bench.intake.answering_flows()),
            (0, 1)
        );
        assert!(!bench.assigned(1000), "too late for a backend");
    }
}

#[test]
fn the_oldest_answer_makes_way() {
    let mut bench = Bench::new(bounds());
    for client in 1..=2 {
        bench.client = client;
        bench.unavailable();
    }
    bench.client = 3;
    let arrived = bench.arrived(0, Flags::ACK, HEAD);
    bench
        .intake
        .answer(bench.now, &arrived, Answer::TlsAlert(80), Body::Full);
    let n = len(Answer::ServiceUnavailable) + 1;
    let expected = [
        "reading".into(),
        format!("client RST|ACK {n}+0 ack 27"),
        "ended Evicted".into(),
        "client FIN|PSH|ACK 0+7 ack 27".into(),
    ];
    assert_eq!(bench.actions(), expected);
    assert_eq!(bench.intake.answering_flows(), 2);
}

#[test]
fn a_bad_head_is_answered() {
    let n = len(Answer::BadRequest);
    let mut bench = Bench::new(bounds());
    assert_eq!(bench.data(0, b"BAD"), Outcome::Answering);
    assert_eq!(
        bench.actions(),
        ["reading".into(), format!("client FIN|PSH|ACK 0+{n} ack 3")]
    );

    bench.client += 1;
    bench.data(0, b"B");
    assert_eq!(bench.data(1, b"AD"), Outcome::Answering);
    assert_eq!(
        bench.actions(),
        ["reading".into(), format!("client FIN|PSH|ACK 0+{n} ack 3")]
    );
}

#[test]
fn a_head_that_does_not_come_times_out() {
    let n = len(Answer::RequestTimeout);
    let table: [(&str, i64, &[u8], Vec<String>); 3] = [
        (
            "HTTP",
            0,
            b"GET",
            vec![format!("client FIN|PSH|ACK 0+{n} ack 3")],
        ),
        (
            "TLS",
            0,
            &[22, 3, 1],
            vec!["client FIN|ACK 0+0 ack 3".into()],
        ),
        (
            "a gap",
            5,
            b"/",
            vec!["client RST|ACK 0+0 ack 0".into(), "ended TimedOut".into()],
        ),
    ];
    for (what, at, bytes, expected) in table {
        let mut bench = Bench::new(bounds());
        bench.data(at, bytes);
        let start = bench.now;
        while bench.now < start + ms(10_000) {
            bench.actions();
            bench.wait(ms(10_000));
        }
        assert_eq!(bench.now, start + ms(10_000));
        assert_eq!(bench.actions(), expected, "{what}");
        assert_eq!(bench.intake.counters().head_timeouts, 1);
    }
}

#[test]
fn a_head_beyond_the_limit_is_refused() {
    for (first, answer) in [(b'G', Answer::HeadTooLarge), (22, Answer::RECORD_OVERFLOW)] {
        let mut bench = Bench::new(Bounds {
            head_bytes: 2000,
            ..bounds()
        });
        let mut bytes = vec![b'x'; 2000];
        bytes[0] = first;
        assert_eq!(bench.data(0, &bytes[..1999]), Outcome::Held);
        bench.actions();
        assert_eq!(bench.data(1999, &bytes[1999..]), Outcome::Answering);
        let n = len(answer);
        assert_eq!(
            bench.actions(),
            [format!("client FIN|PSH|ACK 0+{n} ack 2000")]
        );
        bench.client += 1;
        assert_eq!(bench.data(0, &bytes), Outcome::Answering, "all at once");
        assert_eq!(bench.intake.counters().heads_too_large, 2);
    }
}

/// Whoever finds it too large.
#[test]
fn a_head_beyond_the_limit_is_counted() {
    let mut bench = Bench::new(bounds());
    assert_eq!(bench.data(0, b"HUGE"), Outcome::Answering);
    assert_eq!(bench.intake.counters().heads_too_large, 1);
    bench.client += 1;
    assert_eq!(bench.data(0, b"BAD"), Outcome::Answering);
    assert_eq!(bench.intake.counters().heads_too_large, 1);
}

#[test]
fn a_client_that_says_nothing_is_closed_without_state() {
    let mut bench = Bench::new(bounds());
    for _ in 0..2 {
        assert_eq!(bench.packet(0, Flags::FIN, b""), Outcome::Closed);
        assert_eq!(bench.actions(), ["client FIN|ACK 0+0 ack 1"]);
    }
    assert_eq!(
        (bench.intake.held_flows(), bench.intake.answering_flows()),
        (0, 0)
    );
}

#[test]
fn a_client_that_breaks_off_is_closed_without_an_answer() {
    let mut bench = Bench::new(bounds());
    bench.data(5, b"later");
    assert_eq!(bench.packet(10, Flags::FIN, b""), Outcome::Held);
    bench.actions();
    assert_eq!(bench.data(0, b"GET /"), Outcome::Answering);
    assert_eq!(bench.actions(), ["client FIN|ACK 0+0 ack 11"]);
    assert_eq!(
        bench.after(1, 11, Flags::default(), b""),
        Outcome::Answering
    );
    assert_eq!(bench.wait(ms(5000)), Some(ms(1000)));
    assert_eq!(bench.actions(), ["ended Closed"]);
}

#[test]
fn a_decision_that_nobody_takes_times_out() {
    let mut bench = Bench::new(bounds());
    bench.data(0, &HEAD[..10]);
    assert_eq!(bench.data(10, &HEAD[10..]), Outcome::Decide(27));
    bench.actions();
    assert_eq!(bench.wait(ms(20_000)), Some(ms(10_000)));
    assert_eq!(
        bench.actions(),
        ["client RST|ACK 0+0 ack 27", "ended TimedOut"]
    );
    assert!(!bench.assigned(1000));
}
