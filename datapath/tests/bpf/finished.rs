//! What the data path tells of a flow's first request once it is finished.

use std::time::Duration;

use trapeze_datapath::abi::{Finished, Flow};
use trapeze_datapath::clock;

use crate::bench::*;
use crate::packet::*;

const NEXT: u32 = CLIENT_ISN.wrapping_add(1);
const AFTER: u32 = NEXT.wrapping_add(REQUEST.len() as u32);
const LENGTH: u32 = 5000;
const CHARGE: u32 = 3000;

/// Placed a while ago, and its request is on its way.
fn placed(ago: Duration) -> Flow {
    Flow {
        object: 0x1234_5678_9abc,
        charge_us: CHARGE,
        shared: 4,
        kind: 77,
        class: 2,
        report: 1,
        pool: 6,
        asked_ns: (clock::monotonic() - ago).as_nanos() as u64,
        last_seq: AFTER,
        ..established()
    }
}

fn packet(flags: u8, seq: u32, acked: u32, payload: &[u8]) -> Vec<u8> {
    segment(flags, seq, SERVER_ISN + 1 + acked, payload).frame()
}

#[test]
fn the_end_of_the_first_request_is_told_once() {
    let ago = Duration::from_millis(40);
    let acked = packet(ACK, AFTER, LENGTH, b"");
    let part = packet(ACK, AFTER, LENGTH / 2, b"");
    type Frames = Vec<Vec<u8>>;
    let table: [(&str, Frames, Option<u8>); 8] = [
        ("nothing yet", vec![part.clone(), acked.clone()], None),
        (
            "the next request",
            vec![
                part,
                acked.clone(),
                packet(ACK | PSH, AFTER, LENGTH, REQUEST),
            ],
            Some(0),
        ),
        (
            "more of the first request",
            vec![packet(ACK | PSH, AFTER, 0, REQUEST)],
            None,
        ),
        (
            "FIN",
            vec![acked.clone(), packet(ACK | FIN, AFTER, LENGTH, b"")],
            Some(0),
        ),
        (
            "FIN before the answer",
            vec![packet(ACK | FIN, AFTER, 0, b"")],
            None,
        ),
        (
            "FIN before the answer, and RST when it comes",
            vec![
                packet(ACK | FIN, AFTER, 0, b""),
                packet(RST, AFTER + 1, 0, b""),
            ],
            Some(1),
        ),
        ("RST", vec![acked, packet(RST, AFTER, LENGTH, b"")], Some(0)),
        (
            "RST before the answer",
            vec![packet(RST, AFTER, 0, b"")],
            Some(1),
        ),
    ];
    for bench in Bench::both() {
        for (what, frames, expected) in &table {
            bench.reset();
            bench.put_flow(&placed(ago));
            for frame in frames {
                bench.run(frame);
                bench.run(frame);
            }
            let told = bench.finished.take().unwrap();
            let cost = bench.state().load.cost_us;
            let Some(lost) = *expected else {
                assert_eq!(told, [], "{what}");
                assert_eq!(cost, 7000, "{what}");
                continue;
            };
            assert_eq!(told.len(), 1, "{what}: {told:?}");
            let told = told[0];
            let expected = Finished {
                object: 0x1234_5678_9abc,
                bytes: if lost == 1 { 0 } else { LENGTH.into() },
                elapsed_ns: told.elapsed_ns,
                ended_ns: if lost == 1 { 0 } else { told.ended_ns },
                charge_us: CHARGE,
                shared: 4,
                pool: 6,
                slot: SLOT,
                kind: 77,
                class: 2,
                lost,
                stood: 0,
            };
            assert_eq!(told, expected, "{what}");
            let now_ns = clock::monotonic().as_nanos() as u64;
            assert!(lost == 1 || told.ended_ns > 0 && told.ended_ns <= now_ns);
            let elapsed = Duration::from_nanos(told.elapsed_ns);
            assert!(
                lost == 1 || elapsed >= ago && elapsed < ago * 50,
                "{what}: {elapsed:?}"
            );
            assert_eq!(cost, 7000 - i64::from(CHARGE), "{what}");
            let flow = bench.flow();
            assert_eq!((flow.charge_us, flow.report), (0, 0), "{what}");
        }
    }
}

#[test]
fn who_does_not_want_to_know_is_not_told() {
    let bench = Bench::new(Hook::Tc);
    bench.reset();
    bench.put_flow(&Flow {
        report: 0,
        ..placed(Duration::from_millis(1))
    });
    bench.run(&packet(ACK, AFTER, LENGTH, b""));
    bench.run(&packet(ACK | FIN, AFTER, LENGTH, b""));
    assert_eq!(bench.finished.take().unwrap(), []);
    assert_eq!(bench.state().load.cost_us, 7000 - i64::from(CHARGE));
}
