//! The dispatcher's daemon: reads first requests, chooses backends, writes flow
//! records. Everything after that is the data path's (bpf/dispatch.bpf.h), which
//! goes on when this process is gone.
//!
//! ```text
//!  worker   packets of unknown flows ─► intake ─► cluster.choose ─► record, backend
//!  standing what was decided, for the data path to repeat
//!  sweep    records age ─► deleted          pulse    heartbeats ─► who is alive
//!  control  the command line asks           lib      signals: reload, stop
//!  stays    other dispatchers are told what the data path has let by
//!  workload what sprays and other dispatchers are told
//!  peers    the other dispatchers: who keeps what, records to and from them
//!  members  those of them that are registered in etcd
//!  splice   connections to servers without an agent       knocks   who of those is alive
//!  health   what is held of backends                      checks   servers without an agent are asked
//!  outliers what becomes of clients' requests, and who is left out for that
//!  cable    alone, nobody is taken for dead while the cable is out
//! ```

mod cable;
mod checks;
mod cluster;
mod control;
mod drain;
mod early;
mod explain;
mod farewell;
mod forsaken;
mod half_pipes;
mod handoff;
mod health;
mod inquiry;
mod keys;
mod knocks;
mod left_behind;
mod listening;
mod look;
mod members;
mod memory;
mod outliers;
mod pauses;
mod peers;
mod pulse;
mod records;
mod registry;
mod splice;
mod standing;
mod stays;
mod support;
mod sweep;
mod unanswered;
mod worker;
mod workload;

pub use control::{BackendStatus, CheckStatus, FeedbackStatus, Request, Status};
pub use drain::Left;
pub use explain::{Explained, Question, explain_offline};
pub use health::Change;
pub use peers::{PeerStatus, Told};
pub use trapeze_datapath::control::ask;

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

use anyhow::{Context, bail};
use trapeze_core::config::{Attach, Config, Dispatcher, Registration};
use trapeze_core::membership::Workload;
use trapeze_core::membership::lots::NOBODY;
use trapeze_datapath::abi::{self, ENCAP_LEN, Finished, Front, Service};
use trapeze_datapath::attach;
use trapeze_datapath::clock;
use trapeze_datapath::control as socket;
use trapeze_datapath::dispatcher::{
    Claimer, DispatcherMaps, DispatcherOptions, FlowChanger, Loads, Parter, Sieve,
    attach_dispatcher, attach_loopback, finished_requests, load_dispatcher,
};
use trapeze_datapath::file;
use trapeze_datapath::host::{self, Host};
use trapeze_datapath::map::{Update, fill_services, fill_tag_keys};
use trapeze_datapath::node::{Node, Role};
use trapeze_datapath::object;
use trapeze_datapath::priority;
use trapeze_datapath::ring::Ring;
use trapeze_datapath::signal::{Signal, Signals};
use trapeze_membership::{self as membership, Begun, Membership};

use cluster::Cluster;
use drain::Drains;
use farewell::Farewell;
use forsaken::Forsaken;
use health::Health;
use inquiry::Inquiry;
use left_behind::LeftBehind;
use peers::Peers;
use records::Records;
use registry::Registry;
use splice::Splices;
use standing::Standing;

/// Our window shift: 65535 << 9 is as much as Linux gives a connection by default (32 MiB).
const WINDOW_SCALE: u8 = 9;
/// IPv4 and TCP headers without options.
const HEADERS: u32 = 40;

/// What the threads share.
pub(crate) struct Shared {
    config_path: PathBuf,
    node: Node,
    interface: String,
    cluster: RwLock<Arc<Cluster>>,
    /// As the file was when it was read last, without members that have registered themselves.
    file: Mutex<Config>,
    membership: Option<Arc<Membership>>,
    /// Dispatchers of other sub-clusters that have left, and whose splice addresses are nobody's since. What is needed
    /// of those of the own one follows from records.
    left_elsewhere: Mutex<Vec<Dispatcher>>,
    /// Raised by every reload.
    generation: AtomicU64,
    records: Records,
    peers: Arc<Peers>,
    standing: Standing,
    reports: Mutex<Ring<Finished>>,
    health: Health,
    drains: Drains,
    forsaken: Forsaken,
    left_behind: LeftBehind,
    registry: Mutex<Registry>,
    maps: Arc<DispatcherMaps>,
    host: Mutex<Option<Host>>,
    /// SIGTERM: sprays are to take it out.
    leaving: AtomicBool,
    /// Whoever says what this dispatcher is.
    presence: Mutex<()>,
    services: Mutex<()>,
    /// Thousandths of its capacity that are to spare.
    workload: AtomicU32,
    stopping: AtomicBool,
    intake: Mutex<Vec<worker::Figures>>,
}

/// The sysctls that a dispatcher needs, behind sprays or routers or not.
pub fn sysctls(interface: &str, is_behind: bool) -> Vec<(String, &'static str)> {
    let mut wanted = vec![
        // Without it the kernel resolves no next hop for the data path.
        (format!("net/ipv4/conf/{interface}/forwarding"), "1"),
        // What the daemon tells others once its cable is in again would wait for their link addresses; the data path,
        // which knows them, would not.
        (
            format!("net/ipv4/conf/{interface}/arp_evict_nocarrier"),
            "0",
        ),
    ];
    if is_behind {
        // Addresses of lo are kept out of ARP: nobody is answered, nobody is asked in their name.
        wanted.push(("net/ipv4/conf/all/arp_ignore".into(), "1"));
        wanted.push(("net/ipv4/conf/all/arp_announce".into(), "2"));
    }
    wanted
}

/// Runs the daemon until it is told to stop.
pub fn run(config_path: PathBuf, node_name: &str) -> anyhow::Result<()> {
    let signals = Signals::block()?;
    let config = file::read(&config_path)?;
    let own = config.own_dispatcher(node_name)?.clone();
    let mut attach = attach::usable(own.attach, &own.interface)?;
    if attach == Attach::XdpGeneric && config.backends.iter().any(|b| b.address == own.address) {
        eprintln!(
            "a backend is on this host, whose agent's packets generic XDP would see: attached at tc instead (set attach = \"tc\")"
        );
        attach = Attach::Tc;
    }
    let node = Node::here(&config.name, node_name, Role::Dispatcher, &config_path)?;
    let _lock = node.lock()?;
    node.register()
        .with_context(|| format!("cannot write {}", node.run_dir().display()))?;
    let file = config;
    let registration = Registration::of_dispatcher(&own);
    // A reload has nothing to change yet.
    let wait = |time| Ok(matches!(signals.wait(time)?, None | Some(Signal::Reload)));
    let (membership, follower) = match membership::begin(&file, registration, wait)? {
        Begun::Alone => (None, None),
        Begun::Registered(membership, follower) => (Some(membership), Some(follower)),
        Begun::Stopped => return Ok(node.unregister()?),
    };
    let config = membership::complete(membership.as_deref(), &file);

    let pins = node.pins();
    let options = DispatcherOptions {
        pins: &pins,
        interface: &own.interface,
        attach,
        flows: config.limits.flows,
    };
    let (maps, loaded) = load_dispatcher(&options)?;
    let maps = Arc::new(maps);
    let loads = Arc::new(Loads::map(&maps.loads)?);
    let mut registry = Registry::read(&maps)?;
    let standing = Standing::open(maps.clone())?;
    standing.suspend()?;
    let peers = Arc::new(Peers::new(&config, &own, maps.clone())?);
    let cluster = Cluster::new(config, &own, &mut registry, &loads, standing.turns(), None)?;
    let records = Records::new(
        maps.clone(),
        FlowChanger::of(&loaded),
        loads.clone(),
        peers.clone(),
        Splices::new(maps.clone(), Parter::of(&loaded), &own)?,
    );
    records.know_slots(registry.all())?;
    records.doubt_untold()?;
    let shared = Arc::new(Shared {
        config_path,
        interface: own.interface.clone(),
        generation: AtomicU64::new(0),
        records,
        peers,
        standing,
        reports: Mutex::new(finished_requests(&node.pins())?),
        health: Health::new(loads, cluster.config.limits.heartbeat, own.workers),
        drains: Drains::open(node.run_dir().join("drained"), own.workers)?,
        forsaken: Forsaken::default(),
        left_behind: LeftBehind::by_the_daemon_before(clock::monotonic()),
        registry: Mutex::new(registry),
        host: Mutex::new(Some(Host::open(&node.run_dir().join("host"))?)),
        leaving: AtomicBool::new(false),
        presence: Mutex::default(),
        services: Mutex::default(),
        workload: AtomicU32::new(Workload::IDLE.permille().into()),
        stopping: AtomicBool::new(false),
        intake: Mutex::new(vec![worker::Figures::default(); own.workers]),
        cluster: RwLock::new(Arc::new(cluster)),
        file: Mutex::new(file),
        membership,
        left_elsewhere: Mutex::default(),
        maps,
        node,
    });
    // Before the data path knows that there are others: it has to know who keeps what.
    let mut vigil = peers::Vigil::open(shared.clone(), &own, Claimer::of(&loaded))?;
    shared.publish(&own)?;
    shared.prepare_host()?;
    drain::tell_health(&shared);

    let by_loopback = attach_loopback(&loaded, &options)
        .context("cannot give back to the data path what is held of requests")?;
    if by_loopback {
        vigil.open_inlet(&own.interface)?;
    }
    let mut threads = Vec::new();
    // In this order: the sockets' places in their group are the workers' numbers.
    for index in 0..own.workers {
        let worker = worker::Worker::bind(shared.clone(), &own, index, by_loopback)?;
        threads.push(spawn(&format!("worker-{index}"), move || worker.run())?);
    }
    let control = socket::listen(&shared.node).context("cannot listen for questions")?;
    let (for_control, for_sweep) = (shared.clone(), shared.clone());
    let for_drain = shared.clone();
    let (farewell, inquiry) = (Farewell::open(&own)?, Inquiry::open(&own)?);
    let pulse = pulse::Pulse::open(shared.clone(), &own)?;
    threads.push(spawn_first("pulse", move || pulse.run())?);
    let stays = stays::Stays::open(shared.clone(), &own, Sieve::of(&loaded)?)?;
    threads.push(spawn("stays", move || stays.run())?);
    let (for_knocks, knocker) = (shared.clone(), own.clone());
    threads.push(spawn_first("knocks", move || {
        knocks::run(&for_knocks, &knocker)
    })?);
    let (for_checks, checker) = (shared.clone(), own.clone());
    threads.push(spawn("checks", move || checks::run(&for_checks, &checker))?);
    let for_workload = shared.clone();
    threads.push(spawn("workload", move || workload::run(&for_workload))?);
    threads.push(spawn_first("peers", move || vigil.run())?);
    threads.push(spawn("drain", move || drain::run(&for_drain))?);
    threads.push(spawn("sweep", move || {
        sweep::run(&for_sweep, farewell, inquiry)
    })?);
    std::thread::Builder::new()
        .name("control".into())
        .spawn(move || control::serve(&control, &for_control))?;

    attach_dispatcher(&loaded, &options)
        .with_context(|| attach::advice(own.attach, &own.interface))?;
    // Not before: where sprays have not missed this host, its kernel would refuse what they send.
    shared.hold_addresses()?;
    shared.announce();
    if let Some(follower) = follower {
        let for_members = shared.clone();
        std::thread::Builder::new()
            .name("members".into())
            .spawn(move || follower.run(&*for_members))?;
    }
    println!(
        "ready: dispatcher {} on {} ({})",
        own.name,
        own.interface,
        attach::name(attach)
    );
    let end = shared.wait(&signals)?;
    if end == Signal::Stop {
        workload::leave(&shared)?;
    }
    shared.stopping.store(true, Ordering::Relaxed);
    for thread in threads {
        let _ = thread.join();
    }
    if end == Signal::Stop {
        shared.clean_up()?;
        // Nothing of it answers any more, so nobody has to wait for the lease.
        shared.membership.iter().for_each(|m| m.leave());
    }
    Ok(())
}

impl Shared {
    /// Policies hear of the requests that have finished. If another thread is telling
    /// them, that will do.
    pub(crate) fn hear_finished(&self, cluster: &Cluster) -> io::Result<()> {
        let Ok(reports) = self.reports.try_lock() else {
            return Ok(());
        };
        for told in reports.take()? {
            cluster.finished(&self.health, &told);
        }
        Ok(())
    }

    pub(crate) fn cluster(&self) -> Arc<Cluster> {
        self.cluster
            .read()
            .expect("no thread panics with it")
            .clone()
    }

    /// Obeys signals until one says to end.
    fn wait(&self, signals: &Signals) -> anyhow::Result<Signal> {
        loop {
            match signals.wait(Duration::from_secs(10))? {
                Some(Signal::Reload) => match self.reload() {
                    Ok(()) => println!("reloaded {}", self.config_path.display()),
                    Err(error) => eprintln!("not reloaded, the old configuration stays: {error:#}"),
                },
                Some(end) => return Ok(end),
                None => {}
            }
        }
    }

    /// Reads the configuration again; flows and their backends stay as they are.
    pub(crate) fn reload(&self) -> anyhow::Result<()> {
        self.take(Some(file::read(&self.config_path)?))
    }

    /// Goes on with another file, or the same, and those that are members now.
    fn take(&self, read: Option<Config>) -> anyhow::Result<()> {
        // One at a time: signals, commands and etcd may ask for it.
        let mut file = self.file.lock().expect("no thread panics with it");
        let is_read = read.is_some();
        let read = read.unwrap_or_else(|| file.clone());
        let config = membership::complete(self.membership.as_deref(), &read);
        if !is_read && config == self.cluster().config {
            return Ok(());
        }
        self.follow(config)?;
        *file = read;
        Ok(())
    }

    fn follow(&self, config: Config) -> anyhow::Result<()> {
        let own = config.own_dispatcher(&self.node.name)?.clone();
        let old = self.cluster();
        if config.name != old.config.name
            || own.interface != self.interface
            || own.address != old.own.address
            || own.attach != old.own.attach
            || own.workers != old.own.workers
            || own.splice_address != old.own.splice_address
            || own.sub_cluster != old.own.sub_cluster
            || config.limits.flows != old.config.limits.flows
            || config.membership != old.config.membership
        {
            bail!(
                "cluster name, [membership], limits.flows, and this dispatcher's address, splice_address, \
                 sub_cluster, interface, attach and workers are fixed while it runs: restart it (kill -USR2 leaves its flows in place)"
            );
        }
        let cluster = {
            let mut registry = self.registry.lock().expect("no thread panics with it");
            let turns = self.standing.turns();
            let loads = self.health.loads();
            let cluster = Cluster::new(config, &own, &mut registry, loads, turns, Some(&old))?;
            self.records.know_slots(registry.all())?;
            cluster
        };
        self.peers.configure(&cluster.config)?;
        self.note_left(&old.config, &cluster.config);
        self.standing.suspend()?;
        *self.cluster.write().expect("no thread panics with it") = Arc::new(cluster);
        self.publish(&own)?;
        drain::tell_health(self);
        checks::tell_health(self);
        self.generation.fetch_add(1, Ordering::Release);
        // What a heartbeat has renewed meanwhile, with workers that had the old one, ends.
        self.standing.suspend()?;
        self.renew_decisions()?;
        self.prepare_host()?;
        self.hold_addresses()?;
        self.announce();
        Ok(())
    }

    /// Decisions stand on, or not, as the backends' health is now.
    pub(crate) fn renew_decisions(&self) -> std::io::Result<()> {
        let floor = self.records.highest_epoch();
        self.standing.renew(&self.cluster(), &self.health, floor)
    }

    /// Tells the data path who it is and what time it is; clocks are adjusted, so now and then.
    pub(crate) fn publish_node(&self) -> anyhow::Result<()> {
        let cluster = self.cluster();
        let (address, key) = (v4(cluster.own.address)?, cluster.config.keys[0].id);
        let front = match cluster.config.dispatchers_are_behind() {
            true if self.peers.are_in_sub_clusters() => Front::AmongSubClusters,
            true if self.peers.are_there() => Front::Among,
            true => Front::Chosen,
            false => Front::Direct,
        };
        let node = abi::Node::here(address, key, &self.interface, 0, front)?;
        Ok(self.maps.node.put(&0, &node, Update::Any)?)
    }

    /// Puts the configuration into the data path's maps.
    fn publish(&self, own: &Dispatcher) -> anyhow::Result<()> {
        let cluster = self.cluster();
        fill_tag_keys(&self.maps.tag_keys, &cluster.config.keys)?;
        keys::publish_cookie_keys(&self.maps, &cluster.config.keys)?;
        self.publish_node()?;
        workload::publish(self)?;
        let new_slots = {
            let mut registry = self.registry.lock().expect("no thread panics with it");
            registry.publish(&self.maps.backends, v4(own.address)?)?
        };
        for slot in new_slots {
            self.health.reset(slot);
        }
        self.publish_services()
    }

    /// Service addresses, and who has what comes to splice addresses.
    pub(crate) fn publish_services(&self) -> anyhow::Result<()> {
        // Whoever writes last has seen the latest.
        let _turn = self.services.lock().expect("no thread panics with it");
        let cluster = self.cluster();
        let mtu = host::mtu(&cluster.own.interface)?;
        let mss = mtu.saturating_sub(HEADERS + ENCAP_LEN as u32);
        let services = cluster.config.services.iter().enumerate();
        let services = services.map(|(id, service)| {
            let value = Service {
                id: id as u32,
                mss: mss.clamp(536, 65_495) as u16,
                window_scale: WINDOW_SCALE,
                ecn: service.ecn.into(),
            };
            (&service.address, value)
        });
        let left_elsewhere = self.left_elsewhere.lock();
        let left_elsewhere = left_elsewhere.expect("no thread panics with it");
        let left = left_elsewhere
            .iter()
            .filter_map(|dispatcher| Some((dispatcher, dispatcher.splice_address?)));
        let mut splice_addresses = (cluster.config.splice_addresses().chain(left))
            .map(|(dispatcher, address)| {
                Ok((address, self.peers.slot_for_answers(dispatcher)?.into()))
            })
            .collect::<anyhow::Result<Vec<_>>>()?;
        self.records.with_splice_addresses(|used| {
            let left = left_addresses(&cluster.config, used);
            splice_addresses.extend(left.map(|address| (address, NOBODY.into())));
            fill_services(&self.maps.services, services, splice_addresses.into_iter())
        })?;
        Ok(())
    }

    /// The members have changed.
    fn note_left(&self, before: &Config, now: &Config) {
        let own = self.cluster().own.sub_cluster;
        let elsewhere = before.dispatchers.iter().filter(|d| d.sub_cluster != own);
        let mut left = self
            .left_elsewhere
            .lock()
            .expect("no thread panics with it");
        left.extend(elsewhere.cloned());
        left.retain(|dispatcher| {
            let address = dispatcher.splice_address;
            address.is_some_and(|address| !now.is_taken(address))
        });
    }

    /// Connections to servers are from these addresses, as all records say; `since` when there was
    /// none from any other.
    pub(crate) fn note_splice_addresses(
        &self,
        seen: &BTreeSet<Ipv4Addr>,
        since: Duration,
    ) -> anyhow::Result<()> {
        let now = clock::monotonic();
        let unused = self.records.forget_splice_addresses(seen, now, since);
        let config = &self.cluster().config;
        if left_addresses(config, &mut unused.into_iter()).count() == 0 {
            return Ok(());
        }
        // First from the host: what still came would be answered there, and reset.
        self.hold_addresses()?;
        self.publish_services()
    }

    /// What its own interface needs; and no word in ARP of addresses that a spray or a router has.
    fn prepare_host(&self) -> anyhow::Result<()> {
        let mut host = self.host.lock().expect("no thread panics with it");
        let host = host.as_mut().expect("until clean_up");
        let is_behind = self.cluster().config.dispatchers_are_behind();
        for (name, value) in sysctls(&self.interface, is_behind) {
            host.set_sysctl(&name, value)
                .with_context(|| format!("cannot set {name}"))?;
        }
        // What cannot be is to be known before anything is attached.
        self.held_addresses().map(drop)
    }

    /// The VIPs on the interface, so that ARP is answered; or on lo, where a spray or a router
    /// has them, so that what the data path passes on has an end here.
    fn hold_addresses(&self) -> anyhow::Result<()> {
        let mut host = self.host.lock().expect("no thread panics with it");
        let host = host.as_mut().expect("until clean_up");
        let vips = self.held_addresses()?;
        let (place, other) = match self.cluster().config.dispatchers_are_behind() {
            true => ("lo", &*self.interface),
            false => (&*self.interface, "lo"),
        };
        for vip in &vips {
            host.add_address(*vip, place)?;
        }
        for (interface, keep) in [(place, &vips[..]), (other, &[])] {
            for added in host.added_addresses(interface) {
                if !keep.contains(&added) {
                    host.remove_address(added, interface)?;
                }
            }
        }
        Ok(())
    }

    /// The addresses that are this host's, too. Where a server is on it, splice addresses are
    /// not: it would not believe what comes from there, nor send what goes there to sprays.
    fn held_addresses(&self) -> anyhow::Result<Vec<IpAddr>> {
        let cluster = self.cluster();
        let config = &cluster.config;
        let mut backends = config.backends.iter();
        let Some(here) = backends.find(|backend| backend.address == cluster.own.address) else {
            return Ok(self.front_addresses());
        };
        if here.transfer.connects() && !config.dispatchers_are_behind() {
            bail!(
                "{} is {}'s own host: connections to a server there can be spliced only where a \
                 spray or a router brings its answers back; add one, or use `transfer = \"rebuild\"`",
                here.name,
                cluster.own.name
            );
        }
        Ok(match config.dispatchers_are_behind() {
            true => config.vips(),
            false => self.front_addresses(),
        })
    }

    /// With the splice addresses of dispatchers that have left, and whose connections go on.
    fn front_addresses(&self) -> Vec<IpAddr> {
        let config = &self.cluster().config;
        let mut addresses = config.front_addresses();
        self.records
            .with_splice_addresses(|used| addresses.extend(left_addresses(config, used)));
        addresses
    }

    fn announce(&self) {
        let config = &self.cluster().config;
        if config.dispatchers_are_behind() {
            return;
        }
        for vip in self.held_addresses().unwrap_or_default() {
            // Neighbours without it would ask on their own.
            let _ = host::announce(vip, &self.interface);
        }
    }

    fn clean_up(&self) -> anyhow::Result<()> {
        object::unpin_all(&self.node.pins())?;
        if let Some(host) = self.host.lock().expect("no thread panics with it").take() {
            host.restore()
                .context("cannot take back all changes of this host")?;
        }
        self.node.unregister()?;
        Ok(())
    }
}

/// Those that are nobody's any more.
fn left_addresses(
    config: &Config,
    used: &mut dyn Iterator<Item = Ipv4Addr>,
) -> impl Iterator<Item = IpAddr> {
    let left: Vec<_> = used
        .map(IpAddr::V4)
        .filter(|&address| !config.is_taken(address))
        .collect();
    left.into_iter()
}

fn spawn(
    name: &str,
    body: impl FnOnce() -> anyhow::Result<()> + Send + 'static,
) -> anyhow::Result<std::thread::JoinHandle<()>> {
    let thread_name = name.to_owned();
    Ok(std::thread::Builder::new()
        .name(name.into())
        .spawn(move || {
            // Without this thread nothing works: the pinned data path does better alone.
            match std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)) {
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    eprintln!("{thread_name}: {error:#}");
                    std::process::exit(1);
                }
                Err(_) => std::process::exit(101),
            }
        })?)
}

/// For who says or judges heartbeats.
fn spawn_first(
    name: &'static str,
    body: impl FnOnce() -> anyhow::Result<()> + Send + 'static,
) -> anyhow::Result<std::thread::JoinHandle<()>> {
    spawn(name, move || {
        priority::go_first(name);
        body()
    })
}

pub(crate) fn v4(address: IpAddr) -> anyhow::Result<std::net::Ipv4Addr> {
    match address {
        IpAddr::V4(v4) => Ok(v4),
        IpAddr::V6(v6) => bail!("{v6}: IPv6 is not supported yet"),
    }
}
