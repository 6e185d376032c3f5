//! Streams that have no validator, and whose application says how another backend goes on with them
//! (docs/protocol/takeover.md §10): the ticker of examples/.

use std::io::{self, Read, Write};
use std::net::{SocketAddrV4, TcpStream};
use std::time::Duration;

use trapeze_core::wire::tcp::Flags;
use trapeze_dispatcher::Status;
use trapeze_lab::Process;
use trapeze_tests::raw::RawClient;
use trapeze_tests::saved::read_head;
use trapeze_tests::scattered::scattered_over;
use trapeze_tests::{Cluster, Connection, VIP, same, until};

/// Debian's own, as in other tests.
const PYTHON: &str = "/usr/bin/python3";
const TICKER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/ticker/ticker.py");
const TICK: usize = 64;
/// Answers whatever it is asked for with the fields that it is told to.
const LIAR: &str = r#"
import socket, sys
listener = socket.create_server(("0.0.0.0", 80))
while True:
    stream = listener.accept()[0]
    head = stream.recv(65536).decode()
    said = '"' + head.split(" ")[1] + '";endless'
    begin = [line.split(": ")[1] for line in head.split("\r\n") if line.startswith("Trapeze-Resume-From: ")]
    if begin:
        fields = sys.argv[1].replace("SAID", said).replace("FROM", begin[0])
        stream.sendall(("HTTP/1.1 200 OK\r\nX-Backend: x\r\n" + fields + "\r\n").encode() + 64 * b"wrong")
    stream.close()
"#;

/// Begins an answer with the fields that it is told to, and says no more.
const SILENT: &str = r#"
import socket, sys
listener = socket.create_server(("0.0.0.0", 80))
streams = []
while True:
    stream = listener.accept()[0]
    stream.recv(65536)
    stream.sendall(("HTTP/1.1 200 OK\r\n" + sys.argv[1] + "\r\n").encode() + 100 * b"x")
    streams.append(stream)
"#;

/// A lab whose backends run the ticker, where all that is a megabyte or more is protected.
struct Site {
    cluster: Cluster,
    servers: Vec<(String, std::process::Child)>,
}

impl Site {
    /// With so many backends.
    fn up(test: &str, backends: u8) -> Self {
        Self::with(test, backends, "protect_from = 1000000\n", "")
    }

    /// The pool says `protect`, and the service has these rules.
    fn with(test: &str, backends: u8, protect: &str, rules: &str) -> Self {
        let names: Vec<String> = (1..=backends).map(|n| format!("b{n}")).collect();
        let text = format!(
            "[[pool]]\nname = \"web\"\n{protect}backends = {names:?}\n\
             [[service]]\nname = \"site\"\naddress = \"10.77.0.100:80\"\npool = \"web\"\n{rules}",
        );
        let mut site = Self::of(Cluster::configured(test, backends, &text, |_| {}));
        for name in &names {
            site.replace_server(name);
        }
        site
    }

    fn of(cluster: Cluster) -> Self {
        Self {
            cluster,
            servers: Vec::new(),
        }
    }

    /// The ticker instead of the lab's own server.
    fn replace_server(&mut self, name: &str) {
        (self.cluster.kill(name, Some(Process::Server))).unwrap();
        self.serve(name, "0.02");
    }

    /// A tick each so many seconds.
    fn serve(&mut self, name: &str, interval: &str) {
        let ticker = [PYTHON, TICKER, "--interval", interval, "--name", name];
        self.run_server(name, &ticker);
    }

    fn run_server(&mut self, name: &str, command: &[&str]) {
        let server = self.cluster.start_command(name, command);
        self.servers.push((name.to_owned(), server));
        until("it listens", || {
            let said = self.cluster.run(name, &["ss", "-Htln"]);
            said.contains(":80 ").then_some(())
        });
    }

    /// kill -9 of its server alone.
    fn kill_server(&mut self, name: &str) {
        let at = self.servers.iter().position(|(of, _)| of == name);
        let (_, mut server) = self.servers.remove(at.expect("it serves"));
        server.kill().unwrap();
        server.wait().unwrap();
    }

    fn ask(&self, target: &str) -> Stream {
        (self.cluster).on("c1", || Stream::ask(Connection::open(), target))
    }

    /// Of that backend: they take turns.
    fn ask_of(&self, owner: &str, target: &str) -> Stream {
        let mut streams = (0..4).map(|_| self.ask(target));
        let found = streams.find(|stream| stream.owner == owner);
        found.expect("its turn")
    }

    fn count(&self, what: &str) -> u64 {
        let counters = self.cluster.daemon().counters;
        counters.get(what).copied().unwrap_or(0)
    }

    /// Of so many streams, or of more: what a client has left is kept for a while.
    fn await_protection(&self, answers: usize) {
        until("the streams are protected", || {
            (self.cluster.daemon().protected_answers >= answers).then_some(())
        });
    }

    fn await_count(&self, what: &str, count: u64) {
        until("it is counted", || {
            (self.count(what) == count).then_some(())
        });
    }

    fn other(&self, owner: &str) -> &'static str {
        if owner == "b1" { "b2" } else { "b1" }
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        for (_, server) in &mut self.servers {
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}

struct Stream {
    stream: TcpStream,
    owner: String,
    first: u64,
    body: Vec<u8>,
}

impl Stream {
    fn ask(connection: Connection, target: &str) -> Self {
        Self::of_host(connection, "a", target)
    }

    fn of_host(connection: Connection, host: &str, target: &str) -> Self {
        let mut stream = connection.stream().try_clone().expect("a socket");
        let patience = Some(Duration::from_secs(20));
        stream.set_read_timeout(patience).expect("a socket");
        let request = format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("it is sent");
        let field = read_head(&mut stream);
        let resume = field("trapeze-resume");
        let (_, named) = resume.split_once("first=").unwrap();
        let digits = named.split(|c: char| !c.is_ascii_digit()).next();
        Self {
            owner: field("x-backend"),
            first: digits.unwrap().parse().expect("a number"),
            body: Vec::new(),
            stream,
        }
    }

    /// So many ticks more; false: it ends before.
    fn read(&mut self, ticks: usize) -> io::Result<bool> {
        let end = self.body.len() / TICK * TICK + ticks * TICK;
        let mut piece = [0; 10_000];
        while self.body.len() < end {
            match self.stream.read(&mut piece)? {
                0 => return Ok(false),
                count => self.body.extend_from_slice(&piece[..count]),
            }
        }
        Ok(true)
    }

    /// Every byte is the ticker's, from the first on.
    fn check(&self) {
        let all = ticks(self.first, self.body.len().div_ceil(TICK));
        same(&self.body, &all[..self.body.len()]);
    }
}

/// The first so many of a stream.
fn ticks(first: u64, count: usize) -> Vec<u8> {
    let tick = |number| {
        let text = format!("id: {number}\ndata: {first}-{number} ");
        format!("{text:.<width$}\n\n", width = TICK - 2).into_bytes()
    };
    (0..count).flat_map(tick).collect()
}

/// Nobody keeps what their clients have closed.
#[test]
fn streams_are_forgotten_with_their_clients() {
    let site = Site::up("resume-left", 2);
    let mut streams: Vec<Stream> = (0..6).map(|_| site.ask("/ticks")).collect();
    for stream in &mut streams {
        assert!(stream.read(10).unwrap());
    }
    site.await_protection(6);
    drop(streams);
    std::thread::sleep(Duration::from_secs(4));
    assert_eq!(site.cluster.daemon().protected_answers, 0);
}

#[test]
fn a_stream_outlives_its_backend() {
    let site = Site::up("resume-power", 2);
    let mut endless = site.ask("/ticks");
    let mut ends = site.ask_of(&endless.owner, "/ticks?ticks=400");
    assert!(endless.read(20).unwrap() && ends.read(20).unwrap());
    site.await_protection(2);
    let other = site.other(&endless.owner);
    site.cluster.kill(&endless.owner, None).unwrap();
    assert!(endless.read(100).unwrap());
    endless.check();
    // It ends where its server says so, in order.
    assert!(!ends.read(1000).unwrap());
    assert_eq!(ends.body.len(), 400 * TICK);
    ends.check();
    site.await_count("taken-over", 2);
    assert_eq!(site.count("not-taken-over"), 0);
    assert_eq!(site.cluster.agent(other).of("taken-over"), 2);
    drop((endless, ends));
    until("nothing is left of them", || {
        let sockets = site
            .cluster
            .run(other, &["ss", "-Htn", "sport", "=", ":80"]);
        sockets.is_empty().then_some(())
    });
}

/// Clients that have had nothing of it, some of its head, all of that, and some of an event.
#[test]
fn a_stream_is_gone_on_with_from_any_byte() {
    const TICKS: usize = 4000;
    let site = Site::up("resume-bytes", 2);
    site.cluster.lend_address("c1", "10.77.0.9");
    let request = format!("GET /ticks?first=1&ticks={TICKS} HTTP/1.1\r\nHost: a\r\n\r\n");
    let all = ticks(1, TICKS);
    let head_of = |answer: &[u8]| {
        let end = answer.windows(4).position(|w| w == b"\r\n\r\n");
        end.map(|at| at + 4)
    };
    site.cluster.on("c1", || {
        // None acknowledges anything: all is in progress.
        let mut clients: Vec<_> = (0..12)
            .map(|number| {
                let address = SocketAddrV4::new([10, 77, 0, 9].into(), 40_000 + number);
                let mut client = RawClient::connect(address, VIP);
                client.send(0, request.as_bytes());
                let is_there =
                    |answer: &[u8]| head_of(answer).is_some_and(|at| answer.len() > at + 100);
                client.hear_until("its beginning", |c| is_there(c.received()));
                client
            })
            .collect();
        site.await_protection(12);
        // They take turns.
        site.cluster.kill("b2", None).unwrap();
        std::thread::scope(|scope| {
            for (number, client) in clients.iter_mut().enumerate() {
                let all = &all;
                scope.spawn(move || {
                    let head = head_of(client.received()).unwrap();
                    let had = [0, 10, head - 1, head, head + 1, head + 100][number / 2];
                    client.lose_behind(had);
                    client.receive_until("its end", |c| c.ended().is_some());
                    let ended = client.ended().expect("an end");
                    assert!(!ended.has(Flags::RST), "{had}");
                    let answer = client.received();
                    assert!(answer.starts_with(b"HTTP/1.1 200 OK\r\n"), "{had}");
                    same(&answer[head_of(answer).unwrap()..], all);
                });
            }
        });
    });
    site.await_count("taken-over", 6);
    assert_eq!(site.count("not-taken-over"), 0);
}

/// The other backend's application says another stream, the same one begun anew, one from elsewhere, or one
/// with a length.
#[test]
fn what_an_application_does_not_say_to_be_the_stream_is_not_gone_on_with() {
    for (test, why, fields) in [
        (
            "resume-other",
            "its stream is \"/ticks?first=1\";endless, the client's",
            "Trapeze-Resume: \"/ticks?first=1\";endless\r\nTrapeze-Resume-From: FROM\r\n",
        ),
        (
            "resume-anew",
            "it does not say that it goes on from byte",
            "Trapeze-Resume: SAID\r\n",
        ),
        (
            "resume-from",
            "it does not say that it goes on from byte",
            "Trapeze-Resume: SAID\r\nTrapeze-Resume-From: 0\r\n",
        ),
        (
            "resume-length",
            "its stream is none until close, the client's",
            "Trapeze-Resume: SAID\r\nTrapeze-Resume-From: FROM\r\nContent-Length: 320\r\n",
        ),
    ] {
        let mut site = Site::up(test, 2);
        let mut stream = site.ask("/ticks");
        assert!(stream.read(20).unwrap());
        site.await_protection(1);
        let other = site.other(&stream.owner);
        site.kill_server(other);
        site.run_server(other, &[PYTHON, "-c", LIAR, fields]);
        site.cluster.kill(&stream.owner, None).unwrap();
        let error = stream.read(10_000).unwrap_err();
        assert_eq!(
            error.kind(),
            io::ErrorKind::ConnectionReset,
            "{test}: {error}"
        );
        stream.check();
        site.await_count("not-same", 1);
        site.await_count("not-taken-over", 1);
        assert_eq!(site.count("taken-over"), 0);
        assert_eq!(site.cluster.agent(other).of("not-same"), 1);
        // Operators are told why, where it was refused and where it was wanted.
        let logs = site.cluster.status().expect("the lab is up").logs;
        for log in [format!("{other}.agent.log"), "d1.dispatch.log".to_owned()] {
            let said = std::fs::read_to_string(logs.join(&log)).unwrap();
            assert!(said.contains(why), "{log}: {said}");
        }
    }
}

/// The next one is asked first, and its owner is well.
#[test]
fn a_drain_takes_streams_from_a_backend_that_is_well() {
    let site = Site::up("resume-drain", 2);
    let mut stream = site.ask("/ticks");
    assert!(stream.read(20).unwrap());
    site.await_protection(1);
    let words = ["drain", &stream.owner, "--migrate"];
    let drained = site.cluster.trapeze("d1", &words);
    assert!(drained.status.success(), "{drained:?}");
    assert!(stream.read(100).unwrap());
    stream.check();
    assert_eq!((site.count("migrated"), site.count("not-migrated")), (1, 0));
}

/// That its pool protects something does not make a stream one that can be resumed; and an application that
/// says how does not make its pool protect it.
#[test]
fn a_stream_is_protected_where_pool_and_application_say_so() {
    const PLAIN: &str = "Content-Type: text/event-stream\r\n";
    let mut site = Site::up("resume-plain", 1);
    site.kill_server("b1");
    site.run_server("b1", &[PYTHON, "-c", SILENT, PLAIN]);
    let hear = |site: &Site| {
        site.cluster.on("c1", || {
            let mut stream = Connection::open().stream().try_clone().expect("a socket");
            stream
                .write_all(b"GET /ticks HTTP/1.1\r\nHost: a\r\n\r\n")
                .expect("it is sent");
            stream.read_exact(&mut [0; 100]).expect("its beginning");
            stream
        })
    };
    let stream = hear(&site);
    until("the agent has looked", || {
        (site.cluster.agent("b1").of("begun") == 1).then_some(())
    });
    // One that is protected is behind it.
    drop(stream);
    site.kill_server("b1");
    const RESUMED: &str = "Trapeze-Resume: \"/ticks\"\r\n";
    site.run_server("b1", &[PYTHON, "-c", SILENT, RESUMED]);
    let stream = hear(&site);
    site.await_protection(1);
    assert_eq!(site.cluster.agent("b1").of("begun"), 2);
    assert_eq!(site.cluster.daemon().protected_answers, 1);
    drop(stream);
    let config = site
        .cluster
        .config()
        .replace("protect_from = 1000000\n", "");
    site.cluster.reload("b1", Process::Agent, &config);
    site.cluster.reload("d1", Process::Dispatch, &config);
    let _stream = hear(&site);
    assert_eq!(site.cluster.agent("b1").of("begun"), 2);
}

/// Where it never ends, its server's close is a death; where it may end, that is its end.
#[test]
fn an_endless_stream_outlives_its_server_process() {
    let mut site = Site::up("resume-server", 3);
    let mut endless = site.ask("/ticks");
    let mut ends = site.ask_of(&endless.owner, "/ticks?ticks=100000");
    assert!(endless.read(20).unwrap() && ends.read(20).unwrap());
    site.await_protection(2);
    let owner = endless.owner.clone();
    site.kill_server(&owner);
    assert!(endless.read(100).unwrap());
    assert!(!ends.read(100_000).unwrap(), "who could know better?");
    site.await_count("taken-over", 1);
    let mut names = ["b1", "b2", "b3"].into_iter();
    let next = names.find(|name| site.cluster.agent(name).of("taken-over") == 1);
    // Now its wedge ends, for its server has.
    site.kill_server(next.expect("one has it"));
    assert!(endless.read(100).unwrap());
    site.await_count("taken-over", 2);
    endless.check();
    ends.check();
    assert_eq!(site.count("not-taken-over"), 0);
}

/// Until then nobody is told that it never ends: its server's close is its end. One of its packets is smaller
/// than any size that is worth it.
#[test]
fn a_stream_is_protected_once_it_is_as_old_as_its_rule_says() {
    let rule = "[[service.rule]]\nhost = \"later\"\npool = \"web\"\nprotect_after = \"1h\"\n";
    let mut site = Site::with("resume-after", 2, "protect_after = \"500ms\"\n", rule);
    let mut endless = site.ask("/ticks");
    let mut later = (0..4).map(|_| {
        (site.cluster).on("c1", || {
            Stream::of_host(Connection::open(), "later", "/ticks")
        })
    });
    let mut young = later.find(|stream| stream.owner == endless.owner).unwrap();
    assert!(endless.read(50).unwrap() && young.read(50).unwrap());
    site.await_protection(1);
    let owner = endless.owner.clone();
    site.kill_server(&owner);
    assert!(endless.read(100).unwrap());
    assert!(!young.read(100_000).unwrap());
    site.await_count("taken-over", 1);
    assert_eq!(
        site.count("updates"),
        2,
        "by its owner, and by its next one"
    );
    endless.check();
    young.check();
}

/// Who keeps the flow takes it over, and each packet of the client's comes by another one.
#[test]
fn streams_outlive_their_backend_behind_several_dispatchers() {
    let cluster = scattered_over(&["d1", "d2"], "resume-several", |_| {});
    let config = (cluster.config()).replace("[[pool]]\n", "[[pool]]\nprotect_from = 1000000\n");
    let mut site = Site::of(cluster);
    for name in ["b1", "b2"] {
        site.cluster.reload(name, Process::Agent, &config);
        site.replace_server(name);
    }
    for dispatcher in ["d1", "d2"] {
        site.cluster.reload(dispatcher, Process::Dispatch, &config);
    }
    let sum = |site: &Site, what: fn(&Status) -> usize| -> usize {
        let all = ["d1", "d2"].map(|name| site.cluster.dispatch_status(name));
        all.iter().flatten().map(what).sum()
    };
    let mut streams: Vec<Stream> = (0..4).map(|_| site.ask("/ticks")).collect();
    for stream in &mut streams {
        assert!(stream.read(20).unwrap());
    }
    until("all are protected", || {
        (sum(&site, |status| status.protected_answers) == 4).then_some(())
    });
    let of_b1 = streams.iter().filter(|stream| stream.owner == "b1").count();
    site.cluster.kill("b1", None).unwrap();
    for stream in &mut streams {
        assert!(stream.read(100).unwrap());
        stream.check();
    }
    let taken = |status: &Status| {
        let taken = status.counters.get("taken-over");
        taken.map_or(0, |&count| count as usize)
    };
    assert!(of_b1 > 0);
    until("they are taken over", || {
        (sum(&site, taken) == of_b1).then_some(())
    });
}

/// An agent that dies closes its wedges' connections: that is no stream's end.
#[test]
fn a_wedge_that_dies_is_never_taken_for_the_end() {
    for (test, target, goes_on) in [
        ("resume-wedge", "/ticks", true),
        ("resume-wedge-2", "/ticks?ticks=100000", false),
    ] {
        let site = Site::up(test, 3);
        let mut stream = site.ask(target);
        assert!(stream.read(20).unwrap());
        site.await_protection(1);
        site.cluster.kill(&stream.owner, None).unwrap();
        assert!(stream.read(50).unwrap());
        site.await_count("taken-over", 1);
        let mut others = ["b1", "b2", "b3"].into_iter();
        let wedges = others
            .find(|name| *name != stream.owner && site.cluster.agent(name).of("taken-over") == 1);
        let wedges = wedges.expect("one has it");
        (site.cluster.kill(wedges, Some(Process::Agent))).unwrap();
        match (stream.read(200), goes_on) {
            (Ok(true), true) => site.await_count("taken-over", 2),
            (Err(error), false) => assert_eq!(error.kind(), io::ErrorKind::ConnectionReset),
            (other, _) => panic!("{test}: {other:?}"),
        }
        stream.check();
    }
}

/// For longer than anybody waits for the head of it.
#[test]
fn a_stream_may_be_silent_for_long() {
    let mut site = Site::up("resume-silent", 2);
    for name in ["b1", "b2"] {
        site.kill_server(name);
        site.serve(name, "12");
    }
    let mut stream = site.ask("/ticks");
    assert!(stream.read(1).unwrap());
    site.await_protection(1);
    site.cluster.kill(&stream.owner, None).unwrap();
    assert!(stream.read(2).unwrap());
    stream.check();
    site.await_count("taken-over", 1);
}
