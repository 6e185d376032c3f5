//! What a policy remembers of objects: a hash table with a bound, that forgets what
//! was not asked for lately.
//!
//! - Two cache lines at most for an object that is found: slots hold the values, and
//!   collisions go to the next slot.
//! - Full, it forgets by second chance (CLOCK; F. J. Corbató, "A paging experiment
//!   with the Multics system", 1968): as LRU for what is asked for often, without
//!   lists to mend at each request; what was asked for once goes first.
//! - It grows by shards of some thousand objects, so that no request waits for the
//!   whole table to be copied.

use super::hash::mix;

/// Up to `max` objects with a `V` each.
#[derive(Debug)]
pub(super) struct Objects<V> {
    /// A power of two of them.
    shards: Vec<Shard<V>>,
    /// The most objects in a shard.
    shard_max: usize,
}

/// Linear probing over a ring of slots, at most three quarters of them occupied.
#[derive(Debug)]
struct Shard<V> {
    slots: Vec<Slot<V>>,
    occupied: usize,
    /// Where the search for something to forget goes on.
    hand: usize,
}

/// ```text
/// key: 0, or | hash, upper 62 bits | asked for again | 1 |
/// ```
#[derive(Clone, Copy, Debug, Default)]
struct Slot<V> {
    key: u64,
    value: V,
}

const OCCUPIED: u64 = 1;
const ASKED_AGAIN: u64 = 2;
const HASH: u64 = !3;

const SHARD_OBJECTS: usize = 4096;

impl<V: Copy + Default> Objects<V> {
    pub(super) fn new(max: usize) -> Self {
        let max = max.max(1);
        let mut shards = (max / SHARD_OBJECTS).max(1).next_power_of_two();
        if shards > 1 {
            // Not more shards than full ones.
            shards /= 2;
        }
        Objects {
            shard_max: max / shards,
            shards: std::iter::repeat_with(Shard::default)
                .take(shards)
                .collect(),
        }
    }

    /// What is remembered of the object.
    pub(super) fn get(&self, object: u64) -> Option<&V> {
        let hash = mix(object);
        let shard = &self.shards[self.shard(hash)];
        shard.find(hash).map(|at| &shard.slots[at].value)
    }

    /// The same, to write to; it has not been asked for.
    pub(super) fn get_mut(&mut self, object: u64) -> Option<&mut V> {
        let hash = mix(object);
        let at_shard = self.shard(hash);
        let shard = &mut self.shards[at_shard];
        shard.find(hash).map(|at| &mut shard.slots[at].value)
    }

    /// The same; it has been asked for. One that was not known begins with the default.
    pub(super) fn touch_or_insert(&mut self, object: u64) -> &mut V {
        let hash = mix(object);
        let (at_shard, max) = (self.shard(hash), self.shard_max);
        let shard = &mut self.shards[at_shard];
        let at = match shard.find(hash) {
            Some(at) => {
                shard.slots[at].key |= ASKED_AGAIN;
                at
            }
            None => shard.insert(hash, max),
        };
        &mut shard.slots[at].value
    }

    pub(super) fn remove(&mut self, object: u64) {
        let hash = mix(object);
        let at_shard = self.shard(hash);
        let shard = &mut self.shards[at_shard];
        if let Some(at) = shard.find(hash) {
            shard.remove(at);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.shards.iter().map(|s| s.occupied).sum()
    }

    /// The most objects it will hold.
    pub(super) fn max(&self) -> usize {
        self.shard_max * self.shards.len()
    }

    pub(super) fn bytes(&self) -> usize {
        let slots: usize = self.shards.iter().map(|s| s.slots.capacity()).sum();
        slots * size_of::<Slot<V>>() + self.shards.capacity() * size_of::<Shard<V>>()
    }

    /// By the hash's upper bits; [`home`] takes those below.
    fn shard(&self, hash: u64) -> usize {
        ((u128::from(hash) * self.shards.len() as u128) >> 64) as usize
    }
}

impl<V> Default for Shard<V> {
    fn default() -> Self {
        Shard {
            slots: Vec::new(),
            occupied: 0,
            hand: 0,
        }
    }
}

impl<V: Copy + Default> Shard<V> {
    fn find(&self, hash: u64) -> Option<usize> {
        if self.slots.is_empty() {
            return None;
        }
        let mut at = home(hash, self.slots.len());
        loop {
            let key = self.slots[at].key;
            if key == 0 {
                return None;
            }
            if (key ^ hash) & HASH == 0 {
                return Some(at);
            }
            at = self.after(at);
        }
    }

    fn insert(&mut self, hash: u64, max: usize) -> usize {
        if self.occupied >= max {
            self.forget_one();
        } else if (self.occupied + 1) * 4 > self.slots.len() * 3 {
            self.grow(max);
        }
        self.occupied += 1;
        self.put(hash & HASH | OCCUPIED, V::default())
    }

    fn put(&mut self, key: u64, value: V) -> usize {
        let mut at = home(key, self.slots.len());
        while self.slots[at].key != 0 {
            at = self.after(at);
        }
        self.slots[at] = Slot { key, value };
        at
    }

    fn grow(&mut self, max: usize) {
        let enough = max * 4 / 3 + 2;
        let slots = (self.slots.len() * 2).clamp(8, enough.max(8));
        let old = std::mem::replace(&mut self.slots, vec![Slot::default(); slots]);
        self.hand = 0;
        for slot in old.into_iter().filter(|s| s.key != 0) {
            self.put(slot.key, slot.value);
        }
    }

    fn forget_one(&mut self) {
        loop {
            let at = self.hand;
            self.hand = self.after(at);
            let slot = &mut self.slots[at];
            if slot.key & ASKED_AGAIN != 0 {
                slot.key &= !ASKED_AGAIN;
            } else if slot.key != 0 {
                return self.remove(at);
            }
        }
    }

    /// Those behind it that were pushed away from their home move up, so that no
    /// search stops early.
    fn remove(&mut self, mut gap: usize) {
        self.occupied -= 1;
        let len = self.slots.len();
        let mut at = gap;
        loop {
            at = self.after(at);
            let slot = self.slots[at];
            if slot.key == 0 {
                break;
            }
            let from_home = (at + len - home(slot.key, len)) % len;
            let from_gap = (at + len - gap) % len;
            if from_home >= from_gap {
                self.slots[gap] = slot;
                gap = at;
            }
        }
        self.slots[gap] = Slot::default();
    }

    fn after(&self, at: usize) -> usize {
        if at + 1 == self.slots.len() {
            0
        } else {
            at + 1
        }
    }
}

/// Where a search begins. The upper 16 bits chose the shard.
fn home(hash: u64, slots: usize) -> usize {
    ((u128::from((hash & HASH) << 16) * slots as u128) >> 64) as usize
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::Objects;

    proptest! {
        /// While nothing has to be forgotten it is a map.
        #[test]
        fn it_is_a_map(steps in prop::collection::vec((0u64..200, 0u8..3), 0..600)) {
            let mut objects = Objects::<u32>::new(200);
            let mut model = HashMap::new();
            for (i, (object, step)) in (0u32..).zip(steps) {
                match step {
                    0 => {
                        *objects.touch_or_insert(object) = i;
                        model.insert(object, i);
                    }
                    1 => {
                        objects.remove(object);
                        model.remove(&object);
                    }
                    _ => prop_assert_eq!(objects.get_mut(object).copied(), model.get(&object).copied()),
                }
                prop_assert_eq!(objects.len(), model.len());
            }
            for object in 0..200 {
                prop_assert_eq!(objects.get(object), model.get(&object));
            }
        }

        #[test]
        fn it_never_holds_more_than_its_bound(max in 1usize..10_000, count in 0u64..12_000) {
            let mut objects = Objects::<u16>::new(max);
            for object in 0..count {
                *objects.touch_or_insert(object) = object as u16;
            }
            prop_assert!(count == 0 || objects.get(count - 1) == Some(&((count - 1) as u16)));
            prop_assert!(objects.len() <= objects.max() && objects.max() <= max);
            prop_assert!(objects.len() + objects.max() / 4 >= objects.max().min(count as usize));
        }
    }

    #[test]
    fn what_is_asked_for_often_stays() {
        let mut objects = Objects::<u16>::new(1000);
        for object in 0..100_000u64 {
            objects.touch_or_insert(object + 10);
            for often in 0..10 {
                objects.touch_or_insert(often);
            }
        }
        assert!((0..10).all(|often| objects.get(often).is_some()));
    }

    #[test]
    fn a_million_objects_take_what_is_promised() {
        let mut objects = Objects::<[u32; 6]>::new(1_000_000);
        for object in 0..1_100_000u64 {
            objects.touch_or_insert(object);
        }
        // 32 bytes a slot, three of four occupied.
        assert!(objects.len() > 990_000, "{}", objects.len());
        assert!(objects.bytes() < 44_000_000, "{}", objects.bytes());
    }
}
