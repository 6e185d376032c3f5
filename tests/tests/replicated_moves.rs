//! Connections that move from backend to backend, by way of several dispatchers that die.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use trapeze_core::flow::FlowKey;
use trapeze_datapath::abi;
use trapeze_tests::numbered::{Answered, Numbered, check_logs};
use trapeze_tests::scattered::{ready, scattered_over};
use trapeze_tests::{Cluster, Connection, Raised};

const BOTH: [&str; 2] = ["d1", "d2"];

/// Each request moves its connection, to a socket that has waited for it, and one of two
/// dispatchers dies meanwhile, then the other.
#[test]
fn power_cuts_while_connections_move_lose_no_request_and_repeat_none() {
    let cluster = scattered_over(&BOTH, "moves", |options| {
        options.backends = Some(3);
        options.access_log = true;
    });
    let numbered = Numbered::of(&cluster, &["1k", "10k", "1k", "100k"]);
    let stop = AtomicBool::new(false);
    let answered: Answered = std::thread::scope(|scope| {
        let _raised = Raised(&stop);
        let (numbered, stop, cluster) = (&numbered, &stop, &cluster);
        let clients: Vec<_> = (0..12u64)
            .map(|client| {
                scope.spawn(move || cluster.on("c1", || visit(cluster, numbered, client, stop)))
            })
            .collect();
        std::thread::sleep(Duration::from_millis(500));
        for victim in ["d1", "d2", "d1", "d2"] {
            cluster.kill(victim, None).unwrap();
            std::thread::sleep(Duration::from_millis(1500));
            cluster.start(victim, None).unwrap();
            ready(cluster, &BOTH, victim);
            std::thread::sleep(Duration::from_millis(500));
            let died = clients.iter().any(|client| client.is_finished());
            assert!(!died, "a connection failed when {victim} had died");
        }
        stop.store(true, Ordering::Relaxed);
        let visits = clients.into_iter().map(|client| client.join());
        visits
            .flat_map(|visit| visit.expect("all answers are right"))
            .collect()
    });
    check_logs(&cluster, &answered);
    let (requests, agents) = (answered.len() as u64, cluster.agents());
    println!("{requests} requests, {agents:?}");
    assert!(requests > 1000, "{requests}");
    assert!(agents.of("given-up") > requests / 2, "{agents:?}");
    assert!(agents.of("resumed") > requests / 8, "{agents:?}");
}

/// One connection, until it is time to stop; one client of three sends four requests at
/// once.
fn visit(cluster: &Cluster, numbered: &Numbered, client: u64, stop: &AtomicBool) -> Answered {
    let mut connection = Connection::open();
    let mut all = Answered::new();
    let mut number = client * 1_000_000_000;
    while !stop.load(Ordering::Relaxed) {
        let step = if client.is_multiple_of(3) { 4 } else { 1 };
        let numbers = number..number + step;
        let answered = match step {
            1 => numbered.ask_each(&mut connection, numbers),
            _ => numbered.pipeline(&mut connection, numbers),
        };
        let answered = answered.unwrap_or_else(|e| {
            let known = records(cluster, connection.port());
            panic!("request {number}: {e}\n{known}");
        });
        all.extend(answered);
        number += step;
        std::thread::sleep(Duration::from_millis(2));
    }
    all
}

/// What dispatchers and backends know of a connection that has failed.
fn records(cluster: &Cluster, port: u16) -> String {
    let its = |key: &abi::FlowKey| FlowKey::from(*key).client.port() == port;
    let mut known = String::new();
    for name in BOTH {
        let flows = cluster.dispatcher_maps_of(name).flows.all().unwrap();
        for (_, flow) in flows.iter().filter(|(key, _)| its(key)) {
            known += &format!("{name}: {flow:?}\n");
        }
    }
    for name in ["b1", "b2", "b3"] {
        let setups = cluster.agent_maps(name).setups.all().unwrap();
        let is_seat = |setup: &abi::Setup| u16::from_be(setup.origin) == port;
        for (_, setup) in setups.iter().filter(|(key, it)| its(key) || is_seat(it)) {
            known += &format!("{name}: {setup:?}\n");
        }
    }
    known
}
