//! Connections that begin, requests that stay with their owners, and those that move elsewhere need no daemon where
//! there are several dispatchers either, and whoever keeps the flow next asks its owners
//! (docs/protocol/replication.md 4.6, 4.7).

use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use trapeze_core::config::PolicyKind;
use trapeze_datapath::abi::{MARK_TUNNEL, MARK_UNSURE};
use trapeze_lab::{Options, Process};
use trapeze_tests::numbered::Numbered;
use trapeze_tests::scattered::{keeper, ready, scattered_over};
use trapeze_tests::{Cluster, Connection, Raised, same, until, without_node};

const BOTH: [&str; 2] = ["d1", "d2"];
const CLIENTS: u64 = 12;

fn cluster(test: &str) -> Cluster {
    scattered_over(&BOTH, test, |options| {
        options.backends = Some(3);
        options.policy = Some(PolicyKind::Hrw);
        options.access_log = true;
    })
}

/// Each request goes to another backend; all packets of a connection go to the dispatcher that keeps it.
fn by_turns(test: &str) -> Cluster {
    let cluster = Cluster::with(test, |options| {
        (options.sprays, options.dispatchers) = (Some(2), Some(2));
        take_turns(options);
    });
    for dispatcher in BOTH {
        ready(&cluster, &BOTH, dispatcher);
    }
    cluster
}

fn take_turns(options: &mut Options) {
    options.backends = Some(3);
    options.policy = Some(PolicyKind::RoundRobin);
    options.access_log = true;
}

/// What clients do, what the data path that has it done counts, and what the next keeper counts then.
struct Work {
    connects: bool,
    done: &'static str,
    known: &'static str,
}

const STAY: Work = Work {
    connects: false,
    done: "stayed",
    known: "asked-how-far",
};
const MOVE: Work = Work {
    connects: false,
    done: "moved",
    known: "followed",
};
const BEGIN: Work = Work {
    connects: true,
    done: "entrusted",
    known: "in-trust",
};

/// So many requests have been done with in data paths, and so many flows have been asked about.
fn counted(cluster: &Cluster, name: &str, work: &Work) -> (u64, u64) {
    let events = cluster.dispatcher_named(name);
    let known = match work.connects {
        true => events.of(work.known),
        false => {
            let status = cluster.dispatch_status(name);
            let daemons = status.and_then(|status| status.counters.get(work.known).copied());
            daemons.unwrap_or(0)
        }
    };
    (events.of(work.done), known)
}

/// One client that asks for the same all the time, a little different from the others'.
fn visit(numbered: &Numbered, client: u64, work: &Work, stop: &AtomicBool) -> u64 {
    let mut connection = Connection::open();
    let mut asked = 0;
    while !stop.load(Ordering::Relaxed) {
        if work.connects && asked > 0 {
            connection = Connection::open();
        }
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
fn while_clients(work: &Work, cluster: &Cluster, mut trouble: impl FnMut(&str)) {
    let numbered = Numbered::of(cluster, &["1k", "10k", "100k"]);
    let (stop, done, known) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let asked: Vec<u64> = std::thread::scope(|scope| {
        let _raised = Raised(&stop);
        let (numbered, stop) = (&numbered, &stop);
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                scope.spawn(move || cluster.on("c1", || visit(numbered, client, work, stop)))
            })
            .collect();
        std::thread::sleep(Duration::from_millis(1000));
        for victim in ["d1", "d2", "d1", "d2"] {
            let other = BOTH.iter().find(|name| **name != victim).unwrap();
            done.fetch_add(counted(cluster, victim, work).0, Ordering::Relaxed);
            trouble(victim);
            std::thread::sleep(Duration::from_millis(500));
            known.fetch_max(counted(cluster, other, work).1, Ordering::Relaxed);
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
    let (done, known) = (done.into_inner(), known.into_inner());
    println!(
        "{all} requests, {}: {done}, {}: {known}",
        work.done, work.known
    );
    assert!(all > 1000, "{all}");
    // Without an heir connections are the daemon's, and what has come since the last one died is not counted.
    let part = if work.connects { 20 } else { 4 };
    assert!(done > all / part, "{done} of {all}");
    assert!(known > 0, "nothing was to be found out");
}

/// `what` of each dies in turn, and comes back; none: its power.
fn die_in_turn(cluster: &Cluster, work: &Work, what: Option<Process>) {
    // A data path speaks for its daemon for two seconds: then all that it kept is the other's.
    let away = match what {
        None => Duration::from_millis(1500),
        Some(_) => Duration::from_millis(2500),
    };
    while_clients(work, cluster, |victim| {
        cluster.kill(victim, what).unwrap();
        std::thread::sleep(away);
        cluster.start(victim, what).unwrap();
        ready(cluster, &BOTH, victim);
    });
}

#[test]
fn power_cuts_while_requests_stay_lose_none_and_repeat_none() {
    die_in_turn(&cluster("stays"), &STAY, None);
}

#[test]
fn power_cuts_while_requests_move_lose_none_and_repeat_none() {
    die_in_turn(&by_turns("staymoves"), &MOVE, None);
}

/// Packets go to either, in turn: one of them knows an owner of before.
#[test]
fn power_cuts_while_requests_move_lose_none_wherever_packets_go() {
    die_in_turn(
        &scattered_over(&BOTH, "stayscatter", take_turns),
        &MOVE,
        None,
    );
}

/// Packets go to either, in turn: the one that does not keep a connection knows it as its heir.
#[test]
fn power_cuts_while_connections_begin_lose_none_and_repeat_none() {
    die_in_turn(&cluster("staybegins"), &BEGIN, None);
}

#[test]
fn daemons_that_die_while_requests_stay_lose_none_and_repeat_none() {
    die_in_turn(&cluster("staydaemons"), &STAY, Some(Process::Dispatch));
}

#[test]
fn daemons_that_die_while_requests_move_lose_none_and_repeat_none() {
    die_in_turn(&by_turns("movedaemons"), &MOVE, Some(Process::Dispatch));
}

/// It goes, and comes back with nothing: the other one has been alone meanwhile, and has told nobody.
#[test]
fn dispatchers_go_and_come_by_reload_while_requests_stay() {
    let cluster = cluster("staypeers");
    let both = cluster.config();
    while_clients(&STAY, &cluster, |victim| {
        let other = BOTH.iter().find(|name| **name != victim).unwrap();
        let alone = without_node(&both, victim);
        let reload = |config: &str| {
            for spray in ["s1", "s2"] {
                cluster.reload(spray, Process::Spray, config);
            }
            cluster.reload(other, Process::Dispatch, config);
        };
        reload(&alone);
        cluster.kill(victim, None).unwrap();
        std::thread::sleep(Duration::from_millis(500));
        let config = cluster.status().expect("the lab is up").config;
        std::fs::write(config, &both).expect("the configuration is written");
        cluster.start(victim, None).unwrap();
        reload(&both);
        ready(&cluster, &BOTH, victim);
    });
}

/// Connections that `name` keeps.
fn kept_by<'c>(cluster: &'c Cluster, name: &str) -> impl Iterator<Item = Connection> + use<'c> {
    kept_among(cluster, &BOTH, name)
}

fn kept_among<'c>(
    cluster: &'c Cluster,
    live: &'static [&str],
    name: &str,
) -> impl Iterator<Item = Connection> + use<'c> {
    let name = name.to_owned();
    let c1 = Ipv4Addr::new(10, 77, 0, 1);
    std::iter::repeat_with(move || cluster.on("c1", Connection::open))
        .filter(move |client| keeper(cluster, live, SocketAddrV4::new(c1, client.port())) == name)
}

/// Their keeper goes before it has told anybody else of them, and some fall to one that joins just then.
#[test]
fn what_an_heir_alone_knows_it_tells_who_comes_to_keep_it() {
    const ALL: [&str; 3] = ["d1", "d2", "d3"];
    let cluster = scattered_over(&ALL, "stayheirs", |options| {
        options.backends = Some(3);
        options.policy = Some(PolicyKind::Hrw);
        // What a daemon that is stopped has said counts for two seconds.
        options.spray_heartbeat = Some(Duration::from_millis(700));
    });
    let wanted = cluster.document("1k");
    let ask = |client: &mut Connection| {
        client.send("GET /1k HTTP/1.1\r\nHost: site.example\r\n\r\n");
        same(&client.response().body, &wanted);
    };
    let mut clients: Vec<Connection> = kept_among(&cluster, &ALL, "d1").take(17).collect();
    let mut first = clients.pop().expect("there are 17");
    // From here on the decision stands.
    (0..2).for_each(|_| ask(&mut first));
    cluster.kill("d3", None).unwrap();
    until("d2 would be the heir of all", || {
        let status = cluster.dispatch_status("d1")?;
        let d3 = status.peers.iter().find(|peer| peer.name == "d3")?;
        (d3.state == "silent").then_some(())
    });
    // d3 may not keep anything before d2 says that it knows.
    cluster.signal("d2", Process::Dispatch, "-STOP");
    cluster.start("d3", None).unwrap();
    until("d3 has all records", || {
        let status = cluster.dispatch_status("d3")?;
        (status.caught_up && !status.keeps_flows).then_some(())
    });
    let before = counted(&cluster, "d1", &BEGIN).0;
    cluster.signal("d1", Process::Dispatch, "-STOP");
    clients.iter_mut().for_each(ask);
    let entrusted = counted(&cluster, "d1", &BEGIN).0 - before;
    cluster.kill("d1", None).unwrap();
    cluster.signal("d2", Process::Dispatch, "-CONT");
    assert_eq!(entrusted, 16, "each has an heir");
    until("d3 keeps its share", || {
        (cluster.dispatch_status("d3")?.keeps_flows).then_some(())
    });
    clients.iter_mut().for_each(ask);
}

/// They are idle, and nothing says so but their owner.
#[test]
fn an_owner_is_asked_before_it_is_drained() {
    let cluster = cluster("staydrain");
    let numbered = Numbered::of(&cluster, &["1k"]);
    let mut asked = vec![0; 100];
    let mut ask = |client: &mut Connection, number: u64| {
        asked[number as usize] += 1;
        let answered = numbered.ask_each(client, [number]);
        answered.expect("it is answered")[&number].clone()
    };
    let mut first = cluster.on("c1", Connection::open);
    let number = (0..100).find(|&number| ask(&mut first, number) == "b1");
    let number = number.expect("of three backends it is one");
    let mut clients: Vec<Connection> = kept_by(&cluster, "d1").take(4).collect();
    for _ in 0..5 {
        for client in &mut clients {
            assert_eq!(ask(client, number), "b1");
        }
    }
    assert!(counted(&cluster, "d1", &STAY).0 > 0, "they have stayed");
    let record = |client: &Connection| {
        let port = client.port().to_be_bytes();
        let flows = cluster.dispatcher_maps_of("d2").flows.all().unwrap();
        let its = flows.into_iter().find(|(key, _)| key.client_port == port);
        its.map(|(_, flow)| flow)
    };
    for client in &clients {
        until("all of it is told, and d2 cannot know that", || {
            let flow = record(client)?;
            (flow.requests == 5 && flow.marks & MARK_UNSURE != 0).then_some(())
        });
    }
    cluster.kill("d1", None).unwrap();
    until("all flows are d2's", || {
        let status = cluster.dispatch_status("d2")?;
        (status.peers.iter().all(|peer| !peer.fit)).then_some(())
    });
    let drained = cluster.trapeze("d2", &["drain", "b1", "--deadline", "20s"]);
    assert!(drained.status.success(), "{drained:?}");
    for client in &mut clients {
        let marks = record(client).expect("d2 has its record").marks;
        assert_eq!(marks & MARK_UNSURE, 0, "its owner was asked");
        assert_ne!(ask(client, number), "b1");
    }
    check_logs(&cluster, &asked);
}

/// It has had more than its record says, and does not come to the end of that: where the next
/// request begins nobody knows.
#[test]
fn an_owner_that_is_at_work_for_long_keeps_the_connection() {
    let cluster = scattered_over(&BOTH, "staylong", |options| {
        options.backends = Some(1);
        options.policy = Some(PolicyKind::Hrw);
    });
    let [short, long] = ["1k", "100m"].map(|name| cluster.document(name));
    let get = |path: &str| format!("GET /{path} HTTP/1.1\r\nHost: site.example\r\n\r\n");
    let mut d1s = kept_by(&cluster, "d1");
    let (mut client, mut other) = (d1s.next().unwrap(), d1s.next().unwrap());
    // From here on decisions stand for both.
    other.send(get("100m")).skip(1000).unwrap();
    other.abort();
    for _ in 0..2 {
        same(&client.send(get("1k")).response().body, &short);
    }
    // d2 knows of these, and then nobody is there who tells it more.
    std::thread::sleep(Duration::from_millis(300));
    let before = counted(&cluster, "d1", &STAY).0;
    cluster.signal("d1", Process::Dispatch, "-STOP");
    client.send(get("100m"));
    until("it stays", || {
        (cluster.dispatcher_named("d1").of("stayed") > before).then_some(())
    });
    cluster.kill("d1", None).unwrap();
    client.send(get("1k"));
    until("it is known that nobody knows", || {
        let flows = cluster.dispatcher_maps_of("d2").flows.all().unwrap();
        let its = |port: &[u8; 2]| u16::from_be_bytes(*port) == client.port();
        let mut flows = flows.iter().filter(|(key, _)| its(&key.client_port));
        flows
            .any(|(_, flow)| flow.marks & MARK_TUNNEL != 0)
            .then_some(())
    });
    same(&client.response().body, &long);
    same(&client.response().body, &short);
    same(&client.send(get("1k")).response().body, &short);
    until("its owner was asked", || {
        (counted(&cluster, "d2", &STAY).1 > 0).then_some(())
    });
}

/// What its client says until the end of the answer is what acknowledges it, and is nothing to the owner that the next
/// keeper knows of.
#[test]
fn an_answer_from_where_nobody_was_told_goes_on() {
    let cluster = by_turns("stayanswer");
    let [short, long] = ["1k", "100m"].map(|name| cluster.document(name));
    let get = |path: &str| format!("GET /{path} HTTP/1.1\r\nHost: site.example\r\n\r\n");
    let mut d1s = kept_by(&cluster, "d1");
    let (mut client, mut other) = (d1s.next().unwrap(), d1s.next().unwrap());
    other.send(get("100m")).skip(1000).unwrap();
    other.abort();
    for _ in 0..2 {
        same(&client.send(get("1k")).response().body, &short);
    }
    std::thread::sleep(Duration::from_millis(300));
    let before = counted(&cluster, "d1", &MOVE).0;
    cluster.signal("d1", Process::Dispatch, "-STOP");
    client.send(get("100m"));
    until("it moves", || {
        (counted(&cluster, "d1", &MOVE).0 > before).then_some(())
    });
    cluster.kill("d1", None).unwrap();
    same(&client.response().body, &long);
    same(&client.send(get("1k")).response().body, &short);
    let followed = counted(&cluster, "d2", &MOVE).1;
    assert!(followed > 0, "{followed}");
}

const GET: &str = "GET /1k HTTP/1.1\r\nHost: site.example\r\n\r\n";

/// A head that comes in pieces is the daemon's.
fn send_in_pieces(clients: &mut [Connection]) {
    let (line, rest) = GET.split_at(10);
    for client in &mut *clients {
        client.send(line);
    }
    std::thread::sleep(Duration::from_millis(20));
    for client in clients {
        client.send(rest);
    }
}

fn read_answers(clients: &mut [Connection], wanted: &[u8]) {
    for client in clients {
        same(&client.response().body, wanted);
    }
}

/// Connections that d1 keeps and that have been given two requests, of which d2 has been told.
fn asked_twice<const N: usize>(cluster: &Cluster, wanted: &[u8]) -> [Connection; N] {
    let clients: Vec<Connection> = kept_by(cluster, "d1").take(N).collect();
    let mut clients: [Connection; N] = clients.try_into().expect("so many");
    for _ in 0..2 {
        (clients.iter_mut()).for_each(|client| same(&client.send(GET).response().body, wanted));
    }
    std::thread::sleep(Duration::from_millis(300));
    clients
}

fn until_counted(cluster: &Cluster, names: &[&str]) {
    until("d2 counts what it has done", || {
        let counters = cluster.dispatch_status("d2")?.counters;
        let is_counted = |name: &&str| counters.get(*name).is_some_and(|&times| times > 0);
        names.iter().all(is_counted).then_some(())
    });
}

/// Their keeper has moved them, and the word of that was lost. The owners before do not know who has them.
#[test]
fn connections_that_a_daemon_has_moved_are_found_when_nobody_was_told() {
    let cluster = by_turns("stayfound");
    let wanted = cluster.document("1k");
    let mut clients = asked_twice::<4>(&cluster, &wanted);
    cluster.run("d1", &["ip", "route", "add", "blackhole", "10.77.0.12"]);
    for _ in 0..2 {
        send_in_pieces(&mut clients);
        read_answers(&mut clients, &wanted);
    }
    cluster.kill("d1", None).unwrap();
    send_in_pieces(&mut clients);
    read_answers(&mut clients, &wanted);
    until_counted(&cluster, &["asked-others", "followed"]);
}

/// The other one has heard that their owners were asked to give some of them up, of some who has them next, of some both
/// and of some nothing.
#[test]
fn connections_that_a_daemon_moves_are_found_whatever_news_are_lost() {
    let cluster = by_turns("staylossy");
    let wanted = cluster.document("1k");
    let mut clients = asked_twice::<60>(&cluster, &wanted);
    cluster.run(
        "d1",
        &[
            "nft",
            "table ip lossy {\nchain out {\ntype filter hook output priority 0;\n\
             ip daddr 10.77.0.12 numgen random mod 2 == 0 drop\n}\n}",
        ],
    );
    send_in_pieces(&mut clients);
    for (client, asks_ahead) in clients.iter_mut().zip([true, false].into_iter().cycle()) {
        if asks_ahead {
            client.send(GET).send(GET);
            (0..2).for_each(|_| same(&client.response().body, &wanted));
        }
        same(&client.response().body, &wanted);
    }
    cluster.kill("d1", None).unwrap();
    send_in_pieces(&mut clients);
    read_answers(&mut clients, &wanted);
}

/// An owner has given a connection up, and who asked for that has not heard it.
#[test]
fn a_connection_that_nobody_has_goes_on() {
    let cluster = by_turns("staynobody");
    let wanted = cluster.document("1k");
    let mut client = asked_twice::<1>(&cluster, &wanted);
    let owner = {
        let answer = client[0].send(GET).response();
        cluster.backend(answer.backend()).address
    };
    std::thread::sleep(Duration::from_millis(300));
    let given_up = || cluster.agents().of("given-up");
    let before = given_up();
    let rule = format!(
        "table ip deaf {{\nchain in {{\ntype filter hook input priority 0;\nip saddr {owner} drop\n}}\n}}"
    );
    cluster.run("d1", &["nft", &rule]);
    send_in_pieces(&mut client);
    until("it is given up", || (given_up() > before).then_some(()));
    cluster.kill("d1", None).unwrap();
    same(&client[0].response().body, &wanted);
    until_counted(&cluster, &["asked-others", "found-with-nobody"]);
    same(&client[0].send(GET).response().body, &wanted);
}
