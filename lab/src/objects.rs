//! The objects that origin servers have: as many as there are numbers, without a
//! file for any. Size and bytes follow from the number, so that all servers have
//! the same ones and a client can check what it got.

use crate::random::Random;

/// No object is smaller, in bytes.
pub const SMALLEST: u64 = 2 << 10;
/// No object is as large, in bytes.
pub const LARGEST: u64 = SMALLEST << DOUBLINGS;

/// Classes of size, each reaching from its smallest object to twice that.
const DOUBLINGS: u32 = 9;
/// The share of a class's objects that are larger still: 2^-1.2, so that the tail is
/// a Pareto distribution's with index 1.2. Sizes of web files have such tails, with
/// an index between 1 and 2 (Crovella and Bestavros, IEEE/ACM ToN 5(6), 1997).
/// Drawn by doubling and not by a power, which is not the same on every machine.
const LARGER: f64 = 0.435;

/// The object's length in bytes: 2 KiB to 1 MiB, 10 KiB in the mean.
pub fn size(number: u64) -> u64 {
    let mut random = Random::for_use(number, "size of an object");
    let mut smallest = SMALLEST;
    while smallest < LARGEST / 2 && random.fraction() < LARGER {
        smallest *= 2;
    }
    smallest + random.bits() % smallest
}

/// The object's bytes.
pub fn body(number: u64) -> Vec<u8> {
    let size = size(number) as usize;
    let mut random = Random::for_use(number, "bytes of an object");
    let mut bytes = Vec::with_capacity(size + 8);
    while bytes.len() < size {
        bytes.extend_from_slice(&random.bits().to_le_bytes());
    }
    bytes.truncate(size);
    bytes
}

/// The path by which servers have it.
pub fn path(number: u64) -> String {
    format!("/object/{number}")
}

/// How many objects, from number 1 on, have at least so many bytes together.
pub fn count(bytes: u64) -> u64 {
    let mut total = 0;
    (1..)
        .take_while(|&number| {
            let is_missing = total < bytes;
            total += size(number);
            is_missing
        })
        .last()
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_always_the_same_and_unlike_others() {
        assert_eq!(size(7), body(7).len() as u64);
        assert_eq!(body(7), body(7));
        assert_ne!(body(7)[..64], body(8)[..64]);
        let sizes: Vec<u64> = (1..=4).map(size).collect();
        assert_eq!(sizes, [6612, 8015, 5903, 6383]);
    }

    #[test]
    fn few_objects_have_most_of_the_bytes() {
        let mut sizes: Vec<u64> = (0..100_000).map(size).collect();
        sizes.sort_unstable();
        assert!(sizes[0] >= SMALLEST && sizes[99_999] < LARGEST);
        let total: u64 = sizes.iter().sum();
        let mean = total as f64 / 1e5;
        assert!((10_000.0..10_500.0).contains(&mean), "{mean}");
        let largest: u64 = sizes[90_000..].iter().sum();
        assert!(largest as f64 > 0.5 * total as f64, "{largest} of {total}");
    }

    #[test]
    fn a_catalogue_has_the_bytes_asked_for() {
        let count = count(1 << 20);
        let bytes = |count| (1..=count).map(size).sum::<u64>();
        assert!(bytes(count) >= 1 << 20 && bytes(count - 1) < 1 << 20);
        assert_eq!(super::count(0), 0);
    }
}
