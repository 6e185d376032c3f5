//! A flag that ends what goes on beside a test.

use std::sync::atomic::{AtomicBool, Ordering};

/// Raised at the end, also of a test that fails: others wait for it.
pub struct Raised<'a>(pub &'a AtomicBool);

impl Drop for Raised<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
