//! What a run showed.

use serde::Serialize;

/// Of one run, after its warm-up.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// The entrant's name.
    pub policy: String,
    /// The workload's name.
    pub workload: String,
    /// How many backends.
    pub backends: usize,
    /// Requests that count.
    pub requests: u64,
    /// Simulated seconds that count.
    pub seconds: f64,
    /// Throughput; 0 where no time passed.
    pub requests_per_second: f64,
    /// Throughput in bytes of answers.
    pub megabits_per_second: f64,
    /// From a user's asking to the answer's last byte.
    pub latency_mean_ms: f64,
    /// The median, to a hundredth.
    pub latency_p50_ms: f64,
    /// What one in a hundred exceeds, to a hundredth.
    pub latency_p99_ms: f64,
    /// Share of requests for files that found them in memory; a wait for somebody
    /// else's read is no hit. None without files.
    pub hit_ratio: Option<f64>,
    /// Reads of disks.
    pub disk_reads_per_request: f64,
    /// Mean of the backends' unfinished requests over the highest: 1 is even.
    pub balance: f64,
    /// Connections that moved.
    pub handoffs_per_request: f64,
    /// Requests that had to be asked again, because their backend went away; of the
    /// warm-up too.
    pub lost: u64,
    /// Requests that wait at the end, all backends having gone or being drained for good.
    pub unanswered: u64,
    /// Requests of each backend.
    pub requests_by_backend: Vec<u64>,
    /// Share of time that dispatchers worked.
    pub dispatcher_busy: Busy,
    /// The same of backends' processors,
    pub cpu_busy: Busy,
    /// disks,
    pub disk_busy: Busy,
    /// links,
    pub link_busy: Busy,
    /// the clients' links,
    pub client_link_busy: Busy,
    /// and their processors.
    pub client_cpu_busy: Busy,
}

/// Shares of time, 0..1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Busy {
    /// Of all.
    pub mean: f64,
    /// Of the busiest.
    pub most: f64,
}

impl Busy {
    /// Of several.
    pub fn of(shares: &[f64]) -> Self {
        let most = shares.iter().copied().fold(0.0, f64::max);
        let mean = shares.iter().sum::<f64>() / shares.len().max(1) as f64;
        Busy {
            // Of three that are equal the sum is rounded, and a third of it may be more than each.
            mean: mean.min(most),
            most,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_less_busy_than_all_of_them() {
        for share in (1..1000).map(|n| f64::from(n) / 997.0) {
            let busy = Busy::of(&[share; 3]);
            assert!(busy.mean <= busy.most, "{busy:?}");
        }
    }
}
