//! The body of a ClientHello (RFC 8446 §4.1.2, RFC 5246 §7.4.1.2): the server
//! name and protocols that a rule can ask for. Everything else is skipped, but
//! every length must fit exactly.
//!
//! ```text
//! version(2) random(32) session_id<0..32> cipher_suites<2..> compression<1..> extensions<..>?
//! ```

/// What a client says of where it wants to go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientHello {
    /// Bytes of the message with the headers of its records, from the first
    /// byte of the connection.
    pub len: usize,
    /// In lower case and without trailing dot (RFC 6066 §3).
    pub server_name: Option<String>,
    /// The protocols offered, the preferred first (RFC 7301 §3.1).
    pub alpn: Vec<Vec<u8>>,
}

const SERVER_NAME: u16 = 0;
const HOST_NAME: u8 = 0;
const ALPN: u16 = 16;

impl ClientHello {
    /// Reads the message's body; none if a length in it does not fit.
    pub(super) fn parse(body: &[u8], len: usize) -> Option<ClientHello> {
        let mut hello = ClientHello {
            len,
            server_name: None,
            alpn: Vec::new(),
        };
        let mut body = Reader(body);
        body.take(2 + 32)?;
        body.vector8().filter(|id| id.0.len() <= 32)?;
        body.vector16()
            .filter(|suites| suites.0.len() >= 2 && suites.0.len() % 2 == 0)?;
        body.vector8().filter(|methods| !methods.0.is_empty())?;
        if body.0.is_empty() {
            // A client older than extensions (RFC 5246 §7.4.1.2).
            return Some(hello);
        }
        let mut extensions = body.vector16()?;
        if !body.0.is_empty() {
            return None;
        }
        let (mut names, mut protocols) = (0, 0);
        while !extensions.0.is_empty() {
            let kind = extensions.u16()?;
            let data = extensions.vector16()?;
            match kind {
                SERVER_NAME => {
                    names += 1;
                    hello.server_name = server_name(data)?;
                }
                ALPN => {
                    protocols += 1;
                    hello.alpn = alpn(data)?;
                }
                _ => {}
            }
        }
        // At most one of each kind (RFC 8446 §4.2): with two, we and the server
        // might each believe another.
        (names <= 1 && protocols <= 1).then_some(hello)
    }
}

/// `server_name_list<1..>` of `type(1) name<1..>`: the one host name.
fn server_name(mut data: Reader<'_>) -> Option<Option<String>> {
    let mut list = data.vector16().filter(|list| !list.0.is_empty())?;
    let mut host = None;
    while !list.0.is_empty() {
        let kind = list.take(1)?[0];
        let name = list.vector16()?;
        if kind == HOST_NAME && host.replace(name.0).is_some() {
            return None;
        }
    }
    if !data.0.is_empty() {
        return None;
    }
    // What no name holds can match no rule; the server will say what it thinks.
    let host = host.and_then(|h| str::from_utf8(h).ok());
    let host = host.map(|h| h.strip_suffix('.').unwrap_or(h));
    let graphic = |h: &&str| !h.is_empty() && h.bytes().all(|b| b.is_ascii_graphic());
    Some(host.filter(graphic).map(str::to_ascii_lowercase))
}

/// `protocol_name_list<2..>` of `name<1..255>`.
fn alpn(mut data: Reader<'_>) -> Option<Vec<Vec<u8>>> {
    let mut list = data.vector16().filter(|list| !list.0.is_empty())?;
    let mut protocols = Vec::new();
    while !list.0.is_empty() {
        protocols.push(list.vector8().filter(|name| !name.0.is_empty())?.0.to_vec());
    }
    data.0.is_empty().then_some(protocols)
}

/// What is left of a message.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn u16(&mut self) -> Option<u16> {
        self.take(2).map(|b| u16::from_be_bytes([b[0], b[1]]))
    }

    /// A vector with a length of one byte (RFC 8446 §3.4).
    fn vector8(&mut self) -> Option<Reader<'a>> {
        let len = self.take(1)?[0].into();
        self.take(len).map(Reader)
    }

    /// A vector with a length of two bytes.
    fn vector16(&mut self) -> Option<Reader<'a>> {
        let len = self.u16()?.into();
        self.take(len).map(Reader)
    }
}
