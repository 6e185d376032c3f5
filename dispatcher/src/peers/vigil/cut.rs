//! Who is answered by nobody any more, no peer and no backend, is cut off: its cable is out, or what it says does not get
//! there. What it would find out by itself is wrong then, that all others are dead, and by the time that it is back they
//! have taken it for dead, and have gone on with what it kept. So it is still, and joins anew
//! (docs/protocol/replication.md 1.6c). Where peers alone do not answer they may be dead, and it goes on. A daemon that
//! has stood still, or has not been let run, for longer than others wait for it does the same (1.6a).

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::atomic::Ordering;
use std::time::Duration;

use trapeze_core::membership::watch::State;
use trapeze_datapath::{clock, host, raw};

use super::Vigil;
use crate::peers::PATIENCE;
use crate::peers::joining::{Stage, Views};

/// That so many hosts fall silent at once has one cause. Fewer may have died, of a small cluster all the others: while
/// the cable is in, who is left goes on.
const HOSTS: usize = 3;

impl Vigil {
    pub(super) fn look_whether_cut_off(
        &mut self,
        now: Duration,
        has_heard_all: bool,
    ) -> anyhow::Result<()> {
        // What is being changed now is told at this turn's end. Before the look at the lease: whose daemon stands still
        // behind that has told nothing more.
        let told_until = self.shared.peers.herald.turn().wrapping_sub(1);
        match self.cut_at {
            None if self.shared.peers.has_lapsed(clock::monotonic()) => {
                println!("was away for too long: others may have gone on, and it joins anew");
                self.stand_still()
            }
            None if has_heard_all && self.is_cut_off(now) => {
                println!("is answered by nobody: it is cut off, it seems");
                self.stand_still()
            }
            None if self.answered_at == now => {
                self.told_until = told_until;
                Ok(())
            }
            None => Ok(()),
            Some(since) if self.is_heard_since(since) && self.has_forgotten(since) => {
                self.come_back()
            }
            Some(_) => {
                self.watch.skip();
                Ok(())
            }
        }
    }

    fn is_heard_since(&self, since: Duration) -> bool {
        self.answered_at.max(self.shared.health.last_heard()) > since
    }

    /// What lay in the workers' queues is of before: others have been sent it again, or their clients repeat it.
    fn has_forgotten(&self, since: Duration) -> bool {
        let health = &self.shared.health;
        health.listen();
        health.listening().until_ms() >= since.as_millis() as u64
    }

    /// Two beats are unanswered by all peers, and since the first of them backends, which were there just before, have not
    /// answered either. Others need three to take this dispatcher for dead. That they are heard says nothing: it is
    /// answers that tell that both directions are well.
    fn is_cut_off(&self, now: Duration) -> bool {
        let keeps = !self.peers.is_empty()
            && [Stage::Keeping, Stage::Joining].contains(&self.shared.peers.stage());
        let Some(since) = self.watch.late_since(now).filter(|_| keeps) else {
            return false;
        };
        let interval = self.shared.cluster().config.spraying.heartbeat;
        if self.answered_at >= since || now.saturating_sub(self.answered_at) < interval {
            return false;
        }
        let backends = self.backends_heard_at(now, interval);
        // Those that are asked more seldom than peers were heard longer ago.
        let patience = PATIENCE.max(self.shared.cluster().config.limits.heartbeat * 4);
        let is_silent = backends < since && backends + patience >= since;
        is_silent && (self.hosts_there() >= HOSTS || self.is_cable_out())
    }

    fn is_cable_out(&self) -> bool {
        !raw::has_carrier(&self.shared.interface).unwrap_or(true)
    }

    /// How many other hosts, of peers and backends, there were until nobody answered any more.
    fn hosts_there(&self) -> usize {
        let (cluster, health) = (self.shared.cluster(), &self.shared.health);
        let peers = self.peers.iter().zip(self.watch.members());
        // Peers that are asked more often than backends are silent by now.
        let was_there = |at: Duration| at + PATIENCE >= self.answered_at;
        let alive = peers.filter(|(_, member)| {
            member.state == State::Alive || member.heard_at.is_some_and(was_there)
        });
        let alive = alive.map(|(peer, _)| IpAddr::V4(peer.address));
        let backends = cluster.config.backends.iter().zip(&cluster.slots);
        let heard = backends.filter(|&(_, &slot)| !health.is_host_silent(slot));
        let heard = heard.map(|(backend, _)| backend.address);
        let hosts: BTreeSet<IpAddr> = alive.chain(heard).collect();
        let own = IpAddr::V4(self.shared.peers.own);
        hosts.iter().filter(|&&host| host != own).count()
    }

    /// Backends that are asked more seldom than peers tell nothing before they have left two heartbeats unanswered since
    /// peers did: they may be there.
    fn backends_heard_at(&self, now: Duration, interval: Duration) -> Duration {
        let health = &self.shared.health;
        health.listen();
        let is_asked_seldom = self.shared.cluster().config.limits.heartbeat > interval;
        if is_asked_seldom && !health.is_answered_by_none_since(self.answered_at) {
            return Duration::ZERO;
        }
        let has_listened = health.listening().until_ms() >= now.as_millis() as u64;
        match has_listened {
            true => health.last_heard(),
            // What they say may lie in a queue.
            false => now,
        }
    }

    /// What is sent to a neighbour whose link address is not known any more waits in the kernel until it is there again:
    /// records, requests and answers of before, that were to be lost.
    fn drop_what_waits(&self) {
        if let Err(error) = host::drop_unresolved(&self.shared.interface) {
            eprintln!("cannot drop what waits for neighbours: {error}");
        }
    }

    fn stand_still(&mut self) -> anyhow::Result<()> {
        self.shared.health.be_deaf();
        self.shared.peers.herald.fall_silent();
        self.shared.peers.cuts.fetch_add(1, Ordering::AcqRel);
        // Workers forget it, and nobody else goes on with it before they have missed this dispatcher.
        self.shared.peers.copies.disown(self.shared.peers.own);
        // The clock as it is now: it may have stood still since this turn began.
        self.cut_at = Some(clock::monotonic());
        self.watch.stand_still();
        self.views = Views::default();
        self.pupil = None;
        self.useless.clear();
        self.enter(Stage::CatchingUp)?;
        self.drop_what_waits();
        Ok(())
    }

    /// What has changed here since the last word from a peer nobody may know of, and others know better of most.
    fn come_back(&mut self) -> anyhow::Result<()> {
        println!("is answered again, and catches up");
        self.drop_what_waits();
        self.cut_at = None;
        // What they thought of this dispatcher was of before.
        self.views = Views::default();
        self.watch.go_on();
        self.shared.records.doubt_cut(self.told_until)?;
        self.shared.peers.herald.begin_anew();
        self.tail_told = (0, Duration::ZERO);
        self.shared.health.hear_again();
        Ok(())
    }
}
