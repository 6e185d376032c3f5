//! Independent requests with Zipf popularity, SURGE's file sizes, users that do not
//! wait. The plainest workload with locality.

use super::{Ask, Connections, Content, Object, Pace, Source, Workload, file, sizes};
use crate::dist::{Dice, Weighted};

/// Zipf popularity.
#[derive(Clone, Debug)]
pub struct Zipf {
    name: String,
    objects: Vec<Object>,
    popularity: Weighted,
    requests_per_connection: u32,
    pace: Pace,
}

impl Zipf {
    /// So many files; the request rate of the one of rank i is in proportion to
    /// `i^-exponent`. Sizes are scaled to a total.
    pub fn new(files: usize, exponent: f64, total_bytes: u64, seed: u64) -> Self {
        let mut dice = Dice::new(seed, 0x7a69_7066);
        // Sizes here have nothing to do with popularity.
        let mut sizes = sizes::surge(files, 8e6, &mut dice);
        dice.shuffle(&mut sizes);
        Self::of_sizes(&sizes, exponent, total_bytes)
    }

    /// The most popular file's size first; scaled to a total.
    fn of_sizes(sizes: &[u64], exponent: f64, total_bytes: u64) -> Self {
        let scale = total_bytes as f64 / sizes.iter().sum::<u64>() as f64;
        Zipf {
            name: "zipf".to_owned(),
            objects: (sizes.iter().enumerate())
                .map(|(i, &bytes)| file(i, (bytes as f64 * scale).ceil() as u64))
                .collect(),
            popularity: Weighted::zipf(sizes.len(), exponent),
            requests_per_connection: 1,
            pace: Pace::Admission,
        }
    }

    /// As the Rice University trace of [LARD98 §4.1] is described: 37,703 files of
    /// 1418 MB, and 97, 98 and 99 % of requests covered by 560, 705 and 927 MB
    /// (figures from memory of the paper). The curve is Zipf's with the top flattened
    /// (Mandelbrot), fitted to that coverage; sizes have nothing to do with popularity.
    pub fn like_rice(seed: u64) -> Self {
        let popularity = flattened(37_703, 20.0, 1.35);
        Zipf {
            popularity,
            ..Self::new(37_703, 1.0, 1418 << 20, seed).named("rice")
        }
    }

    /// As the IBM trace of [LARD98 §4.1] is described: 38,527 files of 1029 MB, and
    /// 97, 98 and 99 % of requests covered by 51, 80 and 182 MB (from memory too). What
    /// is asked for is smaller than at Rice: popular files are rather the small ones
    /// ([`sizes::loosely`]), and the curve is fitted with that.
    pub fn like_ibm(seed: u64) -> Self {
        const FILES: usize = 38_527;
        let mut dice = Dice::new(seed, 0x7a69_7067);
        let sizes = sizes::loosely(sizes::surge(FILES, 8e6, &mut dice), &mut dice);
        Zipf {
            popularity: flattened(FILES, 160.0, 1.9),
            ..Self::of_sizes(&sizes, 1.0, 1029 << 20).named("ibm")
        }
    }

    /// Under another name.
    pub fn named(mut self, name: &str) -> Self {
        self.name = name.to_owned();
        self
    }

    /// With connections of so many requests.
    pub fn requests_per_connection(mut self, requests: u32) -> Self {
        self.requests_per_connection = requests;
        self
    }

    /// With other users.
    pub fn paced(mut self, pace: Pace) -> Self {
        self.pace = pace;
        self
    }
}

/// The file of rank i is asked for in proportion to `(i + offset)^-exponent`.
fn flattened(files: usize, offset: f64, exponent: f64) -> Weighted {
    let weight = |rank: usize| (rank as f64 + offset).powf(-exponent);
    Weighted::new(&(1..=files).map(weight).collect::<Vec<f64>>())
}

impl Workload for Zipf {
    fn name(&self) -> &str {
        &self.name
    }

    fn objects(&self) -> &[Object] {
        &self.objects
    }

    fn pace(&self) -> Pace {
        self.pace
    }

    fn start(&self, seed: u64, users: usize) -> Box<dyn Source + '_> {
        Box::new(Requests {
            workload: self,
            dice: Dice::new(seed, 1),
            connections: Connections::new(self.requests_per_connection, users),
        })
    }
}

struct Requests<'w> {
    workload: &'w Zipf,
    dice: Dice,
    connections: Connections,
}

impl Source for Requests<'_> {
    fn next(&mut self, user: u32) -> Option<Ask> {
        let object = self.workload.popularity.draw(&mut self.dice);
        Some(Ask {
            object: object as u32,
            bytes: self.workload.objects[object].bytes,
            wait_ns: 0,
            content: Content::Needed,
            then: self.connections.then(user),
        })
    }
}
