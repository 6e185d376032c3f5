//! Policies: which of a pool's backends takes a request. A policy is one file
//! here, a variant of [`PolicyKind`] and a line in [`build`]. Dispatcher,
//! simulator and tests run the same code: no clock, no randomness but what
//! follows from the arguments.

mod hash;
mod hrw;
mod least_connections;
mod round_robin;

#[cfg(test)]
mod tests;

use std::fmt::Debug;
use std::net::SocketAddr;
use std::time::Duration;

use crate::config::PolicyKind;
use crate::route::Asked;
use hash::Hasher;

/// A backend that is alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate<'a> {
    /// Unique among candidates; what a policy remembers, it remembers by name.
    pub name: &'a str,
    /// Its share of the load, 0..=256; one of weight 0 is never chosen.
    pub weight: u16,
    /// Connections that it is serving now.
    pub active: u64,
}

/// What is to be placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subject<'a> {
    /// The host, or the server name of TLS; empty if the client named none.
    pub host: &'a str,
    /// The path, empty for TLS.
    pub path: &'a [u8],
    /// The query, if there is one.
    pub query: Option<&'a [u8]>,
    /// Who asks.
    pub client: SocketAddr,
}

impl<'a> Subject<'a> {
    /// What a client asked for.
    pub fn of(asked: &Asked<'a>, client: SocketAddr) -> Self {
        let (host, path, query) = match *asked {
            Asked::Http(head) => (head.host.as_deref(), head.path, head.query),
            Asked::Tls(hello) => (hello.server_name.as_deref(), &b""[..], None),
            Asked::H2Preface => (None, &b""[..], None),
        };
        Subject {
            host: host.unwrap_or(""),
            path,
            query,
            client,
        }
    }

    /// A hash of the URL, or of as much of it as is known; where nothing is, of
    /// the client's address. The same on every machine and in every version:
    /// dispatchers have to agree.
    pub fn url_hash(&self) -> u64 {
        let mut hasher = Hasher::default();
        if self.host.is_empty() && self.path.is_empty() {
            // Not the port: a client keeps its backend over connections.
            hasher.write(&crate::flow::addr_bytes(self.client.ip()));
            return hasher.finish();
        }
        hasher.write(self.host.as_bytes());
        // No host holds a zero byte, no path a `?`.
        hasher.write(&[0]);
        hasher.write(self.path);
        if let Some(query) = self.query {
            hasher.write(b"?");
            hasher.write(query);
        }
        hasher.finish()
    }
}

/// Chooses backends for one pool.
pub trait Policy: Send + Debug {
    /// Which policy this is.
    fn kind(&self) -> PolicyKind;

    /// A copy with all that is remembered, to try a choice on.
    fn clone_box(&self) -> Box<dyn Policy>;

    /// The index of the candidate that takes the subject; none if no candidate
    /// has a weight. `now` counts from any fixed moment and never goes back.
    /// Candidates may come, go and change between calls.
    fn choose(
        &mut self,
        now: Duration,
        subject: &Subject<'_>,
        candidates: &[Candidate<'_>],
    ) -> Option<usize>;
}

/// A policy of that kind, with nothing remembered.
pub fn build(kind: PolicyKind) -> Box<dyn Policy> {
    match kind {
        PolicyKind::RoundRobin => Box::<round_robin::RoundRobin>::default(),
        PolicyKind::LeastConnections => Box::<least_connections::LeastConnections>::default(),
        PolicyKind::Hrw => Box::<hrw::Hrw>::default(),
    }
}
