//! Connections that a dispatcher opens to servers: it rewrites what both sides send, or, with
//! an agent there, what clients send (docs/protocol/splice.md). The same over several
//! dispatchers: spliced_over_several.rs. What only the latter do: split.rs.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use trapeze_datapath::abi::{Flow, FlowState};
use trapeze_datapath::map::Update;
use trapeze_lab::{LinkSettings, Process, ServerKind};
use trapeze_tests::{Cluster, Connection, Content, Splice, same, until};

trapeze_tests::by_each_splice!(
    all_goes_both_ways,
    clients_with_other_options,
    servers_with_other_options,
    faults_on_both_links_change_no_byte,
    what_opens_a_connection_is_lost_and_sent_again,
    a_server_that_refuses_is_passed_over_and_if_none_is_left_the_client_hears,
    a_host_that_is_gone_is_passed_over,
    both_sides_close_and_reset_as_they_like,
    an_end_that_nobody_has_heard_is_found,
    a_clients_port_comes_back_again_and_again,
    several_workers_connect,
    the_same_by_generic_xdp,
    a_download_outlives_the_daemon,
    tls_goes_through_unread,
    one_pool_has_both_kinds,
    a_connection_goes_on_at_a_spliced_server,
    uploads_ahead_of_long_answers_are_all_answered,
);

fn set(cluster: &Cluster, hosts: &[&str], name: &str, value: &str) {
    for host in hosts {
        let setting = format!("net.ipv4.tcp_{name}={value}");
        cluster.run(host, &["sysctl", "-q", "-w", &setting]);
    }
}

/// A bit of everything that a connection does.
fn exercise(cluster: &Cluster, rounds: u64) {
    exercise_up_to(10_000_000, cluster, rounds);
}

/// The same, with uploads that are no larger than that.
fn exercise_up_to(largest: u64, cluster: &Cluster, rounds: u64) {
    let documents = ["1k", "100k", "10m"].map(|name| (name, cluster.document(name)));
    cluster.on("c1", || {
        for round in 0..rounds {
            let mut client = Connection::open();
            for (name, document) in &documents {
                same(&client.ask(&format!("/{name}")).body, document);
            }
            for size in [0, 1, 1388, 1389, 70_000, largest] {
                let body = Content::new(round + size, size).bytes();
                let head = format!(
                    "PUT /upload/{round}-{size} HTTP/1.1\r\nHost: a\r\nContent-Length: {size}\r\n\r\n"
                );
                let mut client = Connection::open();
                let response = client.send(head).send(&body).response();
                assert!([201, 204].contains(&response.status), "{}", response.head);
                let at = cluster.uploads(response.backend());
                same(&std::fs::read(at.join(format!("{round}-{size}"))).unwrap(), &body);
                client.finish().expect_end();
            }
            // A head that comes in pieces, some of which are acknowledged before it is whole.
            let mut client = Connection::open();
            let long = "x".repeat(9000);
            let head = format!("GET /1k HTTP/1.1\r\nHost: a\r\nX-Long: {long}\r\n\r\n");
            let response = client
                .send_pieces(head, 700, Duration::from_micros(300))
                .response();
            assert!([200, 400].contains(&response.status), "{}", response.head);
            // Requests ahead of answers.
            let mut client = Connection::open();
            client.send("GET /100k HTTP/1.1\r\nHost: a\r\n\r\n".repeat(5));
            for _ in 0..5 {
                same(&client.response().body, &documents[1].1);
            }
            assert_eq!(
                Connection::open().send("GARBAGE\r\n\r\n").response().status,
                400
            );
        }
    });
}

fn all_goes_both_ways(splice: Splice) {
    let cluster = splice.cluster("splice", |_| {});
    let status = cluster.status().unwrap();
    let mut backends = (status.hosts.iter()).filter(|host| host.name.starts_with('b'));
    let agent = |host: &trapeze_lab::HostStatus| host.processes.contains_key(&Process::Agent);
    assert!(
        backends.all(|host| agent(host) == splice.is_split()),
        "{status:?}"
    );
    exercise(&cluster, 2);
    let d1 = cluster.dispatcher();
    assert!(d1.of("spliced-to-server") > 500, "{d1:?}");
    assert_eq!(d1.of("no-splice") + d1.of("rewrite"), 0, "{d1:?}");
    if splice.is_split() {
        let agents = cluster.agents();
        assert!(agents.of("spliced-to-client") > 500, "{agents:?}");
        assert_eq!(agents.of("rewrite") + agents.of("bad-tag"), 0, "{agents:?}");
        // What no socket of its own says, such as a reset of one that is gone, goes by way of d1.
        let direct = agents.of("spliced-to-client");
        assert!(
            d1.of("spliced-to-client") < direct / 20,
            "{d1:?} {agents:?}"
        );
    } else {
        assert!(d1.of("spliced-to-client") > 500, "{d1:?}");
    }
}

fn clients_with_other_options(splice: Splice) {
    let cluster = splice.cluster("spliceopts", |options| options.backends = Some(1));
    for number in 0..16 {
        let names = ["timestamps", "sack", "window_scaling", "ecn"];
        for (bit, name) in names.iter().enumerate() {
            set(&cluster, &["c1"], name, &(number >> bit & 1).to_string());
        }
        exercise(&cluster, 1);
    }
}

/// What the server does not know the client must not notice; and their windows are told
/// in other units.
fn servers_with_other_options(splice: Splice) {
    let cluster = splice.cluster("splicesrv", |options| options.backends = Some(1));
    set(&cluster, &["c1"], "ecn", "1");
    for (name, value, normal) in [
        ("timestamps", "0", "1"),
        ("sack", "0", "1"),
        ("window_scaling", "0", "1"),
        ("ecn", "0", "2"),
        // Shifts of 0 and of 13.
        ("rmem", "4096 16384 32768", "4096 131072 6291456"),
        ("rmem", "4096 131072 536870912", "4096 131072 6291456"),
    ] {
        set(&cluster, &["b1"], name, value);
        // A listener has its buffer's size from when it began.
        cluster.restart("b1", Process::Server);
        // What was asked in between has been refused, and is heard of until then.
        std::thread::sleep(Duration::from_millis(400));
        until("it listens again", || {
            (cluster.backend("b1").state == "up").then_some(())
        });
        exercise(&cluster, 1);
        set(&cluster, &["b1"], name, normal);
    }
    for name in ["timestamps", "sack", "window_scaling"] {
        set(&cluster, &["b1"], name, "0");
    }
    exercise(&cluster, 1);
    set(&cluster, &["c1"], "rmem", "4096 16384 32768");
    exercise(&cluster, 1);
}

fn faults_on_both_links_change_no_byte(splice: Splice) {
    let cluster = splice.cluster("splicefault", |options| options.backends = Some(2));
    let settings = LinkSettings {
        loss: 0.01,
        reorder: 0.02,
        duplicate: 0.01,
        delay: Duration::from_micros(300),
        jitter: Duration::from_micros(200),
        ..LinkSettings::default()
    };
    for host in ["c1", "b1", "b2"] {
        cluster.link(host, &settings).unwrap();
    }
    for (timestamps, sack) in [("1", "1"), ("0", "1"), ("1", "0"), ("0", "0")] {
        set(&cluster, &["c1"], "timestamps", timestamps);
        set(&cluster, &["b1"], "sack", sack);
        // Where we have agreed to SACK and the server has not, each loss costs the client a timer
        // (docs/protocol/splice.md 7.6).
        exercise_up_to(1_000_000, &cluster, 1);
    }
}

/// One in ten, each way.
fn what_opens_a_connection_is_lost_and_sent_again(splice: Splice) {
    let cluster = splice.cluster("splicesyn", |options| options.backends = Some(1));
    let settings = LinkSettings {
        loss: 0.1,
        ..LinkSettings::default()
    };
    cluster.link("b1", &settings).unwrap();
    let one = cluster.document("1k");
    cluster.on("c1", || {
        std::thread::scope(|scope| {
            for _ in 0..20 {
                scope.spawn(|| same(&Connection::open().ask("/1k").body, &one));
            }
        });
    });
    assert!(cluster.daemon().counters.contains_key("connects-again"));
}

fn a_server_that_refuses_is_passed_over_and_if_none_is_left_the_client_hears(splice: Splice) {
    let cluster = splice.cluster("splicedead", |options| options.backends = Some(2));
    let one = cluster.document("1k");
    let ask = || cluster.on("c1", || Connection::open().ask("/1k"));
    cluster.kill("b1", Some(Process::Server)).unwrap();
    for _ in 0..20 {
        let response = ask();
        assert_eq!(response.backend(), "b2");
        same(&response.body, &one);
    }
    until("b1 is known to have no server", || {
        (cluster.backend("b1").state == "no-server").then_some(())
    });
    cluster.kill("b2", Some(Process::Server)).unwrap();
    for _ in 0..5 {
        assert_eq!(ask().status, 503);
    }
    cluster.start("b1", Some(Process::Server)).unwrap();
    until("it serves again", || (ask().status == 200).then_some(()));
    until("refusals have been counted", || {
        let counters = cluster.daemon().counters;
        counters.contains_key("connects-refused").then_some(())
    });
}

fn a_host_that_is_gone_is_passed_over(splice: Splice) {
    let cluster = splice.cluster("splicegone", |options| options.backends = Some(2));
    let one = cluster.document("1k");
    cluster.kill("b1", None).unwrap();
    // Before anybody knows: the SYN is not answered.
    cluster.on("c1", || {
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| same(&Connection::open().ask("/1k").body, &one));
            }
        });
    });
    until("it is silent", || {
        (cluster.backend("b1").state == "silent").then_some(())
    });
    let begun = Instant::now();
    for _ in 0..10 {
        cluster.on("c1", || same(&Connection::open().ask("/1k").body, &one));
    }
    assert!(begun.elapsed() < Duration::from_secs(2), "nobody asks it");
    cluster.start("b1", None).unwrap();
    until("it is back", || {
        (cluster.backend("b1").state == "up").then_some(())
    });
}

fn states(cluster: &Cluster) -> Vec<u32> {
    cluster.flows().iter().map(|flow| flow.state).collect()
}

fn both_sides_close_and_reset_as_they_like(splice: Splice) {
    let cluster = splice.cluster("spliceend", |options| {
        options.backends = Some(1);
        options.server = ServerKind::Python;
    });
    let one = cluster.document("1k");
    cluster.on("c1", || {
        // The server closes.
        let mut client = Connection::open();
        client.send("GET /1k HTTP/1.0\r\nHost: a\r\n\r\n");
        same(&client.response().body, &one);
        client.expect_end();
        // The client says that it has no more to say, and is answered.
        let mut client = Connection::open();
        client.send("GET /1k HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        client.stream().shutdown(Shutdown::Write).unwrap();
        same(&client.response().body, &one);
        client.expect_end();
    });
    until("all are closed", || {
        let closed = FlowState::ClientFin as u32;
        states(&cluster).iter().all(|&s| s == closed).then_some(())
    });
    // The client aborts in the middle; so does the server.
    let connections = || {
        cluster.run(
            "b1",
            &["ss", "-Htn", "state", "established", "sport", "=", ":80"],
        )
    };
    cluster.on("c1", || {
        let mut client = Connection::open();
        client.send("GET /100m HTTP/1.1\r\nHost: a\r\n\r\n");
        client.try_response(false).unwrap();
        client.abort();
        until("the server hears of it", || {
            connections().is_empty().then_some(())
        });
        let mut client = Connection::open();
        client.send("GET /100m HTTP/1.1\r\nHost: a\r\n\r\n");
        client.try_response(false).unwrap();
        cluster.kill("b1", Some(Process::Server)).unwrap();
        let begun = Instant::now();
        let mut rest = Vec::new();
        let _ = client.stream().read_to_end(&mut rest);
        assert!(rest.len() < 100 << 20 && begun.elapsed() < Duration::from_secs(5));
    });
    until("no flow is open", || {
        let open = FlowState::Established as u32;
        (!states(&cluster).contains(&open)).then_some(())
    });
}

/// As if both sides' last words had gone by way of a dispatcher that died then.
fn an_end_that_nobody_has_heard_is_found(splice: Splice) {
    let cluster = splice.cluster("splunheard", |_| {});
    let maps = cluster.dispatcher_maps();
    cluster.on("c1", || {
        let mut client = Connection::open();
        client.ask("/1k").ok();
    });
    until("it has ended", || {
        (!states(&cluster).contains(&(FlowState::Established as u32))).then_some(())
    });
    let (key, flow) = maps.flows.all().unwrap()[0];
    let not_ended = Flow {
        state: FlowState::Established as u32,
        last_seq: flow.last_seq.wrapping_sub(1),
        ..flow
    };
    maps.flows.put(&key, &not_ended, Update::Replace).unwrap();
    until("the server has been asked", || {
        (!states(&cluster).contains(&(FlowState::Established as u32))).then_some(())
    });
    // One that stands is asked, too, and goes on.
    cluster.on("c1", || {
        let mut client = Connection::open();
        client.ask("/1k").ok();
        std::thread::sleep(Duration::from_secs(5));
        client.ask("/1k").ok();
    });
}

/// The 4-tuple of the client comes back, and the server's own leftovers are in TIME-WAIT:
/// it has closed first.
fn a_clients_port_comes_back_again_and_again(splice: Splice) {
    let cluster = splice.cluster("spliceport", |options| options.backends = Some(1));
    let one = cluster.document("1k");
    set(&cluster, &["c1"], "timestamps", "0");
    cluster.on("c1", || {
        for _ in 0..100 {
            let mut client = Connection::try_to(trapeze_tests::VIP, 40_000).unwrap();
            client.send("GET /1k HTTP/1.0\r\nHost: a\r\n\r\n");
            same(&client.response().body, &one);
            client.expect_end();
            client.abort();
        }
    });
    let maps = cluster.dispatcher_maps();
    until("there is one record, and one connection", || {
        let (flows, splices) = (maps.flows.all().unwrap(), maps.splices.all().unwrap());
        (flows.len() == 1 && splices.len() == 1).then_some(())
    });
}

/// Three threads read requests; what a server says to a SYN comes to the one that has sent it.
fn several_workers_connect(splice: Splice) {
    let text = Cluster::nodes(2)
        .replace(
            "attach = \"tc\"",
            "attach = \"tc\"\nworkers = 3\nsplice_address = \"10.77.0.111\"",
        )
        .replace("\n[[backend]]", &splice.of("\n[[backend]]"))
        + "[[pool]]\nname = \"web\"\nbackends = [\"b1\", \"b2\"]\n\
           [[service]]\nname = \"site\"\naddress = \"10.77.0.100:80\"\npool = \"web\"\n";
    let cluster = splice.configured("splicework", &text);
    let one = cluster.document("1k");
    cluster.on("c1", || {
        for _ in 0..60 {
            same(&Connection::open().ask("/1k").body, &one);
        }
    });
    until("all are counted", || {
        let counters = cluster.daemon().counters;
        assert!(!counters.contains_key("late-answers"), "{counters:?}");
        (counters.get("spliced") == Some(&60)).then_some(())
    });
}

fn the_same_by_generic_xdp(splice: Splice) {
    let text = Cluster::nodes(1)
        .replace(
            "attach = \"tc\"",
            "attach = \"xdp-generic\"\nsplice_address = \"10.77.0.111\"",
        )
        .replace("\n[[backend]]", &splice.of("\n[[backend]]"))
        + trapeze_tests::ONE_BACKEND;
    let cluster = splice.configured("splicexdp", &text);
    // XDP cannot complete checksums, nor keep packets of many segments apart.
    for host in ["c1", "b1"] {
        let off = [
            "ethtool", "-K", "eth0", "tx", "off", "tso", "off", "gso", "off",
        ];
        cluster.run(host, &off);
    }
    exercise(&cluster, 2);
    let d1 = cluster.dispatcher();
    // At the agent a packet has as many segments as its server likes.
    let (there, least) = match splice {
        Splice::Whole => (d1, 10_000),
        Splice::Split => (cluster.agent("b1"), 1000),
    };
    assert!(there.of("spliced-to-client") > least, "{there:?}");
}

/// Its daemon is killed in the middle: the data path goes on.
fn a_download_outlives_the_daemon(splice: Splice) {
    let cluster = splice.cluster("splicelive", |options| options.backends = Some(1));
    let slow = LinkSettings {
        rate: Some(400_000_000),
        ..LinkSettings::default()
    };
    cluster.link("c1", &slow).unwrap();
    let (ten, one) = (cluster.document("10m"), cluster.document("1k"));
    cluster.on("c1", || {
        let mut kept = Connection::open();
        same(&kept.ask("/1k").body, &one);
        let mut client = Connection::open();
        client.send("GET /10m HTTP/1.1\r\nHost: a\r\n\r\n");
        client.try_response(false).unwrap();
        cluster.kill("d1", Some(Process::Dispatch)).unwrap();
        same(&kept.ask("/1k").body, &one);
        let mut got = vec![0; ten.len()];
        let mut rest = client.unread().chain(client.stream());
        rest.read_exact(&mut got).unwrap();
        same(&got, &ten);
        cluster.start("d1", Some(Process::Dispatch)).unwrap();
        same(&kept.ask("/1k").body, &one);
        same(&Connection::open().ask("/1k").body, &one);
    });
}

fn tls_goes_through_unread(splice: Splice) {
    let cluster = splice.cluster("splicetls", |options| {
        options.backends = Some(2);
        options.tls = true;
    });
    for _ in 0..6 {
        let got = cluster.run_bytes("c1", &["curl", "-sk", "https://10.77.0.100/100k"]);
        same(&got, &cluster.document("100k"));
    }
}

/// A cluster whose b1 rebuilds and whose b2 is spliced; what each has is told by the path.
fn mixed(test: &str, splice: Splice, rest: &str) -> Cluster {
    let text = Cluster::nodes(2)
        .replace(
            "attach = \"tc\"",
            "attach = \"tc\"\nsplice_address = \"10.77.0.111\"",
        )
        .replace("name = \"b2\"", &splice.of("name = \"b2\""));
    splice.configured(test, &(text + rest))
}

fn one_pool_has_both_kinds(splice: Splice) {
    let cluster = mixed(
        "splicemix",
        splice,
        "[[pool]]\nname = \"web\"\nbackends = [\"b1\", \"b2\"]\n\
         [[service]]\nname = \"site\"\naddress = \"10.77.0.100:80\"\npool = \"web\"\n",
    );
    let documents = ["1k", "100k", "1m"].map(|name| (name, cluster.document(name)));
    cluster.on("c1", || {
        let mut took = [0, 0];
        for round in 0..40 {
            let (name, document) = &documents[round % 3];
            let response = Connection::open().ask(&format!("/{name}"));
            same(&response.body, document);
            took[usize::from(response.backend() == "b2")] += 1;
        }
        assert_eq!(took, [20, 20], "they take turns");
    });
    assert!(cluster.agent("b1").of("rebuilt") >= 20);
    exercise(&cluster, 2);
}

/// A connection leaves a backend that rebuilds for one that is spliced, and goes back.
fn a_connection_goes_on_at_a_spliced_server(splice: Splice) {
    let cluster = mixed(
        "splicemove",
        splice,
        "[[pool]]\nname = \"web\"\nbackends = [\"b1\"]\n\
         [[pool]]\nname = \"large\"\nbackends = [\"b2\"]\n\
         [[service]]\nname = \"site\"\naddress = \"10.77.0.100:80\"\npool = \"web\"\n\
         [[service.rule]]\npath = \"/1m\"\npool = \"large\"\n",
    );
    let documents = ["1k", "100k", "1m"].map(|name| cluster.document(name));
    cluster.on("c1", || {
        for timestamps in ["1", "0"] {
            set(&cluster, &["c1"], "timestamps", timestamps);
            for _ in 0..20 {
                let mut client = Connection::open();
                for (path, wanted) in [("/1k", &documents[0]), ("/100k", &documents[1])] {
                    let response = client.ask(path);
                    assert_eq!(response.backend(), "b1");
                    same(&response.body, wanted);
                }
                for (path, wanted) in [("/1m", &documents[2]), ("/1k", &documents[0])] {
                    let response = client.ask(path);
                    assert_eq!(response.backend(), if path == "/1k" { "b1" } else { "b2" });
                    same(&response.body, wanted);
                }
            }
            // The request behind it has come already.
            let mut client = Connection::open();
            for path in ["/1k", "/1m", "/100k"] {
                client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
            }
            for wanted in [&documents[0], &documents[2], &documents[1]] {
                same(&client.response().body, wanted);
            }
        }
        // Nobody is there any more: the client hears it, and goes on where somebody is.
        let mut client = Connection::open();
        same(&client.ask("/1k").body, &documents[0]);
        cluster.kill("b2", Some(Process::Server)).unwrap();
        assert_eq!(client.ask("/1m").status, 503);
    });
}

/// Clients ask far ahead of servers that read little and answer at length: what they acknowledge of
/// one answer comes from beyond the window of the server that gives it, as what waits for another
/// one has been acknowledged to them by the dispatcher.
fn uploads_ahead_of_long_answers_are_all_answered(splice: Splice) {
    let cluster = splice.cluster("splahead", |options| options.backends = Some(2));
    for host in ["b1", "b2"] {
        set(&cluster, &[host], "rmem", "4096 32768 65536");
        serve_at_length(&cluster, host);
    }
    cluster.on("c1", || {
        std::thread::scope(|scope| {
            for client in 0..6 {
                scope.spawn(move || {
                    for round in 0..3 {
                        ask_ahead(client * 100 + round * 20);
                    }
                });
            }
        });
    });
    let moves = match splice {
        Splice::Whole => cluster.dispatcher(),
        Splice::Split => cluster.agents(),
    };
    assert!(moves.of("given-up") >= 50, "{moves:?}");
}

/// Of each answer, which begins with the number of bytes that came.
const ANSWER: usize = 400_000;

/// Twelve uploads on one connection, none of which waits for the answer before.
fn ask_ahead(seed: u64) {
    let sizes = (0..12).map(|number| 10_000 + (seed + number) * 7919 % 190_000);
    let mut client = Connection::open();
    let mut sender = client.stream().try_clone().unwrap();
    std::thread::scope(|scope| {
        let sizes_sent = sizes.clone();
        scope.spawn(move || {
            for size in sizes_sent {
                let head = format!("PUT /a HTTP/1.1\r\nHost: a\r\nContent-Length: {size}\r\n\r\n");
                let mut bytes = head.into_bytes();
                bytes.extend(Content::new(size, size).bytes());
                if sender.write_all(&bytes).is_err() {
                    return; // whoever waits for its answer says so
                }
            }
        });
        for (number, size) in sizes.enumerate() {
            let response = client.response();
            assert_eq!(response.body.len(), ANSWER, "answer {number}");
            let digest = response.body[..8].try_into().unwrap();
            let sent = Content::new(size, size).bytes();
            assert_eq!(u64::from_be_bytes(digest), digest_of(&sent), "{number}");
        }
    });
}

/// Which bytes they are, and in which order.
fn digest_of(bytes: &[u8]) -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}

/// A server in the place of a host's, which reads nothing while it answers.
fn serve_at_length(cluster: &Cluster, host: &'static str) {
    cluster.kill(host, Some(Process::Server)).unwrap();
    let listener = cluster.on(host, || TcpListener::bind("0.0.0.0:80").unwrap());
    cluster.spawn(host, move || {
        for stream in listener.incoming() {
            let stream = stream.unwrap();
            std::thread::spawn(move || answer_at_length(stream));
        }
    });
    // The dispatcher may have been refused meanwhile.
    until("it is up", || {
        (cluster.backend(host).state == "up").then_some(())
    });
    std::thread::sleep(Duration::from_millis(1200));
}

/// Until its client closes, or resets.
fn answer_at_length(stream: TcpStream) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut writer = stream;
    loop {
        let mut length = None;
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).ok()?;
            match line.trim_end().split_once(": ") {
                Some(("Content-Length", value)) => length = value.parse().ok(),
                None if line == "\r\n" => break,
                None if line.is_empty() => return None,
                _ => {}
            }
        }
        let mut body = vec![0; length?];
        reader.read_exact(&mut body).ok()?;
        let mut answer = vec![b'.'; ANSWER];
        answer[..8].copy_from_slice(&digest_of(&body).to_be_bytes());
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {ANSWER}\r\n\r\n");
        writer.write_all(head.as_bytes()).ok()?;
        writer.write_all(&answer).ok()?;
    }
}
