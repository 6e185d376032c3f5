//! Sites whose answers are protected, and downloads that are read as a test wants.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::Path;
use std::sync::Barrier;
use std::time::Duration;

use tempfile::TempDir;

use crate::{Cluster, Connection, Content, same, until};

/// A mebibyte.
pub const MIB: usize = 1 << 20;
/// More than client, network and server have room for.
pub const LARGE: usize = 64 * MIB;

/// A lab whose pool protects answers from 1 MB on; `more` is what else the pool says.
pub struct Site {
    /// The lab.
    pub cluster: Cluster,
    /// What its servers serve.
    pub root: TempDir,
    /// What is at `/large`.
    pub large: Vec<u8>,
}

impl Site {
    /// With so many backends.
    pub fn up(test: &str, backends: u8) -> Self {
        Self::with(test, backends, "protect_from = 1000000\n")
    }

    /// `more` is what the pool says, in lines.
    pub fn with(test: &str, backends: u8, more: &str) -> Self {
        Self::ruled(test, backends, more, &[])
    }

    /// And the service has these rules, all of that pool.
    pub fn ruled(test: &str, backends: u8, more: &str, rules: &[&str]) -> Self {
        let root = tempfile::tempdir().expect("a temporary directory");
        let large = Content::new(7, LARGE as u64).bytes();
        put(root.path(), "large", &large);
        put(root.path(), "1k", &large[..1024]);
        let names: Vec<String> = (1..=backends).map(|n| format!("\"b{n}\"")).collect();
        let rules = rules
            .iter()
            .map(|rule| format!("[[service.rule]]\npool = \"web\"\n{rule}\n"));
        let text = format!(
            "[[pool]]\nname = \"web\"\n{more}backends = [{}]\n\
             [[service]]\nname = \"site\"\naddress = \"10.77.0.100:80\"\npool = \"web\"\n{}",
            names.join(", "),
            rules.collect::<String>()
        );
        let path = root.path().to_owned();
        let cluster =
            Cluster::configured(test, backends, &text, |options| options.root = Some(path));
        Self {
            cluster,
            root,
            large,
        }
    }

    /// Does something while all of them are being read, and their packets on the way; each comes whole.
    pub fn while_read(&self, downloads: &mut [Download], act: impl FnOnce()) {
        let begun = Barrier::new(downloads.len() + 1);
        std::thread::scope(|scope| {
            for download in downloads {
                let begun = &begun;
                scope.spawn(move || {
                    download.read(2 * MIB).expect("the first of it");
                    begun.wait();
                    download.finish().expect("the rest");
                    same(&download.body, &self.large);
                });
            }
            begun.wait();
            act();
        });
    }

    /// Asks for `/large` on a connection of its own.
    pub fn start(&self) -> Download {
        self.cluster
            .on("c1", || Download::start(Connection::open()))
    }

    /// What the dispatcher has counted.
    pub fn count(&self, what: &str) -> u64 {
        let counters = self.cluster.daemon().counters;
        counters.get(what).copied().unwrap_or(0)
    }

    /// The dispatcher has been told of it.
    pub fn await_protection(&self, answers: usize) {
        until("the answers are protected", || {
            (self.cluster.daemon().protected_answers == answers).then_some(())
        });
    }

    /// The dispatcher knows that somebody has gone on with it.
    pub fn await_taken(&self, count: u64) {
        until("it is taken over", || {
            (self.count("taken-over") == count).then_some(())
        });
    }
}

/// In one step, as deployments do it: what is open stays as it was.
pub fn put(root: &Path, name: &str, bytes: &[u8]) {
    let new = root.join(format!("{name}.new"));
    std::fs::write(&new, bytes).expect("a temporary file");
    std::fs::rename(new, root.join(name)).expect("in its place");
}

/// The longest cookie; servers have a limit for a line.
const COOKIE: usize = 4000;

/// Reads an answer's head and no byte more; what the result gives is a field's value.
pub fn read_head(stream: &mut TcpStream) -> impl Fn(&str) -> String + use<> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).expect("a head");
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).expect("ASCII");
    move |name| {
        let mut lines = head.lines().filter_map(|line| line.split_once(": "));
        let line = lines.find(|(n, _)| n.eq_ignore_ascii_case(name));
        line.unwrap_or_else(|| panic!("no {name}: {head}"))
            .1
            .to_owned()
    }
}

/// An answer that is read as its test wants.
pub struct Download {
    /// Its connection.
    pub stream: TcpStream,
    /// Who has begun it.
    pub owner: String,
    length: usize,
    /// What has been read.
    pub body: Vec<u8>,
}

impl Download {
    /// Of `/large`.
    pub fn start(connection: Connection) -> Self {
        let stream = connection.stream().try_clone().expect("a socket");
        Self::on(stream)
    }

    /// Of `/large`, on that connection.
    pub fn on(stream: TcpStream) -> Self {
        Self::ask_for("/large", stream, false)
    }

    /// Its client closes its side behind the request, if `closes`.
    pub fn ask_for(path: &str, stream: TcpStream, closes: bool) -> Self {
        Self::begin("a", path, stream, closes)
    }

    /// Of another host.
    pub fn of_host(host: &str, path: &str, stream: TcpStream) -> Self {
        Self::begin(host, path, stream, false)
    }

    /// Of `/large`, by a request with so many bytes of cookies, on that connection.
    pub fn with_cookies(bytes: usize, stream: TcpStream) -> Self {
        let mut request = String::from("GET /large HTTP/1.1\r\nHost: a\r\n");
        for number in 0..bytes.div_ceil(COOKIE) {
            let length = (bytes - number * COOKIE).min(COOKIE);
            request += &format!("Cookie: c{number}={}\r\n", "v".repeat(length));
        }
        Self::send(request + "\r\n", stream, false)
    }

    fn begin(host: &str, path: &str, stream: TcpStream, closes: bool) -> Self {
        let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n");
        Self::send(request, stream, closes)
    }

    fn send(request: String, mut stream: TcpStream, closes: bool) -> Self {
        let patience = Some(Duration::from_secs(20));
        stream.set_read_timeout(patience).expect("a socket");
        stream.write_all(request.as_bytes()).expect("it is sent");
        if closes {
            stream.shutdown(Shutdown::Write).expect("it is open");
        }
        let field = read_head(&mut stream);
        Self {
            owner: field("x-backend"),
            length: field("content-length").parse().expect("a number"),
            body: Vec::new(),
            stream,
        }
    }

    /// So many bytes more, or what there is.
    pub fn read(&mut self, bytes: usize) -> io::Result<&mut Self> {
        let at = self.body.len();
        let end = (at + bytes).min(self.length);
        self.body.resize(end, 0);
        let mut done = at;
        while done < end {
            match self.stream.read(&mut self.body[done..]) {
                Ok(count) if count > 0 => done += count,
                other => {
                    self.body.truncate(done);
                    other?;
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
            }
        }
        Ok(self)
    }

    /// To its end.
    pub fn finish(&mut self) -> io::Result<()> {
        self.read(usize::MAX - self.body.len()).map(drop)
    }

    /// The next request of the connection; who has answered it.
    pub fn ask(&mut self) -> String {
        self.ask_ahead();
        self.hear()
    }

    /// It is sent, whatever has come of the answer before.
    pub fn ask_ahead(&mut self) {
        self.stream
            .write_all(b"GET /1k HTTP/1.1\r\nHost: a\r\n\r\n")
            .expect("it is sent");
    }

    /// The next answer begins, to what was asked ahead; it is what is read from now on.
    pub fn begin_next(&mut self) {
        let field = read_head(&mut self.stream);
        self.owner = field("x-backend");
        self.length = field("content-length").parse().expect("a number");
        self.body.clear();
    }

    /// Who has answered what was asked ahead.
    pub fn hear(&mut self) -> String {
        self.try_to_hear().expect("an answer")
    }

    /// The same; its client may be reset.
    pub fn try_to_hear(&mut self) -> std::io::Result<String> {
        let mut answer = Vec::new();
        while !ends_with_body(&answer) {
            let mut piece = [0]; // What follows is another answer.
            let count = self.stream.read(&mut piece)?;
            assert!(count > 0, "closed");
            answer.extend_from_slice(&piece[..count]);
        }
        let head = String::from_utf8_lossy(&answer).into_owned();
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        let (_, rest) = head.split_once("X-Backend: ").expect("its backend");
        Ok(rest[..2].to_owned())
    }
}

fn ends_with_body(answer: &[u8]) -> bool {
    let end = answer.windows(4).position(|w| w == b"\r\n\r\n");
    end.is_some_and(|end| answer.len() == end + 4 + 1024)
}
