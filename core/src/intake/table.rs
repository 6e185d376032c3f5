//! All flows held, by key, by age and by deadline. A flow is taken out, changed
//! and put back, so that indexes and sums cannot disagree with it.

use super::events::Isns;
use super::flow::{Connection, Flow, Phase};
use crate::flow::FlowKey;
use crate::seq::ServerSeq;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

/// The flows.
#[derive(Debug, Default)]
pub(super) struct Table {
    flows: HashMap<FlowKey, Flow>,
    /// Soonest first.
    deadlines: BTreeSet<(Duration, FlowKey)>,
    /// Oldest first: those that may be evicted.
    reading: BTreeMap<u64, FlowKey>,
    /// Oldest first: those that we answer.
    parting: BTreeMap<u64, FlowKey>,
    bytes: usize,
    serials: u64,
}

impl Table {
    /// Takes a flow out. Its deadline is the same until it is put back.
    pub(super) fn take(&mut self, key: &FlowKey) -> Option<Flow> {
        let flow = self.flows.remove(key)?;
        self.deadlines
            .remove(&(flow.deadline(), flow.connection.key));
        self.bytes -= flow.bytes();
        self.reading.remove(&flow.serial);
        self.parting.remove(&flow.serial);
        Some(flow)
    }

    /// Takes a flow out if it is the one of these beginnings.
    pub(super) fn take_same(&mut self, key: &FlowKey, isns: Isns) -> Option<Flow> {
        if self.isns(key)? == isns {
            self.take(key)
        } else {
            None
        }
    }

    /// Takes a flow out if it is of the connection with that cookie, and retained.
    pub(super) fn take_retained(&mut self, key: &FlowKey, cookie: ServerSeq) -> Option<Flow> {
        let flow = self.get(key)?;
        let same = flow.connection.cookie == cookie;
        if same && matches!(flow.phase, Phase::Retained(_)) {
            self.take(key)
        } else {
            None
        }
    }

    /// Puts a flow in; there must be none of its key.
    pub(super) fn put(&mut self, flow: Flow) {
        self.deadlines
            .insert((flow.deadline(), flow.connection.key));
        self.bytes += flow.bytes();
        match flow.phase {
            Phase::Reading(_) => drop(self.reading.insert(flow.serial, flow.connection.key)),
            Phase::Goodbye(_) => drop(self.parting.insert(flow.serial, flow.connection.key)),
            Phase::Retained(_) => {}
        }
        let previous = self.flows.insert(flow.connection.key, flow);
        debug_assert!(previous.is_none(), "a flow was put over another one");
    }

    /// Those whose heads are read, or wait for a backend: the oldest first.
    pub(super) fn reading(&self) -> impl Iterator<Item = FlowKey> {
        self.reading.values().copied()
    }

    /// Puts a flow in as the youngest; there must be none of its key.
    pub(super) fn put_youngest(&mut self, connection: Connection, phase: Phase) {
        let serial = self.next_serial();
        self.put(Flow {
            connection,
            serial,
            phase,
        });
    }

    /// The youngest serial number.
    pub(super) fn next_serial(&mut self) -> u64 {
        self.serials += 1;
        self.serials
    }

    /// A flow, to look at.
    pub(super) fn get(&self, key: &FlowKey) -> Option<&Flow> {
        self.flows.get(key)
    }

    /// The beginnings of the flow of this key.
    pub(super) fn isns(&self, key: &FlowKey) -> Option<Isns> {
        // Most packets meet an empty table.
        if self.flows.is_empty() {
            return None;
        }
        self.flows.get(key).map(|flow| flow.connection.isns)
    }

    /// Takes out the oldest flow that is being read, if it is older than `serial`.
    pub(super) fn take_reading_older_than(&mut self, serial: u64) -> Option<Flow> {
        let key = *self.reading.range(..serial).next()?.1;
        self.take(&key)
    }

    /// Takes out the oldest flow that we answer.
    pub(super) fn take_oldest_parting(&mut self) -> Option<Flow> {
        let key = *self.parting.first_key_value()?.1;
        self.take(&key)
    }

    /// Takes out a flow whose deadline has come.
    pub(super) fn take_due(&mut self, now: Duration) -> Option<Flow> {
        let &(deadline, key) = self.deadlines.first()?;
        if deadline > now {
            None
        } else {
            self.take(&key)
        }
    }

    /// The soonest deadline.
    pub(super) fn deadline(&self) -> Option<Duration> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    /// Flows whose bytes are held: being read, or retained.
    pub(super) fn held(&self) -> usize {
        self.flows.len() - self.parting.len()
    }

    /// Flows that we answer.
    pub(super) fn parting(&self) -> usize {
        self.parting.len()
    }

    /// Bytes held.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}
