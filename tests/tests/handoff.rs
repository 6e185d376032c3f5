//! A decision for each request: connections change hands between requests, and every
//! answer is the right one, from the backend that the policy names.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::process::{Command, Stdio};
use std::time::Duration;

use socket2::{Domain, Socket, Type};
use trapeze_core::wire::geneve;
use trapeze_core::wire::tcp::Flags;
use trapeze_datapath::packet_socket::{Batch, PacketSocket};
use trapeze_lab::{LinkSettings, Process, ServerKind};
use trapeze_tests::raw::RawClient;
use trapeze_tests::{
    Cluster, Connection, Content, Dice, PATIENCE, Raised, Response, Splice, VIP, same, until,
};

const BACKENDS: [&str; 3] = ["b1", "b2", "b3"];

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n")
}

/// How many answers each backend gave; they must have come in turns.
fn in_turns<'a>(answers: impl IntoIterator<Item = &'a str>) -> BTreeMap<String, usize> {
    let mut last = String::new();
    let mut counts = BTreeMap::new();
    for backend in answers {
        assert_ne!(backend, last, "round robin names another one each time");
        backend.clone_into(&mut last);
        *counts.entry(last.clone()).or_default() += 1;
    }
    counts
}

#[test]
fn every_request_of_a_connection_has_its_own_backend() {
    let cluster = Cluster::up("turns");
    let documents = ["1k", "10k", "100k", "1m"].map(|name| (name, cluster.document(name)));
    let before = (cluster.dispatcher(), cluster.agents());
    let requests = 300;
    cluster.on("c1", || {
        let mut client = Connection::open();
        let mut answers = Vec::new();
        let mut dice = Dice::new(1);
        for _ in 0..requests {
            let (name, expected) = &documents[dice.below(documents.len())];
            let response = client.ask(&format!("/{name}"));
            same(&response.body, expected);
            answers.push(response.ok().to_owned());
        }
        let counts = in_turns(answers.iter().map(String::as_str));
        assert_eq!(counts.into_values().collect::<Vec<_>>(), [requests / 3; 3]);
    });
    let d1 = cluster.dispatcher() - before.0;
    let agents = cluster.agents() - before.1;
    // Each document's first request asks the daemon, and no other.
    assert!(d1.of("to-daemon") <= 8, "{d1:?}");
    assert!(d1.of("moved") >= requests as u64 - 8, "{d1:?}");
    let taken = agents.of("rebuilt") + agents.of("resumed");
    assert_eq!(taken, requests as u64, "each runs once");
    assert!(agents.of("resumed") >= requests as u64 - 8, "{agents:?}");
    assert_eq!(agents.of("ghost") + agents.of("refused"), 0, "{agents:?}");
}

#[test]
fn heads_and_gets_may_follow_each_other() {
    let cluster = Cluster::up("heads-gets");
    let ten = cluster.document("10k");
    cluster.on("c1", || {
        let mut client = Connection::open();
        let mut dice = Dice::new(2);
        let answers: Vec<Response> = (0..100)
            .map(|_| {
                if dice.below(2) == 0 {
                    client.send("HEAD /10k HTTP/1.1\r\nHost: a\r\n\r\n");
                    return client.try_response(false).unwrap();
                }
                let response = client.ask("/10k");
                same(&response.body, &ten);
                response
            })
            .collect();
        in_turns(answers.iter().map(Response::ok));
    });
}

/// A HEAD stays with its backend, where there is no other, and is one all the same.
#[test]
fn a_head_for_the_same_backend_is_told_apart() {
    let cluster = Cluster::configured("same-head", 1, ONE, |_| {});
    let ten = cluster.document("10k");
    cluster.on("c1", || {
        let mut client = Connection::open();
        for round in 0..20 {
            if round % 3 == 0 {
                client.send("HEAD /10k HTTP/1.1\r\nHost: a\r\n\r\n");
                client.try_response(false).unwrap().ok();
            }
            let response = client.ask("/10k");
            same(&response.body, &ten);
        }
    });
}

const ONE: &str = "[[pool]]\nname = \"web\"\nbackends = [\"b1\"]\n\
                   [[service]]\nname = \"site\"\naddress = \"10.77.0.100:80\"\npool = \"web\"\n";

#[test]
fn pipelined_requests_are_cut_apart() {
    let cluster = Cluster::up("pipelined");
    let documents = ["1k", "1m", "10k", "100k"].map(|name| (name, cluster.document(name)));
    cluster.on("c1", || {
        let mut dice = Dice::new(3);
        for round in 0..12 {
            let asked: Vec<_> = (0..6).map(|_| &documents[dice.below(4)]).collect();
            let all: String = (asked.iter())
                .map(|(name, _)| get(&format!("/{name}")))
                .collect();
            let mut client = Connection::open();
            match round % 4 {
                0 => client.send(all),
                1 => client.send_pieces(all, 27, Duration::ZERO),
                2 => client.send_pieces(all, 13, Duration::from_millis(1)),
                _ => client.send_pieces(all, 41, Duration::from_millis(15)),
            };
            let answers: Vec<String> = (asked.iter())
                .map(|(_, expected)| {
                    let response = client.response();
                    same(&response.body, expected);
                    response.ok().to_owned()
                })
                .collect();
            in_turns(answers.iter().map(String::as_str));
        }
    });
}

/// A client that has asked ahead once may never do so again.
#[test]
fn who_asks_one_by_one_again_is_served_in_the_data_path_again() {
    let cluster = Cluster::up("forgiven");
    let (one, all) = (cluster.document("1k"), cluster.document("10m"));
    let asks_ahead = || {
        let mut client = Connection::open();
        client.send(get("/10m"));
        std::thread::sleep(Duration::from_millis(100));
        client.send(get("/1k"));
        for expected in [&all, &one] {
            same(&client.response().body, expected);
        }
        client
    };
    cluster.on("c1", || drop(asks_ahead()));
    let before = cluster.dispatcher();
    cluster.on("c1", || {
        let mut client = asks_ahead();
        for _ in 0..40 {
            same(&client.ask("/1k").body, &one);
        }
    });
    let d1 = cluster.dispatcher() - before;
    assert!(d1.of("to-daemon") <= 12, "{d1:?}");
    assert!(d1.of("moved") >= 30, "{d1:?}");
}

/// A client that uploads while it downloads takes no segment that acknowledges less than it
/// has heard by a window (RFC 5961 §5.2), and the older owner has heard nothing since.
#[test]
fn an_upload_may_overtake_the_answer_before_it() {
    let cluster = Cluster::up("overtake");
    let one = cluster.document("1m");
    let slow = LinkSettings {
        rate: Some(40_000_000),
        ..LinkSettings::default()
    };
    cluster.link("c1", &slow).unwrap();
    let body = Content::new(5, 400_000).bytes();
    cluster.on("c1", || {
        std::thread::scope(|scope| {
            for number in 0..4 {
                let (one, body) = (&one, &body);
                scope.spawn(move || {
                    let mut client = Connection::open();
                    let mut writer = client.stream().try_clone().unwrap();
                    std::thread::scope(|scope| {
                        // Who does not read meanwhile waits for who waits for that.
                        scope.spawn(move || {
                            for round in 0..3 {
                                let put = format!(
                                    "PUT /upload/overtaking-{number}-{round} HTTP/1.1\r\n\
                                     Host: a\r\nContent-Length: 400000\r\n\r\n"
                                );
                                writer.write_all(get("/1m").as_bytes()).unwrap();
                                writer.write_all(put.as_bytes()).unwrap();
                                writer.write_all(body).unwrap();
                            }
                        });
                        for _ in 0..3 {
                            same(&client.response().body, one);
                            assert_eq!(client.response().status, 201);
                        }
                    });
                });
            }
        });
    });
    for number in 0..4 {
        for round in 0..3 {
            let name = format!("overtaking-{number}-{round}");
            let found =
                (BACKENDS.iter()).find_map(|b| std::fs::read(cluster.uploads(b).join(&name)).ok());
            same(&found.expect("it is stored"), &body);
        }
    }
}

/// What has come of a body while its request moved leaves as long as the kernel's own segments, until the loopback
/// device, by which it goes, does not take it; then in pieces.
#[test]
fn what_was_held_of_a_body_goes_on_whole_or_in_pieces() {
    let cluster = Cluster::with("held", |options| options.server = ServerKind::Python);
    let count = |what: &str| (cluster.daemon().counters.get(what)).map_or(0, |count| *count);
    cluster.on("c1", || {
        let mut client = Connection::open();
        let mut put = |name: &str, size: u64| {
            let body = Content::new(size, size).bytes();
            let head =
                format!("PUT /upload/{name} HTTP/1.1\r\nHost: a\r\nContent-Length: {size}\r\n\r\n");
            client.send([head.as_bytes(), &body].concat());
            let response = client.response();
            assert_eq!(response.status, 201);
            let stored = cluster.uploads(response.backend()).join(name);
            same(&std::fs::read(stored).unwrap(), &body);
        };
        // From the second on each moves, and their client sends ever more at once.
        for (number, size) in [70_000, 1_000_000, 3_000_000].repeat(4).iter().enumerate() {
            put(&format!("whole-{number}"), *size);
        }
        // The daemon shows what it has counted five times a second.
        std::thread::sleep(Duration::from_millis(500));
        let whole = count("sent-long");
        assert!(whole > 8, "{whole}");
        assert_eq!(count("loopback-down"), 0);
        cluster.run("d1", &["ip", "link", "set", "lo", "down"]);
        for (number, size) in [70_000, 1_000_000].repeat(3).iter().enumerate() {
            put(&format!("cut-{number}"), *size);
        }
        until("one is not sent", || {
            (count("loopback-down") > 0).then_some(())
        });
        assert!(count("sent-long") < whole + 8);
    });
}

#[test]
fn bodies_end_where_their_framing_says() {
    let cluster = Cluster::with("framing", |options| options.server = ServerKind::Python);
    let one = cluster.document("1k");
    cluster.on("c1", || {
        let mut client = Connection::open();
        let mut dice = Dice::new(4);
        for (number, size) in [0, 1, 5000, 300_000, 2 << 20].into_iter().enumerate() {
            for chunked in [false, true] {
                let body = Content::new(number as u64, size as u64).bytes();
                let name = format!("body-{number}-{chunked}");
                let framing = match chunked {
                    true => "Transfer-Encoding: chunked".to_owned(),
                    false => format!("Content-Length: {size}"),
                };
                let head = format!("POST /upload/{name} HTTP/1.1\r\nHost: a\r\n{framing}\r\n\r\n");
                let mut bytes = head.into_bytes();
                if chunked {
                    let mut rest = &body[..];
                    while !rest.is_empty() {
                        let (piece, after) =
                            rest.split_at((1 + dice.below(40_000)).min(rest.len()));
                        bytes.extend(format!("{:x}\r\n", piece.len()).bytes());
                        bytes.extend(piece);
                        bytes.extend(b"\r\n");
                        rest = after;
                    }
                    bytes.extend(b"0\r\n\r\n");
                } else {
                    bytes.extend(&body);
                }
                // The next request right behind it, in the same packet perhaps.
                bytes.extend(get("/1k").bytes());
                client.send(&bytes);
                let response = client.response();
                assert_eq!(response.status, 201);
                let stored = cluster.uploads(response.backend()).join(&name);
                same(&std::fs::read(stored).unwrap(), &body);
                let next = client.response();
                same(&next.body, &one);
                assert_ne!(next.ok(), response.backend(), "{name}");
            }
        }
    });
}

#[test]
fn without_handoff_a_connection_keeps_its_backend() {
    let cluster = Cluster::kept("kept");
    cluster.on("c1", || {
        let mut client = Connection::open();
        let first = client.ask("/1k").ok().to_owned();
        for _ in 0..20 {
            assert_eq!(client.ask("/10k").ok(), first);
        }
    });
    assert_eq!(cluster.agents().of("rebuilt"), 1);
}

/// Behind its body nobody remembers that it has asked for that.
const CHUNKED_UPGRADE: &str = "GET /1k HTTP/1.1\r\nHost: a\r\nUpgrade: nothing\r\n\
    Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n";

/// As `curl --http2` and Java's client ask in each first request.
#[test]
fn a_refused_upgrade_leaves_a_connection_like_others() {
    let cluster = Cluster::up("refused-upgrades");
    let head = "GET /1k HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\n\
        Upgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n\r\n";
    let mut kept = cluster.on("c1", || {
        let mut client = Connection::open();
        // As its first request, and in its midst.
        for _ in 0..2 {
            client.send(head);
            let mut before = client.response().ok().to_owned();
            for _ in 0..9 {
                let owner = client.ask("/1k").ok().to_owned();
                assert_ne!(owner, before);
                before = owner;
            }
        }
        // Asked ahead of the answer: it stays, and nothing is lost.
        let mut ahead = Connection::open();
        ahead.send(format!("{head}GET /10k HTTP/1.1\r\nHost: a\r\n\r\n"));
        let owner = ahead.response().ok().to_owned();
        assert_eq!(ahead.response().ok(), owner);
        assert!((0..9).any(|_| client.send(head).response().ok() == "b1"));
        client
    });
    // Idle behind it, it is taken from its owner as any other.
    let drained = cluster.trapeze("d1", &["drain", "b1"]);
    assert!(drained.status.success(), "{drained:?}");
    cluster.on("c1", || assert_ne!(kept.ask("/1k").ok(), "b1"));
}

#[test]
fn what_cannot_be_followed_stays_where_it_is() {
    let cluster = Cluster::up("tunnels");
    cluster.on("c1", || {
        for head in [
            CHUNKED_UPGRADE,
            "GET /1k HTTP/1.1\r\nHost: a\r\nX: y\r\n z\r\n\r\n",
        ] {
            let mut client = Connection::open();
            client.ask("/1k");
            client.send(head);
            let Ok(response) = client.try_response(true) else {
                continue;
            };
            if response.status != 200 {
                continue;
            }
            let backend = response.backend().to_owned();
            for _ in 0..10 {
                assert_eq!(client.ask("/1k").ok(), backend);
            }
        }
    });
}

/// Loss, repetition and reordering on the client's way, under connections that move with
/// every request.
#[test]
fn moves_survive_a_bad_network() {
    let cluster = Cluster::up("bad-network");
    let documents = ["1k", "10k", "100k"].map(|name| (name, cluster.document(name)));
    for host in ["c1", "b2"] {
        let settings = LinkSettings {
            loss: 0.01,
            reorder: 0.05,
            duplicate: 0.03,
            delay: Duration::from_millis(1),
            ..LinkSettings::default()
        };
        cluster.link(host, &settings).expect("a link");
    }
    cluster.on("c1", || {
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let documents = &documents;
                scope.spawn(move || {
                    let mut dice = Dice::new(thread);
                    let mut client = Connection::open();
                    for _ in 0..40 {
                        let (name, expected) = &documents[dice.below(3)];
                        let response = client.ask(&format!("/{name}"));
                        same(&response.body, expected);
                    }
                });
            }
        });
    });
    let moved = cluster.dispatcher().of("moved");
    assert!(moved > 100, "{moved}");
}

/// The next owner's word that no server listens there comes to the dispatcher, though the
/// request came there from another backend.
#[test]
fn a_request_that_is_refused_on_its_way_goes_elsewhere() {
    let cluster = Cluster::up("refused-on");
    let one = cluster.document("1k");
    cluster.on("c1", || {
        Connection::open().ask("/1k").ok();
    });
    cluster.kill("b2", Some(Process::Server)).unwrap();
    cluster.on("c1", || {
        let mut client = Connection::open();
        for _ in 0..30 {
            let response = client.ask("/1k");
            assert_ne!(response.ok(), "b2");
            same(&response.body, &one);
        }
    });
    until("the daemon says that it has heard of it", || {
        let refused = cluster.daemon().counters.get("refusals").copied();
        refused.filter(|&count| count > 0)
    });
}

/// What waits behind an answer is acknowledged by its owner too, who knows nothing of it: or the
/// client would echo an old clock for as long as that answer lasts.
#[test]
fn an_owner_acknowledges_what_waits_at_the_dispatcher() {
    let text = "[[pool]]\nname = \"web\"\nhandoff = \"drained\"\nbackends = [\"b1\", \"b2\"]\n\
                [[service]]\nname = \"site\"\naddress = \"10.77.0.100:80\"\npool = \"web\"\n";
    acknowledges_what_waits(&Cluster::configured("waits-behind", 2, text, |_| {}));
}

#[test]
fn so_does_one_that_is_split() {
    acknowledges_what_waits(&Splice::Split.cluster("waits", |options| options.backends = Some(2)));
}

fn acknowledges_what_waits(cluster: &Cluster) {
    let client = Ipv4Addr::new(10, 77, 0, 200);
    cluster.lend_address("c1", &client.to_string());
    // Slow enough for this client, and little on its way.
    let link = LinkSettings {
        rate: Some(40_000_000),
        limit: 100,
        ..LinkSettings::default()
    };
    for backend in ["b1", "b2"] {
        cluster.link(backend, &link).unwrap();
    }
    let [first, second] = ["/10m", "/1k"].map(get);
    cluster.on("c1", || {
        let mut raw = RawClient::connect(SocketAddrV4::new(client, 2000), VIP);
        raw.send(0, first.as_bytes());
        raw.receive_until("some of the answer", |raw| raw.received().len() > 100_000);
        // What is repeated is acknowledged.
        let asked = first.len() + second.len();
        for _ in 0..2 {
            raw.send(first.len(), second.as_bytes());
            let seen = raw.received().len();
            raw.receive_until("more of it", |raw| raw.received().len() > seen + 200_000);
        }
        raw.receive_until("its word", |raw| raw.acknowledged() == asked);
        let seen = raw.received().len();
        raw.receive_until("what was on its way", |raw| {
            raw.received().len() > seen + 1_000_000
        });
        let outdated = raw.outdated();
        raw.receive_until("more of the answer", |raw| {
            raw.received().len() > seen + 2_000_000
        });
        assert_eq!(raw.outdated(), outdated);
    });
}

/// Who has the next request comes after an owner with an answer to send, and says what it says from behind that: beyond
/// the client's window, where nothing is taken. The dispatcher tells the client, again if it repeats itself, and the owner
/// says what it acknowledges from within that window.
#[test]
fn what_waits_behind_an_older_owner_is_acknowledged() {
    let cluster = Cluster::with("behind-older", |_| {});
    // The next answer begins long after this one has.
    let link = LinkSettings {
        rate: Some(40_000_000),
        limit: 100,
        ..LinkSettings::default()
    };
    for backend in BACKENDS {
        cluster.link(backend, &link).unwrap();
    }
    let put = "PUT /upload/behind HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n";
    let upload = put.to_owned() + &"u".repeat(1_000_000);
    let all_behind = [get("/1k"), get("/1k").repeat(2), upload];
    cluster.on("c1", || {
        for behind in all_behind {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
            socket.set_recv_buffer_size(64 << 10).unwrap();
            socket.connect(&VIP.into()).unwrap();
            let mut stream = TcpStream::from(socket);
            stream.set_write_timeout(Some(PATIENCE)).unwrap();
            let asked = get("/10m") + &behind;
            stream.write_all(asked.as_bytes()).unwrap();
            let (mut buffer, mut had) = ([0; 16 << 10], 0);
            while unacknowledged(&stream) > 0 {
                had += stream.read(&mut buffer).unwrap();
                let what = asked.len();
                assert!(had < 8 << 20, "{what} bytes waited for the whole answer");
            }
        }
    });
    assert!(cluster.agents().of("half-pipe") > 0);

    let count = |name| cluster.daemon().counters.get(name).copied().unwrap_or(0);
    let [first, second] = ["/10m", "/1k"].map(get);
    let client = Ipv4Addr::new(10, 77, 0, 200);
    cluster.lend_address("c1", &client.to_string());
    cluster.on("c1", || {
        let mut raw = RawClient::connect(SocketAddrV4::new(client, 2000), VIP);
        raw.send(0, (first.clone() + &second).as_bytes());
        let asked = first.len() + second.len();
        raw.receive_until("its word", |raw| raw.acknowledged() == asked);
        let (repeated, told) = (count("repeated-unheard"), count("acks"));
        raw.send(first.len(), second.as_bytes());
        until("it is told again", || {
            (count("repeated-unheard") > repeated && count("acks") > told).then_some(())
        });
    });
}

/// What the client's TCP keeps, because it has not been told that it has come.
fn unacknowledged(stream: &TcpStream) -> usize {
    let port = stream.local_addr().unwrap().port();
    let output = Command::new("ss")
        .args(["-tnH", "sport", "=", &format!(":{port}")])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let send_queue = text.split_whitespace().nth(2).expect("its socket");
    send_queue.parse().unwrap()
}

/// What came while the daemon was away it reads packet by packet. Between two of them it
/// seems to have done its work; but the second one is its own to place, however often the
/// client repeats it.
#[test]
fn what_the_daemon_has_yet_to_read_is_not_placed_twice() {
    let text = "[[pool]]\nname = \"web\"\nhandoff = \"drained\"\nbackends = [\"b1\"]\n\
                [[pool]]\nname = \"short\"\nhandoff = \"drained\"\nbackends = [\"b2\"]\n\
                [[service]]\nname = \"site\"\naddress = \"10.77.0.100:80\"\npool = \"web\"\n\
                [[service.rule]]\npath_prefix = \"/10k\"\npool = \"short\"\n";
    let cluster = Cluster::configured("yet-to-read", 2, text, |_| {});
    let client = Ipv4Addr::new(10, 77, 0, 200);
    cluster.lend_address("c1", &client.to_string());
    let [long, short] = ["1m", "10k"].map(|name| cluster.document(name));
    let [first, third] = ["/1k", "/10k"].map(get);
    cluster.on("c1", || {
        for port in 2000..2005 {
            // Nobody has asked for that yet: it is for the daemon.
            let second = get(&format!("/1m?{port}"));
            let mut raw = RawClient::connect(SocketAddrV4::new(client, port), VIP);
            raw.send(0, first.as_bytes());
            raw.receive_until("the first answer", |raw| raw.received().len() > 1024);
            let come = cluster.dispatcher().of("to-daemon");
            cluster.signal("d1", Process::Dispatch, "-STOP");
            let at = first.len() + second.len();
            raw.send(first.len(), second.as_bytes());
            raw.send(at, third.as_bytes());
            until("both are there", || {
                (cluster.dispatcher().of("to-daemon") >= come + 2).then_some(())
            });
            cluster.signal("d1", Process::Dispatch, "-CONT");
            raw.receive_until("the second answer", |raw| raw.received().len() > 20_000);
            std::thread::sleep(Duration::from_millis(20));
            raw.send(at, third.as_bytes());
            let all = 1024 + long.len() + short.len();
            raw.receive_until("the third answer", |raw| raw.received().len() > all);
            let got = raw.received();
            let begins = |document: &[u8]| {
                let mut places = got.windows(document.len());
                places.position(|bytes| bytes == document)
            };
            let end = begins(&long).expect("the second answer is whole") + long.len();
            assert!(got[end..].starts_with(b"HTTP/1.1 200"));
            assert!(begins(&short).is_some_and(|at| at > end));
            raw.send_with(at + third.len(), Flags::RST, b"");
        }
    });
}

/// A request that has gone the short way behind an answer that is under way comes back to nobody. What its client
/// acknowledges of that answer meanwhile is no word of the next owner's, who would begin in its midst.
#[test]
fn what_is_asked_ahead_while_the_daemon_is_away_waits_for_its_turn() {
    let text = "[[pool]]\nname = \"web\"\nbackends = [\"b1\"]\n\
                [[pool]]\nname = \"other\"\nbackends = [\"b2\"]\n\
                [[service]]\nname = \"site\"\naddress = \"10.77.0.100:80\"\npool = \"web\"\n\
                [[service.rule]]\npath_prefix = \"/1k\"\npool = \"other\"\n";
    let cluster = Cluster::configured("away-ahead", 2, text, |_| {});
    let [long, short] = ["10m", "1k"].map(|name| cluster.document(name));
    let link = LinkSettings {
        rate: Some(60_000_000),
        limit: 200,
        ..LinkSettings::default()
    };
    cluster.link("b1", &link).unwrap();
    let ask_ahead_of = |owner: &str, leave: &(dyn Fn() + Sync), come_back: &(dyn Fn() + Sync)| {
        cluster.on("c1", || {
            let mut known = Connection::open();
            for _ in 0..2 {
                same(&known.send(get("/1k")).response().body, &short);
            }
            let mut clients = [(); 2].map(|()| Connection::open());
            for client in &mut clients {
                client.send(get("/10m"));
                client.stream().peek(&mut [0]).expect("it has begun");
            }
            let moved = cluster.dispatcher().of("moved");
            leave();
            for client in &mut clients {
                client.send(get("/1k"));
            }
            until("they have gone the short way", || {
                (cluster.dispatcher().of("moved") == moved + 2).then_some(())
            });
            std::thread::scope(|scope| {
                for mut client in clients {
                    let (long, short) = (&long, &short);
                    scope.spawn(move || {
                        same(&client.response().body, long);
                        let second = client.response();
                        same(&second.body, short);
                        assert_eq!(second.ok(), owner);
                    });
                }
                come_back();
            });
        });
    };
    let stand = |signal| cluster.signal("d1", Process::Dispatch, signal);
    ask_ahead_of("b2", &|| stand("-STOP"), &|| {
        std::thread::sleep(Duration::from_secs(1));
        stand("-CONT");
    });
    assert!(cluster.agent("b1").of("held") >= 2, "it has refused");

    // Nobody hears of it any more: what has been asked is the owner's that has the flow.
    ask_ahead_of(
        "b1",
        &|| cluster.kill("d1", Some(Process::Dispatch)).unwrap(),
        &|| {},
    );
}

/// What it has acknowledged of a next request is lost with a daemon. The client has what it can have, and is not left to
/// wait for the rest.
#[test]
fn what_a_daemon_dies_with_ends_its_connection() {
    let text = "[limits]\nhead_timeout = \"1s\"\n\
                [[pool]]\nname = \"web\"\nbackends = [\"b1\", \"b2\"]\n\
                [[service]]\nname = \"site\"\naddress = \"10.77.0.100:80\"\npool = \"web\"\n";
    let cluster = Cluster::configured("dies-with", 2, text, |_| {});
    let [long, short] = ["10m", "1k"].map(|name| cluster.document(name));
    let link = LinkSettings {
        rate: Some(60_000_000),
        limit: 200,
        ..LinkSettings::default()
    };
    for backend in ["b1", "b2"] {
        cluster.link(backend, &link).unwrap();
    }
    cluster.on("c1", || {
        let mut clients = [(); 4].map(|()| Connection::open());
        let [idle, between, meanwhile, behind] = &mut clients;
        for client in [&mut *idle, &mut *between, &mut *meanwhile] {
            same(&client.ask("/1k").body, &short);
        }
        behind.send(get("/10m"));
        behind.stream().peek(&mut [0]).expect("it has begun");
        for client in [&mut *between, &mut *meanwhile, &mut *behind] {
            client.send("GET /1k HTTP/1.1\r\nHo");
            until("it is acknowledged", || {
                (unacknowledged(client.stream()) == 0).then_some(())
            });
        }
        cluster.kill("d1", Some(Process::Dispatch)).unwrap();
        // This the next one will have, and have to wait for what comes before it.
        meanwhile.send("st: a\r\n\r\n");
        cluster.start("d1", Some(Process::Dispatch)).unwrap();
        same(&behind.response().body, &long);
        let ends = [
            ("between", between),
            ("meanwhile", meanwhile),
            ("behind", behind),
        ];
        for (which, client) in ends {
            let error = client.rest().expect_err("it is not answered");
            assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{which}");
        }
        same(&idle.ask("/1k").body, &short);
    });
}

/// The packet that sets the first request's connection up is lost, again and again: the next
/// one waits, and goes where it belongs.
#[test]
fn a_request_waits_for_an_owner_that_has_yet_to_hear_of_the_flow() {
    let text = "[limits]\nheartbeat = \"5s\"\n\
                [[pool]]\nname = \"web\"\nbackends = [\"b1\"]\n\
                [[pool]]\nname = \"other\"\nbackends = [\"b2\"]\n\
                [[service]]\nname = \"site\"\naddress = \"10.77.0.100:80\"\npool = \"web\"\n\
                [[service.rule]]\npath_prefix = \"/10k\"\npool = \"other\"\n";
    let cluster = Cluster::configured("yet-to-hear", 2, text, |_| {});
    let [first, second] = ["1k", "10k"].map(|name| cluster.document(name));
    let link = |loss| {
        let settings = LinkSettings {
            loss,
            ..LinkSettings::default()
        };
        cluster.link("b1", &settings).expect("a link");
    };
    link(1.0);
    cluster.on("c1", || {
        let mut client = Connection::open();
        client.send(get("/1k") + &get("/10k"));
        // Its third repetition, after 1.4 s, is the first to arrive.
        std::thread::sleep(Duration::from_millis(1000));
        link(0.0);
        for (document, backend) in [(first, "b1"), (second, "b2")] {
            let response = client.response();
            same(&response.body, &document);
            assert_eq!(response.ok(), backend);
        }
    });
}

/// Older owners hear a RELEASE, too: it says of the client's window what the client has said.
/// One that heard of none would wait for it to open again.
#[test]
fn an_owner_that_is_asked_for_a_flow_hears_of_its_clients_window() {
    let text = "[[pool]]\nname = \"web\"\nhandoff = \"drained\"\nbackends = [\"b2\"]\n\
                [[pool]]\nname = \"other\"\nbackends = [\"b1\"]\n\
                [[service]]\nname = \"site\"\naddress = \"10.77.0.100:80\"\npool = \"web\"\n\
                [[service.rule]]\npath_prefix = \"/10k\"\npool = \"other\"\n";
    let cluster = Cluster::configured("hears-window", 2, text, |_| {});
    let sniffer = cluster.on("b2", || PacketSocket::open("eth0").unwrap());
    cluster.on("c1", || {
        let mut client = Connection::open();
        client.send(get("/1m") + &get("/10k"));
        std::thread::sleep(Duration::from_millis(100));
        client.response();
        assert_eq!(client.response().ok(), "b1");
    });
    let mut batch = Batch::default();
    sniffer.receive(&mut batch).unwrap();
    // Behind Ethernet, IP, UDP and Geneve's own header with that of its option.
    let (option, inner) = (14 + 20 + 8 + 8 + 4, 14 + 20 + 8 + 8 + 4 + 32);
    let releases: Vec<u16> = (batch.frames())
        .filter(|frame| frame.len() >= inner + 40 && frame[36..38] == geneve::PORT.to_be_bytes())
        .filter(|frame| frame[option + 1] == 12)
        .map(|frame| u16::from_be_bytes([frame[inner + 34], frame[inner + 35]]))
        .collect();
    assert!(
        releases.first().is_some_and(|&window| window > 0),
        "{releases:?}"
    );
}

/// To a backend's server.
fn signal(cluster: &Cluster, backend: &str, signal: &str) {
    let status = cluster.status().unwrap();
    let server = status.host(backend).unwrap().processes[&Process::Server].pid;
    let server = server.unwrap().to_string();
    let sent = Command::new("kill").args([signal, &server]).status();
    assert!(sent.unwrap().success());
}

/// nginx closes its idle connections when it reloads; clients do not notice.
#[test]
fn servers_may_reload_under_load() {
    let cluster = Cluster::up("reloads");
    let one = cluster.document("1k");
    cluster.on("c1", || {
        std::thread::scope(|scope| {
            for thread in 0..6 {
                let one = &one;
                scope.spawn(move || {
                    let mut client = Connection::open();
                    for _ in 0..30 {
                        let response = client.ask("/1k");
                        same(&response.body, one);
                        // It was asked while its worker was shutting down.
                        if response.header("connection") == Some("close") {
                            client = Connection::open();
                        }
                        std::thread::sleep(Duration::from_millis(20 + 30 * (thread % 3)));
                    }
                });
            }
            for backend in BACKENDS.iter().cycle().take(6) {
                std::thread::sleep(Duration::from_millis(200));
                signal(&cluster, backend, "-HUP");
            }
        });
    });
}

/// A server that stops in order, or is started again, loses nobody's request: those that
/// it has not read go elsewhere.
#[test]
fn servers_may_stop_under_full_load() {
    let cluster = Cluster::up("stops");
    let load = [
        "wrk",
        "-t",
        "2",
        "-c",
        "256",
        "-d",
        "6",
        "http://10.77.0.100/1k",
    ];
    let load = cluster
        .command("c1", &load)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    for round in 0..4 {
        for backend in ["b1", "b2"] {
            std::thread::sleep(Duration::from_millis(200));
            signal(&cluster, backend, ["-HUP", "-QUIT"][round % 2]);
            std::thread::sleep(Duration::from_millis(200));
            cluster.start(backend, None).unwrap();
        }
    }
    let output = load.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.contains("requests in"),
        "{said}"
    );
    assert!(
        !said.contains("Socket errors") && !said.contains("Non-2xx"),
        "{said}"
    );
    // wrk does not tell of a connection that hangs.
    expect_all_ended(&cluster);
}

/// Whoever resets behind requests that wait at the dispatcher does so behind what any owner has had of it.
#[test]
fn a_client_that_resets_while_requests_wait_leaves_no_socket() {
    for handoff in ["half-pipe", "drained"] {
        let text = format!(
            "[[pool]]\nname = \"web\"\nhandoff = \"{handoff}\"\nbackends = [\"b1\", \"b2\", \"b3\"]\n\
             [[service]]\nname = \"site\"\naddress = \"10.77.0.100:80\"\npool = \"web\"\n"
        );
        let cluster = Cluster::configured("resets", 3, &text, |_| {});
        let asked = ["/1m", "/1k", "/1k"].map(get).concat();
        cluster.on("c1", || {
            for _ in 0..4 {
                let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
                socket.set_recv_buffer_size(4096).unwrap();
                socket.connect(&VIP.into()).unwrap();
                let mut client = std::net::TcpStream::from(socket);
                client.write_all(asked.as_bytes()).unwrap();
                client.peek(&mut [0; 100]).unwrap();
                // Until the dispatcher has acknowledged what waits there, which the client repeats.
                std::thread::sleep(Duration::from_millis(600));
                // With something unread, that is a reset.
            }
        });
        for backend in BACKENDS {
            until(&format!("{handoff}: sockets of {backend} go"), || {
                let left = cluster.run(backend, &["ss", "-Htn", "sport", "=", ":80"]);
                left.is_empty().then_some(())
            });
        }
    }
}

/// Every client's FIN is answered.
fn expect_all_ended(cluster: &Cluster) {
    until("every connection has ended", || {
        let left = cluster.output("c1", &["ss", "-Htn", "state", "fin-wait-1"]);
        assert!(left.status.success(), "{left:?}");
        left.stdout.is_empty().then_some(())
    });
}

/// The client's FIN passes the word that its server has closed on the way.
#[test]
fn a_client_and_its_server_may_close_at_once() {
    let cluster = Cluster::up("both-close");
    let settings = LinkSettings {
        delay: Duration::from_millis(300),
        ..LinkSettings::default()
    };
    for backend in BACKENDS {
        cluster.link(backend, &settings).expect("a link");
    }
    // The answers to heartbeats are late at first.
    std::thread::sleep(Duration::from_millis(1500));
    until("all are up", || {
        let is_up = |name| cluster.backend(name).state == "up";
        BACKENDS.into_iter().all(is_up).then_some(())
    });
    let clients = cluster.on("c1", || {
        let mut clients = [(); 3].map(|()| Connection::open());
        for client in &mut clients {
            client.ask("/1k").ok();
        }
        clients
    });
    // The servers hear that their answers have come.
    std::thread::sleep(Duration::from_millis(700));
    for backend in BACKENDS {
        signal(&cluster, backend, "-HUP");
    }
    std::thread::sleep(Duration::from_millis(150));
    drop(clients);
    expect_all_ended(&cluster);
    let vacated = cluster.agents().of("vacated");
    assert_eq!(vacated, 3, "the servers had closed");
}

#[test]
fn a_drained_backend_has_no_connection_left() {
    let cluster = Cluster::up("drain");
    let documents = ["1k", "100k", "1m"].map(|name| (name, cluster.document(name)));
    let trapeze = |words: &[&str]| cluster.trapeze("d1", words);
    let stop = std::sync::atomic::AtomicBool::new(false);
    cluster.on("c1", || {
        std::thread::scope(|scope| {
            let _raised = Raised(&stop);
            for thread in 0..9 {
                let (documents, stop) = (&documents, &stop);
                scope.spawn(move || {
                    let mut client = Connection::open();
                    let mut dice = Dice::new(thread);
                    while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                        let (name, expected) = &documents[dice.below(3)];
                        same(&client.ask(&format!("/{name}")).body, expected);
                        std::thread::sleep(Duration::from_millis(200 * (thread % 3)));
                    }
                });
            }
            std::thread::sleep(Duration::from_millis(500));
            for _ in 0..2 {
                let drained = trapeze(&["drain", "b1", "--deadline", "20s"]);
                assert!(drained.status.success(), "{drained:?}");
                assert_eq!(cluster.backend("b1").active, 0);
                let total = cluster.backend("b1").total;
                std::thread::sleep(Duration::from_millis(600));
                assert_eq!(cluster.backend("b1").total, total, "nothing new");
                assert!(trapeze(&["undrain", "b1"]).status.success());
                until("b1 has connections again", || {
                    (cluster.backend("b1").active > 0).then_some(())
                });
            }
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
        });
    });
    // A connection without boundaries is waited for.
    let mut client = cluster.on("c1", || {
        let mut client = Connection::open();
        while client.send(CHUNKED_UPGRADE).response().ok() != "b1" {
            client = Connection::open();
        }
        client
    });
    let refused = trapeze(&["drain", "b1", "--deadline", "500ms"]);
    assert!(!refused.status.success(), "{refused:?}");
    let said = String::from_utf8_lossy(&refused.stdout).into_owned();
    assert!(said.contains("1 without boundaries"), "{said}");
    assert_eq!(client.ask("/1k").ok(), "b1");
    drop(client);
    assert!(trapeze(&["drain", "b1"]).status.success());
}

/// It is asked whether it is there as long as it has connections: from one that were taken for dead they would be taken
/// without a word, and its sockets wait for their server's patience to end.
#[test]
fn a_removed_backend_has_no_connection_left() {
    let cluster = Cluster::up("removed");
    let document = cluster.document("10m");
    let original = cluster.config() + "\n[limits]\nheartbeat = \"100ms\"\n";
    let section = "[[backend]]\nname = \"b2\"\naddress = \"10.77.0.22\"\ninterface = \"eth0\"\n";
    assert!(original.contains(section));
    let without = original.replace(section, "").replace(", \"b2\"", "");
    let reload = |config: &str| {
        let said = cluster.reload("d1", Process::Dispatch, config);
        assert!(said.starts_with("reloaded"), "{said}");
    };
    reload(&original);
    cluster.on("c1", || {
        let mut clients: Vec<Connection> = (0..9).map(|_| Connection::open()).collect();
        for client in &mut clients {
            client.send(get("/10m"));
        }
        until("it answers, and its clients do not read", || {
            (cluster.backend("b2").active == 3).then_some(())
        });
        reload(&without);
        // Ten heartbeats.
        std::thread::sleep(Duration::from_secs(1));
        let mut owners = BTreeSet::new();
        for client in &mut clients {
            let response = client.response();
            same(&response.body, &document);
            owners.insert(response.ok().to_owned());
            assert_ne!(client.ask("/1k").ok(), "b2");
        }
        assert!(owners.contains("b2"), "an answer goes on");
        until("b2 has no connection", || {
            let left = cluster.run("b2", &["ss", "-Htn", "state", "established"]);
            left.is_empty().then_some(())
        });
    });
}
