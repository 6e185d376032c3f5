//! Heads of later requests come in pieces, with a dispatcher that dies or leaves between them: their clients have been
//! told that the first ones have come, and do not say them again (docs/protocol/replication.md 5.4).

use std::time::Duration;

use trapeze_lab::Process;
use trapeze_tests::scattered::ready;
use trapeze_tests::{Cluster, Connection, Splice, same, until};

const DISPATCHERS: [&str; 3] = ["d1", "d2", "d3"];
const PAUSE: Duration = Duration::from_millis(30);

/// The last ones are more than a client has on its way that has lost something: it waits for word of the first of them.
fn pieces() -> [String; 4] {
    let filling = |name: &str| format!("{name}: {}\r\n", "f".repeat(1300));
    let host = "Host: site.example\r\n";
    [
        format!("GET /1k HTTP/1.1\r\n{host}"),
        filling("A"),
        filling("B"),
        "\r\n".to_owned(),
    ]
}

/// Sprays send each flow to its keeper, so that servers' answers are followed.
fn by_flow(test: &str, splice: Splice) -> Cluster {
    let cluster = splice.cluster(test, |options| {
        options.sprays = Some(1);
        options.dispatchers = Some(DISPATCHERS.len() as u8);
        options.backends = Some(2);
    });
    for dispatcher in DISPATCHERS {
        ready(&cluster, &DISPATCHERS, dispatcher);
    }
    cluster
}

/// All connections are in the midst of a head when `ends` ends a dispatcher, and go on meanwhile.
fn are_read_on(cluster: &Cluster, ends: impl Fn(&str) + Sync) {
    let (document, pieces) = (cluster.document("1k"), pieces());
    let whole = pieces.concat();
    cluster.on("c1", || {
        let mut clients: Vec<_> = (0..24).map(|_| Connection::open()).collect();
        for victim in DISPATCHERS {
            for client in &mut clients {
                for _ in 0..3 {
                    client.send_pieces(&whole, 700, Duration::from_millis(2));
                    same(&client.response().body, &document);
                }
            }
            let say = |clients: &mut [Connection], piece: &str| {
                for client in clients {
                    client.send(piece);
                }
                std::thread::sleep(PAUSE);
            };
            say(&mut clients, &pieces[0]);
            std::thread::scope(|scope| {
                scope.spawn(|| ends(victim));
                std::thread::sleep(PAUSE);
                for piece in &pieces[1..] {
                    say(&mut clients, piece);
                }
            });
            for client in &mut clients {
                same(&client.response().body, &document);
            }
            cluster.start(victim, None).unwrap();
            ready(cluster, &DISPATCHERS, victim);
        }
    });
}

#[test]
fn power_cuts_lose_no_head_of_spliced_flows() {
    let cluster = by_flow("half-cut", Splice::Whole);
    are_read_on(&cluster, |victim| cluster.kill(victim, None).unwrap());
}

#[test]
fn who_leaves_takes_no_head_of_split_flows_along() {
    let cluster = by_flow("half-left", Splice::Split);
    are_read_on(&cluster, |victim| {
        cluster.signal(victim, Process::Dispatch, "-TERM");
        until("it has left", || {
            let status = cluster.status().expect("the lab is up");
            let processes = &status.host(victim).expect("a host").processes;
            (!processes[&Process::Dispatch].running).then_some(())
        });
    });
}
