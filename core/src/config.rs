//! The cluster's one configuration file, checked: every name resolves, every
//! number is in range. This file is the model and the questions that are asked
//! of it; `config/parse.rs` makes it from text, `config/errors.rs` says what is
//! wrong with a text and where. Nothing here reads a file.

mod check;
mod checks;
mod errors;
mod etcd;
mod nearest;
mod parse;
mod parse_policy;
mod policy;
mod registration;
mod rescue;
mod section;
mod value;

#[cfg(test)]
mod check_tests;
#[cfg(test)]
mod rescue_tests;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use crate::head::{HttpHead, is_idempotent};
use crate::membership::subclusters::FRONT;
use crate::policy::{BackendId, Class, Request, Subject, binding, hash_name};
use crate::route::{Asked, route};

pub use check::{Check, HttpProbe, Outliers, Probe};
pub use errors::{ConfigError, ConfigErrors, NotNamed};
pub use etcd::Etcd;
pub use policy::{CookieValue, Costs, PolicyConfig, PolicyKind, Stickiness};
pub use registration::{MemberRole, Refused, Registration};
pub use rescue::{Protection, Rescue};
pub use value::parse_duration;

/// A whole cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Its name: part of the paths where state is pinned.
    pub name: String,
    /// Keys that authenticate what nodes send each other; the first one signs.
    pub keys: Vec<ClusterKey>,
    /// Where members are registered beside those that are named here, if they are.
    pub membership: Option<Etcd>,
    /// Hosts that spread packets over dispatchers, in the order in which they are to have
    /// the service addresses; none where there is one dispatcher, or routers spread.
    pub sprays: Vec<Spray>,
    /// How they spread.
    pub spraying: Spraying,
    /// Hosts that read requests.
    pub dispatchers: Vec<Dispatcher>,
    /// Hosts that serve.
    pub backends: Vec<Backend>,
    /// Sets of backends with a policy.
    pub pools: Vec<Pool>,
    /// Service addresses and their content rules.
    pub services: Vec<Service>,
    /// Bounds on time and memory.
    pub limits: Limits,
}

impl Config {
    /// Reads and checks a whole file. `file_name` only names it in errors. All
    /// semantic errors are reported at once, in the order of the text; errors of
    /// syntax alone, because nothing after them can be trusted.
    pub fn parse(text: &str, file_name: &str) -> Result<Config, ConfigErrors> {
        parse::parse(text, file_name)
    }

    /// As [`Self::parse`], of what a file holds. The first byte that is not UTF-8,
    /// which TOML has to be, is an error of syntax.
    pub fn from_bytes(bytes: &[u8], file_name: &str) -> Result<Config, ConfigErrors> {
        match str::from_utf8(bytes) {
            Ok(text) => Self::parse(text, file_name),
            Err(error) => Err(ConfigErrors::not_utf8(bytes, error, file_name)),
        }
    }

    /// Do sprays send all packets from one address and port to another to the same dispatcher, as
    /// long as that is there? Routers may, by a hash of their own.
    pub fn is_sprayed_by_flow(&self) -> bool {
        let has_sprays = !self.sprays.is_empty() || self.membership.is_some();
        has_sprays && self.spraying.mode == SprayMode::FlowHash
    }

    /// The spray that a host takes itself for.
    pub fn own_spray(&self, name: &str) -> Result<&Spray, NotNamed> {
        let names = self.sprays.iter().map(|s| &s.name);
        let own = self.spray(name);
        own.ok_or_else(|| NotNamed::new("spray", name, names))
    }

    /// The dispatcher that a host takes itself for.
    pub fn own_dispatcher(&self, name: &str) -> Result<&Dispatcher, NotNamed> {
        let names = self.dispatchers.iter().map(|d| &d.name);
        let own = self.dispatcher(name);
        own.ok_or_else(|| NotNamed::new("dispatcher", name, names))
    }

    /// The backend that a host takes itself for.
    pub fn own_backend(&self, name: &str) -> Result<&Backend, NotNamed> {
        let names = self.backends.iter().map(|b| &b.name);
        let own = self.backend(name);
        own.ok_or_else(|| NotNamed::new("backend", name, names))
    }

    /// The spray of that name.
    pub fn spray(&self, name: &str) -> Option<&Spray> {
        self.sprays.iter().find(|s| s.name == name)
    }

    /// The dispatcher of that name.
    pub fn dispatcher(&self, name: &str) -> Option<&Dispatcher> {
        self.dispatchers.iter().find(|d| d.name == name)
    }

    /// The backend of that name.
    pub fn backend(&self, name: &str) -> Option<&Backend> {
        self.backends.iter().find(|b| b.name == name)
    }

    /// What a client asks of a pool, as its policy sees it. `class` is what a rule
    /// says; `id` numbers the configuration's backends.
    pub fn request(
        &self,
        pool: usize,
        asked: &Asked<'_>,
        client: SocketAddr,
        class: Option<Class>,
        id: impl Fn(usize) -> BackendId,
    ) -> Request {
        let pool = &self.pools[pool];
        let mut request = Request::of(&Subject::of(asked, client), class);
        if let Some(stickiness) = &pool.stickiness {
            let members =
                (pool.members.iter()).map(|m| (&*self.backends[m.backend].name, id(m.backend)));
            request.bound = binding(stickiness, asked, client, members);
        }
        request
    }

    /// What outlives its backend of a request that a client makes there, and the pool that it goes to;
    /// none if nobody has it.
    pub fn rescue(&self, vip: SocketAddr, asked: &Asked<'_>) -> Option<(usize, Rescue)> {
        let service = self.service_at(vip)?;
        let routed = route(service, asked);
        let pool = routed.pool()?;
        let of_rule = routed.rule(service).map(|rule| rule.rescue);
        Some((pool, of_rule.unwrap_or(self.pools[pool].rescue)))
    }

    /// What is wanted of that pool, by itself and by rules, perhaps more than once.
    pub fn rescues(&self, pool: usize) -> impl Iterator<Item = Rescue> {
        let services = self.services.iter();
        services.flat_map(move |service| {
            let rules = service.rules.iter().filter(move |rule| rule.pool == pool);
            let by_default = service
                .default_pool
                .filter(|of_service| *of_service == pool);
            let by_rules = rules.map(|rule| rule.rescue);
            by_rules.chain(by_default.map(|pool| self.pools[pool].rescue))
        })
    }

    /// The service addresses, each once, in order.
    pub fn vips(&self) -> Vec<IpAddr> {
        let mut vips: Vec<IpAddr> = self.services.iter().map(|s| s.address.ip()).collect();
        vips.sort();
        vips.dedup();
        vips
    }

    /// The addresses from which dispatchers connect to backends without an agent.
    pub fn splice_addresses(&self) -> impl Iterator<Item = (&Dispatcher, IpAddr)> {
        let all = self.dispatchers.iter();
        all.filter_map(|dispatcher| Some((dispatcher, dispatcher.splice_address?)))
    }

    /// The dispatchers that sprays send to. The others have packets from these.
    pub fn front_end(&self) -> impl Iterator<Item = &Dispatcher> {
        (self.dispatchers.iter()).filter(|dispatcher| usize::from(dispatcher.sub_cluster) == FRONT)
    }

    /// How many sub-clusters of dispatchers there are, the front end included. One that has
    /// nobody is one all the same if a later one has somebody.
    pub fn sub_clusters(&self) -> usize {
        let last = self.dispatchers.iter().map(|d| d.sub_cluster).max();
        usize::from(last.unwrap_or(0)) + 1
    }

    /// All addresses whose packets dispatchers are to have, whoever is in front of them.
    pub fn front_addresses(&self) -> Vec<IpAddr> {
        let mut addresses = self.vips();
        addresses.extend(self.splice_addresses().map(|(_, address)| address));
        addresses
    }

    /// Is it a service's, a dispatcher's to connect to servers from, or a node's own?
    pub fn is_taken(&self, address: IpAddr) -> bool {
        let dispatchers = self.dispatchers.iter().map(|node| node.address);
        let sprays = self.sprays.iter().map(|node| node.address);
        let backends = self.backends.iter().map(|node| node.address);
        let mut nodes = dispatchers.chain(sprays).chain(backends);
        nodes.any(|of_node| of_node == address) || self.front_addresses().contains(&address)
    }

    /// Whether a dispatcher is on that backend's host, too: at the same address.
    pub fn is_combined(&self, backend: &Backend) -> bool {
        (self.dispatchers.iter()).any(|dispatcher| dispatcher.address == backend.address)
    }

    /// Do packets come to dispatchers by way of somebody who chooses one: a spray, or,
    /// with several dispatchers and no spray, a router? So it is, too, where others can join. They do not answer ARP for the
    /// service addresses then, and answer clients by their own routes.
    pub fn dispatchers_are_behind(&self) -> bool {
        self.membership.is_some() || !self.sprays.is_empty() || self.dispatchers.len() > 1
    }

    /// The ports of the VIPs at which that pool may be asked, in order.
    pub fn ports(&self, pool: usize) -> Vec<u16> {
        let services = self.services.iter();
        let mut ports: Vec<u16> = services
            .filter(|service| service.pools().any(|of_service| of_service == pool))
            .map(|service| service.address.port())
            .collect();
        ports.sort_unstable();
        ports.dedup();
        ports
    }

    /// The service at exactly that address and port.
    pub fn service_at(&self, address: SocketAddr) -> Option<&Service> {
        self.services.iter().find(|s| s.address == address)
    }
}

/// A shared secret and the number by which packets name it.
#[derive(Clone, PartialEq, Eq)]
pub struct ClusterKey {
    /// 0..=255, unique in the cluster.
    pub id: u8,
    /// 16 secret bytes.
    pub secret: [u8; 16],
}

/// Never shows the secret: configurations end up in logs.
impl std::fmt::Debug for ClusterKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ClusterKey {{ id: {}, secret: .. }}", self.id)
    }
}

/// A host that spreads packets over dispatchers.
#[derive(Clone, Debug, PartialEq)]
pub struct Spray {
    /// Unique among nodes, at most 31 bytes of `[a-z0-9.-]`.
    pub name: String,
    /// Its own address, not the VIP.
    pub address: IpAddr,
    /// The network interface on which clients and dispatchers are reached.
    pub interface: String,
    /// Where the data path is attached.
    pub attach: Attach,
}

/// How sprays spread packets over dispatchers, and ask whether those are there.
#[derive(Clone, Debug, PartialEq)]
pub struct Spraying {
    /// Who has a packet.
    pub mode: SprayMode,
    /// How often a spray asks dispatchers and the other sprays (10 ms..=5 s; default
    /// 200 ms); three missed in a row are a failure [SPLICE06 §7.3].
    pub heartbeat: Duration,
}

impl Spraying {
    /// So long what a dispatcher's daemon says of itself counts: then it is away, though its data path answers. As
    /// long as it takes to find a dispatcher dead, but no less than a busy machine may keep it waiting.
    pub fn lease(&self) -> Duration {
        (self.heartbeat * 3).clamp(Duration::from_millis(500), Duration::from_secs(2))
    }
}

/// Who has a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SprayMode {
    /// One dispatcher after the other, so many packets each (1..=65535; the paper's 40)
    /// [SPLICE06 §6.2].
    Batch(u16),
    /// By chance, in proportion to workload factors [SPLICE06 §4.2].
    Workload,
    /// The dispatcher of its connection's lot.
    FlowHash,
}

impl SprayMode {
    /// Packets in a row to one dispatcher, where nothing else is said [SPLICE06 §6.2].
    pub const BATCH: u16 = 40;

    /// As the configuration spells it.
    pub fn name(self) -> &'static str {
        match self {
            SprayMode::Batch(_) => "batch",
            SprayMode::Workload => "workload",
            SprayMode::FlowHash => "flow-hash",
        }
    }
}

impl Default for Spraying {
    fn default() -> Self {
        Spraying {
            mode: SprayMode::FlowHash,
            heartbeat: Duration::from_millis(200),
        }
    }
}

/// A host that reads requests.
#[derive(Clone, Debug, PartialEq)]
pub struct Dispatcher {
    /// Unique among nodes, at most 31 bytes of `[a-z0-9.-]`.
    pub name: String,
    /// Its own address, not the VIP.
    pub address: IpAddr,
    /// The network interface on which clients and backends are reached.
    pub interface: String,
    /// Where the data path is attached.
    pub attach: Attach,
    /// Threads that read requests (1..=64; default 1).
    pub workers: usize,
    /// From where it connects to backends without an agent: nobody else's address.
    pub splice_address: Option<IpAddr>,
    /// With whom it shares records; 0 is the front end, which packets come to.
    pub sub_cluster: u8,
}

/// Where a dispatcher's or spray's data path is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attach {
    /// The driver's XDP hook: real network cards.
    Xdp,
    /// XDP after the driver, on any interface.
    XdpGeneric,
    /// tc ingress: virtual interfaces, where it keeps offloads.
    Tc,
}

/// A host that serves.
#[derive(Clone, Debug, PartialEq)]
pub struct Backend {
    /// Unique among nodes, at most 31 bytes of `[a-z0-9.-]`.
    pub name: String,
    /// Its own address, not the VIP.
    pub address: IpAddr,
    /// The network interface on which encapsulated packets arrive; empty where none do.
    pub interface: String,
    /// Where its server listens when that is not the VIP's own port: an
    /// unspecified address means any.
    pub server: Option<SocketAddr>,
    /// How it gets connections (default rebuild).
    pub transfer: Transfer,
}

/// How a connection gets to a backend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transfer {
    /// Its agent makes a socket of it [LVSCAD07 §4.1].
    #[default]
    Rebuild,
    /// Dispatchers connect to its server, and rewrite what both sides send [SPLICE06].
    Splice,
    /// The same, but for what the server sends: its agent rewrites that [SPLICE06 §2].
    SplitSplice,
}

impl Transfer {
    /// Do dispatchers connect to its server?
    pub fn connects(self) -> bool {
        self != Self::Rebuild
    }

    /// Is an agent there?
    pub fn has_agent(self) -> bool {
        self != Self::Splice
    }

    /// As it is written in configurations.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rebuild => "rebuild",
            Self::Splice => "splice",
            Self::SplitSplice => "split-splice",
        }
    }
}

/// A set of backends with a policy.
#[derive(Clone, Debug, PartialEq)]
pub struct Pool {
    /// Unique among pools, spelt like a node's name.
    pub name: String,
    /// By what records of flows know it.
    pub number: PoolNumber,
    /// How one of them is chosen (default `rent`).
    pub policy: PolicyConfig,
    /// What binds a client to a backend, whatever the policy.
    pub stickiness: Option<Stickiness>,
    /// How the cost of a request is known (default: learnt).
    pub costs: Costs,
    /// How a connection changes hands between requests (default half-pipe).
    pub handoff: Handoff,
    /// Does a client's connection outlive a server that closes it while no answer is
    /// owed (default true)?
    pub survive_close: bool,
    /// Does a backend keep its socket for a second when another one gets the connection,
    /// in case that it comes back (default true)?
    pub park: bool,
    /// What outlives a backend that dies, where no rule says otherwise.
    pub rescue: Rescue,
    /// For how long the share of a backend that has recovered grows to its whole (default: none).
    pub slow_start: Option<Duration>,
    /// When a backend is left out for a while by what becomes of clients' requests there (default: never).
    pub outliers: Option<Outliers>,
    /// Its backends, at least one.
    pub members: Vec<Member>,
}

/// By what records know a pool: of its name, so that it is the same on every dispatcher and
/// after every reload. Where two names have one number, the later one by the alphabet has
/// the next that is free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct PoolNumber(pub u16);

impl PoolNumber {
    /// Of each of these names, in their order.
    fn all_of(names: &[&str]) -> Vec<Self> {
        let mut by_name: Vec<usize> = (0..names.len()).collect();
        by_name.sort_by_key(|&index| names[index]);
        let mut numbers = vec![Self::default(); names.len()];
        let mut taken = BTreeSet::new();
        for index in by_name {
            let mut number = Self(hash_name(names[index]) as u16);
            // There are fewer pools than numbers.
            while !taken.insert(number) {
                number = Self(number.0.wrapping_add(1));
            }
            numbers[index] = number;
        }
        numbers
    }
}

/// How a connection whose next request is another backend's gets there
/// (docs/protocol/handoff.md).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Handoff {
    /// As soon as the end of the answer before is known [SPLITSTACK02 §III-B].
    #[default]
    HalfPipe,
    /// Once the client has acknowledged that answer.
    Drained,
    /// Not at all: the first request decides for the connection.
    None,
}

/// Which requests that a backend was given are given to another one when it dies before it
/// has said a word of its answer (docs/protocol/retry.md).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Retry {
    /// None.
    Never,
    /// Idempotent ones (RFC 9110 §9.2.2) that it has not acknowledged: their clients send them again.
    #[default]
    Unheard,
    /// Idempotent ones, acknowledged or not: the dispatcher keeps them.
    Idempotent,
    /// All: whoever says so knows that they may run twice.
    Always,
}

impl Retry {
    /// As the configuration spells it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Never => "never",
            Self::Unheard => "unheard",
            Self::Idempotent => "idempotent",
            Self::Always => "always",
        }
    }

    /// Are requests kept until they are answered?
    pub fn keeps(self) -> bool {
        matches!(self, Self::Idempotent | Self::Always)
    }

    /// Is that one?
    pub fn keeps_one(self, head: &HttpHead<'_>) -> bool {
        self.keeps() && (self == Self::Always || is_idempotent(head.method))
    }
}

/// A backend in a pool.
#[derive(Clone, Debug, PartialEq)]
pub struct Member {
    /// Index into [`Config::backends`].
    pub backend: usize,
    /// Share of the load, 0..=256 (default 1); 0 takes none.
    pub weight: u16,
    /// Where this pool's server listens on that backend, if not as the backend says.
    pub server: Option<SocketAddr>,
    /// How its server is checked, if it is: as the pool's, but for what is said here.
    pub check: Option<Check>,
}

/// A service address and what decides there.
#[derive(Clone, Debug, PartialEq)]
pub struct Service {
    /// Unique among services, spelt like a node's name.
    pub name: String,
    /// The VIP and its port.
    pub address: SocketAddr,
    /// Agree to explicit congestion notification when a client asks.
    pub ecn: bool,
    /// Tried in order; the first that matches decides.
    pub rules: Vec<Rule>,
    /// Index into [`Config::pools`] when no rule matches.
    pub default_pool: Option<usize>,
}

impl Service {
    /// The pools that its rules and it itself name, perhaps more than once.
    pub fn pools(&self) -> impl Iterator<Item = usize> {
        let by_rules = self.rules.iter().map(|rule| rule.pool);
        by_rules.chain(self.default_pool)
    }
}

/// Conditions, all of which must hold, and the pool that they choose.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Rule {
    /// Host without port, any case; `*.example.org` matches every name below.
    pub host: Option<String>,
    /// Server name of a TLS ClientHello; wildcards as in `host`.
    pub sni: Option<String>,
    /// An application protocol that the ClientHello offers (RFC 7301).
    pub alpn: Option<String>,
    /// The path, without its query, exactly.
    pub path: Option<String>,
    /// How the path starts: `/img` matches `/img`, `/img/a` and not `/imgs`; `/img/` as written.
    pub path_prefix: Option<String>,
    /// How the path, without its query, ends.
    pub path_suffix: Option<String>,
    /// The method, exactly.
    pub method: Option<String>,
    /// A header's name (any case) and, if given, its value.
    pub header: Option<HeaderRule>,
    /// What its requests need to be answered; guessed where it is not said.
    pub class: Option<Class>,
    /// What outlives a backend that dies, as it says, and where it says nothing its pool.
    pub rescue: Rescue,
    /// Index into [`Config::pools`].
    pub pool: usize,
    /// Line in the file, for `explain`.
    pub line: usize,
}

/// A header that a rule asks for.
#[derive(Clone, Debug, PartialEq)]
pub struct HeaderRule {
    /// Compared without case.
    pub name: String,
    /// Any value when absent; else exactly this one.
    pub value: Option<String>,
}

/// Bounds on time and memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Limits {
    /// The largest request head, in bytes (1 KiB..=64 KiB; default 32 KiB).
    pub head_bytes: usize,
    /// How long a head may take from its first byte (100 ms..=1 h; default 10 s).
    pub head_timeout: Duration,
    /// Flows whose heads are being read at once (1..=16,777,216; default 16384).
    pub reading_flows: usize,
    /// Bytes held for them in all (`head_bytes`..=64 GiB; default 64 MiB).
    pub reading_bytes: usize,
    /// Flow records (1..=268,435,456; default 1,048,576).
    pub flows: u32,
    /// A record without a packet for this long ends (1 s..=30 d; default 1 h).
    pub idle_timeout: Duration,
    /// The same once the client has said FIN (1 s..=1 h; default 60 s).
    pub fin_timeout: Duration,
    /// How long `trapeze drain` waits for a backend's connections (0 s..=1 d; default 30 s).
    pub drain_timeout: Duration,
    /// Heartbeats between dispatchers and backends (10 ms..=5 s; default 200 ms); three
    /// missed mean dead.
    pub heartbeat: Duration,
    /// How often the agent of an owner says that a protected answer is in progress [MIGRATE01 §4.1]
    /// (100 ms..=60 s; default 3 s).
    pub update_interval: Duration,
    /// What has not been said again for so long is forgotten [MIGRATE01 §4.1] (twice
    /// `update_interval`..=1 h; default 10 s, or three times `update_interval` if that is more).
    pub cache_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            head_bytes: 32 << 10,
            head_timeout: Duration::from_secs(10),
            reading_flows: 16_384,
            reading_bytes: 64 << 20,
            flows: 1 << 20,
            idle_timeout: Duration::from_secs(3600),
            fin_timeout: Duration::from_secs(60),
            drain_timeout: Duration::from_secs(30),
            heartbeat: Duration::from_millis(200),
            update_interval: Duration::from_secs(3),
            cache_timeout: Duration::from_secs(10),
        }
    }
}
