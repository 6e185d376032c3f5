//! What the simulated cluster is made of, and presets for published ones. Times are
//! in nanoseconds, sizes in bytes, rates in bits a second.

mod presets;

use serde::Serialize;

use crate::cache::Replacement;
use crate::station::Discipline;

/// A cluster.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Hardware {
    /// The preset that it began as.
    pub name: &'static str,
    /// How many backends.
    pub backends: usize,
    /// How many dispatchers; each has its own policy and sees what it has placed.
    pub dispatchers: usize,
    /// What each dispatcher spends.
    pub dispatcher: Dispatcher,
    /// What each backend is.
    pub backend: Backend,
    /// Where the clients are.
    pub clients: Clients,
    /// What happens to backends during a run.
    pub changes: Vec<Change>,
}

/// Something that happens to a backend. Dispatchers know it at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Change {
    /// When, from the run's beginning.
    pub at_ns: u64,
    /// Index of the backend.
    pub backend: usize,
    /// What.
    pub into: Condition,
}

/// How a backend is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Condition {
    /// It takes requests; if it was gone, with nothing in memory.
    Up,
    /// It gets no new connections; what it has goes on.
    Draining,
    /// Gone: what it was working on is asked for again, elsewhere.
    Gone,
}

/// What a dispatcher's one processor spends, first come first served.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Dispatcher {
    /// To forward a handshake to the backend that it places the connection on, where it
    /// does not look at a request.
    pub connection_ns: u64,
    /// To answer a handshake itself, where it waits for the request.
    pub handshake_ns: u64,
    /// To read a request and decide.
    pub request_ns: u64,
    /// On top of that, to move a connection to another backend.
    pub handoff_ns: u64,
    /// Until when a request is load to its policy.
    pub load_until: LoadUntil,
    /// To forward one more packet of a connection: an acknowledgement, of which there is
    /// one for two segments of answer, or a request that it does not look at.
    pub packet_ns: u64,
}

/// Until when a request is load to a dispatcher's policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LoadUntil {
    /// Its answer's end.
    Answer,
    /// The connection's next request, or its end: answers do not pass the dispatcher, and
    /// nobody tells it.
    NextRequest,
}

/// A backend.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Backend {
    /// Equal processors.
    pub cpus: usize,
    /// How its processors divide themselves.
    pub discipline: Discipline,
    /// Processor time to accept a connection, its handshake included.
    pub connect_ns: u64,
    /// Processor time to begin with a connection whose handshake the dispatcher has made.
    pub rebuild_ns: u64,
    /// Processor time to end one.
    pub close_ns: u64,
    /// Processor time for a request, besides sending.
    pub request_ns: u64,
    /// Processor time to send 512 bytes.
    pub send_512_ns: u64,
    /// Processor time to take over a connection that is handed off, or to give it
    /// away.
    pub handoff_ns: u64,
    /// Its disk.
    pub disk: Disk,
    /// Its memory for files.
    pub cache_bytes: u64,
    /// What leaves this memory.
    pub replacement: Replacement,
    /// Its link to the clients; none: never the limit.
    pub link_bps: Option<u64>,
}

/// A disk, first come first served.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Disk {
    /// Seeks and rotation before a file's first byte.
    pub latency_ns: u64,
    /// To transfer 4 KiB.
    pub transfer_4k_ns: u64,
    /// How far a file is in one piece.
    pub extent_bytes: u64,
    /// Another seek for each further extent.
    pub seek_ns: u64,
}

/// The clients' side.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Clients {
    /// Hosts that users are spread over.
    pub hosts: usize,
    /// Processor time of the user's host to ask, and to take the answer in. The host's
    /// users share its one processor.
    pub request_ns: u64,
    /// The same for 512 bytes of answer.
    pub receive_512_ns: u64,
    /// Each host's link; none: never the limit.
    pub link_bps: Option<u64>,
    /// What a request and its answer take on their way, whatever the load.
    pub round_trip_ns: u64,
}

impl Hardware {
    /// With that many backends.
    pub fn with_backends(mut self, backends: usize) -> Self {
        self.backends = backends;
        self
    }

    /// With that much memory for files on each backend.
    pub fn with_cache(mut self, bytes: u64) -> Self {
        self.backend.cache_bytes = bytes;
        self
    }
}

impl Disk {
    /// What it takes to read a whole file.
    pub fn read_ns(&self, bytes: u64) -> u64 {
        let further = bytes.saturating_sub(1) / self.extent_bytes;
        self.latency_ns + further * self.seek_ns + bytes.div_ceil(4096) * self.transfer_4k_ns
    }
}

impl Clients {
    /// Processor time of a request and its answer.
    pub fn work_ns(&self, bytes: u64) -> u64 {
        self.request_ns + bytes.div_ceil(512) * self.receive_512_ns
    }
}

impl Backend {
    /// Processor time to send an answer.
    pub fn send_ns(&self, bytes: u64) -> u64 {
        bytes.div_ceil(512) * self.send_512_ns
    }
}

/// What `bytes` of answer are on an Ethernet link: heads of about 300 bytes, and 78
/// bytes of frame for each segment of 1460.
pub fn wire_bytes(bytes: u64) -> u64 {
    let payload = bytes + 300;
    payload + payload.div_ceil(1460) * 78
}

/// Packets by which a client acknowledges so many bytes of answer: one for two segments
/// of 1460; what is left over goes with its next request, or with the end.
pub fn acknowledgements(bytes: u64) -> u64 {
    bytes.div_ceil(1460) / 2
}

/// The time that these bytes take on a link.
pub fn link_ns(wire_bytes: u64, bps: u64) -> u64 {
    (u128::from(wire_bytes) * 8 * 1_000_000_000 / u128::from(bps.max(1))) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// [LARD98 §3.1] gives about 1075 requests a second for 8 KB from memory.
    #[test]
    fn the_costs_of_lard98_add_up_to_its_peak_rate() {
        let backend = Hardware::lard98().backend;
        let cpu = backend.connect_ns + backend.send_ns(8192) + backend.close_ns;
        let rate = 1e9 / cpu as f64;
        assert!((1070.0..1080.0).contains(&rate), "{rate}");
    }

    #[test]
    fn a_disk_seeks_once_more_for_each_further_extent() {
        let disk = Hardware::lard98().backend.disk;
        let kb = 1024;
        assert_eq!(disk.read_ns(4 * kb), 28_410_000);
        assert_eq!(disk.read_ns(44 * kb), 28_000_000 + 11 * 410_000);
        assert_eq!(disk.read_ns(88 * kb), 42_000_000 + 22 * 410_000);
    }

    #[test]
    fn a_fast_ethernet_link_carries_what_it_should() {
        // 13 kB with heads and frames: about 880 a second.
        let ns = link_ns(wire_bytes(13_000), 100_000_000);
        assert!((1.0e6..1.2e6).contains(&(ns as f64)), "{ns}");
    }
}
