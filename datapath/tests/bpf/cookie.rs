//! A second implementation of the cookie's layout (bpf/lib/cookie.bpf.h), to
//! foresee the programs' cookies and to forge old, future and foreign ones.
//!
//! ```text
//! with timestamps      31            8 7     4 3      0
//!                      |   hash 24    | mss  | period |
//!                      and in TSval's low 6 bits: ecn | sack | wscale 4
//! without timestamps   31       10 9   8 7      4  3     2    1      0
//!                      | hash 22  | mss | wscale |sack | ecn | period |
//! ```

use std::time::Duration;

use trapeze_core::siphash::siphash24;
use trapeze_datapath::abi::{COOKIE_PERIOD_S, COOKIE_ROTATION_SHIFT, FlowKey, SiphashKey};
use trapeze_datapath::clock;

/// The client did not send the window scale option.
pub const NO_SCALE: u8 = 15;

const CLASSES: [u16; 16] = [
    536, 640, 800, 960, 1100, 1220, 1280, 1320, 1360, 1388, 1400, 1420, 1440, 1452, 1460, 8960,
];
const COARSE_CLASSES: [u16; 4] = [536, 1220, 1400, 1460];

/// What a client has asked for in its SYN, and got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// 536 if the client did not say (RFC 9293 §3.7.1).
    pub mss: u16,
    /// 0..=14 or [`NO_SCALE`].
    pub shift: u8,
    pub sack: bool,
    pub ecn: bool,
    pub timestamps: bool,
}

impl Terms {
    /// The ISN that carries these terms.
    pub fn cookie(&self, key: &SiphashKey, flow: &FlowKey, client_isn: u32, period: u64) -> u32 {
        let class = self.class() as u32;
        let (shift, sack, ecn) = (
            u32::from(self.shift),
            u32::from(self.sack),
            u32::from(self.ecn),
        );
        let (low, hashed, bits) = if self.timestamps {
            let low = class << 4 | (period % 16) as u32;
            (low, low | self.tsval_bits() << 10, 8)
        } else {
            let low = class << 8 | shift << 4 | sack << 3 | ecn << 2 | (period % 4) as u32;
            (low, low, 10)
        };
        let form = u64::from(self.timestamps) << 16;
        let hashed = period << 17 | form | u64::from(hashed);
        (hash(key, flow, client_isn, hashed) as u32) << bits | low
    }

    /// The low six bits of our TSval, which come back as TSecr.
    pub fn tsval_bits(&self) -> u32 {
        u32::from(self.shift) | u32::from(self.sack) << 4 | u32::from(self.ecn) << 5
    }

    /// The client's MSS as far as the cookie remembers it.
    pub fn remembered_mss(&self) -> u16 {
        self.classes()[self.class()]
    }

    fn class(&self) -> usize {
        let above = self.classes().iter().take_while(|&&mss| mss <= self.mss);
        above.count().saturating_sub(1)
    }

    fn classes(&self) -> &'static [u16] {
        match self.timestamps {
            true => &CLASSES,
            false => &COARSE_CLASSES,
        }
    }
}

fn hash(key: &SiphashKey, flow: &FlowKey, client_isn: u32, terms: u64) -> u64 {
    let mut message = Vec::new();
    message.extend(flow.client_addr);
    message.extend(flow.vip_addr);
    message.extend(flow.client_port);
    message.extend(flow.vip_port);
    message.extend(client_isn.to_le_bytes());
    message.extend(terms.to_le_bytes());
    let mut secret = [0; 16];
    secret[..8].copy_from_slice(&key.k0.to_le_bytes());
    secret[8..].copy_from_slice(&key.k1.to_le_bytes());
    siphash24(&secret, &message)
}

/// The cluster's key for a period, as these tests set it.
pub fn key_of(period: u64) -> SiphashKey {
    let rotation = period >> COOKIE_ROTATION_SHIFT;
    SiphashKey {
        k0: rotation.wrapping_mul(0x9e37_79b9_7f4a_7c15),
        k1: !rotation,
        generation: rotation,
    }
}

/// The present period, with at least a second of it left.
pub fn period() -> u64 {
    let nanos = COOKIE_PERIOD_S * 1_000_000_000;
    let left = nanos - (clock::cluster().as_nanos() as u64) % nanos;
    if left < 1_000_000_000 {
        std::thread::sleep(Duration::from_nanos(left));
    }
    clock::cluster().as_nanos() as u64 / nanos
}
