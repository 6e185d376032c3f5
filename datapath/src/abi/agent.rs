//! What a backend's agent has.

use super::{Answers, FlowKey, Pod};

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
        edge: u32,
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

/// `enum setup_state`: its socket has spoken, or was seen.
pub const SETUP_CONFIRMED: u32 = 2;
/// `enum setup_state`: given up, and given up with bytes on the way.
pub const SETUP_MOVED: u32 = 4;
/// As above.
pub const SETUP_OLDER: u32 = 6;
/// Bytes of a client's packet of which a copy is kept, from IPv4 on.
pub const UNREAD_MAX: usize = 1580;
/// `enum adopted_end`: another answer may follow,
pub const ADOPTED_STAYS: u32 = 0;
/// the connection closes behind it,
pub const ADOPTED_CLOSES: u32 = 1;
/// or it ends where the daemon closes.
pub const ADOPTED_UNTIL_CLOSE: u32 = 2;
/// More of a request than this is not acknowledged before it is being read, in bytes.
pub const UNREAD_REACH: u32 = 65_536;
