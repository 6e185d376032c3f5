//! The origin server's process: HTTP/1.1 with a thread for each connection.
//!
//! | | |
//! | --- | --- |
//! | `GET`, `HEAD /object/NUMBER` | an object, with `X-Cache: hit` or `miss` |
//! | `GET /origin-status` | what was asked since the last flush, as JSON |
//! | `POST /origin-flush` | empties the cache, and begins to count at zero |

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddrV4, TcpListener, TcpStream};
use std::sync::{Condvar, Mutex};
use std::time::Duration;

use anyhow::{Context, Result};
use socket2::{Domain, Socket, Type};
use trapeze_core::head::{self, BadHead, HttpHead, Inspection, Progress};

use super::cache::Body;
use super::store::{Found, Store};
use crate::args::Origin;

/// How long the queue of connections that nobody has accepted may be: a refused one
/// is tried elsewhere, which would be a choice that no policy made.
const BACKLOG: i32 = 4096;
/// Connections at a time on each port; more wait to be accepted.
const CONNECTIONS_MAX: usize = 1000;
/// A thread holds little but its buffer, and that is on the heap.
const STACK_BYTES: usize = 256 << 10;
/// The longest head, as with Apache's and nginx's usual limits.
const HEAD_MAX: usize = 16 << 10;
/// How long a connection may be silent, and how long it may take nothing.
const PATIENCE: Duration = Duration::from_secs(75);
/// How long a connection that is given up is listened to, so that its client can
/// read why before it is reset.
const FAREWELL: Duration = Duration::from_secs(1);

/// A server and what its connections share.
struct Server {
    name: String,
    store: Store,
    log: Option<Mutex<File>>,
}

/// How many connections there are, and who waits until there are fewer.
#[derive(Default)]
struct Room {
    taken: Mutex<usize>,
    left: Condvar,
}

/// An answer. A body is omitted after HEAD, but not its length.
struct Answer {
    status: &'static str,
    /// Field lines with their ends.
    fields: String,
    body: Body,
}

/// What becomes of the connection after an answer.
#[derive(Clone, Copy, PartialEq)]
enum Then {
    Next,
    Close,
    /// There may be bytes on the way that nobody will read.
    GiveUp,
}

/// Serves until it is killed.
///
/// # Errors
/// A port is taken, or the log cannot be opened.
pub fn run(origin: Origin) -> Result<()> {
    let open = |path| OpenOptions::new().create(true).append(true).open(path);
    let log = origin.log.map(open).transpose();
    let server = Server {
        name: origin.host,
        store: Store::new(origin.memory.settings()),
        log: log.context("cannot open the access log")?.map(Mutex::new),
    };
    let listeners: Vec<TcpListener> = origin
        .port
        .iter()
        .map(|&port| listen(port).with_context(|| format!("cannot listen at port {port}")))
        .collect::<Result<_>>()?;
    std::thread::scope(|scope| {
        for listener in &listeners {
            let server = &server;
            scope.spawn(move || server.accept(listener));
        }
    });
    Ok(())
}

fn listen(port: u16) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.bind(&SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, port).into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

impl Server {
    /// A thread for each connection, for ever.
    fn accept(&self, listener: &TcpListener) {
        let room = Room::default();
        std::thread::scope(|scope| {
            loop {
                room.enter();
                let serve = |stream: TcpStream| {
                    // Clients end connections as they like.
                    let _ = self.serve(stream);
                    room.leave();
                };
                let started = listener.accept().and_then(|(stream, _)| {
                    let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
                    thread.spawn_scoped(scope, move || serve(stream))
                });
                if let Err(error) = started {
                    // Too many files or threads, or the client has gone again.
                    eprintln!("a connection is lost: {error}");
                    room.leave();
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        });
    }

    /// One request after the other.
    fn serve(&self, mut stream: TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let mut unread = Vec::new();
        let mut progress = Progress::default();
        loop {
            let (head_length, then) = match head::inspect_from(&unread, &mut progress, HEAD_MAX) {
                Inspection::Incomplete => match read_more(&mut stream, &mut unread)? {
                    0 => return Ok(()),
                    _ => continue,
                },
                Inspection::Http(head) => {
                    let then = then(&head);
                    self.answer(&mut stream, &head, then)?;
                    (head.len, then)
                }
                Inspection::Bad(BadHead::TooLarge) => {
                    let status = "431 Request Header Fields Too Large";
                    Answer::empty(status).send(&mut stream, &self.name, "GET", Then::GiveUp)?;
                    return give_up(stream);
                }
                Inspection::Bad(_) | Inspection::Tls(_) | Inspection::H2Preface => {
                    let answer = Answer::empty("400 Bad Request");
                    answer.send(&mut stream, &self.name, "GET", Then::GiveUp)?;
                    return give_up(stream);
                }
            };
            match then {
                Then::Next => {}
                Then::Close if unread.len() == head_length => return Ok(()),
                Then::Close | Then::GiveUp => return give_up(stream),
            }
            unread.drain(..head_length);
            progress = Progress::default();
        }
    }

    fn answer(&self, stream: &mut TcpStream, head: &HttpHead, then: Then) -> io::Result<()> {
        let answer = self.answer_to(head);
        answer.send(stream, &self.name, head.method, then)?;
        let Some(log) = &self.log else { return Ok(()) };
        let line = format!(
            "{} {} {} {}\n",
            head.method,
            String::from_utf8_lossy(head.target),
            &answer.status[..3],
            answer.sent(head.method)
        );
        let mut log = log.lock().expect("no thread panics while it writes");
        log.write_all(line.as_bytes())
    }

    fn answer_to(&self, head: &HttpHead) -> Answer {
        match (head.method, head.path) {
            ("GET" | "HEAD", b"/origin-status") => {
                let counts = serde_json::to_vec(&self.store.counts());
                let counts = counts.expect("numbers can be written");
                Answer::whole("application/json", counts)
            }
            ("POST", b"/origin-flush") => {
                self.store.flush();
                Answer::empty("204 No Content")
            }
            (_, b"/origin-flush") => Answer::not_allowed("POST"),
            ("GET" | "HEAD", path) => match object(path) {
                Some(number) => self.object(number),
                None => Answer::missing(),
            },
            _ => Answer::not_allowed("GET, HEAD"),
        }
    }

    fn object(&self, number: u64) -> Answer {
        let (body, found) = self.store.get(number);
        let found = match found {
            Found::Hit => "hit",
            Found::Miss => "miss",
        };
        Answer {
            status: "200 OK",
            fields: format!(
                "Content-Type: application/octet-stream\r\n\
                 ETag: \"{number}-{}\"\r\nX-Cache: {found}\r\n",
                body.len()
            ),
            body,
        }
    }
}

impl Answer {
    fn empty(status: &'static str) -> Self {
        Answer {
            status,
            fields: String::new(),
            body: Body::default(),
        }
    }

    fn whole(kind: &str, body: Vec<u8>) -> Self {
        Answer {
            status: "200 OK",
            fields: format!("Content-Type: {kind}\r\n"),
            body: body.into(),
        }
    }

    fn missing() -> Self {
        let text = "There are /object/NUMBER and /origin-status.\n";
        Answer {
            status: "404 Not Found",
            ..Answer::whole("text/plain", text.into())
        }
    }

    fn not_allowed(allowed: &str) -> Self {
        Answer {
            fields: format!("Allow: {allowed}\r\n"),
            ..Answer::empty("405 Method Not Allowed")
        }
    }

    /// Bytes of body that go with it.
    fn sent(&self, method: &str) -> usize {
        if method == "HEAD" { 0 } else { self.body.len() }
    }

    /// In one write, so that what fits in a segment is in one.
    fn send(&self, to: &mut impl Write, name: &str, method: &str, then: Then) -> io::Result<()> {
        let mut bytes = Vec::with_capacity(256 + self.body.len());
        write!(
            bytes,
            "HTTP/1.1 {}\r\n{}X-Backend: {name}\r\n",
            self.status, self.fields
        )?;
        // RFC 9110 §8.6: no length without content by definition.
        if !self.status.starts_with("204") {
            write!(bytes, "Content-Length: {}\r\n", self.body.len())?;
        }
        if then != Then::Next {
            bytes.extend_from_slice(b"Connection: close\r\n");
        }
        bytes.extend_from_slice(b"\r\n");
        bytes.extend_from_slice(&self.body[..self.sent(method)]);
        to.write_all(&bytes)
    }
}

impl Room {
    fn enter(&self) {
        let taken = self.taken.lock().expect("nobody panics");
        let full = |taken: &mut usize| *taken >= CONNECTIONS_MAX;
        *self.left.wait_while(taken, full).expect("nobody panics") += 1;
    }

    fn leave(&self) {
        *self.taken.lock().expect("nobody panics") -= 1;
        self.left.notify_one();
    }
}

/// The number in `/object/NUMBER`, written in the one way.
fn object(path: &[u8]) -> Option<u64> {
    let digits = str::from_utf8(path.strip_prefix(b"/object/")?).ok()?;
    let number: u64 = digits.parse().ok()?;
    (number.to_string() == digits).then_some(number)
}

/// A body that comes with a request is not read: the connection ends after the answer.
fn then(head: &HttpHead) -> Then {
    let has_body = head.header("transfer-encoding").next().is_some()
        || head.header("content-length").any(|length| length != b"0");
    let says = |word: &str| {
        let mut words = head
            .header("connection")
            .flat_map(|value| value.split(|&byte| byte == b','));
        words.any(|said| said.trim_ascii().eq_ignore_ascii_case(word.as_bytes()))
    };
    match head.minor_version {
        _ if has_body => Then::GiveUp,
        _ if says("close") => Then::Close,
        0 if !says("keep-alive") => Then::Close,
        _ => Then::Next,
    }
}

fn read_more(stream: &mut TcpStream, unread: &mut Vec<u8>) -> io::Result<usize> {
    let mut piece = [0; 4096];
    let length = stream.read(&mut piece)?;
    unread.extend_from_slice(&piece[..length]);
    Ok(length)
}

/// Closes without a reset by what the client still sends, as far as that is little.
fn give_up(mut stream: TcpStream) -> io::Result<()> {
    stream.shutdown(Shutdown::Write)?;
    stream.set_read_timeout(Some(FAREWELL))?;
    let mut piece = [0; 4096];
    for _ in 0..256 {
        if stream.read(&mut piece)? == 0 {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "server_tests.rs"]
mod tests;
