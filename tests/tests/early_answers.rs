//! Servers that answer a request before they have its body (RFC 9110 §10.1.1, §15.5): what comes behind that answer is
//! body or the next request, as the server takes it, and nobody's guess.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use trapeze_lab::Process;
use trapeze_tests::{Cluster, Connection, Raised, until};

const TWO: &str = "[[pool]]\nname = \"web\"\nbackends = [\"b1\", \"b2\"]\npolicy = \"round-robin\"\n\
                   [[service]]\nname = \"site\"\naddress = \"10.77.0.100:80\"\npool = \"web\"\n";

/// A request as a server has read it.
#[derive(Debug, PartialEq, Eq)]
struct Asked {
    line: String,
    body: Vec<u8>,
    expects: bool,
    length: usize,
}

/// The next one's head; none behind the last.
fn read_head(stream: &mut BufReader<TcpStream>) -> Option<Asked> {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        let length = stream
            .read_line(&mut line)
            .ok()
            .filter(|&length| length > 0)?;
        assert!(length < 1000, "no head: {line}");
        match line.trim_end() {
            "" => break,
            line => lines.push(line.to_owned()),
        }
    }
    let length = (lines.iter()).find_map(|line| line.strip_prefix("Content-Length: "));
    Some(Asked {
        expects: lines.iter().any(|line| line.starts_with("Expect:")),
        length: length.map_or(0, |length| length.parse().expect("a length")),
        line: lines.into_iter().next().unwrap_or_default(),
        body: Vec::new(),
    })
}

fn answer(stream: &BufReader<TcpStream>, status: &str, by: &str) -> std::io::Result<()> {
    let answer = format!("HTTP/1.1 {status}\r\nX-Backend: {by}\r\nContent-Length: 0\r\n\r\n");
    stream.get_ref().write_all(answer.as_bytes())
}

/// Both backends' servers are `serve`, for each connection, while `visit` visits.
fn with_servers(
    test: &str,
    serve: impl Fn(&str, TcpStream) + Sync,
    visit: impl FnOnce() + Send,
) -> Cluster {
    let cluster = Cluster::configured(test, 2, TWO, |_| {});
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _raised = Raised(&stop);
        for name in ["b1", "b2"] {
            cluster.kill(name, Some(Process::Server)).unwrap();
            // Its workers go a moment later.
            let bind = || TcpListener::bind("0.0.0.0:80").ok();
            let listener = cluster.on(name, || until("its port is free", bind));
            listener.set_nonblocking(true).unwrap();
            let (serve, stop) = (&serve, &stop);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    match listener.accept() {
                        Ok((stream, _)) => {
                            stream.set_nonblocking(false).unwrap();
                            let patience = Some(Duration::from_secs(8));
                            stream.set_read_timeout(patience).unwrap();
                            scope.spawn(move || serve(name, stream));
                        }
                        Err(_) => std::thread::sleep(Duration::from_millis(2)),
                    }
                }
            });
        }
        // The dispatcher may have been refused meanwhile.
        std::thread::sleep(Duration::from_millis(1200));
        cluster.on("c1", visit);
    });
    cluster
}

/// Its client is not asked for the body, and goes on with the next request.
#[test]
fn what_comes_instead_of_a_body_that_nobody_asked_for_is_a_request() {
    const SMUGGLED: &[u8] = b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n";
    let asked = Mutex::new(Vec::new());
    let serve = |name: &str, stream: TcpStream| {
        let mut stream = BufReader::new(stream);
        while let Some(mut request) = read_head(&mut stream) {
            let is_refused = request.line.starts_with("PUT /refused");
            if !is_refused {
                if request.expects {
                    let invitation = b"HTTP/1.1 100 Continue\r\n\r\n";
                    stream.get_ref().write_all(invitation).unwrap();
                }
                request.body = vec![0; request.length];
                stream.read_exact(&mut request.body).unwrap();
            }
            asked.lock().unwrap().push(request);
            let status = ["201 Created", "417 Expectation Failed"][usize::from(is_refused)];
            answer(&stream, status, name).unwrap();
        }
    };
    let body: Vec<u8> = SMUGGLED.iter().copied().cycle().take(5000).collect();
    let put = |path: &str, expect: &str| {
        format!("PUT {path} HTTP/1.1\r\nHost: a\r\n{expect}Content-Length: 5000\r\n\r\n")
    };
    let expect = "Expect: 100-continue\r\n";
    let rounds = 20;
    let cluster = with_servers("expects", serve, || {
        let mut backends = BTreeSet::new();
        for round in 0..rounds {
            let mut client = Connection::open();
            client.send(put("/refused", expect));
            assert_eq!(client.response().status, 417);
            // As long as the body would have been, longer, or shorter and behind other requests.
            for _ in 0..round % 3 {
                assert_eq!(client.ask("/between").status, 201);
            }
            client.send(put("/again", "")).send(&body);
            assert_eq!(client.response().status, 201, "round {round}");
            assert_eq!(client.ask("/behind").status, 201, "round {round}");

            // One that is asked for its body may go elsewhere behind it.
            let mut client = Connection::open();
            for _ in 0..4 {
                client.send(put("/invited", expect));
                assert_eq!(client.response().status, 100);
                client.send(&body);
                let created = client.response();
                assert_eq!(created.status, 201);
                backends.insert(created.header("x-backend").unwrap().to_owned());
            }
            let invited = BTreeSet::from(["b1".to_owned(), "b2".to_owned()]);
            assert_eq!(std::mem::take(&mut backends), invited, "round {round}");
        }
    });
    let asked = asked.into_inner().unwrap();
    for request in &asked {
        let is_right = match request.line.as_str() {
            "PUT /again HTTP/1.1" | "PUT /invited HTTP/1.1" => request.body == body,
            "PUT /refused HTTP/1.1" | "GET /between HTTP/1.1" | "GET /behind HTTP/1.1" => true,
            _ => false,
        };
        assert!(is_right, "{}", request.line);
    }
    let again = asked
        .iter()
        .filter(|one| one.line.starts_with("PUT /again"));
    assert_eq!(again.count(), rounds);
    drop(cluster);
}

/// It owes nothing for a body that has come since, and its client's connection survives its closing.
#[test]
fn a_server_that_answered_early_may_close_for_itself() {
    let serve = |name: &str, stream: TcpStream| {
        let mut stream = BufReader::new(stream);
        while let Some(request) = read_head(&mut stream) {
            answer(&stream, "200 OK", name).unwrap();
            stream.read_exact(&mut vec![0; request.length]).unwrap();
            if request.length > 0 {
                // For as long as its client takes to hear of it.
                std::thread::sleep(Duration::from_millis(30));
                return;
            }
        }
    };
    let cluster = with_servers("owesnone", serve, || {
        let mut client = Connection::open();
        for round in 0..20 {
            client.send("POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 5000\r\n\r\n");
            assert_eq!(client.response().status, 200, "round {round}");
            client.send(vec![b'x'; 5000]);
            std::thread::sleep(Duration::from_millis(80));
            assert_eq!(client.ask("/b").status, 200, "round {round}");
        }
    });
    let vacated = ["b1", "b2"].map(|name| cluster.agent(name).of("vacated"));
    assert_eq!(vacated.iter().sum::<u64>(), 20, "{vacated:?}");
}

/// What it says of its closing, before it has had the head of such an upload, says nothing of that.
#[test]
fn a_server_that_closes_before_an_upload_that_waits_costs_nothing() {
    let serve = |name: &str, stream: TcpStream| {
        let mut stream = BufReader::new(stream);
        // A server's idle timeout.
        let patience = Some(Duration::from_millis(20));
        stream.get_ref().set_read_timeout(patience).unwrap();
        while let Some(request) = read_head(&mut stream) {
            if request.expects {
                let _ = stream.get_ref().write_all(b"HTTP/1.1 100 Continue\r\n\r\n");
            }
            let patience = Some(Duration::from_secs(8));
            stream.get_ref().set_read_timeout(patience).unwrap();
            stream.read_exact(&mut vec![0; request.length]).unwrap();
            answer(&stream, "200 OK", name).unwrap();
            let patience = Some(Duration::from_millis(20));
            stream.get_ref().set_read_timeout(patience).unwrap();
        }
    };
    let visit = |client: u64| {
        let mut connection = Connection::open();
        for round in 0..60 {
            let head = "PUT /a HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 1000\r\n\r\n";
            connection.send(head);
            assert_eq!(connection.response().status, 100, "round {round}");
            connection.send([b'x'; 1000]);
            assert_eq!(connection.response().status, 200, "round {round}");
            // About when the server closes.
            std::thread::sleep(Duration::from_micros(
                18_000 + (client * 60 + round) * 37 % 4000,
            ));
            if round % 3 == 0 {
                assert_eq!(connection.ask("/b").status, 200, "round {round}");
            }
        }
    };
    let cluster = with_servers("meets", serve, || {
        std::thread::scope(|scope| {
            for client in 0..12 {
                scope.spawn(move || visit(client));
            }
        });
    });
    let vacated = ["b1", "b2"].map(|name| cluster.agent(name).of("vacated"));
    assert!(vacated.iter().sum::<u64>() > 20, "{vacated:?}");
}
