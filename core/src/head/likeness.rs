//! Which requests are alike: those that every rule without a `header`, and every
//! policy that looks at URLs, must place alike. The data path computes the same
//! in bpf/lib/standing.bpf.h; a test holds the two against each other.

use std::num::NonZeroU64;

use crate::siphash::siphash24;

/// The longest packet's payload that is looked at, in bytes.
pub const HEAD_MAX: usize = 2048;
const HEAD_MIN: usize = 16;

/// A number that requests with the same request line and the same Host line have
/// in common, byte for byte; others have another, but for one case in 2^64 that
/// nobody without the key can find. None for what is unusual: `payload` must be
/// one whole head of a GET or HEAD and nothing else, with lines that end in CR LF where
/// it ends, at most one Host, no field that may announce more (a body, an upgrade), and no
/// Connection that says anything but `keep-alive` or `close`.
pub fn likeness(payload: &[u8], key: &[u8; 16]) -> Option<NonZeroU64> {
    let fits = (HEAD_MIN..=HEAD_MAX).contains(&payload.len());
    let is_plain = payload.starts_with(b"GET ") || payload.starts_with(b"HEAD ");
    if !fits || !payload.ends_with(b"\r\n\r\n") || !is_plain {
        return None;
    }
    let mut lines = payload.split(|&b| b == b'\n');
    let request_line = lines.next()?;
    let mut host: Option<&[u8]> = None;
    let mut at = request_line.len() + 1;
    for line in lines {
        // Behind the last LF there is no line.
        if at >= payload.len() {
            break;
        }
        let ends_head = line.is_empty() || line[0] == b'\r';
        if ends_head && at + 2 < payload.len() || announces_more(&payload[at..]) {
            return None;
        }
        if line
            .get(..5)
            .is_some_and(|name| name.eq_ignore_ascii_case(b"host:"))
            && host.replace(&line[5..]).is_some()
        {
            return None;
        }
        at += line.len() + 1;
    }
    let host = host.unwrap_or_default();
    let mut text = Vec::with_capacity(request_line.len() + host.len() + 24);
    for part in [request_line, host] {
        text.extend_from_slice(part);
        text.resize(text.len().next_multiple_of(8), 0);
    }
    text.extend_from_slice(&(request_line.len() as u32).to_le_bytes());
    text.extend_from_slice(&(host.len() as u32).to_le_bytes());
    NonZeroU64::new(siphash24(key, &text))
}

/// May a line that begins so say of bytes behind the head, or continue the line before
/// (RFC 9112 §5.2)? Compared as the data path does: eight bytes, in lower case.
fn announces_more(line: &[u8]) -> bool {
    let folded = matches!(line.first(), Some(b' ' | b'\t'));
    folded
        || line.first_chunk::<8>().is_some_and(|name| {
            let name = name.map(|byte| byte | 0x20);
            [b"content-", b"transfer", b"upgrade:"].contains(&&name)
        })
        || line.first_chunk::<8>().is_some_and(|name| {
            let says = |what: &[u8; 8]| {
                let value = line[8..].first_chunk::<8>();
                value.is_some_and(|value| value.map(|byte| byte | 0x20) == *what)
            };
            let known = says(b"on: keep") || says(b"on: clos");
            name.map(|byte| byte | 0x20) == *b"connecti" && !known
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: [u8; 16] = *b"sixteen bytes ..";

    fn of(head: &str) -> Option<NonZeroU64> {
        likeness(head.as_bytes(), &KEY)
    }

    #[test]
    fn request_line_and_host_count_and_nothing_else() {
        let plain = of("GET /a HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        for alike in [
            "GET /a HTTP/1.1\r\nAccept: */*\r\nHost: x\r\n\r\n",
            "GET /a HTTP/1.1\r\nHOST: x\r\nCookie: a=b\r\n\r\n",
            "GET /a HTTP/1.1\r\nConnection: keep-alive\r\nHost: x\r\n\r\n",
            "GET /a HTTP/1.1\r\nHost: x\r\nCONNECTION: Close\r\n\r\n",
        ] {
            assert_eq!(of(alike), Some(plain), "{alike}");
        }
        for other in [
            "GET /b HTTP/1.1\r\nHost: x\r\n\r\n",
            "GET /a HTTP/1.0\r\nHost: x\r\n\r\n",
            "HEAD /a HTTP/1.1\r\nHost: x\r\n\r\n",
            "GET /a HTTP/1.1\r\nHost: y\r\n\r\n",
            "GET /a HTTP/1.1\r\nHost:x\r\n\r\n",
            "GET /a HTTP/1.1\r\nXHost: x\r\n\r\n",
            "GET /a HTTP/1.1\r\nUpgrade-Insecure-Requests: 1\r\n\r\n",
        ] {
            assert!(of(other).is_some_and(|o| o != plain), "{other}");
        }
    }

    #[test]
    fn what_is_unusual_is_like_nothing() {
        for unusual in [
            "GET /a HTTP/1.1\r\nHost: x\r\nhost: x\r\n\r\n",
            "GET /a HTTP/1.1\r\nHost: x\r\n\r\nGET /b HTTP/1.1\r\nHost: x\r\n\r\n",
            "GET /a HTTP/1.1\r\nHost: x\n\r\nbody\r\n\r\n",
            "GET /a HTTP/1.1\r\nHost: x\r\n",
            "\r\nGET /a HTTP/1.1\r\nHost: x\r\n\r\n",
            "\u{16}ET /a HTTP/1.1\r\nHost: x\r\n\r\n",
            "GET /a\r\n\r\n",
            "POST /a HTTP/1.1\r\nHost: x\r\n\r\n",
            "GET /a HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n",
            "GET /a HTTP/1.1\r\nTRANSFER-ENCODING: chunked\r\nHost: x\r\n\r\n",
            "GET /a HTTP/1.1\r\nHost: x\r\nuPGRADE: websocket\r\n\r\n",
            "GET /a HTTP/1.1\r\nHost: x\r\n Content-Length: 5\r\n\r\n",
            "GET /a HTTP/1.1\r\nHost: x\r\n\tcontinued\r\n\r\n",
            "GET /a HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\n\r\n",
            "GET /a HTTP/1.1\r\nHost: x\r\nconnection:close\r\n\r\n",
        ] {
            assert_eq!(of(unusual), None, "{unusual:?}");
        }
        let long = format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(HEAD_MAX));
        assert_eq!(of(&long), None);
    }
}
