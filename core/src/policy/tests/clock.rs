//! Policies count time from any moment: a simulation's begins at zero, a host's at its
//! boot, weeks ago.

use std::collections::VecDeque;

use super::*;

const BACKENDS: usize = 3;
const OBJECTS: u64 = 300;
/// Files that a backend's memory holds.
const MEMORY: usize = 40;

/// One client at backends that read what they have not read lately: who was chosen.
fn choices(config: &PolicyConfig, start: Duration) -> Vec<BackendId> {
    let mut policy = build(config, 1);
    let backends = with_weights(&[1; BACKENDS]);
    let mut memories = [const { VecDeque::new() }; BACKENDS];
    let mut now = start;
    let mut dice = 1u64;
    let ask = |_| {
        dice =
            (dice.wrapping_mul(6_364_136_223_846_793_005)).wrapping_add(1_442_695_040_888_963_407);
        // The lower of two: some are asked for more often.
        let object = (dice >> 33 & 0xffff).min(dice >> 49) % OBJECTS;
        let request = Request {
            cost_us: 500,
            ..static_file(object)
        };
        let chosen = place(&mut *policy, now, &request, &backends).unwrap();
        let memory: &mut VecDeque<u64> = &mut memories[chosen.index()];
        let found = memory.iter().position(|&known| known == object);
        found.map(|at| memory.remove(at));
        memory.push_front(object);
        memory.truncate(MEMORY);
        let elapsed = Duration::from_micros(if found.is_some() { 300 } else { 30_000 });
        now += elapsed;
        let told = Finished {
            elapsed,
            shared: 1.0,
            ..finished(request, chosen)
        };
        policy.finished(now, &told);
        now += Duration::from_millis(2);
        chosen
    };
    (0..6000).map(ask).collect()
}

#[test]
fn the_clock_may_begin_anywhere() {
    for config in configs() {
        let at_boot = choices(&config, Duration::ZERO);
        let weeks_later = choices(&config, Duration::from_secs(2_000_000));
        let same = at_boot
            .iter()
            .zip(&weeks_later)
            .filter(|(a, b)| a == b)
            .count();
        // Rounding may turn a coin that stands on its edge.
        assert!(
            same >= 5900,
            "{config:?}: {same} of 6000 choices are the same"
        );
    }
}
