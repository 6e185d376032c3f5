//! What is done at every heartbeat. Every backend is asked whether it is there. Its
//! data path answers (bpf/lib/reply.bpf.h), so a backend is alive as long as it
//! can take connections, whether its agent's daemon runs or not. Decisions are
//! renewed, and policies hear of the requests that have finished. Who has no agent is asked
//! in knocks.rs.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use trapeze_core::config::Dispatcher;
use trapeze_core::health::word;
use trapeze_core::wire::meta::{Keys, Kind};
use trapeze_core::wire::{geneve, ipv4};
use trapeze_datapath::abi::{self, GENEVE_PORT};
use trapeze_datapath::clock;
use trapeze_datapath::map::Update;
use trapeze_datapath::udp::{Outbox, UdpSocket};

use crate::cable::Cable;
use crate::checks;
use crate::cluster::Cluster;
use crate::health::{self, State};
use crate::outliers::Watched;
use crate::peers::{NO_PROTOCOL, option};
use crate::{Shared, v4};

/// As long as the shortest packet that backends take.
const PADDING: &[u8] = &[0; 20];
/// As long as what an agent has to say of the servers that it checks.
const ROOM: &[u8] = &[0; word::LEN];

/// So often in an interval a beat is repeated that is not answered in time.
const REPEATS: u32 = 3;

/// What a backend was given that has come up anew is repeated by clients for so long: as with a silent one this
/// daemon says who has it then.
const REPEATED: Duration = Duration::from_secs(5);

/// Asks all backends.
pub struct Pulse {
    shared: Arc<Shared>,
    socket: UdpSocket,
    own: Ipv4Addr,
}

impl Pulse {
    pub fn open(shared: Arc<Shared>, own: &Dispatcher) -> anyhow::Result<Self> {
        let own = v4(own.address)?;
        let socket = UdpSocket::bind(SocketAddrV4::new(own, 0), 0, 1)?;
        Ok(Self {
            shared,
            socket,
            own,
        })
    }

    /// Beats until the daemon stops.
    pub fn run(self) -> anyhow::Result<()> {
        // Numbers go on where the daemon before stopped, and never step back.
        let (first, started) = (clock::cluster(), Instant::now());
        let mut silent = HashMap::new();
        let mut watched = Watched::default();
        let mut cable = Cable::default();
        let mut due = Instant::now();
        while !self.shared.stopping.load(Ordering::Relaxed) {
            let cluster = self.shared.cluster();
            let interval = cluster.config.limits.heartbeat;
            self.shared.health.set_interval(interval);
            let number = (first + started.elapsed()).as_millis() as u32;
            cable.look(&self.shared, interval);
            self.ask(&cluster, number, |_| true);
            self.shared.health.listen();
            self.shared.health.asked();
            watched.look(&self.shared, &cluster)?;
            self.tell_the_data_path(&cluster, &mut silent)?;
            checks::note(&self.shared, &cluster);
            self.shared.renew_decisions()?;
            self.shared.hear_finished(&cluster)?;
            // When an answer is too late: what the data path decides meanwhile goes astray.
            std::thread::sleep(health::grace(interval) + Duration::from_millis(1));
            self.shared.health.listen();
            self.tell_the_data_path(&cluster, &mut silent)?;
            checks::note(&self.shared, &cluster);
            self.shared.renew_decisions()?;
            due = (due + interval).max(Instant::now());
            self.ask_again(&cluster, number, due, &mut silent)?;
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
        }
        Ok(())
    }

    /// A packet that is lost is no sign of death: until the next beat is due who has not answered is asked again.
    fn ask_again(
        &self,
        cluster: &Cluster,
        number: u32,
        due: Instant,
        told: &mut HashMap<u32, bool>,
    ) -> io::Result<()> {
        let pause = due.saturating_duration_since(Instant::now()) / REPEATS;
        for _ in 0..REPEATS {
            let is_late = |slot| self.shared.health.is_late(slot, number);
            if !self.ask(cluster, number, is_late) {
                break;
            }
            std::thread::sleep(pause);
            // What has come up anew is not to have what it has forgotten.
            self.tell_the_data_path(cluster, told)?;
        }
        Ok(())
    }

    /// False: nobody.
    fn ask(&self, cluster: &Cluster, number: u32, whom: impl Fn(u32) -> bool) -> bool {
        let mut beats = Outbox::default();
        let mut is_anybody = false;
        let backends = cluster.config.backends.iter().zip(&cluster.targets);
        let configured = backends.zip(&cluster.slots);
        let configured = configured.filter(|((backend, _), _)| backend.transfer.has_agent());
        let configured = configured.map(|((backend, targets), &slot)| {
            let room = if targets.is_empty() { PADDING } else { ROOM };
            (slot, backend.address, room)
        });
        // Who is silent is gone, and gives no connection up.
        let removed = self.removed(cluster);
        let removed = removed.map(|(slot, address)| (slot, address, PADDING));
        for (slot, address, room) in configured.chain(removed) {
            let IpAddr::V4(address) = address else {
                continue;
            };
            if !whom(slot) {
                continue;
            }
            is_anybody = true;
            let datagram = self.beat(number, address, room, &cluster.keys);
            beats.push(SocketAddrV4::new(address, GENEVE_PORT), |out| {
                out.extend_from_slice(&datagram);
            });
        }
        self.socket.send(&beats);
        is_anybody
    }

    /// Those that are configured no more, and have connections yet.
    fn removed<'a>(&'a self, cluster: &'a Cluster) -> impl Iterator<Item = (u32, IpAddr)> + 'a {
        let has_some = |slot| self.shared.health.active(slot) > 0;
        let removed = cluster.removed.iter().copied();
        removed.filter(move |(slot, _)| has_some(*slot))
    }

    /// Who is silent: requests that are sent there again come to the daemon.
    fn tell_the_data_path(
        &self,
        cluster: &Cluster,
        told: &mut HashMap<u32, bool>,
    ) -> io::Result<()> {
        let removed = self.removed(cluster).map(|(slot, _)| slot);
        for slot in cluster.slots.iter().copied().chain(removed) {
            let lost_for = self.shared.health.lost_for(slot, Duration::ZERO);
            let silent = self.shared.health.state(slot) == State::Silent
                || !lost_for.is_zero() && lost_for < REPEATED;
            if told.insert(slot, silent) == Some(silent) {
                continue;
            }
            let backends = &self.shared.maps.backends;
            if let Some(backend) = backends.get(&slot)? {
                let backend = abi::Backend {
                    silent: silent.into(),
                    ..backend
                };
                backends.put(&slot, &backend, Update::Any)?;
            }
        }
        Ok(())
    }

    fn beat(&self, number: u32, backend: Ipv4Addr, room: &[u8], keys: &Keys) -> Vec<u8> {
        let mut inner = Vec::new();
        ipv4::write_header(self.own, backend, NO_PROTOCOL, room.len(), &mut inner);
        inner.extend_from_slice(room);
        let option = option(Kind::Echo, number, backend, &inner, keys);
        let mut datagram = Vec::new();
        geneve::write(&option, &inner, &mut datagram);
        datagram
    }
}
