//! Who goes on with an answer, where those that are asked first do not (docs/protocol/takeover.md 4.2, 4.7).

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use socket2::{Domain, Socket, Type};
use trapeze_lab::Process;
use trapeze_tests::saved::{Download, MIB, Site, put};
use trapeze_tests::{Connection, Content, VIP, same, until};

/// A client that hears nothing for so long has failed.
const HANGS: Duration = Duration::from_secs(30);

/// So many that are in progress, and protected.
fn begun(site: &Site, count: usize) -> Vec<Download> {
    let mut downloads: Vec<_> = (0..count).map(|_| site.start()).collect();
    for download in &mut downloads {
        download.read(2 * MIB).unwrap();
    }
    site.await_protection(count);
    downloads
}

/// Each comes whole.
fn finish(site: &Site, downloads: Vec<Download>) {
    for mut download in downloads {
        download.finish().unwrap();
        same(&download.body, &site.large);
    }
}

/// The next one dies before it is known to be dead: of those that are well none is left out.
#[test]
fn one_that_dies_when_it_is_asked_costs_no_answer() {
    let site = Site::up("take-next", 3);
    let downloads = begun(&site, 9);
    site.cluster.kill("b1", None).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    site.cluster.kill("b2", None).unwrap();
    finish(&site, downloads);
    assert_eq!(site.count("not-taken-over"), 0);
}

/// The only one has no agent for a while: its data path answers heartbeats all the same.
#[test]
fn one_whose_agent_is_being_replaced_is_waited_for() {
    let site = Site::up("take-replaced", 2);
    let downloads = begun(&site, 4);
    site.cluster.kill("b2", Some(Process::Agent)).unwrap();
    site.cluster.kill("b1", None).unwrap();
    until("it was asked in vain", || {
        (site.count("refusals") > 2).then_some(())
    });
    site.cluster.start("b2", Some(Process::Agent)).unwrap();
    finish(&site, downloads);
    assert_eq!(site.count("not-taken-over"), 0);
}

/// A daemon that dies is followed by one that goes on telling of what had begun before: else the dispatcher would
/// forget it.
#[test]
fn answers_are_protected_after_their_agents_restart() {
    let site = Site::up("take-restarted", 2);
    let config =
        site.cluster.config() + "[limits]\nupdate_interval = \"200ms\"\ncache_timeout = \"1s\"\n";
    site.cluster.reload("d1", Process::Dispatch, &config);
    for name in ["b1", "b2"] {
        site.cluster.reload(name, Process::Agent, &config);
    }
    let downloads = begun(&site, 4);
    // What is known is written down twice a second.
    std::thread::sleep(Duration::from_secs(1));
    for name in ["b1", "b2"] {
        site.cluster.kill(name, Some(Process::Agent)).unwrap();
    }
    site.await_protection(0);
    for name in ["b1", "b2"] {
        site.cluster.start(name, Some(Process::Agent)).unwrap();
    }
    site.await_protection(4);
    site.cluster.kill("b1", None).unwrap();
    finish(&site, downloads);
    assert_eq!(site.count("not-taken-over"), 0);
    assert!(site.count("taken-over") > 0);
}

/// What waits for something in the kernel hears of that when the process goes on.
#[test]
fn answers_are_protected_after_their_agent_has_been_stopped_for_a_moment() {
    let site = Site::up("take-stopped", 2);
    for name in ["b1", "b2"] {
        for signal in ["-STOP", "-CONT"] {
            site.cluster.signal(name, Process::Agent, signal);
            std::thread::sleep(Duration::from_millis(300));
        }
    }
    let downloads = begun(&site, 4);
    site.await_protection(4);
    site.cluster.kill("b1", None).unwrap();
    finish(&site, downloads);
    assert_eq!(site.count("not-taken-over"), 0);
    assert!(site.count("taken-over") > 0);
}

/// More at once than a listener has room for by default, and than processes may have files.
#[test]
fn a_thousand_answers_are_gone_on_with_at_once() {
    const CLIENTS: usize = 1000;
    let site = Site::up("take-many", 2);
    site.cluster.kill("b2", None).unwrap();
    let body = Content::new(3, 1_200_000).bytes();
    put(site.root.path(), "file", &body);
    until("the other one has them all", || {
        (site.cluster.backend("b2").state == "silent").then_some(())
    });
    let mut clients: Vec<_> = site.cluster.on("c1", || {
        (0..CLIENTS).map(|_| with_a_small_window()).collect()
    });
    for client in &mut clients {
        write!(
            client,
            "GET /file HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
        )
        .unwrap();
    }
    site.await_protection(CLIENTS);
    site.cluster.start("b2", None).unwrap();
    until("it is up", || {
        (site.cluster.backend("b2").state == "up").then_some(())
    });
    site.cluster.kill("b1", None).unwrap();
    std::thread::scope(|scope| {
        for some in clients.chunks_mut(CLIENTS / 20) {
            scope.spawn(|| {
                for client in some {
                    let mut answer = Vec::new();
                    client.read_to_end(&mut answer).unwrap();
                    same(&answer[answer.len() - body.len()..], &body);
                }
            });
        }
    });
    assert_eq!(site.count("not-taken-over"), 0);
}

/// A connection of which the server can be far ahead.
fn with_a_small_window() -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.set_recv_buffer_size(32 << 10).unwrap();
    socket.connect(&SocketAddr::from(VIP).into()).unwrap();
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(HANGS)).unwrap();
    stream
}

/// The same with a server that sleeps: its host is well, and nobody checks it.
#[test]
fn one_whose_server_sleeps_costs_no_answer() {
    let site = Site::up("take-asleep", 3);
    let mut downloads = begun(&site, 6);
    let asleep = downloads.iter().position(|one| one.owner == "b2").unwrap();
    let mut asleep = downloads.swap_remove(asleep);
    site.cluster.signal_server("b2", "-STOP");
    site.cluster.kill("b1", None).unwrap();
    downloads.retain(|one| one.owner != "b2");
    finish(&site, downloads);
    site.cluster.signal_server("b2", "-CONT");
    asleep.finish().unwrap();
    same(&asleep.body, &site.large);
    assert_eq!(site.count("not-taken-over"), 0);
}

/// Its bytes end at the same place everywhere, long before its head says: its client is told in the end.
#[test]
fn an_answer_that_nobody_can_finish_is_not_gone_on_with_for_ever() {
    let site = Site::up("take-short", 2);
    let asked = served_in_parts(
        &site,
        |from| PART.saturating_sub(from),
        |download| {
            download.finish().unwrap_err();
            same(&download.body, &vec![b'x'; PART]);
        },
    );
    assert!((2..=6).contains(&asked), "{asked} requests");
    until("that is counted", || {
        (site.count("not-taken-over") == 1).then_some(())
    });
}

/// Each time the server closes in the midst, but further on: who goes on with it asks that server again.
#[test]
fn a_server_that_gets_further_each_time_is_asked_until_the_end() {
    let site = Site::up("take-further", 2);
    let asked = served_in_parts(
        &site,
        |from| PART.min(WHOLE - from),
        |download| {
            download.finish().unwrap();
            same(&download.body, &vec![b'x'; WHOLE]);
        },
    );
    assert_eq!(asked, WHOLE / PART);
    site.await_taken(1);
}

/// A download from servers that give so much of it from a place on, and close; how often they were asked.
fn served_in_parts(site: &Site, part: fn(usize) -> usize, read: fn(&mut Download)) -> usize {
    let asked = Arc::new(AtomicUsize::new(0));
    let stop = Arc::new(AtomicBool::new(false));
    let servers = ["b1", "b2"].map(|name| {
        site.cluster.kill(name, Some(Process::Server)).unwrap();
        let (asked, stop) = (asked.clone(), stop.clone());
        site.cluster
            .spawn(name, move || serve_in_parts(part, &asked, &stop))
    });
    // The dispatcher may have been refused meanwhile.
    std::thread::sleep(Duration::from_millis(1200));
    let mut download = site
        .cluster
        .on("c1", || Download::start(Connection::open()));
    read(&mut download);
    stop.store(true, Ordering::Relaxed);
    for server in servers {
        server.join().unwrap();
    }
    asked.load(Ordering::Relaxed)
}

/// What there is of it, or at a time.
const PART: usize = MIB;
const WHOLE: usize = 4 * MIB;

fn serve_in_parts(part: fn(usize) -> usize, asked: &AtomicUsize, stop: &AtomicBool) {
    let listener = TcpListener::bind("0.0.0.0:80").unwrap();
    listener.set_nonblocking(true).unwrap();
    while !stop.load(Ordering::Relaxed) {
        match listener.accept() {
            Ok((stream, _)) => answer_with_a_part(stream, part, asked),
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

fn answer_with_a_part(mut stream: TcpStream, part: fn(usize) -> usize, asked: &AtomicUsize) {
    stream.set_nonblocking(false).unwrap();
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        if stream.read_exact(&mut byte).is_err() {
            return;
        }
        request.push(byte[0]);
    }
    asked.fetch_add(1, Ordering::Relaxed);
    let request = String::from_utf8(request).unwrap();
    let from = request.split_once("ange: bytes=").map_or(0, |(_, range)| {
        range.split('-').next().unwrap().parse().unwrap()
    });
    let status = match from {
        0 => "200 OK".into(),
        _ => format!(
            "206 Partial Content\r\nContent-Range: bytes {from}-{}/{WHOLE}",
            WHOLE - 1
        ),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nETag: \"e\"\r\nX-Backend: b\r\nContent-Length: {}\r\n\r\n",
        WHOLE - from
    );
    let part = vec![b'x'; part(from)];
    // Its client may be gone.
    let _ = stream.write_all(head.as_bytes());
    let _ = stream.write_all(&part);
    // Until it is known to be in progress.
    if from == 0 {
        std::thread::sleep(Duration::from_millis(300));
    }
}
