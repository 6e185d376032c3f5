//! Spliced servers behind several dispatchers: any of them rewrites any packet, and none of
//! them matters (docs/protocol/splice.md §4).

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use trapeze_core::flow::FlowKey;
use trapeze_datapath::abi::{self, Flow, FlowState, Pod, SPLICED_OPEN, Spliced};
use trapeze_datapath::clock;
use trapeze_datapath::map::Update;
use trapeze_lab::{LinkSettings, Process};
use trapeze_tests::scattered::{cut_power_in_turn, ready, scattered_over};
use trapeze_tests::{Cluster, Connection, Content, Raised, Splice, Tally, VIP, same, until};

const DISPATCHERS: [&str; 2] = ["d1", "d2"];

/// Two sprays that deal packets in turn, one each, to two dispatchers.
fn scattered(test: &str, splice: Splice) -> Cluster {
    let cluster = scattered_over(&DISPATCHERS, &splice.named(test), |options| {
        options.transfer = Some(splice.transfer().into());
    });
    until("its servers have been asked", || {
        let up = ["b1", "b2"].map(|name| cluster.backend(name).state == "up");
        (up == [true, true]).then_some(())
    });
    cluster
}

trapeze_tests::by_each_splice!(
    every_packet_through_another_dispatcher_changes_no_byte,
    power_cuts_in_the_middle_of_transfers_fail_none,
    who_is_restarted_goes_on,
    a_port_that_others_know_from_before_is_opened_all_the_same,
);

fn every_packet_through_another_dispatcher_changes_no_byte(splice: Splice) {
    let cluster = scattered("splscatter", splice);
    let documents = ["1k", "100k", "10m"].map(|name| (name, cluster.document(name)));
    let settings = LinkSettings {
        loss: 0.005,
        reorder: 0.01,
        duplicate: 0.01,
        ..LinkSettings::default()
    };
    for faults in [LinkSettings::default(), settings] {
        cluster.link("c1", &faults).unwrap();
        cluster.on("c1", || {
            for (name, document) in &documents {
                let mut client = Connection::open();
                for _ in 0..5 {
                    same(&client.ask(&format!("/{name}")).body, document);
                    same(&Connection::open().ask(&format!("/{name}")).body, document);
                }
            }
            // Heads in pieces, each of which comes to another dispatcher.
            for size in [3, 7, 20] {
                let mut client = Connection::open();
                let head = "GET /1k HTTP/1.1\r\nHost: site.example\r\nX-A: bcdefgh\r\n\r\n";
                client.send_pieces(head, size, Duration::from_millis(2));
                same(&client.response().body, &documents[0].1);
            }
            for (round, size) in [0, 1, 100_000, 5_000_000].into_iter().enumerate() {
                let body = Content::new(size, size).bytes();
                cluster.upload(&mut Connection::open(), &format!("r{round}"), &body);
            }
        });
    }
    for name in DISPATCHERS {
        let counts = cluster.dispatcher_named(name);
        for what in ["spliced-to-server", "passed"] {
            assert!(counts.of(what) > 20, "{name}: {counts:?}");
        }
        // A reset goes by way of a dispatcher, and what speaks for no socket any more.
        let (answers, few) = (counts.of("spliced-to-client"), 20);
        assert_eq!(answers < few, splice.is_split(), "{name}: {counts:?}");
        let splices = cluster.dispatcher_maps_of(name).splices.all().unwrap();
        let both = |one: &str| {
            let own = |(key, _): &(trapeze_datapath::abi::FlowKey, _)| key.vip_addr[15];
            let number = if one == "d1" { 111 } else { 112 };
            splices.iter().map(own).any(|last| last == number)
        };
        assert!(
            both("d1") && both("d2"),
            "{name} knows what each has opened"
        );
    }
}

fn power_cuts_in_the_middle_of_transfers_fail_none(splice: Splice) {
    let cluster = scattered("splcuts", splice);
    let (large, body) = (cluster.document("1m"), Content::new(7, 700_000).bytes());
    let stop = AtomicBool::new(false);
    let tallies: [Tally; 3] = Default::default();
    let going = || !stop.load(Ordering::Relaxed);
    std::thread::scope(|scope| {
        let _raised = Raised(&stop);
        let [kept, downloads, uploads] = &tallies;
        let (cluster, large, body, going) = (&cluster, &large, &body, &going);
        let mut clients = Vec::new();
        for number in 0..3 {
            clients.push(scope.spawn(move || {
                cluster.on("c1", || {
                    let mut client = Connection::open();
                    let pause = Duration::from_millis(5);
                    kept.note_each(going, pause, || {
                        same(&client.ask("/1m").body, large);
                    });
                });
            }));
            clients.push(scope.spawn(move || {
                cluster.on("c1", || {
                    let pause = Duration::from_millis(5);
                    downloads.note_each(going, pause, || {
                        same(&Connection::open().ask("/1m").body, large);
                    });
                });
            }));
            clients.push(scope.spawn(move || {
                cluster.on("c1", || {
                    let pause = Duration::from_millis(5);
                    uploads.note_each(going, pause, || {
                        cluster.upload(&mut Connection::open(), &format!("u{number}"), body);
                    });
                });
            }));
        }
        cut_power_in_turn(cluster, &DISPATCHERS, 6, &clients);
        stop.store(true, Ordering::Relaxed);
        for client in clients {
            client.join().expect("all transfers are right");
        }
    });
    for (name, tally) in ["kept alive", "down", "up"].iter().zip(&tallies) {
        tally.expect_steady(name);
    }
}

/// A daemon that comes back knows the connections of before, and takes no port of theirs.
fn who_is_restarted_goes_on(splice: Splice) {
    let cluster = scattered("splagain", splice);
    let one = cluster.document("1k");
    cluster.on("c1", || {
        let mut clients: Vec<_> = (0..10).map(|_| Connection::open()).collect();
        for client in &mut clients {
            same(&client.ask("/1k").body, &one);
        }
        for name in DISPATCHERS {
            cluster.restart(name, Process::Dispatch);
            ready(&cluster, &DISPATCHERS, name);
        }
        for client in &mut clients {
            same(&client.ask("/1k").body, &one);
        }
        for _ in 0..20 {
            same(&Connection::open().ask("/1k").body, &one);
        }
    });
}

/// Who comes up anew takes ports that have been taken before, of which others may still know: their records of what has
/// ended stay for a while.
fn a_port_that_others_know_from_before_is_opened_all_the_same(splice: Splice) {
    let cluster = scattered("splport", splice);
    let one = cluster.document("1k");
    let ended = FlowKey {
        client: SocketAddr::from(([10, 77, 0, 1], 9)),
        vip: VIP.into(),
    };
    for (knows, opens) in [("d1", 112), ("d2", 111)] {
        let splices = cluster.dispatcher_maps_of(knows).splices;
        let of_backends = [21, 22].map(|host| Ipv4Addr::new(10, 77, 0, host));
        for (port, backend) in (1024..=u16::MAX).flat_map(|port| of_backends.map(|b| (port, b))) {
            let own = SocketAddrV4::new(Ipv4Addr::new(10, 77, 0, opens), port);
            let splice = abi::Splice::between(own, SocketAddrV4::new(backend, 80));
            let open = Spliced {
                flow: ended.into(),
                state: SPLICED_OPEN,
                splice,
                ..Spliced::zeroed()
            };
            let key = splice.key(backend);
            splices.put(&key, &open, Update::Any).unwrap();
        }
    }
    let ask = || {
        cluster.on("c1", || {
            for _ in 0..20 {
                same(&Connection::open().ask("/1k").body, &one);
            }
        });
    };
    // Their flow is over: data paths pass what is not its own.
    ask();
    // It is not, as far as they know: daemons do.
    let now = clock::monotonic().as_nanos() as u64;
    let open = Flow {
        state: FlowState::Established as u32,
        created_ns: now,
        last_seen_ns: now,
        ..Flow::zeroed()
    };
    for name in DISPATCHERS {
        let flows = cluster.dispatcher_maps_of(name).flows;
        flows.put(&ended.into(), &open, Update::Any).unwrap();
    }
    ask();
    let counted = |what: &str| {
        let of = |name: &str| cluster.dispatch_status(name).unwrap().counters;
        DISPATCHERS
            .iter()
            .filter_map(|name| of(name).get(what).copied())
            .sum::<u64>()
    };
    until("some were asked of the other one", || {
        (counted("passed-answers") > 0).then_some(())
    });
    assert_eq!(counted("connects-refused"), 0);
}
