//! What has to be on time on a busy host.

use std::io;

/// The least there is in real time: still before all that has none (sched(7)).
const PRIORITY: i32 = 1;

/// From now on this thread, and none that it starts, runs before all ordinary threads of the host: it says or judges
/// heartbeats, and is not to take a host for dead, or be taken for it, because others work here. It must sleep nearly
/// always.
///
/// Where the kernel refuses (CAP_SYS_NICE is missing, or the group of processes has no real time) it stays an ordinary
/// one, and says so: `thread` is its name.
pub fn go_first(thread: &str) {
    let param = libc::sched_param {
        sched_priority: PRIORITY,
    };
    let policy = libc::SCHED_RR | libc::SCHED_RESET_ON_FORK;
    // SAFETY: 0 is this thread, and the kernel only reads `param`.
    if unsafe { libc::sched_setscheduler(0, policy, &raw const param) } != 0 {
        let error = io::Error::last_os_error();
        eprintln!(
            "{thread}: cannot run in real time ({error}): heartbeats may be late while the host is busy; \
             CAP_SYS_NICE would help"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy() -> i32 {
        // SAFETY: 0 is this thread.
        unsafe { libc::sched_getscheduler(0) }
    }

    #[test]
    fn it_is_this_thread_alone() {
        std::thread::spawn(|| {
            go_first("test");
            assert_eq!(policy() & !libc::SCHED_RESET_ON_FORK, libc::SCHED_RR);
            let started = std::thread::spawn(policy).join().unwrap();
            assert_eq!(started, libc::SCHED_OTHER);
        })
        .join()
        .unwrap();
        assert_eq!(policy(), libc::SCHED_OTHER);
    }
}
