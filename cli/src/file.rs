//! The cluster's configuration file, and what it expects of a host.

use std::collections::BTreeSet;

use trapeze_core::config::Config;
pub use trapeze_datapath::file::{FileError, read};

/// Where it is unless said otherwise.
pub const DEFAULT: &str = "/etc/trapeze/trapeze.toml";

/// The ports on which servers have to listen on a backend: for each service
/// whose pools it is in, the pool's own, or the backend's, or the service's.
pub fn expected_ports(config: &Config, backend: &str) -> BTreeSet<u16> {
    let mut ports = BTreeSet::new();
    for service in &config.services {
        for pool in service.pools() {
            let members = config.pools[pool].members.iter();
            for member in members.filter(|member| member.weight > 0) {
                let configured = &config.backends[member.backend];
                let server = member.server.or(configured.server);
                if configured.name == backend {
                    ports.insert(server.map_or(service.address.port(), |server| server.port()));
                }
            }
        }
    }
    ports
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_pool_says_where_its_servers_listen() {
        let text = include_str!("../../examples/trapeze.toml");
        let config = Config::parse(text, "trapeze.toml").unwrap();
        let ports = |backend| Vec::from_iter(expected_ports(&config, backend));
        assert_eq!(ports("b1"), [80, 443]);
        assert_eq!(ports("b3"), [8080, 8081, 8443]);
        assert!(ports("b9").is_empty());
    }
}
