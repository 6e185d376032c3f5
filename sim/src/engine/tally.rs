//! Counts what happens after the warm-up.

use hdrhistogram::Histogram;
use trapeze_core::policy::BackendId;

use super::{Run, Span};
use crate::outcome::{Busy, Outcome};
use crate::station::Station;

pub(super) struct Tally {
    span: Span,
    /// All, before and after the warm-up's end.
    answered: u64,
    from: Option<Start>,
    latency_ns: f64,
    histogram: Histogram<u64>,
    bytes: u64,
    files: u64,
    hits: u64,
    disk_reads: u64,
    handoffs: u64,
    lost: u64,
    by_backend: Vec<u64>,
}

/// How things were when counting began.
struct Start {
    now_ns: u64,
    answered: u64,
    busy_ns: Vec<f64>,
    outstanding_ns: Vec<f64>,
}

/// A request that has its answer.
pub(super) struct Answer {
    pub(super) backend: BackendId,
    pub(super) latency_ns: u64,
    pub(super) bytes: u64,
    pub(super) hit: bool,
    /// Whether there was a file to be found in memory or not.
    pub(super) file: bool,
    pub(super) moved: bool,
}

impl Tally {
    pub(super) fn new(span: Span, stations: &[Station], backends: usize) -> Self {
        let mut tally = Tally {
            span,
            answered: 0,
            from: None,
            latency_ns: 0.0,
            // Microseconds up to a day, to a hundredth.
            histogram: Histogram::new_with_bounds(1, 86_400_000_000, 2)
                .expect("the bounds are right"),
            bytes: 0,
            files: 0,
            hits: 0,
            disk_reads: 0,
            handoffs: 0,
            lost: 0,
            by_backend: vec![0; backends],
        };
        if span.warmup == 0 {
            tally.count_from(0, stations, vec![0.0; backends]);
        }
        tally
    }

    pub(super) fn answered(&self) -> u64 {
        self.answered
    }

    /// Whether the warm-up ends with the last answer.
    pub(super) fn begins_to_count(&self) -> bool {
        self.from.is_none() && self.answered >= self.span.warmup
    }

    pub(super) fn count_from(&mut self, now_ns: u64, stations: &[Station], outstanding: Vec<f64>) {
        self.from = Some(Start {
            now_ns,
            answered: self.answered,
            busy_ns: stations.iter().map(|s| s.busy_ns(now_ns)).collect(),
            outstanding_ns: outstanding,
        });
    }

    pub(super) fn disk_read(&mut self) {
        self.disk_reads += u64::from(self.from.is_some());
    }

    pub(super) fn lost(&mut self) {
        // A death is rare: it shows even if it falls into the warm-up.
        self.lost += 1;
    }

    pub(super) fn answer(&mut self, answer: Answer) {
        self.answered += 1;
        if self.from.is_none() {
            return;
        }
        self.latency_ns += answer.latency_ns as f64;
        self.histogram
            .saturating_record((answer.latency_ns / 1000).max(1));
        self.bytes += answer.bytes;
        self.files += u64::from(answer.file);
        self.hits += u64::from(answer.file && answer.hit);
        self.handoffs += u64::from(answer.moved);
        self.by_backend[answer.backend.index()] += 1;
    }

    pub(super) fn outcome(
        self,
        run: &Run<'_>,
        now_ns: u64,
        stations: &[Station],
        outstanding_ns: &[f64],
        (dispatchers, unanswered): (usize, u64),
    ) -> Outcome {
        let backends = self.by_backend.len();
        let from = self.from.unwrap_or_else(|| Start {
            now_ns: 0,
            answered: self.answered,
            busy_ns: vec![0.0; stations.len()],
            outstanding_ns: vec![0.0; backends],
        });
        let requests = self.answered - from.answered;
        let elapsed_ns = now_ns.saturating_sub(from.now_ns) as f64;
        let share = |part: u64, whole: u64| part as f64 / whole.max(1) as f64;
        let busy: Vec<f64> = (stations.iter().zip(&from.busy_ns))
            .map(|(s, before)| {
                (s.busy_ns(now_ns) - before) / (elapsed_ns.max(1.0) * s.servers() as f64)
            })
            .collect();
        let (of_dispatchers, rest) = busy.split_at(dispatchers);
        let clients = &rest[3 * backends..];
        let (client_links, client_cpus) = clients.split_at(clients.len() / 2);
        let loads: Vec<f64> = (outstanding_ns.iter().zip(&from.outstanding_ns))
            .map(|(now, before)| now - before)
            .collect();
        let ms = |quantile| self.histogram.value_at_quantile(quantile) as f64 / 1000.0;
        Outcome {
            policy: run.entrant.name.clone(),
            workload: run.workload.name().to_owned(),
            backends,
            requests,
            seconds: elapsed_ns / 1e9,
            requests_per_second: match elapsed_ns > 0.0 {
                true => requests as f64 / (elapsed_ns / 1e9),
                false => 0.0,
            },
            megabits_per_second: self.bytes as f64 * 8e3 / elapsed_ns.max(1.0),
            latency_mean_ms: self.latency_ns / 1e6 / requests.max(1) as f64,
            latency_p50_ms: ms(0.50),
            latency_p99_ms: ms(0.99),
            hit_ratio: (self.files > 0).then(|| share(self.hits, self.files)),
            disk_reads_per_request: share(self.disk_reads, requests),
            balance: balance(&loads),
            handoffs_per_request: share(self.handoffs, requests),
            lost: self.lost,
            unanswered,
            requests_by_backend: self.by_backend,
            dispatcher_busy: Busy::of(of_dispatchers),
            cpu_busy: Busy::of(&rest[..backends]),
            disk_busy: Busy::of(&rest[backends..2 * backends]),
            link_busy: Busy::of(&rest[2 * backends..3 * backends]),
            client_link_busy: Busy::of(client_links),
            client_cpu_busy: Busy::of(client_cpus),
        }
    }
}

/// Mean over highest: 1 if all have the same.
fn balance(loads: &[f64]) -> f64 {
    let highest = loads.iter().copied().fold(0.0, f64::max);
    let mean = loads.iter().sum::<f64>() / loads.len().max(1) as f64;
    if highest > 0.0 { mean / highest } else { 1.0 }
}
