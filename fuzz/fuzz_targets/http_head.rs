//! First bytes of any connection: no panic, and the answer does not depend on
//! how they were cut into segments.
#![no_main]

use libfuzzer_sys::fuzz_target;
use trapeze_core::head::{Inspection, Progress, inspect, inspect_from};

const LIMIT: usize = 2048;

fuzz_target!(|bytes: &[u8]| {
    let at_once = inspect(bytes, LIMIT);
    let mut progress = Progress::default();
    let mut growing = Inspection::Incomplete;
    for len in 0..=bytes.len() {
        growing = inspect_from(&bytes[..len], &mut progress, LIMIT);
        if growing != Inspection::Incomplete {
            break;
        }
    }
    assert_eq!(growing, at_once);
    if let Inspection::Http(head) = at_once {
        assert!(head.len <= bytes.len());
        for (name, value) in head.headers() {
            assert!(head.header(name).any(|v| v == value));
        }
    }
});
