//! A backend's memory cache of whole files, with a budget in bytes. A file is in
//! it from the moment its read from disk is ordered; until the read is done those
//! who want it wait for the same read.

mod greedy_dual;
mod lru;

use serde::Serialize;

use greedy_dual::GreedyDual;
use lru::Lru;

/// What leaves when room is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Replacement {
    /// The least recently used.
    Lru,
    /// The one with the least value by GreedyDual-Size with equal costs: small and
    /// recent ones stay (P. Cao, S. Irani, USITS 1997).
    GreedyDualSize,
}

/// Files in memory; objects are numbered from 0.
#[derive(Clone, Debug)]
pub struct Cache {
    budget_bytes: u64,
    used_bytes: u64,
    /// Sizes of those that are in it, by object; [`ABSENT`] for the others.
    held: Vec<Held>,
    order: Order,
}

#[derive(Clone, Copy, Debug)]
struct Held {
    bytes: u64,
    ready_at: u64,
}

const ABSENT: Held = Held {
    bytes: u64::MAX,
    ready_at: 0,
};

#[derive(Clone, Debug)]
enum Order {
    Lru(Lru),
    GreedyDual(GreedyDual),
}

impl Cache {
    /// An empty cache for objects 0..`objects`.
    pub fn new(replacement: Replacement, budget_bytes: u64, objects: usize) -> Self {
        Cache {
            budget_bytes,
            used_bytes: 0,
            held: vec![ABSENT; objects],
            order: match replacement {
                Replacement::Lru => Order::Lru(Lru::new(objects)),
                Replacement::GreedyDualSize => Order::GreedyDual(GreedyDual::new(objects)),
            },
        }
    }

    /// When the object is or will be in memory; none if it is not there. A use.
    pub fn touch(&mut self, object: u32) -> Option<u64> {
        let held = self.held[object as usize];
        if held.bytes == ABSENT.bytes {
            return None;
        }
        match &mut self.order {
            Order::Lru(lru) => lru.used(object),
            Order::GreedyDual(gds) => gds.used(object, held.bytes),
        }
        Some(held.ready_at)
    }

    /// Puts in an object that is not there, to be ready at that time; others leave.
    /// One larger than the budget is not kept.
    pub fn insert(&mut self, object: u32, bytes: u64, ready_at: u64) {
        debug_assert_eq!(self.held[object as usize].bytes, ABSENT.bytes);
        if bytes > self.budget_bytes {
            return;
        }
        while self.used_bytes + bytes > self.budget_bytes {
            let gone = match &mut self.order {
                Order::Lru(lru) => lru.evict(),
                Order::GreedyDual(gds) => gds.evict(),
            };
            let gone = gone.expect("what is used is held") as usize;
            self.used_bytes -= self.held[gone].bytes;
            self.held[gone] = ABSENT;
        }
        self.used_bytes += bytes;
        self.held[object as usize] = Held { bytes, ready_at };
        match &mut self.order {
            Order::Lru(lru) => lru.inserted(object),
            Order::GreedyDual(gds) => gds.used(object, bytes),
        }
    }

    /// Bytes of what is in it, at most the budget.
    #[cfg(test)]
    fn used_bytes(&self) -> u64 {
        self.used_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// LRU as one would write it without a thought for speed.
    #[derive(Default)]
    struct Plain {
        recent_first: Vec<(u32, u64)>,
    }

    impl Plain {
        fn ask(&mut self, object: u32, bytes: u64, budget: u64) -> bool {
            let at = self.recent_first.iter().position(|(o, _)| *o == object);
            let hit = at.map(|at| self.recent_first.remove(at)).is_some();
            if hit || bytes <= budget {
                self.recent_first.insert(0, (object, bytes));
            }
            while self.recent_first.iter().map(|(_, b)| b).sum::<u64>() > budget {
                self.recent_first.pop();
            }
            hit
        }
    }

    proptest! {
        #[test]
        fn lru_is_lru_and_keeps_the_budget(
            sizes in prop::collection::vec(0u64..60, 20),
            asked in prop::collection::vec(0u32..20, 0..400),
            budget in 0u64..300,
        ) {
            let mut cache = Cache::new(Replacement::Lru, budget, 20);
            let mut plain = Plain::default();
            for object in asked {
                let bytes = sizes[object as usize];
                let hit = cache.touch(object).is_some();
                if !hit {
                    cache.insert(object, bytes, 0);
                }
                prop_assert_eq!(hit, plain.ask(object, bytes, budget));
                prop_assert!(cache.used_bytes() <= budget);
                prop_assert_eq!(cache.used_bytes(), plain.recent_first.iter().map(|(_, b)| b).sum::<u64>());
            }
        }

        #[test]
        fn greedy_dual_keeps_the_budget_and_what_was_just_used(
            sizes in prop::collection::vec(1u64..60, 20),
            asked in prop::collection::vec(0u32..20, 0..400),
            budget in 60u64..300,
        ) {
            let mut cache = Cache::new(Replacement::GreedyDualSize, budget, 20);
            for object in asked {
                if cache.touch(object).is_none() {
                    cache.insert(object, sizes[object as usize], 0);
                }
                prop_assert!(cache.used_bytes() <= budget);
                prop_assert!(cache.touch(object).is_some());
            }
        }
    }

    #[test]
    fn greedy_dual_lets_the_large_go_first() {
        let mut cache = Cache::new(Replacement::GreedyDualSize, 100, 4);
        cache.insert(0, 10, 0);
        cache.insert(1, 80, 0);
        cache.insert(2, 20, 0);
        assert!(cache.touch(0).is_some() && cache.touch(2).is_some());
        assert!(cache.touch(1).is_none());
    }
}
