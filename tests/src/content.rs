//! Bytes to send, made as they are needed, and compared without printing them.

use std::io::{self, Read};

/// Pseudo-random bytes, the same for the same seed.
#[derive(Clone, Debug)]
pub struct Content {
    state: u64,
    left: u64,
}

impl Content {
    /// So many bytes.
    pub fn new(seed: u64, length: u64) -> Self {
        Self {
            state: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            left: length,
        }
    }

    /// All of them.
    pub fn bytes(mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.read_to_end(&mut bytes).expect("it does not fail");
        bytes
    }
}

impl Read for Content {
    /// Whole words, so that what is read does not depend on how it is read.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = buffer
            .len()
            .min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let length = if length as u64 == self.left {
            length
        } else {
            length & !7
        };
        for word in buffer[..length].chunks_mut(8) {
            // xorshift64
            self.state ^= self.state << 13;
            self.state ^= self.state >> 7;
            self.state ^= self.state << 17;
            word.copy_from_slice(&self.state.to_le_bytes()[..word.len()]);
        }
        self.left -= length as u64;
        Ok(length)
    }
}

/// Asserts that two contents are the same; says where they differ.
pub fn same(got: &[u8], expected: &[u8]) {
    let differ = got.iter().zip(expected).position(|(a, b)| a != b);
    assert!(
        differ.is_none() && got.len() == expected.len(),
        "{} bytes instead of {}, first difference at {differ:?}",
        got.len(),
        expected.len()
    );
}

/// Choices that look random, the same for the same seed.
#[derive(Clone, Debug)]
pub struct Dice(Content);

impl Dice {
    /// Those of a seed.
    pub fn new(seed: u64) -> Self {
        Self(Content::new(seed, u64::MAX))
    }

    /// A number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        let mut word = [0; 8];
        self.0.read_exact(&mut word).expect("it does not fail");
        (u64::from_le_bytes(word) >> 11) as usize % end
    }

    /// Puts items into another order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}
