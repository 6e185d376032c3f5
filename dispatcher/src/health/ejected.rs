//! Servers that are left out for a while, since they stand out (core/src/health/outliers.rs).

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// One backend's, by the number of pool and port.
#[derive(Debug, Default)]
pub struct Ejected {
    /// None from here on: without a lock, the usual answer.
    until_ms: AtomicU64,
    all: Mutex<Vec<(u64, u64)>>,
}

impl Ejected {
    /// That server, until then.
    pub fn set(&self, now_ms: u64, number: u64, until_ms: u64) {
        let mut all = self.all.lock().expect("no thread panics with it");
        all.retain(|&(other, until)| other != number && until > now_ms);
        all.push((number, until_ms));
        self.until_ms.fetch_max(until_ms, Ordering::Relaxed);
    }

    /// Is one of them that `concerns` the asker?
    pub fn is_any(&self, now_ms: u64, concerns: impl Fn(u64) -> bool) -> bool {
        if now_ms >= self.until_ms.load(Ordering::Relaxed) {
            return false;
        }
        let all = self.all.lock().expect("no thread panics with it");
        all.iter()
            .any(|&(number, until)| now_ms < until && concerns(number))
    }

    /// Another backend's.
    pub fn reset(&self) {
        self.all.lock().expect("no thread panics with it").clear();
        self.until_ms.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_for_its_time() {
        let ejected = Ejected::default();
        assert!(!ejected.is_any(0, |_| true));
        ejected.set(100, 1, 200);
        ejected.set(100, 2, 300);
        assert!(ejected.is_any(199, |n| n == 1) && !ejected.is_any(200, |n| n == 1));
        assert!(ejected.is_any(299, |_| true) && !ejected.is_any(300, |_| true));
        assert!(!ejected.is_any(150, |n| n == 3));
        ejected.set(300, 1, 400);
        ejected.reset();
        assert!(!ejected.is_any(301, |_| true));
    }
}
