//! A connection that is opened to see whether somebody listens, and for nothing else.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::linger::reset_on_close;
use crate::udp::set_option;

/// Somebody has been asked.
#[derive(Debug)]
pub struct Knock {
    fd: OwnedFd,
}

/// What has been heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// It listens.
    Open,
    /// The host is there, and nobody listens.
    Refused,
    /// Nothing so far.
    Nothing,
    /// That there is no way to it.
    Unreachable,
}

impl Knock {
    /// Begins to connect. When this is dropped the connection is reset, so that nothing of
    /// it is left on either side.
    ///
    /// # Errors
    /// There is no socket to be had, or no route.
    pub fn at(from: Ipv4Addr, to: SocketAddrV4) -> io::Result<Self> {
        let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: no pointers.
        let fd = unsafe { libc::socket(libc::AF_INET, kind, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just given us this descriptor.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let linger = libc::linger {
            l_onoff: 1,
            l_linger: 0,
        };
        set_option(&fd, libc::SOL_SOCKET, libc::SO_LINGER, linger)?;
        let (from, to) = (address(SocketAddrV4::new(from, 0)), address(to));
        let length = size_of::<libc::sockaddr_in>() as u32;
        // SAFETY: a whole sockaddr_in.
        if unsafe { libc::bind(fd.as_raw_fd(), (&raw const from).cast(), length) } < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: as above.
        if unsafe { libc::connect(fd.as_raw_fd(), (&raw const to).cast(), length) } < 0 {
            let error = io::Error::last_os_error();
            if error.raw_os_error() != Some(libc::EINPROGRESS) {
                return Err(error);
            }
        }
        Ok(Self { fd })
    }

    /// To speak on the connection once it is open, which does not block. It is not reset any
    /// more when all of it is dropped.
    ///
    /// # Errors
    /// The kernel's.
    pub fn stream(&self) -> io::Result<TcpStream> {
        let stream = TcpStream::from(self.fd.try_clone()?);
        reset_on_close(&stream, false)?;
        Ok(stream)
    }

    /// What has come of it so far. An error is told once.
    pub fn heard(&self) -> Heard {
        let mut poll = libc::pollfd {
            fd: self.fd.as_raw_fd(),
            events: libc::POLLOUT,
            revents: 0,
        };
        // SAFETY: one whole pollfd.
        if unsafe { libc::poll(&raw mut poll, 1, 0) } <= 0 {
            return Heard::Nothing;
        }
        let (mut error, mut length) = (0i32, size_of::<i32>() as u32);
        // SAFETY: room for the number, and its size.
        let asked = unsafe {
            libc::getsockopt(
                self.fd.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_ERROR,
                (&raw mut error).cast(),
                &raw mut length,
            )
        };
        match error {
            0 if asked == 0 => Heard::Open,
            libc::ECONNREFUSED => Heard::Refused,
            _ => Heard::Unreachable,
        }
    }
}

fn address(of: SocketAddrV4) -> libc::sockaddr_in {
    // SAFETY: all-zero is a valid sockaddr_in.
    let mut address: libc::sockaddr_in = unsafe { std::mem::zeroed() };
    address.sin_family = libc::AF_INET as u16;
    address.sin_port = of.port().to_be();
    address.sin_addr.s_addr = u32::from(*of.ip()).to_be();
    address
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{SocketAddr, TcpListener};
    use std::time::{Duration, Instant};

    fn answer(to: SocketAddrV4) -> Heard {
        let knock = Knock::at(Ipv4Addr::LOCALHOST, to).unwrap();
        let begun = Instant::now();
        loop {
            match knock.heard() {
                Heard::Nothing if begun.elapsed() < Duration::from_secs(5) => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                heard => return heard,
            }
        }
    }

    #[test]
    fn who_listens_is_heard() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let SocketAddr::V4(at) = listener.local_addr().unwrap() else {
            panic!("IPv4");
        };
        assert_eq!(answer(at), Heard::Open);
        drop(listener);
        assert_eq!(answer(at), Heard::Refused);
    }
}
