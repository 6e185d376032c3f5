//! Where a node keeps what outlives its daemon, and how a command on the same
//! host (or in the same network namespace) finds it.

use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Below it each cluster and node has its directory.
const RUN: &str = "/run/trapeze";

/// What a daemon runs as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// `trapeze spray`.
    Spray,
    /// `trapeze dispatch`.
    Dispatcher,
    /// `trapeze agent`.
    Agent,
}

impl Role {
    /// As written in the node's file and shown to people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Spray => "spray",
            Self::Dispatcher => "dispatcher",
            Self::Agent => "agent",
        }
    }
}

/// A node of this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// The cluster's name.
    pub cluster: String,
    /// The node's name.
    pub name: String,
    /// What it does.
    pub role: Role,
    /// The configuration file that its daemon was started with.
    pub config: PathBuf,
    /// Its daemon's process.
    pub pid: u32,
    /// The network namespace that it is in (inode).
    pub namespace: u64,
}

impl Node {
    /// This process as a node.
    pub fn here(cluster: &str, name: &str, role: Role, config: &Path) -> io::Result<Self> {
        Ok(Self {
            cluster: cluster.into(),
            name: name.into(),
            role,
            config: std::path::absolute(config)?,
            pid: std::process::id(),
            namespace: own_namespace()?,
        })
    }

    /// Its directory for files.
    pub fn run_dir(&self) -> PathBuf {
        Path::new(RUN).join(&self.cluster).join(&self.name)
    }

    /// Its directory for pinned maps and links.
    pub fn pins(&self) -> PathBuf {
        crate::object::pin_dir(&self.cluster, &self.name)
    }

    /// The socket on which its daemon answers.
    pub fn control_socket(&self) -> PathBuf {
        self.run_dir().join("control.sock")
    }

    /// Whether its daemon runs: it holds the lock as long as it lives.
    pub fn is_running(&self) -> bool {
        let lock = File::open(self.run_dir().join("lock"));
        lock.is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
    }

    /// When its daemon wrote the node's file, which it does at its start.
    pub fn since(&self) -> io::Result<SystemTime> {
        std::fs::metadata(self.run_dir().join("node"))?.modified()
    }

    /// Makes this process the node's only daemon, for as long as the returned
    /// file is open.
    ///
    /// # Errors
    /// There is one already (`ResourceBusy`, with what to do about it), or the
    /// directory cannot be written.
    pub fn lock(&self) -> io::Result<File> {
        std::fs::create_dir_all(self.run_dir())?;
        let file = File::create(self.run_dir().join("lock"))?;
        match file.try_lock() {
            Ok(()) => Ok(file),
            Err(TryLockError::WouldBlock) => Err(io::Error::new(
                io::ErrorKind::ResourceBusy,
                format!(
                    "{} runs already{}: kill -USR2 it to take over its connections, or -TERM to stop it",
                    self.name,
                    read(&self.run_dir())
                        .map_or(String::new(), |last| format!(" (process {})", last.pid))
                ),
            )),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    /// Writes the node's file, for commands to find.
    pub fn register(&self) -> io::Result<()> {
        let text = format!(
            "role={}\nconfig={}\npid={}\nnamespace={}\n",
            self.role.name(),
            self.config.display(),
            self.pid,
            self.namespace
        );
        std::fs::write(self.run_dir().join("node"), text)
    }

    /// Takes the directory away, at an orderly end.
    pub fn unregister(&self) -> io::Result<()> {
        std::fs::remove_dir_all(self.run_dir())?;
        let _ = std::fs::remove_dir(Path::new(RUN).join(&self.cluster));
        Ok(())
    }

    /// The nodes in this network namespace, whether their daemons run or not.
    pub fn local() -> io::Result<Vec<Self>> {
        let here = own_namespace()?;
        let mut nodes: Vec<Self> = all().into_iter().filter(|n| n.namespace == here).collect();
        nodes.sort_by(|a, b| (&a.cluster, &a.name).cmp(&(&b.cluster, &b.name)));
        Ok(nodes)
    }
}

fn own_namespace() -> io::Result<u64> {
    Ok(std::fs::metadata("/proc/self/ns/net")?.ino())
}

fn all() -> Vec<Node> {
    let clusters = std::fs::read_dir(RUN).into_iter().flatten().flatten();
    clusters
        .flat_map(|cluster| {
            std::fs::read_dir(cluster.path())
                .into_iter()
                .flatten()
                .flatten()
        })
        .filter_map(|node| read(&node.path()))
        .collect()
}

fn read(dir: &Path) -> Option<Node> {
    let text = std::fs::read_to_string(dir.join("node")).ok()?;
    let value = |name: &str| {
        text.lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix('='))
            .map(str::to_owned)
    };
    Some(Node {
        cluster: dir.parent()?.file_name()?.to_str()?.to_owned(),
        name: dir.file_name()?.to_str()?.to_owned(),
        role: match value("role")?.as_str() {
            "spray" => Role::Spray,
            "dispatcher" => Role::Dispatcher,
            "agent" => Role::Agent,
            _ => return None,
        },
        config: value("config")?.into(),
        pid: value("pid")?.parse().ok()?,
        namespace: value("namespace")?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_runs_as_long_as_it_holds_the_lock() {
        let node = Node::here("test-lock", "n1", Role::Agent, Path::new("none")).unwrap();
        assert!(!node.is_running());
        let lock = node.lock().expect("nobody has it");
        assert!(node.is_running());
        assert_eq!(node.lock().unwrap_err().kind(), io::ErrorKind::ResourceBusy);
        drop(lock);
        assert!(!node.is_running());
        node.unregister().unwrap();
    }
}
