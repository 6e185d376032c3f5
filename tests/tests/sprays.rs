//! Sprays in front of dispatchers: who gets which packets, and what happens when one of
//! either dies, comes back, or is lied to.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use trapeze_core::config::ClusterKey;
use trapeze_core::flow::Handshake;
use trapeze_core::membership::lots::LOTS;
use trapeze_core::membership::{Presence, SprayState, Workload};
use trapeze_core::seq::ClientSeq;
use trapeze_core::wire::meta::{Binding, Care, Keys, Kind, Meta};
use trapeze_core::wire::segment::Segment;
use trapeze_core::wire::tcp::{Flags, Header, Options as TcpOptions};
use trapeze_core::wire::{geneve, ipv4};
use trapeze_datapath::abi;
use trapeze_datapath::clock;
use trapeze_datapath::map::Update;
use trapeze_datapath::spray::SprayMaps;
use trapeze_lab::{Options, Process};
use trapeze_tests::raw::{RawClient, RawSender};
use trapeze_tests::scattered::{keeper, ready};
use trapeze_tests::{Cluster, Connection, Raised, VIP, same, until};

const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 200);
const DISPATCHERS: [&str; 4] = ["d1", "d2", "d3", "d4"];

fn sprayed(test: &str, sprays: u8, dispatchers: u8, change: impl FnOnce(&mut Options)) -> Cluster {
    Cluster::with(test, |options| {
        options.sprays = Some(sprays);
        options.dispatchers = Some(dispatchers);
        options.backends = Some(2);
        change(options);
    })
}

/// Packets that a spray has sent to each dispatcher, by name.
fn packets(cluster: &Cluster, spray: &str) -> BTreeMap<String, u64> {
    let maps = cluster.spray_maps(spray);
    let sent = maps.sprayed.sums().expect("the map is read");
    let slots = (0..sent.len()).filter_map(|slot| {
        let entry = maps.dispatchers.get(&(slot as u32)).expect("it is read")?;
        (!entry.name().is_empty()).then(|| (entry.name().to_owned(), sent[slot]))
    });
    slots.collect()
}

fn since(before: &BTreeMap<String, u64>, after: &BTreeMap<String, u64>) -> Vec<u64> {
    let change = |name: &&str| after[*name] - before[*name];
    DISPATCHERS.iter().map(change).collect()
}

/// The spray that has the address, and the one that stands by: with both started at once and
/// little CPU the second may be the first to listen.
fn active_and_standby(cluster: &Cluster) -> [&'static str; 2] {
    until("one has the address", || {
        let state = |name: &str| cluster.spray_status(name).state;
        match (&*state("s1"), &*state("s2")) {
            ("active", "standby") => Some(["s1", "s2"]),
            ("standby", "active") => Some(["s2", "s1"]),
            _ => None,
        }
    })
}

/// SYNs from that many ports; each is answered by whichever dispatcher has it.
fn send_syns(ports: std::ops::Range<u16>) {
    let sender = RawSender::open();
    for (sent, port) in ports.enumerate() {
        let syn = Segment {
            source: SocketAddrV4::new(CLIENT, port).into(),
            destination: VIP.into(),
            header: Header {
                seq: 7,
                flags: Flags::SYN,
                window: 1000,
                options: TcpOptions {
                    mss: Some(1460),
                    ..TcpOptions::default()
                },
                ..Header::default()
            },
            payload: Vec::new(),
        };
        sender.send_segment(&syn).expect("it is sent");
        if sent % 200 == 199 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn with_spraying(cluster: &Cluster, text: &str) -> String {
    let config = cluster.config();
    let (before, _) = config.split_once("\n[spraying]").unwrap_or((&config, ""));
    format!("{before}\n[spraying]\n{text}\n")
}

#[test]
fn each_mode_spreads_packets_as_it_says() {
    let cluster = sprayed("modes", 1, 4, |_| {});
    cluster.lend_address("c1", &CLIENT.to_string());
    let run = |ports: std::ops::Range<u16>| {
        let before = packets(&cluster, "s1");
        let count = u64::from(ports.end - ports.start);
        cluster.on("c1", || send_syns(ports));
        until("all have come", || {
            let change = since(&before, &packets(&cluster, "s1"));
            (change.iter().sum::<u64>() == count).then_some(change)
        })
    };

    // By hash: exactly those that the rule names.
    let spread = run(10_000..14_000);
    let mut wanted = vec![0; 4];
    for port in 10_000..14_000 {
        let client = SocketAddrV4::new(CLIENT, port);
        let owner = keeper(&cluster, &DISPATCHERS, client);
        wanted[DISPATCHERS.iter().position(|d| *d == owner).unwrap()] += 1;
    }
    assert_eq!(spread, wanted);
    for (name, count) in DISPATCHERS.iter().zip(&spread) {
        assert!(cluster.dispatcher_named(name).of("syn-answered") >= *count);
    }

    // In batches: rows of 40, so that each has as many, but for begun rows (one a CPU).
    cluster.reload(
        "s1",
        Process::Spray,
        &with_spraying(&cluster, "mode = \"batch\""),
    );
    until("it is in use", || {
        (cluster.spray_status("s1").mode == "batch").then_some(())
    });
    for count in run(20_000..24_000) {
        let cpus = std::thread::available_parallelism().unwrap().get() as u64;
        assert!(count.abs_diff(1000) <= 40 * cpus, "{count}");
    }

    // By workload: in proportion to what dispatchers say they have to spare.
    cluster.reload(
        "s1",
        Process::Spray,
        &with_spraying(&cluster, "mode = \"workload\""),
    );
    let factors = [800, 400, 200, 600];
    for (name, factor) in DISPATCHERS.iter().zip(factors) {
        // Its daemon would say what its CPUs do.
        cluster.kill(name, Some(Process::Dispatch)).unwrap();
        let says = Presence::Dispatcher {
            workload: Workload::new(factor),
        };
        let lease = Duration::from_secs(3600);
        let presence = abi::Presence::new(says, says, clock::monotonic(), lease);
        let maps = cluster.dispatcher_maps_of(name);
        maps.presence.put(&0, &presence, Update::Any).unwrap();
    }
    until("the lots are dealt so", || {
        let status = cluster.spray_status("s1");
        let lots = status.dispatchers.iter().map(|d| d.lots.unwrap_or(0));
        let dealt: Vec<u32> = lots.map(|lots| (lots as u32).div_ceil(328) * 10).collect();
        (dealt == [800, 400, 200, 600]).then_some(())
    });
    let spread = run(30_000..38_000);
    for (count, factor) in spread.iter().zip(factors) {
        let wanted = 8000.0 * f64::from(factor) / 2000.0;
        // Five standard deviations.
        let off = (*count as f64 - wanted).abs();
        assert!(off < 5.0 * wanted.sqrt(), "{spread:?}");
    }
}

/// Keep-alive requests on a connection until told to stop; each answer is counted.
fn keep_asking(stop: &AtomicBool, wanted: &[u8], port: u16, answers: &AtomicU64) {
    let mut client = Connection::try_to(VIP, port).expect("it is accepted");
    while !stop.load(Ordering::Relaxed) {
        let asked = client
            .try_send("GET /1k HTTP/1.1\r\nHost: a\r\n\r\n")
            .and_then(|()| client.try_response(true));
        let response = asked.unwrap_or_else(|error| panic!("port {port}: {error}"));
        same(&response.body, wanted);
        answers.fetch_add(1, Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Waits until each client has had several answers more.
fn all_go_on(answers: &[AtomicU64]) {
    let counts = || answers.iter().map(|count| count.load(Ordering::Relaxed));
    let before: Vec<u64> = counts().collect();
    until("all clients go on", || {
        let mut both = counts().zip(&before);
        both.all(|(now, before)| now >= before + 3).then_some(())
    });
}

/// Whose each lot is.
fn lots_of(cluster: &Cluster, spray: &str) -> Box<abi::Lots> {
    let lots = cluster.spray_maps(spray).lots.get(&0);
    Box::new(lots.expect("the map is read").expect("there are some"))
}

#[test]
fn a_sprays_power_cut_stops_traffic_only_until_the_standby_has_the_address() {
    // One backend: what is measured is the sprays', not a handoff's of what was lost.
    let cluster = sprayed("standby", 2, 2, |options| options.backends = Some(1));
    let wanted = cluster.document("1k");
    let stop = AtomicBool::new(false);
    let answers: [AtomicU64; 12] = Default::default();
    let state = |name: &str| cluster.spray_status(name).state;
    let [first, second] = active_and_standby(&cluster);
    std::thread::scope(|scope| {
        let _raised = Raised(&stop);
        for (port, answers) in (4000..).zip(&answers) {
            let (cluster, stop, wanted) = (&cluster, &stop, &wanted);
            scope.spawn(move || cluster.on("c1", || keep_asking(stop, wanted, port, answers)));
        }
        all_go_on(&answers);
        cluster.kill(first, None).unwrap();
        until("the standby has taken over", || {
            (state(second) == "active").then_some(())
        });
        all_go_on(&answers);
        // No flapping: it comes back and stands by.
        cluster.start(first, None).unwrap();
        std::thread::sleep(Duration::from_millis(1500));
        assert_eq!(
            (state(first), state(second)),
            ("standby".into(), "active".into())
        );
        let idle = cluster.spray(first).of("sprayed");
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(
            cluster.spray(first).of("sprayed"),
            idle,
            "the other has all"
        );
        cluster.kill(second, None).unwrap();
        until("the other has taken over", || {
            (state(first) == "active").then_some(())
        });
        let sprayed = cluster.spray(first).of("sprayed");
        all_go_on(&answers);
        assert!(cluster.spray(first).of("sprayed") > sprayed + 36);
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_dispatchers_death_moves_only_its_own_flows_and_ends_none() {
    let cluster = sprayed("moves", 1, 4, |_| {});
    let wanted = cluster.document("1k");
    let stop = AtomicBool::new(false);
    let answers: Vec<AtomicU64> = (0..40).map(|_| AtomicU64::new(0)).collect();
    std::thread::scope(|scope| {
        let _raised = Raised(&stop);
        for (port, answers) in (5000..).zip(&answers) {
            let (cluster, stop, wanted) = (&cluster, &stop, &wanted);
            scope.spawn(move || cluster.on("c1", || keep_asking(stop, wanted, port, answers)));
        }
        all_go_on(&answers);
        let lots = lots_of(&cluster, "s1");
        cluster.kill("d2", None).unwrap();
        until("it is found silent", || {
            let status = cluster.spray_status("s1");
            (status.dispatchers[1].state == "silent").then_some(())
        });
        let maps = cluster.spray_maps("s1");
        let is_d2 = |slot: &u16| {
            let entry = maps.dispatchers.get(&(*slot).into()).expect("it is read");
            entry.is_some_and(|entry| entry.name() == "d2")
        };
        let of_d2 = lots.slots.iter().copied().find(is_d2).expect("it had some");
        let (mut moved, mut stayed) = (0, 0);
        for (before, after) in lots.slots.iter().zip(lots_of(&cluster, "s1").slots) {
            match *before == of_d2 {
                true => moved += u32::from(after != of_d2),
                false => stayed += u32::from(after == *before),
            }
        }
        assert_eq!(moved + stayed, LOTS as u32, "its own, and all of them");
        assert!(moved > 14_000, "{moved}");
        // Nobody is sent there any more: all new connections work.
        cluster.on("c1", || {
            for _ in 0..50 {
                same(&Connection::open().ask("/1k").body, &wanted);
            }
        });
        // Those of before, too.
        all_go_on(&answers);
        stop.store(true, Ordering::Relaxed);
    });
    // It comes back by itself, and has its lots again.
    let before = cluster.spray_status("s1").dispatchers[0].lots;
    cluster.start("d2", None).unwrap();
    until("it has its lots again", || {
        let status = cluster.spray_status("s1");
        let d2 = &status.dispatchers[1];
        (d2.state == "alive" && d2.lots.is_some_and(|lots| lots > 14_000)).then_some(())
    });
    assert!(cluster.spray_status("s1").dispatchers[0].lots < before);
}

#[test]
fn ten_milliseconds_between_heartbeats_work() {
    let cluster = sprayed("ten", 2, 2, |options| {
        options.spray_heartbeat = Some(Duration::from_millis(10));
    });
    let stop = AtomicBool::new(false);
    cluster.lend_address("c1", &CLIENT.to_string());
    std::thread::scope(|scope| {
        let (cluster, stop) = (&cluster, &stop);
        let _raised = Raised(stop);
        scope.spawn(move || {
            cluster.on("c1", || {
                while !stop.load(Ordering::Relaxed) {
                    send_syns(1000..1100);
                    std::thread::sleep(Duration::from_micros(500));
                }
            });
        });
        std::thread::sleep(Duration::from_millis(1000));
        let [first, second] = active_and_standby(cluster);
        let status = cluster.spray_status(first);
        let alive = status.dispatchers.iter().all(|d| d.state == "alive");
        assert!(alive, "none is found silent without reason: {status:?}");
        let (active, standby) = (cluster.spray_maps(first), cluster.spray_maps(second));
        let sum = |maps: &SprayMaps| maps.sprayed.sums().unwrap().iter().sum::<u64>();

        // As the lab does it first when it cuts the power.
        cluster.set_cable("d1", false).unwrap();
        let cut = Instant::now();
        let sent = || active.sprayed.sums().unwrap()[0];
        let (mut last, mut when) = (sent(), cut);
        while cut.elapsed() < Duration::from_millis(400) {
            std::thread::sleep(Duration::from_micros(500));
            let now = sent();
            if now != last {
                (last, when) = (now, Instant::now());
            }
        }
        let took = when - cut;
        println!("the last packet went to the dead dispatcher {took:?} after the cut");
        assert_eq!(cluster.spray_status(first).dispatchers[0].state, "silent");

        let before = sum(&standby);
        cluster.set_cable(first, false).unwrap();
        let cut = Instant::now();
        until("the standby has packets", || {
            (sum(&standby) > before).then_some(())
        });
        println!("the standby had packets {:?} after the cut", cut.elapsed());
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn dispatchers_behind_a_router_get_packets_encapsulated() {
    let cluster = sprayed("routed", 1, 2, |options| options.clients = 2);
    // c2 is the router in front of d1; d2 is on the spray's own subnet.
    for sysctl in [
        "net.ipv4.ip_forward=1",
        "net.ipv4.conf.all.send_redirects=0",
        "net.ipv4.conf.eth0.send_redirects=0",
    ] {
        cluster.run("c2", &["sysctl", "-qw", sysctl]);
    }
    let route = ["ip", "route", "add", "10.77.0.11/32", "via", "10.77.0.2"];
    cluster.run("s1", &route);
    std::thread::sleep(Duration::from_millis(1500));
    let document = cluster.document("1m");
    let c1 = Ipv4Addr::new(10, 77, 0, 1);
    let of = |name: &str| {
        let mut ports = 6000..7000u16;
        let live = &DISPATCHERS[..2];
        let port = ports.find(|&port| keeper(&cluster, live, SocketAddrV4::new(c1, port)) == name);
        port.expect("one of a thousand")
    };
    for (name, far) in [("d1", true), ("d2", false)] {
        // The end of the connection before may be on its way.
        std::thread::sleep(Duration::from_millis(300));
        let before = (cluster.spray("s1"), cluster.dispatcher_named(name));
        let port = of(name);
        cluster.on("c1", || {
            let mut client = Connection::try_to(VIP, port).unwrap();
            for _ in 0..3 {
                same(&client.ask("/1m").body, &document);
            }
            // Segments as long as they get, and joined ones.
            let body = vec![b'x'; 3 << 20];
            let head = format!(
                "PUT /upload/{name} HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n",
                body.len()
            );
            let response = client.send(head).send(&body).response();
            assert!(response.status < 300, "{}", response.head);
            let stored = cluster.uploads(response.backend()).join(name);
            same(&std::fs::read(stored).unwrap(), &body);
        });
        let s1 = cluster.spray("s1") - before.0;
        let dispatcher = cluster.dispatcher_named(name) - before.1;
        assert!(s1.of("sprayed") > 50, "{s1:?}");
        let (enclosed, unpacked) = (s1.of("encapsulated"), dispatcher.of("unpacked"));
        match far {
            true => assert!(
                enclosed == s1.of("sprayed") && unpacked == enclosed,
                "{s1:?}"
            ),
            false => assert_eq!((enclosed, unpacked), (0, 0)),
        }
        for reason in ["bad-tag", "bad-encapsulation", "rewrite", "too-big"] {
            assert_eq!(s1.of(reason) + dispatcher.of(reason), 0, "{reason}");
        }
    }
}

#[test]
fn daemons_of_sprays_come_and_go_without_a_packet_lost() {
    let cluster = sprayed("restarts", 2, 2, |_| {});
    let wanted = cluster.document("1k");
    let stop = AtomicBool::new(false);
    let answers: [AtomicU64; 8] = Default::default();
    let pid = |host: &str| {
        let status = cluster.status().unwrap();
        status.host(host).unwrap().processes[&Process::Spray].pid
    };
    let signal = |host: &str, signal: &str| {
        let pid = pid(host).expect("it runs").to_string();
        let done = std::process::Command::new("kill")
            .args([signal, &pid])
            .status();
        assert!(done.unwrap().success());
    };
    std::thread::scope(|scope| {
        let _raised = Raised(&stop);
        for (port, answers) in (7000..).zip(&answers) {
            let (cluster, stop, wanted) = (&cluster, &stop, &wanted);
            scope.spawn(move || cluster.on("c1", || keep_asking(stop, wanted, port, answers)));
        }
        all_go_on(&answers);
        for _ in 0..3 {
            cluster.kill("s1", Some(Process::Spray)).unwrap();
            let before = cluster.spray("s1").of("sprayed");
            std::thread::sleep(Duration::from_millis(900));
            assert!(
                cluster.spray("s1").of("sprayed") > before,
                "without its daemon"
            );
            cluster.start("s1", Some(Process::Spray)).unwrap();
        }
        assert_eq!(cluster.spray_status("s1").state, "active");
        assert_eq!(cluster.spray("s2").of("sprayed"), 0, "nothing has moved");
        signal("s1", "-USR2");
        std::thread::sleep(Duration::from_millis(300));
        cluster.start("s1", Some(Process::Spray)).unwrap();
        assert_eq!(cluster.spray("s2").of("sprayed"), 0, "nothing has moved");
        // An orderly end: the other has the address before this one's data path goes.
        signal("s1", "-TERM");
        until("s2 has it", || {
            (cluster.spray_status("s2").state == "active").then_some(())
        });
        std::thread::sleep(Duration::from_millis(700));
        cluster.start("s1", Some(Process::Spray)).unwrap();
        all_go_on(&answers);
        stop.store(true, Ordering::Relaxed);
    });
    // What is only late is said again, too; who hears it twice says so (RFC 2883).
    let [repeated, heard_twice] = ["TcpRetransSegs", "TcpExtTCPDSACKRecv"].map(|name| {
        let said = cluster.run("c1", &["nstat", "-asz", name]);
        let count = said
            .lines()
            .last()
            .and_then(|line| line.split_whitespace().nth(1));
        count
            .and_then(|count| count.parse::<u64>().ok())
            .expect("a count")
    });
    assert!(
        repeated <= heard_twice,
        "{repeated} said again, {heard_twice} for nothing"
    );
    assert!(cluster.spray("s2").of("sprayed") > 50);
}

/// A heartbeat, or an answer to one, under some key.
fn heartbeat(secret: u8, kind: Kind, number: u32, from: [u8; 4], to: [u8; 4]) -> Vec<u8> {
    let keys = Keys::new(&[ClusterKey {
        id: 1,
        secret: [secret; 16],
    }]);
    let mut inner = Vec::new();
    // An answer encloses the question.
    let (asker, asked) = match kind {
        Kind::BeatReply(_) => (to, from),
        _ => (from, to),
    };
    ipv4::write_header(asker.into(), asked.into(), 253, 20, &mut inner);
    inner.extend([0; 20]);
    let meta = Meta {
        kind,
        epoch: number,
        start: ClientSeq::new(0),
        handshake: Handshake::default(),
        server_port: 0,
        requests: 0,
        care: Care::default(),
    };
    let binding = Binding::of_packet(Ipv4Addr::from(to).into(), &inner).unwrap();
    let mut out = Vec::new();
    geneve::write(&meta.seal(&keys.unwrap(), &binding), &inner, &mut out);
    out
}

#[test]
fn forged_heartbeats_and_garbage_change_nothing() {
    let cluster = sprayed("forged", 2, 2, |_| {});
    let (s1, d1, d2) = ([10, 77, 0, 91], [10, 77, 0, 11], [10, 77, 0, 12]);
    cluster.kill("d2", None).unwrap();
    until("d2 is silent", || {
        (cluster.spray_status("s1").dispatchers[1].state == "silent").then_some(())
    });
    let peers = || {
        let all = cluster.dispatcher_maps().peers.all().unwrap();
        let mut known: Vec<_> = all
            .iter()
            .map(|(key, peer)| (key.addr, peer.said))
            .collect();
        known.sort();
        known
    };
    let (known, before) = (peers(), (cluster.spray("s1"), cluster.dispatcher()));
    assert_eq!(known.len(), 3, "both sprays ask, and d2 has");
    let idle = Presence::Dispatcher {
        workload: Some(Workload::IDLE),
    };
    let active = Presence::Spray(SprayState::Active);
    cluster.on("c1", || {
        let socket = UdpSocket::bind("10.77.0.1:0").unwrap();
        let now = clock::cluster().as_millis() as u32;
        for round in 0..500u32 {
            let number = now.wrapping_add(round);
            for (to, packet) in [
                (s1, heartbeat(7, Kind::BeatReply(idle), number, d2, s1)),
                (
                    s1,
                    heartbeat(7, Kind::BeatReply(active), number, [10, 77, 0, 92], s1),
                ),
                (
                    s1,
                    heartbeat(7, Kind::Beat(active), number, [10, 77, 0, 92], s1),
                ),
                (
                    d1,
                    heartbeat(7, Kind::Beat(active), number, [10, 77, 0, 66], d1),
                ),
                (
                    d1,
                    heartbeat(
                        7,
                        Kind::Sprayed { again: false },
                        number,
                        [10, 77, 0, 66],
                        d1,
                    ),
                ),
                (s1, vec![round as u8; round as usize * 2 + 1]),
                (d1, vec![round as u8; round as usize * 2 + 1]),
            ] {
                let to = SocketAddrV4::new(Ipv4Addr::from(to), 6081);
                socket.send_to(&packet, to).unwrap();
            }
            if round % 50 == 0 {
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    });
    let status = cluster.spray_status("s1");
    assert_eq!(status.dispatchers[1].state, "silent");
    assert_eq!((&*status.state, status.has_addresses), ("active", true));
    assert_eq!(peers(), known);
    let spray = cluster.spray("s1") - before.0;
    let dispatcher = cluster.dispatcher() - before.1;
    assert!(spray.of("bad-tag") >= 1500, "{spray:?}");
    assert!(dispatcher.of("bad-tag") >= 1000, "{dispatcher:?}");
    assert_eq!(dispatcher.of("unpacked"), 0);
    cluster.on("c1", || {
        for _ in 0..20 {
            Connection::open().ask("/1k").ok();
        }
    });
}

#[test]
fn the_address_is_the_active_sprays_and_answers_echo_requests() {
    let cluster = sprayed("arp", 2, 2, |_| {});
    cluster.run("c1", &["ping", "-c", "2", "-W", "2", "10.77.0.100"]);
    let neighbour = cluster.run("c1", &["ip", "neigh", "show", "10.77.0.100"]);
    assert!(neighbour.contains("02:7a:0a:4d:00:5b"), "s1's: {neighbour}");
    for dispatcher in ["d1", "d2"] {
        let addresses = cluster.run(dispatcher, &["ip", "-o", "address"]);
        assert!(
            addresses.contains("lo    inet 10.77.0.100/32"),
            "{addresses}"
        );
        assert!(
            !addresses.contains("eth0    inet 10.77.0.100"),
            "{addresses}"
        );
    }
    // All is taken back when daemons are told to stop.
    let status = cluster.status().unwrap();
    for (host, process) in [("s1", Process::Spray), ("d1", Process::Dispatch)] {
        let pid = status.host(host).unwrap().processes[&process].pid.unwrap();
        let killed = std::process::Command::new("kill")
            .arg(pid.to_string())
            .status();
        assert!(killed.unwrap().success());
        until("it has gone", || {
            let running = cluster.status().unwrap().host(host).unwrap().processes[&process].running;
            (!running).then_some(())
        });
        let addresses = cluster.run(host, &["ip", "-o", "address"]);
        assert!(!addresses.contains("10.77.0.100"), "{addresses}");
        for (name, was) in [("forwarding", "0"), ("arp_evict_nocarrier", "1")] {
            let name = format!("net.ipv4.conf.eth0.{name}");
            let sysctl = cluster.run(host, &["sysctl", "-n", &name]);
            assert_eq!(sysctl.trim(), was, "{host}");
        }
    }
    cluster.on("c1", || Connection::open().ask("/1k").ok().to_owned());
}

#[test]
fn icmp_errors_come_to_the_dispatcher_of_the_connection() {
    let cluster = sprayed("errors", 1, 4, |_| {});
    for dispatcher in DISPATCHERS {
        ready(&cluster, &DISPATCHERS, dispatcher);
    }
    cluster.lend_address("c1", &CLIENT.to_string());
    let counted = |event| -> Vec<u64> {
        let of = |name: &&str| cluster.dispatcher_named(name).of(event);
        DISPATCHERS.iter().map(of).collect()
    };
    let mut wanted = vec![0; 4];
    cluster.on("c1", || {
        for port in 3000..3012 {
            let client = SocketAddrV4::new(CLIENT, port);
            let mut raw = RawClient::connect(client, VIP);
            raw.send(0, b"GET /1k HTTP/1.1\r\nHost: a\r\n\r\n");
            raw.receive_until("the answer is whole", |raw| raw.received().len() > 1024);
            raw.send_icmp(3, 4, 1200);
            let owner = keeper(&cluster, &DISPATCHERS, client);
            wanted[DISPATCHERS.iter().position(|d| *d == owner).unwrap()] += 1;
        }
    });
    until("all have come", || {
        let come = [counted("icmp-forwarded"), counted("icmp-no-flow")];
        (come.concat().iter().sum::<u64>() == 12).then_some(())
    });
    assert_eq!(counted("icmp-no-flow"), [0; 4]);
    assert_eq!(counted("icmp-forwarded"), wanted);
}

/// One request on a connection of its own, after another, until told to stop; how many.
fn keep_connecting(stop: &AtomicBool, wanted: &[u8]) -> u32 {
    let mut count = 0;
    while !stop.load(Ordering::Relaxed) {
        same(&Connection::open().ask("/1k").body, wanted);
        count += 1;
    }
    count
}

#[test]
fn dispatchers_come_and_go_in_order_and_no_new_connection_notices() {
    let cluster = sprayed("orderly", 1, 3, |_| {});
    let wanted = cluster.document("1k");
    let stop = AtomicBool::new(false);
    let lots = || -> Vec<usize> {
        let status = cluster.spray_status("s1");
        let of = |d: &trapeze_spray::MemberStatus| d.lots.unwrap_or(0);
        status.dispatchers.iter().map(of).collect()
    };
    std::thread::scope(|scope| {
        let _raised = Raised(&stop);
        let work = || cluster.on("c1", || keep_connecting(&stop, &wanted));
        let clients = [scope.spawn(work), scope.spawn(work)];
        std::thread::sleep(Duration::from_millis(300));
        // By SIGTERM: it says so, and stays until the spray has heard it.
        let pid = cluster.status().unwrap().host("d2").unwrap().processes[&Process::Dispatch].pid;
        let pid = pid.unwrap().to_string();
        let killed = std::process::Command::new("kill").arg(pid).status();
        assert!(killed.unwrap().success());
        until("d2 has no lots", || (lots()[1] == 0).then_some(()));
        std::thread::sleep(Duration::from_millis(900));
        cluster.start("d2", Some(Process::Dispatch)).unwrap();
        until("d2 has lots again", || (lots()[1] > 20_000).then_some(()));
        // By the configuration: its share goes to the others, and comes back.
        let config = cluster.config();
        let third = config.find("[[dispatcher]]\nname = \"d3\"").unwrap();
        let end = third + config[third..].find("\n\n").unwrap();
        let without = [&config[..third], &config[end..]].concat();
        cluster.reload("s1", Process::Spray, &without);
        until("two are left", || (lots().len() == 2).then_some(()));
        let d3 = packets(&cluster, "s1");
        assert!(!d3.contains_key("d3"), "{d3:?}");
        std::thread::sleep(Duration::from_millis(200));
        cluster.reload("s1", Process::Spray, &config);
        until("d3 has its lots again", || {
            let lots = lots();
            (lots.len() == 3 && lots[2] > 20_000).then_some(())
        });
        std::thread::sleep(Duration::from_millis(300));
        stop.store(true, Ordering::Relaxed);
        for client in clients {
            let count = client.join().unwrap();
            assert!(count > 200, "{count}");
        }
        assert_eq!(cluster.spray("s1").of("no-dispatcher"), 0);
    });
}

#[test]
fn a_handshake_that_one_dispatcher_began_another_finishes() {
    let config = |text: &str| format!("\n[spraying]\nmode = \"batch\"\nbatch = {text}\n");
    let cluster = sprayed("handshake", 1, 2, |_| {});
    cluster.reload("s1", Process::Spray, &(cluster.config() + &config("1")));
    until("it is in use", || {
        (cluster.spray_status("s1").mode == "batch").then_some(())
    });
    cluster.lend_address("c1", &CLIENT.to_string());
    cluster.on("c1", || {
        for port in 8000..8020 {
            let mut raw = RawClient::connect(SocketAddrV4::new(CLIENT, port), VIP);
            raw.send(0, b"GET /1k HTTP/1.1\r\nHost: a\r\n\r\n");
            raw.receive_until("the answer is whole", |raw| raw.received().len() > 1024);
        }
    });
    let of = |name: &str, what: &str| cluster.dispatcher_named(name).of(what);
    for name in ["d1", "d2"] {
        // One that is busy may be left out for a while.
        assert!(
            of(name, "syn-answered") + of(name, "handshake-ack") > 0,
            "{name}"
        );
    }
    assert!(of("d1", "cookie-valid") + of("d2", "cookie-valid") >= 20);
}

#[test]
fn the_same_by_generic_xdp() {
    let mut text = Cluster::nodes(1).replace("\"tc\"", "\"xdp-generic\"");
    text += "[[dispatcher]]\nname = \"d2\"\naddress = \"10.77.0.12\"\ninterface = \"eth0\"\n\
             attach = \"xdp-generic\"\n\
             [[spray]]\nname = \"s1\"\naddress = \"10.77.0.91\"\ninterface = \"eth0\"\n\
             attach = \"xdp-generic\"\n\
             [[pool]]\nname = \"web\"\nbackends = [\"b1\"]\n\
             [[service]]\nname = \"site\"\naddress = \"10.77.0.100:80\"\npool = \"web\"\n";
    let cluster = Cluster::configured_whole("sprayxdp", &text, |options| options.clients = 2);
    // XDP cannot complete checksums, nor keep packets of many segments apart.
    for host in ["c1", "c2", "b1"] {
        let off = [
            "ethtool", "-K", "eth0", "tx", "off", "tso", "off", "gso", "off",
        ];
        cluster.run(host, &off);
    }
    for sysctl in [
        "net.ipv4.ip_forward=1",
        "net.ipv4.conf.all.send_redirects=0",
    ] {
        cluster.run("c2", &["sysctl", "-qw", sysctl]);
    }
    cluster.run(
        "c2",
        &["sysctl", "-qw", "net.ipv4.conf.eth0.send_redirects=0"],
    );
    let route = ["ip", "route", "add", "10.77.0.11/32", "via", "10.77.0.2"];
    cluster.run("s1", &route);
    std::thread::sleep(Duration::from_millis(1500));
    let document = cluster.document("1m");
    cluster.on("c1", || {
        for round in 0..12 {
            let mut client = Connection::open();
            same(&client.ask("/1m").body, &document);
            let body = vec![b'y'; 300_000];
            let head = format!(
                "PUT /upload/x{round} HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n",
                body.len()
            );
            let response = client.send(head).send(&body).response();
            assert!(response.status < 300, "{}", response.head);
            let stored = cluster.uploads("b1").join(format!("x{round}"));
            same(&std::fs::read(stored).unwrap(), &body);
        }
    });
    let s1 = cluster.spray("s1");
    assert!(s1.of("encapsulated") > 100, "{s1:?}");
    assert!(s1.of("sprayed") > s1.of("encapsulated") + 100, "{s1:?}");
    assert_eq!(
        cluster.dispatcher_named("d1").of("unpacked"),
        s1.of("encapsulated")
    );
    assert!(cluster.dispatcher_named("d2").of("forwarded") > 100);
}
