//! How busy this host is: agents tell the dispatchers' policies, dispatchers the sprays.
//! The data paths say it with every heartbeat.

use std::fs;
use std::io;

use crate::abi::Feedback;
use crate::clock;

/// Looks at the host, again and again; every 200 ms a second or so counts.
#[derive(Debug, Default)]
pub struct Sampler {
    before: Option<Ticks>,
    /// A mean over the last looks, which forgets.
    cpu_permille: Option<f32>,
}

/// How much of the mean a look is: with one every 200 ms, a second counts.
const LOOK: f32 = 0.2;

/// What all CPUs together have done since the host started, in clock ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ticks {
    busy: u64,
    all: u64,
}

impl Sampler {
    /// Knows nothing before its first look.
    pub fn new() -> Self {
        Self::default()
    }

    /// How busy the host was during the last second or so, and how full it is now.
    pub fn sample(&mut self) -> io::Result<Feedback> {
        let now = ticks(&fs::read_to_string("/proc/stat")?).ok_or_else(strange)?;
        let memory = memory_permille(&fs::read_to_string("/proc/meminfo")?).ok_or_else(strange)?;
        if let Some(before) = self.before.replace(now) {
            let all = now.all.saturating_sub(before.all).max(1);
            let busy = (now.busy.saturating_sub(before.busy) * 1000 / all).min(1000) as f32;
            let mean = self.cpu_permille.unwrap_or(busy);
            self.cpu_permille = Some(mean + (busy - mean) * LOOK);
        }
        Ok(Feedback {
            sampled_ns: clock::monotonic().as_nanos() as u64,
            cpu_permille: self.cpu_permille.unwrap_or(0.0) as u32,
            memory_permille: memory,
        })
    }
}

fn strange() -> io::Error {
    io::Error::other("/proc/stat or /proc/meminfo does not look as expected")
}

/// The line of all CPUs: user, nice, system, idle, iowait, irq, softirq, steal.
fn ticks(stat: &str) -> Option<Ticks> {
    let numbers = stat.lines().next()?.strip_prefix("cpu ")?;
    let numbers: Vec<u64> = (numbers.split_ascii_whitespace().take(8))
        .map(|n| n.parse().ok())
        .collect::<Option<_>>()?;
    let idle = numbers.get(3)? + numbers.get(4)?;
    let all = numbers.iter().sum::<u64>();
    Some(Ticks {
        busy: all - idle,
        all,
    })
}

/// Memory that could not be had without swapping, in thousandths.
fn memory_permille(meminfo: &str) -> Option<u32> {
    let kilobytes = |name: &str| -> Option<u64> {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().strip_suffix(" kB")?.trim().parse().ok()
    };
    let (total, available) = (kilobytes("MemTotal:")?, kilobytes("MemAvailable:")?);
    u32::try_from(total.checked_sub(available)? * 1000 / total.max(1)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_words_are_understood() {
        let stat = "cpu  100 1 50 800 40 3 6 0 0 0\ncpu0 1 2 3\n";
        assert_eq!(
            ticks(stat),
            Some(Ticks {
                busy: 160,
                all: 1000
            })
        );
        assert_eq!(ticks("intr 1\n"), None);
        let meminfo = "MemTotal:       4000 kB\nMemFree: 1 kB\nMemAvailable:    3000 kB\n";
        assert_eq!(memory_permille(meminfo), Some(250));
        assert_eq!(memory_permille("MemTotal: 1 kB\n"), None);
    }

    #[test]
    fn this_host_can_be_sampled() {
        let mut sampler = Sampler::new();
        for _ in 0..2 {
            let sample = sampler.sample().unwrap();
            assert!(sample.cpu_permille <= 1000 && (1..=1000).contains(&sample.memory_permille));
        }
    }
}
