//! What is asked of the cluster: objects, who asks for which, and when. A workload
//! is one file here; each run of it begins anew from a seed, so that every
//! policy is asked for the same.

mod recorded;
mod sizes;
mod surge;
mod webbench;
mod zipf;

use std::fmt::Debug;

use serde::Serialize;

pub use recorded::{Recorded, RecordedOptions};
pub use surge::Surge;
pub use webbench::WebBench;
pub use zipf::Zipf;

/// Something that can be asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// The path of its URL, without a query.
    pub path: Box<[u8]>,
    /// The query, if it has one.
    pub query: Option<Box<[u8]>>,
    /// Its size as a file; of a dynamic object, of its answer.
    pub bytes: u64,
    /// What serving it takes.
    pub kind: Kind,
}

/// What serving an object takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A file: in memory or on disk.
    Static,
    /// A program that runs for so many nanoseconds of processor time.
    Dynamic {
        /// Processor time.
        work_ns: u64,
    },
}

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Index into the workload's objects.
    pub object: u32,
    /// Bytes of the answer.
    pub bytes: u64,
    /// How long the user waits before it, or, in an open workload, the time since the
    /// request before.
    pub wait_ns: u64,
    /// Whether it needs the object's contents, or only its head (HEAD, 304, errors).
    pub content: Content,
    /// What happens to the connection after the answer.
    pub then: Then,
}

/// Whether the object's contents are needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// They are.
    Needed,
    /// They are not.
    Spared,
}

/// What happens to the connection after an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// The user's next request uses it too.
    Keep,
    /// It ends.
    Close,
}

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pace {
    /// So many users, each with one request at a time.
    Users(usize),
    /// As many users as the policy's admission limit lets in: `(n-1) T_high + T_low - 1`
    /// for n backends with LARD's thresholds, 25 and 65 [LARD98 §3.2].
    Admission,
    /// Requests come when they come.
    Open,
}

impl Pace {
    /// How many users on that many backends; none if it is open.
    pub fn users(self, backends: usize) -> Option<usize> {
        match self {
            Pace::Users(users) => Some(users.max(1)),
            Pace::Admission => Some(backends.saturating_sub(1) * 65 + 25 - 1),
            Pace::Open => None,
        }
    }
}

/// The requests of one run.
pub trait Source: Send {
    /// The next one of a user (of anyone in an open workload); none when it is over.
    fn next(&mut self, user: u32) -> Option<Ask>;
}

/// Objects and who asks for them.
pub trait Workload: Send + Sync + Debug {
    /// Its name in tables.
    fn name(&self) -> &str;

    /// What can be asked for.
    fn objects(&self) -> &[Object];

    /// Who asks.
    fn pace(&self) -> Pace;

    /// How many requests it has, if they end.
    fn requests(&self) -> Option<u64> {
        None
    }

    /// A run of it for so many users. The same seed gives the same requests.
    fn start(&self, seed: u64, users: usize) -> Box<dyn Source + '_>;

    /// Bytes of all objects.
    fn total_bytes(&self) -> u64 {
        self.objects().iter().map(|o| o.bytes).sum()
    }
}

/// A static file with a number for a name.
fn file(number: usize, bytes: u64) -> Object {
    Object {
        path: format!("/files/{}/{number}", number % 97)
            .into_bytes()
            .into(),
        query: None,
        bytes,
        kind: Kind::Static,
    }
}

/// Connections of so many requests each; users begin somewhere in the middle of one,
/// so that they do not all end at once.
#[derive(Clone, Debug)]
struct Connections {
    requests: u32,
    left: Vec<u32>,
}

impl Connections {
    fn new(requests: u32, users: usize) -> Self {
        let requests = requests.max(1);
        Connections {
            requests,
            left: (0..users as u32).map(|user| 1 + user % requests).collect(),
        }
    }

    fn then(&mut self, user: u32) -> Then {
        let left = &mut self.left[user as usize];
        *left -= 1;
        if *left > 0 {
            return Then::Keep;
        }
        *left = self.requests;
        Then::Close
    }
}

/// The names that [`named`] knows, and what they are.
pub const NAMES: [(&str, &str); 7] = [
    ("zipf", "20,000 files of 400 MB, popularity i^-0.9"),
    ("rice", "as the Rice trace of LARD98 is described: 1418 MB"),
    ("ibm", "as the IBM trace of LARD98 is described: 1029 MB"),
    ("surge", "SURGE: 1000 files, 300 users that think"),
    (
        "webbench",
        "WebBench-like: 340 MB, every file as popular as any",
    ),
    ("hot", "the same, 80 % of clicks for 10 % of pages"),
    ("mix", "the same, 30 % dynamic"),
];

/// A workload by its name.
pub fn named(name: &str, seed: u64) -> Option<Box<dyn Workload>> {
    Some(match name {
        "zipf" => Box::new(Zipf::new(20_000, 0.9, 400 << 20, seed)),
        "rice" => Box::new(Zipf::like_rice(seed)),
        "ibm" => Box::new(Zipf::like_ibm(seed)),
        "surge" => Box::new(Surge::new(1000, 300, seed)),
        "webbench" => Box::new(WebBench::new(WebBench::TOTAL_BYTES, seed)),
        "hot" => Box::new(WebBench::new(WebBench::TOTAL_BYTES, seed).hot(0.1, 0.8)),
        "mix" => Box::new(WebBench::new(WebBench::TOTAL_BYTES, seed).php(0.3)),
        _ => return None,
    })
}
