//! What is known of handshakes, and keys.

use super::Pod;

pod!(
    struct SiphashKey {
        k0: u64,
        k1: u64,
        generation: u64,
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

/// Seconds of a cookie's time period.
pub const COOKIE_PERIOD_S: u64 = 16;
/// Periods after which cookie keys change, as a power of two.
pub const COOKIE_ROTATION_SHIFT: u32 = 8;
/// Rotations whose keys are in the map at once.
pub const COOKIE_ROTATIONS: u32 = 4;
/// Sets of them: of the cluster's first key, and of its second one.
pub const COOKIE_KEY_SETS: u32 = 2;
