//! Who keeps flows, as this dispatcher sees it, and how far it has come itself on the way to be one
//! of them (docs/protocol/replication.md 1). From both follows whose each lot is.

use std::sync::atomic::Ordering;
use std::time::Duration;

use trapeze_core::config::SprayMode;
use trapeze_core::membership::lots::{Holder, Lots};
use trapeze_core::membership::watch::{State, Watched};
use trapeze_core::membership::{Presence, Workload};
use trapeze_datapath::{clock, dispatchers};

use super::{LONGEST_SILENCE, Vigil};
use crate::peers::joining::Stage;
use crate::peers::{PATIENCE, Peer, SELF};
use crate::workload;

/// Who is dead, as far as is known, may yet entrust something: its data path, as long as that goes by its daemon's last
/// word (docs/protocol/replication.md 1.2).
const CLAIMS_FOR: Duration = Duration::from_secs(3);
/// So many heartbeats until all others have dealt as this dispatcher has.
const VIEWS_DIFFER: u32 = 3;

impl Vigil {
    /// Its share of flows is dealt before the data path says that it keeps them. What it passes to the keeper of
    /// before until then is of one that joins: else each of the two could take a packet of a flow for left to it by the
    /// other, and both would give the request that is in it to a backend (docs/protocol/replication.md 2.3). Until then
    /// its workers keep what is left to one that joins, too. Who has been away meanwhile has to catch up first.
    pub(super) fn enter(&mut self, stage: Stage) -> anyhow::Result<()> {
        if stage == Stage::Keeping {
            self.deal(stage, true)?;
        }
        let may_leave = |was| was != Stage::Lapsed as u8 || stage == Stage::CatchingUp;
        let known = &self.shared.peers.stage;
        let _ = known.fetch_update(Ordering::AcqRel, Ordering::Acquire, |was| {
            may_leave(was).then_some(stage as u8)
        });
        Ok(workload::publish(&self.shared)?)
    }

    /// It is this thread that others have to rely on.
    pub(super) fn renew_lease(&mut self, now: Duration) -> anyhow::Result<()> {
        if now >= self.lease_at {
            self.lease_at = now + LONGEST_SILENCE;
            workload::renew(&self.shared)?;
        }
        Ok(())
    }

    pub(super) fn join(&mut self, now: Duration) -> anyhow::Result<()> {
        // It takes its time to catch up, and keeps nothing meanwhile that somebody else could keep by now.
        workload::publish(&self.shared)?;
        self.enter(Stage::Joining)?;
        self.joins_after = self.watch.latest();
        self.watch.hasten(now);
        Ok(())
    }

    /// This dispatcher has its share of flows, and does not leave.
    pub(super) fn keeps(&self) -> bool {
        self.keeps_in(self.shared.peers.stage())
    }

    fn keeps_in(&self, stage: Stage) -> bool {
        let leaving = self.shared.leaving.load(Ordering::Relaxed);
        stage == Stage::Keeping && !leaving
    }

    /// Begins to keep flows when the others know, and stops when one of them has taken this
    /// dispatcher for dead.
    pub(super) fn settle(&mut self, now: Duration) -> anyhow::Result<()> {
        let members = || self.peers.iter().zip(self.watch.members());
        let keepers = || members().filter(|(_, watched)| is_keeper(watched));
        match self.shared.peers.stage() {
            // The next look finds that.
            Stage::CatchingUp | Stage::Lapsed => {}
            Stage::Joining => {
                let knows = |(peer, watched): (&Peer, &Watched)| match watched.state {
                    State::Unknown => self.watch.has_judged(),
                    State::Silent => !was_there(watched, now),
                    State::Alive => {
                        watched.has_answered_after(self.joins_after)
                            && (!is_keeper(watched) || self.views.takes_us(peer.address))
                    }
                };
                if members().all(knows) && self.pupil.is_none() {
                    println!("keeps its share of flows");
                    self.enter(Stage::Keeping)?;
                }
            }
            Stage::Keeping => {
                self.is_alone &= keepers().next().is_none();
                let disowning = keepers().find(|(peer, _)| self.views.disowns_us(peer.address));
                // Who leaves has asked for that.
                let leaving = self.shared.leaving.load(Ordering::Relaxed);
                if let Some((peer, _)) = disowning.filter(|_| !leaving) {
                    println!("{} took this dispatcher for dead: it joins anew", peer.name);
                    self.join(now)?;
                }
            }
        }
        Ok(())
    }

    /// Deals the lots, to those that are fit, and of other sub-clusters to the gates, if that
    /// comes out otherwise than before.
    pub(super) fn deal(&mut self, stage: Stage, reloaded: bool) -> anyhow::Result<()> {
        let keepers = self.keepers(stage);
        let holders = self.gates.deal(&keepers);
        if holders == self.holders && !reloaded {
            return Ok(());
        }
        let peers = &self.shared.peers;
        let elsewhere = peers.elsewhere();
        let mut claims = keepers.clone();
        if !claims.contains(&self.own()) {
            claims.push(self.own());
        }
        *(peers.claims.write()).expect("no thread panics with it") = claims;
        match &elsewhere.homes {
            Some(homes) => self.lots.fill_by_home(homes, &holders),
            None => self.lots.fill(SprayMode::FlowHash, &keepers),
        }
        // What others have entrusted to us has records before a packet looks for one here; and so has what came meanwhile.
        self.claimer.claim()?;
        peers.lots.set(self.lots.slots());
        self.claimer.claim()?;
        let others = keepers.iter().filter(|holder| holder.slot != SELF);
        let heirs: Vec<Holder> = others.copied().collect();
        if heirs.is_empty() {
            self.heirs = Lots::default();
        }
        self.heirs.fill(SprayMode::FlowHash, &heirs);
        peers.heirs.set(self.heirs.slots());
        let is_there =
            |keeper: &Holder| (holders.iter().flatten()).any(|one| one.slot == keeper.slot);
        let has_lost_one = !self.holders.iter().flatten().all(is_there);
        let claims_for = match has_lost_one {
            true => CLAIMS_FOR,
            false => self.shared.cluster().config.spraying.heartbeat * VIEWS_DIFFER,
        };
        self.claims_until = clock::monotonic() + claims_for;
        peers.note_deal(has_lost_one);
        if elsewhere.homes.is_some() {
            *(peers.dealt.write()).expect("no thread panics with it") = holders.clone();
            self.shared.publish_services()?;
        }
        self.holders = holders;
        let is_peers = |slot| self.peers.iter().any(|peer| peer.slot == slot);
        let is_used = |slot| is_peers(slot) || elsewhere.has_slot(slot);
        Ok(dispatchers::retire(&self.shared.maps.dispatchers, is_used)?)
    }

    /// What was entrusted to us since lots were dealt, by somebody who may not have heard of that yet.
    pub(super) fn claim_the_late(&self, now: Duration) -> anyhow::Result<()> {
        if now < self.claims_until {
            self.claimer.claim()?;
        }
        Ok(())
    }

    /// Whoever has no lots may be silent all the same: one that has left.
    pub(super) fn note_silent(&self) {
        let members = self.peers.iter().zip(self.watch.members());
        let silent = members
            .filter(|(_, watched)| watched.state == State::Silent)
            .map(|(peer, _)| peer.address);
        *(self.shared.peers.silent.write()).expect("no thread panics with it") = silent.collect();
    }

    /// Those that keep flows: docs/protocol/replication.md 1.1. Not us before the others know.
    fn keepers(&self, stage: Stage) -> Vec<Holder> {
        let members = || self.peers.iter().zip(self.watch.members());
        // Who joins is counted by those that keep flows, not by others that join.
        let mut fit: Vec<Holder> = members()
            .filter(|(_, watched)| match stage {
                Stage::Keeping => is_fit(watched),
                Stage::CatchingUp | Stage::Joining | Stage::Lapsed => is_keeper(watched),
            })
            .map(|(peer, _)| holder(peer))
            .collect();
        if self.keeps_in(stage) {
            fit.push(self.own());
        }
        if !fit.is_empty() {
            return fit;
        }
        let now = clock::monotonic();
        let perhaps = |watched: &Watched| match watched.state {
            State::Alive => true,
            State::Unknown => !self.watch.has_judged(),
            State::Silent => stage != Stage::Keeping && was_there(watched, now),
        };
        let there: Vec<Holder> = members()
            .filter(|(_, watched)| perhaps(watched))
            .map(|(peer, _)| holder(peer))
            .collect();
        match there.is_empty() {
            true => vec![self.own()],
            false => there,
        }
    }

    fn own(&self) -> Holder {
        Holder::new(SELF, &self.shared.node.name, Workload::IDLE)
    }
}

pub(in crate::peers) fn holder(peer: &Peer) -> Holder {
    Holder::new(peer.slot, &peer.name, Workload::IDLE)
}

/// It keeps its share of flows, or is about to.
pub(in crate::peers) fn is_fit(watched: &Watched) -> bool {
    is_keeper(watched) || watched.state == State::Alive && watched.said == Some(Presence::Joining)
}

/// It has been heard just now. Who has just begun, and hears nobody any more, may itself be the one that waits for a
/// processor: it takes over what others keep no sooner than this.
pub(super) fn was_there(watched: &Watched, now: Duration) -> bool {
    (watched.heard_at).is_some_and(|at| now.saturating_sub(at) < PATIENCE)
}

/// It says a workload factor: it keeps flows, and its daemon is there.
pub(in crate::peers) fn is_keeper(watched: &Watched) -> bool {
    let workload = match watched.said {
        Some(Presence::Dispatcher { workload }) => workload,
        _ => None,
    };
    watched.state == State::Alive && workload.is_some()
}
