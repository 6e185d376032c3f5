//! The clocks that the data path uses too.

use std::time::Duration;

/// CLOCK_MONOTONIC: what `bpf_ktime_get_ns()` and its coarse form count.
pub fn monotonic() -> Duration {
    read(libc::CLOCK_MONOTONIC)
}

/// CLOCK_TAI: the same on all nodes whose clocks are set; cookies count it.
pub fn tai() -> Duration {
    read(libc::CLOCK_TAI)
}

fn read(clock: libc::clockid_t) -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: room for the answer; these clocks exist on every Linux.
    unsafe { libc::clock_gettime(clock, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
