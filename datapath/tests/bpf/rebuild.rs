//! Packets at a backend whose sockets count: what is rebuilt, given back, let
//! through or removed. `on_the_wire` the agent is attached to the loopback
//! device, and the kernel's TCP has the last word.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use trapeze_core::wire::meta::{Kind, Meta, Refusal};
use trapeze_datapath::abi::{Server, ServerKey};
use trapeze_datapath::diag;
use trapeze_datapath::map::Update;

use crate::agent::{INNER_AT, META_AT, START, forward};
use crate::backend::*;
use crate::bench::*;
use crate::handoff::wait_for;
use crate::outcome::{Outcome, Verdict};
use crate::packet::*;

/// A server's listener, and the request that would start on it.
fn listener(agent: &Agent, at: SocketAddrV4) -> TcpListener {
    let port = ServerKey {
        port: 8080u16.to_be_bytes(),
        pad: 0,
    };
    let server = Server {
        addr: trapeze_core::flow::addr_bytes(Ipv4Addr::LOCALHOST.into()),
    };
    agent.maps.servers.put(&port, &server, Update::Any).unwrap();
    TcpListener::bind(at).expect("this namespace is empty")
}

#[test]
fn a_listener_gets_the_connection_once() {
    let agent = Agent::on_the_wire();
    let any = |port| SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, port);
    let local = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 8080);
    for (what, at, server_port, port) in [
        ("on the service address", VIP, 0, 50001),
        ("on all addresses", any(80), 0, 50002),
        ("on a port of its own", any(8081), 8081, 50003),
        ("on a port and address of its own", local, 8080, 50004),
    ] {
        let meta = Meta {
            server_port,
            ..meta(Kind::Forward, EPOCH, START)
        };
        let mut request = request();
        request.source.set_port(port);
        let frame = sealed(&meta, &request.packet());
        let got = agent.run(&agent.ingress, &frame);
        assert_eq!(got.verdict, Verdict::SendBack, "{what}: nobody listens yet");
        let setup = agent.setup(&request).expect("it is remembered");
        assert_eq!((setup.epoch, setup.state), (EPOCH, REFUSED), "{what}");

        let server = listener(&agent, at);
        let late = agent.run(&agent.ingress, &frame);
        let given_back = Outcome {
            counted: vec!["refused"],
            ..got
        };
        assert_eq!(late.difference(&given_back), None, "{what}: a late copy");

        let (meta, epoch) = (
            Meta {
                epoch: EPOCH + 1,
                ..meta
            },
            EPOCH + 1,
        );
        let frame = sealed(&meta, &request.packet());
        // TCP acknowledges the payload at once, which confirms the socket.
        agent.receive(what, &frame, &["received", "rebuilt", "confirmed"]);
        let setup = agent.setup(&request).expect("it is remembered");
        assert_eq!(
            (setup.epoch, setup.start, setup.state),
            (epoch, START, CONFIRMED)
        );
        assert_eq!(setup.meta, frame[META_AT..INNER_AT]);

        let mut stream = accept(&server);
        assert_eq!(stream.peer_addr().unwrap(), request.source.into(), "{what}");
        assert_eq!(stream.local_addr().unwrap(), VIP.into(), "{what}");
        let mut bytes = [0; 100];
        let length = stream.read(&mut bytes).unwrap();
        assert_eq!(&bytes[..length], REQUEST, "{what}");

        agent.receive("again: TCP sorts it out", &frame, &["received"]);
        stream.write_all(b"HTTP/1.1 204 No Content").unwrap();
        stream.set_nonblocking(true).unwrap();
        let nothing = stream.read(&mut bytes).unwrap_err();
        assert_eq!(
            nothing.kind(),
            std::io::ErrorKind::WouldBlock,
            "{what}: once only"
        );
    }
}

#[test]
fn a_full_accept_queue_gives_the_request_back() {
    let agent = Agent::on_the_wire();
    let server = listener(&agent, VIP);
    shorten_queue(&server);
    let mut waiting = Vec::new();
    for _ in 0..2 {
        waiting.push(TcpStream::connect(VIP).unwrap());
    }
    let meta = meta(Kind::Refused(Refusal::AcceptQueueFull), EPOCH, START);
    let counted = ["accept-queue-full", "refused"];
    let expected = Outcome::new(Verdict::SendBack, reply(&meta, &request()), &counted);
    agent.expect("full", &forward(&request()), &expected);
    server.accept().unwrap();
    server.accept().unwrap();
    let rebuilt = ["received", "rebuilt", "confirmed"];
    agent.receive("room again", &forward(&request()), &rebuilt);
}

#[test]
fn a_kernel_without_cookies_gives_the_request_back() {
    let agent = Agent::on_the_wire();
    let _server = listener(&agent, VIP);
    let cookies = |on: &str| std::fs::write("/proc/sys/net/ipv4/tcp_syncookies", on).unwrap();
    cookies("0");
    let meta = meta(Kind::Refused(Refusal::NoListener), EPOCH, START);
    let counted = ["not-rebuilt", "refused"];
    let expected = Outcome::new(Verdict::SendBack, reply(&meta, &request()), &counted);
    agent.expect("off", &forward(&request()), &expected);
    let setup = agent.setup(&request()).expect("it is remembered");
    assert_eq!((setup.epoch, setup.state), (EPOCH, REFUSED));
    for on in ["1", "2"] {
        cookies(on);
        agent.forget();
        let mut request = request();
        request.source.set_port(50_000 + on.parse::<u16>().unwrap());
        let rebuilt = ["received", "rebuilt", "confirmed"];
        agent.receive("on again", &forward(&request), &rebuilt);
    }
}

/// listen(2) again, with the least backlog that holds one connection.
fn shorten_queue(server: &TcpListener) {
    // SAFETY: no pointers.
    assert_eq!(unsafe { libc::listen(server.as_raw_fd(), 1) }, 0);
}

/// A connection that stands here; the client's first byte is still to come.
struct Standing {
    server: TcpListener,
    accepted: TcpStream,
    stream: TcpStream,
    next: Tcp,
}

fn standing(agent: &Agent, server: TcpListener) -> Standing {
    let stream = TcpStream::connect(VIP).unwrap();
    let (accepted, _) = server.accept().unwrap();
    let SocketAddr::V4(client) = stream.local_addr().unwrap() else {
        panic!("IPv4");
    };
    let mut next = segment(ACK | PSH, 0, 0, REQUEST);
    next.source = client;
    next.seq = expected_seq(agent, &next);
    Standing {
        server,
        accepted,
        stream,
        next,
    }
}

/// What the socket expects next, as a probe tells.
fn expected_seq(agent: &Agent, of: &Tcp) -> u32 {
    agent.put_setup(of, EPOCH, 0, TRIED);
    let probe = sealed(&meta(Kind::Probe, EPOCH, 0), &of.packet());
    let got = agent.run(&agent.ingress, &probe);
    agent.forget();
    let answer = got.packet.expect("an answer");
    assert_eq!(answer[META_AT + 1], 4, "a probe's answer");
    u32::from_be_bytes(*answer[META_AT + 20..].first_chunk().unwrap())
}

pub fn set_option(stream: &TcpStream, level: i32, option: i32, value: i32) {
    let length = size_of_val(&value) as libc::socklen_t;
    // SAFETY: the call reads a variable that outlives it.
    let done = unsafe {
        libc::setsockopt(
            stream.as_raw_fd(),
            level,
            option,
            (&raw const value).cast(),
            length,
        )
    };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
}

/// What the socket sends next (tcp(7), TCP_REPAIR).
fn next_to_send(stream: &TcpStream) -> u32 {
    const SEND_QUEUE: i32 = 2;
    const OFF_WITHOUT_PROBE: i32 = -1;
    let fd = stream.as_raw_fd();
    let set = |option, value| set_option(stream, libc::IPPROTO_TCP, option, value);
    set(libc::TCP_REPAIR, 1);
    set(libc::TCP_REPAIR_QUEUE, SEND_QUEUE);
    let mut seq = 0u32;
    let mut length = size_of_val(&seq) as libc::socklen_t;
    // SAFETY: the call writes at most `length` bytes into a variable that outlives it.
    let done = unsafe {
        libc::getsockopt(
            fd,
            libc::IPPROTO_TCP,
            libc::TCP_QUEUE_SEQ,
            (&raw mut seq).cast(),
            &raw mut length,
        )
    };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    set(libc::TCP_REPAIR, OFF_WITHOUT_PROBE);
    seq
}

/// The agent's table, where a connection stands.
#[test]
fn with_a_socket() {
    let agent = Agent::new();
    let server = listener(&agent, VIP);
    let standing = standing(&agent, server);
    let (request, seq) = (&standing.next, standing.next.seq);
    let more = Tcp {
        seq: seq.wrapping_add(9),
        ..request.clone()
    };
    let frame = |tcp: &Tcp| sealed(&meta(Kind::Forward, EPOCH, seq), &tcp.packet());
    type Known = Option<(u32, u32, u32)>;
    let up = |tcp: &Tcp| delivered(&tcp.packet(), &["received"]);
    let early = Outcome::drop("early");
    let table: [(&str, Known, &Tcp, Outcome, u32); 7] = [
        ("a start, forgotten", None, request, up(request), CONFIRMED),
        (
            "a start, tried",
            Some((EPOCH, seq, TRIED)),
            request,
            up(request),
            CONFIRMED,
        ),
        (
            "a start, confirmed",
            Some((EPOCH, seq, CONFIRMED)),
            request,
            up(request),
            CONFIRMED,
        ),
        ("more, forgotten", None, &more, up(&more), CONFIRMED),
        (
            "more, tried",
            Some((EPOCH, seq, TRIED)),
            &more,
            up(&more),
            CONFIRMED,
        ),
        (
            "more, confirmed",
            Some((EPOCH, seq, CONFIRMED)),
            &more,
            up(&more),
            CONFIRMED,
        ),
        (
            "more, an older one",
            Some((EPOCH - 1, seq, CONFIRMED)),
            &more,
            early,
            CONFIRMED,
        ),
    ];
    for (what, known, tcp, expected, state) in table {
        agent.forget();
        if let Some((epoch, start, state)) = known {
            agent.put_setup(tcp, epoch, start, state);
        }
        agent.expect(what, &frame(tcp), &expected);
        assert_eq!(agent.setup(tcp).map(|s| s.state), Some(state), "{what}");
    }
}

/// The socket of an older connection stands in the way: the packet goes round
/// once more, and in its place comes the RST that the socket must believe.
#[test]
fn a_leftover_is_removed() {
    let agent = Agent::new();
    let server = listener(&agent, VIP);
    let standing = standing(&agent, server);
    let expected = standing.next.seq;
    let request = Tcp {
        seq: START,
        options: timestamps(1, 2),
        ..standing.next.clone()
    };
    agent.put_setup(&request, EPOCH - 1, START, CONFIRMED);
    let got = agent.run(&agent.ingress, &forward(&request));
    let mut reset = Tcp {
        seq: expected,
        flags: RST,
        options: Vec::new(),
        payload: [request.options.clone(), request.payload.clone()].concat(),
        ..request.clone()
    }
    .frame();
    // The IP header is the request's; only TCP's is another.
    let ip = request.frame();
    reset[..TCP_AT].copy_from_slice(&ip[..TCP_AT]);
    let wanted = Outcome::new(Verdict::Pass, reset, &["replaced"]);
    assert_eq!(got.difference(&wanted), None);
}

/// Of its flow nothing is known here any more, and others have had requests of it since: its client has
/// acknowledged more than this socket has said.
#[test]
fn what_its_flow_has_left_is_no_place_to_come_back_to() {
    let agent = Agent::new();
    let server = listener(&agent, VIP);
    let standing = standing(&agent, server);
    (&standing.stream).write_all(REQUEST).unwrap();
    let mut bytes = [0; 100];
    let length = (&standing.accepted).read(&mut bytes).unwrap();
    assert_eq!(&bytes[..length], REQUEST);
    let start = expected_seq(&agent, &standing.next);
    let request = Tcp {
        seq: start,
        ack: next_to_send(&standing.accepted).wrapping_add(100),
        ..standing.next.clone()
    };
    let frame = |kind, tcp: &Tcp| sealed(&meta(kind, EPOCH, start), &tcp.packet());
    let more = Tcp {
        seq: start.wrapping_add(9),
        ..request.clone()
    };
    agent.expect(
        "more",
        &frame(Kind::Forward, &more),
        &Outcome::drop("early"),
    );
    assert_eq!(agent.setup(&request).map(|s| s.state), None);
    for (kind, event) in [(Kind::Forward, "replaced"), (Kind::Forsake, "forsaken")] {
        let got = agent.run(&agent.ingress, &frame(kind, &request));
        assert_eq!((got.verdict, got.counted), (Verdict::Pass, vec![event]));
        let reset = got.packet.expect("a reset");
        assert_eq!(reset[TCP_AT + 4..TCP_AT + 8], start.to_be_bytes());
        assert_eq!(reset[TCP_AT + 13], RST);
    }
    // The word of before comes late: the request stands there.
    let began = Tcp {
        seq: standing.next.seq,
        ..request.clone()
    };
    let first = sealed(&meta(Kind::Forward, EPOCH, began.seq), &began.packet());
    let up = delivered(&began.packet(), &["received"]);
    agent.expect("its own start", &first, &up);
}

/// And what that is good for: the new connection is built in its place.
#[test]
fn a_leftover_makes_room_for_the_new_connection() {
    let agent = Agent::on_the_wire();
    let server = listener(&agent, VIP);
    let standing = standing(&agent, server);
    let request = Tcp {
        seq: START,
        ack: SERVER_ISN + 1,
        ..standing.next.clone()
    };
    agent.put_setup(&request, EPOCH - 1, START, CONFIRMED);
    let rebuilt = ["received", "rebuilt", "replaced", "confirmed"];
    agent.receive("after a turn", &forward(&request), &rebuilt);
    let mut stream = accept(&standing.server);
    assert_eq!(stream.peer_addr().unwrap(), request.source.into());
    let mut bytes = [0; 100];
    let length = stream.read(&mut bytes).unwrap();
    assert_eq!(&bytes[..length], REQUEST);
    let mut old = &standing.accepted;
    let error = old.read(&mut bytes).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
}

/// Nobody listens any more: a child process that another test is just starting may have
/// the socket for a moment longer.
pub fn stop(server: TcpListener) {
    let port = server.local_addr().unwrap().port();
    drop(server);
    wait_for("nobody listens", || {
        !diag::listening_ports().unwrap().contains(&port)
    });
}

pub fn accept(server: &TcpListener) -> TcpStream {
    server.set_nonblocking(true).unwrap();
    let deadline = Instant::now() + Duration::from_secs(2);
    loop {
        match server.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false).unwrap();
                let limit = Some(Duration::from_secs(2));
                stream.set_read_timeout(limit).unwrap();
                return stream;
            }
            Err(e) => assert!(Instant::now() < deadline, "no connection: {e}"),
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}
