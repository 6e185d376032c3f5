//! What a policy that looks at loads lets stand for a while.

use super::*;

const FAST: Duration = Duration::from_micros(200);
const SLOW: Duration = Duration::from_millis(30);

/// Backends without a load of their own; each policy is asked and answered at once.
struct Pool {
    policy: Box<dyn Policy>,
    backends: Backends,
    now: Duration,
}

impl Pool {
    fn new() -> Self {
        Pool {
            policy: build(&PolicyKind::Rent.into(), 0),
            backends: with_weights(&[1; 4]),
            now: Duration::from_secs(1),
        }
    }

    fn place(&mut self, object: u64) -> BackendId {
        let request = static_file(object);
        place(&mut *self.policy, self.now, &request, &self.backends).unwrap()
    }

    /// Its answer comes after that time.
    fn answer(&mut self, object: u64, backend: BackendId, elapsed: Duration) {
        self.now += elapsed;
        let finished = Finished {
            elapsed,
            ..finished(static_file(object), backend)
        };
        self.policy.finished(self.now, &finished);
    }

    fn ask(&mut self, object: u64, elapsed: Duration) -> BackendId {
        let backend = self.place(object);
        self.answer(object, backend, elapsed);
        backend
    }

    fn settled(&mut self, object: u64, chosen: BackendId) -> Option<Settled> {
        (self.policy).settled(self.now, &static_file(object), &self.backends, chosen)
    }
}

#[test]
fn only_rent_has_choices_that_settle() {
    for config in configs() {
        let mut policy = build(&config, 0);
        let settles = policy.stands() == Stands::WhileSettled;
        assert_eq!(settles, policy.kind() == PolicyKind::Rent);
        let backends = with_weights(&[1; 4]);
        let request = static_file(1);
        let settled = policy.settled(Duration::ZERO, &request, &backends, BackendId(0));
        assert_eq!(settled, None, "{config:?}: nothing is known yet");
    }
}

#[test]
fn what_has_been_read_and_is_asked_for_again_is_settled_where_it_is() {
    let mut pool = Pool::new();
    let first = pool.place(7);
    assert_eq!(pool.settled(7, first), None, "it is being read");
    let second = pool.place(7);
    assert_eq!(second, first);
    assert_eq!(pool.settled(7, first), None, "it still is");
    pool.answer(7, first, SLOW);
    pool.answer(7, first, Duration::ZERO);
    pool.ask(7, FAST);
    let settled = pool.settled(7, first).unwrap();
    assert_eq!(settled.backends(), [first]);
    assert!(settled.lasts > Duration::ZERO && settled.charge_us > 0 && settled.most_us > 0);
    let elsewhere = BackendId(first.0 ^ 1);
    assert_eq!(pool.settled(7, elsewhere), None, "there is no copy");
    let gone = with_weights(&[1; 4].map(|w| w * u16::from(first.0 == 9)));
    let request = static_file(7);
    assert_eq!(pool.policy.settled(pool.now, &request, &gone, first), None);
}

#[test]
fn programs_are_not() {
    let mut pool = Pool::new();
    let program = Request::new(2, Class::Dynamic);
    for _ in 0..5 {
        let chosen = place(&mut *pool.policy, pool.now, &program, &pool.backends).unwrap();
        pool.policy.finished(pool.now, &finished(program, chosen));
        let settled = (pool.policy).settled(pool.now, &program, &pool.backends, chosen);
        assert_eq!(settled, None);
    }
}

/// Work that it was not asked for counts like its own.
#[test]
fn loads_from_elsewhere_are_seen() {
    let mut pool = Pool::new();
    let home = pool.ask(7, SLOW);
    pool.ask(7, FAST);
    assert_eq!(pool.place(7), home);
    pool.answer(7, home, FAST);
    // Decisions that stand have sent a second of work there.
    (pool.backends).set_loads(|id| {
        if id == home {
            (50, 1_000_000)
        } else {
            (1, 100)
        }
    });
    assert_ne!(pool.place(7), home);
    let program = Request::new(2, Class::Dynamic);
    let chosen = preview(&mut *pool.policy, pool.now, &program, &pool.backends);
    assert_ne!(chosen, Some(home));
}

/// Several copies are equally good.
#[test]
fn a_hot_object_settles_on_all_its_copies() {
    let mut pool = Pool::new();
    let home = pool.ask(7, SLOW);
    pool.ask(7, FAST);
    (pool.backends).set_loads(|id| {
        if id == home {
            (50, 1_000_000)
        } else {
            (1, 100)
        }
    });
    let other = pool.ask(7, SLOW);
    assert_ne!(other, home);
    (pool.backends).set_loads(|_| (1, 100));
    let chosen = pool.ask(7, FAST);
    let settled = pool.settled(7, chosen).unwrap();
    let mut both = settled.backends().to_vec();
    both.sort();
    let mut expected = vec![home, other];
    expected.sort();
    assert_eq!(both, expected);
    assert_eq!(settled.backends()[0], chosen);
}

/// So often that its copy cannot leave; the policy has been told, not asked.
#[test]
fn how_often_is_learnt_from_what_stood() {
    let mut pool = Pool::new();
    let thousand = Duration::from_secs(1000);
    // Files come and go: memory keeps what was asked for in the last seconds.
    for round in 0..4000u64 {
        pool.ask(
            1000 + round % 400,
            if round % 400 < 200 { SLOW } else { FAST },
        );
        pool.ask(100_000 + round, SLOW);
    }
    let home = pool.ask(7, SLOW);
    pool.now += thousand;
    let chosen = pool.ask(7, SLOW);
    assert_eq!(pool.settled(7, chosen), None, "seldom asked for");
    let home = if chosen == home { home } else { chosen };
    pool.policy
        .settled_took(&static_file(7), 1_000_000, thousand);
    let again = pool.ask(7, FAST);
    assert_eq!(again, home);
    let settled = pool.settled(7, again).expect("a million times in between");
    assert!(settled.lasts <= Duration::from_secs(2));
}

/// Its host has other work then, and all answers wait for that: nothing has left its memory.
#[test]
fn a_server_that_is_slow_at_times_forgets_nothing() {
    let mut pool = Pool::new();
    for round in 0..400u64 {
        let elapsed = if round % 10 < 7 { FAST } else { SLOW };
        for n in 0..12 {
            pool.ask(n % 3, elapsed);
        }
    }
    for object in 0..3 {
        let chosen = pool.ask(object, FAST);
        let settled = pool.settled(object, chosen);
        let lasts = settled.expect("it is asked for all the time").lasts;
        assert!(lasts >= Duration::from_secs(1), "{object}: {lasts:?}");
    }
}
