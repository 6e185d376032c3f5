//! The Rust mirror of `bpf/include/abi.h`, of the same parts: map keys and values as the
//! programs see them. `tests/abi_layout.rs` holds it against the objects' BTF.

#![allow(missing_docs)] // The fields are documented where they are shared: in abi.h.

include!(concat!(env!("OUT_DIR"), "/names.rs"));

/// Types that are the same bytes in a map and in memory.
///
/// # Safety
/// `repr(C)`, no padding whose content matters, valid for every bit pattern.
pub unsafe trait Pod: Copy {
    /// All bytes zero.
    fn zeroed() -> Self {
        // SAFETY: every bit pattern is valid.
        unsafe { std::mem::zeroed() }
    }
}

/// A value of these bytes, if they are as many.
pub fn read<T: Pod>(bytes: &[u8]) -> Option<T> {
    // SAFETY: as many bytes as T has, valid for every pattern, read unaligned.
    (bytes.len() == size_of::<T>()).then(|| unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
}

macro_rules! pod {
    ($(#[$doc:meta])* struct $name:ident { $($field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name { $(pub $field: $type,)* }

        // SAFETY: integers and arrays of integers only.
        unsafe impl Pod for $name {}

        impl $name {
            /// Field names with their offsets, and the size: for the layout test.
            pub const LAYOUT: (&'static str, usize, &'static [(&'static str, usize)]) = (
                stringify!($name),
                std::mem::size_of::<$name>(),
                &[$((stringify!($field), std::mem::offset_of!($name, $field)),)*],
            );
        }
    };
}

mod agent;
mod answers;
mod flow;
mod handshake;
mod node;
mod placing;
mod splice;
mod wire;

pub use agent::*;
pub use answers::*;
pub use flow::*;
pub use handshake::*;
pub use node::*;
pub use placing::*;
pub use splice::*;
pub use wire::*;

// SAFETY: plain integers.
unsafe impl Pod for u32 {}
// SAFETY: plain integers.
unsafe impl Pod for u64 {}

/// What stands before the padding.
fn padded(name: &[u8; 32]) -> &str {
    let end = name.iter().position(|&b| b == 0).unwrap_or(name.len());
    std::str::from_utf8(&name[..end]).unwrap_or("?")
}
