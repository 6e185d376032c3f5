//! Signals of a daemon, taken one by one from a descriptor.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// What a daemon is told by a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// SIGHUP: read the configuration again.
    Reload,
    /// SIGTERM, SIGINT: stop serving, take everything back.
    Stop,
    /// SIGUSR2: exit, and leave the data path to the next daemon.
    HandOver,
}

/// The signals above, blocked and collected. To be made before any thread.
#[derive(Debug)]
pub struct Signals {
    fd: OwnedFd,
}

impl Signals {
    /// Blocks the signals in this thread and those that it starts.
    pub fn block() -> io::Result<Self> {
        let mut set = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: sigemptyset initialises the set that the others use.
        let fd = unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            for signal in [libc::SIGHUP, libc::SIGTERM, libc::SIGINT, libc::SIGUSR2] {
                libc::sigaddset(set.as_mut_ptr(), signal);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut());
            libc::signalfd(-1, set.as_ptr(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK)
        };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just given us this descriptor.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self { fd })
    }

    /// Waits for one, at most so long.
    pub fn wait(&self, timeout: Duration) -> io::Result<Option<Signal>> {
        let mut poll = libc::pollfd {
            fd: self.fd.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one pollfd.
        if unsafe { libc::poll(&mut poll, 1, timeout.as_millis().min(60_000) as i32) } <= 0 {
            return Ok(None);
        }
        let mut info = std::mem::MaybeUninit::<libc::signalfd_siginfo>::uninit();
        let size = size_of::<libc::signalfd_siginfo>();
        // SAFETY: room for one record.
        let read = unsafe { libc::read(self.fd.as_raw_fd(), info.as_mut_ptr().cast(), size) };
        if read != size as isize {
            return Ok(None);
        }
        // SAFETY: the kernel has filled it.
        Ok(match unsafe { info.assume_init() }.ssi_signo as i32 {
            libc::SIGHUP => Some(Signal::Reload),
            libc::SIGUSR2 => Some(Signal::HandOver),
            _ => Some(Signal::Stop),
        })
    }
}
