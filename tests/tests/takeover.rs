//! Backends that die in the midst of an answer: another one goes on with it, on the same
//! connection, and only where it is provably the same (docs/protocol/takeover.md).

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddrV4};
use std::path::Path;
use std::time::{Duration, SystemTime};

use trapeze_dispatcher::Status;
use trapeze_lab::{LinkSettings, Process};
use trapeze_tests::raw::RawClient;
use trapeze_tests::saved::{Download, LARGE, MIB, Site, put};
use trapeze_tests::scattered::scattered_over;
use trapeze_tests::{Connection, Content, VIP, same, until};

#[test]
fn a_download_outlives_its_backend_and_so_does_its_connection() {
    let site = Site::up("take-power", 2);
    let mut download = site.start();
    download.read(8 * MIB).unwrap();
    site.await_protection(1);
    let dead = download.owner.clone();
    let other = if dead == "b1" { "b2" } else { "b1" };
    site.cluster.kill(&dead, None).unwrap();
    download.finish().unwrap();
    same(&download.body, &site.large);
    site.await_taken(1);
    assert_eq!(site.cluster.agent(other).of("taken-over"), 1);
    for _ in 0..5 {
        assert_eq!(download.ask(), other, "a normal connection again");
    }
    drop(download);
    until("nothing is left of it", || {
        let sockets = site
            .cluster
            .run(other, &["ss", "-Htn", "sport", "=", ":80"]);
        sockets.is_empty().then_some(())
    });
}

#[test]
fn a_second_death_is_another_takeover() {
    let site = Site::up("take-twice", 3);
    let mut download = site.start();
    download.read(8 * MIB).unwrap();
    site.await_protection(1);
    let mut dead = download.owner.clone();
    for taken in 1..=2 {
        site.cluster.kill(&dead, None).unwrap();
        download.read(16 * MIB).unwrap();
        site.await_taken(taken);
        let mut alive = ["b1", "b2", "b3"].into_iter().filter(|name| {
            site.cluster.host(name).is_ok() && site.cluster.backend(name).active == 1
        });
        dead = alive.next_back().expect("its owner").to_owned();
    }
    download.finish().unwrap();
    same(&download.body, &site.large);
}

/// The host is well, and its kernel closes the server's sockets in the midst of an answer.
#[test]
fn a_download_outlives_its_server_process() {
    let site = Site::up("take-server", 2);
    for taken in 1..=2 {
        let mut download = site.start();
        download.read(8 * MIB).unwrap();
        site.await_protection(1);
        let owner = download.owner.clone();
        site.cluster.kill(&owner, Some(Process::Server)).unwrap();
        download.finish().unwrap();
        same(&download.body, &site.large);
        site.await_taken(taken);
        assert_ne!(download.ask(), owner);
        site.cluster.start(&owner, Some(Process::Server)).unwrap();
        drop(download);
        until("nothing is protected", || {
            (site.cluster.daemon().protected_answers == 0).then_some(())
        });
    }
}

/// Of two servers one is being restarted when the other one dies: it is waited for.
#[test]
fn a_download_waits_for_a_server_that_is_not_there_just_now() {
    let site = Site::up("take-await", 2);
    let mut download = site.start();
    download.read(8 * MIB).unwrap();
    site.await_protection(1);
    let owner = download.owner.clone();
    let other = ["b1", "b2"]
        .into_iter()
        .find(|name| *name != owner)
        .unwrap();
    site.cluster.kill(other, Some(Process::Server)).unwrap();
    site.cluster.kill(&owner, Some(Process::Server)).unwrap();
    std::thread::sleep(Duration::from_secs(1));
    site.cluster.start(other, Some(Process::Server)).unwrap();
    download.finish().unwrap();
    same(&download.body, &site.large);
    site.await_taken(1);
    assert_eq!(download.ask(), other);
}

/// So it does the process that goes on with it.
#[test]
fn a_download_outlives_a_wedge() {
    let site = Site::up("take-wedge", 3);
    let mut download = site.start();
    download.read(8 * MIB).unwrap();
    site.await_protection(1);
    site.cluster.kill(&download.owner, None).unwrap();
    download.read(8 * MIB).unwrap();
    site.await_taken(1);
    let mut others = ["b1", "b2", "b3"].into_iter();
    let wedges = others
        .find(|name| *name != download.owner && site.cluster.agent(name).of("taken-over") == 1);
    (site
        .cluster
        .kill(wedges.expect("one has it"), Some(Process::Agent)))
    .unwrap();
    download.finish().unwrap();
    same(&download.body, &site.large);
    site.await_taken(2);
}

#[test]
fn another_version_of_the_object_is_not_gone_on_with() {
    let site = Site::up("take-changed", 3);
    let mut download = site.start();
    download.read(8 * MIB).unwrap();
    site.await_protection(1);
    let other = Content::new(8, LARGE as u64).bytes();
    put(site.root.path(), "large", &other);
    site.cluster.kill(&download.owner, None).unwrap();
    let error = download.finish().unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "{error}");
    same(&download.body, &site.large[..download.body.len()]);
    // Each of the others was asked.
    until("it is counted", || {
        (site.count("not-same") == 2).then_some(())
    });
    until("nothing is left of it", || {
        let on = ["b1", "b2", "b3"].into_iter();
        let on = on.filter(|name| site.cluster.host(name).is_ok());
        let sockets = on.map(|name| (site.cluster).run(name, &["ss", "-Htn", "sport", "=", ":80"]));
        sockets.collect::<String>().is_empty().then_some(())
    });
}

/// They were its server's by the time it died, and their client has been told that they had come;
/// or came while nobody knew that it had died.
#[test]
fn what_was_asked_ahead_of_a_dying_backend_is_answered() {
    for (test, others) in [("take-ahead", &["b2"][..]), ("take-ahead-3", &["b2", "b3"])] {
        let site = Site::up(test, 3);
        for other in ["b2", "b3"] {
            site.cluster.kill(other, None).unwrap();
        }
        until("b1 is alone", || {
            (site.cluster.backend("b3").state == "silent").then_some(())
        });
        let mut download = site.start();
        download.read(8 * MIB).unwrap();
        site.await_protection(1);
        for asked in 1..=2 {
            download.ask_ahead();
            until("its owner has it", || {
                (site.count("stayed-with-owner") == asked).then_some(())
            });
        }
        for other in others {
            site.cluster.start(other, None).unwrap();
            until("it is up", || {
                (site.cluster.backend(other).state == "up").then_some(())
            });
        }
        site.cluster.kill("b1", None).unwrap();
        download.ask_ahead();
        download.finish().unwrap();
        same(&download.body, &site.large);
        for _ in 0..3 {
            let by = download.hear();
            assert!(others.contains(&by.as_str()), "{by}");
        }
        site.await_taken(1);
        assert_eq!(
            (site.count("asked-again"), site.count("not-taken-over")),
            (1, 0)
        );
        assert_ne!(download.ask(), "b1");
    }
}

/// Its client has been told that it had come, and it may not run twice: nobody else can go on.
#[test]
fn a_client_that_has_sent_ahead_what_may_not_run_twice_is_reset() {
    let site = Site::up("take-post", 2);
    site.cluster.kill("b2", None).unwrap();
    until("b1 is alone", || {
        (site.cluster.backend("b2").state == "silent").then_some(())
    });
    let mut download = site.start();
    download.read(8 * MIB).unwrap();
    site.await_protection(1);
    let post = b"POST /1k HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n";
    download.stream.write_all(post).unwrap();
    until("its owner has it", || {
        (site.count("stayed-with-owner") == 1).then_some(())
    });
    site.cluster.start("b2", None).unwrap();
    until("it is up", || {
        (site.cluster.backend("b2").state == "up").then_some(())
    });
    site.cluster.kill("b1", None).unwrap();
    let error = download.finish().unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "{error}");
    same(&download.body, &site.large[..download.body.len()]);
    until("it is counted", || {
        (site.count("not-taken-over") == 1).then_some(())
    });
}

/// They wait at the dispatcher, for they are another backend's, and there is no half-pipe.
#[test]
fn what_waits_for_a_dying_backend_is_answered() {
    let site = Site::with(
        "take-waits",
        3,
        "protect_from = 1000000\nhandoff = \"drained\"\n",
    );
    let mut download = site.start();
    download.read(8 * MIB).unwrap();
    site.await_protection(1);
    for _ in 0..2 {
        download.ask_ahead();
    }
    until("they wait", || {
        (site.cluster.daemon().reading_flows == 1).then_some(())
    });
    site.cluster.kill(&download.owner, None).unwrap();
    download.finish().unwrap();
    same(&download.body, &site.large);
    for _ in 0..2 {
        assert_ne!(download.hear(), download.owner);
    }
    assert_eq!(
        (site.count("taken-over"), site.count("not-taken-over")),
        (1, 0)
    );
}

/// Behind its request, or later on.
#[test]
fn a_client_that_has_closed_its_side_has_all_of_its_answer() {
    let site = Site::up("take-fin", 3);
    for at_once in [true, false] {
        let mut download = site.cluster.on("c1", || {
            let connection = Connection::open();
            let stream = connection.stream().try_clone().expect("a socket");
            Download::ask_for("/large", stream, at_once)
        });
        download.read(8 * MIB).unwrap();
        site.await_protection(1);
        if !at_once {
            // nginx ends what it has not yet written then: somebody else goes on with that, too.
            download.stream.shutdown(Shutdown::Write).unwrap();
        }
        let owner = download.owner.clone();
        site.cluster.kill(&owner, None).unwrap();
        download.finish().unwrap();
        same(&download.body, &site.large);
        assert_eq!(
            download.stream.read(&mut [0]).unwrap(),
            0,
            "it ends in order"
        );
        site.cluster.start(&owner, None).unwrap();
        until("it is up", || {
            (site.cluster.backend(&owner).state == "up").then_some(())
        });
        // What is over is counted for a while.
        site.await_protection(0);
    }
    site.await_taken(2);
    site.cluster.expect_nothing_left(&["b1", "b2", "b3"]);
}

/// RFC 9110 §8.8.2.2: a time names an object, if that has not changed just before.
#[test]
fn an_object_without_a_tag_is_known_by_its_time() {
    let site = Site::up("take-time", 3);
    let age = |path: &Path, seconds: u64| {
        let file = File::options().write(true).open(path).unwrap();
        let then = SystemTime::now() - Duration::from_secs(seconds);
        file.set_modified(then).unwrap();
    };
    let path = site.root.path().join("large");
    let start = || {
        site.cluster.on("c1", || {
            let connection = Connection::open();
            let stream = connection.stream().try_clone().expect("a socket");
            Download::ask_for("/untagged/large", stream, false)
        })
    };
    let mut just_changed = start();
    just_changed.read(8 * MIB).unwrap();
    just_changed.finish().unwrap();
    assert_eq!(site.cluster.agents().of("begun"), 1, "it was looked at");
    assert_eq!(site.cluster.daemon().protected_answers, 0);
    age(&path, 3600);
    let mut download = start();
    download.read(8 * MIB).unwrap();
    site.await_protection(1);
    site.cluster.kill(&download.owner, None).unwrap();
    download.read(16 * MIB).unwrap();
    site.await_taken(1);
    // The next one finds another object of the same size.
    put(
        site.root.path(),
        "large",
        &Content::new(8, LARGE as u64).bytes(),
    );
    age(&path, 7200);
    let mut names = ["b1", "b2", "b3"]
        .into_iter()
        .filter(|name| *name != download.owner);
    let taker = names.find(|name| site.cluster.agent(name).of("taken-over") == 1);
    site.cluster.kill(taker.expect("its owner"), None).unwrap();
    let error = download.finish().unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "{error}");
    same(&download.body, &site.large[..download.body.len()]);
}

/// Nothing that no rule protects is looked at, or costs a message.
#[test]
fn what_is_not_protected_costs_nothing() {
    for (test, more) in [
        ("take-none", ""),
        ("take-small", "protect_from = 100000000\n"),
    ] {
        let site = Site::with(test, 2, more);
        let mut download = site.start();
        download.read(8 * MIB).unwrap();
        download.finish().unwrap();
        same(&download.body, &site.large);
        let messages = site.cluster.agents().of("begun");
        assert_eq!((messages, site.cluster.daemon().protected_answers), (0, 0));
    }
}

/// It was only cut off, and comes back while another one sends.
#[test]
fn a_backend_that_was_cut_off_does_no_harm() {
    let site = Site::up("take-cut", 2);
    let mut download = site.start();
    download.read(8 * MIB).unwrap();
    site.await_protection(1);
    let owner = download.owner.clone();
    let cut = LinkSettings {
        loss: 1.0,
        ..LinkSettings::default()
    };
    site.cluster.link(&owner, &cut).unwrap();
    download.read(16 * MIB).unwrap();
    site.await_taken(1);
    site.cluster.link(&owner, &LinkSettings::default()).unwrap();
    until("it is back", || {
        (site.cluster.backend(&owner).state == "up").then_some(())
    });
    until("its socket goes", || {
        let sockets = site
            .cluster
            .run(&owner, &["ss", "-Htn", "sport", "=", ":80"]);
        sockets.is_empty().then_some(())
    });
    download.finish().unwrap();
    same(&download.body, &site.large);
    download.ask();
}

/// What the client has behind a gap, it acknowledges before the next owner has said it.
#[test]
fn downloads_with_losses_outlive_their_backend() {
    let site = Site::up("take-loss", 2);
    let lossy = LinkSettings {
        loss: 0.01,
        delay: Duration::from_millis(2),
        rate: Some(400_000_000),
        ..LinkSettings::default()
    };
    site.cluster.link("c1", &lossy).unwrap();
    let mut downloads: Vec<Download> = (0..6).map(|_| site.start()).collect();
    site.await_protection(6);
    site.while_read(&mut downloads, || {
        site.cluster.kill("b1", None).unwrap();
    });
    assert_eq!(site.count("taken-over"), 3);
}

/// Each packet by way of another dispatcher than the one before. Who keeps the flow takes over.
#[test]
fn downloads_outlive_their_backend_behind_several_dispatchers() {
    let root = tempfile::tempdir().expect("a temporary directory");
    let large = Content::new(9, LARGE as u64).bytes();
    put(root.path(), "large", &large);
    put(root.path(), "1k", &large[..1024]);
    let cluster = scattered_over(&["d1", "d2"], "take-several", |options| {
        options.root = Some(root.path().to_owned());
    });
    let config = (cluster.config()).replace("[[pool]]\n", "[[pool]]\nprotect_from = 1000000\n");
    for backend in ["b1", "b2"] {
        cluster.reload(backend, Process::Agent, &config);
    }
    for dispatcher in ["d1", "d2"] {
        cluster.reload(dispatcher, Process::Dispatch, &config);
    }
    let sum = |what: fn(&Status) -> usize| -> usize {
        let all = ["d1", "d2"].map(|name| cluster.dispatch_status(name));
        all.iter().flatten().map(what).sum()
    };
    let taken = |status: &Status| {
        let taken = status.counters.get("taken-over");
        taken.map_or(0, |&count| count as usize)
    };
    let mut downloads: Vec<Download> = (0..4)
        .map(|_| cluster.on("c1", || Download::start(Connection::open())))
        .collect();
    for download in &mut downloads {
        download.read(4 * MIB).unwrap();
    }
    until("all are protected", || {
        (sum(|status| status.protected_answers) == 4).then_some(())
    });
    let mut due = 0;
    for (backend, process) in [("b1", Some(Process::Server)), ("b2", None)] {
        // Dispatchers take turns by themselves. Those of b1, and then all.
        let of_b1 = |download: &&Download| download.owner == "b1";
        due += match process {
            Some(_) => downloads.iter().filter(of_b1).count(),
            None => downloads.len(),
        };
        cluster.kill(backend, process).unwrap();
        for download in &mut downloads {
            download.read(16 * MIB).unwrap();
        }
        until("they are taken over", || (sum(taken) == due).then_some(()));
        if process.is_some() {
            cluster.start(backend, process).unwrap();
        }
    }
    for download in &mut downloads {
        download.finish().unwrap();
        same(&download.body, &large);
        assert_eq!(download.ask(), "b1");
    }
}

/// Clients that have had nothing of an answer, some of its head, all of that, or a byte behind it.
#[test]
fn an_answer_is_gone_on_with_from_any_byte() {
    let site = Site::up("take-bytes", 2);
    let medium = &site.large[..2 * MIB];
    put(site.root.path(), "medium", medium);
    site.cluster.lend_address("c1", "10.77.0.9");
    let get = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n");
    let (first, second) = (get("/1k"), get("/medium"));
    let head_of = |answer: &[u8]| {
        answer
            .windows(4)
            .position(|w| w == b"\r\n\r\n")
            .map(|at| at + 4)
    };
    site.cluster.on("c1", || {
        let open = |port| {
            let address = SocketAddrV4::new([10, 77, 0, 9].into(), port);
            let mut client = RawClient::connect(address, VIP);
            client.send(0, first.as_bytes());
            let is_whole =
                |answer: &[u8]| head_of(answer).is_some_and(|at| answer.len() == at + 1024);
            client.receive_until("the first answer", |c| is_whole(c.received()));
            let before = client.received().len();
            client.send(first.len(), second.as_bytes());
            client.hear_until("the second", |c| head_of(&c.received()[before..]).is_some());
            (client, before)
        };
        let mut clients: Vec<_> = (0..10).map(|n| open(40_000 + n)).collect();
        site.await_protection(10);
        // Requests take turns: all that are being answered are b2's.
        site.cluster.kill("b2", None).unwrap();
        std::thread::scope(|scope| {
            for (number, (client, before)) in clients.iter_mut().enumerate() {
                scope.spawn(move || {
                    let head = head_of(&client.received()[*before..]).unwrap();
                    let had = [0, 10, head - 1, head, head + 1][number / 2];
                    client.lose_behind(*before + had);
                    let end = *before + head + medium.len();
                    let is_over = |c: &RawClient| c.received().len() >= end || c.ended().is_some();
                    // One that answers what has a payload: Linux says nothing twice in half a
                    // second to what has none.
                    client.receive_until("the rest", is_over);
                    let answer = &client.received()[*before..];
                    assert!(answer.starts_with(b"HTTP/1.1 200 OK\r\n"), "{had}");
                    same(&answer[head_of(answer).unwrap()..], medium);
                });
            }
        });
    });
    site.await_taken(10);
}
