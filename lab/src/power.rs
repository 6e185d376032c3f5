//! Hosts on and off, and what runs on them.

use anyhow::{Context, Result, bail};
use trapeze_datapath::netns;

use crate::process::{self, Launch, ProcessRecord};
use crate::role::{self, Process};
use crate::state::{self, State};
use crate::{etcd, servers};
use crate::{link, topology};

/// Powers a host off: its cable first, so that nothing it does when it dies is
/// heard. What it had in memory is gone: processes, sockets, maps.
///
/// # Errors
/// It is off, or there is no such host.
pub fn power_off(state: &mut State, name: &str) -> Result<()> {
    if !state.host(name)?.powered {
        bail!("{name} is off: {}", start_command(state, name));
    }
    topology::unplug(state, name)?;
    process::kill_namespace(&state.namespace_path(name));
    link::power_off(state, state.host(name)?);
    topology::remove_port(state, name)?;
    topology::remove(&state.namespace(name))?;
    remove_left_by_daemons(&state.name, Some(name))?;
    let host = state.host_mut(name)?;
    host.powered = false;
    host.processes.clear();
    Ok(())
}

/// Kills one of a host's processes, and what it has forked.
///
/// # Errors
/// It does not run, or not on such hosts.
pub fn kill_process(state: &mut State, name: &str, process: Process) -> Result<()> {
    check_powered(state, name)?;
    check_process(state, name, process)?;
    let word = process.word();
    let namespace = state.namespace_path(name);
    let Some(record) = state.host_mut(name)?.processes.remove(&process) else {
        bail!(
            "no {word} runs on {name}: {} --process {word}",
            start_command(state, name)
        );
    };
    process::kill_session(&record, &namespace);
    Ok(())
}

/// Brings back all of a host that is not running: its power, its link, its processes.
///
/// # Errors
/// Something does not start: says what and why. The rest stays as it is.
pub fn start(state: &mut State, name: &str) -> Result<()> {
    let host = state.host(name)?.clone();
    if !host.powered {
        // What is left of an attempt that failed.
        topology::remove_port(state, name)?;
        topology::remove(&state.namespace(name))?;
        topology::make_hosts(state, &[(name, host.address)])?;
        state.host_mut(name)?.powered = true;
    }
    if let Some(link) = host.link
        && !link.relay.is_running()
    {
        link::set(state, name, &link.settings)?;
    }
    start_processes(state, &[name.to_owned()], None)
}

/// Starts one of a host's processes.
///
/// # Errors
/// It runs already, or does not start.
pub fn start_process(state: &mut State, name: &str, process: Process) -> Result<()> {
    check_powered(state, name)?;
    check_process(state, name, process)?;
    let word = process.word();
    let record = state.host(name)?.processes.get(&process).copied();
    if record.is_some_and(|record| record.is_running()) {
        bail!(
            "the {word} on {name} is running: trapeze lab kill {name} --process {word} --name {}",
            state.name
        );
    }
    start_processes(state, &[name.to_owned()], Some(process))
}

/// Removes what the daemons of a host, or of the whole lab, have pinned and
/// written: on a host of its own it would not survive a loss of power.
///
/// # Errors
/// Something cannot be removed.
pub fn remove_left_by_daemons(lab: &str, host: Option<&str>) -> Result<()> {
    for path in state::left_by_daemons(lab, host) {
        if path.exists() {
            std::fs::remove_dir_all(&path)
                .with_context(|| format!("cannot remove {}", path.display()))?;
        }
    }
    Ok(())
}

/// Starts what does not run on `hosts`, or of that only `wanted`; kind by kind,
/// all hosts at once.
///
/// # Errors
/// Something does not start. What did is in the state.
pub fn start_processes(state: &mut State, hosts: &[String], wanted: Option<Process>) -> Result<()> {
    for process in Process::ALL {
        if wanted.is_some_and(|wanted| wanted != process) {
            continue;
        }
        let mut launches = Vec::new();
        for name in hosts {
            let host = state.host(name)?;
            let record = host.processes.get(&process).copied();
            if !state.processes(host).any(|of_role| of_role == process)
                || record.is_some_and(|record| record.is_running())
            {
                continue;
            }
            if let Some(record) = record {
                // It died and has left workers, which hold its ports.
                process::kill_session(&record, &state.namespace_path(name));
            }
            let launch = launch(state, name, process)
                .with_context(|| format!("the {} on {name} does not start", process.word()))?;
            let processes = &mut state.host_mut(name)?.processes;
            processes.insert(process, launch.record);
            launches.push((name, launch));
        }
        for (name, launch) in launches {
            wait(state, name, process, launch)
                .with_context(|| format!("the {} on {name} does not start", process.word()))?;
        }
    }
    Ok(())
}

fn launch(state: &State, name: &str, process: Process) -> Result<Launch> {
    let host = state.host(name)?;
    let Some(subcommand) = process.subcommand() else {
        return match process {
            Process::Etcd => etcd::start(state, host),
            _ => servers::start(state, host),
        };
    };
    let mut command = netns::command_in(&state.namespace_path(name), state.trapeze()?)
        .with_context(|| format!("{name} has no namespace"))?;
    command
        .args([subcommand, "--node", &role::node(name, process), "-c"])
        .arg(etcd::config(state, host)?);
    Launch::start(command, &state.dir().log(name, process.word()))
}

fn wait(state: &State, name: &str, process: Process, launch: Launch) -> Result<ProcessRecord> {
    match process {
        Process::Server => servers::wait(state, name, launch),
        Process::Etcd => etcd::wait(state, name, launch),
        Process::Agent | Process::Dispatch | Process::Spray => launch.wait_for_ready(),
    }
}

fn check_powered(state: &State, name: &str) -> Result<()> {
    match state.host(name)?.powered {
        true => Ok(()),
        false => bail!("{name} is off: {}", start_command(state, name)),
    }
}

fn check_process(state: &State, name: &str, process: Process) -> Result<()> {
    let host = state.host(name)?;
    let role = host.role;
    if state.processes(host).any(|of_host| of_host == process) {
        return Ok(());
    }
    let words: Vec<&str> = state.processes(host).map(Process::word).collect();
    let has = match words.is_empty() {
        true => "none".to_owned(),
        false => words.join(" and "),
    };
    bail!(
        "{name} is a {} and runs no {}; its processes: {has}",
        role.word(),
        process.word()
    )
}

fn start_command(state: &State, name: &str) -> String {
    format!("trapeze lab start {name} --name {}", state.name)
}
