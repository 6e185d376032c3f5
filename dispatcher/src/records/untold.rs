//! Changes of which nobody has been told. A daemon changes a record, tells the others, and then
//! sends what follows from it; the data path lets nothing follow before (bpf/lib/flow.bpf.h). So
//! what a daemon had not told when it was killed has not happened: the daemon after it takes
//! whatever the others have instead (docs/protocol/replication.md 4.3a). What one had told that was cut off
//! has happened, perhaps, and the others have not heard it (1.6c).

use std::io;
use std::sync::atomic::Ordering;

use trapeze_core::replica;
use trapeze_core::wire::meta::Keys;
use trapeze_datapath::abi::{Flow, MARK_MOVING};
use trapeze_datapath::clock;
use trapeze_datapath::map::Update;
use trapeze_datapath::udp::UdpSocket;

use super::{Record, Records};

/// A record that is doubted is of a turn so far ahead.
const DOUBT: u32 = 1 << 30;

impl Records {
    /// Tells the others what is to be told. Whoever sends something that follows from a record
    /// calls this first. False: nothing may follow, for this daemon has been away, and others have gone on.
    pub fn tell_peers(&self, socket: &UdpSocket, keys: &Keys) -> io::Result<bool> {
        if self.peers.has_lapsed(clock::monotonic()) {
            return Ok(false);
        }
        let herald = &self.peers.herald;
        if !herald.is_pending() {
            return Ok(true);
        }
        // Nobody is between a change and its news then.
        let turn = {
            let _changing = self.changing();
            herald.end_turn()
        };
        let note = |turn| self.maps.told.put(&0, &turn, Update::Any);
        herald.send(socket, keys, turn, note)?;
        Ok(true)
    }

    /// What the daemon before had not told when it ended is doubted. Before anything is told.
    pub fn doubt_untold(&self) -> io::Result<()> {
        let until = self.maps.told.get(&0)?.unwrap_or(0);
        self.peers.herald.begin_at(until.wrapping_add(1));
        match self.peers.are_there() {
            true => self.doubt_after(until),
            false => Ok(()),
        }
    }

    /// So is what this dispatcher had told, in later turns than this one, before it was cut off.
    pub fn doubt_cut(&self, until: u32) -> io::Result<()> {
        self.may_have_happened.store(true, Ordering::Release);
        self.doubt_after(until)
    }

    fn doubt_after(&self, until: u32) -> io::Result<()> {
        let mut untold = Vec::new();
        self.maps.flows.for_each(|key, flow| {
            if is_after(flow.turn, until) {
                untold.push(key);
            }
        })?;
        let changing = self.changing();
        let turn = self.peers.herald.turn().wrapping_sub(1).wrapping_add(DOUBT);
        for key in &untold {
            self.swap(&changing, key, |flow| Some(Flow { turn, ..*flow }))?;
        }
        let mut doubted = self.doubted.lock().expect("no thread panics with it");
        doubted.extend(untold);
        Ok(())
    }

    /// Nobody has known better, of those that could be asked: what is still doubted holds.
    pub fn end_doubt(&self) -> io::Result<()> {
        self.may_have_happened.store(false, Ordering::Release);
        let doubted = std::mem::take(&mut *self.doubted.lock().expect("no thread panics with it"));
        let changing = self.changing();
        for key in &doubted {
            let settled = self.swap(&changing, key, |flow| {
                let mut flow = *flow;
                if !self.is_doubted(&flow) {
                    return None;
                }
                self.raise_version(&mut flow);
                Some(flow)
            })?;
            if let Some(flow) = settled.filter(|flow| flow.marks & MARK_MOVING == 0) {
                self.tell(key, &flow);
            }
        }
        Ok(())
    }

    pub(super) fn is_doubted(&self, flow: &Flow) -> bool {
        flow.turn != 0 && is_after(flow.turn, self.peers.herald.turn().wrapping_add(DOUBT / 2))
    }

    /// Does a record that is doubted give way to what another dispatcher has? Not, if it may have happened, to what
    /// this one had told before that, and not to an earlier owner where the client has heard the later one.
    pub(super) fn gives_way(&self, here: &Flow, record: &replica::Record) -> bool {
        let is_doubted = self.is_doubted(here);
        if !is_doubted || !self.may_have_happened.load(Ordering::Acquire) {
            return is_doubted;
        }
        let is_heard_of = |ours: Record| {
            let begins = ours.isns.server + 1;
            let ahead = ours.epoch.wrapping_sub(record.place().epoch);
            begins.before(ours.heard) && ahead.cast_signed() > 0
        };
        record.maker != self.peers.own && !Record::read(here).is_some_and(is_heard_of)
    }
}

/// RFC 1982; 0 is no turn.
fn is_after(turn: u32, other: u32) -> bool {
    turn != 0 && turn.wrapping_sub(other).cast_signed() > 0
}
