//! An HTTP check: what is asked, and whether what comes back is what was expected (RFC 9112).

use std::net::SocketAddr;

use super::Outcome;
use crate::config::HttpProbe;

/// Of an answer, so much is looked at.
pub const LONGEST: usize = 64 << 10;
/// "HTTP/1.1 200"
const STATUS_LINE: usize = 12;

/// The request, to a server at that address.
pub fn request(probe: &HttpProbe, server: SocketAddr) -> Vec<u8> {
    let host = probe.host.clone().unwrap_or_else(|| server.to_string());
    format!(
        "{} {} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: trapeze-check\r\nConnection: close\r\n\r\n",
        probe.method, probe.path
    )
    .into_bytes()
}

/// What the bytes that have come say; none if it takes more of them. `ended`: no more come.
pub fn judge(probe: &HttpProbe, bytes: &[u8], ended: bool) -> Option<Outcome> {
    let full = bytes.len() >= LONGEST;
    match look(probe, bytes, ended || full) {
        None if full => Some(Outcome::NotHttp),
        None if ended => Some(Outcome::Closed),
        outcome => outcome,
    }
}

fn look(probe: &HttpProbe, mut bytes: &[u8], is_all: bool) -> Option<Outcome> {
    const BEGINNING: &[u8] = b"HTTP/1.";
    let status = loop {
        let begun = bytes.len().min(BEGINNING.len());
        if bytes[..begun] != BEGINNING[..begun] {
            return Some(Outcome::NotHttp);
        }
        let line = bytes.get(..STATUS_LINE)?;
        let digits = std::str::from_utf8(&line[9..]).ok();
        let digits = digits.filter(|d| line[8] == b' ' && d.bytes().all(|b| b.is_ascii_digit()));
        let Some(status) = digits.and_then(|digits| digits.parse::<u16>().ok()) else {
            return Some(Outcome::NotHttp);
        };
        if !(100..200).contains(&status) || status == 101 {
            break status;
        }
        // Another head follows (RFC 9110 §15.2).
        bytes = &bytes[end_of_head(bytes)?..];
    };
    if !probe.status.iter().any(|range| range.contains(&status)) {
        return Some(Outcome::Status(status));
    }
    let Some(expected) = &probe.body else {
        return end_of_head(bytes).map(|_| Outcome::Passed);
    };
    let body_at = end_of_head(bytes)?;
    let (head, body) = bytes.split_at(body_at);
    let (body, is_whole) = match framing(head) {
        Framing::Chunked => unchunked(body)?,
        Framing::Length(length) if body.len() >= length => (body[..length].to_vec(), true),
        Framing::Length(_) | Framing::UntilClose => (body.to_vec(), false),
    };
    if (body.windows(expected.len())).any(|part| part == expected.as_bytes()) {
        return Some(Outcome::Passed);
    }
    (is_whole || is_all).then_some(Outcome::Body)
}

fn end_of_head(bytes: &[u8]) -> Option<usize> {
    (bytes.windows(4))
        .position(|w| w == b"\r\n\r\n")
        .map(|at| at + 4)
}

enum Framing {
    Length(usize),
    Chunked,
    UntilClose,
}

fn framing(head: &[u8]) -> Framing {
    let mut framing = Framing::UntilClose;
    for line in String::from_utf8_lossy(head).split("\r\n").skip(1) {
        let Some((name, value)) = line.split_once(':') else {
            continue;
        };
        if name.eq_ignore_ascii_case("transfer-encoding") {
            return Framing::Chunked;
        }
        if name.eq_ignore_ascii_case("content-length")
            && let Ok(length) = value.trim().parse()
        {
            framing = Framing::Length(length);
        }
    }
    framing
}

/// What has come of a chunked body, and whether that is all. None: too little to tell.
fn unchunked(mut bytes: &[u8]) -> Option<(Vec<u8>, bool)> {
    let mut body = Vec::new();
    loop {
        let Some(end) = bytes.windows(2).position(|w| w == b"\r\n") else {
            return Some((body, false));
        };
        let line = std::str::from_utf8(&bytes[..end]).ok();
        let size = line.map(|line| line.split(';').next().unwrap_or("").trim());
        let Some(size) = size.and_then(|size| usize::from_str_radix(size, 16).ok()) else {
            // Not chunks after all: nothing more is understood.
            return Some((body, true));
        };
        if size == 0 {
            return Some((body, true));
        }
        bytes = &bytes[end + 2..];
        let there = size.min(bytes.len());
        body.extend_from_slice(&bytes[..there]);
        match bytes.get(size.saturating_add(2)..) {
            Some(rest) => bytes = rest,
            None => return Some((body, false)),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn probe(body: Option<&str>) -> HttpProbe {
        HttpProbe {
            method: "GET".into(),
            path: "/healthz".into(),
            host: None,
            status: vec![200..=299, 304..=304],
            body: body.map(str::to_owned),
        }
    }

    const PASSED: Option<Outcome> = Some(Outcome::Passed);

    #[test]
    fn it_asks_as_clients_do() {
        let server = "10.0.0.1:8080".parse().unwrap();
        let text = String::from_utf8(request(&probe(None), server)).unwrap();
        assert!(text.starts_with("GET /healthz HTTP/1.1\r\nHost: 10.0.0.1:8080\r\n"));
        assert!(text.ends_with("Connection: close\r\n\r\n"));
        let named = HttpProbe {
            host: Some("a.example".into()),
            ..probe(None)
        };
        let text = String::from_utf8(request(&named, server)).unwrap();
        assert!(text.contains("\r\nHost: a.example\r\n"), "{text}");
    }

    #[test]
    fn answers_are_judged() {
        let of = |answer: &str, body: Option<&str>, ended: bool| {
            judge(&probe(body), answer.as_bytes(), ended)
        };
        let ok = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n";
        for (answer, body, ended, expected) in [
            ("", None, false, None),
            ("", None, true, Some(Outcome::Closed)),
            ("HTTP/1.1 20", None, false, None),
            ("HTTP/1.1 20", None, true, Some(Outcome::Closed)),
            ("HTTP/1.1 200 OK\r\n", None, false, None),
            ("HTTP/1.1 200 OK\r\n\r\n", None, false, PASSED),
            ("HTTP/1.0 204\r\n\r\n", None, false, PASSED),
            ("HTTP/1.1 304 Not\r\n\r\n", None, false, PASSED),
            ("HTTP/1.1 503", None, false, Some(Outcome::Status(503))),
            ("HTTP/1.1 301", None, false, Some(Outcome::Status(301))),
            ("HTTP/2 200 OK\r\n\r\n", None, false, Some(Outcome::NotHttp)),
            ("HTTP/1.1 2x0 OK", None, false, Some(Outcome::NotHttp)),
            ("HTTP/1.1 +20 OK", None, false, Some(Outcome::NotHttp)),
            ("SSH-2.0-", None, false, Some(Outcome::NotHttp)),
            ("H", None, false, None),
            ("x", None, false, Some(Outcome::NotHttp)),
            (
                "HTTP/1.1 103 Early\r\n\r\nHTTP/1.1 500",
                None,
                false,
                Some(Outcome::Status(500)),
            ),
        ] {
            assert_eq!(of(answer, body, ended), expected, "{answer:?}");
        }
        let with = |rest: &str, ended| of(&format!("{ok}{rest}"), Some("well"), ended);
        assert_eq!(with("", false), None);
        assert_eq!(with("all w", false), None);
        assert_eq!(with("all w", true), Some(Outcome::Body));
        assert_eq!(with("well!!", false), PASSED);
        assert_eq!(with("!!well", false), PASSED);
        assert_eq!(with("sick!!", false), Some(Outcome::Body), "it is whole");
        assert_eq!(
            with("sick!!well", false),
            Some(Outcome::Body),
            "behind its end"
        );
        let chunked = |rest: &str, ended| {
            let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
            of(&format!("{head}{rest}"), Some("well"), ended)
        };
        assert_eq!(chunked("2\r\nwe\r\n2;x=y\r\nll\r\n", false), PASSED);
        assert_eq!(chunked("2\r\nwe\r\n", false), None);
        assert_eq!(chunked("2\r\nwe\r\n0\r\n", false), Some(Outcome::Body));
        let until_close = "HTTP/1.0 200 OK\r\n\r\nsick";
        assert_eq!(of(until_close, Some("well"), false), None);
        assert_eq!(of(until_close, Some("well"), true), Some(Outcome::Body));
    }

    #[test]
    fn an_answer_without_an_end_is_given_up() {
        let endless = [b"HTTP/1.1 200 OK\r\n".as_slice(), &vec![b'a'; LONGEST]].concat();
        assert_eq!(judge(&probe(None), &endless, false), Some(Outcome::NotHttp));
        let endless = [b"HTTP/1.1 200 OK\r\n\r\n".as_slice(), &vec![b'a'; LONGEST]].concat();
        assert_eq!(
            judge(&probe(Some("b")), &endless, false),
            Some(Outcome::Body)
        );
    }

    proptest! {
        /// However it is cut, and whatever it is.
        #[test]
        fn the_verdict_stands(answer in ".{0,80}", cut in 0usize..80, body in prop::option::of("[a-c]{1,2}")) {
            let answer = format!("HTTP/1.1 200 OK\r\n{answer}\r\n\r\nabc").into_bytes();
            let probe = probe(body.as_deref());
            let early = judge(&probe, &answer[..cut.min(answer.len())], false);
            prop_assert!(judge(&probe, &answer, true).is_some());
            if early.is_some() {
                prop_assert_eq!(early, judge(&probe, &answer, true));
            }
        }
    }
}
