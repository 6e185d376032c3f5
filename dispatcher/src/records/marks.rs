//! What the daemon does with a flow meanwhile, as far as packets have to know.

use std::io;

use trapeze_core::flow::FlowKey;
use trapeze_core::seq::ClientSeq;
use trapeze_datapath::abi::{Flow, FlowState, MARK_HELD, MARK_MOVING, MARK_RELEASING, MARK_TUNNEL};

use super::{Record, Records};

/// Nothing that ends further behind the boundary is read here; as in boundary.bpf.h.
const BOUNDARY_NEAR: i32 = 1 << 17;

impl Records {
    /// The daemon is at work at the flow's boundary, if a packet that ends there reaches
    /// beyond it: the data path places nothing from then on. The record as it is then.
    pub fn hold(&self, key: &FlowKey, end: ClientSeq) -> io::Result<Option<Record>> {
        let mut held = None;
        self.change(key, |flow| {
            let beyond = ClientSeq::new(flow.next).distance_to(end);
            if flow.state == FlowState::Established as u32
                && flow.marks & MARK_TUNNEL == 0
                && (1..=BOUNDARY_NEAR).contains(&beyond)
            {
                flow.marks |= MARK_HELD;
            }
            held = Record::read(flow);
        })?;
        Ok(held)
    }

    /// Lets the data path bring here what comes next of a flow that is idle, as far as
    /// can be seen here. None: it is not.
    pub fn hold_idle(&self, key: &FlowKey) -> io::Result<Option<Record>> {
        let mut held = None;
        self.change(key, |flow| {
            let marks = MARK_HELD | MARK_MOVING | MARK_TUNNEL;
            if flow.state == FlowState::Established as u32 && flow.marks & marks == 0 {
                flow.marks |= MARK_HELD;
                held = Record::read(flow);
            }
        })?;
        Ok(held)
    }

    /// The owner is about to be asked to give the flow up: it may have done so, whoever
    /// keeps the flow by then.
    pub fn releasing(&self, key: &FlowKey) -> io::Result<()> {
        if !self.peers.are_there() {
            return Ok(());
        }
        self.change(key, |flow| flow.marks |= MARK_RELEASING)
            .map(drop)
    }

    /// The owner has been asked to give the flow up, and has it still.
    pub fn kept(&self, key: &FlowKey) -> io::Result<()> {
        self.change(key, |flow| flow.marks &= !(MARK_HELD | MARK_RELEASING))
            .map(drop)
    }

    /// The flow has no boundaries any more: all that comes is its owner's.
    pub fn stay(&self, key: &FlowKey) -> io::Result<()> {
        let change = |flow: &mut Flow| {
            flow.marks |= MARK_TUNNEL;
            flow.marks &= !MARK_HELD;
        };
        self.change(key, change).map(drop)
    }

    /// The daemon is not at work on the flow any more.
    pub fn let_go(&self, key: &FlowKey) -> io::Result<()> {
        self.change(key, |flow| flow.marks &= !MARK_HELD).map(drop)
    }
}
