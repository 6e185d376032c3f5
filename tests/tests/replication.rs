//! Several dispatchers as one: every packet through another one than the packet before, and
//! one after another dies (docs/protocol/replication.md).

use std::net::{Ipv4Addr, Shutdown, SocketAddrV4};
use std::time::Duration;

use trapeze_core::flow::FlowKey;
use trapeze_datapath::abi::{Dispatcher, Flow, FlowState};
use trapeze_lab::{Options, Process};
use trapeze_tests::scattered::{cut_power_in_turn, keeper, ready, scattered_over};
use trapeze_tests::{Cluster, Connection, VIP, same, until, work_meanwhile};

const DISPATCHERS: [&str; 4] = ["d1", "d2", "d3", "d4"];

/// Two sprays that deal packets in turn, one each, to four dispatchers.
fn scattered(test: &str, change: impl FnOnce(&mut Options)) -> Cluster {
    scattered_over(&DISPATCHERS, test, change)
}

fn sum(cluster: &Cluster, what: &str) -> u64 {
    let of = |name: &&str| cluster.dispatcher_named(name).of(what);
    DISPATCHERS.iter().map(of).sum()
}

#[test]
fn every_packet_through_another_dispatcher_changes_no_byte() {
    let cluster = scattered("scatter", |_| {});
    let documents = ["1k", "100k", "1m"].map(|name| (name, cluster.document(name)));
    cluster.on("c1", || {
        // Connections of their own, and kept alive, moving between the backends.
        for (name, document) in &documents {
            for _ in 0..10 {
                same(&Connection::open().ask(&format!("/{name}")).body, document);
            }
            let mut client = Connection::open();
            for _ in 0..20 {
                same(&client.ask(&format!("/{name}")).body, document);
            }
        }
        // Heads in pieces, each of which comes to another dispatcher.
        for size in [1, 7, 20] {
            let mut client = Connection::open();
            let head = "GET /1k HTTP/1.1\r\nHost: site.example\r\nX-A: bcdefgh\r\n\r\n";
            client.send_pieces(head, size, Duration::from_millis(2));
            same(&client.response().body, &documents[0].1);
        }
        // Pipelined.
        let mut client = Connection::open();
        client.send("GET /100k HTTP/1.1\r\nHost: a\r\n\r\n".repeat(6));
        for _ in 0..6 {
            same(&client.response().body, &documents[1].1);
        }
        // Bodies, with a length and in chunks.
        for round in 0..6 {
            let body: Vec<u8> = (0..400_000u32).map(|at| ((at * 7) >> 3) as u8).collect();
            let mut client = Connection::open();
            for part in 0..3 {
                let name = format!("r{round}p{part}");
                let head = format!("PUT /upload/{name} HTTP/1.1\r\nHost: a\r\n");
                if part == 1 {
                    client.send(head + "Transfer-Encoding: chunked\r\n\r\n");
                    for chunk in body.chunks(30_000) {
                        client
                            .send(format!("{:x}\r\n", chunk.len()))
                            .send(chunk)
                            .send("\r\n");
                    }
                    client.send("0\r\n\r\n");
                } else {
                    client.send(head + &format!("Content-Length: {}\r\n\r\n", body.len()));
                    client.send(&body);
                }
                let response = client.response();
                assert!(response.status < 300, "{}", response.head);
                let at = cluster.uploads(response.backend()).join(name);
                same(&std::fs::read(at).expect("it is stored"), &body);
            }
        }
    });
    for name in DISPATCHERS {
        let counts = cluster.dispatcher_named(name);
        assert!(
            counts.of("forwarded") > 100 && counts.of("passed") > 10,
            "{name}: {counts:?}"
        );
        assert!(counts.of("accepted") > 10, "{name}: {counts:?}");
    }
    // All know that all is over, of what they know: a connection may have ended before all were told.
    until("all records are of closed flows", || {
        let is_open = |name: &&str| {
            let flows = cluster.dispatcher_maps_of(name).flows.all().unwrap();
            let mut states = flows.iter().map(|(_, flow)| flow.state);
            states.any(|state| state == FlowState::Established as u32)
        };
        (!DISPATCHERS.iter().any(is_open)).then_some(())
    });
}

/// Power cuts, one dispatcher after another, while clients work in each way.
fn survive(cluster: &Cluster, rounds: usize) {
    work_meanwhile(cluster, |clients| {
        cut_power_in_turn(cluster, &DISPATCHERS, rounds, clients);
    });
}

#[test]
fn power_cuts_of_one_dispatcher_after_another_fail_no_transfer() {
    let cluster = scattered("cuts", |_| {});
    survive(&cluster, 8);
    assert!(sum(&cluster, "passed") > 100);
}

#[test]
fn with_ten_milliseconds_between_heartbeats_a_power_cut_is_hardly_noticed() {
    let cluster = scattered("cuts10", |options| {
        options.spray_heartbeat = Some(Duration::from_millis(10));
    });
    survive(&cluster, 4);
}

/// For a connection that no dispatcher but two have heard of: the others have the old one's record.
#[test]
fn a_clients_port_may_be_used_again_at_once() {
    let cluster = scattered("port", |_| {});
    let one = cluster.document("1k");
    cluster.on("c1", || {
        std::thread::scope(|scope| {
            for port in 21_000..21_020 {
                let one = &one;
                scope.spawn(move || {
                    for _ in 0..40 {
                        let mut client = Connection::try_to(VIP, port).expect("a connection");
                        same(&client.ask("/1k").body, one);
                        drop(client);
                        std::thread::sleep(Duration::from_millis(10));
                    }
                });
            }
        });
    });
}

/// Servers close, and then their clients do, to a dispatcher: the others' records end, too.
#[test]
fn what_ends_without_a_backend_ends_everywhere() {
    let cluster = scattered("quiet", |_| {});
    let mut clients: Vec<_> = cluster.on("c1", || {
        let open = |_| Connection::open();
        (0..8).map(open).collect()
    });
    for client in &mut clients {
        assert_eq!(client.ask("/1k").status, 200);
    }
    let status = cluster.status().unwrap();
    for backend in ["b1", "b2"] {
        let server = status.host(backend).unwrap().processes[&Process::Server].pid;
        cluster.run(backend, &["kill", "-HUP", &server.unwrap().to_string()]);
    }
    let all_are = |states: &[FlowState]| {
        DISPATCHERS.iter().all(|name| {
            let flows = cluster.dispatcher_maps_of(name).flows.all().unwrap();
            let is_so = |(_, flow): &(_, Flow)| {
                FlowState::from_raw(flow.state).is_some_and(|state| states.contains(&state))
            };
            flows.iter().filter(|flow| is_so(flow)).count() == clients.len()
        })
    };
    until("nobody has them", || {
        all_are(&[FlowState::Vacant]).then_some(())
    });
    for client in &clients {
        client.stream().shutdown(Shutdown::Write).unwrap();
    }
    until("they have ended", || {
        all_are(&[FlowState::ClientFin, FlowState::Reset]).then_some(())
    });
}

/// Heads of which a part has been acknowledged, by dispatchers that then die: the next one
/// goes on from there, since no client sends that part again.
#[test]
fn a_half_read_request_outlives_the_dispatcher_that_reads_it() {
    let cluster = scattered("halfread", |_| {});
    let wanted = cluster.document("1k");
    let c1 = Ipv4Addr::new(10, 77, 0, 1);
    cluster.on("c1", || {
        let mut clients: Vec<_> = (0..12).map(|_| Connection::open()).collect();
        // One has had a request before, and moves.
        for client in clients.iter_mut().skip(6) {
            same(&client.ask("/1k").body, &wanted);
        }
        for client in &mut clients {
            client.send("GET /1k HTTP/1.1\r\nHost: site");
        }
        std::thread::sleep(Duration::from_millis(300));
        for client in &mut clients {
            client.send(".example\r\nX-Long: ");
        }
        std::thread::sleep(Duration::from_millis(300));
        let of = |client: &Connection| {
            keeper(&cluster, &DISPATCHERS, SocketAddrV4::new(c1, client.port()))
        };
        let its = |name: &str| clients.iter().filter(|client| of(client) == name).count();
        let victim = DISPATCHERS
            .into_iter()
            .max_by_key(|name| its(name))
            .unwrap();
        assert!(its(victim) >= 3, "of 12 connections");
        cluster.kill(victim, None).unwrap();
        for client in &mut clients {
            client.send("x\r\n\r\n");
            same(&client.response().body, &wanted);
        }
        // What workers count shows a moment later.
        until("three were read on", || {
            let others = DISPATCHERS.iter().filter(|name| **name != victim);
            let read_on = others.filter_map(|name| {
                let counters = cluster.dispatch_status(name)?.counters;
                counters.get("read-on").copied()
            });
            (read_on.sum::<u64>() >= 3).then_some(())
        });
    });
}

/// Browsers open connections ahead: older than a cookie, they are told by proofs.
#[test]
fn a_silent_connection_outlives_its_cookie_and_its_dispatcher() {
    let cluster = scattered("silence", |_| {});
    let wanted = cluster.document("1k");
    cluster.on("c1", || {
        let mut clients: Vec<_> = (0..12).map(|_| Connection::open()).collect();
        std::thread::sleep(Duration::from_secs(52));
        // Two of four, one after the other: nobody is left who had all proofs at first.
        for victim in ["d1", "d2"] {
            cluster.kill(victim, None).unwrap();
            std::thread::sleep(Duration::from_secs(1));
        }
        for client in &mut clients {
            same(&client.ask("/1k").body, &wanted);
        }
    });
}

/// Else both would decide about the same flow (1.5).
#[test]
fn who_joins_keeps_nothing_before_all_others_know() {
    let cluster = scattered("joining", |options| {
        options.spray_heartbeat = Some(Duration::from_millis(600));
    });
    for victim in ["d2", "d4"] {
        cluster.kill(victim, None).unwrap();
        until("it is found dead", || {
            let gone = |name: &&str| lots_of(&cluster, name, victim) == 0;
            let mut others = DISPATCHERS.iter().filter(|name| **name != victim);
            others.all(gone).then_some(())
        });
        cluster.start(victim, None).unwrap();
        until("it keeps flows", || {
            let status = cluster.dispatch_status(victim)?;
            status.keeps_flows.then_some(())
        });
        for name in DISPATCHERS.iter().filter(|name| **name != victim) {
            let lots = lots_of(&cluster, name, victim);
            assert!((10_000..25_000).contains(&lots), "{name}: {lots}");
        }
    }
}

/// How many of 65,536 lots are another's, as a dispatcher has dealt them.
fn lots_of(cluster: &Cluster, dispatcher: &str, other: &str) -> usize {
    let maps = cluster.dispatcher_maps_of(dispatcher);
    let dispatchers = maps.dispatchers.all().unwrap();
    let of = |(_, member): &&(u32, Dispatcher)| member.name.starts_with(other.as_bytes());
    let Some((slot, _)) = dispatchers.iter().find(of) else {
        return 0;
    };
    let lots = maps.lots.get(&0).unwrap().expect("there is one table");
    let its = |lot: &&u16| u32::from(**lot) == *slot;
    lots.slots.iter().filter(its).count()
}

#[test]
fn who_joins_catches_up_and_keeps_its_share() {
    let cluster = scattered("joins", |_| {});
    let wanted = cluster.document("1k");
    cluster.kill("d3", None).unwrap();
    cluster.on("c1", || {
        let mut clients: Vec<_> = (0..40).map(|_| Connection::open()).collect();
        for client in &mut clients {
            same(&client.ask("/1k").body, &wanted);
        }
        cluster.start("d3", None).unwrap();
        ready(&cluster, &DISPATCHERS, "d3");
        let flows = cluster.dispatcher_maps_of("d3").flows.all().unwrap();
        for client in &clients {
            let port = client.port();
            let found = flows
                .iter()
                .find(|(key, _)| FlowKey::from(*key).client.port() == port);
            let (key, flow) = found.expect("it has the record");
            assert!(flow.version > 0, "{key:?}: {flow:?}");
        }
        // What it keeps by the rule comes to it, from all.
        let before = cluster.dispatcher_named("d3");
        let fresh: Vec<u16> = (0..40)
            .map(|_| {
                let mut client = Connection::open();
                same(&client.ask("/1k").body, &wanted);
                client.port()
            })
            .collect();
        let kept = fresh.iter().filter(|&&port| {
            let client = SocketAddrV4::new(Ipv4Addr::new(10, 77, 0, 1), port);
            keeper(&cluster, &DISPATCHERS, client) == "d3"
        });
        let since = cluster.dispatcher_named("d3") - before;
        let decided = since.of("to-daemon") + since.of("decided");
        assert!(decided >= kept.count() as u64 && decided < 40, "{decided}");
        // All others die, and it goes on alone.
        for name in ["d1", "d2", "d4"] {
            cluster.kill(name, None).unwrap();
        }
        for client in &mut clients {
            same(&client.ask("/1k").body, &wanted);
        }
    });
}
