//! Programs on interfaces, by links that are pinned: they outlive the daemon,
//! and the next daemon replaces the program in place.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;

use trapeze_core::config::Attach;

use crate::map::{Map, Update, check};
use crate::object::{open_pin, pin};

/// The loopback device's, in every network namespace (include/net/net_namespace.h).
pub(crate) const LOOPBACK_IFINDEX: u32 = 1;

/// At the loopback device a program that has what it wants of that come in at `interface`
/// (bpf/lib/own_interface.bpf.h).
pub(crate) fn attach_to_loopback(
    program: &OwnedFd,
    own_interface: &Map<u32, u32>,
    interface: &str,
    path: &Path,
) -> io::Result<()> {
    let ifindex = crate::host::ifindex(interface)?;
    own_interface.put(&0, &ifindex, Update::Any)?;
    attach(program, LOOPBACK_IFINDEX, Hook::TcIngress, path)
}

/// Takes away what the link pinned at `path` has attached, if there is one.
pub(crate) fn detach(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

/// A place where a program can be attached to an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// XDP in the driver.
    Xdp,
    /// XDP behind the driver.
    XdpGeneric,
    /// tcx ingress, in front of what is there.
    TcIngressFirst,
    /// tcx ingress, behind what is there.
    TcIngress,
    /// tcx egress.
    TcEgress,
}

impl From<Attach> for Hook {
    fn from(attach: Attach) -> Self {
        match attach {
            Attach::Xdp => Self::Xdp,
            Attach::XdpGeneric => Self::XdpGeneric,
            // Of two of ours at one interface the agent has what the dispatcher leaves to it.
            Attach::Tc => Self::TcIngressFirst,
        }
    }
}

/// The hook that the configuration asks for, but for the one that cannot work: a
/// veth's driver drops what XDP sends, unless its other end polls (NAPI).
pub fn usable(asked: Attach, interface: &str) -> io::Result<Attach> {
    if asked == Attach::Xdp && crate::host::is_veth(interface)? {
        eprintln!(
            "{interface} is a veth, whose driver loses what XDP sends: attached at tc instead (set attach = \"tc\")"
        );
        return Ok(Attach::Tc);
    }
    Ok(asked)
}

/// What to do when attaching fails.
pub fn advice(asked: Attach, interface: &str) -> String {
    format!(
        "cannot attach to {interface} by {}: for virtual interfaces set attach = \"tc\" (`trapeze doctor` tells more)",
        name(asked)
    )
}

/// As shown to people.
pub fn name(attach: Attach) -> &'static str {
    match attach {
        Attach::Xdp => "XDP",
        Attach::XdpGeneric => "generic XDP",
        Attach::Tc => "tc",
    }
}

/// Attaches, or replaces what the link pinned at `path` has attached.
pub fn attach(program: &OwnedFd, ifindex: u32, hook: Hook, path: &Path) -> io::Result<()> {
    if path.exists() {
        let link = open_pin(path)?;
        // SAFETY: two valid descriptors, default options.
        let updated = check(unsafe {
            libbpf_sys::bpf_link_update(link.as_raw_fd(), program.as_raw_fd(), std::ptr::null())
        });
        if updated.is_ok() {
            return Ok(());
        }
        // Its interface is gone (the host was restarted under us), or another hook is asked for.
        std::fs::remove_file(path)?;
    }
    let (kind, flags) = match hook {
        Hook::Xdp => (libbpf_sys::BPF_XDP, libbpf_sys::XDP_FLAGS_DRV_MODE),
        Hook::XdpGeneric => (libbpf_sys::BPF_XDP, libbpf_sys::XDP_FLAGS_SKB_MODE),
        // Before nobody in particular: before all (Linux 6.6, kernel/bpf/mprog.c).
        Hook::TcIngressFirst => (libbpf_sys::BPF_TCX_INGRESS, libbpf_sys::BPF_F_BEFORE),
        Hook::TcIngress => (libbpf_sys::BPF_TCX_INGRESS, 0),
        Hook::TcEgress => (libbpf_sys::BPF_TCX_EGRESS, 0),
    };
    let options = libbpf_sys::bpf_link_create_opts {
        sz: size_of::<libbpf_sys::bpf_link_create_opts>() as _,
        flags,
        ..Default::default()
    };
    // SAFETY: a valid program descriptor and options of the size they claim.
    let fd =
        unsafe { libbpf_sys::bpf_link_create(program.as_raw_fd(), ifindex as i32, kind, &options) };
    check(fd)?;
    // SAFETY: the kernel has just given us this descriptor.
    pin(&unsafe { OwnedFd::from_raw_fd(fd) }, path)
}
