//! The real servers on backends: each with a configuration of its own, in the
//! lab's directory, that shares nothing with the machine's.
//!
//! All of them say which backend they are in `X-Backend`. All but the origin serve
//! the documents, and take uploads of any size: PUT and POST to `/upload` store the
//! body as `body`, to `/upload/NAME` as `NAME`, in [`Site::uploads`]. nginx serves the documents
//! without entity-tags, too, below `/untagged/`.

mod apache;
mod nginx;
pub mod origin;
mod python;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use trapeze_datapath::netns;

use crate::options::ServerKind;
use crate::process::{Launch, ProcessRecord};
use crate::state::{self, Host, State};
use crate::tls;

use origin::OriginSettings;

/// What a server is to serve, and where its files are.
pub struct Site {
    host: String,
    /// Its configuration and pid files.
    directory: PathBuf,
    documents: PathBuf,
    spool: PathBuf,
    plain_ports: Vec<u16>,
    tls_ports: Vec<u16>,
    certificate: PathBuf,
    key: PathBuf,
    access_log: Option<PathBuf>,
    origin: OriginSettings,
}

/// A program and its arguments, which stays in the foreground.
struct Invocation {
    program: PathBuf,
    arguments: Vec<String>,
}

impl Site {
    fn of(state: &State, host: &Host) -> Self {
        let dir = state.dir();
        Site {
            host: host.name.clone(),
            directory: dir.host(&host.name),
            documents: state.root.clone(),
            spool: state::spool(&state.name).join(&host.name),
            plain_ports: state.ports.plain.clone(),
            tls_ports: state.ports.tls.clone(),
            certificate: tls::certificate(&dir.tls(), &host.name),
            key: tls::key(&dir.tls()),
            access_log: state.access_log.then(|| dir.log(&host.name, "access")),
            origin: state.origin.clone(),
        }
    }

    /// Where bodies of uploads are stored.
    pub fn uploads(&self) -> PathBuf {
        self.spool.join("uploads")
    }

    /// Bodies that a server buffers while they arrive.
    fn buffers(&self) -> PathBuf {
        self.spool.join("buffers")
    }

    fn make_directories(&self) -> Result<()> {
        // Sockets of a server that was killed would be in the way of the next.
        for directory in [&self.directory, &self.buffers()] {
            if directory.exists() {
                std::fs::remove_dir_all(directory)
                    .with_context(|| format!("cannot remove {}", directory.display()))?;
            }
        }
        for directory in [&self.directory, &self.uploads(), &self.buffers()] {
            std::fs::create_dir_all(directory)
                .with_context(|| format!("cannot make {}", directory.display()))?;
        }
        // Scripts run as another user.
        std::fs::set_permissions(self.uploads(), PermissionsExt::from_mode(0o1777))
            .context("cannot open the directory of uploads to servers")
    }

    fn write(&self, name: &str, text: &str) -> Result<PathBuf> {
        let path = self.directory.join(name);
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    }
}

/// Checks that the server's programs are installed.
///
/// # Errors
/// Says which package is missing.
pub fn check(kind: ServerKind) -> Result<()> {
    match kind {
        ServerKind::Nginx => nginx::check(),
        ServerKind::Apache => apache::check(),
        ServerKind::Python => python::check(),
        ServerKind::Origin => origin::check(),
    }
}

/// Where a backend stores the bodies of uploads.
pub fn uploads(state: &State, host: &Host) -> PathBuf {
    Site::of(state, host).uploads()
}

/// Starts a backend's server.
///
/// # Errors
/// Its files cannot be written, or it cannot be executed.
pub fn start(state: &State, host: &Host) -> Result<Launch> {
    let site = Site::of(state, host);
    site.make_directories()?;
    let invocation = match state.server {
        ServerKind::Nginx => nginx::prepare(&site),
        ServerKind::Apache => apache::prepare(&site),
        ServerKind::Python => python::prepare(&site),
        ServerKind::Origin => origin::prepare(&site, &state.trapeze()?),
    }?;
    let mut command = netns::command_in(&state.namespace_path(&host.name), invocation.program)
        .with_context(|| format!("{} has no namespace", host.name))?;
    command.args(invocation.arguments);
    Launch::start(command, &state.dir().log(&host.name, "server"))
}

/// Waits until a server that has been started accepts connections.
///
/// # Errors
/// It ended, or took too long.
pub fn wait(state: &State, host: &str, launch: Launch) -> Result<ProcessRecord> {
    let ports = [state.ports.plain.as_slice(), &state.ports.tls].concat();
    launch.wait_for_ports(&state.namespace_path(host), &ports)
}

/// A path as configuration files quote it.
fn quoted(path: &Path) -> String {
    format!("{:?}", path.to_string_lossy())
}
