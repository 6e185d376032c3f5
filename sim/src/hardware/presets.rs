//! Published hardware. Where a paper gives a cost, it is that; what it leaves open
//! is said here to be chosen, and is the same for every policy.

use super::{Backend, Clients, Disk, Dispatcher, Hardware, LoadUntil};
use crate::cache::Replacement;
use crate::station::Discipline;

const US: u64 = 1_000;
const MS: u64 = 1_000_000;
const FAST_ETHERNET: u64 = 100_000_000;

impl Hardware {
    /// The names that [`Hardware::preset`] knows.
    pub const PRESETS: [&'static str; 4] = ["lard98", "lacp03", "lvscad07", "today"];

    /// A preset by name.
    pub fn preset(name: &str) -> Option<Self> {
        match name {
            "lard98" => Some(Self::lard98()),
            "lacp03" => Some(Self::lacp03()),
            "lvscad07" => Some(Self::lvscad07()),
            "today" => Some(Self::today()),
            _ => None,
        }
    }

    /// [LARD98 §3.1]: costs measured on a 300 MHz Pentium II with FreeBSD. Front end
    /// and network are fast enough not to matter. The paper's cache is GreedyDual-Size;
    /// ours is LRU by default, which it tried too.
    pub fn lard98() -> Self {
        Hardware {
            name: "lard98",
            backends: 8,
            dispatchers: 1,
            dispatcher: Dispatcher {
                connection_ns: 0,
                handshake_ns: 0,
                request_ns: 0,
                handoff_ns: 0,
                load_until: LoadUntil::Answer,
                packet_ns: 0,
            },
            backend: Backend {
                cpus: 1,
                discipline: Discipline::Fifo,
                connect_ns: 145 * US,
                rebuild_ns: 145 * US,
                close_ns: 145 * US,
                request_ns: 0,
                send_512_ns: 40 * US,
                handoff_ns: 145 * US,
                disk: Disk {
                    latency_ns: 28 * MS,
                    transfer_4k_ns: 410 * US,
                    extent_bytes: 44 << 10,
                    seek_ns: 14 * MS,
                },
                cache_bytes: 32 << 20,
                replacement: Replacement::Lru,
                link_bps: None,
            },
            clients: Clients {
                hosts: 1,
                request_ns: 0,
                receive_512_ns: 0,
                link_bps: None,
                round_trip_ns: 0,
            },
            changes: Vec::new(),
        }
    }

    /// [LACP03]: PCs with two Pentium II of 350 MHz, 128 MB, EIDE disk, Fast Ethernet,
    /// Apache 1.3. The dispatcher's 38, 87 and 17 µs are the paper's. Processor costs
    /// are those of [LARD98] at 350 MHz, and 150 µs for Apache. The disk follows from
    /// the paper's table for one user: with the misses that its counts of different
    /// objects make, two of its three mean latencies give 2.0 ms for a hit and
    /// 24.6 ms more for a miss. Memory for files is chosen, and small: the six PCs were
    /// servers and clients at once, with a hundred Apache processes and SURGE's threads
    /// in 128 MB.
    pub fn lacp03() -> Self {
        Hardware {
            name: "lacp03",
            backends: 3,
            dispatchers: 1,
            dispatcher: Dispatcher {
                connection_ns: 38 * US,
                handshake_ns: 38 * US,
                request_ns: 49 * US,
                handoff_ns: 0,
                load_until: LoadUntil::Answer,
                packet_ns: 17 * US,
            },
            backend: Backend {
                cpus: 2,
                discipline: Discipline::Sharing,
                connect_ns: 124 * US,
                rebuild_ns: 124 * US,
                close_ns: 124 * US,
                request_ns: 150 * US,
                send_512_ns: 34 * US,
                handoff_ns: 124 * US,
                disk: Disk {
                    latency_ns: 23 * MS,
                    transfer_4k_ns: 410 * US,
                    extent_bytes: 4 << 20,
                    seek_ns: 12 * MS,
                },
                cache_bytes: 2 << 20,
                replacement: Replacement::Lru,
                link_bps: Some(FAST_ETHERNET),
            },
            clients: Clients {
                hosts: 3,
                request_ns: 0,
                receive_512_ns: 0,
                link_bps: Some(FAST_ETHERNET),
                round_trip_ns: 300 * US,
            },
            changes: Vec::new(),
        }
    }

    /// [LVSCAD07 §6.1]: Pentium 4 of 2.4 GHz, 256 MB, disks of 7200 rpm, Fast Ethernet by
    /// RTL8139, Apache 2.0; six client PCs, the slowest a Pentium III of 800 MHz. The paper
    /// gives no times. Chosen:
    /// - the front end: 35 µs for each packet that it forwards or answers, and nothing for
    ///   the ACK that it drops (§4.1). Of a connection LVS has SYN, ACK, request and end,
    ///   four, where LVS-CAD has three; a move is one more, to end the connection at the
    ///   backend that had it (§3.2). It does not see answers, and takes a request off a
    ///   backend's load by the client's next packet of that kind (§5.1);
    /// - backends: half a millisecond of processor for a page of 13 kB; 5 µs less for a
    ///   connection that is rebuilt, which calls the same functions of TCP without three
    ///   packets (§3.1); 300 µs on each side of a handoff, as a connection begins and
    ///   ends, and one process of Apache wakes and another sleeps; 7 ms to read a page,
    ///   half a turn and a short seek; half of the memory for files, in pages of 4 KB;
    /// - clients: 2.1 ms for a page of 13 kB, nearly all of it for each byte.
    pub fn lvscad07() -> Self {
        Hardware {
            name: "lvscad07",
            backends: 8,
            dispatchers: 1,
            dispatcher: Dispatcher {
                connection_ns: 4 * 35 * US,
                handshake_ns: 2 * 35 * US,
                request_ns: 38 * US,
                handoff_ns: 35 * US,
                load_until: LoadUntil::NextRequest,
                packet_ns: 35 * US,
            },
            backend: Backend {
                cpus: 1,
                discipline: Discipline::Sharing,
                connect_ns: 100 * US,
                rebuild_ns: 95 * US,
                close_ns: 50 * US,
                request_ns: 400 * US,
                send_512_ns: 4 * US,
                handoff_ns: 300 * US,
                disk: Disk {
                    latency_ns: 7 * MS,
                    transfer_4k_ns: 100 * US,
                    extent_bytes: 128 << 10,
                    seek_ns: 6 * MS,
                },
                cache_bytes: 128 << 20,
                replacement: Replacement::Lru,
                link_bps: Some(FAST_ETHERNET),
            },
            clients: Clients {
                hosts: 6,
                request_ns: 100 * US,
                receive_512_ns: 80 * US,
                link_bps: Some(FAST_ETHERNET),
                round_trip_ns: 300 * US,
            },
            changes: Vec::new(),
        }
    }

    /// Hosts of the 2020s, chosen: eight processors, 10 Gbit/s, files on a network
    /// disk with 1 ms latency, 16 GB for files. Our own dispatcher's costs.
    pub fn today() -> Self {
        Hardware {
            name: "today",
            backends: 8,
            dispatchers: 1,
            dispatcher: Dispatcher {
                connection_ns: 5 * US,
                handshake_ns: 5 * US,
                request_ns: 3 * US,
                handoff_ns: 5 * US,
                load_until: LoadUntil::Answer,
                packet_ns: 300,
            },
            backend: Backend {
                cpus: 8,
                discipline: Discipline::Sharing,
                connect_ns: 15 * US,
                rebuild_ns: 15 * US,
                close_ns: 10 * US,
                request_ns: 30 * US,
                send_512_ns: 200,
                handoff_ns: 15 * US,
                disk: Disk {
                    latency_ns: MS,
                    transfer_4k_ns: 8 * US,
                    extent_bytes: 1 << 20,
                    seek_ns: 200 * US,
                },
                cache_bytes: 16 << 30,
                replacement: Replacement::Lru,
                link_bps: Some(10_000_000_000),
            },
            clients: Clients {
                hosts: 1,
                request_ns: 0,
                receive_512_ns: 0,
                link_bps: None,
                round_trip_ns: MS,
            },
            changes: Vec::new(),
        }
    }
}
