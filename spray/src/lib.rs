//! The spray's daemon: asks dispatchers and the other sprays whether they are there, deals
//! the lots that the data path draws (bpf/spray.bpf.h), and has the service addresses or
//! stands by. No packet of a client comes here; the data path goes on when this process is
//! gone.
//!
//! ```text
//!  vigil    heartbeats ─► who is there ─► lots, and who has the service addresses
//!  plan     the configuration, and which slot each dispatcher has
//!  seat     the service addresses on the interface, and their announcement
//!  members  those that are registered in etcd
//!  left     what is still needed of dispatchers that are no members any more
//!  control  the command line asks           lib      signals: reload, stop
//! ```

mod control;
mod left;
mod members;
mod plan;
mod seat;
mod vigil;

pub use control::{Explained, MemberStatus, Question, Request, Status};
pub use seat::sysctls;

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

use anyhow::{Context, bail};
use trapeze_core::config::{Config, Registration, Spray};
use trapeze_datapath::abi::{self, Front, Service, Spraying};
use trapeze_datapath::attach;
use trapeze_datapath::control as socket;
use trapeze_datapath::file;
use trapeze_datapath::host::Host;
use trapeze_datapath::map::{Update, fill_services, fill_tag_keys};
use trapeze_datapath::node::{Node, Role};
use trapeze_datapath::object;
use trapeze_datapath::priority;
use trapeze_datapath::signal::{Signal, Signals};
use trapeze_datapath::spray::{SprayMaps, attach_spray, load_spray};
use trapeze_membership::{self as membership, Begun, Membership};

use plan::Plan;
use seat::Seat;
use vigil::Vigil;

/// How long a new daemon may listen before it says that it is ready.
const FIRST_LOOK: Duration = Duration::from_secs(2);
/// Clocks are compared this often, and what nobody needs any more is given up.
const UPKEEP_INTERVAL: Duration = Duration::from_secs(10);

/// What the threads share.
pub(crate) struct Shared {
    config_path: PathBuf,
    node: Node,
    plan: RwLock<Arc<Plan>>,
    /// As the file was when it was read last, without members that have registered themselves.
    file: Mutex<Config>,
    membership: Option<Arc<Membership>>,
    /// Raised by every reload.
    generation: AtomicU64,
    maps: SprayMaps,
    /// As the vigil sees it.
    status: Mutex<Status>,
    /// The vigil knows who is there, the lots are dealt, and somebody has the addresses.
    settled: AtomicBool,
    /// SIGTERM: another one should have the addresses.
    leaving: AtomicBool,
    /// Nobody needs this one any more, or nobody else is there.
    left: AtomicBool,
    stopping: AtomicBool,
}

/// Runs the daemon until it is told to stop.
pub fn run(config_path: PathBuf, node_name: &str) -> anyhow::Result<()> {
    let signals = Signals::block()?;
    let config = file::read(&config_path)?;
    let own = config.own_spray(node_name)?.clone();
    let hook = attach::usable(own.attach, &own.interface)?;
    let node = Node::here(&config.name, node_name, Role::Spray, &config_path)?;
    let _lock = node.lock()?;
    node.register()
        .with_context(|| format!("cannot write {}", node.run_dir().display()))?;
    let file = config;
    let registration = Registration::of_spray(&own);
    // A reload has nothing to change yet.
    let wait = |time| Ok(matches!(signals.wait(time)?, None | Some(Signal::Reload)));
    let (membership, follower) = match membership::begin(&file, registration, wait)? {
        Begun::Alone => (None, None),
        Begun::Registered(membership, follower) => (Some(membership), Some(follower)),
        Begun::Stopped => return Ok(node.unregister()?),
    };
    let config = membership::complete(membership.as_deref(), &file);
    let (maps, loaded) = load_spray(&node.pins(), hook)?;
    let plan = Plan::new(config, own.clone(), &maps)?;
    let host = Host::open(&node.run_dir().join("host"))?;
    let shared = Arc::new(Shared {
        config_path,
        plan: RwLock::new(Arc::new(plan)),
        file: Mutex::new(file),
        membership,
        generation: AtomicU64::new(0),
        maps,
        status: Mutex::default(),
        settled: AtomicBool::new(false),
        leaving: AtomicBool::new(false),
        left: AtomicBool::new(false),
        stopping: AtomicBool::new(false),
        node,
    });
    shared.publish()?;
    let mut seat = Seat::new(host, &own.interface);
    seat.prepare()?;
    let vigil = Vigil::open(shared.clone(), seat)?;
    let vigil = std::thread::Builder::new()
        .name("vigil".into())
        .spawn(move || {
            priority::go_first("vigil");
            match vigil.run() {
                Ok(seat) => seat,
                Err(error) => {
                    // Without it nothing works: the pinned data path does better alone.
                    eprintln!("vigil: {error:#}");
                    std::process::exit(1);
                }
            }
        })?;
    let control = socket::listen(&shared.node).context("cannot listen for questions")?;
    let for_control = shared.clone();
    std::thread::Builder::new()
        .name("control".into())
        .spawn(move || control::serve(&control, &for_control))?;

    attach_spray(&loaded, &own.interface, hook)
        .with_context(|| attach::advice(own.attach, &own.interface))?;
    wait_until(&shared.settled, FIRST_LOOK);
    if let Some(follower) = follower {
        let for_members = shared.clone();
        std::thread::Builder::new()
            .name("members".into())
            .spawn(move || follower.run(&*for_members))?;
    }
    println!(
        "ready: spray {} on {} ({})",
        own.name,
        own.interface,
        attach::name(hook)
    );
    let end = shared.wait(&signals)?;
    if end == Signal::Stop {
        // The data path sprays on until another one has the addresses.
        let interval = shared.plan().config.spraying.heartbeat;
        shared.leaving.store(true, Ordering::Relaxed);
        wait_until(&shared.left, interval * 6 + Duration::from_millis(500));
    }
    shared.stopping.store(true, Ordering::Relaxed);
    let seat = vigil.join();
    if end == Signal::Stop {
        object::unpin_all(&shared.node.pins())?;
        if let Ok(seat) = seat {
            seat.leave()
                .context("cannot take back all changes of this host")?;
        }
        shared.node.unregister()?;
        // Nothing of it answers any more, so nobody has to wait for the lease.
        shared.membership.iter().for_each(|m| m.leave());
    }
    Ok(())
}

fn wait_until(flag: &AtomicBool, patience: Duration) {
    let start = std::time::Instant::now();
    while !flag.load(Ordering::Relaxed) && start.elapsed() < patience {
        std::thread::sleep(Duration::from_millis(2));
    }
}

impl Shared {
    pub(crate) fn plan(&self) -> Arc<Plan> {
        self.plan.read().expect("no thread panics with it").clone()
    }

    /// Obeys signals until one says to end.
    fn wait(&self, signals: &Signals) -> anyhow::Result<Signal> {
        loop {
            match signals.wait(UPKEEP_INTERVAL)? {
                Some(Signal::Reload) => match self.reload() {
                    Ok(()) => println!("reloaded {}", self.config_path.display()),
                    Err(error) => eprintln!("not reloaded, the old configuration stays: {error:#}"),
                },
                Some(end) => return Ok(end),
                None => {
                    self.publish_node()?;
                    self.forget_left()?;
                }
            }
        }
    }

    /// Reads the configuration again. The vigil follows at its next step.
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
        if !is_read && config == self.plan().config {
            return Ok(());
        }
        self.follow(config)?;
        *file = read;
        Ok(())
    }

    fn follow(&self, config: Config) -> anyhow::Result<()> {
        let own = config.own_spray(&self.node.name)?.clone();
        let old = self.plan();
        let is_elsewhere = config.membership != old.config.membership;
        if config.name != old.config.name || own != old.own || is_elsewhere {
            bail!(
                "the cluster's name, [membership], and this spray's address, interface and attach are fixed \
                 while it runs: restart it (kill -USR2 leaves its data path in place)"
            );
        }
        let plan = Plan::new(config, own, &self.maps)?;
        *self.plan.write().expect("no thread panics with it") = Arc::new(plan);
        self.publish()?;
        self.generation.fetch_add(1, Ordering::Release);
        Ok(())
    }

    /// Tells the data path who it is and what time it is.
    fn publish_node(&self) -> anyhow::Result<()> {
        let Plan { own, config, .. } = &*self.plan();
        let (address, key) = (v4(own.address)?, config.keys[0].id);
        let node = abi::Node::here(address, key, &own.interface, 0, Front::Direct)?;
        Ok(self.maps.node.put(&0, &node, Update::Any)?)
    }

    /// Puts the configuration into the data path's maps, but for dispatchers and lots,
    /// which are the vigil's.
    fn publish(&self) -> anyhow::Result<()> {
        let Plan { config, left, .. } = &*self.plan();
        fill_tag_keys(&self.maps.tag_keys, &config.keys)?;
        self.publish_node()?;
        let spraying = Spraying::new(config.spraying.mode, &config.name);
        self.maps.spraying.put(&0, &spraying, Update::Any)?;
        let services = config.services.iter().enumerate().map(|(id, service)| {
            let value = Service {
                id: id as u32,
                // Not 0, which says that it is a splice address.
                mss: u16::MAX,
                window_scale: 0,
                ecn: 0,
            };
            (&service.address, value)
        });
        // Whose they are is a dispatcher's to know.
        let splice_addresses = config.splice_addresses().map(|(_, address)| address);
        let used = left::with_use(splice_addresses.chain(left.iter().copied()), &self.maps)?;
        Ok(fill_services(
            &self.maps.services,
            services,
            used.into_iter(),
        )?)
    }
}

/// This spray's place among the configured.
pub(crate) fn place(sprays: &[Spray], name: &str) -> usize {
    let place = sprays.iter().position(|spray| spray.name == name);
    place.expect("own_spray has found it")
}

pub(crate) fn v4(address: IpAddr) -> anyhow::Result<Ipv4Addr> {
    match address {
        IpAddr::V4(v4) => Ok(v4),
        IpAddr::V6(v6) => bail!("{v6}: IPv6 is not supported yet"),
    }
}
