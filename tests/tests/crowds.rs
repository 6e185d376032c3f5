//! Many connections: one after another, and at the same time.

use std::time::{Duration, Instant};

use trapeze_tests::{Cluster, Connection};

/// Opens as many connections as told at once, each with a request; prints how
/// many whole answers came. Python, because it can raise its own file limit.
const CROWD: &str = r#"
import resource, selectors, socket, sys, time
count = int(sys.argv[1])
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
selector = selectors.DefaultSelector()
for number in range(count):
    s = socket.socket()
    s.setblocking(False)
    s.connect_ex(("10.77.0.100", 80))
    selector.register(s, selectors.EVENT_WRITE, [s, b"", number])
connected, whole, failed = 0, 0, 0
waiting = []
deadline = time.monotonic() + 60
while whole + failed < count and time.monotonic() < deadline:
    for key, event in selector.select(1):
        state = key.data
        s = state[0]
        try:
            if event & selectors.EVENT_WRITE:
                error = s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if error:
                    raise OSError(error, "connect")
                connected += 1
                selector.unregister(s)
                waiting.append(state)
                # All are open before the first one asks.
                if connected + failed == count:
                    for state in waiting:
                        state[0].send(b"GET /1k HTTP/1.1\r\nHost: a\r\n\r\n")
                        selector.register(state[0], selectors.EVENT_READ, state)
            else:
                data = s.recv(65536)
                state[1] += data
                head = state[1].find(b"\r\n\r\n")
                if head >= 0 and len(state[1]) >= head + 4 + 1024:
                    ok = state[1].startswith(b"HTTP/1.1 200 ") and len(state[1]) == head + 4 + 1024
                    whole, failed = whole + ok, failed + (not ok)
                    selector.unregister(s)
                elif not data:
                    raise OSError("it ends early")
        except OSError as error:
            print(state[2], error, file=sys.stderr)
            failed += 1
            selector.unregister(s)
print(connected, whole, failed)
"#;

#[test]
fn twenty_thousand_connections_one_after_another() {
    let cluster = Cluster::up("row");
    let before = cluster.agents();
    let slowest = cluster.on("c1", || {
        let mut slowest = Duration::ZERO;
        for number in 0..20_000 {
            let start = Instant::now();
            let mut client = Connection::open();
            if number % 4 == 0 {
                client.send("GET /1k HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
                client.response().ok();
                client.expect_end();
            } else {
                client.ask("/1k").ok();
            }
            drop(client);
            slowest = slowest.max(start.elapsed());
        }
        slowest
    });
    assert!(slowest < Duration::from_secs(1), "one took {slowest:?}");
    let agents = cluster.agents() - before;
    assert_eq!(agents.of("rebuilt"), 20_000, "{agents:?}");
    assert_eq!(
        agents.of("not-rebuilt") + agents.of("refused"),
        0,
        "{agents:?}"
    );
}

#[test]
fn five_thousand_connections_at_once() {
    let cluster = Cluster::up("crowd");
    let said = cluster.run("c1", &["python3", "-c", CROWD, "5000"]);
    assert_eq!(said, "5000 5000 0\n");
    let d1 = cluster.dispatcher();
    assert!(d1.of("syn-answered") >= 5000, "{d1:?}");
    assert!(cluster.agents().of("rebuilt") >= 5000);
}
