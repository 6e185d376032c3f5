//! Everything after the first request: the connection is the backend's own.

use std::io::{Read, Write};
use std::time::Duration;

use trapeze_datapath::abi::FlowState;
use trapeze_lab::{Lab, Process, ServerKind};
use trapeze_tests::{Cluster, Connection, Content, Dice, same, until};

fn python(test: &str) -> Cluster {
    Cluster::with(test, |options| options.server = ServerKind::Python)
}

/// What the lab's Python server says of an upload, by the bytes that it got.
fn expect_stored(cluster: &Cluster, backend: &str, name: &str, body: &[u8]) {
    same(
        &std::fs::read(cluster.uploads(backend).join(name)).unwrap(),
        body,
    );
}

fn post(name: &str, length: usize, more: &str) -> String {
    format!("POST /upload/{name} HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n{more}\r\n")
}

#[test]
fn later_requests_of_a_connection_go_to_its_backend() {
    let cluster = Cluster::kept("later");
    let (one, ten) = (cluster.document("1k"), cluster.document("10k"));
    let before = cluster.dispatcher();
    cluster.on("c1", || {
        let mut client = Connection::open();
        let first = client.ask("/1k").ok().to_owned();
        for _ in 0..50 {
            let response = client.ask("/10k");
            assert_eq!(response.ok(), first);
            same(&response.body, &ten);
            let response = client.ask("/1k");
            assert_eq!(response.ok(), first);
            same(&response.body, &one);
        }
        assert_eq!(client.ask("/nothing-here").status, 404);
        // In one segment, and more of them than fit one.
        for count in [2, 10, 300] {
            let mut client = Connection::open();
            client.send("GET /1k HTTP/1.1\r\nHost: a\r\n\r\n".repeat(count));
            for _ in 0..count {
                same(&client.response().body, &one);
            }
        }
    });
    let d1 = cluster.dispatcher() - before;
    assert_eq!(cluster.agents().of("rebuilt"), 4);
    // The daemon has seen each connection's first packet, and no other.
    assert!(d1.of("to-daemon") < 30, "{d1:?}");
    assert!(d1.of("forwarded") > 150, "{d1:?}");
    assert_eq!(
        d1.of("no-backend") + d1.of("rewrite") + d1.of("too-big"),
        0,
        "{d1:?}"
    );
}

#[test]
fn bodies_of_any_size_arrive_whole() {
    let cluster = python("bodies");
    let one = cluster.document("1k");
    let mut dice = Dice::new(7);
    let sizes = [
        0,
        1,
        1000,
        1447,
        1448,
        1449,
        65_535,
        65_536,
        200_000,
        1 << 20,
        30 << 20,
        100 << 20,
    ];
    for (number, size) in sizes.into_iter().enumerate() {
        let body = Content::new(number as u64, size as u64).bytes();
        let name = format!("body-{number}");
        let head = post(&name, size, "");
        let backend = cluster.on("c1", || {
            let mut client = Connection::open();
            match dice.below(2) {
                0 => client.send([head.as_bytes(), &body].concat()),
                _ => {
                    client.send(&head);
                    std::thread::sleep(Duration::from_millis(5));
                    client.send(&body)
                }
            };
            let response = client.response();
            assert_eq!(response.status, 201);
            same(&client.ask("/1k").body, &one);
            response.backend().to_owned()
        });
        expect_stored(&cluster, &backend, &name, &body);
    }
}

#[test]
fn heads_and_bodies_may_be_cut_anywhere() {
    let cluster = python("cut");
    cluster.on("c1", || {
        let mut dice = Dice::new(3);
        for number in 0..20 {
            let body = Content::new(number, 5000).bytes();
            let name = format!("cut-{number}");
            let bytes = [post(&name, body.len(), "").as_bytes(), &body].concat();
            let mut client = Connection::open();
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                let (piece, after) = rest.split_at((1 + dice.below(700)).min(rest.len()));
                client.send(piece);
                rest = after;
                if dice.below(3) == 0 {
                    std::thread::sleep(Duration::from_millis(2));
                }
            }
            let response = client.response();
            expect_stored(&cluster, response.backend(), &name, &body);
        }
    });
}

#[test]
fn chunks_and_expect_continue_work_as_with_the_server_alone() {
    let cluster = python("chunks");
    cluster.on("c1", || {
        let body = Content::new(5, 300_000).bytes();
        let mut client = Connection::open();
        client
            .send("PUT /upload/chunked HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
        for piece in body.chunks(7001) {
            client
                .send(format!("{:x}\r\n", piece.len()))
                .send(piece)
                .send("\r\n");
        }
        let response = client.send("0\r\n\r\n").response();
        assert_eq!(response.status, 201);
        expect_stored(&cluster, response.backend(), "chunked", &body);

        for split in [false, true] {
            let head = post("expected", body.len(), "Expect: 100-continue\r\n");
            let mut client = Connection::open();
            match split {
                true => client.send_pieces(&head, 11, Duration::from_millis(1)),
                false => client.send(&head),
            };
            let proceed = client.try_response(false).unwrap();
            assert_eq!(proceed.status, 100);
            let response = client.send(&body).response();
            assert_eq!(response.status, 201);
            expect_stored(&cluster, response.backend(), "expected", &body);
        }
    });
}

#[test]
fn half_closed_and_closed_connections_end_in_order() {
    // nginx takes a half-closed client for a closed one; this server does not.
    let cluster = python("ends");
    let large = cluster.document("10m");
    cluster.on("c1", || {
        // All is sent, nothing is read yet; with the FIN in the request's packet or after it.
        for pause in [0, 30] {
            let mut client = Connection::open();
            client.send("GET /10m HTTP/1.1\r\nHost: a\r\n\r\n");
            std::thread::sleep(Duration::from_millis(pause));
            let response = client.finish().response();
            same(&response.body, &large);
            client.expect_end();
        }
        // A head in pieces, and the FIN right behind the last.
        let mut client = Connection::open();
        client.send_pieces(
            "GET /1k HTTP/1.1\r\nHost: a\r\n\r\n",
            5,
            Duration::from_millis(1),
        );
        assert_eq!(client.finish().response().status, 200);
        client.expect_end();
        // The server closes first.
        for version in ["1.0", "1.1"] {
            let mut client = Connection::open();
            client.send(format!(
                "GET /1k HTTP/{version}\r\nHost: a\r\nConnection: close\r\n\r\n"
            ));
            assert_eq!(client.response().status, 200);
            client.expect_end();
        }
    });
}

#[test]
fn ends_age_the_record_and_lower_the_load() {
    let cluster = Cluster::up("age");
    let config = cluster.config() + "\n[limits]\nfin_timeout = \"1s\"\n";
    assert!(
        cluster
            .reload("d1", Process::Dispatch, &config)
            .contains("reloaded")
    );
    let states = || {
        let flows = cluster.flows();
        let of = |state: FlowState| flows.iter().filter(|f| f.state == state as u32).count();
        [
            FlowState::Established,
            FlowState::ClientFin,
            FlowState::Reset,
        ]
        .map(of)
    };
    let active = || ["b1", "b2", "b3"].map(|b| cluster.backend(b).active);
    cluster.on("c1", || {
        let mut clients: Vec<Connection> = (0..9).map(|_| Connection::open()).collect();
        for client in &mut clients {
            client.ask("/1k").ok();
        }
        assert_eq!(states(), [9, 0, 0]);
        assert_eq!(active(), [3, 3, 3]);
        for client in clients.drain(..3) {
            client.abort();
        }
        for mut client in clients.drain(..3) {
            client.finish().expect_end();
        }
        until("ends are noticed", || (states() == [3, 3, 3]).then_some(()));
        assert_eq!(active().iter().sum::<u64>(), 3);
        until("their records are gone", || {
            (states() == [3, 0, 0]).then_some(())
        });
        // In the middle of a download.
        let mut client = Connection::open();
        client
            .send("GET /100m HTTP/1.1\r\nHost: a\r\n\r\n")
            .skip(1_000_000)
            .unwrap();
        assert_eq!(active().iter().sum::<u64>(), 4);
        client.abort();
        until("the abort is noticed", || {
            (active().iter().sum::<u64>() == 3).then_some(())
        });
        for client in &mut clients {
            client.ask("/1k").ok();
        }
    });
    let connected = |lab: &Lab| {
        let mut ss = lab.host("b1").unwrap().command("ss");
        let output = ss.args(["-Htn", "state", "established"]).output().unwrap();
        String::from_utf8(output.stdout).unwrap().lines().count()
    };
    until("the server's sockets are gone", || {
        (connected(&cluster) == 0).then_some(())
    });
}

/// A FIN may come along with the request, so that only the daemon sees it.
#[test]
fn ends_that_come_with_the_head_are_noticed_too() {
    let cluster = python("finhead");
    cluster.on("c1", || {
        let head = "GET /1k HTTP/1.1\r\nHost: a\r\n\r\n";
        for number in 0..12 {
            let mut client = Connection::open();
            match number % 3 {
                0 => client.send(head),
                1 => client.send_pieces(head, 9, Duration::from_millis(3)),
                _ => client.send(&head[..20]).send(&head[20..]),
            };
            client.finish().response().ok();
            client.expect_end();
        }
    });
    let closing = |flow: &trapeze_datapath::abi::Flow| flow.state == FlowState::ClientFin as u32;
    until("all records say so", || {
        cluster.flows().iter().all(closing).then_some(())
    });
    assert_eq!(cluster.flows().len(), 12);
    let active = ["b1", "b2", "b3"].map(|b| cluster.backend(b).active);
    assert_eq!(active, [0, 0, 0]);
}

#[test]
fn both_directions_at_once_and_many_connections_at_once() {
    let cluster = python("both");
    let expected = cluster.document("1m");
    cluster.on("c1", || {
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let (cluster, expected) = (&cluster, &expected);
                scope.spawn(move || {
                    for round in 0..5 {
                        let name = format!("both-{thread}-{round}");
                        let body = Content::new(thread * 10 + round, 500_000).bytes();
                        let mut client = Connection::open();
                        // The answer to the first comes while the second is being sent.
                        client.send("GET /1m HTTP/1.1\r\nHost: a\r\n\r\n");
                        let mut sender = client.stream().try_clone().unwrap();
                        let bytes = [post(&name, body.len(), "").as_bytes(), &body].concat();
                        let sending = std::thread::spawn(move || sender.write_all(&bytes));
                        same(&client.response().body, expected);
                        let response = client.response();
                        sending.join().unwrap().unwrap();
                        expect_stored(cluster, response.backend(), &name, &body);
                    }
                });
            }
        });
        let mut nothing = String::new();
        let mut client = Connection::open();
        client.finish();
        client.stream().read_to_string(&mut nothing).unwrap();
    });
}
