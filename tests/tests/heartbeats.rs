//! Heartbeats on links that lose packets.

use std::time::Duration;

use trapeze_lab::LinkSettings;
use trapeze_tests::Cluster;
use trapeze_tests::scattered::ready;

const DISPATCHERS: [&str; 2] = ["d1", "d2"];

/// Of three questions in a row one that is not repeated has lost its answer each ten seconds here, to each that is
/// asked.
#[test]
fn lost_heartbeats_are_no_deaths() {
    for transfer in ["rebuild", "splice"] {
        let cluster = Cluster::with(&format!("beats-{transfer}"), |options| {
            (options.sprays, options.dispatchers) = (Some(1), Some(2));
            options.backends = Some(3);
            options.transfer = Some(transfer.into());
        });
        for dispatcher in DISPATCHERS {
            ready(&cluster, &DISPATCHERS, dispatcher);
        }
        let lossy = LinkSettings {
            loss: 0.08,
            ..LinkSettings::default()
        };
        for host in ["s1", "d1", "d2", "b1", "b2", "b3"] {
            cluster.link(host, &lossy).unwrap();
        }
        // A host is cut off for a moment when it gets its link: for half a second, where the kernel is busy.
        std::thread::sleep(Duration::from_secs(1));
        for dispatcher in DISPATCHERS {
            ready(&cluster, &DISPATCHERS, dispatcher);
        }
        let before = deaths(&cluster);
        std::thread::sleep(Duration::from_secs(15));
        assert_eq!(deaths(&cluster), before, "{transfer}");
    }
}

/// Who has been found silent by whom, so far.
fn deaths(cluster: &Cluster) -> Vec<String> {
    let mut deaths = Vec::new();
    for dispatcher in DISPATCHERS {
        for backend in ["b1", "b2", "b3"] {
            let known = cluster.backend_as_seen_by(dispatcher, backend);
            let silent = known.history.iter().filter(|it| it.to == "silent");
            deaths.extend(silent.map(|_| format!("{dispatcher}: {backend}")));
        }
    }
    let logs = cluster.status().expect("the lab is up").logs;
    for name in ["s1.spray.log", "d1.dispatch.log", "d2.dispatch.log"] {
        let log = std::fs::read_to_string(logs.join(name)).expect("its log");
        let silent = log.lines().filter(|line| line.ends_with("is silent"));
        deaths.extend(silent.map(|line| format!("{name}: {line}")));
    }
    deaths
}
