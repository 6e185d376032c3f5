//! How a record is changed: word by word, while packets go on with it
//! (bpf/lib/change.bpf.h), and by one thread at a time.

use std::io;
use std::sync::MutexGuard;

use trapeze_core::flow::FlowKey;
use trapeze_datapath::abi::{self, Flow, FlowState};
use trapeze_datapath::dispatcher::FlowChanged;

use super::Records;

/// So often a change is tried again because packets have changed the record meanwhile.
const CHANGES: usize = 100;

/// Who has it may change records.
pub(super) type Changing<'a> = MutexGuard<'a, ()>;

impl Records {
    pub(super) fn changing(&self) -> Changing<'_> {
        self.changing.lock().expect("no thread panics with it")
    }

    /// Changes a record, if there is one of a flow that has a backend, and returns what it
    /// is then. `change` is called once more where packets have changed it meanwhile.
    pub(super) fn change(
        &self,
        key: &FlowKey,
        mut change: impl FnMut(&mut Flow),
    ) -> io::Result<Option<Flow>> {
        self.exchange(key, |flow| {
            if flow.state == FlowState::Reading as u32 {
                return None;
            }
            let mut after = *flow;
            change(&mut after);
            Some(after)
        })
    }

    /// As [`Self::change`], of any flow; nothing happens if `after` makes nothing of what
    /// is there. The others are told.
    pub(super) fn exchange(
        &self,
        key: &FlowKey,
        mut after: impl FnMut(&Flow) -> Option<Flow>,
    ) -> io::Result<Option<Flow>> {
        let key = abi::FlowKey::from(*key);
        let mut is_news = false;
        let changing = self.changing();
        let flow = self.swap(&changing, &key, |before| {
            let mut flow = after(before)?;
            is_news = self.date(&mut flow, Some(before));
            Some(flow)
        })?;
        if let Some(flow) = flow.filter(|_| is_news) {
            self.tell(&key, &flow);
        }
        Ok(flow)
    }

    /// As [`Self::exchange`], and nobody is told.
    pub(super) fn swap(
        &self,
        _: &Changing<'_>,
        key: &abi::FlowKey,
        mut after: impl FnMut(&Flow) -> Option<Flow>,
    ) -> io::Result<Option<Flow>> {
        for _ in 0..CHANGES {
            let Some(before) = self.maps.flows.get(key)? else {
                return Ok(None);
            };
            let Some(after) = after(&before) else {
                return Ok(None);
            };
            if after == before {
                return Ok(Some(after));
            }
            match self.changer.change(key, &before, &after)? {
                FlowChanged::Yes => {
                    self.splices.follow(key, Some(&before), Some(&after))?;
                    return Ok(Some(after));
                }
                FlowChanged::Stale => {}
                FlowChanged::Gone => return Ok(None),
            }
        }
        Err(io::Error::other("a flow's record changes all the time"))
    }
}
