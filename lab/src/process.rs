//! Processes that outlive the command that starts them: start, wait until they
//! serve, find again, kill. A pid alone names nobody, since the kernel gives it
//! out again: a start time goes with it.

use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use trapeze_datapath::{kill::kill, netns};

/// How long a process may take until it serves.
const READY_TIMEOUT: Duration = Duration::from_secs(10);
/// How long killed processes may take to be gone.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(5);
/// How much of a log an error message shows.
const TAIL_LINES: usize = 12;

/// A process, and with its start time no other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessRecord {
    /// Its pid, which is also its session's id.
    pub pid: u32,
    /// When it started, in clock ticks since boot.
    pub start_time: u64,
}

/// What /proc/PID/stat says of a process.
struct Stat {
    is_dead: bool,
    session: u32,
    start_time: u64,
}

impl ProcessRecord {
    /// Whether this very process lives.
    pub fn is_running(&self) -> bool {
        Stat::of(self.pid).is_some_and(|stat| !stat.is_dead && stat.start_time == self.start_time)
    }
}

impl Stat {
    fn of(pid: u32) -> Option<Self> {
        let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name, in brackets, may contain anything.
        let (_, after_name) = text.rsplit_once(") ")?;
        let fields: Vec<&str> = after_name.split(' ').collect();
        Some(Stat {
            is_dead: matches!(*fields.first()?, "Z" | "X"),
            session: fields.get(3)?.parse().ok()?,
            start_time: fields.get(19)?.parse().ok()?,
        })
    }
}

/// A process that has been started and may not serve yet.
pub struct Launch {
    /// The process.
    pub record: ProcessRecord,
    log: PathBuf,
    log_start: u64,
}

impl Launch {
    /// Starts `command` in a session of its own, its output appended to `log`.
    ///
    /// # Errors
    /// The program or the log cannot be opened.
    pub fn start(mut command: Command, log: &Path) -> Result<Self> {
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(log)
            .with_context(|| format!("cannot open the log {}", log.display()))?;
        let log_start = file.metadata()?.len();
        command
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .current_dir("/");
        let program = command.get_program().to_owned();
        let mut child = netns::with_all_files(netns::in_own_session(&mut command))
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        let pid = child.id();
        // Not yet waited for, so its entry is there even if it has ended.
        let start_time = Stat::of(pid).context("cannot read /proc")?.start_time;
        // A caller that lives on must not keep what it started as a zombie.
        std::thread::spawn(move || child.wait());
        Ok(Launch {
            record: ProcessRecord { pid, start_time },
            log: log.to_owned(),
            log_start,
        })
    }

    /// Waits until the process has printed a line that starts with `ready`.
    ///
    /// # Errors
    /// It ended, or took too long; shows the end of its log. It is killed then.
    pub fn wait_for_ready(self) -> Result<ProcessRecord> {
        self.wait_until(|log| log.lines().any(|line| line.starts_with("ready")))
    }

    /// Waits until the process accepts connections at `ports` of the namespace.
    ///
    /// # Errors
    /// As [`Launch::wait_for_ready`].
    pub fn wait_for_ports(self, namespace: &Path, ports: &[u16]) -> Result<ProcessRecord> {
        self.wait_until(|_| ports.iter().all(|&port| accepts(namespace, port)))
    }

    fn wait_until(self, mut is_ready: impl FnMut(&str) -> bool) -> Result<ProcessRecord> {
        let deadline = Instant::now() + READY_TIMEOUT;
        loop {
            // Before the log is read: what it says last must not be missed.
            let is_running = self.record.is_running();
            if is_ready(&self.new_log()) {
                return Ok(self.record);
            }
            let problem = if !is_running {
                "ended before it was ready".to_owned()
            } else if Instant::now() > deadline {
                let _ = kill(self.record.pid);
                format!("was not ready after {READY_TIMEOUT:?}")
            } else {
                std::thread::sleep(POLL);
                continue;
            };
            bail!("it {problem}; its log ends with\n{}", self.tail());
        }
    }

    /// What the log has got since the start.
    fn new_log(&self) -> String {
        let read = || -> std::io::Result<Vec<u8>> {
            let mut file = File::open(&self.log)?;
            file.seek(SeekFrom::Start(self.log_start))?;
            let mut bytes = Vec::new();
            file.take(1 << 20).read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        String::from_utf8_lossy(&read().unwrap_or_default()).into_owned()
    }

    fn tail(&self) -> String {
        let log = self.new_log();
        let lines: Vec<String> = log.lines().map(|line| format!("    {line}")).collect();
        match lines.len() {
            0 => "    (nothing)".to_owned(),
            count => lines[count.saturating_sub(TAIL_LINES)..].join("\n"),
        }
    }
}

/// Kills the process and all of its session, as far as they are in the
/// namespace; returns when they are gone.
pub fn kill_session(record: &ProcessRecord, namespace: &Path) {
    kill_until_gone(|| {
        let recycled = Stat::of(record.pid).is_some_and(|s| s.start_time != record.start_time);
        match recycled {
            true => Vec::new(),
            false => in_namespace(namespace)
                .into_iter()
                .filter(|&pid| Stat::of(pid).is_some_and(|stat| stat.session == record.pid))
                .collect(),
        }
    });
}

/// Kills every process in the namespace; returns when they are gone.
pub fn kill_namespace(namespace: &Path) {
    kill_until_gone(|| in_namespace(namespace));
}

/// Kills what `victims` finds, again and again, since some may just be forking.
fn kill_until_gone(victims: impl Fn() -> Vec<u32>) {
    let deadline = Instant::now() + KILL_TIMEOUT;
    // A process that dies leaves its namespace before it lets go of its files, and their locks.
    let mut dying = HashSet::new();
    loop {
        let pids = victims();
        dying.retain(|&pid| !has_ended(pid));
        if (pids.is_empty() && dying.is_empty()) || Instant::now() > deadline {
            return;
        }
        for pid in pids {
            let _ = kill(pid);
            dying.insert(pid);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Whether the process and all its threads are dead: the first of them may be so before the others.
fn has_ended(pid: u32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
    threads <= 1 && Stat::of(pid).is_none_or(|stat| stat.is_dead)
}

/// The processes that live in a namespace, but this one.
fn in_namespace(namespace: &Path) -> Vec<u32> {
    let Ok(identity) = netns::identity(namespace) else {
        return Vec::new();
    };
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|&pid: &u32| pid != std::process::id())
        .filter(|pid| {
            let own = format!("/proc/{pid}/ns/net");
            netns::identity(Path::new(&own)).is_ok_and(|own| own == identity)
        })
        .collect()
}

fn accepts(namespace: &Path, port: u16) -> bool {
    netns::inside(namespace, || {
        std::net::TcpStream::connect((std::net::Ipv4Addr::LOCALHOST, port))
    })
    .is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(script: &str, log: &Path) -> Launch {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        Launch::start(command, log).expect("sh starts")
    }

    #[test]
    fn a_process_is_ready_when_it_says_so() {
        let log = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(log.path(), "ready from an earlier run\n").unwrap();
        let script = "echo not ready; sleep 0.1; echo ready to serve; exec sleep 60";
        let record = start(script, log.path()).wait_for_ready().unwrap();
        assert!(record.is_running());
        let recycled = ProcessRecord {
            start_time: record.start_time + 1,
            ..record
        };
        assert!(!recycled.is_running());
        kill_session(&record, Path::new("/proc/self/ns/net"));
        assert!(!record.is_running());
    }

    #[test]
    fn one_that_ends_early_is_an_error_with_its_last_words() {
        let log = tempfile::NamedTempFile::new().unwrap();
        let error = start("echo cannot bind >&2; exit 3", log.path())
            .wait_for_ready()
            .unwrap_err();
        assert!(error.to_string().contains("cannot bind"), "{error}");
    }

    #[test]
    fn killing_a_session_kills_what_it_forked() {
        let log = tempfile::NamedTempFile::new().unwrap();
        let launch = start("sleep 60 & echo ready $!; wait", log.path());
        let record = launch.wait_for_ready().unwrap();
        let text = std::fs::read_to_string(log.path()).unwrap();
        let forked: u32 = text.trim().strip_prefix("ready ").unwrap().parse().unwrap();
        kill_session(&record, Path::new("/proc/self/ns/net"));
        assert!(Stat::of(forked).is_none_or(|stat| stat.is_dead));
    }
}
