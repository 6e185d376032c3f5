//! Dispatchers and sprays join and leave, by files that are read again and by etcd
//! (docs/decisions/0020-membership-by-etcd.md).

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::process::Command;
use std::time::Duration;

use trapeze_core::flow::FlowKey;
use trapeze_datapath::map::splice_addresses;
use trapeze_lab::{LinkSettings, Options, Process};
use trapeze_membership::MembershipStatus;
use trapeze_tests::scattered::ready;
use trapeze_tests::{Cluster, Connection, same, until, work_meanwhile};

const DISPATCH: Process = Process::Dispatch;
const SPRAY: Process = Process::Spray;

/// Two sprays that deal packets in turn, one each, to three dispatchers; all by etcd.
fn registered(test: &str, change: impl FnOnce(&mut Options)) -> Cluster {
    let cluster = Cluster::with(test, |options| {
        options.etcd = true;
        options.sprays = Some(2);
        options.dispatchers = Some(3);
        options.backends = Some(2);
        change(options);
    });
    let config = cluster.config() + "\n[spraying]\nmode = \"batch\"\nbatch = 1\n";
    cluster.reconfigure(&config).unwrap();
    all_know(&cluster, &["d1", "d2", "d3"]);
    cluster
}

fn all_know(cluster: &Cluster, dispatchers: &[&str]) {
    for dispatcher in dispatchers {
        ready(cluster, dispatchers, dispatcher);
    }
}

/// As d1 has it.
fn membership(cluster: &Cluster, dispatcher: &str) -> MembershipStatus {
    let status = cluster.dispatch_status(dispatcher).expect("it answers");
    status.membership.expect("it is configured")
}

/// Names of members, with a star if their registration has ended.
fn members(status: &MembershipStatus) -> Vec<String> {
    let star = |lapsed| if lapsed { "*" } else { "" };
    let members = status.members.iter();
    members
        .map(|m| format!("{}{}", m.name, star(m.lapsed)))
        .collect()
}

/// SIGTERM, as systemd stops a daemon.
fn stop(cluster: &Cluster, host: &str, process: Process) {
    let status = cluster.status().unwrap();
    let state = status.host(host).unwrap().processes[&process];
    let pid = state.pid.expect("it has been started").to_string();
    let term = Command::new("kill").args(["-TERM", &pid]).status();
    assert!(term.expect("kill is installed").success());
    until("it has stopped", || {
        let status = cluster.status().unwrap();
        (!status.host(host).unwrap().processes[&process].running).then_some(())
    });
}

/// Whose each of 65,536 lots is, as a spray has dealt them, by name.
fn lots(cluster: &Cluster, spray: &str) -> Vec<String> {
    let maps = cluster.spray_maps(spray);
    let names: BTreeMap<u32, String> = (maps.dispatchers.all().unwrap().into_iter())
        .map(|(slot, entry)| (slot, entry.name().to_owned()))
        .collect();
    let lots = maps.lots.get(&0).unwrap().expect("there is one table");
    let name = |slot: &u16| names.get(&u32::from(*slot)).cloned().unwrap_or_default();
    lots.slots.iter().map(name).collect()
}

#[test]
fn members_come_and_go_by_etcd_and_no_transfer_fails() {
    let cluster = registered("comego", |_| {});
    work_meanwhile(&cluster, |clients| {
        let going = || {
            assert!(
                !clients.iter().any(|c| c.is_finished()),
                "a transfer failed"
            )
        };
        std::thread::sleep(Duration::from_millis(500));
        for victim in ["d2", "d3", "d1"] {
            // In order, and it is forgotten at once.
            stop(&cluster, victim, Process::Dispatch);
            let left: Vec<&str> = ["d1", "d2", "d3"]
                .into_iter()
                .filter(|d| *d != victim)
                .collect();
            until("the others have forgotten it", || {
                let known = left.iter().map(|d| members(&membership(&cluster, d)));
                let spray = cluster.spray_status("s1").membership?;
                let all = known.chain([members(&spray)]);
                (!all.flatten().any(|name| name.starts_with(victim))).then_some(())
            });
            going();
            cluster.start(victim, Some(Process::Dispatch)).unwrap();
            all_know(&cluster, &["d1", "d2", "d3"]);
            going();
        }
        // By a power cut, and after its lease.
        cluster.kill("d2", None).unwrap();
        until("the others have forgotten it", || {
            let known = members(&membership(&cluster, "d1"));
            (!known.iter().any(|name| name.starts_with("d2"))).then_some(())
        });
        cluster.start("d2", None).unwrap();
        all_know(&cluster, &["d1", "d2", "d3"]);
        // Sprays, too: the other has the addresses.
        for spray in ["s1", "s2"] {
            stop(&cluster, spray, Process::Spray);
            std::thread::sleep(Duration::from_millis(500));
            cluster.start(spray, Some(Process::Spray)).unwrap();
            std::thread::sleep(Duration::from_millis(500));
            going();
        }
    });
    let passed: u64 = ["d1", "d2", "d3"]
        .map(|d| cluster.dispatcher_named(d).of("passed"))
        .iter()
        .sum();
    assert!(passed > 100, "{passed}");
}

/// What a member keeps it keeps, but for the share of one that comes.
#[test]
fn only_the_lots_of_who_comes_or_goes_change_hands() {
    let cluster = Cluster::with("movers", |options| {
        options.etcd = true;
        options.sprays = Some(1);
        options.dispatchers = Some(4);
        options.backends = Some(1);
    });
    all_know(&cluster, &["d1", "d2", "d3", "d4"]);
    let share = |lots: &[String], name: &str| lots.iter().filter(|lot| *lot == name).count();
    let whole = until("all have lots", || {
        let lots = lots(&cluster, "s1");
        (share(&lots, "d4") > 10_000).then_some(lots)
    });
    stop(&cluster, "d4", Process::Dispatch);
    let without = until("its lots are others'", || {
        let lots = lots(&cluster, "s1");
        (share(&lots, "d4") == 0).then_some(lots)
    });
    for (before, after) in whole.iter().zip(&without) {
        assert!(before == after || before == "d4", "{before} {after}");
    }
    cluster.start("d4", Some(Process::Dispatch)).unwrap();
    until("each has what it had", || {
        (lots(&cluster, "s1") == whole).then_some(())
    });
}

#[test]
fn etcd_may_be_away_for_as_long_as_it_likes() {
    let cluster = registered("away", |_| {});
    work_meanwhile(&cluster, |clients| {
        let before = members(&membership(&cluster, "d1"));
        assert_eq!(before, ["d1", "d2", "d3", "s1", "s2"]);
        cluster.kill("e1", None).unwrap();
        for dispatcher in ["d1", "d2", "d3"] {
            let status = until("it misses etcd", || {
                let status = membership(&cluster, dispatcher);
                (!status.connected).then_some(status)
            });
            assert_eq!(members(&status), before);
            assert!(status.problem.unwrap().contains("does not answer"));
        }
        // Longer than the lease.
        std::thread::sleep(Duration::from_secs(6));
        // A daemon, and a whole host, that begin meanwhile know whom they knew.
        stop(&cluster, "d2", Process::Dispatch);
        cluster.start("d2", Some(Process::Dispatch)).unwrap();
        cluster.kill("d3", None).unwrap();
        cluster.start("d3", None).unwrap();
        all_know(&cluster, &["d1", "d2", "d3"]);
        assert_eq!(members(&membership(&cluster, "d3")), before);
        assert!(
            !clients.iter().any(|c| c.is_finished()),
            "a transfer failed"
        );
        let doctor = cluster.trapeze("d1", &["doctor", "--node", "d1"]);
        let said = String::from_utf8_lossy(&doctor.stdout).into_owned();
        assert!(
            said.contains("etcd") && said.contains("does not answer"),
            "{said}"
        );

        cluster.start("e1", None).unwrap();
        for dispatcher in ["d1", "d2", "d3"] {
            until("all is as before", || {
                let status = membership(&cluster, dispatcher);
                let well = status.connected && status.registered && members(&status) == before;
                well.then_some(())
            });
        }
        // All that it knew is lost: nobody goes, and all are registered anew.
        let wiped = cluster.run("e1", &["etcdctl", "del", "--prefix", "/trapeze"]);
        assert_eq!(wiped.trim(), "5");
        for dispatcher in ["d1", "d2", "d3"] {
            until("all are registered anew", || {
                let status = membership(&cluster, dispatcher);
                (status.registered && members(&status) == before).then_some(())
            });
        }
    });
}

/// It answers heartbeats: etcd says whom to ask, not who is there.
#[test]
fn a_lease_that_runs_out_is_no_death() {
    let cluster = registered("lease", |_| {});
    let kept = |name: &str| {
        let peers = cluster.dispatch_status("d1").unwrap().peers;
        peers
            .iter()
            .find(|peer| peer.name == name)
            .map(|peer| peer.lots)
    };
    let lots = kept("d3").expect("d1 knows it");
    work_meanwhile(&cluster, |clients| {
        let etcd = "10.77.0.121";
        cluster.run("d3", &["ip", "route", "add", "blackhole", etcd]);
        until("its registration has ended", || {
            let known = members(&membership(&cluster, "d1"));
            known.contains(&"d3*".to_owned()).then_some(())
        });
        // Several rounds in which it could be forgotten.
        std::thread::sleep(Duration::from_secs(6));
        assert_eq!(kept("d3"), Some(lots));
        assert!(!membership(&cluster, "d3").connected);
        assert!(
            !clients.iter().any(|c| c.is_finished()),
            "a transfer failed"
        );
        cluster.run("d3", &["ip", "route", "del", "blackhole", etcd]);
        until("it is registered again", || {
            let known = members(&membership(&cluster, "d1"));
            known.contains(&"d3".to_owned()).then_some(())
        });
        assert_eq!(kept("d3"), Some(lots));
    });
}

/// What anybody can write there makes nobody a member that answers, and takes none out.
#[test]
fn what_is_wrong_in_etcd_is_refused_and_said() {
    let cluster = registered("wrong", |_| {});
    let put = |name: &str, value: &str| {
        let key = format!("/trapeze/lab-{}/{name}", cluster.name());
        cluster.run("e1", &["etcdctl", "put", &key, value]);
    };
    put("dispatcher/d7", "address = \"10.77.0.100\"");
    put("dispatcher/d8", "addres = \"10.77.0.18\"");
    put("cook/x", "");
    put("dispatcher/d9", "address = \"10.77.0.19\"");
    // In the place of one that is there.
    put(
        "dispatcher/d2",
        "address = \"10.77.0.12\"\nsplice_address = \"10.77.0.99\"",
    );
    put("dispatcher/d3", "address = \"10.77.0.33\"");
    let status = until("d1 has heard", || {
        let status = membership(&cluster, "d1");
        (status.refused.len() == 5 && members(&status).contains(&"d9".to_owned())).then_some(status)
    });
    let why = |key: &str| {
        let mut refused = status.refused.iter();
        refused
            .find(|r| r.key == key)
            .expect("it is refused")
            .why
            .clone()
    };
    assert!(
        why("dispatcher/d7").contains("is a service's"),
        "{}",
        why("dispatcher/d7")
    );
    assert!(
        why("dispatcher/d8").contains("lacks `address`"),
        "{}",
        why("dispatcher/d8")
    );
    assert!(
        why("cook/x").contains("no role \"cook\""),
        "{}",
        why("cook/x")
    );
    cluster.on("c1", || {
        for _ in 0..20 {
            assert_eq!(Connection::open().ask("/1k").status, 200);
        }
    });
    // Nobody there: it has no lots.
    let forged = until("it has been asked", || {
        let peers = cluster.dispatch_status("d1").unwrap().peers;
        let mut silent = peers.into_iter().filter(|peer| peer.state == "silent");
        silent.next()
    });
    all_know(&cluster, &["d1", "d2", "d3"]);
    assert!(
        why("dispatcher/d3").contains("10.77.0.13 answers"),
        "{}",
        why("dispatcher/d3")
    );
    let own = membership(&cluster, "d3");
    assert!(own.problem.unwrap().contains("another host is registered"));
    // Once it is gone, the name is the other's.
    stop(&cluster, "d3", Process::Dispatch);
    until("who has the name is known", || {
        let status = membership(&cluster, "d1");
        let mut named = status.members.iter().filter(|m| m.name == "d3");
        named
            .next()
            .filter(|m| m.address == "10.77.0.33")
            .map(|_| ())
    });
    assert_eq!((&*forged.name, forged.lots), ("d9", 0));
    let said = cluster.trapeze("d1", &["status", "--node", "d1"]);
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    assert!(said.contains("lacks `address`"), "{said}");
}

/// The same file without one node.
fn without(text: &str, kind: &str, name: &str) -> String {
    let start = text.find(&format!("\n[[{kind}]]\nname = {name:?}"));
    let start = start.expect("it is configured");
    let end = text[start + 1..].find("\n[").expect("others follow");
    text[..start].to_owned() + &text[start + 1 + end..]
}

fn reload(cluster: &Cluster, daemons: &[(&str, Process)], config: &str) {
    for (host, process) in daemons {
        let said = cluster.reload(host, *process, config);
        assert!(said.contains("reloaded"), "{host}: {said}");
    }
}

#[test]
fn a_spray_joins_and_leaves_by_files_and_no_transfer_fails() {
    let cluster = Cluster::with("sprayfile", |options| {
        options.sprays = Some(2);
        options.dispatchers = Some(2);
        options.backends = Some(2);
    });
    let whole = cluster.config();
    let others = |name: &str| {
        let sprays = cluster.spray_status(name).sprays.into_iter();
        let sprays: Vec<String> = sprays
            .map(|spray| spray.name + " " + &spray.state)
            .collect();
        sprays.join(", ")
    };
    stop(&cluster, "s2", SPRAY);
    let known = [("d1", DISPATCH), ("d2", DISPATCH), ("s1", SPRAY)];
    reload(&cluster, &known, &without(&whole, "spray", "s2"));
    until("s1 is alone", || others("s1").is_empty().then_some(()));
    work_meanwhile(&cluster, |clients| {
        std::thread::sleep(Duration::from_millis(500));
        reload(&cluster, &known, &whole);
        cluster.start("s2", Some(SPRAY)).unwrap();
        until("they know each other", || {
            (others("s1") == "s2 alive" && others("s2") == "s1 alive").then_some(())
        });
        assert!(
            cluster.spray_status("s1").has_addresses,
            "nothing moves for who comes"
        );
        stop(&cluster, "s1", SPRAY);
        assert!(cluster.spray_status("s2").has_addresses);
        let known = [("d1", DISPATCH), ("d2", DISPATCH), ("s2", SPRAY)];
        reload(&cluster, &known, &without(&whole, "spray", "s1"));
        until("s2 is alone", || others("s2").is_empty().then_some(()));
        std::thread::sleep(Duration::from_millis(500));
        assert!(
            !clients.iter().any(|c| c.is_finished()),
            "a transfer failed"
        );
    });
}

/// Connections, since when there have been more news than are kept to be said again.
fn opened_before_much_else(wanted: &[u8]) -> Vec<Connection> {
    let mut clients: Vec<_> = (0..60).map(|_| Connection::open()).collect();
    for client in &mut clients {
        same(&client.ask("/1k").body, wanted);
    }
    for _ in 0..1200 {
        same(&Connection::open().ask("/1k").body, wanted);
    }
    clients
}

/// A file that names a dispatcher is read by that one first, by the others later.
#[test]
fn who_is_not_known_to_the_others_yet_keeps_nothing() {
    let cluster = Cluster::with("unknown", |options| {
        options.sprays = Some(2);
        options.dispatchers = Some(3);
        options.backends = Some(2);
    });
    let whole = cluster.config() + "\n[spraying]\nmode = \"batch\"\nbatch = 1\n";
    let without = without(&whole, "dispatcher", "d3");
    cluster.kill("d3", None).unwrap();
    let known = [
        ("d1", DISPATCH),
        ("d2", DISPATCH),
        ("s1", SPRAY),
        ("s2", SPRAY),
    ];
    reload(&cluster, &known, &without);
    all_know(&cluster, &["d1", "d2"]);
    let wanted = cluster.document("1k");
    cluster.on("c1", || {
        let mut clients = opened_before_much_else(&wanted);
        std::fs::write(cluster.status().unwrap().config, &whole).unwrap();
        cluster.start("d3", None).unwrap();
        // As long as it asks each of them in vain, and longer.
        std::thread::sleep(Duration::from_secs(3));
        let status = cluster.dispatch_status("d3").unwrap();
        assert_eq!((status.caught_up, status.keeps_flows), (false, false));
        reload(&cluster, &known, &whole);
        all_know(&cluster, &["d1", "d2", "d3"]);
        let flows = cluster.dispatcher_maps_of("d3").flows.all().unwrap();
        for client in &mut clients {
            let port = client.port();
            let mut ports = flows
                .iter()
                .map(|(key, _)| FlowKey::from(*key).client.port());
            assert!(ports.any(|one| one == port), "d3 lacks a record");
            same(&client.ask("/1k").body, &wanted);
        }
    });
}

/// Its cable comes in when its daemon has begun already, and has found nobody there.
#[test]
fn who_begins_unheard_learns_what_the_others_know_when_it_is_heard() {
    const OTHERS: [&str; 2] = ["d1", "d2"];
    let cluster = Cluster::with("unheard", |options| {
        (options.sprays, options.dispatchers) = (Some(1), Some(3));
        options.backends = Some(2);
    });
    all_know(&cluster, &["d1", "d2", "d3"]);
    let wanted = cluster.document("1k");
    let lost = LinkSettings {
        loss: 1.0,
        ..LinkSettings::default()
    };
    cluster.link("d3", &lost).unwrap();
    cluster.kill("d3", None).unwrap();
    all_know(&cluster, &OTHERS);
    cluster.on("c1", || {
        let mut clients = opened_before_much_else(&wanted);
        cluster.start("d3", None).unwrap();
        until("it keeps flows, alone as it is", || {
            let status = cluster.dispatch_status("d3")?;
            status.keeps_flows.then_some(())
        });
        cluster.link("d3", &LinkSettings::default()).unwrap();
        all_know(&cluster, &["d1", "d2", "d3"]);
        for client in &mut clients {
            same(&client.ask("/1k").body, &wanted);
        }
    });
}

/// Connections that have a server, some of them opened by each dispatcher, from its splice address.
fn spliced(cluster: &Cluster, dispatchers: &[&str]) -> Vec<Connection> {
    let clients = until("each has opened some", || {
        let mut clients: Vec<_> = (0..24).map(|_| Connection::open()).collect();
        for client in &mut clients {
            assert_eq!(client.ask("/1k").status, 200);
        }
        let splices = cluster.dispatcher_maps_of("d1").splices.all().unwrap();
        let has_opened = |name: &&str| {
            let opened = splices.iter().filter(|(_, to)| {
                let port = u16::from_be_bytes(to.flow.client_port);
                let is_from = to.splice.address == splice_address(name).octets();
                is_from && clients.iter().any(|client| client.port() == port)
            });
            opened.count() > 2
        };
        dispatchers.iter().all(has_opened).then_some(clients)
    });
    println!("{} connections", clients.len());
    clients
}

fn splice_address(dispatcher: &str) -> Ipv4Addr {
    let number: u8 = dispatcher[1..].parse().expect("d1, d2, ...");
    Ipv4Addr::new(10, 77, 0, 110 + number)
}

/// All go on, for a while.
fn go_on(clients: &mut [Connection], wanted: &[u8]) {
    for _ in 0..5 {
        for client in &mut *clients {
            same(&client.ask("/1k").body, wanted);
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// The splice addresses that the spray with the service addresses serves for who has left.
fn left(cluster: &Cluster) -> Vec<IpAddr> {
    let sprays = ["s1", "s2"].map(|spray| cluster.spray_status(spray));
    let active = sprays.into_iter().find(|spray| spray.has_addresses);
    active.expect("one of them has them").left
}

#[test]
fn connections_from_who_is_forgotten_after_its_lease_go_on() {
    let cluster = registered("leftlease", |options| {
        options.transfer = Some("splice".into());
    });
    let wanted = cluster.document("1k");
    cluster.on("c1", || {
        let mut clients = spliced(&cluster, &["d1", "d2", "d3"]);
        cluster.kill("d2", None).unwrap();
        until("all others have forgotten it", || {
            let known = ["d1", "d3"].map(|name| members(&membership(&cluster, name)));
            let sprays = ["s1", "s2"].map(|name| cluster.spray_status(name).membership);
            let by_sprays = sprays.into_iter().flatten().map(|status| members(&status));
            let mut all = known.into_iter().chain(by_sprays).flatten();
            (!all.any(|name| name.starts_with("d2"))).then_some(())
        });
        go_on(&mut clients, &wanted);
        assert_eq!(left(&cluster), [splice_address("d2")]);
        // Who begins now has never known it.
        stop(&cluster, "d3", DISPATCH);
        cluster.start("d3", Some(DISPATCH)).unwrap();
        all_know(&cluster, &["d1", "d3"]);
        go_on(&mut clients, &wanted);
        cluster.start("d2", None).unwrap();
        all_know(&cluster, &["d1", "d2", "d3"]);
        until("it has its address again", || {
            left(&cluster).is_empty().then_some(())
        });
        go_on(&mut clients, &wanted);
    });
}

#[test]
fn connections_from_who_is_taken_out_of_the_file_go_on_until_they_end() {
    let cluster = Cluster::with("leftfile", |options| {
        options.sprays = Some(2);
        options.dispatchers = Some(3);
        options.backends = Some(2);
        options.transfer = Some("splice".into());
    });
    let limits = "\n[limits]\nidle_timeout = \"15s\"\nfin_timeout = \"1s\"\n";
    let mode = "\n[spraying]\nmode = \"batch\"\nbatch = 1\n";
    let whole = cluster.config() + limits + mode;
    let sprays = [("s1", SPRAY), ("s2", SPRAY)];
    let stay = [sprays[0], sprays[1], ("d1", DISPATCH), ("d2", DISPATCH)];
    let all = [&stay[..], &[("d3", DISPATCH)]].concat();
    reload(&cluster, &all, &whole);
    all_know(&cluster, &["d1", "d2", "d3"]);
    let wanted = cluster.document("1k");
    let without_d3 = without(&whole, "dispatcher", "d3");
    cluster.on("c1", || {
        let mut clients = spliced(&cluster, &["d1", "d2", "d3"]);
        // Nobody has told the others to stop asking it, nor it to stop; it comes back.
        reload(&cluster, &stay, &without_d3);
        go_on(&mut clients, &wanted);
        assert_eq!(left(&cluster), [splice_address("d3")]);
        reload(&cluster, &stay, &whole);
        all_know(&cluster, &["d1", "d2", "d3"]);
        assert_eq!(left(&cluster), [] as [IpAddr; 0]);
        go_on(&mut clients, &wanted);
        // As it is to be done.
        stop(&cluster, "d3", DISPATCH);
        reload(&cluster, &stay, &without_d3);
        go_on(&mut clients, &wanted);
        // The other spray, and the daemons after these, know of it, too.
        for (host, process) in stay {
            cluster.restart(host, process);
            std::thread::sleep(Duration::from_secs(1));
            go_on(&mut clients, &wanted);
        }
        assert_eq!(left(&cluster), [splice_address("d3")]);
    });
    // Their clients have closed.
    let serves = |dispatcher: &str| {
        let services = cluster.dispatcher_maps_of(dispatcher).services;
        let served = splice_addresses(&services).unwrap();
        served
            .iter()
            .any(|&(address, _)| address == splice_address("d3"))
    };
    until("dispatchers serve it no more", || {
        (!serves("d1") && !serves("d2")).then_some(())
    });
    for _ in 0..4 {
        if left(&cluster).is_empty() {
            break;
        }
        std::thread::sleep(Duration::from_secs(10));
    }
    assert_eq!(left(&cluster), [] as [IpAddr; 0]);
}
