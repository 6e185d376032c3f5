//! The daemons' UDP socket: batches in and out, one socket a worker, and a
//! flow's datagrams always at the same worker.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use crate::abi;

/// Datagrams in one system call.
pub const BATCH: usize = 64;
/// Largest datagram.
const DATAGRAM: usize = 65536;
/// Offset in our datagrams of the inner packet's TCP source port: Geneve, option, IPv4.
const INNER_PORT: u32 = 44 + 20;
/// The same of the option's kind.
const KIND: u32 = 8 + 4 + 1;

/// A call without a nearer deadline waits this long.
pub const LONGEST_WAIT: Duration = Duration::from_millis(200);

/// A UDP socket with room for a batch.
pub struct UdpSocket {
    fd: OwnedFd,
    batch: Box<Batch>,
}

/// Tells whether anything waits at a socket; reads nothing.
pub struct Ear(OwnedFd);

impl Ear {
    /// A datagram has come that has not been taken.
    pub fn has_unread(&self) -> io::Result<bool> {
        let mut length: libc::c_int = 0;
        // SAFETY: an int, which is what it fills.
        match unsafe { libc::ioctl(self.0.as_raw_fd(), libc::FIONREAD as _, &raw mut length) } {
            0 => Ok(length > 0),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// What `recvmmsg` fills; set up once, for the headers point into the buffers.
struct Batch {
    buffers: Vec<u8>,
    names: [libc::sockaddr_in; BATCH],
    slices: [libc::iovec; BATCH],
    messages: [libc::mmsghdr; BATCH],
}

// SAFETY: its pointers lead into itself and its own heap memory.
unsafe impl Send for Batch {}

impl Batch {
    fn new() -> Box<Self> {
        let mut batch = Box::new(Self {
            buffers: vec![0; BATCH * DATAGRAM],
            // SAFETY: all-zero is a valid value of these C structs.
            names: unsafe { std::mem::zeroed() },
            // SAFETY: as above.
            slices: unsafe { std::mem::zeroed() },
            // SAFETY: as above.
            messages: unsafe { std::mem::zeroed() },
        });
        let parts = &mut *batch;
        for (i, buffer) in parts.buffers.chunks_exact_mut(DATAGRAM).enumerate() {
            parts.slices[i] = libc::iovec {
                iov_base: buffer.as_mut_ptr().cast(),
                iov_len: DATAGRAM,
            };
            let header = &mut parts.messages[i].msg_hdr;
            header.msg_iov = &raw mut parts.slices[i];
            header.msg_iovlen = 1;
            header.msg_name = (&raw mut parts.names[i]).cast();
            header.msg_namelen = size_of::<libc::sockaddr_in>() as u32;
        }
        batch
    }
}

impl UdpSocket {
    /// Binds worker `index` of `workers` to an address; all of one process, in order.
    pub fn bind(address: SocketAddrV4, index: usize, workers: usize) -> io::Result<Self> {
        // SAFETY: no pointers.
        let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just given us this descriptor.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        set_option(&fd, libc::SOL_SOCKET, libc::SO_REUSEPORT, 1i32)?;
        // Our tag authenticates; without a checksum nothing is summed twice (RFC 8926 §3.3).
        set_option(&fd, libc::SOL_SOCKET, libc::SO_NO_CHECK, 1i32)?;
        for (force, plain) in [
            (libc::SO_RCVBUFFORCE, libc::SO_RCVBUF),
            (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF),
        ] {
            set_option(&fd, libc::SOL_SOCKET, force, 8i32 << 20)
                .or_else(|_| set_option(&fd, libc::SOL_SOCKET, plain, 8i32 << 20))?;
        }
        let name = sockaddr(address);
        // SAFETY: a whole sockaddr_in.
        let bound = unsafe {
            libc::bind(
                fd.as_raw_fd(),
                (&raw const name).cast(),
                size_of_val(&name) as u32,
            )
        };
        if bound < 0 {
            return Err(io::Error::last_os_error());
        }
        if workers > 1 && index == 0 {
            steer_by_inner_port(&fd, workers as u32)?;
        }
        let wait = libc::timeval {
            tv_sec: 0,
            tv_usec: LONGEST_WAIT.as_micros() as libc::suseconds_t,
        };
        set_option(&fd, libc::SOL_SOCKET, libc::SO_RCVTIMEO, wait)?;
        Ok(Self {
            fd,
            batch: Batch::new(),
        })
    }

    /// Waits for datagrams, at most so long, and no longer than [`LONGEST_WAIT`];
    /// returns how many there are.
    pub fn receive(&mut self, timeout: Duration) -> io::Result<usize> {
        // The usual case takes one system call.
        if timeout >= LONGEST_WAIT {
            return self.receive_batch(libc::MSG_WAITFORONE);
        }
        match self.wait(timeout)? {
            true => self.receive_ready(),
            false => Ok(0),
        }
    }

    /// Datagrams that are there; returns how many.
    pub fn receive_ready(&mut self) -> io::Result<usize> {
        self.receive_batch(libc::MSG_DONTWAIT)
    }

    /// Waits until there is a datagram, at most so long, and no longer than [`LONGEST_WAIT`]; takes none.
    pub fn wait(&self, timeout: Duration) -> io::Result<bool> {
        let timeout = timeout.min(LONGEST_WAIT);
        let mut poll = libc::pollfd {
            fd: self.fd.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        let time = libc::timespec {
            tv_sec: 0,
            tv_nsec: timeout.subsec_nanos().into(),
        };
        // SAFETY: one pollfd, a timespec, no signal mask.
        match unsafe { libc::ppoll(&mut poll, 1, &time, std::ptr::null()) } {
            0 => Ok(false),
            n if n < 0 => match io::Error::last_os_error() {
                e if e.kind() == io::ErrorKind::Interrupted => Ok(false),
                e => Err(e),
            },
            _ => Ok(true),
        }
    }

    fn receive_batch(&mut self, flags: i32) -> io::Result<usize> {
        // SAFETY: BATCH headers, set up by Batch::new, whose memory the batch owns.
        let count = unsafe {
            libc::recvmmsg(
                self.fd.as_raw_fd(),
                self.batch.messages.as_mut_ptr(),
                BATCH as u32,
                flags as _,
                std::ptr::null_mut(),
            )
        };
        if count >= 0 {
            return Ok(count as usize);
        }
        match io::Error::last_os_error() {
            e if matches!(
                e.kind(),
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
            ) =>
            {
                Ok(0)
            }
            // An ICMP error about something we sent: not about what we receive.
            e if e.raw_os_error() == Some(libc::ECONNREFUSED) => Ok(0),
            e => Err(e),
        }
    }

    /// Datagram `index` of the last batch, and its sender.
    pub fn datagram(&mut self, index: usize) -> (&mut [u8], SocketAddrV4) {
        let length = self.batch.messages[index].msg_len as usize;
        let name = &self.batch.names[index];
        let source = SocketAddrV4::new(
            Ipv4Addr::from(u32::from_be(name.sin_addr.s_addr)),
            u16::from_be(name.sin_port),
        );
        let start = index * DATAGRAM;
        (&mut self.batch.buffers[start..start + length], source)
    }

    /// Sends datagrams; those that the kernel has no room or route for are lost,
    /// as on any network. Returns how many.
    pub fn send(&self, datagrams: &Outbox) -> usize {
        let batches = datagrams.entries.chunks(BATCH);
        batches
            .map(|batch| send_batch(&self.fd, &datagrams.bytes, batch))
            .sum()
    }

    /// For another thread, to see whether anything waits here.
    pub fn ear(&self) -> io::Result<Ear> {
        Ok(Ear(self.fd.try_clone()?))
    }

    /// Datagrams lost so far because this socket's queue was full.
    pub fn lost(&self) -> io::Result<u32> {
        const DROPS: usize = 8; // SK_MEMINFO_DROPS
        let mut values = [0u32; DROPS + 1];
        let mut length = size_of_val(&values) as u32;
        // SAFETY: room for `length` bytes.
        let done = unsafe {
            libc::getsockopt(
                self.fd.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_MEMINFO,
                values.as_mut_ptr().cast(),
                &mut length,
            )
        };
        if done < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(values[DROPS])
    }
}

/// Datagrams to be sent in one go.
#[derive(Debug, Default)]
pub struct Outbox {
    bytes: Vec<u8>,
    entries: Vec<(SocketAddrV4, usize, usize)>,
}

impl Outbox {
    /// Adds a datagram that `write` appends to the buffer it is given.
    pub fn push(&mut self, to: SocketAddrV4, write: impl FnOnce(&mut Vec<u8>)) {
        let start = self.bytes.len();
        write(&mut self.bytes);
        self.entries.push((to, start, self.bytes.len() - start));
    }

    /// Whether there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(crate) fn entries(&self) -> &[(SocketAddrV4, usize, usize)] {
        &self.entries
    }

    /// Forgets all, keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.entries.clear();
    }
}

/// Returns how many could not be sent.
pub(crate) fn send_batch(
    fd: &OwnedFd,
    bytes: &[u8],
    batch: &[(SocketAddrV4, usize, usize)],
) -> usize {
    // SAFETY: all-zero is a valid value of these C structs.
    let mut names: [libc::sockaddr_in; BATCH] = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    let mut messages: [libc::mmsghdr; BATCH] = unsafe { std::mem::zeroed() };
    let mut slices: [libc::iovec; BATCH] = [libc::iovec {
        iov_base: std::ptr::null_mut(),
        iov_len: 0,
    }; BATCH];
    for (i, &(to, start, length)) in batch.iter().enumerate() {
        let datagram = &bytes[start..start + length];
        names[i] = sockaddr(to);
        slices[i] = libc::iovec {
            iov_base: datagram.as_ptr().cast_mut().cast(),
            iov_len: datagram.len(),
        };
        messages[i].msg_hdr.msg_iov = &raw mut slices[i];
        messages[i].msg_hdr.msg_iovlen = 1;
        messages[i].msg_hdr.msg_name = (&raw mut names[i]).cast();
        messages[i].msg_hdr.msg_namelen = size_of::<libc::sockaddr_in>() as u32;
    }
    let (mut done, mut lost) = (0, 0);
    while done < batch.len() {
        // SAFETY: the headers from `done` on, whose buffers are only read.
        let count = unsafe {
            libc::sendmmsg(
                fd.as_raw_fd(),
                messages.as_mut_ptr().add(done),
                (batch.len() - done) as u32,
                libc::MSG_DONTWAIT,
            )
        };
        match count {
            // The one in front cannot be sent (no route, no room): lost, the rest goes on.
            n if n <= 0 => {
                done += 1;
                lost += 1;
            }
            n => done += n as usize,
        }
    }
    lost
}

fn sockaddr(address: SocketAddrV4) -> libc::sockaddr_in {
    libc::sockaddr_in {
        sin_family: libc::AF_INET as u16,
        sin_port: address.port().to_be(),
        sin_addr: libc::in_addr {
            s_addr: u32::from(*address.ip()).to_be(),
        },
        sin_zero: [0; 8],
    }
}

/// One of the classic filters; `jump`: as far if the condition holds.
fn instruction(code: u16, k: u32, jump: u8) -> libc::sock_filter {
    libc::sock_filter {
        code,
        jt: jump,
        jf: 0,
        k,
    }
}

/// Which worker: the client's port modulo their number, wherever the datagram came from;
/// our own port where a server speaks to that.
fn steer_by_inner_port(fd: &OwnedFd, workers: u32) -> io::Result<()> {
    let mut program = [
        instruction(0x30, KIND, 0),                    // ldb
        instruction(0x15, abi::META_SPLICE.into(), 2), // jeq, to the last load
        instruction(0x28, INNER_PORT, 0),              // ldh
        instruction(0x05, 1, 0),                       // ja
        instruction(0x28, INNER_PORT + 2, 0),
        instruction(0x94, workers, 0), // mod
        instruction(0x16, 0, 0),       // ret a
    ];
    let program = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_mut_ptr(),
    };
    // SAFETY: a whole sock_fprog, whose instructions outlive the call.
    let done = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_REUSEPORT_CBPF,
            (&raw const program).cast(),
            size_of_val(&program) as u32,
        )
    };
    if done < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

pub(crate) fn set_option<T: Copy>(fd: &OwnedFd, level: i32, name: i32, value: T) -> io::Result<()> {
    // SAFETY: a whole value; the kernel checks its size against the option's.
    let done = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            name,
            (&raw const value).cast(),
            size_of_val(&value) as u32,
        )
    };
    if done < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}
