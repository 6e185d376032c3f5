//! Heads as real clients send them, and as nobody should.

use super::*;

const LIMIT: usize = 32 << 10;

/// Method, target, path, host of the head.
type Expected = (
    &'static str,
    &'static str,
    &'static str,
    Option<&'static str>,
);

/// Client or situation, bytes, what they say. The first ones were captured.
#[rustfmt::skip]
pub(super) const HEADS: &[(&str, &[u8], Expected)] = &[
    ("curl 7.88", b"GET /a?b=c HTTP/1.1\r\nHost: localhost:42579\r\nUser-Agent: curl/7.88.1\r\nAccept: */*\r\n\r\n",
        ("GET", "/a?b=c", "/a", Some("localhost"))),
    ("curl through a proxy", b"GET http://Example.org/x HTTP/1.1\r\nHost: Example.org\r\nUser-Agent: curl/7.88.1\r\nAccept: */*\r\nProxy-Connection: Keep-Alive\r\n\r\n",
        ("GET", "http://Example.org/x", "/x", Some("example.org"))),
    ("wget 1.21", b"GET /a?b=c HTTP/1.1\r\nHost: localhost:46871\r\nUser-Agent: Wget/1.21.3\r\nAccept: */*\r\nAccept-Encoding: identity\r\nConnection: Keep-Alive\r\n\r\n",
        ("GET", "/a?b=c", "/a", Some("localhost"))),
    ("Python 3.11 urllib", b"GET / HTTP/1.1\r\nAccept-Encoding: identity\r\nHost: localhost:33259\r\nUser-Agent: Python-urllib/3.11\r\nConnection: close\r\n\r\n",
        ("GET", "/", "/", Some("localhost"))),
    ("Go 1.26", b"GET /a HTTP/1.1\r\nHost: localhost:34665\r\nUser-Agent: Go-http-client/1.1\r\nAccept-Encoding: gzip\r\n\r\n",
        ("GET", "/a", "/a", Some("localhost"))),
    ("Java 17", b"GET /a HTTP/1.1\r\nUser-Agent: Java/17.0.15\r\nHost: localhost:39645\r\nAccept: text/html, image/gif, image/jpeg, */*; q=0.2\r\nConnection: keep-alive\r\n\r\n",
        ("GET", "/a", "/a", Some("localhost"))),
    ("node's fetch", b"GET /a HTTP/1.1\r\nhost: localhost:44443\r\nconnection: keep-alive\r\naccept: */*\r\naccept-language: *\r\nsec-fetch-mode: cors\r\nuser-agent: node\r\naccept-encoding: gzip, deflate\r\n\r\n",
        ("GET", "/a", "/a", Some("localhost"))),
    ("Python requests", b"POST /api HTTP/1.1\r\nHost: api.example\r\nUser-Agent: python-requests/2.31.0\r\nAccept-Encoding: gzip, deflate\r\nAccept: */*\r\nConnection: keep-alive\r\nContent-Length: 3\r\nContent-Type: application/json\r\n\r\n",
        ("POST", "/api", "/api", Some("api.example"))),
    ("Chromium", b"GET /img/a.png?v=2 HTTP/1.1\r\nHost: img.example:8080\r\nConnection: keep-alive\r\nsec-ch-ua: \"Chromium\";v=\"130\", \"Not?A_Brand\";v=\"99\"\r\nsec-ch-ua-mobile: ?0\r\nsec-ch-ua-platform: \"Linux\"\r\nUpgrade-Insecure-Requests: 1\r\nUser-Agent: Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/130.0.0.0 Safari/537.36\r\nAccept: image/avif,image/webp,*/*;q=0.8\r\nSec-Fetch-Site: none\r\nSec-Fetch-Mode: navigate\r\nSec-Fetch-User: ?1\r\nSec-Fetch-Dest: document\r\nAccept-Encoding: gzip, deflate, br, zstd\r\nAccept-Language: en-GB,en;q=0.9\r\nCookie: id=42; theme=dark\r\n\r\n",
        ("GET", "/img/a.png?v=2", "/img/a.png", Some("img.example"))),
    ("nc with bare LF", b"GET / HTTP/1.0\n\n", ("GET", "/", "/", None)),
    ("LF and CRLF mixed", b"GET / HTTP/1.1\nHost: a\r\n\n", ("GET", "/", "/", Some("a"))),
    // RFC 9112 §2.2: old clients end a body with a CRLF that is not counted.
    ("empty lines before", b"\r\n\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", ("GET", "/", "/", Some("a"))),
    ("several spaces, as nginx", b"GET   /a  HTTP/1.1 \r\n\r\n", ("GET", "/a", "/a", None)),
    ("a minor version to come", b"GET / HTTP/1.2\r\n\r\n", ("GET", "/", "/", None)),
    ("a minor version of two digits, as nginx", b"GET / HTTP/1.10\r\n\r\n", ("GET", "/", "/", None)),
    // RFC 9112 §3.2: the four forms of a target.
    ("absolute form wins over Host", b"GET http://User@A.Example:81/p?q HTTP/1.1\r\nHost: b\r\n\r\n", ("GET", "http://User@A.Example:81/p?q", "/p", Some("a.example"))),
    ("absolute form without path", b"GET http://a?q HTTP/1.1\r\n\r\n", ("GET", "http://a?q", "/", Some("a"))),
    ("OPTIONS about a server", b"OPTIONS http://a:8001 HTTP/1.1\r\n\r\n", ("OPTIONS", "http://a:8001", "*", Some("a"))),
    ("OPTIONS *", b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", ("OPTIONS", "*", "*", Some("a"))),
    ("CONNECT", b"CONNECT a.example:443 HTTP/1.1\r\nHost: a.example:443\r\n\r\n", ("CONNECT", "a.example:443", "", Some("a.example"))),
    ("a path that holds a URL", b"GET /http://b/ HTTP/1.1\r\nHost: a\r\n\r\n", ("GET", "/http://b/", "/http://b/", Some("a"))),
    ("a fragment, which no client should send", b"GET /a#b HTTP/1.1\r\n\r\n", ("GET", "/a#b", "/a", None)),
    // Hosts.
    ("IPv6", b"GET / HTTP/1.1\r\nHost: [2001:DB8::1]:80\r\n\r\n", ("GET", "/", "/", Some("[2001:db8::1]"))),
    ("a trailing dot", b"GET / HTTP/1.1\r\nHOST:\ta.example.:80 \r\n\r\n", ("GET", "/", "/", Some("a.example"))),
    ("an empty Host", b"GET / HTTP/1.1\r\nHost:\r\n\r\n", ("GET", "/", "/", None)),
    ("a Host that is no name", b"GET / HTTP/1.1\r\nHost: a b\r\n\r\n", ("GET", "/", "/", None)),
    ("white space before the colon", b"GET / HTTP/1.1\r\nHost : a\r\n\r\n", ("GET", "/", "/", None)),
    // What is left to the server.
    ("lines that are no fields", b"GET / HTTP/1.1\r\nnonsense\r\n: x\r\n folded\r\nHost: a\r\nX: \xff\x01\r\n\r\n", ("GET", "/", "/", Some("a"))),
    ("a method of its own", b"M-SEARCH * HTTP/1.1\r\nHost: 239.255.255.250:1900\r\n\r\n", ("M-SEARCH", "*", "*", Some("239.255.255.250"))),
    ("a target beyond ASCII", "GET /é HTTP/1.1\r\nHost: a\r\n\r\n".as_bytes(), ("GET", "/é", "/é", Some("a"))),
];

#[test]
fn heads_of_real_clients() {
    for &(name, bytes, (method, target, path, host)) in HEADS {
        let head = http(bytes).unwrap_or_else(|other| panic!("{name}: {other:?}"));
        assert_eq!(head.len, bytes.len(), "{name}");
        assert_eq!(head.method, method, "{name}");
        assert_eq!(str::from_utf8(head.target), Ok(target), "{name}");
        assert_eq!(str::from_utf8(head.path), Ok(path), "{name}");
        assert_eq!(head.host.as_deref(), host, "{name}");
    }
}

#[test]
fn a_target_may_hold_any_byte_beyond_ascii() {
    let head = http(b"GET /\xe9\xff HTTP/1.1\r\n\r\n").unwrap();
    assert_eq!(head.path, b"/\xe9\xff");
}

#[test]
fn the_query_is_what_follows_the_first_question_mark() {
    let query = |line: &str| {
        let bytes = format!("{line} HTTP/1.1\r\n\r\n");
        let query = http(bytes.as_bytes()).unwrap().query.map(|q| q.to_vec());
        query.map(|q| String::from_utf8(q).unwrap())
    };
    assert_eq!(query("GET /a"), None);
    assert_eq!(query("GET /a?"), Some("".into()));
    assert_eq!(query("GET /a?b?c#d?e"), Some("b?c".into()));
    assert_eq!(query("GET http://a?b"), Some("b".into()));
    assert_eq!(query("CONNECT a:443?b"), None);
}

#[test]
fn what_follows_the_head_is_not_part_of_it() {
    let first = b"GET /1 HTTP/1.1\r\nHost: a\r\n\r\n";
    let both = [&first[..], b"GET /2 HTTP/1.1\r\nHost: b\r\n\r\n"].concat();
    let head = http(&both).unwrap();
    assert_eq!(
        (head.len, head.path, head.host.as_deref()),
        (first.len(), &b"/1"[..], Some("a"))
    );
}

#[test]
fn headers_are_found_in_any_case_and_trimmed() {
    let head = http(b"GET / HTTP/1.1\r\nX-A:  1 \r\nx-a:2\t\r\nEmpty:\r\nB:: c:d\n\r\n").unwrap();
    let values: Vec<_> = head.header("X-a").collect();
    assert_eq!(values, [b"1", b"2"]);
    assert_eq!(head.header("empty").next(), Some(&b""[..]));
    assert_eq!(head.header("nothing").next(), None);
    let all: Vec<_> = head.headers().collect();
    assert_eq!(
        all,
        [
            ("X-A", &b"1"[..]),
            ("x-a", b"2"),
            ("Empty", b""),
            ("B", b": c:d")
        ]
    );
}

#[rustfmt::skip]
const MALFORMED: &[(&[u8], &str)] = &[
    (b"\x00\x01", "no method"),
    (b"\x80\x2e\x01\x00\x02", "no method"), // SSLv2 (RFC 5246 §E.2)
    (b" GET / HTTP/1.1\r\n", "no method"),
    (b"(", "no method"),
    (b"\r\n\x01", "no method"),
    (b"\rx\n", "no method"),
    (b"G\x00T / HTTP/1.1\r\n", "no method"),
    (b"SSH-2.0-OpenSSH_9.2\r\n", "no target"),
    (b"GET /\r\n", "no HTTP/1.x request"), // HTTP/0.9
    (b"GET\r\n", "no target"),
    (b"GET /\x01 HTTP/1.1\r\n", "no target"),
    (b"GET / HTTP/0.9\r\n", "no HTTP/1.x request"),
    (b"GET / HTTP/2\r\n", "no HTTP/1.x request"),
    (b"GET / HTTP/11.0\r\n", "no HTTP/1.x request"),
    (b"GET / HTTP/1.100\r\n", "no HTTP/1.x request"),
    (b"GET / HTTP/1.\r\n", "no HTTP/1.x request"),
    (b"GET / http/1.1\r\n", "no HTTP/1.x request"),
    (b"GET /a b HTTP/1.1\r\n", "no HTTP/1.x request"),
    (b"GET / HTTP/1.1\r\nHost: a\r\nhost: a\r\n\r\n", "more than one Host"),
];

#[test]
fn what_no_server_takes_is_malformed() {
    for &(bytes, reason) in MALFORMED {
        match inspect(bytes, LIMIT) {
            Inspection::Bad(BadHead::Malformed(why)) => {
                assert!(why.starts_with(reason), "{bytes:?}: {why}");
            }
            other => panic!("{bytes:?}: {other:?}"),
        }
    }
}

#[test]
fn another_major_version_is_not_malformed() {
    let versions: [(&[u8], char); 4] = [
        (b"GET / HTTP/2.0\r\n", '2'),
        (b"GET / HTTP/3.0\r\n", '3'),
        (b"GET / HTTP/9.11\r\n", '9'),
        // What follows is not the preface's.
        (b"PRI * HTTP/2.0\r\n\r\nXX", '2'),
    ];
    for (bytes, major) in versions {
        let expected = Inspection::Bad(BadHead::Version(major));
        assert_eq!(inspect(bytes, LIMIT), expected, "{bytes:?}");
    }
}

#[test]
fn a_head_may_take_the_limit_and_not_a_byte_more() {
    let head = |len: usize| {
        let mut bytes = b"GET / HTTP/1.1\r\nHost: a\r\nX: ".to_vec();
        bytes.resize(len - 4, b'x');
        bytes.extend_from_slice(b"\r\n\r\n");
        bytes
    };
    assert!(matches!(inspect(&head(1024), 1024), Inspection::Http(_)));
    assert_eq!(
        inspect(&head(1025), 1024),
        Inspection::Bad(BadHead::TooLarge)
    );
    assert_eq!(
        inspect(&head(1025)[..1024], 1024),
        Inspection::Bad(BadHead::TooLarge)
    );
    assert_eq!(inspect(&head(1025)[..1023], 1024), Inspection::Incomplete);
    // A body after the head does not count.
    let with_body = [head(1024), vec![0; 5000]].concat();
    assert!(matches!(inspect(&with_body, 1024), Inspection::Http(_)));
    assert_eq!(
        inspect(&[b'\n'; 1024], 1024),
        Inspection::Bad(BadHead::TooLarge)
    );
    assert_eq!(
        inspect(b"PRI * HTTP/2.0\r\n", 4),
        Inspection::Bad(BadHead::TooLarge)
    );
}

#[test]
fn there_is_no_limit_on_the_number_of_headers() {
    let mut bytes = b"GET / HTTP/1.1\n".to_vec();
    for i in 0..10_000 {
        bytes.extend_from_slice(format!("{i}:\n").as_bytes());
    }
    bytes.extend_from_slice(b"Host: last\n\n");
    match inspect(&bytes, 64 << 10) {
        Inspection::Http(head) => {
            assert_eq!(head.host.as_deref(), Some("last"));
            assert_eq!(head.headers().count(), 10_001);
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_preface_of_http2() {
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    for len in 0..preface.len() {
        assert_eq!(inspect(&preface[..len], LIMIT), Inspection::Incomplete);
    }
    assert_eq!(inspect(preface, LIMIT), Inspection::H2Preface);
    assert_eq!(
        inspect(&[&preface[..], b"\x00\x00\x24\x04"].concat(), LIMIT),
        Inspection::H2Preface
    );
    // A request whose method begins alike.
    assert_eq!(http(b"PRIME / HTTP/1.1\r\n\r\n").unwrap().method, "PRIME");
    assert_eq!(http(b"PUT /x HTTP/1.1\r\n\r\n").unwrap().method, "PUT");
}

fn http(bytes: &[u8]) -> Result<HttpHead<'_>, Inspection<'_>> {
    match inspect(bytes, LIMIT) {
        Inspection::Http(head) => Ok(head),
        other => Err(other),
    }
}
