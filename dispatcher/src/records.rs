//! Flow records: written here, followed and aged by the data path.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use trapeze_core::flow::{FlowKey, Handshake};
use trapeze_core::intake::Isns;
use trapeze_core::policy::Request;
use trapeze_core::seq::{ClientSeq, ServerSeq};
use trapeze_core::wire::meta::{self, Binding, Keys, Kind, Meta};
use trapeze_datapath::abi::{self, Finished, Flow, FlowState, Pod};
use trapeze_datapath::clock;
use trapeze_datapath::dispatcher::{DispatcherMaps, Loads};
use trapeze_datapath::map::Update;

use crate::cluster::Choice;
use crate::inquiry;
use crate::memory::request_of;

/// The flow table.
pub struct Records {
    maps: Arc<DispatcherMaps>,
    loads: Arc<Loads>,
    highest_epoch: AtomicU64,
}

/// A flow and the backend that is to have it.
#[derive(Clone, Copy, Debug)]
pub struct Assignment<'a> {
    pub key: FlowKey,
    pub isns: Isns,
    pub handshake: Handshake,
    pub choice: &'a Choice,
    pub keys: &'a Keys,
    /// The epoch of an assignment that has failed.
    pub after: Option<u32>,
    /// The epoch of a connection that had the 4-tuple before, if its record is gone.
    pub older: Option<u32>,
    /// Bytes that go there from here.
    pub held: usize,
}

/// What a record says, for who must follow it in user space.
#[derive(Clone, Copy, Debug)]
pub struct Record {
    pub isns: Isns,
    pub slot: u32,
    pub pool: usize,
    pub epoch: u32,
    pub state: FlowState,
    /// The option for its packets, tag included.
    pub option: meta::Raw,
    /// Its first request, as its pool's policy saw it.
    pub request: Request,
}

impl Records {
    pub fn new(maps: Arc<DispatcherMaps>, loads: Arc<Loads>) -> Self {
        Self {
            maps,
            loads,
            highest_epoch: AtomicU64::new(0),
        }
    }

    pub fn get(&self, key: &FlowKey) -> io::Result<Option<Record>> {
        Ok(self
            .maps
            .flows
            .get(&(*key).into())?
            .and_then(|flow| Record::read(&flow)))
    }

    /// Assigns a flow to a backend, unless this very connection has one: then
    /// that one stays.
    pub fn assign(&self, to: &Assignment<'_>) -> io::Result<Record> {
        let key = abi::FlowKey::from(to.key);
        let mut epoch = match to.after {
            Some(refused) => refused.wrapping_add(1),
            None => later(self.epoch_now(), to.older),
        };
        let mut flow = to.flow(epoch);
        match self.maps.flows.put(&key, &flow, Update::Create) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                let old = self.maps.flows.get(&key)?;
                if let Some(old) = old.as_ref().and_then(Record::read) {
                    let assigned = old.isns == to.isns && old.state != FlowState::Reading;
                    if assigned && to.after != Some(old.epoch) {
                        return Ok(old);
                    }
                    if old.state == FlowState::Established {
                        self.loads.closed(old.slot);
                    }
                    self.loads.finished(old.slot, old.request.cost_us);
                    epoch = later(epoch, Some(old.epoch));
                    flow = to.flow(epoch);
                }
                self.maps.flows.put(&key, &flow, Update::Any)?;
            }
            Err(e) => return Err(e),
        }
        let charge_us = to.choice.placed.charge_us;
        self.loads.opened(to.choice.slot, charge_us);
        Ok(Record::read(&flow).expect("a record just made"))
    }

    /// Epochs begin at the clock, 15 to a second, so that a connection's is above
    /// that of any earlier one of the same 4-tuple, on every dispatcher. They do
    /// not step back with the clock.
    fn epoch_now(&self) -> u32 {
        let now = (clock::cluster().as_nanos() >> abi::EPOCH_SHIFT) as u64;
        self.highest_epoch
            .fetch_max(now, Ordering::Relaxed)
            .max(now) as u32
    }

    /// No epoch so far was higher.
    pub fn highest_epoch(&self) -> u32 {
        self.highest_epoch.load(Ordering::Relaxed) as u32
    }

    /// Lets the data path bring a connection's packets here.
    pub fn read_on(&self, key: &FlowKey, isns: Isns, handshake: Handshake) -> io::Result<()> {
        let map_key = abi::FlowKey::from(*key);
        if let Some(old) = self.get(key)? {
            if old.state == FlowState::Established {
                self.loads.closed(old.slot);
            }
            self.loads.finished(old.slot, old.request.cost_us);
        }
        self.maps
            .flows
            .put(&map_key, &new_flow(isns, handshake), Update::Any)
    }

    /// The client's FIN has come this way, unseen by the data path.
    pub fn client_closed(&self, key: &FlowKey) -> io::Result<()> {
        let map_key = abi::FlowKey::from(*key);
        let Some(mut flow) = self.maps.flows.get(&map_key)? else {
            return Ok(());
        };
        if flow.state == FlowState::Established as u32 {
            flow.state = FlowState::ClientFin as u32;
            flow.last_seq = flow.last_seq.wrapping_add(1);
            self.maps.flows.put(&map_key, &flow, Update::Replace)?;
            self.loads.closed(flow.backend);
        }
        Ok(())
    }

    /// The backend has no socket of this connection any more. Its record stays for a
    /// while, and is returned as it was; nothing if the question was about another
    /// connection, or the client has spoken since.
    pub fn lost(&self, key: &FlowKey, epoch: u32, asked_at: u32) -> io::Result<Option<Flow>> {
        let map_key = abi::FlowKey::from(*key);
        let Some(flow) = self.maps.flows.get(&map_key)? else {
            return Ok(None);
        };
        let is_meant = Record::read(&flow).is_some_and(|record| {
            record.state == FlowState::Established
                && record.epoch == epoch
                && inquiry::asked_at(&flow) == asked_at
        });
        if !is_meant {
            return Ok(None);
        }
        let ended = Flow {
            state: FlowState::Reset as u32,
            last_seen_ns: clock::monotonic().as_nanos() as u64,
            ..flow
        };
        self.maps.flows.put(&map_key, &ended, Update::Replace)?;
        self.loads.closed(flow.backend);
        Ok(Some(flow))
    }

    /// Takes a record away that was for reading; another connection's stays.
    pub fn end_reading(&self, key: &FlowKey, isns: Isns) -> io::Result<()> {
        if let Some(record) = self.get(key)?
            && record.isns == isns
            && record.state == FlowState::Reading
        {
            self.maps.flows.delete(&(*key).into())?;
        }
        Ok(())
    }

    /// Deletes a record whose time has come. What its first request came to, if
    /// nobody has been told yet.
    pub fn expire(&self, key: &abi::FlowKey, flow: &Flow) -> io::Result<Option<Finished>> {
        if !self.maps.flows.delete(key)? {
            return Ok(None);
        }
        if flow.state == FlowState::Established as u32 {
            self.loads.closed(flow.backend);
        }
        self.loads.finished(flow.backend, flow.charge_us);
        let bytes = flow.last_ack.wrapping_sub(flow.server_isn).wrapping_sub(1);
        Ok((flow.report != 0).then(|| Finished {
            object: flow.object,
            bytes: bytes.into(),
            elapsed_ns: flow.acked_ns.saturating_sub(flow.created_ns),
            ended_ns: flow.acked_ns,
            charge_us: flow.charge_us,
            shared: flow.shared,
            pool: flow.pool,
            slot: flow.backend,
            kind: flow.kind,
            class: flow.class,
            lost: (bytes == 0).into(),
            stood: self.loads.stood(flow.backend) as u32,
        }))
    }
}

impl Record {
    fn read(flow: &Flow) -> Option<Self> {
        Some(Self {
            isns: Isns {
                client: ClientSeq::new(flow.client_isn),
                server: ServerSeq::new(flow.server_isn),
            },
            slot: flow.backend,
            pool: flow.pool as usize,
            epoch: u32::from_be_bytes([flow.meta[4], flow.meta[5], flow.meta[6], flow.meta[7]]),
            state: FlowState::from_raw(flow.state)?,
            option: flow.meta,
            request: request_of(flow.object, flow.kind, flow.class, flow.charge_us),
        })
    }
}

impl Assignment<'_> {
    fn flow(&self, epoch: u32) -> Flow {
        let meta = Meta {
            server_port: self.choice.server_port,
            epoch,
            ..meta_of(self.isns, self.handshake)
        };
        let binding = Binding::of_flow(self.choice.address, self.key.client, self.key.vip);
        let binding = binding.expect("configuration and data path are IPv4");
        let placed = &self.choice.placed;
        Flow {
            meta: meta.seal(self.keys, &binding),
            backend: self.choice.slot,
            pool: self.choice.pool as u32,
            state: FlowState::Established as u32,
            packets: 1,
            bytes: self.held as u64,
            object: placed.request.object,
            kind: placed.request.kind.number(),
            class: placed.request.class as u8,
            charge_us: placed.charge_us,
            shared: placed.shared,
            report: placed.report.into(),
            last_seq: (self.isns.client + 1 + self.held as u32).raw(),
            ..new_flow(self.isns, self.handshake)
        }
    }
}

/// A record of a connection that is being read.
fn new_flow(isns: Isns, handshake: Handshake) -> Flow {
    let now = clock::monotonic().as_nanos() as u64;
    Flow {
        meta: meta_of(isns, handshake).encode(0),
        client_isn: isns.client.raw(),
        server_isn: isns.server.raw(),
        state: FlowState::Reading as u32,
        last_seq: (isns.client + 1).raw(),
        last_ack: (isns.server + 1).raw(),
        created_ns: now,
        last_seen_ns: now,
        ..Flow::zeroed()
    }
}

fn meta_of(isns: Isns, handshake: Handshake) -> Meta {
    Meta {
        kind: Kind::Forward,
        epoch: 0,
        start: isns.client + 1,
        handshake,
        server_port: 0,
    }
}

/// Later than what this 4-tuple has had (RFC 1982).
fn later(epoch: u32, older: Option<u32>) -> u32 {
    match older {
        Some(older) if (epoch.wrapping_sub(older) as i32) <= 0 => older.wrapping_add(1),
        _ => epoch,
    }
}
