//! The two system calls of these tests: BPF_PROG_TEST_RUN and what the kernel
//! says of a program. And a node's pins, gone at the end.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use trapeze_datapath::object;

/// A run's return value and packet, for a program at tc or XDP.
///
/// The kernel takes no frame below 14 bytes. The packet seems to have come from the
/// loopback device of this thread's network namespace.
pub fn test_run(program: &OwnedFd, frame: &[u8]) -> io::Result<(u32, Vec<u8>)> {
    run(program, frame, None)
}

/// The beginning of `struct __sk_buff` (linux/bpf.h), up to what is set here.
#[repr(C)]
#[derive(Default)]
struct Skb {
    length: u32,
    packet_type: u32,
    mark: u32,
}

/// The same at tc, of a packet that bears a mark.
pub fn test_run_marked(program: &OwnedFd, frame: &[u8], mark: u32) -> io::Result<(u32, Vec<u8>)> {
    let skb = Skb {
        mark,
        ..Skb::default()
    };
    run(program, frame, Some(skb))
}

fn run(program: &OwnedFd, frame: &[u8], mut skb: Option<Skb>) -> io::Result<(u32, Vec<u8>)> {
    let mut out = vec![0u8; frame.len() + 4096];
    let mut options = libbpf_sys::bpf_test_run_opts {
        sz: size_of::<libbpf_sys::bpf_test_run_opts>() as _,
        data_in: frame.as_ptr().cast(),
        data_size_in: frame.len() as u32,
        data_out: out.as_mut_ptr().cast(),
        data_size_out: out.len() as u32,
        repeat: 1,
        ..Default::default()
    };
    if let Some(skb) = &mut skb {
        options.ctx_in = (&raw mut *skb).cast();
        options.ctx_size_in = size_of_val(skb) as u32;
    }
    // SAFETY: all buffers are as long as is said.
    let result =
        unsafe { libbpf_sys::bpf_prog_test_run_opts(program.as_raw_fd(), &raw mut options) };
    match result {
        0.. => {
            out.truncate(options.data_size_out as usize);
            Ok((options.retval, out))
        }
        negative => Err(io::Error::from_raw_os_error(-negative)),
    }
}

/// How many instructions the verifier has walked to prove the program safe.
pub fn verified_instructions(program: &OwnedFd) -> u32 {
    let mut info = libbpf_sys::bpf_prog_info::default();
    let mut length = size_of_val(&info) as u32;
    // SAFETY: the kernel writes at most `length` bytes.
    let result = unsafe {
        libbpf_sys::bpf_obj_get_info_by_fd(
            program.as_raw_fd(),
            (&raw mut info).cast(),
            &raw mut length,
        )
    };
    assert_eq!(result, 0, "the kernel describes its programs");
    info.verified_insns
}

/// A directory for pins that no other test has.
#[derive(Debug)]
pub struct Pins(PathBuf);

impl Pins {
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("trapeze-test-{}-{number}", std::process::id());
        Self(Path::new(object::BPFFS).join(name))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        let _ = object::unpin_all(&self.0);
    }
}

/// An object with its maps pinned.
///
/// # Panics
/// Without root: these tests are not to be skipped in silence.
pub fn load(
    name: &'static str,
    bytes: &[u8],
    pins: &Pins,
    sizes: &[object::MapSize],
) -> object::Loaded {
    object::load(name, bytes, pins.path(), sizes).unwrap_or_else(|e| {
        panic!("these tests load BPF programs, so they need root and Linux 6.9: {e}")
    })
}
