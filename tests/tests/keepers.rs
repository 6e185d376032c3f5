//! Who keeps a flow goes, or another one comes, while its client is in the middle of a head, or has asked ahead
//! (docs/protocol/replication.md 1.6b, 5.4).

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use trapeze_core::config::PolicyKind;
use trapeze_lab::Process;
use trapeze_tests::numbered::{Answered, Numbered, check_logs};
use trapeze_tests::scattered::{ready, scattered_over};
use trapeze_tests::{Cluster, Connection, Raised};

const DISPATCHERS: [&str; 3] = ["d1", "d2", "d3"];

/// Each packet of a client goes to another dispatcher than the one before, each request to another backend.
fn cluster(test: &str) -> Cluster {
    scattered_over(&DISPATCHERS, test, |options| {
        options.backends = Some(3);
        options.policy = Some(PolicyKind::RoundRobin);
        options.access_log = true;
    })
}

/// A client that drips its heads, one that is always some requests ahead, or one that says four at once, in pieces.
fn visit(numbered: &Numbered, client: u64, stop: &AtomicBool) -> Answered {
    let mut connection = Connection::open();
    let mut all = Answered::new();
    let mut number = client * 1_000_000_000;
    while !stop.load(Ordering::Relaxed) {
        let asked = match client % 3 {
            0 => numbered.drip(&mut connection, number..number + 1, 9),
            1 => numbered.ask_ahead(&mut connection, number..number + 12, 4),
            _ => numbered.drip(&mut connection, number..number + 4, 70),
        };
        let port = connection.port();
        let answered = asked.unwrap_or_else(|e| panic!("request {number} ({port}): {e}"));
        number += answered.len() as u64;
        all.extend(answered);
        if client.is_multiple_of(4) {
            connection = Connection::open();
        }
    }
    all
}

/// Each of them goes, and comes back, by `go` and `come`, while clients work: all answers are right, and each request
/// has run once.
fn while_keepers_change(cluster: &Cluster, rounds: usize, go: impl Fn(&str), come: impl Fn(&str)) {
    let numbered = Numbered::of(cluster, &["1k", "10k", "1k", "100k"]);
    let stop = AtomicBool::new(false);
    let answered: Answered = std::thread::scope(|scope| {
        let _raised = Raised(&stop);
        let (numbered, stop) = (&numbered, &stop);
        let clients: Vec<_> = (0..24u64)
            .map(|client| scope.spawn(move || cluster.on("c1", || visit(numbered, client, stop))))
            .collect();
        for round in 0..rounds {
            let victim = DISPATCHERS[round % DISPATCHERS.len()];
            std::thread::sleep(Duration::from_millis(300));
            go(victim);
            std::thread::sleep(Duration::from_millis(1300));
            come(victim);
            ready(cluster, &DISPATCHERS, victim);
            let died = clients.iter().any(|client| client.is_finished());
            assert!(!died, "a connection failed when {victim} had gone and come");
        }
        stop.store(true, Ordering::Relaxed);
        let visits = clients.into_iter().map(|client| client.join());
        visits
            .flat_map(|visit| visit.expect("all answers are right"))
            .collect()
    });
    println!("{} requests", answered.len());
    check_logs(cluster, &answered);
    assert!(answered.len() > 500, "{}", answered.len());
}

#[test]
fn heads_in_pieces_and_requests_ahead_outlive_the_death_of_their_keepers() {
    let cluster = cluster("keepersdie");
    while_keepers_change(
        &cluster,
        3,
        |victim| cluster.kill(victim, None).unwrap(),
        |victim| cluster.start(victim, None).unwrap(),
    );
}

#[test]
fn heads_in_pieces_and_requests_ahead_go_with_their_keepers() {
    let cluster = cluster("keepersgo");
    while_keepers_change(
        &cluster,
        3,
        |victim| cluster.signal(victim, Process::Dispatch, "-TERM"),
        |victim| cluster.start(victim, Some(Process::Dispatch)).unwrap(),
    );
}
