//! How long the kernel has run attached programs, by its own account
//! (`kernel.bpf_stats_enabled`). What happens to a packet after its program has returned,
//! such as a redirection's transmission, is not part of it.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use crate::map::check;
use crate::object::open_pin;

/// As long as this lives, all programs of the machine are timed, some 30 ns for each run.
#[derive(Debug)]
pub struct Timing {
    _fd: OwnedFd,
}

/// What one program has done while programs were timed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunTime {
    /// How often it ran.
    pub runs: u64,
    /// How long all of these took.
    pub time: Duration,
}

impl Timing {
    /// Begins to time programs.
    ///
    /// # Errors
    /// The kernel's: it needs root.
    pub fn begin() -> io::Result<Self> {
        // SAFETY: no pointers.
        let fd = unsafe { libbpf_sys::bpf_enable_stats(libbpf_sys::BPF_STATS_RUN_TIME) };
        check(fd)?;
        // SAFETY: the kernel has just given us this descriptor.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self { _fd: fd })
    }
}

/// Of the program that the link pinned at `path` has attached.
///
/// # Errors
/// Nothing is pinned there, or no link of a program.
pub fn of_link(path: &Path) -> io::Result<RunTime> {
    let link = open_pin(path)?;
    let mut attached = libbpf_sys::bpf_link_info::default();
    let mut length = size_of_val(&attached) as u32;
    // SAFETY: a valid descriptor, and a structure of the size that is claimed.
    check(unsafe {
        libbpf_sys::bpf_link_get_info_by_fd(link.as_raw_fd(), &raw mut attached, &raw mut length)
    })?;
    // SAFETY: no pointers.
    let fd = unsafe { libbpf_sys::bpf_prog_get_fd_by_id(attached.prog_id) };
    check(fd)?;
    // SAFETY: the kernel has just given us this descriptor.
    let program = unsafe { OwnedFd::from_raw_fd(fd) };
    let mut info = libbpf_sys::bpf_prog_info::default();
    let mut length = size_of_val(&info) as u32;
    // SAFETY: a valid descriptor, and a structure of the size that is claimed; zeroed, it asks for
    // nothing behind pointers.
    check(unsafe {
        libbpf_sys::bpf_prog_get_info_by_fd(program.as_raw_fd(), &raw mut info, &raw mut length)
    })?;
    Ok(RunTime {
        runs: info.run_cnt,
        time: Duration::from_nanos(info.run_time_ns),
    })
}
