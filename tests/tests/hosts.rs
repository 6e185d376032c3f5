//! What somebody changes on a host under Trapeze's feet.

use std::time::Duration;

use trapeze_tests::{Cluster, Connection, until};

#[test]
fn what_is_taken_away_from_a_backends_host_is_set_again() {
    let cluster = Cluster::up("taken");
    let syncookies = || cluster.run("b1", &["sysctl", "-n", "net.ipv4.tcp_syncookies"]);
    let addresses = || cluster.run("b1", &["ip", "-o", "address", "show", "dev", "lo"]);
    // Some at once, some when the agent has seen it.
    let all_are_served = |what: &str| {
        cluster.on("c1", || {
            for number in 0..60 {
                let response = Connection::open().ask("/1k");
                assert_eq!(response.status, 200, "{what}, request {number}");
                std::thread::sleep(Duration::from_millis(10));
            }
        });
    };
    let before = cluster.agent("b1");

    cluster.run("b1", &["sysctl", "-q", "net.ipv4.tcp_syncookies=0"]);
    all_are_served("without SYN cookies");
    until("they are on again", || {
        (syncookies().trim() == "1").then_some(())
    });

    cluster.run(
        "b1",
        &["ip", "address", "del", "10.77.0.100/32", "dev", "lo"],
    );
    all_are_served("without the VIP");
    until("it is there again", || {
        addresses().contains("10.77.0.100/32").then_some(())
    });

    let set_again = || cluster.agent("b1").of("set-again") - before.of("set-again");
    until("both are counted", || (set_again() == 2).then_some(()));
    let logs = cluster.status().unwrap().logs;
    let said = std::fs::read_to_string(logs.join("b1.agent.log")).unwrap();
    for what in ["net.ipv4.tcp_syncookies = 1", "10.77.0.100 on lo"] {
        let line = format!("set again, since somebody had taken it away: {what}");
        assert!(said.contains(&line), "{said}");
    }
    let rebuilt = || cluster.agent("b1").of("rebuilt");
    let served = rebuilt();
    all_are_served("as before");
    assert_eq!(rebuilt() - served, 20, "an equal part");
}

/// The agent's daemon, which would mend it, is away.
#[test]
fn a_backend_that_cannot_rebuild_gives_its_requests_back() {
    let cluster = Cluster::up("cookieless");
    cluster
        .kill("b1", Some(trapeze_lab::Process::Agent))
        .unwrap();
    cluster.run("b1", &["sysctl", "-q", "net.ipv4.tcp_syncookies=0"]);
    cluster.on("c1", || {
        for _ in 0..60 {
            assert_ne!(Connection::open().ask("/1k").ok(), "b1");
        }
    });
    assert!(cluster.agent("b1").of("not-rebuilt") > 0);
    assert_eq!(cluster.agent("b1").of("rebuilt"), 0);
}
