//! The head of an HTTP/1 request (RFC 9112 §2-5): where it ends, its request
//! line, its host. Field lines are not judged: the server sees the same bytes
//! and does that itself.
//!
//! Not by httparse: it refuses targets that are not UTF-8, minor versions above 1,
//! control characters in values and more fields than its buffer has, all of which
//! servers take. Where it accepts a head, a test holds us to reading the same.

use std::borrow::Cow;

use super::{BadHead, Inspection};

/// The head of a request, borrowed from the bytes that hold it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpHead<'a> {
    /// Bytes of the head, with the empty line that ends it and any before it.
    pub len: usize,
    /// As sent: methods are case-sensitive (RFC 9110 §9.1).
    pub method: &'a str,
    /// The request target as sent; may hold bytes beyond ASCII.
    pub target: &'a [u8],
    /// The target's path without query, as sent, not decoded; `*` for
    /// `OPTIONS *`, empty for CONNECT.
    pub path: &'a [u8],
    /// What follows the path's `?`, if it has one.
    pub query: Option<&'a [u8]>,
    /// Lower case, without port or trailing dot, IPv6 in its brackets: the
    /// target's own if it has one (RFC 9112 §3.2.2), else that of the Host field.
    pub host: Option<Cow<'a, str>>,
    /// `x` in HTTP/1.x.
    pub minor_version: u8,
    /// All field lines and the empty one, with their ends.
    fields: &'a [u8],
}

impl<'a> HttpHead<'a> {
    /// The values of every field line of that name, in any case.
    pub fn header<'n>(&self, name: &'n str) -> impl Iterator<Item = &'a [u8]> + use<'a, 'n> {
        (fields(self.fields))
            .filter(move |(n, _)| n.eq_ignore_ascii_case(name.as_bytes()))
            .map(|(_, value)| value)
    }

    /// Is it the last request of its connection (RFC 9112 §9.3, §9.6)?
    pub fn is_last(&self) -> bool {
        let says = |what: &[u8]| {
            let options = self
                .header("connection")
                .flat_map(|v| v.split(|&b| b == b','));
            let mut options = options.map(<[u8]>::trim_ascii);
            options.any(|option| option.eq_ignore_ascii_case(what))
        };
        says(b"close") || self.minor_version == 0 && !says(b"keep-alive")
    }

    /// Has every line a name and a colon, so that nobody reads a field where we read
    /// none? Lines that continue the one before, and white space before a colon, leave
    /// it to the reader (RFC 9112 §5.1, §5.2).
    pub fn has_plain_fields(&self) -> bool {
        let lines = self.fields.split(|&b| b == b'\n').map(without_cr);
        lines.filter(|line| !line.is_empty()).all(|line| {
            let name = until(line, b":");
            name.len() < line.len() && !name.is_empty() && name.iter().all(|&b| is_token_byte(b))
        })
    }

    /// Every field line that has a name, with its value as sent but for the
    /// white space around it.
    pub fn headers(&self) -> impl Iterator<Item = (&'a str, &'a [u8])> + use<'a> {
        fields(self.fields).filter_map(|(name, value)| Some((str::from_utf8(name).ok()?, value)))
    }
}

/// May a request of that method run twice (RFC 9110 §9.2.2)?
pub fn is_idempotent(method: &str) -> bool {
    ["GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"].contains(&method)
}

/// Whether a byte may stand in a token: a method, a field's name (RFC 9110 §5.6.2).
pub(crate) const fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(byte, b'!' | b'#'..=b'\'' | b'*' | b'+' | b'-' | b'.' | b'^'..=b'`' | b'|' | b'~')
}

/// How far a growing head has been looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Scan {
    /// No line ends between `line` and here.
    scanned: usize,
    /// Where the line begins whose end is looked for.
    line: usize,
    /// Where the request line stands, once it is whole and well formed.
    request_line: Option<(usize, usize)>,
}

/// `bytes` are not empty and cut at `limit`.
pub(super) fn inspect<'a>(bytes: &'a [u8], scan: &mut Scan, limit: usize) -> Inspection<'a> {
    match find_end(bytes, scan) {
        Ok(Some(end)) => match scan.request_line {
            Some((from, to)) => parse(bytes, from..to, end),
            None => Inspection::Bad(NO_REQUEST_LINE),
        },
        Ok(None) if bytes.len() < limit => Inspection::Incomplete,
        Ok(None) => Inspection::Bad(BadHead::TooLarge),
        Err(bad) => Inspection::Bad(bad),
    }
}

const NO_METHOD: BadHead = BadHead::Malformed("no method at the start of the request line");
const NO_TARGET: BadHead = BadHead::Malformed("no target in the request line");
const NO_HTTP_1: BadHead = BadHead::Malformed("no HTTP/1.x request");
const NO_REQUEST_LINE: BadHead = BadHead::Malformed("no request line");
const TWO_HOSTS: BadHead = BadHead::Malformed("more than one Host");

/// Line by line: empty ones may come before the request line (RFC 9112 §2.2),
/// the first one after it ends the head. A line may end in a bare LF, there too.
fn find_end(bytes: &[u8], scan: &mut Scan) -> Result<Option<usize>, BadHead> {
    while let Some(lf) = find_lf(bytes, scan.scanned) {
        let line = without_cr(&bytes[scan.line..lf]);
        let (from, to) = (scan.line, scan.line + line.len());
        (scan.scanned, scan.line) = (lf + 1, lf + 1);
        match scan.request_line {
            Some(_) if line.is_empty() => return Ok(Some(lf + 1)),
            Some(_) => {}
            None if line.is_empty() => {}
            None => {
                RequestLine::parse(line)?;
                scan.request_line = Some((from, to));
            }
        }
    }
    scan.scanned = bytes.len();
    // What cannot become a request is refused at once, not when its line ends.
    match (scan.request_line, bytes.get(scan.line)) {
        (None, Some(&first)) if first != b'\r' && !is_token_byte(first) => Err(NO_METHOD),
        _ => Ok(None),
    }
}

fn parse(bytes: &[u8], request_line: std::ops::Range<usize>, end: usize) -> Inspection<'_> {
    let line = match RequestLine::parse(&bytes[request_line.clone()]) {
        Ok(line) => line,
        Err(bad) => return Inspection::Bad(bad),
    };
    let after_line = bytes[request_line.end..end]
        .iter()
        .position(|&b| b == b'\n');
    let fields = &bytes[request_line.end + after_line.map_or(0, |at| at + 1)..end];
    let host_field = match host_field(fields) {
        Ok(field) => field,
        Err(bad) => return Inspection::Bad(bad),
    };
    let Target {
        authority,
        path,
        query,
    } = Target::parse(line.method, line.target);
    Inspection::Http(HttpHead {
        len: end,
        method: line.method,
        target: line.target,
        path,
        query,
        host: authority.or(host_field).and_then(host_of),
        minor_version: line.minor_version,
        fields,
    })
}

struct RequestLine<'a> {
    method: &'a str,
    target: &'a [u8],
    minor_version: u8,
}

impl<'a> RequestLine<'a> {
    /// `method SP target SP HTTP/1.x` (RFC 9112 §3); as nginx, several spaces
    /// pass for one and the target may hold bytes beyond ASCII.
    fn parse(line: &'a [u8]) -> Result<Self, BadHead> {
        let method_len = line.iter().take_while(|&&b| is_token_byte(b)).count();
        let (method, rest) = line.split_at(method_len);
        if method.is_empty() || rest.first().is_some_and(|&b| b != b' ') {
            return Err(NO_METHOD);
        }
        let rest = trim_start(rest);
        let target_len = rest.iter().take_while(|&&b| b > b' ' && b != 0x7f).count();
        let (target, rest) = rest.split_at(target_len);
        if target.is_empty() || rest.first().is_some_and(|&b| b != b' ') {
            return Err(NO_TARGET);
        }
        let minor_version = minor_version(trim_start(rest).trim_ascii_end())?;
        let method = str::from_utf8(method).map_err(|_| NO_METHOD)?;
        Ok(RequestLine {
            method,
            target,
            minor_version,
        })
    }
}

/// `x` of `HTTP/1.x`. HTTP/0.9 has no version, and no head either.
fn minor_version(version: &[u8]) -> Result<u8, BadHead> {
    let (major, minor) = match version.strip_prefix(b"HTTP/") {
        Some([major @ b'1'..=b'9', b'.', minor @ ..]) => (*major, minor),
        _ => return Err(NO_HTTP_1),
    };
    let minor = match *minor {
        [digit @ b'0'..=b'9'] => digit - b'0',
        // As nginx; no such version exists.
        [tens @ b'0'..=b'9', ones @ b'0'..=b'9'] => (tens - b'0') * 10 + (ones - b'0'),
        _ => return Err(NO_HTTP_1),
    };
    match major {
        b'1' => Ok(minor),
        other => Err(BadHead::Version(other.into())),
    }
}

/// What the four forms of a target name (RFC 9112 §3.2).
struct Target<'a> {
    authority: Option<&'a [u8]>,
    path: &'a [u8],
    query: Option<&'a [u8]>,
}

impl<'a> Target<'a> {
    fn parse(method: &str, target: &'a [u8]) -> Self {
        if method == "CONNECT" {
            return Target {
                authority: Some(target),
                path: b"",
                query: None,
            };
        }
        // A fragment stays with the client (RFC 9110 §4.2.5); servers drop one that is sent.
        let target = until(target, b"#");
        let (authority, rest) = match after_scheme(target) {
            Some(rest) => {
                let authority = until(rest, b"/?");
                (Some(authority), &rest[authority.len()..])
            }
            None => (None, target),
        };
        let path = until(rest, b"?");
        let query = rest.get(path.len() + 1..);
        let path = match path {
            // RFC 9112 §3.2.4: without path and query, OPTIONS asks about the server.
            [] if method == "OPTIONS" && query.is_none() => b"*",
            [] => b"/",
            path => path,
        };
        Target {
            authority,
            path,
            query,
        }
    }
}

/// What follows `scheme://`, if that is how the target begins (RFC 3986 §3.1).
fn after_scheme(target: &[u8]) -> Option<&[u8]> {
    if !target.first()?.is_ascii_alphabetic() {
        return None;
    }
    let scheme = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.');
    target[target.iter().take_while(|b| scheme(b)).count()..].strip_prefix(b"://")
}

/// The one Host field. Two of them could send a request to a server that reads
/// the other one; every server has to refuse that (RFC 9112 §3.2).
fn host_field(lines: &[u8]) -> Result<Option<&[u8]>, BadHead> {
    let mut hosts = fields(lines).filter(|(name, _)| name.eq_ignore_ascii_case(b"host"));
    match (hosts.next(), hosts.next()) {
        (_, Some(_)) => Err(TWO_HOSTS),
        (host, None) => Ok(host.map(|(_, value)| value)),
    }
}

/// The host of an authority: no user, port or trailing dot, in lower case.
fn host_of(authority: &[u8]) -> Option<Cow<'_, str>> {
    let authority = str::from_utf8(authority).ok()?;
    let authority = authority
        .rsplit_once('@')
        .map_or(authority, |(_, host)| host);
    let host = match authority.find(']') {
        Some(end) if authority.starts_with('[') => &authority[..=end],
        _ => authority
            .split_once(':')
            .map_or(authority, |(host, _)| host),
    };
    let host = host.strip_suffix('.').unwrap_or(host);
    // What no name holds can match no rule; the server will say what it thinks.
    if host.is_empty() || host.bytes().any(|b| b <= b' ' || b == 0x7f) {
        None
    } else if host.bytes().any(|b| b.is_ascii_uppercase()) {
        Some(Cow::Owned(host.to_ascii_lowercase()))
    } else {
        Some(Cow::Borrowed(host))
    }
}

/// Names and values of field lines. A line without a colon, and one that
/// continues the line before (RFC 9112 §5.2), names no field and is left out;
/// so is one with white space before its colon (§5.1).
fn fields(lines: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    (lines.split(|&b| b == b'\n')).filter_map(|line| {
        let colon = line.iter().position(|&b| b == b':')?;
        let (name, value) = (&line[..colon], &line[colon + 1..]);
        let named = !name.is_empty() && name.iter().all(|&b| is_token_byte(b));
        named.then(|| (name, trim(without_cr(value))))
    })
}

/// The first LF at or after `from`, eight bytes at a time.
fn find_lf(bytes: &[u8], from: usize) -> Option<usize> {
    const ONES: u64 = u64::from_ne_bytes([0x01; 8]);
    const HIGH: u64 = u64::from_ne_bytes([0x80; 8]);
    const LFS: u64 = u64::from_ne_bytes([b'\n'; 8]);
    let (chunks, _) = bytes[from..].as_chunks::<8>();
    let mut at = from;
    for &chunk in chunks {
        // Zero bytes of x are LFs; the test finds whether there is any (Hacker's Delight §6-1).
        let x = u64::from_ne_bytes(chunk) ^ LFS;
        if x.wrapping_sub(ONES) & !x & HIGH != 0 {
            break;
        }
        at += 8;
    }
    bytes[at..].iter().position(|&b| b == b'\n').map(|i| at + i)
}

fn without_cr(line: &[u8]) -> &[u8] {
    line.strip_suffix(b"\r").unwrap_or(line)
}

fn until<'a>(bytes: &'a [u8], ends: &[u8]) -> &'a [u8] {
    let end = bytes.iter().position(|b| ends.contains(b));
    &bytes[..end.unwrap_or(bytes.len())]
}

fn trim_start(bytes: &[u8]) -> &[u8] {
    &bytes[bytes.iter().take_while(|&&b| b == b' ').count()..]
}

/// Without optional white space around it (RFC 9110 §5.6.3).
fn trim(mut bytes: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] = bytes {
        bytes = rest;
    }
    while let [rest @ .., b' ' | b'\t'] = bytes {
        bytes = rest;
    }
    bytes
}
