//! Daemons die, come back and read their configuration again: no established
//! flow notices.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use trapeze_lab::{Process, ServerKind};
use trapeze_tests::site::{pools, rule, service};
use trapeze_tests::{Cluster, Connection, Content, Raised, same, until};

/// Work that goes on while something happens to the cluster.
struct Load<'a> {
    cluster: &'a Cluster,
    stop: &'a AtomicBool,
}

impl Load<'_> {
    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }

    /// One download after another over one connection.
    fn download(&self, path: &str) -> u64 {
        let document = self.cluster.document(path);
        let mut client = Connection::open();
        let mut rounds = 0;
        while self.goes_on() || rounds == 0 {
            same(&client.ask(&format!("/{path}")).body, &document);
            rounds += 1;
        }
        rounds
    }

    /// One upload after another over one connection.
    fn upload(&self) -> u64 {
        let body = Content::new(1, 20 << 20).bytes();
        let mut client = Connection::open();
        let mut rounds = 0;
        while self.goes_on() || rounds == 0 {
            let head = format!(
                "PUT /upload/long HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n",
                body.len()
            );
            let response = client.send(head).send(&body).response();
            assert_eq!(response.status, 201);
            let stored = self.cluster.uploads(response.backend()).join("long");
            same(&std::fs::read(stored).unwrap(), &body);
            rounds += 1;
        }
        rounds
    }

    /// Small requests over one connection, each perhaps of another backend.
    fn keep_alive(&self) -> u64 {
        let document = self.cluster.document("1k");
        let mut client = Connection::open();
        let mut rounds = 0;
        while self.goes_on() {
            let response = client.ask("/1k");
            response.ok();
            same(&response.body, &document);
            std::thread::sleep(Duration::from_millis(2));
            rounds += 1;
        }
        rounds
    }

    /// A connection for each request.
    fn connect(&self) -> u64 {
        let mut rounds = 0;
        while self.goes_on() {
            Connection::open().ask("/1k").ok();
            std::thread::sleep(Duration::from_millis(2));
            rounds += 1;
        }
        rounds
    }
}

#[test]
fn kill_9_and_restart_of_daemons_disturb_no_established_flow() {
    let cluster = Cluster::with("kill9", |options| options.server = ServerKind::Python);
    let stop = AtomicBool::new(false);
    let load = Load {
        cluster: &cluster,
        stop: &stop,
    };
    std::thread::scope(|scope| {
        let _raised = Raised(&stop);
        let on = |work: fn(&Load) -> u64| {
            let load = &load;
            scope.spawn(move || load.cluster.on("c1", || work(load)))
        };
        let working = [
            on(|load| load.download("10m")),
            on(|load| load.download("100k")),
            on(|load| load.upload()),
            on(|load| load.keep_alive()),
            on(|load| load.keep_alive()),
        ];
        std::thread::sleep(Duration::from_millis(300));
        for _ in 0..3 {
            let before = cluster.dispatcher().of("forwarded");
            cluster.kill("d1", Some(Process::Dispatch)).unwrap();
            std::thread::sleep(Duration::from_millis(300));
            let without = cluster.dispatcher().of("forwarded");
            assert!(without > before, "flows go on without the daemon");
            cluster.start("d1", Some(Process::Dispatch)).unwrap();
            cluster.on("c1", || Connection::open().ask("/1k").ok().to_owned());
            for backend in ["b1", "b2", "b3"] {
                cluster.restart(backend, Process::Agent);
            }
            cluster.on("c1", || Connection::open().ask("/1k").ok().to_owned());
        }
        stop.store(true, Ordering::Relaxed);
        for thread in working {
            assert!(thread.join().unwrap() > 0);
        }
    });
    // Each connection has been set up once, and once more wherever it has moved.
    let agents = cluster.agents();
    let taken = agents.of("rebuilt") + agents.of("resumed");
    assert_eq!(taken - agents.of("given-up"), 5 + 6);
}

#[test]
fn daemons_hand_over_to_their_successors() {
    let cluster = Cluster::up("usr2");
    let mut client = cluster.on("c1", Connection::open);
    client.ask("/1k").ok();
    for (host, process) in [("d1", Process::Dispatch), ("b1", Process::Agent)] {
        let is_running = || {
            let status = cluster.status().unwrap();
            status.host(host).unwrap().processes[&process]
        };
        let pid = is_running().pid.unwrap().to_string();
        let sent = std::process::Command::new("kill")
            .args(["-USR2", &pid])
            .status();
        assert!(sent.unwrap().success());
        until("it has ended", || (!is_running().running).then_some(()));
        client.ask("/1k").ok();
        cluster.start(host, Some(process)).unwrap();
        client.ask("/1k").ok();
        cluster.on("c1", || {
            for _ in 0..3 {
                Connection::open().ask("/1k").ok();
            }
        });
    }
}

#[test]
fn a_connection_that_meets_a_dead_dispatcher_waits_for_it() {
    let cluster = Cluster::up("gap");
    cluster.kill("d1", Some(Process::Dispatch)).unwrap();
    cluster.on("c1", || {
        // The handshake needs no daemon; the request waits for one.
        let mut clients: Vec<Connection> = (0..10).map(|_| Connection::open()).collect();
        for (number, client) in clients.iter_mut().enumerate() {
            let head = "GET /1k HTTP/1.1\r\nHost: a\r\n\r\n";
            match number % 2 {
                0 => client.send(head),
                _ => client.send_pieces(head, 9, Duration::ZERO),
            };
        }
        cluster.start("d1", Some(Process::Dispatch)).unwrap();
        for client in &mut clients {
            client.response().ok();
            client.ask("/1k").ok();
        }
    });
}

#[test]
fn heads_that_a_dying_dispatcher_holds_are_read_by_the_next() {
    let cluster = Cluster::up("held");
    cluster.on("c1", || {
        let mut clients: Vec<Connection> = (0..10).map(|_| Connection::open()).collect();
        for client in &mut clients {
            client.send("GET /1k HT");
        }
        std::thread::sleep(Duration::from_millis(50));
        cluster.restart("d1", Process::Dispatch);
        for client in &mut clients {
            client.send("TP/1.1\r\nHost: a\r\n\r\n");
        }
        for client in &mut clients {
            // Bytes that were acknowledged are lost with it: then it must end, not hang.
            match client.try_response(true) {
                Ok(response) => assert!([200, 408].contains(&response.status)),
                Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset),
            }
        }
        Connection::open().ask("/1k").ok();
    });
}

#[test]
fn reloads_under_load_fail_no_request() {
    let cluster = Cluster::up("reload");
    let original = cluster.config();
    let stop = AtomicBool::new(false);
    let load = Load {
        cluster: &cluster,
        stop: &stop,
    };
    let reload = |config: &str| {
        let said = cluster.reload("d1", Process::Dispatch, config);
        assert!(said.starts_with("reloaded"), "{said}");
        std::thread::sleep(Duration::from_millis(100));
    };
    std::thread::scope(|scope| {
        let _raised = Raised(&stop);
        let threads = [
            scope.spawn(|| cluster.on("c1", || load.keep_alive())),
            scope.spawn(|| cluster.on("c1", || load.download("1m"))),
            scope.spawn(|| cluster.on("c1", || load.connect())),
        ];
        let two = original.replace("\"b1\", \"b2\", \"b3\"", "\"b1\", \"b2\"");
        assert_ne!(two, original);
        let asked = |count: usize| -> Vec<String> {
            let one = || Connection::open().ask("/1k").ok().to_owned();
            cluster.on("c1", || (0..count).map(|_| one()).collect())
        };
        for _ in 0..2 {
            reload(&two);
            assert!(!asked(9).contains(&"b3".to_owned()));
            // As if it were not there at all.
            let gone = two.replace(
                "[[backend]]\nname = \"b3\"\naddress = \"10.77.0.23\"\ninterface = \"eth0\"\n",
                "",
            );
            assert_ne!(gone, two);
            reload(&gone);
            reload(&original);
            assert!(asked(9).contains(&"b3".to_owned()));
            reload(&original.replace("round-robin", "least-connections"));
            reload(&original.replace("round-robin", "hrw"));
            let first = asked(1);
            assert!(asked(5).iter().all(|backend| *backend == first[0]));
            let rule = "\n[[pool]]\nname = \"one\"\nbackends = [\"b2\"]\n\
                        [[service.rule]]\npath_prefix = \"/1k\"\npool = \"one\"\n";
            // A rule belongs to the service before it.
            let (head, service) = original.split_once("[[service]]").unwrap();
            let (pool, rule) = rule.split_once("[[service.rule]]").unwrap();
            reload(&format!(
                "{head}{pool}\n[[service]]{service}\n[[service.rule]]{rule}"
            ));
            assert!(asked(5).iter().all(|backend| backend == "b2"));
            reload(&original);
        }
        stop.store(true, Ordering::Relaxed);
        for thread in threads {
            assert!(thread.join().unwrap() > 0);
        }
    });
}

/// What the daemon has acknowledged of a head goes with it; the rest comes again.
#[test]
fn a_daemon_that_hands_over_resets_the_heads_that_it_has_begun() {
    let cluster = Cluster::up("begun");
    let pid = || {
        let status = cluster.status().unwrap();
        status.host("d1").unwrap().processes[&Process::Dispatch].pid
    };
    cluster.on("c1", || {
        let mut established = Connection::open();
        established.ask("/1k").ok();
        let mut begun = Connection::open();
        begun.send("GET /1k HTTP/1.1\r\nHost: ");
        // Longer than any acknowledgement is put off.
        std::thread::sleep(Duration::from_millis(200));
        let pid = pid().expect("it runs").to_string();
        cluster.run("d1", &["kill", "-USR2", &pid]);
        let start = std::time::Instant::now();
        let error = begun.try_response(true).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
        assert!(start.elapsed() < Duration::from_secs(2), "at once");
        established.ask("/1k").ok();
        let mut waits = Connection::open();
        waits.send("GET /1k HTTP/1.1\r\nHost: a\r\n\r\n");
        until("the old one has ended, and a new one runs", || {
            cluster.start("d1", Some(Process::Dispatch)).ok()
        });
        waits.response().ok();
    });
}

/// Two rules change places, pools come and go under the same names, and each new
/// connection goes where the file in force says.
#[test]
fn rules_that_swap_their_pools_twenty_times_fail_no_request() {
    let rules = |one: &str, two: &str| {
        pools(&[("web", "b3"), ("one", one), ("two", two)])
            + &service(80)
            + &rule("path = \"/1k\"", "one")
            + &rule("path_prefix = \"/10k\"", "two")
    };
    let cluster = Cluster::configured("swap", 3, &rules("b1", "b2"), |_| {});
    // The lab's own name for the cluster stays.
    let config = cluster.config();
    let (nodes, _) = config.split_once("[[pool]]").unwrap();
    let stop = AtomicBool::new(false);
    let load = Load {
        cluster: &cluster,
        stop: &stop,
    };
    let in_pieces = || {
        let document = cluster.document("10k");
        let mut rounds = 0;
        while load.goes_on() {
            let head = "GET /10k HTTP/1.1\r\nHost: site.example\r\n\r\n";
            let mut client = Connection::open();
            let response = client
                .send_pieces(head, 11, Duration::from_millis(1))
                .response();
            response.ok();
            same(&response.body, &document);
            rounds += 1;
        }
        rounds
    };
    std::thread::scope(|scope| {
        let _raised = Raised(&stop);
        let threads = [
            scope.spawn(|| cluster.on("c1", || load.connect())),
            scope.spawn(|| cluster.on("c1", || load.connect())),
            scope.spawn(|| cluster.on("c1", || load.keep_alive())),
            scope.spawn(|| cluster.on("c1", || load.download("100k"))),
            scope.spawn(|| cluster.on("c1", in_pieces)),
        ];
        for round in 0..20 {
            let (one, two) = if round % 2 == 0 {
                ("b2", "b1")
            } else {
                ("b1", "b2")
            };
            let said = cluster.reload(
                "d1",
                Process::Dispatch,
                &(nodes.to_owned() + &rules(one, two)),
            );
            assert!(said.starts_with("reloaded"), "{said}");
            cluster.on("c1", || {
                for _ in 0..3 {
                    assert_eq!(Connection::open().ask("/1k").ok(), one);
                    assert_eq!(Connection::open().ask("/10k").ok(), two);
                }
            });
        }
        stop.store(true, Ordering::Relaxed);
        for thread in threads {
            assert!(thread.join().unwrap() > 20);
        }
    });
    let d1 = cluster.dispatcher();
    assert_eq!(d1.of("no-backend"), 0, "{d1:?}");
}

#[test]
fn a_bad_configuration_changes_nothing_and_is_pointed_at() {
    let cluster = Cluster::up("bad");
    let original = cluster.config();
    let wrong = original.replace("round-robin", "round-rabin");
    let line = 1 + wrong.lines().position(|l| l.contains("rabin")).unwrap();
    let said = cluster.reload("d1", Process::Dispatch, &wrong);
    assert!(said.contains("the old configuration stays"), "{said}");
    assert!(said.contains(&format!("trapeze.toml:{line}:")), "{said}");
    let said = cluster.reload(
        "d1",
        Process::Dispatch,
        &(original.clone() + "[[service]\n"),
    );
    let line = 1 + original.lines().count();
    assert!(said.contains(&format!(":{line}:")), "{said}");
    let moved = original.replace("\"10.77.0.11\"", "\"10.77.0.12\"");
    let said = cluster.reload("d1", Process::Dispatch, &moved);
    assert!(said.contains("restart it"), "{said}");
    let said = cluster.reload("b1", Process::Agent, &wrong);
    assert!(said.contains("the old configuration stays"), "{said}");
    cluster.on("c1", || {
        let mut backends: Vec<String> = (0..3)
            .map(|_| Connection::open().ask("/1k").ok().to_owned())
            .collect();
        backends.sort();
        assert_eq!(backends, ["b1", "b2", "b3"]);
    });
    let said = cluster.reload("d1", Process::Dispatch, &original);
    assert!(said.starts_with("reloaded"), "{said}");
}
