//! A half-pipe's next owner begins where the one before it has ended, whatever comes once more meanwhile
//! (docs/protocol/handoff.md 6.7).

use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;

use trapeze_lab::{LinkSettings, Process};
use trapeze_tests::raw::RawClient;
use trapeze_tests::{Cluster, VIP, until};

const WAY: Duration = Duration::from_millis(100);

/// A request is so long that it goes to its owner by the data path, in one piece. The daemon has yet to read that the
/// flow was given up, and behind that the beginning of the request once more, which acknowledges less than was said.
#[test]
fn what_is_said_again_with_an_old_acknowledgement_starts_nothing() {
    let text = "[[pool]]\nname = \"web\"\nhandoff = \"half-pipe\"\nbackends = [\"b1\", \"b2\"]\n\
                [[service]]\nname = \"site\"\naddress = \"10.77.0.100:80\"\npool = \"web\"\n";
    let cluster = Cluster::configured("old-words", 2, text, |_| {});
    let client = Ipv4Addr::new(10, 77, 0, 200);
    cluster.lend_address("c1", &client.to_string());
    let link = LinkSettings {
        delay: WAY,
        ..LinkSettings::default()
    };
    for backend in ["b1", "b2"] {
        cluster.link(backend, &link).unwrap();
    }
    let document = cluster.document("10k");
    let first = "GET /10k HTTP/1.1\r\nHost: a\r\n\r\n".to_owned();
    let filling = "f".repeat(2000);
    let second = format!("GET /10k HTTP/1.1\r\nHost: a\r\nX-Filling: {filling}\r\n\r\n");
    let (beginning, rest) = second.as_bytes().split_at(350);
    let (rest, end) = rest.split_at(1000);
    cluster.on("c1", || {
        for port in 2000..2003 {
            let mut raw = RawClient::connect(SocketAddrV4::new(client, port), VIP);
            raw.send(0, first.as_bytes());
            raw.hear_until("the first answer", |raw| {
                raw.received().ends_with(&document)
            });
            let answer = raw.received().to_vec();
            // All but the first segment was lost.
            raw.lose_behind(1448);
            let mut at = first.len();
            for piece in [beginning, rest, end] {
                raw.send(at, piece);
                at += piece.len();
            }
            // Its owner is being asked to give the flow up.
            std::thread::sleep(WAY / 2);
            cluster.signal("d1", Process::Dispatch, "-STOP");
            std::thread::sleep(WAY * 2);
            let come = cluster.dispatcher().of("to-daemon");
            raw.send(first.len(), beginning);
            until("it is there", || {
                (cluster.dispatcher().of("to-daemon") > come).then_some(())
            });
            cluster.signal("d1", Process::Dispatch, "-CONT");
            let all = answer.len() + document.len();
            raw.receive_until("the second answer", |raw| {
                raw.received().len() > all && raw.received().ends_with(&document)
            });
            assert!(raw.received().starts_with(&answer), "nobody else's bytes");
            let behind = &raw.received()[answer.len()..];
            assert!(behind.starts_with(b"HTTP/1.1 200"), "in its place");
            let counters = cluster.daemon().counters;
            let late = counters.get("repeated-unheard").copied();
            assert_eq!(late, Some(u64::from(port - 1999)), "it has not gone on");
        }
    });
}
