//! The nodes of a cluster.

use std::io;
use std::net::Ipv4Addr;
use std::time::Duration;

use trapeze_core::config::SprayMode;
use trapeze_core::membership;

use super::{Pod, padded};

pod!(
    struct Node {
        address: [u8; 4],
        signing_key: u32,
        mac: [u8; 6],
        behind: u8,
        among: u8,
        since_ns: u64,
        clock_offset_ns: u64,
        incarnation: u32,
        pad: u32,
    }
);
pod!(
    struct Presence {
        role: u32,
        says: u32,
        afterwards: u32,
        pad: u32,
        until_ns: u64,
    }
);
pod!(
    struct Peer {
        heard_ns: u64,
        beat: u32,
        role: u32,
        said: u32,
        pad: u32,
    }
);
pod!(
    struct Dispatcher {
        addr: [u8; 16],
        name: [u8; 32],
        source: [u8; 4],
        live: u32,
        resolved_ns: u64,
        ifindex: u32,
        destination_mac: [u8; 6],
        source_mac: [u8; 6],
        far: u32,
        elsewhere: u32,
    }
);
pod!(
    struct Spraying {
        mode: u32,
        batch: u32,
        k0: u64,
        k1: u64,
    }
);
pod!(
    struct Lots {
        slots: [u16; LOTS],
    }
);
pod!(
    struct Sent {
        at_ns: u64,
        turn: u32,
        slot: u16,
        start_length: u16,
        end_length: u16,
        pad: u16,
        start: [u8; SENT_START],
        end: [u8; SENT_END],
    }
);
pod!(
    struct SentRing {
        first: u32,
        entries: u32,
        turn: u32,
    }
);

/// How clients' packets come to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Front {
    /// The way back is the way that they came.
    Direct,
    /// By way of a spray, or a router that chooses a dispatcher: answers go by routes.
    Chosen,
    /// The same, and there are dispatchers to choose from: each has some of a flow's packets.
    Among,
    /// The same, and they are in sub-clusters: of some flows only others have records.
    AmongSubClusters,
}

/// Slots for dispatchers in a data path that knows several.
pub const DISPATCHERS_MAX: usize = 256;
/// Packets that are kept for the case that their dispatcher has died.
pub const SENT_ENTRIES: usize = 4096;
/// Of each so many bytes,
pub const SENT_START: usize = 1428;
/// and of what is behind them so many of its end, at most.
pub const SENT_END: usize = 1376;
/// `AMONG_SUB_CLUSTERS`.
pub const AMONG_SUB_CLUSTERS: u8 = 2;
/// Lots of a spray.
pub const LOTS: usize = trapeze_core::membership::lots::LOTS;

impl Node {
    /// This host, as a program on an interface should know it.
    /// Its data path came up at `since_ns` of the cluster's clock; 0: always there.
    pub fn here(
        address: Ipv4Addr,
        signing_key: u8,
        interface: &str,
        since_ns: u64,
        front: Front,
    ) -> io::Result<Self> {
        Ok(Self {
            address: address.octets(),
            signing_key: signing_key.into(),
            mac: crate::raw::mac_address(interface)?,
            behind: (front != Front::Direct).into(),
            among: match front {
                Front::Direct | Front::Chosen => 0,
                Front::Among => 1,
                Front::AmongSubClusters => AMONG_SUB_CLUSTERS,
            },
            since_ns,
            clock_offset_ns: crate::clock::cluster_offset_ns(),
            incarnation: crate::netns::incarnation(),
            pad: 0,
        })
    }
}

impl Presence {
    /// Says so for that long, counted from `now` on the monotonic clock; after that
    /// `afterwards`.
    pub fn new(
        says: membership::Presence,
        afterwards: membership::Presence,
        now: Duration,
        lease: Duration,
    ) -> Self {
        Self {
            role: says.role().into(),
            says: says.word(),
            afterwards: afterwards.word(),
            pad: 0,
            until_ns: (now + lease).as_nanos() as u64,
        }
    }

    /// What it says at `now`; none if it answers nobody.
    pub fn at(&self, now: Duration) -> Option<membership::Presence> {
        let word = match (now.as_nanos() as u64) < self.until_ns {
            true => self.says,
            false => self.afterwards,
        };
        membership::Presence::of(u8::try_from(self.role).ok()?, word)
    }
}

impl Spraying {
    /// As configured, for a cluster of that name.
    pub fn new(mode: SprayMode, cluster: &str) -> Self {
        let key = membership::lots::key(cluster);
        let word = |at: usize| u64::from_le_bytes(*key[at..].first_chunk().expect("16 bytes"));
        let (mode, batch) = match mode {
            SprayMode::Batch(packets) => (1, packets),
            SprayMode::Workload => (2, 1),
            SprayMode::FlowHash => (3, 1),
        };
        Self {
            mode,
            batch: batch.into(),
            k0: word(0),
            k1: word(8),
        }
    }
}

impl Dispatcher {
    /// The name, without its padding.
    pub fn name(&self) -> &str {
        padded(&self.name)
    }
}
