//! Sub-clusters, for thousands of nodes [SPLICE06 §8, figure 10]: records are shared only
//! within a sub-cluster of some hundred, so that state and messages for a connection do not
//! grow with the whole. Sprays know one of them, the front end. A packet there
//!
//! ```text
//!   of a flow with a record       forward                      spliceExists(pkt)
//!   else  sub-cluster = hash      own: to its owner            multicast(pkt, hash1(pkt))
//!                                 another: to any member       send(pkt, LB(sub_cluster))
//! ```
//! and in a back-end sub-cluster the same, where each flow is its own. Which is asked first,
//! the record or the hash, is all one to what happens: only a flow's own sub-cluster has
//! records of it. So a front-end node keeps nothing of flows that others have, and passes
//! their packets on one by one.
//!
//! The simulator (`trapeze sim subclusters`) takes each step here. In a cluster the data path
//! takes them (bpf/lib/keeper.bpf.h), by its table of lots: [`Homes`] says whose each lot is,
//! and it is dealt to those of this dispatcher's own sub-cluster that keep flows, or to a few
//! of another one's members, its [`gates`]. docs/protocol/replication.md, clause 9.

use super::lots::LOTS;
use crate::policy::{hash_name, mix};

/// A node by its sub-cluster and its place there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// Which sub-cluster.
    pub cluster: usize,
    /// Which of its members.
    pub member: usize,
}

/// What a node does with a client's packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// It has the flow's record: on to the backend.
    Forward,
    /// The flow is this sub-cluster's, and here is who decides: perhaps the node itself.
    ToOwner(Place),
    /// The flow is another sub-cluster's, and this member of it may have the packet.
    PassOn(Place),
}

/// All sub-clusters, the front end first. Nodes that know the same members agree on all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Farm {
    /// Hashes of members' names.
    clusters: Vec<Vec<u64>>,
}

/// The front-end sub-cluster, which sprays know.
pub const FRONT: usize = 0;

impl Farm {
    /// Of these members, by name; the first sub-cluster is the front end. None if one of
    /// them has no member.
    pub fn new<Name: AsRef<str>>(clusters: &[Vec<Name>]) -> Option<Self> {
        let hashes = |names: &Vec<Name>| names.iter().map(|n| hash_name(n.as_ref())).collect();
        let clusters: Vec<Vec<u64>> = clusters.iter().map(hashes).collect();
        let complete = !clusters.is_empty() && clusters.iter().all(|c| !c.is_empty());
        complete.then_some(Farm { clusters })
    }

    /// How many members each has.
    pub fn sizes(&self) -> impl ExactSizeIterator<Item = usize> {
        self.clusters.iter().map(Vec::len)
    }

    /// The same without a node that has died; none if its sub-cluster is empty then.
    /// Places behind it move up.
    pub fn without(&self, dead: Place) -> Option<Self> {
        let mut clusters = self.clusters.clone();
        let members = clusters.get_mut(dead.cluster)?;
        if dead.member >= members.len() || members.len() == 1 {
            return None;
        }
        members.remove(dead.member);
        Some(Farm { clusters })
    }

    /// The sub-cluster of a flow with that hash (`hash` of figure 10): the one of highest
    /// random weight [LACP03]. It depends on their number, not on their members, so that no
    /// node's death moves a flow to another sub-cluster; all should be of one size.
    pub fn cluster_of(&self, flow: u64) -> usize {
        cluster_of(flow, self.clusters.len())
    }

    /// The member that takes the flow's decisions (`hash1`).
    pub fn owner_of(&self, flow: u64) -> Place {
        let cluster = self.cluster_of(flow);
        // Another hash than before: the members of one sub-cluster see only flows alike there.
        let flow = mix(flow.rotate_left(32) ^ 0x9e37_79b9_7f4a_7c15);
        let members = &self.clusters[cluster];
        let weight = |member: &usize| mix(flow ^ members[*member]);
        let member = (0..members.len()).max_by_key(weight).expect("it has one");
        Place { cluster, member }
    }

    /// What the node at `here` does with a packet of a flow. `knows`: it has the flow's
    /// record. `chance` chooses a member of another sub-cluster: any number, for each packet
    /// another one; the workload factors of its members are taken to be alike.
    pub fn step(&self, here: Place, flow: u64, knows: bool, chance: u64) -> Step {
        match knows {
            true => Step::Forward,
            false => self.step_towards(here, self.owner_of(flow), knows, chance),
        }
    }

    /// The same where it is known who the owner is, as from a table of lots.
    pub fn step_towards(&self, here: Place, owner: Place, knows: bool, chance: u64) -> Step {
        if knows {
            return Step::Forward;
        }
        if owner.cluster == here.cluster {
            return Step::ToOwner(owner);
        }
        let members = self.clusters[owner.cluster].len() as u64;
        Step::PassOn(Place {
            cluster: owner.cluster,
            member: (mix(chance) % members) as usize,
        })
    }
}

fn cluster_of(flow: u64, clusters: usize) -> usize {
    let weight = |cluster: &usize| mix(flow ^ mix(*cluster as u64 + 1));
    (0..clusters).max_by_key(weight).unwrap_or(FRONT)
}

/// Lots in a row that are of one sub-cluster: a data path without its daemon looks there for
/// another one who keeps flows of its own.
pub const BUNDLE: usize = 16;

/// The sub-cluster that each lot's flows are of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Homes {
    of_bundle: Vec<u8>,
}

impl Homes {
    /// Of so many sub-clusters, at most 256: by [`Farm::cluster_of`], of the bundle that the
    /// lot is in.
    pub fn new(clusters: usize) -> Self {
        let bundles = 0..(LOTS / BUNDLE) as u64;
        let home = |bundle| cluster_of(bundle, clusters.min(256)) as u8;
        Homes {
            of_bundle: bundles.map(home).collect(),
        }
    }

    /// Of that lot's flows.
    pub fn of(&self, lot: usize) -> usize {
        usize::from(self.of_bundle[lot % LOTS / BUNDLE])
    }
}

/// Members of another sub-cluster that a dispatcher passes that one's packets to, if so many
/// are alive.
pub const GATES: usize = 3;

/// In which order `own` would have another sub-cluster's members as gates: each dispatcher in
/// one of its own, so that they are chosen alike.
pub fn gates_in_order<Name: AsRef<str>>(own: &str, members: &[Name]) -> Vec<usize> {
    let own = mix(hash_name(own));
    let mut places: Vec<usize> = (0..members.len()).collect();
    places.sort_by_key(|&place| {
        let name = members[place].as_ref();
        (std::cmp::Reverse(mix(own ^ hash_name(name))), name)
    });
    places
}

/// How many of them, in that order, are watched: until so many are not silent. Who is silent
/// is asked on, since it may come back.
pub fn gates_watched(is_silent: impl Iterator<Item = bool>) -> usize {
    let (mut watched, mut there) = (0, 0);
    for is_silent in is_silent {
        if there == GATES {
            break;
        }
        watched += 1;
        there += usize::from(!is_silent);
    }
    watched
}

#[cfg(test)]
mod tests {
    use super::*;

    fn farm(clusters: usize, size: usize) -> Farm {
        let names = |cluster| (0..size).map(move |member| format!("n{cluster}-{member}"));
        let all: Vec<Vec<String>> = (0..clusters).map(|c| names(c).collect()).collect();
        Farm::new(&all).unwrap()
    }

    fn flows() -> impl Iterator<Item = u64> {
        (0..40_000u64).map(|n| mix(n + 77))
    }

    #[test]
    fn figure_10_holds() {
        let farm = farm(5, 20);
        for flow in flows().take(2000) {
            let owner = farm.owner_of(flow);
            let here = |cluster| Place { cluster, member: 3 };
            assert_eq!(farm.step(here(0), flow, true, 1), Step::Forward);
            for cluster in 0..5 {
                let step = farm.step(here(cluster), flow, false, flow);
                match step {
                    Step::ToOwner(place) => assert!(place == owner && cluster == owner.cluster),
                    Step::PassOn(place) => {
                        assert!(cluster != owner.cluster && place.cluster == owner.cluster);
                        assert!(place.member < 20);
                    }
                    Step::Forward => panic!("it has no record"),
                }
            }
        }
    }

    #[test]
    fn flows_are_spread_evenly_over_both_levels() {
        let farm = farm(20, 10);
        let mut owned = vec![vec![0u32; 10]; 20];
        for flow in flows() {
            let owner = farm.owner_of(flow);
            owned[owner.cluster][owner.member] += 1;
        }
        for cluster in &owned {
            let sum: u32 = cluster.iter().sum();
            // 2000 and 200 in the mean; five standard deviations.
            assert!(sum.abs_diff(2000) < 5 * 45, "{sum}");
            assert!(
                cluster.iter().all(|n| n.abs_diff(200) < 5 * 15),
                "{cluster:?}"
            );
        }
    }

    #[test]
    fn a_death_moves_only_the_dead_ones_flows_and_within_its_sub_cluster() {
        let before = farm(6, 12);
        let dead = Place {
            cluster: 2,
            member: 5,
        };
        let after = before.without(dead).unwrap();
        for flow in flows().take(10_000) {
            let (was, is) = (before.owner_of(flow), after.owner_of(flow));
            assert_eq!(was.cluster, is.cluster);
            if was != dead {
                let shift = usize::from(was.cluster == dead.cluster && was.member > dead.member);
                assert_eq!(is.member, was.member - shift);
            }
        }
        assert_eq!(
            farm(2, 1).without(Place {
                cluster: 1,
                member: 0
            }),
            None
        );
        assert_eq!(Farm::new::<&str>(&[vec![]]), None);
    }

    #[test]
    fn lots_are_of_sub_clusters_in_even_shares() {
        for clusters in [1, 2, 3, 10, 50] {
            let homes = Homes::new(clusters);
            let mut lots = vec![0usize; clusters];
            (0..LOTS).for_each(|lot| lots[homes.of(lot)] += 1);
            let even = LOTS as f64 / clusters as f64;
            for (cluster, &share) in lots.iter().enumerate() {
                // Five standard deviations of bundles, at most.
                let most = 5.0 * (even * BUNDLE as f64).sqrt();
                let off = (share as f64 - even).abs();
                assert!(off <= most, "{cluster} of {clusters}: {share}");
            }
        }
    }

    #[test]
    fn a_new_sub_cluster_takes_lots_and_moves_no_other() {
        let (before, after) = (Homes::new(4), Homes::new(5));
        for lot in 0..LOTS {
            assert!(after.of(lot) == before.of(lot) || after.of(lot) == 4);
        }
    }

    #[test]
    fn gates_are_chosen_alike_and_the_silent_are_replaced() {
        let members: Vec<String> = (0..20).map(|n| format!("m{n}")).collect();
        let mut chosen = vec![0u32; members.len()];
        for dispatcher in 0..2000 {
            let order = gates_in_order(&format!("d{dispatcher}"), &members);
            order[..GATES].iter().for_each(|&place| chosen[place] += 1);
        }
        // 300 in the mean; five standard deviations.
        assert!(
            chosen.iter().all(|n| n.abs_diff(300) < 5 * 16),
            "{chosen:?}"
        );
        let watched = |silent: &[bool]| gates_watched(silent.iter().copied());
        assert_eq!(watched(&[false; 20]), 3);
        assert_eq!(watched(&[false, true, false, false, false]), 4);
        assert_eq!(watched(&[true, true, true, true]), 4);
        assert_eq!(watched(&[false, true]), 2);
        assert_eq!(watched(&[]), 0);
    }
}
