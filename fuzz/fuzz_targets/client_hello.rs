//! A handshake message in records of a size that the first byte says: what the
//! records cut must not matter, and no length may lead astray.
#![no_main]

use libfuzzer_sys::fuzz_target;
use trapeze_core::head::{Inspection, inspect};

const LIMIT: usize = 1 << 16;

fuzz_target!(|input: &[u8]| {
    let Some((&size, message)) = input.split_first() else { return };
    if message.is_empty() || message.len() > 4096 {
        return;
    }
    let whole = records(message, 1 << 14);
    let cut = records(message, usize::from(size).max(1));
    match (inspect(&whole, LIMIT), inspect(&cut, LIMIT)) {
        (Inspection::Tls(a), Inspection::Tls(b)) => {
            assert_eq!((a.server_name, a.alpn), (b.server_name, b.alpn));
            assert!(a.len <= whole.len() && b.len <= cut.len());
        }
        (a, b) => assert_eq!(a, b),
    }
});

fn records(message: &[u8], size: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    for fragment in message.chunks(size) {
        bytes.extend_from_slice(&[22, 3, 1]);
        bytes.extend_from_slice(&(fragment.len() as u16).to_be_bytes());
        bytes.extend_from_slice(fragment);
    }
    bytes
}
