//! What the first bytes of a connection are: an HTTP/1 request head, a TLS
//! ClientHello, the preface of HTTP/2, or nothing that can be served. It reads
//! only what a rule or policy can ask for; whether the rest is right is left to
//! the server, so that clients see the same as when talking to it alone.

mod framing;
mod hello;
mod http;
mod likeness;
mod tls;

#[cfg(test)]
mod hello_tests;
#[cfg(test)]
mod http_tests;
#[cfg(test)]
mod split_tests;

pub use framing::{Expected, Followed, follow, follow_head};
pub use hello::ClientHello;
pub(crate) use http::is_token_byte;
pub use http::{HttpHead, is_idempotent};
pub use likeness::{HEAD_MAX as LIKENESS_HEAD_MAX, likeness};
pub use tls::HANDSHAKE as TLS_HANDSHAKE;

/// What the first bytes of a connection are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Inspection<'a> {
    /// Nothing is decided yet: come again with more bytes.
    Incomplete,
    /// A whole head of an HTTP/1 request.
    Http(HttpHead<'a>),
    /// A whole ClientHello.
    Tls(ClientHello),
    /// The client speaks HTTP/2 without TLS (RFC 9113 §3.4).
    H2Preface,
    /// No server would take this.
    Bad(BadHead),
}

/// Why no server would take it: what to answer follows from this.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadHead {
    /// Not HTTP/1, with the reason; answer 400.
    #[error("malformed request: {0}")]
    Malformed(&'static str),
    /// HTTP of another major version than 1; answer 505 (RFC 9110 §15.6.6).
    #[error("HTTP/{0} where HTTP/1.x is spoken")]
    Version(char),
    /// No end of the head within the limit; answer 431 (RFC 6585 §5).
    #[error("request head too large")]
    TooLarge,
    /// Begins as TLS and is not a ClientHello; answer the alert `decode_error`
    /// (RFC 8446 §6.2).
    #[error("malformed TLS ClientHello: {0}")]
    TlsMalformed(&'static str),
    /// A ClientHello beyond the limit; answer the alert `record_overflow`.
    #[error("TLS ClientHello too large")]
    TlsTooLarge,
}

/// How far earlier looks at a growing head have come, so that each byte is
/// looked at once however the head arrives: a head of 64 KiB in one-byte
/// segments would otherwise cost two billion steps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress(Stage);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Stage {
    /// No byte has said which protocol this is.
    #[default]
    Undecided,
    Http(http::Scan),
    Tls(tls::Scan),
}

/// Decides what `bytes`, all that have arrived so far, begin with. A head may
/// take up to `limit` bytes.
pub fn inspect(bytes: &[u8], limit: usize) -> Inspection<'_> {
    inspect_from(bytes, &mut Progress::default(), limit)
}

/// As [`inspect`], going on where the last call with this `progress` stopped.
/// `bytes` must begin with the bytes of that call, and `limit` be the same.
/// However the bytes were cut, the answer is the one that [`inspect`] gives, as
/// soon as the bytes that decide it are there. After any answer but
/// [`Inspection::Incomplete`] the next head needs a new `progress`.
pub fn inspect_from<'a>(bytes: &'a [u8], progress: &mut Progress, limit: usize) -> Inspection<'a> {
    let within = &bytes[..bytes.len().min(limit)];
    if matches!(progress.0, Stage::Undecided) {
        match decide(within) {
            Some(Inspection::H2Preface) => return Inspection::H2Preface,
            Some(other) if within.len() < limit => return other,
            Some(_) => return Inspection::Bad(BadHead::TooLarge),
            None if within[0] == tls::HANDSHAKE => progress.0 = Stage::Tls(tls::Scan::default()),
            None => progress.0 = Stage::Http(http::Scan::default()),
        }
    }
    match &mut progress.0 {
        Stage::Undecided => Inspection::Incomplete,
        Stage::Http(scan) => http::inspect(within, scan, limit),
        Stage::Tls(scan) => tls::inspect(within, scan, limit),
    }
}

/// RFC 9113 §3.4.
const H2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The preface, part of it or no byte yet; otherwise the first byte tells HTTP/1
/// from TLS.
fn decide(bytes: &[u8]) -> Option<Inspection<'static>> {
    if bytes.starts_with(H2_PREFACE) {
        Some(Inspection::H2Preface)
    } else if H2_PREFACE.starts_with(bytes) {
        Some(Inspection::Incomplete)
    } else {
        None
    }
}
