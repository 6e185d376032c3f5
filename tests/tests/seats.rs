//! Flows that come back to backends whose older answers the client has not acknowledged:
//! where no seat is left for them, they wait for one (docs/protocol/handoff.md 6.8a).

use std::time::Duration;

use trapeze_lab::LinkSettings;
use trapeze_tests::numbered::{Numbered, check_logs};
use trapeze_tests::{Cluster, Connection};

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
