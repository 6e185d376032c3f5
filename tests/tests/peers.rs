//! Packets that leave a dispatcher by the veth on which they came: to its peer
//! where that works, else as on any interface.

use trapeze_lab::Process;
use trapeze_tests::{Cluster, Connection, same};

/// Bytes that d1 sent by its interface, as the interface counts.
fn sent(cluster: &Cluster) -> u64 {
    let table = cluster.run("d1", &["cat", "/proc/net/dev"]);
    let line = table.lines().find(|line| line.trim().starts_with("eth0:"));
    let mut words = line.expect("its interface").split_whitespace();
    words.nth(9).unwrap().parse().unwrap()
}

/// A new connection, a download, an upload; and what d1 sent by the interface.
fn serves(cluster: &Cluster) -> u64 {
    let before = (sent(cluster), cluster.dispatcher().of("forwarded"));
    let document = cluster.document("1m");
    let body = vec![b'x'; 1 << 20];
    cluster.on("c1", || {
        let mut client = Connection::open();
        same(&client.ask("/1m").body, &document);
        let head = format!(
            "PUT /upload/peers HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        assert_eq!(client.send(head).send(&body).response().status, 201);
    });
    assert!(cluster.dispatcher().of("forwarded") > before.1 + 20);
    sent(cluster) - before.0
}

fn peer_elsewhere(cluster: &Cluster) -> u16 {
    let node = cluster.dispatcher_maps().node.get(&0);
    node.expect("the map is read")
        .expect("its row")
        .peer_elsewhere
}

#[test]
fn a_peer_elsewhere_gets_them_at_once() {
    let cluster = Cluster::up("peers");
    assert_eq!(peer_elsewhere(&cluster), 1);
    let sent = serves(&cluster);
    assert!(sent < 100_000, "{sent} bytes went out as on any interface");
}

/// A bridge in d1's own namespace, between its cable and its interface.
#[test]
fn a_peer_in_the_same_namespace_does_not() {
    let cluster = Cluster::up("near-peer");
    cluster.kill("d1", Some(Process::Dispatch)).unwrap();
    let link = cluster.run("d1", &["ip", "-br", "link", "show", "eth0"]);
    let mac = link.split_whitespace().nth(2).expect("its address");
    let changes = [
        "link set eth0 down".to_owned(),
        "link set eth0 name cable address 02:00:00:00:00:01".to_owned(),
        "addr flush dev cable".to_owned(),
        format!("link add eth0 address {mac} type veth peer name near"),
        "link add br0 type bridge stp_state 0 forward_delay 0 mcast_snooping 0".to_owned(),
        "link set cable master br0 up".to_owned(),
        "link set near master br0 up".to_owned(),
        "link set br0 up".to_owned(),
        "addr add 10.77.0.11/24 dev eth0".to_owned(),
        "link set eth0 up".to_owned(),
    ];
    for change in &changes {
        let words: Vec<&str> = ["ip"].into_iter().chain(change.split(' ')).collect();
        cluster.run("d1", &words);
    }
    cluster.start("d1", Some(Process::Dispatch)).unwrap();
    assert_eq!(peer_elsewhere(&cluster), 0);
    let sent = serves(&cluster);
    assert!(sent > 1 << 20, "the upload went out by it: {sent} bytes");
}
