//! Servers that close while something is owed, or has not come: their clients hear of it,
//! and nobody waits for ever (docs/protocol/handoff.md 7).

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use socket2::SockRef;
use trapeze_lab::{LinkSettings, Process};
use trapeze_tests::{Cluster, Connection, Content, ONE_BACKEND, Response, same, until};

/// Patience of both sides: nothing here takes longer than a moment.
const LONG: Duration = Duration::from_secs(8);

/// In the place of b1's server.
fn listen_at_b1(cluster: &Cluster) -> TcpListener {
    cluster.kill("b1", Some(Process::Server)).unwrap();
    // Its workers go a moment later.
    let bind = || TcpListener::bind("0.0.0.0:80").ok();
    let listener = cluster.on("b1", || until("its port is free", bind));
    // The dispatcher may have been refused meanwhile.
    std::thread::sleep(Duration::from_millis(1200));
    listener
}

/// b1's server is `serve`, for one connection.
fn with_server<T: Send>(
    test: &str,
    serve: impl FnOnce(TcpStream) + Send,
    visit: impl FnOnce() -> T + Send,
) -> T {
    let cluster = Cluster::configured(test, 1, ONE_BACKEND, |_| {});
    let listener = listen_at_b1(&cluster);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let stream = listener.accept().unwrap().0;
            stream.set_read_timeout(Some(LONG)).unwrap();
            serve(stream);
        });
        cluster.on("c1", visit)
    })
}

fn answer(body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{body}")
}

fn expect(response: &Response, body: &str) {
    assert_eq!(response.status, 200);
    same(&response.body, body.as_bytes());
}

/// Its server has closed while nobody was there to hear it, and nobody is when the client asks again: that goes there, as a
/// new connection, whose end the client hears from the server.
#[test]
fn a_server_that_has_closed_is_asked_again_without_a_daemon() {
    let cluster = Cluster::configured("closed-alone", 1, ONE_BACKEND, |_| {});
    let listener = listen_at_b1(&cluster);
    let is_alone = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for body in ["one", "two"] {
                let mut stream = listener.accept().unwrap().0;
                stream.set_read_timeout(Some(LONG)).unwrap();
                let _ = stream.read(&mut [0; 1000]).unwrap();
                stream.write_all(answer(body).as_bytes()).unwrap();
                until("nobody hears it", || {
                    is_alone.load(Ordering::Relaxed).then_some(())
                });
            }
        });
        cluster.on("c1", || {
            let mut client = Connection::open();
            expect(&client.ask("/"), "one");
            cluster.kill("d1", Some(Process::Dispatch)).unwrap();
            is_alone.store(true, Ordering::Relaxed);
            until("its server has closed", || {
                (cluster.agent("b1").of("vacated") == 1).then_some(())
            });
            // Until the data path does not speak for its daemon any more.
            std::thread::sleep(Duration::from_millis(2300));
            expect(&client.ask("/"), "two");
            client.expect_end();
        });
    });
}

/// Until the connection ends, by FIN or RST; not never.
fn expect_over(client: &mut Connection) {
    client.stream().set_read_timeout(Some(LONG)).unwrap();
    let mut said = [0; 100];
    match client.stream().read(&mut said) {
        Ok(length) => assert_eq!(
            String::from_utf8_lossy(&said[..length]),
            "",
            "nothing more is said"
        ),
        Err(e) => assert_eq!(e.kind(), std::io::ErrorKind::ConnectionReset, "{e}"),
    }
}

/// It has read three requests and answers one: the others' answers do not come, and no
/// other answer comes in their place.
#[test]
fn a_server_that_closes_before_pipelined_requests_is_heard() {
    let requests: Vec<String> = (["/a", "/b", "/c"].iter())
        .map(|path| format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"))
        .collect();
    let requests = requests.concat();
    for pause in [0, 300] {
        let serve = |mut stream: TcpStream| {
            let mut all = vec![0; requests.len()];
            stream.read_exact(&mut all).unwrap();
            std::thread::sleep(Duration::from_millis(pause));
            stream.write_all(answer("one").as_bytes()).unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
            let _ = stream.read(&mut [0; 100]);
        };
        with_server(&format!("owing-{pause}"), serve, || {
            let mut client = Connection::open();
            client.send(&requests);
            expect(&client.response(), "one");
            expect_over(&mut client);
        });
    }
}

/// Both backends in turn.
const TWO: &str = "[[pool]]\nname = \"web\"\npolicy = \"round-robin\"\nbackends = [\"b1\", \"b2\"]\n\
                   [[service]]\nname = \"site\"\naddress = \"10.77.0.100:80\"\npool = \"web\"\n";

/// A connection that comes within some seconds.
fn accept(listener: &TcpListener) -> TcpStream {
    listener.set_nonblocking(true).unwrap();
    let stream = until("a connection", || listener.accept().ok()).0;
    stream.set_nonblocking(false).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream
}

/// Has read a request and answered "one"; what comes next it has not read.
fn accept_and_answer_one(listener: &TcpListener) -> TcpStream {
    let mut stream = accept(listener);
    let _ = stream.read(&mut [0; 200]).unwrap();
    stream.write_all(answer("one").as_bytes()).unwrap();
    stream
}

/// The client of that.
fn one_that_was_answered() -> Connection {
    (0..2)
        .map(|_| Connection::open())
        .find_map(|mut client| (client.ask("/1k").body == b"one").then_some(client))
        .expect("one of two goes to b1")
}

/// A request of several packets, of which nobody has read a byte, comes to the server's next
/// connection; where nobody listens any more, to another backend.
#[test]
fn an_unread_request_of_many_packets_is_served() {
    let body = Content::new(9, 9000).bytes();
    let put = [
        b"PUT /upload/many HTTP/1.1\r\nHost: a\r\nContent-Length: 9000\r\n\r\n",
        &body[..],
    ]
    .concat();
    for listens_on in [true, false] {
        let site = if listens_on { ONE_BACKEND } else { TWO };
        let cluster = Cluster::configured(&format!("unread-{listens_on}"), 2, site, |_| {});
        let listener = listen_at_b1(&cluster);
        let serve = || {
            let stream = accept_and_answer_one(&listener);
            // The listener goes first, as that of a server that stops.
            let listener = listens_on.then_some(listener);
            std::thread::sleep(Duration::from_millis(500));
            drop(stream);
            if let Some(listener) = listener {
                let mut next = accept(&listener);
                let mut got = vec![0; put.len()];
                next.read_exact(&mut got).unwrap();
                same(&got, &put);
                next.write_all(answer("two").as_bytes()).unwrap();
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(serve);
            cluster.on("c1", || {
                // The PUT's turn shall be b1's again.
                let mut client = one_that_was_answered();
                if !listens_on {
                    Connection::open().ask("/1k");
                }
                client.send(&put);
                let response = client.response();
                match listens_on {
                    true => expect(&response, "two"),
                    false => assert_eq!(response.status, 201, "{}", response.head),
                }
            });
        });
        assert_eq!(cluster.agent("b1").of("unread"), 1);
        if !listens_on {
            let stored = std::fs::read(cluster.uploads("b2").join("many")).unwrap();
            same(&stored, &body);
        }
    }
}

/// Has read a request whole, and says nothing to it.
fn read_head(stream: &mut TcpStream) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.extend(byte);
    }
}

/// A server that has read a request and closes without a word is a server that has died, or
/// one that is stopped (Apache's children read on when they close): who answers is its
/// next, or another backend. By FIN, and by RST.
#[test]
fn an_idempotent_request_without_an_answer_is_answered_by_another() {
    for (listens_on, resets) in [(true, false), (true, true), (false, false), (false, true)] {
        let site = if listens_on { ONE_BACKEND } else { TWO };
        let name = format!("again-{}-{}", u8::from(listens_on), u8::from(resets));
        let cluster = Cluster::configured(&name, 2, site, |_| {});
        let listener = listen_at_b1(&cluster);
        let serve = || {
            let mut stream = accept_and_answer_one(&listener);
            read_head(&mut stream);
            let listener = listens_on.then_some(listener);
            if resets {
                (SockRef::from(&stream).set_linger(Some(Duration::ZERO))).unwrap();
                drop(stream);
            } else {
                stream.shutdown(Shutdown::Write).unwrap();
                let _ = stream.read(&mut [0; 100]);
            }
            if let Some(listener) = listener {
                let mut next = accept(&listener);
                read_head(&mut next);
                next.write_all(answer("two").as_bytes()).unwrap();
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(serve);
            cluster.on("c1", || {
                let mut client = one_that_was_answered();
                if !listens_on {
                    Connection::open().ask("/1k");
                }
                let response = client.ask("/1k");
                match listens_on {
                    true => expect(&response, "two"),
                    false => assert_eq!(response.ok(), "b2"),
                }
            });
        });
        assert_eq!(cluster.agent("b1").of("retried"), 1, "{name}");
    }
}

/// Each is asked as the first one of a setup, and a connection that asks without a pause has had more of those than a
/// clock counts: what the backend was told to have given up is over when the request comes back to the same one.
#[test]
fn a_kept_request_without_an_answer_comes_back_to_its_only_backend() {
    const REQUESTS: usize = 300;
    let kept = ONE_BACKEND.replacen("backends", "retry = \"idempotent\"\nbackends", 1);
    let cluster = Cluster::configured("kept-alone", 1, &kept, |_| {});
    let listener = listen_at_b1(&cluster);
    let serve = || {
        let mut stream = accept(&listener);
        for _ in 0..REQUESTS {
            read_head(&mut stream);
            stream.write_all(answer("one").as_bytes()).unwrap();
        }
        read_head(&mut stream);
        drop(stream);
        let mut next = accept(&listener);
        read_head(&mut next);
        next.write_all(answer("two").as_bytes()).unwrap();
    };
    std::thread::scope(|scope| {
        scope.spawn(serve);
        cluster.on("c1", || {
            let mut client = Connection::open();
            client.stream().set_read_timeout(Some(LONG)).unwrap();
            for _ in 0..REQUESTS {
                expect(&client.ask("/1k"), "one");
            }
            expect(&client.ask("/1k"), "two");
        });
    });
    until("it is counted", || {
        (cluster.daemon().counters.get("retried") == Some(&1)).then_some(())
    });
}

/// The word of its first packet comes behind those of the later ones, which are the other one's, too: its client has
/// been told that they have come.
#[test]
fn a_request_of_many_packets_without_an_answer_is_answered_by_another() {
    let long = "x".repeat(4000);
    let request = format!("GET /1k HTTP/1.1\r\nHost: a\r\nX-Long: {long}\r\n\r\n");
    let cluster = Cluster::configured("read", 2, TWO, |_| {});
    let listener = listen_at_b1(&cluster);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut stream = accept_and_answer_one(&listener);
            read_head(&mut stream);
            drop(listener);
            stream.shutdown(Shutdown::Write).unwrap();
            let _ = stream.read(&mut [0; 100]);
        });
        cluster.on("c1", || {
            let mut client = one_that_was_answered();
            Connection::open().ask("/1k");
            let response = client.send(&request).response();
            assert_eq!(response.ok(), "b2");
        });
    });
}

/// Answers "one" to each GET; every head is `served`. The head of what is another request; none, when its client ends.
fn serve_gets(stream: &mut TcpStream, served: &Mutex<Vec<String>>) -> Option<String> {
    stream.set_nonblocking(false).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    let (mut head, mut byte) = (Vec::new(), [0]);
    while stream.read(&mut byte).unwrap_or(0) == 1 {
        head.extend(byte);
        if !head.ends_with(b"\r\n\r\n") {
            continue;
        }
        let text = String::from_utf8_lossy(&std::mem::take(&mut head)).into_owned();
        served.lock().unwrap().push(text.clone());
        if !text.starts_with("GET") {
            return Some(text);
        }
        stream.write_all(answer("one").as_bytes()).unwrap();
    }
    None
}

/// Its client has been told to go on, and says the body: that is no request, whoever has closed.
#[test]
fn a_body_that_was_asked_for_is_never_a_request() {
    let cluster = Cluster::configured("continues", 1, ONE_BACKEND, |_| {});
    let listener = listen_at_b1(&cluster);
    let request = b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n";
    let interim = [
        "HTTP/1.1 100 Continue\r\n\r\n",
        "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n",
    ];
    let (cases, methods) = (2 * 2 * interim.len(), ["PUT", "POST"]);
    let served = Mutex::new(Vec::new());
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            listener.set_nonblocking(true).unwrap();
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                let Ok((mut stream, _)) = listener.accept() else {
                    std::thread::sleep(Duration::from_millis(5));
                    continue;
                };
                if let Some(head) = serve_gets(&mut stream, &served) {
                    let which = usize::from(head.contains("/hints"));
                    stream.write_all(interim[which].as_bytes()).unwrap();
                    std::thread::sleep(Duration::from_millis(30));
                }
            }
        });
        cluster.on("c1", || {
            for (method, path) in methods.iter().flat_map(|m| [(m, "/go-on"), (m, "/hints")]) {
                for is_second in [false, true] {
                    let mut client = Connection::open();
                    if is_second {
                        expect(&client.ask("/1k"), "one");
                    }
                    let length = request.len();
                    client.send(format!(
                        "{method} {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n"
                    ));
                    let mut said = [0; 200];
                    let length = client.stream().read(&mut said).unwrap();
                    assert!(
                        said[..length].starts_with(b"HTTP/1.1 10"),
                        "{method} {path}"
                    );
                    std::thread::sleep(Duration::from_millis(100));
                    let _ = client.stream().write_all(request);
                    expect_over(&mut client);
                }
            }
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
        });
    });
    let served = served.into_inner().unwrap();
    assert!(
        served.iter().all(|head| !head.contains("/smuggled")),
        "{served:?}"
    );
    let uploads = served.iter().filter(|head| !head.starts_with("GET"));
    assert_eq!(uploads.count(), cases, "{served:?}");
}

/// It has been answered before its body has come, and its server has closed: what its client says
/// from there on is no request, whoever else listens.
#[test]
fn a_body_that_comes_after_an_early_answer_is_never_a_request() {
    const EARLY: &[u8] = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n";
    let cluster = Cluster::configured("early", 1, ONE_BACKEND, |_| {});
    let listener = listen_at_b1(&cluster);
    let request = b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n";
    let (cases, methods) = (36, ["PUT", "POST", "DELETE"]);
    let served = Mutex::new(Vec::new());
    let stop = std::sync::atomic::AtomicBool::new(false);
    let serve = |mut stream: TcpStream| {
        if serve_gets(&mut stream, &served).is_some() {
            let _ = stream.write_all(EARLY);
            let _ = stream.shutdown(Shutdown::Write);
            std::thread::sleep(Duration::from_millis(300));
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            listener.set_nonblocking(true).unwrap();
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                match listener.accept() {
                    Ok((stream, _)) => drop(scope.spawn(move || serve(stream))),
                    Err(_) => std::thread::sleep(Duration::from_millis(5)),
                }
            }
        });
        let visit = || {
            for case in 0..cases {
                let mut client = Connection::open();
                if case % 2 == 1 {
                    expect(&client.ask("/1k"), "one");
                }
                let (method, length) = (methods[case % 3], request.len());
                client.send(format!(
                    "{method} /a HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n"
                ));
                // In the midst of it all: before the answer, with it, and a little later.
                std::thread::sleep(Duration::from_micros(400 * (case as u64 / 6)));
                let _ = client.stream().write_all(request);
                let asks_behind = case % 4 == 3;
                if asks_behind {
                    let behind = b"GET /behind HTTP/1.1\r\nHost: a\r\n\r\n";
                    let _ = client.stream().write_all(behind);
                }
                // Where the server has had the body it owes nothing, and the connection stays.
                let all = match asks_behind {
                    true => [EARLY, answer("one").as_bytes()].concat(),
                    false => EARLY.to_vec(),
                };
                client.stream().set_read_timeout(Some(LONG)).unwrap();
                let (mut said, mut piece) = (Vec::new(), [0; 400]);
                while said.len() < all.len() {
                    match client.stream().read(&mut piece) {
                        Ok(0) => break,
                        Ok(length) => said.extend(&piece[..length]),
                        Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset => break,
                        Err(e) => panic!("case {case} waits: {e}"),
                    }
                }
                let text = String::from_utf8_lossy(&said);
                assert!(said == all || said == EARLY || said.is_empty(), "{text}");
            }
        };
        let cluster = &cluster;
        let visited = scope.spawn(move || cluster.on("c1", visit)).join();
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        visited.expect("no client waits");
    });
    let served = served.into_inner().unwrap();
    assert!(
        served.iter().all(|head| !head.contains("/smuggled")),
        "{served:?}"
    );
    let uploads = served.iter().filter(|head| !head.starts_with("GET"));
    assert_eq!(uploads.count(), cases, "{served:?}");
}

/// Its client can be asked nothing, and waits for an answer: that comes as where no request is kept.
#[test]
fn a_request_behind_which_its_client_closes_is_answered_by_another() {
    let kept = TWO.replace("[[service]]", "retry = \"idempotent\"\n[[service]]");
    let cluster = Cluster::configured("half", 2, &kept, |_| {});
    let listener = listen_at_b1(&cluster);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut stream = accept(&listener);
            read_head(&mut stream);
            drop(listener);
            std::thread::sleep(Duration::from_millis(50));
            stream.shutdown(Shutdown::Both).unwrap();
        });
        cluster.on("c1", || {
            let ask = |_| {
                let mut client = Connection::open();
                client.send("GET /1k HTTP/1.1\r\nHost: a\r\n\r\n").finish();
                assert_eq!(client.response().ok(), "b2");
            };
            (0..2).for_each(ask);
        });
    });
    assert_eq!(cluster.agent("b1").of("retried"), 1);
}

/// It may have run: what may not run twice does not, nor an upload, nor where the pool says that nothing may.
#[test]
fn what_has_perhaps_run_runs_again_only_where_it_may() {
    let never = ONE_BACKEND.replace("[[service]]", "retry = \"never\"\n[[service]]");
    for (name, site, method) in [
        ("post", ONE_BACKEND, "POST"),
        ("put", ONE_BACKEND, "PUT"),
        ("never", &never, "GET"),
    ] {
        let cluster = Cluster::configured(name, 1, site, |_| {});
        let listener = listen_at_b1(&cluster);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut stream = accept_and_answer_one(&listener);
                read_head(&mut stream);
                stream.shutdown(Shutdown::Write).unwrap();
                let _ = stream.read(&mut [0; 100]);
            });
            cluster.on("c1", || {
                let mut client = Connection::open();
                expect(&client.ask("/1k"), "one");
                let path = "/upload HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n";
                client.send(format!("{method} {path}"));
                expect_over(&mut client);
            });
        });
        assert_eq!(cluster.agent("b1").of("retried"), 0, "{name}");
    }
}

/// Each time the server reads what is there and closes, and the rest of the body meets a socket that
/// is gone. Its client hears the end all the same.
#[test]
fn a_body_that_comes_after_its_server_has_closed_waits_for_nobody() {
    for (method, times) in [("DELETE", 3), ("PUT", 1)] {
        let cluster = Cluster::configured(&method.to_lowercase(), 1, ONE_BACKEND, |_| {});
        let listener = listen_at_b1(&cluster);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..times {
                    let mut stream = accept(&listener);
                    read_head(&mut stream);
                    let _ = stream.read(&mut [0; 4000]);
                    stream.shutdown(Shutdown::Both).unwrap();
                }
            });
            cluster.on("c1", || {
                let mut client = Connection::open();
                client.send(format!(
                    "{method} /a HTTP/1.1\r\nHost: a\r\nContent-Length: 800\r\n\r\n"
                ));
                for length in [500, 300] {
                    let _ = client.stream().write_all(&[b'x'; 500][..length]);
                    std::thread::sleep(Duration::from_millis(300));
                }
                expect_over(&mut client);
            });
        });
        assert_eq!(cluster.agent("b1").of("retried"), times - 1, "{method}");
    }
}

/// The packets of its body, half of which were read, come in behind its first one, which takes the
/// place of the socket that was closed.
#[test]
fn a_request_whose_body_was_half_read_is_answered_by_the_next_connection() {
    const BODY: usize = 1500;
    for resets in [false, true] {
        let cluster = Cluster::configured(&format!("half-{resets}"), 1, ONE_BACKEND, |_| {});
        let listener = listen_at_b1(&cluster);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut first = accept(&listener);
                read_head(&mut first);
                first.read_exact(&mut [0; BODY / 2]).unwrap();
                let open = (!resets).then_some(first);
                if let Some(open) = &open {
                    open.shutdown(Shutdown::Write).unwrap();
                }
                let mut next = accept(&listener);
                read_head(&mut next);
                next.read_exact(&mut [0; BODY]).unwrap();
                next.write_all(answer("one").as_bytes()).unwrap();
                read_head(&mut next);
                next.write_all(answer("two").as_bytes()).unwrap();
            });
            cluster.on("c1", || {
                let mut client = Connection::open();
                client.stream().set_read_timeout(Some(LONG)).unwrap();
                client.send(format!(
                    "DELETE /a HTTP/1.1\r\nHost: a\r\nContent-Length: {BODY}\r\n\r\n"
                ));
                std::thread::sleep(Duration::from_millis(100));
                client.send([b'x'; BODY]);
                expect(&client.response(), "one");
                expect(&client.ask("/1k"), "two");
            });
        });
        assert_eq!(cluster.agent("b1").of("retried"), 1);
    }
}

/// "/1k" is b2's, all else b1's.
const BY_PATH: &str = "[[pool]]\nname = \"web\"\nbackends = [\"b1\"]\n\
                       [[pool]]\nname = \"other\"\nbackends = [\"b2\"]\n\
                       [[service]]\nname = \"site\"\naddress = \"10.77.0.100:80\"\npool = \"web\"\n\
                       [[service.rule]]\npath = \"/1k\"\npool = \"other\"\n";

/// An interim answer looks to its dispatcher as if it were the answer. Who asks ahead of that hears its server
/// close, and no other's answer in the place of the one that is owed.
#[test]
fn who_asks_behind_an_interim_answer_asks_ahead() {
    let cluster = Cluster::configured("ahead", 2, BY_PATH, |_| {});
    let listener = listen_at_b1(&cluster);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut stream = accept(&listener);
            read_head(&mut stream);
            stream
                .write_all(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n")
                .unwrap();
            std::thread::sleep(Duration::from_millis(200));
            stream.write_all(answer("one").as_bytes()).unwrap();
            std::thread::sleep(Duration::from_millis(50));
            stream.shutdown(Shutdown::Write).unwrap();
            std::thread::sleep(Duration::from_millis(500));
        });
        cluster.on("c1", || {
            let mut client = Connection::open();
            client.send("GET /a HTTP/1.1\r\nHost: a\r\n\r\n");
            std::thread::sleep(Duration::from_millis(100));
            client.send("GET /b HTTP/1.1\r\nHost: a\r\n\r\n");
            client.send("GET /1k HTTP/1.1\r\nHost: a\r\n\r\n");
            client.stream().set_read_timeout(Some(LONG)).unwrap();
            let mut said = Vec::new();
            let end = client.stream().read_to_end(&mut said);
            let is_reset = |e: &std::io::Error| e.kind() == std::io::ErrorKind::ConnectionReset;
            assert!(end.is_ok() || end.is_err_and(|e| is_reset(&e)), "it ends");
            let said = String::from_utf8_lossy(&said);
            assert_eq!(said.matches("HTTP/1.1 200").count(), 1, "{said}");
            assert!(said.ends_with("one"), "{said}");
        });
    });
}

/// What is asked behind a request that is asked again goes where it belongs.
#[test]
fn what_waits_behind_a_request_that_is_asked_again_goes_where_it_belongs() {
    let cluster = Cluster::configured("again", 2, BY_PATH, |_| {});
    let listener = listen_at_b1(&cluster);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut stream = accept(&listener);
            read_head(&mut stream);
            stream.shutdown(Shutdown::Write).unwrap();
            let mut next = accept(&listener);
            read_head(&mut next);
            next.write_all(answer("one").as_bytes()).unwrap();
            let _ = next.read(&mut [0; 100]);
        });
        cluster.on("c1", || {
            let mut client = Connection::open();
            client.stream().set_read_timeout(Some(LONG)).unwrap();
            client.send("GET /a HTTP/1.1\r\nHost: a\r\n\r\n");
            std::thread::sleep(Duration::from_millis(100));
            client.send("GET /1k HTTP/1.1\r\nHost: a\r\n\r\n");
            expect(&client.response(), "one");
            assert_eq!(client.response().ok(), "b2");
        });
    });
    assert_eq!(cluster.agent("b1").of("retried"), 1);
}

/// Answers "one" to whatever comes first on each connection, and closes when the next request lies there, or a moment
/// before: both repeat that by timers, which may be due in the same tick.
fn close_on_every_second(listener: &TcpListener, is_over: &AtomicBool) {
    listener.set_nonblocking(true).unwrap();
    let mut pauses = (0..16).cycle().map(Duration::from_millis);
    std::thread::scope(|scope| {
        while !is_over.load(Ordering::Relaxed) {
            let Ok((mut stream, _)) = listener.accept() else {
                std::thread::sleep(Duration::from_millis(1));
                continue;
            };
            let pause = pauses.next().unwrap_or_default();
            scope.spawn(move || {
                stream.set_nonblocking(false).unwrap();
                stream.set_read_timeout(Some(LONG)).unwrap();
                read_head(&mut stream);
                stream.write_all(answer("one").as_bytes()).unwrap();
                std::thread::sleep(pause);
                stream.shutdown(Shutdown::Write).unwrap();
                while matches!(stream.read(&mut [0; 200]), Ok(1..)) {}
            });
        }
    });
}

/// Its socket and its client repeat what is asked again in the same moment, by two CPUs: it is rebuilt once, and how
/// many were answered before is known. Else what comes next would stay with this backend, or be closed.
#[test]
fn what_is_asked_again_by_all_at_once_counts_once() {
    const CLIENTS: usize = 8;
    const ROUNDS: usize = 16;
    let cluster = Cluster::configured("at-once", 2, BY_PATH, |_| {});
    let listener = listen_at_b1(&cluster);
    let is_over = AtomicBool::new(false);
    let visit = || {
        let mut client = Connection::open();
        client.stream().set_read_timeout(Some(LONG)).unwrap();
        for _ in 0..ROUNDS {
            for _ in 0..3 {
                expect(&client.ask("/a"), "one");
            }
            assert_eq!(client.ask("/1k").ok(), "b2");
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| close_on_every_second(&listener, &is_over));
        let clients: Vec<_> = (0..CLIENTS)
            .map(|_| scope.spawn(|| cluster.on("c1", visit)))
            .collect();
        let failed = clients.into_iter().filter_map(|client| client.join().err());
        let failed = failed.count();
        is_over.store(true, Ordering::Relaxed);
        assert_eq!(failed, 0, "of {CLIENTS} clients");
    });
    let retried = cluster.agent("b1").of("retried");
    assert!(retried >= (CLIENTS * ROUNDS) as u64, "{retried}");
}

/// Who never answers is asked three times, and not for ever.
#[test]
fn a_server_that_never_answers_is_not_asked_for_ever() {
    let cluster = Cluster::configured("mute", 1, ONE_BACKEND, |_| {});
    let listener = listen_at_b1(&cluster);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..3 {
                let mut stream = accept(&listener);
                read_head(&mut stream);
            }
            listener.set_nonblocking(true).unwrap();
            std::thread::sleep(Duration::from_millis(500));
            assert!(listener.accept().is_err(), "a fourth time");
        });
        cluster.on("c1", || {
            let mut client = Connection::open();
            client.send("GET /1k HTTP/1.1\r\nHost: a\r\n\r\n");
            expect_over(&mut client);
        });
    });
    assert_eq!(cluster.agent("b1").of("retried"), 2);
}

/// The client says with its request that it is its last: nobody has read that either, and it is
/// answered where it goes.
#[test]
fn an_unread_request_with_the_clients_end_is_served() {
    for (listens_on, in_one_packet) in [(true, true), (true, false), (false, true), (false, false)]
    {
        let site = if listens_on { ONE_BACKEND } else { TWO };
        let name = format!("last-{listens_on}-{in_one_packet}");
        let cluster = Cluster::configured(&name, 2, site, |_| {});
        let listener = listen_at_b1(&cluster);
        let serve = || {
            let stream = accept_and_answer_one(&listener);
            let listener = listens_on.then_some(listener);
            std::thread::sleep(Duration::from_millis(500));
            drop(stream);
            if let Some(listener) = listener {
                let mut next = accept(&listener);
                let mut got = Vec::new();
                next.read_to_end(&mut got).unwrap();
                assert!(got.ends_with(b"\r\n\r\n"));
                next.write_all(answer("two").as_bytes()).unwrap();
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(serve);
            cluster.on("c1", || {
                let mut client = one_that_was_answered();
                if !listens_on {
                    Connection::open().ask("/1k");
                }
                let socket = SockRef::from(client.stream());
                socket.set_tcp_cork(in_one_packet).unwrap();
                client.send("GET /1k HTTP/1.1\r\nHost: a\r\n\r\n");
                client.finish();
                let response = client.response();
                match listens_on {
                    true => expect(&response, "two"),
                    false => assert_eq!(response.ok(), "b2"),
                }
                client.expect_end();
            });
        });
        assert_eq!(cluster.agent("b1").of("unread"), 1, "{name}");
    }
}

/// What waits at the dispatcher behind a head may be its body, and no other request.
#[test]
fn a_chunked_body_is_no_request_ahead() {
    let cluster = Cluster::with("chunked-ahead", |options| options.backends = Some(2));
    cluster.on("c1", || {
        let mut clients = [(); 8].map(|()| Connection::open());
        for (number, client) in clients.iter_mut().enumerate() {
            client.ask("/1k").ok();
            client.send(format!(
                "PUT /upload/ahead-{number} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
            ));
            client.send("5\r\nhello\r\n").send("0\r\n\r\n");
            assert_eq!(client.response().status, 201);
        }
        let status = cluster.status().unwrap();
        for backend in ["b1", "b2"] {
            let server = status.host(backend).unwrap().processes[&Process::Server].pid;
            cluster.run(backend, &["kill", "-HUP", &server.unwrap().to_string()]);
        }
        std::thread::sleep(Duration::from_millis(700));
        for client in &mut clients {
            client.ask("/1k").ok();
        }
    });
}

/// Where an answer ends that tells its length twice, nobody knows: the connection is its
/// server's, with the head that the dispatcher was reading just then.
#[test]
fn what_was_being_read_goes_with_a_connection_that_stays() {
    let big = format!(
        "GET /big HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n",
        "x".repeat(11_900)
    );
    let serve = |mut stream: TcpStream| {
        let mut came = Vec::new();
        for number in 0..3 {
            let end = loop {
                if let Some(at) = came.windows(4).position(|four| four == b"\r\n\r\n") {
                    break at + 4;
                }
                let mut more = [0; 4096];
                let length = stream.read(&mut more).unwrap();
                came.extend_from_slice(&more[..length]);
            };
            came.drain(..end);
            std::thread::sleep(Duration::from_millis(100));
            let unclear = "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\n";
            let says = match number {
                0 => unclear.to_owned() + "one",
                1 => unclear.to_owned(),
                _ => answer("three"),
            };
            stream.write_all(says.as_bytes()).unwrap();
        }
        let _ = stream.read(&mut [0]);
    };
    with_server("unclear", serve, || {
        let mut client = Connection::open();
        client.stream().set_read_timeout(Some(LONG)).unwrap();
        let first = "GET /a HTTP/1.1\r\nHost: a\r\n\r\nHEAD /b HTTP/1.1\r\nHost: a\r\n\r\n";
        client.send(first);
        std::thread::sleep(Duration::from_millis(20));
        client.send(&big[..9000]);
        expect(&client.response(), "one");
        assert_eq!(client.try_response(false).unwrap().status, 200);
        client.send(&big[9000..]);
        expect(&client.response(), "three");
    });
}

/// It has had a part of the body, answers, and reads no more.
#[test]
fn a_server_that_closes_before_a_body_has_come_is_heard() {
    let serve = |mut stream: TcpStream| {
        let _ = stream.read(&mut [0; 200]).unwrap();
        stream.write_all(answer("enough").as_bytes()).unwrap();
        std::thread::sleep(Duration::from_millis(300));
        stream.shutdown(Shutdown::Write).unwrap();
        std::thread::sleep(Duration::from_secs(2));
    };
    with_server("enough", serve, || {
        let mut client = Connection::open();
        client.send("PUT /a HTTP/1.1\r\nHost: a\r\nContent-Length: 3000000\r\n\r\n");
        client.send([b'x'; 1000]);
        expect(&client.response(), "enough");
        expect_over(&mut client);
    });
}

/// The word by which its backend gives it back is lost, and so is the request: its client has
/// been told that it has arrived, and does not repeat it. The backend is asked, and says it again.
#[test]
fn an_unread_request_that_is_lost_on_its_way_back_is_served() {
    let body = Content::new(11, 4000).bytes();
    let put = [
        b"PUT /upload/lost HTTP/1.1\r\nHost: a\r\nContent-Length: 4000\r\n\r\n",
        &body[..],
    ]
    .concat();
    let get = b"GET /1k HTTP/1.1\r\nHost: a\r\n\r\n".to_vec();
    for (name, request, is_last) in [
        ("one", &get, false),
        ("last", &get, true),
        ("many", &put, false),
    ] {
        let cluster = Cluster::configured(&format!("lost-{name}"), 2, TWO, |_| {});
        let listener = listen_at_b1(&cluster);
        let cut = LinkSettings {
            loss: 1.0,
            ..LinkSettings::default()
        };
        // So that a link is there, and changes at once.
        let link = LinkSettings {
            delay: Duration::from_micros(100),
            ..LinkSettings::default()
        };
        cluster.link("b1", &link).unwrap();
        let (cluster, listener) = (&cluster, &Mutex::new(Some(listener)));
        let serve = || {
            let listener = listener.lock().unwrap().take().unwrap();
            let stream = accept_and_answer_one(&listener);
            drop(listener);
            std::thread::sleep(Duration::from_millis(500));
            cluster.link("b1", &cut).unwrap();
            drop(stream);
            std::thread::sleep(Duration::from_millis(50));
            cluster.link("b1", &link).unwrap();
        };
        std::thread::scope(|scope| {
            scope.spawn(serve);
            cluster.on("c1", || {
                let mut client = one_that_was_answered();
                Connection::open().ask("/1k");
                client.stream().set_read_timeout(Some(LONG)).unwrap();
                client.send(request);
                if is_last {
                    client.finish();
                }
                let response = client.response();
                assert_eq!(response.backend(), "b2", "{name}");
                assert!([200, 201].contains(&response.status), "{}", response.head);
            });
        });
        assert_eq!(cluster.agent("b1").of("unread"), 1, "{name}");
        assert!(cluster.agent("b1").of("refused") >= 2, "{name}");
        if name == "many" {
            let stored = std::fs::read(cluster.uploads("b2").join("lost")).unwrap();
            same(&stored, &body);
        }
    }
}
