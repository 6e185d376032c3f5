//! Floods and forgeries: they change nothing, crash nothing, and hold up only
//! what they are made of.

use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use trapeze_core::wire::ipv4;
use trapeze_core::wire::segment::Segment;
use trapeze_core::wire::tcp::{Flags, Header, Options};
use trapeze_datapath::abi::ENCAP_LEN;
use trapeze_datapath::packet_socket::{Batch, PacketSocket};
use trapeze_lab::{Process, ServerKind};
use trapeze_tests::raw::RawSender;
use trapeze_tests::{Cluster, Connection, Content, Dice, Raised, VIP, same, until};

/// GENEVE: where encapsulated packets go.
const ENCAPSULATED: u16 = 6081;
const BOUND: Duration = Duration::from_secs(4);

fn with_attacker(test: &str, server: ServerKind) -> Cluster {
    Cluster::with(test, |options| {
        options.clients = 2;
        options.server = server;
    })
}

/// An established download and new clients, while `attack` goes on at c2.
fn serves_during(cluster: &Cluster, attack: impl FnOnce() + Send) {
    let (ten, one) = (cluster.document("10m"), cluster.document("1k"));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _raised = Raised(&stop);
        let established = scope.spawn(|| {
            cluster.on("c1", || {
                let mut client = Connection::open();
                let mut rounds = 0;
                while !stop.load(Ordering::Relaxed) || rounds == 0 {
                    same(&client.ask("/10m").body, &ten);
                    rounds += 1;
                }
            });
        });
        let new = scope.spawn(|| {
            cluster.on("c1", || {
                let mut served = 0;
                while !stop.load(Ordering::Relaxed) || served == 0 {
                    same(&Connection::open().ask("/1k").body, &one);
                    served += 1;
                }
            });
        });
        cluster.on("c2", attack);
        stop.store(true, Ordering::Relaxed);
        established.join().unwrap();
        new.join().unwrap();
    });
}

#[test]
fn during_a_syn_flood_downloads_go_on_and_new_clients_are_served() {
    let cluster = with_attacker("syn", ServerKind::Nginx);
    let before = cluster.dispatcher();
    serves_during(&cluster, || {
        let sender = RawSender::open();
        let (mut dice, start) = (Dice::new(1), Instant::now());
        for number in 0..150_000 {
            let source = Ipv4Addr::new(10, 77, 128 + dice.below(100) as u8, dice.below(256) as u8);
            let syn = Segment {
                source: SocketAddrV4::new(source, 1024 + dice.below(60_000) as u16).into(),
                destination: VIP.into(),
                header: Header {
                    seq: dice.below(1 << 32) as u32,
                    flags: Flags::SYN,
                    window: 64_240,
                    options: Options {
                        mss: Some(1460),
                        ..Options::default()
                    },
                    ..Header::default()
                },
                payload: Vec::new(),
            };
            sender.send_segment(&syn).unwrap();
            if number % 1000 == 0 && start.elapsed() > BOUND {
                break;
            }
        }
    });
    let d1 = cluster.dispatcher() - before;
    assert!(d1.of("syn-answered") > 10_000, "{d1:?}");
    // Nothing is remembered of any of them.
    let flows = cluster.dispatcher_maps().flows.all().unwrap();
    assert!(flows.iter().all(|(key, _)| key.client_addr[14] == 0));
    assert_eq!(cluster.daemon().reading_flows, 0);
}

/// Keeps so many connections with half a head open until its input ends.
const HALF_HEADS: &str = r#"
import resource, socket, sys
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
kept = []
try:
    for number in range(int(sys.argv[1])):
        s = socket.create_connection(("10.77.0.100", 80), 20)
        s.send(b"GET /1k HTTP/1.1\r\nHost: a\r\nX-Half: ")
        kept.append(s)
except OSError as error:
    print(error, file=sys.stderr)
print(len(kept), flush=True)
sys.stdin.read()
"#;

#[test]
fn half_sent_heads_are_bounded_and_whole_requests_are_served() {
    let cluster = with_attacker("half", ServerKind::Nginx);
    let bound = 5000;
    let config = cluster.config() + &format!("\n[limits]\nreading_flows = {bound}\n");
    assert!(
        cluster
            .reload("d1", Process::Dispatch, &config)
            .starts_with("reloaded")
    );
    let resident = || {
        let pid = cluster.status().unwrap().host("d1").unwrap().processes[&Process::Dispatch].pid;
        let status = std::fs::read_to_string(format!("/proc/{}/status", pid.unwrap())).unwrap();
        let line = status
            .lines()
            .find(|line| line.starts_with("VmRSS:"))
            .unwrap();
        line.split_whitespace()
            .nth(1)
            .unwrap()
            .parse::<u64>()
            .unwrap()
    };
    let before = resident();
    serves_during(&cluster, || {
        let mut flood = cluster.command("c2", &["python3", "-c", HALF_HEADS, "15000"]);
        let (input, output) = (std::process::Stdio::piped(), std::process::Stdio::piped());
        let mut flood = flood.stdin(input).stdout(output).spawn().unwrap();
        let mut said = String::new();
        let mut lines = std::io::BufReader::new(flood.stdout.take().unwrap());
        std::io::BufRead::read_line(&mut lines, &mut said).unwrap();
        assert_eq!(said, "15000\n");
        std::thread::sleep(Duration::from_millis(500));
        let daemon = cluster.daemon();
        assert!(daemon.reading_flows <= bound, "{daemon:?}");
        assert!(daemon.reading_flows > bound / 2, "{daemon:?}");
        // Heads in pieces too are read, while the flood holds all places.
        cluster.on("c1", || {
            for _ in 0..10 {
                let mut client = Connection::open();
                let head = "GET /1k HTTP/1.1\r\nHost: a\r\n\r\n";
                client.send_pieces(head, 9, Duration::from_millis(2));
                client.response().ok();
            }
        });
        drop(flood.stdin.take());
        flood.wait().unwrap();
    });
    let after = resident();
    assert!(after < before + 100_000, "{before} KiB, then {after} KiB");
}

/// Waits until d1's daemon shows that it has counted more than `count` of these.
fn expect_counted(cluster: &Cluster, what: &str, count: u64) {
    until(&format!("{what} are counted"), || {
        let counters = cluster.daemon().counters;
        (counters.get(what) > Some(&count)).then_some(())
    });
}

/// All kinds of nonsense to the service, and to the ports of the encapsulation.
#[test]
fn garbage_changes_nothing_and_crashes_nothing() {
    let cluster = with_attacker("garbage", ServerKind::Nginx);
    let pids = || {
        let status = cluster.status().unwrap();
        let of = |host: &str, process| status.host(host).unwrap().processes[&process];
        let daemons = [
            ("d1", Process::Dispatch),
            ("b1", Process::Agent),
            ("b2", Process::Agent),
        ];
        daemons.map(|(host, process)| {
            assert!(of(host, process).running, "{host}");
            of(host, process).pid
        })
    };
    let before = pids();
    serves_during(&cluster, || {
        let sender = RawSender::open();
        let mut dice = Dice::new(2);
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        let source = "10.77.0.2:4000".parse().unwrap();
        for number in 0..30_000_u64 {
            // Random segments: any flags, options and lengths.
            let mut packet = Segment {
                source,
                destination: VIP.into(),
                header: Header {
                    seq: dice.below(1 << 32) as u32,
                    ack: dice.below(1 << 32) as u32,
                    flags: Flags::from_bits(dice.below(256) as u8),
                    window: dice.below(1 << 16) as u16,
                    ..Header::default()
                },
                payload: Content::new(number, dice.below(200) as u64).bytes(),
            }
            .to_packet();
            // Broken behind the addresses, where the sender's kernel lets it.
            for _ in 0..dice.below(4) {
                let at = 20 + dice.below(packet.len() - 20);
                packet[at] = dice.below(256) as u8;
            }
            let _ = sender.send(&packet);
            let host = ["10.77.0.11", "10.77.0.21", "10.77.0.22"][dice.below(3)];
            let bytes = Content::new(!number, dice.below(300) as u64).bytes();
            let _ = socket.send_to(&bytes, (host, ENCAPSULATED));
        }
    });
    assert_eq!(pids(), before);
    let d1 = cluster.dispatcher();
    assert!(
        d1.of("bad-cookie") > 1000 && d1.of("bad-flags") > 1000,
        "{d1:?}"
    );
    expect_counted(&cluster, "rejected", 1000);
}

/// IP packets that arrive at a host while `work` goes on.
fn capture(
    cluster: &Cluster,
    host: &str,
    is_wanted: fn(&[u8]) -> bool,
    work: impl FnOnce(),
) -> Vec<Vec<u8>> {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _raised = Raised(&stop);
        let (ready, is_ready) = std::sync::mpsc::channel();
        let stop = &stop;
        let capturing = scope.spawn(move || {
            cluster.on(host, || {
                let socket = PacketSocket::open("eth0").unwrap();
                ready.send(()).unwrap();
                let (mut batch, mut packets) = (Batch::default(), Vec::new());
                while !stop.load(Ordering::Relaxed) {
                    socket.wait(Some(Duration::from_millis(20))).unwrap();
                    socket.receive(&mut batch).unwrap();
                    let of_ip = batch.frames().filter_map(|frame| frame.get(14..));
                    packets.extend(of_ip.filter(|ip| is_wanted(ip)).map(<[u8]>::to_vec));
                }
                packets
            })
        });
        is_ready.recv().unwrap();
        work();
        std::thread::sleep(Duration::from_millis(50));
        stop.store(true, Ordering::Relaxed);
        capturing.join().unwrap()
    })
}

fn is_encapsulated(ip: &[u8]) -> bool {
    ipv4::Packet::parse(ip).is_ok_and(|packet| {
        packet.protocol() == ipv4::PROTOCOL_UDP
            && packet.payload().get(2..4) == Some(&ENCAPSULATED.to_be_bytes()[..])
    })
}

/// How many requests b1's server has seen, with this question.
fn count(cluster: &Cluster, backend: &str) -> u64 {
    let said = cluster.run("d1", &["curl", "-sS", &format!("http://{backend}/count")]);
    let value: serde_json::Value = serde_json::from_str(&said).unwrap();
    value["requests"].as_u64().unwrap()
}

#[test]
fn forged_and_replayed_packets_to_a_backend_run_nothing() {
    let cluster = with_attacker("forged", ServerKind::Python);
    let packets = capture(&cluster, "b1", is_encapsulated, || {
        cluster.on("c1", || {
            for number in 0..9 {
                let mut client = Connection::open();
                let head = format!(
                    "POST /upload/{number} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok"
                );
                assert_eq!(client.send(head).response().status, 201);
                client.expect_end();
            }
        });
    });
    let starts = packets
        .iter()
        .filter(|p| p.windows(5).any(|w| w == b"POST "))
        .count();
    assert!(starts >= 3, "{starts} requests captured");
    let (before, counted) = (count(&cluster, "10.77.0.21"), cluster.agent("b1"));
    cluster.on("c2", || {
        let sender = RawSender::open();
        let mut dice = Dice::new(5);
        for packet in &packets {
            // As it was: the request has run, and its connection has ended.
            for _ in 0..20 {
                sender.send(packet).unwrap();
            }
            // Another client's, with a tag that was made for this one.
            let mut forged = packet.clone();
            forged[ENCAP_LEN + 15] ^= 7;
            sender.send(&forged).unwrap();
            // A bit here and there in all that the tag protects: Geneve and its option.
            for _ in 0..200 {
                let mut mutated = packet.clone();
                let at = 28 + dice.below(44);
                mutated[at] ^= 1 << dice.below(8);
                sender.send(&mutated).unwrap();
            }
        }
    });
    std::thread::sleep(Duration::from_millis(300));
    // One more: the question before.
    assert_eq!(count(&cluster, "10.77.0.21"), before + 1);
    let agent = cluster.agent("b1") - counted;
    assert_eq!(agent.of("rebuilt"), 0, "{agent:?}");
    assert!(
        agent.of("bad-tag") > 100 && agent.of("ghost") > 0,
        "{agent:?}"
    );
    cluster.on("c1", || {
        for _ in 0..6 {
            Connection::open().ask("/1k").ok();
        }
    });
}

#[test]
fn replayed_heartbeats_raise_nobody_from_the_dead() {
    let cluster = with_attacker("beats", ServerKind::Nginx);
    let packets = capture(&cluster, "d1", is_encapsulated, || {
        std::thread::sleep(Duration::from_secs(1))
    });
    let of_b1 = packets.into_iter().filter(|p| p[12..16] == [10, 77, 0, 21]);
    // Its sender's card would have completed the UDP checksum; zero is none (RFC 768).
    let without_checksum = |mut packet: Vec<u8>| {
        packet[26..28].fill(0);
        packet
    };
    let of_b1: Vec<_> = of_b1.map(without_checksum).collect();
    assert!(of_b1.len() >= 3, "{}", of_b1.len());
    cluster.kill("b1", None).unwrap();
    let state = || cluster.backend("b1").state;
    until("its silence is noticed", || {
        (state() == "silent").then_some(())
    });
    cluster.on("c2", || {
        let sender = RawSender::open();
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(1500) {
            for packet in &of_b1 {
                sender.send(packet).unwrap();
            }
            assert_eq!(state(), "silent");
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    expect_counted(&cluster, "old-echo-replies", 100);
}

fn is_tcp(ip: &[u8]) -> bool {
    ipv4::Packet::parse(ip).is_ok_and(|packet| packet.protocol() == ipv4::PROTOCOL_TCP)
}

/// The network may repeat a connection's first packet when that connection is
/// over, and even when its port has a new one.
#[test]
fn a_late_copy_of_a_request_runs_nothing_and_ends_nothing() {
    let cluster = with_attacker("late", ServerKind::Python);
    let total = || {
        ["21", "22", "23"]
            .map(|n| count(&cluster, &format!("10.77.0.{n}")))
            .iter()
            .sum::<u64>()
    };
    let connect = || until("the port is free", || Connection::try_to(VIP, 4000).ok());
    let post = |client: &mut Connection| {
        let head = "POST /upload/late HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nok";
        assert_eq!(client.send(head).response().status, 201);
    };
    let replay = |packets: &[Vec<u8>], is_wanted: &dyn Fn(&[u8]) -> bool| {
        let frames = packets.iter().filter(|packet| is_wanted(packet));
        let frames: Vec<_> = frames.collect();
        assert!(!frames.is_empty());
        cluster.on("c2", || {
            let sender = RawSender::open();
            for frame in &frames {
                sender.send(frame).unwrap();
            }
        });
        std::thread::sleep(Duration::from_millis(200));
    };
    let is_request = |packet: &[u8]| packet.windows(5).any(|w| w == b"POST ");
    let is_syn = |packet: &[u8]| packet[33] == 0x02;
    cluster.run("c1", &["ethtool", "-K", "eth0", "tx", "off"]);

    let first = capture(&cluster, "d1", is_tcp, || {
        cluster.on("c1", || {
            let mut client = connect();
            post(&mut client);
            client.abort();
        });
    });
    let before = total();
    std::thread::sleep(Duration::from_secs(3));
    replay(&first, &is_request);
    // The question before counts three.
    assert_eq!(total(), before + 3, "after its end");

    let mut client = None;
    let second = capture(&cluster, "d1", is_tcp, || {
        client = Some(cluster.on("c1", || {
            let mut client = connect();
            post(&mut client);
            client
        }));
    });
    let before = total();
    // A copy of the new connection's SYN makes the data path look twice.
    replay(&second, &is_syn);
    replay(&first, &is_request);
    assert_eq!(total(), before + 3, "under a new connection");
    let client = client.as_mut().unwrap();
    post(client);
    // The same with a copy of the old one's SYN.
    replay(&first, &is_syn);
    post(client);
    assert_eq!(total(), before + 8, "just its own two, and two questions");
}

/// Anyone can send a SYN, a RST or a FIN in somebody's name.
#[test]
fn forged_segments_of_an_established_flow_do_not_end_it() {
    let cluster = with_attacker("blind", ServerKind::Nginx);
    let document = cluster.document("1m");
    cluster.on("c1", || {
        let mut client = Connection::open();
        client.ask("/1k").ok();
        let port = client.port();
        for round in 0..10 {
            cluster.on("c2", || {
                let sender = RawSender::open();
                let mut dice = Dice::new(round);
                for number in 0..400 {
                    let flags = [
                        Flags::SYN,
                        Flags::RST,
                        Flags::RST | Flags::ACK,
                        Flags::FIN | Flags::ACK,
                        Flags::ACK,
                    ];
                    let forged = Segment {
                        source: format!("10.77.0.1:{port}").parse().unwrap(),
                        destination: VIP.into(),
                        header: Header {
                            seq: dice.below(1 << 32) as u32,
                            ack: dice.below(1 << 32) as u32,
                            flags: flags[number % flags.len()],
                            window: 1000,
                            ..Header::default()
                        },
                        payload: if number % 5 == 4 {
                            b"GET / HTTP/1.1\r\n\r\n".to_vec()
                        } else {
                            Vec::new()
                        },
                    };
                    sender.send_segment(&forged).unwrap();
                }
            });
            same(&client.ask("/1m").body, &document);
        }
    });
    let agents = cluster.agents();
    let taken = agents.of("rebuilt") + agents.of("resumed");
    assert_eq!(taken, 11, "once for each request");
    let active: u64 = ["b1", "b2", "b3"]
        .iter()
        .map(|b| cluster.backend(b).active)
        .sum();
    assert!(active <= 1, "{active}");
}
