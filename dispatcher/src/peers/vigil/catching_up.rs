//! Who begins, or may have missed something, has all that others know from one of them
//! (docs/protocol/replication.md 5.3, 6).

use std::net::Ipv4Addr;
use std::time::Duration;

use trapeze_core::membership::Presence;
use trapeze_core::membership::watch::{State, Watched};
use trapeze_core::replica::stream::Heard;
use trapeze_core::wire::meta::Keys;
use trapeze_datapath::clock;

use super::Vigil;
use super::keepers::{is_fit, is_keeper, was_there};
use crate::peers::Peer;
use crate::peers::caught_up::Pupil;
use crate::peers::joining::Stage;

impl Vigil {
    /// Who begins asks somebody for all there is.
    pub(super) fn catch_up(&mut self, now: Duration, keys: &Keys) -> anyhow::Result<()> {
        let own = self.shared.peers.own;
        if self.peers.is_empty() {
            // There is nobody any more to have records from.
            return match self.shared.peers.stage() {
                Stage::CatchingUp => self.catch_up_alone(now),
                Stage::Joining | Stage::Keeping | Stage::Lapsed => Ok(()),
            };
        }
        if self.cut_at.is_none()
            && self.pupil.is_none()
            && self.shared.peers.stage() == Stage::CatchingUp
        {
            let members = || self.peers.iter().zip(self.watch.members());
            let alive = |(_, watched): &(&Peer, &Watched)| watched.state == State::Alive;
            let useful = |(peer, _): &(&Peer, &Watched)| !self.useless.contains(&peer.address);
            let knows = |(_, watched): &(&Peer, &Watched)| is_fit(watched);
            let teacher = (members().filter(alive).filter(useful).find(knows))
                .or_else(|| members().filter(alive).find(useful));
            match teacher {
                Some((peer, _)) => {
                    println!("catching up from {}", peer.name);
                    self.pupil = Some(Pupil::new(peer.address, asking_name()));
                }
                // They keep flows, and do not know this dispatcher yet: without their records
                // it would keep flows that it knows nothing of.
                None if members().any(|(_, watched)| is_keeper(watched)) => {
                    if !std::mem::replace(&mut self.is_unknown, true) {
                        println!("waiting for the other dispatchers to have this one configured");
                    }
                    self.useless.clear();
                }
                None if self.watch.has_judged()
                    && !members().any(|(_, watched)| was_there(watched, now)) =>
                {
                    self.catch_up_alone(now)?;
                }
                None => {}
            }
        }
        if let Some(pupil) = &mut self.pupil
            && !pupil.ask(now, own, keys, &mut self.outbox)
        {
            self.useless.push(pupil.teacher);
            self.pupil = None;
        }
        Ok(())
    }

    /// All records are here: the others are to know.
    pub(super) fn end_catching_up(&mut self, now: Duration) -> anyhow::Result<()> {
        if self.shared.peers.stage() == Stage::CatchingUp {
            self.useless.clear();
            println!("has caught up");
            self.shared.records.end_doubt()?;
            self.join(now)?;
        }
        Ok(())
    }

    /// Nobody is there who could know anything.
    fn catch_up_alone(&mut self, now: Duration) -> anyhow::Result<()> {
        self.is_alone = true;
        self.end_catching_up(now)
    }

    /// A peer that was not there answers. If it keeps flows, and nobody was there when this dispatcher caught up, nothing
    /// is known here of those: perhaps this host's cable came in after its daemon had begun.
    pub(super) fn meet(
        &mut self,
        now: Duration,
        place: usize,
        said: Presence,
    ) -> anyhow::Result<()> {
        let keeps = matches!(said, Presence::Dispatcher { workload: Some(_) });
        if !keeps || !self.is_alone {
            return Ok(());
        }
        // It is taken to be there once it has answered often enough.
        self.watch.hasten(now);
        let stage = self.shared.peers.stage();
        if ![Stage::Joining, Stage::Keeping].contains(&stage) {
            return Ok(());
        }
        let name = &self.peers[place].name;
        println!("{name} keeps flows that nothing is known of here: it catches up first");
        self.enter(Stage::CatchingUp)
    }

    /// What a peer has said before it was first heard has to be had, too. Who joins has heard it, or has it from its
    /// teacher.
    pub(super) fn look_whether_behind(&mut self, sender: Ipv4Addr) {
        let falls_behind = (self.heard.get_mut(&sender)).is_some_and(Heard::falls_behind);
        let keeps = self.shared.peers.stage() == Stage::Keeping;
        if falls_behind && keeps && self.pupil.is_none() {
            self.pupil = Some(Pupil::new(sender, asking_name()));
        }
    }
}

/// Not that of an asking before.
pub(super) fn asking_name() -> u32 {
    clock::cluster().as_millis() as u32
}
