//! Servers that read nothing for a while, with a socket that is full, and clients that ask ahead: what
//! the dispatcher holds for them waits (docs/protocol/encapsulation.md 6.5).

use std::io::Write;
use std::process::Child;
use std::time::Duration;

use trapeze_lab::Process;
use trapeze_tests::{Cluster, Connection, until};

/// Debian's own, as in other tests.
const PYTHON: &str = "/usr/bin/python3";

/// Has room for some KiB. `/N` is answered after N seconds; nothing is read meanwhile, and once there is something
/// to read there is no more room, whatever window the client has been told of.
const SERVER: &str = r#"
import socket, threading, time
def serve(stream):
    said = b""
    while True:
        while b"\r\n\r\n" not in said:
            more = stream.recv(1024)
            if not more:
                return
            said += more
        head, _, said = said.partition(b"\r\n\r\n")
        busy = int(head.split(b" ")[1][1:])
        if busy:
            stream.recv(1, socket.MSG_PEEK)
            time.sleep(0.3) # Longer than acknowledgements of it are delayed.
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
            time.sleep(busy)
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16384)
        stream.sendall(b"HTTP/1.1 200 OK\r\nX-Backend: b1\r\nContent-Length: 1\r\n\r\n.")
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16384)
listener.bind(("0.0.0.0", 80))
listener.listen(128)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"#;

const AHEAD: usize = 30;

struct Site {
    cluster: Cluster,
    server: Child,
}

impl Site {
    fn up(test: &str) -> Self {
        let text = "[[pool]]\nname = \"web\"\nbackends = [\"b1\"]\n\
                    [[service]]\nname = \"site\"\naddress = \"10.77.0.100:80\"\npool = \"web\"\n";
        let cluster = Cluster::configured(test, 1, text, |_| {});
        cluster.kill("b1", Some(Process::Server)).unwrap();
        let server = cluster.start_command("b1", &[PYTHON, "-c", SERVER]);
        until("it listens", || {
            let said = cluster.run("b1", &["ss", "-Htln"]);
            said.contains(":80 ").then_some(())
        });
        Self { cluster, server }
    }

    /// Clients whose server is busy for so long, and has been asked for more than it has room for: each head
    /// comes in two pieces, of which the first is acknowledged by itself.
    fn asked_ahead(&self, path: &str) -> Vec<Connection> {
        let long = format!(
            "GET /0 HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n",
            "x".repeat(3000)
        );
        let clients: Vec<Connection> = self.cluster.on("c1", || {
            let open = |_| {
                let mut client = Connection::open();
                assert_eq!(client.ask("/0").ok(), "b1");
                // Its packets are repeated the later the longer they have waited.
                let patience = Some(Duration::from_secs(60));
                client.stream().set_read_timeout(patience).unwrap();
                // So that heads lie across segments.
                client.stream().set_nodelay(false).unwrap();
                client
            };
            (0..12).map(open).collect()
        });
        for client in &clients {
            let mut stream = client.stream().try_clone().expect("a socket");
            let (path, long) = (path.to_owned(), long.clone());
            std::thread::spawn(move || -> std::io::Result<()> {
                stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes())?;
                std::thread::sleep(Duration::from_millis(300));
                stream.write_all(long.as_bytes())?;
                std::thread::sleep(Duration::from_millis(600));
                for _ in 1..AHEAD {
                    stream.write_all(&long.as_bytes()[..100])?;
                    std::thread::sleep(Duration::from_millis(20));
                    stream.write_all(&long.as_bytes()[100..])?;
                }
                Ok(())
            });
        }
        clients
    }

    fn intake(&self, what: &str) -> u64 {
        let counters = self.cluster.daemon().counters;
        counters.get(what).copied().unwrap_or(0)
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

#[test]
fn one_that_reads_nothing_for_a_while_costs_no_client_its_connection() {
    let site = Site::up("slow-server");
    for mut client in site.asked_ahead("/13") {
        assert_eq!(client.response().body.len(), 1);
        for _ in 0..AHEAD {
            assert_eq!(client.response().body.len(), 1);
        }
    }
    // Something was held here, and for long.
    assert!(site.intake("resent") > 9, "{:?}", site.cluster.daemon());
    assert_eq!(site.intake("ended-unconfirmed"), 0);
}
