//! How a socket ends.

use std::io;
use std::net::TcpStream;
use std::os::fd::AsRawFd;

use crate::map::check;

/// Whether the connection is to be reset when it is closed, whatever waits to be sent.
pub fn reset_on_close(stream: &TcpStream, reset: bool) -> io::Result<()> {
    let linger = libc::linger {
        l_onoff: reset.into(),
        l_linger: 0,
    };
    // SAFETY: a whole struct linger.
    check(unsafe {
        libc::setsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_LINGER,
            (&raw const linger).cast(),
            size_of_val(&linger) as u32,
        )
    })
}
