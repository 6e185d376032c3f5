//! What a backend's host needs: the VIPs on lo, silent in ARP, and a kernel
//! that takes handed-over connections. Each change is journalled and taken back.

use std::net::IpAddr;

use anyhow::Context;
use trapeze_core::config::{Backend, Config};
use trapeze_datapath::host::{Host, sysctl};

/// Makes it so.
pub fn prepare(host: &mut Host, config: &Config, own: &Backend) -> anyhow::Result<()> {
    for (name, value) in sysctls(&own.interface) {
        if !is_enough(&name, value) {
            host.set_sysctl(&name, value)
                .with_context(|| format!("cannot set {name}"))?;
        }
    }
    let mut vips: Vec<IpAddr> = config.services.iter().map(|s| s.address.ip()).collect();
    vips.sort();
    vips.dedup();
    for vip in &vips {
        host.add_address(*vip, "lo")?;
    }
    for added in host.added_addresses("lo") {
        if !vips.contains(&added) {
            host.remove_address(added, "lo")?;
        }
    }
    Ok(())
}

/// The sysctls that a backend needs, with a value that will do.
pub fn sysctls(interface: &str) -> Vec<(String, &'static str)> {
    vec![
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
    ]
}

/// Whether a sysctl's value serves: other values that serve as well stay.
pub fn is_enough(name: &str, wanted: &str) -> bool {
    let Ok(is) = sysctl(name) else { return false };
    let at_least = name.ends_with("tcp_syncookies")
        || name.ends_with("tcp_timestamps")
        || name.ends_with("arp_ignore");
    is == wanted || at_least && is != "0"
}
