//! Reading in the middle of a connection: what lies before the boundary is its
//! owner's.

use super::*;

impl Bench {
    /// A packet that reaches beyond the boundary.
    fn later(&mut self, at: i64, payload: &[u8]) -> Outcome<usize> {
        let mut arrived = self.arrived(at, Flags::ACK, payload);
        arrived.later = true;
        self.give(&arrived)
    }
}

#[test]
fn nothing_is_acknowledged_before_the_owner_has_what_lies_before() {
    let mut bench = Bench::new(bounds());
    // A gap asks for an acknowledgement at once, which would cover the owner's part.
    assert_eq!(bench.later(10, b"behind a gap"), Outcome::Held);
    assert_eq!(bench.actions(), ["probe 0"]);
    let (key, start) = (bench.key(), bench.isns.client + 1);
    // A byte is missing there.
    (bench.intake).on_probe_answer(bench.now, &key, bench.isns.client, None);
    assert!(bench.actions().is_empty());
    bench.intake.on_probe_answer(bench.now, &key, start, None);
    let actions = bench.actions();
    assert_eq!(actions.len(), 1, "{actions:?}");
    assert!(actions[0].starts_with("client ") && actions[0].ends_with(" ack 0"));
    // The owner has gone on by the next time.
    assert_eq!(bench.later(30, b"behind another"), Outcome::Held);
    assert_eq!(bench.actions(), ["probe 0"]);
}

/// What lies before the boundary was lost on its way to the owner, and what lies behind it is
/// here: only an acknowledgement tells the client.
#[test]
fn a_client_hears_what_the_owner_lacks() {
    let mut bench = Bench::new(bounds());
    bench.handshake.sack = true;
    assert_eq!(bench.later(0, b"GET "), Outcome::Held);
    assert_eq!(bench.later(10, b"behind a gap"), Outcome::Held);
    bench.actions();
    let (key, start) = (bench.key(), bench.isns.client + 1);
    let sender = Some(Sender {
        next: bench.isns.server + 100,
        clock: 0,
        is_idle: false,
        has_not_begun: false,
    });
    let lacks = start + (0u32.wrapping_sub(1000));
    let mut answer = |received| {
        bench.now += ms(10);
        (bench.intake).on_probe_answer(bench.now, &key, received, sender);
        let mut told = Vec::new();
        while let Some(action) = bench.intake.poll_action() {
            if let Action::ToClient(segment) = action {
                told.push(segment.header);
            }
        }
        told
    };
    // It may have been overtaken only.
    assert!(answer(lacks).is_empty());
    let told = answer(lacks);
    assert_eq!(told.len(), 1);
    assert_eq!(told[0].ack, lacks.raw());
    assert_eq!(told[0].seq, (bench.isns.server + 100).raw());
    let block = |from: u32, to: u32| ((start + from).raw(), (start + to).raw());
    assert_eq!(
        told[0].options.sack.as_slice(),
        [block(0, 4), block(10, 22)]
    );
    // Told each time, it would never come to its own timer.
    let times = (1..=20).filter(|_| !answer(lacks).is_empty()).count();
    assert_eq!(times, 4);
}

/// It may wait for longer than its client would repeat it.
#[test]
fn what_waits_is_acknowledged_when_its_client_repeats_it() {
    let mut bench = Bench::new(bounds());
    let request = b"GET / HTTP/1.1\r\n\r\n";
    let length = request.len() as u32;
    let (key, start) = (bench.key(), bench.isns.client + 1);
    assert!(matches!(bench.later(0, request), Outcome::Decide(_)));
    assert_eq!(bench.intake.told(&key, start), start);
    assert_eq!(bench.later(0, request), Outcome::Assigned);
    assert_eq!(bench.actions(), ["probe 0"]);
    bench.intake.on_probe_answer(bench.now, &key, start, None);
    let actions = bench.actions();
    assert!(
        matches!(&actions[..], [ack] if ack.ends_with(&format!(" ack {length}"))),
        "{actions:?}"
    );
    assert_eq!(bench.intake.told(&key, start), start + length);
}

#[test]
fn an_owner_that_does_not_answer_is_asked_again() {
    let mut bench = Bench::new(bounds());
    assert_eq!(bench.later(0, b"GET "), Outcome::Held);
    let mut probes = 0;
    for _ in 0..10 {
        bench.wait(ms(1000)).expect("something is due");
        probes += bench.actions().iter().filter(|a| *a == "probe 0").count();
    }
    assert_eq!(probes, 10);
}

/// Its clock may be behind what the client has told the owner meanwhile.
#[test]
fn what_stays_with_its_owner_has_no_clock_that_it_could_be_refused_by() {
    let mut bench = Bench::new(bounds());
    assert_eq!(bench.later(0, b"GET / HTTP/1.1\r\n"), Outcome::Held);
    bench.actions();
    assert!(matches!(bench.later(16, b"\r\n"), Outcome::Decide(_)));
    bench.actions();
    assert!(bench.assigned(1400));
    let mut sent = 0;
    while let Some(action) = bench.intake.poll_action() {
        if let Action::ToBackend { segment, .. } = action {
            let options = segment.header.options;
            assert_eq!(options.timestamps, None);
            assert_eq!(options.aged.is_some(), sent == 0);
            sent += segment.payload.len();
        }
    }
    assert_eq!(sent, 18);
}

/// Forged, perhaps, far ahead of what the client says: the next owner's clock goes on from the client's all the same.
#[test]
fn what_has_come_first_without_a_clock_does_not_take_it_from_all_others() {
    let mut bench = Bench::new(bounds());
    let mut forged = bench.arrived(300, Flags::ACK, b"GET / ");
    forged.later = true;
    forged.header.options.timestamps = None;
    assert_eq!(bench.give(&forged), Outcome::Held);
    bench.actions();
    assert!(matches!(bench.later(0, HEAD), Outcome::Decide(_)));
    bench.actions();
    assert!(bench.assigned(1400));
    let clocks =
        std::iter::from_fn(|| bench.intake.poll_action()).find_map(|action| match action {
            Action::ToBackend { segment, .. } => Some(segment.header.options.aged),
            _ => None,
        });
    let (value, echo) = bench.clocks;
    assert_eq!(clocks, Some(Some(Timestamps { value, echo })));
}

/// A FIN right behind a request is not another request's beginning.
#[test]
fn the_clients_end_goes_with_its_last_request() {
    let mut bench = Bench::new(bounds());
    let request = b"GET / HTTP/1.1\r\n\r\n";
    let mut arrived = bench.arrived(0, Flags::ACK | Flags::FIN, request);
    arrived.later = true;
    let cut = |bytes: &[u8], _: &mut Progress| Looked::Cut(bytes.len(), bytes.len());
    let outcome = bench.intake.on_packet(bench.now, &arrived, cut);
    assert_eq!(outcome, Outcome::Decide(request.len()));
    let key = bench.key();
    assert!(!bench.intake.has_rest(&key));
    assert!(bench.assigned(1400));
    let sent = std::iter::from_fn(|| bench.intake.poll_action());
    let sent: Vec<_> = (sent.into_iter())
        .filter_map(|action| match action {
            Action::ToBackend { segment, .. } => Some(segment),
            _ => None,
        })
        .collect();
    assert_eq!(sent.len(), 1);
    assert_eq!(sent[0].payload, request);
    assert!(sent[0].header.flags.has(Flags::FIN));
    assert!(!bench.intake.holds(&key));
}

/// After a half-pipe the backend must say that it has all, though the client has not been told
/// of a byte. Where its connection is over by then, it says what it is asked about.
#[test]
fn who_comes_after_a_half_pipe_is_asked_about_all() {
    let mut bench = Bench::new(bounds());
    let request = b"GET / HTTP/1.1\r\n\r\n";
    assert!(matches!(bench.later(0, request), Outcome::Decide(_)));
    let key = bench.key();
    let released = Released {
        end: bench.isns.server + 1000,
        clock: 0,
        heard: bench.isns.server + 1,
        window: 500,
        half_piped: true,
    };
    bench.intake.released(&key, &released);
    bench.actions();
    assert!(bench.assigned(1400));
    let probe = format!("probe {}", request.len());
    assert!(bench.actions().contains(&probe));
    bench.confirmed(request.len() as u32);
    assert!(!bench.intake.holds(&key));
}

/// Its client has acknowledged all by way of another dispatcher: the next owner's socket would
/// take nothing that acknowledges less than its beginning (RFC 5961 §5.2).
#[test]
fn what_goes_to_the_next_owner_acknowledges_all_of_a_drained_one() {
    let mut bench = Bench::new(bounds());
    let request = [b"GET /".as_slice(), &[b'a'; 40], b" HTTP/1.1\r\n\r\n"].concat();
    assert!(matches!(bench.later(0, &request), Outcome::Decide(_)));
    let end = bench.isns.server + 1000;
    let released = Released {
        end,
        clock: 0,
        heard: bench.isns.server + 1,
        window: 2000,
        half_piped: false,
    };
    bench.intake.released(&bench.key(), &released);
    assert!(bench.assigned(20));
    let sent = std::iter::from_fn(|| bench.intake.poll_action());
    let sent: Vec<_> = (sent.into_iter())
        .filter_map(|action| match action {
            Action::ToBackend { segment, .. } => Some(segment.header),
            _ => None,
        })
        .collect();
    assert!(sent.len() > 2);
    for header in sent {
        // 999 bytes of its window, which is scaled by 7, are used up.
        assert_eq!((header.ack, header.window), (end.raw(), 1992));
    }
}
