//! Daemons of several dispatchers that stand still for longer than their data paths speak for them, and go on
//! (docs/protocol/replication.md 7.5).

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use trapeze_lab::Process;
use trapeze_tests::numbered::{Answered, Numbered, check_logs};
use trapeze_tests::scattered::{ready, scattered_over};
use trapeze_tests::{Cluster, Connection, Raised, same};

/// A daemon goes on before its lease ends: whatever its clients have repeated meanwhile lies in its queue.
#[test]
fn what_clients_have_repeated_meanwhile_is_one_request() {
    let cluster = Cluster::up("repeated");
    let (one, ten) = (cluster.document("1k"), cluster.document("10k"));
    cluster.on("c1", || {
        let mut clients: Vec<_> = (0..6).map(|_| Connection::open()).collect();
        cluster.signal("d1", Process::Dispatch, "-STOP");
        for client in &mut clients {
            let first = "GET /1k HTTP/1.1\r\nHost: site.example\r\n\r\n";
            client.send(format!("{first}GET /10k HTTP/1.1\r\nHos"));
            client.send("t: site.example\r\n\r\n");
            client.send(format!("{first}G"));
            client.send("ET /10k HTTP/1.1\r\nHost: site.example\r\n\r\n");
        }
        // Longer than it takes TCP to repeat what it has sent three times.
        std::thread::sleep(Duration::from_millis(1700));
        cluster.signal("d1", Process::Dispatch, "-CONT");
        for client in &mut clients {
            for wanted in [&one, &ten, &one, &ten] {
                same(&client.response().body, wanted);
            }
        }
    });
}

const DISPATCHERS: [&str; 3] = ["d1", "d2", "d3"];

/// Meanwhile others have come to keep its flows, and what it had not read yet they have had again from clients.
#[test]
fn who_wakes_up_does_not_repeat_what_others_have_done() {
    let cluster = scattered_over(&DISPATCHERS, "frozen", |options| {
        options.backends = Some(3);
        options.access_log = true;
    });
    let numbered = Numbered::of(&cluster, &["1k", "10k", "1k", "100k"]);
    let stop = AtomicBool::new(false);
    let answered: Answered = std::thread::scope(|scope| {
        let _raised = Raised(&stop);
        let (numbered, stop, cluster) = (&numbered, &stop, &cluster);
        let clients: Vec<_> = (0..36u64)
            .map(|client| scope.spawn(move || cluster.on("c1", || visit(numbered, client, stop))))
            .collect();
        for victim in DISPATCHERS {
            std::thread::sleep(Duration::from_millis(300));
            cluster.signal(victim, Process::Dispatch, "-STOP");
            std::thread::sleep(Duration::from_millis(2700));
            cluster.signal(victim, Process::Dispatch, "-CONT");
            ready(cluster, &DISPATCHERS, victim);
            let died = clients.iter().any(|client| client.is_finished());
            assert!(!died, "a connection failed when {victim} had stood still");
        }
        std::thread::sleep(Duration::from_secs(1));
        stop.store(true, Ordering::Relaxed);
        let visits = clients.into_iter().map(|client| client.join());
        visits
            .flat_map(|visit| visit.expect("all answers are right"))
            .collect()
    });
    check_logs(&cluster, &answered);
    assert!(answered.len() > 500, "{}", answered.len());
}

/// Of six clients three open a connection for each request, one keeps its own, and two have four requests under way at
/// once.
fn visit(numbered: &Numbered, client: u64, stop: &AtomicBool) -> Answered {
    let mut kept = Connection::open();
    let mut all = Answered::new();
    let mut number = client * 1_000_000_000;
    while !stop.load(Ordering::Relaxed) {
        let step = if client.is_multiple_of(3) { 4 } else { 1 };
        let numbers = number..number + step;
        let answered = match client % 6 {
            0 | 3 => numbered.pipeline(&mut kept, numbers),
            1 => numbered.ask_each(&mut kept, numbers),
            _ => numbered.ask_each(&mut Connection::open(), numbers),
        };
        let port = kept.port();
        all.extend(answered.unwrap_or_else(|e| panic!("request {number} ({port}): {e}")));
        number += step;
        std::thread::sleep(Duration::from_millis(1));
    }
    all
}
