//! What agents say of their hosts, and what policies make of it.

use super::*;

const IDLE: Feedback = Feedback {
    accept_queue: 0,
    cpu_permille: 200,
    memory_permille: 300,
};

/// Backends with so many unfinished requests each, and what their agents say.
fn backends(of: &[(u32, Feedback)]) -> Backends {
    Backends::new(
        (0..)
            .zip(of)
            .map(|(id, &(outstanding, feedback))| Candidate {
                outstanding,
                feedback: Some(feedback),
                ..candidate(id, 1)
            }),
    )
}

fn busy(cpu_permille: u16) -> Feedback {
    Feedback {
        cpu_permille,
        ..IDLE
    }
}

/// The policies that go by what agents say.
fn listeners() -> [Box<dyn Policy>; 3] {
    [
        PolicyKind::LeastConnections,
        PolicyKind::TwoChoices,
        PolicyKind::Ewma,
    ]
    .map(|kind| build(&kind.into(), 1))
}

/// Places requests that all stay, and counts them.
fn fill(policy: &mut dyn Policy, mut backends: Backends, requests: u32) -> Vec<u32> {
    let mut loads: Vec<u32> = backends.all().iter().map(|c| c.outstanding).collect();
    for object in 0..requests {
        let request = static_file(object.into());
        let chosen = place(policy, Duration::ZERO, &request, &backends).unwrap();
        loads[chosen.index()] += 1;
        backends.set_load(chosen, loads[chosen.index()], 0);
    }
    loads
}

#[test]
fn a_busy_host_gets_less_and_half_at_least() {
    for mut policy in listeners() {
        let loads = fill(
            &mut *policy,
            backends(&[(0, IDLE), (0, busy(1000)), (0, IDLE)]),
            300,
        );
        let kind = policy.kind().name();
        // Three quarters more: 4 shares beside 7 and 7, and chance with two choices.
        assert!((45..80).contains(&loads[1]), "{kind}: {loads:?}");
        assert!(loads[0] > 100 && loads[2] > 100, "{kind}: {loads:?}");
    }
}

#[test]
fn what_all_hosts_say_alike_changes_nothing() {
    let mut policy = build(&PolicyKind::LeastConnections.into(), 0);
    for feedback in [IDLE, busy(1000)] {
        let loads = fill(&mut *policy, backends(&[(0, feedback); 3]), 300);
        assert_eq!(loads, [100; 3]);
    }
    // A small difference is chance.
    let nearly = backends(&[(0, busy(300)), (0, busy(500)), (0, busy(400))]);
    assert_eq!(fill(&mut *policy, nearly, 300), [100; 3]);
}

#[test]
fn what_waits_in_the_accept_queue_counts_once() {
    let waiting = |accept_queue| Feedback {
        accept_queue,
        ..IDLE
    };
    for mut policy in listeners() {
        // Another dispatcher's forty wait at 1; ours at 2 are in its queue too.
        let of = [(5, IDLE), (5, waiting(40)), (20, waiting(20))];
        for object in 0..20 {
            let request = static_file(object);
            let chosen = place(&mut *policy, Duration::ZERO, &request, &backends(&of));
            assert_ne!(chosen, Some(BackendId(1)), "{}", policy.kind().name());
        }
    }
    let mut policy = build(&PolicyKind::LeastConnections.into(), 0);
    let of = [(30, IDLE), (5, waiting(40)), (20, waiting(20))];
    let chosen = place(
        &mut *policy,
        Duration::ZERO,
        &static_file(0),
        &backends(&of),
    );
    assert_eq!(chosen, Some(BackendId(2)));
}

#[test]
fn a_host_without_memory_is_a_busy_one() {
    let full = Feedback {
        memory_permille: 990,
        ..IDLE
    };
    let mut policy = build(&PolicyKind::LeastConnections.into(), 0);
    let loads = fill(&mut *policy, backends(&[(0, IDLE), (0, full)]), 300);
    assert!((95..105).contains(&loads[1]), "{loads:?}");
}

#[test]
fn without_feedback_it_is_the_count_of_requests() {
    let mut policy = build(&PolicyKind::LeastConnections.into(), 0);
    let loads = fill(&mut *policy, with_weights(&[1, 1, 2]), 400);
    assert_eq!(loads, [100, 100, 200]);
}
