//! First requests that are placed in the data path, by decisions that stand.

use std::collections::BTreeMap;

use trapeze_lab::Process;
use trapeze_tests::{Cluster, Connection, Counts, until};

fn site(policy: &str, backends: &str) -> String {
    format!(
        "[[pool]]\nname = \"web\"\npolicy = \"{policy}\"\nbackends = [{backends}]\n\
         [[service]]\nname = \"site\"\naddress = \"10.77.0.100:80\"\npool = \"web\"\n"
    )
}

fn backend_of(path: &str) -> String {
    Connection::open().ask(path).backend().to_owned()
}

fn shares(cluster: &Cluster, count: usize, path: &str) -> BTreeMap<String, usize> {
    let mut shares = BTreeMap::new();
    cluster.on("c1", || {
        for _ in 0..count {
            *shares.entry(backend_of(path)).or_default() += 1;
        }
    });
    shares
}

#[test]
fn turns_are_exact_though_two_take_them() {
    let weights = r#"{ name = "b1", weight = 3 }, { name = "b2", weight = 1 }, "b3""#;
    let cluster = Cluster::configured("turns", 3, &site("round-robin", weights), |_| {});
    // The daemon places the first of each path, the data path the rest.
    let mut shares = BTreeMap::new();
    cluster.on("c1", || {
        for number in 0..100 {
            let path = format!("/1k?{}", number / 5);
            *shares.entry(backend_of(&path)).or_insert(0) += 1;
        }
    });
    let expected = [("b1", 60), ("b2", 20), ("b3", 20)];
    assert_eq!(
        shares,
        expected.map(|(name, n)| (name.to_owned(), n)).into()
    );
    let d1 = cluster.dispatcher();
    assert_eq!((d1.of("to-daemon"), d1.of("decided")), (20, 80), "{d1:?}");
    assert_eq!(cluster.agents().of("rebuilt"), 100);
}

#[test]
fn a_url_stays_with_its_backend() {
    for policy in ["hrw", "maglev"] {
        let site = site(policy, r#""b1", "b2", "b3""#);
        let cluster = Cluster::configured("urls", 3, &site, |_| {});
        for path in ["/1k", "/1k?a", "/1k?b", "/10k"] {
            assert_eq!(shares(&cluster, 10, path).len(), 1, "{policy}: {path}");
        }
        assert_eq!(cluster.dispatcher().of("decided"), 36, "{policy}");
    }
}

#[test]
fn a_policy_that_looks_at_loads_is_asked_each_time() {
    let site = site("least-connections", r#""b1", "b2""#);
    let cluster = Cluster::configured("asked", 2, &site, |_| {});
    shares(&cluster, 10, "/1k");
    assert_eq!(cluster.dispatcher().of("decided"), 0);
}

/// The policy of a pool that says nothing: it looks at loads, and is asked for what it
/// is not sure of.
#[test]
fn what_the_default_policy_calls_settled_stands() {
    let site = site("rent", r#""b1", "b2""#).replace("policy = \"rent\"\n", "");
    let cluster = Cluster::configured("settled", 2, &site, |_| {});
    until("answers have told where it is", || {
        shares(&cluster, 5, "/1k");
        (cluster.dispatcher().of("decided") > 0).then_some(())
    });
    let before = cluster.dispatcher();
    shares(&cluster, 200, "/1k");
    let after = cluster.dispatcher();
    let [asked, decided] = ["to-daemon", "decided"].map(|of| after.of(of) - before.of(of));
    assert_eq!(asked + decided, 200);
    // One every two seconds, and what comes before its answer.
    assert!(decided >= 150, "{decided} of 200");
    assert_eq!(cluster.agents().of("refused"), 0);
}

/// So it does for the later requests of a connection, wherever they go; and all that
/// they are charged is taken back.
#[test]
fn what_is_settled_stands_for_later_requests() {
    let site = site("rent", r#""b1", "b2""#);
    let cluster = Cluster::configured("later", 2, &site, |_| {});
    until("answers have told where it is", || {
        shares(&cluster, 5, "/1k");
        (cluster.dispatcher().of("decided") > 0).then_some(())
    });
    let before = cluster.dispatcher();
    cluster.on("c1", || {
        let mut client = Connection::open();
        for number in 0..200 {
            client.ask(["/1k", "/10k"][number / 8 % 2]).ok();
        }
        client.finish().expect_end();
    });
    let after = cluster.dispatcher();
    let placed = |counts: &Counts| ["decided", "stayed", "moved"].map(|of| counts.of(of));
    let placed = [&before, &after].map(|counts| placed(counts).iter().sum::<u64>());
    let later = placed[1] - placed[0];
    assert!((100..=200).contains(&later), "{later} of 200");
    let loads = || [0, 1].map(|slot| cluster.dispatcher_maps().loads.get(&slot).unwrap().unwrap());
    assert_eq!(
        loads().map(|load| load.stood).iter().sum::<u64>(),
        placed[1]
    );
    until("nothing is left of the charges", || {
        (loads().iter().all(|load| load.cost_us == 0)).then_some(())
    });
}

#[test]
fn without_the_daemon_decisions_stand_for_a_while() {
    let site = site("round-robin", r#""b1", "b2""#);
    let cluster = Cluster::configured("alone", 2, &site, |_| {});
    shares(&cluster, 1, "/1k");
    cluster.kill("d1", Some(Process::Dispatch)).unwrap();
    let served = shares(&cluster, 20, "/1k");
    assert_eq!(served.values().sum::<usize>(), 20, "{served:?}");
    assert_eq!(served.len(), 2);
    cluster.start("d1", Some(Process::Dispatch)).unwrap();
    // A new daemon's decisions are its own.
    let before = cluster.dispatcher();
    shares(&cluster, 5, "/1k");
    let after = cluster.dispatcher();
    assert_eq!(after.of("to-daemon") - before.of("to-daemon"), 1);
    assert_eq!(after.of("decided") - before.of("decided"), 4);
}

#[test]
fn no_decision_survives_a_reload() {
    let of = |name: &str| site("round-robin", &format!("\"{name}\""));
    let cluster = Cluster::configured("reloaded", 3, &of("b1"), |_| {});
    let nodes = cluster.config();
    let nodes = nodes.strip_suffix(&of("b1")).expect("the site comes last");
    for round in 0..30 {
        let name = ["b1", "b2", "b3"][round % 3];
        cluster.reload("d1", Process::Dispatch, &format!("{nodes}{}", of(name)));
        assert_eq!(shares(&cluster, 3, "/1k"), [(name.to_owned(), 3)].into());
    }
    assert!(cluster.dispatcher().of("decided") >= 60);
}

#[test]
fn a_backend_without_a_server_loses_its_turns() {
    let site = site("round-robin", r#""b1", "b2""#);
    let cluster = Cluster::configured("gone", 2, &site, |_| {});
    shares(&cluster, 4, "/1k");
    cluster.kill("b1", Some(Process::Server)).unwrap();
    until("it has no listener", || {
        let said = cluster.run("b1", &["ss", "-Htln"]);
        (!said.contains(":80 ")).then_some(())
    });
    // The first that is sent there comes back, and is served elsewhere.
    assert_eq!(shares(&cluster, 20, "/1k"), [("b2".to_owned(), 20)].into());
    cluster.start("b1", Some(Process::Server)).unwrap();
    until("it has turns again", || {
        (shares(&cluster, 2, "/1k").len() == 2).then_some(())
    });
}
