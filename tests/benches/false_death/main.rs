//! The trace of [MIGRATE01 §4.3], from a real run: a backend is taken for dead that is not, and two
//! others could go on with its answer. Round-trip times of 10, 40 and 200 ms are the paper's.
//!
//! `cargo build -p trapeze-cli`, then `cargo bench -p trapeze-tests --bench false_death`, as root; the
//! diagram is left at `target/false-death.svg`, or where `-- FILE` says.

mod capture;
mod diagram;
mod story;

use std::path::Path;
use std::time::{Duration, Instant};

use trapeze_lab::{LinkSettings, Role};
use trapeze_tests::same;
use trapeze_tests::saved::{MIB, Site};

use story::Event;

const HOSTS: [&str; 5] = ["c1", "d1", "b1", "b2", "b3"];
/// Half of the paper's round trips.
const DELAYS_MS: [(&str, u64); 3] = [("b1", 5), ("b2", 20), ("b3", 100)];
/// For how long the two do not hear each other.
const APART: Duration = Duration::from_millis(1500);
/// What is shown of the time after that.
const AFTER: Duration = Duration::from_millis(300);

fn main() {
    let out = std::env::args().skip(1).find(|arg| arg.ends_with(".svg"));
    let out = out.unwrap_or_else(|| format!("{}/false-death.svg", env!("CARGO_TARGET_TMPDIR")));
    let site = Site::up("false-death", 3);
    let cluster = &site.cluster;
    for (host, delay) in DELAYS_MS {
        let link = LinkSettings {
            delay: Duration::from_millis(delay),
            rate: Some(10_000_000),
            ..LinkSettings::default()
        };
        cluster.link(host, &link).expect("a lab's link");
    }
    let since = Instant::now();
    let mut remarks = Vec::new();
    let mut zero = Duration::ZERO;
    let mut connection = None;
    let arrivals = capture::capture(cluster, &HOSTS, since, || {
        let download = connection.insert(site.start());
        let owner = download.owner.clone();
        download.read(MIB / 2).expect("some of it");
        site.await_protection(1);
        zero = since.elapsed();
        remarks.push((
            zero,
            format!("{owner} and d1 do not hear each other any more; both are alive"),
        ));
        part(&site, &owner, true);
        while since.elapsed() < zero + APART {
            download.read(MIB / 64).expect("more of it");
        }
        site.await_taken(1);
        part(&site, &owner, false);
        let again = since.elapsed();
        remarks.push((again, "they hear each other again".to_owned()));
        while since.elapsed() < again + AFTER {
            download.read(MIB / 64).expect("more of it");
        }
        same(&download.body, &site.large[..download.body.len()]);
    });
    let events = story::tell(&arrivals, remarks);
    for event in &events {
        let at = diagram::time(event.at(), zero);
        match event {
            Event::Message { from, to, says, .. } => println!("{at:>8}  {from} > {to}: {says}"),
            Event::Remark { says, .. } => println!("{at:>8}  ---- {says}"),
        }
    }
    let title = "A backend is taken for dead that is not";
    let picture = diagram::draw(title, &HOSTS, &events, zero);
    std::fs::write(Path::new(&out), picture).expect("a file that can be written");
    println!("\n{out}");
}

/// Neither finds the other: the link address that each has of the other is nobody's.
fn part(site: &Site, owner: &str, apart: bool) {
    for (host, other) in [("d1", owner), (owner, "d1")] {
        let (role, number) = Role::of(other).expect("a host of the lab");
        let address = role.address(number).to_string();
        let known = site.cluster.link_address(other);
        let says = if apart { "02:00:00:00:00:99" } else { &known };
        let neighbour = [
            "ip",
            "neigh",
            "replace",
            &address,
            "lladdr",
            says,
            "nud",
            "permanent",
            "dev",
            "eth0",
        ];
        site.cluster.run(host, &neighbour);
    }
}
