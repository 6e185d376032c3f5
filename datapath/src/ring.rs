//! A ring buffer by which a data path tells its daemon things of one kind.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::abi::{self, BegunAnswer, Pod};

/// What a ring tells of.
pub trait Told: Sized + Send + 'static {
    /// `None`: these are no such thing's bytes.
    fn read(bytes: &[u8]) -> Option<Self>;
}

impl<T: Pod + Send + 'static> Told for T {
    fn read(bytes: &[u8]) -> Option<Self> {
        abi::read(bytes)
    }
}

/// An answer that may outlive its backend has begun.
#[derive(Debug, Clone)]
pub struct Begun {
    /// Which, and where it stands.
    pub answer: BegunAnswer,
    bytes: Box<[u8]>,
}

impl Begun {
    /// The answer's head, as it was sent.
    pub fn head(&self) -> &[u8] {
        &self.bytes[..usize::from(self.answer.head_length)]
    }

    /// The packet that brought the request, from IPv4 on; empty if that was not one alone.
    pub fn request(&self) -> &[u8] {
        &self.bytes[usize::from(self.answer.head_length)..]
    }
}

impl Told for Begun {
    fn read(bytes: &[u8]) -> Option<Self> {
        let (answer, bytes) = bytes.split_at_checked(size_of::<BegunAnswer>())?;
        let answer = abi::read::<BegunAnswer>(answer)?;
        let length = usize::from(answer.head_length) + usize::from(answer.request_length);
        Some(Self {
            answer,
            bytes: bytes.get(..length)?.into(),
        })
    }
}

/// The reading end; one at a time.
pub struct Ring<T> {
    ring: libbpf_rs::RingBuffer<'static>,
    taken: Arc<Mutex<Vec<T>>>,
}

impl<T: Told> Ring<T> {
    /// Of the ring that is pinned there.
    pub fn open(pin: &Path) -> io::Result<Self> {
        let map = libbpf_rs::MapHandle::from_pinned_path(pin).map_err(io::Error::other)?;
        let taken = Arc::<Mutex<Vec<T>>>::default();
        let mut builder = libbpf_rs::RingBufferBuilder::new();
        let into = taken.clone();
        let take = move |bytes: &[u8]| {
            if let Some(told) = T::read(bytes) {
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

    /// All since the last call; waits so long, unless there is something that its data path wakes
    /// its reader for, or the process has been stopped and goes on.
    pub fn gather(&self, timeout: Duration) -> io::Result<Vec<T>> {
        match self.ring.poll(timeout) {
            Err(error) if error.kind() != libbpf_rs::ErrorKind::Interrupted => {
                Err(io::Error::other(error))
            }
            _ => self.take(),
        }
    }
}
