//! What only split splice does: answers go from the server's host to the client, and what
//! its agent does not know of, by way of a dispatcher (docs/protocol/splice.md §8). What it
//! shares with splice is in splice.rs.

use std::io::{ErrorKind, Read};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;

use trapeze_datapath::abi::FlowState;
use trapeze_datapath::object;
use trapeze_lab::{LinkSettings, Process};
use trapeze_tests::raw::RawClient;
use trapeze_tests::{Cluster, Connection, Content, Splice, VIP, same, until};

fn slow() -> LinkSettings {
    LinkSettings {
        rate: Some(400_000_000),
        ..LinkSettings::default()
    }
}

/// What came by way of d1 to clients.
fn by_way_of_d1(cluster: &Cluster) -> u64 {
    cluster.dispatcher().of("spliced-to-client")
}

/// The rest of a body of which some has been read.
fn rest(client: &mut Connection, document: &[u8]) {
    let mut got = vec![0; document.len()];
    client
        .unread()
        .chain(client.stream())
        .read_exact(&mut got)
        .unwrap();
    same(&got, document);
}

/// Its daemon is killed: the data path goes on. Its data path is gone: dispatchers go on.
#[test]
fn a_download_outlives_the_agent_and_its_data_path() {
    let cluster = Splice::Split.cluster("splitlive", |options| options.backends = Some(1));
    cluster.link("c1", &slow()).unwrap();
    let (ten, one) = (cluster.document("10m"), cluster.document("1k"));
    let pins = object::pin_dir(&format!("lab-{}", cluster.name()), "b1");
    cluster.on("c1", || {
        let mut kept = Connection::open();
        same(&kept.ask("/1k").body, &one);
        let download = || {
            let mut client = Connection::open();
            client.send("GET /10m HTTP/1.1\r\nHost: a\r\n\r\n");
            client.try_response(false).unwrap();
            client
        };
        let mut client = download();
        cluster.kill("b1", Some(Process::Agent)).unwrap();
        same(&kept.ask("/1k").body, &one);
        rest(&mut client, &ten);
        same(&Connection::open().ask("/1k").body, &one);
        assert_eq!(by_way_of_d1(&cluster), 0, "all went directly");

        let mut client = download();
        std::fs::remove_file(pins.join("link_egress")).unwrap();
        rest(&mut client, &ten);
        same(&kept.ask("/1k").body, &one);
        same(&Connection::open().ask("/1k").body, &one);
        let by_way = by_way_of_d1(&cluster);
        assert!(by_way > 20, "{by_way}");

        let mut client = download();
        cluster.start("b1", Some(Process::Agent)).unwrap();
        rest(&mut client, &ten);
        same(&kept.ask("/1k").body, &one);
        let by_way = by_way_of_d1(&cluster);
        for _ in 0..10 {
            same(&Connection::open().ask("/1k").body, &one);
        }
        assert_eq!(by_way_of_d1(&cluster), by_way, "and again");
    });
}

#[test]
fn nothing_is_left_of_connections_that_end() {
    let cluster = Splice::Split.cluster("splitend", |options| options.backends = Some(1));
    let one = cluster.document("1k");
    cluster.on("c1", || {
        for round in 0..60 {
            let mut client = Connection::open();
            same(&client.ask("/1k").body, &one);
            match round % 3 {
                0 => client.abort(),
                1 => client.finish().expect_end(),
                _ => {
                    client.send("GET /10m HTTP/1.1\r\nHost: a\r\n\r\n");
                    client.try_response(false).unwrap();
                }
            }
        }
    });
    until("no flow is open", || {
        let closed = [FlowState::ClientFin, FlowState::Reset].map(|state| state as u32);
        let flows = cluster.flows();
        (flows.iter().all(|flow| closed.contains(&flow.state))).then_some(())
    });
    until("no socket stands", || {
        let words = ["ss", "-Htn", "exclude", "time-wait", "exclude", "listening"];
        cluster.run("b1", &words).is_empty().then_some(())
    });
    assert_eq!(cluster.agent_maps("b1").splits.all().unwrap(), []);
    let agent = cluster.agent("b1");
    assert_eq!(agent.of("split"), 60, "{agent:?}");
}

/// The server's reset is lost, and its client says nothing: d1 asks the server's host.
#[test]
fn a_silent_connection_whose_server_is_gone_ends() {
    let cluster = Splice::Split.cluster("splitlost", |options| options.backends = Some(1));
    let one = cluster.document("1k");
    cluster.on("c1", || {
        let mut client = Connection::open();
        same(&client.ask("/1k").body, &one);
        let cut = LinkSettings {
            loss: 1.0,
            ..LinkSettings::default()
        };
        cluster.link("b1", &cut).unwrap();
        cluster.kill("b1", Some(Process::Server)).unwrap();
        cluster.run("b1", &["ss", "-K", "sport", "=", ":80"]);
        cluster.link("b1", &LinkSettings::default()).unwrap();
        let error = client.rest().expect_err("no orderly end");
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    });
    until("its record has ended", || {
        let reset = FlowState::Reset as u32;
        let flows = cluster.flows();
        flows.iter().all(|flow| flow.state == reset).then_some(())
    });
    until("because the host has said so", || {
        let counters = cluster.daemon().counters;
        counters.contains_key("lost-by-backend").then_some(())
    });
}

/// What the dispatcher has acknowledged it sends again until the server's host says that it
/// is there: the server's own acknowledgements go past it.
#[test]
fn what_was_acknowledged_comes_to_the_server() {
    let cluster = Splice::Split.cluster("splithold", |options| options.backends = Some(1));
    // With more, heartbeats would be missed.
    let lossy = LinkSettings {
        loss: 0.05,
        ..LinkSettings::default()
    };
    cluster.link("b1", &lossy).unwrap();
    cluster.on("c1", || {
        std::thread::scope(|scope| {
            for round in 0..10 {
                let cluster = &cluster;
                scope.spawn(move || {
                    let body = Content::new(round, 3000).bytes();
                    let head = format!(
                        "PUT /upload/{round} HTTP/1.1\r\nHost: a\r\nX-Long: {}\r\n\
                         Content-Length: 3000\r\n\r\n",
                        "x".repeat(6000)
                    );
                    let mut client = Connection::open();
                    client.send_pieces(head, 700, Duration::from_millis(15));
                    let response = client.send(&body).response();
                    assert_eq!(response.status, 201, "{}", response.head);
                    let stored = cluster.uploads("b1").join(round.to_string());
                    same(&std::fs::read(stored).unwrap(), &body);
                });
            }
        });
    });
    until("the server's host has said so", || {
        let confirmed = cluster.daemon().counters.get("confirmed").copied();
        (confirmed >= Some(10)).then_some(())
    });
}

#[test]
fn one_pool_has_all_three() {
    let text = Cluster::nodes(3)
        .replace(
            "attach = \"tc\"",
            "attach = \"tc\"\nsplice_address = \"10.77.0.111\"",
        )
        .replace("name = \"b2\"", &Splice::Whole.of("name = \"b2\""))
        .replace("name = \"b3\"", &Splice::Split.of("name = \"b3\""))
        + "[[pool]]\nname = \"web\"\nbackends = [\"b1\", \"b2\", \"b3\"]\n\
           [[service]]\nname = \"site\"\naddress = \"10.77.0.100:80\"\npool = \"web\"\n";
    let cluster = Splice::Split.configured("splitmix", &text);
    let documents = ["1k", "100k", "1m"].map(|name| (name, cluster.document(name)));
    cluster.on("c1", || {
        let mut took = [0; 3];
        for round in 0..60 {
            let (name, document) = &documents[round / 3 % 3];
            let response = Connection::open().ask(&format!("/{name}"));
            same(&response.body, document);
            let number: usize = response.backend()[1..].parse().unwrap();
            took[number - 1] += 1;
        }
        assert_eq!(took, [20; 3], "they take turns");
    });
    assert_eq!(cluster.agent("b1").of("split"), 0);
    assert!(cluster.agent("b1").of("rebuilt") >= 20);
    assert!(by_way_of_d1(&cluster) > 20, "b2's");
    assert!(cluster.agent("b3").of("split") >= 20);
}

/// b1 and b2 are split, b3 is spliced, b4 rebuilds; the path says whose a request is.
fn by_path(test: &str, rest: &str) -> Cluster {
    let pool =
        |name: &str, host: &str| format!("[[pool]]\nname = \"{name}\"\nbackends = [\"{host}\"]\n");
    let rule = |path: &str, pool: &str| {
        format!("[[service.rule]]\npath = \"{path}\"\npool = \"{pool}\"\n")
    };
    let text = Cluster::nodes(4)
        .replace(
            "attach = \"tc\"",
            "attach = \"tc\"\nsplice_address = \"10.77.0.111\"",
        )
        .replace("name = \"b1\"", &Splice::Split.of("name = \"b1\""))
        .replace("name = \"b2\"", &Splice::Split.of("name = \"b2\""))
        .replace("name = \"b3\"", &Splice::Whole.of("name = \"b3\""))
        + &pool("web", "b1")
        + &pool("large", "b2")
        + &pool("whole", "b3")
        + &pool("made", "b4")
        + "[[service]]\nname = \"site\"\naddress = \"10.77.0.100:80\"\npool = \"web\"\n"
        + &rule("/100k", "large")
        + &rule("/1m", "whole")
        + &rule("/10k", "made")
        + rest;
    Splice::Split.configured(test, &text)
}

/// A connection's requests go where they belong.
#[test]
fn each_request_goes_where_it_belongs() {
    let cluster = by_path("splitmove", "");
    let documents = ["1k", "100k", "10k", "1m"].map(|name| (name, cluster.document(name)));
    let [small, large, made, whole] = &documents;
    let faults = LinkSettings {
        loss: 0.01,
        reorder: 0.01,
        duplicate: 0.01,
        ..LinkSettings::default()
    };
    for link in [LinkSettings::default(), faults] {
        cluster.link("c1", &link).unwrap();
        cluster.on("c1", || {
            let ask = |client: &mut Connection, (name, document): &(&str, Vec<u8>), host: &str| {
                let response = client.ask(&format!("/{name}"));
                assert_eq!(response.backend(), host, "{name}");
                same(&response.body, document);
            };
            for _ in 0..20 {
                let mut client = Connection::open();
                ask(&mut client, small, "b1");
                ask(&mut client, small, "b1");
                ask(&mut client, large, "b2");
                ask(&mut client, small, "b1");
                ask(&mut client, made, "b4");
                ask(&mut client, large, "b2");
                ask(&mut client, made, "b4");
                ask(&mut client, whole, "b3");
                ask(&mut client, small, "b1");
            }
            // What has come ahead waits for the answer before.
            let mut client = Connection::open();
            for (name, _) in [small, large, small, small, made, large] {
                client.send(format!("GET /{name} HTTP/1.1\r\nHost: a\r\n\r\n"));
            }
            for (_, document) in [small, large, small, small, made, large] {
                same(&client.response().body, document);
            }
            // Bodies, and answers without.
            let mut client = Connection::open();
            for round in 0..5 {
                let body = Content::new(round, 50_000).bytes();
                client.send(format!(
                    "PUT /upload/{round} HTTP/1.1\r\nHost: a\r\nContent-Length: 50000\r\n\r\n"
                ));
                let response = client.send(&body).response();
                let stored = cluster.uploads(response.backend()).join(round.to_string());
                same(&std::fs::read(stored).unwrap(), &body);
                ask(&mut client, large, "b2");
                client.send("HEAD /100k HTTP/1.1\r\nHost: a\r\n\r\n");
                let response = client.try_response(false).unwrap();
                assert_eq!(response.backend(), "b2");
                ask(&mut client, large, "b2");
                ask(&mut client, small, "b1");
            }
        });
    }
    let agents = ["b1", "b2"].map(|name| cluster.agent(name));
    assert!(
        agents.iter().all(|agent| agent.of("given-up") >= 40),
        "{agents:?}"
    );
    let counters = cluster.daemon().counters;
    assert!(counters.get("drained") >= Some(&200), "{counters:?}");
}

/// A connection's later requests stay by a decision that stands, without a daemon; those that
/// go elsewhere, and connections' first ones, are the daemon's as before.
#[test]
fn requests_that_stay_need_no_daemon() {
    let cluster = by_path("splitstay", "");
    let [small, large] = ["1k", "100k"].map(|name| cluster.document(name));
    cluster.on("c1", || {
        let mut client = Connection::open();
        for round in 1..=3 {
            let stayed = cluster.dispatcher().of("stayed");
            for _ in 0..20 {
                let response = client.ask("/1k");
                assert_eq!(response.backend(), "b1");
                same(&response.body, &small);
            }
            let stayed = cluster.dispatcher().of("stayed") - stayed;
            assert!(stayed >= 18, "{stayed} in round {round}");
            // The owner is asked how it stands after so many: it has counted them as well.
            let response = client.ask("/100k");
            assert_eq!(response.backend(), "b2");
            same(&response.body, &large);
            let response = Connection::open().ask("/1k");
            assert_eq!(response.backend(), "b1");
        }
    });
    let agent = cluster.agent("b1");
    assert!(agent.of("given-up") >= 3, "{agent:?}");
}

#[test]
fn a_drained_backend_has_no_connection_left() {
    let cluster = Splice::Split.cluster("splitdrain", |options| options.backends = Some(2));
    let one = cluster.document("1k");
    cluster.on("c1", || {
        let mut clients: Vec<_> = (0..10).map(|_| Connection::open()).collect();
        for client in &mut clients {
            same(&client.ask("/1k").body, &one);
        }
        let drained = cluster.trapeze("d1", &["drain", "b1", "--deadline", "20s"]);
        assert!(drained.status.success(), "{drained:?}");
        assert_eq!(cluster.backend("b1").active, 0);
        let words = ["ss", "-Htn", "state", "established", "sport", "=", ":80"];
        assert_eq!(cluster.run("b1", &words), "");
        for client in &mut clients {
            let response = client.ask("/1k");
            assert_eq!(response.backend(), "b2");
            same(&response.body, &one);
        }
    });
}

/// A client that repeats a request along with its next one: what lies before the boundary goes
/// the connection's own way. Otherwise the backend would run it once more, on a second connection.
#[test]
fn a_request_repeated_with_the_next_one_runs_once() {
    let cluster = Splice::Split.cluster("splitrepeat", |options| options.backends = Some(1));
    let client = Ipv4Addr::new(10, 77, 0, 200);
    cluster.lend_address("c1", &client.to_string());
    let documents = ["1k", "10k"].map(|name| cluster.document(name));
    let [first, second] =
        ["/1k", "/10k"].map(|path| format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
    cluster.on("c1", || {
        let mut raw = RawClient::connect(SocketAddrV4::new(client, 2000), VIP);
        let answered = |raw: &mut RawClient, document: &[u8]| {
            raw.receive_until("its answer", |raw| raw.received().ends_with(document));
        };
        raw.send(0, first.as_bytes());
        answered(&mut raw, &documents[0]);
        raw.send(0, (first + &second).as_bytes());
        answered(&mut raw, &documents[1]);
    });
    let agents = cluster.agents();
    assert_eq!(agents.of("rebuilt"), 0, "{agents:?}");
}
