//! Flow records: written here, followed and aged by the data path.

use std::io;
use std::sync::Arc;

use trapeze_core::flow::{FlowKey, Handshake};
use trapeze_core::intake::Isns;
use trapeze_core::seq::{ClientSeq, ServerSeq};
use trapeze_core::wire::meta::{self, Binding, Keys, Kind, Meta};
use trapeze_datapath::abi::{self, Flow, FlowState, Pod};
use trapeze_datapath::clock;
use trapeze_datapath::dispatcher::{DispatcherMaps, Loads};
use trapeze_datapath::map::Update;

use crate::cluster::Choice;

/// The flow table.
pub struct Records {
    maps: Arc<DispatcherMaps>,
    loads: Arc<Loads>,
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
}

impl Records {
    pub fn new(maps: Arc<DispatcherMaps>, loads: Arc<Loads>) -> Self {
        Self { maps, loads }
    }

    pub fn get(&self, key: &FlowKey) -> io::Result<Option<Record>> {
        Ok(self
            .maps
            .flows
            .get(&(*key).into())?
            .and_then(|flow| Record::read(&flow)))
    }

    /// Assigns a flow to a backend, unless this very connection has one: then
    /// that one stays. `after` is the epoch of an assignment that has failed.
    pub fn assign(
        &self,
        key: &FlowKey,
        isns: Isns,
        handshake: Handshake,
        choice: &Choice,
        keys: &Keys,
        after: Option<u32>,
    ) -> io::Result<Record> {
        let map_key = abi::FlowKey::from(*key);
        let mut epoch = after.map_or_else(epoch_now, |epoch| epoch.wrapping_add(1));
        let mut flow = new_flow(key, isns, handshake, Some((choice, epoch, keys)));
        match self.maps.flows.put(&map_key, &flow, Update::Create) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                let old = self.maps.flows.get(&map_key)?;
                if let Some(old) = old.as_ref().and_then(Record::read) {
                    let assigned = old.isns == isns && old.state != FlowState::Reading;
                    if assigned && after != Some(old.epoch) {
                        return Ok(old);
                    }
                    if old.state == FlowState::Established {
                        self.loads.closed(old.slot);
                    }
                    // Later than whatever this 4-tuple has had (RFC 1982).
                    if (epoch.wrapping_sub(old.epoch) as i32) <= 0 {
                        epoch = old.epoch.wrapping_add(1);
                        flow = new_flow(key, isns, handshake, Some((choice, epoch, keys)));
                    }
                }
                self.maps.flows.put(&map_key, &flow, Update::Any)?;
            }
            Err(e) => return Err(e),
        }
        self.loads.opened(choice.slot);
        Ok(Record::read(&flow).expect("a record just made"))
    }

    /// Lets the data path bring a connection's packets here.
    pub fn read_on(&self, key: &FlowKey, isns: Isns, handshake: Handshake) -> io::Result<()> {
        let map_key = abi::FlowKey::from(*key);
        if let Some(old) = self.get(key)?
            && old.state == FlowState::Established
        {
            self.loads.closed(old.slot);
        }
        self.maps
            .flows
            .put(&map_key, &new_flow(key, isns, handshake, None), Update::Any)
    }

    /// The client's FIN has come this way, unseen by the data path.
    pub fn client_closed(&self, key: &FlowKey) -> io::Result<()> {
        let map_key = abi::FlowKey::from(*key);
        let Some(mut flow) = self.maps.flows.get(&map_key)? else {
            return Ok(());
        };
        if flow.state == FlowState::Established as u32 {
            flow.state = FlowState::ClientFin as u32;
            self.maps.flows.put(&map_key, &flow, Update::Replace)?;
            self.loads.closed(flow.backend);
        }
        Ok(())
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

    /// Deletes a record whose time has come.
    pub fn expire(&self, key: &abi::FlowKey, flow: &Flow) -> io::Result<()> {
        if self.maps.flows.delete(key)? && flow.state == FlowState::Established as u32 {
            self.loads.closed(flow.backend);
        }
        Ok(())
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
        })
    }
}

fn new_flow(
    key: &FlowKey,
    isns: Isns,
    handshake: Handshake,
    to: Option<(&Choice, u32, &Keys)>,
) -> Flow {
    let now = clock::monotonic().as_nanos() as u64;
    let (choice, epoch) = (to.map(|t| t.0), to.map_or(0, |t| t.1));
    let meta = Meta {
        kind: Kind::Forward,
        epoch,
        start: isns.client + 1,
        handshake,
        server_port: choice.map_or(0, |c| c.server_port),
    };
    let option = match to {
        Some((choice, _, keys)) => Binding::of_flow(choice.address, key.client, key.vip)
            .map(|binding| meta.seal(keys, &binding))
            .expect("configuration and data path are IPv4"),
        None => meta.encode(0),
    };
    Flow {
        meta: option,
        client_isn: isns.client.raw(),
        server_isn: isns.server.raw(),
        backend: choice.map_or(0, |c| c.slot),
        pool: choice.map_or(0, |c| c.pool as u32),
        state: if to.is_some() {
            FlowState::Established
        } else {
            FlowState::Reading
        } as u32,
        last_seq: isns.client.raw().wrapping_add(1),
        last_ack: isns.server.raw().wrapping_add(1),
        created_ns: now,
        last_seen_ns: now,
        ..Flow::zeroed()
    }
}

/// Epochs begin at the clock, 15 to a second, so that a connection's is above
/// that of any earlier one of the same 4-tuple, on every dispatcher.
fn epoch_now() -> u32 {
    (clock::tai().as_nanos() >> 26) as u32
}
