//! The Rust mirror of `bpf/include/abi.h`: map keys and values as the programs
//! see them. `tests/abi_layout.rs` holds it against the objects' BTF.

#![allow(missing_docs)] // The fields are documented where they are shared: in abi.h.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};
use std::time::Duration;

use trapeze_core::config::SprayMode;
use trapeze_core::flow::{FlowKey as CoreKey, addr_bytes, addr_from_bytes};
use trapeze_core::membership;
use trapeze_core::splice::Splice as SpliceTerms;

include!(concat!(env!("OUT_DIR"), "/names.rs"));

/// Types that are the same bytes in a map and in memory.
///
/// # Safety
/// `repr(C)`, no padding whose content matters, valid for every bit pattern.
pub unsafe trait Pod: Copy {
    /// All bytes zero.
    fn zeroed() -> Self {
        // SAFETY: every bit pattern is valid.
        unsafe { std::mem::zeroed() }
    }
}

/// A value of these bytes, if they are as many.
pub fn read<T: Pod>(bytes: &[u8]) -> Option<T> {
    // SAFETY: as many bytes as T has, valid for every pattern, read unaligned.
    (bytes.len() == size_of::<T>()).then(|| unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
}

macro_rules! pod {
    ($(#[$doc:meta])* struct $name:ident { $($field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name { $(pub $field: $type,)* }

        // SAFETY: integers and arrays of integers only.
        unsafe impl Pod for $name {}

        impl $name {
            /// Field names with their offsets, and the size: for the layout test.
            pub const LAYOUT: (&'static str, usize, &'static [(&'static str, usize)]) = (
                stringify!($name),
                std::mem::size_of::<$name>(),
                &[$((stringify!($field), std::mem::offset_of!($name, $field)),)*],
            );
        }
    };
}

// SAFETY: plain integers.
unsafe impl Pod for u32 {}
// SAFETY: plain integers.
unsafe impl Pod for u64 {}

pod!(
    struct FlowKey {
        client_addr: [u8; 16],
        vip_addr: [u8; 16],
        client_port: [u8; 2],
        vip_port: [u8; 2],
    }
);
pod!(
    struct ServiceKey {
        addr: [u8; 16],
        port: [u8; 2],
        pad: u16,
    }
);
pod!(
    struct Service {
        id: u32,
        mss: u16,
        window_scale: u8,
        ecn: u8,
    }
);
pod!(
    struct Flow {
        meta: [u8; 32],
        client_isn: u32,
        server_isn: u32,
        backend: u32,
        state: u32,
        last_seq: u32,
        last_ack: u32,
        pool: u32,
        syn_isn: u32,
        created_ns: u64,
        last_seen_ns: u64,
        syn_seen_ns: u64,
        packets: u64,
        bytes: u64,
        object: u64,
        acked_ns: u64,
        charge_us: u32,
        shared: u32,
        kind: u16,
        class: u8,
        report: u8,
        marks: u32,
        asked_ns: u64,
        next: u32,
        expect: u32,
        asked_ack: u32,
        requests: u32,
        cookie: u32,
        busy: u32,
        before: [u8; 32],
        previous: u32,
        server_isn_before: u32,
        requests_before: u32,
        window: u32,
        version: u32,
        maker: [u8; 4],
        told: u32,
        idle_end: u32,
        refreshed_ns: u64,
        idle_epoch: u32,
        idle_requests: u32,
        splice: Splice,
        turn: u32,
        answer_end: u32,
        idle_from: u32,
        idle_heard: u32,
        began: u32,
        pad: u32,
    }
);
pod!(
    struct Splice {
        address: [u8; 4],
        port: [u8; 2],
        server_port: [u8; 2],
        ahead: u32,
        clock_ahead: u32,
        to_server_shift: u8,
        to_client_shift: i8,
        changes: u8,
        pad: u8,
    }
);
pod!(
    struct Spliced {
        flow: FlowKey,
        state: u32,
        splice: Splice,
        server_ack: u32,
        resolved_ns: u64,
        ifindex: u32,
        destination_mac: [u8; 6],
        source_mac: [u8; 6],
    }
);
pod!(
    struct Split {
        client: [u8; 4],
        vip: [u8; 4],
        client_port: [u8; 2],
        vip_port: [u8; 2],
        client_isn: u32,
        known_isn: u32,
        echo: u32,
        server_isn: u32,
        clock: u32,
        ahead: u32,
        clock_ahead: u32,
        to_client_shift: i8,
        answered: u8,
        window_scales: u8,
        tcp_options: u8,
        pad: u32,
        told_ns: u64,
    }
);
pod!(
    struct FlowChange {
        key: FlowKey,
        pad: u32,
        before: Flow,
        after: Flow,
    }
);
pod!(
    struct Finished {
        object: u64,
        bytes: u64,
        elapsed_ns: u64,
        ended_ns: u64,
        charge_us: u32,
        shared: u32,
        pool: u32,
        slot: u32,
        kind: u16,
        class: u8,
        lost: u8,
        stood: u32,
    }
);
pod!(
    struct Backend {
        addr: [u8; 16],
        name: [u8; 32],
        source: [u8; 4],
        silent: u32,
        resolved_ns: u64,
        ifindex: u32,
        destination_mac: [u8; 6],
        source_mac: [u8; 6],
    }
);
pod!(
    struct BackendLoad {
        active: i64,
        total: u64,
        cost_us: i64,
        stood: u64,
    }
);
pod!(
    struct SiphashKey {
        k0: u64,
        k1: u64,
        generation: u64,
    }
);
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
    struct Proof {
        client_isn: u32,
        server_isn: u32,
        mss: u16,
        window_scales: u8,
        tcp_options: u8,
        older_epoch: u32,
        created_ns: u64,
    }
);
pod!(
    struct Standing {
        valid_until_ns: u64,
        k0: u64,
        k1: u64,
        generation: u32,
        epoch_floor: u32,
    }
);
pod!(
    struct DecisionKey {
        likeness: u64,
        service: u32,
        pad: u32,
    }
);
pod!(
    struct Decision {
        generation: u32,
        pool: u32,
        slot: u32,
        server_port: [u8; 2],
        care: u8,
        stays: u8,
        since_ns: u64,
        until_ns: u64,
        most_us: i64,
        charge_us: u32,
        placed: u32,
        others_count: u16,
        row: u16,
        move_us: u32,
        others: [Turn; OTHERS_MAX],
    }
);
pod!(
    struct Turn {
        slot: u32,
        server_port: [u8; 2],
        pad: u16,
    }
);
pod!(
    struct Turns {
        next: u64,
        count: u64,
        turns: [Turn; TURNS_MAX],
    }
);
pod!(
    struct Setup {
        meta: [u8; 32],
        epoch: u32,
        start: u32,
        state: u32,
        dispatcher: [u8; 4],
        created_ns: u64,
        answers: Answers,
        refused_epoch: u32,
        next: [u8; 4],
        clock_offset: u32,
        wanted: u32,
        end: u32,
        wanted_after: u16,
        was_wanted: u8,
        saved: u8,
        heard_ns: u64,
        before: [u8; 4],
        first: u32,
        before_epoch: u32,
        before_start: u32,
        refused: u8,
        waiting: u8,
        reason: u8,
        seated: u8,
        origin: u16,
        parked: u8,
        shifted: u8,
        client_shift: u32,
        server_shift: u32,
        clock_shift: u32,
        reach: u32,
        last_clock: u32,
        told: u32,
        begun: u32,
        asked: u16,
        ahead: u16,
        replacing: u32,
        met: u32,
        met_ns: u64,
        withheld: u32,
        pad: u32,
    }
);
pod!(
    struct Withheld {
        key: FlowKey,
        seq: u32,
        ack: u32,
    }
);
pod!(
    struct Done {
        key: FlowKey,
        dispatcher: [u8; 4],
        meta: [u8; 32],
        end: u32,
    }
);
pod!(
    struct BegunAnswer {
        key: FlowKey,
        dispatcher: [u8; 4],
        length: u64,
        epoch: u32,
        at: u32,
        clock_offset: u32,
        answer: u16,
        head_length: u16,
        request_length: u16,
        pad: u16,
        taken: u32,
    }
);
pod!(
    struct UnreadKey {
        client: [u8; 4],
        vip: [u8; 4],
        client_port: [u8; 2],
        vip_port: [u8; 2],
        behind: u32,
    }
);
pod!(
    struct Unread {
        key: UnreadKey,
        busy: u32,
        length: u32,
        seq: u32,
        packet: [u8; UNREAD_MAX],
    }
);
pod!(
    struct Protection {
        from: u64,
        once: u64,
    }
);
pod!(
    struct Adoption {
        key: FlowKey,
        epoch: u32,
        remaining: u64,
        command: u32,
        end: u32,
    }
);
pod!(
    struct Answers {
        remaining: u64,
        next: u32,
        taken: u32,
        finished: u16,
        flags: u16,
        phase: u8,
        line_length: u8,
        unread: u8,
        busy: u8,
        line: [u8; 64],
    }
);
pod!(
    struct Overheard {
        answers: Answers,
        busy: u32,
        clock: u32,
        told: u32,
        start: u32,
        end: u32,
        closes: u8,
        parted: u8,
        window_scale: u8,
        pad: u8,
        edge: u32,
        pad2: u32,
    }
);
pod!(
    struct Parting {
        key: FlowKey,
        start: u32,
        requests: u32,
        heard: u32,
        told: u32,
        end: u32,
        clock: u32,
    }
);
pod!(
    struct Feedback {
        sampled_ns: u64,
        cpu_permille: u32,
        memory_permille: u32,
    }
);
pod!(
    struct HealthWord {
        said_ns: u64,
        bytes: [u8; trapeze_core::health::word::LEN],
    }
);
pod!(
    struct ServerKey {
        port: [u8; 2],
        pad: u16,
    }
);
pod!(
    struct Server {
        addr: [u8; 16],
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

/// `enum flow_state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum FlowState {
    Reading = 1,
    Established = 2,
    ClientFin = 3,
    Reset = 4,
    Vacant = 5,
}

impl Flow {
    /// Has the client had a byte of the answer to its latest request?
    pub fn is_answered(&self) -> bool {
        self.last_ack.wrapping_sub(self.asked_ack).cast_signed() > 0
    }
}

impl FlowState {
    /// The state of a record, if it is one.
    pub fn from_raw(raw: u32) -> Option<Self> {
        Some(match raw {
            1 => Self::Reading,
            2 => Self::Established,
            3 => Self::ClientFin,
            4 => Self::Reset,
            5 => Self::Vacant,
            _ => return None,
        })
    }

    /// As shown to people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Reading => "reading",
            Self::Established => "established",
            Self::ClientFin => "closing",
            Self::Reset => "reset",
            Self::Vacant => "vacant",
        }
    }
}

/// `enum setup_state`: its socket has spoken, or was seen.
pub const SETUP_CONFIRMED: u32 = 2;
/// `enum setup_state`: given up, and given up with bytes on the way.
pub const SETUP_MOVED: u32 = 4;
/// As above.
pub const SETUP_OLDER: u32 = 6;
/// Bytes that the encapsulation adds to a packet.
pub const ENCAP_LEN: usize = 72;
/// UDP port of the encapsulation (RFC 8926).
pub const GENEVE_PORT: u16 = 6081;
/// UDP port on which dispatchers' daemons hear each other, in the same encapsulation.
pub const PEERS_PORT: u16 = 6082;
/// Slots for backends in a dispatcher's data path.
pub const BACKENDS_MAX: usize = 1024;
/// Slots for dispatchers in a data path that knows several.
pub const DISPATCHERS_MAX: usize = 256;
/// `AMONG_SUB_CLUSTERS`.
pub const AMONG_SUB_CLUSTERS: u8 = 2;
/// Lots of a spray.
pub const LOTS: usize = trapeze_core::membership::lots::LOTS;
/// Bytes of a client's packet of which a copy is kept, from IPv4 on.
pub const UNREAD_MAX: usize = 1580;
/// Pools that can have turns in a dispatcher's data path.
pub const POOLS_MAX: usize = 256;
/// Turns of a pool.
pub const TURNS_MAX: usize = 512;
/// As in abi.h.
pub const OTHERS_MAX: usize = 3;
/// A decision's slot when its pool takes turns.
pub const SLOT_BY_TURNS: u32 = u32::MAX;
/// Epochs: the cluster's clock in units of 2^this nanoseconds.
pub const EPOCH_SHIFT: u32 = 20;

/// The epoch of a time of the cluster's clock (RFC 1982: it wraps).
pub fn epoch(cluster: std::time::Duration) -> u32 {
    (cluster.as_nanos() >> EPOCH_SHIFT) as u32
}

/// Epochs of a flow that moves often run ahead of the clock by no more than this.
pub const EPOCH_LEAD_MAX: i32 = 1 << 15;
/// A mark of a flow without boundaries: TLS, HTTP/2, an upgrade.
pub const MARK_TUNNEL: u32 = 1;
/// A mark of a flow whose next request the daemon is at work on.
pub const MARK_HELD: u32 = 2;
/// A mark of a flow whose packets go by way of the owner before.
pub const MARK_MOVING: u32 = 4;
/// A mark of a flow whose client asks before it is answered.
pub const MARK_PIPELINES: u32 = 8;
/// A mark of a flow whose owner has it by the short way: the one before may still refuse.
pub const MARK_SHORT: u32 = 16;
/// A mark of a flow whose owner before had it so, too.
pub const MARK_SHORT_BEFORE: u32 = 32;
/// A mark of a flow whose owner has been asked to give it up, and may have.
pub const MARK_RELEASING: u32 = 64;
/// A mark of a flow whose owner has died in an answer.
pub const MARK_TAKING: u32 = 128;
/// An answer may outlive its owner: the daemon keeps what is asked ahead of its end.
pub const MARK_PROTECTED: u32 = 256;
/// What is asked from its end on is not ahead of that.
pub const MARK_ENDS: u32 = 512;
/// Nobody will ever answer: the client is to be reset.
pub const MARK_LOST: u32 = 1024;
/// Requests have stayed with its owner of which other dispatchers are not told yet.
pub const MARK_STAYED: u32 = 2048;
/// Another dispatcher has told it, and requests may have stayed since.
pub const MARK_UNSURE: u32 = 4096;
/// Placed by its keeper's data path: that one and its heir alone know it, so far.
pub const MARK_ENTRUSTED: u32 = 8192;
/// `enum answer_phase`: in a body of known length.
pub const ANSWER_BODY: u8 = 5;
/// Until close, of which something remains: counted as a body is.
pub const ANSWER_ENDLESS: u8 = 7;
/// A flag of answers: the next is one to a HEAD.
pub const ANSWER_TO_HEAD: u16 = 4;
/// `enum held`: the answer is unfinished,
pub const HELD_ANSWERING: u32 = 1;
/// the client has not acknowledged it,
pub const HELD_UNACKED: u32 = 2;
/// or the server closes.
pub const HELD_CLOSING: u32 = 3;
/// `enum adopted_end`: another answer may follow,
pub const ADOPTED_STAYS: u32 = 0;
/// the connection closes behind it,
pub const ADOPTED_CLOSES: u32 = 1;
/// or it ends where the daemon closes.
pub const ADOPTED_UNTIL_CLOSE: u32 = 2;
/// A change of a spliced flow's segments: the server has not agreed to timestamps.
pub const SPLICE_NO_TIMESTAMPS: u8 = 1;
/// The same of explicit congestion notification.
pub const SPLICE_NO_ECN: u8 = 2;
/// The server's host has an agent, which rewrites what the server says.
pub const SPLICE_SPLIT: u8 = 4;
/// The kind of what a server says to a splice address: workers have it by our port, all
/// else by the client's.
pub const META_SPLICE: u8 = 24;
/// Of packets that another of our programs on this host lets by.
pub const PASS_BY_MARK: u32 = 0x545a_0007;
/// More of a request than this is not acknowledged before it is being read, in bytes.
pub const UNREAD_REACH: u32 = 65_536;
/// Of a packet of an agent's daemon's, which comes in as from a connection's client.
pub const TURN_MARK: u32 = 0x545a_0009;
/// Of a client's bytes that a dispatcher's daemon has held, for its data path to forward.
pub const HELD_MARK: u32 = 0x545a_000a;
/// `enum spliced_state`: what its server says is the daemon's.
pub const SPLICED_CONNECTING: u32 = 1;
/// The data path rewrites.
pub const SPLICED_OPEN: u32 = 2;
/// And follows the server's answers.
pub const SPLICED_FOLLOWED: u32 = 3;
/// Seconds of a cookie's time period.
pub const COOKIE_PERIOD_S: u64 = 16;
/// Periods after which cookie keys change, as a power of two.
pub const COOKIE_ROTATION_SHIFT: u32 = 8;
/// Rotations whose keys are in the map at once.
pub const COOKIE_ROTATIONS: u32 = 4;
/// Sets of them: of the cluster's first key, and of its second one.
pub const COOKIE_KEY_SETS: u32 = 2;

impl From<CoreKey> for FlowKey {
    fn from(key: CoreKey) -> Self {
        Self {
            client_addr: addr_bytes(key.client.ip()),
            vip_addr: addr_bytes(key.vip.ip()),
            client_port: key.client.port().to_be_bytes(),
            vip_port: key.vip.port().to_be_bytes(),
        }
    }
}

impl From<FlowKey> for CoreKey {
    fn from(key: FlowKey) -> Self {
        Self {
            client: SocketAddr::new(
                addr_from_bytes(key.client_addr),
                u16::from_be_bytes(key.client_port),
            ),
            vip: SocketAddr::new(
                addr_from_bytes(key.vip_addr),
                u16::from_be_bytes(key.vip_port),
            ),
        }
    }
}

impl ServiceKey {
    /// The key of a service address; port 0 stands for "any service here".
    pub fn new(addr: IpAddr, port: u16) -> Self {
        Self {
            addr: addr_bytes(addr),
            port: port.to_be_bytes(),
            pad: 0,
        }
    }
}

impl Service {
    /// Under port 0: the address is no service's, but one to connect to servers from.
    pub fn splice_address(id: u32) -> Self {
        Self {
            id,
            mss: 0,
            window_scale: 0,
            ecn: 0,
        }
    }
}

impl From<&SpliceTerms> for Splice {
    fn from(terms: &SpliceTerms) -> Self {
        let change = |is: bool, bit: u8| if is { bit } else { 0 };
        Self {
            address: terms.own.ip().octets(),
            port: terms.own.port().to_be_bytes(),
            server_port: terms.server_port.to_be_bytes(),
            ahead: terms.ahead,
            clock_ahead: terms.clock_ahead,
            to_server_shift: terms.to_server_shift,
            to_client_shift: terms.to_client_shift,
            changes: change(terms.no_timestamps, SPLICE_NO_TIMESTAMPS)
                | change(terms.no_ecn, SPLICE_NO_ECN)
                | change(terms.split, SPLICE_SPLIT),
            pad: 0,
        }
    }
}

impl Splice {
    /// A connection of which no more is known.
    pub fn between(own: SocketAddrV4, server: SocketAddrV4) -> Self {
        Self {
            address: own.ip().octets(),
            port: own.port().to_be_bytes(),
            server_port: server.port().to_be_bytes(),
            ..Self::zeroed()
        }
    }

    /// What it says; none if the flow is not spliced.
    pub fn terms(&self) -> Option<SpliceTerms> {
        let port = u16::from_be_bytes(self.port);
        (port != 0).then(|| SpliceTerms {
            own: SocketAddrV4::new(self.address.into(), port),
            server_port: u16::from_be_bytes(self.server_port),
            ahead: self.ahead,
            clock_ahead: self.clock_ahead,
            to_server_shift: self.to_server_shift,
            to_client_shift: self.to_client_shift,
            no_timestamps: self.changes & SPLICE_NO_TIMESTAMPS != 0,
            no_ecn: self.changes & SPLICE_NO_ECN != 0,
            split: self.changes & SPLICE_SPLIT != 0,
        })
    }

    /// The key under which the data path finds the flow by what the server at that address
    /// sends.
    pub fn key(&self, server: Ipv4Addr) -> FlowKey {
        FlowKey {
            client_addr: addr_bytes(server.into()),
            vip_addr: addr_bytes(Ipv4Addr::from(self.address).into()),
            client_port: self.server_port,
            vip_port: self.port,
        }
    }
}

impl Turn {
    /// Its bytes as one number.
    pub fn to_bits(self) -> u64 {
        // SAFETY: eight bytes without padding.
        unsafe { std::mem::transmute(self) }
    }

    /// The turn of these bytes.
    pub fn from_bits(bits: u64) -> Self {
        // SAFETY: valid for every bit pattern.
        unsafe { std::mem::transmute(bits) }
    }
}

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

/// What stands before the padding.
fn padded(name: &[u8; 32]) -> &str {
    let end = name.iter().position(|&b| b == 0).unwrap_or(name.len());
    std::str::from_utf8(&name[..end]).unwrap_or("?")
}

impl Backend {
    /// The name, without its padding.
    pub fn name(&self) -> &str {
        padded(&self.name)
    }

    /// A name as the map holds it (at most 31 bytes).
    pub fn name_bytes(name: &str) -> [u8; 32] {
        let mut bytes = [0; 32];
        let length = name.len().min(31);
        bytes[..length].copy_from_slice(&name.as_bytes()[..length]);
        bytes
    }
}
