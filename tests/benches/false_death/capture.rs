//! What arrives at each host of a lab, and from whom.

use std::collections::BTreeMap;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use trapeze_datapath::packet_socket::{Batch, PacketSocket};
use trapeze_tests::Cluster;

/// A frame that its host has received.
pub struct Arrival {
    pub at: Duration,
    pub from: String,
    pub to: String,
    /// From its IP header on.
    pub packet: Vec<u8>,
}

/// The hosts by their link addresses.
type Hosts = BTreeMap<[u8; 6], String>;

/// All that arrives at `hosts` while `work` is done, in order.
pub fn capture(
    cluster: &Cluster,
    hosts: &[&str],
    since: Instant,
    work: impl FnOnce(),
) -> Vec<Arrival> {
    let known: Hosts = (hosts.iter())
        .map(|host| (link_address(cluster, host), (*host).to_owned()))
        .collect();
    let known = &known;
    let run = &Run {
        since,
        begun: Barrier::new(hosts.len() + 1),
        over: AtomicBool::new(false),
    };
    let mut all: Vec<Arrival> = std::thread::scope(|scope| {
        let listeners: Vec<_> = (hosts.iter())
            .map(|host| scope.spawn(move || cluster.on(host, || hear(host, known, run))))
            .collect();
        run.begun.wait();
        work();
        run.over.store(true, Ordering::Relaxed);
        (listeners.into_iter())
            .flat_map(|listener| listener.join().expect("its interface is up"))
            .collect()
    });
    all.sort_by_key(|arrival| arrival.at);
    all
}

/// What all that listen have in common.
struct Run {
    since: Instant,
    begun: Barrier,
    over: AtomicBool,
}

fn hear(host: &str, known: &Hosts, run: &Run) -> Vec<Arrival> {
    let socket = PacketSocket::open("eth0").expect("its interface");
    run.begun.wait();
    let mut batch = Batch::default();
    let mut heard = Vec::new();
    while !run.over.load(Ordering::Relaxed) {
        let wait = Some(Duration::from_millis(20));
        socket.wait(wait).expect("its interface is up");
        socket.receive(&mut batch).expect("its interface is up");
        let at = run.since.elapsed();
        heard.extend(batch.frames().filter_map(|frame| {
            let (to, rest) = frame.split_first_chunk::<6>()?;
            let (from, rest) = rest.split_first_chunk::<6>()?;
            // A switch floods what it knows no port for.
            (known.get(to)? == host).then_some(Arrival {
                at,
                from: known.get(from)?.clone(),
                to: host.to_owned(),
                packet: rest.strip_prefix(&[0x08, 0x00])?.to_vec(),
            })
        }));
    }
    heard
}

/// As its frames have it.
fn link_address(cluster: &Cluster, host: &str) -> [u8; 6] {
    let said = cluster.link_address(host);
    let mut bytes = said.split(':');
    [(); 6].map(|()| {
        let byte = bytes.next().expect("six bytes");
        u8::from_str_radix(byte, 16).expect("hexadecimal")
    })
}
