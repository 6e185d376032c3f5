//! A direction's promises, in virtual time.

use super::*;

const MILLISECOND: Duration = Duration::from_millis(1);

/// Sends `count` frames of `length` bytes, one each `gap`, and returns when
/// which arrived.
fn run(
    settings: LinkSettings,
    count: u32,
    gap: Duration,
    length: usize,
) -> (Vec<(Duration, u32)>, Counters) {
    let mut shaper = Shaper::new(settings, "test");
    let mut arrivals = Vec::new();
    let mut take = |shaper: &mut Shaper, now| {
        while let Some(due) = shaper.next_due().filter(|&due| due <= now) {
            let frame = shaper.take_due(due).expect("it is due");
            let number = u32::from_be_bytes(frame[..4].try_into().expect("4 bytes"));
            arrivals.push((due, number));
        }
    };
    for number in 0..count {
        let now = gap * number;
        take(&mut shaper, now);
        let mut frame = vec![0; length];
        frame[..4].copy_from_slice(&number.to_be_bytes());
        shaper.accept(now, &frame);
    }
    take(&mut shaper, Duration::from_secs(3600));
    (arrivals, shaper.counters)
}

fn numbers(arrivals: &[(Duration, u32)]) -> Vec<u32> {
    arrivals.iter().map(|&(_, number)| number).collect()
}

#[test]
fn a_clear_link_passes_everything_at_once_in_order() {
    let (arrivals, counters) = run(LinkSettings::default(), 1000, MILLISECOND, 100);
    let expected: Vec<_> = (0..1000).map(|n| (MILLISECOND * n, n)).collect();
    assert_eq!(arrivals, expected);
    assert_eq!((counters.received, counters.sent), (1000, 1000));
}

#[test]
fn delay_moves_every_frame_by_the_same_time() {
    let settings = LinkSettings {
        delay: 40 * MILLISECOND,
        ..LinkSettings::default()
    };
    let (arrivals, _) = run(settings, 100, MILLISECOND, 100);
    for (arrival, number) in arrivals {
        assert_eq!(arrival, MILLISECOND * number + 40 * MILLISECOND);
    }
}

#[test]
fn jitter_varies_the_delay_and_keeps_the_order() {
    let settings = LinkSettings {
        delay: 10 * MILLISECOND,
        jitter: 5 * MILLISECOND,
        ..LinkSettings::default()
    };
    let (arrivals, _) = run(settings, 1000, 20 * MILLISECOND, 100);
    assert_eq!(numbers(&arrivals), (0..1000).collect::<Vec<_>>());
    let delays: Vec<_> = arrivals
        .iter()
        .map(|&(arrival, number)| arrival - 20 * MILLISECOND * number)
        .collect();
    assert!(delays.iter().min() < Some(&(6 * MILLISECOND)));
    assert!(delays.iter().max() > Some(&(14 * MILLISECOND)));
    assert!(delays.iter().max() <= Some(&(15 * MILLISECOND)));
    let closer = LinkSettings {
        delay: 10 * MILLISECOND,
        jitter: 5 * MILLISECOND,
        ..LinkSettings::default()
    };
    let (arrivals, _) = run(closer, 1000, MILLISECOND, 100);
    assert_eq!(numbers(&arrivals), (0..1000).collect::<Vec<_>>());
}

#[test]
fn loss_takes_its_share_and_the_same_frames_for_the_same_seed() {
    let settings = LinkSettings {
        loss: 0.1,
        ..LinkSettings::default()
    };
    let (first, counters) = run(settings.clone(), 10_000, MILLISECOND, 100);
    assert!((900..1100).contains(&counters.lost), "{counters:?}");
    assert_eq!(counters.sent + counters.lost, 10_000);
    let with_delay = LinkSettings {
        delay: MILLISECOND,
        ..settings.clone()
    };
    let (second, _) = run(with_delay, 10_000, MILLISECOND, 100);
    assert_eq!(numbers(&first), numbers(&second));
    let other_seed = LinkSettings {
        seed: 2,
        ..settings
    };
    let (third, _) = run(other_seed, 10_000, MILLISECOND, 100);
    assert_ne!(numbers(&first), numbers(&third));
}

#[test]
fn full_loss_loses_all() {
    let settings = LinkSettings {
        loss: 1.0,
        ..LinkSettings::default()
    };
    assert!(run(settings, 100, MILLISECOND, 100).0.is_empty());
}

#[test]
fn duplicates_follow_their_originals() {
    let settings = LinkSettings {
        duplicate: 0.1,
        ..LinkSettings::default()
    };
    let (arrivals, counters) = run(settings, 10_000, MILLISECOND, 100);
    assert!((900..1100).contains(&counters.duplicated), "{counters:?}");
    assert_eq!(arrivals.len() as u64, 10_000 + counters.duplicated);
    let numbers = numbers(&arrivals);
    assert!(numbers.is_sorted());
    let doubled = numbers.windows(2).filter(|pair| pair[0] == pair[1]).count();
    assert_eq!(doubled as u64, counters.duplicated);
}

#[test]
fn reordered_frames_are_overtaken_and_none_is_lost() {
    let settings = LinkSettings {
        reorder: 0.05,
        ..LinkSettings::default()
    };
    let (arrivals, counters) = run(settings, 10_000, MILLISECOND / 10, 100);
    assert!((400..600).contains(&counters.reordered), "{counters:?}");
    let mut numbers = numbers(&arrivals);
    let overtaken = numbers.windows(2).filter(|pair| pair[0] > pair[1]).count();
    assert!(overtaken > 300, "{overtaken}");
    numbers.sort_unstable();
    assert_eq!(numbers, (0..10_000).collect::<Vec<_>>());
}

#[test]
fn rate_spaces_frames_by_the_time_they_take() {
    let settings = LinkSettings {
        rate: Some(8_000_000),
        ..LinkSettings::default()
    };
    // 1,000 bytes take 1 ms; all 500 come at once.
    let (arrivals, counters) = run(settings, 500, Duration::ZERO, 1_000);
    let expected: Vec<_> = (0..500).map(|n| (MILLISECOND * (n + 1), n)).collect();
    assert_eq!(arrivals, expected);
    assert_eq!(counters.overflowed, 0);
}

#[test]
fn what_exceeds_the_limit_is_dropped_at_the_tail() {
    let settings = LinkSettings {
        rate: Some(8_000_000),
        limit: 10,
        ..LinkSettings::default()
    };
    let (arrivals, counters) = run(settings, 100, Duration::ZERO, 1_000);
    // One is being sent and ten wait.
    assert_eq!(numbers(&arrivals), (0..11).collect::<Vec<_>>());
    assert_eq!(counters.overflowed, 89);
}

#[test]
fn frames_on_the_way_are_not_overtaken_when_the_delay_shrinks() {
    let slow = LinkSettings {
        delay: 100 * MILLISECOND,
        ..LinkSettings::default()
    };
    let mut shaper = Shaper::new(slow, "test");
    shaper.accept(Duration::ZERO, b"first");
    shaper.change(LinkSettings::default(), "test");
    shaper.accept(MILLISECOND, b"second");
    assert_eq!(shaper.take_due(99 * MILLISECOND), None);
    assert_eq!(shaper.take_due(100 * MILLISECOND).unwrap(), b"first");
    assert_eq!(shaper.take_due(100 * MILLISECOND).unwrap(), b"second");
}

#[test]
fn frames_on_the_way_are_bounded_in_bytes() {
    let settings = LinkSettings {
        delay: Duration::from_secs(60),
        ..LinkSettings::default()
    };
    let mut shaper = Shaper::new(settings, "test");
    let frame = vec![0; 1 << 20];
    for _ in 0..300 {
        shaper.accept(Duration::ZERO, &frame);
    }
    assert_eq!(shaper.counters.overflowed, 300 - 256);
}
