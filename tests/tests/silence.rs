//! Connections that say nothing for a long time, or ever.

use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use trapeze_core::wire::segment::Segment;
use trapeze_core::wire::tcp::{Flags, Header};
use trapeze_lab::Process;
use trapeze_tests::raw::RawSender;
use trapeze_tests::{Cluster, Connection, Dice, VIP, until};

/// Longer than any cookie lives.
const LONG: Duration = Duration::from_secs(70);

#[test]
fn a_connection_may_be_silent_for_long_before_its_first_request() {
    let cluster = Cluster::with("silent", |options| {
        options.clients = 2;
        options.tls = true;
    });
    cluster.run("c2", &["sysctl", "-q", "net.ipv4.tcp_timestamps=0"]);
    let open = |host: &str| cluster.on(host, Connection::open);
    let mut plain: Vec<Connection> = ["c1", "c2"].map(open).into();
    let mut pieces: Vec<Connection> = ["c1", "c2"].map(open).into();
    let mut probed = open("c1");
    let keepalive = TcpKeepalive::new()
        .with_time(Duration::from_secs(2))
        .with_interval(Duration::from_secs(1))
        .with_retries(3);
    SockRef::from(probed.stream())
        .set_tcp_keepalive(&keepalive)
        .unwrap();
    let closed = open("c1");
    // Served, and then silent.
    let mut served = open("c1");
    served.ask("/1k").ok();

    std::thread::sleep(LONG / 2);
    drop(closed);
    // The proofs that silent connections have left outlive the daemon.
    cluster.restart("d1", Process::Dispatch);
    std::thread::sleep(LONG / 2);

    for client in &mut plain {
        client.ask("/1k").ok();
        client.ask("/10k").ok();
    }
    for client in &mut pieces {
        let head = "GET /1k HTTP/1.1\r\nHost: a\r\n\r\n";
        client
            .send_pieces(head, 9, Duration::from_millis(5))
            .response()
            .ok();
    }
    // Three unanswered probes would have ended it a minute ago.
    probed.ask("/1k").ok();
    served.ask("/1k").ok();
    // Round robin gives each of the nine requests to another backend than the one before.
    assert_eq!(cluster.agents().of("rebuilt"), 9);
}

/// Its host was off for a moment and has forgotten the connection, in the middle of a
/// request: what comes next of that meets an RST, as with the server alone.
#[test]
fn a_connection_that_its_backend_has_lost_is_reset() {
    let cluster = Cluster::up("lost");
    cluster.on("c1", || {
        let mut client = Connection::open();
        client.ask("/1k").ok();
        client.send("POST /upload HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n1");
        // As much as clocks may differ, and some.
        std::thread::sleep(Duration::from_millis(2500));
        let has_it = |backend: &&str| cluster.backend(backend).active == 1;
        let backend = ["b1", "b2", "b3"].into_iter().find(has_it).unwrap();
        cluster.kill(backend, None).unwrap();
        cluster.start(backend, None).unwrap();
        client.send("2");
        let error = client.try_response(true).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
        assert_eq!(cluster.agent(backend).of("rebuilt"), 0);
    });
}

/// What a server resets goes past the dispatcher: it asks after connections that
/// are idle, and lets those alone whose socket is there. A drain ends by that.
#[test]
fn a_connection_that_its_server_has_reset_does_not_count_for_long() {
    let cluster = Cluster::kept("uncounted");
    let active = |backend: &str| cluster.backend(backend).active;
    let (mut idle, mut reset) = (Vec::new(), Vec::new());
    cluster.on("c1", || {
        for _ in 0..12 {
            let mut client = Connection::open();
            match client.ask("/1k").ok() {
                "b2" => reset.push(client),
                _ => idle.push(client),
            }
        }
        assert_eq!((idle.len(), reset.len()), (8, 4));
        // In the middle of a request when its server goes.
        for client in &mut reset {
            client.send("POST /upload HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n1");
        }
        std::thread::sleep(Duration::from_millis(300));
        cluster.restart("b2", Process::Server);
        for client in &mut reset {
            client.send("2");
            let error = client.try_response(true).unwrap_err();
            assert_ne!(error.kind(), std::io::ErrorKind::WouldBlock);
        }
    });
    assert_eq!((active("b1"), active("b2"), active("b3")), (4, 4, 4));
    let drained = cluster.trapeze("d1", &["drain", "b2", "--deadline", "10s"]);
    assert!(drained.status.success(), "{drained:?}");
    until("they are counted as lost", || {
        (*cluster.daemon().counters.get("lost-by-backend")? == 4).then_some(())
    });
    assert_eq!((active("b1"), active("b2"), active("b3")), (4, 0, 4));
    cluster.on("c1", || {
        for client in &mut idle {
            client.ask("/1k").ok();
        }
    });
    assert_eq!(cluster.agents().of("rebuilt"), 12);
}

/// A host that was off has neither setups nor sockets, and says so when it is asked.
#[test]
fn connections_of_a_host_that_was_off_do_not_count_for_long() {
    let cluster = Cluster::kept("was-off");
    let mut clients = cluster.on("c1", || {
        [(); 9].map(|()| {
            let mut client = Connection::open();
            let backend = client.ask("/1k").ok().to_owned();
            (client, backend)
        })
    });
    // As much as clocks may differ, and some.
    std::thread::sleep(Duration::from_millis(2500));
    cluster.kill("b2", None).unwrap();
    cluster.start("b2", None).unwrap();
    let drained = cluster.trapeze("d1", &["drain", "b2", "--deadline", "10s"]);
    assert!(drained.status.success(), "{drained:?}");
    assert_eq!(cluster.backend("b2").active, 0);
    cluster.on("c1", || {
        for (client, backend) in &mut clients {
            if backend != "b2" {
                assert_eq!(client.ask("/1k").ok(), backend);
            }
        }
    });
}

#[test]
fn connections_without_a_word_leave_nothing() {
    let cluster = Cluster::up("wordless");
    cluster.on("c1", || {
        for _ in 0..200 {
            drop(Connection::open());
        }
        for _ in 0..20 {
            Connection::open().finish().expect_end();
        }
        // Half of a head, and gone.
        for _ in 0..20 {
            let mut client = Connection::open();
            client.send("GET /");
            drop(client);
            let mut client = Connection::open();
            client.send("GET /");
            client.abort();
        }
    });
    until("all is forgotten", || {
        let daemon = cluster.daemon();
        let nothing =
            daemon.reading_flows + daemon.answering_flows == 0 && daemon.reading_bytes == 0;
        (nothing && cluster.flows().is_empty()).then_some(())
    });
    assert_eq!(cluster.agents().of("rebuilt"), 0);
    let sockets = cluster.run("c1", &["ss", "-Htn", "state", "fin-wait-1"]);
    assert_eq!(sockets, "", "every end has been acknowledged");
}

/// Anyone can send a RST or a FIN in somebody's name; the flow's record must
/// not go because of it while the connection is silent.
#[test]
fn a_silent_connection_survives_forged_ends() {
    let cluster = Cluster::with("blind", |options| options.clients = 2);
    let config = cluster.config() + "\n[limits]\nfin_timeout = \"1s\"\n";
    assert!(
        cluster
            .reload("d1", Process::Dispatch, &config)
            .starts_with("reloaded")
    );
    let mut client = cluster.on("c1", Connection::open);
    client.ask("/1k").ok();
    let source = client.stream().local_addr().unwrap();
    cluster.on("c2", || {
        let (sender, mut dice) = (RawSender::open(), Dice::new(1));
        for flags in [Flags::RST, Flags::RST | Flags::ACK, Flags::FIN | Flags::ACK] {
            for _ in 0..20 {
                let header = Header {
                    seq: dice.below(1 << 32) as u32,
                    ack: dice.below(1 << 32) as u32,
                    flags,
                    ..Header::default()
                };
                let (destination, payload) = (VIP.into(), Vec::new());
                let forged = Segment {
                    source,
                    destination,
                    header,
                    payload,
                };
                sender.send_segment(&forged).unwrap();
            }
        }
    });
    std::thread::sleep(Duration::from_secs(4));
    client.ask("/1k").ok();
    // Its own end counts.
    client.finish().expect_end();
    until("its record is gone", || {
        cluster.flows().is_empty().then_some(())
    });
}
