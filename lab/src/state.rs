//! What a lab remembers between commands, and where: a directory in /run for
//! each lab, which is locked while a command changes the lab.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::ErrorKind;
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use serde::{Deserialize, Serialize};
use trapeze_datapath::netns;

use crate::link::settings::LinkSettings;
use crate::options::ServerKind;
use crate::process::ProcessRecord;
use crate::program;
use crate::role::{self, Process, Role};
use crate::servers::origin::OriginSettings;

/// Where labs have their directories.
const LABS: &str = "/run/trapeze/lab";
/// Where labs keep what may be large: uploads, and bodies that servers buffer.
const SPOOL: &str = "/var/tmp/trapeze/lab";
/// Where the daemons of all clusters have what outlives them: pinned maps and
/// programs, and files about themselves.
const LEFT_BY_DAEMONS: [&str; 2] = ["/sys/fs/bpf/trapeze", "/run/trapeze"];
/// Where they have what outlives the host's power.
const ON_DISK: &str = "/var/lib/trapeze";

/// A lab, as its directory describes it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct State {
    /// Which of the labs on this machine.
    pub name: String,
    /// What the backends run.
    pub server: ServerKind,
    /// What origin servers remember, and what a miss costs.
    pub origin: OriginSettings,
    /// The directory that the others serve.
    pub root: PathBuf,
    /// Whether they log each request.
    pub access_log: bool,
    /// Whether agents and dispatchers run.
    pub daemons: bool,
    /// The `trapeze` binary, if it is not to be the running one.
    pub program: Option<PathBuf>,
    /// The first service's address.
    pub vip: Ipv4Addr,
    /// The first service's port.
    pub port: u16,
    /// Ports of servers.
    pub ports: Ports,
    /// In the order of roles, then numbers.
    pub hosts: Vec<Host>,
}

/// Where servers listen, at every address.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Ports {
    /// HTTP.
    pub plain: Vec<u16>,
    /// HTTPS.
    pub tls: Vec<u16>,
}

/// A host and what runs on it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Host {
    /// c1, d1, b1, …
    pub name: String,
    /// What it is for.
    pub role: Role,
    /// In every lab's own network.
    pub address: Ipv4Addr,
    /// Whether it is on.
    pub powered: bool,
    /// A backend without an agent.
    #[serde(default)]
    pub agentless: bool,
    /// What has been started; it may have ended since.
    pub processes: BTreeMap<Process, ProcessRecord>,
    /// What the link to the bridge does, if it is emulated.
    pub link: Option<Link>,
}

/// An emulated link.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Link {
    /// What happens to frames.
    pub settings: LinkSettings,
    /// The process that makes it happen.
    pub relay: ProcessRecord,
}

/// The directory of a lab.
#[derive(Clone, Debug)]
pub struct RunDir(PathBuf);

/// The right to change a lab, until it is dropped.
pub struct Lock(#[expect(dead_code, reason = "the lock is held by the open file")] File);

impl State {
    /// Reads the state of the lab `name`.
    ///
    /// # Errors
    /// There is none of that name, or `lab up` did not come so far.
    pub fn load(name: &str) -> Result<Self> {
        let path = RunDir::of(name).state();
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Err(absent(name)),
            Err(error) => return Err(error).context(format!("cannot read {}", path.display())),
        };
        serde_json::from_str(&text).with_context(|| {
            format!(
                "{} is of another version of trapeze or damaged: trapeze lab down --name {name}",
                path.display()
            )
        })
    }

    /// Writes the state, so that a reader sees the old one or the new one.
    ///
    /// # Errors
    /// The directory is gone or full.
    pub fn save(&self) -> Result<()> {
        let path = self.dir().state();
        let new = path.with_extension("new");
        std::fs::write(&new, serde_json::to_vec_pretty(self)?)
            .and_then(|()| std::fs::rename(&new, &path))
            .with_context(|| format!("cannot write {}", path.display()))
    }

    /// The lab's directory.
    pub fn dir(&self) -> RunDir {
        RunDir::of(&self.name)
    }

    /// The host `name`.
    ///
    /// # Errors
    /// There is none: says which there are.
    pub fn host(&self, name: &str) -> Result<&Host> {
        let found = self.hosts.iter().find(|host| host.name == name);
        found.ok_or_else(|| self.no_host(name))
    }

    /// The host `name`, to change it.
    ///
    /// # Errors
    /// As [`State::host`].
    pub fn host_mut(&mut self, name: &str) -> Result<&mut Host> {
        match self.hosts.iter().position(|host| host.name == name) {
            Some(index) => Ok(&mut self.hosts[index]),
            None => Err(self.no_host(name)),
        }
    }

    /// The namespace of the host `host`, as `ip netns` calls it.
    pub fn namespace(&self, host: &str) -> String {
        namespace(&self.name, host)
    }

    /// The path of that namespace.
    pub fn namespace_path(&self, host: &str) -> PathBuf {
        netns::path(&self.namespace(host))
    }

    /// The namespace that holds the bridge.
    pub fn switch(&self) -> String {
        self.namespace(role::SWITCH)
    }

    /// The path of that namespace.
    pub fn switch_path(&self) -> PathBuf {
        netns::path(&self.switch())
    }

    /// The `trapeze` binary that this lab runs.
    ///
    /// # Errors
    /// There is none.
    pub fn trapeze(&self) -> Result<PathBuf> {
        self.program.clone().map_or_else(program::trapeze, Ok)
    }

    /// Whether sprays and dispatchers find each other by etcd.
    pub fn has_etcd(&self) -> bool {
        self.hosts.iter().any(|host| host.role == Role::Etcd)
    }

    /// Where origin servers can be asked about themselves.
    pub fn origin_port(&self) -> u16 {
        self.ports.plain.first().copied().unwrap_or(self.port)
    }

    /// What runs on that host in this lab.
    pub fn processes(&self, host: &Host) -> impl Iterator<Item = Process> + use<> {
        let (with_daemons, agentless) = (self.daemons, host.agentless);
        let all = host.role.processes().iter().copied();
        all.filter(move |&process| {
            let is_ours = process.subcommand().is_some();
            !is_ours || with_daemons && !(agentless && process == Process::Agent)
        })
    }

    fn no_host(&self, name: &str) -> anyhow::Error {
        let names: Vec<&str> = self.hosts.iter().map(|host| host.name.as_str()).collect();
        anyhow!(
            "lab {:?} has no host {name:?}; it has {}",
            self.name,
            names.join(" ")
        )
    }
}

impl RunDir {
    /// The directory of the lab `name`, which need not exist.
    pub fn of(name: &str) -> Self {
        RunDir(Path::new(LABS).join(name))
    }

    /// Makes the directory of a new lab, and locks the lab.
    ///
    /// # Errors
    /// There is a lab of that name, whole or in parts.
    pub fn create(name: &str) -> Result<(Self, Lock)> {
        std::fs::create_dir_all(LABS).with_context(|| format!("cannot make {LABS}"))?;
        let dir = RunDir::of(name);
        let taken = anyhow!("lab {name:?} exists: trapeze lab down --name {name}");
        if !namespaces(name).is_empty() {
            return Err(taken);
        }
        match std::fs::create_dir(&dir.0) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::AlreadyExists => return Err(taken),
            Err(error) => return Err(error).context(format!("cannot make {}", dir.0.display())),
        }
        let lock = dir.lock()?;
        std::fs::create_dir(dir.logs())?;
        Ok((dir, lock))
    }

    /// Waits until no other command changes the lab.
    ///
    /// # Errors
    /// There is no such lab.
    pub fn lock(&self) -> Result<Lock> {
        let name = self.0.file_name().unwrap_or_default().to_string_lossy();
        let file = File::open(&self.0).map_err(|error| match error.kind() {
            ErrorKind::NotFound => absent(&name),
            _ => anyhow!(error).context(format!("cannot open {}", self.0.display())),
        })?;
        file.lock()?;
        Ok(Lock(file))
    }

    /// The directory itself.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// What [`State::save`] writes.
    pub fn state(&self) -> PathBuf {
        self.0.join("state.json")
    }

    /// The cluster's configuration file.
    pub fn config(&self) -> PathBuf {
        self.0.join("trapeze.toml")
    }

    /// What a host's daemon reads if that is not the cluster's file.
    pub fn config_of(&self, host: &str) -> PathBuf {
        self.0.join(format!("{host}.toml"))
    }

    /// The output of a process: `server`, `agent`, `dispatch` or `link`.
    pub fn log(&self, host: &str, process: &str) -> PathBuf {
        self.logs().join(format!("{host}.{process}.log"))
    }

    /// The directory of all logs.
    pub fn logs(&self) -> PathBuf {
        self.0.join("logs")
    }

    /// A server's own configuration and the like.
    pub fn host(&self, host: &str) -> PathBuf {
        self.0.join(host)
    }

    /// Keys and certificates.
    pub fn tls(&self) -> PathBuf {
        self.0.join("tls")
    }

    /// Where a link's relay can be asked.
    pub fn link_socket(&self, host: &str) -> PathBuf {
        self.0.join(format!("{host}.link"))
    }
}

/// Where the lab `name` keeps what may be large.
pub fn spool(name: &str) -> PathBuf {
    Path::new(SPOOL).join(name)
}

/// Writes what holds keys.
///
/// # Errors
/// The directory is gone or full.
pub fn write_private(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text)
        .and_then(|()| std::fs::set_permissions(path, PermissionsExt::from_mode(0o600)))
        .with_context(|| format!("cannot write {}", path.display()))
}

/// What daemons of the lab `name` leave behind, those of one host or of all; of one host
/// not what is on its disk.
pub fn left_by_daemons(name: &str, host: Option<&str>) -> impl Iterator<Item = PathBuf> {
    let on_disk = host.is_none().then_some(&ON_DISK);
    let nodes = host.map_or(vec![String::new()], |host| {
        let mut nodes = [Process::Agent, Process::Dispatch]
            .map(|p| role::node(host, p))
            .to_vec();
        nodes.dedup();
        nodes
    });
    LEFT_BY_DAEMONS
        .iter()
        .chain(on_disk)
        .flat_map(move |directory| {
            let cluster = Path::new(directory).join(cluster(name));
            nodes
                .clone()
                .into_iter()
                .map(move |node| cluster.join(node))
        })
}

/// The name of the cluster that the lab `name` is.
pub fn cluster(name: &str) -> String {
    format!("lab-{name}")
}

/// The namespace of a host of the lab `name`.
pub fn namespace(name: &str, host: &str) -> String {
    format!("tz-{name}-{host}")
}

/// The namespaces that exist of the lab `name`.
pub fn namespaces(name: &str) -> Vec<String> {
    let prefix = namespace(name, "");
    let Ok(entries) = std::fs::read_dir(netns::NAMED) else {
        return Vec::new();
    };
    entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        // The lab `a` must not take `tz-a-b-c1` of the lab `a-b` for its own.
        .filter(|namespace| {
            let host = namespace.strip_prefix(&prefix);
            host.is_some_and(|host| host == role::SWITCH || Role::of(host).is_some())
        })
        .collect()
}

/// Whether anything of the lab `name` exists.
pub fn exists(name: &str) -> bool {
    RunDir::of(name).path().exists() || !namespaces(name).is_empty()
}

/// The names of all labs.
fn labs() -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(LABS) else {
        return Vec::new();
    };
    let mut names: Vec<String> = entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect();
    names.sort();
    names
}

/// The error for a lab that is not there.
pub fn absent(name: &str) -> anyhow::Error {
    if RunDir::of(name).path().exists() {
        return anyhow!("lab {name:?} is half made: trapeze lab down --name {name}");
    }
    anyhow!(
        "there is no lab {name:?}: trapeze lab up --name {name}{}",
        others()
    )
}

/// The labs that there are, for an error about one that is not.
pub fn others() -> String {
    let labs = labs();
    match labs.is_empty() {
        true => String::new(),
        false => format!(" (there are: {})", labs.join(" ")),
    }
}

/// Checks a lab's name: it becomes part of namespaces' and clusters' names.
///
/// # Errors
/// Says what a name may contain.
pub fn check_name(name: &str) -> Result<()> {
    let valid = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let ends = |c: Option<char>| c.is_some_and(|c| c != '-');
    if name.len() <= 24
        && name.chars().all(valid)
        && ends(name.chars().next())
        && ends(name.chars().last())
    {
        return Ok(());
    }
    bail!("a lab's name is up to 24 of a-z, 0-9 and -, with no - at its ends, not {name:?}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_would_leave_the_directory_are_refused() {
        for valid in ["lab", "a", "a-b", "7"] {
            assert!(check_name(valid).is_ok(), "{valid}");
        }
        for wrong in ["", "-a", "a-", "..", "a/b", "A", "a b", &"a".repeat(25)] {
            assert!(check_name(wrong).is_err(), "{wrong}");
        }
    }
}
