//! The first request's head, in whatever pieces it comes.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::ops::Range;
use std::time::{Duration, Instant};

use trapeze_core::wire::tcp::Flags;
use trapeze_lab::{LinkSettings, Process, ServerKind};
use trapeze_tests::raw::RawClient;
use trapeze_tests::{Cluster, Connection, Dice, Response, VIP, same, until};

const HEAD: &str = "GET /1k?of=pieces HTTP/1.1\r\nHost: site.example\r\nUser-Agent: pieces/1\r\n\
                    Accept: */*\r\nX-Padding: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n\r\n";
const AT_ONCE: Duration = Duration::ZERO;
/// Silence is noticed in less than a second, and held bytes are sent again by doubling intervals.
const SOON: Duration = Duration::from_secs(5);

/// A request whose head has so many bytes.
fn request_of(bytes: usize) -> String {
    let mut head = String::from("GET /1k HTTP/1.1\r\nHost: site.example\r\n");
    let mut number = 0;
    while head.len() + 2 < bytes {
        let left = bytes - 2 - head.len();
        let line = if left < 1100 { left } else { 1000 };
        head += &format!("X-Padding-{number:03}: {}\r\n", "p".repeat(line - 17));
        number += 1;
    }
    head += "\r\n";
    assert_eq!(head.len(), bytes);
    head
}

/// What must be the same from whomever it comes.
fn comparable(response: &Response) -> (u16, Vec<&str>, &[u8]) {
    let varies = ["date:", "x-backend:", "etag:", "last-modified:"];
    let is_same = |line: &&str| !varies.iter().any(|v| line.to_lowercase().starts_with(v));
    let lines = response.head.lines().filter(is_same).collect();
    (response.status, lines, &response.body)
}

#[test]
fn a_head_in_pieces_of_any_size_is_served() {
    let cluster = Cluster::up("pieces");
    let document = cluster.document("1k");
    let before = (cluster.dispatcher(), cluster.agents());
    let flows = cluster.on("c1", || {
        let whole = |pieces: usize| HEAD.len().div_ceil(pieces);
        let ways = [
            (HEAD.len(), AT_ONCE),
            (1, AT_ONCE),
            (1, Duration::from_millis(3)),
            (whole(2), Duration::from_millis(20)),
            (whole(2), AT_ONCE),
            (whole(10), Duration::from_millis(2)),
            (whole(40), AT_ONCE),
        ];
        for (size, pause) in ways {
            for nodelay in [true, false] {
                let mut client = Connection::open();
                client.stream().set_nodelay(nodelay).unwrap();
                let response = client.send_pieces(HEAD, size, pause).response();
                response.ok();
                same(&response.body, &document);
                // The connection is a normal one.
                same(&client.ask("/1k").body, &document);
            }
        }
        ways.len() as u64 * 2
    });
    let d1 = cluster.dispatcher() - before.0;
    // The handshake's ACK and the first bytes may be looked at side by side.
    assert!(d1.of("cookie-valid") >= flows, "{d1:?}");
    // Small segments that wait for an acknowledgement are joined by the client's TCP.
    assert!(d1.of("to-daemon") > 5 * flows, "{d1:?}");
    let agents = cluster.agents() - before.1;
    // Each connection's second request has a backend of its own.
    assert_eq!(agents.of("rebuilt"), 2 * flows, "{agents:?}");
    until("nothing is held any more", || {
        (cluster.daemon().reading_flows == 0).then_some(())
    });
}

#[test]
fn segments_in_any_order_with_copies_and_overlaps_make_one_request() {
    let cluster = Cluster::up("order");
    let client = Ipv4Addr::new(10, 77, 0, 200);
    cluster.lend_address("c1", &client.to_string());
    let document = cluster.document("1k");
    cluster.on("c1", || {
        for seed in 1..=30 {
            let mut dice = Dice::new(seed);
            let mut pieces = Vec::new();
            let mut at = 0;
            while at < HEAD.len() {
                let length = 1 + dice.below(40);
                // Into what came before and what comes after.
                let from = at - dice.below(at.min(20) + 1);
                let to = (at + length + dice.below(20)).min(HEAD.len());
                pieces.push((from, to));
                if dice.below(4) == 0 {
                    pieces.push((from, to));
                }
                at += length;
            }
            dice.shuffle(&mut pieces);
            let mut raw = RawClient::connect(SocketAddrV4::new(client, 2000 + seed as u16), VIP);
            for (from, to) in pieces {
                raw.send(from, &HEAD.as_bytes()[from..to]);
            }
            raw.receive_until("the answer is whole", |raw| {
                let end = raw.received().windows(4).position(|w| w == b"\r\n\r\n");
                end.is_some_and(|end| raw.received().len() >= end + 4 + document.len())
            });
            let end = raw.received().len() - document.len();
            same(&raw.received()[end..], &document);
            assert!(raw.received().starts_with(b"HTTP/1.1 200 OK\r\n"));
            raw.send_with(HEAD.len(), Flags::RST | Flags::ACK, b"");
        }
    });
    let agents = cluster.agents();
    assert_eq!(agents.of("rebuilt"), 30, "{agents:?}");
}

#[test]
#[expect(clippy::single_range_in_vec_init, reason = "a list of one block")]
fn what_comes_behind_a_gap_is_acknowledged_by_name() {
    let cluster = Cluster::up("sack");
    let client = Ipv4Addr::new(10, 77, 0, 200);
    cluster.lend_address("c1", &client.to_string());
    let document = cluster.document("1k");
    let head = HEAD.as_bytes();
    cluster.on("c1", || {
        let mut raw = RawClient::connect(SocketAddrV4::new(client, 2000), VIP);
        let mut send = |pieces: &[Range<usize>], sacked: &[Range<usize>]| {
            for piece in pieces {
                raw.send(piece.start, &head[piece.clone()]);
            }
            raw.receive_until("it is acknowledged", |raw| raw.sacked() == sacked);
            raw.acknowledged()
        };
        assert_eq!(send(&[0..10, 20..30], &[20..30]), 10);
        assert_eq!(send(&[40..50], &[40..50, 20..30]), 10);
        assert_eq!(send(&[30..40], &[20..50]), 10);
        // Once more (RFC 2883).
        assert_eq!(send(&[20..30], &[20..30, 20..50]), 10);
        assert_eq!(send(&[10..20], &[]), 50);
        // A byte of the body lies beyond a gap when the head is complete.
        raw.send(head.len() + 10, b"beyond");
        raw.send(50, &head[50..]);
        raw.receive_until("the answer is whole", |raw| {
            raw.received().ends_with(&document)
        });
    });
    assert_eq!(cluster.agents().of("rebuilt"), 1);
}

/// RFC 5961 §3.2: who cannot see the connection cannot end it.
#[test]
fn only_an_exact_reset_ends_a_connection_whose_head_is_being_read() {
    let cluster = Cluster::up("halfreset");
    let client = Ipv4Addr::new(10, 77, 0, 200);
    cluster.lend_address("c1", &client.to_string());
    let document = cluster.document("1k");
    let head = HEAD.as_bytes();
    cluster.on("c1", || {
        let half_sent = |port| {
            let mut raw = RawClient::connect(SocketAddrV4::new(client, port), VIP);
            raw.send(0, &head[..20]);
            raw.receive_until("it is acknowledged", |raw| raw.acknowledged() == 20);
            raw
        };
        let mut raw = half_sent(2000);
        for at in [19, 21, 1020, 30_000] {
            raw.send_with(at, Flags::RST, b"");
        }
        raw.send(20, &head[20..]);
        raw.receive_until("the answer is whole", |raw| {
            raw.received().ends_with(&document)
        });

        let mut raw = half_sent(2001);
        raw.send_with(20, Flags::RST, b"");
        raw.send(20, &head[20..]);
        until("it is over", || {
            (*cluster.daemon().counters.get("ended-client-reset")? == 1).then_some(())
        });
    });
    let inexact = cluster.daemon().counters["ignored-inexact-reset"];
    assert_eq!(inexact, 3);
    assert_eq!(cluster.agents().of("rebuilt"), 1);
}

/// Holes in heads of several segments are filled as fast as by any server: without
/// blocks in our acknowledgements a client's TCP would wait for its timer each time.
#[test]
fn holes_in_heads_are_filled_without_a_time_out() {
    let cluster = Cluster::with("holes", |options| options.server = ServerKind::Python);
    let settings = LinkSettings {
        loss: 0.05,
        delay: Duration::from_millis(5),
        ..LinkSettings::default()
    };
    cluster.link("c1", &settings).unwrap();
    let document = cluster.document("1k");
    cluster.on("c1", || {
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..25 {
                        let mut client = Connection::open();
                        let response = client.send(request_of(12_000)).response();
                        same(&response.body, &document);
                    }
                });
            }
        });
    });
    let netstat = cluster.run("c1", &["cat", "/proc/net/netstat"]);
    let mut lines = netstat.lines().filter_map(|l| l.strip_prefix("TcpExt: "));
    let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
    let mut counters = names.split(' ').zip(values.split(' '));
    let (_, recoveries) = counters
        .find(|(name, _)| *name == "TCPSackRecovery")
        .unwrap();
    // One in twenty of 900 segments; the last of a head has none behind it.
    assert!(recoveries.parse::<u32>().unwrap() >= 10, "{recoveries}");
    assert_eq!(cluster.agents().of("not-rebuilt"), 0);
}

/// The daemon finds a copy of the first segment in its queue behind all of the head.
#[test]
fn a_first_segment_that_comes_again_late_does_not_take_the_connection_back() {
    let cluster = Cluster::up("late");
    let client = Ipv4Addr::new(10, 77, 0, 200);
    cluster.lend_address("c1", &client.to_string());
    let document = cluster.document("1k");
    let head = HEAD.as_bytes();
    cluster.on("c1", || {
        let mut raw = RawClient::connect(SocketAddrV4::new(client, 2000), VIP);
        cluster.signal("d1", Process::Dispatch, "-STOP");
        raw.send(0, &head[..50]);
        raw.send(50, &head[50..]);
        raw.send(0, &head[..50]);
        let come = || cluster.dispatcher().of("to-daemon");
        for _ in 0..10 {
            if come() >= 3 {
                break;
            }
            // One was lost on the way: one copy more does no harm.
            std::thread::sleep(Duration::from_millis(500));
            raw.send(50, &head[50..]);
            raw.send(0, &head[..50]);
        }
        assert!(come() >= 3, "{:?}", cluster.dispatcher());
        cluster.signal("d1", Process::Dispatch, "-CONT");
        for answers in 1..=2 {
            raw.receive_until("the answer is whole", |raw| {
                let got = raw.received().windows(document.len());
                got.filter(|bytes| *bytes == document).count() == answers
            });
            if answers == 1 {
                raw.send(head.len(), head);
            }
        }
        assert_eq!(raw.acknowledged(), 2 * head.len());
    });
    assert_eq!(cluster.daemon().reading_flows, 0);
    assert_eq!(cluster.agents().of("rebuilt"), 2, "one for each request");
}

/// Only the first segment shows the cookie; what comes right behind it, before
/// the daemon has looked at that one, belongs to it.
#[test]
fn without_the_handshakes_ack_no_segment_of_the_head_is_lost() {
    let cluster = Cluster::up("noack");
    let client = Ipv4Addr::new(10, 77, 0, 200);
    cluster.lend_address("c1", &client.to_string());
    cluster.kill("d1", Some(Process::Dispatch)).unwrap();
    cluster.on("c1", || {
        let mut raw = RawClient::connect_silently(SocketAddrV4::new(client, 2000), VIP);
        raw.send(0, &HEAD.as_bytes()[..50]);
        raw.send(50, &HEAD.as_bytes()[50..]);
        until("both have come", || {
            let d1 = cluster.dispatcher();
            (d1.of("to-daemon") + d1.of("bad-cookie") == 2).then_some(())
        });
        assert_eq!(cluster.dispatcher().of("bad-cookie"), 0);
    });
}

#[test]
fn heads_up_to_the_configured_size_are_served_and_larger_ones_get_431() {
    let cluster = Cluster::with("size", |options| options.server = ServerKind::Python);
    let exchange = |to, head: &str| {
        let mut client = Connection::to(to);
        client.send(head);
        client.response()
    };
    let compare = |sizes: &[usize]| {
        cluster.on("c1", || {
            for &size in sizes {
                let head = request_of(size);
                let direct = exchange("10.77.0.21:80".parse().unwrap(), &head);
                let ours = exchange(VIP, &head);
                assert_eq!(direct.status, 200, "{size}");
                assert!(comparable(&direct) == comparable(&ours), "{size}: {ours:?}");
            }
        });
    };
    let refuse = |size: usize| {
        cluster.on("c1", || {
            let mut client = Connection::open();
            client.send(request_of(size));
            assert_eq!(client.response().status, 431, "{size}");
            client.expect_end();
        });
    };
    compare(&[600, 1400, 1448, 1449, 3000, 10_000, 30 << 10, 32 << 10]);
    refuse(33 << 10);
    let larger = cluster.config() + "\n[limits]\nhead_bytes = 65536\n";
    let said = cluster.reload("d1", Process::Dispatch, &larger);
    assert!(said.contains("reloaded"), "{said}");
    compare(&[33 << 10, 60 << 10, 64 << 10]);
    refuse((64 << 10) + 1);
    // One byte after the other, as far as a patient client goes.
    cluster.on("c1", || {
        let head = request_of(4000);
        let mut client = Connection::open();
        client.send_pieces(&head, 1, AT_ONCE);
        assert_eq!(client.response().status, 200);
    });
}

/// The client gets all answers before, and nothing of the head comes to a server.
#[test]
fn a_later_head_that_is_too_large_gets_431_behind_the_answers_before() {
    let cluster = Cluster::up("size-later");
    let documents = ["1k", "10m"].map(|name| cluster.document(name));
    let sizes = [(32 << 10) + 1, 40_000, 70_000];
    cluster.on("c1", || {
        for size in sizes {
            let mut client = Connection::open();
            for _ in 0..2 {
                same(&client.ask("/1k").body, &documents[0]);
            }
            client.send(request_of(size));
            assert_eq!(client.response().status, 431, "{size}");
            client.expect_end();
            // Asked ahead.
            let mut client = Connection::open();
            client.send("GET /10m HTTP/1.1\r\nHost: site.example\r\n\r\n");
            client.send(request_of(size));
            std::thread::sleep(Duration::from_millis(200));
            same(&client.response().body, &documents[1]);
            assert_eq!(client.response().status, 431, "{size}");
            client.expect_end();
        }
        // All that fits is a request.
        let mut client = Connection::open();
        same(&client.ask("/1k").body, &documents[0]);
        client.send(request_of(8000));
        same(&client.response().body, &documents[0]);
        same(&client.ask("/1k").body, &documents[0]);
    });
    let counters = cluster.daemon().counters;
    assert_eq!(counters.get("heads-too-large"), Some(&6), "{counters:?}");
}

/// Its packets go to one that has just died. The client has been told that they have come, and says
/// none of it again.
#[test]
fn heads_in_pieces_outlive_a_backend_of_which_nobody_knows_yet_that_it_is_dead() {
    let cluster = Cluster::up("pieces-dead");
    let document = cluster.document("1k");
    cluster.kill("b1", None).unwrap();
    cluster.on("c1", || {
        std::thread::scope(|scope| {
            for number in 0..12 {
                let document = &document;
                scope.spawn(move || {
                    let mut client = Connection::open();
                    client.stream().set_nodelay(true).unwrap();
                    // In two and more, and in more than a packet.
                    let head = request_of(300 + 900 * (number % 3));
                    let pause = Duration::from_millis(5);
                    let asked = Instant::now();
                    let response = client.send_pieces(head, 150, pause).response();
                    same(&response.body, document);
                    assert_ne!(response.backend(), "b1");
                    assert!(asked.elapsed() < SOON, "{:?}", asked.elapsed());
                });
            }
        });
    });
    until("it is counted", || {
        (cluster.daemon().counters.get("unheard").copied() >= Some(1)).then_some(())
    });
}

#[test]
fn several_workers_share_the_flows() {
    let text = Cluster::nodes(3).replace("attach = \"tc\"", "attach = \"tc\"\nworkers = 4")
        + "[[pool]]\nname = \"web\"\nbackends = [\"b1\", \"b2\", \"b3\"]\n\
           [[service]]\nname = \"site\"\naddress = \"10.77.0.100:80\"\npool = \"web\"\n";
    let cluster = Cluster::configured_whole("workers", &text, |_| {});
    let document = cluster.document("1k");
    cluster.on("c1", || {
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let mut client = Connection::open();
                        client.send_pieces(HEAD, 30, Duration::from_micros(300));
                        same(&client.response().body, &document);
                    }
                });
            }
        });
    });
    let agents = cluster.agents();
    assert_eq!(agents.of("rebuilt"), 200, "{agents:?}");
}

#[test]
fn a_link_that_loses_repeats_and_reorders_delays_a_head_at_most() {
    let cluster = Cluster::with("faults", |options| options.server = ServerKind::Python);
    let settings = LinkSettings {
        loss: 0.05,
        duplicate: 0.1,
        reorder: 0.2,
        jitter: Duration::from_micros(500),
        delay: Duration::from_millis(1),
        ..LinkSettings::default()
    };
    cluster.link("c1", &settings).unwrap();
    let document = cluster.document("1k");
    cluster.on("c1", || {
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let document = &document;
                scope.spawn(move || {
                    let mut dice = Dice::new(thread);
                    for _ in 0..10 {
                        let head = request_of(300 + dice.below(20_000));
                        let mut client = Connection::open();
                        let size = 100 + dice.below(3000);
                        let response = client.send_pieces(&head, size, AT_ONCE).response();
                        response.ok();
                        same(&response.body, document);
                        client.finish().expect_end();
                    }
                });
            }
        });
    });
    assert!(
        cluster.agents().of("rebuilt") >= 40,
        "{:?}",
        cluster.dispatcher()
    );
}
