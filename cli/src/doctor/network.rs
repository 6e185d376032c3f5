//! What a node of the configuration needs of its host's network.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, UdpSocket};
use std::process::Command;

use serde::Deserialize;
use trapeze_core::config::{Attach, Backend, Config, Dispatcher, Spray};
use trapeze_datapath::abi::{ENCAP_LEN, GENEVE_PORT};
use trapeze_datapath::diag;
use trapeze_datapath::host::{has_address, sysctl};
use trapeze_datapath::node::Role;

use super::{Check, Patient, reach};
use crate::{amount, file};

/// IPv4 and TCP headers without options.
const HEADERS: u32 = 40;
/// The least that TCP over IPv4 may be told, and bpf_sk_assign_tcp_reqsk() takes.
const LEAST_MSS: u32 = 536;
/// The least MTU with which the encapsulation leaves room for that.
const LEAST_MTU: u32 = LEAST_MSS + HEADERS + ENCAP_LEN as u32;
/// What Ethernet carries.
const ETHERNET_MTU: u32 = 1500;
/// The longest packet that can be encapsulated: IPv4 lengths have 16 bits.
const LONGEST: u32 = 0xffff - ENCAP_LEN as u32;

/// `ip -json -details link`.
#[derive(Clone, Debug, Default, Deserialize)]
struct Link {
    mtu: u32,
    #[serde(default)]
    flags: Vec<String>,
    #[serde(default)]
    linkinfo: LinkInfo,
    gro_max_size: Option<u32>,
    gro_ipv4_max_size: Option<u32>,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct LinkInfo {
    /// Absent for network cards.
    info_kind: Option<String>,
}

/// Looks at the host for a node.
pub fn checks(patient: &Patient) -> Vec<Check> {
    let config = &patient.config;
    match patient.role {
        Role::Spray => {
            (config.spray(&patient.name)).map_or_else(Vec::new, |own| for_spray(patient, own))
        }
        Role::Dispatcher => (config.dispatcher(&patient.name))
            .map_or_else(Vec::new, |own| for_dispatcher(patient, own)),
        Role::Agent => {
            (config.backend(&patient.name)).map_or_else(Vec::new, |own| for_agent(patient, own))
        }
    }
}

fn for_dispatcher(patient: &Patient, own: &Dispatcher) -> Vec<Check> {
    let mut checks = interface(&own.interface, own.address, |link| {
        let attach = attach(own.attach, &own.interface, "[[dispatcher]]", link);
        vec![dispatcher_mtu(&own.interface, link.mtu), attach]
    });
    let behind = patient.config.dispatchers_are_behind();
    for vip in vips(&patient.config) {
        // Behind sprays or routers these have the address in ARP.
        let place = if behind { "lo" } else { &own.interface };
        checks.push(vip_on(place, vip, patient));
    }
    let wanted = trapeze_dispatcher::sysctls(&own.interface, behind);
    checks.extend(sysctls(&wanted, trapeze_agent::is_enough, patient));
    checks.extend(encapsulation_port(
        own.address,
        patient.running,
        "dispatcher",
    ));
    if let Some(link) = link(&own.interface) {
        checks.extend(reach::checks(&patient.config.backends, link.mtu));
    }
    checks
}

fn for_spray(patient: &Patient, own: &Spray) -> Vec<Check> {
    let mut checks = interface(&own.interface, own.address, |link| {
        vec![attach(own.attach, &own.interface, "[[spray]]", link)]
    });
    for vip in vips(&patient.config) {
        let has = has_address(vip, &own.interface).unwrap_or(false);
        checks.push(Check::ok(
            "service",
            match has {
                true => format!("{vip} on {}: this spray is the active one", own.interface),
                false => format!("{vip} is not here: the active spray has it"),
            },
        ));
    }
    let wanted = trapeze_spray::sysctls(&own.interface);
    checks.extend(sysctls(&wanted, trapeze_agent::is_enough, patient));
    checks.extend(encapsulation_port(own.address, patient.running, "spray"));
    checks
}

fn for_agent(patient: &Patient, own: &Backend) -> Vec<Check> {
    let mut checks = interface(&own.interface, own.address, |link| {
        vec![agent_mtu(&own.interface, link.mtu)]
    });
    // A dispatcher on this host, with nobody in front of it, has it there.
    let config = &patient.config;
    let is_dispatchers = config.is_combined(own) && !config.dispatchers_are_behind();
    for vip in vips(config) {
        checks.push(vip_on("lo", vip, patient));
        if !is_dispatchers && has_address(vip, &own.interface).unwrap_or(false) {
            checks.push(Check::missing(
                "address",
                format!(
                    "{vip} is on {} too, where it draws the dispatchers' packets",
                    own.interface
                ),
                format!("ip address del {vip} dev {}", own.interface),
            ));
        }
    }
    checks.extend(sysctls(
        &trapeze_agent::sysctls(&patient.config, own),
        trapeze_agent::is_enough,
        patient,
    ));
    let expected = file::expected_ports(&patient.config, &own.name);
    match diag::listening_ports() {
        Ok(listening) => checks.extend(servers(&expected, &listening)),
        Err(error) => checks.push(unseen("servers", &error, "ss -ltn")),
    }
    checks
}

fn interface(name: &str, address: IpAddr, further: impl FnOnce(&Link) -> Vec<Check>) -> Vec<Check> {
    let Some(link) = link(name) else {
        return vec![Check::missing(
            "interface",
            format!("there is no {name}"),
            "name one of these in the configuration: ip -brief link",
        )];
    };
    let is_up = link.flags.iter().any(|flag| flag == "UP");
    let mut checks = vec![match is_up {
        true => Check::ok("interface", format!("{name} is up")),
        false => Check::missing(
            "interface",
            format!("{name} is down"),
            format!("ip link set {name} up"),
        ),
    }];
    checks.push(match has_address(address, name) {
        Ok(true) => Check::ok("address", format!("{address} on {name}")),
        Ok(false) => Check::missing(
            "address",
            format!("{address} is not on {name}"),
            format!("ip address add {address}/PREFIX dev {name}"),
        ),
        Err(error) => unseen("address", &error, &format!("ip address show dev {name}")),
    });
    checks.extend(further(&link));
    checks
}

fn link(name: &str) -> Option<Link> {
    let out = Command::new("ip")
        .args(["-json", "-details", "link", "show", "dev", name])
        .output()
        .ok()?;
    let links: Vec<Link> = serde_json::from_slice(&out.stdout).ok()?;
    links.into_iter().next()
}

fn dispatcher_mtu(interface: &str, mtu: u32) -> Check {
    if mtu < LEAST_MTU {
        return too_small(interface, mtu);
    }
    let mss = |mtu: u32| mtu - HEADERS - ENCAP_LEN as u32;
    let full = ETHERNET_MTU + ENCAP_LEN as u32;
    let mut detail = format!("{mtu}: clients are told to send at most {} bytes", mss(mtu));
    if mtu < full {
        detail += &format!(
            " a segment; with {full} here and on the backends they would send {}",
            mss(full)
        );
    }
    Check::ok("MTU", detail)
}

fn agent_mtu(interface: &str, mtu: u32) -> Check {
    if mtu < LEAST_MTU {
        return too_small(interface, mtu);
    }
    Check::ok(
        "MTU",
        format!("{mtu}: not to be less than the dispatchers' (trapeze doctor there tells)"),
    )
}

fn too_small(interface: &str, mtu: u32) -> Check {
    Check::missing(
        "MTU",
        format!("{mtu}: the encapsulation's {ENCAP_LEN} bytes leave no room for segments"),
        format!("ip link set {interface} mtu {ETHERNET_MTU}"),
    )
}

/// Where the data path is attached, and what else that wants.
fn attach(hook: Attach, interface: &str, section: &str, link: &Link) -> Check {
    let name = "attach";
    let use_tc = format!("write attach = \"tc\" into the {section}, and start it again");
    match (hook, link.linkinfo.info_kind.as_deref()) {
        (Attach::Tc, Some(kind)) => Check::ok(name, format!("tc on {interface}, a {kind}")),
        (Attach::Xdp, None) => Check::ok(name, format!("xdp on {interface}, a network card")),
        (Attach::Tc, None) => {
            let longest = link.gro_ipv4_max_size.or(link.gro_max_size).unwrap_or(0);
            match longest > LONGEST {
                false => Check::ok(name, format!("tc on {interface}; xdp is faster on cards")),
                true => Check::warning(
                    name,
                    format!(
                        "tc on {interface}, which joins packets to more than the {LONGEST} bytes \
                         that can be encapsulated: such are dropped (too-big)"
                    ),
                    format!("ip link set {interface} gro_max_size 65000"),
                ),
            }
        }
        (Attach::Xdp, Some("veth")) => Check::warning(
            name,
            format!(
                "xdp on {interface}, a veth, whose driver loses what XDP sends: tc is used instead"
            ),
            use_tc,
        ),
        (Attach::Xdp, Some(kind)) => Check::warning(
            name,
            format!("xdp on {interface}, a {kind}: perhaps its driver cannot"),
            use_tc,
        ),
        (Attach::XdpGeneric, Some(kind)) => Check::warning(
            name,
            format!(
                "xdp-generic on {interface}, a {kind}: it cannot see which checksums are yet to \
                 be completed, so local clients have to switch offloads off"
            ),
            use_tc,
        ),
        (Attach::XdpGeneric, None) => Check::warning(
            name,
            format!("xdp-generic on {interface}: slower than both xdp and tc"),
            format!("write attach = \"xdp\" into the {section}, and start it again"),
        ),
    }
}

fn vip_on(interface: &str, vip: IpAddr, patient: &Patient) -> Check {
    let detail = format!("{vip} on {interface}");
    match (has_address(vip, interface), patient.running) {
        (Ok(true), _) => Check::ok("service", detail),
        (Ok(false), false) => Check::ok("service", format!("{detail}: the daemon will add it")),
        (Ok(false), true) => Check::missing(
            "service",
            format!("{vip} is not on {interface} any more"),
            "trapeze reload",
        ),
        (Err(error), _) => unseen(
            "service",
            &error,
            &format!("ip address show dev {interface}"),
        ),
    }
}

/// One line if all is well.
fn sysctls(
    wanted: &[(String, &str)],
    is_enough: impl Fn(&str, &str) -> bool,
    patient: &Patient,
) -> Vec<Check> {
    let wrong: Vec<&(String, &str)> = (wanted.iter())
        .filter(|(name, value)| !is_enough(name, value))
        .collect();
    if wrong.is_empty() {
        let count = amount::count(wanted.len(), "value");
        return vec![Check::ok("sysctls", format!("{count} as needed"))];
    }
    (wrong.into_iter())
        .map(|(path, value)| {
            let name = path.replace('/', ".");
            match (sysctl(path), patient.running) {
                (Err(error), _) => unseen("sysctls", &error, &format!("sysctl {name}")),
                (Ok(is), false) => Check::ok(
                    "sysctls",
                    format!("{name} is {is}: the daemon will set it to {value}"),
                ),
                (Ok(is), true) => Check::missing(
                    "sysctls",
                    format!("{name} is {is} again: somebody has set it back"),
                    format!("sysctl -w {name}={value}"),
                ),
            }
        })
        .collect()
}

fn servers(expected: &BTreeSet<u16>, listening: &BTreeSet<u16>) -> Vec<Check> {
    (expected.iter())
        .map(|port| match listening.contains(port) {
            true => Check::ok("server", format!("listening on port {port}")),
            false => Check::missing(
                "server",
                format!("none listens on port {port}"),
                "start it, or say with `server` in the configuration where it listens",
            ),
        })
        .collect()
}

/// Nothing if it cannot be tried: the address is missing then, which is said elsewhere.
fn encapsulation_port(address: IpAddr, running: bool, whose: &str) -> Option<Check> {
    let port = format!("UDP {address}:{GENEVE_PORT}");
    let taken = match UdpSocket::bind((address, GENEVE_PORT)) {
        Ok(_) => false,
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => true,
        Err(_) => return None,
    };
    Some(match (taken, running) {
        (false, false) => Check::ok("port", format!("{port} is free")),
        (true, true) => Check::ok("port", format!("{port} is the {whose}'s")),
        (true, false) => Check::missing(
            "port",
            format!("{port} is another program's"),
            format!("stop it: ss -lunp sport = :{GENEVE_PORT}"),
        ),
        (false, true) => Check::missing(
            "port",
            format!("{port} is not the {whose}'s, although it runs"),
            "stop it and start it again",
        ),
    })
}

fn vips(config: &Config) -> BTreeSet<IpAddr> {
    config.services.iter().map(|s| s.address.ip()).collect()
}

fn unseen(name: &str, error: &io::Error, look: &str) -> Check {
    Check::warning(name, format!("cannot be seen: {error}"), look)
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;

    fn link_of(json: &str) -> Link {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn the_hook_must_suit_the_interface() {
        let veth = r#"{"mtu":1500,"linkinfo":{"info_kind":"veth"},"gro_max_size":65536}"#;
        let card = r#"{"mtu":1500,"gro_max_size":65536}"#;
        let small = r#"{"mtu":1500,"gro_max_size":65536,"gro_ipv4_max_size":65000}"#;
        for (hook, link, level) in [
            (Attach::Tc, veth, Level::Ok),
            (Attach::Xdp, veth, Level::Warning),
            (Attach::XdpGeneric, veth, Level::Warning),
            (Attach::Xdp, card, Level::Ok),
            (Attach::Tc, card, Level::Warning),
            (Attach::Tc, small, Level::Ok),
            (Attach::XdpGeneric, card, Level::Warning),
        ] {
            let check = attach(hook, "eth0", "[[dispatcher]]", &link_of(link));
            assert_eq!(check.level, level, "{hook:?} {link}");
        }
    }

    #[test]
    fn the_encapsulation_needs_room() {
        assert_eq!(dispatcher_mtu("eth0", 647).level, Level::Missing);
        assert_eq!(agent_mtu("eth0", 647).level, Level::Missing);
        let check = dispatcher_mtu("eth0", 1500);
        assert!(check.detail.contains("1388"), "{}", check.detail);
        assert!(check.detail.contains("with 1572"), "{}", check.detail);
        assert!(!dispatcher_mtu("eth0", 9000).detail.contains("with"));
    }

    #[test]
    fn servers_are_missed_port_by_port() {
        let levels: Vec<Level> = servers(&[80, 443].into(), &[22, 80].into())
            .into_iter()
            .map(|check| check.level)
            .collect();
        assert_eq!(levels, [Level::Ok, Level::Missing]);
    }
}
