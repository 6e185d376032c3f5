//! The lab's network: a bridge in a namespace of its own, and for each host a
//! namespace whose `eth0` is plugged into it. Frames between hosts take a short way
//! past the bridge (bpf/lab_switch.bpf.c) where no link is emulated. What the daemons
//! need beyond that (the VIP's address, ARP, sysctls) they set themselves, as on real
//! hosts.

use std::io;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use trapeze_datapath::netns;
use trapeze_datapath::switch::Switch;

use crate::ip;
use crate::program;
use crate::role::{INTERFACE, PREFIX, mac};
use crate::state::State;

/// The bridge's name in the switch's namespace.
pub const BRIDGE: &str = "br0";

/// Makes the network of a whole lab.
///
/// # Errors
/// What iproute2 refused.
pub fn make(state: &State) -> Result<()> {
    make_switch(&state.switch())?;
    let hosts: Vec<(&str, Ipv4Addr)> = state
        .hosts
        .iter()
        .map(|host| (host.name.as_str(), host.address))
        .collect();
    make_hosts(state, &hosts)
}

/// Makes hosts' namespaces and plugs them into the switch.
///
/// # Errors
/// What iproute2 refused.
pub fn make_hosts(state: &State, hosts: &[(&str, Ipv4Addr)]) -> Result<()> {
    let switch = state.switch();
    let mut namespaces = Vec::new();
    let mut links = Vec::new();
    let mut ports = Vec::new();
    for (host, address) in hosts {
        let namespace = state.namespace(host);
        let mac = mac(*address).map(|byte| format!("{byte:02x}")).join(":");
        namespaces.push(format!("netns add {namespace}"));
        links.push(format!(
            "link add {INTERFACE} netns {namespace} address {mac} \
             type veth peer name {host} netns {switch}"
        ));
        ports.push(format!("link set {host} master {BRIDGE} up"));
    }
    ip::batch(None, &namespaces)?;
    ip::batch(None, &links)?;
    for (host, address) in hosts {
        ip::batch(
            Some(&state.namespace(host)),
            &[
                "link set lo up".to_owned(),
                format!("addr add {address}/{PREFIX} dev {INTERFACE}"),
                format!("link set {INTERFACE} up"),
            ],
        )?;
        choose_congestion_control(&state.namespace(host))?;
    }
    ip::batch(Some(&switch), &ports)?;
    with_switch(state, |program| {
        for (host, address) in hosts {
            program.attach(host)?;
            program.connect(mac(*address), host)?;
        }
        Ok(())
    })
}

/// Linux's default. Where the machine's is another one, a lab would measure that: BBR
/// sends by timers, which cost more than 10 KiB does, and takes loss for granted.
const CONGESTION_CONTROL: &str = "cubic";
const IPV4_SYSCTLS: &str = "/proc/sys/net/ipv4";

fn choose_congestion_control(namespace: &str) -> Result<()> {
    let choose = || {
        netns::inside(&netns::path(namespace), || {
            let sysctl = Path::new(IPV4_SYSCTLS);
            let available =
                std::fs::read_to_string(sysctl.join("tcp_available_congestion_control"))?;
            match names(&available).any(|name| name == CONGESTION_CONTROL) {
                true => std::fs::write(sysctl.join("tcp_congestion_control"), CONGESTION_CONTROL),
                false => Ok(()),
            }
        })
    };
    match choose() {
        // Namespaces may choose what the machine lets everybody have.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            allow_congestion_control().and_then(|()| choose())
        }
        chosen => chosen,
    }
    .with_context(|| format!("cannot choose the congestion control of {namespace}"))
}

/// For the whole machine, until it is started again.
fn allow_congestion_control() -> io::Result<()> {
    let path = Path::new(IPV4_SYSCTLS).join("tcp_allowed_congestion_control");
    let allowed = std::fs::read_to_string(&path)?;
    let all: Vec<&str> = names(&allowed).chain([CONGESTION_CONTROL]).collect();
    std::fs::write(&path, all.join(" "))
}

fn names(list: &str) -> impl Iterator<Item = &str> {
    list.split_whitespace()
}

/// Has the switch hand a host its frames at once, and the host's to others: only
/// if its port is the bridge's, with no link emulated in between.
///
/// # Errors
/// The host, or its port, does not exist.
pub fn connect(state: &State, host: &str) -> Result<()> {
    let mac = mac(state.host(host)?.address);
    with_switch(state, |program| program.connect(mac, host))
}

/// Leaves a host's frames to the bridge.
///
/// # Errors
/// There is no such host.
pub fn disconnect(state: &State, host: &str) -> Result<()> {
    let mac = mac(state.host(host)?.address);
    with_switch(state, |program| program.disconnect(mac))
}

fn with_switch(
    state: &State,
    work: impl FnOnce(&Switch) -> std::io::Result<()> + Send,
) -> Result<()> {
    netns::inside(&state.switch_path(), || work(&Switch::find(BRIDGE)?))
        .context("cannot change the switch's table")
}

/// Removes a namespace and what is in it, if it is there.
///
/// # Errors
/// What iproute2 refused, or it is missing.
pub fn remove(namespace: &str) -> Result<()> {
    if !netns::path(namespace).exists() {
        return Ok(());
    }
    drop_connections(namespace)?;
    ip::batch(None, &[format!("netns del {namespace}")])
}

/// Connections of processes that are dead would live on for minutes with all that they have not sent, and keep their
/// namespace alive: the kernel's memory for TCP is the whole machine's.
fn drop_connections(namespace: &str) -> Result<()> {
    let mut command = netns::command_in(&netns::path(namespace), program::find("ss")?)?;
    command
        .args(["--kill", "--all", "--tcp"])
        .stdin(Stdio::null());
    // Without CONFIG_INET_DIAG_DESTROY it fails, and they end by themselves.
    let said = command.output().context("cannot run ss");
    said.map(|_| ())
}

/// Plugs a host's cable out: no frame leaves or reaches it any more.
///
/// # Errors
/// What iproute2 refused.
pub fn unplug(state: &State, host: &str) -> Result<()> {
    disconnect(state, host)?;
    change_port(state, host, format!("link set {host} down"))
}

/// Plugs a host's cable in.
///
/// # Errors
/// What iproute2 refused.
pub fn plug(state: &State, host: &str) -> Result<()> {
    change_port(state, host, format!("link set {host} up"))?;
    match state.host(host)?.link {
        None => connect(state, host),
        Some(_) => Ok(()),
    }
}

/// Removes a host's port and with it the host's interface. The kernel would do
/// so some time after the host's namespace is gone, which may be too late for
/// a host that comes back at once.
///
/// # Errors
/// What iproute2 refused.
pub fn remove_port(state: &State, host: &str) -> Result<()> {
    change_port(state, host, format!("link del {host}"))
}

/// Changes a port, if it is there.
fn change_port(state: &State, host: &str, change: String) -> Result<()> {
    match has_interface(&state.switch(), host) {
        true => ip::batch(Some(&state.switch()), &[change]),
        false => Ok(()),
    }
}

/// Whether `interface` exists in the namespace.
pub fn has_interface(namespace: &str, interface: &str) -> bool {
    netns::inside(&netns::path(namespace), || {
        std::fs::read_to_string("/proc/thread-self/net/dev")
    })
    .is_ok_and(|text| {
        text.lines()
            .filter_map(|line| line.split_once(':'))
            .any(|(name, _)| name.trim() == interface)
    })
}

/// Turns on or off what lets frames be larger than the wire allows, or leave
/// without their checksum.
///
/// # Errors
/// ethtool is missing or refuses.
pub fn set_offloads(namespace: &str, interface: &str, on: bool) -> Result<()> {
    let mut command = netns::command_in(&netns::path(namespace), program::find("ethtool")?)
        .with_context(|| format!("namespace {namespace} is gone"))?;
    command.args(["-K", interface]);
    // A veth's gro is off from the start and stays so.
    for feature in ["rx", "tx", "tso", "gso"] {
        command.args([feature, if on { "on" } else { "off" }]);
    }
    run(&mut command)
}

/// A year. A port that leaves the bridge takes with it what was learnt of it.
const AGEING_CENTISECONDS: u64 = 365 * 24 * 3600 * 100;

/// What a kernel may do on a bridge that no switch does.
const SWITCH_SYSCTLS: [(&str, &str); 4] = [
    ("ipv6/conf/default/disable_ipv6", "1"),
    ("bridge/bridge-nf-call-iptables", "0"),
    ("bridge/bridge-nf-call-ip6tables", "0"),
    ("bridge/bridge-nf-call-arptables", "0"),
];

fn make_switch(switch: &str) -> Result<()> {
    ip::batch(None, &[format!("netns add {switch}")])?;
    // The switch only switches: no address of its own, no packet filter.
    netns::inside(&netns::path(switch), || {
        for (sysctl, value) in SWITCH_SYSCTLS {
            let path = Path::new("/proc/sys/net").join(sysctl);
            if path.exists() {
                std::fs::write(path, value)?;
            }
        }
        Ok(())
    })
    .context("cannot configure the switch")?;
    ip::batch(
        Some(switch),
        &[
            // What it has learnt it keeps: it sees few frames to be reminded by.
            format!(
                "link add {BRIDGE} type bridge stp_state 0 forward_delay 0 mcast_snooping 0 \
                 ageing_time {AGEING_CENTISECONDS}"
            ),
            format!("link set {BRIDGE} up"),
        ],
    )?;
    netns::inside(&netns::path(switch), || Switch::make(BRIDGE))
        .context("cannot load the switch's program")
}

/// Runs a command to its end.
///
/// # Errors
/// It failed: with what it said.
pub fn run(command: &mut Command) -> Result<()> {
    let program = command.get_program().to_owned();
    let output = command
        .output()
        .with_context(|| format!("cannot run {}", program.display()))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    bail!("{} failed: {}", program.display(), said.trim())
}
