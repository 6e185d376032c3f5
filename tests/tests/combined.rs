//! Hosts that are dispatcher and backend at once [SPLICE06 figure 2b].

use std::collections::BTreeSet;
use std::process::Command;
use std::time::Duration;

use trapeze_lab::{Options, Process};
use trapeze_tests::numbered::{Answered, Numbered, check_logs};
use trapeze_tests::{Cluster, Connection, VIP, same, until};

/// By then every idle connection's owner has been asked whether it owes anything.
const ASKED: Duration = Duration::from_secs(5);

/// `hosts` such, behind a spray that gives each packet to another one.
fn sprayed(test: &str, hosts: u8, change: impl FnOnce(&mut Options)) -> Cluster {
    let cluster = Cluster::with(test, |options| {
        options.combined = Some(hosts);
        options.sprays = Some(1);
        options.spray_mode = Some("batch".into());
        options.access_log = true;
        change(options);
    });
    let text = cluster
        .config()
        .replace("\"batch\"\n", "\"batch\"\nbatch = 1\n");
    cluster.reconfigure(&text).unwrap();
    cluster
}

/// One such host, and nothing else.
fn alone(test: &str) -> Cluster {
    Cluster::with(test, |options| {
        options.combined = Some(1);
        options.access_log = true;
    })
}

fn backends(answered: &Answered) -> Vec<&str> {
    answered.values().map(String::as_str).collect()
}

#[test]
fn requests_go_from_host_to_host_and_each_is_a_dispatcher_too() {
    let cluster = sprayed("comb", 2, |_| {});
    let numbered = Numbered::of(&cluster, &["1k", "10k", "100k", "1m"]);
    let body: Vec<u8> = (0..700_000u32).map(|n| (n * 7) as u8).collect();
    let answered = cluster.on("c1", || {
        let mut answered = Answered::new();
        for first in (0..200).step_by(20) {
            let mut client = Connection::open();
            let one_by_one = numbered.ask_each(&mut client, first..first + 10).unwrap();
            let each = backends(&one_by_one);
            for (number, backend) in each.iter().enumerate().skip(2) {
                assert_eq!(backend, &each[number - 2], "A, B, A: {each:?}");
            }
            assert_ne!(each[0], each[1]);
            answered.extend(one_by_one);
            answered.extend(
                numbered
                    .pipeline(&mut client, first + 10..first + 20)
                    .unwrap(),
            );
            cluster.upload(&mut client, &format!("u{first}"), &body);
        }
        answered
    });
    check_logs(&cluster, &answered);
    for host in ["n1", "n2"] {
        let (dispatcher, agent) = (
            cluster.dispatcher_named(&format!("{host}-d")),
            cluster.agent(&format!("{host}-b")),
        );
        let (all, here) = (dispatcher.of("forwarded"), dispatcher.of("to-own-host"));
        assert!(here > 0 && here < all, "{host}: {dispatcher:?}");
        assert!(dispatcher.of("passed") > 0, "{host}: {dispatcher:?}");
        let moves = ["rebuilt", "given-up", "resumed"].map(|event| agent.of(event));
        assert!(moves.iter().all(|&count| count > 0), "{host}: {agent:?}");
    }
}

#[test]
fn one_host_is_a_cluster() {
    let cluster = alone("combone");
    let numbered = Numbered::of(&cluster, &["1k", "10k", "100k", "1m"]);
    let answered = cluster.on("c1", || {
        let mut client = Connection::open();
        let mut answered = numbered.ask_each(&mut client, 0..20).unwrap();
        answered.extend(numbered.pipeline(&mut client, 20..40).unwrap());
        cluster.upload(&mut client, "whole", &vec![b'z'; 700_000]);
        // From the same port again and again: what it had before is known to both programs.
        for number in 40..80 {
            let mut client = Connection::try_to(VIP, 40_001).unwrap();
            answered.extend(numbered.ask_each(&mut client, [number]).unwrap());
        }
        answered
    });
    check_logs(&cluster, &answered);
    let doctor = cluster.trapeze("n1", &["doctor"]).stdout;
    let doctor = String::from_utf8_lossy(&doctor);
    assert!(!doctor.contains("ip address del"), "{doctor}");
    let (dispatcher, agent) = (cluster.dispatcher_named("n1-d"), cluster.agent("n1-b"));
    assert_eq!(dispatcher.of("forwarded"), dispatcher.of("to-own-host"));
    assert_eq!(agent.of("rebuilt"), 41, "{agent:?}");
}

#[test]
fn a_server_that_closes_and_one_that_is_away_are_heard_of_on_the_same_host() {
    let cluster = alone("combclose");
    let one_k = cluster.document("1k");
    cluster.on("c1", || {
        let mut client = Connection::open();
        same(&client.ask("/1k").body, &one_k);
        // Its connections end with it, the client's stays, and asks again.
        cluster.kill("n1", Some(Process::Server)).unwrap();
        until("the agent has told of it", || {
            (cluster.agent("n1-b").of("vacated") == 1).then_some(())
        });
        assert_eq!(client.ask("/1k").status, 503, "refused by its host");
        cluster.start("n1", Some(Process::Server)).unwrap();
        until("it is taken again", || {
            (client_status(&one_k) == 200).then_some(())
        });
    });
    let agent = cluster.agent("n1-b");
    assert!(agent.of("refused") > 0, "{agent:?}");
}

fn client_status(body: &[u8]) -> u16 {
    let response = Connection::open().ask("/1k");
    if response.status == 200 {
        same(&response.body, body);
    }
    response.status
}

#[test]
fn connections_outlive_the_power_of_one_host_of_three() {
    let cluster = sprayed("combcut", 3, |_| {});
    let numbered = Numbered::of(&cluster, &["1k", "10k"]);
    let mut answered = Answered::new();
    cluster.on("c1", || {
        let mut clients: Vec<Connection> = (0..40).map(|_| Connection::open()).collect();
        let mut number = 0;
        let mut round = |clients: &mut Vec<Connection>, rounds| {
            let mut all = Answered::new();
            for _ in 0..rounds {
                for client in clients.iter_mut() {
                    all.extend(numbered.ask_each(client, [number]).unwrap());
                    number += 1;
                }
            }
            all
        };
        let before = round(&mut clients, 4);
        assert_eq!(BTreeSet::from_iter(backends(&before)).len(), 3);
        answered.extend(before);
        for cut in ["n1", "n2"] {
            std::thread::sleep(ASKED);
            cluster.kill(cut, None).unwrap();
            until("its silence is noticed", || {
                let seen = cluster.trapeze("n3", &["backends"]).stdout;
                String::from_utf8_lossy(&seen)
                    .contains("silent")
                    .then_some(())
            });
            let after = round(&mut clients, 2);
            assert!(!backends(&after).contains(&cut), "{after:?}");
            answered.extend(after);
            cluster.start(cut, None).unwrap();
            until("it serves again", || {
                let again = round(&mut clients, 1);
                let serves = backends(&again).contains(&cut);
                answered.extend(again);
                serves.then_some(())
            });
        }
    });
    check_logs(&cluster, &answered);
}

/// It hears nobody any more, neither a dispatcher nor a backend, and is not cut off.
#[test]
fn who_is_left_of_two_hosts_goes_on() {
    let cluster = sprayed("combleft", 2, |_| {});
    let one_k = cluster.document("1k");
    std::thread::sleep(ASKED);
    cluster.kill("n1", None).unwrap();
    cluster.on("c1", || {
        for _ in 0..20 {
            let answer = Connection::open().ask("/1k");
            assert_eq!(answer.ok(), "n2");
            same(&answer.body, &one_k);
        }
    });
}

/// What both daemons need of the host stays until the last of them is stopped.
#[test]
fn each_of_the_two_daemons_stops_without_the_other() {
    let cluster = sprayed("combstop", 2, |_| {});
    let one_k = cluster.document("1k");
    let stop = |process| {
        let status = cluster.status().unwrap();
        let pid = status.host("n1").unwrap().processes[&process].pid.unwrap();
        let told = Command::new("kill")
            .args(["-TERM", &pid.to_string()])
            .status();
        assert!(told.unwrap().success());
        until("it has stopped", || {
            let status = cluster.status().unwrap();
            (!status.host("n1").unwrap().processes[&process].running).then_some(())
        });
    };
    let is_prepared = || {
        let silent = cluster.run("n1", &["sysctl", "-n", "net.ipv4.conf.all.arp_ignore"]);
        let addresses = cluster.run("n1", &["ip", "-o", "address", "show", "dev", "lo"]);
        (silent.trim() == "1", addresses.contains("10.77.0.100/32"))
    };
    let expect_served = |by: &[&str]| {
        cluster.on("c1", || {
            for _ in 0..20 {
                let mut client = Connection::open();
                for _ in 0..3 {
                    let response = client.ask("/1k");
                    assert!(by.contains(&response.ok()), "{}", response.head);
                    same(&response.body, &one_k);
                }
            }
        });
    };
    let silent = |at: &str, backend: &str| {
        until("it is silent", || {
            let seen = cluster.trapeze(at, &["backends"]).stdout;
            let seen = String::from_utf8_lossy(&seen).into_owned();
            let line = seen.lines().find(|line| line.starts_with(backend))?;
            line.contains("silent").then_some(())
        });
    };

    stop(Process::Agent);
    silent("n1", "n1-b");
    silent("n2", "n1-b");
    assert_eq!(is_prepared(), (true, true));
    let before = cluster.dispatcher_named("n1-d").of("forwarded");
    expect_served(&["n2"]);
    assert!(cluster.dispatcher_named("n1-d").of("forwarded") > before);

    cluster.start("n1", Some(Process::Agent)).unwrap();
    until("it serves again", || {
        let served = cluster.on("c1", || Connection::open().ask("/1k"));
        (served.ok() == "n1").then_some(())
    });
    stop(Process::Dispatch);
    assert_eq!(is_prepared(), (true, true));
    expect_served(&["n1", "n2"]);
    stop(Process::Agent);
    assert_eq!(is_prepared(), (false, false));
}

/// Server and splice address meet by way of the spray; answers go to the client directly.
#[test]
fn connections_are_split_spliced_to_a_server_on_the_same_host() {
    let cluster = sprayed("combsplit", 2, |options| {
        options.transfer = Some("split-splice".into());
    });
    let numbered = Numbered::of(&cluster, &["1k", "10k", "100k", "1m"]);
    let body: Vec<u8> = (0..700_000u32).map(|n| (n * 7) as u8).collect();
    let answered = cluster.on("c1", || {
        let mut answered = Answered::new();
        for first in (0..160).step_by(8) {
            let mut client = Connection::open();
            let numbers = first..first + 8;
            answered.extend(numbered.ask_each(&mut client, numbers).unwrap());
            cluster.upload(&mut client, &format!("u{first}"), &body);
        }
        answered
    });
    check_logs(&cluster, &answered);
    assert_eq!(BTreeSet::from_iter(backends(&answered)).len(), 2);
    for host in ["n1", "n2"] {
        let dispatcher = cluster.dispatcher_named(&format!("{host}-d"));
        let agent = cluster.agent(&format!("{host}-b"));
        let (all, here) = (
            dispatcher.of("spliced-to-server"),
            dispatcher.of("to-own-host"),
        );
        assert!(here > 0 && here < all, "{host}: {dispatcher:?}");
        // But for what was on its way when the server's host was told.
        let to_client = dispatcher.of("spliced-to-client");
        assert!(to_client < all / 50, "{host}: {dispatcher:?}");
        assert!(agent.of("split") > 0, "{host}: {agent:?}");
        assert_eq!(agent.of("rebuilt"), 0, "{host}: {agent:?}");
    }
}
