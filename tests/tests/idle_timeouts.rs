//! Servers that give an idle connection less time than their clients take to read: while the
//! next request waits to go elsewhere, the server that was given none closes
//! (docs/protocol/handoff.md 1.4, 7.1b).

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use socket2::{Domain, Socket, Type};
use trapeze_lab::Process;
use trapeze_tests::{Cluster, VIP, same};

/// What a server gives an idle connection.
const IDLE: Duration = Duration::from_millis(60);
const REQUESTS: usize = 5;
const CLIENTS: usize = 4;

fn pool(handoff: &str) -> String {
    format!(
        "[[pool]]\nname = \"web\"\npolicy = \"round-robin\"\nhandoff = \"{handoff}\"\n\
         backends = [\"b1\", \"b2\", \"b3\"]\n\
         [[service]]\nname = \"site\"\naddress = \"10.77.0.100:80\"\npool = \"web\"\n"
    )
}

/// An answer of its path only.
fn body(path: &str, length: usize) -> Vec<u8> {
    path.bytes().cycle().take(length).collect()
}

/// Answers request after request, until nothing comes for [`IDLE`].
fn serve_connection(stream: TcpStream, length: usize) {
    stream.set_read_timeout(Some(IDLE)).unwrap();
    let mut requests = BufReader::new(stream.try_clone().unwrap()).lines();
    while let Some(Ok(line)) = requests.next() {
        let Some(path) = line.strip_prefix("GET ").and_then(|l| l.split(' ').next()) else {
            continue;
        };
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n");
        let answer = [head.into_bytes(), body(path, length)].concat();
        // Its client may have gone.
        if (&stream).write_all(&answer).is_err() {
            return;
        }
    }
}

fn serve(listener: &TcpListener, length: usize, stop: &AtomicBool) {
    listener.set_nonblocking(true).unwrap();
    std::thread::scope(|scope| {
        while !stop.load(Ordering::Relaxed) {
            match listener.accept() {
                Ok((stream, _)) => {
                    stream.set_nonblocking(false).unwrap();
                    scope.spawn(move || serve_connection(stream, length));
                }
                Err(_) => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    });
}

/// Asks for all at once, and reads no faster than 400 kB a second.
fn read_slowly(client: usize, length: usize) {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.set_recv_buffer_size(16 << 10).unwrap();
    socket.connect(&VIP.into()).unwrap();
    let mut stream = TcpStream::from(socket);
    (stream.set_read_timeout(Some(Duration::from_secs(20)))).unwrap();
    let path = |number: usize| format!("/{client}/{number}");
    let all: String = (0..REQUESTS)
        .map(|number| format!("GET {} HTTP/1.1\r\nHost: a\r\n\r\n", path(number)))
        .collect();
    stream.write_all(all.as_bytes()).unwrap();
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n");
    for number in 0..REQUESTS {
        let mut answer = vec![0; head.len() + length];
        for piece in answer.chunks_mut(8 << 10) {
            let read = stream.read_exact(piece);
            read.unwrap_or_else(|e| panic!("answer {number} to client {client}: {e}"));
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(&answer[..head.len()], head.as_bytes());
        same(&answer[head.len()..], &body(&path(number), length));
    }
}

fn visit(test: &str, handoff: &str, length: usize) {
    let cluster = Cluster::configured(test, 3, &pool(handoff), |_| {});
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for backend in ["b1", "b2", "b3"] {
            cluster.kill(backend, Some(Process::Server)).unwrap();
            let listener = cluster.on(backend, || TcpListener::bind("0.0.0.0:80").unwrap());
            let stop = &stop;
            scope.spawn(move || serve(&listener, length, stop));
        }
        // The dispatcher may have been refused meanwhile.
        std::thread::sleep(Duration::from_millis(1200));
        let read = std::panic::catch_unwind(|| {
            cluster.on("c1", || {
                std::thread::scope(|scope| {
                    for client in 0..CLIENTS {
                        scope.spawn(move || read_slowly(client, length));
                    }
                });
            });
        });
        stop.store(true, Ordering::Relaxed);
        read.expect("all answers came");
    });
}

/// An answer that the server's socket takes whole, long before its client has it.
#[test]
fn a_slow_reader_gets_all_answers() {
    visit("slow-half", "half-pipe", 100_000);
}

/// The same where the flow waits for the last acknowledgement.
#[test]
fn a_slow_reader_gets_all_answers_drained() {
    visit("slow-drained", "drained", 50_000);
}
