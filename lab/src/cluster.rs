//! The cluster's configuration file: made for the lab, or the user's own, which
//! must agree with the lab's network.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use toml::Spanned;
use trapeze_core::config::{Config, PolicyKind};

use crate::etcd;
use crate::options::Options;
use crate::role::{INTERFACE, Process, Role, VIP, node, splice_address};
use crate::state::{Ports, cluster};

/// What a lab takes from its configuration.
#[derive(Debug)]
pub struct Cluster {
    /// The file's text.
    pub text: String,
    /// How many sprays it names.
    pub sprays: u8,
    /// How many dispatchers it names that are nothing else.
    pub dispatchers: u8,
    /// How many such backends it names.
    pub backends: u8,
    /// How many hosts it has that are both.
    pub combined: u8,
    /// Those of them that run no agent.
    pub agentless: BTreeSet<String>,
    /// The first service's address.
    pub service: SocketAddr,
    /// Where servers must listen.
    pub ports: Ports,
}

/// The configuration that `options` ask for.
///
/// # Errors
/// The user's file cannot be read, or does not agree with the lab.
pub fn configure(options: &Options) -> Result<Cluster> {
    match &options.config {
        None => {
            ensure!(
                !options.etcd || options.sprays.unwrap_or(0) > 0,
                "with --etcd dispatchers leave the service address to sprays: --spray 1"
            );
            ensure!(
                options.sub_clusters.unwrap_or(1) <= options.dispatchers.unwrap_or(1),
                "--sub-clusters needs a dispatcher for each: --dispatchers {}",
                options.sub_clusters.unwrap_or(1)
            );
            let text = generate(options)?;
            let cluster = read(&text, "trapeze.toml", &options.name)?;
            // Who they are is said by themselves.
            Ok(match options.etcd {
                true => Cluster {
                    sprays: options.sprays.unwrap_or(0),
                    dispatchers: options
                        .dispatchers
                        .unwrap_or(u8::from(cluster.combined == 0)),
                    ..cluster
                },
                false => cluster,
            })
        }
        Some(path) => {
            let bytes =
                std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
            // With line and column, if it is no text.
            Config::from_bytes(&bytes, &path.to_string_lossy())?;
            let text = String::from_utf8(bytes)?;
            let cluster = read(&text, &path.to_string_lossy(), &options.name)?;
            agree(&cluster, options, path)?;
            Ok(cluster)
        }
    }
}

/// A configuration whose only pool has another policy, without parameters.
///
/// # Errors
/// It has several pools, or its pool names no policy.
pub fn with_policy(text: &str, policy: PolicyKind) -> Result<String> {
    let Pools { pool } = toml::from_str(text)?;
    let [Pool { policy: Some(old) }] = &pool[..] else {
        bail!("it has {} pools, not one that names its policy", pool.len());
    };
    let mut own = text.to_owned();
    own.replace_range(old.span(), &format!("{:?}", policy.name()));
    Ok(own)
}

/// Where the file says the pools' policies.
#[derive(Deserialize)]
struct Pools {
    pool: Vec<Pool>,
}

#[derive(Deserialize)]
struct Pool {
    policy: Option<Spanned<toml::Value>>,
}

/// Where the file says the cluster's name.
#[derive(Deserialize)]
struct Named {
    cluster: Section,
}

#[derive(Deserialize)]
struct Section {
    name: Spanned<String>,
}

/// A node of either kind.
struct Node<'a> {
    name: &'a str,
    address: IpAddr,
    interface: &'a str,
}

fn read(text: &str, file: &str, lab: &str) -> Result<Cluster> {
    let config = Config::parse(text, file)?;
    agree_with_network(&config).with_context(|| format!("{file} does not fit a lab"))?;
    let is_combined = |name: &str| name.starts_with(Role::Combined.letter());
    let combined = (config.backends.iter())
        .filter(|b| is_combined(&b.name))
        .count();
    let dispatchers_combined = (config.dispatchers.iter())
        .filter(|d| is_combined(&d.name))
        .count();
    Ok(Cluster {
        text: rename(text, lab)?,
        sprays: config.sprays.len() as u8,
        dispatchers: (config.dispatchers.len() - dispatchers_combined) as u8,
        backends: (config.backends.len() - combined) as u8,
        combined: combined as u8,
        agentless: (config.backends.iter())
            .filter(|backend| !backend.transfer.has_agent())
            .map(|backend| backend.name.clone())
            .collect(),
        service: config.services[0].address,
        ports: ports(&config),
    })
}

/// A configuration with the name of the lab's own cluster. Pins, and the daemons' own
/// state, go by that: two labs from one file must not share it.
///
/// # Errors
/// It names no cluster.
pub fn rename(text: &str, lab: &str) -> Result<String> {
    let mut own = text.to_owned();
    let named: Named = toml::from_str(text)?;
    own.replace_range(named.cluster.name.span(), &format!("{:?}", cluster(lab)));
    Ok(own)
}

fn agree_with_network(config: &Config) -> Result<()> {
    let sprays = config.sprays.iter().map(|node| Node {
        name: &node.name,
        address: node.address,
        interface: &node.interface,
    });
    let dispatchers = config.dispatchers.iter().map(|node| Node {
        name: &node.name,
        address: node.address,
        interface: &node.interface,
    });
    // Where there is no agent there is nothing to attach.
    let backends = config.backends.iter().map(|node| Node {
        name: &node.name,
        address: node.address,
        interface: match node.transfer.has_agent() {
            true => &node.interface,
            false => INTERFACE,
        },
    });
    check_nodes(Role::Spray, Process::Spray, 0, &sprays.collect::<Vec<_>>())?;
    let is_combined = |node: &Node<'_>| node.name.starts_with(Role::Combined.letter());
    let (both, dispatchers): (Vec<_>, Vec<_>) = dispatchers.partition(is_combined);
    let (serving, backends): (Vec<_>, Vec<_>) = backends.partition(is_combined);
    ensure!(
        both.len() == serving.len() || config.membership.is_some() && both.is_empty(),
        "it has {} dispatchers and {} backends that are both; in a lab n1 is n1-d and n1-b",
        both.len(),
        serving.len()
    );
    let none = serving.is_empty();
    let least = usize::from(config.membership.is_none() && none);
    check_nodes(Role::Combined, Process::Dispatch, 0, &both)?;
    check_nodes(Role::Combined, Process::Agent, 0, &serving)?;
    check_nodes(Role::Dispatcher, Process::Dispatch, least, &dispatchers)?;
    check_nodes(Role::Backend, Process::Agent, none.into(), &backends)?;
    ensure!(
        config.dispatchers.len() <= 1 || !config.sprays.is_empty(),
        "it has {} dispatchers and no spray; in a lab nothing else can choose one of them: \
         --spray 1",
        config.dispatchers.len()
    );
    for service in &config.services {
        ensure!(
            service.address.ip() == IpAddr::V4(VIP),
            "service {:?} is at {}; a lab's service address is {VIP}",
            service.name,
            service.address.ip()
        );
    }
    Ok(())
}

/// Checks that nodes are the lab's hosts from the first on, where they are.
fn check_nodes(role: Role, process: Process, least: usize, nodes: &[Node]) -> Result<()> {
    let word = role.word();
    let count = nodes.len();
    ensure!(
        (least..=usize::from(role.limit())).contains(&count),
        "it has {count} {word}s; a lab has {least} to {}",
        role.limit()
    );
    for number in 1..=count as u8 {
        let (name, address) = (node(&role.host(number), process), role.address(number));
        let Some(node) = nodes.iter().find(|node| node.name == name) else {
            let names: Vec<&str> = nodes.iter().map(|node| node.name).collect();
            bail!(
                "its {word}s are {}; in a lab {count} of them are called {} to {}",
                names.join(" "),
                node(&role.host(1), process),
                node(&role.host(count as u8), process)
            );
        };
        ensure!(
            node.address == IpAddr::V4(address),
            "{name} is at {}; in a lab it has the address {address}",
            node.address
        );
        ensure!(
            node.interface == INTERFACE,
            "{name} has the interface {:?}; in a lab it is {INTERFACE:?}",
            node.interface
        );
    }
    Ok(())
}

/// Where servers listen: at services' own ports, and where nodes and pools say.
fn ports(config: &Config) -> Ports {
    let services = config.services.iter().map(|service| service.address);
    let nodes = config.backends.iter().filter_map(|node| node.server);
    let members = config.pools.iter().flat_map(|pool| &pool.members);
    let members = members.filter_map(|member| member.server);
    let all: BTreeSet<u16> = services
        .chain(nodes)
        .chain(members)
        .map(|address| address.port())
        .collect();
    // 443, 8443 and the like, by custom.
    let (tls, plain) = all.into_iter().partition(|port| port % 1000 == 443);
    Ports { plain, tls }
}

fn agree(cluster: &Cluster, options: &Options, path: &Path) -> Result<()> {
    for (option, wanted, has) in [
        ("--spray", options.sprays, cluster.sprays),
        ("--dispatchers", options.dispatchers, cluster.dispatchers),
        ("--backends", options.backends, cluster.backends),
        ("--combined", options.combined, cluster.combined),
    ] {
        if let Some(wanted) = wanted.filter(|&wanted| wanted != has) {
            bail!(
                "{option} is {wanted}, but {} names {has}: leave {option} out",
                path.display()
            );
        }
    }
    ensure!(
        !options.tls || !cluster.ports.tls.is_empty(),
        "{} has no service on port 443 for --tls: add one",
        path.display()
    );
    Ok(())
}

fn generate(options: &Options) -> Result<String> {
    let combined = options.combined.unwrap_or(0);
    let (dispatchers, backends) = match combined {
        0 => (
            options.dispatchers.unwrap_or(1),
            options.backends.unwrap_or(3),
        ),
        _ => (
            options.dispatchers.unwrap_or(0),
            options.backends.unwrap_or(0),
        ),
    };
    let mut text = format!(
        "# Made by `trapeze lab up --name {}`; yours to change.\n{}",
        options.name,
        nodes(
            &options.name,
            if options.etcd { 0 } else { dispatchers },
            backends,
            options.transfer.as_deref()
        )?
    );
    if options.etcd {
        text += &etcd::section();
    }
    divide(&mut text, dispatchers, options.sub_clusters.unwrap_or(1));
    write_sprays(&mut text, options)?;
    for number in 1..=combined {
        let transfer = options.transfer.as_deref();
        if !options.etcd {
            write_dispatcher(&mut text, Role::Combined, number, connects(transfer))?;
        }
        write_backend(&mut text, Role::Combined, number, transfer)?;
    }
    let hosts = (1..=backends).map(|number| Role::Backend.host(number));
    let members: Vec<String> = hosts
        .chain((1..=combined).map(|number| Role::Combined.host(number)))
        .map(|host| format!("{:?}", node(&host, Process::Agent)))
        .collect();
    write!(
        text,
        "\n[[pool]]\nname = \"web\"\npolicy = {:?}\nbackends = [{}]\n",
        options.policy.unwrap_or(PolicyKind::RoundRobin).name(),
        members.join(", ")
    )?;
    write_service(&mut text, "web", 80)?;
    if options.tls {
        write_service(&mut text, "web-tls", 443)?;
    }
    Ok(text)
}

/// Puts dispatchers into sub-clusters, in order, as evenly as can be.
fn divide(text: &mut String, dispatchers: u8, sub_clusters: u8) {
    for number in 1..=dispatchers {
        let place = u16::from(number - 1) * u16::from(sub_clusters) / u16::from(dispatchers);
        let name = node(&Role::Dispatcher.host(number), Process::Dispatch);
        let line = format!("[[dispatcher]]\nname = {name:?}\n");
        if place > 0 {
            *text = text.replace(&line, &format!("{line}sub_cluster = {place}\n"));
        }
    }
}

/// The beginning of a configuration: the cluster, with a key of its own, and nodes
/// that are the lab's hosts. `transfer` is how connections get to backends.
///
/// # Errors
/// The kernel gives no random numbers.
pub fn nodes(lab: &str, dispatchers: u8, backends: u8, transfer: Option<&str>) -> Result<String> {
    let mut text = format!(
        "[cluster]\nname = {:?}\nkeys = [{{ id = 1, secret = \"{}\" }}]\n",
        cluster(lab),
        random_key()?
    );
    for number in 1..=dispatchers {
        write_dispatcher(&mut text, Role::Dispatcher, number, connects(transfer))?;
    }
    for number in 1..=backends {
        write_backend(&mut text, Role::Backend, number, transfer)?;
    }
    Ok(text)
}

/// Do dispatchers open the connections to backends, if they get there so?
fn connects(transfer: Option<&str>) -> bool {
    transfer.is_some_and(|transfer| transfer.ends_with("splice"))
}

fn write_backend(
    text: &mut String,
    role: Role,
    number: u8,
    transfer: Option<&str>,
) -> std::fmt::Result {
    write_node(text, role, Process::Agent, number)?;
    transfer.map_or(Ok(()), |transfer| writeln!(text, "transfer = {transfer:?}"))
}

/// The section of a spray or dispatcher of a cluster that is otherwise so.
///
/// # Errors
/// The cluster's file is wrong.
pub fn own_section(role: Role, host: &str, text: &str) -> Result<String> {
    let config = Config::parse(text, "trapeze.toml")?;
    let is_spliced = (config.backends.iter()).any(|b| b.transfer.connects());
    let number = Role::of(host).map_or(1, |(_, number)| number);
    let mut own = String::new();
    match role {
        Role::Dispatcher | Role::Combined => {
            write_dispatcher(&mut own, role, number, is_spliced)?;
        }
        _ => write_spray(&mut own, number)?,
    }
    Ok(own)
}

fn write_dispatcher(
    text: &mut String,
    role: Role,
    number: u8,
    is_splicing: bool,
) -> std::fmt::Result {
    write_node(text, role, Process::Dispatch, number)?;
    writeln!(text, "attach = \"tc\"")?;
    if is_splicing {
        writeln!(
            text,
            "splice_address = \"{}\"",
            splice_address(role, number)
        )?;
    }
    Ok(())
}

fn write_spray(text: &mut String, number: u8) -> std::fmt::Result {
    write_node(text, Role::Spray, Process::Spray, number)?;
    writeln!(text, "attach = \"tc\"")
}

fn write_sprays(text: &mut String, options: &Options) -> std::fmt::Result {
    let sprays = if options.etcd { None } else { options.sprays };
    for number in 1..=sprays.unwrap_or(0) {
        write_spray(text, number)?;
    }
    if options.spray_mode.is_some() || options.spray_heartbeat.is_some() {
        writeln!(text, "\n[spraying]")?;
    }
    if let Some(mode) = &options.spray_mode {
        writeln!(text, "mode = {mode:?}")?;
    }
    if let Some(heartbeat) = options.spray_heartbeat {
        writeln!(text, "heartbeat = \"{}ms\"", heartbeat.as_millis())?;
    }
    Ok(())
}

fn write_node(text: &mut String, role: Role, process: Process, number: u8) -> std::fmt::Result {
    let kind = match process {
        Process::Spray => Role::Spray,
        Process::Dispatch => Role::Dispatcher,
        _ => Role::Backend,
    };
    write!(
        text,
        "\n[[{}]]\nname = {:?}\naddress = \"{}\"\ninterface = {INTERFACE:?}\n",
        kind.word(),
        node(&role.host(number), process),
        role.address(number)
    )
}

fn write_service(text: &mut String, name: &str, port: u16) -> std::fmt::Result {
    write!(
        text,
        "\n[[service]]\nname = {name:?}\naddress = \"{VIP}:{port}\"\npool = \"web\"\n"
    )
}

fn random_key() -> Result<String> {
    use std::io::Read;
    let mut bytes = [0; 16];
    std::fs::File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .context("cannot read /dev/urandom")?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
#[path = "cluster_tests.rs"]
mod tests;
