//! What a backend's host needs: the VIPs on lo, silent in ARP, and a kernel
//! that takes handed-over connections. Each change is journalled and taken back;
//! what somebody else takes away meanwhile is set again.

use std::fmt::{self, Display, Formatter};
use std::net::IpAddr;

use anyhow::Context;
use trapeze_core::config::{Backend, Config};
use trapeze_datapath::host::{Host, sysctl};

/// One thing that the host needs.
enum Need {
    Sysctl(String, &'static str),
    /// On lo.
    Vip(IpAddr),
}

/// Makes it so.
pub fn prepare(host: &mut Host, config: &Config, own: &Backend) -> anyhow::Result<()> {
    for need in needs(config, own) {
        need.meet(host)?;
    }
    let vips = config.vips();
    for added in host.added_addresses("lo") {
        if !vips.contains(&added) {
            host.remove_address(added, "lo")?;
        }
    }
    Ok(())
}

/// Sees to it that it stays so.
#[derive(Debug, Default)]
pub struct Upkeep {
    /// What could not be set again, and was said.
    complaints: Vec<String>,
}

impl Upkeep {
    /// Sets again what somebody has taken away, and says so; how many things that were.
    pub fn look(&mut self, host: &mut Host, config: &Config, own: &Backend) -> u64 {
        let mut set_again = 0;
        let mut complaints = Vec::new();
        for need in needs(config, own) {
            match need.meet(host) {
                Ok(false) => {}
                Ok(true) => {
                    set_again += 1;
                    eprintln!("set again, since somebody had taken it away: {need}");
                }
                Err(error) => complaints.push(format!("{error:#}")),
            }
        }
        for complaint in &complaints {
            if !self.complaints.contains(complaint) {
                eprintln!("somebody has taken it away: {complaint}");
            }
        }
        self.complaints = complaints;
        set_again
    }
}

impl Need {
    /// False: it is so already.
    fn meet(&self, host: &mut Host) -> anyhow::Result<bool> {
        match self {
            Self::Sysctl(name, value) if is_enough(name, value) => {
                host.hold_sysctl(name).map(|()| false)
            }
            Self::Sysctl(name, value) => host.set_sysctl(name, value),
            Self::Vip(vip) => host.add_address(*vip, "lo"),
        }
        .with_context(|| format!("cannot set {self}"))
    }
}

impl Display for Need {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sysctl(name, value) => write!(f, "{} = {value}", name.replace('/', ".")),
            Self::Vip(vip) => write!(f, "{vip} on lo"),
        }
    }
}

fn needs(config: &Config, own: &Backend) -> impl Iterator<Item = Need> {
    let sysctls = sysctls(config, own).into_iter();
    let vips = config.vips().into_iter().map(Need::Vip);
    (sysctls.map(|(name, value)| Need::Sysctl(name, value))).chain(vips)
}

/// The sysctls that a backend needs, with a value that will do.
pub fn sysctls(config: &Config, own: &Backend) -> Vec<(String, &'static str)> {
    let interface = &own.interface;
    let mut wanted = vec![
        // The VIP is the dispatchers' in ARP, whoever asks, and whoever we ask.
        ("net/ipv4/conf/all/arp_ignore".into(), "1"),
        ("net/ipv4/conf/all/arp_announce".into(), "2"),
        // Clients' packets come from dispatchers, whatever route leads to clients.
        ("net/ipv4/conf/all/rp_filter".into(), "0"),
        (format!("net/ipv4/conf/{interface}/rp_filter"), "0"),
        // bpf_sk_assign_tcp_reqsk() is the way of SYN cookies.
        ("net/ipv4/tcp_syncookies".into(), "1"),
        // Dispatchers have agreed to these with clients.
        ("net/ipv4/tcp_timestamps".into(), "1"),
        ("net/ipv4/tcp_sack".into(), "1"),
        ("net/ipv4/tcp_window_scaling".into(), "1"),
        // Leftovers in TIME_WAIT are removed by an RST (RFC 1337 advises against, for
        // resets from the network; these are ours).
        ("net/ipv4/tcp_rfc1337".into(), "0"),
    ];
    if config.is_combined(own) {
        // What we say to the dispatcher here has its own address as its source.
        wanted.push(("net/ipv4/conf/lo/accept_local".into(), "1"));
    }
    wanted
}

/// Whether a sysctl's value serves: other values that serve as well stay.
pub fn is_enough(name: &str, wanted: &str) -> bool {
    let Ok(is) = sysctl(name) else { return false };
    let at_least = name.ends_with("tcp_syncookies")
        || name.ends_with("tcp_timestamps")
        || name.ends_with("arp_ignore");
    is == wanted || at_least && is != "0"
}
