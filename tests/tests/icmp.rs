//! Errors that routers send to the VIP reach the backend that must hear them.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;

use trapeze_tests::raw::RawClient;
use trapeze_tests::{Cluster, Splice, VIP, until};

const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 200);
const REQUEST: &[u8] = b"GET /1m HTTP/1.1\r\nHost: a\r\n\r\n";
const SMALL: &[u8] = b"GET /1k HTTP/1.1\r\nHost: a\r\n\r\n";

#[test]
fn a_small_link_on_the_path_makes_the_answers_segments_smaller() {
    let cluster = Cluster::up("icmp");
    cluster.lend_address("c1", &CLIENT.to_string());
    // Without offloads a packet on the link is a packet.
    for backend in ["b1", "b2", "b3"] {
        cluster.run(
            backend,
            &["ethtool", "-K", "eth0", "tso", "off", "gso", "off"],
        );
    }
    cluster.on("c1", || {
        for port in [3000, 3001, 3002] {
            let mut raw = RawClient::connect(SocketAddrV4::new(CLIENT, port), VIP);
            raw.send(0, REQUEST);
            raw.receive_until("the answer begins", |raw| raw.received().len() > 100_000);
            // An address that has had such news keeps it, so only the first is surprised.
            let before = raw.take_largest();
            assert!(before == 1500 || port != 3000, "{before}");
            raw.say_fragmentation_needed(800);
            let enough = raw.received().len() + 200_000;
            // What was on its way is as it was.
            raw.receive_until("what was sent before has come", |raw| {
                raw.received().len() > enough
            });
            raw.take_largest();
            let enough = raw.received().len() + 200_000;
            raw.receive_until("more comes", |raw| raw.received().len() > enough);
            let after = raw.take_largest();
            assert!(after <= 800, "{after}");
            raw.receive_until("all has come", |raw| raw.received().len() > 1 << 20);
        }
    });
    assert_eq!(cluster.dispatcher().of("icmp-forwarded"), 3);
    let known = cluster.run("b1", &["ip", "route", "show", "cache"])
        + &cluster.run("b2", &["ip", "route", "show", "cache"])
        + &cluster.run("b3", &["ip", "route", "show", "cache"]);
    assert!(known.contains("mtu 800"), "{known}");
}

trapeze_tests::by_each_splice!(errors_about_what_was_spliced_reach_who_has_sent_it);

/// The same at a spliced server: the news is about the splice address there. And
/// what a router says of a client's packets on their way to that server is the client's.
fn errors_about_what_was_spliced_reach_who_has_sent_it(splice: Splice) {
    let cluster = splice.cluster("icmpspl", |options| options.backends = Some(1));
    cluster.lend_address("c1", &CLIENT.to_string());
    cluster.run("b1", &["ethtool", "-K", "eth0", "tso", "off", "gso", "off"]);
    cluster.on("c1", || {
        let mut raw = RawClient::connect(SocketAddrV4::new(CLIENT, 3000), VIP);
        raw.send(0, REQUEST);
        raw.receive_until("the answer begins", |raw| raw.received().len() > 100_000);
        assert_eq!(raw.take_largest(), 1500);
        raw.say_fragmentation_needed(800);
        raw.receive_until("what was sent before has come", |raw| {
            raw.received().len() > 400_000
        });
        raw.take_largest();
        raw.receive_until("all has come", |raw| raw.received().len() > 1 << 20);
        let after = raw.take_largest();
        assert!(after <= 800, "{after}");
        // Strange ones change nothing.
        for (kind, code) in [(3, 1), (11, 0), (12, 0)] {
            raw.send_icmp(kind, code, 0);
        }
        until("they are forwarded", || {
            (cluster.dispatcher().of("icmp-forwarded") == 4).then_some(())
        });
        assert_eq!(raw.ended(), None);
    });
    let known = cluster.run("b1", &["ip", "route", "show", "cache"]);
    assert!(
        known.contains("10.77.0.111") && known.contains("mtu 800"),
        "{known}"
    );
}

#[test]
fn other_errors_are_forwarded_and_strange_ones_counted() {
    let cluster = Cluster::up("unreachable");
    cluster.lend_address("c1", &CLIENT.to_string());
    cluster.on("c1", || {
        let mut raw = RawClient::connect(SocketAddrV4::new(CLIENT, 3000), VIP);
        // Before there is a record.
        raw.send_icmp(3, 1, 0);
        until("it is counted", || {
            (cluster.dispatcher().of("icmp-no-flow") == 1).then_some(())
        });
        raw.send(0, SMALL);
        raw.receive_until("the answer is whole", |raw| raw.received().len() > 1024);
        for (kind, code) in [(3, 1), (3, 0), (11, 0), (12, 0)] {
            raw.send_icmp(kind, code, 0);
        }
        // No error: passed to the host, not to a backend.
        raw.send_icmp(8, 0, 0);
        until("they are forwarded", || {
            (cluster.dispatcher().of("icmp-forwarded") == 4).then_some(())
        });
        // Soft errors do not end an established connection (RFC 5461).
        let length = raw.received().len();
        raw.send(SMALL.len(), SMALL);
        raw.receive_until("another answer", |raw| raw.received().len() >= 2 * length);
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(raw.ended(), None);
    });
    let agents = cluster.agents();
    assert_eq!(
        agents.of("bad-tag") + agents.of("bad-encapsulation"),
        0,
        "{agents:?}"
    );
}
