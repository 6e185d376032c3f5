//! Network namespaces: run a closure, a command or the rest of this process in
//! one. Only the network changes; mounts stay, so /sys/fs/bpf is the same inside.
//! Making and removing namespaces is left to iproute2.
#![allow(unsafe_code)]

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use trapeze_core::siphash::siphash24;

/// Where iproute2 keeps namespaces that have a name.
pub const NAMED: &str = "/run/netns";

/// The path of the namespace that `ip netns` calls `name`.
pub fn path(name: &str) -> PathBuf {
    Path::new(NAMED).join(name)
}

/// Moves the calling thread into the namespace at `path`, for good.
///
/// Threads made before stay where they are: call it first, or in a thread of
/// its own ([`inside`]).
///
/// # Errors
/// The path is no network namespace, or CAP_SYS_ADMIN is missing.
pub fn enter(path: &Path) -> io::Result<()> {
    set_namespace(&File::open(path)?)
}

/// Moves the calling thread into a namespace of its own, which has nothing but a
/// loopback device that is down, and ends with its last thread and socket.
///
/// # Errors
/// CAP_SYS_ADMIN is missing.
pub fn enter_new() -> io::Result<()> {
    // SAFETY: no pointers.
    match unsafe { libc::unshare(libc::CLONE_NEWNET) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Runs `work` in the namespace at `path`, on a thread of its own.
///
/// # Errors
/// As [`enter`], and those of `work`.
pub fn inside<T, F>(path: &Path, work: F) -> io::Result<T>
where
    T: Send,
    F: FnOnce() -> io::Result<T> + Send,
{
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            enter(path)?;
            work()
        });
        thread
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// A command that will run `program` in the namespace at `path`.
///
/// # Errors
/// The namespace does not exist. That it is none shows when the command starts.
pub fn command_in(path: &Path, program: impl AsRef<OsStr>) -> io::Result<Command> {
    let namespace = File::open(path)?;
    let mut command = Command::new(program);
    // SAFETY: the hook makes one system call, allocates nothing and takes no lock.
    unsafe {
        command.pre_exec(move || set_namespace(&namespace));
    }
    Ok(command)
}

/// Makes `command` start in a session of its own, so that no terminal's signal
/// reaches it and all that it forks can be found by the session's id, its pid.
pub fn in_own_session(command: &mut Command) -> &mut Command {
    // SAFETY: the hook makes one system call, allocates nothing and takes no lock.
    unsafe {
        command.pre_exec(|| match libc::setsid() {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        })
    }
}

/// Makes `command` start with as many open files as the hard limit allows,
/// instead of the soft limit that suits interactive use.
pub fn with_all_files(command: &mut Command) -> &mut Command {
    // SAFETY: the hook makes two system calls on a variable of its own stack,
    // allocates nothing and takes no lock.
    unsafe { command.pre_exec(|| take_all_files().map(|_| ())) }
}

/// As [`with_all_files`], for this process itself: how many that are.
///
/// # Errors
/// The system's.
pub fn take_all_files() -> io::Result<u64> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the calls read and write a variable that outlives them.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) == -1 {
            return Err(io::Error::last_os_error());
        }
        limit.rlim_cur = limit.rlim_max;
        match libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(limit.rlim_cur),
        }
    }
}

/// What identifies the namespace at `path`: the same for every process in it.
///
/// # Errors
/// The path does not exist or must not be read.
pub fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let metadata = std::fs::metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}

/// A number of this network stack: the calling thread's namespace, since this kernel came up. Another one has
/// none of its connections. Never 0.
pub fn incarnation() -> u32 {
    /// Without a key: nobody is to be kept from finding the same.
    const KEY: [u8; 16] = [0; 16];
    let mut bytes = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    // An older kernel (before 5.14) tells its own life from the next only.
    bytes.extend(cookie().unwrap_or(0).to_ne_bytes());
    (siphash24(&KEY, &bytes) as u32).max(1)
}

/// The calling thread's namespace: no other one has that number until the kernel comes up again.
fn cookie() -> io::Result<u64> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    let mut cookie = 0u64;
    let mut length = size_of::<u64>() as libc::socklen_t;
    // SAFETY: the call writes at most `length` bytes into a variable that outlives it.
    let done = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut length,
        )
    };
    match done {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(cookie),
    }
}

fn set_namespace(namespace: &File) -> io::Result<()> {
    // SAFETY: the descriptor is open for as long as the call takes.
    match unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_namespace_is_an_error() {
        let nowhere = path("trapeze-no-such-namespace");
        assert_eq!(
            command_in(&nowhere, "true").unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
        assert_eq!(
            inside(&nowhere, || Ok(())).unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
    }

    #[test]
    fn a_network_stack_is_always_the_same_one() {
        assert_eq!(incarnation(), incarnation());
        assert_ne!(incarnation(), 0);
    }

    #[test]
    fn a_file_that_is_no_namespace_is_an_error() {
        assert_eq!(
            inside(Path::new("/etc/passwd"), || Ok(()))
                .unwrap_err()
                .raw_os_error(),
            Some(libc::EINVAL)
        );
    }
}
