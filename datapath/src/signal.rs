//! Signals to other processes.
#![allow(unsafe_code)]

use std::io;

/// What a process can be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// SIGTERM: end in order.
    Terminate,
    /// SIGKILL: end now; nothing is written or said any more.
    Kill,
}

/// Sends `signal` to the process `pid`.
///
/// A pid may have been given to another process meanwhile: compare start times
/// before.
///
/// # Errors
/// No such process (ESRCH), or it is another user's (EPERM). A pid of 0 or one
/// beyond the kernel's range, which would mean whole groups, is EINVAL.
pub fn send(pid: u32, signal: Signal) -> io::Result<()> {
    let pid = i32::try_from(pid)
        .ok()
        .filter(|&pid| pid > 0)
        .ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?;
    let number = match signal {
        Signal::Terminate => libc::SIGTERM,
        Signal::Kill => libc::SIGKILL,
    };
    // SAFETY: kill takes no pointers; a positive pid names one process.
    match unsafe { libc::kill(pid, number) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_of_processes_cannot_be_named() {
        for pid in [0, u32::MAX] {
            assert_eq!(
                send(pid, Signal::Kill).unwrap_err().raw_os_error(),
                Some(libc::EINVAL)
            );
        }
    }
}
