//! How long processes have been interrupted by softirqs (bpf/softirq.bpf.c): what a process's
//! processor time has in it that is not its own.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use libbpf_rs::{Link, MapCore, Object, ObjectBuilder};

use crate::clock;
use crate::map::Map;

static SOFTIRQ: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/softirq.o"));

/// As long as this lives, all softirqs of the machine are timed, some 60 ns for each.
#[derive(Debug)]
pub struct Interruptions {
    interrupted: Map<u32, u64>,
    _links: Vec<Link>,
    _object: Object,
}

impl Interruptions {
    /// Begins to time them.
    ///
    /// # Errors
    /// The kernel's: it needs root.
    pub fn begin() -> io::Result<Self> {
        let object = ObjectBuilder::default()
            .open_memory(SOFTIRQ)
            .and_then(|open| open.load())
            .map_err(io::Error::other)?;
        let links = (object.progs_mut())
            .map(|program| program.attach())
            .collect::<Result<_, _>>()
            .map_err(io::Error::other)?;
        let map = (object.maps())
            .find(|map| map.name() == "interrupted")
            .expect("the object has it");
        Ok(Self {
            interrupted: Map::from_fd(map.as_fd().try_clone_to_owned()?)?,
            _links: links,
            _object: object,
        })
    }

    /// Of all threads of that process, since [`Interruptions::begin`].
    ///
    /// # Errors
    /// The kernel's.
    pub fn of(&self, pid: u32) -> io::Result<Duration> {
        let nanoseconds = self.interrupted.get(&pid)?.unwrap_or(0);
        Ok(Duration::from_nanos(nanoseconds))
    }

    /// The processor time that the process has had for itself.
    ///
    /// # Errors
    /// There is no such process.
    pub fn own_time(&self, pid: u32) -> io::Result<Duration> {
        Ok(clock::of_process(pid)?.saturating_sub(self.of(pid)?))
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    #[test]
    fn what_is_received_while_it_is_sent_is_an_interruption() {
        let interruptions = Interruptions::begin().expect("as root");
        let pid = std::process::id();
        let receiver = UdpSocket::bind("127.0.0.1:0").expect("loopback is there");
        let sender = UdpSocket::bind("127.0.0.1:0").expect("loopback is there");
        let to = receiver.local_addr().expect("it is bound");
        for _ in 0..10_000 {
            sender.send_to(&[0; 1000], to).expect("nothing limits it");
        }
        let interrupted = interruptions.of(pid).expect("it is read");
        let all = clock::of_process(pid).expect("it runs");
        assert!(
            interrupted > Duration::ZERO && interrupted < all,
            "{interrupted:?} of {all:?}"
        );
        let own = interruptions.own_time(pid).expect("it runs");
        assert!(own > Duration::ZERO && own < all, "{own:?} of {all:?}");
    }
}
