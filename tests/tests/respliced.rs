//! Connections at servers without an agent whose later requests go elsewhere: dispatchers hear
//! where answers end (docs/protocol/splice.md 5). What servers with an agent do: split.rs.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use trapeze_datapath::abi::MARK_TUNNEL;
use trapeze_lab::{LinkSettings, Process};
use trapeze_tests::numbered::{Answered, Numbered, check_logs};
use trapeze_tests::raw::RawClient;
use trapeze_tests::scattered::{cut_power_in_turn, deal_in_turn, ready};
use trapeze_tests::{Cluster, Connection, Content, Raised, Splice, VIP, same, until};

/// b1 and b2 are spliced, b3 rebuilds; the path says whose a request is.
fn by_path(test: &str, pools: &str) -> Cluster {
    let text = Cluster::nodes(3)
        .replace(
            "attach = \"tc\"",
            "attach = \"tc\"\nsplice_address = \"10.77.0.111\"",
        )
        .replace("name = \"b1\"", &Splice::Whole.of("name = \"b1\""))
        .replace("name = \"b2\"", &Splice::Whole.of("name = \"b2\""))
        + &["web b1", "large b2", "made b3"]
            .map(|pool| pool_of(pool, pools))
            .concat()
        + "[[service]]\nname = \"site\"\naddress = \"10.77.0.100:80\"\npool = \"web\"\n"
        + &["/100k large", "/upload large", "/two large", "/10k made"]
            .map(rule)
            .concat();
    Splice::Whole.configured(test, &text)
}

fn pool_of(name_and_host: &str, rest: &str) -> String {
    let (name, host) = name_and_host.split_once(' ').unwrap();
    format!("[[pool]]\nname = \"{name}\"\nbackends = [\"{host}\"]\n{rest}")
}

fn rule(path_and_pool: &str) -> String {
    let (path, pool) = path_and_pool.split_once(' ').unwrap();
    format!("[[service.rule]]\npath_prefix = \"{path}\"\npool = \"{pool}\"\n")
}

fn bad() -> LinkSettings {
    LinkSettings {
        loss: 0.01,
        reorder: 0.01,
        duplicate: 0.01,
        ..LinkSettings::default()
    }
}

fn asked(client: &mut Connection, (name, document): &(&str, Vec<u8>)) -> String {
    let response = client.ask(&format!("/{name}"));
    same(&response.body, document);
    response.backend().to_owned()
}

#[test]
fn each_request_goes_where_it_belongs() {
    let cluster = by_path("resplice", "");
    let documents = ["1k", "100k", "10k"].map(|name| (name, cluster.document(name)));
    let [small, large, made] = &documents;
    cluster.on("c1", || {
        for round in 0..20 {
            let mut client = Connection::open();
            for (document, host) in [
                (small, "b1"),
                (small, "b1"),
                (large, "b2"),
                (small, "b1"),
                (made, "b3"),
                (large, "b2"),
                (made, "b3"),
                (small, "b1"),
                (large, "b2"),
            ] {
                assert_eq!(asked(&mut client, document), host, "round {round}");
            }
        }
        // What has come ahead waits for the answer before.
        let mut client = Connection::open();
        let order = [small, large, small, small, made, large];
        for (name, _) in order {
            client.send(format!("GET /{name} HTTP/1.1\r\nHost: a\r\n\r\n"));
        }
        for (_, document) in order {
            same(&client.response().body, document);
        }
    });
    let d1 = cluster.dispatcher();
    assert!(d1.of("given-up") >= 100, "{d1:?}");
    assert_eq!(d1.of("unfollowed"), 0, "{d1:?}");
    until("all moves are counted", || {
        let counters = cluster.daemon().counters;
        assert_eq!(counters.get("kept"), None, "{counters:?}");
        (counters.get("drained") >= Some(&140)).then_some(())
    });
}

#[test]
fn bodies_and_answers_without_end_where_the_next_request_starts() {
    let cluster = by_path("respbodies", "");
    let documents = ["1k", "100k"].map(|name| (name, cluster.document(name)));
    let [small, large] = &documents;
    cluster.on("c1", || {
        let mut client = Connection::open();
        for round in 0..6 {
            assert_eq!(asked(&mut client, small), "b1");
            let size = [1, 5_000, 300_000][round % 3];
            let body = Content::new(round as u64, size).bytes();
            client.send(format!(
                "PUT /upload/{round} HTTP/1.1\r\nHost: a\r\nContent-Length: {size}\r\n\r\n"
            ));
            let response = client.send(&body).response();
            assert_eq!((response.status, response.backend()), (201, "b2"));
            let stored = cluster.uploads("b2").join(round.to_string());
            same(&std::fs::read(stored).unwrap(), &body);
            assert_eq!(asked(&mut client, small), "b1");
            // A HEAD is a move of its own, and so is what follows, or not.
            for (path, host) in [("/1k", "b1"), ("/100k", "b2")] {
                client.send(format!("HEAD {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
                let response = client.try_response(false).unwrap();
                assert_eq!((response.status, response.backend()), (200, host));
            }
            assert_eq!(asked(&mut client, large), "b2");
            // What the client has it is not given again.
            let tag = client.ask("/1k").header("etag").unwrap().to_owned();
            for path in ["/1k", "/100k"] {
                client.send(format!(
                    "GET {path} HTTP/1.1\r\nHost: a\r\nIf-None-Match: {tag}\r\n\r\n"
                ));
                assert_eq!(
                    client.response().status,
                    if path == "/1k" { 304 } else { 200 }
                );
            }
            client.send(format!(
                "PUT /upload/{round} HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx"
            ));
            let response = client.response();
            assert_eq!((response.status, response.backend()), (204, "b2"));
        }
        client.send("HEAD /1k HTTP/1.1\r\nHost: a\r\n\r\n");
        client.try_response(false).unwrap();
    });
    let d1 = cluster.dispatcher();
    assert_eq!(d1.of("unfollowed"), 0, "{d1:?}");
}

/// A server in the place of a host's, that answers as a path's words say.
fn serve(cluster: &Cluster, host: &'static str) {
    cluster.kill(host, Some(Process::Server)).unwrap();
    let listener = cluster.on(host, || TcpListener::bind("0.0.0.0:80").unwrap());
    cluster.spawn(host, move || {
        for stream in listener.incoming() {
            let stream = stream.unwrap();
            std::thread::spawn(move || answer(stream, host));
        }
    });
    // The dispatcher may have been refused meanwhile.
    until("it is up", || {
        (cluster.backend(host).state == "up").then_some(())
    });
    std::thread::sleep(Duration::from_millis(1200));
}

/// Answers of chunks, in pieces, behind interim ones, or of no known end.
fn answer(mut stream: TcpStream, host: &str) {
    stream.set_nodelay(true).unwrap();
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
    let mut say = |text: &str| {
        let _ = stream.write_all(text.as_bytes());
        std::thread::sleep(Duration::from_millis(2));
    };
    while let Some(Ok(request)) = lines.next() {
        let goes_on = |line: &std::io::Result<String>| line.as_ref().is_ok_and(|l| !l.is_empty());
        while lines.next().as_ref().is_some_and(goes_on) {}
        let chunked =
            format!("HTTP/1.1 200 OK\r\nX-Backend: {host}\r\nTransfer-Encoding: chunked\r\n\r\n");
        if request.contains("chunks") {
            for piece in [
                &chunked[..40],
                &chunked[40..],
                "5\r\nhel",
                "lo\r\n1",
                "0\r\n0123456789abcdef\r\n",
                "0",
                "\r\n\r\n",
            ] {
                say(piece);
            }
        } else if request.contains("interim") {
            say("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n");
            say(&format!(
                "HTTP/1.1 200 OK\r\nX-Backend: {host}\r\nContent-Length: 3\r\n\r\nabc"
            ));
        } else {
            say(&format!(
                "HTTP/1.1 200 OK\r\nX-Backend: {host}\r\n\r\nuntil close"
            ));
            return;
        }
    }
}

#[test]
fn chunks_and_interim_answers_are_followed_and_what_ends_by_closing_stays() {
    let cluster = by_path("respchunks", "");
    serve(&cluster, "b1");
    serve(&cluster, "b2");
    cluster.on("c1", || {
        let mut client = Connection::open();
        for round in 0..10 {
            for (path, host) in [("/one/chunks", "b1"), ("/two/chunks", "b2")] {
                let response = client.ask(path);
                assert_eq!(response.backend(), host, "{round}");
                assert_eq!(response.body, b"hello0123456789abcdef");
            }
            for (path, host) in [("/two/interim", "b2"), ("/one/interim", "b1")] {
                assert_eq!(client.ask(path).status, 103);
                let response = client.response();
                assert_eq!(
                    (response.backend(), &response.body[..]),
                    (host, &b"abc"[..])
                );
            }
        }
        // The one behind is its server's, which closes.
        client.send("GET /one/close HTTP/1.1\r\nHost: a\r\n\r\n");
        client.send("GET /two/chunks HTTP/1.1\r\nHost: a\r\n\r\n");
        let response = client.try_response(false).unwrap();
        assert_eq!(response.backend(), "b1");
        let rest = client.rest().unwrap_or_default();
        assert!(rest.is_empty() || rest == b"until close", "{rest:?}");
    });
    let d1 = cluster.dispatcher();
    assert!(d1.of("given-up") >= 20, "{d1:?}");
    assert_eq!(d1.of("unfollowed"), 0, "{d1:?}");
}

/// Two spliced backends that take turns, and log; on bad links requests may stay.
#[test]
fn nothing_is_lost_mixed_up_or_run_twice_on_bad_links() {
    let cluster = Splice::Whole.cluster("respbad", |options| {
        options.backends = Some(3);
        options.access_log = true;
    });
    for (seed, host) in (1..).zip(["c1", "b1", "b2", "b3"]) {
        let link = LinkSettings {
            delay: Duration::from_millis(1),
            seed,
            ..bad()
        };
        cluster.link(host, &link).unwrap();
    }
    let answered = visit(&cluster, 6, 4);
    check_logs(&cluster, &answered);
    let hosts: BTreeSet<&String> = answered.values().collect();
    assert_eq!(hosts.len(), 3, "{hosts:?}");
    let d1 = cluster.dispatcher();
    assert!(d1.of("given-up") > 50, "{d1:?}");
}

/// So many clients at once, each of which has so many connections of 24 requests: one by one,
/// or six at a time.
fn visit(cluster: &Cluster, clients: u64, connections: u64) -> Answered {
    let numbered = Numbered::of(cluster, &["1k", "10k", "empty", "100k", "1k", "1m"]);
    let all = Mutex::new(Answered::new());
    cluster.on("c1", || {
        std::thread::scope(|scope| {
            for client in 0..clients {
                let (numbered, all) = (&numbered, &all);
                let namespace = cluster.host("c1").unwrap().namespace().to_owned();
                scope.spawn(move || {
                    trapeze_datapath::netns::enter(&namespace).unwrap();
                    for connection in 0..connections {
                        let begin = client * 1_000_000 + connection * 24;
                        let mut stream = Connection::open();
                        for at in (begin..begin + 24).step_by(6) {
                            let answered = match (client + connection) % 2 {
                                0 => numbered.ask_each(&mut stream, at..at + 6),
                                _ => numbered.pipeline(&mut stream, at..at + 6),
                            };
                            all.lock()
                                .unwrap()
                                .extend(answered.expect("a connection that lasts"));
                        }
                    }
                });
            }
        });
    });
    let all = all.into_inner().unwrap();
    assert_eq!(all.len() as u64, clients * connections * 24);
    all
}

/// Behind sprays that go by flow the dispatcher that keeps a flow hears what its server says.
#[test]
fn behind_several_dispatchers_each_request_goes_where_it_belongs() {
    let cluster = several("respmore", 3);
    check_logs(&cluster, &visit(&cluster, 6, 4));
    let mut given_up = 0;
    for name in DISPATCHERS {
        let counts = cluster.dispatcher_named(name);
        assert_eq!(counts.of("unfollowed"), 0, "{name}: {counts:?}");
        given_up += counts.of("given-up");
        let counters = cluster.dispatch_status(name).unwrap().counters;
        assert_eq!(counters.get("kept"), None, "{name}: {counters:?}");
    }
    assert!(given_up > 200, "{given_up}");
    for (seed, host) in (1..).zip(["c1", "b1", "b2", "b3"]) {
        cluster.link(host, &LinkSettings { seed, ..bad() }).unwrap();
    }
    visit(&cluster, 4, 2);
}

/// Who keeps a flow next has not heard what its server has said: it stays there, or has nothing
/// of that server's any more.
#[test]
fn power_cuts_cost_no_request_and_none_runs_twice() {
    let cluster = several("respcuts", 3);
    let numbered = Numbered::of(&cluster, &["1k", "100k", "empty", "10k", "1m"]);
    let (stop, all) = (AtomicBool::new(false), Mutex::new(Answered::new()));
    std::thread::scope(|scope| {
        let _raised = Raised(&stop);
        let mut clients = Vec::new();
        for client in 0..6u64 {
            let (cluster, numbered, stop, all) = (&cluster, &numbered, &stop, &all);
            clients.push(scope.spawn(move || {
                cluster.on("c1", || {
                    let mut begin = client * 1_000_000;
                    while !stop.load(Ordering::Relaxed) {
                        let mut stream = Connection::open();
                        for _ in 0..12 {
                            let answered = numbered.ask_each(&mut stream, begin..begin + 4);
                            let answered = answered.expect("a connection that lasts");
                            all.lock().unwrap().extend(answered);
                            begin += 4;
                        }
                    }
                });
            }));
        }
        cut_power_in_turn(&cluster, &DISPATCHERS, 6, &clients);
        stop.store(true, Ordering::Relaxed);
        for client in clients {
            client.join().expect("all answers are right");
        }
    });
    check_logs(&cluster, &all.into_inner().unwrap());
}

/// Each chunk is read where it begins, and acknowledged there. When lots are dealt anew the server's acknowledgements come
/// by another dispatcher than its client's chunks: who keeps the flow hears them all the same.
#[test]
fn uploads_in_chunks_go_on_when_a_dispatcher_leaves_and_comes_back() {
    let cluster = several("respchunks", 3);
    let stop = AtomicBool::new(false);
    let body = Content::new(3, 1_500_000).bytes();
    std::thread::scope(|scope| {
        let _raised = Raised(&stop);
        let mut clients = Vec::new();
        for number in 0..12 {
            let (cluster, body, stop) = (&cluster, &body, &stop);
            clients.push(scope.spawn(move || {
                cluster.on("c1", || {
                    let mut client = Connection::open();
                    while !stop.load(Ordering::Relaxed) {
                        let name = format!("chunks-{number}");
                        client.send(format!(
                            "PUT /upload/{name} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
                        ));
                        for chunk in body.chunks(20_000) {
                            client.send(format!("{:x}\r\n", chunk.len()));
                            client.send(chunk).send("\r\n");
                            std::thread::sleep(Duration::from_millis(10));
                        }
                        client.send("0\r\n\r\n");
                        let response = client.response();
                        assert!([201, 204].contains(&response.status));
                        let stored = cluster.uploads(response.backend()).join(&name);
                        same(&std::fs::read(stored).unwrap(), body);
                    }
                });
            }));
        }
        cut_power_in_turn(&cluster, &DISPATCHERS, 4, &clients);
        stop.store(true, Ordering::Relaxed);
        for client in clients {
            client.join().expect("all uploads are right");
        }
    });
}

/// What follows a head before its server is connected waits with it: this client repeats nothing.
#[test]
fn a_body_right_behind_its_head_waits_for_the_server() {
    let cluster = Splice::Whole.cluster("respbody", |options| options.backends = Some(2));
    let address = Ipv4Addr::new(10, 77, 0, 200);
    cluster.lend_address("c1", &address.to_string());
    let body = [b'x'; 3000];
    cluster.on("c1", || {
        let mut raw = RawClient::connect(SocketAddrV4::new(address, 2000), VIP);
        let first = "GET /1k HTTP/1.1\r\nHost: a\r\n\r\n";
        raw.send(0, first.as_bytes());
        raw.receive_until("the first answer", |raw| raw.received().len() > 1024);
        let head = "PUT /upload/b HTTP/1.1\r\nHost: a\r\nContent-Length: 3000\r\n\r\n";
        // So the daemon has both at once.
        cluster.signal("d1", Process::Dispatch, "-STOP");
        let mut at = first.len();
        for piece in std::iter::once(head.as_bytes()).chain(body.chunks(1000)) {
            raw.send(at, piece);
            at += piece.len();
        }
        cluster.signal("d1", Process::Dispatch, "-CONT");
        let is_answered = |raw: &RawClient| raw.received().ends_with(b"\r\n\r\n");
        raw.receive_until("the second answer", |raw| {
            raw.acknowledged() == at && is_answered(raw)
        });
    });
    let stored = ["b1", "b2"].map(|backend| std::fs::read(cluster.uploads(backend).join("b")));
    let stored = stored.into_iter().find_map(Result::ok);
    same(&stored.expect("it is stored"), &body);
}

/// Others are told late of requests that stay, and their server cannot be asked how many it has had:
/// whoever keeps the flow next leaves it there.
#[test]
fn what_stays_behind_several_needs_no_daemon_and_outlives_its_dispatcher() {
    let cluster = several("respstayed", 1);
    let one = ("1k", cluster.document("1k"));
    let stayed = || DISPATCHERS.map(|name| cluster.dispatcher_named(name).of("stayed"));
    cluster.on("c1", || {
        let mut client = Connection::open();
        for _ in 0..40 {
            assert_eq!(asked(&mut client, &one), "b1");
        }
        let (keeper, other) = match stayed() {
            [first, 0] if first >= 36 => ("d1", "d2"),
            [0, second] if second >= 36 => ("d2", "d1"),
            counts => panic!("{counts:?}"),
        };
        cluster.kill(keeper, None).unwrap();
        for _ in 0..40 {
            assert_eq!(asked(&mut client, &one), "b1");
        }
        let counts = cluster.dispatcher_named(other);
        assert_eq!(counts.of("stayed"), 0, "{counts:?}");
        let flows = cluster.dispatcher_maps_of(other).flows.all().unwrap();
        assert!(
            flows.iter().any(|(_, flow)| flow.marks & MARK_TUNNEL != 0),
            "{flows:?}"
        );
    });
}

/// Each packet comes to another dispatcher than the one before: none of them has heard all of an
/// answer, and connections stay where they are. So they do where dispatchers have been told
/// otherwise.
#[test]
fn behind_sprays_in_turn_no_byte_changes_and_each_request_runs_once() {
    let cluster = several("respseveral", 2);
    deal_in_turn(&cluster);
    check_logs(&cluster, &visit(&cluster, 4, 4));
    let config = cluster.config();
    for name in DISPATCHERS {
        cluster.reload(name, Process::Dispatch, &config);
    }
    let before = DISPATCHERS.map(|name| cluster.dispatcher_named(name).of("given-up"));
    cluster.link("c1", &bad()).unwrap();
    visit(&cluster, 4, 3);
    let after = DISPATCHERS.map(|name| cluster.dispatcher_named(name).of("given-up"));
    assert_eq!(before, after);
}

const DISPATCHERS: [&str; 2] = ["d1", "d2"];

/// Two dispatchers behind sprays that go by flow, and so many spliced backends that log.
fn several(test: &str, backends: u8) -> Cluster {
    let cluster = Splice::Whole.cluster(test, |options| {
        options.sprays = Some(2);
        options.dispatchers = Some(2);
        options.backends = Some(backends);
        options.access_log = true;
    });
    for name in DISPATCHERS {
        ready(&cluster, &DISPATCHERS, name);
    }
    cluster
}

/// Those that stay, stay by a decision that stands, without a daemon.
#[test]
fn requests_that_stay_need_no_daemon() {
    let cluster = by_path("respstay", "");
    let documents = ["1k", "100k"].map(|name| (name, cluster.document(name)));
    let [small, large] = &documents;
    cluster.on("c1", || {
        let mut client = Connection::open();
        for round in 1..=3 {
            let stayed = cluster.dispatcher().of("stayed");
            for _ in 0..20 {
                assert_eq!(asked(&mut client, small), "b1");
            }
            let stayed = cluster.dispatcher().of("stayed") - stayed;
            assert!(stayed >= 18, "{stayed} in round {round}");
            // So many have been counted by who hears the answers.
            assert_eq!(asked(&mut client, large), "b2");
        }
    });
}

#[test]
fn a_pool_that_hands_nothing_over_keeps_its_connections() {
    let cluster = by_path("respnone", "handoff = \"none\"\n");
    let documents = ["1k", "100k"].map(|name| (name, cluster.document(name)));
    cluster.on("c1", || {
        let mut client = Connection::open();
        for document in documents.iter().cycle().take(6) {
            assert_eq!(asked(&mut client, document), "b1");
        }
    });
    assert_eq!(cluster.dispatcher_maps().overheard.all().unwrap(), []);
}

#[test]
fn a_drained_backend_has_no_connection_left() {
    let cluster = Splice::Whole.cluster("respdrain", |options| options.backends = Some(2));
    let one = ("1k", cluster.document("1k"));
    cluster.on("c1", || {
        let mut clients: Vec<_> = (0..10).map(|_| Connection::open()).collect();
        for client in &mut clients {
            asked(client, &one);
        }
        let drained = cluster.trapeze("d1", &["drain", "b1", "--deadline", "20s"]);
        assert!(drained.status.success(), "{drained:?}");
        let words = ["ss", "-Htn", "state", "established", "sport", "=", ":80"];
        assert_eq!(cluster.run("b1", &words), "");
        for client in &mut clients {
            assert_eq!(asked(client, &one), "b2");
        }
    });
}

/// A head that comes in pieces behind another answer, and clients that close.
#[test]
fn nothing_is_left_of_connections_that_end() {
    let cluster = by_path("respend", "");
    let documents = ["1k", "100k"].map(|name| (name, cluster.document(name)));
    let [small, large] = &documents;
    cluster.on("c1", || {
        for round in 0..30 {
            let mut client = Connection::open();
            assert_eq!(asked(&mut client, small), "b1");
            let head = format!(
                "GET /100k HTTP/1.1\r\nHost: a\r\nX-Long: {}\r\n\r\n",
                "x".repeat(3000)
            );
            let response = client
                .send_pieces(head, 700, Duration::from_millis(1))
                .response();
            assert_eq!(response.backend(), "b2");
            same(&response.body, &large.1);
            match round % 3 {
                0 => client.abort(),
                1 => client.finish().expect_end(),
                _ => {
                    client.send("GET /1k HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
                    let response = client.response();
                    assert_eq!(response.backend(), "b1");
                    same(&response.body, &small.1);
                    client.expect_end();
                }
            }
        }
    });
    for host in ["b1", "b2"] {
        until("no socket stands", || {
            let words = ["ss", "-Htn", "exclude", "time-wait", "exclude", "listening"];
            cluster.run(host, &words).is_empty().then_some(())
        });
    }
}
