//! `trapeze drain --migrate`: another backend goes on with answers in progress while theirs is
//! well, and only where that is provably the same (docs/protocol/takeover.md §8).

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::process::Output;
use std::time::Duration;

use serde_json::Value;
use trapeze_dispatcher::Status;
use trapeze_lab::{LinkSettings, Process};
use trapeze_tests::saved::{Download, LARGE, MIB, Site, put};
use trapeze_tests::scattered::scattered_over;
use trapeze_tests::{Connection, Content, same, until};

fn drain(site: &Site, words: &[&str]) -> Output {
    let words = [&["drain"], words].concat();
    site.cluster.trapeze("d1", &words)
}

fn undrain(site: &Site, backend: &str) {
    let undrained = site.cluster.trapeze("d1", &["undrain", backend]);
    assert!(undrained.status.success(), "{undrained:?}");
}

fn report(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {output:?}"))
}

/// A client that reads nothing for as long as that takes.
#[test]
fn a_drain_takes_downloads_from_a_backend_that_is_well() {
    let site = Site::up("move-one", 3);
    let mut download = site.start();
    download.read(8 * MIB).unwrap();
    site.await_protection(1);
    let owner = download.owner.clone();
    let drained = drain(&site, &[&owner, "--migrate", "--json"]);
    assert!(drained.status.success(), "{drained:?}");
    let left = &report(&drained)["left"];
    assert_eq!(
        (&left["connections"], &left["migrated"]),
        (&0.into(), &1.into())
    );
    assert_eq!((site.count("migrated"), site.count("taken-over")), (1, 1));
    until("its socket goes", || {
        let sockets = (site.cluster).run(&owner, &["ss", "-Htn", "sport", "=", ":80"]);
        sockets.is_empty().then_some(())
    });
    download.finish().unwrap();
    same(&download.body, &site.large);
    for _ in 0..3 {
        assert_ne!(download.ask(), owner);
    }
    assert_eq!(site.count("not-taken-over"), 0);
    // It goes back.
    undrain(&site, &owner);
    for other in ["b1", "b2", "b3"].into_iter().filter(|name| *name != owner) {
        assert!(drain(&site, &[other, "--migrate"]).status.success());
    }
    assert_eq!(download.ask(), owner);
}

/// Sequence numbers come round, perhaps before its owner says where it is once more.
#[test]
fn a_download_of_more_than_four_gibibytes_goes_on_at_its_very_byte() {
    const LENGTH_MIB: u64 = 5 * 1024;
    let site = Site::up("move-vast", 2);
    let file = File::create(site.root.path().join("vast")).unwrap();
    file.set_len(LENGTH_MIB << 20).unwrap();
    for number in 0..LENGTH_MIB {
        file.write_all_at(&number.to_be_bytes(), number << 20)
            .unwrap();
    }
    let connection = site.cluster.on("c1", Connection::open);
    let stream = connection.stream().try_clone().unwrap();
    let mut download = Download::ask_for("/vast", stream, false);
    let zeros = vec![0; MIB];
    let mut piece = vec![0; MIB];
    for number in 0..LENGTH_MIB {
        if number == 4500 {
            let drained = drain(&site, &[&download.owner, "--migrate"]);
            assert!(drained.status.success(), "{drained:?}");
            assert_eq!(
                (site.count("migrated"), site.count("not-taken-over")),
                (1, 0)
            );
        }
        download.stream.read_exact(&mut piece).unwrap();
        assert_eq!(piece[..8], number.to_be_bytes());
        assert!(piece[8..] == zeros[8..], "in the MiB {number}");
    }
}

/// Its owner has the old version still, and all of it reaches the client from there.
#[test]
fn what_nobody_else_has_is_waited_for() {
    let site = Site::up("move-changed", 3);
    let mut download = site.start();
    download.read(8 * MIB).unwrap();
    site.await_protection(1);
    let owner = download.owner.clone();
    put(
        site.root.path(),
        "large",
        &Content::new(8, LARGE as u64).bytes(),
    );
    let waited = drain(&site, &[&owner, "--migrate", "--deadline", "2s", "--json"]);
    assert!(!waited.status.success(), "{waited:?}");
    let left = &report(&waited)["left"];
    let moves = ["connections", "migrated", "not_migrated"].map(|name| left[name].as_u64());
    assert_eq!(moves, [Some(1), Some(0), Some(1)]);
    // Said again and again, it is asked for once.
    assert_eq!(
        (site.count("not-migrated"), site.count("takeovers")),
        (1, 0)
    );
    download.finish().unwrap();
    same(&download.body, &site.large);
    assert_ne!(download.ask(), owner);
    assert!(drain(&site, &[&owner]).status.success());
}

/// No rule protects them.
#[test]
fn answers_that_are_not_protected_are_waited_for() {
    let site = Site::with("move-small", 2, "protect_from = 100000000\n");
    let mut download = site.start();
    download.read(8 * MIB).unwrap();
    let owner = download.owner.clone();
    let waited = drain(&site, &[&owner, "--migrate", "--deadline", "1s", "--json"]);
    assert!(!waited.status.success(), "{waited:?}");
    let left = &report(&waited)["left"];
    let waits_for = ["connections", "busy"].map(|name| left[name].as_u64());
    assert_eq!(waits_for, [Some(1), Some(1)], "it is in progress");
    assert_eq!(site.count("takeovers"), 0);
    download.finish().unwrap();
    same(&download.body, &site.large);
    assert_ne!(download.ask(), owner);
}

#[test]
fn a_pool_that_protects_nothing_has_nothing_to_migrate_by() {
    let site = Site::with("move-none", 2, "");
    let refused = drain(&site, &["b1", "--migrate"]);
    assert!(!refused.status.success(), "{refused:?}");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("`protect_from`"), "{said}");
    until("b1 is as it was", || {
        (site.cluster.backend("b1").state == "up").then_some(())
    });
}

/// Each packet by way of another dispatcher than the one before: who keeps the flow moves it.
#[test]
fn each_of_several_dispatchers_moves_what_it_keeps() {
    let root = tempfile::tempdir().expect("a temporary directory");
    let large = Content::new(9, LARGE as u64).bytes();
    put(root.path(), "large", &large);
    put(root.path(), "1k", &large[..1024]);
    let dispatchers = ["d1", "d2"];
    let cluster = scattered_over(&dispatchers, "move-several", |options| {
        options.root = Some(root.path().to_owned());
    });
    let config = (cluster.config()).replace("[[pool]]\n", "[[pool]]\nprotect_from = 1000000\n");
    for backend in ["b1", "b2"] {
        cluster.reload(backend, Process::Agent, &config);
    }
    for dispatcher in dispatchers {
        cluster.reload(dispatcher, Process::Dispatch, &config);
    }
    let sum = |what: fn(&Status) -> usize| -> usize {
        let all = dispatchers.map(|name| cluster.dispatch_status(name));
        all.iter().flatten().map(what).sum()
    };
    let mut downloads: Vec<Download> = (0..6)
        .map(|_| cluster.on("c1", || Download::start(Connection::open())))
        .collect();
    for download in &mut downloads {
        download.read(4 * MIB).unwrap();
    }
    until("all are protected", || {
        (sum(|status| status.protected_answers) == 6).then_some(())
    });
    let of_b1 = downloads.iter().filter(|d| d.owner == "b1").count();
    for dispatcher in dispatchers {
        let words = ["drain", "b1", "--migrate", "--deadline", "0s"];
        cluster.trapeze(dispatcher, &words);
    }
    for dispatcher in dispatchers {
        let drained = cluster.trapeze(dispatcher, &["drain", "b1", "--migrate"]);
        assert!(drained.status.success(), "{drained:?}");
    }
    let moved = sum(|status| {
        let moved = status.counters.get("migrated");
        moved.map_or(0, |&count| count as usize)
    });
    assert_eq!(moved, of_b1);
    for download in &mut downloads {
        download.finish().unwrap();
        same(&download.body, &large);
        assert_eq!(download.ask(), "b2");
    }
}

/// There and back again, while all is being read, over a link that loses frames.
#[test]
fn downloads_go_back_and_forth() {
    let site = Site::up("move-often", 2);
    let lossy = LinkSettings {
        loss: 0.005,
        delay: Duration::from_millis(1),
        rate: Some(300_000_000),
        ..LinkSettings::default()
    };
    site.cluster.link("c1", &lossy).unwrap();
    let mut downloads: Vec<Download> = (0..4).map(|_| site.start()).collect();
    site.await_protection(4);
    site.while_read(&mut downloads, || {
        for backend in ["b1", "b2", "b1", "b2"] {
            let drained = drain(&site, &[backend, "--migrate", "--deadline", "20s"]);
            assert!(drained.status.success(), "{drained:?}");
            undrain(&site, backend);
        }
    });
    assert!(site.count("migrated") >= 4, "{}", site.count("migrated"));
    assert_eq!(site.count("not-taken-over"), 0);
    for download in &mut downloads {
        download.ask();
    }
}
