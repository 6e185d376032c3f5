//! ClientHellos that real clients sent to a loopback listener, the same cut into
//! records, and damaged ones.

use super::*;

const LIMIT: usize = 32 << 10;

macro_rules! hello {
    ($name:literal) => {
        (
            $name,
            include_str!(concat!("../../tests/data/hello-", $name, ".hex")),
        )
    };
}

type Captured = (
    (&'static str, &'static str),
    Option<&'static str>,
    &'static [&'static str],
);

/// Client, server name, protocols.
pub(super) const HELLOS: &[Captured] = &[
    (
        hello!("openssl-3.0"),
        Some("www.example.org"),
        &["h2", "http/1.1"],
    ),
    (hello!("openssl-3.0-tls12-no-name"), None, &[]),
    (
        hello!("curl-7.88"),
        Some("www.example.org"),
        &["h2", "http/1.1"],
    ),
    (hello!("wget-1.21"), Some("localhost"), &[]),
    (hello!("python-3.11"), Some("localhost"), &["http/1.1"]),
    (
        hello!("go-1.26-post-quantum"),
        Some("localhost"),
        &["h2", "http/1.1"],
    ),
    (hello!("java-17"), None, &[]),
    (hello!("node-20"), Some("localhost"), &[]),
];

#[test]
fn hellos_of_real_clients() {
    for &((client, hex), name, alpn) in HELLOS {
        let bytes = from_hex(hex);
        let hello = tls(&bytes).unwrap_or_else(|other| panic!("{client}: {other:?}"));
        assert_eq!(hello.len, bytes.len(), "{client}");
        assert_eq!(hello.server_name.as_deref(), name, "{client}");
        let offered: Vec<_> = hello
            .alpn
            .iter()
            .map(|p| str::from_utf8(p).unwrap())
            .collect();
        assert_eq!(offered, alpn, "{client}");
    }
}

/// The parser of another project reads the same from the same bytes.
#[test]
fn tls_parser_agrees() {
    use tls_parser::{
        TlsExtension, TlsMessage, TlsMessageHandshake, parse_tls_extensions, parse_tls_plaintext,
    };
    for &((client, hex), name, alpn) in HELLOS {
        let bytes = from_hex(hex);
        let (_, record) = parse_tls_plaintext(&bytes).unwrap();
        let TlsMessage::Handshake(TlsMessageHandshake::ClientHello(hello)) = &record.msg[0] else {
            panic!("{client}: no ClientHello");
        };
        let (_, extensions) = parse_tls_extensions(hello.ext.unwrap()).unwrap();
        let (mut their_name, mut their_alpn) = (None, Vec::new());
        for extension in &extensions {
            match extension {
                TlsExtension::SNI(names) => their_name = Some(names[0].1.to_ascii_lowercase()),
                TlsExtension::ALPN(protocols) => their_alpn.clone_from(protocols),
                _ => {}
            }
        }
        assert_eq!(their_name.as_deref(), name.map(str::as_bytes), "{client}");
        assert_eq!(
            their_alpn,
            alpn.iter().map(|p| p.as_bytes()).collect::<Vec<_>>(),
            "{client}"
        );
    }
}

#[test]
fn a_hello_may_come_in_many_records() {
    for &((client, hex), ..) in HELLOS {
        let bytes = from_hex(hex);
        let whole = tls(&bytes).unwrap();
        for size in [1, 2, 3, 4, 5, 7, 100, 1000] {
            let cut = in_records(&bytes, size);
            let hello = tls(&cut).unwrap_or_else(|other| panic!("{client} by {size}: {other:?}"));
            assert_eq!(
                hello,
                ClientHello {
                    len: cut.len(),
                    ..whole.clone()
                },
                "{client} by {size}"
            );
        }
    }
}

#[test]
fn what_follows_the_hello_is_not_part_of_it() {
    let hello = from_hex(HELLOS[0].0.1);
    // Early data follows in records of another type (RFC 8446 §4.2.10).
    let more = [&hello[..], b"\x17\x03\x03\x00\x05early"].concat();
    assert_eq!(tls(&more).unwrap().len, hello.len());
}

#[test]
fn a_prefix_is_incomplete() {
    let hello = from_hex(HELLOS[5].0.1);
    for len in 0..hello.len() {
        assert_eq!(
            inspect(&hello[..len], LIMIT),
            Inspection::Incomplete,
            "{len}"
        );
    }
}

#[rustfmt::skip]
const MALFORMED: &[(&str, &[u8])] = &[
    ("SSL 3 has major 3, version 2 has not", b"\x16\x02"),
    ("an alert in the handshake's place", b"\x16\x03\x01\x00\x01\x01\x15"),
    ("an empty record", b"\x16\x03\x01\x00\x00"),
    ("a record beyond 2^14", b"\x16\x03\x01\x40\x01"),
    ("a ServerHello", b"\x16\x03\x03\x00\x04\x02"),
    ("an empty ClientHello", b"\x16\x03\x03\x00\x04\x01\x00\x00\x00"),
];

#[test]
fn what_is_no_hello_is_malformed() {
    for &(name, bytes) in MALFORMED {
        let found = inspect(bytes, LIMIT);
        assert!(
            matches!(found, Inspection::Bad(BadHead::TlsMalformed(_))),
            "{name}: {found:?}"
        );
    }
}

#[test]
fn a_hello_beyond_the_limit_is_refused_as_soon_as_it_says_so() {
    let announced = b"\x16\x03\x01\x40\x00\x01\x00\x80\x00";
    assert_eq!(
        inspect(announced, LIMIT),
        Inspection::Bad(BadHead::TlsTooLarge)
    );
    // Records around each byte make a small message large.
    let cut = in_records(&from_hex(HELLOS[5].0.1), 1);
    assert_eq!(inspect(&cut, 4096), Inspection::Bad(BadHead::TlsTooLarge));
}

#[test]
fn extensions_are_read_exactly() {
    let sni = |names: &[u8]| extension(0, &vector16(names));
    let name = |kind: u8, name: &[u8]| [&[kind][..], &vector16(name)].concat();
    let read = |extensions: &[u8]| {
        tls(&hello_with(Some(extensions)))
            .map(|h| h.server_name)
            .ok()
    };

    assert_eq!(tls(&hello_with(None)).unwrap().server_name, None);
    assert_eq!(read(b""), Some(None));
    assert_eq!(
        read(&sni(&name(0, b"A.Example."))),
        Some(Some("a.example".into()))
    );
    assert_eq!(read(&sni(&name(1, b"x"))), Some(None), "of another kind");
    assert_eq!(
        read(&sni(&[name(1, b"x"), name(0, b"a")].concat())),
        Some(Some("a".into()))
    );
    assert_eq!(read(&sni(&name(0, b"a\0b"))), Some(None), "no name");
    assert_eq!(read(&sni(&name(0, b"\xff"))), Some(None), "no text");
    assert_eq!(
        read(&sni(&[name(0, b"a"), name(0, b"b")].concat())),
        None,
        "two host names"
    );
    assert_eq!(
        read(&[sni(&name(0, b"a")), sni(&name(0, b"b"))].concat()),
        None,
        "two extensions"
    );
    assert_eq!(read(&sni(b"")), None, "an empty list");
    assert_eq!(
        read(&extension(0, b"\0\x05\0\0\x02a")),
        None,
        "a list beyond its extension"
    );
    assert_eq!(
        read(&extension(0, b"\0\x04\0\0\x01ab")),
        None,
        "bytes after the list"
    );
    assert_eq!(read(b"\0"), None, "half an extension");
    assert_eq!(read(&extension(16, b"\0\x01\0")), None, "an empty protocol");
    assert_eq!(read(&extension(0xfafa, b"grease")), Some(None));
}

/// A hello with these extensions, in one record.
fn hello_with(extensions: Option<&[u8]>) -> Vec<u8> {
    let mut body = vec![3, 3];
    body.extend_from_slice(&[7; 32]);
    body.extend_from_slice(b"\x00\x00\x02\x13\x01\x01\x00");
    if let Some(extensions) = extensions {
        body.extend_from_slice(&vector16(extensions));
    }
    let message = [&[1, 0][..], &vector16(&body)].concat();
    [&[22, 3, 1][..], &vector16(&message)].concat()
}

fn extension(kind: u16, data: &[u8]) -> Vec<u8> {
    [&kind.to_be_bytes()[..], &vector16(data)].concat()
}

fn vector16(data: &[u8]) -> Vec<u8> {
    [&(data.len() as u16).to_be_bytes()[..], data].concat()
}

/// The message of a single record in records of `size` bytes.
pub(super) fn in_records(bytes: &[u8], size: usize) -> Vec<u8> {
    (bytes[5..].chunks(size))
        .flat_map(|chunk| [&[22, 3, 1][..], &vector16(chunk)].concat())
        .collect()
}

pub(super) fn from_hex(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
    let byte = |pair: &[u8]| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}

fn tls(bytes: &[u8]) -> Result<ClientHello, Inspection<'_>> {
    match inspect(bytes, LIMIT) {
        Inspection::Tls(hello) => Ok(hello),
        other => Err(other),
    }
}
