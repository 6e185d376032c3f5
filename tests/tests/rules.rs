//! Content rules choose the pool, and policies the backend.

use std::collections::BTreeMap;

use socket2::SockRef;
use trapeze_tests::site::{pools, rule, service};
use trapeze_tests::{Cluster, Connection, until};

/// Each pool is one backend.
fn rules() -> String {
    let rules = [
        rule(r#"host = "img.example""#, "images"),
        rule(r#"host = "*.img.example""#, "images"),
        rule(r#"path = "/exact""#, "api"),
        rule(r#"path_prefix = "/api""#, "api"),
        rule(r#"method = "DELETE""#, "api"),
        rule(r#"header = { name = "X-Canary", value = "yes" }"#, "images"),
        rule(r#"header = { name = "X-Any" }"#, "api"),
    ];
    pools(&[("web", "b1"), ("images", "b2"), ("api", "b3")]) + &service(80) + &rules.concat()
}

/// The backend that gets this request.
fn backend(request: &str) -> String {
    let mut client = Connection::open();
    client.send(request);
    client.response().backend().to_owned()
}

fn get(path: &str) -> String {
    backend(&format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"))
}

/// How many of so many connections each backend gets.
fn shares(count: usize, path: impl Fn(usize) -> String) -> BTreeMap<String, usize> {
    let mut shares = BTreeMap::new();
    for number in 0..count {
        *shares.entry(get(&path(number))).or_default() += 1;
    }
    shares
}

fn pool(policy: &str, backends: &str) -> String {
    format!(
        "[[pool]]\nname = \"web\"\npolicy = \"{policy}\"\nbackends = [{backends}]\n\
         [[service]]\nname = \"site\"\naddress = \"10.77.0.100:80\"\npool = \"web\"\n"
    )
}

fn expected(shares: &[(&str, usize)]) -> BTreeMap<String, usize> {
    shares
        .iter()
        .map(|&(name, count)| (name.to_owned(), count))
        .collect()
}

#[test]
fn the_first_rule_that_matches_decides() {
    let cluster = Cluster::configured("rules", 3, &rules(), |_| {});
    cluster.on("c1", || {
        for (request, wanted) in [
            ("GET /1k HTTP/1.1\r\nHost: other\r\n\r\n", "b1"),
            ("GET /1k HTTP/1.0\r\n\r\n", "b1"),
            ("GET /1k HTTP/1.1\r\nHost: img.example\r\n\r\n", "b2"),
            ("GET /1k HTTP/1.1\r\nhOST:  IMG.Example:80\r\n\r\n", "b2"),
            ("GET /1k HTTP/1.1\r\nHost: a.b.img.example\r\n\r\n", "b2"),
            ("GET /1k HTTP/1.1\r\nHost: aimg.example\r\n\r\n", "b1"),
            (
                "GET http://img.example/1k HTTP/1.1\r\nHost: other\r\n\r\n",
                "b2",
            ),
            ("GET /exact HTTP/1.1\r\nHost: a\r\n\r\n", "b3"),
            ("GET /exact?with=query HTTP/1.1\r\nHost: a\r\n\r\n", "b3"),
            ("GET /exact/ly HTTP/1.1\r\nHost: a\r\n\r\n", "b1"),
            ("GET /api HTTP/1.1\r\nHost: a\r\n\r\n", "b3"),
            ("GET /api/1k HTTP/1.1\r\nHost: a\r\n\r\n", "b3"),
            ("GET /apis HTTP/1.1\r\nHost: a\r\n\r\n", "b1"),
            ("DELETE /1k HTTP/1.1\r\nHost: a\r\n\r\n", "b3"),
            ("GET /1k HTTP/1.1\r\nHost: a\r\nx-canary: yes\r\n\r\n", "b2"),
            ("GET /1k HTTP/1.1\r\nHost: a\r\nX-Canary: no\r\n\r\n", "b1"),
            ("GET /1k HTTP/1.1\r\nHost: a\r\nX-Any:\r\n\r\n", "b3"),
            ("\r\nGET /api HTTP/1.1\nHost: a\n\n", "b3"),
        ] {
            assert_eq!(backend(request), wanted, "{request:?}");
        }
    });
}

#[test]
fn nowhere_to_go_is_404() {
    let text = rules().replacen("pool = \"web\"\n[[service.rule]]", "[[service.rule]]", 1);
    let cluster = Cluster::configured("nowhere", 3, &text, |_| {});
    cluster.on("c1", || {
        let mut client = Connection::open();
        assert_eq!(client.ask("/1k").status, 404);
        client.expect_end();
        assert_eq!(get("/api"), "b3");
    });
}

#[test]
fn round_robin_keeps_its_ratio_exactly() {
    let three = "\"b1\", { name = \"b2\", weight = 2 }, { name = \"b3\", weight = 3 }";
    let cluster = Cluster::configured("robin", 4, &pool("round-robin", three), |_| {});
    let shares = cluster.on("c1", || shares(60, |_| "/1k".into()));
    assert_eq!(shares, expected(&[("b1", 10), ("b2", 20), ("b3", 30)]));
}

#[test]
fn least_connections_goes_where_fewest_are_open() {
    let two = "\"b1\", \"b2\", { name = \"b3\", weight = 2 }";
    let cluster = Cluster::configured("least", 3, &pool("least-connections", two), |_| {});
    cluster.on("c1", || {
        let download = || {
            let mut client = Connection::open();
            // Little is sent, so that no host seems to be busier than another one.
            let socket = SockRef::from(client.stream());
            socket.set_recv_buffer_size(4096).unwrap();
            client.send("GET /100m HTTP/1.1\r\nHost: a\r\n\r\n");
            let head = client.try_response(false).unwrap();
            (head.backend().to_owned(), client)
        };
        let names = ["b1", "b2", "b3"];
        // The policy heeds processors, too, and now one host seems busier, now another.
        let mut held = until("all hosts are as busy, and have their shares", || {
            let held: Vec<_> = (0..12).map(|_| download()).collect();
            let count = |name| held.iter().filter(|(b, _)| b == name).count();
            if names.map(count) == [3, 3, 6] {
                return Some(held);
            }
            drop(held);
            until("the ends are noticed", || {
                let is_idle = |name| cluster.backend(name).active == 0;
                names.into_iter().all(is_idle).then_some(())
            });
            None
        });
        // Those of b1 end: it is the next to be asked.
        held.retain(|(backend, _)| backend != "b1");
        until("their ends are noticed", || {
            (cluster.backend("b1").active == 0).then_some(())
        });
        for _ in 0..3 {
            let (backend, client) = download();
            assert_eq!(backend, "b1");
            held.push((backend, client));
        }
    });
}

#[test]
fn the_same_url_goes_to_the_same_backend() {
    let cluster = Cluster::configured("hrw", 3, &pool("hrw", "\"b1\", \"b2\", \"b3\""), |_| {});
    cluster.on("c1", || {
        let url = |number: usize| format!("/1k?number={number}");
        let first: Vec<String> = (0..40).map(|n| get(&url(n))).collect();
        let again: Vec<String> = (0..40).map(|n| get(&url(n))).collect();
        assert_eq!(first, again);
        let shares = shares(90, url);
        assert!(
            shares.len() == 3 && shares.values().all(|&share| share > 10),
            "{shares:?}"
        );
        // One less: only its own URLs move.
        cluster.kill("b2", None).unwrap();
        trapeze_tests::until("it is missed", || {
            (cluster.backend("b2").state == "silent").then_some(())
        });
        for (number, before) in first.iter().enumerate() {
            let now = get(&url(number));
            assert!(
                now != "b2" && (before == "b2" || *before == now),
                "{number}: {before} {now}"
            );
        }
    });
}
