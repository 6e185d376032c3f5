//! What is to be checked of a backend: each server of it that a pool with a check sends
//! requests to.

use std::net::{IpAddr, SocketAddr};

use crate::config::{Check, Config, Transfer};
use crate::policy::hash_bytes;

/// A server and how it is checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    /// Which server of which pool.
    pub key: TargetKey,
    /// Where it is asked.
    pub address: SocketAddr,
    /// How, and how often.
    pub check: Check,
}

/// A backend's server, as one pool sees it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TargetKey {
    /// The backend's name.
    pub backend: String,
    /// The pool's name.
    pub pool: String,
    /// The port at which clients' requests reach it, whichever is asked.
    pub port: u16,
}

impl TargetKey {
    /// How nodes call it, whose configurations may differ for a moment.
    pub fn number(&self) -> u64 {
        number_of(&self.pool, self.port)
    }
}

/// As [`TargetKey::number`].
pub fn number_of(pool: &str, port: u16) -> u64 {
    hash_bytes(&[pool.as_bytes(), b":", &port.to_be_bytes()].concat())
}

/// What is to be checked of this backend, by index. Where it is asked depends on who asks: its
/// agent at the server's own address or the VIP's, as clients' connections meet it; without an
/// agent at the backend's address.
pub fn targets(config: &Config, backend: usize) -> Vec<Target> {
    let own = &config.backends[backend];
    let mut targets: Vec<Target> = Vec::new();
    for (index, pool) in config.pools.iter().enumerate() {
        for member in pool.members.iter().filter(|m| m.backend == backend) {
            let Some(check) = &member.check else {
                continue;
            };
            let server = member.server.or(own.server);
            let ports = match server {
                Some(server) => vec![server.port()],
                None => config.ports(index),
            };
            for port in ports {
                let vip = || {
                    let mut of_pool = (config.services.iter())
                        .filter(|s| s.pools().any(|of_service| of_service == index));
                    let same = of_pool.clone().find(|s| s.address.port() == port);
                    Some(same.or_else(|| of_pool.next())?.address.ip())
                };
                let named = server.map(|s| s.ip()).filter(|ip| !ip.is_unspecified());
                let ip: Option<IpAddr> = match own.transfer {
                    Transfer::Rebuild => named.or_else(vip),
                    Transfer::Splice | Transfer::SplitSplice => Some(own.address),
                };
                // A pool that no service leads to is asked for nothing.
                let Some(ip) = ip else { continue };
                targets.push(Target {
                    key: TargetKey {
                        backend: own.name.clone(),
                        pool: pool.name.clone(),
                        port,
                    },
                    address: (ip, check.port.unwrap_or(port)).into(),
                    check: check.clone(),
                });
            }
        }
    }
    targets
}
