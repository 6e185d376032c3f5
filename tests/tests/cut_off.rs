//! Dispatchers whose cable is out for longer than others need to take them for dead, and which live on meanwhile with
//! all that they know (docs/protocol/replication.md 1.6c).

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use trapeze_core::config::PolicyKind;
use trapeze_lab::Options;
use trapeze_tests::numbered::Numbered;
use trapeze_tests::scattered::{ready, scattered_over};
use trapeze_tests::{Cluster, Connection, Raised, until};

const DISPATCHERS: [&str; 3] = ["d1", "d2", "d3"];
const CLIENTS: u64 = 24;
/// Three heartbeats and more.
const OUT: Duration = Duration::from_millis(1400);

fn turns(options: &mut Options) {
    options.backends = Some(3);
    options.policy = Some(PolicyKind::RoundRobin);
}

/// Of three clients one opens a connection for each request, and two keep theirs. All are answered, by a backend.
fn visit(numbered: &Numbered, client: u64, stop: &AtomicBool) -> u64 {
    let mut kept = Connection::open();
    let mut asked = 0;
    while !stop.load(Ordering::Relaxed) {
        if client.is_multiple_of(3) {
            kept = Connection::open();
        }
        let number = client * 1_000_000 + asked;
        let answered = numbered.ask_each(&mut kept, [number]);
        let port = kept.port();
        answered.unwrap_or_else(|e| panic!("client {client} ({port}), request {asked}: {e}"));
        asked += 1;
        std::thread::sleep(Duration::from_millis(5));
    }
    asked
}

/// The cables of `victims` are out at once, while clients work, and then those of the next ones.
fn pull_cables(cluster: &Cluster, all: &[&str], rounds: &[&[&str]]) {
    let rounds: Vec<_> = rounds.iter().map(|victims| (*victims, OUT)).collect();
    pull_cables_for(cluster, all, &rounds, visit);
}

type Visit = fn(&Numbered, u64, &AtomicBool) -> u64;

fn pull_cables_for(cluster: &Cluster, all: &[&str], rounds: &[(&[&str], Duration)], visit: Visit) {
    let numbered = Numbered::of(cluster, &["1k", "10k", "100k"]);
    let stop = AtomicBool::new(false);
    let asked: u64 = std::thread::scope(|scope| {
        let _raised = Raised(&stop);
        let (numbered, stop) = (&numbered, &stop);
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| scope.spawn(move || cluster.on("c1", || visit(numbered, client, stop))))
            .collect();
        for (victims, out) in rounds {
            std::thread::sleep(Duration::from_millis(700));
            victims
                .iter()
                .for_each(|host| cluster.set_cable(host, false).unwrap());
            std::thread::sleep(*out);
            victims
                .iter()
                .for_each(|host| cluster.set_cable(host, true).unwrap());
            std::thread::sleep(Duration::from_millis(1500));
            if all.len() > 1 {
                victims
                    .iter()
                    .for_each(|victim| ready(cluster, all, victim));
            }
            let died = clients.iter().any(|client| client.is_finished());
            assert!(
                !died,
                "a connection failed when {victims:?} had been cut off"
            );
        }
        std::thread::sleep(Duration::from_secs(2));
        stop.store(true, Ordering::Relaxed);
        let visits = clients.into_iter().map(|client| client.join());
        visits
            .map(|visit| visit.expect("all answers are right"))
            .sum()
    });
    println!("{asked} requests");
    assert!(asked > 500, "{asked}");
}

/// So often a dispatcher's workers have forgotten what they had begun with.
fn cuts(cluster: &Cluster, name: &str) -> u64 {
    let status = cluster.dispatch_status(name);
    let count = status.and_then(|status| status.counters.get("was-cut-off").copied());
    count.unwrap_or(0)
}

/// Workers show it a moment later.
fn await_cuts(cluster: &Cluster) {
    until("all have been cut off", || {
        let was_cut = |name: &&str| cuts(cluster, name) > 0;
        DISPATCHERS.iter().all(was_cut).then_some(())
    });
}

const ONE_BY_ONE: [&[&str]; 4] = [&["d2"], &["d3"], &["d1"], &["d2"]];

/// Packets go to any of them.
#[test]
fn who_is_back_does_not_go_on_where_it_was() {
    let cluster = scattered_over(&DISPATCHERS, "cutoff", turns);
    pull_cables(&cluster, &DISPATCHERS, &ONE_BY_ONE);
    await_cuts(&cluster);
}

/// Peers are asked so often that they are taken for dead before a backend has left two heartbeats unanswered.
#[test]
fn who_hears_of_backends_seldom_does_not_take_all_for_dead_either() {
    let cluster = scattered_over(&DISPATCHERS, "cutfast", |options| {
        options.spray_heartbeat = Some(Duration::from_millis(10));
        turns(options);
    });
    pull_cables(&cluster, &DISPATCHERS, &ONE_BY_ONE);
    await_cuts(&cluster);
}

#[test]
fn who_is_back_does_not_go_on_where_it_was_with_spliced_servers() {
    let cluster = Cluster::with("cutoffspl", |options| {
        (options.sprays, options.dispatchers) = (Some(1), Some(3));
        options.transfer = Some("splice".into());
        turns(options);
    });
    for dispatcher in DISPATCHERS {
        ready(&cluster, &DISPATCHERS, dispatcher);
    }
    pull_cables(&cluster, &DISPATCHERS, &ONE_BY_ONE);
}

/// Nobody has gone on with anything: what they know is all there is.
#[test]
fn dispatchers_that_are_all_cut_off_at_once_go_on() {
    let cluster = scattered_over(&DISPATCHERS, "cutall", turns);
    pull_cables(&cluster, &DISPATCHERS, &[&DISPATCHERS]);
}

/// Its peers are dead, and nobody else has its records.
#[test]
fn the_last_one_goes_on_after_its_cable_was_out() {
    let cluster = scattered_over(&DISPATCHERS, "cutlast", turns);
    for dead in ["d2", "d3"] {
        cluster.kill(dead, None).unwrap();
    }
    std::thread::sleep(Duration::from_secs(2));
    pull_cables(&cluster, &["d1"], &[&["d1"]]);
}

/// It does not take its backends for dead.
#[test]
fn one_without_others_goes_on_after_its_cable_was_out() {
    let cluster = Cluster::with("cutalone", turns);
    pull_cables(&cluster, &["d1"], &[&["d1"], &["d1"]]);
}

/// As [`visit`], but who opens connections has heads that come in pieces.
fn visit_slowly(numbered: &Numbered, client: u64, stop: &AtomicBool) -> u64 {
    if !client.is_multiple_of(3) {
        return visit(numbered, client, stop);
    }
    let mut asked = 0;
    while !stop.load(Ordering::Relaxed) {
        let mut connection = Connection::open();
        let numbers = client * 1_000_000 + asked..client * 1_000_000 + asked + 3;
        for number in numbers {
            let answered = numbered.drip(&mut connection, [number], 5);
            let port = connection.port();
            answered.unwrap_or_else(|e| panic!("client {client} ({port}), request {asked}: {e}"));
            asked += 1;
        }
    }
    asked
}

/// It finds itself cut off before others miss it, and nobody else goes on with what it has begun.
#[test]
fn who_is_not_missed_goes_on_with_what_it_has_begun() {
    let mut text = Cluster::nodes(3).replace(
        "attach = \"tc\"",
        "attach = \"tc\"\nsplice_address = \"10.77.0.111\"",
    );
    for (number, transfer) in [(2, "splice"), (3, "split-splice")] {
        let name = format!("[[backend]]\nname = \"b{number}\"");
        text = text.replace(&name, &format!("{name}\ntransfer = \"{transfer}\""));
        text += &format!(
            "[[dispatcher]]\nname = \"d{number}\"\naddress = \"10.77.0.1{number}\"\n\
             interface = \"eth0\"\nattach = \"tc\"\nsplice_address = \"10.77.0.11{number}\"\n"
        );
    }
    text += "[[spray]]\nname = \"s1\"\naddress = \"10.77.0.91\"\ninterface = \"eth0\"\nattach = \"tc\"\n\
             [[pool]]\nname = \"web\"\nbackends = [\"b1\", \"b2\", \"b3\"]\n\
             [[service]]\nname = \"site\"\naddress = \"10.77.0.100:80\"\npool = \"web\"\n";
    let cluster = Cluster::configured_whole("cutshort", &text, |_| {});
    for dispatcher in DISPATCHERS {
        ready(&cluster, &DISPATCHERS, dispatcher);
    }
    let outages = [150, 350, 100, 300, 200, 400];
    let victims: [&[&str]; 3] = [&["d1"], &["d2"], &["d3"]];
    let rounds: Vec<_> = (victims.into_iter().cycle())
        .zip(outages.map(Duration::from_millis))
        .collect();
    pull_cables_for(&cluster, &DISPATCHERS, &rounds, visit_slowly);
}
