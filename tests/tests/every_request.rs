//! Every request its own server: a connection goes from backend to backend between
//! its requests, and nobody at its ends can tell.

use std::collections::BTreeSet;
use std::time::Duration;

use trapeze_core::config::PolicyKind;
use trapeze_lab::LinkSettings;
use trapeze_tests::numbered::{Answered, Numbered, check_logs};
use trapeze_tests::{Cluster, Connection, VIP, same, until};

/// Three backends that take turns, and log.
fn cluster(test: &str) -> Cluster {
    Cluster::with(test, |options| options.access_log = true)
}

fn backends(answered: &Answered) -> Vec<&str> {
    answered.values().map(String::as_str).collect()
}

#[test]
fn each_request_of_a_connection_goes_where_its_turn_is() {
    let cluster = cluster("turns");
    let numbered = Numbered::of(&cluster, &["1k", "10k"]);
    let answered = cluster.on("c1", || {
        let mut client = Connection::open();
        numbered.ask_each(&mut client, 0..30).unwrap()
    });
    let each = backends(&answered);
    for (number, backend) in each.iter().enumerate().skip(3) {
        assert_eq!(backend, &each[number - 3], "{each:?}");
    }
    assert_eq!(BTreeSet::from_iter(each).len(), 3);
    check_logs(&cluster, &answered);
}

#[test]
fn each_url_goes_to_its_own_backend_whatever_was_asked_before() {
    let cluster = Cluster::with("urls", |options| {
        options.policy = Some(PolicyKind::Hrw);
        options.access_log = true;
    });
    let path = |url: usize| format!("/1k?url={url}");
    cluster.on("c1", || {
        // A connection for each says who has what.
        let homes: Vec<String> = (0..12)
            .map(|url| Connection::open().ask(&path(url)).ok().to_owned())
            .collect();
        assert!(BTreeSet::from_iter(&homes).len() > 1, "{homes:?}");
        let mut client = Connection::open();
        for step in 0..120 {
            let url = step * 7 % homes.len();
            assert_eq!(client.ask(&path(url)).ok(), homes[url], "step {step}");
        }
    });
}

#[test]
fn requests_sent_at_once_are_answered_in_order_each_from_its_own() {
    let cluster = cluster("pipeline");
    let numbered = Numbered::of(&cluster, &["1k", "10k", "100k", "1m"]);
    let answered = cluster.on("c1", || {
        let mut client = Connection::open();
        let mut answered = numbered.pipeline(&mut client, 0..12).unwrap();
        answered.extend(numbered.ask_each(&mut client, 12..18).unwrap());
        answered.extend(numbered.pipeline(&mut client, 18..30).unwrap());
        answered
    });
    assert_eq!(BTreeSet::from_iter(backends(&answered)).len(), 3);
    check_logs(&cluster, &answered);
}

#[test]
fn bodies_of_every_framing_end_where_the_next_request_starts() {
    let cluster = cluster("bodies");
    let body: Vec<u8> = (0..200_000u32).map(|n| (n * 7) as u8).collect();
    let backends = cluster.on("c1", || {
        let mut client = Connection::open();
        let mut backends = BTreeSet::new();
        for round in 0..6 {
            // Four requests a round, so that each kind comes to each of three backends.
            client.ask("/1k").ok();
            client.ask("/1k").ok();
            client.send(format!(
                "PUT /upload/whole{round} HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n",
                body.len()
            ));
            client.send(&body);
            let response = client.response();
            assert_eq!(response.status, 201, "{}", response.head);
            backends.insert(response.backend().to_owned());
            let size = [1, 5_000, 70_000][round % 3];
            let body = &body[..body.len().min(size * 500)];
            client.send(format!(
                "PUT /upload/chunks{round} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
            ));
            let mut chunked = Vec::new();
            for chunk in body.chunks(size) {
                chunked.extend(format!("{:x};a=b\r\n", chunk.len()).bytes());
                chunked.extend(chunk);
                chunked.extend(b"\r\n");
            }
            chunked.extend(b"0\r\nTrailer: x\r\n\r\n");
            client.send(&chunked);
            let response = client.response();
            assert_eq!(response.status, 201, "{}", response.head);
            let stored = cluster.uploads(response.backend()).join(format!("chunks{round}"));
            same(&std::fs::read(stored).unwrap(), body);
        }
        for round in 0..6 {
            let stored = backends.iter().find_map(|backend| {
                std::fs::read(cluster.uploads(backend).join(format!("whole{round}"))).ok()
            });
            same(&stored.expect("a body that was taken"), &body);
        }
        backends
    });
    assert!(backends.len() > 1, "{backends:?}");
}

#[test]
fn a_head_has_no_body_to_wait_for() {
    let cluster = cluster("head");
    let document = cluster.document("10k");
    cluster.on("c1", || {
        let mut client = Connection::open();
        let mut seen = BTreeSet::new();
        for round in 0..12 {
            if round % 3 == 0 {
                client.send("HEAD /10k HTTP/1.1\r\nHost: a\r\n\r\n");
                let response = client.try_response(false).unwrap();
                assert_eq!(response.header("content-length"), Some("10240"));
                seen.insert(response.ok().to_owned());
            } else {
                let response = client.ask("/10k");
                same(&response.body, &document);
                seen.insert(response.ok().to_owned());
            }
        }
        assert_eq!(seen.len(), 3);
    });
}

/// How many requests each of twelve clients makes on bad links, at least: `REQUESTS`, for
/// those who want millions (docs/lab.md).
fn requests() -> u64 {
    std::env::var("REQUESTS").map_or(60, |text| text.parse().expect("REQUESTS is a number"))
}

/// Small ones mostly, so that there are many moves; each size comes.
const MIX: [&str; 48] = [
    "empty", "1k", "10k", "1k", "empty", "100k", "1k", "10k", "1k", "1k", "1m", "1k", "10k", "1k",
    "empty", "1k", "100k", "1k", "10k", "1k", "1k", "10k", "1k", "10m", "1k", "1k", "10k", "empty",
    "1k", "100k", "1k", "10k", "1k", "1k", "empty", "1k", "10k", "1k", "1k", "1k", "10k", "1k",
    "1k", "10k", "1k", "1k", "1k", "10k",
];

#[test]
fn nothing_is_lost_mixed_up_or_run_twice_on_bad_links() {
    visit_on_bad_links(&cluster("bad-links"));
}

#[test]
fn nor_is_it_where_the_default_policy_decides() {
    visit_on_bad_links(&Cluster::with("bad-links-rent", |options| {
        options.policy = Some(PolicyKind::Rent);
        options.access_log = true;
    }));
}

/// The network of [SPLITSTACK02 §V-B]. Each answer is still on its way when the next one begins, at
/// another backend, and each of them repeats its own.
#[test]
fn requests_sent_at_once_over_a_wan_are_all_answered() {
    let cluster = cluster("wan");
    let wan = LinkSettings {
        delay: Duration::from_micros(87_500),
        loss: 0.02,
        ..LinkSettings::default()
    };
    cluster.link("c1", &wan).unwrap();
    let numbered = Numbered::of(&cluster, &["10k", "10k", "1k", "10k", "empty"]);
    let (clients, connections, requests) = (80, 12, 7);
    let answered: Answered = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..clients)
            .map(|client| {
                let (numbered, cluster) = (&numbered, &cluster);
                let visit = move |connection: u64| {
                    let begin = (client * connections + connection) * requests;
                    let mut connection = Connection::open();
                    numbered.pipeline(&mut connection, begin..begin + requests)
                };
                let visits = move || -> Vec<_> { (0..connections).map(visit).collect() };
                scope.spawn(move || cluster.on("c1", visits))
            })
            .collect();
        (clients.into_iter())
            .flat_map(|client| client.join().unwrap())
            .flat_map(|visit| visit.expect("a connection that lasts"))
            .collect()
    });
    assert_eq!(answered.len() as u64, clients * connections * requests);
    check_logs(&cluster, &answered);
    assert!(cluster.agents().of("half-pipe") > 0);
}

fn visit_on_bad_links(cluster: &Cluster) {
    for (seed, host) in (1..).zip(["c1", "b1", "b2", "b3"]) {
        let link = LinkSettings {
            delay: Duration::from_millis(2),
            jitter: Duration::from_millis(1),
            loss: 0.01,
            duplicate: 0.02,
            reorder: 0.05,
            seed,
            ..LinkSettings::default()
        };
        cluster.link(host, &link).unwrap();
    }
    // A client may use its port again after a second, not a minute (RFC 6191).
    let reuse = || std::fs::write("/proc/sys/net/ipv4/tcp_tw_reuse", "1").unwrap();
    cluster.on("c1", reuse);
    let numbered = Numbered::of(cluster, &MIX);
    let each = requests().next_multiple_of(60);
    let answered: Answered = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..12u16)
            .map(|client| {
                let numbered = &numbered;
                scope.spawn(move || cluster.on("c1", || visit(numbered, client, each)))
            })
            .collect();
        let visits: Vec<_> = (clients.into_iter()).map(|client| client.join()).collect();
        if visits.iter().any(|visit| visit.is_err()) {
            eprintln!("{:#?}\n{:?}", cluster.daemon(), cluster.dispatcher());
            eprintln!("{:?}", cluster.agents());
            for flow in cluster.flows() {
                eprintln!("{flow:?}");
            }
        }
        visits
            .into_iter()
            .flat_map(|visit| visit.unwrap())
            .collect()
    });
    assert_eq!(answered.len() as u64, 12 * each);
    check_logs(cluster, &answered);
}

/// Connections of sixty requests, one after the other, from the same port; every other
/// one sends six requests at a time.
fn visit(numbered: &Numbered, client: u16, requests: u64) -> Answered {
    let first = u64::from(client) * 1_000_000_000;
    let mut all = Answered::new();
    for (number, begin) in (first..first + requests).step_by(60).enumerate() {
        let mut connection = until("its port is free again", || {
            Connection::try_to(VIP, 20_000 + client).ok()
        });
        let end = begin + 60;
        let answered = match (number + usize::from(client)) % 2 {
            0 => numbered.ask_each(&mut connection, begin..end),
            _ => (begin..end)
                .step_by(6)
                .try_fold(Answered::new(), |mut all, at| {
                    all.extend(numbered.pipeline(&mut connection, at..at + 6)?);
                    Ok(all)
                }),
        };
        all.extend(answered.expect("a connection that lasts"));
    }
    all
}
