//! Counters of a data path, by the names that operators see.

use std::collections::BTreeMap;
use std::ops::Sub;

use trapeze_datapath::abi::{DROP_REASONS, EVENTS};
use trapeze_datapath::map::PerCpu;

/// Drops and events, as they were at one moment or between two.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts(BTreeMap<&'static str, u64>);

impl Counts {
    pub(crate) fn read(drops: &PerCpu, events: &PerCpu) -> Self {
        let named = |names: &'static [(&str, &str)], map: &PerCpu| {
            let sums = map.sums().expect("the map is read");
            names
                .iter()
                .map(|(name, _)| *name)
                .zip(sums)
                .collect::<Vec<_>>()
        };
        let all = named(DROP_REASONS, drops)
            .into_iter()
            .chain(named(EVENTS, events));
        Self(all.filter(|&(_, count)| count > 0).collect())
    }

    /// How often this was dropped or happened.
    ///
    /// # Panics
    /// Nothing is called so.
    pub fn of(&self, name: &str) -> u64 {
        let mut names = DROP_REASONS.iter().chain(EVENTS);
        assert!(names.any(|(known, _)| *known == name), "no counter {name}");
        self.0.get(name).copied().unwrap_or(0)
    }

    /// The sum of two.
    pub fn plus(mut self, other: Self) -> Self {
        for (name, count) in other.0 {
            *self.0.entry(name).or_default() += count;
        }
        self
    }
}

impl Sub for Counts {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        let change = |(name, count): (&'static str, u64)| {
            let change = count - before.0.get(name).copied().unwrap_or(0);
            (change > 0).then_some((name, change))
        };
        Self(self.0.into_iter().filter_map(change).collect())
    }
}
