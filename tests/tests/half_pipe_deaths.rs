//! Owners that die while an older one has not been heard to its end: a living one's answer goes on to its
//! end, and nobody waits for what will never come (docs/protocol/handoff.md 6.10).

use std::io::{self, ErrorKind, Read};
use std::time::{Duration, Instant};

use trapeze_lab::LinkSettings;
use trapeze_tests::saved::{Download, LARGE, MIB, Site, put};
use trapeze_tests::scattered::scattered_over;
use trapeze_tests::{Connection, Content, same, until};

const BACKENDS: [&str; 3] = ["b1", "b2", "b3"];
/// A client that waits for what will never come hears so by then.
const SOON: Duration = Duration::from_secs(8);

/// A download by which its link is full, and who has its connection from what was asked ahead of its end on. What is asked
/// behind that waits, for that one can say nothing yet.
fn asked_ahead(site: &Site, asked: usize) -> (Download, String) {
    let slow = LinkSettings {
        rate: Some(80_000_000),
        ..LinkSettings::default()
    };
    site.cluster.link("c1", &slow).unwrap();
    let mut download = site.start();
    download.read(MIB).unwrap();
    download.ask_ahead();
    until("another one has the connection", || {
        (site.count("half-piped") == 1).then_some(())
    });
    // Whoever is to have the next one counts as if it had.
    let mut others = BACKENDS.into_iter().filter(|name| *name != download.owner);
    let newest = others.find(|name| site.cluster.backend(name).active == 1);
    for _ in 1..asked {
        download.ask_ahead();
        // Or it is that one's turn again, which has it then.
        until("it waits", || {
            let is_given = site.count("stayed-with-owner") > 0;
            (is_given || site.cluster.daemon().reading_flows == 1).then_some(())
        });
    }
    (download, newest.expect("one has it").to_owned())
}

fn ends(error: io::Error, since: Instant) {
    assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
    assert!(since.elapsed() < SOON, "{:?}", since.elapsed());
}

/// Whoever is to come next is well, and cannot know that it is gone.
#[test]
fn who_waits_for_the_older_one_is_told() {
    for asked in [1, 2] {
        let site = Site::with(&format!("pipe-older-{asked}"), 3, "");
        let (mut download, _) = asked_ahead(&site, asked);
        site.cluster.kill(&download.owner, None).unwrap();
        let since = Instant::now();
        ends(download.finish().unwrap_err(), since);
        same(&download.body, &site.large[..download.body.len()]);
        until("it is counted", || {
            (site.count("not-taken-over") == 1).then_some(())
        });
    }
}

/// Its acknowledgements would go by way of the one that is gone.
#[test]
fn a_living_ones_answer_goes_on_to_its_end() {
    for asked in [1, 2] {
        let site = Site::with(&format!("pipe-living-{asked}"), 3, "");
        let (mut download, newest) = asked_ahead(&site, asked);
        site.cluster.kill(&newest, None).unwrap();
        download.finish().unwrap();
        assert_eq!(download.body.len(), LARGE);
        same(&download.body, &site.large);
        let since = Instant::now();
        ends(download.stream.read(&mut [0]).unwrap_err(), since);
        until("it is counted", || {
            (site.count("not-retried") == 1).then_some(())
        });
        assert!(site.count("half-pipes-relayed") > 0);
    }
}

/// What was to come behind it is another one's, where that is asked for.
#[test]
fn what_the_dead_one_was_to_answer_is_retried() {
    let site = Site::with("pipe-retry", 3, "retry = \"idempotent\"\n");
    let (mut download, newest) = asked_ahead(&site, 1);
    site.cluster.kill(&newest, None).unwrap();
    download.finish().unwrap();
    same(&download.body, &site.large);
    assert_ne!(download.hear(), newest);
    assert_eq!((site.count("retried"), site.count("not-retried")), (1, 0));
    assert_ne!(download.ask(), newest);
}

/// It was only cut off for a while.
#[test]
fn who_comes_back_goes_on() {
    let site = Site::with("pipe-back", 3, "");
    let (mut download, newest) = asked_ahead(&site, 1);
    let cut = LinkSettings {
        loss: 1.0,
        ..LinkSettings::default()
    };
    site.cluster.link(&newest, &cut).unwrap();
    until("its packets go another way", || {
        (site.count("half-pipes-relayed") > 0).then_some(())
    });
    download.read(4 * MIB).unwrap();
    site.cluster
        .link(&newest, &LinkSettings::default())
        .unwrap();
    download.finish().unwrap();
    same(&download.body, &site.large);
    assert_eq!(download.hear(), newest);
}

/// Any dispatcher hears the client, and whoever keeps its flow does what is to be done.
#[test]
fn it_is_the_same_behind_several_dispatchers() {
    let root = tempfile::tempdir().expect("a temporary directory");
    let large = Content::new(9, LARGE as u64).bytes();
    put(root.path(), "large", &large);
    put(root.path(), "1k", &large[..1024]);
    let names = ["d1", "d2"];
    let cluster = scattered_over(&names, "pipe-several", |options| {
        options.root = Some(root.path().to_owned());
        options.backends = Some(3);
    });
    let slow = LinkSettings {
        rate: Some(200_000_000),
        ..LinkSettings::default()
    };
    cluster.link("c1", &slow).unwrap();
    let count = |what: &str| -> u64 {
        let all = names.map(|name| cluster.dispatch_status(name));
        let all = all.iter().flatten();
        all.filter_map(|status| status.counters.get(what)).sum()
    };
    let downloads: Vec<Download> = (0..9)
        .map(|_| {
            let mut download = cluster.on("c1", || Download::start(Connection::open()));
            // It is the next one's turn.
            download.ask_ahead();
            download
        })
        .collect();
    until("others have the connections", || {
        (count("half-piped") == 9).then_some(())
    });
    cluster.kill("b1", None).unwrap();
    let since = Instant::now();
    let (dead, living): (Vec<_>, Vec<_>) =
        (downloads.into_iter()).partition(|one| one.owner == "b1");
    assert!(!dead.is_empty() && !living.is_empty());
    std::thread::scope(|scope| {
        for mut download in dead {
            let large = &large;
            scope.spawn(move || {
                ends(download.finish().unwrap_err(), since);
                same(&download.body, &large[..download.body.len()]);
            });
        }
        for mut download in living {
            let large = &large;
            scope.spawn(move || {
                download.finish().unwrap();
                same(&download.body, large);
            });
        }
    });
}
