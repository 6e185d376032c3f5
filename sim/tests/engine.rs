//! What must be true of every run, whatever the policy and the cluster.

use proptest::prelude::*;
use trapeze_core::config::PolicyKind;
use trapeze_sim::trace::{Reading, Record, Trace};
use trapeze_sim::workload::{
    self, Ask, Content, Kind, Object, Pace, Recorded, RecordedOptions, Source, Then, Workload, Zipf,
};
use trapeze_sim::{
    Change, Condition, Decides, Entrant, Hardware, LoadUntil, Outcome, Replacement, Run, Span,
    Until,
};

fn entrants() -> impl Strategy<Value = Entrant> {
    let decides = [Decides::Requests, Decides::Connections, Decides::Blindly];
    (
        prop::sample::select(PolicyKind::ALL.to_vec()),
        prop::sample::select(decides.to_vec()),
    )
        .prop_map(|(kind, decides)| Entrant::of(kind).deciding(decides))
}

fn clusters() -> impl Strategy<Value = Hardware> {
    let presets = prop::sample::select(Hardware::PRESETS.to_vec());
    let replacements = [Replacement::Lru, Replacement::GreedyDualSize];
    (
        presets,
        1..6usize,
        1..4usize,
        16u32..25,
        prop::sample::select(replacements.to_vec()),
    )
        .prop_map(|(preset, backends, dispatchers, cache, replacement)| {
            let mut hardware = Hardware::preset(preset).expect("it is one of the presets");
            hardware.backend.replacement = replacement;
            hardware.dispatchers = dispatchers;
            hardware.with_backends(backends).with_cache(1 << cache)
        })
}

/// Backends go, drain and come back; in the end all are there.
fn changes() -> impl Strategy<Value = Vec<Change>> {
    let into = prop::sample::select(vec![Condition::Gone, Condition::Draining, Condition::Up]);
    let change = (0u64..400, 0usize..6, into).prop_map(|(ms, backend, into)| Change {
        at_ns: ms * 1_000_000,
        backend,
        into,
    });
    prop::collection::vec(change, 0..6).prop_map(|mut changes| {
        changes.extend((0..6).map(|backend| Change {
            at_ns: 401_000_000,
            backend,
            into: Condition::Up,
        }));
        if changes.len() == 6 {
            changes.clear();
        }
        changes
    })
}

/// One of four dies in the middle: what it had is asked again, nobody is given to it,
/// and it comes back with nothing in memory.
#[test]
fn a_backend_that_dies_loses_what_it_had_and_no_more() {
    let workload = Zipf::new(2_000, 0.9, 64 << 20, 1);
    let run = |changes: Vec<Change>| {
        let mut hardware = Hardware::lard98().with_backends(4);
        hardware.changes = changes;
        Run {
            hardware: &hardware,
            workload: &workload,
            entrant: &Entrant::of(PolicyKind::Hrw),
            span: Span::seconds(40),
            seed: 1,
        }
        .go()
    };
    let change = |at_s: u64, into| Change {
        at_ns: at_s * 1_000_000_000,
        backend: 2,
        into,
    };
    let whole = run(Vec::new());
    let gone = run(vec![change(10, Condition::Gone)]);
    let back = run(vec![change(10, Condition::Gone), change(20, Condition::Up)]);
    let drained = run(vec![change(10, Condition::Draining)]);
    let of_it = |outcome: &Outcome| outcome.requests_by_backend[2];
    // Not more than there are users.
    assert!((1..=219).contains(&gone.lost), "{}", gone.lost);
    assert_eq!((whole.lost, drained.lost), (0, 0));
    assert!(of_it(&gone) < of_it(&back) && of_it(&back) < of_it(&whole));
    assert!(of_it(&drained) < of_it(&back));
    assert!(gone.disk_reads_per_request > 0.0 && gone.requests < whole.requests);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Every request is answered once, by a backend; nothing works more than all
    /// the time; the same seed gives the same outcome.
    #[test]
    fn requests_are_conserved(
        entrant in entrants(),
        hardware in clusters(),
        seed in 0u64..1000,
        requests_per_connection in 1u32..5,
        users in 1usize..40,
        open in any::<bool>(),
        changes in changes(),
    ) {
        let mut hardware = hardware;
        let backends = hardware.backends;
        hardware.changes = changes.into_iter().filter(|c| c.backend < backends).collect();
        let undisturbed = hardware.changes.is_empty();
        let trace = trace(400, seed);
        let options = RecordedOptions {
            pace: if open { Pace::Open } else { Pace::Users(users) },
            requests_per_connection,
            copies: 1 + (seed % 3) as u32,
            ..RecordedOptions::default()
        };
        let workload = Recorded::new("made up", trace, options);
        let span = Span { requests: u64::MAX, warmup: 0, most_ns: u64::MAX, until: Until::LastAnswer };
        let run = Run { hardware: &hardware, workload: &workload, entrant: &entrant, span, seed };
        let outcome = run.go();
        prop_assert_eq!(outcome.requests, workload.requests().unwrap());
        prop_assert_eq!(outcome.requests_by_backend.iter().sum::<u64>(), outcome.requests);
        for busy in [
            outcome.dispatcher_busy,
            outcome.cpu_busy,
            outcome.disk_busy,
            outcome.link_busy,
            outcome.client_link_busy,
        ] {
            prop_assert!(busy.mean >= 0.0 && busy.mean <= busy.most);
            // A nanosecond's rounding for each visit of a sharing station.
            prop_assert!(busy.most <= 1.0 + 1e-4, "busy {}", busy.most);
        }
        prop_assert!(outcome.hit_ratio.is_none_or(|h| (0.0..=1.0).contains(&h)));
        prop_assert!(outcome.balance > 0.0 && outcome.balance <= 1.0 + 1e-9);
        prop_assert!(outcome.handoffs_per_request <= 1.0);
        prop_assert!(outcome.lost == 0 || !undisturbed);
        if requests_per_connection == 1 || open || entrant.decides != Decides::Requests {
            prop_assert_eq!(outcome.handoffs_per_request, 0.0);
        }
        prop_assert_eq!(run.go(), outcome);
    }
}

/// Neither hears of the other. What one has had read, the other finds at home.
#[test]
fn two_dispatchers_with_rent_meet_at_objects_homes() {
    let workload = Zipf::like_ibm(1);
    let hardware = Hardware {
        dispatchers: 2,
        ..Hardware::lard98()
    };
    let [rent, hrw, lard_r] = [PolicyKind::Rent, PolicyKind::Hrw, PolicyKind::LardR].map(|kind| {
        let entrant = &Entrant::of(kind);
        let span = Span::requests(200_000);
        let run = Run {
            hardware: &hardware,
            workload: &workload,
            entrant,
            span,
            seed: 1,
        };
        run.go().requests_per_second
    });
    assert!(rent > 0.85 * hrw, "{rent} {hrw}");
    assert!(rent > 1.1 * lard_r, "{rent} {lard_r}");
}

/// Eight users; the first that has nothing to ask ends it, if enough has been counted.
#[test]
fn what_is_asked_when_users_have_gone_does_not_count() {
    let hardware = Hardware::lard98().with_backends(2);
    let counted = |users, until| {
        let options = RecordedOptions {
            pace: Pace::Users(users),
            ..RecordedOptions::default()
        };
        let workload = Recorded::new("made up", trace(400, 1), options);
        let span = Span {
            until,
            warmup: 0,
            ..Span::requests(400)
        };
        let entrant = &Entrant::of(PolicyKind::Hrw);
        Run {
            hardware: &hardware,
            workload: &workload,
            entrant,
            span,
            seed: 1,
        }
        .go()
        .requests
    };
    assert_eq!(counted(8, Until::UserWithoutRequest), 393);
    assert_eq!(counted(8, Until::LastAnswer), 400);
    assert_eq!(counted(200, Until::UserWithoutRequest), 400);
}

/// So many requests for forty files and two programs, a millisecond apart.
fn trace(requests: u64, seed: u64) -> Trace {
    let objects = (0..42u64)
        .map(|n| Object {
            path: format!("/{n}").into_bytes().into(),
            query: None,
            bytes: 1 + (n * n * 7919 + seed) % 200_000,
            kind: match n {
                40.. => Kind::Dynamic { work_ns: 3_000_000 },
                _ => Kind::Static,
            },
        })
        .collect();
    let records = (0..requests)
        .map(|i| Record {
            at_ns: i * 1_000_000,
            object: (i
                .wrapping_mul(i)
                .wrapping_mul(2_654_435_761)
                .wrapping_add(seed)
                >> 7) as u32
                % 42,
            bytes: 1 + i * 37 % 5000,
            content: if i % 9 == 0 {
                Content::Spared
            } else {
                Content::Needed
            },
        })
        .collect();
    Trace {
        objects,
        records,
        reading: Reading::default(),
    }
}

/// A cluster of one processor that takes a millisecond for each request, and nothing
/// else: arrivals at random times make it M/D/1.
#[test]
fn a_cluster_of_one_is_m_d_1() {
    for load in [0.3, 0.6, 0.8] {
        let outcome = servers(1, load, Work::Equal, PolicyKind::RoundRobin);
        let theory = 1.0 + load / (2.0 * (1.0 - load));
        let off = outcome.latency_mean_ms / theory - 1.0;
        assert!(
            off.abs() < 0.04,
            "load {load}: {} ms, not {theory}",
            outcome.latency_mean_ms
        );
        assert!((outcome.cpu_busy.mean - load).abs() < 0.02);
    }
}

/// A front end that sees no answers takes a user for a load who has long had his.
#[test]
fn who_has_his_answer_is_load_until_his_next_request_is_seen() {
    let objects = [Object {
        path: b"/".to_vec().into(),
        query: None,
        bytes: 0,
        kind: Kind::Dynamic { work_ns: 1_000_000 },
    }];
    let workload = OneRests(objects);
    let share_of_the_first = |load_until| {
        let mut hardware = Hardware::lard98().with_backends(2);
        hardware.dispatcher.load_until = load_until;
        let outcome = Run {
            hardware: &hardware,
            workload: &workload,
            entrant: &Entrant::of(PolicyKind::LeastConnections),
            span: Span {
                requests: 1_000,
                warmup: 0,
                most_ns: u64::MAX,
                until: Until::LastAnswer,
            },
            seed: 1,
        }
        .go();
        let most = outcome.requests_by_backend.iter().max().copied();
        most.unwrap_or(0) as f64 / outcome.requests as f64
    };
    // Both are idle, and take turns; or the one that the other user has left is avoided.
    assert!(share_of_the_first(LoadUntil::Answer) < 0.52);
    assert!(share_of_the_first(LoadUntil::NextRequest) > 0.98);
}

/// Two users of one program: after the first answer one rests for a day.
#[derive(Debug)]
struct OneRests([Object; 1]);

impl Workload for OneRests {
    fn name(&self) -> &str {
        "one rests"
    }

    fn objects(&self) -> &[Object] {
        &self.0
    }

    fn pace(&self) -> Pace {
        Pace::Users(2)
    }

    fn start(&self, _seed: u64, users: usize) -> Box<dyn Source + '_> {
        Box::new(Asked(vec![0; users]))
    }
}

/// How often each user has asked.
struct Asked(Vec<u64>);

impl Source for Asked {
    fn next(&mut self, user: u32) -> Option<Ask> {
        let asked = &mut self.0[user as usize];
        *asked += 1;
        Some(Ask {
            object: 0,
            bytes: 0,
            wait_ns: u64::from(user == 0 && *asked > 1) * 86_400_000_000_000,
            content: Content::Spared,
            then: Then::Keep,
        })
    }
}

/// Least connections is no worse than two choices, which are far better than turns
/// (Mitzenmacher 2001). With turns each of ten queues has arrivals of its own, nearly
/// evenly spaced, and so less wait than M/M/1's nine milliseconds.
#[test]
fn choosing_by_load_shortens_queues() {
    let wait = |kind| servers(10, 0.9, Work::Exponential, kind).latency_mean_ms - 1.0;
    let turns = wait(PolicyKind::RoundRobin);
    let two = wait(PolicyKind::TwoChoices);
    let least = wait(PolicyKind::LeastConnections);
    assert!(
        least < two && two < turns && turns < 9.0,
        "{least} {two} {turns}"
    );
}

/// How long requests work: a millisecond on average.
#[derive(Clone, Copy, PartialEq)]
enum Work {
    Equal,
    Exponential,
}

/// A cluster where only that work takes time, at that load.
fn servers(backends: usize, load: f64, work: Work, kind: PolicyKind) -> Outcome {
    let mut hardware = Hardware::lard98().with_backends(backends);
    hardware.backend.connect_ns = 0;
    hardware.backend.rebuild_ns = 0;
    hardware.backend.close_ns = 0;
    hardware.backend.send_512_ns = 0;
    const OBJECTS: u32 = 500;
    let objects = (0..OBJECTS)
        .map(|n| {
            let quantile = (f64::from(n) + 0.5) / f64::from(OBJECTS);
            let ms = match work {
                Work::Equal => 1.0,
                Work::Exponential => -quantile.ln(),
            };
            Object {
                path: format!("/{n}").into_bytes().into(),
                query: None,
                bytes: 0,
                kind: Kind::Dynamic {
                    work_ns: (ms * 1e6) as u64,
                },
            }
        })
        .collect();
    // Exponential gaps from a generator that anybody can check (Knuth's MMIX).
    let mut state = 1u64;
    let mut at_ns = 0.0;
    let records = (0..400_000)
        .map(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let unit = ((state >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
            at_ns += -unit.ln() * 1e6 / (load * backends as f64);
            Record {
                at_ns: at_ns as u64,
                object: (state >> 33) as u32 % OBJECTS,
                bytes: 0,
                content: Content::Spared,
            }
        })
        .collect();
    let trace = Trace {
        objects,
        records,
        reading: Reading::default(),
    };
    let options = RecordedOptions {
        pace: Pace::Open,
        ..RecordedOptions::default()
    };
    let workload = Recorded::new("poisson", trace, options);
    Run {
        hardware: &hardware,
        workload: &workload,
        entrant: &Entrant::of(kind),
        span: Span::requests(400_000),
        seed: 1,
    }
    .go()
}

#[test]
fn every_named_workload_runs() {
    for (name, _) in workload::NAMES {
        let workload = workload::named(name, 1).expect("it has this name");
        let outcome = Run {
            hardware: &Hardware::lvscad07(),
            workload: workload.as_ref(),
            entrant: &Entrant::of(PolicyKind::LardR),
            span: Span::requests(2_000),
            seed: 1,
        }
        .go();
        assert_eq!(
            (outcome.requests, outcome.workload.is_empty()),
            (1_600, false),
            "{name}"
        );
    }
    assert!(workload::named("no such", 1).is_none());
}

/// Only what the hardware costs: a hit takes the sum of its parts.
#[test]
fn one_user_sees_the_sum_of_costs() {
    let hardware = Hardware::lard98().with_backends(1).with_cache(1 << 30);
    let workload = Zipf::new(1, 1.0, 8192, 1).paced(Pace::Users(1));
    let outcome = Run {
        hardware: &hardware,
        workload: &workload,
        entrant: &Entrant::of(PolicyKind::RoundRobin),
        span: Span {
            requests: 101,
            warmup: 1,
            most_ns: u64::MAX,
            until: Until::LastAnswer,
        },
        seed: 1,
    }
    .go();
    // 145 us, 16 times 40 us, 145 us [LARD98 §3.1].
    assert!(
        (outcome.latency_mean_ms - 0.93).abs() < 1e-6,
        "{}",
        outcome.latency_mean_ms
    );
    assert_eq!(outcome.hit_ratio, Some(1.0));
}
