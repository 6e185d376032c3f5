//! A ring buffer by which a data path tells its daemon things of one kind.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::abi::{self, Pod};

/// The reading end; one at a time.
pub struct Ring<T: Pod> {
    ring: libbpf_rs::RingBuffer<'static>,
    taken: Arc<Mutex<Vec<T>>>,
}

impl<T: Pod + Send + 'static> Ring<T> {
    /// Of the ring that is pinned there.
    pub fn open(pin: &Path) -> io::Result<Self> {
        let map = libbpf_rs::MapHandle::from_pinned_path(pin).map_err(io::Error::other)?;
        let taken = Arc::<Mutex<Vec<T>>>::default();
        let mut builder = libbpf_rs::RingBufferBuilder::new();
        let into = taken.clone();
        let take = move |bytes: &[u8]| {
            if let Some(told) = abi::read(bytes) {
                into.lock().expect("nobody panics with it").push(told);
            }
            0
        };
        builder.add(&map, take).map_err(io::Error::other)?;
        let ring = builder.build().map_err(io::Error::other)?;
        Ok(Self { ring, taken })
    }

    /// All since the last call, of a ring whose data path does not wake anybody.
    pub fn take(&self) -> io::Result<Vec<T>> {
        self.ring.consume().map_err(io::Error::other)?;
        let mut taken = self.taken.lock().expect("nobody panics with it");
        Ok(std::mem::take(&mut taken))
    }

    /// All since the last call; waits for the first at most so long.
    pub fn wait(&self, timeout: Duration) -> io::Result<Vec<T>> {
        self.ring.poll(timeout).map_err(io::Error::other)?;
        let mut taken = self.taken.lock().expect("nobody panics with it");
        Ok(std::mem::take(&mut taken))
    }
}
