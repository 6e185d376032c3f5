//! What a daemon changes on its host, and takes back: addresses and sysctls.
//! The originals are kept in a file, so that a daemon that was killed still
//! lets its successor take everything back. Where several daemons are on one host, what
//! both need each has in its journal, and the last one takes it back.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::node::Node;

/// The host's changes, recorded in a file.
#[derive(Debug)]
pub struct Host {
    journal: PathBuf,
    originals: BTreeMap<String, String>,
    /// What was found as it is to be, and is no other daemon's change.
    found: BTreeSet<String>,
}

impl Host {
    /// Continues the journal at a path, or begins one.
    pub fn open(journal: &Path) -> io::Result<Self> {
        Ok(Self {
            journal: journal.into(),
            originals: read(journal)?,
            found: BTreeSet::new(),
        })
    }

    /// Sets a sysctl (`net/ipv4/conf/all/arp_ignore`) of this network namespace.
    /// False: it was so already.
    pub fn set_sysctl(&mut self, name: &str, value: &str) -> io::Result<bool> {
        let was = sysctl(name)?;
        if was == value {
            return self.hold_sysctl(name).map(|()| false);
        }
        self.remember(format!("sysctl {name}"), was)?;
        std::fs::write(sysctl_path(name), value)?;
        Ok(true)
    }

    /// A sysctl is as it is to be: if another daemon has made it so, it stays so until both
    /// are stopped.
    pub fn hold_sysctl(&mut self, name: &str) -> io::Result<()> {
        self.hold(format!("sysctl {name}"))
    }

    /// Adds an address, as a host route, to an interface. False: it is there already.
    pub fn add_address(&mut self, address: IpAddr, interface: &str) -> io::Result<bool> {
        let what = format!("address {address} {interface}");
        if has_address(address, interface)? {
            return self.hold(what).map(|()| false);
        }
        self.remember(what, "absent".into())?;
        ip(&["address", "add", &with_prefix(address), "dev", interface])?;
        Ok(true)
    }

    /// Takes an address away that this journal has added.
    pub fn remove_address(&mut self, address: IpAddr, interface: &str) -> io::Result<()> {
        let what = format!("address {address} {interface}");
        if self.originals.remove(&what).is_none() {
            return Ok(());
        }
        self.save()?;
        match self.others_original(&what)? {
            Some(_) => Ok(()),
            None => ip(&["address", "del", &with_prefix(address), "dev", interface]),
        }
    }

    /// The addresses that this journal has added to an interface.
    pub fn added_addresses(&self, interface: &str) -> Vec<IpAddr> {
        self.originals
            .keys()
            .filter_map(|what| what.strip_prefix("address ")?.split_once(' '))
            .filter(|(_, on)| *on == interface)
            .filter_map(|(address, _)| address.parse().ok())
            .collect()
    }

    /// Takes everything back that no other daemon here needs; goes on after an error and
    /// returns the first.
    pub fn restore(mut self) -> io::Result<()> {
        let mut first = Ok(());
        let others = self.others()?;
        if !others.is_empty() {
            // Before theirs are read: of two that stop at once one sees that it is the last.
            let _ = std::fs::remove_file(&self.journal);
        }
        for (what, was) in std::mem::take(&mut self.originals) {
            if self.others_original(&what)?.is_some() {
                continue;
            }
            let words: Vec<&str> = what.split(' ').collect();
            let result = match words[..] {
                ["sysctl", name] => std::fs::write(sysctl_path(name), &was),
                ["address", address, interface] => match address.parse() {
                    Ok(address) if has_address(address, interface)? => {
                        ip(&["address", "del", &with_prefix(address), "dev", interface])
                    }
                    _ => Ok(()),
                },
                _ => Ok(()),
            };
            first = first.and(result);
        }
        let _ = std::fs::remove_file(&self.journal);
        first
    }

    fn hold(&mut self, what: String) -> io::Result<()> {
        if self.originals.contains_key(&what) || self.found.contains(&what) {
            return Ok(());
        }
        match self.others_original(&what)? {
            Some(was) => self.remember(what, was),
            None => {
                self.found.insert(what);
                Ok(())
            }
        }
    }

    /// The journals of other daemons on this host.
    fn others(&self) -> io::Result<Vec<PathBuf>> {
        let journals = Node::local()?.into_iter().map(|node| node.run_dir());
        let journals = journals.map(|dir| dir.join("host"));
        Ok(journals.filter(|path| *path != self.journal).collect())
    }

    fn others_original(&self, what: &str) -> io::Result<Option<String>> {
        for journal in self.others()? {
            if let Some(was) = read(&journal)?.remove(what) {
                return Ok(Some(was));
            }
        }
        Ok(None)
    }

    fn remember(&mut self, what: String, was: String) -> io::Result<()> {
        self.originals.entry(what).or_insert(was);
        self.save()
    }

    fn save(&self) -> io::Result<()> {
        let text: String = self
            .originals
            .iter()
            .map(|(what, was)| format!("{what}\t{was}\n"))
            .collect();
        std::fs::write(&self.journal, text)
    }
}

fn read(journal: &Path) -> io::Result<BTreeMap<String, String>> {
    let text = match std::fs::read_to_string(journal) {
        Ok(text) => text,
        Err(e) if e.kind() == io::ErrorKind::NotFound => String::new(),
        Err(e) => return Err(e),
    };
    let lines = text.lines().filter_map(|line| line.split_once('\t'));
    Ok(lines
        .map(|(what, was)| (what.to_owned(), was.to_owned()))
        .collect())
}

/// A sysctl's value in this network namespace.
pub fn sysctl(name: &str) -> io::Result<String> {
    std::fs::read_to_string(sysctl_path(name)).map(|text| text.trim().to_owned())
}

fn sysctl_path(name: &str) -> PathBuf {
    Path::new("/proc/sys").join(name)
}

/// The index of an interface of this network namespace.
pub fn ifindex(interface: &str) -> io::Result<u32> {
    let name = std::ffi::CString::new(interface).map_err(io::Error::other)?;
    // SAFETY: a valid C string.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => Err(io::Error::last_os_error()),
        index => Ok(index),
    }
}

/// An interface's MTU in bytes.
pub fn mtu(interface: &str) -> io::Result<u32> {
    let out = Command::new("ip")
        .args(["-o", "link", "show", "dev", interface])
        .output()?;
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let mut words = text
        .split_whitespace()
        .skip_while(|word| *word != "mtu")
        .skip(1);
    words
        .next()
        .and_then(|mtu| mtu.parse().ok())
        .ok_or_else(|| io::Error::other(format!("no interface {interface}")))
}

/// Drops what waits for the link addresses of neighbours that do not answer: it is not sent when they do. They are asked
/// anew at the next packet, and not a second later (arp(7)).
///
/// # Errors
/// `ip` is not there, or the kernel refuses.
pub fn drop_unresolved(interface: &str) -> io::Result<()> {
    ip(&["neighbour", "flush", "dev", interface, "nud", "incomplete"])
}

/// Whether an interface is one end of a virtual cable (veth(4)).
pub fn is_veth(interface: &str) -> io::Result<bool> {
    let out = Command::new("ip")
        .args(["-d", "-j", "link", "show", "dev", interface])
        .output()?;
    Ok(String::from_utf8_lossy(&out.stdout).contains("\"info_kind\":\"veth\""))
}

/// Whether an interface of this host has the address.
pub fn has_address(address: IpAddr, interface: &str) -> io::Result<bool> {
    let mut first = std::ptr::null_mut();
    // SAFETY: getifaddrs(3) writes the head of a list that is ours to free.
    if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let (mut found, mut next) = (false, first);
    // SAFETY: entries and what they point at live until the list is freed.
    while let Some(entry) = unsafe { next.as_ref() } {
        // SAFETY: a C string.
        let name = unsafe { CStr::from_ptr(entry.ifa_name) };
        // SAFETY: null, or an address of the length that its family has.
        let has = unsafe { ip_address(entry.ifa_addr) };
        found |= name.to_bytes() == interface.as_bytes() && has == Some(address);
        next = entry.ifa_next;
    }
    // SAFETY: from getifaddrs(3), and not used any more.
    unsafe { libc::freeifaddrs(first) };
    Ok(found)
}

/// # Safety
/// Null, or a valid address of the length that its family has.
unsafe fn ip_address(address: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: the caller's promise.
    match i32::from(unsafe { address.as_ref() }?.sa_family) {
        libc::AF_INET => {
            // SAFETY: as its family says.
            let v4 = unsafe { &*address.cast::<libc::sockaddr_in>() };
            Some(Ipv4Addr::from_bits(u32::from_be(v4.sin_addr.s_addr)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: as its family says.
            let v6 = unsafe { &*address.cast::<libc::sockaddr_in6>() };
            Some(Ipv6Addr::from(v6.sin6_addr.s6_addr).into())
        }
        _ => None,
    }
}

/// Tells the neighbours where an address is now (gratuitous ARP, RFC 5227 §3).
pub fn announce(address: IpAddr, interface: &str) -> io::Result<()> {
    crate::raw::gratuitous_arp(address, interface)
}

fn with_prefix(address: IpAddr) -> String {
    match address {
        IpAddr::V4(v4) => format!("{v4}/32"),
        IpAddr::V6(v6) => format!("{v6}/128"),
    }
}

fn ip(args: &[&str]) -> io::Result<()> {
    let done = Command::new("ip").args(args).output()?;
    match done.status.success() {
        true => Ok(()),
        false => Err(io::Error::other(format!(
            "ip {}: {}",
            args.join(" "),
            String::from_utf8_lossy(&done.stderr).trim()
        ))),
    }
}
