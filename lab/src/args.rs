//! The command line of `trapeze lab`.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Parser, Subcommand, value_parser};
use trapeze_core::config::PolicyKind;

use crate::bench::{Size, Target};
use crate::handoff::Network;
use crate::link::settings::{self, LinkSettings};
use crate::options::{Options, ServerKind};
use crate::role::Process;
use crate::servers::origin::OriginSettings;
use crate::servers::origin::settings::parse_bytes;
use crate::splice::Experiment;

/// How connections get to backends.
const TRANSFERS: [&str; 3] = ["rebuild", "splice", "split-splice"];

/// The lab that commands are about unless told otherwise.
pub const DEFAULT_NAME: &str = "lab";

/// A whole cluster on this machine, in network namespaces
#[derive(Debug, Parser)]
pub struct Args {
    /// Which lab; several live side by side
    #[arg(long, global = true, default_value = DEFAULT_NAME)]
    pub name: String,
    /// What to do
    #[command(subcommand)]
    pub command: Command,
}

/// What can be done with a lab.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Make a lab and wait until it serves
    Up(Up),
    /// Remove a lab, whatever state it is in
    Down,
    /// Show the hosts, what runs on them, and what the links do
    Status {
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Run a command on a host; its exit status and output pass through
    Exec {
        /// c1, s1, d1, b1, …, or switch
        host: String,
        /// The command and its arguments
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<std::ffi::OsString>,
    },
    /// Power a host off, or kill one of its processes
    Kill {
        /// c1, s1, d1, b1, …
        host: String,
        /// Kill only this one
        #[arg(long)]
        process: Option<Process>,
    },
    /// Bring back what does not run of a host
    Start {
        /// c1, s1, d1, b1, …
        host: String,
        /// Start only this one
        #[arg(long)]
        process: Option<Process>,
    },
    /// Emulate a link between a host and the switch, in both directions
    Link(Link),
    /// Show in less than a minute what Trapeze does, on a lab of its own
    Demo,
    /// Compare Trapeze with one server asked directly and with proxies, in a lab of its own
    Bench(Bench),
    /// Compare policies on real connections: origin servers with small caches, in a lab of its own
    Compare(Compare),
    /// Rerun the handoff experiments of SPLITSTACK02, in a lab of its own
    Handoff(Handoff),
    /// Rerun the transfer experiments of SPLICE06, in labs of their own
    Splice(Splice),
    /// The process that emulates a link
    #[command(hide = true)]
    Relay(Relay),
    /// The process that is an origin server
    #[command(hide = true)]
    Origin(Origin),
}

/// `lab up`.
#[derive(Debug, Parser)]
pub struct Up {
    /// Hosts that make requests: c1, c2, …
    #[arg(long, default_value_t = 1, value_parser = value_parser!(u8).range(1..=9))]
    pub clients: u8,
    /// Hosts that spread packets over dispatchers: s1, s2, … [default: 0, or as --config says]
    #[arg(long, value_name = "SPRAYS", value_parser = value_parser!(u8).range(0..=9))]
    pub spray: Option<u8>,
    /// How they spread packets [default: flow-hash]
    #[arg(long, requires = "spray", conflicts_with = "config",
        value_parser = ["flow-hash", "batch", "workload"])]
    pub spray_mode: Option<String>,
    /// How often sprays ask who is there, 10ms to 5s [default: 200ms]
    #[arg(long, requires = "spray", conflicts_with = "config", value_parser = parse_heartbeat)]
    pub spray_heartbeat: Option<Duration>,
    /// Hosts that read requests: d1, d2, … [default: 1, or as --config says]
    #[arg(long, value_parser = value_parser!(u8).range(1..=9))]
    pub dispatchers: Option<u8>,
    /// Sub-clusters that dispatchers are divided into, the front end first: of d1 to d4, with
    /// two, d1 and d2 are the front end [default: 1]
    #[arg(long, requires = "dispatchers", conflicts_with_all = ["config", "etcd"],
        value_parser = value_parser!(u8).range(1..=9))]
    pub sub_clusters: Option<u8>,
    /// Hosts that read requests and serve, with a dispatcher and an agent each: n1, n2, …;
    /// without others then, unless they are asked for [default: 0, or as --config says]
    #[arg(long, value_name = "HOSTS", value_parser = value_parser!(u8).range(0..=9))]
    pub combined: Option<u8>,
    /// Have sprays and dispatchers find each other by etcd, on a host e1
    #[arg(long, conflicts_with = "config")]
    pub etcd: bool,
    /// Hosts that serve: b1, b2, … [default: 3, or as --config says]
    #[arg(long, value_parser = value_parser!(u8).range(1..=60))]
    pub backends: Option<u8>,
    /// How connections get to backends; splice needs no agent there [default: rebuild]
    #[arg(long, conflicts_with = "config", value_parser = TRANSFERS)]
    pub transfer: Option<String>,
    /// What runs on backends
    #[arg(long, value_enum, default_value = "nginx")]
    pub server: ServerKind,
    /// What an origin server remembers, and what a miss costs
    #[command(flatten)]
    pub memory: OriginMemory,
    /// How backends are chosen [default: round-robin]
    #[arg(long, conflicts_with = "config", value_parser = policy())]
    pub policy: Option<PolicyKind>,
    /// The directory to serve [default: files of 1 KiB to 100 MiB: /1k /10k /100k /1m /10m /100m]
    #[arg(long)]
    pub root: Option<PathBuf>,
    /// Serve HTTPS on port 443 as well
    #[arg(long)]
    pub tls: bool,
    /// The cluster's configuration file, which must name the lab's hosts and addresses
    #[arg(long)]
    pub config: Option<PathBuf>,
    /// Have servers log each request
    #[arg(long)]
    pub access_log: bool,
    /// Only servers and clients: no agent, no dispatcher
    #[arg(long, hide = true)]
    pub no_daemons: bool,
}

/// `lab link`. The options that are not given are off.
#[derive(Debug, Parser)]
#[command(group = clap::ArgGroup::new("effect").required(true).multiple(true)
    .args(["delay", "jitter", "loss", "rate", "reorder", "duplicate", "clear"]))]
pub struct Link {
    /// c1, s1, d1, b1, …
    pub host: String,
    /// How long each frame travels, such as 40ms; a round trip takes twice as long
    #[arg(long, value_parser = settings::parse_time)]
    pub delay: Option<Duration>,
    /// How much the delay varies up and down, such as 5ms; order is kept
    #[arg(long, value_parser = settings::parse_time)]
    pub jitter: Option<Duration>,
    /// The share of frames that vanish, such as 1%
    #[arg(long, value_parser = settings::parse_share)]
    pub loss: Option<f64>,
    /// Bits a second, such as 10mbit; without it there is no limit
    #[arg(long, value_parser = settings::parse_rate)]
    pub rate: Option<u64>,
    /// The share of frames that later ones overtake, such as 5%
    #[arg(long, value_parser = settings::parse_share)]
    pub reorder: Option<f64>,
    /// The share of frames that arrive twice, such as 1%
    #[arg(long, value_parser = settings::parse_share)]
    pub duplicate: Option<f64>,
    /// Frames that may wait for their turn at the rate
    #[arg(long, default_value_t = LinkSettings::default().limit)]
    pub limit: usize,
    /// Determines which frames are lost, doubled and overtaken
    #[arg(long, default_value_t = LinkSettings::default().seed)]
    pub seed: u64,
    /// Remove the emulator
    #[arg(long, conflicts_with_all = ["delay", "jitter", "loss", "rate", "reorder", "duplicate"])]
    pub clear: bool,
}

/// `lab bench`. Its lab is called after the process, unless it is named.
#[derive(Debug, Parser)]
pub struct Bench {
    /// Print JSON instead of tables
    #[arg(long)]
    pub json: bool,
    /// Where to write tables, JSON and a picture
    #[arg(long, default_value = "target/bench")]
    pub out: PathBuf,
    /// How often each target has its turn in each case
    #[arg(long, default_value_t = 9, value_parser = value_parser!(u32).range(1..=1000))]
    pub rounds: u32,
    /// How long a turn takes
    #[arg(long, default_value_t = 1, value_parser = value_parser!(u32).range(1..=3600))]
    pub seconds: u32,
    /// The documents to ask for
    #[arg(long, value_delimiter = ',', default_value = "1k,10k,100k,1m,10m",
        value_parser = Size::named)]
    pub sizes: Vec<Size>,
    /// How many connections the client has at a time
    #[arg(long, default_value_t = 32, value_parser = value_parser!(u16).range(1..=4000))]
    pub connections: u16,
    /// What to compare
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        required = false,
        default_value = "direct,haproxy,haproxy-splice,nginx,trapeze"
    )]
    pub targets: Vec<Target>,
    /// Hosts that serve, behind all targets but direct, which asks the first
    #[arg(long, default_value_t = 1, value_parser = value_parser!(u8).range(1..=60))]
    pub backends: u8,
    /// How Trapeze's connections get to them [default: rebuild]
    #[arg(long, value_parser = TRANSFERS)]
    pub transfer: Option<String>,
}

/// `lab compare`. Its lab is called after the process, unless it is named.
#[derive(Debug, Parser)]
pub struct Compare {
    /// Print JSON instead of tables
    #[arg(long)]
    pub json: bool,
    /// Where to write tables, JSON and a picture
    #[arg(long, default_value = "target/compare")]
    pub out: PathBuf,
    /// What to compare, with the first
    #[arg(
        long,
        value_delimiter = ',',
        required = false,
        default_value = "least-connections,hrw,lard-r,xlard-r",
        value_parser = policy()
    )]
    pub policies: Vec<PolicyKind>,
    /// Hosts that serve
    #[arg(long, default_value_t = 4, value_parser = value_parser!(u8).range(1..=60))]
    pub backends: u8,
    /// How often each policy has its turn, beginning with empty caches
    #[arg(long, default_value_t = 3, value_parser = value_parser!(u32).range(1..=1000))]
    pub rounds: u32,
    /// Seconds of a turn that fill caches and do not count
    #[arg(long, default_value_t = 8, value_parser = value_parser!(u32).range(1..=3600))]
    pub warm_up: u32,
    /// Seconds of a turn that count
    #[arg(long, default_value_t = 6, value_parser = value_parser!(u32).range(1..=3600))]
    pub seconds: u32,
    /// Requests at a time
    #[arg(long, default_value_t = 128, value_parser = value_parser!(u16).range(1..=4000))]
    pub connections: u16,
    /// Bytes of all objects, in caches of one server
    #[arg(long, default_value_t = 6.0, value_parser = positive)]
    pub catalogue: f64,
    /// How uneven popularity is: the n-th object is asked for in proportion to n^-ZIPF
    #[arg(long, default_value_t = 0.8, value_parser = positive)]
    pub zipf: f64,
    /// What a server remembers, and what a miss costs
    #[command(flatten)]
    pub memory: OriginMemory,
}

/// `lab handoff`. Its lab is called after the process, unless it is named.
#[derive(Debug, Parser)]
pub struct Handoff {
    /// Print JSON instead of a table
    #[arg(long)]
    pub json: bool,
    /// Where to write table and JSON
    #[arg(long, default_value = "target/handoff")]
    pub out: PathBuf,
    /// What is between client and cluster
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        required = false,
        default_value = "lan,wan16,wan100"
    )]
    pub networks: Vec<Network>,
    /// How often each point has its turn
    #[arg(long, default_value_t = 3, value_parser = value_parser!(u32).range(1..=1000))]
    pub rounds: u32,
    /// How long a turn takes
    #[arg(long, default_value_t = 6, value_parser = value_parser!(u32).range(1..=3600))]
    pub seconds: u32,
    /// Connections at a time [SPLITSTACK02 §V-A]
    #[arg(long, default_value_t = 150, value_parser = value_parser!(u16).range(1..=4000))]
    pub connections: u16,
}

/// `lab splice`. Its labs are called after the process, unless they are named.
#[derive(Debug, Parser)]
pub struct Splice {
    /// Print JSON instead of a table
    #[arg(long)]
    pub json: bool,
    /// Where to write table and JSON
    #[arg(long, default_value = "target/splice")]
    pub out: PathBuf,
    /// Which of them
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        required = false,
        default_value = "scaling,failover,split"
    )]
    pub experiments: Vec<Experiment>,
    /// Leave larger transfers out
    #[arg(long, default_value = "20mb", value_parser = parse_bytes)]
    pub largest: u64,
    /// How fast each host's link is, such as the paper's 100mbit [default: no limit]
    #[arg(long, value_parser = settings::parse_rate)]
    pub rate: Option<u64>,
    /// How often each case has its turn
    #[arg(long, default_value_t = 3, value_parser = value_parser!(u32).range(1..=1000))]
    pub rounds: u32,
    /// Transfers at once [SPLICE06 §7.2]
    #[arg(long, default_value_t = 100, value_parser = value_parser!(u16).range(1..=4000))]
    pub transfers: u16,
}

/// `lab relay`.
#[derive(Debug, Parser)]
pub struct Relay {
    /// The interface towards the host
    #[arg(long)]
    pub host_side: String,
    /// The interface towards the bridge
    #[arg(long)]
    pub network_side: String,
    /// Where to make the socket for questions
    #[arg(long)]
    pub control: PathBuf,
    /// The settings to begin with, as JSON
    #[arg(long)]
    pub settings: String,
}

/// `lab origin`.
#[derive(Debug, Parser)]
pub struct Origin {
    /// What to say in X-Backend
    #[arg(long)]
    pub host: String,
    /// Where to listen
    #[arg(long, required = true)]
    pub port: Vec<u16>,
    /// What it remembers, and what a miss costs.
    #[command(flatten)]
    pub memory: OriginMemory,
    /// Where to write a line for each request
    #[arg(long)]
    pub log: Option<PathBuf>,
}

/// An origin server's memory and disk. What is not given is the default.
#[derive(Debug, clap::Args)]
pub struct OriginMemory {
    /// The origin server's memory for objects, such as 32mib [default: 8mib]
    #[arg(long, value_parser = parse_bytes)]
    pub cache: Option<u64>,
    /// How long a read from the origin server's disk takes at least, such as 5ms [default: 5ms]
    #[arg(long, value_parser = settings::parse_time)]
    pub miss: Option<Duration>,
    /// Bytes a second of the origin server's disk, such as 20mb [default: 20mb]
    #[arg(long, value_parser = parse_bytes)]
    pub miss_rate: Option<u64>,
}

/// A number above zero, and not beyond what makes sense.
fn positive(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(number) if number > 0.0 && number <= 1000.0 => Ok(number),
        _ => Err("a number above 0, up to 1000".into()),
    }
}

/// The policies, by the names that the configuration has for them, and by those that
/// simulations know besides.
fn policy() -> impl TypedValueParser<Value = PolicyKind> {
    let names = PolicyKind::ALL.map(|kind| PossibleValue::new(kind.name()).aliases(short(kind)));
    PossibleValuesParser::new(names).map(|name| {
        let named = (PolicyKind::ALL.into_iter())
            .find(|&kind| kind.name() == name || short(kind).contains(&name.as_str()));
        named.expect("clap has checked the name")
    })
}

fn short(kind: PolicyKind) -> &'static [&'static str] {
    match kind {
        PolicyKind::LeastConnections => &["wlc", "lc"],
        PolicyKind::RoundRobin => &["rr"],
        _ => &[],
    }
}

impl Up {
    /// As the library takes them.
    pub fn options(self, name: &str) -> Options {
        Options {
            name: name.to_owned(),
            clients: self.clients,
            sprays: self.spray,
            spray_mode: self.spray_mode,
            spray_heartbeat: self.spray_heartbeat,
            dispatchers: self.dispatchers,
            sub_clusters: self.sub_clusters,
            combined: self.combined,
            etcd: self.etcd,
            backends: self.backends,
            transfer: self.transfer,
            server: self.server,
            origin: self.memory.settings(),
            policy: self.policy,
            root: self.root,
            tls: self.tls,
            config: self.config,
            access_log: self.access_log,
            daemons: !self.no_daemons,
            program: None,
        }
    }
}

impl OriginMemory {
    /// As the library takes them.
    pub fn settings(&self) -> OriginSettings {
        let default = OriginSettings::default();
        OriginSettings {
            cache_bytes: self.cache.unwrap_or(default.cache_bytes),
            miss: self.miss.unwrap_or(default.miss),
            miss_bytes_per_s: self.miss_rate.unwrap_or(default.miss_bytes_per_s),
        }
    }
}

impl Link {
    /// As the library takes them.
    pub fn settings(&self) -> LinkSettings {
        LinkSettings {
            delay: self.delay.unwrap_or_default(),
            jitter: self.jitter.unwrap_or_default(),
            loss: self.loss.unwrap_or_default(),
            duplicate: self.duplicate.unwrap_or_default(),
            reorder: self.reorder.unwrap_or_default(),
            rate: self.rate,
            limit: self.limit,
            seed: self.seed,
        }
    }
}

/// What `spray.heartbeat` of a configuration takes.
fn parse_heartbeat(text: &str) -> Result<Duration, String> {
    const RANGE: std::ops::RangeInclusive<Duration> =
        Duration::from_millis(10)..=Duration::from_secs(5);
    let heartbeat = settings::parse_time(text)?;
    match RANGE.contains(&heartbeat) {
        true => Ok(heartbeat),
        false => Err("10ms to 5s".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_have_short_names() {
        let named = |name: &str| {
            let command = clap::Command::new("lab").arg(clap::Arg::new("p").value_parser(policy()));
            let matches = command.try_get_matches_from(["lab", name]).ok()?;
            matches.get_one::<PolicyKind>("p").copied()
        };
        assert_eq!(named("wlc"), Some(PolicyKind::LeastConnections));
        assert_eq!(named("rr"), Some(PolicyKind::RoundRobin));
        for kind in PolicyKind::ALL {
            assert_eq!(named(kind.name()), Some(kind));
        }
        assert_eq!(named("nothing"), None);
    }
}
