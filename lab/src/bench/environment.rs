//! The machine and the programs that a bench ran on and with.

use anyhow::Result;
use serde::Serialize;

use crate::machine::{Machine, version};

/// The machine and the versions of what ran.
#[derive(Clone, Debug, Serialize)]
pub struct Environment {
    /// Where it ran.
    #[serde(flatten)]
    pub machine: Machine,
    /// The proxy, if it was measured.
    pub haproxy: Option<String>,
    /// The servers, and the proxy.
    pub nginx: String,
}

impl Environment {
    /// Asks the machine and the programs.
    ///
    /// # Errors
    /// A program is not installed.
    pub fn ask(with_haproxy: bool) -> Result<Self> {
        Ok(Environment {
            machine: Machine::ask()?,
            haproxy: with_haproxy.then(|| version("haproxy")).transpose()?,
            nginx: version("nginx")?,
        })
    }
}
