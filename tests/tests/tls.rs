//! TLS passes through; its ClientHello chooses the pool.

use std::time::Duration;

use trapeze_tests::site::{pools, rule, service};
use trapeze_tests::{Cluster, Connection, VIP_TLS, same};

/// Each pool is one backend.
fn rules() -> String {
    let rules = [
        rule(r#"sni = "*.img.example""#, "images"),
        rule(r#"sni = "img.example""#, "images"),
        rule(r#"alpn = "h2""#, "h2"),
        rule(r#"host = "plain.example""#, "images"),
    ];
    pools(&[("web", "b1"), ("images", "b2"), ("h2", "b3")]) + &service(443) + &rules.concat()
}

/// Runs curl for a name that resolves to the VIP; its headers and body.
fn curl(cluster: &Cluster, name: &str, path: &str, more: &[&str]) -> (String, Vec<u8>) {
    let resolve = format!("{name}:443:10.77.0.100");
    let url = format!("https://{name}{path}");
    let fixed = [
        "curl",
        "-sSk",
        "-m",
        "20",
        "-i",
        "--resolve",
        &resolve,
        &url,
    ];
    let output = cluster.run_bytes("c1", &[&fixed[..], more].concat());
    let end = output
        .windows(4)
        .position(|w| w == b"\r\n\r\n")
        .expect("a head")
        + 4;
    (
        String::from_utf8_lossy(&output[..end]).into_owned(),
        output[end..].to_vec(),
    )
}

#[test]
fn server_name_and_protocol_choose_the_pool() {
    let cluster = Cluster::configured("tls", 3, &rules(), |options| options.tls = true);
    let document = cluster.document("1m");
    let http1 = &["--http1.1"][..];
    for (name, more, backend) in [
        ("www.example", http1, "b1"),
        ("img.example", http1, "b2"),
        ("IMG.Example", http1, "b2"),
        ("a.img.example", http1, "b2"),
        ("aimg.example", http1, "b1"),
        ("www.example", &["--http2"], "b3"),
        ("www.example", &["--tls-max", "1.2", "--http1.1"], "b1"),
        (
            "www.example",
            &["--tls13-ciphers", "TLS_AES_128_GCM_SHA256", "--http1.1"],
            "b1",
        ),
        ("img.example", &["--no-alpn"], "b2"),
    ] {
        let (head, body) = curl(&cluster, name, "/1m", more);
        let said = head.to_lowercase();
        assert!(
            said.contains(&format!("x-backend: {backend}")),
            "{name} {more:?}: {head}"
        );
        same(&body, &document);
    }
    // What an operator looks for: the very certificate of the server.
    let script = "openssl s_client -connect 10.77.0.100:443 -servername img.example </dev/null \
                  2>/dev/null | openssl x509 -noout -ext subjectAltName -subject";
    let through = cluster.run("c1", &["sh", "-c", script]);
    let direct = script.replace("10.77.0.100", "10.77.0.22");
    assert_eq!(through, cluster.run("c1", &["sh", "-c", &direct]));
    assert_eq!(cluster.agents().of("no-listener"), 0);
}

#[test]
fn a_hello_of_several_segments_is_put_together() {
    let cluster = Cluster::configured("hello", 3, &rules(), |options| options.tls = true);
    // Many protocols make a hello of some segments; a small MTU makes more of them.
    let script = r#"
import socket, ssl, sys
for size, count in ((0, 1), (600, 5), (60, 200), (250, 200)):
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if size:
        context.set_alpn_protocols(["x%03d" % n + "y" * (size % 250) for n in range(count)] + ["http/1.1"])
    raw = socket.create_connection(("10.77.0.100", 443), 20)
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 536)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_hostname="www.img.example")
    def move():
        data = outgoing.read()
        for at in range(0, len(data), 100):
            raw.sendall(data[at:at + 100])
    while True:
        try:
            tls.do_handshake()
            break
        except ssl.SSLWantReadError:
            move()
            incoming.write(raw.recv(65536))
    tls.write(b"GET /1k HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    move()
    answer = b""
    while True:
        try:
            answer += tls.read()
        except ssl.SSLWantReadError:
            data = raw.recv(65536)
            if not data:
                break
            incoming.write(data)
            continue
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            break
        if b"\r\n\r\n" in answer and len(answer.split(b"\r\n\r\n", 1)[1]) == 1024:
            break
    assert b"X-Backend: b2" in answer, answer[:300]
    print("ok")
"#;
    let said = cluster.run("c1", &["python3", "-c", script]);
    assert_eq!(said, "ok\n".repeat(4));
}

#[test]
fn one_service_takes_plain_requests_too() {
    let cluster = Cluster::configured("plain", 3, &rules(), |options| options.tls = true);
    cluster.on("c1", || {
        // nginx says 400 to plain HTTP on a TLS port: a server's answer, so it was forwarded.
        for (host, backend) in [("plain.example", "b2"), ("other.example", "b1")] {
            let mut client = Connection::to(VIP_TLS);
            client.send_pieces(
                format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"),
                20,
                Duration::from_millis(1),
            );
            let response = client.response();
            assert_eq!((response.status, response.backend()), (400, backend));
        }
    });
}
