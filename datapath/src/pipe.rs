//! Bytes that go from one socket to another without being copied: through a pipe, by splice(2).

use std::io::{self, PipeReader, PipeWriter};
use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd};

/// What a pipe is to hold, in bytes; the most that /proc/sys/fs/pipe-max-size has by default.
const ROOM: libc::c_int = 1 << 20;

/// A way from one socket to another.
#[derive(Debug)]
pub struct Pipe {
    reader: PipeReader,
    writer: PipeWriter,
}

impl Pipe {
    /// # Errors
    /// There is no descriptor left.
    pub fn new() -> io::Result<Self> {
        let (reader, writer) = io::pipe()?;
        // SAFETY: a descriptor that is open. Where that is too much, the pipe stays as long as it is.
        unsafe { libc::fcntl(writer.as_raw_fd(), libc::F_SETPIPE_SZ, ROOM) };
        Ok(Self { reader, writer })
    }

    /// Takes at most so many bytes from the socket; 0: it has ended. The pipe must be empty.
    ///
    /// # Errors
    /// The socket's, and `WouldBlock` when its timeout is over.
    pub fn fill(&mut self, from: &TcpStream, most: usize) -> io::Result<usize> {
        splice(from, &self.writer, most)
    }

    /// Gives the bytes that are in it to the socket.
    ///
    /// # Errors
    /// The socket's, and `WouldBlock` when its timeout is over. What is left is lost.
    pub fn empty(&mut self, to: &TcpStream, mut bytes: usize) -> io::Result<()> {
        while bytes > 0 {
            bytes -= match splice(&self.reader, to, bytes)? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                moved => moved,
            };
        }
        Ok(())
    }
}

fn splice(from: &impl AsFd, to: &impl AsFd, most: usize) -> io::Result<usize> {
    let (from, to) = (from.as_fd().as_raw_fd(), to.as_fd().as_raw_fd());
    loop {
        // SAFETY: descriptors that are open; neither has an offset.
        let moved = unsafe {
            libc::splice(
                from,
                std::ptr::null_mut(),
                to,
                std::ptr::null_mut(),
                most,
                libc::SPLICE_F_MOVE,
            )
        };
        match usize::try_from(moved) {
            Ok(moved) => return Ok(moved),
            Err(_) => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => {}
                error => return Err(error),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::time::Duration;

    use super::*;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (one, listener.accept().unwrap().0)
    }

    #[test]
    fn bytes_go_through_in_order_and_ends_are_seen() {
        let sent: Vec<u8> = (0..3_000_000u32).map(|n| (n / 7) as u8).collect();
        let ((mut server, from), (to, mut client)) = (pair(), pair());
        let begun = sent.clone();
        let writes = std::thread::spawn(move || server.write_all(&begun).unwrap());
        let reads = std::thread::spawn(move || {
            let mut heard = Vec::new();
            client.read_to_end(&mut heard).unwrap();
            heard
        });
        let mut pipe = Pipe::new().unwrap();
        let mut moved = 0;
        loop {
            let bytes = pipe.fill(&from, 300_000).unwrap();
            assert!(bytes <= 300_000);
            if bytes == 0 {
                break;
            }
            pipe.empty(&to, bytes).unwrap();
            moved += bytes;
        }
        drop(to);
        writes.join().unwrap();
        assert_eq!(moved, sent.len());
        assert!(reads.join().unwrap() == sent);
    }

    #[test]
    fn who_says_nothing_is_waited_for_as_long_as_its_socket_says() {
        let (_silent, from) = pair();
        from.set_read_timeout(Some(Duration::from_millis(10)))
            .unwrap();
        let error = Pipe::new().unwrap().fill(&from, 10).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn a_reader_that_has_gone_is_an_error() {
        let ((mut server, from), (to, client)) = (pair(), pair());
        drop(client);
        let mut pipe = Pipe::new().unwrap();
        let gone = (0..10).find_map(|_| {
            server.write_all(b"bytes").unwrap();
            let bytes = pipe.fill(&from, 100).unwrap();
            std::thread::sleep(Duration::from_millis(10));
            pipe.empty(&to, bytes).err()
        });
        let kind = gone.expect("it is seen").kind();
        assert!([io::ErrorKind::BrokenPipe, io::ErrorKind::ConnectionReset].contains(&kind));
    }
}
