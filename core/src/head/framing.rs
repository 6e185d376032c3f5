//! Where a request ends in the client's byte stream, so that the next one can go
//! elsewhere (RFC 9112 §6). What leaves any doubt is [`Followed::Lost`]: a connection
//! whose boundaries we and a server might see in different places stays with its server.

use super::{HttpHead, Inspection};

/// Bodies and chunks beyond are not followed: sequence numbers wrap.
const LONGEST: u64 = 1 << 30;
/// The size of a chunk with its extensions, or a trailer's line, in bytes.
const LINE_MAX: usize = 4096;

/// What starts at a boundary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Expected {
    /// A request.
    #[default]
    Head,
    /// The size of a chunk (RFC 9112 §7.1).
    Chunk,
    /// The end of a chunk.
    ChunkAfter,
    /// A line behind the last chunk.
    Trailer,
    /// A request, if the answer to the one before is none that changes the protocol (RFC 9110 §7.8).
    Upgraded,
    /// A request, if its client has sent the body of the one before: it waited to be asked for that, and may have been
    /// answered instead (RFC 9110 §10.1.1).
    Invited,
}

impl Expected {
    /// Its number in a flow's record.
    pub fn number(self) -> u32 {
        self as u32
    }

    /// What a record's number stands for.
    pub fn from_number(number: u32) -> Option<Self> {
        let all = [
            Self::Head,
            Self::Chunk,
            Self::ChunkAfter,
            Self::Trailer,
            Self::Upgraded,
            Self::Invited,
        ];
        all.into_iter().find(|expected| expected.number() == number)
    }

    /// Is the client between two requests there, if it is at any?
    pub fn is_between_requests(self) -> bool {
        self == Self::Head || self.is_for_its_owner_to_say()
    }

    /// Can only the owner say whether that is so, by what it has had and answered?
    pub fn is_for_its_owner_to_say(self) -> bool {
        matches!(self, Self::Upgraded | Self::Invited)
    }
}

/// What bytes from a boundary on say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Followed {
    /// The next boundary is `at` bytes behind this one, perhaps beyond what has come.
    To {
        /// Bytes.
        at: usize,
        /// What starts there.
        expected: Expected,
    },
    /// Not enough bytes.
    More,
    /// There are no boundaries any more that all agree about.
    Lost,
}

/// Follows a request whose head is whole; `bytes` begin with it.
pub fn follow_head(inspection: &Inspection<'_>, bytes: &[u8]) -> Followed {
    match inspection {
        Inspection::Incomplete => Followed::More,
        Inspection::Http(head) => match body_of(head) {
            Some(Body::Length(length)) => Followed::To {
                at: head.len + length,
                expected: match asks_to_upgrade(head) {
                    true => Expected::Upgraded,
                    false if length > 0 && bytes.len() <= head.len && expects(head) => {
                        Expected::Invited
                    }
                    false => Expected::Head,
                },
            },
            // Of which nobody would remember it at its end.
            Some(Body::Chunked) if asks_to_upgrade(head) => Followed::Lost,
            Some(Body::Chunked) => {
                // Nothing of the body has come, at worst.
                match follow(Expected::Chunk, bytes.get(head.len..).unwrap_or(&[])) {
                    Followed::To { at, expected } => Followed::To {
                        at: head.len + at,
                        expected,
                    },
                    Followed::More => Followed::To {
                        at: head.len,
                        expected: Expected::Chunk,
                    },
                    Followed::Lost => Followed::Lost,
                }
            }
            None => Followed::Lost,
        },
        Inspection::Tls(_) | Inspection::H2Preface | Inspection::Bad(_) => Followed::Lost,
    }
}

/// Follows a chunked body from a boundary in it, as far as whole lines have come.
/// However the bytes are cut, the boundaries are among the same places, and the last
/// one is the same.
pub fn follow(expected: Expected, bytes: &[u8]) -> Followed {
    let (mut at, mut expected) = (0, expected);
    loop {
        let rest = bytes.get(at..).unwrap_or(&[]);
        let step = match expected {
            Expected::Head | Expected::Upgraded | Expected::Invited => None,
            Expected::Chunk => chunk(rest),
            // What ends a chunk is its server's as soon as it has come, whenever the next one does.
            Expected::ChunkAfter => match rest {
                [b'\r', b'\n', ..] => Some(Some((2, Expected::Chunk))),
                [] | [b'\r'] => None,
                _ => return Followed::Lost,
            },
            Expected::Trailer => line(rest).map(|line| {
                let line = line?;
                let ends = line.is_empty();
                let next = if ends {
                    Expected::Head
                } else {
                    Expected::Trailer
                };
                Some((line.len() + 2, next))
            }),
        };
        match step {
            None if at == 0 => return Followed::More,
            None => return Followed::To { at, expected },
            Some(None) => return Followed::Lost,
            Some(Some((length, next))) => {
                at += length;
                expected = next;
                if expected == Expected::Head {
                    return Followed::To { at, expected };
                }
            }
        }
    }
}

/// None: incomplete. Some(None): nobody knows.
type Step = Option<Option<(usize, Expected)>>;

/// A chunk's size with its line.
fn chunk(bytes: &[u8]) -> Step {
    line(bytes).map(|line| {
        let line = line?;
        let size = line.split(|&b| b == b';').next().unwrap_or_default();
        let size = size.trim_ascii_end();
        let is_size =
            !size.is_empty() && size.len() <= 15 && size.iter().all(u8::is_ascii_hexdigit);
        let size = str::from_utf8(size).ok().filter(|_| is_size)?;
        let size = u64::from_str_radix(size, 16).ok()?;
        let end = line.len() + 2;
        match size {
            0 => Some((end, Expected::Trailer)),
            1..=LONGEST => Some((end + size as usize, Expected::ChunkAfter)),
            _ => None,
        }
    })
}

/// A line that ends in CR LF, without it. A bare LF or CR is a line's end to some.
fn line(bytes: &[u8]) -> Option<Option<&[u8]>> {
    match bytes.iter().position(|&b| b == b'\n') {
        Some(at) if at < LINE_MAX => {
            let line = bytes[..at].strip_suffix(b"\r");
            Some(line.filter(|line| !line.contains(&b'\r')))
        }
        None if bytes.len() < LINE_MAX => None,
        _ => Some(None),
    }
}

/// How a request's body is framed.
enum Body {
    Length(usize),
    Chunked,
}

fn asks_to_upgrade(head: &HttpHead<'_>) -> bool {
    head.header("upgrade").next().is_some()
}

fn expects(head: &HttpHead<'_>) -> bool {
    head.header("expect").next().is_some()
}

/// RFC 9112 §6.3, and nothing that a server could read otherwise.
fn body_of(head: &HttpHead<'_>) -> Option<Body> {
    if head.method == "CONNECT" {
        return None;
    }
    if !head.has_plain_fields() {
        return None;
    }
    let mut codings = head.header("transfer-encoding");
    let mut lengths = head.header("content-length");
    match (codings.next(), lengths.next()) {
        (None, None) => Some(Body::Length(0)),
        (None, Some(length)) => {
            let is_number = !length.is_empty() && length.len() <= 15;
            if !is_number || !length.iter().all(u8::is_ascii_digit) || lengths.next().is_some() {
                return None;
            }
            let length: u64 = str::from_utf8(length).ok()?.parse().ok()?;
            (length <= LONGEST).then_some(Body::Length(length as usize))
        }
        (Some(coding), None) => {
            let chunked = coding.eq_ignore_ascii_case(b"chunked") && codings.next().is_none();
            (chunked && head.minor_version >= 1).then_some(Body::Chunked)
        }
        (Some(_), Some(_)) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::head::inspect;
    use proptest::prelude::*;

    fn of(request: &[u8]) -> Followed {
        follow_head(&inspect(request, 32 << 10), request)
    }

    fn to(at: usize, expected: Expected) -> Followed {
        Followed::To { at, expected }
    }

    fn post(fields: &str, body: &str) -> (usize, Followed) {
        let head = format!("POST /a HTTP/1.1\r\nHost: x\r\n{fields}\r\n");
        let all = format!("{head}{body}");
        (head.len(), of(all.as_bytes()))
    }

    #[test]
    fn where_requests_end() {
        let head = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
        assert_eq!(of(head), to(head.len(), Expected::Head));
        let two = [&head[..], head].concat();
        assert_eq!(of(&two), to(head.len(), Expected::Head));
        assert_eq!(of(&head[..20]), Followed::More);
        for (length, bytes) in [("0", 0), ("7", 7), ("007", 7), ("1073741824", 1 << 30)] {
            let (head, found) = post(&format!("Content-Length: {length}\r\n"), "abc");
            assert_eq!(found, to(head + bytes, Expected::Head), "{length}");
        }
        let chunked = "Transfer-Encoding: Chunked\r\n";
        let table = [
            ("", 0, Expected::Chunk),
            ("5", 0, Expected::Chunk),
            ("5\r", 0, Expected::Chunk),
            ("5\r\n", 8, Expected::ChunkAfter),
            ("5 ; a=b\r\nabcde", 14, Expected::ChunkAfter),
            ("5\r\nabcde\r", 8, Expected::ChunkAfter),
            ("5\r\nabcde\r\n", 10, Expected::Chunk),
            ("5\r\nabcde\r\n6\r", 10, Expected::Chunk),
            ("5\r\nabcde\r\nFF\r\n", 8 + 6 + 255, Expected::ChunkAfter),
            ("5\r\nabcde\r\n0\r\n", 13, Expected::Trailer),
            ("0\r\n\r\n", 5, Expected::Head),
            ("0\r\nA: b\r\n", 9, Expected::Trailer),
            ("0\r\nA: b\r\n\r\nGET /", 11, Expected::Head),
        ];
        for (body, at, expected) in table {
            let (head, found) = post(chunked, body);
            assert_eq!(found, to(head + at, expected), "{body:?}");
        }
    }

    /// Whoever has begun with the body has to send all of it.
    #[test]
    fn who_waits_to_be_asked_for_a_body_may_leave_it_away() {
        let expect = "Expect: 100-continue\r\n";
        for (length, body, expected) in [
            (5, "", Expected::Invited),
            (5, "a", Expected::Head),
            (5, "abcde", Expected::Head),
            (0, "", Expected::Head),
        ] {
            let fields = format!("{expect}Content-Length: {length}\r\n");
            let (head, found) = post(&fields, body);
            assert_eq!(found, to(head + length, expected), "{length}, {body:?}");
        }
        let (head, found) = post(&format!("{expect}Transfer-Encoding: chunked\r\n"), "");
        assert_eq!(found, to(head, Expected::Chunk));
        assert_eq!(follow(Expected::Invited, b"GET / "), Followed::More);
    }

    #[test]
    fn what_follows_a_request_to_upgrade_is_its_answers_to_say() {
        for (fields, body) in [("", 0), ("Content-Length: 5\r\n", 5)] {
            let fields = format!("Connection: Upgrade\r\nUpgrade: websocket\r\n{fields}");
            let (head, found) = post(&fields, "");
            assert_eq!(found, to(head + body, Expected::Upgraded));
        }
        assert_eq!(follow(Expected::Upgraded, b"GET / "), Followed::More);
    }

    #[test]
    fn what_two_could_read_differently_is_not_guessed() {
        let fields = [
            "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
            "Content-Length: 5\r\nContent-Length: 5\r\n",
            "Content-Length: 5, 5\r\n",
            "Content-Length: +5\r\n",
            "Content-Length: -5\r\n",
            "Content-Length: \r\n",
            "Content-Length: 0x5\r\n",
            "Content-Length: 1073741825\r\n",
            "Content-Length: 99999999999999999999\r\n",
            "Content-Length : 5\r\n",
            " Content-Length: 5\r\n",
            "X: y\r\n Content-Length: 5\r\n",
            "Content-Length\r\n",
            "Transfer-Encoding: gzip, chunked\r\n",
            "Transfer-Encoding: xchunked\r\n",
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
            "Transfer-Encoding: identity\r\n",
            "Upgrade: websocket\r\nTransfer-Encoding: chunked\r\n",
        ];
        for fields in fields {
            assert_eq!(post(fields, "").1, Followed::Lost, "{fields:?}");
        }
        assert_eq!(
            of(b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n"),
            Followed::Lost
        );
        let old = b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n";
        assert_eq!(of(old), Followed::Lost);
        let bodies: [&[u8]; 8] = [
            b"5\nabcde\r\n",
            b"\r\n",
            b"g\r\n",
            b"-1\r\n",
            b"0x5\r\n",
            b"5\r;x\r\n",
            b"40000001\r\n",
            &[b'1'; LINE_MAX],
        ];
        for body in bodies {
            assert_eq!(follow(Expected::Chunk, body), Followed::Lost, "{body:?}");
        }
        assert_eq!(follow(Expected::ChunkAfter, b"\n5\r\n"), Followed::Lost);
        assert_eq!(follow(Expected::ChunkAfter, b"ab"), Followed::Lost);
    }

    /// A chunked body, and where it ends.
    fn bodies() -> impl Strategy<Value = Vec<u8>> {
        let chunk = (1..40usize, "(;[a-z]{1,4}=[a-z]{0,3})?");
        let trailer = prop::collection::vec("[A-Z]{1,4}: [a-z]{0,6}\r\n", 0..3);
        (prop::collection::vec(chunk, 0..6), trailer).prop_map(|(chunks, trailer)| {
            let mut body = Vec::new();
            for (size, extension) in chunks {
                body.extend(format!("{size:x}{extension}\r\n").bytes());
                body.extend(b"\r\n0\r\n\r\n".iter().cycle().take(size));
                body.extend(b"\r\n");
            }
            body.extend(b"0\r\n");
            body.extend(trailer.concat().bytes());
            body.extend(b"\r\n");
            body
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Whatever comes at once, the walk from boundary to boundary ends at the body's end.
        #[test]
        fn however_bytes_are_cut_the_end_is_the_same(
            body in bodies(),
            cuts in prop::collection::vec(1..50usize, 1..40),
        ) {
            let stream = [&body[..], b"GET /next"].concat();
            let (mut boundary, mut expected, mut come) = (0, Expected::Chunk, 0);
            let mut cuts = cuts.into_iter().cycle();
            while expected != Expected::Head {
                prop_assert!(come < stream.len() || boundary < come, "stuck at {boundary}");
                come = (come + cuts.next().unwrap()).min(stream.len());
                match follow(expected, stream.get(boundary..come).unwrap_or(&[])) {
                    Followed::To { at, expected: next } => {
                        prop_assert!(at > 0);
                        (boundary, expected) = (boundary + at, next);
                    }
                    Followed::More => {}
                    Followed::Lost => prop_assert!(false, "lost at {boundary}"),
                }
            }
            prop_assert_eq!(boundary, body.len());
        }

        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..60), number in 0..4u32) {
            let _ = follow(Expected::from_number(number).unwrap(), &bytes);
        }
    }
}
