//! A lab with all of Trapeze running in it.

use std::fmt::Write;
use std::ops::Deref;
use std::path::PathBuf;
use std::process::{Child, Command, Output};
use std::time::{Duration, Instant};

use trapeze_datapath::abi::{Flow, FlowState};
use trapeze_datapath::agent::AgentMaps;
use trapeze_datapath::dispatcher::DispatcherMaps;
use trapeze_datapath::run_time::{self, RunTime};
use trapeze_datapath::spray::SprayMaps;
use trapeze_datapath::{control, netns, object};
use trapeze_dispatcher::{BackendStatus, Request, Status};
use trapeze_lab::{LabGuard, Options, Process};

use crate::connection::Connection;
use crate::content::same;
use crate::counts::Counts;

/// Longer than anything but a hang takes.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// A lab that comes down when this is dropped.
pub struct Cluster {
    lab: LabGuard,
    _config: Option<tempfile::TempDir>,
}

impl Cluster {
    /// One client, one dispatcher, three backends with nginx.
    pub fn up(test: &str) -> Self {
        Self::with(test, |_| {})
    }

    /// As `change` makes it.
    pub fn with(test: &str, change: impl FnOnce(&mut Options)) -> Self {
        let mut options = Options::named(&format!("t-{test}-{}", std::process::id()));
        change(&mut options);
        Self {
            lab: LabGuard::up(&options).expect("the lab comes up"),
            _config: None,
        }
    }

    /// As configured: `text` has everything but the nodes. Its pools take turns, so that
    /// tests can count, unless they name another policy.
    pub fn configured(
        test: &str,
        backends: u8,
        text: &str,
        change: impl FnOnce(&mut Options),
    ) -> Self {
        Self::configured_whole(test, &(Self::nodes(backends) + text), change)
    }

    /// Three backends, of which a connection keeps the one that it was given first.
    pub fn kept(test: &str) -> Self {
        let text = "[[pool]]\nname = \"web\"\nhandoff = \"none\"\n\
                    backends = [\"b1\", \"b2\", \"b3\"]\n\
                    [[service]]\nname = \"site\"\naddress = \"10.77.0.100:80\"\npool = \"web\"\n";
        Self::configured(test, 3, text, |_| {})
    }

    /// As configured in a whole file; pools as in [`Self::configured`].
    pub fn configured_whole(test: &str, text: &str, change: impl FnOnce(&mut Options)) -> Self {
        let text = taking_turns(text);
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("trapeze.toml");
        std::fs::write(&path, text).expect("a temporary file");
        let mut cluster = Self::with(test, |options| {
            options.config = Some(path);
            change(options);
        });
        cluster._config = Some(directory);
        cluster
    }

    /// The part of a configuration that names the lab's hosts.
    pub fn nodes(backends: u8) -> String {
        let mut text = String::from(
            "[cluster]\nname = \"tests\"\n\
             keys = [{ id = 1, secret = \"000102030405060708090a0b0c0d0e0f\" }]\n\
             [[dispatcher]]\nname = \"d1\"\naddress = \"10.77.0.11\"\ninterface = \"eth0\"\nattach = \"tc\"\n",
        );
        for number in 1..=backends {
            let address = 20 + number;
            let _ = writeln!(
                text,
                "[[backend]]\nname = \"b{number}\"\naddress = \"10.77.0.{address}\"\ninterface = \"eth0\""
            );
        }
        text
    }

    /// Does `work` on a thread in a host's network.
    pub fn on<T: Send>(&self, host: &str, work: impl FnOnce() -> T + Send) -> T {
        let host = self.host(host).expect("a host that is on");
        netns::inside(host.namespace(), || Ok(work())).expect("the host's namespace")
    }

    /// Does `work` in a host's network on a thread that goes on by itself.
    pub fn spawn<T: Send + 'static>(
        &self,
        host: &str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> std::thread::JoinHandle<T> {
        let namespace = self
            .host(host)
            .expect("a host that is on")
            .namespace()
            .to_owned();
        std::thread::spawn(move || {
            netns::enter(&namespace).expect("the host's namespace");
            work()
        })
    }

    /// A command on a host. Its program must be installed.
    pub fn command(&self, host: &str, command: &[&str]) -> Command {
        assert!(
            is_installed(command[0]),
            "{} is not installed: make setup",
            command[0]
        );
        let mut built = self
            .host(host)
            .expect("a host that is on")
            .command(command[0]);
        built.args(&command[1..]);
        built
    }

    /// Runs a command on a host.
    pub fn output(&self, host: &str, command: &[&str]) -> Output {
        self.command(host, command).output().expect("it starts")
    }

    /// Runs the binary that cargo has built beside the test on a host.
    pub fn trapeze(&self, host: &str, words: &[&str]) -> Output {
        let test = std::env::current_exe().expect("a test is a file");
        // target/PROFILE/deps/TEST
        let path = test.ancestors().nth(2).expect("cargo's layout");
        let path = path.join("trapeze");
        let command = path.to_str().expect("a path in UTF-8");
        self.output(host, &[&[command], words].concat())
    }

    /// Starts a command on a host; its output is not read.
    pub fn start_command(&self, host: &str, command: &[&str]) -> Child {
        self.command(host, command).spawn().expect("it starts")
    }

    /// What a command on a host writes; it must succeed.
    pub fn run(&self, host: &str, command: &[&str]) -> String {
        String::from_utf8_lossy(&self.run_bytes(host, command)).into_owned()
    }

    /// As [`Self::run`], whatever it writes.
    pub fn run_bytes(&self, host: &str, command: &[&str]) -> Vec<u8> {
        let output = self.output(host, command);
        assert!(
            output.status.success(),
            "{command:?} on {host}: {}\n{}{}",
            output.status,
            String::from_utf8_lossy(&output.stdout[..output.stdout.len().min(2000)]),
            String::from_utf8_lossy(&output.stderr)
        );
        output.stdout
    }

    /// Of a host's interface, as `ip` says it.
    pub fn link_address(&self, host: &str) -> String {
        let link = self.run(host, &["ip", "-o", "link", "show", "eth0"]);
        let (_, rest) = link
            .split_once("link/ether ")
            .expect("an Ethernet interface");
        rest.split(' ').next().expect("its address").to_owned()
    }

    /// Has all other hosts know that an address, which no kernel holds, is at
    /// `host`: for clients that make their own packets.
    pub fn lend_address(&self, host: &str, address: &str) {
        let mac = &self.link_address(host);
        let status = self.status().expect("the lab is up");
        for other in status.hosts.iter().filter(|other| other.name != host) {
            let words = [
                "ip", "neigh", "replace", address, "lladdr", mac, "dev", "eth0",
            ];
            self.run(&other.name, &words);
        }
    }

    /// The maps of d1.
    pub fn dispatcher_maps(&self) -> DispatcherMaps {
        DispatcherMaps::open(&self.pins("d1")).expect("d1's data path is pinned")
    }

    /// What d1's data path has counted.
    pub fn dispatcher(&self) -> Counts {
        let maps = self.dispatcher_maps();
        Counts::read(&maps.drops, &maps.events)
    }

    /// What any dispatcher's data path has counted.
    pub fn dispatcher_named(&self, name: &str) -> Counts {
        let maps = DispatcherMaps::open(&self.pins(name)).expect("its data path is pinned");
        Counts::read(&maps.drops, &maps.events)
    }

    /// The maps of any dispatcher.
    pub fn dispatcher_maps_of(&self, name: &str) -> DispatcherMaps {
        DispatcherMaps::open(&self.pins(name)).expect("its data path is pinned")
    }

    /// What the program behind one of a node's links has done, while programs were timed.
    pub fn run_time(&self, node: &str, link: &str) -> RunTime {
        run_time::of_link(&self.pins(node).join(link)).expect("it is attached")
    }

    /// The maps of a spray.
    pub fn spray_maps(&self, name: &str) -> SprayMaps {
        SprayMaps::open(&self.pins(name)).expect("the spray's data path is pinned")
    }

    /// What a spray's data path has counted.
    pub fn spray(&self, name: &str) -> Counts {
        let maps = self.spray_maps(name);
        Counts::read(&maps.drops, &maps.events)
    }

    /// What a spray's daemon says of itself and of others; up to 100 ms and a heartbeat old.
    pub fn spray_status(&self, name: &str) -> trapeze_spray::Status {
        let socket = self.control_of(name);
        control::ask(&socket, &trapeze_spray::Request::Status).expect("the daemon answers")
    }

    /// The maps of a backend's agent.
    pub fn agent_maps(&self, backend: &str) -> AgentMaps {
        AgentMaps::open(&self.pins(backend)).expect("the agent's maps are pinned")
    }

    /// What a backend's data path has counted.
    pub fn agent(&self, backend: &str) -> Counts {
        let maps = self.agent_maps(backend);
        Counts::read(&maps.drops, &maps.events)
    }

    /// What all backends' data paths have counted together.
    pub fn agents(&self) -> Counts {
        let status = self.status().expect("the lab is up");
        let backends = status
            .hosts
            .iter()
            .filter(|h| h.name.starts_with('b') && h.up);
        backends
            .map(|host| self.agent(&host.name))
            .fold(Counts::default(), Counts::plus)
    }

    /// Waits until nothing is left of answers that have been taken over: no connection, socket
    /// or thread on the backends that are alive, and nothing kept by d1.
    pub fn expect_nothing_left(&self, alive: &[&str]) {
        until("d1 keeps nothing", || {
            let status = self.daemon();
            let is_over = |flow: &Flow| flow.state > FlowState::Established as u32;
            let kept = (
                status.protected_answers,
                status.reading_flows,
                status.answering_flows,
            );
            (kept == (0, 0, 0) && self.flows().iter().all(is_over)).then_some(())
        });
        for backend in alive {
            until("its sockets go", || {
                let sockets = self.run(backend, &["ss", "-Htn", "sport", "=", ":80"]);
                sockets.is_empty().then_some(())
            });
            until("its wedge is idle", || {
                (self.threads(backend, "wedge") == 1).then_some(())
            });
            assert_eq!(self.backend(backend).active, 0, "{backend}");
            let maps = self.agent_maps(backend);
            let kept = (
                maps.older.all().map(|all| all.len()),
                maps.parked.all().map(|all| all.len()),
            );
            assert!(matches!(kept, (Ok(0), Ok(0))), "{backend}: {kept:?}");
        }
    }

    /// Threads of that name that a backend's agent has.
    fn threads(&self, backend: &str, name: &str) -> usize {
        let status = self.status().expect("the lab is up");
        let host = status.host(backend).expect("a host");
        let agent = host.processes.get(&Process::Agent).expect("it has one");
        let tasks = format!("/proc/{}/task", agent.pid.expect("it has been started"));
        let tasks = std::fs::read_dir(tasks).expect("it runs").flatten();
        let named = tasks.filter(|task| {
            let comm = std::fs::read_to_string(task.path().join("comm"));
            comm.is_ok_and(|comm| comm.trim_end() == name)
        });
        named.count()
    }

    /// The flow records of d1.
    pub fn flows(&self) -> Vec<Flow> {
        let all = self.dispatcher_maps().flows.all().expect("the map is read");
        all.into_iter().map(|(_, flow)| flow).collect()
    }

    /// What d1's daemon says of itself; up to 200 ms old.
    pub fn daemon(&self) -> Status {
        trapeze_dispatcher::ask(&self.control(), &Request::Status).expect("the daemon answers")
    }

    /// What a dispatcher's daemon says of itself, if it is there to answer; up to 200 ms old.
    pub fn dispatch_status(&self, name: &str) -> Option<Status> {
        trapeze_dispatcher::ask(&self.control_of(name), &Request::Status).ok()
    }

    /// What d1's daemon says of a backend.
    pub fn backend(&self, name: &str) -> BackendStatus {
        self.backend_as_seen_by("d1", name)
    }

    /// What a dispatcher's daemon says of a backend.
    pub fn backend_as_seen_by(&self, dispatcher: &str, name: &str) -> BackendStatus {
        let control = self.control_of(dispatcher);
        let all: Vec<BackendStatus> =
            trapeze_dispatcher::ask(&control, &Request::Backends).expect("it answers");
        all.into_iter()
            .find(|b| b.name == name)
            .expect("it is configured")
    }

    /// The text of the configuration file.
    pub fn config(&self) -> String {
        std::fs::read_to_string(self.status().expect("the lab is up").config).expect("its file")
    }

    /// Writes the configuration and sends SIGHUP to a daemon; what it says then.
    pub fn reload(&self, host: &str, process: Process, config: &str) -> String {
        let status = self.status().expect("the lab is up");
        std::fs::write(&status.config, config).expect("the configuration is written");
        let word = match process {
            Process::Spray => "spray",
            Process::Dispatch => "dispatch",
            Process::Agent => "agent",
            Process::Server => "server",
            Process::Etcd => "etcd",
        };
        let log = status.logs.join(format!("{host}.{word}.log"));
        let read = || std::fs::read_to_string(&log).unwrap_or_default();
        let before = read().len();
        let pid = status.host(host).expect("a host").processes[&process].pid;
        let hup = Command::new("kill")
            .args(["-HUP", &pid.expect("it has been started").to_string()])
            .status();
        assert!(hup.expect("kill is installed").success());
        until("the daemon has said what it makes of it", || {
            let said = read()[before..].to_owned();
            said.ends_with('\n').then_some(said)
        })
    }

    /// Kills a process as SIGKILL does, and starts it again.
    pub fn restart(&self, host: &str, process: Process) {
        self.kill(host, Some(process)).expect("it runs");
        self.start(host, Some(process)).expect("it starts again");
    }

    /// Sends a signal, such as `-STOP`, to all processes of a backend's server.
    pub fn signal_server(&self, backend: &str, signal: &str) {
        self.signal(backend, Process::Server, signal);
    }

    /// Sends a signal to a process, and to those that it has started. After `-STOP` none of their threads runs.
    pub fn signal(&self, host: &str, process: Process, signal: &str) {
        let status = self.status().expect("the lab is up");
        let processes = &status.host(host).expect("a host").processes;
        let pid = processes[&process].pid.expect("it runs");
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
        let children = children.expect("the kernel says it");
        let all: Vec<String> = (children.split_whitespace())
            .map(str::to_owned)
            .chain([pid.to_string()])
            .collect();
        let sent = Command::new("kill").arg(signal).args(&all).status();
        assert!(sent.expect("kill is installed").success());
        if signal == "-STOP" {
            until("all have stopped", || {
                all.iter().all(|pid| has_stopped(pid)).then_some(())
            });
        }
    }

    /// Where a backend stores uploads.
    pub fn uploads(&self, backend: &str) -> PathBuf {
        let status = self.status().expect("the lab is up");
        status
            .host(backend)
            .expect("a host")
            .uploads
            .clone()
            .expect("a backend")
    }

    /// A body that a client puts, and that a backend has then as it was sent.
    pub fn upload(&self, client: &mut Connection, name: &str, body: &[u8]) {
        let length = body.len();
        client.send(format!(
            "PUT /upload/{name} HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n"
        ));
        let response = client.send(body).response();
        assert!(response.status < 300, "{}", response.head);
        let at = self.uploads(response.backend()).join(name);
        same(&std::fs::read(at).expect("it is stored"), body);
    }

    /// The directory that the servers serve.
    pub fn document(&self, name: &str) -> Vec<u8> {
        let root = self.status().expect("the lab is up").root;
        std::fs::read(root.join(name)).expect("a document of the lab")
    }

    fn pins(&self, node: &str) -> PathBuf {
        object::pin_dir(&format!("lab-{}", self.name()), node)
    }

    fn control(&self) -> PathBuf {
        self.control_of("d1")
    }

    fn control_of(&self, node: &str) -> PathBuf {
        PathBuf::from(format!(
            "/run/trapeze/lab-{}/{node}/control.sock",
            self.name()
        ))
    }
}

impl Deref for Cluster {
    type Target = LabGuard;

    fn deref(&self) -> &LabGuard {
        &self.lab
    }
}

/// The same configuration, in which pools that name no policy take turns.
pub fn taking_turns(text: &str) -> String {
    const POOL: &str = "[[pool]]\n";
    let (start, pools) = text.split_once(POOL).unwrap_or((text, ""));
    let pools = pools.split(POOL).filter(|pool| !pool.is_empty());
    pools.fold(start.to_owned(), |text, pool| {
        let (own, _) = pool.split_once("\n[").unwrap_or((pool, ""));
        let names_one = own.lines().any(|line| line.starts_with("policy"));
        let policy = if names_one { "" } else { TURNS };
        text + POOL + policy + pool
    })
}

const TURNS: &str = "policy = \"round-robin\"\n";

/// A configuration without the section of that node, which is not the last one.
pub fn without_node(config: &str, name: &str) -> String {
    let named = config
        .find(&format!("name = \"{name}\""))
        .expect("it is there");
    let start = config[..named].rfind("[[").expect("a section");
    let end = config[named..].find("[[").expect("another one behind it") + named;
    config[..start].to_owned() + &config[end..]
}

/// Waits until `look` finds something, within [`PATIENCE`].
pub fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < PATIENCE, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Once one of its threads has been let run the others stop, too: until then they go on.
fn has_stopped(pid: &str) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).expect("it is there");
    let runs = |thread: std::fs::DirEntry| {
        let state = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        let state = state.rsplit_once(") ");
        state.is_some_and(|(_, state)| !state.starts_with(['T', 'Z', 'X']))
    };
    !threads.flatten().any(runs)
}

fn is_installed(program: &str) -> bool {
    let path = std::env::var("PATH").unwrap_or_default();
    let mut directories = path.split(':').chain(["/usr/sbin", "/sbin"]);
    program.contains('/') || directories.any(|d| PathBuf::from(d).join(program).is_file())
}
