//! Policies seen from outside: who has what in memory, and what a change of policy
//! does to those who ask meanwhile.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use trapeze_core::config::PolicyKind;
use trapeze_lab::{OriginCounts, OriginSettings, ServerKind, objects};
use trapeze_tests::{Cluster, Connection, Dice, Raised, same, until};

/// How many objects clients ask for, and how large a server's cache is: a quarter of
/// them fits, by bytes.
const OBJECTS: usize = 600;
/// Requests at a time: so few that nobody is overloaded in LARD's sense.
const CLIENTS: u64 = 24;

/// Three backends with origin servers, the first policy being least connections.
fn cluster(test: &str) -> Cluster {
    let bytes: u64 = (1..=OBJECTS as u64).map(objects::size).sum();
    Cluster::with(test, |options| {
        options.server = ServerKind::Origin;
        options.policy = Some(PolicyKind::LeastConnections);
        options.origin = OriginSettings {
            cache_bytes: bytes / 4,
            miss: Duration::from_millis(1),
            ..OriginSettings::default()
        };
    })
}

/// An object's number, the lower the more often.
fn popular(dice: &mut Dice) -> u64 {
    // The lower of two: the first is drawn twice as often as in the mean.
    (1 + dice.below(OBJECTS).min(dice.below(OBJECTS))) as u64
}

/// Asks for an object and checks what comes.
fn ask(client: &mut Connection, number: u64) {
    let response = client.ask(&objects::path(number));
    response.ok();
    same(&response.body, &objects::body(number));
    let found = response.header("x-cache").expect("a hit or a miss");
    assert!(["hit", "miss"].contains(&found), "{found}");
}

/// Has clients ask for so many objects each, a connection for each, and returns the
/// share that was in memory.
fn hit_ratio(cluster: &Cluster, seed: u64, requests: u64) -> f64 {
    let counts = || {
        let hosts = cluster.status().unwrap().hosts;
        let counts: Vec<_> = hosts.iter().filter_map(|host| host.origin).collect();
        assert_eq!(counts.len(), 3);
        let sum = |of: fn(&OriginCounts) -> u64| counts.iter().map(of).sum::<u64>();
        assert!(counts.iter().all(|c| c.cache_bytes <= c.cache_limit));
        (sum(|counts| counts.requests), sum(|counts| counts.hits))
    };
    let before = counts();
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            scope.spawn(move || {
                cluster.on("c1", || {
                    let mut dice = Dice::new(seed * CLIENTS + client + 1);
                    for _ in 0..requests {
                        ask(&mut Connection::open(), popular(&mut dice));
                    }
                });
            });
        }
    });
    let after = counts();
    assert_eq!(after.0 - before.0, CLIENTS * requests, "each is asked once");
    (after.1 - before.1) as f64 / (CLIENTS * requests) as f64
}

#[test]
fn lard_r_finds_more_in_memory_than_least_connections() {
    let cluster = cluster("lard");
    let [wlc, lard] = [PolicyKind::LeastConnections, PolicyKind::LardR].map(|policy| {
        cluster.set_policy(policy).unwrap();
        cluster.flush_caches().unwrap();
        hit_ratio(&cluster, 1, 100);
        hit_ratio(&cluster, 2, 50)
    });
    // Where all servers have the same objects a quarter of them fits, else three.
    assert!(wlc < 0.6, "least connections: {wlc}");
    assert!(lard > 0.7, "LARD/R: {lard}");
    assert!(lard > wlc + 0.2, "least connections: {wlc}, LARD/R: {lard}");
}

#[test]
fn a_change_of_policy_loses_no_request() {
    let cluster = cluster("change");
    let stop = AtomicBool::new(false);
    let answered = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let _raised = Raised(&stop);
        for client in 0..CLIENTS {
            let (cluster, stop, answered) = (&cluster, &stop, &answered);
            scope.spawn(move || {
                cluster.on("c1", || {
                    let mut dice = Dice::new(client + 1);
                    let mut kept = Connection::open();
                    while !stop.load(Ordering::Relaxed) {
                        let number = popular(&mut dice);
                        match client % 2 {
                            0 => ask(&mut kept, number),
                            _ => ask(&mut Connection::open(), number),
                        }
                        answered.fetch_add(1, Ordering::Relaxed);
                    }
                });
            });
        }
        let changed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for policy in PolicyKind::ALL {
                cluster.set_policy(policy).unwrap();
                assert!(cluster.config().contains(&format!("{:?}", policy.name())));
                let before = answered.load(Ordering::Relaxed);
                until("requests are answered under it", || {
                    (answered.load(Ordering::Relaxed) > before + 4 * CLIENTS).then_some(())
                });
            }
        }));
        // Else a failure would wait for the clients for ever.
        stop.store(true, Ordering::Relaxed);
        changed.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    until("all changes are counted", || {
        (cluster.daemon().reloads == PolicyKind::ALL.len() as u64).then_some(())
    });
}
