//! Which dispatcher has a packet, or a flow: a table of lots, filled for the dispatchers
//! that live. A data path draws a lot (bpf/lib/lots.bpf.h) by turn, by chance, or by a
//! packet's 4-tuple; what that comes to is a matter of how the table is filled:
//!
//! | mode | a packet draws | lots are |
//! | --- | --- | --- |
//! | batch | the next one, so many packets each | dealt in turn |
//! | workload | any | intervals as long as normalised workload factors [SPLICE06 §4.2] |
//! | flow-hash | that of its 4-tuple | each of whom it has the highest random weight with |
//!
//! With the last a dispatcher that dies leaves its own lots to all others alike, and no
//! other lot moves; one that comes takes as many as its share, and no other lot moves. All
//! nodes come to the same table from the same names, whatever slots they have, so it also
//! says who takes a flow's decisions, wherever its packets arrive. Where dispatchers are in
//! sub-clusters, each of these has lots of its own, dealt so to somebody of it.

use std::net::IpAddr;

use crate::config::SprayMode;
use crate::flow::FlowKey;
use crate::policy::{hash_name, mix};
use crate::siphash::siphash24;

use super::Workload;
use super::subclusters::Homes;

/// Lots of a table (2^16). With 256 dispatchers a share is 256 of them, give or take 16.
pub const LOTS: usize = 1 << 16;
/// In the place of a slot: nobody.
pub const NOBODY: u16 = u16::MAX;

/// Somebody who can have lots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Its slot in the data path, below [`NOBODY`].
    pub slot: u16,
    /// Of its name, by [`hash_name`].
    pub name_hash: u64,
    /// For the mode `workload`.
    pub workload: Workload,
}

impl Holder {
    /// By its name.
    pub fn new(slot: u16, name: &str, workload: Workload) -> Self {
        Holder {
            slot,
            name_hash: hash_name(name),
            workload,
        }
    }

    fn is_same_member(&self, other: &Holder) -> bool {
        (self.slot, self.name_hash) == (other.slot, other.name_hash)
    }
}

/// The table.
#[derive(Clone, Debug)]
pub struct Lots {
    slots: Vec<u16>,
    /// Who has lots by hash at present, by sub-cluster; empty in other modes.
    hashed: Vec<Vec<Holder>>,
    /// Which sub-cluster's each lot is, if there are several.
    homes: Option<Homes>,
}

impl Default for Lots {
    fn default() -> Self {
        Lots {
            slots: vec![NOBODY; LOTS],
            hashed: Vec::new(),
            homes: None,
        }
    }
}

impl Lots {
    /// Each lot's slot.
    pub fn slots(&self) -> &[u16] {
        &self.slots
    }

    /// Fills the table for these; without any it stays as it is.
    pub fn fill(&mut self, mode: SprayMode, live: &[Holder]) {
        if live.is_empty() {
            return;
        }
        match mode {
            SprayMode::FlowHash => {
                self.live_in(None, 1);
                self.fill_by_hash(0, live);
            }
            SprayMode::Batch(_) => {
                self.hashed.clear();
                for (lot, slot) in self.slots.iter_mut().enumerate() {
                    *slot = live[lot % live.len()].slot;
                }
            }
            SprayMode::Workload => {
                self.hashed.clear();
                self.fill_by_workload(live);
            }
        }
    }

    /// Fills it by hash, each sub-cluster's lots for who stands under its number in `live`.
    /// Where nobody does they stay as they are.
    pub fn fill_by_home(&mut self, homes: &Homes, live: &[Vec<Holder>]) {
        self.live_in(Some(homes), live.len());
        for (cluster, live) in live.iter().enumerate() {
            if !live.is_empty() && self.hashed[cluster] != *live {
                self.fill_by_hash(cluster, live);
            }
        }
    }

    /// Nothing stands that was dealt by other homes.
    fn live_in(&mut self, homes: Option<&Homes>, clusters: usize) {
        if self.homes.as_ref() != homes || self.hashed.len() != clusters {
            self.homes = homes.cloned();
            self.hashed = vec![Vec::new(); clusters];
        }
    }

    /// How many lots a slot has.
    pub fn share(&self, slot: u16) -> usize {
        self.slots.iter().filter(|&&of| of == slot).count()
    }

    fn fill_by_workload(&mut self, live: &[Holder]) {
        let all: u64 = live.iter().map(|h| u64::from(h.workload.permille())).sum();
        let (mut start, mut sum) = (0, 0);
        for holder in live {
            sum += u64::from(holder.workload.permille());
            let end = (sum * LOTS as u64 / all) as usize;
            self.slots[start..end].fill(holder.slot);
            start = end;
        }
    }

    /// Looks only at lots that may change hands: at 10 ms between heartbeats a whole
    /// table of 256 members would take too long.
    fn fill_by_hash(&mut self, cluster: usize, live: &[Holder]) {
        let among =
            |holders: &[Holder], one: &Holder| holders.iter().any(|h| h.is_same_member(one));
        let had = &self.hashed[cluster];
        let stayed: Vec<Holder> = (had.iter().copied())
            .filter(|old| among(live, old))
            .collect();
        let came: Vec<Holder> = (live.iter().copied())
            .filter(|new| !among(had, new))
            .collect();
        let mut hash_of = vec![None; usize::from(NOBODY) + 1];
        for holder in &stayed {
            hash_of[usize::from(holder.slot)] = Some(holder.name_hash);
        }
        let is_here = |lot| match &self.homes {
            Some(homes) => homes.of(lot) == cluster,
            None => true,
        };
        let lots = self.slots.iter_mut().enumerate();
        for (lot, slot) in lots.filter(|(lot, _)| is_here(*lot)) {
            let kept = hash_of[usize::from(*slot)].map(|hash| (weight(lot, hash), *slot));
            let candidates = match kept {
                Some(_) => &came[..],
                None => live,
            };
            let others = candidates
                .iter()
                .map(|h| (weight(lot, h.name_hash), h.slot));
            if let Some((_, best)) = kept.into_iter().chain(others).max() {
                *slot = best;
            }
        }
        self.hashed[cluster] = live.to_vec();
    }
}

/// Whose a lot is by hash, among these.
pub fn holder_by_hash(lot: usize, live: &[Holder]) -> Option<&Holder> {
    let weigh = |holder: &&Holder| (weight(lot, holder.name_hash), holder.slot);
    live.iter().max_by_key(weigh)
}

/// A lot's weight with a member [LACP03: highest random weight].
fn weight(lot: usize, name_hash: u64) -> u64 {
    mix(name_hash ^ mix(lot as u64 + 1))
}

/// The key of the hash over 4-tuples. It comes from the cluster's name: no secret, so that
/// a change of keys moves no flow (docs/decisions/0014).
pub fn key(cluster: &str) -> [u8; 16] {
    let half = |label: &[u8; 16]| siphash24(label, cluster.as_bytes()).to_le_bytes();
    let mut key = [0; 16];
    key[..8].copy_from_slice(&half(b"trapeze lots 0.."));
    key[8..].copy_from_slice(&half(b"trapeze lots 1.."));
    key
}

/// The lot of a flow, as data paths draw it: SipHash-2-4 over client's address, VIP,
/// client's port, VIP's port, and four zeros. None if it is not IPv4.
pub fn lot_of(key: &[u8; 16], flow: &FlowKey) -> Option<usize> {
    let (IpAddr::V4(client), IpAddr::V4(vip)) = (flow.client.ip(), flow.vip.ip()) else {
        return None;
    };
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&client.octets());
    bytes[4..8].copy_from_slice(&vip.octets());
    bytes[8..10].copy_from_slice(&flow.client.port().to_be_bytes());
    bytes[10..12].copy_from_slice(&flow.vip.port().to_be_bytes());
    Some(siphash24(key, &bytes) as usize % LOTS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holders(names: &[u16]) -> Vec<Holder> {
        let holder = |&n: &u16| Holder::new(n, &format!("d{n}"), Workload::IDLE);
        names.iter().map(holder).collect()
    }

    fn filled(mode: SprayMode, live: &[Holder]) -> Lots {
        let mut lots = Lots::default();
        lots.fill(mode, live);
        lots
    }

    #[test]
    fn a_dispatcher_that_dies_leaves_only_its_own_lots() {
        for count in [2u16, 4, 9, 60] {
            let all: Vec<u16> = (0..count).collect();
            let before = filled(SprayMode::FlowHash, &holders(&all));
            let dead = count / 2;
            let left: Vec<u16> = all.iter().copied().filter(|&n| n != dead).collect();
            let mut after = before.clone();
            after.fill(SprayMode::FlowHash, &holders(&left));
            for (lot, (was, is)) in before.slots().iter().zip(after.slots()).enumerate() {
                assert!(was == is || *was == dead, "{count}: lot {lot} moved");
                assert_ne!(*is, dead);
            }
            let anew = filled(SprayMode::FlowHash, &holders(&left));
            assert_eq!(
                anew.slots(),
                after.slots(),
                "{count}: the way there does not matter"
            );
            after.fill(SprayMode::FlowHash, &holders(&all));
            assert_eq!(before.slots(), after.slots(), "{count}: back again");
        }
    }

    #[test]
    fn shares_are_even() {
        for count in [1u16, 3, 10, 100, 256] {
            let all: Vec<u16> = (0..count).collect();
            for mode in [
                SprayMode::FlowHash,
                SprayMode::Batch(40),
                SprayMode::Workload,
            ] {
                let lots = filled(mode, &holders(&all));
                let even = LOTS as f64 / f64::from(count);
                for &slot in &all {
                    let off = (lots.share(slot) as f64 - even).abs();
                    // Five standard deviations of a binomial share, at most.
                    assert!(off <= 5.0 * even.sqrt() + 1.0, "{mode:?} {count}: {off}");
                }
            }
        }
    }

    #[test]
    fn capacity_to_spare_decides_in_the_papers_choice() {
        let factors = [(0, 900), (1, 300), (2, 1), (3, 799)];
        let live = factors.map(|(slot, factor)| {
            let workload = Workload::new(factor).unwrap();
            Holder::new(slot, &format!("d{slot}"), workload)
        });
        let lots = filled(SprayMode::Workload, &live);
        for (slot, factor) in factors {
            let wanted = LOTS as f64 * f64::from(factor) / 2000.0;
            assert!((lots.share(slot) as f64 - wanted).abs() <= 1.0, "{slot}");
        }
        assert_eq!(lots.share(NOBODY), 0);
    }

    #[test]
    fn slots_do_not_matter_but_names_do() {
        let one = filled(SprayMode::FlowHash, &holders(&[0, 1, 2]));
        let other = [(7, "d0"), (8, "d1"), (5, "d2")]
            .map(|(slot, name)| Holder::new(slot, name, Workload::IDLE));
        let other = filled(SprayMode::FlowHash, &other);
        let renamed = |slot: &u16| [7, 8, 5][usize::from(*slot)];
        assert!(
            one.slots()
                .iter()
                .map(renamed)
                .eq(other.slots().iter().copied())
        );
    }

    #[test]
    fn a_slot_that_another_has_taken_is_a_new_member() {
        let mut lots = filled(SprayMode::FlowHash, &holders(&[0, 1]));
        let live = [
            Holder::new(0, "d0", Workload::IDLE),
            Holder::new(1, "other", Workload::IDLE),
        ];
        lots.fill(SprayMode::FlowHash, &live);
        assert_eq!(lots.slots(), filled(SprayMode::FlowHash, &live).slots());
    }

    #[test]
    fn without_anybody_the_table_stays() {
        let mut lots = filled(SprayMode::FlowHash, &holders(&[0, 1]));
        let before = lots.clone();
        lots.fill(SprayMode::FlowHash, &[]);
        assert_eq!(before.slots(), lots.slots());
    }

    #[test]
    fn a_mode_that_changes_fills_anew() {
        let live = holders(&[0, 1, 2]);
        let mut lots = filled(SprayMode::Batch(1), &live);
        lots.fill(SprayMode::FlowHash, &live);
        assert_eq!(lots.slots(), filled(SprayMode::FlowHash, &live).slots());
    }

    /// Three sub-clusters of four, as a dispatcher of the first one deals their lots: slots
    /// tell which one somebody is of.
    fn apart() -> (Homes, Vec<Vec<Holder>>) {
        let live = [[0, 1, 2, 3], [10, 11, 12, 13], [20, 21, 22, 23]];
        (Homes::new(3), live.map(|names| holders(&names)).to_vec())
    }

    #[test]
    fn each_sub_clusters_lots_are_its_own_members() {
        let (homes, live) = apart();
        let mut lots = Lots::default();
        lots.fill_by_home(&homes, &live);
        let mut shares = [[0u32; 4]; 3];
        for (lot, &slot) in lots.slots().iter().enumerate() {
            let (cluster, member) = (usize::from(slot / 10), usize::from(slot % 10));
            assert_eq!(homes.of(lot), cluster, "lot {lot}");
            shares[cluster][member] += 1;
            // Whoever knows the members of one sub-cluster deals its lots alike.
            let holder = holder_by_hash(lot, &live[cluster]).unwrap();
            assert_eq!(holder.slot, slot);
        }
        for cluster in shares {
            let even = cluster.iter().sum::<u32>() / 4;
            assert!(
                cluster.iter().all(|n| n.abs_diff(even) < 400),
                "{cluster:?}"
            );
        }
    }

    #[test]
    fn a_death_moves_lots_within_its_sub_cluster_alone() {
        let (homes, mut live) = apart();
        let mut lots = Lots::default();
        lots.fill_by_home(&homes, &live);
        let before = lots.clone();
        let dead = live[1].remove(2).slot;
        lots.fill_by_home(&homes, &live);
        for (was, is) in before.slots().iter().zip(lots.slots()) {
            assert!(was == is || *was == dead && is / 10 == 1, "{was} {is}");
        }
        // All of it: to the front end.
        let rest = live[1].clone();
        live[1] = live[0].clone();
        lots.fill_by_home(&homes, &live);
        for (lot, slot) in lots.slots().iter().enumerate() {
            let now = [0, 0, 2][homes.of(lot)];
            assert_eq!(slot / 10, now, "lot {lot}");
        }
        // It is back, with one more.
        live[1] = [rest, holders(&[12])].concat();
        lots.fill_by_home(&homes, &live);
        assert_eq!(before.slots(), lots.slots());
        // And there are none any more.
        lots.fill(SprayMode::FlowHash, &live[0]);
        let anew = filled(SprayMode::FlowHash, &live[0]);
        assert_eq!(anew.slots(), lots.slots());
    }

    #[test]
    fn another_number_of_sub_clusters_deals_anew() {
        let (homes, live) = apart();
        let mut lots = Lots::default();
        lots.fill_by_home(&Homes::new(2), &live[..2]);
        lots.fill_by_home(&homes, &live);
        let mut anew = Lots::default();
        anew.fill_by_home(&homes, &live);
        assert_eq!(anew.slots(), lots.slots());
    }
}
