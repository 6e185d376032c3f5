//! Emulated links: delay, loss, rate and the like between a host and the
//! bridge, in both directions. (The kernel's own emulator, netem, is not on
//! every kernel, and cannot be seeded.)
//!
//! ```text
//!  host ns                     switch ns
//!  ┌──────┐   ┌──────┐  relay  ┌──────┐   ┌──────┐
//!  │ eth0 ├───┤ b1   │◄───────►│b1.mid├───┤b1.net├── bridge
//!  └──────┘   └──────┘         └──────┘   └──────┘
//! ```
//! Without a link `b1` itself is the bridge's port.

pub mod control;
pub mod relay;
pub mod settings;
pub mod shape;

use anyhow::{Context, Result};

use crate::ip;
use crate::process::{self, Launch};
use crate::state::{Host, Link, State};
use crate::topology::{self, BRIDGE};
use settings::LinkSettings;

/// Makes the link of a powered host as `settings` say, from now on. A link
/// that is there already changes without losing a frame.
///
/// # Errors
/// The relay or the interfaces could not be set up; the host is then connected
/// as before.
pub fn set(state: &mut State, host_name: &str, settings: &LinkSettings) -> Result<()> {
    let socket = state.dir().link_socket(host_name);
    let host = state.host(host_name)?;
    let relayed = host
        .link
        .as_ref()
        .is_some_and(|link| link.relay.is_running());
    match (settings.is_clear(), relayed) {
        (true, _) => clear(state, host_name),
        (false, true) => {
            control::change(&socket, settings)?;
            let host = state.host_mut(host_name)?;
            host.link.as_mut().expect("it is relayed").settings = settings.clone();
            Ok(())
        }
        (false, false) => {
            remove_interfaces(state, host_name);
            let made = insert(state, host_name, settings);
            if made.is_err() {
                remove_interfaces(state, host_name);
                let _ = connect(state, host_name);
            }
            made
        }
    }
}

/// Ends the relay of a host that is powered off; its settings are kept.
pub fn power_off(state: &State, host: &Host) {
    if let Some(link) = &host.link {
        process::kill_session(&link.relay, &state.switch_path());
    }
    remove_interfaces(state, &host.name);
}

fn clear(state: &mut State, host_name: &str) -> Result<()> {
    let Some(link) = state.host_mut(host_name)?.link.take() else {
        return Ok(());
    };
    remove_interfaces(state, host_name);
    process::kill_session(&link.relay, &state.switch_path());
    connect(state, host_name)
}

/// Connects a host's port to the bridge directly, with its offloads.
fn connect(state: &State, host: &str) -> Result<()> {
    ip::batch(
        Some(&state.switch()),
        &[format!("link set {host} master {BRIDGE}")],
    )?;
    topology::set_offloads(&state.namespace(host), crate::role::INTERFACE, true)?;
    topology::set_offloads(&state.switch(), host, true)?;
    topology::connect(state, host)
}

fn insert(state: &mut State, host: &str, settings: &LinkSettings) -> Result<()> {
    let (middle, network) = (middle_end(host), network_end(host));
    let switch = state.switch();
    ip::batch(
        Some(&switch),
        &[
            format!("link add {network} type veth peer name {middle}"),
            format!("link set {middle} up"),
            format!("link set {network} up"),
        ],
    )?;
    topology::set_offloads(&state.namespace(host), crate::role::INTERFACE, false)?;
    for end in [host, &middle, &network] {
        topology::set_offloads(&switch, end, false)?;
    }
    let relay = start_relay(state, host, &middle, settings)?;
    // Only now that the relay reads does the port leave the bridge, which has all
    // of the host's frames by then.
    topology::disconnect(state, host)?;
    ip::batch(
        Some(&switch),
        &[
            format!("link set {host} nomaster"),
            format!("link set {network} master {BRIDGE}"),
        ],
    )?;
    state.host_mut(host)?.link = Some(Link {
        settings: settings.clone(),
        relay,
    });
    Ok(())
}

fn start_relay(
    state: &State,
    host: &str,
    middle: &str,
    settings: &LinkSettings,
) -> Result<process::ProcessRecord> {
    let socket = state.dir().link_socket(host);
    let _ = std::fs::remove_file(&socket);
    let mut command = trapeze_datapath::netns::command_in(&state.switch_path(), state.trapeze()?)
        .context("the lab's switch namespace is gone")?;
    command
        .args([
            "lab",
            "relay",
            "--host-side",
            host,
            "--network-side",
            middle,
        ])
        .arg("--control")
        .arg(&socket)
        .arg("--settings")
        .arg(serde_json::to_string(settings)?);
    Launch::start(command, &state.dir().log(host, "link"))?.wait_for_ready()
}

/// Removes the relay's pair of interfaces, if it is there.
fn remove_interfaces(state: &State, host: &str) {
    let network = network_end(host);
    if topology::has_interface(&state.switch(), &network) {
        let _ = ip::batch(Some(&state.switch()), &[format!("link del {network}")]);
    }
}

fn middle_end(host: &str) -> String {
    format!("{host}.mid")
}

fn network_end(host: &str) -> String {
    format!("{host}.net")
}
