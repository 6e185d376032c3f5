//! Dispatchers' hosts that lose their power and are back before sprays have missed them.

use std::io::ErrorKind;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use trapeze_tests::scattered::ready;
use trapeze_tests::{Cluster, Raised, VIP};

const DISPATCHERS: [&str; 2] = ["d1", "d2"];

/// The spray goes on to send it packets, and while it has the service's address, and nothing else yet, its kernel would
/// refuse their connections.
#[test]
fn no_client_is_refused_by_a_host_that_comes_up() {
    let cluster = Cluster::with("quick", |options| {
        (options.sprays, options.dispatchers) = (Some(1), Some(2));
    });
    for dispatcher in DISPATCHERS {
        ready(&cluster, &DISPATCHERS, dispatcher);
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _raised = Raised(&stop);
        let (cluster, stop) = (&cluster, &stop);
        let clients: Vec<_> = (0..8)
            .map(|_| scope.spawn(move || cluster.on("c1", || connect(stop))))
            .collect();
        for victim in ["d1", "d2", "d1"] {
            cluster.kill(victim, None).unwrap();
            cluster.start(victim, None).unwrap();
            ready(cluster, &DISPATCHERS, victim);
        }
        stop.store(true, Ordering::Relaxed);
        for client in clients {
            client.join().expect("no connection is refused");
        }
    });
}

/// One connection after the other; some wait for a while.
fn connect(stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        let opened = TcpStream::connect_timeout(&VIP.into(), Duration::from_millis(50));
        if let Err(error) = opened {
            assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
        }
    }
}
