//! An origin server's objects: some in memory, all on a disk that reads one at a
//! time. The disk is simulated: a read is a wait, in the order of asking.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::cache::{Body, Cache};
use super::settings::{OriginSettings, mebibytes};
use crate::objects;

/// What has been asked of a server, and what of it was in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OriginCounts {
    /// Requests for objects: hits and misses.
    pub requests: u64,
    /// Objects that were in memory.
    pub hits: u64,
    /// Objects that were not.
    pub misses: u64,
    /// Reads from disk: misses, but for those that found their object being read.
    pub reads: u64,
    /// Bytes of objects asked for.
    pub bytes: u64,
    /// How long the disk has been busy, in microseconds; reads that wait for it included.
    pub disk_us: u64,
    /// Objects in memory now.
    pub cache_objects: u64,
    /// Their bytes.
    pub cache_bytes: u64,
    /// The most bytes that fit.
    pub cache_limit: u64,
}

impl OriginCounts {
    /// The share of requests that were hits, 0 to 1; none without requests.
    pub fn hit_ratio(&self) -> Option<f64> {
        (self.requests > 0).then(|| self.hits as f64 / self.requests as f64)
    }

    /// What was counted since an earlier moment.
    pub fn since(&self, earlier: &OriginCounts) -> OriginCounts {
        OriginCounts {
            requests: self.requests - earlier.requests,
            hits: self.hits - earlier.hits,
            misses: self.misses - earlier.misses,
            reads: self.reads - earlier.reads,
            bytes: self.bytes - earlier.bytes,
            disk_us: self.disk_us - earlier.disk_us,
            ..*self
        }
    }
}

impl fmt::Display for OriginCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} objects, {} of {}; {} requests, {} hits, {} reads",
            self.cache_objects,
            mebibytes(self.cache_bytes),
            mebibytes(self.cache_limit),
            self.requests,
            self.hits,
            self.reads
        )
    }
}

/// Whether an object was in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// It was.
    Hit,
    /// It came from disk.
    Miss,
}

/// The objects of one server.
pub struct Store {
    settings: OriginSettings,
    shared: Mutex<Shared>,
}

struct Shared {
    cache: Cache,
    /// Objects that are being read, with those who wait for them.
    reading: HashMap<u64, Arc<OnceLock<Body>>>,
    disk: Disk,
    counts: OriginCounts,
}

/// One disk arm. Who asks is told when its read will be done.
struct Disk {
    free_at: Instant,
}

impl Disk {
    fn read(&mut self, now: Instant, time: Duration) -> Instant {
        self.free_at = self.free_at.max(now) + time;
        self.free_at
    }
}

impl Store {
    /// With nothing in memory.
    pub fn new(settings: OriginSettings) -> Self {
        Store {
            shared: Mutex::new(Shared {
                cache: Cache::new(settings.cache_bytes),
                reading: HashMap::new(),
                disk: Disk {
                    free_at: Instant::now(),
                },
                counts: OriginCounts::default(),
            }),
            settings,
        }
    }

    /// The object, once it is in memory. A read serves all who wait for it, as in the
    /// LARD paper's model (Pai et al., ASPLOS 1998, §3.1).
    pub fn get(&self, number: u64) -> (Body, Found) {
        let size = objects::size(number);
        let mut shared = self.lock();
        shared.counts.requests += 1;
        shared.counts.bytes += size;
        if let Some(body) = shared.cache.get(number) {
            shared.counts.hits += 1;
            return (body, Found::Hit);
        }
        shared.counts.misses += 1;
        if let Some(reading) = shared.reading.get(&number).map(Arc::clone) {
            drop(shared);
            return (Arc::clone(reading.wait()), Found::Miss);
        }
        let reading = Arc::default();
        shared.reading.insert(number, Arc::clone(&reading));
        let time = self.settings.read_time(size);
        let done_at = shared.disk.read(Instant::now(), time);
        shared.counts.reads += 1;
        shared.counts.disk_us += time.as_micros() as u64;
        drop(shared);

        let body: Body = objects::body(number).into();
        std::thread::sleep(done_at.saturating_duration_since(Instant::now()));
        let mut shared = self.lock();
        shared.cache.insert(number, Arc::clone(&body));
        shared.reading.remove(&number);
        drop(shared);
        // Nobody else sets it: there is one reader of an object at a time.
        let _ = reading.set(Arc::clone(&body));
        (body, Found::Miss)
    }

    /// What was asked since the last [`Store::flush`].
    pub fn counts(&self) -> OriginCounts {
        let shared = self.lock();
        OriginCounts {
            cache_objects: shared.cache.len() as u64,
            cache_bytes: shared.cache.bytes(),
            cache_limit: self.settings.cache_bytes,
            ..shared.counts
        }
    }

    /// Forgets all objects in memory, and begins to count at zero.
    pub fn flush(&self) {
        let mut shared = self.lock();
        shared.cache.clear();
        shared.counts = OriginCounts::default();
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared
            .lock()
            .expect("no thread panics while it holds this")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(cache_bytes: u64, miss: Duration) -> Store {
        Store::new(OriginSettings {
            cache_bytes,
            miss,
            ..OriginSettings::default()
        })
    }

    #[test]
    fn the_second_time_an_object_is_in_memory() {
        let store = store(1 << 20, Duration::ZERO);
        let (body, found) = store.get(5);
        assert_eq!((&body[..], found), (&objects::body(5)[..], Found::Miss));
        assert_eq!(store.get(5), (body, Found::Hit));
        let counts = store.counts();
        assert_eq!((counts.requests, counts.hits, counts.reads), (2, 1, 1));
        assert_eq!(counts.bytes, 2 * objects::size(5));
        assert_eq!(counts.cache_bytes, objects::size(5));
        store.flush();
        assert_eq!(store.counts().requests, 0);
        assert_eq!(store.get(5).1, Found::Miss);
    }

    #[test]
    fn the_disk_reads_one_after_the_other() {
        let now = Instant::now();
        let ms = Duration::from_millis;
        let mut disk = Disk { free_at: now };
        assert_eq!(disk.read(now, ms(5)), now + ms(5));
        assert_eq!(disk.read(now + ms(1), ms(5)), now + ms(10));
        assert_eq!(disk.read(now + ms(20), ms(5)), now + ms(25));
    }

    #[test]
    fn one_read_serves_all_who_wait_for_it() {
        let store = store(1 << 20, Duration::from_millis(200));
        std::thread::scope(|scope| {
            let all: Vec<_> = (0..8).map(|_| scope.spawn(|| store.get(9))).collect();
            for one in all {
                assert_eq!(one.join().unwrap().0[..], objects::body(9)[..]);
            }
        });
        let counts = store.counts();
        assert_eq!((counts.requests, counts.reads), (8, 1));
        assert_eq!(counts.hits + counts.misses, 8);
        assert!(counts.disk_us >= 200_000);
    }
}
