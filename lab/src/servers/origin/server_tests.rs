//! Conversations with the server over loopback.

use super::*;
use crate::objects;
use crate::servers::origin::OriginSettings;

/// A server without a cost for misses; it goes with the test's process.
fn start() -> SocketAddrV4 {
    let server = Server {
        name: "b7".into(),
        store: Store::new(OriginSettings {
            miss: Duration::ZERO,
            miss_bytes_per_s: u64::MAX,
            ..OriginSettings::default()
        }),
        log: None,
    };
    let listener = listen(0).unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || server.accept(&listener));
    SocketAddrV4::new(Ipv4Addr::LOCALHOST, port)
}

/// All that comes back for some bytes, until the server closes.
fn answers(to: SocketAddrV4, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(to).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    stream.write_all(bytes).unwrap();
    let mut all = Vec::new();
    stream.read_to_end(&mut all).unwrap();
    all
}

/// The head of the answer to a request, which closes the connection.
fn head(to: SocketAddrV4, request: &str) -> String {
    let all = answers(to, request.as_bytes());
    let text = String::from_utf8_lossy(&all).into_owned();
    text.split_once("\r\n\r\n").unwrap().0.to_owned()
}

#[test]
fn an_object_is_kept_alive_for_and_found_again() {
    let server = start();
    let all = answers(
        server,
        b"GET /object/42 HTTP/1.1\r\nHost: a\r\n\r\n\
          HEAD /object/42?x HTTP/1.1\r\nHost: a\r\n\r\n\
          GET /object/42 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
    );
    let body = objects::body(42);
    let head = |found: &str, close: &str| {
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\n\
             ETag: \"42-{0}\"\r\nX-Cache: {found}\r\nX-Backend: b7\r\n\
             Content-Length: {0}\r\n{close}\r\n",
            body.len()
        );
        head.into_bytes()
    };
    let closing = head("hit", "Connection: close\r\n");
    let expected = [
        &head("miss", "")[..],
        &body,
        &head("hit", ""),
        &closing,
        &body,
    ]
    .concat();
    assert_eq!(all, expected);
}

#[test]
fn the_status_counts_and_a_flush_forgets() {
    let server = start();
    let close = "HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    for _ in 0..3 {
        head(server, &format!("GET /object/1 {close}"));
    }
    let status = answers(server, format!("GET /origin-status {close}").as_bytes());
    let status = String::from_utf8(status).unwrap();
    let json = status.split_once("\r\n\r\n").unwrap().1;
    let counts: crate::servers::origin::OriginCounts = serde_json::from_str(json).unwrap();
    assert_eq!((counts.requests, counts.hits, counts.misses), (3, 2, 1));
    let flushed = head(server, &format!("POST /origin-flush {close}"));
    assert!(flushed.starts_with("HTTP/1.1 204"), "{flushed}");
    let again = head(server, &format!("GET /object/1 {close}"));
    assert!(again.contains("X-Cache: miss"), "{again}");
}

#[test]
fn what_it_does_not_know_it_says() {
    let server = start();
    for (request, status) in [
        ("GET /1k HTTP/1.1\r\nConnection: close", "404"),
        ("GET /object/ HTTP/1.0", "404"),
        ("GET /object/007 HTTP/1.0", "404"),
        ("GET /object/-1 HTTP/1.0", "404"),
        ("GET /object/18446744073709551616 HTTP/1.0", "404"),
        ("GET /object/18446744073709551615 HTTP/1.0", "200"),
        ("PUT /object/1 HTTP/1.1\r\nContent-Length: 9", "405"),
        ("GET /origin-flush HTTP/1.0", "405"),
        (
            "POST /object/1 HTTP/1.1\r\nTransfer-Encoding: chunked",
            "405",
        ),
        ("PRI * HTTP/2.0\r\n\r\nSM", "400"),
        ("\0\0\0", "400"),
    ] {
        let answer = head(server, &format!("{request}\r\n\r\n"));
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status}")),
            "{request}: {answer}"
        );
    }
    let long = format!("GET / HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(HEAD_MAX));
    assert!(head(server, &long).starts_with("HTTP/1.1 431"));
}

#[test]
fn hundreds_are_served_at_once() {
    let server = start();
    let mut streams: Vec<TcpStream> = (0..400)
        .map(|_| TcpStream::connect(server).unwrap())
        .collect();
    for (number, stream) in streams.iter_mut().enumerate() {
        let request = format!("GET /object/{number} HTTP/1.0\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
    }
    for (number, stream) in streams.iter_mut().enumerate() {
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        assert!(all.ends_with(&objects::body(number as u64)), "{number}");
    }
}
