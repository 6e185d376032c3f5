//! etcd on a host of its own, e1, and what sprays and dispatchers are told when they find each
//! other there: a file without them, and to each its own section only.

use std::path::PathBuf;

use anyhow::{Context, Result};
use trapeze_datapath::netns;

use crate::cluster;
use crate::process::{Launch, ProcessRecord};
use crate::program;
use crate::role::{Process, Role};
use crate::state::{Host, State};

const PROGRAM: &str = "etcd";
/// Where clients reach it.
const PORT: u16 = 2379;
/// How long a node is registered that does not say that it is there.
const LEASE: &str = "5s";

/// Checks that it is installed.
///
/// # Errors
/// Says which package has it.
pub fn check() -> Result<()> {
    program::find(PROGRAM).map(drop)
}

/// The section that says where members are registered.
pub fn section() -> String {
    let url = url();
    format!("\n[membership.etcd]\nendpoints = [{url:?}]\nlease = {LEASE:?}\n")
}

/// Where its clients reach it.
pub fn url() -> String {
    format!("http://{}:{PORT}", Role::Etcd.address(1))
}

/// Starts it, with what it has on disk.
///
/// # Errors
/// It cannot be executed.
pub fn start(state: &State, host: &Host) -> Result<Launch> {
    let mut command = netns::command_in(&state.namespace_path(&host.name), program::find(PROGRAM)?)
        .with_context(|| format!("{} has no namespace", host.name))?;
    let url = url();
    command
        .args(["--name", &host.name])
        .arg("--data-dir")
        .arg(state.dir().host(&host.name))
        // For etcdctl on that host, too.
        .args([
            "--listen-client-urls",
            &format!("{url},http://127.0.0.1:{PORT}"),
        ])
        .args(["--advertise-client-urls", &url])
        // A cluster of one: nobody asks there.
        .args(["--listen-peer-urls", "http://127.0.0.1:2380"])
        .args(["--logger", "zap"]);
    Launch::start(command, &state.dir().log(&host.name, Process::Etcd.word()))
}

/// Waits until it takes requests.
///
/// # Errors
/// It ended, or took too long.
pub fn wait(state: &State, host: &str, launch: Launch) -> Result<ProcessRecord> {
    launch.wait_for_ports(&state.namespace_path(host), &[PORT])
}

/// The file that a host's daemon reads: the cluster's, and with etcd its own, which is
/// written anew.
///
/// # Errors
/// It cannot be written.
pub fn config(state: &State, host: &Host) -> Result<PathBuf> {
    let shared = state.dir().config();
    let is_registered = host.role == Role::Spray || host.role.dispatches();
    if !state.has_etcd() || !is_registered {
        return Ok(shared);
    }
    let text = std::fs::read_to_string(&shared)
        .with_context(|| format!("cannot read {}", shared.display()))?;
    let own = cluster::own_section(host.role, &host.name, &text)?;
    let path = state.dir().config_of(&host.name);
    crate::state::write_private(&path, &(text + &own))?;
    Ok(path)
}
