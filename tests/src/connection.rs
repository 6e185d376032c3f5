//! A client that decides itself which bytes it sends when, and shows all that
//! it receives. It works in the network of the calling thread.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, SocketAddrV4, TcpStream};
use std::time::{Duration, Instant};

use socket2::{Domain, SockRef, Socket, Type};

use crate::cluster::PATIENCE;

/// The lab's service.
pub const VIP: SocketAddrV4 = SocketAddrV4::new(trapeze_lab::VIP, 80);
/// The same with TLS.
pub const VIP_TLS: SocketAddrV4 = SocketAddrV4::new(trapeze_lab::VIP, 443);

/// A connection; reads end after [`PATIENCE`] with an error.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    unread: Vec<u8>,
}

/// An answer, whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// Its status.
    pub status: u16,
    /// Its head as received, with the empty line.
    pub head: String,
    /// Its body, without the framing of chunks.
    pub body: Vec<u8>,
}

impl Connection {
    /// To the service, from any port.
    pub fn open() -> Self {
        Self::to(VIP)
    }

    /// To any address.
    pub fn to(address: SocketAddrV4) -> Self {
        Self::try_to(address, 0).expect("a connection")
    }

    /// From one port (or any, 0), though it may have been used just before.
    ///
    /// # Errors
    /// Those of connect.
    pub fn try_to(address: SocketAddrV4, port: u16) -> io::Result<Self> {
        // A process that another test is just starting may have the port's last socket yet.
        let deadline = Instant::now() + PATIENCE;
        loop {
            match Self::connect(address, port) {
                Err(e) if e.kind() == ErrorKind::AddrNotAvailable && Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                result => return result,
            }
        }
    }

    fn connect(address: SocketAddrV4, port: u16) -> io::Result<Self> {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        if port != 0 {
            socket.set_reuse_address(true)?;
            let local = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, port);
            socket.bind(&SocketAddr::from(local).into())?;
        }
        socket.connect_timeout(&SocketAddr::from(address).into(), PATIENCE)?;
        let stream = TcpStream::from(socket);
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Self {
            stream,
            unread: Vec::new(),
        })
    }

    /// The socket.
    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// The client's port.
    pub fn port(&self) -> u16 {
        self.stream.local_addr().expect("it is connected").port()
    }

    /// Sends bytes.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) -> &mut Self {
        self.stream
            .write_all(bytes.as_ref())
            .expect("they are sent");
        self
    }

    /// Sends bytes.
    ///
    /// # Errors
    /// The other side has closed, or takes nothing for too long.
    pub fn try_send(&mut self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        self.stream.write_all(bytes.as_ref())
    }

    /// Sends bytes in pieces of `size`, with a pause after each.
    pub fn send_pieces(
        &mut self,
        bytes: impl AsRef<[u8]>,
        size: usize,
        pause: Duration,
    ) -> &mut Self {
        for piece in bytes.as_ref().chunks(size) {
            self.send(piece);
            std::thread::sleep(pause);
        }
        self
    }

    /// Asks for a path.
    pub fn ask(&mut self, path: &str) -> Response {
        self.send(format!("GET {path} HTTP/1.1\r\nHost: site.example\r\n\r\n"));
        self.response()
    }

    /// The next answer, to anything but HEAD.
    pub fn response(&mut self) -> Response {
        self.try_response(true).expect("a whole answer")
    }

    /// The next answer; `has_body` is false after HEAD.
    ///
    /// # Errors
    /// The connection ends before the answer does, or is silent for too long.
    pub fn try_response(&mut self, has_body: bool) -> io::Result<Response> {
        let head = self.take_through(b"\r\n\r\n")?;
        let head = String::from_utf8_lossy(&head).into_owned();
        let status = head
            .split(' ')
            .nth(1)
            .and_then(|status| status.parse().ok());
        let status: u16 = status.ok_or_else(|| io::Error::other(format!("no HTTP: {head:?}")))?;
        let mut response = Response {
            status,
            head,
            body: Vec::new(),
        };
        if !has_body || status == 204 || status == 304 || status / 100 == 1 {
            return Ok(response);
        }
        if let Some(length) = response.header("content-length") {
            let length = length.parse().map_err(io::Error::other)?;
            response.body = self.take(length)?;
        } else if response.header("transfer-encoding").is_some() {
            loop {
                let line = self.take_through(b"\r\n")?;
                let line = String::from_utf8_lossy(&line[..line.len() - 2]).into_owned();
                let length = usize::from_str_radix(&line, 16).map_err(io::Error::other)?;
                let chunk = self.take(length)?;
                self.take_through(b"\r\n")?;
                if length == 0 {
                    break;
                }
                response.body.extend(chunk);
            }
        } else {
            response.body = self.rest()?;
        }
        Ok(response)
    }

    /// All that comes until the other side closes.
    ///
    /// # Errors
    /// It resets, or is silent for too long.
    pub fn rest(&mut self) -> io::Result<Vec<u8>> {
        self.stream.read_to_end(&mut self.unread)?;
        Ok(std::mem::take(&mut self.unread))
    }

    /// Asserts that the other side closes now, in order.
    pub fn expect_end(&mut self) {
        let rest = self.rest().expect("an orderly end");
        assert!(rest.is_empty(), "{:?}", String::from_utf8_lossy(&rest));
    }

    /// Reads and forgets some bytes.
    ///
    /// # Errors
    /// Those of reading; it ends early.
    pub fn skip(&mut self, length: usize) -> io::Result<()> {
        self.take(length).map(drop)
    }

    /// What has been received and not been asked for yet.
    pub fn unread(&self) -> &[u8] {
        &self.unread
    }

    /// Says that nothing more will be sent.
    pub fn finish(&mut self) -> &mut Self {
        self.stream.shutdown(Shutdown::Write).expect("it is open");
        self
    }

    /// Ends it with a reset.
    pub fn abort(self) {
        let socket = SockRef::from(&self.stream);
        socket.set_linger(Some(Duration::ZERO)).expect("SO_LINGER");
    }

    fn take(&mut self, length: usize) -> io::Result<Vec<u8>> {
        while self.unread.len() < length {
            self.read_more()?;
        }
        let rest = self.unread.split_off(length);
        Ok(std::mem::replace(&mut self.unread, rest))
    }

    fn take_through(&mut self, end: &[u8]) -> io::Result<Vec<u8>> {
        loop {
            if let Some(at) = self.unread.windows(end.len()).position(|w| w == end) {
                return self.take(at + end.len());
            }
            self.read_more()?;
        }
    }

    fn read_more(&mut self) -> io::Result<()> {
        let mut buffer = [0; 1 << 16];
        match self.stream.read(&mut buffer)? {
            0 => Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                format!("it ends after {} bytes", self.unread.len()),
            )),
            length => {
                self.unread.extend_from_slice(&buffer[..length]);
                Ok(())
            }
        }
    }
}

impl Response {
    /// The value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(':'));
        lines
            .find(|(key, _)| key.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.trim())
    }

    /// Which backend answered.
    ///
    /// # Panics
    /// None did.
    pub fn backend(&self) -> &str {
        self.header("x-backend")
            .unwrap_or_else(|| panic!("no backend's: {}", self.head))
    }

    /// Asserts that a backend answered 200; its name.
    pub fn ok(&self) -> &str {
        assert_eq!(self.status, 200, "{}", self.head);
        self.backend()
    }
}
