//! Backends that die, or seem to, while they owe their clients nothing: the next request of
//! such a connection goes elsewhere at once, and no request runs twice
//! (docs/protocol/handoff.md 9).

use std::io::{ErrorKind, Read};
use std::time::{Duration, Instant};

use trapeze_lab::LinkSettings;
use trapeze_tests::{Cluster, Connection, ONE_BACKEND, Response, same, until};

/// By then every idle connection's owner has been asked whether it owes anything.
const ASKED: Duration = Duration::from_secs(5);
/// A client's patience: its TCP repeats twice or thrice, no more.
const SOON: Duration = Duration::from_secs(3);

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n")
}

/// Connections that have had an answer, and who gave it.
fn idle_connections(cluster: &Cluster, count: usize) -> Vec<(Connection, String)> {
    let clients = cluster.on("c1", || {
        let open = |_| {
            let mut client = Connection::open();
            let backend = client.ask("/1k").ok().to_owned();
            (client, backend)
        };
        (0..count).map(open).collect()
    });
    std::thread::sleep(ASKED);
    clients
}

fn those_of(clients: Vec<(Connection, String)>, backend: &str) -> Vec<Connection> {
    let theirs = clients.into_iter().filter(|(_, owner)| owner == backend);
    let theirs: Vec<_> = theirs.map(|(client, _)| client).collect();
    assert!(theirs.len() >= 4, "{} connections", theirs.len());
    theirs
}

/// It says something, and is answered soon, by one that is there.
fn expect_soon(what: &str, dead: &str, work: impl FnOnce() -> Response) -> Response {
    let started = Instant::now();
    let response = work();
    assert_ne!(response.backend(), dead, "{what}");
    assert!(started.elapsed() < SOON, "{what}: {:?}", started.elapsed());
    response
}

fn await_silence(cluster: &Cluster, backend: &str) {
    until("its silence is noticed", || {
        (cluster.backend(backend).state == "silent").then_some(())
    });
    // The data path is told a moment later.
    std::thread::sleep(Duration::from_millis(50));
}

fn taken(cluster: &Cluster) -> u64 {
    let daemon = cluster.daemon();
    daemon
        .counters
        .get("taken-from-silent")
        .copied()
        .unwrap_or(0)
}

/// Whatever comes next: what the data path would place, what the daemon has to read, several
/// requests at once.
#[test]
fn an_idle_connection_outlives_its_backend() {
    let cluster = Cluster::up("outlives");
    let ten = cluster.document("10k");
    let mut clients = those_of(idle_connections(&cluster, 15), "b1");
    cluster.kill("b1", None).unwrap();
    await_silence(&cluster, "b1");
    cluster.on("c1", || {
        for (number, client) in clients.iter_mut().enumerate() {
            let what = format!("client {number}");
            match number % 4 {
                0 => drop(expect_soon(&what, "b1", || client.ask("/1k"))),
                1 => {
                    let stored = expect_soon(&what, "b1", || {
                        client.send(
                            "POST /upload/x HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n",
                        );
                        client.send("hello").response()
                    });
                    assert!([201, 204].contains(&stored.status), "{}", stored.head);
                }
                2 => {
                    let pause = Duration::from_millis(5);
                    let response = expect_soon(&what, "b1", || {
                        client.send_pieces(get("/10k"), 9, pause).response()
                    });
                    same(&response.body, &ten);
                }
                _ => {
                    client.send(get("/10k").repeat(3));
                    for _ in 0..3 {
                        let response = expect_soon(&what, "b1", || client.response());
                        same(&response.body, &ten);
                    }
                }
            }
            for _ in 0..10 {
                let response = expect_soon(&what, "b1", || client.ask("/10k"));
                same(&response.body, &ten);
            }
        }
    });
    until("it is counted", || {
        (taken(&cluster) == clients.len() as u64).then_some(())
    });
}

/// Nobody knows yet that its backend is gone when its client asks: a request that is on its
/// way to another one, by way of that, gets there all the same.
#[test]
fn a_request_by_way_of_a_backend_that_has_just_died_gets_there() {
    let text = "[[pool]]\nname = \"one\"\nbackends = [\"b1\"]\n\
                [[pool]]\nname = \"others\"\nbackends = [\"b2\", \"b3\"]\n\
                [[service]]\nname = \"site\"\naddress = \"10.77.0.100:80\"\npool = \"one\"\n\
                [[service.rule]]\npath_prefix = \"/10k\"\npool = \"others\"\n";
    let cluster = Cluster::configured("just-died", 3, text, |_| {});
    let ten = cluster.document("10k");
    cluster.on("c1", || drop(Connection::open().ask("/10k")));
    let mut clients = those_of(idle_connections(&cluster, 8), "b1");
    cluster.kill("b1", None).unwrap();
    cluster.on("c1", || {
        std::thread::scope(|scope| {
            for client in &mut clients {
                let ten = &ten;
                scope.spawn(move || {
                    for _ in 0..5 {
                        let response = expect_soon("", "b1", || client.ask("/10k"));
                        same(&response.body, ten);
                    }
                });
            }
        });
    });
}

/// A request that the dead one has been given is nobody else's: it may have run.
#[test]
fn a_request_that_a_dead_backend_was_given_does_not_run_elsewhere() {
    let text = "[[pool]]\nname = \"web\"\npolicy = \"hrw\"\nbackends = [\"b1\", \"b2\"]\n\
                [[service]]\nname = \"site\"\naddress = \"10.77.0.100:80\"\npool = \"web\"\n";
    let cluster = Cluster::configured("was-given", 2, text, |_| {});
    // A path that the policy gives to b1.
    let stored_by = |client: &mut Connection, path: &str| {
        let head = format!("POST /upload/{path} HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n");
        client.send(head + "hello").response().backend().to_owned()
    };
    let (mut client, path) = cluster.on("c1", || {
        let mut client = Connection::open();
        let mut paths = (0..).map(|number| format!("p{number}"));
        let path = paths.find(|path| stored_by(&mut client, path) == "b1");
        (client, path.unwrap())
    });
    std::fs::remove_file(cluster.uploads("b1").join(&path)).unwrap();
    std::thread::sleep(ASKED);
    cluster.kill("b1", None).unwrap();
    cluster.on("c1", || {
        let head = format!("POST /upload/{path} HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n");
        client.send(head + "hello");
    });
    await_silence(&cluster, "b1");
    std::thread::sleep(SOON);
    assert!(!cluster.uploads("b2").join(&path).exists());
    assert_eq!(taken(&cluster), 0);
}

/// It was only cut off: what its sockets say when it is back is nobody's, and they go.
#[test]
fn a_backend_that_was_cut_off_does_no_harm_when_it_is_back() {
    let cluster = Cluster::up("cut-off");
    let ten = cluster.document("10k");
    let mut clients = those_of(idle_connections(&cluster, 15), "b1");
    let sockets = || {
        let all = cluster.run(
            "b1",
            &["ss", "-Htn", "state", "established", "sport", "=", ":80"],
        );
        all.lines().count()
    };
    assert!(sockets() >= clients.len());
    let cut = LinkSettings {
        loss: 1.0,
        ..LinkSettings::default()
    };
    cluster.link("b1", &cut).unwrap();
    await_silence(&cluster, "b1");
    let ask_all = |clients: &mut Vec<Connection>, dead: &str| {
        cluster.on("c1", || {
            for client in clients {
                let response = expect_soon("", dead, || client.ask("/10k"));
                same(&response.body, &ten);
            }
        });
    };
    ask_all(&mut clients, "b1");
    cluster.link("b1", &LinkSettings::default()).unwrap();
    until("it is back", || {
        (cluster.backend("b1").state == "up").then_some(())
    });
    // Its other connections' sockets stay.
    let others = || cluster.flows().len() - clients.len();
    until("its sockets go", || (sockets() <= others()).then_some(()));
    for _ in 0..6 {
        ask_all(&mut clients, "nobody");
    }
    assert_eq!(cluster.agent("b1").of("ghost"), 0);
}

/// Its host was off for a moment, and has neither setups nor sockets.
#[test]
fn an_idle_connection_outlives_its_backends_restart() {
    let cluster = Cluster::up("back-again");
    let mut clients = those_of(idle_connections(&cluster, 15), "b1");
    cluster.kill("b1", None).unwrap();
    cluster.start("b1", None).unwrap();
    until("its connections are nobody's", || {
        let vacated = *cluster.daemon().counters.get("vacated")?;
        (vacated >= clients.len() as u64).then_some(())
    });
    cluster.on("c1", || {
        for client in &mut clients {
            for _ in 0..3 {
                expect_soon("", "nobody", || client.ask("/1k")).ok();
            }
        }
    });
}

/// A drain does not wait for the answer of a host that is off.
#[test]
fn a_dead_backend_can_be_drained() {
    let cluster = Cluster::up("drain-dead");
    let mut clients = idle_connections(&cluster, 12);
    cluster.kill("b1", None).unwrap();
    await_silence(&cluster, "b1");
    let drained = cluster.trapeze("d1", &["drain", "b1", "--deadline", "10s"]);
    assert!(drained.status.success(), "{drained:?}");
    cluster.on("c1", || {
        for (client, _) in &mut clients {
            expect_soon("", "b1", || client.ask("/1k")).ok();
        }
    });
}

/// The half of an answer that has not come is not made up by another's.
#[test]
fn a_connection_that_is_owed_something_is_not_taken_away() {
    let text = "[[pool]]\nname = \"web\"\nhandoff = \"drained\"\n\
                backends = [\"b1\", \"b2\", \"b3\"]\n\
                [[service]]\nname = \"site\"\naddress = \"10.77.0.100:80\"\npool = \"web\"\n";
    let cluster = Cluster::configured("owed", 3, text, |_| {});
    let document = cluster.document("10m");
    let mut client = cluster.on("c1", Connection::open);
    // So much that its server has to wait for the client to read.
    client.send(get("/10m"));
    std::thread::sleep(ASKED);
    client.send(get("/1k"));
    let has_it = |backend: &&str| cluster.backend(backend).active > 0;
    let owner = ["b1", "b2", "b3"].into_iter().find(has_it).unwrap();
    cluster.kill(owner, None).unwrap();
    await_silence(&cluster, owner);
    let patience = Some(Duration::from_secs(6));
    client.stream().set_read_timeout(patience).unwrap();
    let error = client.try_response(true).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock, "{error}");
    let had = client.unread();
    same(had, &document[..had.len()]);
    assert!(had.len() < document.len(), "it was not owed anything");
    assert_eq!(taken(&cluster), 0);
}

/// Nobody else may have it, and nobody answers: its client is told, rather than left to wait.
#[test]
fn an_upload_whose_backend_has_died_fails() {
    let cluster = Cluster::configured("lost-upload", 1, ONE_BACKEND, |_| {});
    let mut client = cluster.on("c1", Connection::open);
    client.send("PUT /upload/lost HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n");
    client.send("x".repeat(500_000));
    until("it is on its way", || {
        (cluster.backend("b1").active == 1).then_some(())
    });
    cluster.kill("b1", None).unwrap();
    let mut stream = client.stream();
    (stream.set_read_timeout(Some(Duration::from_secs(40)))).unwrap();
    let error = stream.read(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    until("nothing of it is left", || {
        (cluster.backend("b1").active == 0).then_some(())
    });
}
