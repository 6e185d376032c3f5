//! The service addresses on this host: on the interface while this spray has them, so that
//! ARP is answered, and announced to the neighbours, more than once, since an announcement
//! can get lost.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::Context;
use trapeze_datapath::host::{self, Host};

/// When they are announced again, after the first time.
const AGAIN: [Duration; 4] = [
    Duration::from_millis(50),
    Duration::from_millis(250),
    Duration::from_secs(1),
    Duration::from_secs(4),
];

pub struct Seat {
    host: Host,
    interface: String,
    /// Those that are held; none: another spray has them.
    held: Vec<IpAddr>,
    /// When to announce them again, the latest first.
    due: Vec<Duration>,
}

/// The sysctls that a spray needs.
pub fn sysctls(interface: &str) -> Vec<(String, &'static str)> {
    vec![
        // Without it the kernel resolves no next hop for the data path.
        (format!("net/ipv4/conf/{interface}/forwarding"), "1"),
        // A dispatcher at XDP that does not know a client's link address sends the VIP's
        // SYN-ACK back here, where the VIP may be local.
        (format!("net/ipv4/conf/{interface}/accept_local"), "1"),
        // Once the cable is in again dispatchers are not asked for first.
        (
            format!("net/ipv4/conf/{interface}/arp_evict_nocarrier"),
            "0",
        ),
    ]
}

impl Seat {
    /// Goes on where the daemon before stopped.
    pub fn new(host: Host, interface: &str) -> Self {
        Self {
            held: host.added_addresses(interface),
            host,
            interface: interface.to_owned(),
            due: Vec::new(),
        }
    }

    /// What the host needs whether it has the addresses or not.
    pub fn prepare(&mut self) -> anyhow::Result<()> {
        for (name, value) in sysctls(&self.interface) {
            self.host
                .set_sysctl(&name, value)
                .with_context(|| format!("cannot set {name}"))?;
        }
        Ok(())
    }

    pub fn is_held(&self) -> bool {
        !self.held.is_empty()
    }

    /// Has these from now on, and no others. Announced first: what comes is sprayed
    /// whether the address is here or not.
    pub fn take(&mut self, now: Duration, vips: &[IpAddr]) -> anyhow::Result<()> {
        self.held = vips.to_vec();
        self.announce();
        self.due = AGAIN.iter().rev().map(|&after| now + after).collect();
        for &vip in vips {
            self.host.add_address(vip, &self.interface)?;
        }
        for added in self.host.added_addresses(&self.interface) {
            if !vips.contains(&added) {
                self.host.remove_address(added, &self.interface)?;
            }
        }
        Ok(())
    }

    /// Has none from now on.
    pub fn give_up(&mut self) -> anyhow::Result<()> {
        self.held.clear();
        self.due.clear();
        for added in self.host.added_addresses(&self.interface) {
            self.host.remove_address(added, &self.interface)?;
        }
        Ok(())
    }

    /// Announces them again, if it is time.
    pub fn remind(&mut self, now: Duration) {
        while self.due.last().is_some_and(|&due| due <= now) {
            self.due.pop();
            self.announce();
        }
    }

    /// Somebody else has claimed them meanwhile.
    pub fn insist(&mut self, now: Duration) {
        if self.due.is_empty() {
            self.due = vec![now];
        }
    }

    fn announce(&self) {
        for &vip in &self.held {
            // Neighbours without it would ask on their own.
            let _ = host::announce(vip, &self.interface);
        }
    }

    /// Takes back all that was changed on this host.
    pub fn leave(self) -> std::io::Result<()> {
        self.host.restore()
    }
}
