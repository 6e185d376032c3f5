//! Content rules: which pool a request goes to. The first rule of the service
//! whose conditions all hold decides, else the service's default pool.
//!
//! Paths are compared as sent: `%41` is not `A`, `//` is not `/`. What a server
//! makes of them is its own affair, so rules are no access control.

#[cfg(test)]
mod tests;

use std::fmt;

use crate::config::{HeaderRule, Rule, Service};
use crate::head::{ClientHello, HttpHead};
use crate::policy::Class;

/// What a client asked for, as far as its first bytes tell.
#[derive(Clone, Copy, Debug)]
pub enum Asked<'a> {
    /// A request; `host`, `path`, `path_prefix`, `method` and `header` ask about it.
    Http(&'a HttpHead<'a>),
    /// A TLS connection; `sni` and `alpn` ask about it.
    Tls(&'a ClientHello),
    /// An HTTP/2 connection without TLS: its requests are packed (RFC 7541), so
    /// no rule can match.
    H2Preface,
}

/// Where a service sends it. Pools are indices into [`crate::config::Config::pools`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Routed {
    /// A rule decided.
    ByRule {
        /// Index into [`Service::rules`].
        rule: usize,
        /// The rule's line in the file.
        line: usize,
        /// The rule's pool.
        pool: usize,
    },
    /// No rule matched.
    ByDefault {
        /// The service's default pool.
        pool: usize,
    },
    /// No rule matched and there is no default: answer 404, or the TLS alert
    /// `unrecognized_name` (RFC 6066 §3).
    Nowhere,
}

impl Routed {
    /// The pool, if there is one.
    pub fn pool(self) -> Option<usize> {
        match self {
            Routed::ByRule { pool, .. } | Routed::ByDefault { pool } => Some(pool),
            Routed::Nowhere => None,
        }
    }

    /// The rule, if one decided.
    pub fn rule(self, service: &Service) -> Option<&Rule> {
        match self {
            Routed::ByRule { rule, .. } => service.rules.get(rule),
            _ => None,
        }
    }

    /// The class that the rule gives its requests, if it gives one.
    pub fn class(self, service: &Service) -> Option<Class> {
        self.rule(service)?.class
    }
}

/// Decides by the rules of the service.
pub fn route(service: &Service, asked: &Asked<'_>) -> Routed {
    let matching = service
        .rules
        .iter()
        .position(|rule| mismatch(rule, *asked).is_none());
    match (matching, service.default_pool) {
        (Some(index), _) => {
            let Rule { line, pool, .. } = service.rules[index];
            Routed::ByRule {
                rule: index,
                line,
                pool,
            }
        }
        (None, Some(pool)) => Routed::ByDefault { pool },
        (None, None) => Routed::Nowhere,
    }
}

/// Decides as [`route`] does, and says why the rules before did not match.
pub fn explain<'a>(service: &'a Service, asked: &Asked<'a>) -> Explanation<'a> {
    let passed_over = (service.rules.iter().enumerate())
        .map_while(|(index, rule)| {
            let why = mismatch(rule, *asked)?;
            Some(PassedOver {
                rule: index,
                line: rule.line,
                why,
            })
        })
        .collect();
    Explanation {
        passed_over,
        routed: route(service, asked),
    }
}

/// Why a request goes where it goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation<'a> {
    /// The rules tried in vain, in order.
    pub passed_over: Vec<PassedOver<'a>>,
    /// The outcome.
    pub routed: Routed,
}

/// A rule that did not match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PassedOver<'a> {
    /// Index into [`Service::rules`].
    pub rule: usize,
    /// The rule's line in the file.
    pub line: usize,
    /// The first condition that does not hold.
    pub why: Mismatch<'a>,
}

/// A condition that does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mismatch<'a> {
    /// The rule asks about an HTTP/1 request, and this is a TLS connection.
    NotHttp,
    /// The rule asks about a TLS ClientHello, and this is an HTTP request.
    NotTls,
    /// This is HTTP/2 without TLS.
    Packed,
    /// `method`: asked, wanted.
    Method(&'a str, &'a str),
    /// `host`: asked, wanted.
    Host(Option<&'a str>, &'a str),
    /// `path`: asked, wanted.
    Path(&'a [u8], &'a str),
    /// `path_prefix`: asked, wanted.
    PathPrefix(&'a [u8], &'a str),
    /// `path_suffix`: asked, wanted.
    PathSuffix(&'a [u8], &'a str),
    /// `header`, and the request has none of that name.
    NoHeader(&'a str),
    /// `header`, with the wanted value.
    HeaderValue(&'a str, &'a str),
    /// `sni`: asked, wanted.
    ServerName(Option<&'a str>, &'a str),
    /// `alpn`: wanted.
    Protocol(&'a str),
}

/// The first condition of the rule that does not hold.
fn mismatch<'a>(rule: &'a Rule, asked: Asked<'a>) -> Option<Mismatch<'a>> {
    let of_tls = rule.sni.is_some() || rule.alpn.is_some();
    match asked {
        Asked::Http(_) if of_tls => Some(Mismatch::NotTls),
        Asked::Http(head) => http_mismatch(rule, head),
        Asked::Tls(hello) if of_tls => tls_mismatch(rule, hello),
        Asked::Tls(_) => Some(Mismatch::NotHttp),
        Asked::H2Preface => Some(Mismatch::Packed),
    }
}

fn http_mismatch<'a>(rule: &'a Rule, head: &'a HttpHead<'a>) -> Option<Mismatch<'a>> {
    if let Some(wanted) = &rule.method
        && wanted != head.method
    {
        return Some(Mismatch::Method(head.method, wanted));
    }
    if let Some(wanted) = &rule.host
        && !head
            .host
            .as_deref()
            .is_some_and(|host| name_matches(wanted, host))
    {
        return Some(Mismatch::Host(head.host.as_deref(), wanted));
    }
    if let Some(wanted) = &rule.path
        && wanted.as_bytes() != head.path
    {
        return Some(Mismatch::Path(head.path, wanted));
    }
    if let Some(wanted) = &rule.path_prefix
        && !path_starts_with(head.path, wanted.as_bytes())
    {
        return Some(Mismatch::PathPrefix(head.path, wanted));
    }
    if let Some(wanted) = &rule.path_suffix
        && !head.path.ends_with(wanted.as_bytes())
    {
        return Some(Mismatch::PathSuffix(head.path, wanted));
    }
    // Where nothing more is asked, nothing more can fail.
    let HeaderRule { name, value } = rule.header.as_ref()?;
    let mut values = head.header(name).peekable();
    if values.peek().is_none() {
        return Some(Mismatch::NoHeader(name));
    }
    let wanted = value.as_ref()?;
    (!values.any(|value| value == wanted.as_bytes())).then_some(Mismatch::HeaderValue(name, wanted))
}

fn tls_mismatch<'a>(rule: &'a Rule, hello: &'a ClientHello) -> Option<Mismatch<'a>> {
    let name = hello.server_name.as_deref();
    if let Some(wanted) = &rule.sni
        && !name.is_some_and(|name| name_matches(wanted, name))
    {
        return Some(Mismatch::ServerName(name, wanted));
    }
    let wanted = rule.alpn.as_ref()?;
    let offered = hello
        .alpn
        .iter()
        .any(|protocol| protocol == wanted.as_bytes());
    (!offered).then_some(Mismatch::Protocol(wanted))
}

/// `*.example.org` is every name below `example.org` and not that name itself.
/// Both come in lower case.
fn name_matches(wanted: &str, name: &str) -> bool {
    match wanted.strip_prefix('*') {
        Some(domain) => name.len() > domain.len() && name.ends_with(domain),
        None => name == wanted,
    }
}

/// `/img` is `/img` and what is below it; `/img/` only what is below.
fn path_starts_with(path: &[u8], prefix: &[u8]) -> bool {
    match path.strip_prefix(prefix) {
        Some(rest) => prefix.ends_with(b"/") || matches!(rest, [] | [b'/', ..]),
        None => false,
    }
}

impl fmt::Display for Explanation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for rule in &self.passed_over {
            writeln!(f, "{rule}")?;
        }
        match self.routed {
            Routed::ByRule { line, .. } => write!(f, "line {line}: every condition holds"),
            Routed::ByDefault { .. } => f.write_str("no rule matches: the service's own pool"),
            Routed::Nowhere => {
                f.write_str("no rule matches, and the service has no pool of its own")
            }
        }
    }
}

impl fmt::Display for PassedOver<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.why)
    }
}

impl fmt::Display for Mismatch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = String::from_utf8_lossy;
        match self {
            Mismatch::NotHttp => f.write_str("asks about HTTP, and this is a TLS connection"),
            Mismatch::NotTls => f.write_str("asks about TLS, and this is a plain HTTP request"),
            Mismatch::Packed => f.write_str("cannot be asked of HTTP/2 without TLS"),
            Mismatch::Method(asked, wanted) => write!(f, "method {asked} is not {wanted}"),
            Mismatch::Host(None, wanted) => write!(f, "no host, not {wanted}"),
            Mismatch::Host(Some(asked), wanted) => write!(f, "host {asked} is not {wanted}"),
            Mismatch::Path(asked, wanted) => write!(f, "path {} is not {wanted}", text(asked)),
            Mismatch::PathPrefix(asked, wanted) => {
                write!(f, "path {} does not start with {wanted}", text(asked))
            }
            Mismatch::PathSuffix(asked, wanted) => {
                write!(f, "path {} does not end with {wanted}", text(asked))
            }
            Mismatch::NoHeader(name) => write!(f, "no header {name}"),
            Mismatch::HeaderValue(name, wanted) => write!(f, "header {name} is not {wanted}"),
            Mismatch::ServerName(None, wanted) => write!(f, "no server name, not {wanted}"),
            Mismatch::ServerName(Some(asked), wanted) => {
                write!(f, "server name {asked} is not {wanted}")
            }
            Mismatch::Protocol(wanted) => write!(f, "does not offer protocol {wanted}"),
        }
    }
}
