//! Puts a stream together from pieces that come in any order, more than once,
//! overlapping. Bytes that came first win. Places are offsets from the
//! stream's first byte.

use std::collections::BTreeMap;
use std::ops::Range;

/// Pieces that may wait beyond a gap.
const MAX_PIECES: usize = 32;

/// A stream from its first byte on, and pieces of it beyond gaps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Assembly {
    contiguous: Vec<u8>,
    /// Neither empty, touching, nor overlapping; all beyond `contiguous`.
    ahead: BTreeMap<usize, Vec<u8>>,
    ahead_bytes: usize,
}

/// What an insertion did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inserted {
    /// The stream's beginning grew.
    Grew,
    /// It waits beyond a gap.
    Ahead,
    /// Nothing was new.
    Nothing,
    /// Too many pieces wait already.
    Scattered,
}

impl Assembly {
    /// Of a stream that begins so.
    pub fn of(bytes: &[u8]) -> Self {
        Self {
            contiguous: bytes.to_vec(),
            ..Self::default()
        }
    }

    /// The stream up to its first gap.
    pub fn contiguous(&self) -> &[u8] {
        &self.contiguous
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.contiguous.len() + self.ahead_bytes
    }

    /// Does something wait beyond a gap?
    pub fn has_gap(&self) -> bool {
        !self.ahead.is_empty()
    }

    /// Where the last byte held ends.
    pub fn end(&self) -> usize {
        match self.ahead.last_key_value() {
            Some((start, piece)) => start + piece.len(),
            None => self.contiguous.len(),
        }
    }

    /// What waits beyond gaps, and where.
    pub fn ahead(&self) -> impl Iterator<Item = (usize, &[u8])> {
        self.ahead.iter().map(|(&at, piece)| (at, &piece[..]))
    }

    /// The piece beyond a gap that has the byte at `place`.
    pub fn piece_around(&self, place: usize) -> Option<Range<usize>> {
        let (&start, piece) = self.ahead.range(..=place).next_back()?;
        let end = start + piece.len();
        (place < end).then_some(start..end)
    }

    /// Takes off what lies from `at` on, as a stream of its own that starts there.
    pub fn split_off(&mut self, at: usize) -> Self {
        let mut rest = Self::default();
        if at < self.contiguous.len() {
            rest.contiguous = self.contiguous.split_off(at);
        }
        for (start, mut piece) in std::mem::take(&mut self.ahead) {
            if start < at {
                let behind = piece.split_off(piece.len().min(at - start));
                self.ahead.insert(start, piece);
                rest.insert(0, &behind);
            } else {
                rest.insert(start - at, &piece);
            }
        }
        self.ahead_bytes = self.ahead.values().map(Vec::len).sum();
        rest
    }

    /// Adds `bytes` at `start`, where none is there yet.
    pub fn insert(&mut self, start: usize, bytes: &[u8]) -> Inserted {
        let known = self.contiguous.len().saturating_sub(start).min(bytes.len());
        let (start, bytes) = (start + known, &bytes[known..]);
        if bytes.is_empty() {
            return Inserted::Nothing;
        }
        if start > self.contiguous.len() && self.ahead.len() >= MAX_PIECES {
            return Inserted::Scattered;
        }
        if start == self.contiguous.len() && self.ahead.is_empty() {
            self.contiguous.extend_from_slice(bytes);
            return Inserted::Grew;
        }
        let before = self.bytes();
        self.fill_gaps(start, bytes);
        if self.absorb() {
            Inserted::Grew
        } else if self.bytes() > before {
            Inserted::Ahead
        } else {
            Inserted::Nothing
        }
    }

    /// Puts every part of `bytes` that no piece covers into a piece of its own
    /// or at the end of the one before it.
    fn fill_gaps(&mut self, mut start: usize, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let covered_to = self.piece_end_before(start).unwrap_or(start).max(start);
            let skip = (covered_to - start).min(bytes.len());
            (start, bytes) = (start + skip, &bytes[skip..]);
            let next = self
                .ahead
                .range(start..)
                .next()
                .map_or(usize::MAX, |(&next, _)| next);
            let len = bytes.len().min(next - start);
            if len > 0 {
                self.put(start, &bytes[..len]);
            }
            (start, bytes) = (start + len, &bytes[len..]);
        }
    }

    /// Where the last piece that starts at or before `start` ends.
    fn piece_end_before(&self, start: usize) -> Option<usize> {
        self.ahead
            .range(..=start)
            .next_back()
            .map(|(at, piece)| at + piece.len())
    }

    /// Adds a piece into a gap, joined with its neighbours if it touches them.
    fn put(&mut self, start: usize, bytes: &[u8]) {
        self.ahead_bytes += bytes.len();
        let end = start + bytes.len();
        let follower = self.ahead.remove(&end);
        let piece = match self.ahead.range_mut(..start).next_back() {
            Some((at, piece)) if at + piece.len() == start => piece,
            _ => self.ahead.entry(start).or_default(),
        };
        piece.extend_from_slice(bytes);
        piece.extend(follower.into_iter().flatten());
    }

    /// Moves the piece that the beginning has reached into it.
    fn absorb(&mut self) -> bool {
        let Some(piece) = self.ahead.remove(&self.contiguous.len()) else {
            return false;
        };
        self.ahead_bytes -= piece.len();
        if self.contiguous.is_empty() {
            self.contiguous = piece;
        } else {
            self.contiguous.extend_from_slice(&piece);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};

    #[test]
    fn pieces_come_together() {
        let mut assembly = Assembly::default();
        assert_eq!(assembly.insert(3, b"de"), Inserted::Ahead);
        assert_eq!(assembly.insert(7, b"h"), Inserted::Ahead);
        assert_eq!(assembly.insert(3, b"XX"), Inserted::Nothing);
        assert_eq!(
            (assembly.end(), assembly.bytes(), assembly.has_gap()),
            (8, 3, true)
        );
        let pieces: Vec<_> = assembly.ahead().collect();
        assert_eq!(pieces, [(3, &b"de"[..]), (7, &b"h"[..])]);
        let around = [2, 3, 4, 5, 7, 8].map(|place| assembly.piece_around(place));
        assert_eq!(
            around,
            [None, Some(3..5), Some(3..5), None, Some(7..8), None]
        );
        assert_eq!(assembly.insert(2, b"cXXfgX"), Inserted::Ahead);
        assert_eq!(assembly.insert(0, b"ab"), Inserted::Grew);
        assert_eq!(assembly.contiguous(), b"abcdefgh");
        assert!(!assembly.has_gap());
    }

    #[test]
    fn gaps_are_bounded() {
        let mut assembly = Assembly::default();
        for i in 0..MAX_PIECES {
            assert_eq!(assembly.insert(1 + 2 * i, b"x"), Inserted::Ahead);
        }
        assert_eq!(assembly.insert(1001, b"x"), Inserted::Scattered);
        assert_eq!(
            assembly.insert(0, b"x"),
            Inserted::Grew,
            "progress is always possible"
        );
        assert_eq!(assembly.insert(1001, b"x"), Inserted::Ahead);
    }

    #[test]
    fn what_lies_behind_a_place_is_a_stream_of_its_own() {
        for at in 0..=14 {
            let mut whole = Assembly::default();
            whole.insert(0, b"abcd");
            whole.insert(6, b"ghi");
            whole.insert(11, b"l");
            let bytes = whole.bytes();
            let rest = whole.split_off(at);
            assert_eq!(whole.bytes() + rest.bytes(), bytes, "{at}");
            assert!(whole.end() <= at || at > 12, "{at}");
            let all: Vec<u8> = (0..14)
                .map(|place| match place < at {
                    true => byte_at(&whole, place),
                    false => byte_at(&rest, place - at),
                })
                .collect();
            assert_eq!(all, b"abcd..ghi..l..", "{at}");
            assert_eq!(
                rest.contiguous().is_empty(),
                rest.bytes() == 0 || rest.has_gap_first()
            );
        }
    }

    impl Assembly {
        fn has_gap_first(&self) -> bool {
            self.contiguous.is_empty() && !self.ahead.contains_key(&0)
        }
    }

    fn byte_at(assembly: &Assembly, place: usize) -> u8 {
        let ahead = (assembly.ahead()).find(|(at, piece)| (*at..at + piece.len()).contains(&place));
        match assembly.contiguous().get(place) {
            Some(&byte) => byte,
            None => ahead.map_or(b'.', |(at, piece)| piece[place - at]),
        }
    }

    /// Against a model that keeps one cell for each byte.
    #[test]
    fn any_pieces_give_what_came_first() {
        for seed in 0..300 {
            let mut rng = SmallRng::seed_from_u64(seed);
            let mut assembly = Assembly::default();
            let mut model = [None; 120];
            for _ in 0..rng.random_range(1..60) {
                let start = rng.random_range(0..100);
                let bytes: Vec<u8> = (0..rng.random_range(0..20)).map(|_| rng.random()).collect();
                if assembly.insert(start, &bytes) != Inserted::Scattered {
                    for (cell, byte) in model[start..].iter_mut().zip(&bytes) {
                        cell.get_or_insert(*byte);
                    }
                }
                let expected: Vec<u8> = model.iter().map_while(|cell| *cell).collect();
                assert_eq!(assembly.contiguous(), expected, "seed {seed}");
                assert_eq!(
                    assembly.bytes(),
                    model.iter().flatten().count(),
                    "seed {seed}"
                );
                let end = model
                    .iter()
                    .rposition(Option::is_some)
                    .map_or(0, |last| last + 1);
                assert_eq!(assembly.end(), end, "seed {seed}");
                assert!(assembly.ahead.len() <= 2 * MAX_PIECES);
            }
        }
    }
}
