//! Servers that do not do their work, while their hosts are well: active checks find out, new
//! requests go elsewhere, and come back (docs/decisions/0024).

use std::process::Command;

use tempfile::TempDir;
use trapeze_dispatcher::{BackendStatus, CheckStatus};
use trapeze_lab::Process;
use trapeze_tests::{Cluster, Connection, until};

const HTTP: &str = "[pool.check]\ntype = \"http\"\npath = \"/healthz\"\nstatus = 200\n\
                    body = \"well\"\ninterval = \"100ms\"\ntimeout = \"1s\"\nrise = 2\nfall = 2\n";
const SERVICE: &str =
    "[[service]]\nname = \"site\"\naddress = \"10.77.0.100:80\"\npool = \"web\"\n";

/// Two backends with nginx, whose servers are checked.
struct Site {
    cluster: Cluster,
    _root: TempDir,
}

impl Site {
    fn up(test: &str, pool: &str, check: &str) -> Self {
        let root = tempfile::tempdir().expect("a temporary directory");
        let documents = [("1k", "x".repeat(1024)), ("healthz", "all is well".into())];
        for (name, text) in documents {
            std::fs::write(root.path().join(name), text).expect("a temporary file");
        }
        let text = format!(
            "[[pool]]\nname = \"web\"\n{pool}backends = [\"b1\", \"b2\"]\n{check}{SERVICE}"
        );
        let path = root.path().to_owned();
        let cluster = Cluster::configured(test, 2, &text, |options| options.root = Some(path));
        let site = Self {
            cluster,
            _root: root,
        };
        for backend in ["b1", "b2"] {
            site.await_check(backend, "up");
        }
        site
    }

    fn check(&self, backend: &str) -> Option<CheckStatus> {
        self.cluster.backend(backend).checks.pop()
    }

    fn await_check(&self, backend: &str, state: &str) {
        until("the dispatcher has heard of the check", || {
            (self.check(backend)?.state == state).then_some(())
        });
    }

    fn await_state(&self, backend: &str, state: &str) -> BackendStatus {
        until(&format!("{backend} is {state}"), || {
            let status = self.cluster.backend(backend);
            (status.state == state).then_some(status)
        })
    }

    /// Who has the next eight requests, each on a connection of its own.
    fn owners(&self) -> Vec<String> {
        let ask = || Connection::open().ask("/1k").ok().to_owned();
        let mut owners: Vec<_> = (self.cluster).on("c1", || (0..8).map(|_| ask()).collect());
        owners.sort();
        owners.dedup();
        owners
    }

    /// A signal to a backend's server, and to its workers.
    fn signal(&self, backend: &str, signal: &str) {
        let status = self.cluster.status().expect("the lab is up");
        let processes = &status.host(backend).expect("a host").processes;
        let pid = processes[&Process::Server].pid.expect("it runs");
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
        let children = children.expect("the kernel says it");
        let all = children
            .split_whitespace()
            .map(str::to_owned)
            .chain([pid.to_string()]);
        let sent = Command::new("kill").arg(signal).args(all).status();
        assert!(sent.expect("kill is installed").success());
    }

    /// What a backend's nginx answers at /healthz from now on.
    fn say(&self, backend: &str, answer: &str) {
        let status = self.cluster.status().expect("the lab is up");
        let directory = status.config.parent().expect("the lab's directory");
        let configuration = directory.join(backend).join("nginx.conf");
        let text = std::fs::read_to_string(&configuration).expect("nginx's configuration");
        const OWN: &str = "location = /healthz {";
        let text: String = (text.lines())
            .filter(|line| !line.contains(OWN))
            .map(|line| format!("{line}\n"))
            .collect();
        let own = "location = /upload {\n";
        let text = match answer {
            "" => text,
            answer => text.replacen(own, &format!("{OWN} {answer} }}\n    {own}"), 1),
        };
        std::fs::write(&configuration, text).expect("it is written");
        let processes = &status.host(backend).expect("a host").processes;
        let pid = processes[&Process::Server].pid.expect("it runs");
        let sent = Command::new("kill")
            .args(["-HUP", &pid.to_string()])
            .status();
        assert!(sent.expect("kill is installed").success());
    }
}

#[test]
fn a_frozen_server_gets_nothing_until_it_is_back() {
    let site = Site::up("health-frozen", "", HTTP);
    assert_eq!(site.owners(), ["b1", "b2"]);
    site.signal("b1", "-STOP");
    let status = site.await_state("b1", "down");
    assert_eq!(status.reason, "web:80: no answer within the timeout");
    assert_eq!(site.owners(), ["b2"]);
    assert_eq!(site.cluster.backend("b2").state, "up");
    site.signal("b1", "-CONT");
    let status = site.await_state("b1", "up");
    let changes: Vec<_> = status.history.iter().map(|c| (&*c.from, &*c.to)).collect();
    assert!(
        changes.ends_with(&[("up", "down"), ("down", "up")]),
        "{changes:?}"
    );
    assert_eq!(site.owners(), ["b1", "b2"]);
}

#[test]
fn a_server_whose_answer_is_wrong_gets_nothing() {
    let site = Site::up("health-wrong", "", HTTP);
    for (answer, reason) in [
        ("return 503;", "web:80: status 503"),
        (
            "return 200 'all is lost';",
            "web:80: not the body that is expected",
        ),
        ("return 301 /elsewhere;", "web:80: status 301"),
        ("return 444;", "web:80: closed without an answer"),
    ] {
        site.say("b2", answer);
        let status = site.await_state("b2", "down");
        assert_eq!(status.reason, reason);
        assert_eq!(site.owners(), ["b1"]);
        site.say("b2", "");
        site.await_state("b2", "up");
        assert_eq!(site.owners(), ["b1", "b2"]);
    }
}
