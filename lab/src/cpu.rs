//! How much CPU time the whole machine used between two moments, from
//! /proc/stat, and how much of it was none of the lab's. The rest includes what
//! a proxy or a data path makes the kernel do in softirqs, which no process's
//! own account shows as its work.

use std::collections::HashSet;
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use trapeze_datapath::netns;

use crate::state;

/// One clock tick of /proc, USER_HZ, the same on every architecture but Alpha.
const TICK_US: u64 = 10_000;
/// In a process's flags: a thread of the kernel (include/linux/sched.h).
const PF_KTHREAD: u64 = 0x0020_0000;

/// CPU time since a moment, summed over the cores, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Usage {
    /// Of the whole machine.
    pub machine_cpu_us: u64,
    /// Of programs that have nothing to do with the lab.
    pub others_cpu_us: u64,
}

/// The accounts of the machine, with one lab on it.
pub struct Accounts {
    namespaces: HashSet<(u64, u64)>,
}

impl Usage {
    /// What the lab used, and the kernel.
    pub fn own_us(&self) -> u64 {
        self.machine_cpu_us.saturating_sub(self.others_cpu_us)
    }

    fn since(self, earlier: Usage) -> Usage {
        Usage {
            machine_cpu_us: self.machine_cpu_us.saturating_sub(earlier.machine_cpu_us),
            others_cpu_us: self.others_cpu_us.saturating_sub(earlier.others_cpu_us),
        }
    }
}

impl Accounts {
    /// Of the machine with the lab `name`, which is up.
    pub fn of(name: &str) -> Self {
        let namespaces = state::namespaces(name).into_iter();
        Accounts {
            namespaces: namespaces
                .filter_map(|namespace| netns::identity(&netns::path(&namespace)).ok())
                .collect(),
        }
    }

    /// Does `work`, and tells what was used meanwhile.
    ///
    /// # Errors
    /// /proc cannot be read.
    pub fn during<T>(&self, work: impl FnOnce() -> T) -> Result<(T, Usage)> {
        let before = self.now()?;
        let result = work();
        Ok((result, self.now()?.since(before)))
    }

    fn now(&self) -> Result<Usage> {
        let text = std::fs::read_to_string("/proc/stat").context("cannot read /proc/stat")?;
        let busy = busy_ticks(&text).context("/proc/stat does not look as expected")?;
        Ok(Usage {
            machine_cpu_us: busy * TICK_US,
            others_cpu_us: self.others_ticks()? * TICK_US,
        })
    }

    /// Processes outside of the lab's namespaces. This one is not among them:
    /// the client is its child.
    fn others_ticks(&self) -> Result<u64> {
        let entries = std::fs::read_dir("/proc").context("cannot read /proc")?;
        let others = entries
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
            .filter(|&pid: &u32| pid != std::process::id())
            .filter(|pid| {
                let own = format!("/proc/{pid}/ns/net");
                netns::identity(Path::new(&own)).is_ok_and(|own| !self.namespaces.contains(&own))
            })
            .filter_map(|pid| std::fs::read_to_string(format!("/proc/{pid}/stat")).ok())
            .filter_map(|stat| process_ticks(&stat));
        Ok(others.sum())
    }
}

/// user, nice, system, irq and softirq. Not steal, which is another machine's
/// work, and not guest, which is part of user.
fn busy_ticks(stat: &str) -> Option<u64> {
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    let fields: Vec<u64> = line
        .split_whitespace()
        .map(|field| field.parse().ok())
        .collect::<Option<_>>()?;
    let [user, nice, system, _idle, _iowait, irq, softirq, ..] = fields[..] else {
        return None;
    };
    Some(user + nice + system + irq + softirq)
}

/// utime, stime, and those of the children that it has waited for, so that what
/// a child used is still there when it is gone. None for the kernel's threads.
fn process_ticks(stat: &str) -> Option<u64> {
    // The name, in brackets, may contain anything.
    let (_, after_name) = stat.rsplit_once(") ")?;
    let fields: Vec<&str> = after_name.split(' ').collect();
    let field = |index: usize| fields.get(index)?.parse::<u64>().ok();
    match field(6)? & PF_KTHREAD {
        0 => Some(field(11)? + field(12)? + field(13)? + field(14)?),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_waiting_and_stolen_time_is_not_work() {
        let stat = "cpu  100 20 300 9000 800 5 60 7000 50 0\ncpu0 1 2 3 4 5 6 7 8 9 0\n";
        assert_eq!(busy_ticks(stat), Some(100 + 20 + 300 + 5 + 60));
        assert_eq!(busy_ticks("intr 1 2 3\n"), None);
        assert_eq!(busy_ticks("cpu  1 2 3\n"), None);
    }

    #[test]
    fn a_process_has_its_own_time_and_that_of_dead_children() {
        let process = "42 (a) b) S 1 42 42 0 -1 4194560 9 9 9 9 11 12 13 14 20 0 1 0 77 1 1\n";
        assert_eq!(process_ticks(process), Some(11 + 12 + 13 + 14));
        let kernel = "2 (kthreadd) S 0 0 0 0 -1 2129984 0 0 0 0 11 12 13 14 20 0 1 0 7 1 1\n";
        assert_eq!(process_ticks(kernel), None);
        assert_eq!(process_ticks("nonsense"), None);
    }

    #[test]
    fn what_others_used_is_not_ours() {
        let usage = |machine_cpu_us, others_cpu_us| Usage {
            machine_cpu_us,
            others_cpu_us,
        };
        let since = usage(500, 90).since(usage(100, 50));
        assert_eq!(since, usage(400, 40));
        assert_eq!(since.own_us(), 360);
        // A tick's rounding must not become a huge number.
        assert_eq!(usage(10, 30).own_us(), 0);
    }
}
