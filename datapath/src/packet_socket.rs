//! AF_PACKET sockets: whole Ethernet frames in batches, from and to one
//! interface. A socket does not see what is sent on its interface, only what
//! arrives there.
//!
//! Offloads of the interface's peer must be off: a frame is read as the wire
//! would carry it, with its checksum complete and no longer than the MTU.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// The longest frame that is read whole; a longer one is counted and left out.
pub const FRAME_BYTES: usize = 65_536;

/// Frames read or written by one system call, at most.
pub const BATCH: usize = 64;

/// What the kernel holds for a socket before it drops.
const BUFFER_BYTES: libc::c_int = 64 << 20;

/// One interface's frames.
pub struct PacketSocket {
    fd: OwnedFd,
}

/// Buffers for one batch, made once.
pub struct Batch {
    buffers: Vec<u8>,
    lengths: Vec<usize>,
    truncated: u64,
}

impl Default for Batch {
    fn default() -> Self {
        Batch {
            buffers: vec![0; BATCH * FRAME_BYTES],
            lengths: Vec::with_capacity(BATCH),
            truncated: 0,
        }
    }
}

impl Batch {
    /// The frames that were read last.
    pub fn frames(&self) -> impl Iterator<Item = &[u8]> {
        self.buffers
            .chunks(FRAME_BYTES)
            .zip(&self.lengths)
            .filter(|(_, length)| **length <= FRAME_BYTES)
            .map(|(buffer, &length)| &buffer[..length])
    }

    /// Whether the last read filled the batch, so that more may wait.
    pub fn is_full(&self) -> bool {
        self.lengths.len() == BATCH
    }

    /// Frames left out so far because they were longer than [`FRAME_BYTES`].
    pub fn truncated(&self) -> u64 {
        self.truncated
    }
}

impl PacketSocket {
    /// Opens a socket on `interface` of the calling thread's namespace.
    ///
    /// # Errors
    /// No such interface, or CAP_NET_RAW is missing.
    pub fn open(interface: &str) -> io::Result<Self> {
        let name = CString::new(interface)?;
        // SAFETY: `name` ends in a zero byte and outlives the call.
        let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
        if index == 0 {
            return Err(io::Error::last_os_error());
        }
        // Protocol 0: no frame arrives before the socket is bound.
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
        // SAFETY: socket takes no pointers; the descriptor is ours alone.
        let fd = unsafe {
            let fd = libc::socket(libc::AF_PACKET, kind, 0);
            if fd == -1 {
                return Err(io::Error::last_os_error());
            }
            OwnedFd::from_raw_fd(fd)
        };
        let socket = PacketSocket { fd };
        socket.set_option(libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, BUFFER_BYTES)?;
        socket.set_option(libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, BUFFER_BYTES)?;
        socket.set_option(libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, 1)?;
        socket.bind(index)?;
        Ok(socket)
    }

    /// Reads what has arrived, at most a batch, without waiting.
    ///
    /// # Errors
    /// The interface has gone down or away.
    pub fn receive(&self, batch: &mut Batch) -> io::Result<()> {
        batch.lengths.clear();
        let mut vectors: Vec<libc::iovec> = batch
            .buffers
            .chunks_mut(FRAME_BYTES)
            .map(|buffer| libc::iovec {
                iov_base: buffer.as_mut_ptr().cast(),
                iov_len: buffer.len(),
            })
            .collect();
        let mut messages = messages_for(&mut vectors);
        let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
        // SAFETY: every message points to one vector, every vector to a buffer of
        // the length it says; all outlive the call.
        let count = unsafe {
            libc::recvmmsg(
                self.fd.as_raw_fd(),
                messages.as_mut_ptr(),
                messages.len() as libc::c_uint,
                flags as _,
                std::ptr::null_mut(),
            )
        };
        if count == -1 {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(()),
                _ => Err(error),
            };
        }
        for message in &messages[..count as usize] {
            // MSG_TRUNC: the frame's own length, even where the buffer is shorter.
            let length = message.msg_len as usize;
            batch.truncated += u64::from(length > FRAME_BYTES);
            batch.lengths.push(length);
        }
        Ok(())
    }

    /// Sends frames in order, waiting while the socket's buffer is full. Returns
    /// how many the kernel refused (an interface that is down, a frame too long);
    /// the others have left.
    ///
    /// # Errors
    /// The interface is gone.
    pub fn send(&self, frames: &[impl AsRef<[u8]>]) -> io::Result<u64> {
        let mut refused = 0;
        for frames in frames.chunks(BATCH) {
            let mut vectors: Vec<libc::iovec> = frames
                .iter()
                .map(|frame| libc::iovec {
                    iov_base: frame.as_ref().as_ptr().cast_mut().cast(),
                    iov_len: frame.as_ref().len(),
                })
                .collect();
            let mut messages = messages_for(&mut vectors);
            let mut sent = 0;
            while sent < messages.len() {
                let rest = &mut messages[sent..];
                // SAFETY: as in `receive`; the kernel only reads the buffers.
                let count = unsafe {
                    libc::sendmmsg(
                        self.fd.as_raw_fd(),
                        rest.as_mut_ptr(),
                        rest.len() as libc::c_uint,
                        0,
                    )
                };
                if count >= 0 {
                    sent += count as usize;
                    continue;
                }
                let error = io::Error::last_os_error();
                match error.raw_os_error() {
                    Some(libc::EINTR) => {}
                    Some(libc::ENXIO | libc::ENODEV) => return Err(error),
                    // The first of the rest was refused: leave it out, go on.
                    _ => {
                        refused += 1;
                        sent += 1;
                    }
                }
            }
        }
        Ok(refused)
    }

    /// Waits until a frame can be read, or for `timeout` (for ever when `None`).
    ///
    /// # Errors
    /// Those of ppoll, but not an interruption.
    pub fn wait(&self, timeout: Option<Duration>) -> io::Result<()> {
        let mut poll = libc::pollfd {
            fd: self.fd.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        let timeout = timeout.map(|timeout| libc::timespec {
            tv_sec: timeout.as_secs() as _,
            tv_nsec: timeout.subsec_nanos() as _,
        });
        let timeout = timeout
            .as_ref()
            .map_or(std::ptr::null(), |timeout| timeout as *const _);
        // SAFETY: `poll` and what `timeout` points to outlive the call.
        match unsafe { libc::ppoll(&mut poll, 1, timeout, std::ptr::null()) } {
            -1 => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => Ok(()),
                error => Err(error),
            },
            _ => Ok(()),
        }
    }

    /// Frames that the kernel dropped since the last call because the socket's
    /// buffer was full.
    ///
    /// # Errors
    /// Those of getsockopt; none is expected.
    pub fn take_drops(&self) -> io::Result<u64> {
        // SAFETY: all-zero bytes are a valid tpacket_stats.
        let mut stats: libc::tpacket_stats = unsafe { mem::zeroed() };
        let mut length = mem::size_of_val(&stats) as libc::socklen_t;
        // SAFETY: the kernel writes at most `length` bytes to `stats`.
        let result = unsafe {
            libc::getsockopt(
                self.fd.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_STATISTICS,
                (&raw mut stats).cast(),
                &mut length,
            )
        };
        match result {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(u64::from(stats.tp_drops)),
        }
    }

    fn bind(&self, index: libc::c_uint) -> io::Result<()> {
        let mut address = crate::raw::packet_address(index);
        address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
        // SAFETY: `address` is a sockaddr_ll of the length given.
        let result = unsafe {
            libc::bind(
                self.fd.as_raw_fd(),
                (&raw const address).cast(),
                mem::size_of_val(&address) as libc::socklen_t,
            )
        };
        match result {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    }

    fn set_option(&self, level: i32, option: i32, value: libc::c_int) -> io::Result<()> {
        // SAFETY: the option's value is an int, of which the length is given.
        let result = unsafe {
            libc::setsockopt(
                self.fd.as_raw_fd(),
                level,
                option,
                (&raw const value).cast(),
                mem::size_of_val(&value) as libc::socklen_t,
            )
        };
        match result {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    }
}

/// Lets the calling thread's waits end within a microsecond of their time,
/// instead of the kernel's default of 50 µs.
pub fn wake_on_time() {
    // SAFETY: PR_SET_TIMERSLACK takes nanoseconds, no pointers.
    unsafe {
        libc::prctl(libc::PR_SET_TIMERSLACK, 1_000 as libc::c_ulong);
    }
}

/// One message for each vector, without an address.
fn messages_for(vectors: &mut [libc::iovec]) -> Vec<libc::mmsghdr> {
    vectors
        .iter_mut()
        .map(|vector| {
            // SAFETY: all-zero bytes are a valid mmsghdr: no address, no vectors.
            let mut message: libc::mmsghdr = unsafe { mem::zeroed() };
            message.msg_hdr.msg_iov = vector;
            message.msg_hdr.msg_iovlen = 1;
            message
        })
        .collect()
}
