//! When a dispatcher begins to keep flows: once all that keep some take it for one that
//! does, so that no flow has two keepers meanwhile (docs/protocol/replication.md 1.5).

use std::collections::{HashMap, HashSet};
use std::net::Ipv4Addr;

/// How far it has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Stage {
    /// It has not got all records.
    CatchingUp,
    /// The others are to know that it will keep its share.
    Joining,
    /// It keeps its share of flows.
    Keeping,
    /// It kept them, or joined, and was away for so long that its data path has said so: others may keep them by now.
    Lapsed,
}

impl Stage {
    /// As an atomic holds it.
    pub fn of(stage: u8) -> Self {
        match stage {
            0 => Self::CatchingUp,
            1 => Self::Joining,
            2 => Self::Keeping,
            _ => Self::Lapsed,
        }
    }
}

/// What one dispatcher says to another of both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    /// Its share of flows is the other's, or is about to be.
    pub takes_you: bool,
    /// It keeps flows itself.
    pub keeps: bool,
}

/// What was said last, by and to each peer.
#[derive(Debug, Default)]
pub struct Views {
    heard: HashMap<Ipv4Addr, View>,
    said: HashMap<Ipv4Addr, View>,
    /// They are fit, and nobody here decides any more about flows that they keep.
    given_way: HashSet<Ipv4Addr>,
}

impl Views {
    /// A peer has said this.
    pub fn hear(&mut self, peer: Ipv4Addr, view: View) {
        self.heard.insert(peer, view);
    }

    /// A peer is to hear this. False: it was told before.
    pub fn say(&mut self, peer: Ipv4Addr, view: View) -> bool {
        self.said.insert(peer, view) != Some(view)
    }

    /// Whether a peer is fit. One that comes to be takes flows over, and is given way to when nobody `decides` by older
    /// lots: what has been decided it hears before.
    pub fn judge(&mut self, peer: Ipv4Addr, is_fit: bool, decides: bool) {
        match is_fit {
            true if !decides => drop(self.given_way.insert(peer)),
            true => {}
            false => drop(self.given_way.remove(&peer)),
        }
    }

    /// It has been given way to.
    pub fn gives_way_to(&self, peer: Ipv4Addr) -> bool {
        self.given_way.contains(&peer)
    }

    /// A peer has changed: what it has heard is of before.
    pub fn repeat(&mut self, peer: Ipv4Addr) {
        self.said.remove(&peer);
    }

    /// Nobody there.
    pub fn forget(&mut self, peer: Ipv4Addr) {
        self.heard.remove(&peer);
        self.said.remove(&peer);
    }

    /// It takes us for a keeper of flows.
    pub fn takes_us(&self, peer: Ipv4Addr) -> bool {
        self.heard.get(&peer).is_some_and(|view| view.takes_you)
    }

    /// It keeps flows, and does not take us for one that does.
    pub fn disowns_us(&self, peer: Ipv4Addr) -> bool {
        let disowns = |view: &View| view.keeps && !view.takes_you;
        self.heard.get(&peer).is_some_and(disowns)
    }
}
