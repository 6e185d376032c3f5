//! What policies see of requests and backends, and what they are bound to.

use std::collections::HashSet;
use std::net::SocketAddr;

use super::*;
use crate::route::Asked;

pub(super) fn subject(path: &str) -> Subject<'_> {
    Subject {
        host: "a.example",
        path: path.as_bytes(),
        method: "GET",
        ..Subject::unknown(SocketAddr::from(([192, 0, 2, 1], 4000)))
    }
}

/// Dispatchers of different versions work side by side: this never changes.
#[test]
fn hashes_are_the_same_in_every_version() {
    assert_eq!(subject("/").url_hash(), 7_033_962_182_377_538_904);
}

#[test]
fn the_url_is_host_path_and_query_else_the_clients_address() {
    let url = |host, path: &'static str, query: Option<&'static str>| {
        Subject {
            host,
            query: query.map(str::as_bytes),
            ..subject(path)
        }
        .url_hash()
    };
    let hashes: HashSet<u64> = [
        url("a", "/", None),
        url("b", "/", None),
        url("a", "/b", None),
        url("a", "/", Some("")),
        url("a", "/", Some("b")),
        url("a", "", None),
        url("", "/", None),
    ]
    .into();
    assert_eq!(hashes.len(), 7);
    let unnamed = |client: &str| Subject::of(&Asked::H2Preface, client.parse().unwrap()).url_hash();
    assert_eq!(unnamed("192.0.2.1:1"), unnamed("192.0.2.1:2"));
    assert_ne!(unnamed("192.0.2.1:1"), unnamed("192.0.2.2:1"));
}

#[test]
fn classes_are_guessed_from_method_query_and_extension() {
    let class = |path| Class::guess(&subject(path));
    assert_eq!(class("/a/b.html"), Class::Static);
    assert_eq!(class("/a.php"), Class::Dynamic);
    assert_eq!(class("/a.PHP"), Class::Dynamic);
    assert_eq!(class("/a.php/b"), Class::Static);
    assert_eq!(class("/php"), Class::Static);
    assert_eq!(class("/"), Class::Static);
    let guess = |method, query| {
        Class::guess(&Subject {
            method,
            query,
            ..subject("/a")
        })
    };
    assert_eq!(guess("GET", Some(&b"x"[..])), Class::Dynamic);
    assert_eq!(guess("POST", None), Class::Dynamic);
    assert_eq!(guess("HEAD", None), Class::Static);
}

#[test]
fn kinds_follow_extension_first_segment_and_class() {
    let kind = |path| Request::of(&subject(path), None).kind;
    assert_eq!(kind("/a/b.png"), kind("/c.png"));
    assert_ne!(kind("/a/b.png"), kind("/a/b.html"));
    assert_eq!(kind("/api/1"), kind("/api/2"));
    assert_ne!(kind("/api/1"), kind("/pages/1"));
    let cpu = Request::of(&subject("/a.png"), Some(Class::CpuBound));
    assert_ne!(cpu.kind, kind("/a.png"));
}

#[test]
fn open_backends_come_first_and_ids_find_them() {
    let backends = Backends::new([
        candidate(3, 0),
        candidate(5, 2),
        Candidate {
            draining: true,
            ..candidate(1, 4)
        },
        candidate(0, 1),
        candidate(5, 9),
    ]);
    let ids = |list: &[Candidate]| list.iter().map(|c| c.id.0).collect::<Vec<_>>();
    assert_eq!(ids(backends.open()), [5, 0]);
    assert_eq!(ids(backends.all()), [5, 0, 3, 1]);
    assert_eq!(backends.weight_total(), 3);
    for (at, c) in backends.all().iter().enumerate() {
        assert_eq!(backends.position(c.id), Some(at));
    }
    assert!(backends.get(BackendId(2)).is_none() && backends.get(BackendId(999)).is_none());
    assert!(backends.get_open(BackendId(1)).is_none() && backends.get(BackendId(1)).is_some());
}

#[test]
fn the_fingerprint_is_of_the_open_set_and_its_weights() {
    let print = |candidates: &[Candidate]| Backends::new(candidates.iter().copied()).fingerprint();
    let (a, b, c) = (candidate(0, 1), candidate(1, 1), candidate(2, 0));
    assert_eq!(print(&[a, b]), print(&[b, a]));
    assert_eq!(print(&[a, b]), print(&[a, b, c]));
    let busy = Candidate {
        outstanding: 9,
        cost_us: 9,
        ..b
    };
    assert_eq!(print(&[a, b]), print(&[a, busy]));
    let different = [print(&[]), print(&[a]), print(&[b]), print(&[a, b])];
    assert_eq!(HashSet::from(different).len(), 4);
    assert_ne!(print(&[a, b]), print(&[a, candidate(1, 2)]));
}

#[test]
fn what_is_bound_stays_while_it_can() {
    let draining = Candidate {
        draining: true,
        ..candidate(1, 1)
    };
    let to = |id| Request {
        bound: Some(Bound::To(BackendId(id))),
        ..static_file(0)
    };
    let backends = Backends::new([candidate(0, 1), draining, candidate(2, 0)]);
    for id in 0..3 {
        assert_eq!(bound(&to(id), &backends), Some(BackendId(id)));
    }
    assert_eq!(bound(&to(3), &backends), None);

    let key = |key| Request {
        bound: Some(Bound::Key(key)),
        ..static_file(0)
    };
    let before = with_weights(&[1, 1, 1]);
    for k in 0..1000 {
        let was = bound(&key(k), &before).unwrap();
        // Draining moves none; weight 0 moves those of that backend alone.
        let backends = Backends::new([candidate(0, 1), draining, candidate(2, 1)]);
        assert_eq!(bound(&key(k), &backends), Some(was));
        let is = bound(&key(k), &with_weights(&[1, 0, 1])).unwrap();
        assert!(is == was || was.0 == 1);
    }
}

#[test]
fn costs_are_learnt_by_kind_and_shared_times_divided() {
    let mut costs = CostModel::default();
    let picture = Request::of(&subject("/a.png"), None);
    let page = Request::of(&subject("/a.html"), None);
    assert_eq!(costs.estimate(&picture), 1000);
    costs.learn(&finished(picture, BackendId(0)));
    // 3 ms, two at once.
    assert_eq!(costs.estimate(&picture), 1500);
    assert_eq!(costs.estimate(&page), 1500, "as all others, until known");
    costs.learn(&Finished {
        elapsed: Duration::from_millis(20),
        shared: 0.0,
        ..finished(page, BackendId(0))
    });
    assert_eq!(costs.estimate(&page), 20_000);
    assert_eq!(costs.estimate(&picture), 1500);
    for _ in 0..1000 {
        costs.learn(&Finished {
            elapsed: Duration::from_millis(40),
            shared: 4.0,
            ..finished(page, BackendId(0))
        });
    }
    assert!(costs.estimate(&page).abs_diff(10_000) < 10);
}
