//! A hash that is the same on every machine and in every version: FNV-1a
//! (Fowler, Noll, Vo) over the bytes, then the finaliser of MurmurHash3, since FNV
//! alone leaves the high bits of short inputs alike. Not for hostile inputs that could
//! gain by a collision: a client that chooses URLs for one backend can only ask
//! for those URLs.

/// The hash of a backend's name, for [`super::Candidate::name_hash`].
pub fn hash_name(name: &str) -> u64 {
    hash_bytes(name.as_bytes())
}

/// The hash of any bytes: an object's URL in a simulation, a key of stickiness.
pub fn hash_bytes(bytes: &[u8]) -> u64 {
    let mut hasher = Hasher::default();
    hasher.write(bytes);
    hasher.finish()
}

pub(super) struct Hasher(u64);

impl Default for Hasher {
    fn default() -> Self {
        Hasher(0xcbf2_9ce4_8422_2325)
    }
}

impl Hasher {
    pub(super) fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    pub(super) fn finish(self) -> u64 {
        mix(self.0)
    }
}

/// Each bit of the input changes half of those of the output: fmix64 of
/// MurmurHash3 (A. Appleby, public domain). A bijection.
pub(crate) fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    x = (x ^ (x >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    x ^ (x >> 33)
}
