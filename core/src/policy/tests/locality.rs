//! LARD and its descendants, cache prediction and LACP, step by step.

use super::*;

const NOW: Duration = Duration::from_secs(100);

/// Backends with these unfinished requests, each of 1000 µs.
fn loads(loads: &[u32]) -> Backends {
    Backends::new((0..).zip(loads).map(|(id, &load)| Candidate {
        outstanding: load,
        cost_us: u64::from(load) * 1000,
        ..candidate(id, 1)
    }))
}

fn file(object: u64) -> Request {
    Request {
        cost_us: 1000,
        ..static_file(object)
    }
}

/// Where requests for one object go, one after the other: time in seconds, loads, who
/// gets it.
fn steps(config: PolicyConfig, steps: &[(u64, &[u32], u16)]) {
    let mut policy = build(&config, 0);
    for &(seconds, load, expected) in steps {
        let now = Duration::from_secs(seconds);
        let chosen = place(&mut *policy, now, &file(7), &loads(load)).unwrap();
        assert_eq!(chosen.0, expected, "{} at {seconds} s", config.name());
    }
}

#[test]
fn lard_moves_an_object_only_from_the_overloaded() {
    let config = || PolicyConfig::from(PolicyKind::Lard);
    steps(
        config(),
        &[
            (0, &[3, 1, 2], 1),
            (1, &[0, 65, 0], 1),
            (2, &[30, 66, 25], 1),
        ],
    );
    // Above T_high, and somebody below T_low.
    steps(
        config(),
        &[
            (0, &[3, 1, 2], 1),
            (1, &[30, 66, 24], 2),
            (2, &[0, 0, 24], 2),
        ],
    );
    // Twice T_high.
    steps(
        config(),
        &[
            (0, &[3, 1, 2], 1),
            (1, &[90, 129, 80], 1),
            (1, &[90, 130, 80], 2),
        ],
    );
}

#[test]
fn thresholds_are_in_proportion_to_weights() {
    let backends = |load| {
        Backends::new([
            candidate(0, 1),
            Candidate {
                outstanding: load,
                ..candidate(1, 3)
            },
        ])
    };
    let mut policy = build(&PolicyKind::Lard.into(), 0);
    policy.placed(NOW, &file(7), &backends(0), BackendId(1));
    // Of mean weight 2: 65 for 2 are 97.5 for 3.
    let chosen = |load| build_with(7, 1).choose(NOW, &file(7), &backends(load));
    assert_eq!(chosen(97), Some(BackendId(1)));
    assert_eq!(chosen(98), Some(BackendId(0)));
}

/// LARD that knows where one object is.
fn build_with(object: u64, id: u16) -> Box<dyn Policy> {
    let mut policy = build(&PolicyKind::Lard.into(), 0);
    policy.placed(NOW, &file(object), &loads(&[0, 0]), BackendId(id));
    policy
}

#[test]
fn lard_admits_what_keeps_all_but_one_at_t_high() {
    let policy = build(&PolicyKind::Lard.into(), 0);
    assert_eq!(policy.admits(&loads(&[0; 8])), Some(7 * 65 + 25 - 1));
    assert_eq!(policy.admits(&loads(&[])), None);
    assert_eq!(build(&PolicyKind::Hrw.into(), 0).admits(&loads(&[0])), None);
}

#[test]
fn lard_r_adds_a_backend_under_load_and_drops_the_busiest_after_k() {
    let config = PolicyConfig::from(PolicyKind::LardR);
    steps(
        config,
        &[
            (0, &[3, 1, 2], 1),
            (1, &[30, 66, 24], 2),
            // Both serve it now; the third does not, idle as it is.
            (2, &[0, 40, 41], 1),
            (3, &[0, 41, 40], 2),
            // 20 s after the last change the busier one leaves the set: it is 1.
            (22, &[0, 41, 40], 2),
            (23, &[0, 0, 60], 2),
        ],
    );
}

#[test]
fn a_set_of_more_than_eight_is_everyone() {
    let mut policy = build(&PolicyKind::LardR.into(), 0);
    let names: Vec<String> = (0..20).map(|i| format!("n{i}")).collect();
    let with = |busy: &[usize]| {
        Backends::new((0..).zip(&names).map(|(id, name)| Candidate {
            outstanding: if busy.contains(&usize::from(id)) {
                140
            } else {
                1
            },
            ..Candidate::new(BackendId(id), name, 1)
        }))
    };
    let mut busy = Vec::new();
    for _ in 0..9 {
        let chosen = place(&mut *policy, NOW, &file(7), &with(&busy)).unwrap();
        assert!(!busy.contains(&chosen.index()));
        busy.push(chosen.index());
    }
    // Whoever is least loaded now, in the set of nine or not.
    let rest: Vec<usize> = (0..20).filter(|i| *i != 13).collect();
    let chosen = place(&mut *policy, NOW, &file(7), &with(&rest));
    assert_eq!(chosen, Some(BackendId(13)));
    // After K it is eight again.
    let later = NOW + Duration::from_secs(21);
    place(&mut *policy, later, &file(7), &with(&[]));
    let last = preview(
        &mut *policy,
        later,
        &file(7),
        &with(&(0..12).collect::<Vec<_>>()),
    );
    assert!(last.is_some());
}

#[test]
fn xlard_r_weighs_waiting_against_handoff_and_disk() {
    // As in the paper's own cluster.
    let config = PolicyConfig::XlardR(XlardRParameters {
        t_high: 1,
        ..Default::default()
    });
    let mut policy = build(&config, 0);
    let place_at = |policy: &mut dyn Policy, request: &Request, load: &[u32]| {
        place(policy, NOW, request, &loads(load)).unwrap().0
    };
    assert_eq!(place_at(&mut *policy, &file(7), &[3, 1, 2]), 1);
    // 0 is idle; its disk costs ten requests, and twenty packets of 114 µs two more.
    let on_one = Request {
        current: Some(BackendId(1)),
        ..file(7)
    };
    assert_eq!(place_at(&mut *policy, &on_one, &[0, 12, 64]), 1);
    assert_eq!(place_at(&mut *policy, &on_one, &[0, 13, 64]), 0);
    // Nobody is idle: it stays, at any price.
    let mut policy = build(&config, 0);
    place_at(&mut *policy, &file(7), &[3, 1, 2]);
    assert_eq!(place_at(&mut *policy, &file(7), &[1, 200, 64]), 1);
    // By default less than twelve is enough.
    let mut policy = build(&PolicyKind::XlardR.into(), 0);
    place_at(&mut *policy, &file(7), &[3, 1, 2]);
    assert_eq!(place_at(&mut *policy, &file(7), &[12, 200, 64]), 1);
    assert_eq!(place_at(&mut *policy, &file(7), &[11, 200, 64]), 0);
    // A new object goes where the connection is, if the others are hardly better.
    let fresh = |object| Request {
        current: Some(BackendId(2)),
        ..file(object)
    };
    assert_eq!(place_at(&mut *policy, &fresh(9), &[10, 10, 12]), 2);
    assert_eq!(place_at(&mut *policy, &fresh(10), &[9, 10, 12]), 0);
}

#[test]
fn xlard_r_stays_when_moving_costs_more_than_it_saves() {
    let dear = XlardRParameters {
        disk_cost: 100,
        ..Default::default()
    };
    let mut policy = build(&PolicyConfig::XlardR(dear), 0);
    place(&mut *policy, NOW, &file(7), &loads(&[3, 1, 2]));
    // 70 to wait for are less than a hundred for the disk.
    let chosen = place(&mut *policy, NOW, &file(7), &loads(&[0, 70, 0]));
    assert_eq!(chosen, Some(BackendId(1)));
}

#[test]
fn cahrd_gathers_files_and_spreads_programs() {
    let mut policy = build(&PolicyKind::Cahrd.into(), 0);
    let request = |class| Request {
        cost_us: 1000,
        ..Request::new(7, class)
    };
    let idle = loads(&[0, 0, 0]);
    let mut chosen = |class| -> Vec<u16> {
        (0..6)
            .map(|_| place(&mut *policy, NOW, &request(class), &idle).unwrap().0)
            .collect()
    };
    let files = chosen(Class::Static);
    assert!(files.iter().all(|id| *id == files[0]));
    let mut programs = chosen(Class::CpuBound);
    programs.sort();
    assert_eq!(programs, [0, 0, 1, 1, 2, 2]);
    // Its CAWLL counts the handoff: 20 packets are more than 2 requests.
    let here = Request {
        current: Some(BackendId(1)),
        ..request(Class::Dynamic)
    };
    let chosen =
        |load: &[u32]| build(&PolicyKind::Cahrd.into(), 0).choose(NOW, &here, &loads(load));
    assert_eq!(chosen(&[5, 7, 5]), Some(BackendId(1)));
    assert_ne!(chosen(&[5, 8, 5]), Some(BackendId(1)));
    // CAWLL alone does not.
    let mut cawll = build(&PolicyKind::Cawll.into(), 0);
    assert_eq!(
        cawll.choose(NOW, &here, &loads(&[5, 6, 6])),
        Some(BackendId(0))
    );
}

#[test]
fn cap_takes_turns_within_each_class() {
    let mut policy = build(&PolicyKind::Cap.into(), 0);
    let idle = loads(&[0, 0]);
    let mut counts: HashMap<(Class, u16), u32> = HashMap::new();
    // In turns over all classes, one backend would get all that is heavy.
    for i in 0..40 {
        let class = if i % 2 == 0 {
            Class::Static
        } else {
            Class::CpuBound
        };
        let chosen = place(&mut *policy, NOW, &Request::new(i, class), &idle).unwrap();
        *counts.entry((class, chosen.0)).or_default() += 1;
    }
    assert!(
        counts.len() == 4 && counts.values().all(|&n| n == 10),
        "{counts:?}"
    );
}

#[test]
fn cache_prediction_prefers_who_has_it() {
    let mut policy = build(&PolicyKind::CachePrediction.into(), 0);
    let mut chosen = |load: &[u32]| place(&mut *policy, NOW, &file(7), &loads(load)).unwrap().0;
    assert_eq!(chosen(&[3, 1, 2]), 1);
    assert_eq!(chosen(&[0, 1000, 0]), 1);
}

/// Before anything is measured a read is ten answers of a millisecond.
#[test]
fn rent_stays_with_the_copy_until_a_second_one_is_cheaper() {
    let mut policy = build(&PolicyKind::Rent.into(), 0);
    let request = file(7);
    policy.placed(NOW, &request, &loads(&[0, 0]), BackendId(0));
    policy.finished(NOW, &finished(request, BackendId(0)));
    let asked = NOW + Duration::from_secs(1);
    let mut chosen = Vec::new();
    for n in 0..20 {
        let backends = loads(&[n, 1]);
        chosen.push(policy.choose(asked, &request, &backends).unwrap().0);
        policy.placed(asked, &request, &backends, BackendId(0));
    }
    let stayed = chosen.iter().take_while(|&&id| id == 0).count();
    assert!((9..14).contains(&stayed), "{chosen:?}");
    assert!(chosen[stayed..].iter().all(|&id| id == 1), "{chosen:?}");
}

/// One MiB holds ten answers of 100 kB; what was asked for again stays longer.
#[test]
fn cache_prediction_forgets_as_the_backends_do() {
    let cache = CacheParameters {
        memory_mib: 1,
        ..Default::default()
    };
    let mut policy = build(&PolicyConfig::CachePrediction(cache), 0);
    let one = loads(&[0, 1000]);
    let mut ask = |object| {
        place(&mut *policy, NOW, &file(object), &one).unwrap();
        policy.finished(
            NOW,
            &Finished {
                bytes: 100_000,
                ..finished(file(object), BackendId(0))
            },
        );
    };
    // Their sizes are known from the second round on.
    for object in (0..10).chain(0..10) {
        ask(object);
    }
    for object in 100..130 {
        ask(object);
        ask(0);
    }
    // Backend 0 is as busy as can be: only what it has is still sent there.
    let busy = loads(&[1000, 0]);
    let has = |policy: &mut dyn Policy, object| {
        preview(policy, NOW, &file(object), &busy) == Some(BackendId(0))
    };
    assert!(has(&mut *policy, 0));
    assert!(has(&mut *policy, 129));
    assert!((1..10).all(|object| !has(&mut *policy, object)));
    assert!(policy.memory().objects < 40);
}

/// The configurations of [LACP03]'s last table.
#[test]
fn lacp_is_hrw_cache_prediction_or_least_connections_by_its_thresholds() {
    let with = |t_low, t_high| {
        let p = LacpParameters {
            t_low,
            t_high,
            ..Default::default()
        };
        build(&PolicyConfig::Lacp(p), 0)
    };
    let own =
        |object| build(&PolicyKind::Hrw.into(), 0).choose(NOW, &file(object), &loads(&[0; 3]));
    for object in 0..50 {
        let busy = own(object).unwrap();
        let mut load = [10, 11, 12];
        load[busy.index()] = 50;
        let backends = loads(&load);
        let least = (0..3).min_by_key(|&i| load[usize::from(i)]).map(BackendId);
        let copy = BackendId((busy.0 + 1) % 3);
        let copy = if Some(copy) == least {
            BackendId((busy.0 + 2) % 3)
        } else {
            copy
        };
        let choose = |mut policy: Box<dyn Policy>| {
            policy.placed(NOW, &file(object), &backends, copy);
            policy.choose(NOW, &file(object), &backends)
        };
        assert_eq!(choose(with(Some(60_000), Some(60_000))), Some(busy));
        assert_eq!(choose(with(Some(0), Some(0))), least);
        assert_eq!(choose(with(Some(0), Some(60_000))), Some(copy));
        // By the rule: 50 is more than the least, 10, and a disk, 10.
        assert_eq!(choose(with(None, None)), least);
    }
}

#[test]
fn lacp_finds_its_thresholds_from_what_misses_cost() {
    let mut policy = build(&PolicyKind::Lacp.into(), 0);
    let object = 7;
    let own = build(&PolicyKind::Hrw.into(), 0)
        .choose(NOW, &file(object), &loads(&[0; 2]))
        .unwrap();
    let other = BackendId(1 - own.0);
    let at = |load: u32| {
        let mut loads_of = [0, 0];
        loads_of[own.index()] = load;
        loads(&loads_of)
    };
    // Before anything is known a disk is ten requests.
    assert_eq!(
        policy.choose(NOW, &file(object), &at(9)),
        Some(other),
        "T_low is 8: nobody has it"
    );
    policy.placed(NOW, &file(object), &at(0), own);
    assert_eq!(
        policy.choose(NOW, &file(object), &at(9)),
        Some(own),
        "it has it"
    );
    assert_eq!(policy.choose(NOW, &file(object), &at(200)), Some(other));
    // Misses that cost a hundred times as much are worth waiting for.
    for i in 0..200u64 {
        let hit = i % 2 == 0;
        let elapsed = Duration::from_micros(if hit { 100 } else { 10_000 });
        policy.placed(NOW, &file(object), &at(0), own);
        let done = Finished {
            hit: Some(hit),
            elapsed,
            shared: 1.0,
            ..finished(file(object), own)
        };
        policy.finished(NOW, &done);
    }
    assert_eq!(policy.choose(NOW, &file(object), &at(3)), Some(own));
}
