//! How long clients stand still when the power of a dispatcher is cut, by heartbeat and by what they do
//! [SPLICE06 §7.3]. Their link is slow enough to leave processors idle, as the paper's were.
//!
//! `cargo build --release -p trapeze-cli`, then `cargo bench -p trapeze-tests --bench stalls`, as
//! root; `-- CUTS TRANSFER` for another number than 4 and another transfer than rebuild.

use std::io::{self, Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use trapeze_lab::LinkSettings;
use trapeze_tests::downloads::{Gap, stall};
use trapeze_tests::scattered::ready;
use trapeze_tests::{Cluster, Connection, Raised};

const CUTS: usize = 4;
const CLIENTS: usize = 24;
const DISPATCHERS: [&str; 2] = ["d1", "d2"];
const HEARTBEATS: [u64; 2] = [10, 200];
const MODES: [&str; 2] = ["flow-hash", "batch"];
/// Each cut is looked at for so long.
const BEHIND: Duration = Duration::from_secs(3);
/// Bits a second of the clients' link.
const RATE: u64 = 400_000_000;
/// Frames that may wait for it.
const QUEUE: usize = 200;
const UPLOAD: usize = 10_000_000;
/// Of a client's socket, in bytes.
const BUFFER: usize = 128 << 10;

/// What clients do, over and over.
#[derive(Clone, Copy)]
enum Work {
    Requests,
    Connections,
    Downloads,
    Uploads,
}

const WORKS: [(Work, &str); 4] = [
    (Work::Requests, "requests of 1 KiB, kept alive"),
    (Work::Connections, "requests of 1 KiB, a connection each"),
    (Work::Downloads, "downloads of 10 MiB"),
    (Work::Uploads, "uploads of 10 MB"),
];

fn main() {
    let cuts = std::env::args().find_map(|arg| arg.parse().ok());
    let cuts: usize = cuts.unwrap_or(CUTS);
    let transfers = ["rebuild", "splice", "split-splice"];
    let transfer = std::env::args().find(|arg| transfers.contains(&&**arg));
    let transfer = transfer.unwrap_or_else(|| "rebuild".into());
    for heartbeat in HEARTBEATS {
        for mode in MODES {
            let cluster = cluster(mode, &transfer, heartbeat);
            println!(
                "{transfer}, sprayed by {mode}, heartbeats of {heartbeat} ms; stalls in ms (p50 p90 p99 longest):"
            );
            for (work, name) in WORKS {
                let [quiet, stalls] = cut(&cluster, work, cuts);
                println!(
                    "  {name:34} {}, longest of {}; without a cut {}",
                    shown(&stalls),
                    stalls.len(),
                    shown(&quiet)
                );
            }
        }
    }
}

fn cluster(mode: &str, transfer: &str, heartbeat: u64) -> Cluster {
    let cluster = Cluster::with(&format!("stalls-{heartbeat}"), |options| {
        options.sprays = Some(1);
        options.spray_mode = Some(mode.into());
        options.dispatchers = Some(DISPATCHERS.len() as u8);
        options.backends = Some(2);
        options.transfer = Some(transfer.into());
        options.spray_heartbeat = Some(Duration::from_millis(heartbeat));
    });
    for dispatcher in DISPATCHERS {
        ready(&cluster, &DISPATCHERS, dispatcher);
    }
    let slow = LinkSettings {
        rate: Some(RATE),
        // Else what waits for the link is a stall.
        limit: QUEUE,
        ..LinkSettings::default()
    };
    cluster.link("c1", &slow).expect("a link");
    cluster
}

/// Of what is in order: median, 90th and 99th percentile, and the longest.
fn shown(stalls: &[f64]) -> String {
    let at = |share: f64| stalls[((stalls.len() as f64 * share).ceil() as usize).max(1) - 1];
    let shown = [0.5, 0.9, 0.99, 1.0].map(|share| format!("{:5.0}", at(share)));
    shown.join(" ")
}

/// The longest time in which each client had nothing, before any cut and for each cut, in milliseconds and in order.
fn cut(cluster: &Cluster, work: Work, cuts: usize) -> [Vec<f64>; 2] {
    let stop = AtomicBool::new(false);
    let mut moments = Vec::new();
    let gaps: Vec<Vec<Gap>> = std::thread::scope(|scope| {
        let _raised = Raised(&stop);
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| {
                let stop = &stop;
                scope.spawn(move || cluster.on("c1", || work.go_on(number, stop)))
            })
            .collect();
        std::thread::sleep(Duration::from_secs(1));
        moments.push(Instant::now());
        std::thread::sleep(BEHIND + Duration::from_secs(1));
        for cut in 0..cuts {
            let victim = DISPATCHERS[cut % DISPATCHERS.len()];
            moments.push(Instant::now());
            cluster.kill(victim, None).expect("it is on");
            std::thread::sleep(BEHIND);
            cluster.start(victim, None).expect("it starts");
            ready(cluster, &DISPATCHERS, victim);
            std::thread::sleep(Duration::from_secs(1));
        }
        stop.store(true, Ordering::Relaxed);
        let ends = clients.into_iter().map(|client| client.join());
        ends.map(|end| end.expect("no transfer fails")).collect()
    });
    let (quiet, cuts) = moments.split_at(1);
    [quiet, cuts].map(|moments| {
        let each = moments.iter().flat_map(|&moment| {
            let stalls = gaps.iter().map(move |gaps| stall(gaps, moment, BEHIND));
            stalls.map(|stall| stall.as_secs_f64() * 1e3)
        });
        let mut stalls: Vec<f64> = each.collect();
        stalls.sort_by(f64::total_cmp);
        stalls
    })
}

/// Times at which something came, or went.
struct Pulse {
    last: Instant,
    gaps: Vec<Gap>,
}

impl Pulse {
    fn beat(&mut self) {
        let now = Instant::now();
        self.gaps.push(Gap {
            from: self.last,
            to: now,
        });
        self.last = now;
    }
}

impl Work {
    fn go_on(self, number: usize, stop: &AtomicBool) -> Vec<Gap> {
        let mut pulse = Pulse {
            last: Instant::now(),
            gaps: Vec::new(),
        };
        let mut kept = Connection::open();
        // Else a write may wait for a third of megabytes to go.
        let socket = socket2::SockRef::from(kept.stream());
        socket.set_send_buffer_size(BUFFER).expect("SO_SNDBUF");
        let path = format!("/upload/stalls{number}");
        while !stop.load(Ordering::Relaxed) {
            match self {
                Work::Requests => {
                    kept.ask("/1k");
                    std::thread::sleep(Duration::from_millis(3));
                }
                Work::Connections => {
                    Connection::open().ask("/1k");
                    std::thread::sleep(Duration::from_millis(20));
                }
                Work::Downloads => download(&mut kept, &mut pulse).expect("it is answered"),
                Work::Uploads => upload(&mut kept, &path, &mut pulse).expect("it is answered"),
            }
            pulse.beat();
        }
        pulse.gaps
    }
}

fn download(kept: &mut Connection, pulse: &mut Pulse) -> io::Result<()> {
    kept.try_send("GET /10m HTTP/1.1\r\nHost: a\r\n\r\n")?;
    let head = kept.try_response(false)?;
    let length = head.header("content-length").and_then(|it| it.parse().ok());
    let mut left: usize = length.expect("a length");
    let had = kept.unread().len();
    kept.skip(had)?;
    left -= had;
    let mut piece = vec![0; 64 << 10];
    while left > 0 {
        let most = piece.len().min(left);
        match kept.stream().read(&mut piece[..most])? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => left -= count,
        }
        pulse.beat();
    }
    Ok(())
}

fn upload(kept: &mut Connection, path: &str, pulse: &mut Pulse) -> io::Result<()> {
    kept.try_send(format!(
        "PUT {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {UPLOAD}\r\n\r\n"
    ))?;
    let piece = vec![b'x'; 10_000];
    for _ in 0..UPLOAD / piece.len() {
        kept.stream().write_all(&piece)?;
        pulse.beat();
    }
    let answer = kept.try_response(true)?;
    assert!(answer.status < 300, "{}", answer.head);
    Ok(())
}
