//! What a node's data path keeps, read from its pinned maps: there whether the
//! daemon runs or not.

use anyhow::{Context, anyhow};
use serde::Serialize;
use trapeze_core::flow::addr_from_bytes;
use trapeze_datapath::abi::{BACKENDS_MAX, DROP_REASONS, EVENTS};
use trapeze_datapath::agent::AgentMaps;
use trapeze_datapath::dispatcher::DispatcherMaps;
use trapeze_datapath::map::PerCpu;
use trapeze_datapath::node::Node;
use trapeze_datapath::spray::SprayMaps;

/// A counter of the data path.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Counter {
    /// As in abi.h.
    pub name: &'static str,
    /// Since the data path was loaded.
    pub count: u64,
    /// What it means.
    pub meaning: &'static str,
}

/// A backend that has a slot.
#[derive(Clone, Debug)]
pub struct Slot {
    /// Its number.
    pub index: u32,
    /// The backend's name.
    pub name: String,
    /// The backend's address.
    pub address: String,
    /// Connections open now.
    pub active: u64,
    /// Connections given to it so far.
    pub total: u64,
}

/// A dispatcher's maps.
pub fn dispatcher(node: &Node) -> anyhow::Result<DispatcherMaps> {
    DispatcherMaps::open(&node.pins()).with_context(|| advice(node))
}

/// A spray's maps.
pub fn spray(node: &Node) -> anyhow::Result<SprayMaps> {
    SprayMaps::open(&node.pins()).with_context(|| advice(node))
}

/// An agent's maps.
pub fn agent(node: &Node) -> anyhow::Result<AgentMaps> {
    AgentMaps::open(&node.pins()).with_context(|| advice(node))
}

fn advice(node: &Node) -> String {
    format!(
        "cannot read the maps of {} in {}: are you root, has its daemon ever started, and is the BPF file system \
         mounted here? (`ip netns exec` hides it, `nsenter --net=FILE` does not)",
        node.name,
        node.pins().display()
    )
}

/// Drops by reason, in the order of abi.h, without the one that is none.
pub fn drops(counters: &PerCpu) -> anyhow::Result<Vec<Counter>> {
    Ok(named(counters, DROP_REASONS)?.split_off(1))
}

/// Events, in the order of abi.h.
pub fn events(counters: &PerCpu) -> anyhow::Result<Vec<Counter>> {
    named(counters, EVENTS)
}

fn named(
    counters: &PerCpu,
    names: &'static [(&'static str, &'static str)],
) -> anyhow::Result<Vec<Counter>> {
    let sums = counters.sums().context("cannot read the counters")?;
    if sums.len() < names.len() {
        return Err(anyhow!(
            "the data path is of an older version: restart the daemon"
        ));
    }
    Ok((names.iter().zip(sums))
        .map(|(&(name, meaning), count)| Counter {
            name,
            count,
            meaning,
        })
        .collect())
}

/// The slots that backends have.
pub fn slots(maps: &DispatcherMaps) -> anyhow::Result<Vec<Slot>> {
    let mut slots = Vec::new();
    for index in 0..BACKENDS_MAX as u32 {
        let Some(backend) = maps.backends.get(&index)? else {
            continue;
        };
        if backend.name().is_empty() {
            continue;
        }
        let load = maps.loads.get(&index)?;
        slots.push(Slot {
            index,
            name: backend.name().to_owned(),
            address: addr_from_bytes(backend.addr).to_string(),
            active: load.map_or(0, |load| load.active.max(0) as u64),
            total: load.map_or(0, |load| load.total),
        });
    }
    Ok(slots)
}
