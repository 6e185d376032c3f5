//! What a new lab is to be.

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use trapeze_core::config::PolicyKind;

use crate::servers::origin::OriginSettings;

/// What a new lab is to be. Build on [`Options::named`].
#[derive(Clone, Debug)]
pub struct Options {
    /// Which lab: several live side by side.
    pub name: String,
    /// Hosts that make requests, 1..=9.
    pub clients: u8,
    /// Hosts that spread packets over dispatchers, 0..=9; as `config` says, or none.
    pub sprays: Option<u8>,
    /// How they do; without it `flow-hash`. Not with
    /// `config`.
    pub spray_mode: Option<String>,
    /// Between their heartbeats; without it 200 ms. Not with `config`.
    pub spray_heartbeat: Option<Duration>,
    /// Hosts that read requests, 1..=9; as `config` says, or one.
    pub dispatchers: Option<u8>,
    /// Into so many sub-clusters they are divided, in order; 1 if not said. Not with `config`
    /// or `etcd`.
    pub sub_clusters: Option<u8>,
    /// Hosts that do both, 0..=9; as `config` says, or none. With some of them, there are no
    /// other dispatchers and backends unless asked for.
    pub combined: Option<u8>,
    /// Sprays and dispatchers find each other by etcd, on a host e1. Not with `config`.
    pub etcd: bool,
    /// Hosts that serve, 1..=60; as `config` says, or three.
    pub backends: Option<u8>,
    /// How connections get to backends; without it `rebuild`. Not with `config`.
    pub transfer: Option<String>,
    /// What backends run.
    pub server: ServerKind,
    /// What an origin server remembers, and what a miss costs.
    pub origin: OriginSettings,
    /// How backends are chosen; without it `round-robin`. Not with `config`.
    pub policy: Option<PolicyKind>,
    /// The directory to serve instead of the lab's own documents.
    pub root: Option<PathBuf>,
    /// Serve HTTPS on port 443 as well.
    pub tls: bool,
    /// The cluster's configuration, instead of one made from the above.
    pub config: Option<PathBuf>,
    /// Have servers log each request.
    pub access_log: bool,
    /// Start agents and dispatchers; without them a lab is servers on a network.
    pub daemons: bool,
    /// The `trapeze` binary; without it this very program, or the one beside it.
    pub program: Option<PathBuf>,
}

impl Options {
    /// The defaults, for a lab of this name.
    pub fn named(name: &str) -> Self {
        Options {
            name: name.to_owned(),
            clients: 1,
            sprays: None,
            spray_mode: None,
            spray_heartbeat: None,
            dispatchers: None,
            sub_clusters: None,
            combined: None,
            etcd: false,
            backends: None,
            transfer: None,
            server: ServerKind::Nginx,
            origin: OriginSettings::default(),
            policy: None,
            root: None,
            tls: false,
            config: None,
            access_log: false,
            daemons: true,
            program: None,
        }
    }
}

/// The servers that a backend can run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum ServerKind {
    /// nginx, from its package.
    Nginx,
    /// Apache with its event MPM, from its package.
    Apache,
    /// The lab's own, on Python's http.server.
    Python,
    /// The lab's own, with a bounded cache and a cost for a miss.
    Origin,
}
