//! How long a backend keeps a file. All leave an LRU memory at nearly the same age,
//! the characteristic time of Che, Tung and Wang (IEEE JSAC 20(7), 2002); on a clock of
//! bytes read it does not depend on how busy the backend is.

/// An age in KiB read, in [`eighths`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Age(u8);

/// About eight times the logarithm to base 2: exponent and three bits of the fraction.
pub(super) fn eighths(x: f64) -> u8 {
    let bits = (x.max(1.0) as f32).to_bits() >> 20;
    bits.saturating_sub(ONE).min(255) as u8
}

/// The least number that has so many eighths.
pub(super) fn of_eighths(eighths: u8) -> f64 {
    f32::from_bits((u32::from(eighths) + ONE) << 20).into()
}

/// Of 1.
const ONE: u32 = 127 << 3;

/// How often answers came from memory and how often not, by age.
#[derive(Clone, Debug)]
pub(super) struct Ages {
    hits: [f32; BINS],
    misses: [f32; BINS],
    count: f32,
}

/// Half octaves up to 2^32 KiB.
const BINS: usize = 64;
/// Then all are halved.
const REMEMBERED: f32 = 4000.0;
/// What the other backends show counts as so many answers of this one.
const PRIOR: f32 = 100.0;
/// So many more misses than hits show that files leave.
const PROOF: f32 = 3.0;

impl Age {
    /// Of what is not known to be there.
    pub(super) const ABSENT: Age = Age(u8::MAX);

    pub(super) fn of_kib(kib: u32) -> Self {
        Age(eighths(f64::from(kib) + 1.0).min(254))
    }

    pub(super) fn kib(self) -> f64 {
        of_eighths(self.0)
    }

    fn bin(self) -> usize {
        usize::from(self.0 / 4)
    }
}

impl Default for Ages {
    fn default() -> Self {
        Ages {
            hits: [0.0; BINS],
            misses: [0.0; BINS],
            count: 0.0,
        }
    }
}

impl Ages {
    pub(super) fn add(&mut self, age: Age, slow: bool) {
        let side = if slow {
            &mut self.misses
        } else {
            &mut self.hits
        };
        side[age.bin()] += 1.0;
        self.count += 1.0;
        if self.count >= REMEMBERED {
            self.count /= 2.0;
            (self.hits.iter_mut().chain(&mut self.misses)).for_each(|n| *n /= 2.0);
        }
    }

    /// The age in KiB with the fewest exceptions: misses before it, hits after it. None
    /// while nothing seems to have left.
    pub(super) fn lifetime_kib(&self, pool: &Ages) -> Option<f64> {
        let share = (PRIOR / pool.count.max(1.0)).min(1.0);
        let (mut more, mut least, mut from, mut to) = (0.0f32, 0.0f32, 0, 0);
        for bin in 0..BINS {
            more += self.misses[bin] - self.hits[bin];
            more += share * (pool.misses[bin] - pool.hits[bin]);
            if more < least {
                (least, from, to) = (more, bin + 1, bin + 1);
            } else if more <= least + 0.001 {
                // Nothing was seen in between: in the middle.
                to = bin + 1;
            }
        }
        // A few that only seemed to be read prove nothing.
        (more - least >= PROOF).then(|| ((from + to) as f64 / 4.0).exp2())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eighths_come_back_within_an_eighth() {
        for x in (0..40_000u32).map(|i| 1.0 + f64::from(i * i % 99_991) * 37.0) {
            let back = of_eighths(eighths(x));
            assert!(back <= x && x < back * 1.125 + 1e-6, "{x} {back}");
        }
        assert_eq!(eighths(0.0), 0);
        assert_eq!(eighths(f64::INFINITY), 255);
    }

    /// Some answers that seem to be read, and some that do not, at every age.
    #[test]
    fn the_lifetime_is_found_among_mistakes() {
        for lifetime_kib in [50u32, 3000, 700_000] {
            let mut ages = Ages::default();
            for i in 0..3000u32 {
                let kib = lifetime_kib / 16 + i * 7919 % (lifetime_kib * 4);
                let mistaken = i % 20 == 0;
                ages.add(Age::of_kib(kib), (kib > lifetime_kib) != mistaken);
            }
            let found = ages.lifetime_kib(&Ages::default()).unwrap();
            let off = found / f64::from(lifetime_kib);
            assert!((0.65..1.55).contains(&off), "{lifetime_kib}: {found}");
        }
    }

    #[test]
    fn a_few_mistakes_do_not_empty_a_memory() {
        let mut ages = Ages::default();
        (0..500).for_each(|kib| ages.add(Age::of_kib(kib), false));
        (0..2).for_each(|_| ages.add(Age::of_kib(500), true));
        assert_eq!(ages.lifetime_kib(&Ages::default()), None);
    }

    #[test]
    fn what_others_show_is_believed_until_it_is_known_better() {
        let mut pool = Ages::default();
        let mut own = Ages::default();
        for kib in 0..1000 {
            pool.add(Age::of_kib(kib), kib > 200);
            own.add(Age::of_kib(kib), kib > 800);
        }
        let believed = Ages::default().lifetime_kib(&pool).unwrap();
        assert!((128.0..290.0).contains(&believed), "{believed}");
        let known = own.lifetime_kib(&pool).unwrap();
        assert!((500.0..1200.0).contains(&known), "{known}");
    }
}
