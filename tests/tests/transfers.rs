//! Large answers and large bodies, over good links and bad ones.

use std::io::{Read, Write};
use std::time::Duration;

use trapeze_lab::{LinkSettings, Process, ServerKind};
use trapeze_tests::{Cluster, Connection, Content, ONE_BACKEND, same};

/// A server on b1 that makes `length` bytes when asked, or checks as many.
fn serve(cluster: &Cluster, connections: usize) -> std::thread::JoinHandle<()> {
    cluster.kill("b1", Some(Process::Server)).unwrap();
    let (ready, is_ready) = std::sync::mpsc::channel();
    let server = cluster.spawn("b1", move || {
        let listener = std::net::TcpListener::bind("0.0.0.0:80").unwrap();
        ready.send(()).unwrap();
        for _ in 0..connections {
            let (stream, _) = listener.accept().unwrap();
            std::thread::spawn(move || answer(stream));
        }
    });
    is_ready.recv().unwrap();
    server
}

/// GET /LENGTH or PUT with its Content-Length in the fourth word.
fn answer(mut stream: std::net::TcpStream) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap();
    let length: u64 = head.split([' ', '/']).nth(2).unwrap().parse().unwrap();
    let ok = |length| format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n");
    if head.starts_with("GET") {
        stream.write_all(ok(length).as_bytes()).unwrap();
        std::io::copy(&mut Content::new(length, length), &mut stream).unwrap();
    } else {
        let verdict = if is_content(&mut stream, length) {
            "same"
        } else {
            "other"
        };
        stream
            .write_all((ok(verdict.len() as u64) + verdict).as_bytes())
            .unwrap();
    }
}

/// Reads just what [`Content`] makes.
fn is_content(from: &mut impl Read, length: u64) -> bool {
    let mut expected = Content::new(length, length);
    let (mut got, mut wanted) = (vec![0; 1 << 18], vec![0; 1 << 18]);
    let mut left = length as usize;
    while left > 0 {
        let piece = left.min(got.len());
        from.read_exact(&mut got[..piece]).unwrap();
        expected.read_exact(&mut wanted[..piece]).unwrap();
        if got[..piece] != wanted[..piece] {
            return false;
        }
        left -= piece;
    }
    true
}

fn download(length: u64) {
    let mut client = Connection::open();
    client.send(format!("GET /{length} HTTP/1.1\r\nHost: a\r\n\r\n"));
    let head = client.try_response(false).unwrap();
    assert_eq!(head.status, 200);
    let mut body = client.unread().chain(client.stream());
    assert!(is_content(&mut body, length), "{length} bytes down");
}

fn upload(length: u64) {
    let mut client = Connection::open();
    client.send(format!(
        "PUT /{length} HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n"
    ));
    std::io::copy(&mut Content::new(length, length), &mut client.stream()).unwrap();
    assert_eq!(client.response().body, b"same", "{length} bytes up");
}

#[test]
fn a_gibibyte_down_and_a_gibibyte_up_are_the_same_bytes() {
    let cluster = Cluster::configured("gibibyte", 1, ONE_BACKEND, |_| {});
    let server = serve(&cluster, 2);
    cluster.on("c1", || {
        download(1 << 30);
        upload(1 << 30);
    });
    server.join().unwrap();
    let d1 = cluster.dispatcher();
    assert!(
        d1.of("forwarded") > 10_000 && d1.of("to-daemon") < 10,
        "{d1:?}"
    );
    assert_eq!(cluster.agent("b1").of("rebuilt"), 2);
}

/// Loss, copies and disorder both ways at the client's link, while a gibibyte goes
/// down and another one up.
#[test]
fn faults_change_no_byte_of_a_gibibyte_down_and_one_up_at_once() {
    let cluster = Cluster::configured("faultygib", 1, ONE_BACKEND, |_| {});
    let server = serve(&cluster, 2);
    let settings = LinkSettings {
        loss: 0.01,
        reorder: 0.01,
        duplicate: 0.01,
        ..LinkSettings::default()
    };
    cluster.link("c1", &settings).unwrap();
    cluster.on("c1", || {
        std::thread::scope(|scope| {
            scope.spawn(|| download(1 << 30));
            scope.spawn(|| upload(1 << 30));
        });
    });
    server.join().unwrap();
    // The faults were there, each way.
    let status = cluster.status().unwrap();
    let link = status.host("c1").unwrap().link.clone().unwrap();
    for counters in [link.from_host.unwrap(), link.to_host.unwrap()] {
        let all = [counters.lost, counters.duplicated, counters.reordered];
        assert!(all.iter().all(|&count| count > 5000), "{counters:?}");
    }
    let d1 = cluster.dispatcher();
    assert!(d1.of("to-daemon") < 50, "{d1:?}");
    assert_eq!(cluster.agent("b1").of("rebuilt"), 2);
}

#[test]
fn faults_both_ways_change_no_byte() {
    let cluster = Cluster::configured("lossy", 1, ONE_BACKEND, |_| {});
    let server = serve(&cluster, 4);
    let settings = LinkSettings {
        loss: 0.01,
        reorder: 0.02,
        duplicate: 0.01,
        delay: Duration::from_micros(200),
        jitter: Duration::from_micros(200),
        ..LinkSettings::default()
    };
    for host in ["c1", "b1"] {
        cluster.link(host, &settings).unwrap();
    }
    cluster.on("c1", || {
        std::thread::scope(|scope| {
            scope.spawn(|| download(64 << 20));
            scope.spawn(|| upload(64 << 20));
        });
        download(3_000_001);
        upload(3_000_001);
    });
    server.join().unwrap();
    assert_eq!(cluster.dispatcher().of("no-backend"), 0);
}

#[test]
fn faults_on_every_link_and_heads_in_pieces_change_no_byte() {
    let cluster = Cluster::with("every", |options| options.server = ServerKind::Python);
    let settings = LinkSettings {
        duplicate: 0.05,
        reorder: 0.05,
        loss: 0.02,
        delay: Duration::from_micros(500),
        jitter: Duration::from_micros(300),
        ..LinkSettings::default()
    };
    for host in ["c1", "d1", "b1", "b2", "b3"] {
        cluster.link(host, &settings).unwrap();
    }
    cluster.on("c1", || {
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let cluster = &cluster;
                scope.spawn(move || {
                    for round in 0..4 {
                        let body = Content::new(thread * 10 + round, 1_000_000).bytes();
                        let name = format!("every-{thread}-{round}");
                        let head = format!(
                            "PUT /upload/{name} HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n",
                            body.len()
                        );
                        let mut client = Connection::open();
                        client.send_pieces(head, 13, Duration::from_micros(500));
                        let response = client.send(&body).response();
                        assert_eq!(response.status, 201);
                        let stored = cluster.uploads(response.backend()).join(name);
                        same(&std::fs::read(stored).unwrap(), &body);
                    }
                });
            }
        });
    });
}

#[test]
fn a_slow_reader_and_a_slow_link_hold_up_nobody() {
    let cluster = Cluster::with("slow", |options| options.clients = 2);
    let settings = LinkSettings {
        rate: Some(20_000_000),
        delay: Duration::from_millis(10),
        ..LinkSettings::default()
    };
    cluster.link("c2", &settings).unwrap();
    let (ten, one) = (cluster.document("10m"), cluster.document("1m"));
    let slow = std::thread::scope(|scope| {
        let slow = scope.spawn(|| cluster.on("c2", || Connection::open().ask("/10m").body));
        cluster.on("c1", || {
            // Its window closes; the server probes it meanwhile.
            let mut reader = Connection::open();
            reader.send("GET /10m HTTP/1.1\r\nHost: a\r\n\r\n");
            for _ in 0..20 {
                same(&Connection::open().ask("/1m").body, &one);
            }
            std::thread::sleep(Duration::from_secs(1));
            same(&reader.response().body, &ten);
        });
        slow.join().unwrap()
    });
    same(&slow, &ten);
}
