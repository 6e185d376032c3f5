//! Requests that wait for the owner of the one before: for as long as that answers, and no
//! longer than it takes to know that it is another connection's word that keeps them
//! (docs/protocol/handoff.md 5).

use std::time::Duration;

use trapeze_lab::Process;
use trapeze_tests::{Cluster, Connection, VIP, same, until};

/// `/1k` is b2's, all else b1's; nobody has much patience.
const TWO: &str = "[[pool]]\nname = \"first\"\nbackends = [\"b1\"]\n\
                   [[pool]]\nname = \"second\"\nbackends = [\"b2\"]\n\
                   [[service]]\nname = \"site\"\naddress = \"10.77.0.100:80\"\npool = \"first\"\n\
                   [[service.rule]]\npath_prefix = \"/1k\"\npool = \"second\"\n\
                   [limits]\nhead_timeout = \"1s\"\n";

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n")
}

/// A client that reads slowly is still answered by whom the policy names.
#[test]
fn a_request_waits_for_as_long_as_the_one_before_is_answered() {
    let cluster = Cluster::configured("patience", 2, TWO, |_| {});
    let documents = ["10m", "1k"].map(|name| cluster.document(name));
    cluster.on("c1", || {
        let mut client = Connection::open();
        // The last one waits for b2, that for b1, and b1 for its client.
        client.send([get("/10m"), get("/1k"), get("/10m"), get("/1k")].concat());
        std::thread::sleep(Duration::from_secs(8));
        for (document, backend) in [(0, "b1"), (1, "b2"), (0, "b1"), (1, "b2")] {
            let answer = client.response();
            assert_eq!(answer.ok(), backend);
            same(&answer.body, &documents[document]);
        }
    });
}

#[test]
fn a_next_request_whose_head_does_not_come_is_told_so() {
    let cluster = Cluster::configured("slow-head", 2, TWO, |_| {});
    cluster.on("c1", || {
        let slow = || {
            let mut client = Connection::open();
            assert_eq!(client.ask("/10k").ok(), "b1");
            client.send(&get("/1k")[..20]);
            client
        };
        let mut client = slow();
        std::thread::sleep(Duration::from_secs(2));
        let answer = client.response();
        assert_eq!(answer.status, 408, "{}", answer.head);
        client.expect_end();
        // In time it is a request like others.
        let mut client = slow();
        std::thread::sleep(Duration::from_millis(400));
        client.send(&get("/1k")[20..]);
        assert_eq!(client.response().ok(), "b2");
    });
}

/// What an owner says of an earlier connection of the 4-tuple, which its server has closed,
/// says nothing of the new one.
#[test]
fn a_request_right_behind_the_first_one_is_not_its_owners_because_a_port_is_used_again() {
    let cluster = Cluster::configured("port-again", 2, TWO, |_| {});
    let ports = 20_000..20_020;
    let connect = |port| Connection::try_to(VIP, port).expect("the port is free");
    let idle: Vec<_> = cluster.on("c1", || {
        let ask = |port| {
            let mut client = connect(port);
            assert_eq!(client.ask("/10k").ok(), "b1");
            client
        };
        ports.clone().map(ask).collect()
    });
    // A server that reads its configuration again closes what is idle.
    let status = cluster.status().unwrap();
    let server = &status.host("b1").unwrap().processes[&Process::Server];
    let pid = server.pid.expect("it runs").to_string();
    cluster.run("b1", &["kill", "-HUP", &pid]);
    until("they are nobody's", || {
        (cluster.daemon().counters.get("vacated") == Some(&20)).then_some(())
    });
    idle.into_iter().for_each(Connection::abort);
    cluster.on("c1", || {
        for port in ports {
            let mut client = connect(port);
            client.send(get("/10k") + &get("/1k"));
            assert_eq!(client.response().ok(), "b1", "{port}");
            assert_eq!(client.response().ok(), "b2", "{port}");
            client.abort();
        }
    });
}

/// A pool may go while requests wait for their turn at its backends.
#[test]
fn a_pool_is_removed_while_requests_wait_for_it() {
    let other = "[[pool]]\nname = \"other\"\nbackends = [\"b2\"]\n";
    let gone = "[[pool]]\nname = \"gone\"\nbackends = [\"b1\"]\n";
    let service = "[[service]]\nname = \"site\"\naddress = \"10.77.0.100:80\"\npool = \"other\"\n";
    let rule = "[[service.rule]]\npath_prefix = \"/10m\"\npool = \"gone\"\n";
    let text = [other, gone, service, rule].concat();
    let cluster = Cluster::configured("pool-gone", 2, &text, |_| {});
    cluster.on("c1", || {
        let mut client = Connection::open();
        // Too much for the client's buffer: the last one waits for b2, and b2 for b1.
        client.send([get("/10m"), get("/1k"), get("/10m")].concat());
        std::thread::sleep(Duration::from_millis(300));
        let config = cluster.config();
        let at = |text: &str| config.find(text).expect(text);
        let gone = config[..at("name = \"gone\"")].rfind("[[pool]]").unwrap();
        let without = [
            &config[..gone],
            &config[at("[[service]]")..at("[[service.rule]]")],
        ];
        cluster.reload("d1", Process::Dispatch, &without.concat());
        for backend in ["b1", "b2", "b1"] {
            assert_eq!(client.response().ok(), backend);
        }
        assert_eq!(Connection::open().ask("/10m").ok(), "b2");
    });
}
