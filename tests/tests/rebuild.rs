//! How a connection comes to a server: at most once, over whatever an earlier
//! one has left, and wherever the server listens.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::{Duration, Instant};

use trapeze_lab::{LinkSettings, Process, ServerKind};
use trapeze_tests::numbered::Numbered;
use trapeze_tests::{Cluster, Connection, ONE_BACKEND, VIP, same, until};

/// So many clients, and so often each resets a connection and comes again.
const CLIENTS: u16 = 4;
const CYCLES: u64 = 250;

fn one_backend(test: &str) -> Cluster {
    Cluster::configured(test, 1, ONE_BACKEND, |_| {})
}

/// Connects from a port until the kernel lets it: its own TIME_WAIT may need a tick.
fn from_port(port: u16) -> Connection {
    until("the port can be used again", || {
        Connection::try_to(VIP, port).ok()
    })
}

/// A client's host forgets a connection without a word: its kernel finds no way
/// for the reset, nor for another if the server still sends.
fn lose(cluster: &Cluster, client: Connection) {
    let vip = VIP.ip().to_string();
    let route = |verb: &str| cluster.run("c1", &["ip", "route", verb, "blackhole", &vip]);
    route("add");
    client.abort();
    route("del");
}

/// What ss says of the client's port, on b1 or c1: state, bytes to be read, bytes
/// to be acknowledged, and more.
fn sockets(cluster: &Cluster, host: &str, port: u16) -> String {
    let end = if host == "c1" { "sport" } else { "dport" };
    cluster.run(host, &["ss", "-Htan", &format!("{end} = :{port}")])
}

fn states(cluster: &Cluster, host: &str, port: u16) -> String {
    let said = sockets(cluster, host, port);
    said.lines()
        .filter_map(|line| line.split_whitespace().next())
        .collect()
}

/// Its request may be on its way to a backend when the client resets the connection, and the port has another one before
/// that backend answers: no reset of the client's would end what is there.
#[test]
fn a_port_is_used_again_at_once_after_a_reset_and_nobody_is_left_with_it() {
    let cluster = Cluster::nodes(3)
        + "[[pool]]\nname = \"web\"\nbackends = [\"b1\", \"b2\", \"b3\"]\n\
           [[service]]\nname = \"site\"\naddress = \"10.77.0.100:80\"\npool = \"web\"\n";
    let cluster = Cluster::configured_whole("resets", &cluster, |_| {});
    let numbered = &Numbered::of(&cluster, &["1k", "10k"]);
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let cycles = move || {
                for cycle in 0..CYCLES {
                    let port = 20_000 + client * 1000 + cycle as u16;
                    let first = u64::from(client) * 1_000_000 + cycle * 10;
                    let mut aborted = from_port(port);
                    if cycle % 2 == 1 {
                        numbered.ask_each(&mut aborted, [first]).unwrap();
                    }
                    aborted.send(numbered.request(first + 1));
                    aborted.abort();
                    let mut kept = from_port(port);
                    let asked = numbered.ask_each(&mut kept, first + 2..first + 5);
                    asked.unwrap_or_else(|e| panic!("port {port}: {e}"));
                }
            };
            let cluster = &cluster;
            scope.spawn(move || cluster.on("c1", cycles));
        }
    });
    let left = || {
        let of_vip = "( sport = :80 ) and src 10.77.0.100";
        let on = |backend| cluster.run(backend, &["ss", "-Htn", "state", "established", of_vip]);
        ["b1", "b2", "b3"]
            .map(|b| on(b).lines().count())
            .iter()
            .sum::<usize>()
    };
    // Now and then a reset has overtaken what it was to end, on another processor.
    until("nobody is left with a connection", || {
        (left() <= CYCLES as usize * usize::from(CLIENTS) / 100).then_some(())
    });
}

#[test]
fn a_port_is_used_again_at_once() {
    let cluster = one_backend("reuse");
    let document = cluster.document("1k");
    cluster.on("c1", || {
        // The server closes first and keeps TIME_WAIT.
        for _ in 0..100 {
            let start = Instant::now();
            let mut client = from_port(4001);
            client.send("GET /1k HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
            same(&client.response().body, &document);
            client.expect_end();
            drop(client);
            assert!(start.elapsed() < Duration::from_secs(5));
        }
        // The client aborts: no state on either side, but a record.
        for _ in 0..100 {
            let mut client = from_port(4002);
            same(&client.ask("/1k").body, &document);
            client.abort();
        }
        // The same with heads in pieces.
        for _ in 0..20 {
            let mut client = from_port(4003);
            let head = "GET /1k HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
            client.send_pieces(head, 17, Duration::from_millis(1));
            same(&client.response().body, &document);
            client.expect_end();
        }
    });
    let agent = cluster.agent("b1");
    assert_eq!(agent.of("rebuilt"), 220, "{agent:?}");
    assert!(agent.of("replaced") > 90, "{agent:?}");
    // A leftover that its server is just looking at hears its reset later than the packet that
    // comes for the second time by then; the client's repetition is served.
    assert!(agent.of("not-rebuilt") < 5, "{agent:?}");
}

/// A client that has lost its state reuses its port while the server still has
/// an old connection in any state.
#[test]
fn leftovers_of_a_lost_connection_make_way() {
    let cluster = one_backend("leftovers");
    let document = cluster.document("1k");
    let lose = |client: Connection| lose(&cluster, client);
    let serve_from = |port: u16| {
        let start = Instant::now();
        let mut client = from_port(port);
        same(&client.ask("/1k").body, &document);
        same(&client.ask("/1k").body, &document);
        assert!(
            start.elapsed() < Duration::from_secs(5),
            "{:?}",
            start.elapsed()
        );
        client.abort();
    };
    cluster.on("c1", || {
        for round in 0..3 {
            // ESTABLISHED and idle.
            let port = 4100 + round;
            let mut client = from_port(port);
            client.ask("/1k").ok();
            until("the answer is acknowledged", || {
                let said = sockets(&cluster, "b1", port);
                (said.split_whitespace().nth(2) == Some("0")).then_some(())
            });
            lose(client);
            assert_eq!(states(&cluster, "b1", port), "ESTAB");
            serve_from(port);
            // ESTABLISHED and in the middle of an answer.
            let port = 4200 + round;
            let mut client = from_port(port);
            client
                .send("GET /100m HTTP/1.1\r\nHost: a\r\n\r\n")
                .skip(300_000)
                .unwrap();
            lose(client);
            // Unless a retransmission has met the host's reset already.
            assert!(["ESTAB", ""].contains(&&*states(&cluster, "b1", port)));
            serve_from(port);
            // FIN_WAIT2: the server has closed, the client's FIN never came.
            let port = 4300 + round;
            let mut client = from_port(port);
            client.send("GET /1k HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
            client.response();
            until("the server has closed", || {
                (states(&cluster, "b1", port) == "FIN-WAIT-2").then_some(())
            });
            lose(client);
            assert_eq!(states(&cluster, "b1", port), "FIN-WAIT-2");
            serve_from(port);
        }
    });
    let agent = cluster.agent("b1");
    // A server that was sending may have met the client's reset before.
    assert!(agent.of("replaced") >= 6, "{agent:?}");
    assert_eq!(agent.of("not-rebuilt"), 0, "{agent:?}");
}

/// A server in Python on b1 that does as told; ends with the lab.
fn serve(cluster: &Cluster, script: &str) {
    cluster.kill("b1", Some(Process::Server)).unwrap();
    let mut server = cluster.command("b1", &["python3", "-c", script]);
    // Its end is the lab's: nobody waits for it.
    drop(server.spawn().unwrap());
    until("it listens", || {
        let said = cluster.run("b1", &["ss", "-Htln"]);
        said.contains(":80 ").then_some(())
    });
}

#[test]
fn a_connection_that_the_server_has_not_closed_makes_way_too() {
    let cluster = one_backend("wait");
    // Answers and never closes, whatever the client does: CLOSE_WAIT.
    serve(
        &cluster,
        "import socket, threading\n\
         listener = socket.create_server(('0.0.0.0', 80))\n\
         kept = []\n\
         while True:\n\
         \x20   s, _ = listener.accept(); kept.append(s); s.recv(65536)\n\
         \x20   s.sendall(b'HTTP/1.1 200 OK\\r\\nX-Backend: b1\\r\\nContent-Length: 2\\r\\n\\r\\nok')\n",
    );
    cluster.on("c1", || {
        for _ in 0..5 {
            let mut client = from_port(4400);
            assert_eq!(client.ask("/").body, b"ok");
            client.finish();
            // An acknowledgement still on its way would be answered by a reset.
            until("the FIN is there and acknowledged", || {
                let states = ["b1", "c1"].map(|host| states(&cluster, host, 4400));
                (states == ["CLOSE-WAIT", "FIN-WAIT-2"]).then_some(())
            });
            lose(&cluster, client);
        }
    });
    let agent = cluster.agent("b1");
    assert_eq!(
        (agent.of("rebuilt"), agent.of("replaced")),
        (5, 4),
        "{agent:?}"
    );
}

#[test]
fn a_full_accept_queue_ends_well() {
    let cluster = one_backend("queue");
    serve(
        &cluster,
        "import socket, time\n\
         listener = socket.socket()\n\
         listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)\n\
         listener.bind(('0.0.0.0', 80)); listener.listen(1)\n\
         time.sleep(3)\n\
         while True:\n\
         \x20   s, _ = listener.accept(); s.recv(65536)\n\
         \x20   s.sendall(b'HTTP/1.1 200 OK\\r\\nX-Backend: b1\\r\\nContent-Length: 2\\r\\n\\r\\nok'); s.close()\n",
    );
    cluster.on("c1", || {
        std::thread::scope(|scope| {
            for thread in 0..12 {
                scope.spawn(move || {
                    let mut client = Connection::open();
                    let head = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
                    match thread % 2 {
                        0 => client.send(head),
                        _ => client.send_pieces(head, 9, Duration::from_millis(5)),
                    };
                    assert_eq!(client.response().body, b"ok");
                });
            }
        });
    });
    let agent = cluster.agent("b1");
    assert!(agent.of("accept-queue-full") > 0, "{agent:?}");
    // The queue may fill up between a look at it and the handing over: it comes again.
    assert!(agent.of("rebuilt") >= 12, "{agent:?}");
    assert_eq!(agent.of("confirmed"), 12, "{agent:?}");
}

#[test]
fn servers_elsewhere_and_missing_servers() {
    let text = r#"
[[pool]]
name = "web"
backends = ["b1", { name = "b2", server = "0.0.0.0:8080" }, { name = "b3", server = "127.0.0.1:8081" }]
[[service]]
name = "site"
address = "10.77.0.100:80"
pool = "web"
"#;
    let cluster = Cluster::configured("elsewhere", 3, text, |_| {});
    let document = cluster.document("100k");
    let ask = |times: usize| {
        cluster.on("c1", || {
            let mut backends: Vec<String> = (0..times)
                .flat_map(|_| {
                    let mut client = Connection::open();
                    let response = client.ask("/100k");
                    same(&response.body, &document);
                    // The next request has a backend of its own.
                    [response.ok().to_owned(), client.ask("/1k").ok().to_owned()]
                })
                .collect();
            backends.sort();
            backends.dedup();
            backends.concat()
        })
    };
    assert_eq!(ask(6), "b1b2b3");
    for (killed, left) in [("b2", "b1b3"), ("b3", "b1")] {
        cluster.kill(killed, Some(Process::Server)).unwrap();
        assert_eq!(ask(6), left);
    }
    assert!(cluster.agents().of("no-listener") >= 2);
}

/// Everything that starts a request arrives late, twice, in disorder or not at
/// all, and each request still runs once.
#[test]
fn a_request_runs_once_whatever_the_network_repeats() {
    let cluster = Cluster::with("once", |options| {
        options.server = ServerKind::Python;
        options.backends = Some(2);
    });
    let settings = LinkSettings {
        duplicate: 0.2,
        reorder: 0.2,
        loss: 0.05,
        delay: Duration::from_millis(1),
        jitter: Duration::from_millis(1),
        ..LinkSettings::default()
    };
    let runs = || {
        let count = |address: &str| {
            let said = cluster.run("d1", &["curl", "-sS", &format!("http://{address}/count")]);
            let value: serde_json::Value = serde_json::from_str(&said).unwrap();
            value["requests"].as_u64().unwrap()
        };
        // Less the question itself, which is counted the next time.
        count("10.77.0.21") + count("10.77.0.22")
    };
    let before = runs();
    for host in ["c1", "b1", "b2"] {
        cluster.link(host, &settings).unwrap();
    }
    let requests = cluster.on("c1", || {
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|thread| {
                    scope.spawn(move || {
                        for round in 0..20 {
                            let mut client = Connection::open();
                            let body = format!("{thread} {round}");
                            let head = format!(
                                "POST /upload/{thread}-{round} HTTP/1.1\r\nHost: a\r\n\
                                 Connection: close\r\nContent-Length: {}\r\n\r\n{body}",
                                body.len()
                            );
                            match round % 2 {
                                0 => client.send(&head),
                                _ => client.send_pieces(&head, 30, Duration::ZERO),
                            };
                            assert_eq!(client.response().status, 201);
                            client.expect_end();
                        }
                        20
                    })
                })
                .collect();
            threads.into_iter().map(|t| t.join().unwrap()).sum::<u64>()
        })
    });
    for host in ["c1", "b1", "b2"] {
        cluster.link(host, &LinkSettings::default()).unwrap();
    }
    std::thread::sleep(Duration::from_millis(500));
    // The two questions of before are counted by now.
    assert_eq!(runs() - before, requests + 2, "{:?}", cluster.agents());
    let agents = cluster.agents();
    // Copies may meet at a listener that is busy; the kernel lets one of them in.
    assert!(agents.of("rebuilt") >= requests, "{agents:?}");
}

/// A server that is wholly the test's own: it sees just what it would see from
/// clients directly.
#[test]
fn the_server_sees_the_client() {
    let cluster = one_backend("sees");
    cluster.kill("b1", Some(Process::Server)).unwrap();
    let (ready, is_ready) = std::sync::mpsc::channel();
    let server = cluster.spawn("b1", move || {
        let listener = TcpListener::bind("0.0.0.0:80").unwrap();
        ready.send(()).unwrap();
        let (mut stream, from) = listener.accept().unwrap();
        let mut request = [0; 100];
        let length = stream.read(&mut request).unwrap();
        stream
            .write_all(b"HTTP/1.1 200 OK\r\nX-Backend: b1\r\nContent-Length: 0\r\n\r\n")
            .unwrap();
        (
            from,
            stream.local_addr().unwrap(),
            request[..length].to_vec(),
        )
    });
    is_ready.recv().unwrap();
    let request = "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n";
    let port = cluster.on("c1", || {
        let mut client = Connection::open();
        client.send(request);
        assert_eq!(client.response().status, 200);
        client.port()
    });
    let (from, to, got) = server.join().unwrap();
    assert_eq!(from, format!("10.77.0.1:{port}").parse().unwrap());
    assert_eq!(to, VIP.into());
    assert_eq!(got, request.as_bytes());
}
