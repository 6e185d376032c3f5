//! Many runs on several threads; outcomes come in the order of the runs, whoever is
//! done first.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::engine::Run;
use crate::outcome::Outcome;

/// Simulates all of them. `watch` is told of requests answered since it was last
/// told.
pub fn run_all(runs: &[Run<'_>], threads: usize, watch: &(dyn Fn(u64) + Sync)) -> Vec<Outcome> {
    let next = AtomicUsize::new(0);
    let outcomes: Vec<Mutex<Option<Outcome>>> = runs.iter().map(|_| Mutex::new(None)).collect();
    thread::scope(|scope| {
        for _ in 0..threads.clamp(1, runs.len().max(1)) {
            scope.spawn(|| {
                while let Some((run, outcome)) = {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    runs.get(at).zip(outcomes.get(at))
                } {
                    let mut seen = 0;
                    let done = run.go_watched(|answered| {
                        watch(answered - seen);
                        seen = answered;
                    });
                    *outcome.lock().expect("nobody panicked") = Some(done);
                }
            });
        }
    });
    (outcomes.into_iter())
        .map(|o| o.into_inner().expect("nobody panicked"))
        .map(|o| o.expect("every run was taken"))
        .collect()
}
