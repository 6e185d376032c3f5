//! What a dispatcher does for each request: inspect the first bytes, route by
//! rules, choose a backend. `cargo bench -p trapeze-core`; it prints the median
//! and the best of several runs, in nanoseconds, and judges nothing.

use std::hint::black_box;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use trapeze_core::config::{Config, PolicyKind};
use trapeze_core::head::{Inspection, Progress, inspect, inspect_from};
use trapeze_core::policy::{BackendId, Backends, Candidate, Request, Subject, build, place};
use trapeze_core::route::{Asked, route};

const LIMIT: usize = 64 << 10;
const CURL: &[u8] = b"GET /a?b=c HTTP/1.1\r\nHost: localhost:42579\r\n\
    User-Agent: curl/7.88.1\r\nAccept: */*\r\n\r\n";
const CHROMIUM: &[u8] = b"GET /img/a.png?v=2 HTTP/1.1\r\nHost: img.example:8080\r\n\
    Connection: keep-alive\r\nsec-ch-ua: \"Chromium\";v=\"130\", \"Not?A_Brand\";v=\"99\"\r\n\
    sec-ch-ua-mobile: ?0\r\nsec-ch-ua-platform: \"Linux\"\r\nUpgrade-Insecure-Requests: 1\r\n\
    User-Agent: Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) \
    Chrome/130.0.0.0 Safari/537.36\r\nAccept: image/avif,image/webp,*/*;q=0.8\r\n\
    Sec-Fetch-Site: none\r\nSec-Fetch-Mode: navigate\r\nSec-Fetch-User: ?1\r\n\
    Sec-Fetch-Dest: document\r\nAccept-Encoding: gzip, deflate, br, zstd\r\n\
    Accept-Language: en-GB,en;q=0.9\r\nCookie: id=42; theme=dark\r\n\r\n";

fn main() {
    let hello = from_hex(include_str!("../tests/data/hello-go-1.26-post-quantum.hex"));
    let long = long_head();
    measure("inspect: curl, 84 bytes", || {
        black_box(inspect(black_box(CURL), LIMIT))
    });
    measure("inspect: Chromium, 590 bytes", || {
        black_box(inspect(black_box(CHROMIUM), LIMIT))
    });
    measure("inspect: 64 KiB", || {
        black_box(inspect(black_box(&long), LIMIT))
    });
    measure("inspect: ClientHello, 1519 bytes", || {
        black_box(inspect(black_box(&hello), LIMIT))
    });
    measure("inspect: 64 KiB byte by byte", || {
        let mut progress = Progress::default();
        for len in 1..=long.len() {
            black_box(inspect_from(&long[..len], &mut progress, LIMIT));
        }
    });

    let example = include_str!("../../examples/trapeze.toml");
    let config = Config::parse(example, "trapeze.toml").expect("the example is right");
    let client = SocketAddr::from(([192, 0, 2, 1], 4000));
    let Inspection::Http(head) = inspect(CURL, LIMIT) else {
        unreachable!()
    };
    let asked = Asked::Http(&head);
    measure("route: two rules, none matches", || {
        black_box(route(&config.services[0], black_box(&asked)))
    });
    let names: Vec<String> = (0..100).map(|i| format!("backend-{i:03}")).collect();
    for kind in PolicyKind::ALL {
        for count in [3, 100] {
            let backends = backends(&names[..count]);
            let mut policy = build(&kind.into(), 0);
            measure(&format!("choose: {} among {count}", kind.name()), || {
                let request = Request::of(&Subject::of(black_box(&asked), client), None);
                black_box(place(&mut *policy, Duration::ZERO, &request, &backends))
            });
        }
    }
    let three = backends(&names[..3]);
    let mut policy = build(&PolicyKind::Hrw.into(), 0);
    measure("all three: curl, two rules, hrw among 3", || {
        let Inspection::Http(head) = inspect(black_box(CURL), LIMIT) else {
            unreachable!()
        };
        let asked = Asked::Http(&head);
        let pool = route(&config.services[0], &asked).pool();
        let request = Request::of(&Subject::of(&asked, client), None);
        let chosen = place(&mut *policy, Duration::ZERO, &request, &three);
        black_box((pool, chosen))
    });
    measure("Config::parse: the example", || {
        black_box(Config::parse(black_box(example), ""))
    });
}

fn backends(names: &[String]) -> Backends {
    Backends::new((0..).zip(names).map(|(id, name)| Candidate {
        outstanding: name.len() as u32,
        ..Candidate::new(BackendId(id), name, 1)
    }))
}

/// Runs of about 10 ms each; the median is robust against neighbours.
fn measure<T>(name: &str, mut work: impl FnMut() -> T) {
    let start = Instant::now();
    work();
    let rounds = (10_000_000 / start.elapsed().as_nanos().max(20)).max(1) as u32;
    let mut runs: Vec<f64> = (0..21)
        .map(|_| {
            let start = Instant::now();
            for _ in 0..rounds {
                work();
            }
            start.elapsed().as_nanos() as f64 / f64::from(rounds)
        })
        .collect();
    runs.sort_by(f64::total_cmp);
    println!("{name:45} {:12.1} ns   best {:12.1} ns", runs[10], runs[0]);
}

fn long_head() -> Vec<u8> {
    let mut head = b"GET / HTTP/1.1\r\n".to_vec();
    while head.len() < LIMIT - 100 {
        head.extend_from_slice(b"X-Padding: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n");
    }
    head.extend_from_slice(b"\r\n");
    head
}

fn from_hex(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex
        .bytes()
        .filter_map(|b| (b as char).to_digit(16))
        .map(|d| d as u8)
        .collect();
    digits
        .chunks(2)
        .map(|pair| pair[0] << 4 | pair[1])
        .collect()
}
