//! Requests that stay with their owners need no daemon where there are several dispatchers either,
//! and whoever keeps the flow next asks the owner (docs/protocol/replication.md 4.6).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use trapeze_core::config::PolicyKind;
use trapeze_lab::Process;
use trapeze_tests::numbered::Numbered;
use trapeze_tests::scattered::{ready, scattered_over};
use trapeze_tests::{Cluster, Connection, Raised, until};

const BOTH: [&str; 2] = ["d1", "d2"];
const CLIENTS: u64 = 12;

fn cluster(test: &str) -> Cluster {
    scattered_over(&BOTH, test, |options| {
        options.backends = Some(3);
        options.policy = Some(PolicyKind::Hrw);
        options.access_log = true;
    })
}

/// So many requests have stayed in data paths, and so many flows' owners were asked.
fn counted(cluster: &Cluster, name: &str) -> (u64, u64) {
    let stayed = cluster.dispatcher_named(name).of("stayed");
    let status = cluster.dispatch_status(name);
    let asked = status.and_then(|status| status.counters.get("asked-how-far").copied());
    (stayed, asked.unwrap_or(0))
}

/// One connection that asks for the same all the time, a little different from the others'.
fn visit(numbered: &Numbered, client: u64, stop: &AtomicBool) -> u64 {
    let mut connection = Connection::open();
    let mut asked = 0;
    while !stop.load(Ordering::Relaxed) {
        let answered = numbered.ask_each(&mut connection, [client]);
        answered.unwrap_or_else(|e| panic!("client {client}, request {asked}: {e}"));
        asked += 1;
        std::thread::sleep(Duration::from_millis(2));
    }
    asked
}

/// Each has run once.
fn check_logs(cluster: &Cluster, asked: &[u64]) {
    let logs = cluster.status().expect("the lab is up").logs;
    let ran = |client: usize| -> u64 {
        let read = |backend| {
            let text = std::fs::read_to_string(logs.join(format!("{backend}.access.log")));
            let text = text.unwrap_or_default();
            let its = |line: &&str| line.contains(&format!("?n={client} "));
            text.lines().filter(its).count() as u64
        };
        ["b1", "b2", "b3"].map(read).iter().sum()
    };
    for (client, &asked) in asked.iter().enumerate() {
        until("all are logged", || (ran(client) >= asked).then_some(()));
        assert_eq!(ran(client), asked, "client {client}");
    }
}

/// Something happens to one dispatcher, then to the other, while clients work.
fn while_clients_ask(cluster: &Cluster, mut trouble: impl FnMut(&str)) {
    let numbered = Numbered::of(cluster, &["1k", "10k", "100k"]);
    let (stop, stayed, known) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let asked: Vec<u64> = std::thread::scope(|scope| {
        let _raised = Raised(&stop);
        let (numbered, stop) = (&numbered, &stop);
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| scope.spawn(move || cluster.on("c1", || visit(numbered, client, stop))))
            .collect();
        std::thread::sleep(Duration::from_millis(1000));
        for victim in ["d1", "d2", "d1", "d2"] {
            let other = BOTH.iter().find(|name| **name != victim).unwrap();
            stayed.fetch_add(counted(cluster, victim).0, Ordering::Relaxed);
            trouble(victim);
            std::thread::sleep(Duration::from_millis(500));
            known.fetch_max(counted(cluster, other).1, Ordering::Relaxed);
            let died = clients.iter().any(|client| client.is_finished());
            assert!(!died, "a connection failed when {victim} had died");
        }
        stop.store(true, Ordering::Relaxed);
        let visits = clients.into_iter().map(|client| client.join());
        visits
            .map(|visit| visit.expect("all answers are right"))
            .collect()
    });
    check_logs(cluster, &asked);
    let all: u64 = asked.iter().sum();
    let (stayed, known) = (stayed.into_inner(), known.into_inner());
    println!("{all} requests, {stayed} stayed, {known} owners asked");
    assert!(all > 1000, "{all}");
    assert!(stayed > all / 4, "{stayed} of {all}");
    assert!(known > 0, "owners are asked");
}

#[test]
fn power_cuts_while_requests_stay_lose_none_and_repeat_none() {
    let cluster = cluster("stays");
    while_clients_ask(&cluster, |victim| {
        cluster.kill(victim, None).unwrap();
        std::thread::sleep(Duration::from_millis(1500));
        cluster.start(victim, None).unwrap();
        ready(&cluster, &BOTH, victim);
    });
}

#[test]
fn daemons_that_die_while_requests_stay_lose_none_and_repeat_none() {
    let cluster = cluster("staydaemons");
    while_clients_ask(&cluster, |victim| {
        cluster.kill(victim, Some(Process::Dispatch)).unwrap();
        std::thread::sleep(Duration::from_millis(1500));
        cluster.start(victim, Some(Process::Dispatch)).unwrap();
        ready(&cluster, &BOTH, victim);
    });
}
