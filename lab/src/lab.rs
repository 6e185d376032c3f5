//! A lab, as commands, tests and benches use it.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::ops::Deref;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use trapeze_core::config::PolicyKind;
use trapeze_datapath::netns;

use crate::cluster::{self, Cluster};
use crate::link::settings::LinkSettings;
use crate::options::{Options, ServerKind};
use crate::process;
use crate::role::{self, Process, Role, SWITCH, VIP};
use crate::servers::origin::{self, OriginSettings};
use crate::state::{self, Host, RunDir, State};
use crate::status::Status;
use crate::{documents, etcd, link, power, program, servers, tls, topology};

/// A lab that is up. It stays when this is dropped; see [`LabGuard`].
#[derive(Clone, Debug)]
pub struct Lab {
    name: String,
}

/// A lab that comes down when this is dropped.
pub struct LabGuard(Lab);

/// One of a lab's hosts.
#[derive(Clone, Debug)]
pub struct HostHandle {
    name: String,
    namespace: PathBuf,
}

impl Lab {
    /// Makes a lab and waits until all of it is ready. What fails half-way is
    /// removed again, but for what the error quotes.
    ///
    /// # Errors
    /// A lab of that name exists, something is not installed, options do not
    /// fit, or something does not start.
    pub fn up(options: &Options) -> Result<Lab> {
        state::check_name(&options.name)?;
        check_machine(options)?;
        let cluster = cluster::configure(options)?;
        let root = root(options)?;
        let (_, lock) = RunDir::create(&options.name)?;
        let mut state = plan(options, &cluster, root);
        match build(&mut state, &cluster) {
            Ok(()) => Ok(Lab {
                name: state.name.clone(),
            }),
            Err(error) => {
                let removed = remove(&options.name);
                drop(lock);
                match removed {
                    Ok(()) => Err(error),
                    Err(left) => Err(error.context(format!(
                        "not all could be removed again ({left:#}): trapeze lab down --name {}",
                        options.name
                    ))),
                }
            }
        }
    }

    /// A lab that somebody has made.
    ///
    /// # Errors
    /// There is none of that name.
    pub fn open(name: &str) -> Result<Lab> {
        state::check_name(name)?;
        State::load(name).map(|state| Lab { name: state.name })
    }

    /// Removes a lab, or what there is of it.
    ///
    /// # Errors
    /// There is none of that name, or something could not be removed.
    pub fn remove(name: &str) -> Result<()> {
        state::check_name(name)?;
        check_root()?;
        ensure!(
            state::exists(name),
            "there is no lab {name:?} to remove{}",
            state::others()
        );
        // The directory may be what is missing.
        let _lock = RunDir::of(name).lock().ok();
        remove(name)
    }

    /// Removes it.
    ///
    /// # Errors
    /// Something could not be removed.
    pub fn down(self) -> Result<()> {
        Lab::remove(&self.name)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it is and does now.
    ///
    /// # Errors
    /// It has been removed meanwhile.
    pub fn status(&self) -> Result<Status> {
        Ok(Status::of(&State::load(&self.name)?))
    }

    /// One of its hosts, to run commands on; `switch` is the bridge's.
    ///
    /// # Errors
    /// There is no such host, or it is off.
    pub fn host(&self, name: &str) -> Result<HostHandle> {
        let state = State::load(&self.name)?;
        if name != SWITCH {
            let host = state.host(name)?;
            ensure!(
                host.powered,
                "{name} is off: trapeze lab start {name} --name {}",
                self.name
            );
        }
        Ok(HostHandle {
            name: name.to_owned(),
            namespace: state.namespace_path(name),
        })
    }

    /// Powers a host off, or kills one of its processes, at once and unasked.
    ///
    /// # Errors
    /// There is no such host or process, or it does not run.
    pub fn kill(&self, host: &str, process: Option<Process>) -> Result<()> {
        self.change(|state| match process {
            None => power::power_off(state, host),
            Some(process) => power::kill_process(state, host, process),
        })
    }

    /// Brings back what does not run of a host, or one process.
    ///
    /// # Errors
    /// There is no such host or process, or it does not start.
    pub fn start(&self, host: &str, process: Option<Process>) -> Result<()> {
        self.change(|state| match process {
            None => power::start(state, host),
            Some(process) => power::start_process(state, host, process),
        })
    }

    /// Pulls a host's cable out, or plugs it in again: the host sees that, and lives on.
    ///
    /// # Errors
    /// There is no such host, or it is off.
    pub fn set_cable(&self, host: &str, is_in: bool) -> Result<()> {
        self.change(|state| match is_in {
            true => topology::plug(state, host),
            false => topology::unplug(state, host),
        })
    }

    /// Makes a host's link as `settings` say, in both directions.
    ///
    /// # Errors
    /// There is no such host, it is off, or the emulator does not start.
    pub fn link(&self, host: &str, settings: &LinkSettings) -> Result<()> {
        self.change(|state| {
            ensure!(
                state.host(host)?.powered,
                "{host} is off: trapeze lab start {host} --name {}",
                state.name
            );
            link::set(state, host, settings)
        })
    }

    /// Has the only pool choose by another policy, with its defaults, from now on: the
    /// configuration is rewritten and read again. No connection is lost.
    ///
    /// # Errors
    /// The configuration has several pools, or a dispatcher does not read it.
    pub fn set_policy(&self, policy: PolicyKind) -> Result<()> {
        self.change(|state| {
            let config = state.dir().config();
            let text = std::fs::read_to_string(&config)
                .with_context(|| format!("cannot read {}", config.display()))?;
            std::fs::write(&config, cluster::with_policy(&text, policy)?)
                .with_context(|| format!("cannot write {}", config.display()))?;
            reload_front(state)
        })
    }

    /// Has dispatchers and sprays read another configuration, which must name the same nodes. No
    /// connection is lost.
    ///
    /// # Errors
    /// A dispatcher does not take it.
    pub fn reconfigure(&self, text: &str) -> Result<()> {
        self.change(|state| {
            let config = state.dir().config();
            std::fs::write(&config, cluster::rename(text, &state.name)?)
                .with_context(|| format!("cannot write {}", config.display()))?;
            reload_front(state)
        })
    }

    /// Has all origin servers forget what they have in memory, and count from zero.
    ///
    /// # Errors
    /// The lab runs another server, or one does not answer.
    pub fn flush_caches(&self) -> Result<()> {
        let state = State::load(&self.name)?;
        ensure!(
            state.server == ServerKind::Origin,
            "only the origin server has a cache: trapeze lab up --server origin"
        );
        let backends = state.hosts.iter().filter(|host| host.role.serves());
        for host in backends.filter(|host| host.powered) {
            origin::flush(&state.namespace_path(&host.name), state.origin_port())
                .with_context(|| format!("the cache of {} is as it was", host.name))?;
        }
        Ok(())
    }

    /// Changes the lab while nobody else does. What was done before an error
    /// is remembered too.
    fn change(&self, change: impl FnOnce(&mut State) -> Result<()>) -> Result<()> {
        check_root()?;
        let _lock = RunDir::of(&self.name).lock()?;
        let mut state = State::load(&self.name)?;
        let result = change(&mut state);
        state.save()?;
        result
    }
}

impl LabGuard {
    /// As [`Lab::up`].
    ///
    /// # Errors
    /// As [`Lab::up`].
    pub fn up(options: &Options) -> Result<Self> {
        Lab::up(options).map(LabGuard)
    }
}

impl Deref for LabGuard {
    type Target = Lab;

    fn deref(&self) -> &Lab {
        &self.0
    }
}

impl Drop for LabGuard {
    fn drop(&mut self) {
        // A test may have taken it down itself.
        if state::exists(&self.0.name)
            && let Err(error) = Lab::remove(&self.0.name)
        {
            eprintln!("lab {}: {error:#}", self.0.name);
        }
    }
}

impl HostHandle {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The path of its namespace.
    pub fn namespace(&self) -> &std::path::Path {
        &self.namespace
    }

    /// A command that will run on it.
    ///
    /// # Panics
    /// The host has been powered off meanwhile.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        netns::command_in(&self.namespace, program)
            .unwrap_or_else(|error| panic!("{} has lost its namespace: {error}", self.name))
    }
}

/// The state of a lab that is to be made.
fn plan(options: &Options, cluster: &Cluster, root: PathBuf) -> State {
    let counts = [
        (Role::Client, options.clients),
        (Role::Spray, cluster.sprays),
        (Role::Dispatcher, cluster.dispatchers),
        (Role::Backend, cluster.backends),
        (Role::Combined, cluster.combined),
        (Role::Etcd, options.etcd.into()),
    ];
    let host = |role: Role, number| Host {
        name: role.host(number),
        role,
        address: role.address(number),
        powered: true,
        agentless: cluster
            .agentless
            .contains(&role::node(&role.host(number), Process::Agent)),
        processes: BTreeMap::new(),
        link: None,
    };
    let mut ports = cluster.ports.clone();
    if options.tls && ports.tls.is_empty() {
        ports.tls.push(443);
    }
    State {
        name: options.name.clone(),
        server: options.server,
        origin: options.origin.clone(),
        root,
        access_log: options.access_log,
        daemons: options.daemons,
        program: options.program.clone(),
        vip: VIP,
        port: cluster.service.port(),
        ports,
        hosts: counts
            .iter()
            .flat_map(|&(role, count)| (1..=count).map(move |number| host(role, number)))
            .collect(),
    }
}

fn build(state: &mut State, cluster: &Cluster) -> Result<()> {
    let dir = state.dir();
    let config = dir.config();
    state::write_private(&config, &cluster.text)?;
    state.save()?;
    topology::make(state)?;
    let hosts: Vec<String> = state.hosts.iter().map(|host| host.name.clone()).collect();
    if !state.ports.tls.is_empty() {
        let backends = state.hosts.iter().filter(|host| host.role.serves());
        let names: Vec<&str> = backends.map(|host| host.name.as_str()).collect();
        tls::make(&dir.tls(), &names)?;
    }
    let started = power::start_processes(state, &hosts, None);
    state.save()?;
    started
}

fn reload_front(state: &State) -> Result<()> {
    let process = |host: &Host| match host.role {
        Role::Spray => Some(Process::Spray),
        role => role.dispatches().then_some(Process::Dispatch),
    };
    let hosts = (state.hosts.iter()).filter_map(|host| Some((host, process(host)?)));
    for (host, process) in hosts.filter(|(host, _)| host.powered) {
        // Its own file follows the cluster's.
        etcd::config(state, host)?;
        let output = netns::command_in(&state.namespace_path(&host.name), state.trapeze()?)?
            .args(["reload", "--node", &role::node(&host.name, process)])
            .output()
            .context("cannot run trapeze reload")?;
        ensure!(
            output.status.success(),
            "{} has not read its configuration again: {}{}",
            host.name,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(())
}

/// Removes all that a lab of this name can have left.
fn remove(name: &str) -> Result<()> {
    let namespaces = state::namespaces(name);
    // The switch first: what the rest does when it dies reaches nobody.
    let switch = state::namespace(name, SWITCH);
    let (switch, hosts): (Vec<_>, Vec<_>) = namespaces.into_iter().partition(|n| *n == switch);
    for namespace in switch.iter().chain(&hosts) {
        process::kill_namespace(&netns::path(namespace));
        topology::remove(namespace)?;
    }
    power::remove_left_by_daemons(name, None)?;
    // The directory last: as long as it is there, `lab down` can be repeated.
    for directory in [state::spool(name), RunDir::of(name).path().to_owned()] {
        if directory.exists() {
            std::fs::remove_dir_all(&directory)
                .with_context(|| format!("cannot remove {}", directory.display()))?;
        }
    }
    Ok(())
}

/// Checks all that can be missing before anything is made.
fn check_machine(options: &Options) -> Result<()> {
    check_root()?;
    program::find("ip")?;
    servers::check(options.server)?;
    ensure!(
        options.server == ServerKind::Origin || options.origin == OriginSettings::default(),
        "only the origin server has a cache and a cost for a miss: --server origin"
    );
    ensure!(
        options.server != ServerKind::Origin || options.root.is_none(),
        "the origin server has objects of its own: leave --root out"
    );
    if options.etcd {
        etcd::check()?;
    }
    if options.tls {
        program::find("openssl")?;
    }
    if options.daemons && options.program.is_none() {
        program::trapeze()?;
    }
    Ok(())
}

pub(crate) fn check_root() -> Result<()> {
    let uid = std::fs::metadata("/proc/self").map_or(0, |metadata| metadata.uid());
    ensure!(
        uid == 0,
        "a lab makes network namespaces: run it as root (sudo)"
    );
    Ok(())
}

/// The directory to serve.
fn root(options: &Options) -> Result<PathBuf> {
    let Some(root) = &options.root else {
        return documents::ensure();
    };
    let path = root
        .canonicalize()
        .with_context(|| format!("cannot serve {}", root.display()))?;
    ensure!(path.is_dir(), "{} is no directory to serve", path.display());
    Ok(path)
}
