//! Flow records.

use trapeze_core::wire::meta;

use super::{FlowKey, Pod, Splice};

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
        lot: u32,
    }
);
pod!(
    struct Trust {
        at_ns: u64,
        said: meta::Raw,
        client: [u8; 4],
        vip: [u8; 4],
        client_port: [u8; 2],
        vip_port: [u8; 2],
        payload: u16,
        window: u16,
        ack: u32,
        from: [u8; 4],
    }
);
pod!(
    struct Sieve {
        count: u32,
        pad: u32,
        keep: [u8; SIEVE_KEYS],
        keys: [FlowKey; SIEVE_KEYS],
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

/// Epochs: the cluster's clock in units of 2^this nanoseconds.
pub const EPOCH_SHIFT: u32 = 20;

/// The epoch of a time of the cluster's clock (RFC 1982: it wraps).
pub fn epoch(cluster: std::time::Duration) -> u32 {
    (cluster.as_nanos() >> EPOCH_SHIFT) as u32
}

/// What was entrusted to a dispatcher is of no use after so many nanoseconds.
pub const TRUST_NS: u64 = 3_000_000_000;
/// Who says FIN, and something more after so many nanoseconds, waits for the rest of an answer.
pub const CLOSES_WITHIN_NS: u64 = 1_000_000_000;
/// As many flows are looked at in one call.
pub const SIEVE_KEYS: usize = 256;
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
/// A mark of a flow that the data path has placed, and whose proof it has spent then.
pub const MARK_SPENT: u32 = 16384;
/// The owner before has said that it keeps it: its packets go by way of that one.
pub const MARK_REFUSED: u32 = 32768;
