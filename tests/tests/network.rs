//! The lab's own network: which way its frames take from host to host.

use std::time::Duration;

use trapeze_lab::{Counters, LinkSettings};
use trapeze_tests::{Cluster, Connection, same, until};

/// Packets and bytes.
#[derive(Clone, Copy, Debug)]
struct Traffic {
    packets: u64,
    bytes: u64,
}

impl Traffic {
    fn since(self, before: Self) -> Self {
        Self {
            packets: self.packets - before.packets,
            bytes: self.bytes - before.bytes,
        }
    }
}

/// What an interface has counted from the `column`th number on (proc_net(5)).
fn counted(cluster: &Cluster, host: &str, interface: &str, column: usize) -> Traffic {
    let table = cluster.run(host, &["cat", "/proc/net/dev"]);
    let line = table.lines().filter_map(|line| line.split_once(':'));
    let (_, numbers) = line
        .into_iter()
        .find(|(name, _)| name.trim() == interface)
        .unwrap_or_else(|| panic!("{host} has no {interface}: {table}"));
    let mut numbers = numbers.split_whitespace().skip(column);
    let mut next = || numbers.next().unwrap().parse().unwrap();
    Traffic {
        bytes: next(),
        packets: next(),
    }
}

fn received(cluster: &Cluster, host: &str) -> Traffic {
    counted(cluster, host, "eth0", 0)
}

/// What the bridge has sent to a host that is connected to it directly.
fn bridged(cluster: &Cluster, host: &str) -> Traffic {
    counted(cluster, "switch", host, 8)
}

/// What one download had c1 receive, and which part of it the bridge sent to the
/// hosts `connected`.
fn download(cluster: &Cluster, connected: &[&str]) -> (Traffic, u64) {
    let of_bridge = || -> u64 {
        let hosts = connected.iter();
        hosts.map(|host| bridged(cluster, host).bytes).sum()
    };
    let before = (received(cluster, "c1"), of_bridge());
    let document = cluster.document("1m");
    cluster.on("c1", || {
        same(&Connection::open().ask("/1m").body, &document)
    });
    let got = received(cluster, "c1").since(before.0);
    assert!(got.bytes > 1 << 20, "c1's own counters have it: {got:?}");
    (got, of_bridge() - before.1)
}

/// What a host's emulated link has made of the frames for it.
fn to_host(cluster: &Cluster, host: &str) -> Counters {
    let status = cluster.status().unwrap();
    let link = status.host(host).unwrap().link.clone();
    link.expect("it is emulated").to_host.expect("it answers")
}

fn one_backend(test: &str) -> Cluster {
    Cluster::with(test, |options| options.backends = Some(1))
}

fn slow() -> LinkSettings {
    LinkSettings {
        delay: Duration::from_millis(1),
        ..LinkSettings::default()
    }
}

#[test]
fn frames_pass_the_bridge_by_until_a_link_is_emulated_and_from_then_on() {
    let cluster = one_backend("short");
    let all = ["c1", "d1", "b1"];
    let (_, bridge) = download(&cluster, &all);
    assert!(bridge < 5_000, "only broadcasts: {bridge}");

    for host in ["c1", "b1"] {
        let others: Vec<&str> = all.into_iter().filter(|other| *other != host).collect();
        cluster.link(host, &slow()).unwrap();
        let before = (
            received(&cluster, host).packets,
            to_host(&cluster, host).sent,
        );
        download(&cluster, &others);
        until("a host has received just what its link has sent", || {
            let frames = received(&cluster, host).packets - before.0;
            let sent = to_host(&cluster, host).sent - before.1;
            (frames == sent && sent > 20).then_some(())
        });
        cluster.link(host, &LinkSettings::default()).unwrap();
        let (_, bridge) = download(&cluster, &all);
        assert!(bridge < 5_000, "as before: {bridge}");
    }
}

#[test]
fn a_host_that_was_off_is_connected_as_before() {
    let cluster = one_backend("off");
    let all = ["c1", "d1", "b1"];
    cluster.kill("b1", None).unwrap();
    cluster.kill("c1", None).unwrap();
    // Not before it has been missed: else "up" may be a word of before.
    until("b1 is missed", || {
        (cluster.backend("b1").state == "silent").then_some(())
    });
    cluster.start("c1", None).unwrap();
    cluster.start("b1", None).unwrap();
    until("b1 is heard of again", || {
        (cluster.backend("b1").state == "up").then_some(())
    });
    let (_, bridge) = download(&cluster, &all);
    assert!(bridge < 5_000, "only broadcasts: {bridge}");

    cluster.link("c1", &slow()).unwrap();
    cluster.kill("c1", None).unwrap();
    cluster.start("c1", None).unwrap();
    download(&cluster, &["d1", "b1"]);
    let carried = to_host(&cluster, "c1");
    assert!(carried.sent > 700, "its link is back: {carried:?}");
}

/// Hosts hear nothing that is not for them, even while the bridge sees but one
/// direction of a connection.
#[test]
fn nothing_is_flooded() {
    let cluster = one_backend("flood");
    cluster.link("c1", &slow()).unwrap();
    let before = (bridged(&cluster, "d1"), bridged(&cluster, "b1"));
    download(&cluster, &[]);
    let to_d1 = bridged(&cluster, "d1").since(before.0);
    let to_b1 = bridged(&cluster, "b1").since(before.1);
    assert!(to_d1.packets > 20, "c1's acknowledgements: {to_d1:?}");
    assert!(to_b1.packets < 20, "but b1 does not hear them: {to_b1:?}");
}
