//! Other sub-clusters, as a dispatcher knows them (docs/protocol/replication.md 9): no records
//! of their flows, and of their members a few that it watches, its *gates*. To those that are
//! there the lots of their sub-cluster are dealt, so that its packets are passed to them. The
//! rules are core's (core/src/membership/subclusters.rs); how its own sub-cluster's members
//! are is in vigil.rs.

use std::collections::HashSet;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use trapeze_core::config::Config;
use trapeze_core::membership::Presence;
use trapeze_core::membership::lots::Holder;
use trapeze_core::membership::subclusters::{FRONT, Homes, gates_in_order, gates_watched};
use trapeze_core::membership::watch::{State, Watch, Watched};

use super::vigil::{PeerStatus, holder, is_fit, is_keeper};
use super::{Peer, SELF};

/// The dispatchers of other sub-clusters, by configuration; nobody where there is one alone.
#[derive(Debug, Default)]
pub struct Elsewhere {
    /// This dispatcher's own sub-cluster.
    pub own: usize,
    /// Whose each lot is; none where there is one sub-cluster.
    pub homes: Option<Homes>,
    /// By sub-cluster, in the order in which this one would have them as gates; of its own nobody.
    members: Vec<Vec<Peer>>,
    slots: HashSet<u16>,
}

impl Elsewhere {
    /// For the dispatcher of that name; `others` with their sub-clusters.
    pub fn new(config: &Config, (name, own): (&str, usize), others: Vec<(usize, Peer)>) -> Self {
        let count = config.sub_clusters();
        let slots = others.iter().map(|(_, peer)| peer.slot).collect();
        let mut members = vec![Vec::new(); count];
        for (cluster, peer) in others {
            members[cluster].push(peer);
        }
        for of_one in &mut members {
            let names: Vec<&str> = of_one.iter().map(|peer: &Peer| &*peer.name).collect();
            let order = gates_in_order(name, &names);
            *of_one = order.iter().map(|&place| of_one[place].clone()).collect();
        }
        Self {
            own,
            homes: (count > 1).then(|| Homes::new(count)),
            members,
            slots,
        }
    }

    /// All of them.
    pub fn all(&self) -> impl Iterator<Item = &Peer> {
        self.members.iter().flatten()
    }

    pub fn has_slot(&self, slot: u16) -> bool {
        self.slots.contains(&slot)
    }
}

/// Those of them that are watched.
pub struct Gates {
    elsewhere: Arc<Elsewhere>,
    /// By place in the watch, each with its sub-cluster.
    watched: Vec<(usize, Peer)>,
    watch: Watch,
}

impl Gates {
    /// As [`Watch::new`].
    pub fn new(elsewhere: Arc<Elsewhere>, interval: Duration, now: Duration, number: u32) -> Self {
        let mut gates = Self {
            elsewhere,
            watched: Vec::new(),
            watch: Watch::new(interval, now, number),
        };
        gates.choose();
        gates
    }

    /// Others are configured.
    pub fn follow_reload(&mut self, now: Duration, elsewhere: Arc<Elsewhere>, interval: Duration) {
        self.elsewhere = elsewhere;
        self.watch.set_interval(now, interval);
        self.choose();
    }

    /// When there is something to do next; none: never.
    pub fn due(&self) -> Option<Duration> {
        (!self.watched.is_empty()).then(|| self.watch.due())
    }

    /// The number to ask them under, if it is time, and whom.
    pub fn beat(&mut self, now: Duration) -> Option<(u32, Vec<Ipv4Addr>)> {
        if self.watched.is_empty() {
            return None;
        }
        let number = self.watch.beat(now)?;
        let asked = self.watched.iter().map(|(_, peer)| peer.address);
        Some((number, asked.collect()))
    }

    /// The same once more, for those that have not answered in time.
    pub fn repeat(&mut self, now: Duration) -> Option<(u32, Vec<Ipv4Addr>)> {
        let (number, late) = self.watch.repeat(now)?;
        let asked = late.iter().map(|&place| self.watched[place].1.address);
        Some((number, asked.collect()))
    }

    /// An answer of `asked`'s, who may be none of them.
    pub fn hear(&mut self, now: Duration, asked: Ipv4Addr, number: u32, said: Presence) {
        let is = |(_, peer): &(usize, Peer)| peer.address == asked;
        if let Some(place) = self.watched.iter().position(is) {
            self.watch.hear(now, place, number, said);
        }
    }

    /// Notices who has come or gone, and watches somebody else for who has gone. False: nobody.
    pub fn judge(&mut self, now: Duration) -> bool {
        let changes = self.watch.judge(now);
        for change in &changes {
            let (cluster, peer) = &self.watched[change.member];
            println!(
                "{} of sub-cluster {cluster} is {}",
                peer.name,
                change.state.name()
            );
        }
        if !changes.is_empty() {
            self.choose();
        }
        !changes.is_empty()
    }

    fn choose(&mut self) {
        let is_silent = |peer: &Peer| {
            let mut all = self.all();
            all.any(|(_, other, watched)| other == peer && watched.state == State::Silent)
        };
        let mut chosen = Vec::new();
        for (cluster, members) in self.elsewhere.members.iter().enumerate() {
            let count = gates_watched(members.iter().map(is_silent));
            chosen.extend(members[..count].iter().map(|peer| (cluster, peer.clone())));
        }
        if chosen == self.watched {
            return;
        }
        let from: Vec<Option<usize>> = (chosen.iter())
            .map(|one| self.watched.iter().position(|was| was == one))
            .collect();
        self.watch.rearrange(&from);
        self.watched = chosen;
    }

    fn all(&self) -> impl Iterator<Item = (usize, &Peer, &Watched)> {
        let all = self.watched.iter().zip(self.watch.members());
        all.map(|((cluster, peer), watched)| (*cluster, peer, watched))
    }

    /// Those that answer.
    pub fn living(&self) -> Vec<Ipv4Addr> {
        self.all()
            .filter(|(_, _, watched)| watched.state == State::Alive)
            .map(|(_, peer, _)| peer.address)
            .collect()
    }

    /// By sub-cluster, to whom its lots are dealt; those of this dispatcher's own to `keepers`.
    /// Where nobody is alive they fall to the front end.
    pub fn deal(&self, keepers: &[Holder]) -> Vec<Vec<Holder>> {
        let there = |cluster: usize| match cluster == self.elsewhere.own {
            true => keepers.to_vec(),
            false => self.gates_of(cluster),
        };
        let mut dealt: Vec<Vec<Holder>> = (0..self.elsewhere.members.len()).map(there).collect();
        let front = match dealt.get(FRONT) {
            Some(front) if !front.is_empty() => front.clone(),
            _ => keepers.to_vec(),
        };
        for of_one in &mut dealt {
            if of_one.is_empty() {
                of_one.clone_from(&front);
            }
        }
        dealt
    }

    /// Whoever keeps flows; else whoever is there: its data path knows others of its
    /// sub-cluster.
    fn gates_of(&self, cluster: usize) -> Vec<Holder> {
        let there = |watched: &Watched| match watched.state {
            State::Alive => true,
            State::Unknown => !self.watch.has_judged(),
            State::Silent => false,
        };
        let stays = |watched: &Watched| watched.said != Some(Presence::Leaving);
        let of = |is: &dyn Fn(&Watched) -> bool| -> Vec<Holder> {
            self.all()
                .filter(|(of, _, watched)| *of == cluster && is(watched))
                .map(|(_, peer, _)| holder(peer))
                .collect()
        };
        let keepers = of(&is_keeper);
        if !keepers.is_empty() {
            return keepers;
        }
        let staying = of(&|watched| there(watched) && stays(watched));
        match staying.is_empty() {
            true => of(&there),
            false => staying,
        }
    }

    /// For showing; `lots` is how many a slot has.
    pub fn status(&self, lots: impl Fn(u16) -> usize) -> Vec<PeerStatus> {
        self.all()
            .map(|(cluster, peer, watched)| PeerStatus {
                name: peer.name.clone(),
                address: peer.address.to_string(),
                sub_cluster: cluster as u8,
                state: watched.state.name().into(),
                fit: is_fit(watched),
                lots: lots(peer.slot),
                lacking: 0,
            })
            .collect()
    }
}

/// Of those to whom a sub-cluster's lots are dealt, the one that has what servers send to
/// that splice address of it.
pub fn gate_for(address: Ipv4Addr, gates: &[Holder]) -> Option<u16> {
    let lot = u32::from(address) as usize;
    let gate = trapeze_core::membership::lots::holder_by_hash(lot, gates)?;
    Some(gate.slot).filter(|&slot| slot != SELF)
}

#[cfg(test)]
#[path = "gates_tests.rs"]
mod tests;
