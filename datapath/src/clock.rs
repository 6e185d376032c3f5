//! The clocks that the data path uses too.

use std::io;
use std::time::Duration;

/// CLOCK_MONOTONIC: what `bpf_ktime_get_ns()` and its coarse form count.
pub fn monotonic() -> Duration {
    read(libc::CLOCK_MONOTONIC)
}

/// The clock that the cluster's nodes share: CLOCK_REALTIME. (CLOCK_TAI, which
/// BPF programs could read, is 37 s off on some hosts and not on others.)
pub fn cluster() -> Duration {
    read(libc::CLOCK_REALTIME)
}

/// What the data path adds to its monotonic clock to know the cluster's, in ns.
pub fn cluster_offset_ns() -> u64 {
    cluster().saturating_sub(monotonic()).as_nanos() as u64
}

/// The processor time of all threads of a process. Without CONFIG_IRQ_TIME_ACCOUNTING that of
/// interruptions is part of it: [`crate::softirq`].
///
/// # Errors
/// There is no such process.
pub fn of_process(pid: u32) -> io::Result<Duration> {
    let mut clock = 0;
    // SAFETY: room for the answer.
    match unsafe { libc::clock_getcpuclockid(pid as libc::pid_t, &raw mut clock) } {
        0 => Ok(read(clock)),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// How well the kernel knows the time, as its time daemon has told it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Discipline {
    /// A time daemon keeps the clock, and has done so lately.
    pub synchronised: bool,
}

/// Asks the kernel (adjtimex(2)).
pub fn discipline() -> io::Result<Discipline> {
    // SAFETY: a struct of integers, for which zero is valid.
    let mut time: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: with modes 0 it only writes the struct.
    let state = unsafe { libc::adjtimex(&mut time) };
    if state < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Discipline {
        synchronised: time.status & libc::STA_UNSYNC == 0,
    })
}

fn read(clock: libc::clockid_t) -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: room for the answer. A clock that has gone since leaves zeros.
    unsafe { libc::clock_gettime(clock, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
