//! Whether etcd lets a node register, where members are registered: each endpoint alone, since
//! the daemon needs only one of them today, and another one tomorrow.

use trapeze_core::config::{Config, Etcd};
use trapeze_datapath::node::Role;
use trapeze_membership::{Gateway, GatewayError};

use super::{Check, Patient};

const NAME: &str = "etcd";

/// Looks from here; writes nothing.
pub fn checks(patient: &Patient) -> Vec<Check> {
    let config = &patient.config;
    // Agents are told by dispatchers who these are.
    let is_registered = patient.role != Role::Agent;
    let Some(etcd) = config.membership.as_ref().filter(|_| is_registered) else {
        return Vec::new();
    };
    (etcd.endpoints.iter())
        .map(|endpoint| look(config, etcd, endpoint))
        .collect()
}

fn look(config: &Config, etcd: &Etcd, endpoint: &str) -> Check {
    let alone = Etcd {
        endpoints: vec![endpoint.to_owned()],
        ..etcd.clone()
    };
    let mut gateway = match Gateway::open(&alone) {
        Ok(gateway) => gateway,
        Err(error) => {
            let mend = "name files that are there in [membership.etcd]";
            return Check::missing(NAME, format!("{error:#}"), mend);
        }
    };
    match gateway.list(&etcd.directory(&config.name)) {
        Ok((_, found)) => {
            let count = found.len();
            Check::ok(NAME, format!("{endpoint} answers: {count} registered"))
        }
        Err(error @ GatewayError::Refused { .. }) => Check::missing(
            NAME,
            error.to_string(),
            format!("etcdctl --endpoints={endpoint} auth status, user get, role get"),
        ),
        Err(error) => Check::warning(
            NAME,
            format!("{error}; until then the members stay as they are"),
            format!("etcdctl --endpoints={endpoint} endpoint health"),
        ),
    }
}
