//! What cannot be served: a proper answer in the client's own protocol, a clean
//! close, and never a hang.

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use trapeze_lab::Process;
use trapeze_tests::raw::RawClient;
use trapeze_tests::{Cluster, Connection, Raised, VIP, VIP_TLS, same, until};

const SHORT_HEAD_TIMEOUT: &str = "\n[limits]\nhead_timeout = \"1s\"\n";

/// Sends bytes, and asserts an answer of that status and an orderly end.
fn refused(bytes: &[u8], status: u16) {
    let mut client = Connection::open();
    client.send(bytes);
    refused_on(&mut client, status);
}

fn refused_on(client: &mut Connection, status: u16) {
    let response = client.response();
    assert_eq!(response.status, status);
    assert_eq!(response.header("connection"), Some("close"));
    assert!(response.header("x-backend").is_none(), "{}", response.head);
    assert!(response.body.starts_with(status.to_string().as_bytes()));
    client.expect_end();
}

#[test]
fn malformed_slow_and_large_heads_are_answered_and_closed() {
    let cluster = Cluster::up("refuse");
    let config = cluster.config() + SHORT_HEAD_TIMEOUT;
    let said = cluster.reload("d1", Process::Dispatch, &config);
    assert!(said.contains("reloaded"), "{said}");
    cluster.on("c1", || {
        for malformed in [
            "\x01\x02\x03\x04",
            "GET\r\n\r\n",
            "GET / SIP/2.0\r\nHost: a\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
            "(GET) / HTTP/1.1\r\n\r\n",
        ] {
            refused(malformed.as_bytes(), 400);
        }
        for major in [2, 3] {
            let head = format!("GET / HTTP/{major}.0\r\nHost: a\r\n\r\n");
            refused(head.as_bytes(), 505);
        }
        // Recognised when half of it is there.
        let mut client = Connection::open();
        client.send("GET / NOTHTTP\r\n");
        refused_on(&mut client, 400);

        let start = Instant::now();
        refused(b"GET / HTTP/1.1\r\nHost:", 408);
        let mut client = Connection::open();
        client.send_pieces("GET / HTTP/1.1\r\nA: b\r\n", 2, Duration::from_millis(30));
        refused_on(&mut client, 408);
        assert!(
            start.elapsed() > Duration::from_secs(2),
            "not before its time"
        );

        refused(&[b'a'; 40_000], 431);
        let long_target = format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(40_000));
        refused(long_target.as_bytes(), 431);
    });
    assert_eq!(cluster.agents().of("rebuilt"), 0);
    until("nothing is held any more", || {
        let daemon = cluster.daemon();
        (daemon.reading_flows == 0 && daemon.answering_flows == 0).then_some(())
    });
}

#[test]
fn a_client_that_goes_on_sending_still_gets_its_answer() {
    let cluster = Cluster::up("endless");
    cluster.on("c1", || {
        // A body as large as it can be, after a head that is none.
        for size in [100_000, 2_000_000] {
            let mut client = Connection::open();
            client.send("GET nowhere\r\n\r\n");
            let mut stream = client.stream().try_clone().unwrap();
            let sender = std::thread::spawn(move || {
                // It may be told to stop; it must not be told so before the answer.
                let _ = stream.write_all(&vec![b'x'; size]);
                let _ = stream.shutdown(std::net::Shutdown::Write);
            });
            refused_on(&mut client, 400);
            sender.join().unwrap();
        }
        let mut client = Connection::open();
        client.send(
            "POST /upload HTTP/1.1\r\nContent-Length: 100000000\r\nHost: a\r\nHost: b\r\n\r\n",
        );
        client.send(vec![b'x'; 50_000]);
        refused_on(&mut client, 400);
    });
}

#[test]
fn without_a_backend_it_is_503_and_with_one_again_it_is_served() {
    let cluster = Cluster::with("nobody", |options| options.tls = true);
    let all = ["b1", "b2", "b3"];
    let served = || cluster.on("c1", || Connection::open().ask("/1k").status);
    let nobody = || {
        cluster.on("c1", || {
            refused(b"GET /1k HTTP/1.1\r\nHost: a\r\n\r\n", 503);
            refused(
                b"POST /upload HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello",
                503,
            );
            let mut client = Connection::open();
            client.send_pieces(
                "GET /1k HTTP/1.1\r\nHost: a\r\n\r\n",
                9,
                Duration::from_millis(2),
            );
            refused_on(&mut client, 503);
            let mut client = Connection::open();
            client.send("HEAD /1k HTTP/1.1\r\nHost: a\r\n\r\n");
            let response = client.try_response(false).unwrap();
            assert_eq!(response.status, 503);
            client.expect_end();
        });
        // curl understands it: 35 is a failed TLS handshake, not a hang or a reset.
        let tls = cluster.output(
            "c1",
            &["curl", "-sSk", "-m", "10", "https://10.77.0.100/1k"],
        );
        assert_eq!(
            tls.status.code(),
            Some(35),
            "{}",
            String::from_utf8_lossy(&tls.stderr)
        );
        assert!(
            String::from_utf8_lossy(&tls.stderr).contains("alert"),
            "{tls:?}"
        );
    };
    assert_eq!(served(), 200);

    // Servers gone: refused by each agent, until none is left.
    for (killed, backend) in all.iter().enumerate() {
        assert_eq!(served(), 200, "with {killed} servers killed");
        cluster.kill(backend, Some(Process::Server)).unwrap();
    }
    nobody();
    assert!(cluster.agents().of("refused") >= 3);
    cluster.start("b2", Some(Process::Server)).unwrap();
    until("a server that is back is used", || {
        (served() == 200).then_some(())
    });
    for backend in ["b1", "b3"] {
        cluster.start(backend, Some(Process::Server)).unwrap();
    }

    // Agents' daemons dead: their data paths live.
    for backend in all {
        cluster.kill(backend, Some(Process::Agent)).unwrap();
    }
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(served(), 200);
    for backend in all {
        cluster.start(backend, Some(Process::Agent)).unwrap();
    }

    // Hosts off, at once and without a word.
    for backend in all {
        cluster.kill(backend, None).unwrap();
    }
    until("their death is noticed", || {
        all.iter()
            .all(|b| cluster.backend(b).state == "silent")
            .then_some(())
    });
    nobody();
    cluster.start("b3", None).unwrap();
    until("a host that is back is used", || {
        (cluster.backend("b3").state == "up").then_some(())
    });
    assert_eq!(served(), 200);
}

#[test]
fn a_full_table_of_flows_refuses_new_ones_until_old_ones_end() {
    let text = "[[pool]]\nname = \"web\"\nbackends = [\"b1\"]\n\
                [[service]]\nname = \"site\"\naddress = \"10.77.0.100:80\"\npool = \"web\"\n\
                [limits]\nflows = 16\nfin_timeout = \"1s\"\n";
    let cluster = Cluster::configured("full", 1, text, |_| {});
    cluster.on("c1", || {
        let ask = |client: &mut Connection| client.ask("/1k").status;
        let mut clients: Vec<Connection> = (0..16).map(|_| Connection::open()).collect();
        assert!(clients.iter_mut().all(|client| ask(client) == 200));
        for pause in [0, 2] {
            let mut client = Connection::open();
            let head = "GET /1k HTTP/1.1\r\nHost: a\r\n\r\n";
            client.send_pieces(head, 16, Duration::from_millis(pause));
            refused_on(&mut client, 503);
        }
        assert!(clients.iter_mut().all(|client| ask(client) == 200));
        drop(clients);
        let start = Instant::now();
        until("the table has room", || {
            (ask(&mut Connection::open()) == 200).then_some(())
        });
        assert!(
            start.elapsed() < Duration::from_secs(4),
            "{:?}",
            start.elapsed()
        );
    });
}

#[test]
fn what_is_not_a_request_ends_without_a_backend() {
    let cluster = Cluster::with("strange", |options| options.tls = true);
    cluster.on("c1", || {
        // Nothing, a bit, and the end.
        let mut client = Connection::open();
        client.finish();
        client.expect_end();
        let mut client = Connection::open();
        client.send("GET / HT").finish();
        let _ = client.rest().expect("an orderly end");
        // A TLS record that is none, to the port of TLS: an alert.
        let mut client = Connection::to(VIP_TLS);
        client.send(b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00");
        let alert = client.rest().expect("an orderly end");
        assert_eq!((alert[0], alert.len()), (21, 7), "{alert:?}");
        // Connections that are dropped at once, in order and by force.
        for _ in 0..50 {
            drop(Connection::open());
            Connection::open().abort();
        }
        assert_eq!(Connection::open().ask("/1k").status, 200);
        // Other ports of the VIP are nobody's.
        let mut other = VIP;
        other.set_port(81);
        assert!(Connection::try_to(other, 0).is_err());
    });
    assert_eq!(cluster.agents().of("rebuilt"), 1);
}

/// A backend that dies keeps what it was given a moment before: what may run
/// twice runs elsewhere, the rest is answered.
#[test]
fn a_request_to_a_backend_that_has_just_died_is_answered() {
    // Slow enough to notice for all of them to be given away before.
    let text = "[[pool]]\nname = \"web\"\nbackends = [\"b1\", \"b2\", \"b3\"]\n\
                [[service]]\nname = \"site\"\naddress = \"10.77.0.100:80\"\npool = \"web\"\n\
                [limits]\nheartbeat = \"1s\"\n";
    let cluster = Cluster::configured("died", 3, text, |_| {});
    for backend in ["b1", "b2"] {
        cluster.kill(backend, None).unwrap();
    }
    cluster.on("c1", || {
        std::thread::scope(|scope| {
            for number in 0..18 {
                scope.spawn(move || {
                    let mut client = Connection::open();
                    let (head, status): (_, &[u16]) = match number % 3 {
                        0 => ("GET /1k HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(), &[200]),
                        // In several packets, of which the first comes again first.
                        1 => {
                            let long = "x".repeat(3000);
                            let head =
                                format!("GET /1k HTTP/1.1\r\nHost: a\r\nX-A: {long}\r\n\r\n");
                            (head, &[200])
                        }
                        // b3 stores it or stores it again; of the others nobody knows.
                        _ => (
                            "POST /upload HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nok"
                                .to_owned(),
                            &[201, 204, 504],
                        ),
                    };
                    client.send(head);
                    let got = client.response().status;
                    assert!(status.contains(&got), "{number}: {got}");
                });
            }
        });
    });
    until("it is counted", || {
        let unheard = *cluster.daemon().counters.get("unheard")?;
        (unheard >= 1).then_some(())
    });
}

/// What the client repeats to a backend that has died may be more than its request: what
/// follows is a request of its own, and has a backend of its own.
#[test]
fn a_request_repeated_with_the_next_one_takes_it_nowhere() {
    let text = "[[pool]]\nname = \"web\"\nbackends = [\"b1\", \"b2\"]\n\
                [[pool]]\nname = \"third\"\nbackends = [\"b3\"]\n\
                [[service]]\nname = \"site\"\naddress = \"10.77.0.100:80\"\npool = \"web\"\n\
                [[service.rule]]\npath_prefix = \"/10k\"\npool = \"third\"\n\
                [limits]\nheartbeat = \"1s\"\n";
    let cluster = Cluster::configured("repeated", 3, text, |_| {});
    let client = Ipv4Addr::new(10, 77, 0, 200);
    cluster.lend_address("c1", &client.to_string());
    let second_document = cluster.document("10k");
    let [first, second] =
        ["/1k", "/10k"].map(|path| format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
    cluster.kill("b1", None).unwrap();
    cluster.on("c1", || {
        let mut clients: Vec<_> = (2000..2008)
            .map(|port| RawClient::connect(SocketAddrV4::new(client, port), VIP))
            .collect();
        for (number, raw) in clients.iter_mut().enumerate() {
            raw.send(0, first.as_bytes());
            // It waits for the first one's backend, or comes only with the repetition.
            if number >= 4 {
                raw.send(first.len(), second.as_bytes());
            }
        }
        until("its silence is noticed", || {
            (cluster.backend("b1").state == "silent").then_some(())
        });
        // The data path is told a moment later.
        std::thread::sleep(Duration::from_millis(50));
        for raw in &mut clients {
            raw.send(0, (first.clone() + &second).as_bytes());
            raw.receive_until("both answers", |raw| {
                raw.received().ends_with(&second_document)
            });
            let answers = String::from_utf8_lossy(raw.received()).to_lowercase();
            let by: Vec<_> = answers
                .split("x-backend: b")
                .skip(1)
                .map(|rest| &rest[..1])
                .collect();
            assert_eq!(by[1..], ["3"], "{by:?}");
            assert_ne!(by[0], "3");
        }
    });
    until("it is counted", || {
        let unheard = *cluster.daemon().counters.get("unheard")?;
        (unheard >= 1).then_some(())
    });
}

#[test]
fn a_port_that_nobody_serves_takes_no_other_port_with_it() {
    let service = |name: &str, port: u16| {
        format!(
            "[[service]]\nname = \"{name}\"\naddress = \"10.77.0.100:{port}\"\npool = \"web\"\n"
        )
    };
    for policy in ["round-robin", "least-connections"] {
        let text = format!(
            "[[pool]]\nname = \"web\"\nbackends = [\"b1\"]\npolicy = \"{policy}\"\n{}{}",
            service("served", 80),
            service("deserted", 8081)
        );
        let cluster = Cluster::configured(&format!("port-{}", policy.len()), 1, &text, |_| {});
        // The lab's server listens on both: one of our own takes its place on one.
        cluster.kill("b1", Some(Process::Server)).unwrap();
        let mut server = cluster.start_command(
            "b1",
            &[
                "python3",
                "-m",
                "http.server",
                "80",
                "--directory",
                "/var/tmp",
            ],
        );
        let ask = |port: u16| {
            let address = SocketAddrV4::new(*VIP.ip(), port);
            Connection::try_to(address, 0).unwrap().ask("/").status
        };
        cluster.on("c1", || {
            until("the server listens", || (ask(80) == 200).then_some(()));
            for round in 0..50 {
                assert_eq!(ask(8081), 503, "{policy}, round {round}");
                assert_eq!(ask(80), 200, "{policy}, round {round}");
            }
        });
        // The other one was refused, too, before its server listened: a second ago by then.
        until("only that port counts as deserted", || {
            let refused = cluster.on("c1", || ask(8081));
            assert_eq!(refused, 503, "{policy}");
            let ports = cluster.backend("b1").ports_without_server;
            assert!(ports.contains(&8081), "{policy}: {ports:?}");
            (ports == [8081]).then_some(())
        });
        server.kill().unwrap();
        server.wait().unwrap();
    }
}

/// The kernel rebuilds no connection of a server that listens with MPTCP.
#[test]
fn a_server_that_listens_with_mptcp_loses_its_turns() {
    let cluster = Cluster::with("mptcp", |options| options.backends = Some(2));
    cluster.kill("b1", Some(Process::Server)).unwrap();
    let listen = "import socket, sys, time\n\
                  s = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)\n\
                  s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)\n\
                  s.bind(('0.0.0.0', 80)); s.listen(); time.sleep(60)\n";
    let mut server = cluster.start_command("b1", &["python3", "-c", listen]);
    until("it listens", || {
        let said = cluster.run("b1", &["ss", "-HMltn"]);
        said.contains(":80 ").then_some(())
    });
    cluster.on("c1", || {
        for _ in 0..6 {
            assert_eq!(Connection::open().ask("/1k").ok(), "b2");
        }
    });
    assert!(cluster.agent("b1").of("not-rebuilt") >= 1);
    server.kill().unwrap();
    server.wait().unwrap();
}

/// Servers are restarted one after the other, and faster than one that did not listen is forgiven that.
#[test]
fn servers_restarted_one_after_another_cost_no_request() {
    let cluster = Cluster::with("rolling", |options| options.backends = Some(3));
    let wanted = cluster.document("1k");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _raised = Raised(&stop);
        let (cluster, stop, wanted) = (&cluster, &stop, &wanted);
        let clients: Vec<_> = (0..8)
            .map(|_| {
                scope.spawn(move || {
                    cluster.on("c1", || {
                        let mut asked = 0;
                        while !stop.load(Ordering::Relaxed) {
                            let answer = Connection::open().ask("/1k");
                            assert_eq!(answer.status, 200, "request {asked}: {}", answer.head);
                            same(&answer.body, wanted);
                            asked += 1;
                        }
                        asked
                    })
                })
            })
            .collect();
        for backend in ["b1", "b2", "b3", "b1", "b2", "b3"] {
            cluster.kill(backend, Some(Process::Server)).unwrap();
            // As long as it takes until somebody has found that.
            std::thread::sleep(Duration::from_millis(50));
            cluster.start(backend, Some(Process::Server)).unwrap();
            std::thread::sleep(Duration::from_millis(100));
        }
        stop.store(true, Ordering::Relaxed);
        let asked: u32 = clients.into_iter().map(|c| c.join().unwrap()).sum();
        println!("{asked} requests");
        assert!(asked > 200, "{asked}");
    });
}
