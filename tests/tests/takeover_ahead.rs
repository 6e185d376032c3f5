//! Requests that are sent ahead of a long answer's end, and backends that die meanwhile: those that have them, or that
//! whose answer it is (docs/protocol/takeover.md 2.2b1).

use std::io::{ErrorKind, Write};
use std::time::Duration;

use trapeze_lab::{LinkSettings, Process};
use trapeze_tests::saved::{Download, MIB, Site, put, read_head};
use trapeze_tests::{Connection, same, until};

const BACKENDS: [&str; 3] = ["b1", "b2", "b3"];
/// It is read by then what has been asked, and given to whoever is to have it.
const GIVEN: Duration = Duration::from_millis(500);

fn others(owner: &str) -> Vec<&'static str> {
    let others = BACKENDS.into_iter().filter(|name| *name != owner);
    others.collect()
}

/// Whoever is to answer next has nothing yet: a living one's answer, and what is asked behind it, is not theirs to end.
#[test]
fn a_protected_answer_outlives_the_backends_that_were_to_answer_next() {
    let site = Site::up("ahead-next", 3);
    let mut download = site.start();
    download.read(8 * MIB).unwrap();
    site.await_protection(1);
    for _ in 0..2 {
        download.ask_ahead();
    }
    std::thread::sleep(GIVEN);
    for other in others(&download.owner) {
        site.cluster.kill(other, None).unwrap();
    }
    download.finish().unwrap();
    same(&download.body, &site.large);
    for _ in 0..2 {
        assert_eq!(download.hear(), download.owner);
    }
    assert_eq!(site.count("not-taken-over"), 0);
}

/// They were asked before anybody knew that the answer is worth it.
#[test]
fn what_was_asked_at_once_does_not_keep_an_answer_from_being_taken_over() {
    let site = Site::up("ahead-early", 3);
    let mut downloads: Vec<Download> = (0..6)
        .map(|_| {
            let mut download = site.start();
            for _ in 0..2 {
                download.ask_ahead();
            }
            download
        })
        .collect();
    for download in &mut downloads {
        download.read(4 * MIB).unwrap();
    }
    site.await_protection(6);
    site.cluster.kill("b1", None).unwrap();
    for download in &mut downloads {
        download.finish().unwrap();
        same(&download.body, &site.large);
        for _ in 0..2 {
            assert_ne!(download.hear(), "b1");
        }
    }
    assert_eq!(site.count("not-taken-over"), 0);
}

/// They are their owner's, and so was the answer: whoever goes on with that is asked them, too.
#[test]
fn what_its_owner_was_given_at_once_is_asked_again() {
    is_asked_again("ahead-same", None);
}

/// What a server that is killed has not read its kernel answers with RST, and not with FIN.
#[test]
fn what_a_server_that_is_killed_had_not_read_is_asked_again() {
    is_asked_again("ahead-unread", Some(Process::Server));
}

fn is_asked_again(test: &str, victim: Option<Process>) {
    let site = Site::up(test, 3);
    for other in ["b2", "b3"] {
        site.cluster.kill(other, None).unwrap();
    }
    until("b1 is alone", || {
        (site.cluster.backend("b3").state == "silent").then_some(())
    });
    let mut download = site.start();
    // In one packet: of two the data path may place the first.
    let request = "GET /1k HTTP/1.1\r\nHost: a\r\n\r\n";
    let both = request.repeat(2);
    download.stream.write_all(both.as_bytes()).unwrap();
    download.read(8 * MIB).unwrap();
    site.await_protection(1);
    until("its owner has them", || {
        (site.count("stayed-with-owner") == 2).then_some(())
    });
    site.cluster.start("b2", None).unwrap();
    until("it is up", || {
        (site.cluster.backend("b2").state == "up").then_some(())
    });
    site.cluster.kill("b1", victim).unwrap();
    download.finish().unwrap();
    same(&download.body, &site.large);
    for _ in 0..2 {
        assert_eq!(download.hear(), "b2");
    }
    assert_eq!(
        (site.count("asked-again"), site.count("not-taken-over")),
        (1, 0)
    );
    assert_eq!(download.ask(), "b2");
}

/// They wait at the dispatcher: nobody else has the connection while the answer may outlive its server.
#[test]
fn what_waits_behind_the_answer_of_a_server_that_is_killed_is_asked_again() {
    let site = Site::up("ahead-killed", 3);
    let mut downloads: Vec<Download> = (0..12)
        .map(|_| {
            let mut download = site.start();
            let request = "GET /1k HTTP/1.1\r\nHost: a\r\n\r\n";
            download
                .stream
                .write_all(request.repeat(2).as_bytes())
                .unwrap();
            download
        })
        .collect();
    for download in &mut downloads {
        download.read(4 * MIB).unwrap();
    }
    site.await_protection(12);
    let died = downloads.iter().filter(|d| d.owner == "b1").count();
    assert!(died > 0, "it has some");
    (site.cluster.kill("b1", Some(Process::Server))).unwrap();
    for download in &mut downloads {
        download.finish().unwrap();
        same(&download.body, &site.large);
        for _ in 0..2 {
            assert_ne!(download.hear(), "b1");
        }
    }
    assert_eq!(site.count("not-taken-over"), 0);
}

/// They waited at its owner while it answered others: that does not know which answer is whose, but who has given them does.
#[test]
fn an_answer_behind_a_finished_one_is_taken_over() {
    const LARGE: &str = "GET /large HTTP/1.1\r\nHost: a\r\n\r\n";
    const SMALL: &str = "GET /1k HTTP/1.1\r\nHost: a\r\n\r\n";
    let site = Site::up("ahead-behind", 3);
    for other in ["b2", "b3"] {
        site.cluster.kill(other, None).unwrap();
    }
    until("b1 is alone", || {
        (site.cluster.backend("b3").state == "silent").then_some(())
    });
    // At once, or when it is known that the answer is worth it; the third has waited behind two that are over.
    let mut downloads: Vec<Download> = [Duration::ZERO, GIVEN, Duration::ZERO]
        .into_iter()
        .map(|pause| {
            let mut download = site.start();
            std::thread::sleep(pause);
            let all = [LARGE, LARGE, SMALL].concat();
            download.stream.write_all(all.as_bytes()).unwrap();
            download
        })
        .collect();
    // In the packet with which its connection begins, another one behind it.
    const AND_SMALL: &str = "/large HTTP/1.1\r\nHost: a\r\n\r\nGET /1k";
    let first = site.cluster.on("c1", || {
        let stream = Connection::open().stream().try_clone().expect("a socket");
        Download::ask_for(AND_SMALL, stream, false)
    });
    downloads.push(first);
    for (download, finished) in downloads.iter_mut().zip([1, 1, 2, 0]) {
        for _ in 0..finished {
            download.finish().unwrap();
            same(&download.body, &site.large);
            download.begin_next();
        }
        download.read(8 * MIB).unwrap();
    }
    site.await_protection(4);
    site.cluster.start("b2", None).unwrap();
    until("it is up", || {
        (site.cluster.backend("b2").state == "up").then_some(())
    });
    site.cluster.kill("b1", None).unwrap();
    for (download, left) in downloads.iter_mut().zip([1, 1, 0, 0]) {
        download.finish().unwrap();
        same(&download.body, &site.large);
        for _ in 0..left {
            download.begin_next();
            download.finish().unwrap();
            same(&download.body, &site.large);
        }
        assert_eq!(download.hear(), "b2");
    }
    assert_eq!(site.count("not-taken-over"), 0);
}

/// Some at once, some later, one or several, those by HEAD, too: living ones' answers are whole, the dead one's whole or
/// reset soon, and then that is counted.
#[test]
fn nobody_waits_for_ever_whenever_they_asked() {
    const GET: &str = "GET /1k HTTP/1.1\r\nHost: a\r\n\r\n";
    const HEAD: &str = "HEAD /1k HTTP/1.1\r\nHost: a\r\n\r\n";
    let site = Site::with("ahead-crowd", 3, "protect_from = 200000\n");
    let medium = &site.large[..16 * MIB];
    put(site.root.path(), "medium", medium);
    let slow = LinkSettings {
        rate: Some(400_000_000),
        ..LinkSettings::default()
    };
    site.cluster.link("c1", &slow).unwrap();
    let mut downloads = Vec::new();
    for number in 0..36 {
        let mut download = site.cluster.on("c1", || {
            let stream = Connection::open().stream().try_clone().expect("a socket");
            Download::ask_for("/medium", stream, false)
        });
        let (asked, pause_ms) = match number % 6 {
            0 => (GET.to_owned(), 300),
            1 => (GET.repeat(2), 300),
            2 => (GET.repeat(3), 300),
            3 => (HEAD.to_owned(), 300),
            4 => (GET.repeat(2), 10),
            _ => (GET.repeat(2), 600),
        };
        let mut stream = download.stream.try_clone().unwrap();
        downloads.push(std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(pause_ms));
            stream.write_all(asked.as_bytes()).unwrap();
            let done = download.finish();
            (download, done, asked)
        }));
    }
    std::thread::sleep(Duration::from_millis(1200));
    site.cluster.kill("b1", None).unwrap();
    let mut resets = 0;
    for download in downloads {
        let (mut download, done, asked) = download.join().unwrap();
        same(&download.body, &medium[..download.body.len()]);
        if let Err(error) = done {
            assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
            assert_eq!(download.owner, "b1");
            resets += 1;
            continue;
        }
        if asked.starts_with("HEAD") {
            assert_ne!(read_head(&mut download.stream)("x-backend"), "b1");
            continue;
        }
        // One that has just begun may be known to nobody yet.
        let heard = (0..asked.len() / GET.len()).try_for_each(|_| download.try_to_hear().map(drop));
        if let Err(error) = heard {
            assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
            assert_eq!(download.owner, "b1");
            resets += 1;
        }
    }
    let counted = || site.count("not-taken-over") + site.count("not-retried");
    assert!(site.count("taken-over") > 0);
    until("they are counted", || (counted() == resets).then_some(()));
}
