//! What acknowledgements say of bytes beyond a gap, and of bytes that came again.
#![expect(clippy::single_range_in_vec_init, reason = "a list of one block")]

use super::*;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::ops::Range;

fn bench(sack: bool, timestamps: bool) -> Bench {
    let mut bench = Bench::new(bounds());
    bench.handshake.sack = sack;
    bench.handshake.timestamps = timestamps;
    bench
}

impl Bench {
    /// The acknowledgements since the last look: their number and their blocks.
    fn acks(&mut self) -> Vec<(u32, Vec<Range<u32>>)> {
        let start = (self.isns.client + 1).raw();
        let place = |seq: u32| seq.wrapping_sub(start);
        std::iter::from_fn(|| self.intake.poll_action())
            .filter_map(|action| match action {
                Action::ToClient(segment) => Some(segment.header),
                _ => None,
            })
            .map(|header| {
                let blocks = header.options.sack.as_slice().iter();
                let blocks = blocks.map(|&(from, to)| place(from)..place(to));
                (place(header.ack), blocks.collect())
            })
            .collect()
    }

    /// Sends `bytes` of an endless head; what is acknowledged at once.
    fn piece(&mut self, bytes: Range<u32>) -> Vec<(u32, Vec<Range<u32>>)> {
        self.data(bytes.start.into(), &vec![b'a'; bytes.len()]);
        self.acks()
    }
}

#[test]
fn each_segment_beyond_a_gap_is_acknowledged_at_once_and_named_first() {
    let mut bench = bench(true, true);
    assert_eq!(bench.piece(0..10), []);
    assert_eq!(bench.piece(20..30), [(10, vec![20..30])]);
    assert_eq!(bench.piece(60..70), [(10, vec![60..70, 20..30])]);
    assert_eq!(bench.piece(40..50), [(10, vec![40..50, 60..70, 20..30])]);
    // Beside timestamps there is room for three; the oldest goes unsaid.
    assert_eq!(bench.piece(80..90), [(10, vec![80..90, 40..50, 60..70])]);
    // A piece that grows is the newest again, and said once.
    assert_eq!(bench.piece(50..60), [(10, vec![40..70, 80..90])]);
    // What fills the first gap, wholly and in part.
    assert_eq!(bench.piece(10..15), [(15, vec![40..70, 80..90])]);
    assert_eq!(bench.piece(15..20), [(30, vec![40..70, 80..90])]);
    assert_eq!(bench.piece(30..40), [(70, vec![80..90])]);
    assert_eq!(bench.piece(70..80), [(90, vec![])]);
}

#[test]
fn without_timestamps_there_is_room_for_four_blocks() {
    let mut bench = bench(true, false);
    for at in [10, 30, 50, 70] {
        bench.piece(at..at + 10);
    }
    let newest_first = vec![90..100, 70..80, 50..60, 30..40];
    assert_eq!(bench.piece(90..100), [(0, newest_first)]);
}

#[test]
fn who_has_not_agreed_hears_of_no_blocks() {
    let mut bench = bench(false, true);
    bench.piece(0..10);
    assert_eq!(bench.piece(20..30), [(10, vec![])]);
    assert_eq!(bench.piece(20..30), [(10, vec![])]);
}

#[test]
fn what_comes_again_is_named_before_all_else_and_once() {
    let mut bench = bench(true, true);
    bench.piece(0..10);
    bench.piece(40..50);
    // Below the number (RFC 2883 §4.1.1).
    assert_eq!(bench.piece(0..10), [(10, vec![0..10, 40..50])]);
    // Beyond a gap: then the piece that has it follows (RFC 2883 §4.1.2).
    assert_eq!(bench.piece(42..48), [(10, vec![42..48, 40..50])]);
    assert_eq!(bench.piece(20..30), [(10, vec![20..30, 40..50])]);
    // No byte came again where a byte was new.
    assert_eq!(bench.piece(5..15), [(15, vec![20..30, 40..50])]);
}

#[test]
fn a_segment_too_many_is_asked_for_again_at_once() {
    let mut bench = bench(true, true);
    for number in 0..32 {
        bench.piece(10 + number * 10..15 + number * 10);
    }
    let acks = bench.piece(900..910);
    assert_eq!(acks.len(), 1);
    assert!(!acks[0].1.contains(&(900..910)), "{acks:?}");
}

/// As when there is no room for a record: what has been named would not be sent again.
#[test]
fn a_flow_that_is_forgotten_at_once_has_named_nothing() {
    let mut bench = bench(true, true);
    bench.data(20, b"second");
    let reading = bench.intake.poll_action();
    assert!(
        matches!(reading, Some(Action::Reading { .. })),
        "{reading:?}"
    );
    bench.client += 1;
    bench.data(20, b"of another");
    bench.client -= 1;
    bench.intake.forget(&bench.key());
    bench.client += 1;
    let left: Vec<FlowKey> = std::iter::from_fn(|| bench.intake.poll_action())
        .map(|action| action.flow())
        .collect();
    assert_eq!(left, [bench.key(), bench.key()]);
}

/// Whatever comes, no block names what has not come, and the newest piece is first.
#[test]
fn blocks_name_only_what_has_come_and_the_newest_first() {
    for seed in 0..300 {
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut bench = bench(true, rng.random());
        let mut came = [false; 400];
        for _ in 0..60 {
            let from = rng.random_range(0..360);
            let to = from + rng.random_range(1..40);
            let bytes = from as usize..to as usize;
            let known = came[bytes.clone()].iter().all(|came| *came);
            let acks = bench.piece(from..to);
            came[bytes].fill(true);
            let in_order = came.iter().take_while(|came| **came).count() as u32;
            for (number, blocks) in &acks {
                assert_eq!(*number, in_order, "seed {seed}");
                let said_again = usize::from(known);
                if known {
                    assert_eq!(blocks[0], from..to, "seed {seed}");
                }
                for block in &blocks[said_again..] {
                    assert!(block.start > in_order, "seed {seed}: {block:?}");
                    let place = block.start as usize..block.end as usize;
                    assert!(came[place].iter().all(|came| *came), "seed {seed}");
                    let whole = !came[block.start as usize - 1] && !came[block.end as usize];
                    assert!(whole, "seed {seed}: {block:?}");
                }
                if to > in_order {
                    let newest = &blocks[said_again];
                    assert!(newest.start <= from.max(in_order) && to <= newest.end);
                }
            }
            if to > in_order {
                assert_eq!(acks.len(), 1, "seed {seed}: at once");
            }
        }
    }
}
