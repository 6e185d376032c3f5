//! What is counted of requests that their servers close on: each of them once, and as `not-retried` only
//! those that nobody is given any more (docs/protocol/retry.md 3).

use std::path::Path;
use std::process::Child;
use std::time::Duration;

use tempfile::TempDir;
use trapeze_lab::Process;
use trapeze_tests::{Cluster, Connection, same, saved, until};

/// Debian's own, as in other tests.
const PYTHON: &str = "/usr/bin/python3";

/// Closes on each request to `/once/...` that nobody has had before, and on all to `/never`; with a reset if
/// the path ends in `reset`.
const CLOSER: &str = r#"
import os, socket, struct, sys, threading
seen = sys.argv[1]
def serve(stream):
    said = b""
    while b"\r\n\r\n" not in said:
        said += stream.recv(65536)
    path = said.decode().split(" ")[1]
    try:
        os.close(os.open(os.path.join(seen, path.replace("/", "_")), os.O_CREAT | os.O_EXCL))
        is_first = True
    except FileExistsError:
        is_first = False
    if path.startswith("/never") or path.startswith("/once") and is_first:
        if path.endswith("reset"):
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    else:
        stream.sendall(b"HTTP/1.1 200 OK\r\nX-Backend: x\r\nContent-Length: 2\r\n\r\nok")
        stream.recv(65536)
    stream.close()
listener = socket.create_server(("0.0.0.0", 80), backlog=128)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"#;

struct Site {
    cluster: Cluster,
    servers: Vec<Child>,
    _seen: TempDir,
}

impl Site {
    fn up(test: &str, pool: &str) -> Self {
        let text = format!(
            "[[pool]]\nname = \"web\"\n{pool}backends = [\"b1\", \"b2\"]\n\
             [[service]]\nname = \"site\"\naddress = \"10.77.0.100:80\"\npool = \"web\"\n"
        );
        let cluster = Cluster::configured(test, 2, &text, |_| {});
        let seen = tempfile::tempdir().expect("a temporary directory");
        let mut servers = Vec::new();
        for name in ["b1", "b2"] {
            cluster.kill(name, Some(Process::Server)).unwrap();
            servers.push(serve(&cluster, name, seen.path()));
        }
        Self {
            cluster,
            servers,
            _seen: seen,
        }
    }

    fn count(&self, what: &str) -> u64 {
        let counters = self.cluster.daemon().counters;
        counters.get(what).copied().unwrap_or(0)
    }

    /// The status of each answer; none: its connection was closed or reset.
    fn ask(&self, requests: &[String]) -> Vec<Option<u16>> {
        let mut clients: Vec<Connection> = self.cluster.on("c1", || {
            let open = |request: &String| {
                let mut client = Connection::open();
                client.send(request);
                client
            };
            requests.iter().map(open).collect()
        });
        (clients.iter_mut())
            .map(|client| Some(client.try_response(true).ok()?.status))
            .collect()
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        for server in &mut self.servers {
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}

fn serve(cluster: &Cluster, name: &str, seen: &Path) -> Child {
    let seen = seen.to_str().expect("UTF-8");
    let server = cluster.start_command(name, &[PYTHON, "-c", CLOSER, seen]);
    until("it listens", || {
        let said = cluster.run(name, &["ss", "-Htln"]);
        said.contains(":80 ").then_some(())
    });
    server
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n")
}

/// A word of a socket that has closed is said again, later and later.
const SAID_AGAIN: Duration = Duration::from_secs(4);

#[test]
fn what_is_retried_counts_as_nothing_else() {
    let site = Site::up("retry-once", "retry = \"idempotent\"\n");
    let requests: Vec<String> = (0..10).map(|n| get(&format!("/once/{n}"))).collect();
    assert_eq!(site.ask(&requests), [Some(200); 10]);
    let resets: Vec<String> = (0..10).map(|n| get(&format!("/once/{n}/reset"))).collect();
    assert_eq!(site.ask(&resets), [Some(200); 10]);
    std::thread::sleep(SAID_AGAIN);
    assert_eq!((site.count("retried"), site.count("not-retried")), (20, 0));
}

#[test]
fn what_is_not_retried_counts_once() {
    let site = Site::up("retry-counts", "retry = \"idempotent\"\n");
    let requests: Vec<String> = (0..6).map(|n| get(&format!("/never/{n}"))).collect();
    assert_eq!(site.ask(&requests), [None; 6]);
    std::thread::sleep(SAID_AGAIN);
    assert_eq!(site.count("not-retried"), 6);
}

/// That pool retries, too; what has begun is not begun again, and goes on elsewhere.
#[test]
fn an_answer_that_has_begun_is_taken_over() {
    let site = saved::Site::with(
        "retry-midst",
        2,
        "protect_from = 1000000\nretry = \"idempotent\"\n",
    );
    let mut downloads = [(); 4].map(|()| site.start());
    site.await_protection(4);
    (site.cluster.kill("b1", Some(Process::Server))).unwrap();
    for download in &mut downloads {
        download.finish().expect("all of it");
        same(&download.body, &site.large);
    }
    assert_eq!(
        (site.count("taken-over"), site.count("not-retried")),
        (2, 0)
    );
}

#[test]
fn what_is_not_kept_is_not_retried_and_does_not_count() {
    let site = Site::up("retry-unheard", "");
    let post =
        |n| format!("POST /never/{n}/reset HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody");
    let requests: Vec<String> = (0..10).map(post).collect();
    assert_eq!(site.ask(&requests), [None; 10]);
    std::thread::sleep(SAID_AGAIN);
    assert_eq!(site.count("not-retried"), 0);
}
