//! What happens when. Events at the same time come in the order in which they were
//! added, so that a run is the same every time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Event {
    /// A user's request reaches the dispatcher.
    Begin(u32),
    /// The same in an open workload: the next one can be planned.
    Arrival(u32),
    /// A slot's visit to a station is over.
    Visited(u32),
    /// One of the hardware's changes.
    Change(u32),
    /// A sharing station asked to be looked at.
    Tick { station: u32, version: u32 },
}

#[derive(Debug, Default)]
pub(super) struct Agenda {
    heap: BinaryHeap<Reverse<(u64, u64, Event)>>,
    added: u64,
}

impl Agenda {
    pub(super) fn add(&mut self, at: u64, event: Event) {
        self.added += 1;
        self.heap.push(Reverse((at, self.added, event)));
    }

    pub(super) fn next(&mut self) -> Option<(u64, Event)> {
        let Reverse((at, _, event)) = self.heap.pop()?;
        Some((at, event))
    }
}
