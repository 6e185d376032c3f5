//! What outlives a backend, by rule: answers of some routes and not of others, those that take long and
//! not those that are short, and requests of some routes (docs/configuration.md, [[service.rule]]).

use std::io::ErrorKind;
use std::time::Duration;

use trapeze_lab::Process;
use trapeze_tests::saved::{Download, MIB, Site};
use trapeze_tests::{Connection, same, until};

/// So many downloads by way of each host name: of `host`, all begun, and read in part.
fn start(site: &Site, host: &str, count: usize) -> Vec<Download> {
    let mut downloads: Vec<Download> = (0..count)
        .map(|_| {
            let connection = site.cluster.on("c1", Connection::open);
            let stream = connection.stream().try_clone().unwrap();
            Download::of_host(host, "/large", stream)
        })
        .collect();
    for download in &mut downloads {
        download.read(4 * MIB).unwrap();
    }
    downloads
}

/// Their server dies; the `saved` ones come whole, the others do not.
fn die(site: &Site, owner: &str, saved: Vec<Download>, lost: Vec<Download>) {
    let is_owners = |download: &Download| download.owner == owner;
    let [mut saved, mut lost] = [saved, lost].map(|downloads| {
        let owners: Vec<Download> = downloads.into_iter().filter(is_owners).collect();
        assert!(!owners.is_empty(), "{owner} has none");
        owners
    });
    site.cluster.kill(owner, Some(Process::Server)).unwrap();
    for download in &mut lost {
        let error = download.finish().expect_err("it is nobody's");
        let ends = [ErrorKind::UnexpectedEof, ErrorKind::ConnectionReset];
        assert!(ends.contains(&error.kind()), "{error}");
        same(&download.body, &site.large[..download.body.len()]);
    }
    for download in &mut saved {
        download.finish().unwrap();
        same(&download.body, &site.large);
    }
    site.await_taken(saved.len() as u64);
    assert_eq!(site.count("not-taken-over"), 0);
}

#[test]
fn an_answer_outlives_its_backend_if_its_rule_says_so() {
    for (test, pool, rule) in [
        ("rule-on", "", "host = \"a\"\nprotect_from = 1000000"),
        (
            "rule-off",
            "protect_from = 1000000\n",
            "host = \"b\"\nprotect_from = false",
        ),
        (
            "rule-kept-too",
            "protect_from = 1000000\nretry = \"always\"\n",
            "host = \"b\"\nprotect_from = false",
        ),
        (
            "rule-more",
            "protect_from = 1000000\n",
            "host = \"b\"\nprotect_from = 100000000",
        ),
    ] {
        let site = Site::ruled(test, 2, pool, &[rule]);
        let (saved, lost) = (start(&site, "a", 4), start(&site, "b", 4));
        site.await_protection(4);
        die(&site, "b1", saved, lost);
    }
}

/// By its backend's power, too; and the next request of its connection is another route's.
#[test]
fn a_connection_goes_on_behind_an_answer_of_a_rule() {
    let site = Site::ruled(
        "rule-power",
        2,
        "",
        &["path = \"/large\"\nprotect_from = 1000000"],
    );
    let mut download = site.start();
    download.read(8 * MIB).unwrap();
    site.await_protection(1);
    site.cluster.kill(&download.owner, None).unwrap();
    download.finish().unwrap();
    same(&download.body, &site.large);
    site.await_taken(1);
    assert_ne!(download.ask(), download.owner);
}

/// Answers of the one rule are too small, and of the other no rule says anything.
#[test]
fn what_no_rule_asks_for_costs_nothing() {
    let rules = ["host = \"b\"\nprotect_from = 100000000"];
    let site = Site::ruled("rule-none", 2, "", &rules);
    for host in ["a", "b"] {
        let mut download = start(&site, host, 1);
        download[0].finish().unwrap();
        same(&download[0].body, &site.large);
    }
    let begun = site.cluster.agents().of("begun");
    assert_eq!((begun, site.count("updates")), (0, 0));
}

/// At the agents, whose data paths know the least of all rules, and at the dispatcher.
#[test]
fn a_reload_changes_which_answers_are_saved() {
    let site = Site::with("rule-reload", 2, "protect_from = 1000000\n");
    let before = start(&site, "a", 1);
    site.await_protection(1);
    drop(before);
    let config = site.cluster.config();
    let config = config.replace("protect_from = 1000000\n", "")
        + "[[service.rule]]\nhost = \"b\"\npool = \"web\"\nprotect_after = \"100ms\"\n";
    for backend in ["b1", "b2"] {
        site.cluster.reload(backend, Process::Agent, &config);
    }
    site.cluster.reload("d1", Process::Dispatch, &config);
    until("nothing is protected", || {
        (site.cluster.daemon().protected_answers == 0).then_some(())
    });
    let (saved, lost) = (start(&site, "b", 4), start(&site, "a", 4));
    site.await_protection(4);
    die(&site, "b2", saved, lost);
}

/// No size is too small for it.
#[test]
fn an_answer_that_takes_long_outlives_its_backend() {
    let site = Site::ruled(
        "rule-long",
        2,
        "protect_from = 1000000000\nprotect_after = \"1s\"\n",
        &["host = \"b\"\nprotect_after = false"],
    );
    let (saved, lost) = (start(&site, "a", 4), start(&site, "b", 4));
    site.await_protection(4);
    die(&site, "b1", saved, lost);
}

/// It is nobody's business how long it will take, until it does.
#[test]
fn an_answer_that_is_over_before_its_time_is_not_told_of() {
    let rules = [
        "host = \"b\"\nprotect_after = \"4s\"",
        "host = \"c\"\nprotect_after = \"1h\"",
    ];
    let site = Site::ruled("rule-short", 2, "", &rules);
    let mut waiting = start(&site, "c", 2);
    for _ in 0..4 {
        let mut short = start(&site, "b", 1);
        short[0].finish().unwrap();
        short[0].ask();
    }
    assert_eq!(site.count("updates"), 0);
    let long = start(&site, "b", 2);
    site.await_protection(2);
    for download in &mut waiting {
        download.finish().unwrap();
        same(&download.body, &site.large);
    }
    drop(long);
}

/// Of requests that have perhaps run, with clients of both hosts.
#[test]
fn what_may_run_twice_is_said_by_its_rule() {
    for (test, pool, rule) in [
        ("rule-retry", "", "host = \"a\"\nretry = \"always\""),
        (
            "rule-unheard",
            "retry = \"always\"\n",
            "host = \"b\"\nretry = \"unheard\"",
        ),
    ] {
        for host in ["a", "b"] {
            let site = Site::ruled(&format!("{test}-{host}"), 2, pool, &[rule]);
            let retried = u64::from(host == "a");
            for backend in ["b1", "b2"] {
                site.cluster.signal_server(backend, "-STOP");
            }
            let mut client = site.cluster.on("c1", Connection::open);
            client.send(format!(
                "POST /upload HTTP/1.1\r\nHost: {host}\r\nContent-Length: 4\r\n\r\nbody"
            ));
            let [owner, other] = until("one of them has it", || {
                let [one, two] = ["b1", "b2"].map(|name| site.cluster.backend(name).active);
                match (one, two) {
                    (1, 0) => Some(["b1", "b2"]),
                    (0, 1) => Some(["b2", "b1"]),
                    _ => None,
                }
            });
            until("its backend has acknowledged it", || {
                let sockets = (site.cluster).run("c1", &["ss", "-Htn", "state", "established"]);
                let mut sent = sockets.lines().map(|line| line.split_whitespace().nth(1));
                sent.all(|queue| queue == Some("0")).then_some(())
            });
            until("it is kept, if it is to be", || {
                (site.cluster.daemon().kept_requests as u64 == retried).then_some(())
            });
            site.cluster.signal_server(other, "-CONT");
            site.cluster.kill(owner, None).unwrap();
            client
                .stream()
                .set_read_timeout(Some(Duration::from_secs(4)))
                .unwrap();
            let answer = client.try_response(true);
            assert_eq!(answer.is_ok(), retried == 1, "{answer:?}");
            until("it is counted", || {
                (site.count("retried") == retried).then_some(())
            });
            // By its next owner, too.
            assert_eq!(site.count("kept-requests"), 2 * retried);
        }
    }
}

#[test]
fn what_is_never_to_be_retried_is_said_by_its_rule() {
    let site = Site::ruled("rule-never", 2, "", &["host = \"b\"\nretry = \"never\""]);
    let mut clients: Vec<Connection> =
        (site.cluster).on("c1", || (0..12).map(|_| Connection::open()).collect());
    site.cluster.kill("b1", None).unwrap();
    let [mut a, mut b] = [Vec::new(), Vec::new()];
    for (number, client) in clients.iter_mut().enumerate() {
        let host = ["a", "b"][number / 6];
        client.send(format!("GET /1k HTTP/1.1\r\nHost: {host}\r\n\r\n"));
    }
    for (number, client) in clients.iter_mut().enumerate() {
        [&mut a, &mut b][number / 6].push(client.response().status);
    }
    assert_eq!(a, [200; 6]);
    b.sort_unstable();
    assert_eq!(b, [200, 200, 200, 504, 504, 504]);
}

/// Each request that is kept is the daemon's, and first of a setup; others stand, and stay.
#[test]
fn requests_of_one_rule_are_kept_and_those_of_another_cost_nothing() {
    let site = Site::ruled(
        "rule-kept",
        2,
        "policy = \"hrw\"\n",
        &["host = \"a\"\nretry = \"idempotent\""],
    );
    // On so many connections, so many requests each.
    let ask = |host: &str, connections: usize, count: usize| {
        let request = format!("GET /1k HTTP/1.1\r\nHost: {host}\r\n\r\n");
        for _ in 0..connections {
            let mut client = site.cluster.on("c1", Connection::open);
            for _ in 0..count {
                assert_eq!(client.send(&request).response().status, 200);
            }
        }
    };
    ask("b", 10, 1);
    assert_eq!(site.cluster.dispatcher().of("decided"), 9);
    ask("a", 2, 5);
    until("all are kept", || {
        (site.count("kept-requests") == 10).then_some(())
    });
    assert_eq!(site.cluster.dispatcher().of("decided"), 9);
}
