//! What is to be placed: [`Subject`] as the client wrote it, [`Request`] as
//! policies see it.

use std::net::SocketAddr;

use super::BackendId;
use super::hash::Hasher;
use crate::flow::addr_bytes;
use crate::route::Asked;

/// What a client asked for, in its own words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subject<'a> {
    /// The host, or the server name of TLS; empty if the client named none.
    pub host: &'a str,
    /// The path, empty for TLS.
    pub path: &'a [u8],
    /// The query, if there is one.
    pub query: Option<&'a [u8]>,
    /// The method, empty for TLS.
    pub method: &'a str,
    /// Who asks.
    pub client: SocketAddr,
}

impl<'a> Subject<'a> {
    /// What a client asked for.
    pub fn of(asked: &Asked<'a>, client: SocketAddr) -> Self {
        match *asked {
            Asked::Http(head) => Subject {
                host: head.host.as_deref().unwrap_or(""),
                path: head.path,
                query: head.query,
                method: head.method,
                client,
            },
            Asked::Tls(hello) => Subject {
                host: hello.server_name.as_deref().unwrap_or(""),
                ..Subject::unknown(client)
            },
            Asked::H2Preface => Subject::unknown(client),
        }
    }

    /// A client of which nothing else is known.
    pub fn unknown(client: SocketAddr) -> Self {
        Subject {
            host: "",
            path: b"",
            query: None,
            method: "",
            client,
        }
    }

    /// A hash of the URL, or of as much of it as is known; where nothing is, of
    /// the client's address. The same on every machine and in every version:
    /// dispatchers have to agree.
    pub fn url_hash(&self) -> u64 {
        let mut hasher = Hasher::default();
        if self.host.is_empty() && self.path.is_empty() {
            // Not the port: a client keeps its backend over connections.
            hasher.write(&addr_bytes(self.client.ip()));
            return hasher.finish();
        }
        hasher.write(self.host.as_bytes());
        // No host holds a zero byte, no path a `?`.
        hasher.write(&[0]);
        hasher.write(self.path);
        if let Some(query) = self.query {
            hasher.write(b"?");
            hasher.write(query);
        }
        hasher.finish()
    }
}

/// A request as policies see it. Small, and to be kept until the request is
/// finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// What is asked for: [`Subject::url_hash`].
    pub object: u64,
    /// What it is expected to cost: microseconds of service ([`CostModel::estimate`]).
    /// 0 if nobody knows.
    ///
    /// [`CostModel::estimate`]: super::CostModel::estimate
    pub cost_us: u32,
    /// Requests of one kind are expected to cost alike.
    pub kind: Kind,
    /// What the answer needs.
    pub class: Class,
    /// The backend that has the client's connection now: another one costs a handoff.
    pub current: Option<BackendId>,
    /// Stickiness, if the request shows any.
    pub bound: Option<Bound>,
}

impl Request {
    /// A request of which only the object is known.
    pub fn new(object: u64, class: Class) -> Self {
        Request {
            object,
            cost_us: 0,
            kind: Kind(class as u16),
            class,
            current: None,
            bound: None,
        }
    }

    /// What a client asked for; `class` as a rule says it, else it is guessed.
    pub fn of(subject: &Subject<'_>, class: Option<Class>) -> Self {
        let class = class.unwrap_or_else(|| Class::guess(subject));
        Request {
            kind: Kind::of(subject, class),
            ..Request::new(subject.url_hash(), class)
        }
    }
}

/// What answering needs. [LVSCAD07 §2.3] has CAP's classes: normal, CPU bound,
/// disk bound, both; §5.3 tells static from dynamic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// A file, sent as it is. CAP: normal.
    Static,
    /// Made by a program, at no great cost. CAP: normal.
    Dynamic,
    /// A program that computes.
    CpuBound,
    /// A program that reads from disk, such as a query of a database.
    DiskBound,
    /// Both.
    CpuAndDiskBound,
}

impl Class {
    /// Every class, in the order of the documentation.
    pub const ALL: [Class; 5] = [
        Class::Static,
        Class::Dynamic,
        Class::CpuBound,
        Class::DiskBound,
        Class::CpuAndDiskBound,
    ];

    /// Its name in the file.
    pub fn name(self) -> &'static str {
        match self {
            Class::Static => "static",
            Class::Dynamic => "dynamic",
            Class::CpuBound => "cpu-bound",
            Class::DiskBound => "disk-bound",
            Class::CpuAndDiskBound => "cpu-and-disk-bound",
        }
    }

    /// Whether a program makes the answer.
    pub fn is_dynamic(self) -> bool {
        self != Class::Static
    }

    /// Where no rule says it: dynamic are methods other than GET and HEAD, what has
    /// a query, and the extensions of CGI programs and script languages.
    pub fn guess(subject: &Subject<'_>) -> Class {
        let fetches = matches!(subject.method, "GET" | "HEAD" | "");
        let is_script = extension(subject.path).is_some_and(|written| {
            SCRIPTS
                .iter()
                .any(|script| written.eq_ignore_ascii_case(script.as_bytes()))
        });
        if !fetches || subject.query.is_some() || is_script {
            Class::Dynamic
        } else {
            Class::Static
        }
    }
}

const SCRIPTS: [&str; 8] = ["php", "cgi", "pl", "asp", "aspx", "jsp", "do", "fcgi"];

/// A number for requests of a kind: same class, method, and extension or, for paths
/// without one, first segment. Kinds may share a number; then they share an estimate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Kind(pub(super) u16);

impl Kind {
    /// How many there are.
    pub const COUNT: usize = 1024;

    /// The kind of that number, modulo [`Kind::COUNT`].
    pub fn new(number: u16) -> Self {
        Kind(number % Self::COUNT as u16)
    }

    /// Its number, below [`Kind::COUNT`].
    pub fn number(self) -> u16 {
        self.0
    }

    fn of(subject: &Subject<'_>, class: Class) -> Self {
        let mut hasher = Hasher::default();
        hasher.write(&[class as u8]);
        hasher.write(subject.method.as_bytes());
        hasher.write(&[0]);
        match extension(subject.path) {
            Some(extension) => hasher.write(extension),
            None => {
                let path = subject.path.strip_prefix(b"/").unwrap_or(subject.path);
                hasher.write(b"/");
                hasher.write(path.split(|&b| b == b'/').next().unwrap_or_default());
            }
        }
        Kind::new(hasher.finish() as u16)
    }
}

/// What follows the last dot of the last segment: at most eight bytes.
fn extension(path: &[u8]) -> Option<&[u8]> {
    let tail = &path[path.len().saturating_sub(9)..];
    let dot = tail.iter().rposition(|&b| b == b'.' || b == b'/')?;
    (tail[dot] == b'.' && dot + 1 < tail.len()).then(|| &tail[dot + 1..])
}

/// What ties a request to a backend, whatever the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// The client names its backend: by a cookie that the server set.
    To(BackendId),
    /// All with this hash belong together: of an address, a header, a cookie.
    Key(u64),
}
