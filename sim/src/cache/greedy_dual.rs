//! GreedyDual-Size with cost 1 (P. Cao, S. Irani, "Cost-aware WWW proxy caching
//! algorithms", USITS 1997): a file is worth L + 1/size when used, the least worthy
//! leaves, and L becomes what it was worth.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

#[derive(Clone, Debug)]
pub(super) struct GreedyDual {
    inflation: f64,
    /// The worth of each object's last use; an entry of `heap` that says otherwise
    /// is outdated. Worths are not negative, so that their bits are in order.
    worth: Vec<u64>,
    heap: BinaryHeap<Reverse<(u64, u32)>>,
    held: usize,
}

impl GreedyDual {
    pub(super) fn new(objects: usize) -> Self {
        GreedyDual {
            inflation: 0.0,
            worth: vec![GONE; objects],
            heap: BinaryHeap::new(),
            held: 0,
        }
    }

    pub(super) fn used(&mut self, object: u32, bytes: u64) {
        let worth = (self.inflation + 1.0 / bytes.max(1) as f64).to_bits();
        let old = std::mem::replace(&mut self.worth[object as usize], worth);
        self.held += usize::from(old == GONE);
        if old != worth {
            self.heap.push(Reverse((worth, object)));
        }
        if self.heap.len() > 4 * self.held + 64 {
            self.forget_outdated();
        }
    }

    pub(super) fn evict(&mut self) -> Option<u32> {
        while let Some(Reverse((worth, object))) = self.heap.pop() {
            if self.worth[object as usize] == worth {
                self.worth[object as usize] = GONE;
                self.held -= 1;
                self.inflation = f64::from_bits(worth);
                return Some(object);
            }
        }
        None
    }

    fn forget_outdated(&mut self) {
        let worth = &self.worth;
        self.heap
            .retain(|Reverse((w, object))| worth[*object as usize] == *w);
    }
}

const GONE: u64 = u64::MAX;
