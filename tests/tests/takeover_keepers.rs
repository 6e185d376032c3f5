//! Backends that die in the midst of an answer, and with them the dispatcher that keeps its flow:
//! another one has the soft state, and ends what that one has begun (docs/protocol/takeover.md 2.2c).

use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;

use tempfile::TempDir;
use trapeze_dispatcher::Status;
use trapeze_lab::Process;
use trapeze_tests::saved::{Download, LARGE, MIB, put};
use trapeze_tests::scattered::{keeper, ready, scattered_over};
use trapeze_tests::{Cluster, Connection, Content, same, until};

const BOTH: [&str; 2] = ["d1", "d2"];

/// Two dispatchers that take turns with each packet, and three backends.
struct Pair {
    cluster: Cluster,
    large: Vec<u8>,
    _root: TempDir,
}

impl Pair {
    fn up(test: &str) -> Self {
        let root = tempfile::tempdir().expect("a temporary directory");
        let large = Content::new(9, LARGE as u64).bytes();
        put(root.path(), "large", &large);
        put(root.path(), "1k", &large[..1024]);
        let cluster = scattered_over(&BOTH, test, |options| {
            options.root = Some(root.path().to_owned());
        });
        let config = (cluster.config()).replace("[[pool]]\n", "[[pool]]\nprotect_from = 1000000\n");
        for backend in ["b1", "b2"] {
            cluster.reload(backend, Process::Agent, &config);
        }
        for dispatcher in BOTH {
            cluster.reload(dispatcher, Process::Dispatch, &config);
        }
        Self {
            cluster,
            large,
            _root: root,
        }
    }

    /// So many downloads, which both dispatchers know to be protected.
    fn start(&self, count: usize) -> Vec<Download> {
        let mut downloads: Vec<Download> = (0..count)
            .map(|_| {
                self.cluster
                    .on("c1", || Download::start(Connection::open()))
            })
            .collect();
        for download in &mut downloads {
            download.read(4 * MIB).unwrap();
        }
        until("all are protected", || {
            let kept = self.sum(|status| status.protected_answers);
            (kept == count).then_some(())
        });
        downloads
    }

    fn sum(&self, what: fn(&Status) -> usize) -> usize {
        let all = BOTH.map(|name| self.cluster.dispatch_status(name));
        all.iter().flatten().map(what).sum()
    }

    fn keeper_of(&self, download: &Download) -> String {
        let port = download.stream.local_addr().expect("a socket").port();
        let client = SocketAddrV4::new(Ipv4Addr::new(10, 77, 0, 1), port);
        keeper(&self.cluster, &BOTH, client)
    }

    /// All of them come whole, at once.
    fn finish(&self, downloads: &mut [Download]) {
        std::thread::scope(|scope| {
            for download in downloads {
                scope.spawn(move || {
                    let done = download.finish();
                    let had = download.body.len();
                    done.unwrap_or_else(|e| panic!("{}: after {had}: {e}", download.owner));
                    same(&download.body, &self.large);
                    download.ask();
                });
            }
        });
    }

    fn bring_back(&self, backend: &str, dispatcher: &str) {
        self.cluster.start(backend, None).unwrap();
        self.cluster.start(dispatcher, None).unwrap();
        ready(&self.cluster, &BOTH, dispatcher);
        for name in BOTH {
            until("the backend is up", || {
                let state = self.cluster.backend_as_seen_by(name, backend).state;
                let kept = self.cluster.dispatch_status(name)?.protected_answers;
                (state == "up" && kept == 0).then_some(())
            });
        }
    }
}

/// The dispatcher so long before or after the backend, in milliseconds.
fn die_together(test: &str, offsets: &[i64]) {
    let pair = Pair::up(test);
    for &offset in offsets {
        println!("offset {offset} ms");
        let mut downloads = pair.start(6);
        let victim = pair.keeper_of(&downloads[0]);
        let backend = downloads[0].owner.clone();
        let mut deaths = [backend.as_str(), victim.as_str()];
        if offset < 0 {
            deaths.reverse();
        }
        pair.cluster.kill(deaths[0], None).unwrap();
        std::thread::sleep(Duration::from_millis(offset.unsigned_abs()));
        pair.cluster.kill(deaths[1], None).unwrap();
        pair.finish(&mut downloads);
        drop(downloads);
        pair.bring_back(&backend, &victim);
    }
}

#[test]
fn downloads_outlive_a_backend_and_their_dispatcher_at_the_same_moment() {
    die_together("take-both", &[0, 100, 300, 500]);
}

#[test]
fn downloads_outlive_a_backend_just_after_their_dispatcher() {
    die_together("take-after", &[-1, -300, -900]);
}

#[test]
fn downloads_outlive_a_dispatcher_just_after_it_has_begun_to_take_over() {
    die_together("take-midst", &[580, 610, 640, 670, 700, 750]);
}
