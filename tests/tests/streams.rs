//! Connections that live long and speak now and then: WebSockets, events.

use std::time::{Duration, Instant};

use trapeze_lab::Process;
use trapeze_tests::{Cluster, ONE_BACKEND, until};

/// Debian's own, which has Debian's modules.
const PYTHON: &str = "/usr/bin/python3";

/// A cluster of one backend, whose server is a script; it ends with the lab.
fn with_server(test: &str, script: &str) -> Cluster {
    let cluster = Cluster::configured(test, 1, ONE_BACKEND, |_| {});
    cluster.kill("b1", Some(Process::Server)).unwrap();
    drop(cluster.start_command("b1", &[PYTHON, "-c", script]));
    until("it listens", || {
        let said = cluster.run("b1", &["ss", "-Htln"]);
        said.contains(":80 ").then_some(())
    });
    cluster
}

const ECHO_SERVER: &str = r#"
import asyncio, websockets
async def echo(socket, path=None):
    async for message in socket:
        await socket.send(message)
async def main():
    async with websockets.serve(echo, "0.0.0.0", 80, max_size=1 << 24, compression=None):
        await asyncio.Future()
asyncio.run(main())
"#;

/// Ten connections at a time; sizes on both sides of what a frame's length takes one,
/// three and nine bytes to say, and of a segment.
const ECHO_CLIENT: &str = r#"
import asyncio, random, sys, websockets
async def talk(seed):
    dice = random.Random(seed)
    sizes = [0, 1, 125, 126, 1400, 1448, 1500, 65535, 65536, 300000]
    async with websockets.connect(f"ws://{sys.argv[1]}/echo", max_size=1 << 24,
                                  ping_interval=None, close_timeout=20) as socket:
        for number in range(100):
            message = dice.randbytes(dice.choice(sizes))
            if number % 2:
                message = message.hex()
            await socket.send(message)
            if number % 10 == 0:
                await asyncio.wait_for(await socket.ping(f"{seed}-{number}"), 20)
            assert await asyncio.wait_for(socket.recv(), 20) == message, number
        # Nobody says anything for a while; then the server's close answers ours.
        await asyncio.sleep(2)
        await socket.send("the last")
        assert await asyncio.wait_for(socket.recv(), 20) == "the last"
        await socket.close(4000, "enough")
        return socket.close_code, socket.close_reason
async def main():
    for end in await asyncio.gather(*(talk(seed) for seed in range(10))):
        assert end == (4000, "enough"), end
    print("1000 messages")
asyncio.run(main())
"#;

#[test]
fn a_websocket_echoes_a_thousand_messages() {
    let cluster = with_server("websocket", ECHO_SERVER);
    for address in ["10.77.0.21", "10.77.0.100"] {
        let said = cluster.run("c1", &[PYTHON, "-c", ECHO_CLIENT, address]);
        assert_eq!(said, "1000 messages\n", "{address}");
    }
    assert_eq!(cluster.agent("b1").of("rebuilt"), 10);
}

/// An event, and then silence for so many seconds.
const GAPS: [u64; 5] = [1, 5, 14, 20, 30];

const EVENT_SERVER: &str = r#"
import socket, threading, time
def serve(s):
    s.recv(65536)
    s.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
    for number, gap in enumerate((1, 5, 14, 20, 30)):
        s.sendall(b"id: %d\ndata: then %d s\n\n" % (number, gap))
        time.sleep(gap)
    s.sendall(b"event: end\ndata:\n\n")
    s.close()
listener = socket.create_server(("0.0.0.0", 80))
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],)).start()
"#;

#[test]
fn events_come_when_they_are_sent_however_long_the_silence() {
    let cluster = with_server("events", EVENT_SERVER);
    let start = Instant::now();
    let url = "http://10.77.0.100/events";
    let said = cluster.run("c1", &["curl", "-sS", "-N", "-m", "100", url]);
    let expected: String = (0..)
        .zip(GAPS)
        .map(|(number, gap)| format!("id: {number}\ndata: then {gap} s\n\n"))
        .chain(["event: end\ndata:\n\n".to_owned()])
        .collect();
    assert_eq!(said, expected);
    let silence = Duration::from_secs(GAPS.iter().sum());
    assert!((silence..silence + Duration::from_secs(5)).contains(&start.elapsed()));
    assert_eq!(cluster.agent("b1").of("rebuilt"), 1);
}
