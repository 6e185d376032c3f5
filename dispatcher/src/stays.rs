//! Tells the other dispatchers of requests that have stayed with their owners, or moved to others, which the data
//! path has let by without a word: a flow once in a while, however many there were
//! (docs/protocol/replication.md 4.6).

use std::net::SocketAddrV4;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use trapeze_core::config::Dispatcher;
use trapeze_datapath::abi::FlowKey;
use trapeze_datapath::dispatcher::{Sieve, stayed_flows};
use trapeze_datapath::ring::Ring;
use trapeze_datapath::udp::UdpSocket;

use crate::{Shared, v4};

/// So late the others are told, of a flow that is used all the time so often.
const INTERVAL: Duration = Duration::from_millis(50);

pub struct Stays {
    shared: Arc<Shared>,
    socket: UdpSocket,
    flows: Ring<FlowKey>,
    sieve: Sieve,
}

impl Stays {
    pub fn open(shared: Arc<Shared>, own: &Dispatcher, sieve: Sieve) -> anyhow::Result<Self> {
        let flows = stayed_flows(&shared.node.pins())?;
        let socket = UdpSocket::bind(SocketAddrV4::new(v4(own.address)?, 0), 0, 1)?;
        Ok(Self {
            shared,
            socket,
            flows,
            sieve,
        })
    }

    /// Until the daemon stops.
    pub fn run(self) -> anyhow::Result<()> {
        // What was about to move: the next time it has, or the sweep finds it.
        let mut again = Vec::new();
        let peers = &self.shared.peers;
        while !self.shared.stopping.load(Ordering::Relaxed) {
            let deal = peers.wait_for_deal(INTERVAL);
            let stayed = self.flows.take()?;
            let has_lost_keeper = peers.take_lost_keeper();
            if stayed.is_empty() && again.is_empty() && !has_lost_keeper {
                peers.has_told(deal);
                continue;
            }
            if has_lost_keeper {
                self.tell_orphans()?;
            }
            for key in std::mem::take(&mut again) {
                self.shared.records.tell_stay(&key)?;
            }
            for key in self.sieve.sift(&stayed)? {
                if self.shared.records.tell_stay(&key)? {
                    again.push(key);
                }
            }
            let keys = &self.shared.cluster().keys;
            if self.shared.records.tell_peers(&self.socket, keys)? {
                peers.has_told(deal);
            }
        }
        Ok(())
    }

    /// They are looked for among all: keepers seldom leave.
    fn tell_orphans(&self) -> anyhow::Result<()> {
        let records = &self.shared.records;
        let mut orphans = Vec::new();
        self.shared.maps.flows.for_each(|key, flow| {
            if records.is_orphan(&flow) {
                orphans.push(key);
            }
        })?;
        for key in orphans {
            records.tell_orphan(&key)?;
        }
        Ok(())
    }
}
