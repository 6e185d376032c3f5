//! The program of the lab's switch (bpf/lab_switch.bpf.c). Nothing of it is
//! pinned: the interfaces hold the program, the program its map, and all go with
//! the switch's namespace. Later commands find it by the bridge.
//!
//! Everything here works on the calling thread's network namespace.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use libbpf_rs::ObjectBuilder;

use crate::host::ifindex;
use crate::map::{Map, Update, check};

static LAB_SWITCH: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/lab_switch.o"));

/// A switch's program and its table of hosts.
#[derive(Debug)]
pub struct Switch {
    program: OwnedFd,
    ports: Map<u64, u32>,
}

impl Switch {
    /// Loads the program, and leaves it where [`Switch::find`] finds it.
    ///
    /// # Errors
    /// The kernel refuses it, or there is no such bridge.
    pub fn make(bridge: &str) -> io::Result<()> {
        let object = ObjectBuilder::default()
            .open_memory(LAB_SWITCH)
            .and_then(|open| open.load())
            .map_err(io::Error::other)?;
        let program = object.progs().next().expect("the object has one");
        // Frames that the bridge itself gets are no host's: there it does nothing.
        attach(&program.as_fd().try_clone_to_owned()?, bridge)
    }

    /// The one that was made on this bridge.
    ///
    /// # Errors
    /// There is none.
    pub fn find(bridge: &str) -> io::Result<Self> {
        let program = attached(bridge)?;
        let ports = Map::from_fd(map_of(&program)?)?;
        Ok(Self { program, ports })
    }

    /// Puts the program on a new port. Until hosts are connected it leaves all
    /// frames to the bridge.
    ///
    /// # Errors
    /// There is no such port, or it has the program.
    pub fn attach(&self, port: &str) -> io::Result<()> {
        attach(&self.program, port)
    }

    /// From now on frames to and from the host with this link address, which is
    /// connected to `port` directly, take the short way.
    ///
    /// # Errors
    /// There is no such port.
    pub fn connect(&self, mac: [u8; 6], port: &str) -> io::Result<()> {
        self.ports.put(&key(mac), &ifindex(port)?, Update::Any)
    }

    /// From now on the host's frames are left to the bridge. It may not be connected.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn disconnect(&self, mac: [u8; 6]) -> io::Result<()> {
        self.ports.delete(&key(mac)).map(|_| ())
    }
}

/// As the program reads it: six bytes, then zeros.
fn key(mac: [u8; 6]) -> u64 {
    let [a, b, c, d, e, f] = mac;
    u64::from_ne_bytes([a, b, c, d, e, f, 0, 0])
}

/// Without a link, so that the interface keeps it (tcx, Linux 6.6).
fn attach(program: &OwnedFd, interface: &str) -> io::Result<()> {
    // SAFETY: a valid descriptor, default options.
    check(unsafe {
        libbpf_sys::bpf_prog_attach_opts(
            program.as_raw_fd(),
            ifindex(interface)? as i32,
            libbpf_sys::BPF_TCX_INGRESS,
            std::ptr::null(),
        )
    })
}

fn attached(interface: &str) -> io::Result<OwnedFd> {
    let mut id = 0u32;
    let mut options = libbpf_sys::bpf_prog_query_opts {
        sz: size_of::<libbpf_sys::bpf_prog_query_opts>() as _,
        prog_ids: &raw mut id,
        ..Default::default()
    };
    options.__bindgen_anon_1.count = 1;
    // SAFETY: there is room for as many ids as is said.
    check(unsafe {
        libbpf_sys::bpf_prog_query_opts(
            ifindex(interface)? as i32,
            libbpf_sys::BPF_TCX_INGRESS,
            &raw mut options,
        )
    })?;
    if id == 0 {
        return Err(io::Error::other(format!("{interface} has no program")));
    }
    // SAFETY: no pointers.
    owned(unsafe { libbpf_sys::bpf_prog_get_fd_by_id(id) })
}

/// The program's only map.
fn map_of(program: &OwnedFd) -> io::Result<OwnedFd> {
    let mut id = 0u32;
    let mut info = libbpf_sys::bpf_prog_info {
        nr_map_ids: 1,
        map_ids: &raw mut id as u64,
        ..Default::default()
    };
    let mut length = size_of_val(&info) as u32;
    // SAFETY: the kernel writes at most `length` bytes, and as many ids as is said.
    check(unsafe {
        libbpf_sys::bpf_prog_get_info_by_fd(program.as_raw_fd(), &raw mut info, &raw mut length)
    })?;
    // SAFETY: no pointers.
    owned(unsafe { libbpf_sys::bpf_map_get_fd_by_id(id) })
}

fn owned(fd: i32) -> io::Result<OwnedFd> {
    check(fd)?;
    // SAFETY: the kernel has just given us this descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
