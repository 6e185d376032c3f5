//! Daemons of several dispatchers die, while their data paths go on
//! (docs/protocol/replication.md).

use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use trapeze_core::flow::FlowKey;
use trapeze_datapath::abi::{self, Flow, FlowState, MARK_TUNNEL};
use trapeze_datapath::map::Update;
use trapeze_lab::Process;
use trapeze_tests::scattered::{keeper, ready, scattered_over};
use trapeze_tests::{Cluster, Connection, Content, Raised, same, until};

const DISPATCHERS: [&str; 3] = ["d1", "d2", "d3"];

fn scattered(test: &str) -> Cluster {
    scattered_over(&DISPATCHERS, test, |_| {})
}

fn keeper_of(cluster: &Cluster, client: &Connection) -> String {
    let client = SocketAddrV4::new(Ipv4Addr::new(10, 77, 0, 1), client.port());
    keeper(cluster, &DISPATCHERS, client)
}

/// What a dispatcher has of a client's connection.
fn record(
    cluster: &Cluster,
    dispatcher: &str,
    client: &Connection,
) -> Option<(abi::FlowKey, Flow)> {
    let flows = cluster.dispatcher_maps_of(dispatcher).flows.all().unwrap();
    (flows.into_iter()).find(|(key, _)| FlowKey::from(*key).client.port() == client.port())
}

/// Who has seen a FIN as the flow's keeper may keep it no more when its daemon is back.
#[test]
fn an_end_is_told_by_whoever_has_seen_it() {
    let cluster = scattered("ends");
    cluster.on("c1", || {
        let mut client = Connection::open();
        client.ask("/1k").ok();
        let keeper = keeper_of(&cluster, &client);
        let other = *DISPATCHERS.iter().find(|name| **name != keeper).unwrap();
        let (key, flow) = until("the record is there", || record(&cluster, other, &client));
        assert_eq!(flow.state, FlowState::Established as u32);
        let ended = Flow {
            state: FlowState::ClientFin as u32,
            ..flow
        };
        let flows = &cluster.dispatcher_maps_of(other).flows;
        flows.put(&key, &ended, Update::Replace).unwrap();
        until("all know", || {
            let knows = |name: &&str| {
                let (_, flow) = record(&cluster, name, &client)?;
                (flow.state == FlowState::ClientFin as u32).then_some(())
            };
            (DISPATCHERS.iter().filter_map(knows).count() == 3).then_some(())
        });
    });
}

/// What a data path without a daemon gave to an owner, whoever keeps the flow next would know
/// nothing of, and wait for bytes that do not come again.
#[test]
fn a_request_waits_for_the_next_keeper_when_its_keepers_daemon_has_died() {
    let cluster = scattered("nextkeeper");
    let wanted = cluster.document("1k");
    cluster.on("c1", || {
        let mut client = Connection::open();
        same(&client.ask("/1k").body, &wanted);
        let keeper = keeper_of(&cluster, &client);
        cluster.kill(&keeper, Some(Process::Dispatch)).unwrap();
        // Of two leases this one ends first, now and then.
        let standing = &cluster.dispatcher_maps_of(&keeper).standing;
        let mut rules = standing.get(&0).unwrap().expect("there is one");
        rules.valid_until_ns = 1;
        standing.put(&0, &rules, Update::Any).unwrap();
        same(&client.ask("/1k").body, &wanted);
        let stays = |name: &&str| {
            record(&cluster, name, &client).is_some_and(|(_, flow)| flow.marks & MARK_TUNNEL != 0)
        };
        assert_eq!(DISPATCHERS.iter().find(|name| stays(name)), None);
        same(&client.ask("/10k").body, &cluster.document("10k"));
    });
}

/// A daemon is killed when it has changed a record, and has told nobody yet. Its data path lets
/// nothing follow from that, and the daemon after it takes what the others have.
#[test]
fn what_a_daemon_has_not_told_before_it_dies_has_not_happened() {
    let cluster = scattered("untold");
    // It was given to its owner, or has moved, and been refused, and moved again.
    for moves in [0, 3] {
        cluster.on("c1", || die_untold(&cluster, moves));
    }
}

fn die_untold(cluster: &Cluster, moves: u32) {
    let wanted = cluster.document("1k");
    let mut client = Connection::open();
    same(&client.ask("/1k").body, &wanted);
    let keeper = keeper_of(cluster, &client);
    cluster.kill(&keeper, Some(Process::Dispatch)).unwrap();
    let maps = cluster.dispatcher_maps_of(&keeper);
    let (key, flow) = record(cluster, &keeper, &client).expect("it keeps it");
    let request = "GET /1k HTTP/1.1\r\nHost: site.example\r\n\r\n";
    let mut meta = flow.meta;
    let epoch = u32::from_be_bytes(meta[4..8].try_into().unwrap());
    meta[4..8].copy_from_slice(&epoch.wrapping_add(moves).to_be_bytes());
    let untold = Flow {
        next: flow.next.wrapping_add(request.len() as u32),
        requests: flow.requests + 1,
        version: flow.version + 1,
        turn: maps.told.get(&0).unwrap().expect("there is one") + 1,
        meta,
        ..flow
    };
    maps.flows.put(&key, &untold, Update::Replace).unwrap();
    same(&client.send(request).response().body, &wanted);
    // Somebody has placed it who could tell.
    let of = |name: &str| {
        let (_, flow) = record(cluster, name, &client).expect("all have it");
        (
            flow.meta,
            flow.version,
            flow.maker,
            flow.next,
            flow.requests,
        )
    };
    let others: Vec<_> = (DISPATCHERS.into_iter())
        .filter(|name| *name != keeper)
        .collect();
    until("the others know of it", || {
        let is_behind = |name: &&str| of(name).3 == untold.next;
        (others.iter().all(is_behind) && of(others[0]) == of(others[1])).then_some(())
    });
    cluster.start(&keeper, Some(Process::Dispatch)).unwrap();
    ready(cluster, &DISPATCHERS, &keeper);
    assert_eq!(of(&keeper), of(others[0]));
    for _ in 0..3 {
        same(&client.ask("/1k").body, &wanted);
    }
}

/// What a daemon has told clients to have of their heads others have copies of, and who was not
/// there when it was told gets them before it keeps flows.
#[test]
fn half_read_requests_are_read_on_by_daemons_that_come_back() {
    let cluster = scattered("readon");
    let wanted = cluster.document("1k");
    let read_half = || {
        let mut clients: Vec<_> = (0..12).map(|_| Connection::open()).collect();
        for client in clients.iter_mut().skip(6) {
            same(&client.ask("/1k").body, &wanted);
        }
        for piece in ["GET /1k HTTP/1.1\r\nHost: site", ".example\r\nX-Long: "] {
            for client in &mut clients {
                client.send(piece);
            }
            std::thread::sleep(Duration::from_millis(200));
        }
        clients
    };
    cluster.on("c1", || {
        // Those that were read there itself, and by others while it was away.
        let mut clients = read_half();
        cluster.kill("d2", Some(Process::Dispatch)).unwrap();
        until("others keep its flows", || {
            let keeps = |name: &&str| {
                let status = cluster.dispatch_status(name)?;
                let d2 = status.peers.iter().find(|peer| peer.name == "d2")?;
                (d2.lots == 0).then_some(())
            };
            (["d1", "d3"].iter().filter_map(keeps).count() == 2).then_some(())
        });
        clients.extend(read_half());
        let its = clients
            .iter()
            .filter(|client| keeper_of(&cluster, client) == "d2");
        assert!(its.count() >= 3, "of 24 connections");
        cluster.start("d2", Some(Process::Dispatch)).unwrap();
        ready(&cluster, &DISPATCHERS, "d2");
        for client in &mut clients {
            client.send("x\r\n\r\n");
        }
        for client in &mut clients {
            same(&client.response().body, &wanted);
        }
    });
}

/// Daemons die in turn under load, and come back. Nothing fails, and in the end all know that
/// all is over.
#[test]
fn daemons_that_die_in_turn_fail_no_request_and_leave_no_record() {
    let cluster = scattered("dying");
    let stop = AtomicBool::new(false);
    let done = AtomicU32::new(0);
    std::thread::scope(|scope| {
        let _raised = Raised(&stop);
        let (cluster, stop, done) = (&cluster, &stop, &done);
        let clients: Vec<_> = (0..24)
            .map(|number| {
                scope.spawn(move || cluster.on("c1", || visit(cluster, number, stop, done)))
            })
            .collect();
        std::thread::sleep(Duration::from_millis(500));
        for round in 0..9 {
            let victim = DISPATCHERS[round % 3];
            cluster.kill(victim, Some(Process::Dispatch)).unwrap();
            // Shorter than its leases, about as long, and longer.
            std::thread::sleep(Duration::from_millis([300, 2000, 2600][round / 3]));
            cluster.start(victim, Some(Process::Dispatch)).unwrap();
            if round % 2 == 0 {
                ready(cluster, &DISPATCHERS, victim);
            }
            std::thread::sleep(Duration::from_millis(700));
            let died = clients.iter().any(|client| client.is_finished());
            assert!(!died, "a request failed in round {round}, {victim}");
        }
        stop.store(true, Ordering::Relaxed);
    });
    let done = done.load(Ordering::Relaxed);
    println!("{done} requests");
    assert!(done > 1000, "{done}");
    until("no dispatcher has a record of an open connection", || {
        let open = |name: &&str| {
            let flows = cluster.dispatcher_maps_of(name).flows.all().unwrap();
            let over = [FlowState::ClientFin, FlowState::Reset].map(|state| state as u32);
            flows.iter().any(|(_, flow)| !over.contains(&flow.state))
        };
        (!DISPATCHERS.iter().any(open)).then_some(())
    });
}

/// Connections of fifty requests each, with a pause now and then.
fn visit(cluster: &Cluster, number: u64, stop: &AtomicBool, done: &AtomicU32) {
    let documents = ["1k", "10k"].map(|name| (name, cluster.document(name)));
    let body = Content::new(number, 4399).bytes();
    let mut round = number;
    while !stop.load(Ordering::Relaxed) {
        let mut client = Connection::open();
        for _ in 0..50 {
            round += 1;
            let (name, document) = &documents[(round / 3 % 2) as usize];
            match round % 3 {
                0 => same(&client.ask(&format!("/{name}")).body, document),
                way => {
                    let length = body.len();
                    client.send(format!(
                        "POST /upload/u{number} HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n"
                    ));
                    // In one piece, or in two with a pause between them.
                    if way == 2 {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    let response = client.send(&body).response();
                    assert!(response.status < 300, "{}", response.head);
                }
            }
            done.fetch_add(1, Ordering::Relaxed);
            if stop.load(Ordering::Relaxed) {
                break;
            }
            std::thread::sleep(Duration::from_millis(
                [0, 2, 30, 400][(round * 7 % 4) as usize],
            ));
        }
    }
}
