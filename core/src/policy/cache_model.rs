//! What each backend probably has in memory: what it was given last, up to a number of
//! bytes. A second chance instead of LRU, as in [`super::objects`].

use std::collections::VecDeque;

use super::objects::Objects;
use super::{BackendId, Backends, Candidate, Finished, Memory};

/// Parameters of a model of the backends' memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheParameters {
    /// What a backend can keep of files, in MiB (1..=16,777,216; default 1024).
    pub memory_mib: u64,
    /// Objects that are remembered (1..=100,000,000; default a million), 43 bytes each
    /// and 16 for each of up to two copies a backend.
    pub objects: usize,
}

impl Default for CacheParameters {
    fn default() -> Self {
        CacheParameters {
            memory_mib: 1024,
            objects: super::OBJECTS,
        }
    }
}

#[derive(Debug)]
pub(super) struct CacheModel {
    parameters: CacheParameters,
    objects: Objects<Copies>,
    /// By id.
    caches: Vec<Cache>,
}

/// Up to eight backends have the object; of more, the first is forgotten.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Copies {
    /// The answer's size; 0 before the first.
    bytes: u32,
    len: u8,
    /// A bit for each of `ids`: asked for again since its cache looked at it.
    again: u8,
    /// A bit for each of `ids`: not answered yet, and so not in its cache's queue.
    reading: u8,
    ids: [u16; WIDTH],
}

const WIDTH: usize = 8;

/// In the order in which a backend will forget.
#[derive(Debug, Default)]
struct Cache {
    queue: VecDeque<Item>,
    bytes: u64,
}

#[derive(Debug)]
struct Item {
    object: u64,
    bytes: u32,
}

impl CacheModel {
    pub(super) fn new(parameters: CacheParameters) -> Self {
        CacheModel {
            parameters,
            objects: Objects::new(parameters.objects),
            caches: Vec::new(),
        }
    }

    /// Who has the object, probably.
    pub(super) fn copies(&self, object: u64) -> Copies {
        self.objects.get(object).copied().unwrap_or_default()
    }

    /// The backend was asked for the object: it has it, or will have.
    pub(super) fn placed(&mut self, object: u64, id: BackendId) {
        let copies = self.objects.touch_or_insert(object);
        if let Some(at) = copies.position(id) {
            copies.again |= 1 << at;
            return;
        }
        if usize::from(copies.len) == WIDTH {
            copies.remove(0);
        }
        copies.push(id);
    }

    /// Now the size is known, and others have to make room. Whether the backend had to
    /// read it: as it says, else as the model has it; none if the object is forgotten.
    pub(super) fn finished(&mut self, finished: &Finished) -> Option<bool> {
        let (object, id) = (finished.request.object, finished.backend);
        let bytes = finished.bytes.clamp(1, u32::MAX.into()) as u32;
        let copies = self.objects.get_mut(object)?;
        copies.bytes = bytes;
        let at = copies.position(id)?;
        let reading = copies.reading & 1 << at != 0;
        if reading {
            copies.reading &= !(1 << at);
            self.keep(id, Item { object, bytes });
        }
        Some(finished.hit.map_or(reading, |hit| !hit))
    }

    /// The answer will not come: what was not there before is not there now.
    pub(super) fn lost(&mut self, object: u64, id: BackendId) {
        let Some(copies) = self.objects.get_mut(object) else {
            return;
        };
        if let Some(at) = copies.position(id)
            && copies.reading & 1 << at != 0
        {
            copies.remove(at);
            if copies.len == 0 {
                self.objects.remove(object);
            }
        }
    }

    fn keep(&mut self, id: BackendId, item: Item) {
        if self.caches.len() <= id.index() {
            self.caches.resize_with(id.index() + 1, Cache::default);
        }
        let items_max = (2 * self.parameters.objects / self.caches.len()).max(16);
        let cache = &mut self.caches[id.index()];
        cache.bytes += u64::from(item.bytes);
        cache.queue.push_back(item);
        while cache.bytes > self.parameters.memory_mib << 20 || cache.queue.len() > items_max {
            cache.forget_one(id, &mut self.objects);
        }
    }

    pub(super) fn memory(&self) -> Memory {
        let items: usize = self.caches.iter().map(|c| c.queue.capacity()).sum();
        Memory {
            objects: self.objects.len(),
            objects_max: self.objects.max(),
            bytes: self.objects.bytes() + items * size_of::<Item>(),
        }
    }
}

impl Cache {
    fn forget_one(&mut self, id: BackendId, objects: &mut Objects<Copies>) {
        let Some(item) = self.queue.pop_front() else {
            self.bytes = 0;
            return;
        };
        self.bytes -= u64::from(item.bytes);
        let Some(copies) = objects.get_mut(item.object) else {
            return;
        };
        let Some(at) = copies.position(id) else {
            return;
        };
        if copies.again & 1 << at != 0 {
            copies.again &= !(1 << at);
            let bytes = copies.bytes.max(1);
            self.bytes += u64::from(bytes);
            self.queue.push_back(Item { bytes, ..item });
            return;
        }
        copies.remove(at);
        if copies.len == 0 {
            objects.remove(item.object);
        }
    }
}

impl Copies {
    /// The backends that have it and can be chosen.
    pub(super) fn open<'b>(
        &'b self,
        backends: &'b Backends,
    ) -> impl Iterator<Item = &'b Candidate> + Clone {
        (self.ids().iter()).filter_map(|&id| backends.get_open(BackendId(id)))
    }

    fn ids(&self) -> &[u16] {
        &self.ids[..self.len.into()]
    }

    fn position(&self, id: BackendId) -> Option<usize> {
        self.ids().iter().position(|&other| other == id.0)
    }

    fn push(&mut self, id: BackendId) {
        self.ids[usize::from(self.len)] = id.0;
        self.again &= !(1 << self.len);
        self.reading |= 1 << self.len;
        self.len += 1;
    }

    fn remove(&mut self, at: usize) {
        self.ids.copy_within(at + 1..usize::from(self.len), at);
        self.len -= 1;
        let close = |bits: u8| {
            let below = bits & ((1 << at) - 1);
            below | (bits >> 1) & !((1 << at) - 1)
        };
        self.again = close(self.again);
        self.reading = close(self.reading);
    }
}
