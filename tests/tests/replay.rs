//! What a dispatcher has had when it dies goes to another one before its client says it again
//! (docs/protocol/spray.md 5.6).

use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use trapeze_lab::{Options, Process};
use trapeze_tests::raw::RawClient;
use trapeze_tests::scattered::{keeper, ready, scattered_over};
use trapeze_tests::{Cluster, Connection, VIP, until};

const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 200);
const DISPATCHERS: [&str; 2] = ["d1", "d2"];
/// Long enough for all clients to say something before a death is found.
const HEARTBEAT: Duration = Duration::from_millis(500);
/// So long a client waits before it repeats itself: three heartbeats, and some more.
const ONCE: Duration = Duration::from_secs(4);
/// Of each kind.
const CLIENTS: u16 = 8;

/// What a client is at when a dispatcher dies.
#[derive(Clone, Copy, Debug, PartialEq)]
enum At {
    Opening,
    FirstRequest,
    NextRequest,
}

/// What dies, and what clients ask for then.
struct Death {
    of: Option<Process>,
    /// Of four of its clients so many may have to repeat themselves.
    tolerated: usize,
    request: fn(u16) -> String,
}

/// What is asked for is known, and data paths decide.
const CUT: Death = Death {
    of: None,
    tolerated: 2,
    request: |_| "GET /1k HTTP/1.1\r\nHost: a\r\n\r\n".into(),
};
/// Nobody has asked for it before, and a daemon decides.
const KILLED: Death = Death {
    of: Some(Process::Dispatch),
    tolerated: 1,
    request: |port| format!("GET /1k?{port} HTTP/1.1\r\nHost: a\r\n\r\n"),
};

const EACH: [At; 3] = [At::Opening, At::FirstRequest, At::NextRequest];

fn sprayed_by_flow(name: &str, transfer: &str) -> Cluster {
    let cluster = Cluster::with(name, |options| {
        options.sprays = Some(1);
        options.dispatchers = Some(2);
        options.backends = Some(2);
        options.transfer = Some(transfer.into());
        options.spray_heartbeat = Some(HEARTBEAT);
    });
    for dispatcher in DISPATCHERS {
        ready(&cluster, &DISPATCHERS, dispatcher);
    }
    cluster
}

#[test]
fn what_was_sprayed_by_flow_to_a_dead_dispatcher() {
    for transfer in ["rebuild", "splice"] {
        let cluster = sprayed_by_flow(&format!("replay-{transfer}"), transfer);
        hardly_anything_is_said_twice(&cluster, &CUT);
        until("the spray says so", || {
            (cluster.spray_status("s1").sent_again > 0).then_some(())
        });
    }
}

/// Half of it by way of the other dispatcher.
#[test]
fn what_was_sprayed_in_turn_to_a_dead_dispatcher() {
    let slow = |options: &mut Options| options.spray_heartbeat = Some(HEARTBEAT);
    let cluster = scattered_over(&DISPATCHERS, "replay-turns", slow);
    hardly_anything_is_said_twice(&cluster, &CUT);
}

/// Its data path is there, and what its daemon had is lost.
#[test]
fn what_a_dead_daemon_had() {
    let cluster = sprayed_by_flow("replay-daemon", "rebuild");
    hardly_anything_is_said_twice(&cluster, &KILLED);
}

/// Hardly a client says anything twice. A few have to, where keepers change just then (replication.md 4.7c).
fn hardly_anything_is_said_twice(cluster: &Cluster, death: &Death) {
    cluster.lend_address("c1", &CLIENT.to_string());
    cluster.on("c1", || {
        for _ in 0..20 {
            Connection::open().ask("/1k");
        }
    });
    let length = cluster.document("1k").len();
    let has = |client: &RawClient, number| answers(client.received(), length) == number;
    let ports = 0..EACH.len() as u16 * CLIENTS;
    let client = |port: u16| SocketAddrV4::new(CLIENT, 20_000 + port);
    let kept: Vec<String> = (ports.clone())
        .map(|port| keeper(cluster, &DISPATCHERS, client(port)))
        .collect();
    let concerned = kept.iter().filter(|keeper| *keeper == "d1").count();
    assert!((4..kept.len() - 4).contains(&concerned), "{kept:?}");
    let repeated = AtomicUsize::new(0);
    // Both wait: clients for the cut, and it for their connections.
    let barrier = Barrier::new(usize::from(ports.end) + 1);
    std::thread::scope(|scope| {
        for port in ports {
            let (barrier, repeated, at) =
                (&barrier, &repeated, EACH[usize::from(port) % EACH.len()]);
            scope.spawn(move || {
                cluster.on("c1", || {
                    let open = || RawClient::connect(client(port), VIP);
                    let mut opened = (at != At::Opening).then(open);
                    let request = (death.request)(port);
                    let request = request.as_bytes();
                    if let (Some(opened), At::NextRequest) = (&mut opened, at) {
                        opened.send(0, request);
                        opened.receive_until("the first answer", |it| has(it, 1));
                    }
                    barrier.wait();
                    barrier.wait();
                    let mut opened = opened.unwrap_or_else(open);
                    let before = usize::from(at == At::NextRequest);
                    opened.send(before * request.len(), request);
                    let is_answered = |it: &RawClient| has(it, before + 1);
                    // Whatever it said meanwhile would be younger than its request, and that too old (RFC 7323 5.3).
                    if !opened.hear_for(ONCE, is_answered) {
                        repeated.fetch_add(1, Ordering::Relaxed);
                        opened.send(before * request.len(), request);
                        opened.hear_until(&format!("the answer of {port}, {at:?}"), is_answered);
                    }
                });
            });
        }
        barrier.wait();
        cluster.kill("d1", death.of).unwrap();
        barrier.wait();
    });
    // All of d1's would, or half, where its data path is there.
    let repeated = repeated.into_inner();
    assert!(
        repeated * 4 <= concerned * death.tolerated,
        "{repeated} of {concerned}"
    );
    println!("{repeated} of {concerned} said it twice");
}

/// How many whole answers with bodies of that length begin these bytes; usize::MAX: they are none.
fn answers(mut bytes: &[u8], length: usize) -> usize {
    let mut number = 0;
    while let Some(end) = bytes.windows(4).position(|it| it == b"\r\n\r\n") {
        if !bytes.starts_with(b"HTTP/1.1 200") {
            return usize::MAX;
        }
        match bytes.get(end + 4 + length..) {
            Some(rest) => bytes = rest,
            None => break,
        }
        number += 1;
    }
    number
}
