//! Clients with other TCP options, links with other MTUs, and the other hook.

use std::time::Duration;

use trapeze_lab::{LinkSettings, ServerKind};
use trapeze_tests::{Cluster, Connection, Content, same};

/// A bit of everything that a connection does.
fn exercise(cluster: &Cluster, rounds: u64) {
    let (one, ten) = (cluster.document("1k"), cluster.document("10m"));
    cluster.on("c1", || {
        for round in 0..rounds {
            let mut client = Connection::open();
            same(&client.ask("/10m").body, &ten);
            same(&client.ask("/1k").body, &one);
            let mut client = Connection::open();
            let head = format!(
                "GET /1k HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n",
                "x".repeat(5000)
            );
            client
                .send_pieces(head, 1000, Duration::from_micros(200))
                .response()
                .ok();
            let body = Content::new(round, 5_000_001).bytes();
            let head = format!(
                "PUT /upload/{round} HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n",
                body.len()
            );
            let response = client.send(head).send(&body).response();
            assert_eq!(response.status, 201);
            let stored = cluster.uploads(response.backend()).join(round.to_string());
            same(&std::fs::read(stored).unwrap(), &body);
            client.finish().expect_end();
            assert_eq!(
                Connection::open().send("GARBAGE\r\n\r\n").response().status,
                400
            );
        }
    });
}

#[test]
fn clients_without_timestamps_sack_or_window_scaling() {
    let cluster = Cluster::with("tcp", |options| options.server = ServerKind::Python);
    for number in 0..16 {
        for (bit, name) in ["timestamps", "sack", "window_scaling", "ecn"]
            .iter()
            .enumerate()
        {
            let value = number >> bit & 1;
            cluster.run(
                "c1",
                &["sysctl", "-q", &format!("net.ipv4.tcp_{name}={value}")],
            );
        }
        exercise(&cluster, 1);
    }
    assert_eq!(cluster.agents().of("rebuilt"), 64, "once for each request");
    assert_eq!(cluster.agents().of("not-rebuilt"), 0);
}

#[test]
fn faults_without_timestamps_or_sack_change_no_byte() {
    let cluster = Cluster::with("old", |options| options.server = ServerKind::Python);
    for name in ["timestamps", "sack"] {
        cluster.run("c1", &["sysctl", "-q", &format!("net.ipv4.tcp_{name}=0")]);
    }
    let settings = LinkSettings {
        loss: 0.005,
        reorder: 0.01,
        duplicate: 0.01,
        delay: Duration::from_micros(300),
        ..LinkSettings::default()
    };
    cluster.link("c1", &settings).unwrap();
    exercise(&cluster, 2);
}

#[test]
fn links_with_small_mtus() {
    let cluster = Cluster::with("mtu", |options| options.server = ServerKind::Python);
    for backend in ["b1", "b2", "b3"] {
        cluster.run(
            backend,
            &["ethtool", "-K", "eth0", "tso", "off", "gso", "off"],
        );
    }
    for mtu in ["1400", "1280", "1006", "576"] {
        // Both ends of the cable: what is longer does not get through.
        for (host, end) in [("c1", "eth0"), ("switch", "c1")] {
            cluster.run(host, &["ip", "link", "set", end, "mtu", mtu]);
        }
        for timestamps in ["0", "1"] {
            let setting = format!("net.ipv4.tcp_timestamps={timestamps}");
            cluster.run("c1", &["sysctl", "-q", &setting]);
            exercise(&cluster, 1);
        }
    }
}

#[test]
fn the_same_by_generic_xdp() {
    let config = "[[pool]]\nname = \"web\"\nbackends = [\"b1\", \"b2\"]\n\
         [[service]]\nname = \"site\"\naddress = \"10.77.0.100:80\"\npool = \"web\"\n";
    let text = Cluster::nodes(2).replace("\"tc\"", "\"xdp-generic\"") + config;
    let cluster = Cluster::configured_whole("xdp", &text, |options| {
        options.server = ServerKind::Python;
    });
    let shown = cluster.run("d1", &["ip", "link", "show", "eth0"]);
    assert!(shown.contains("xdpgeneric"), "{shown}");
    // XDP cannot complete checksums, nor keep packets of many segments apart.
    for host in ["c1", "b1", "b2"] {
        cluster.run(
            host,
            &[
                "ethtool", "-K", "eth0", "tx", "off", "tso", "off", "gso", "off",
            ],
        );
    }
    exercise(&cluster, 3);
    let d1 = cluster.dispatcher();
    assert!(
        d1.of("forwarded") > 1000 && d1.of("cookie-valid") >= 9,
        "{d1:?}"
    );
    assert_eq!(cluster.agents().of("rebuilt"), 12, "once for each request");
}

/// A file made for real network cards, or one that leaves the hook out, serves in
/// the lab too.
#[test]
fn the_default_hook_serves_on_a_virtual_interface() {
    let config = "[[pool]]\nname = \"web\"\nbackends = [\"b1\"]\n\
         [[service]]\nname = \"site\"\naddress = \"10.77.0.100:80\"\npool = \"web\"\n";
    let text = Cluster::nodes(1).replace("attach = \"tc\"\n", "") + config;
    let cluster = Cluster::configured_whole("default", &text, |options| {
        options.server = ServerKind::Python;
    });
    exercise(&cluster, 1);
    assert_eq!(cluster.agents().of("rebuilt"), 2);
}
