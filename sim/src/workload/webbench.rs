//! WebBench-like requests [LVSCAD07 §6]: a large set of files in classes by size,
//! users that do not wait, connections with several requests; a share of clicks for
//! a share of hot pages; a share of dynamic pages.

use super::{Ask, Connections, Content, Kind, Object, Pace, Source, Workload};
use crate::dist::{Dice, Weighted};

/// WebBench.
#[derive(Clone, Debug)]
pub struct WebBench {
    name: String,
    objects: Vec<Object>,
    /// Objects in classes; each class is asked for evenly.
    classes: Vec<Vec<u32>>,
    class: Weighted,
    users: usize,
    requests_per_connection: u32,
}

/// Users: two threads on each of six clients. [LVSCAD07 §6.1] does not say how many;
/// tests of the time let WebBench's clients run two (Mindcraft, 1999) to five (PC
/// Magazine's tests with WebBench 5.0).
const USERS: usize = 12;
/// Requests of a connection. Chosen.
const REQUESTS_PER_CONNECTION: u32 = 8;

impl WebBench {
    /// What [LVSCAD07 §6.1] has: 340 MB.
    pub const TOTAL_BYTES: u64 = 340_000_000;

    /// Files of `total_bytes` in all, 13 kB on average, each asked for as often as any
    /// other [LVSCAD07 §6.1].
    pub fn new(total_bytes: u64, seed: u64) -> Self {
        let mut dice = Dice::new(seed, 0x5742);
        let mut objects = Vec::new();
        let mut bytes = 0;
        while bytes < total_bytes {
            // Around 13 kB, with the spread of a web site's files.
            let size = dice.lognormal(13_000f64.ln() - 0.5, 1.0) as u64;
            bytes += size;
            objects.push(page(objects.len(), size, Kind::Static));
        }
        let all: Vec<u32> = (0..objects.len() as u32).collect();
        WebBench {
            name: "webbench".to_owned(),
            objects,
            classes: vec![all],
            class: Weighted::new(&[1.0]),
            users: USERS,
            requests_per_connection: REQUESTS_PER_CONNECTION,
        }
    }

    /// Gives `clicks` of all requests to the first `pages` of the files; both are
    /// shares in 0..1 [LVSCAD07 §6.4].
    pub fn hot(mut self, pages: f64, clicks: f64) -> Self {
        let files = self.classes.concat();
        let hot = ((files.len() as f64 * pages) as usize).clamp(1, files.len() - 1);
        self.name = format!("hot {:.0}%/{:.0}%", pages * 100.0, clicks * 100.0);
        self.classes = vec![files[..hot].to_vec(), files[hot..].to_vec()];
        self.class = Weighted::new(&[clicks, 1.0 - clicks]);
        self
    }

    /// Makes that share of requests, in 0..1, dynamic [LVSCAD07 §6.5]: `scripts` pages
    /// that run for `work_ns` and answer with `bytes`.
    pub fn dynamic(mut self, share: f64, scripts: usize, work_ns: u64, bytes: u64) -> Self {
        let first = self.objects.len();
        self.name = format!("{:.0}s{:.0}d", 100.0 - share * 100.0, share * 100.0);
        for number in 0..scripts {
            self.objects
                .push(page(number, bytes, Kind::Dynamic { work_ns }));
        }
        let scripts = (first as u32..self.objects.len() as u32).collect();
        self.classes = vec![self.classes.concat(), scripts];
        self.class = Weighted::new(&[1.0 - share, share]);
        self
    }

    /// As [`WebBench::dynamic`], with the pages that we take for [LVSCAD07 §6.5]'s,
    /// whose pages, not whose requests, are mixed: as many PHP pages as the share has it,
    /// each asked for as often as a file. What one takes is not said: 7 ms on its
    /// Pentium 4, and 8 kB.
    pub fn php(self, share: f64) -> Self {
        let files = self.objects.len() as f64;
        let pages = (files * share / (1.0 - share)).round() as usize;
        self.dynamic(share, pages, 7_000_000, 8_000)
    }

    /// Only one file of so many bytes [LVSCAD07 §6.2], one request for a connection: the
    /// figures of §6.3 have HTTP/1.1 in their captions and §6.2's has not, and WebBench
    /// keeps no connection with HTTP/1.0.
    pub fn one_file(bytes: u64) -> Self {
        WebBench {
            name: "one file".to_owned(),
            objects: vec![page(0, bytes, Kind::Static)],
            classes: vec![vec![0]],
            class: Weighted::new(&[1.0]),
            users: USERS,
            requests_per_connection: 1,
        }
    }

    /// With so many users.
    pub fn users(mut self, users: usize) -> Self {
        self.users = users;
        self
    }

    /// With connections of so many requests.
    pub fn requests_per_connection(mut self, requests: u32) -> Self {
        self.requests_per_connection = requests;
        self
    }
}

fn page(number: usize, bytes: u64, kind: Kind) -> Object {
    let (directory, ending) = match kind {
        Kind::Static => ("wb", "html"),
        Kind::Dynamic { .. } => ("cgi", "php"),
    };
    Object {
        path: format!("/{directory}/{number}.{ending}")
            .into_bytes()
            .into(),
        query: None,
        bytes,
        kind,
    }
}

impl Workload for WebBench {
    fn name(&self) -> &str {
        &self.name
    }

    fn objects(&self) -> &[Object] {
        &self.objects
    }

    fn pace(&self) -> Pace {
        Pace::Users(self.users)
    }

    fn start(&self, seed: u64, users: usize) -> Box<dyn Source + '_> {
        Box::new(Requests {
            workload: self,
            dice: Dice::new(seed, 3),
            connections: Connections::new(self.requests_per_connection, users),
        })
    }
}

struct Requests<'w> {
    workload: &'w WebBench,
    dice: Dice,
    connections: Connections,
}

impl Source for Requests<'_> {
    fn next(&mut self, user: u32) -> Option<Ask> {
        let class = &self.workload.classes[self.workload.class.draw(&mut self.dice)];
        let object = class[self.dice.below(class.len())];
        Some(Ask {
            object,
            bytes: self.workload.objects[object as usize].bytes,
            wait_ns: 0,
            content: Content::Needed,
            then: self.connections.then(user),
        })
    }
}
