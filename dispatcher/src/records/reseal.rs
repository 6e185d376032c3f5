//! Records whose options were made with another key than the one that makes them now: they are
//! made anew, so that keys can be changed under connections that last
//! (docs/protocol/encapsulation.md 9.6).

use std::io;

use trapeze_core::flow::FlowKey;
use trapeze_core::wire::meta::{self, Binding, Keys};
use trapeze_datapath::abi::{self, Flow, FlowState};

use super::Records;

impl Records {
    /// Makes a flow's options anew, where they are of another key.
    pub fn reseal(&self, key: &abi::FlowKey, flow: &Flow, keys: &Keys) -> io::Result<()> {
        if !is_stale(flow, keys) {
            return Ok(());
        }
        let name = FlowKey::from(*key);
        let sealed = |raw: &meta::Raw, slot: u32| {
            let to = self.slots.address(slot)?;
            let binding = Binding::of_flow(to.into(), name.client, name.vip)?;
            Some(keys.seal_again(raw, &binding))
        };
        let anew = |flow: &Flow| {
            let mut anew = *flow;
            anew.meta = sealed(&flow.meta, flow.backend)?;
            // Its backend may be configured no more: then nobody needs it.
            if flow.before[0] != 0
                && let Some(before) = sealed(&flow.before, flow.previous)
            {
                anew.before = before;
            }
            Some(anew).filter(|_| is_stale(flow, keys))
        };
        self.exchange(&name, anew).map(drop)
    }
}

fn is_stale(flow: &Flow, keys: &Keys) -> bool {
    let open = [FlowState::Established, FlowState::ClientFin].map(|state| state as u32);
    open.contains(&flow.state) && meta::key_id(&flow.meta) != keys.signing_id()
}
