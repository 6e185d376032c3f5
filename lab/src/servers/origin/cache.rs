//! Bodies in memory, the least recently used of which give way.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// An object's bytes, shared by those who send them.
pub type Body = Arc<[u8]>;

/// Up to so many bytes of bodies.
pub struct Cache {
    limit: u64,
    bytes: u64,
    /// Grows with each use.
    uses: u64,
    bodies: HashMap<u64, (u64, Body)>,
    /// Who was used when, the longest ago first.
    by_use: BTreeMap<u64, u64>,
}

impl Cache {
    /// An empty one.
    pub fn new(limit: u64) -> Self {
        Cache {
            limit,
            bytes: 0,
            uses: 0,
            bodies: HashMap::new(),
            by_use: BTreeMap::new(),
        }
    }

    /// The body, which counts as used.
    pub fn get(&mut self, number: u64) -> Option<Body> {
        let (used, body) = self.bodies.get_mut(&number)?;
        self.by_use.remove(used);
        self.uses += 1;
        *used = self.uses;
        self.by_use.insert(self.uses, number);
        Some(Arc::clone(body))
    }

    /// Keeps a body that is not in it, unless it is larger than the whole cache.
    pub fn insert(&mut self, number: u64, body: Body) {
        let length = body.len() as u64;
        if length > self.limit || self.bodies.contains_key(&number) {
            return;
        }
        while self.bytes + length > self.limit {
            let (_, oldest) = self.by_use.pop_first().expect("bytes are somebody's");
            let (_, body) = self.bodies.remove(&oldest).expect("it is in both");
            self.bytes -= body.len() as u64;
        }
        self.uses += 1;
        self.by_use.insert(self.uses, number);
        self.bodies.insert(number, (self.uses, body));
        self.bytes += length;
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        *self = Cache::new(self.limit);
    }

    /// How many bodies there are.
    pub fn len(&self) -> usize {
        self.bodies.len()
    }

    /// Their bytes, at most the limit.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(length: usize) -> Body {
        vec![0; length].into()
    }

    #[test]
    fn who_was_not_used_for_longest_gives_way() {
        let mut cache = Cache::new(100);
        for number in 1..=3 {
            cache.insert(number, body(30));
        }
        assert!(cache.get(1).is_some());
        cache.insert(4, body(40));
        let there: Vec<u64> = (1..=4)
            .filter(|&number| cache.get(number).is_some())
            .collect();
        assert_eq!(there, [1, 3, 4]);
        assert_eq!((cache.len(), cache.bytes()), (3, 100));
        cache.insert(5, body(100));
        assert_eq!((cache.len(), cache.bytes()), (1, 100));
        cache.clear();
        assert_eq!((cache.len(), cache.bytes()), (0, 0));
    }

    #[test]
    fn what_can_never_fit_evicts_nobody() {
        let mut cache = Cache::new(100);
        cache.insert(1, body(60));
        cache.insert(2, body(101));
        assert!(cache.get(1).is_some() && cache.get(2).is_none());
        // A second reader of the same object changes nothing.
        cache.insert(1, body(60));
        assert_eq!((cache.len(), cache.bytes()), (1, 60));
    }
}
