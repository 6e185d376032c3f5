//! Signals to other processes.

use std::io;

/// Sends SIGKILL to the process `pid`: nothing is written or said by it any more.
///
/// A pid may have been given to another process meanwhile: compare start times
/// before.
///
/// # Errors
/// No such process (ESRCH), or it is another user's (EPERM). A pid of 0 or one
/// beyond the kernel's range, which would mean whole groups, is EINVAL.
pub fn kill(pid: u32) -> io::Result<()> {
    send(pid, libc::SIGKILL)
}

/// Sends SIGHUP to the process `pid`: a daemon of ours reads its configuration again.
///
/// # Errors
/// As [`kill`].
pub fn hang_up(pid: u32) -> io::Result<()> {
    send(pid, libc::SIGHUP)
}

fn send(pid: u32, signal: i32) -> io::Result<()> {
    let pid = i32::try_from(pid)
        .ok()
        .filter(|&pid| pid > 0)
        .ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?;
    // SAFETY: kill takes no pointers; a positive pid names one process.
    match unsafe { libc::kill(pid, signal) } {
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
            assert_eq!(kill(pid).unwrap_err().raw_os_error(), Some(libc::EINVAL));
            assert_eq!(hang_up(pid).unwrap_err().raw_os_error(), Some(libc::EINVAL));
        }
    }
}
