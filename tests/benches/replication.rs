//! What replicated records cost: bytes told for each connection, memory for each record, and
//! how long a dispatcher that joins needs to catch up with a million of them.
//!
//! `cargo build --release -p trapeze-cli`, then `cargo bench -p trapeze-tests --bench
//! replication`, as root. It needs 1.5 GiB of memory.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use trapeze_core::flow::{FlowKey, Handshake};
use trapeze_core::seq::ClientSeq;
use trapeze_core::wire::meta::{Care, Kind, Meta};
use trapeze_datapath::abi::{self, Flow, FlowState, Pod};
use trapeze_datapath::clock;
use trapeze_datapath::dispatcher::DispatcherMaps;
use trapeze_datapath::map::Update;
use trapeze_tests::{Cluster, Connection, VIP, until};

const RECORDS: u32 = 1_000_000;
const CONNECTIONS: u64 = 2000;

fn main() {
    let cluster = Cluster::with("told", |options| {
        options.sprays = Some(1);
        options.dispatchers = Some(2);
        options.backends = Some(1);
    });
    both_keep_flows(&cluster);
    tell_of_connections(&cluster);
    catch_up(&cluster);
}

fn both_keep_flows(cluster: &Cluster) {
    until("both keep flows", || {
        let status = ["d1", "d2"].map(|name| cluster.dispatch_status(name));
        let ready = |status: &Option<trapeze_dispatcher::Status>| {
            status
                .as_ref()
                .is_some_and(|s| s.caught_up && s.peers.iter().all(|p| p.fit))
        };
        status.iter().all(ready).then_some(())
    });
}

/// Connections with one request each, one after another, to their end.
fn tell_of_connections(cluster: &Cluster) {
    let told = || {
        let of = |name: &&str| cluster.dispatch_status(name).expect("it runs").told;
        ["d1", "d2"].iter().map(of).fold((0, 0, 0), |sum, told| {
            (
                sum.0 + told.entries,
                sum.1 + told.messages,
                sum.2 + told.bytes,
            )
        })
    };
    let before = told();
    cluster.on("c1", || {
        for _ in 0..CONNECTIONS {
            Connection::open().ask("/1k").ok();
        }
    });
    // Their ends are told by the sweep.
    std::thread::sleep(Duration::from_secs(5));
    let after = told();
    let each = |after: u64, before: u64| (after - before) as f64 / CONNECTIONS as f64;
    println!(
        "a connection with one request, one after another: {:.2} entries, {:.2} messages, \
         {:.0} bytes to each other dispatcher",
        each(after.0, before.0),
        each(after.1, before.1),
        each(after.2, before.2)
    );
}

fn catch_up(cluster: &Cluster) {
    cluster.kill("d2", None).expect("it is on");
    let maps = cluster.dispatcher_maps_of("d1");
    let memory_before = available_kib();
    let map_before = memlock(&maps);
    fill(&maps);
    let (map_after, memory_after) = (memlock(&maps), available_kib());
    println!(
        "{RECORDS} records: {} bytes each in the map's own account, {} by what the host has less",
        (map_after - map_before) / u64::from(RECORDS),
        memory_before.saturating_sub(memory_after) * 1024 / u64::from(RECORDS)
    );
    let started = Instant::now();
    cluster.start("d2", None).expect("it starts");
    let up = started.elapsed();
    loop {
        if cluster
            .dispatch_status("d2")
            .is_some_and(|status| status.caught_up)
        {
            break;
        }
        assert!(
            started.elapsed() < Duration::from_secs(60),
            "it does not catch up"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    let all = started.elapsed();
    let there = cluster.dispatcher_maps_of("d2");
    let mut count = 0;
    there
        .flows
        .for_each(|_, _| count += 1)
        .expect("the map is read");
    println!(
        "d2 has {count} of them {:.2} s after its daemon was ready ({:.2} s after its power)",
        (all - up).as_secs_f64(),
        all.as_secs_f64()
    );
    assert!(count >= RECORDS);
    assert!(all - up < Duration::from_secs(5), "{:?}", all - up);
}

fn fill(maps: &DispatcherMaps) {
    let now = clock::monotonic().as_nanos() as u64;
    let meta = Meta {
        kind: Kind::Forward,
        epoch: abi::epoch(clock::cluster()),
        start: ClientSeq::new(1),
        handshake: Handshake::default(),
        server_port: 0,
        requests: 0,
        care: Care::default(),
    };
    for number in 0..RECORDS {
        let client = Ipv4Addr::from_bits(u32::from(Ipv4Addr::new(10, 128, 0, 0)) + number / 50_000);
        let key = FlowKey {
            client: SocketAddrV4::new(client, (10_000 + number % 50_000) as u16).into(),
            vip: VIP.into(),
        };
        let flow = Flow {
            meta: meta.encode(1),
            state: FlowState::Established as u32,
            told: FlowState::Established as u32,
            cookie: number,
            version: 1,
            maker: [10, 77, 0, 11],
            created_ns: now,
            last_seen_ns: now,
            refreshed_ns: now,
            ..Flow::zeroed()
        };
        maps.flows
            .put(&key.into(), &flow, Update::Any)
            .expect("there is room");
    }
}

/// What the kernel says that the map takes, in bytes.
fn memlock(maps: &DispatcherMaps) -> u64 {
    let path = format!("/proc/self/fdinfo/{}", maps.flows.fd().as_raw_fd());
    let text = std::fs::read_to_string(path).expect("it is open");
    number_after(&text, "memlock:")
}

fn available_kib() -> u64 {
    number_after(
        &std::fs::read_to_string("/proc/meminfo").expect("Linux"),
        "MemAvailable:",
    )
}

fn number_after(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let word = line.and_then(|line| line.split_whitespace().next());
    word.and_then(|word| word.parse().ok()).expect("a number")
}
