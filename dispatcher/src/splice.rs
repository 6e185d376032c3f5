//! Connections to servers without an agent, as far as all threads share them: which of our
//! ports each has, and what the data path finds them by (docs/protocol/splice.md §2). How
//! one is opened is in worker/splice.rs.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

use trapeze_core::config::Dispatcher;
use trapeze_core::flow::FlowKey;
use trapeze_core::membership::lots::NOBODY;
use trapeze_core::seq::{ClientSeq, ServerSeq};
use trapeze_core::wire::meta::{Meta, Sender};
use trapeze_datapath::abi::{
    self, ANSWER_ENDLESS, ANSWER_TO_HEAD, Answers, Flow, MARK_TUNNEL, Overheard, Parting, Pod,
    SPLICED_CONNECTING, SPLICED_FOLLOWED, SPLICED_OPEN, Service, ServiceKey, Splice, Spliced,
};
use trapeze_datapath::clock;
use trapeze_datapath::dispatcher::{DispatcherMaps, Parted, Parter};
use trapeze_datapath::map::Update;

use crate::records::Slots;
use crate::v4;

/// Below are ports of services.
const FIRST_PORT: u16 = 1024;
/// So many ports are looked at for one that is free.
const PORTS_TO_TRY: usize = 64;
/// So many may lead to other dispatchers before one is taken that does.
const OTHERS_PORTS: usize = 256;

/// Connections from this dispatcher's splice address, and those that others have told.
pub struct Splices {
    maps: Arc<DispatcherMaps>,
    parter: Parter,
    slots: Arc<Slots>,
    own: Option<Ipv4Addr>,
    workers: u16,
    /// By server, the port that was taken last: a port comes back as late as it can.
    taken: Mutex<HashMap<SocketAddrV4, u16>>,
    /// What connections are from, and when there was one last: served by the data path, whether its
    /// dispatcher is a member or not.
    used: RwLock<BTreeMap<Ipv4Addr, Duration>>,
}

impl Splices {
    pub fn new(
        maps: Arc<DispatcherMaps>,
        parter: Parter,
        own: &Dispatcher,
    ) -> anyhow::Result<Self> {
        let (mut used, now) = (BTreeMap::new(), clock::monotonic());
        // What the daemon before was opening is nobody's.
        for (key, spliced) in maps.splices.all()? {
            if spliced.state == SPLICED_CONNECTING {
                maps.splices.delete(&key)?;
            } else {
                used.insert(spliced.splice.address.into(), now);
            }
        }
        Ok(Self {
            own: own.splice_address.map(v4).transpose()?,
            workers: own.workers as u16,
            parter,
            slots: Arc::default(),
            taken: Mutex::default(),
            used: RwLock::new(used),
            maps,
        })
    }

    /// While `serve` is given the addresses that connections are from, none is added.
    pub fn with_used<T>(&self, serve: impl FnOnce(&mut dyn Iterator<Item = Ipv4Addr>) -> T) -> T {
        let used = self.used.read().expect("no thread panics with it");
        serve(&mut used.keys().copied())
    }

    /// Connections are from `seen`. From which others there has been none since `since`: they need not be
    /// served any more, unless they are members'.
    pub fn forget_unused(
        &self,
        seen: &BTreeSet<Ipv4Addr>,
        now: Duration,
        since: Duration,
    ) -> Vec<Ipv4Addr> {
        let mut used = self.used.write().expect("no thread panics with it");
        let mut unused = Vec::new();
        used.retain(|address, last| {
            if seen.contains(address) {
                *last = now;
            }
            let is_used = *last >= since;
            if !is_used {
                unused.push(*address);
            }
            is_used
        });
        unused
    }

    /// What comes to that address is for its dispatcher's connections, which all others know: of one that
    /// has left, too, and of one that this dispatcher has never known.
    fn serve(&self, address: Ipv4Addr) -> io::Result<()> {
        let is_known = |used: &BTreeMap<_, _>| used.contains_key(&address);
        if is_known(&*self.used.read().expect("no thread panics with it")) {
            return Ok(());
        }
        let mut used = self.used.write().expect("no thread panics with it");
        used.insert(address, clock::monotonic());
        let key = ServiceKey::new(IpAddr::V4(address), 0);
        let nobodys = Service::splice_address(NOBODY.into());
        match self.maps.services.put(&key, &nobodys, Update::Create) {
            // A member's.
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            result => result,
        }
    }

    /// Which backend each slot is.
    pub fn slots(&self) -> Arc<Slots> {
        self.slots.clone()
    }

    /// A port for that flow's connection to a server: what comes to it is the daemon's from
    /// now on. One that `is_ours`, if there is one: what comes to it comes by this dispatcher.
    /// `is_over` ends a flow that has one, if it can. None: all are in use.
    pub fn take_port(
        &self,
        flow: &abi::FlowKey,
        server: SocketAddrV4,
        is_ours: impl Fn(SocketAddrV4) -> bool,
        is_over: impl Fn(&abi::FlowKey) -> io::Result<bool>,
    ) -> io::Result<Option<SocketAddrV4>> {
        let Some(own) = self.own else {
            return Ok(None);
        };
        let next = || SocketAddrV4::new(own, self.next_port(flow, server));
        for attempt in 0..2 * PORTS_TO_TRY {
            let mut own = next();
            if attempt < PORTS_TO_TRY {
                for _ in 0..OTHERS_PORTS {
                    if is_ours(own) {
                        break;
                    }
                    own = next();
                }
            }
            let splice = Splice::between(own, server);
            let key = splice.key(*server.ip());
            let connecting = Spliced {
                flow: *flow,
                state: SPLICED_CONNECTING,
                splice,
                ..Spliced::zeroed()
            };
            if self.begin(&key, &connecting)? {
                return Ok(Some(own));
            }
            let there = self.maps.splices.get(&key)?;
            let is_open = |there: &Spliced| there.state != SPLICED_CONNECTING;
            if let Some(there) = there.filter(is_open)
                && is_over(&there.flow)?
            {
                self.forget(&key)?;
                if self.begin(&key, &connecting)? {
                    return Ok(Some(own));
                }
            }
        }
        Ok(None)
    }

    /// False: there is one.
    fn begin(&self, key: &abi::FlowKey, connecting: &Spliced) -> io::Result<bool> {
        match self.maps.splices.put(key, connecting, Update::Create) {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// One that leads to the worker that has the client's packets.
    fn next_port(&self, flow: &abi::FlowKey, server: SocketAddrV4) -> u16 {
        let mut taken = self.taken.lock().expect("no thread panics with it");
        // Not where the daemon before began.
        let begin = || FIRST_PORT | clock::cluster().as_millis() as u16;
        let port = taken.entry(server).or_insert_with(begin);
        let worker = u16::from_be_bytes(flow.client_port) % self.workers;
        loop {
            *port = port.checked_add(1).unwrap_or(FIRST_PORT);
            if *port % self.workers == worker {
                return *port;
            }
        }
    }

    /// Nothing came of it.
    pub fn give_port_back(&self, own: SocketAddrV4, server: SocketAddrV4) -> io::Result<()> {
        let key = Splice::between(own, server).key(*server.ip());
        let there = self.maps.splices.get(&key)?;
        if there.is_some_and(|there| there.state == SPLICED_CONNECTING) {
            self.maps.splices.delete(&key)?;
        }
        Ok(())
    }

    /// Its server has answered, and its clock was that.
    pub fn note_clock(
        &self,
        own: SocketAddrV4,
        server: SocketAddrV4,
        clock: u32,
    ) -> io::Result<()> {
        let key = Splice::between(own, server).key(*server.ip());
        match self.maps.splices.get(&key)? {
            Some(connecting) => {
                let connecting = Spliced {
                    clock,
                    ..connecting
                };
                self.maps.splices.put(&key, &connecting, Update::Any)
            }
            None => Ok(()),
        }
    }

    /// The flow whose connection it is, open or not.
    pub fn flow_of(&self, own: SocketAddrV4, server: SocketAddrV4) -> io::Result<Option<FlowKey>> {
        let there = self
            .maps
            .splices
            .get(&Splice::between(own, server).key(*server.ip()))?;
        Ok(there.map(|there| there.flow.into()))
    }

    /// The record of a flow becomes `new`, or there is none any more.
    pub fn follow(
        &self,
        flow: &abi::FlowKey,
        old: Option<&Flow>,
        new: Option<&Flow>,
    ) -> io::Result<()> {
        let is_spliced = |flow: &&Flow| flow.splice.terms().is_some();
        let (old, new) = (old.filter(is_spliced), new.filter(is_spliced));
        let what = |flow: &Flow| (flow.splice, flow.backend);
        if old.map(what) == new.map(what) {
            return Ok(());
        }
        if let Some(new) = new
            && let Some(server) = self.slots.address(new.backend)
        {
            self.serve(new.splice.address.into())?;
            let key = new.splice.key(server);
            let there = self
                .maps
                .splices
                .get(&key)?
                .filter(|there| there.flow == *flow);
            let open = Spliced {
                flow: *flow,
                state: match self.begins_to_follow(&key, new)? {
                    true => SPLICED_FOLLOWED,
                    false => SPLICED_OPEN,
                },
                splice: new.splice,
                server_ack: new.client_isn.wrapping_add(1),
                clock: there.map_or(0, |there| there.clock),
                ..Spliced::zeroed()
            };
            self.maps.splices.put(&key, &open, Update::Any)?;
        }
        if let Some(old) = old
            && let Some(server) = self.slots.address(old.backend)
        {
            let key = old.splice.key(server);
            let there = self.maps.splices.get(&key)?;
            if there.is_some_and(|there| there.flow == *flow && there.splice == old.splice) {
                self.forget(&key)?;
            }
        }
        Ok(())
    }

    /// A connection whose flow has boundaries: its server's answers are followed from their
    /// first byte on, if they come by here. False: there is nothing to follow, or no room.
    fn begins_to_follow(&self, key: &abi::FlowKey, flow: &Flow) -> io::Result<bool> {
        let terms = flow.splice.terms();
        let is_split = terms.is_none_or(|splice| splice.split);
        let Ok(meta) = Meta::decode(&flow.meta) else {
            return Ok(false);
        };
        if is_split || !meta.care.follow || flow.marks & MARK_TUNNEL != 0 {
            self.maps.overheard.delete(key)?;
            return Ok(false);
        }
        let begun = Overheard {
            answers: Answers {
                next: (flow.server_isn.wrapping_add(1)).wrapping_sub(flow.splice.ahead),
                flags: if meta.care.head { ANSWER_TO_HEAD } else { 0 },
                ..Answers::zeroed()
            },
            window_scale: servers_scale(&meta, &flow.splice),
            ..Overheard::zeroed()
        };
        match self.maps.overheard.put(key, &begun, Update::Any) {
            Ok(()) => Ok(true),
            Err(e) if e.raw_os_error() == Some(libc::E2BIG) => Ok(false),
            Err(e) => Err(e),
        }
    }

    fn forget(&self, key: &abi::FlowKey) -> io::Result<()> {
        self.maps.splices.delete(key)?;
        self.maps.overheard.delete(key).map(drop)
    }

    /// Takes the flow from its server before the request at `start`, if that owes nothing;
    /// the client has been told that its bytes have come up to `told`.
    pub fn part(&self, flow: &Flow, start: ClientSeq, told: ClientSeq) -> io::Result<Parted> {
        let Some(server) = self.slots.address(flow.backend) else {
            return Ok(Parted::Never);
        };
        self.parter.part(Parting {
            key: flow.splice.key(server),
            start: start.raw(),
            requests: flow.requests,
            heard: flow.last_ack,
            told: told.raw(),
            ..Parting::zeroed()
        })
    }

    /// What the flow's server has said to have; and where it is itself, as the client knows it, if
    /// its answers come by here.
    pub fn acknowledged(&self, flow: &Flow) -> io::Result<Option<(ClientSeq, Option<Sender>)>> {
        let Some(server) = self.slots.address(flow.backend) else {
            return Ok(None);
        };
        let key = flow.splice.key(server);
        let Some(there) = self.maps.splices.get(&key)? else {
            return Ok(None);
        };
        let overheard = self.maps.overheard.get(&key)?;
        let sender = overheard.and_then(|overheard| sender(flow, &overheard));
        Ok(Some((ClientSeq::new(there.server_ack), sender)))
    }
}

/// Of the server's window field. The shift leads from there to what was agreed with the client.
fn servers_scale(meta: &Meta, splice: &Splice) -> u8 {
    let ours = meta.handshake.window_scales.map_or(0, |scales| scales.ours);
    ours.min(14).saturating_add_signed(splice.to_client_shift)
}

/// Where a flow's server is, as far as its answers have been followed.
fn sender(flow: &Flow, overheard: &Overheard) -> Option<Sender> {
    let answers = &overheard.answers;
    let next = ServerSeq::new(answers.next.wrapping_add(flow.splice.ahead));
    (answers.phase <= ANSWER_ENDLESS).then_some(Sender {
        next,
        clock: overheard.clock,
        is_idle: false,
        has_not_begun: false,
    })
}
