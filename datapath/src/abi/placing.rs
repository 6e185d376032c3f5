//! Services, backends, and which of them requests go to.

use std::net::IpAddr;

use trapeze_core::flow::addr_bytes;

use super::{Pod, padded};

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

/// Slots for backends in a dispatcher's data path.
pub const BACKENDS_MAX: usize = 1024;
/// Pools that can have turns in a dispatcher's data path.
pub const POOLS_MAX: usize = 256;
/// Turns of a pool.
pub const TURNS_MAX: usize = 512;
/// As in abi.h.
pub const OTHERS_MAX: usize = 3;
/// A decision's slot when its pool takes turns.
pub const SLOT_BY_TURNS: u32 = u32::MAX;

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
