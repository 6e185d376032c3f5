//! What of a choice by loads stands for a while: requests for what is in some backends'
//! memory and asked for often can be placed without asking the policy each time.

use std::time::Duration;

use super::BackendId;

/// The most backends of a [`Settled`].
pub const SETTLED_MAX: usize = 4;

/// Where requests for an object may go, for how long, and how far.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settled {
    ids: [BackendId; SETTLED_MAX],
    len: usize,
    /// Then the policy is to be asked again.
    pub lasts: Duration,
    /// So it is when the least of them has more than this to do: unfinished charges, in
    /// microseconds.
    pub most_us: u64,
    /// What each request adds to these.
    pub charge_us: u32,
    /// Who has a connection keeps it for its next request, unless that one has so much
    /// more to do than the least of them: what a move costs, in microseconds.
    pub move_us: u32,
}

impl Settled {
    /// On one backend.
    pub(super) fn on(id: BackendId, lasts: Duration, most_us: u64, charge_us: u32) -> Self {
        Settled {
            ids: [id; SETTLED_MAX],
            len: 1,
            lasts,
            most_us,
            charge_us,
            move_us: 0,
        }
    }

    /// Or on that one, if there is room for it.
    pub(super) fn or_on(&mut self, id: BackendId) {
        if self.len < SETTLED_MAX && !self.backends().contains(&id) {
            self.ids[self.len] = id;
            self.len += 1;
        }
    }

    /// They are equally good: who has least to do takes the request, moves aside. At least
    /// one, none twice.
    pub fn backends(&self) -> &[BackendId] {
        &self.ids[..self.len]
    }
}
