//! Backends that die right behind an answer, before anybody asks them whether they owe anything: they
//! have said where it ended (docs/protocol/handoff.md 9.1a, 9.8).

use std::time::{Duration, Instant};

use trapeze_tests::{Cluster, Connection, same, until};

/// A client's patience: its TCP repeats a few times, and is asked what it has had.
const SOON: Duration = Duration::from_secs(4);
/// By then a backend's words of its answers have come; nobody is asked after half a second only.
const HEARD: Duration = Duration::from_millis(50);

/// As b1's first request, or a later one: by chance, for ports in a row would keep step with three
/// backends that take turns.
fn some(client: &Connection) -> u32 {
    let port = u32::from(client.stream().local_addr().unwrap().port());
    (port.wrapping_mul(2_654_435_761) >> 16) % 3
}

/// b1's connections, which have had their answers just now.
fn just_answered(cluster: &Cluster) -> Vec<Connection> {
    let clients: Vec<Connection> = cluster.on("c1", || {
        let answered = |mut client: Connection| {
            for _ in 0..some(&client) {
                client.ask("/10k").ok();
            }
            (client.ask("/1k").ok() == "b1").then_some(client)
        };
        let opened: Vec<Connection> = (0..24).map(|_| Connection::open()).collect();
        opened.into_iter().filter_map(answered).collect()
    });
    assert!(clients.len() >= 4, "{} connections", clients.len());
    std::thread::sleep(HEARD);
    clients
}

fn await_silence(cluster: &Cluster) {
    until("its silence is noticed", || {
        (cluster.backend("b1").state == "silent").then_some(())
    });
}

fn counted(cluster: &Cluster, what: &str) -> u64 {
    cluster.daemon().counters.get(what).copied().unwrap_or(0)
}

/// One that stays with its backend, however often it asks.
fn hrw(test: &str) -> Cluster {
    let text = "[[pool]]\nname = \"web\"\npolicy = \"hrw\"\nbackends = [\"b1\", \"b2\", \"b3\"]\n\
                [[service]]\nname = \"site\"\naddress = \"10.77.0.100:80\"\npool = \"web\"\n";
    Cluster::configured(test, 3, text, |_| {})
}

#[test]
fn the_next_request_goes_elsewhere() {
    let cluster = Cluster::up("answered");
    let ten = cluster.document("10k");
    let mut clients = just_answered(&cluster);
    cluster.kill("b1", None).unwrap();
    await_silence(&cluster);
    cluster.on("c1", || {
        for client in &mut clients {
            let asked = Instant::now();
            let response = client.ask("/10k");
            same(&response.body, &ten);
            assert_ne!(response.backend(), "b1");
            assert!(asked.elapsed() < SOON, "{:?}", asked.elapsed());
        }
    });
    until("it is counted", || {
        (counted(&cluster, "taken-from-silent") == clients.len() as u64).then_some(())
    });
}

/// It is on its way to a backend of which nobody knows yet that it is dead, and is the second one,
/// or a later one, that this has been given.
#[test]
fn a_request_that_goes_to_the_dead_one_is_given_to_another() {
    let cluster = hrw("answered-given");
    let (path, all) = ["1k", "10k", "100k", "1m"]
        .into_iter()
        .map(|name| (name, cluster.document(name)))
        .find(|(name, _)| {
            cluster.on("c1", || {
                Connection::open().ask(&format!("/{name}")).ok() == "b1"
            })
        })
        .expect("one of them is b1's");
    let mut clients: Vec<Connection> = cluster.on("c1", || {
        let open = |_| {
            let mut client = Connection::open();
            for _ in 0..=some(&client) {
                client.ask(&format!("/{path}")).ok();
            }
            client
        };
        (0..12).map(open).collect()
    });
    std::thread::sleep(HEARD);
    cluster.kill("b1", None).unwrap();
    cluster.on("c1", || {
        for client in &mut clients {
            client.send(format!("GET /{path} HTTP/1.1\r\nHost: a\r\n\r\n"));
        }
        let asked = Instant::now();
        for client in &mut clients {
            let response = client.response();
            same(&response.body, &all);
            assert_ne!(response.backend(), "b1");
        }
        assert!(asked.elapsed() < SOON, "{:?}", asked.elapsed());
        for client in &mut clients {
            for _ in 0..3 {
                same(&client.ask(&format!("/{path}")).body, &all);
            }
        }
    });
    until("it is counted", || {
        (counted(&cluster, "retried") == clients.len() as u64).then_some(())
    });
}

/// What may not run twice is answered by the dispatcher: it may have run.
#[test]
fn what_is_not_idempotent_is_not() {
    let cluster = hrw("answered-post");
    let ask = |client: &mut Connection, path: &str| {
        let head = format!("POST /upload/{path} HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n");
        client.send(head + "hello");
    };
    let (mut client, path) = cluster.on("c1", || {
        let mut client = Connection::open();
        let mut paths = (0..).map(|number| format!("p{number}"));
        let path = paths.find(|path| {
            ask(&mut client, path);
            client.response().backend() == "b1"
        });
        (client, path.unwrap())
    });
    std::thread::sleep(HEARD);
    cluster.kill("b1", None).unwrap();
    let asked = Instant::now();
    ask(&mut client, &path);
    assert_eq!(client.response().status, 504);
    assert!(asked.elapsed() < SOON, "{:?}", asked.elapsed());
    for backend in ["b2", "b3"] {
        assert!(!cluster.uploads(backend).join(&path).exists(), "{backend}");
    }
}
