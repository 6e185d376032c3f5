//! Clients of several ways of working, beside what a test does to the cluster.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use crate::{Cluster, Connection, PATIENCE, Raised, Tally, same};

/// Clients work in each way while `change` goes on. It is given them to look at: one that has
/// ended has failed.
///
/// # Panics
/// A transfer failed, or one hung.
pub fn work_meanwhile(cluster: &Cluster, change: impl FnOnce(&[ScopedJoinHandle<'_, ()>])) {
    let stop = AtomicBool::new(false);
    let tallies: [Tally; 4] = Default::default();
    let (small, large) = (cluster.document("1k"), cluster.document("1m"));
    let body = vec![b'z'; 700_000];
    let going = || !stop.load(Ordering::Relaxed);
    std::thread::scope(|scope| {
        let _raised = Raised(&stop);
        let [kept, fresh, downloads, uploads] = &tallies;
        let (small, large, body, going) = (&small, &large, &body, &going);
        let mut clients = Vec::new();
        for _ in 0..4 {
            clients.push(scope.spawn(move || {
                cluster.on("c1", || {
                    let mut client = Connection::open();
                    let pause = Duration::from_millis(3);
                    kept.note_each(going, pause, || {
                        same(&client.ask("/1k").body, small);
                    });
                });
            }));
            clients.push(scope.spawn(move || {
                cluster.on("c1", || {
                    let pause = Duration::from_millis(10);
                    fresh.note_each(going, pause, || {
                        same(&Connection::open().ask("/1k").body, small);
                    });
                });
            }));
        }
        for number in 0..2 {
            clients.push(scope.spawn(move || {
                cluster.on("c1", || {
                    let pause = Duration::from_millis(10);
                    downloads.note_each(going, pause, || {
                        same(&Connection::open().ask("/1m").body, large);
                    });
                });
            }));
            clients.push(scope.spawn(move || {
                cluster.on("c1", || {
                    let name = format!("u{number}");
                    let pause = Duration::from_millis(20);
                    uploads.note_each(going, pause, || {
                        cluster.upload(&mut Connection::open(), &name, body);
                    });
                });
            }));
        }
        change(&clients);
        // On a busy machine there were few until now.
        let start = Instant::now();
        let is_going = || !clients.iter().any(ScopedJoinHandle::is_finished);
        while !tallies.iter().all(Tally::is_plenty) && is_going() && start.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(20));
        }
        stop.store(true, Ordering::Relaxed);
        for client in clients {
            client.join().expect("all transfers are right");
        }
    });
    for (name, tally) in ["kept alive", "fresh", "down", "up"].iter().zip(&tallies) {
        tally.expect_steady(name);
    }
}
