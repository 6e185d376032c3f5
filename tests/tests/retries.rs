//! Requests whose backend dies with them, and has said no word of an answer: another one is given
//! them where the pool wants that, and never behind a byte of another answer (docs/protocol/retry.md).

use std::io::{ErrorKind, Read};
use std::time::Duration;

use trapeze_lab::{LinkSettings, Process};
use trapeze_tests::saved::{MIB, Site};
use trapeze_tests::scattered::scattered_over;
use trapeze_tests::{Connection, Content, Response, same, until};

const GET: &str = "GET /1k HTTP/1.1\r\nHost: a\r\n\r\n";
const POST: &str = "POST /upload HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody";

fn up(test: &str, retry: &str) -> Site {
    Site::with(test, 2, &format!("retry = \"{retry}\"\n"))
}

fn signal_all(site: &Site, signal: &str) {
    for backend in ["b1", "b2"] {
        site.cluster.signal_server(backend, signal);
    }
}

fn await_kept(site: &Site, requests: usize) {
    until("so many are kept", || {
        (site.cluster.daemon().kept_requests == requests).then_some(())
    });
}

/// Sends it to servers that are frozen, and of it so many are `kept`; who has it, and has acknowledged it.
fn send_in_vain(
    site: &Site,
    client: &mut Connection,
    request: &str,
    kept: usize,
) -> [&'static str; 2] {
    let active = |backend: &str| site.cluster.backend(backend).active;
    await_kept(site, 0);
    client.send(request);
    await_kept(site, kept);
    until("its backend has acknowledged it", || {
        let sockets = (site.cluster).run("c1", &["ss", "-Htn", "state", "established"]);
        let sent = sockets.lines().map(|line| line.split_whitespace().nth(1));
        let mut sent = sent.collect::<Vec<_>>().into_iter();
        sent.all(|queue| queue == Some("0")).then_some(())
    });
    until("one of them has it", || {
        match (active("b1"), active("b2")) {
            (1, 0) => Some(["b1", "b2"]),
            (0, 1) => Some(["b2", "b1"]),
            _ => None,
        }
    })
}

fn start(site: &Site, backend: &str) {
    site.cluster.start(backend, None).unwrap();
    until("it is up", || {
        (site.cluster.backend(backend).state == "up").then_some(())
    });
}

/// A connection's first request, and its next ones.
#[test]
fn a_request_that_died_with_its_backend_is_answered_by_another() {
    let site = up("retry-get", "idempotent");
    let mut client = site.cluster.on("c1", Connection::open);
    for round in 1..=3 {
        signal_all(&site, "-STOP");
        let [owner, other] = send_in_vain(&site, &mut client, GET, 1);
        site.cluster.signal_server(other, "-CONT");
        site.cluster.kill(owner, None).unwrap();
        let answer = client.response();
        assert_eq!(answer.ok(), other);
        same(&answer.body, &site.large[..1024]);
        until("it is counted", || {
            (site.count("retried") == round).then_some(())
        });
        assert_eq!(client.ask("/1k").ok(), other);
        start(&site, owner);
    }
    assert_eq!(site.count("not-retried"), 0);
    await_kept(&site, 0);
}

/// It was only cut off, its server wakes up, and its answer comes before the next owner's.
#[test]
fn the_answer_of_a_backend_that_was_given_up_does_no_harm() {
    let site = up("retry-cut", "idempotent");
    signal_all(&site, "-STOP");
    let mut client = site.cluster.on("c1", Connection::open);
    let [owner, other] = send_in_vain(&site, &mut client, GET, 1);
    let cut = LinkSettings {
        loss: 1.0,
        ..LinkSettings::default()
    };
    site.cluster.link(owner, &cut).unwrap();
    until("another one has it", || {
        (site.count("retried") == 1).then_some(())
    });
    // Its server says it, again and again.
    site.cluster.signal_server(owner, "-CONT");
    std::thread::sleep(Duration::from_millis(300));
    site.cluster.link(owner, &LinkSettings::default()).unwrap();
    until("it is back", || {
        (site.cluster.backend(owner).state == "up").then_some(())
    });
    site.cluster.signal_server(other, "-CONT");
    let answer = client.response();
    assert_eq!(answer.ok(), other);
    same(&answer.body, &site.large[..1024]);
    for _ in 0..4 {
        same(&client.ask("/1k").body, &site.large[..1024]);
    }
    until("its socket goes", || {
        let sockets = (site.cluster).run(
            owner,
            &["ss", "-Htn", "state", "established", "sport", "=", ":80"],
        );
        (sockets.lines().count() <= 1).then_some(())
    });
}

/// Clients hear it, and its dispatcher does not: what it says is late by its clock alone.
#[test]
fn a_backend_that_clients_alone_can_hear_does_no_harm() {
    let site = up("retry-deaf", "idempotent");
    signal_all(&site, "-STOP");
    let mut client = site.cluster.on("c1", Connection::open);
    let [owner, other] = send_in_vain(&site, &mut client, GET, 1);
    let address = site.cluster.backend(owner).address;
    let rule = format!(
        "table ip deaf {{\nchain out {{\ntype filter hook output priority 0;\nip daddr {address} drop\n}}\n}}"
    );
    site.cluster.run("d1", &["nft", &rule]);
    until("another one has it", || {
        (site.count("retried") == 1).then_some(())
    });
    site.cluster.signal_server(owner, "-CONT");
    let early = answer_within(&mut client, Duration::from_secs(1));
    assert_eq!(early, None);
    site.cluster.signal_server(other, "-CONT");
    let answer = answer_within(&mut client, Duration::from_secs(20)).expect("an answer");
    assert_eq!(answer.ok(), other);
    same(&answer.body, &site.large[..1024]);
    assert_eq!(client.ask("/1k").ok(), other);
}

fn answer_within(client: &mut Connection, time: Duration) -> Option<Response> {
    client.stream().set_read_timeout(Some(time)).unwrap();
    match client.try_response(true) {
        Ok(answer) => Some(answer),
        Err(e) => {
            assert!(
                matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
                "{e}"
            );
            None
        }
    }
}

/// RFC 9110 §9.2.2: it may have run.
#[test]
fn what_may_not_run_twice_is_retried_only_if_the_pool_says_so() {
    for (test, retry, retried) in [
        ("retry-post", "idempotent", 0),
        ("retry-always", "always", 1),
    ] {
        let site = up(test, retry);
        signal_all(&site, "-STOP");
        let mut client = site.cluster.on("c1", Connection::open);
        let [owner, other] = send_in_vain(&site, &mut client, POST, retried as usize);
        site.cluster.signal_server(other, "-CONT");
        site.cluster.kill(owner, None).unwrap();
        let answer = answer_within(&mut client, Duration::from_secs(4));
        assert_eq!(
            answer.map(|answer| answer.backend().to_owned()).as_deref(),
            (retried == 1).then_some(other)
        );
        until("it is counted", || {
            let counts = ["retried", "kept-requests"].map(|what| site.count(what));
            // By its next owner, too.
            (counts == [retried, 2 * retried]).then_some(())
        });
    }
}

/// Its body comes in other packets than its head, some of them later.
#[test]
fn a_request_in_pieces_is_given_whole() {
    let site = up("retry-pieces", "always");
    let body = "piece".repeat(4000);
    let head = format!(
        "PUT /upload/pieces HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    let mut client = site.cluster.on("c1", Connection::open);
    for at_once in [true, false] {
        signal_all(&site, "-STOP");
        let mut rest = &body[..];
        if !at_once {
            client.send(&head).send(&body[..1000]);
            rest = &body[1000..];
            std::thread::sleep(Duration::from_millis(50));
        }
        let rest = if at_once {
            head.clone() + rest
        } else {
            rest.to_owned()
        };
        let [owner, other] = send_in_vain(&site, &mut client, &rest, 1);
        site.cluster.signal_server(other, "-CONT");
        site.cluster.kill(owner, None).unwrap();
        let answer = client.response();
        assert!([201, 204].contains(&answer.status), "{}", answer.head);
        assert_eq!(answer.backend(), other);
        let stored = std::fs::read(site.cluster.uploads(other).join("pieces")).unwrap();
        same(&stored, body.as_bytes());
        start(&site, owner);
    }
    assert_eq!(site.count("not-retried"), 0);
}

/// Its backend has acknowledged a part of it, and the client has more to send when that dies.
#[test]
fn an_upload_in_flight_goes_to_another_backend() {
    let site = up("retry-upload", "always");
    let body = Content::new(11, 6 * MIB as u64).bytes();
    let chunks: Vec<u8> = [&body[..MIB], &body[MIB..4 * MIB]]
        .into_iter()
        .chain(body[4 * MIB..].chunks(1000))
        .flat_map(|chunk| [format!("{:x}\r\n", chunk.len()).as_bytes(), chunk, b"\r\n"].concat())
        .chain(*b"0\r\n\r\n")
        .collect();
    let length = format!("Content-Length: {}", body.len());
    let framed = [
        (length.clone(), &body),
        ("Transfer-Encoding: chunked".to_owned(), &chunks),
        (format!("{length}\r\nExpect: 100-continue"), &body),
    ];
    let loses = LinkSettings {
        loss: 0.02,
        ..LinkSettings::default()
    };
    let mut client = site.cluster.on("c1", Connection::open);
    for loss in [false, true] {
        for (framing, bytes) in &framed {
            client.send(format!(
                "PUT /upload/whole HTTP/1.1\r\nHost: a\r\n{framing}\r\n\r\n"
            ));
            if framing.contains("Expect") {
                assert_eq!(client.try_response(false).unwrap().status, 100);
            }
            client.send(&bytes[..5 * MIB]);
            let active = |backend: &str| site.cluster.backend(backend).active;
            let [owner, other] = until("one of them has it", || {
                match (active("b1"), active("b2")) {
                    (1, 0) => Some(["b1", "b2"]),
                    (0, 1) => Some(["b2", "b1"]),
                    _ => None,
                }
            });
            if loss {
                site.cluster.link(other, &loses).unwrap();
            }
            site.cluster.kill(owner, None).unwrap();
            client.send(&bytes[5 * MIB..]);
            let mut answer = client.try_response(false).unwrap();
            // The next owner says it, too (RFC 9110 §15.2).
            if answer.status == 100 {
                answer = client.try_response(false).unwrap();
            }
            assert!([201, 204].contains(&answer.status), "{}", answer.head);
            assert_eq!(answer.backend(), other);
            let stored = std::fs::read(site.cluster.uploads(other).join("whole")).unwrap();
            same(&stored, &body);
            site.cluster.link(other, &LinkSettings::default()).unwrap();
            start(&site, owner);
            await_kept(&site, 0);
        }
    }
    assert_eq!((site.count("retried"), site.count("not-retried")), (6, 0));
    assert_eq!(client.ask("/1k").status, 200);
}

/// Its client does not hear that its server has closed; nor does one whose server has answered nothing.
#[test]
fn an_upload_whose_server_is_killed_goes_to_another_backend() {
    let site = up("retry-killed", "always");
    let body = Content::new(13, 6 * MIB as u64).bytes();
    let mut client = site.cluster.on("c1", Connection::open);
    for round in 0..6 {
        let head = format!(
            "PUT /upload/killed HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        client.send(head).send(&body[..(round + 1) * MIB - 7]);
        let active = |backend: &str| site.cluster.backend(backend).active;
        let owner = until("one of them has it", || {
            match (active("b1"), active("b2")) {
                (1, 0) => Some("b1"),
                (0, 1) => Some("b2"),
                _ => None,
            }
        });
        site.cluster.kill(owner, Some(Process::Server)).unwrap();
        client.send(&body[(round + 1) * MIB - 7..]);
        let answer = client.response();
        assert!([201, 204].contains(&answer.status), "{}", answer.head);
        assert_ne!(answer.backend(), owner);
        let stored = std::fs::read(site.cluster.uploads(answer.backend()).join("killed")).unwrap();
        same(&stored, &body);
        site.cluster.start(owner, Some(Process::Server)).unwrap();
        until("it is up", || {
            (site.cluster.backend(owner).state == "up").then_some(())
        });
    }
    assert_eq!(site.count("not-retried"), 0);
}

/// Each packet by way of another dispatcher than the one before: who keeps the flow keeps all of it.
#[test]
fn uploads_by_way_of_several_dispatchers_go_to_another_backend() {
    uploads_by_way_of_several_dispatchers("retry-several", None);
}

#[test]
fn so_do_they_when_its_server_is_killed() {
    uploads_by_way_of_several_dispatchers("retry-servers", Some(Process::Server));
}

fn uploads_by_way_of_several_dispatchers(test: &str, killed: Option<Process>) {
    let dispatchers = ["d1", "d2"];
    let cluster = scattered_over(&dispatchers, test, |_| {});
    let config = (cluster.config()).replace("[[pool]]\n", "[[pool]]\nretry = \"always\"\n");
    for backend in ["b1", "b2"] {
        cluster.reload(backend, Process::Agent, &config);
    }
    for dispatcher in dispatchers {
        cluster.reload(dispatcher, Process::Dispatch, &config);
    }
    let body = Content::new(12, 4 * MIB as u64).bytes();
    let mut clients: Vec<Connection> =
        cluster.on("c1", || (0..6).map(|_| Connection::open()).collect());
    for (number, client) in clients.iter_mut().enumerate() {
        let head = format!(
            "PUT /upload/{number} HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        client.send(head).send(&body[..3 * MIB]);
    }
    let active = || ["b1", "b2"].map(|backend| cluster.backend(backend).active);
    until("both have some", || {
        active().iter().all(|&count| count > 0).then_some(())
    });
    cluster.kill("b1", killed).unwrap();
    for (number, client) in clients.iter_mut().enumerate() {
        client.send(&body[3 * MIB..]);
        let answer = client.response();
        assert!([201, 204].contains(&answer.status), "{}", answer.head);
        assert_eq!(answer.backend(), "b2");
        let stored = std::fs::read(cluster.uploads("b2").join(number.to_string())).unwrap();
        same(&stored, &body);
    }
    let count = |what: &str| -> u64 {
        let all = dispatchers
            .iter()
            .filter_map(|name| cluster.dispatch_status(name));
        all.map(|status| status.counters.get(what).copied().unwrap_or(0))
            .sum()
    };
    until("they are counted", || (count("retried") > 0).then_some(()));
    assert_eq!(count("not-retried"), 0);
}

/// No other answer can follow its first bytes.
#[test]
fn an_answer_that_has_begun_is_not_begun_again() {
    let site = up("retry-begun", "idempotent");
    let mut download = site.start();
    download.read(8 * MIB).unwrap();
    await_kept(&site, 0);
    site.cluster.kill(&download.owner, None).unwrap();
    until("its backend is silent", || {
        (site.cluster.backend(&download.owner).state == "silent").then_some(())
    });
    let patience = Some(Duration::from_secs(2));
    download.stream.set_read_timeout(patience).unwrap();
    let mut rest = Vec::new();
    let ended = download.stream.read_to_end(&mut rest);
    let body = [&download.body[..], &rest].concat();
    same(&body, &site.large[..body.len()]);
    assert!(ended.is_err() && body.len() < site.large.len());
    assert_eq!(site.count("retried"), 0);
}

/// They are what a client repeats itself, whose backend has not acknowledged them.
#[test]
fn what_is_never_to_be_retried_is_answered_504() {
    let site = up("retry-never", "never");
    let mut clients: Vec<Connection> =
        (site.cluster).on("c1", || (0..6).map(|_| Connection::open()).collect());
    site.cluster.kill("b1", None).unwrap();
    for client in &mut clients {
        client.send(GET);
    }
    let answers = clients.iter_mut().map(|client| client.response().status);
    let answers: Vec<u16> = answers.collect();
    assert!(
        answers.contains(&200) && answers.contains(&504),
        "{answers:?}"
    );
    assert_eq!(answers.iter().filter(|&&status| status == 504).count(), 3);
}
