//! The least loaded, for policies that do not look at objects: equals take turns, so
//! that an idle cluster does not send everything to its first backend.

use super::round_robin::RoundRobin;
use super::{BackendId, Backends, Candidate, load};

#[derive(Debug, Default)]
pub(super) struct Least {
    turns: RoundRobin,
}

impl Least {
    /// Whose turn it is among those with the least load for their weight.
    pub(super) fn next(
        &self,
        backends: &Backends,
        load: impl Fn(&Candidate) -> u64,
    ) -> Option<BackendId> {
        let least = backends.open().iter().reduce(|least, c| {
            if load::order(c, least, &load).is_lt() {
                c
            } else {
                least
            }
        })?;
        (self.turns).next(backends, |c| load::order(c, least, &load).is_eq())
    }

    /// `chosen` had its turn among those with the same load.
    pub(super) fn took(
        &mut self,
        backends: &Backends,
        chosen: BackendId,
        load: impl Fn(&Candidate) -> u64,
    ) {
        if let Some(taker) = backends.get_open(chosen) {
            let equal = |c: &Candidate| load::order(c, taker, &load).is_eq();
            self.turns.took(backends, chosen, equal);
        }
    }
}
