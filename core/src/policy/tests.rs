//! What holds of every policy. What each one promises is tested in a file of its
//! own below `tests/`.

mod clock;
mod even;
mod feedback;
mod hrw;
mod locality;
mod promises;
mod requests;
mod settled;
mod slow_start;
mod spread;
mod sticky;

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

#[test]
fn a_policy_is_of_the_kind_it_was_built_as() {
    for kind in PolicyKind::ALL {
        assert_eq!(build(&kind.into(), 0).kind(), kind);
    }
}

/// Every policy with its defaults, but tables that are quickly filled.
fn configs() -> impl Iterator<Item = PolicyConfig> {
    PolicyKind::ALL.into_iter().map(|kind| match kind {
        PolicyKind::Maglev => PolicyConfig::Maglev(MaglevParameters { m: 251 }),
        kind => kind.into(),
    })
}

/// What happens to a policy in its life.
#[derive(Clone, Debug)]
struct Step {
    /// Who is there: weight, whether draining, load.
    present: HashMap<u16, (u16, bool, u32)>,
    object: u64,
    class: usize,
    bound: Option<Bound>,
    /// What became of the request before.
    outcome: Option<bool>,
    pause_ms: u64,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let backend = (0u16..=256, prop::bool::weighted(0.1), 0u32..200);
    let bound = prop::option::weighted(
        0.2,
        prop_oneof![
            (0u16..8).prop_map(|id| Bound::To(BackendId(id))),
            any::<u64>().prop_map(Bound::Key)
        ],
    );
    let step = (
        prop::collection::hash_map(0u16..8, backend, 0..8),
        0u64..20,
        0..Class::ALL.len(),
        bound,
        any::<Option<bool>>(),
        0u64..30_000,
    );
    let step = step.prop_map(|(present, object, class, bound, outcome, pause_ms)| Step {
        present,
        object: object.wrapping_mul(0x9e37_79b9_7f4a_7c15),
        class,
        bound,
        outcome,
        pause_ms,
    });
    prop::collection::vec(step, 1..60)
}

impl Step {
    fn backends(&self) -> Backends {
        let mut ids: Vec<_> = self.present.iter().collect();
        ids.sort();
        Backends::new(
            ids.into_iter()
                .map(|(&id, &(weight, draining, load))| Candidate {
                    draining,
                    outstanding: load,
                    cost_us: u64::from(load) * 700,
                    ..Candidate::new(BackendId(id), NAMES[usize::from(id)], weight)
                }),
        )
    }

    fn request(&self) -> Request {
        Request {
            bound: self.bound,
            cost_us: 500,
            ..Request::new(self.object, Class::ALL[self.class])
        }
    }
}

/// Runs a life; what each step chose.
fn live(policy: &mut dyn Policy, steps: &[Step]) -> Vec<Option<BackendId>> {
    let mut now = Duration::ZERO;
    let mut before: Option<(Request, BackendId)> = None;
    (steps.iter())
        .map(|step| {
            now += Duration::from_millis(step.pause_ms);
            if let Some((request, backend)) = before.take() {
                match step.outcome {
                    Some(true) => policy.finished(now, &finished(request, backend)),
                    Some(false) => policy.lost(now, &request, backend),
                    None => {}
                }
            }
            let request = step.request();
            let chosen = place(policy, now, &request, &step.backends());
            before = chosen.map(|chosen| (request, chosen));
            chosen
        })
        .collect()
}

proptest! {
    /// Backends that come, go and change between calls, as they like.
    #[test]
    fn every_policy_names_a_live_backend_with_weight_while_there_is_one(steps in steps()) {
        for config in configs() {
            let mut policy = build(&config, 1);
            for (step, chosen) in steps.iter().zip(live(&mut *policy, &steps)) {
                let backends = step.backends();
                let stuck = bound(&step.request(), &backends);
                match chosen {
                    Some(id) if stuck.is_some() => prop_assert_eq!(Some(id), stuck),
                    Some(id) => prop_assert!(backends.get_open(id).is_some(), "{:?}", config),
                    None => prop_assert!(backends.open().is_empty(), "{:?}", config),
                }
            }
        }
    }

    #[test]
    fn equal_lives_lead_to_equal_choices(steps in steps()) {
        for config in configs() {
            let (mut one, mut other) = (build(&config, 7), build(&config, 7));
            prop_assert_eq!(live(&mut *one, &steps), live(&mut *other, &steps));
        }
    }

    /// Asking leaves no trace.
    #[test]
    fn a_preview_says_what_will_be_chosen_and_changes_nothing(steps in steps()) {
        for config in configs() {
            let (mut asked, mut other) = (build(&config, 7), build(&config, 7));
            let mut now = Duration::ZERO;
            for (i, step) in steps.iter().enumerate() {
                now += Duration::from_millis(step.pause_ms);
                let backends = step.backends();
                for aside in 0..(i % 4) as u64 {
                    preview(&mut *asked, now, &Request::new(aside, Class::Static), &backends);
                }
                let first = preview(&mut *asked, now, &step.request(), &backends);
                let placed = place(&mut *asked, now, &step.request(), &backends);
                prop_assert_eq!(first, placed, "{:?}", config);
                prop_assert_eq!(place(&mut *other, now, &step.request(), &backends), placed);
            }
        }
    }
}

const NAMES: [&str; 20] = [
    "a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o", "p", "q", "r", "s",
    "t",
];

fn candidate(id: u16, weight: u16) -> Candidate {
    Candidate::new(BackendId(id), NAMES[usize::from(id)], weight)
}

fn with_weights(weights: &[u16]) -> Backends {
    Backends::new(
        (0..)
            .zip(weights)
            .map(|(id, &weight)| candidate(id, weight)),
    )
}

fn finished(request: Request, backend: BackendId) -> Finished {
    Finished {
        request,
        backend,
        bytes: 10_000,
        elapsed: Duration::from_millis(3),
        shared: 2.0,
        hit: None,
    }
}

fn static_file(object: u64) -> Request {
    Request::new(object, Class::Static)
}

/// How many of so many requests for one object each backend gets; loads stay as
/// they are.
fn counts(policy: &mut dyn Policy, backends: &Backends, rounds: usize) -> Vec<usize> {
    let mut counts = vec![0; NAMES.len()];
    for _ in 0..rounds {
        if let Some(chosen) = place(policy, Duration::ZERO, &static_file(0), backends) {
            counts[chosen.index()] += 1;
        }
    }
    counts
}
