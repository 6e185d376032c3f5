//! The agent: puts a backend's data path (bpf/agent.bpf.c) in place, gives the
//! host the VIPs without announcing them, sees to it that the host stays so, and looks how
//! busy it is. Packets never come here, not even dispatchers' heartbeats; connections go on
//! when this process is gone, and new ones come.

mod checks;
mod done;
mod kept;
mod message;
mod prepare;
mod preview;
mod request;
mod support;
mod wedge;
mod withheld;

pub use prepare::{is_enough, sysctls};

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use trapeze_core::config::{Backend, Config, Pool, Rescue, Retry};
use trapeze_core::flow::addr_bytes;
use trapeze_core::health::{Target, targets, word};
use trapeze_core::takeover::WEDGE_PORT;
use trapeze_core::wire::meta::Keys;
use trapeze_datapath::abi::{self, Protection, Server, ServerKey};
use trapeze_datapath::agent::{Adopter, AgentMaps, attach_agent, attach_loopback, load_agent};
use trapeze_datapath::clock;
use trapeze_datapath::file;
use trapeze_datapath::host::Host;
use trapeze_datapath::load::Sampler;
use trapeze_datapath::map::Update;
use trapeze_datapath::node::{Node, Role};
use trapeze_datapath::object;
use trapeze_datapath::signal::{Signal, Signals};

use checks::Checking;
use done::Teller;
use prepare::Upkeep;
use support::{Support, Supporting};
use withheld::Asking;

/// How often the host is looked at; signals are heard at once.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(200);

/// How often older owners are looked at, and how long they may hear nothing.
const LOOK_INTERVAL: Duration = Duration::from_secs(10);
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs the daemon until it is told to stop.
pub fn run(config_path: PathBuf, node_name: &str) -> anyhow::Result<()> {
    let signals = Signals::block()?;
    let mut config = file::read(&config_path)?;
    let mut own = config.own_backend(node_name)?.clone();
    if !own.transfer.has_agent() {
        bail!(
            "{node_name} is spliced and needs no agent: remove its `transfer`, or do not start one"
        );
    }
    let node = Node::here(&config.name, node_name, Role::Agent, &config_path)?;
    let _lock = node.lock()?;
    node.register()
        .with_context(|| format!("cannot write {}", node.run_dir().display()))?;

    let (maps, loaded) = load_agent(&node.pins())?;
    publish(&maps, &config, &own)?;
    let mut host = Host::open(&node.run_dir().join("host"))?;
    prepare::prepare(&mut host, &config, &own)?;
    let loopback = loaded.program("agent_loopback");
    let follow_own_dispatcher = |config: &Config, own: &Backend| {
        let combined = config.is_combined(own).then_some(&*own.interface);
        attach_loopback(&maps, &loopback, &node.pins(), combined)
            .context("cannot hear the dispatcher on this host")
    };
    follow_own_dispatcher(&config, &own)?;
    // From the first heartbeat on that the data path answers, answers of others may come.
    let for_wedge = wedge::listen();
    attach_agent(&loaded, &own.interface).with_context(|| {
        format!(
            "cannot attach to {} at tc: see `trapeze doctor`",
            own.interface
        )
    })?;
    let teller = Teller::start(&node.pins(), v4(own.address)?, keys(&config)?)
        .context("cannot listen to the data path")?;
    let _asking = Asking::start(&node.pins()).context("cannot listen to the data path")?;
    let adopter = Arc::new(Adopter::of(&loaded));
    let supporting = Supporting::start(&node, adopter.clone(), v4(own.address)?, &config)
        .context("cannot listen to the data path")?;
    // Another cluster's agent may be on this host: all else works without.
    let support = supporting.support.clone();
    if let Err(error) = for_wedge.and_then(|listener| wedge::start(listener, support, adopter)) {
        eprintln!(
            "answers of other backends are not gone on with here: cannot listen on 127.0.0.1:{WEDGE_PORT}: {error}"
        );
    }
    if let Err(error) = preview::start(supporting.support.clone(), v4(own.address)?) {
        eprintln!(
            "no answers are migrated to here: cannot listen on {}:{WEDGE_PORT}: {error}",
            own.address
        );
    }
    let checking = Checking::start(
        &node.pins(),
        v4(own.address)?,
        keys(&config)?,
        own_targets(&config, &own),
    )
    .context("cannot check the servers")?;
    println!("ready: agent {} on {}", own.name, own.interface);

    let (mut sampler, mut upkeep) = (Sampler::new(), Upkeep::default());
    let mut next_look = clock::monotonic();
    loop {
        match signals.wait(SAMPLE_INTERVAL)? {
            None => {
                maps.feedback.put(&0, &sampler.sample()?, Update::Any)?;
                match upkeep.look(&mut host, &config, &own) {
                    0 => {}
                    set_again => maps.count("set-again", set_again)?,
                }
                let now = clock::monotonic();
                if let Err(error) = maps.end_parked(now) {
                    eprintln!("parked connections are not ended: {error}");
                }
                if now >= next_look {
                    next_look = now + LOOK_INTERVAL;
                    if let Err(error) = maps.forsake_silent(now, PATIENCE) {
                        eprintln!("older owners are not looked after: {error}");
                    }
                    if let Err(error) = maps.forget_unopened(now, PATIENCE) {
                        eprintln!("connections of which nothing came stay noted: {error}");
                    }
                }
            }
            Some(Signal::Reload) => {
                let tellers = (&teller, &*supporting.support, &checking);
                match reload(&config_path, &config.name, &own, &maps, &mut host, tellers) {
                    Ok(reloaded) => {
                        (config, own) = reloaded;
                        if let Err(error) = follow_own_dispatcher(&config, &own) {
                            eprintln!("{error:#}");
                        }
                        println!("reloaded {}", config_path.display());
                    }
                    Err(error) => eprintln!("not reloaded, the old configuration stays: {error:#}"),
                }
            }
            Some(Signal::HandOver) => return Ok(()),
            Some(Signal::Stop) => break,
        }
    }
    object::unpin_all(&node.pins())?;
    host.restore()
        .context("cannot take back all changes of this host")?;
    node.unregister()?;
    Ok(())
}

fn reload(
    path: &Path,
    cluster: &str,
    old: &Backend,
    maps: &AgentMaps,
    host: &mut Host,
    (teller, support, checking): (&Teller, &Support, &Checking),
) -> anyhow::Result<(Config, Backend)> {
    let config = file::read(path)?;
    let own = config.own_backend(&old.name)?.clone();
    if config.name != cluster || own.interface != old.interface || own.address != old.address {
        bail!(
            "the cluster's name and this backend's address and interface are fixed while it runs: restart it"
        );
    }
    publish(maps, &config, &own)?;
    teller.set_keys(keys(&config)?);
    support.set_keys(keys(&config)?);
    support.set_rules(&config);
    checking.configure(keys(&config)?, own_targets(&config, &own));
    prepare::prepare(host, &config, &own)?;
    Ok((config, own))
}

/// Puts the configuration into the data path's maps.
fn publish(maps: &AgentMaps, config: &Config, own: &Backend) -> anyhow::Result<()> {
    trapeze_datapath::map::fill_tag_keys(&maps.tag_keys, &config.keys)?;
    // What an earlier daemon's data path knows, this one's does.
    let since_ns = match maps.node.get(&0)? {
        Some(node) if node.since_ns != 0 => node.since_ns,
        _ => clock::cluster().as_nanos() as u64,
    };
    let key = config.keys[0].id;
    let node = abi::Node::here(
        v4(own.address)?,
        key,
        &own.interface,
        since_ns,
        abi::Front::Direct,
    )?;
    maps.node.put(&0, &node, Update::Any)?;
    let index = config.backends.iter().position(|b| b.name == own.name);
    let members = config.pools.iter().flat_map(|p| &p.members);
    let wedge = SocketAddr::from((Ipv4Addr::LOCALHOST, WEDGE_PORT));
    let servers = members
        .filter(|m| Some(m.backend) == index)
        .filter_map(|m| m.server)
        .chain(own.server)
        .filter(|server| !server.ip().is_unspecified())
        .chain([wedge]);
    let mut wanted = Vec::new();
    for server in servers {
        let key = ServerKey {
            port: server.port().to_be_bytes(),
            pad: 0,
        };
        maps.servers.put(
            &key,
            &Server {
                addr: addr_bytes(server.ip()),
            },
            Update::Any,
        )?;
        wanted.push(key);
    }
    for (key, _) in maps.servers.all()? {
        if !wanted.contains(&key) {
            maps.servers.delete(&key)?;
        }
    }
    // A flow does not say whose pool's it is, nor by which rule: the least of all.
    let has_us = |pool: &Pool| {
        let mut members = pool.members.iter();
        members.any(|member| Some(member.backend) == index)
    };
    let own_pools = (0..config.pools.len()).filter(|&pool| has_us(&config.pools[pool]));
    let wanted: Vec<Rescue> = own_pools.flat_map(|pool| config.rescues(pool)).collect();
    let from = wanted.iter().filter_map(|rescue| rescue.protection.least());
    let from = from.min();
    let once = wanted.iter().any(|rescue| rescue.retry == Retry::Never);
    let protection = Protection {
        from: from.unwrap_or(0),
        once: once.into(),
    };
    maps.protecting.put(&0, &protection, Update::Any)?;
    Ok(())
}

/// What is to be checked here.
fn own_targets(config: &Config, own: &Backend) -> Vec<Target> {
    let index = config.backends.iter().position(|b| b.name == own.name);
    let mut targets = index.map_or_else(Vec::new, |index| targets(config, index));
    if targets.len() > word::MOST {
        let more = targets.len() - word::MOST;
        eprintln!(
            "{more} of this host's servers are not checked: {} can be",
            word::MOST
        );
        targets.truncate(word::MOST);
    }
    targets
}

fn keys(config: &Config) -> anyhow::Result<Keys> {
    Keys::new(&config.keys).context("the cluster has no key")
}

fn v4(address: IpAddr) -> anyhow::Result<Ipv4Addr> {
    match address {
        IpAddr::V4(v4) => Ok(v4),
        IpAddr::V6(v6) => bail!("{v6}: IPv6 is not supported yet"),
    }
}
