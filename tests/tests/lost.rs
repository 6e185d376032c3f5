//! Connections that nobody will ever answer: their clients are told, wherever they are
//! (docs/protocol/encapsulation.md 6.5b).

use std::io::{ErrorKind, Read, Write};
use std::time::{Duration, Instant};

use trapeze_datapath::abi::{Flow, FlowState};
use trapeze_lab::LinkSettings;
use trapeze_tests::{Cluster, Connection, same, until};

/// After 15 s nobody waits for a backend any more, after 30 s for what comes behind it; its clients are asked
/// for 6 s what they have heard.
const BY_THEN: Duration = Duration::from_secs(25);
const FOR_SURE: Duration = Duration::from_secs(40);

/// Reads until the connection ends; the bytes, and how.
fn read_out(client: &mut Connection, patience: Duration) -> (Vec<u8>, ErrorKind) {
    let stopped = Instant::now() + patience;
    let mut all = client.unread().to_vec();
    let mut stream = client.stream();
    let mut buffer = vec![0; 1 << 16];
    loop {
        let left = stopped.saturating_duration_since(Instant::now());
        let left = left.max(Duration::from_millis(1));
        stream.set_read_timeout(Some(left)).unwrap();
        match stream.read(&mut buffer) {
            Ok(0) => return (all, ErrorKind::UnexpectedEof),
            Ok(length) => all.extend(&buffer[..length]),
            Err(error) => return (all, error.kind()),
        }
    }
}

fn body(answer: &[u8]) -> &[u8] {
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n");
    &answer[end.expect("a head") + 4..]
}

/// One reset at where it is known to be would be dropped: each dispatcher sees every other
/// of its acknowledgements, and some are lost.
#[test]
fn a_client_hears_of_it_whichever_dispatcher_knows_where_it_is() {
    let cluster = Cluster::with("lost", |options| {
        options.sprays = Some(1);
        options.dispatchers = Some(2);
        options.spray_mode = Some("batch".into());
    });
    let text = cluster
        .config()
        .replace("\"batch\"\n", "\"batch\"\nbatch = 1\n");
    cluster.reconfigure(&text).unwrap();
    let ten = cluster.document("10m");
    let link = LinkSettings {
        loss: 0.01,
        rate: Some(40_000_000),
        ..LinkSettings::default()
    };
    cluster.link("c1", &link).unwrap();
    let mut clients: Vec<Connection> = cluster.on("c1", || {
        // Those that have ended are nobody's to ask for long.
        (0..12).for_each(|_| drop(Connection::open().ask("/1k")));
        let ask = |_| {
            let mut client = Connection::open();
            client.send("GET /10m HTTP/1.1\r\nHost: a\r\n\r\n");
            client
        };
        (0..24).map(ask).collect()
    });
    until("they have begun", || {
        (cluster.backend("b1").active >= 6).then_some(())
    });
    std::thread::sleep(Duration::from_secs(1));
    for backend in ["b1", "b2", "b3"] {
        cluster.kill(backend, None).unwrap();
    }
    std::thread::scope(|scope| {
        for client in &mut clients {
            let ten = &ten;
            scope.spawn(move || {
                let (answer, how) = read_out(client, BY_THEN);
                assert_eq!(how, ErrorKind::ConnectionReset);
                let body = body(&answer);
                same(body, &ten[..body.len()]);
            });
        }
    });
    let resets = || {
        let table = cluster.run("c1", &["cat", "/proc/net/snmp"]);
        let rows: Vec<Vec<&str>> = (table.lines())
            .filter(|line| line.starts_with("Tcp:"))
            .map(|line| line.split_whitespace().collect())
            .collect();
        let at = rows[0].iter().position(|name| *name == "OutRsts").unwrap();
        rows[1][at].parse::<u64>().unwrap()
    };
    until("nobody is asked any more", || {
        let before = resets();
        std::thread::sleep(Duration::from_secs(1));
        (resets() == before).then_some(())
    });
}

/// The others had their answers, and closed.
#[test]
fn the_log_counts_those_alone_that_wait() {
    let cluster = Cluster::up("lost-count");
    let mut waits = cluster.on("c1", || {
        for _ in 0..12 {
            Connection::open().ask("/10k").ok();
        }
        let mut clients = (0..3).map(|_| {
            let mut client = Connection::open();
            let upload = "POST /upload HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n1";
            client.send(upload);
            client
        });
        [(); 3].map(|()| clients.next().expect("there are three"))
    });
    until("each backend has one", || {
        let active = ["b1", "b2", "b3"].map(|name| cluster.backend(name).active);
        (active == [1; 3]).then_some(())
    });
    cluster.kill("b1", None).unwrap();
    std::thread::scope(|scope| {
        for client in &mut waits {
            scope.spawn(move || read_out(client, BY_THEN));
        }
    });
    let logs = cluster.status().expect("the lab is up").logs;
    let log = std::fs::read_to_string(logs.join("d1.dispatch.log")).expect("its log");
    let said: Vec<&str> = (log.lines())
        .filter(|line| line.contains("silent for 15s"))
        .collect();
    assert_eq!(
        said,
        ["1 connections end: their backends have been silent for 15s"]
    );
}

/// The second request's backend is well, and may not begin before the first one's has ended.
#[test]
fn so_does_one_that_has_asked_ahead() {
    let text = "[[pool]]\nname = \"one\"\nbackends = [\"b1\"]\n\
                [[pool]]\nname = \"other\"\nbackends = [\"b2\"]\n\
                [[service]]\nname = \"site\"\naddress = \"10.77.0.100:80\"\npool = \"other\"\n\
                [[service.rule]]\npath_prefix = \"/10m\"\npool = \"one\"\n";
    let cluster = Cluster::configured("lost-ahead", 2, text, |_| {});
    let ten = cluster.document("10m");
    let mut client = cluster.on("c1", Connection::open);
    let get = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n");
    client.send(get("/10m") + &get("/1k"));
    until("b2 has the second", || {
        (cluster.backend("b2").active == 1).then_some(())
    });
    cluster.kill("b1", None).unwrap();
    let (answer, how) = read_out(&mut client, FOR_SURE);
    assert_eq!(how, ErrorKind::ConnectionReset);
    let body = body(&answer);
    same(body, &ten[..body.len()]);
}

/// A body in chunks goes by way of the daemon, which tells its client what has come. When the client
/// has been reset nothing is left of the connection.
#[test]
fn nothing_is_left_of_uploads_that_nobody_gets() {
    const UPLOADS: u64 = 6;
    let cluster = Cluster::with("lost-uploads", |options| options.backends = Some(1));
    let established = || {
        let flows = cluster.dispatcher_maps().flows.all().unwrap();
        let open = |flow: &Flow| flow.state == FlowState::Established as u32;
        flows.iter().filter(|(_, flow)| open(flow)).count() as u64
    };
    let mut clients: Vec<Connection> = cluster.on("c1", || {
        let begin = |number| {
            let mut client = Connection::open();
            client.send(format!(
                "POST /upload/{number} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
            ));
            client
        };
        (0..UPLOADS).map(begin).collect()
    });
    let chunk = [&b"4e20\r\n"[..], &[b'x'; 20_000], b"\r\n"].concat();
    for round in 0..40 {
        for client in &mut clients {
            let _ = client.stream().write_all(&chunk);
        }
        std::thread::sleep(Duration::from_millis(50));
        if round == 10 {
            assert_eq!(established(), UPLOADS);
            cluster.kill("b1", None).unwrap();
        }
    }
    for client in &mut clients {
        // Whoever was writing just then has heard of it so.
        let (answer, how) = read_out(client, BY_THEN);
        let ends = [ErrorKind::ConnectionReset, ErrorKind::UnexpectedEof];
        assert!(answer.is_empty() && ends.contains(&how), "{how}");
    }
    until("no flow is open", || (established() == 0).then_some(()));
}
