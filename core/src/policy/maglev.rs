//! Maglev hashing (D. Eisenbud et al., "Maglev: a fast and reliable software network
//! load balancer", NSDI 2016, §3.4): a table filled by the backends in turns, each in
//! the order of a permutation of its own. Looking up costs one read; shares are more
//! even than by plain hashing; when a backend goes, few entries of others move.

use std::time::Duration;

use super::hash::mix;
use super::{BackendId, Backends, Memory, Policy, Request, Stands};
use crate::config::PolicyKind;

/// Maglev's parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaglevParameters {
    /// M, entries of the table: a prime, a hundred times the backends or more
    /// (2..=16,777,213; default 65537), 2 bytes each.
    pub m: u32,
}

impl Default for MaglevParameters {
    fn default() -> Self {
        MaglevParameters { m: 65_537 }
    }
}

impl MaglevParameters {
    /// Whether a table may have that size: each permutation must reach all entries.
    pub fn is_prime(m: u32) -> bool {
        m >= 2 && (2..=m.isqrt()).all(|d| !m.is_multiple_of(d))
    }
}

#[derive(Debug)]
pub(super) struct Maglev {
    parameters: MaglevParameters,
    /// Ids; empty without backends. Of backends with this fingerprint.
    table: Vec<u16>,
    fingerprint: Option<u64>,
}

/// A backend's way through the table.
struct Permutation {
    id: u16,
    weight: u32,
    next: u32,
    skip: u32,
    credit: u32,
}

impl Maglev {
    pub(super) fn new(parameters: MaglevParameters) -> Self {
        Maglev {
            parameters,
            table: Vec::new(),
            fingerprint: None,
        }
    }

    fn follow(&mut self, backends: &Backends) {
        if self.fingerprint == Some(backends.fingerprint()) {
            return;
        }
        self.fingerprint = Some(backends.fingerprint());
        self.table = fill(self.parameters.m, backends);
    }
}

/// Figure 5 of the paper, "populate". A backend with less than the greatest weight sits
/// out in as many rounds as that makes its share.
fn fill(m: u32, backends: &Backends) -> Vec<u16> {
    let mut open: Vec<_> = backends.open().iter().collect();
    // Whatever the order of candidates, dispatchers agree.
    open.sort_by_key(|c| c.name_hash);
    let Some(most) = open.iter().map(|c| u32::from(c.weight)).max() else {
        return Vec::new();
    };
    let mut permutations: Vec<_> = (open.iter())
        .map(|c| Permutation {
            id: c.id.0,
            weight: c.weight.into(),
            next: (c.name_hash % u64::from(m)) as u32,
            skip: (mix(c.name_hash ^ SKIP) % u64::from((m - 1).max(1))) as u32 + 1,
            credit: 0,
        })
        .collect();
    let mut table = vec![EMPTY; m as usize];
    let mut filled = 0;
    loop {
        for p in &mut permutations {
            p.credit += p.weight;
            if p.credit < most {
                continue;
            }
            p.credit -= most;
            while table[p.next as usize] != EMPTY {
                p.advance(m);
            }
            table[p.next as usize] = p.id;
            p.advance(m);
            filled += 1;
            if filled == m {
                return table;
            }
        }
    }
}

impl Permutation {
    fn advance(&mut self, m: u32) {
        self.next += self.skip;
        if self.next >= m {
            self.next -= m;
        }
    }
}

/// No backend has it: there are at most 1024.
const EMPTY: u16 = u16::MAX;
/// Tells the second hash from the first.
const SKIP: u64 = 0x6d61_676c_6576;

impl Policy for Maglev {
    fn kind(&self) -> PolicyKind {
        PolicyKind::Maglev
    }

    fn choose(
        &mut self,
        _now: Duration,
        request: &Request,
        backends: &Backends,
    ) -> Option<BackendId> {
        self.follow(backends);
        let at = (u128::from(mix(request.object)) * self.table.len() as u128) >> 64;
        self.table.get(at as usize).map(|&id| BackendId(id))
    }

    /// The table follows from the backends, and is read by the URL's hash.
    fn stands(&self) -> Stands {
        Stands::ByUrl
    }

    fn memory(&self) -> Memory {
        Memory {
            bytes: self.table.len() * size_of::<u16>(),
            ..Memory::default()
        }
    }
}
