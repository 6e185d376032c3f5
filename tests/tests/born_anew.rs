//! Backends that have lost all they had and are back before anybody has missed them: what can be saved is, and
//! the rest hears so at once (docs/protocol/encapsulation.md 6.6b).

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;

use trapeze_lab::Process;
use trapeze_tests::raw::RawClient;
use trapeze_tests::saved::{Download, MIB, Site, put};
use trapeze_tests::{Connection, Content, VIP, same, until};

/// A site whose backends are not missed for a second and a half: longer than a host here takes to come up.
fn unnoticed(site: Site) -> Site {
    let config = site.cluster.config() + "[limits]\nheartbeat = \"400ms\"\n";
    site.cluster.reload("d1", Process::Dispatch, &config);
    site
}

/// Its power fails, and it is back at once.
fn flicker(site: &Site, backend: &str) {
    site.cluster.kill(backend, None).unwrap();
    site.cluster.start(backend, None).unwrap();
}

/// Young ones and older ones: a host that has come up remembers neither.
#[test]
fn downloads_of_a_backend_that_is_back_at_once_go_on_elsewhere() {
    let site = unnoticed(Site::up("anew-power", 3));
    let mut downloads: Vec<Download> = Vec::new();
    for pause in [Duration::from_millis(2500), Duration::from_millis(500)] {
        let begun = downloads.len();
        downloads.extend((0..6).map(|_| site.start()));
        for download in &mut downloads[begun..] {
            download.read(2 * MIB).unwrap();
        }
        // Hosts take connections for lost by their age.
        std::thread::sleep(pause);
    }
    site.await_protection(12);
    flicker(&site, "b1");
    for download in &mut downloads {
        download.finish().unwrap();
        same(&download.body, &site.large);
    }
    site.await_taken(4);
    assert_eq!(site.count("came-up-anew"), 1);
    assert_eq!(site.count("not-taken-over"), 0);
    let changes = site.cluster.backend("b1").history;
    assert!(changes.iter().any(|change| change.to == "silent"));
}

/// What is not protected ends, and its client is told; what owes nothing goes on.
#[test]
fn other_connections_of_a_backend_that_is_back_at_once_end_at_once() {
    let site = unnoticed(Site::with("anew-others", 1, ""));
    let mut idle = site.cluster.on("c1", Connection::open);
    idle.ask("/1k");
    // It is known that nothing is owed.
    std::thread::sleep(Duration::from_secs(3));
    let mut downloads = [site.start(), site.start()];
    for download in &mut downloads {
        download.read(2 * MIB).unwrap();
    }
    flicker(&site, "b1");
    for download in &mut downloads {
        let error = download.finish().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
        same(&download.body, &site.large[..download.body.len()]);
    }
    until("they are counted", || {
        (site.count("came-up-anew") == 1 && site.count("lost-with-backend") == 2).then_some(())
    });
    assert_eq!(idle.ask("/1k").status, 200);
}

/// Nobody else is there: it proves that it has the same object as any other one would.
#[test]
fn the_only_backend_goes_on_with_its_downloads_once_it_is_back() {
    let site = unnoticed(Site::up("anew-itself", 1));
    let others = [Duration::ZERO, Duration::from_secs(3)];
    for (round, away) in (1..).zip(others) {
        let mut downloads = [site.start(), site.start(), site.start()];
        for download in &mut downloads {
            download.read(2 * MIB).unwrap();
        }
        site.await_protection(3);
        site.cluster.kill("b1", None).unwrap();
        std::thread::sleep(away);
        site.cluster.start("b1", None).unwrap();
        for download in &mut downloads {
            download.finish().unwrap();
            same(&download.body, &site.large);
        }
        site.await_taken(3 * round);
        assert_eq!(downloads[0].ask(), "b1");
        drop(downloads);
        until("nothing is protected", || {
            (site.cluster.daemon().protected_answers == 0).then_some(())
        });
    }
    assert_eq!(site.count("not-taken-over"), 0);
}

/// Its host is another one's by now, as far as anybody can tell.
#[test]
fn the_only_backend_does_not_go_on_with_another_object() {
    let site = unnoticed(Site::up("anew-changed", 1));
    let mut download = site.start();
    download.read(2 * MIB).unwrap();
    site.await_protection(1);
    site.cluster.kill("b1", None).unwrap();
    let other = Content::new(8, site.large.len() as u64).bytes();
    put(site.root.path(), "large", &other);
    site.cluster.start("b1", None).unwrap();
    let error = download.finish().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
    same(&download.body, &site.large[..download.body.len()]);
    until("it is counted", || {
        let counts = (site.count("not-same"), site.count("not-taken-over"));
        (counts == (1, 1)).then_some(())
    });
}

/// It may have run on a host that has lost its power, which nobody remembers.
#[test]
fn a_request_that_is_repeated_does_not_run_twice() {
    let site = unnoticed(Site::with("anew-repeated", 2, ""));
    let address = Ipv4Addr::new(10, 77, 0, 200);
    site.cluster.lend_address("c1", &address.to_string());
    let post = b"POST /upload HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nok";
    let get = b"GET /1k HTTP/1.1\r\nHost: a\r\n\r\n";
    site.cluster.kill("b1", None).unwrap();
    site.cluster.on("c1", || {
        let mut clients: Vec<_> = (2000..2004)
            .map(|port| RawClient::connect(SocketAddrV4::new(address, port), VIP))
            .collect();
        for (client, request) in clients.iter_mut().zip([&post[..], post, get, get]) {
            client.send(0, request);
        }
        site.cluster.start("b1", None).unwrap();
        // It has forgotten where that is, too.
        site.cluster.lend_address("c1", &address.to_string());
        until("it is known", || {
            (site.count("came-up-anew") == 1).then_some(())
        });
        // The data path is told a moment later.
        std::thread::sleep(Duration::from_millis(200));
        for (client, request) in clients.iter_mut().zip([&post[..], post, get, get]) {
            client.send(0, request);
        }
        let mut statuses = Vec::new();
        for client in &mut clients {
            client.receive_until("an answer", |client| client.received().len() > 12);
            statuses.push(String::from_utf8_lossy(&client.received()[9..12]).into_owned());
        }
        statuses[..2].sort();
        assert_eq!(statuses[1..], ["504", "200", "200"], "{statuses:?}");
        assert_eq!(statuses[0].as_bytes()[0], b'2', "{statuses:?}");
    });
}

/// Its agent is stopped, which takes the data path away, and started again; it is not there for long enough to be
/// missed. Sockets of before stand as they were left.
fn restart_agent(site: &Site, backend: &str) {
    let status = site.cluster.status().unwrap();
    let agent = status.host(backend).unwrap().processes[&Process::Agent].pid;
    let agent = agent.expect("it runs").to_string();
    site.cluster.run(backend, &["kill", "-TERM", &agent]);
    until("it is missed", || {
        (site.cluster.backend(backend).state == "silent").then_some(())
    });
    site.cluster.start(backend, Some(Process::Agent)).unwrap();
    until("it is back", || {
        (site.cluster.backend(backend).state == "up").then_some(())
    });
}

/// The socket that has begun its answer would never say another byte.
#[test]
fn a_flow_that_comes_back_does_not_meet_the_socket_that_it_has_left() {
    for (test, backends) in [("anew-agent", 2), ("anew-agent-1", 1)] {
        let site = Site::up(test, backends);
        let mut download = site.start();
        download.read(2 * MIB).unwrap();
        site.await_protection(1);
        let owner = download.owner.clone();
        restart_agent(&site, &owner);
        download.finish().unwrap();
        same(&download.body, &site.large);
        site.await_taken(1);
        let by: Vec<String> = (0..4).map(|_| download.ask()).collect();
        assert!(by.contains(&owner), "{by:?}");
        assert_eq!(site.count("came-up-anew"), 0, "it is the same host");
    }
}
