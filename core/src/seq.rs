//! TCP sequence numbers (RFC 9293 §3.4): 32 bits that wrap, each in the space
//! of the side that counts with it.
//!
//! There is no `<` and no `-` here: numbers on a circle have no order, only
//! distances, and those hold for less than half of the circle. Two numbers
//! exactly 2^31 apart are neither before nor after each other.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Add, AddAssign};

/// The space in which the client counts what it sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Client {}

/// The space in which our side counts: the dispatcher's cookie is its start,
/// and the server that takes the connection goes on in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Server {}

/// A sequence number of the client's bytes.
pub type ClientSeq = Seq<Client>;

/// A sequence number of our bytes.
pub type ServerSeq = Seq<Server>;

/// A sequence number in one space.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Seq<Space> {
    raw: u32,
    space: PhantomData<Space>,
}

impl<Space: Copy> Seq<Space> {
    /// The number as it stands in a header.
    pub const fn new(raw: u32) -> Self {
        Self {
            raw,
            space: PhantomData,
        }
    }

    /// The number to put into a header.
    pub const fn raw(self) -> u32 {
        self.raw
    }

    /// Is `self` before `other`, by the shorter way round?
    pub const fn before(self, other: Self) -> bool {
        self.distance_to(other) > 0
    }

    /// Is `self` the same as `other`, or before it?
    pub const fn at_or_before(self, other: Self) -> bool {
        !other.before(self)
    }

    /// How far it is on to `other` by the shorter way round; negative when
    /// `other` lies behind. `self + distance == other` always holds.
    pub const fn distance_to(self, other: Self) -> i32 {
        other.raw.wrapping_sub(self.raw).cast_signed()
    }

    /// Is `self` one of the `len` numbers from `start` on?
    pub const fn within(self, start: Self, len: u32) -> bool {
        self.raw.wrapping_sub(start.raw) < len
    }

    /// The one that is further on.
    pub const fn later_of(self, other: Self) -> Self {
        if self.before(other) { other } else { self }
    }
}

impl<Space: Copy> Add<u32> for Seq<Space> {
    type Output = Self;

    fn add(self, bytes: u32) -> Self {
        Self::new(self.raw.wrapping_add(bytes))
    }
}

impl<Space: Copy> AddAssign<u32> for Seq<Space> {
    fn add_assign(&mut self, bytes: u32) {
        *self = *self + bytes;
    }
}

impl<Space> fmt::Debug for Seq<Space> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.raw)
    }
}

impl<Space> fmt::Display for Seq<Space> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.raw)
    }
}

#[cfg(test)]
mod tests {
    use super::ClientSeq;
    use proptest::prelude::*;

    fn seq(raw: u32) -> ClientSeq {
        ClientSeq::new(raw)
    }

    #[test]
    fn order_holds_across_the_wrap() {
        let table = [
            // a, b, a before b, b before a
            (0, 0, false, false),
            (0, 1, true, false),
            (u32::MAX, 0, true, false),
            (0xffff_fff0, 0x10, true, false),
            (0, 0x7fff_ffff, true, false),
            (0, 0x8000_0000, false, false),
            (0, 0x8000_0001, false, true),
        ];
        for (a, b, forward, backward) in table {
            assert_eq!(seq(a).before(seq(b)), forward, "{a} before {b}");
            assert_eq!(seq(b).before(seq(a)), backward, "{b} before {a}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn a_distance_leads_there(a: u32, b: u32) {
            prop_assert_eq!(seq(a) + seq(a).distance_to(seq(b)).cast_unsigned(), seq(b));
        }

        #[test]
        fn adding_less_than_half_goes_forward(a: u32, n in 1..=0x7fff_ffffu32) {
            let (from, to) = (seq(a), seq(a) + n);
            prop_assert!(from.before(to) && from.at_or_before(to));
            prop_assert!(!to.before(from) && !to.at_or_before(from));
            prop_assert_eq!(from.distance_to(to), n.cast_signed());
            prop_assert_eq!(from.later_of(to), to);
            prop_assert_eq!(to.later_of(from), to);
        }

        #[test]
        fn within_is_the_half_open_range(start: u32, len: u32, offset: u32) {
            prop_assert_eq!((seq(start) + offset).within(seq(start), len), offset < len);
        }
    }
}
