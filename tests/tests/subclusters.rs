//! Dispatchers in two sub-clusters, of which sprays know one: the other one's flows have no
//! record there, and their packets are passed on (docs/protocol/replication.md 9).

use std::net::{Ipv4Addr, SocketAddrV4};
use std::thread::ScopedJoinHandle;
use std::time::Duration;

use trapeze_core::flow::FlowKey;
use trapeze_core::membership::lots;
use trapeze_core::membership::subclusters::Homes;
use trapeze_lab::{Options, Process};
use trapeze_tests::raw::RawClient;
use trapeze_tests::scattered::{deal_in_turn, ready};
use trapeze_tests::{Cluster, Connection, Splice, VIP, same, until, without_node, work_meanwhile};

const FRONT: [&str; 2] = ["d1", "d2"];
const BACK: [&str; 2] = ["d3", "d4"];

/// Two sprays that deal packets in turn, one each, and two sub-clusters of two dispatchers.
fn apart(test: &str, change: impl FnOnce(&mut Options)) -> Cluster {
    let cluster = Cluster::with(test, |options| {
        options.sprays = Some(2);
        options.dispatchers = Some(4);
        options.sub_clusters = Some(2);
        options.backends = Some(2);
        change(options);
    });
    deal_in_turn(&cluster);
    for dispatcher in FRONT.into_iter().chain(BACK) {
        is_back(&cluster, dispatcher);
    }
    cluster
}

/// It keeps its share of its sub-cluster's flows, and those of the other one know it.
fn is_back(cluster: &Cluster, dispatcher: &str) {
    let (own, others) = match FRONT.contains(&dispatcher) {
        true => (FRONT, BACK),
        false => (BACK, FRONT),
    };
    ready(cluster, &own, dispatcher);
    until("it is a gate of the other sub-cluster", || {
        let mut views = others.iter().filter_map(|n| cluster.dispatch_status(n));
        let is_known = views.all(|view| {
            let seen = view.gates.iter().find(|gate| gate.name == dispatcher);
            seen.is_some_and(|gate| gate.fit && gate.state == "alive" && gate.lots > 0)
        });
        is_known.then_some(())
    });
}

/// The sub-cluster that a flow is of.
fn home_of(cluster: &Cluster, flow: &FlowKey) -> usize {
    let key = lots::key(&format!("lab-{}", cluster.name()));
    Homes::new(2).of(lots::lot_of(&key, flow).expect("IPv4"))
}

const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 200);

fn flow_from(port: u16) -> FlowKey {
    FlowKey {
        client: SocketAddrV4::new(CLIENT, port).into(),
        vip: VIP.into(),
    }
}

/// To which sub-cluster each dispatcher's records belong: flows of the front end, and others.
fn records(cluster: &Cluster, dispatcher: &str) -> [usize; 2] {
    let mut count = [0; 2];
    for (flow, _) in cluster.dispatcher_maps_of(dispatcher).flows.all().unwrap() {
        count[home_of(cluster, &flow.into())] += 1;
    }
    count
}

#[test]
fn the_front_end_passes_on_what_it_has_no_records_of() {
    let cluster = apart("sub", |_| {});
    let spray = cluster.spray_status("s1");
    let names: Vec<&str> = spray.dispatchers.iter().map(|d| &*d.name).collect();
    assert_eq!(names, FRONT, "sprays know the front end alone");
    let documents = ["1k", "100k", "1m"].map(|name| (name, cluster.document(name)));
    let body: Vec<u8> = (0..400_000u32).map(|at| ((at * 7) >> 3) as u8).collect();
    cluster.on("c1", || {
        // Each dispatcher is to have some of each kind, by whichever ports the clients have.
        for (name, document) in &documents {
            for _ in 0..30 {
                same(&Connection::open().ask(&format!("/{name}")).body, document);
            }
            for _ in 0..12 {
                let mut client = Connection::open();
                for _ in 0..10 {
                    same(&client.ask(&format!("/{name}")).body, document);
                }
            }
        }
        // A head in pieces, and a connection that is silent at first.
        for _ in 0..4 {
            let mut client = Connection::open();
            let head = "GET /1k HTTP/1.1\r\nHost: site.example\r\nX-A: bcdefgh\r\n\r\n";
            std::thread::sleep(Duration::from_millis(100));
            client.send_pieces(head, 7, Duration::from_millis(2));
            same(&client.response().body, &documents[0].1);
        }
        (0..8)
            .for_each(|round| cluster.upload(&mut Connection::open(), &format!("u{round}"), &body));
    });
    for name in FRONT {
        let [own, others] = records(&cluster, name);
        assert!(own > 5 && others == 0, "{name}: {own}, {others}");
        let counts = cluster.dispatcher_named(name);
        assert!(counts.of("passed") > 100, "{name}: {counts:?}");
    }
    for name in BACK {
        let [others, own] = records(&cluster, name);
        assert!(own > 5 && others == 0, "{name}: {own}, {others}");
        let counts = cluster.dispatcher_named(name);
        let (accepted, forwarded) = (counts.of("accepted"), counts.of("forwarded"));
        assert!(accepted > 100 && forwarded > 100, "{name}: {counts:?}");
    }
}

fn cut_power(cluster: &Cluster, victims: &[&str], clients: &[ScopedJoinHandle<'_, ()>]) {
    std::thread::sleep(Duration::from_millis(500));
    for victim in victims {
        cluster.kill(victim, None).unwrap();
        std::thread::sleep(Duration::from_millis(1500));
        cluster.start(victim, None).unwrap();
        is_back(cluster, victim);
        std::thread::sleep(Duration::from_millis(500));
        let died = clients.iter().any(ScopedJoinHandle::is_finished);
        assert!(!died, "a transfer failed, {victim}");
    }
}

#[test]
fn power_cuts_in_either_sub_cluster_fail_no_transfer() {
    let cluster = apart("subcuts", |_| {});
    work_meanwhile(&cluster, |clients| {
        cut_power(&cluster, &["d3", "d1", "d4", "d2"], clients);
    });
}

trapeze_tests::by_each_splice!(nor_those_of_connections_that_are_spliced);

fn nor_those_of_connections_that_are_spliced(splice: Splice) {
    let cluster = apart(&splice.named("subspl"), |options| {
        options.transfer = Some(splice.transfer().into());
    });
    until("its servers have been asked", || {
        let up = ["b1", "b2"].map(|name| cluster.backend_as_seen_by("d3", name).state == "up");
        (up == [true, true]).then_some(())
    });
    work_meanwhile(&cluster, |clients| {
        cut_power(&cluster, &["d4", "d1"], clients);
    });
}

/// Of a router, about an answer of a flow that the front end knows nothing of.
#[test]
fn errors_reach_the_backends_of_flows_elsewhere() {
    let cluster = apart("subicmp", |_| {});
    cluster.lend_address("c1", &CLIENT.to_string());
    let is_elsewhere = |port: &u16| home_of(&cluster, &flow_from(*port)) == 1;
    let port = (3000..4000).find(is_elsewhere).expect("half of them are");
    cluster.on("c1", || {
        let mut raw = RawClient::connect(SocketAddrV4::new(CLIENT, port), VIP);
        raw.send(0, b"GET /1m HTTP/1.1\r\nHost: a\r\n\r\n");
        raw.receive_until("the answer begins", |raw| raw.received().len() > 100_000);
        raw.say_fragmentation_needed(800);
        raw.receive_until("all has come", |raw| raw.received().len() > 1 << 20);
    });
    let heard = BACK.map(|name| cluster.dispatcher_named(name).of("icmp-forwarded"));
    assert_eq!(heard.iter().sum::<u64>(), 1);
    let caches = ["b1", "b2"].map(|name| cluster.run(name, &["ip", "route", "show", "cache"]));
    assert!(caches.concat().contains("mtu 800"), "{caches:?}");
}

/// Its connections are lost with it, and new ones are the front end's until it is back.
#[test]
fn the_flows_of_a_sub_cluster_that_is_dead_fall_to_the_front_end() {
    let cluster = apart("subdead", |_| {});
    let small = cluster.document("1k");
    for victim in BACK {
        cluster.kill(victim, None).unwrap();
    }
    until("the front end has noticed", || {
        let mut views = FRONT.iter().filter_map(|n| cluster.dispatch_status(n));
        let is_noticed = |view: trapeze_dispatcher::Status| {
            view.gates
                .iter()
                .all(|gate| gate.state == "silent" && gate.lots == 0)
        };
        views.all(is_noticed).then_some(())
    });
    let ask = || {
        cluster.on("c1", || {
            for _ in 0..20 {
                same(&Connection::open().ask("/1k").body, &small);
            }
        });
    };
    ask();
    let [_, fallen] = records(&cluster, "d1");
    assert!(fallen > 0, "some of them were the other one's");
    for victim in BACK {
        cluster.start(victim, None).unwrap();
    }
    BACK.into_iter()
        .for_each(|victim| is_back(&cluster, victim));
    ask();
    let [_, own] = records(&cluster, "d3");
    assert!(own > 0, "they are its own again");
}

/// What servers say comes to the front end first, which has no record of these.
#[test]
fn connections_of_a_member_elsewhere_that_is_taken_out_go_on() {
    let cluster = apart("subleft", |options| {
        options.transfer = Some("splice".into());
    });
    until("its servers have been asked", || {
        let up = ["b1", "b2"].map(|name| cluster.backend_as_seen_by("d3", name).state == "up");
        (up == [true, true]).then_some(())
    });
    let (wanted, opened) = (cluster.document("1k"), Ipv4Addr::new(10, 77, 0, 114));
    cluster.on("c1", || {
        let mut clients: Vec<_> = (0..60).map(|_| Connection::open()).collect();
        for client in &mut clients {
            same(&client.ask("/1k").body, &wanted);
        }
        let splices = cluster.dispatcher_maps_of("d3").splices.all().unwrap();
        let of_d4 = splices
            .iter()
            .filter(|(_, to)| to.splice.address == opened.octets());
        assert!(of_d4.count() > 2, "d4 has opened some");
        cluster.signal("d4", Process::Dispatch, "-TERM");
        until("it has stopped", || {
            let status = cluster.status().unwrap();
            (!status.host("d4").unwrap().processes[&Process::Dispatch].running).then_some(())
        });
        let without = without_node(&cluster.config(), "d4");
        let sprays = ["s1", "s2"].map(|host| (host, Process::Spray));
        let dispatchers = ["d1", "d2", "d3"].map(|host| (host, Process::Dispatch));
        for (host, process) in sprays.into_iter().chain(dispatchers) {
            let said = cluster.reload(host, process, &without);
            assert!(said.contains("reloaded"), "{host}: {said}");
        }
        for _ in 0..5 {
            for client in &mut clients {
                same(&client.ask("/1k").body, &wanted);
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    });
}
