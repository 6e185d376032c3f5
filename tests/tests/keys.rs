//! The cluster's key is changed under connections that last
//! (docs/protocol/encapsulation.md 9.6).

use std::io::Read;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use trapeze_datapath::abi::FlowState;
use trapeze_lab::Process;
use trapeze_tests::scattered::{ready, scattered_over};
use trapeze_tests::{Cluster, Connection, Raised, Tally, same, until};

const DISPATCHERS: [&str; 2] = ["d1", "d2"];

/// All nodes have these keys from now on; one after the other.
fn change_keys(cluster: &Cluster, before: &str, keys: &str) {
    let start = before.find("keys = [").expect("there are keys");
    let length = before[start..].find('\n').expect("it is a line");
    let config = format!("{}{keys}{}", &before[..start], &before[start + length..]);
    let nodes = [
        ("s1", Process::Spray),
        ("d1", Process::Dispatch),
        ("b1", Process::Agent),
        ("d2", Process::Dispatch),
        ("b2", Process::Agent),
        ("s2", Process::Spray),
    ];
    for (host, process) in nodes {
        cluster.reload(host, process, &config);
        std::thread::sleep(Duration::from_millis(200));
    }
    for name in DISPATCHERS {
        ready(cluster, &DISPATCHERS, name);
    }
}

#[test]
fn no_connection_notices_that_keys_change() {
    let cluster = scattered_over(&DISPATCHERS, "keys", |_| {});
    let (small, large) = (cluster.document("1k"), cluster.document("10m"));
    let stop = AtomicBool::new(false);
    let tallies: [Tally; 2] = Default::default();
    std::thread::scope(|scope| {
        let _raised = Raised(&stop);
        let [kept, fresh] = &tallies;
        let (cluster, small, large) = (&cluster, &small, &large);
        let going = || !stop.load(Ordering::Relaxed);
        let mut clients = Vec::new();
        for _ in 0..4 {
            clients.push(scope.spawn(move || {
                cluster.on("c1", || {
                    let mut client = Connection::open();
                    let pause = Duration::from_millis(5);
                    kept.note_each(going, pause, || {
                        same(&client.ask("/1k").body, small);
                    });
                });
            }));
            clients.push(scope.spawn(move || {
                cluster.on("c1", || {
                    fresh.note_each(going, Duration::ZERO, || {
                        let mut client = Connection::open();
                        // The handshake of one key, the request perhaps of another.
                        std::thread::sleep(Duration::from_millis(50));
                        same(&client.ask("/1k").body, small);
                    });
                });
            }));
        }
        cluster.on("c1", || {
            let mut idle = Connection::open();
            same(&idle.ask("/1k").body, small);
            let mut silent = Connection::open();
            let mut slow = Connection::open();
            slow.send("GET /10m HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
            let mut received = vec![0; 100_000];
            slow.stream().read_exact(&mut received).unwrap();

            let config = cluster.config();
            let (old, new) = (
                own(&config),
                "{ id = 9, secret = \"000102030405060708090a0b0c0d0e0f\" }",
            );
            change_keys(cluster, &config, &format!("keys = [{old}, {new}]"));
            change_keys(cluster, &config, &format!("keys = [{new}, {old}]"));
            all_are_sealed_by(cluster, 9);
            // Its handshake was the old key's.
            same(&silent.ask("/1k").body, small);
            change_keys(cluster, &config, &format!("keys = [{new}]"));

            same(&idle.ask("/1k").body, small);
            same(&silent.ask("/1k").body, small);
            slow.stream().read_to_end(&mut received).unwrap();
            assert!(
                received.ends_with(&large[large.len() - 1000..]),
                "it is whole"
            );
            assert!(received.len() > large.len());
        });
        let died = clients.iter().any(|client| client.is_finished());
        assert!(!died, "a transfer failed");
        stop.store(true, Ordering::Relaxed);
        for client in clients {
            client.join().expect("all transfers are right");
        }
    });
    for (name, tally) in ["kept alive", "fresh"].iter().zip(&tallies) {
        tally.expect_steady(name);
    }
}

/// The key that the lab has made.
fn own(config: &str) -> &str {
    let start = config.find("keys = [").expect("there are keys") + "keys = [".len();
    let end = config[start..].find('}').expect("it is a table") + 1;
    &config[start..start + end]
}

fn all_are_sealed_by(cluster: &Cluster, id: u8) {
    until("all open flows' options are made anew", || {
        let all_are = |name: &str| {
            let flows = cluster.dispatcher_maps_of(name).flows.all().unwrap();
            let mut open =
                (flows.iter()).filter(|(_, flow)| flow.state == FlowState::Established as u32);
            open.all(|(_, flow)| flow.meta[2] == id)
        };
        DISPATCHERS.into_iter().all(all_are).then_some(())
    });
}
