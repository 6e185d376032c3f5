//! SURGE (P. Barford, M. Crovella, SIGMETRICS 1998) as LACP03 used it: user
//! equivalents that load a page with its embedded objects, then think.
//!
//! Popularity is Zipf. Temporal locality: some requests repeat one of the recent
//! objects, at a lognormal depth of the LRU stack; the rest are independent. SURGE
//! arranges all requests in advance so that the depths come out; a fixed share
//! of repetitions needs no end of the run to be known.

use super::{Ask, Content, Object, Pace, Source, Then, Workload, file, sizes};
use crate::dist::{Dice, Weighted};

/// SURGE.
#[derive(Clone, Debug)]
pub struct Surge {
    objects: Vec<Object>,
    popularity: Weighted,
    users: usize,
    think: Think,
    repeated: f64,
    /// Factor of the times between pages.
    off: f64,
}

/// What users do between requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Think {
    OnOff,
    Never,
}

/// Share of requests that repeat a recent object. Chosen with [LACP03]'s one-user
/// table: the numbers of different objects there fit 1000 files with about this much.
const REPEATED: f64 = 0.3;
/// Depth of the LRU stack, table 2 of the SURGE paper.
const DEPTH: (f64, f64) = (1.5, 0.80);
/// Embedded references: Pareto.
const EMBEDDED: (f64, f64) = (1.0, 2.43);
/// Between the requests of a page, seconds: Weibull, cut at one second, as the ON
/// periods were told apart.
const ACTIVE_OFF: (f64, f64) = (1.46, 0.382);
const ACTIVE_OFF_MOST: f64 = 1.0;
/// Between pages, seconds: Pareto, cut at ten minutes.
const INACTIVE_OFF: (f64, f64) = (1.0, 1.5);
const INACTIVE_OFF_MOST: f64 = 600.0;

impl Surge {
    /// So many files up to 4 MB, and users.
    pub fn new(files: usize, users: usize, seed: u64) -> Self {
        let mut dice = Dice::new(seed, 0x5352_4745);
        let sizes = sizes::surge(files, 4096.0 * 1024.0, &mut dice);
        Surge {
            objects: sizes.iter().enumerate().map(|(i, &s)| file(i, s)).collect(),
            popularity: Weighted::zipf(files, 1.0),
            users,
            think: Think::OnOff,
            repeated: REPEATED,
            off: 1.0,
        }
    }

    /// With that share of requests, in 0..1, for a recent object.
    pub fn repeating(mut self, share: f64) -> Self {
        self.repeated = share;
        self
    }

    /// With off times between pages that many times as long.
    pub fn thinking(mut self, factor: f64) -> Self {
        self.off = factor;
        self
    }

    /// Users that ask again as soon as they are answered.
    pub fn without_off_times(mut self) -> Self {
        self.think = Think::Never;
        self
    }
}

impl Workload for Surge {
    fn name(&self) -> &str {
        "surge"
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
            dice: Dice::new(seed, 2),
            recent: Vec::with_capacity(STACK + 1),
            embedded_left: vec![None; users],
            patience: (0..users as u64)
                .map(|user| Dice::new(seed, 1000 + user))
                .collect(),
        })
    }
}

/// How much of the LRU stack is kept: deeper repetitions are one in a million.
const STACK: usize = 256;

struct Requests<'w> {
    workload: &'w Surge,
    dice: Dice,
    /// The most recent object last.
    recent: Vec<u32>,
    /// What each user's page still lacks; none before the first page.
    embedded_left: Vec<Option<u32>>,
    /// Each user's own: it thinks as long with every policy, whoever is answered first.
    patience: Vec<Dice>,
}

impl Source for Requests<'_> {
    fn next(&mut self, user: u32) -> Option<Ask> {
        let object = self.object();
        Some(Ask {
            object,
            bytes: self.workload.objects[object as usize].bytes,
            wait_ns: self.wait_ns(user),
            content: Content::Needed,
            then: Then::Close,
        })
    }
}

impl Requests<'_> {
    fn object(&mut self) -> u32 {
        let object = match self.dice.chance(self.workload.repeated) {
            true => self.repeated(),
            false => None,
        };
        let object = object.unwrap_or_else(|| self.workload.popularity.draw(&mut self.dice) as u32);
        if let Some(at) = self.recent.iter().rposition(|&o| o == object) {
            self.recent.remove(at);
        } else if self.recent.len() == STACK {
            self.recent.remove(0);
        }
        self.recent.push(object);
        object
    }

    fn repeated(&mut self) -> Option<u32> {
        let depth = self.dice.lognormal(DEPTH.0, DEPTH.1) as usize;
        let at = self.recent.len().checked_sub(1 + depth)?;
        Some(self.recent[at])
    }

    fn wait_ns(&mut self, user: u32) -> u64 {
        if self.workload.think == Think::Never {
            return 0;
        }
        let dice = &mut self.patience[user as usize];
        let left = &mut self.embedded_left[user as usize];
        let seconds = match *left {
            Some(more @ 1..) => {
                *left = Some(more - 1);
                loop {
                    let off = dice.weibull(ACTIVE_OFF.0, ACTIVE_OFF.1);
                    if off <= ACTIVE_OFF_MOST {
                        break off;
                    }
                }
            }
            before => {
                let embedded = dice.pareto(EMBEDDED.0, EMBEDDED.1);
                *left = Some((embedded as u32).min(1000));
                let off = dice.pareto(INACTIVE_OFF.0, INACTIVE_OFF.1);
                // Users do not begin in step.
                let phase = if before.is_none() { dice.unit() } else { 1.0 };
                off.min(INACTIVE_OFF_MOST) * phase * self.workload.off
            }
        };
        (seconds * 1e9) as u64
    }
}
