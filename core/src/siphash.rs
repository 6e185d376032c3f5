//! SipHash-2-4 (Aumasson and Bernstein 2012), 64 bits: the keyed hash of the
//! cookies and of the encapsulation's tags. The data path has the same one in
//! bpf/lib/siphash.bpf.h; the reference vectors below hold for both.

/// The hash of `bytes` under a 16-byte key.
pub fn siphash24(key: &[u8; 16], bytes: &[u8]) -> u64 {
    let mut state = State::new(key);
    let (words, rest) = bytes.as_chunks::<8>();
    for word in words {
        state.absorb(u64::from_le_bytes(*word));
    }
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    // The last word carries the length modulo 256 in its top byte.
    last[7] = bytes.len().to_le_bytes()[0];
    state.absorb(u64::from_le_bytes(last));
    state.finish()
}

struct State {
    v0: u64,
    v1: u64,
    v2: u64,
    v3: u64,
}

impl State {
    fn new(key: &[u8; 16]) -> Self {
        let (words, _) = key.as_chunks::<8>();
        let (k0, k1) = (u64::from_le_bytes(words[0]), u64::from_le_bytes(words[1]));
        Self {
            v0: k0 ^ 0x736f_6d65_7073_6575,
            v1: k1 ^ 0x646f_7261_6e64_6f6d,
            v2: k0 ^ 0x6c79_6765_6e65_7261,
            v3: k1 ^ 0x7465_6462_7974_6573,
        }
    }

    fn absorb(&mut self, word: u64) {
        self.v3 ^= word;
        self.round();
        self.round();
        self.v0 ^= word;
    }

    fn finish(mut self) -> u64 {
        self.v2 ^= 0xff;
        for _ in 0..4 {
            self.round();
        }
        self.v0 ^ self.v1 ^ self.v2 ^ self.v3
    }

    fn round(&mut self) {
        self.v0 = self.v0.wrapping_add(self.v1);
        self.v1 = self.v1.rotate_left(13) ^ self.v0;
        self.v0 = self.v0.rotate_left(32);
        self.v2 = self.v2.wrapping_add(self.v3);
        self.v3 = self.v3.rotate_left(16) ^ self.v2;
        self.v0 = self.v0.wrapping_add(self.v3);
        self.v3 = self.v3.rotate_left(21) ^ self.v0;
        self.v2 = self.v2.wrapping_add(self.v1);
        self.v1 = self.v1.rotate_left(17) ^ self.v2;
        self.v2 = self.v2.rotate_left(32);
    }
}

#[cfg(test)]
mod tests {
    use super::siphash24;
    use std::array::from_fn;

    /// `vectors_sip64` of the reference implementation: key 00..0f, and as
    /// message the first n of the bytes 00, 01, 02, ...
    const VECTORS: [(usize, [u8; 8]); 9] = [
        (0, [0x31, 0x0e, 0x0e, 0xdd, 0x47, 0xdb, 0x6f, 0x72]),
        (1, [0xfd, 0x67, 0xdc, 0x93, 0xc5, 0x39, 0xf8, 0x74]),
        (2, [0x5a, 0x4f, 0xa9, 0xd9, 0x09, 0x80, 0x6c, 0x0d]),
        (3, [0x2d, 0x7e, 0xfb, 0xd7, 0x96, 0x66, 0x67, 0x85]),
        (7, [0x37, 0xd1, 0x01, 0x8b, 0xf5, 0x00, 0x02, 0xab]),
        (8, [0x62, 0x24, 0x93, 0x9a, 0x79, 0xf5, 0xf5, 0x93]),
        (9, [0xb0, 0xe4, 0xa9, 0x0b, 0xdf, 0x82, 0x00, 0x9e]),
        (15, [0xe5, 0x45, 0xbe, 0x49, 0x61, 0xca, 0x29, 0xa1]),
        (63, [0x72, 0x45, 0x06, 0xeb, 0x4c, 0x32, 0x8a, 0x95]),
    ];

    #[test]
    fn the_reference_vectors_hold() {
        let key = from_fn(|i| i as u8);
        let message: [u8; 64] = from_fn(|i| i as u8);
        for (len, expected) in VECTORS {
            let hash = siphash24(&key, &message[..len]).to_le_bytes();
            assert_eq!(hash, expected, "message of {len} bytes");
        }
    }

    #[test]
    #[expect(
        deprecated,
        reason = "the standard library's SipHash-2-4, a second opinion"
    )]
    fn the_standard_library_agrees() {
        use std::hash::{Hasher, SipHasher};
        let message: Vec<u8> = (0..300u32).map(|i| (i * 37 % 251) as u8).collect();
        for len in 0..message.len() {
            let mut theirs = SipHasher::new_with_keys(7, 11);
            theirs.write(&message[..len]);
            let mut key = [0; 16];
            (key[0], key[8]) = (7, 11);
            assert_eq!(
                siphash24(&key, &message[..len]),
                theirs.finish(),
                "message of {len} bytes"
            );
        }
    }
}
