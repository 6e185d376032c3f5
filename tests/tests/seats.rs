//! Flows that come back to backends whose older answers the client has not acknowledged:
//! where no seat is left for them, they wait for one (docs/protocol/handoff.md 6.8a).

use std::time::Duration;

use trapeze_lab::LinkSettings;
use trapeze_tests::numbered::{Numbered, check_logs};
use trapeze_tests::{Cluster, Connection, until};

/// Every request moves, far ahead of what the client has heard: the backends' seats are taken
/// for as long as its acknowledgements are under way.
#[test]
fn requests_wait_for_a_seat_without_going_round() {
    for (delay_ms, requests) in [(5, 60), (5, 300), (50, 60), (50, 300)] {
        let what = format!("{requests} requests, {delay_ms} ms");
        let cluster = Cluster::with("no-seat", |options| {
            options.access_log = true;
            options.backends = Some(2);
        });
        let link = LinkSettings {
            delay: Duration::from_millis(delay_ms),
            ..LinkSettings::default()
        };
        cluster.link("c1", &link).unwrap();
        let numbered = Numbered::of(&cluster, &["1k", "10k"]);
        let before = (cluster.dispatcher(), cluster.agents());
        let answered = cluster.on("c1", || {
            let mut client = Connection::open();
            numbered.pipeline(&mut client, 0..requests).unwrap()
        });
        check_logs(&cluster, &answered);
        let (d1, agents) = (cluster.dispatcher() - before.0, cluster.agents() - before.1);
        // Without pauses: 36,341 of the largest.
        assert!(agents.of("refused") <= 2 * requests, "{what}: {agents:?}");
        assert!(agents.of("early") <= 10 * requests, "{what}: {agents:?}");
        assert!(d1.of("forwarded") <= 10 * requests, "{what}: {d1:?}");
        assert!(agents.of("half-pipe") > requests / 2, "{what}: {agents:?}");
        if (delay_ms, requests) == (50, 300) {
            assert!(agents.of("older-range") > 0, "no seat was missing");
        }
    }
}

/// Clients that are always as far ahead: nobody is an older owner any longer than until its
/// answer is acknowledged, however many have come after it (6.5).
#[test]
fn older_owners_all_retire() {
    let cluster = Cluster::with("all-retire", |options| {
        options.access_log = true;
        options.backends = Some(3);
    });
    let numbered = Numbered::of(&cluster, &["1k"]);
    let requests = 400;
    let answered = cluster.on("c1", || {
        let visit = |client: u64| {
            let all = client * requests..(client + 1) * requests;
            numbered.ask_ahead(&mut Connection::open(), all, 8).unwrap()
        };
        std::thread::scope(|scope| {
            let clients = [0, 1, 2, 3].map(|client| scope.spawn(move || visit(client)));
            let all = clients.map(|client| client.join().unwrap());
            all.into_iter().flatten().collect()
        })
    });
    check_logs(&cluster, &answered);
    until("all older owners have retired", || {
        let agents = cluster.agents();
        assert!(agents.of("half-pipe") > requests / 4, "{agents:?}");
        (agents.of("retired") == agents.of("half-pipe")).then_some(())
    });
}
