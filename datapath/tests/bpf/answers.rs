//! How a backend's program follows its server's answers: whatever the packets,
//! it knows after each whether an answer has ended there, and how many have.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use trapeze_core::takeover::stream::UNTIL_CLOSE;
use trapeze_datapath::abi::{Answers, Pod, Setup};
use trapeze_datapath::map::Update;

use crate::backend::*;
use crate::bench::*;
use crate::outcome::Verdict;
use crate::packet::*;

/// `CARE_FOLLOW` and `CARE_HEAD`.
pub const FOLLOW: u8 = 16;
const HEAD: u8 = 32;

/// `enum answer_phase`.
const STATUS: u8 = 0;
const ENDLESS: u8 = 7;
pub const LOST: u8 = 8;

/// `ANSWER_CLOSING`.
const CLOSING: u16 = 1;

/// The server's first byte: its numbers wrap soon.
const FIRST: u32 = 0xffff_ffc0;

struct Follower {
    agent: Agent,
    care: u8,
}

impl Follower {
    fn new() -> Self {
        let agent = Agent::new();
        Self {
            agent,
            care: FOLLOW,
        }
    }

    /// Nothing said yet.
    fn reset(&self) {
        let mut setup = Setup {
            state: CONFIRMED,
            ..Setup::zeroed()
        };
        setup.meta[15] = self.care;
        setup.answers.next = FIRST;
        if self.care & HEAD != 0 {
            setup.answers.flags = 4;
        }
        let key = flow_key(CLIENT, VIP);
        self.agent
            .maps
            .setups
            .put(&key, &setup, Update::Any)
            .unwrap();
    }

    fn send(&self, at: usize, bytes: &[u8]) -> Answers {
        self.send_having(at, bytes, 77)
    }

    /// Lets a segment leave, that acknowledges `ack`.
    fn send_having(&self, at: usize, bytes: &[u8], ack: u32) -> Answers {
        let segment = Tcp {
            source: VIP,
            dest: CLIENT,
            options: timestamps(1, 2),
            ..segment(ACK, FIRST.wrapping_add(at as u32), ack, bytes)
        };
        let got = self.agent.run(&self.agent.egress, &segment.frame());
        assert_eq!(got.verdict, Verdict::Next, "it leaves");
        self.answers()
    }

    fn answers(&self) -> Answers {
        self.agent.setup(&request()).unwrap().answers
    }

    /// Sends all of it, cut at these places.
    fn send_cut(&self, bytes: &[u8], cuts: &[usize]) -> Answers {
        self.reset();
        let mut from = 0;
        for &to in cuts.iter().chain([&bytes.len()]) {
            if to > from {
                self.send(from, &bytes[from..to]);
                from = to;
            }
        }
        self.answers()
    }
}

/// Between two answers, so many having ended?
pub fn boundary(answers: &Answers) -> Option<u16> {
    let between = answers.phase == STATUS && answers.line_length == 0;
    between.then_some(answers.finished)
}

/// Answers whose ends are known by how they were put together.
pub fn streams() -> Vec<(&'static str, Vec<Vec<u8>>)> {
    let a = |bytes: &[u8]| bytes.to_vec();
    let long_field = format!(
        "HTTP/1.1 200 OK\r\nSet-Cookie: {}\r\nContent-Length: 2\r\n\r\nab",
        "x".repeat(1500)
    );
    let long_extension = format!(
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;e=\"{}\"\r\nab\r\n0\r\n\r\n",
        "y".repeat(200)
    );
    let many_fields = format!(
        "HTTP/1.1 200 OK\r\n{}content-length:3\r\n\r\nabc",
        "Some-Field: and what it says\r\n".repeat(40)
    );
    let mut many_chunks = a(b"HTTP/1.1 200 OK\r\ntransfer-encoding:\tgzip,chunked\r\n\r\n");
    for size in 1..60usize {
        many_chunks.extend(format!("{size:X}\r\n{}\r\n", "\n".repeat(size)).bytes());
    }
    many_chunks.extend(b"0\r\n\r\n");
    vec![
        (
            "nginx",
            vec![
                a(b"HTTP/1.1 200 OK\r\nServer: nginx\r\nDate: Sun, 22 Nov 2026 02:00:00 GMT\r\nContent-Type: text/html\r\nContent-Length: 11\r\nConnection: keep-alive\r\nAccept-Ranges: bytes\r\n\r\nhello\nworld"),
                a(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"),
                a(b"HTTP/1.1 200\r\nCONTENT-LENGTH: 1\r\n\r\n\n"),
            ],
        ),
        (
            "blanks around a length",
            vec![
                a(b"HTTP/1.1 200 OK\r\nContent-Length:\t3\r\n\r\nabc"),
                a(b"HTTP/1.1 200 OK\r\nContent-Length:   \t 3 \t \r\n\r\nabc"),
                a(b"HTTP/1.1 200 OK\r\nContent-Length:3  \r\n\r\nabc"),
            ],
        ),
        (
            "without a body",
            vec![
                a(b"HTTP/1.1 304 Not Modified\r\nContent-Length: 500\r\n\r\n"),
                a(b"HTTP/1.1 204 No Content\r\n\r\n"),
                a(b"HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n"),
            ],
        ),
        (
            "only line feeds",
            vec![a(b"HTTP/1.1 200 OK\nContent-Length: 4\n\nfour")],
        ),
        (
            "chunks",
            vec![
                a(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n5\r\nhello\r\n00A \r\n0123456789\r\n0\r\n\r\n"),
                a(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n1;a=b\r\n\n\r\n0;last\r\nTrailer: 1\r\nContent-Length: 9\r\n\r\n"),
                a(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
            ],
        ),
        (
            "blanks around a coding",
            vec![
                a(b"HTTP/1.1 200 OK\r\nTransfer-Encoding:  chunked  \r\n\r\n1\r\na\r\n0\r\n\r\n"),
                a(b"HTTP/1.1 200 OK\r\nTransfer-Encoding:gzip,chunked\t \r\n\r\n0\r\n\r\n"),
                a(b"HTTP/1.1 200 OK\r\nTransfer-Encoding:\t\tchunked \r\n\r\n0\r\n\r\n"),
            ],
        ),
        ("many chunks", vec![many_chunks, a(b"HTTP/1.1 204 x\r\n\r\n")]),
        ("a long field", vec![long_field.into_bytes()]),
        ("a long extension", vec![long_extension.into_bytes()]),
        ("many fields", vec![many_fields.into_bytes()]),
        (
            "others that begin alike",
            vec![a(b"HTTP/1.1 200 OK\r\nContent-Lengthy: 9\r\nTransfer-Encodings: chunked\r\nConnections: close\r\nContent-Language: en\r\nContent-Length: 1\r\nX-Content-Length: 7\r\n\r\nx")],
        ),
        (
            "HTTP/1.0 that stays",
            vec![
                a(b"HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\nContent-Length: 1\r\n\r\nx"),
                a(b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\nConnection: upgrade,\t Keep-Alive , x\r\n\r\nx"),
            ],
        ),
    ]
}

pub fn joined(parts: &[Vec<u8>]) -> (Vec<u8>, Vec<usize>) {
    let mut bytes = Vec::new();
    let ends = parts.iter().map(|part| {
        bytes.extend(part);
        bytes.len()
    });
    let ends = ends.collect();
    (bytes, ends)
}

/// What is to be known when so much has left.
pub fn expected(ends: &[usize], sent: usize) -> Option<u16> {
    let finished = ends.iter().filter(|&&end| end <= sent).count();
    (sent == 0 || ends.contains(&sent)).then_some(finished as u16)
}

#[test]
fn answers_cut_at_every_byte_are_followed() {
    let follower = Follower::new();
    for (what, parts) in streams() {
        let (bytes, ends) = joined(&parts);
        for cut in 0..=bytes.len() {
            follower.reset();
            for (from, to) in [(0, cut), (cut, bytes.len())] {
                if to > from {
                    let answers = follower.send(from, &bytes[from..to]);
                    assert_eq!(
                        boundary(&answers),
                        expected(&ends, to),
                        "{what}, {cut}: {to}"
                    );
                    assert_ne!(answers.phase, LOST, "{what}, {cut}");
                    assert_eq!(answers.flags & CLOSING, 0, "{what}, {cut}");
                    assert_eq!(answers.next, FIRST.wrapping_add(to as u32), "{what}, {cut}");
                }
            }
        }
    }
}

#[test]
fn answers_byte_by_byte_are_followed() {
    let follower = Follower::new();
    for (what, parts) in streams() {
        let (bytes, ends) = joined(&parts);
        follower.reset();
        for at in 0..bytes.len() {
            let answers = follower.send(at, &bytes[at..=at]);
            assert_eq!(boundary(&answers), expected(&ends, at + 1), "{what}: {at}");
        }
    }
}

/// Whatever is sent again, together with what is new or not.
#[test]
fn each_byte_counts_once() {
    let follower = Follower::new();
    let mut random = SmallRng::seed_from_u64(7);
    for (what, parts) in streams() {
        let (bytes, ends) = joined(&parts);
        for round in 0..20 {
            follower.reset();
            let mut sent = 0;
            while sent < bytes.len() {
                let from = random.random_range(0..=sent);
                let to = random.random_range(from + 1..=bytes.len().min(from + 900));
                sent = sent.max(to);
                let answers = follower.send(from, &bytes[from..to]);
                assert_eq!(
                    boundary(&answers),
                    expected(&ends, sent),
                    "{what}, {round}: {sent}"
                );
            }
        }
    }
}

#[test]
fn a_gap_loses_the_thread_for_good() {
    let follower = Follower::new();
    let bytes = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
    for at in 1..bytes.len() {
        follower.reset();
        assert_eq!(follower.send(at, &bytes[at..]).phase, LOST, "{at}");
        assert_eq!(follower.send(0, bytes).phase, LOST, "{at}");
    }
}

/// Interim answers end at no boundary that counts, and are followed by the answer.
#[test]
fn interim_answers_are_none() {
    let follower = Follower::new();
    let bytes = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx";
    for cut in 1..bytes.len() {
        let answers = follower.send_cut(bytes, &[cut]);
        assert_eq!(boundary(&answers), Some(1), "{cut}");
    }
    let answers = follower.send_cut(&bytes[..bytes.len() - 1], &[]);
    assert_eq!((boundary(&answers), answers.finished), (None, 0));
    assert_eq!(boundary(&follower.send_cut(&bytes[..25], &[])), Some(0));
}

#[test]
fn the_answer_to_head_has_no_body() {
    let mut follower = Follower::new();
    follower.care = FOLLOW | HEAD;
    let head = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n";
    let get = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc";
    assert_eq!(boundary(&follower.send_cut(head, &[])), Some(1));
    let (bytes, ends) = joined(&[head.to_vec(), get.to_vec()]);
    for cut in 1..bytes.len() {
        let answers = follower.send_cut(&bytes, &[cut]);
        assert_eq!(boundary(&answers), Some(2), "{cut}: only the first");
    }
    assert_eq!(
        boundary(&follower.send_cut(&bytes[..ends[1] - 1], &[])),
        None
    );
    follower.care = FOLLOW;
    assert_eq!(boundary(&follower.send_cut(head, &[])), None);
}

/// Bodies of which no byte is read, in packets of all sizes.
#[test]
fn long_bodies_are_counted() {
    let follower = Follower::new();
    let length = 150_000;
    let mut bytes = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n").into_bytes();
    bytes.resize(bytes.len() + length, b'\n');
    let mut chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
    for size in [8192, 1, 32768, 0x1_2345] {
        chunked.extend(format!("{size:x}\r\n").bytes());
        chunked.resize(chunked.len() + size, b'\n');
        chunked.extend(b"\r\n");
    }
    chunked.extend(b"0\r\n\r\n");
    let mut random = SmallRng::seed_from_u64(1);
    for bytes in [bytes, chunked] {
        for _ in 0..20 {
            follower.reset();
            let mut sent = 0;
            while sent < bytes.len() {
                let most = [100, 1448, 3000][random.random_range(0..3)];
                let to = bytes.len().min(sent + random.random_range(1..=most));
                assert_eq!(boundary(&follower.answers()), (sent == 0).then_some(0));
                follower.send(sent, &bytes[sent..to]);
                sent = to;
            }
            assert_eq!(boundary(&follower.answers()), Some(1));
        }
    }
}

/// What has no end that is known, or says that there is no next answer.
#[test]
fn what_ends_a_connection_is_seen() {
    let follower = Follower::new();
    let table: [(&str, &str, u8, bool); 32] = [
        ("no length", "HTTP/1.1 200 OK\r\n\r\nabc", ENDLESS, false),
        (
            "an upgrade",
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\nxyz",
            ENDLESS,
            false,
        ),
        (
            "close",
            "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
            STATUS,
            true,
        ),
        (
            "Close",
            "HTTP/1.1 204 OK\r\nconnection:Close\r\n\r\n",
            STATUS,
            true,
        ),
        (
            "close among others",
            "HTTP/1.1 204 OK\r\nConnection: x, close ,y\r\n\r\n",
            STATUS,
            true,
        ),
        (
            "no close",
            "HTTP/1.1 204 OK\r\nConnection: closed, disclose\r\n\r\n",
            STATUS,
            false,
        ),
        (
            "close without length",
            "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nabc",
            ENDLESS,
            true,
        ),
        (
            "close and chunks",
            "HTTP/1.1 200 OK\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            STATUS,
            true,
        ),
        (
            "HTTP/1.0",
            "HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n",
            STATUS,
            true,
        ),
        (
            "more behind close",
            "HTTP/1.1 204 OK\r\nConnection: close\r\n\r\nHTTP/1.1 204 OK\r\n\r\n",
            LOST,
            true,
        ),
        (
            "two lengths",
            "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
            LOST,
            false,
        ),
        (
            "one length twice",
            "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
            LOST,
            false,
        ),
        (
            "a list of lengths",
            "HTTP/1.1 200 OK\r\nContent-Length: 3, 3\r\n\r\nabc",
            LOST,
            false,
        ),
        (
            "a negative length",
            "HTTP/1.1 200 OK\r\nContent-Length: -3\r\n\r\nabc",
            LOST,
            false,
        ),
        (
            "an empty length",
            "HTTP/1.1 200 OK\r\nContent-Length: \r\n\r\nabc",
            LOST,
            false,
        ),
        (
            "a length beyond counting",
            "HTTP/1.1 200 OK\r\nContent-Length: 1234567890123456789\r\n\r\n",
            LOST,
            false,
        ),
        (
            "length and chunks",
            "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
            LOST,
            false,
        ),
        (
            "chunks and length",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n",
            LOST,
            false,
        ),
        (
            "chunks in HTTP/1.0",
            "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
            LOST,
            false,
        ),
        (
            "not chunked last",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked, gzip\r\n\r\n",
            LOST,
            false,
        ),
        (
            "almost chunked",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: xchunked\r\n\r\n",
            LOST,
            false,
        ),
        (
            "almost chunked, and blank",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: xchunked \t\r\n\r\n",
            LOST,
            false,
        ),
        (
            "a coding that is blank",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding:           \r\n\r\n",
            LOST,
            false,
        ),
        (
            "a space before the colon",
            "HTTP/1.1 200 OK\r\nContent-Length : 3\r\n\r\nabc",
            LOST,
            false,
        ),
        (
            "a folded line",
            "HTTP/1.1 200 OK\r\nX: 1\r\n Content-Length: 3\r\n\r\nabc",
            LOST,
            false,
        ),
        (
            "a folded line, by a tab",
            "HTTP/1.1 200 OK\r\nX: 1\r\n\tand more\r\n\r\nabc",
            LOST,
            false,
        ),
        (
            "a chunk size that is none",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n",
            LOST,
            false,
        ),
        (
            "a chunk size beyond counting",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1234567812345678\r\n",
            LOST,
            false,
        ),
        (
            "a chunk longer than it says",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n",
            LOST,
            false,
        ),
        (
            "a line feed for a chunk's end",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\n",
            LOST,
            false,
        ),
        ("no HTTP", "SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n", LOST, false),
        ("HTTP/2", "HTTP/2.0 200 OK\r\n\r\n", LOST, false),
    ];
    for (what, bytes, phase, closing) in table {
        for cut in 0..bytes.len() {
            let answers = follower.send_cut(bytes.as_bytes(), &[cut]);
            assert_eq!(answers.phase, phase, "{what}, {cut}");
            assert_eq!(answers.flags & CLOSING != 0, closing, "{what}, {cut}");
        }
    }
}

/// So it is known where in it the server is, when another one goes on with it.
#[test]
fn what_is_said_until_close_is_counted_and_a_tunnel_is_not() {
    let follower = Follower::new();
    let head = "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n";
    let bytes = format!("{head}{}", "HTTP/1.1 204 OK\r\n\r\n".repeat(100));
    for cut in 0..bytes.len() {
        let answers = follower.send_cut(bytes.as_bytes(), &[cut]);
        assert_eq!((answers.phase, answers.finished), (ENDLESS, 0), "{cut}");
        let said = (bytes.len() - head.len()) as u64;
        assert_eq!(UNTIL_CLOSE - answers.remaining, said, "{cut}");
        let next = FIRST.wrapping_add(bytes.len() as u32);
        assert_eq!(answers.next, next, "{cut}");
        // A repetition.
        let again = follower.send(cut, &bytes.as_bytes()[cut..]);
        assert_eq!((again.remaining, again.next), (answers.remaining, next));
    }
    let tunnel = "HTTP/1.1 101 Go\r\nContent-Length: 9\r\nUpgrade: x\r\n\r\n";
    let answers = follower.send_cut(format!("{tunnel}abc").as_bytes(), &[tunnel.len()]);
    assert_eq!((answers.phase, answers.remaining), (ENDLESS, 0));
}

/// Fields that matter and do not fit where lines are kept are not guessed at.
#[test]
fn a_long_line_that_matters_is_not_guessed_at() {
    let follower = Follower::new();
    for name in ["Content-Length", "Transfer-Encoding", "Connection"] {
        let bytes = format!("HTTP/1.1 200 OK\r\n{name}: {}", "0".repeat(80) + "\r\n\r\n");
        for cut in 0..bytes.len() {
            let answers = follower.send_cut(bytes.as_bytes(), &[cut]);
            assert_eq!(answers.phase, LOST, "{name}, {cut}");
        }
    }
}

/// What the socket had had when an answer began tells later whether one is owed.
#[test]
fn what_was_taken_is_remembered() {
    let follower = Follower::new();
    let bytes = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nxy";
    follower.reset();
    assert_eq!(follower.send_having(0, &bytes[..5], 100).taken, 100);
    assert_eq!(follower.send_having(5, &bytes[5..], 200).taken, 100);
    assert_eq!(
        follower.send_having(bytes.len(), &bytes[..5], 300).taken,
        300
    );
}

/// Without being asked to, nobody looks.
#[test]
fn who_does_not_care_does_not_look() {
    let mut follower = Follower::new();
    follower.care = 0;
    let answers = follower.send_cut(b"HTTP/1.1 204 OK\r\n\r\n", &[]);
    assert_eq!(answers.next, FIRST);
}
