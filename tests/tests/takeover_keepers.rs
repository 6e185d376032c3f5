//! Backends that die in the midst of an answer, and with them the dispatcher that keeps its flow:
//! another one has the soft state, and ends what that one has begun (docs/protocol/takeover.md 2.2c).

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;

use tempfile::TempDir;
use trapeze_core::takeover::WEDGE_PORT;
use trapeze_core::wire::meta::Meta;
use trapeze_datapath::abi::{Flow, MARK_TAKING};
use trapeze_dispatcher::Status;
use trapeze_lab::{LinkSettings, Process};
use trapeze_tests::saved::{Download, LARGE, MIB, put};
use trapeze_tests::scattered::{keeper, ready, scattered_over};
use trapeze_tests::{Cluster, Connection, Content, same, until};

const BOTH: [&str; 2] = ["d1", "d2"];

/// Two dispatchers that take turns with each packet, and two backends.
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
        // Every other one by a request of several packets.
        let mut downloads: Vec<Download> = (0..count)
            .map(|number| {
                let connection = self.cluster.on("c1", Connection::open);
                let stream = connection.stream().try_clone().expect("a socket");
                Download::with_cookies(number % 2 * 6000, stream)
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

    fn count(&self, dispatcher: &str, what: &str) -> u64 {
        let status = self.cluster.dispatch_status(dispatcher).expect("it runs");
        status.counters.get(what).copied().unwrap_or(0)
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
        self.bring_back_dispatcher(backend, dispatcher);
    }

    fn bring_back_dispatcher(&self, backend: &str, dispatcher: &str) {
        self.cluster.start(dispatcher, None).unwrap();
        ready(&self.cluster, &BOTH, dispatcher);
        // It may have been told so; a drain outlives its daemon.
        self.cluster.trapeze(dispatcher, &["undrain", backend]);
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

/// Its data path goes on without a daemon, and would send what clients say to an owner that is dead.
#[test]
fn downloads_outlive_a_backend_whose_dispatcher_has_lost_its_daemon() {
    let pair = Pair::up("take-headless");
    // All of a flow's packets come to the same one.
    let in_turn = "mode = \"batch\"\nbatch = 1\n";
    let config = pair.cluster.config().replace(in_turn, "");
    for spray in ["s1", "s2"] {
        pair.cluster.reload(spray, Process::Spray, &config);
    }
    for pause in [300, 3000] {
        let mut downloads = pair.start(6);
        let victim = pair.keeper_of(&downloads[0]);
        let backend = downloads[0].owner.clone();
        pair.cluster.kill(&victim, Some(Process::Dispatch)).unwrap();
        std::thread::sleep(Duration::from_millis(pause));
        pair.cluster.kill(&backend, None).unwrap();
        pair.finish(&mut downloads);
        drop(downloads);
        (pair.cluster.start(&victim, Some(Process::Dispatch))).unwrap();
        pair.bring_back(&backend, &victim);
    }
}

/// What was asked ahead waited at it, in parts: one was given to who is to answer it, and others are nobody's yet.
#[test]
fn what_waits_at_a_dispatcher_behind_what_it_has_given_outlives_it() {
    const AHEAD: &str = "GET /large HTTP/1.1\r\nHost: a\r\n\r\nGET /1k HTTP/1.1\r\nHost: a\r\n\r\n";
    let pair = Pair::up("take-waiting");
    for (process, and_backend) in [
        (Some(Process::Dispatch), false),
        (None, false),
        (Some(Process::Dispatch), true),
    ] {
        let mut downloads = pair.start(6);
        for download in &mut downloads {
            download.stream.write_all(AHEAD.as_bytes()).unwrap();
        }
        // Of two backends, each is to have what the other one's answer is before.
        for download in &mut downloads {
            download.finish().unwrap();
            same(&download.body, &pair.large);
            download.begin_next();
            download.read(4 * MIB).unwrap();
        }
        until("all are protected", || {
            (pair.sum(|status| status.protected_answers) == 6).then_some(())
        });
        let victim = pair.keeper_of(&downloads[0]);
        let backend = downloads[0].owner.clone();
        pair.cluster.kill(&victim, process).unwrap();
        if and_backend {
            pair.cluster.kill(&backend, None).unwrap();
        }
        for download in &mut downloads {
            download.finish().unwrap();
            same(&download.body, &pair.large);
            download.hear();
        }
        drop(downloads);
        pair.cluster.start(&victim, process).unwrap();
        match and_backend {
            true => pair.bring_back(&backend, &victim),
            false => pair.bring_back_dispatcher(&backend, &victim),
        }
    }
}

#[test]
fn downloads_outlive_a_dispatcher_just_after_it_has_begun_to_take_over() {
    die_together("take-midst", &[580, 640, 700]);
}

/// Why answers are gone on with elsewhere.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Why {
    /// Their backend dies.
    Death,
    /// Their dispatcher alone is told to move them, and their backend is well.
    Plan,
}

/// The dispatcher dies once one of its records is so, while `slow`'s link makes that last. How many
/// takeovers the other one has ended that it had not begun.
fn die_when(pair: &Pair, why: Why, slow: Option<&str>, is_so: fn(&Flow) -> bool) -> u64 {
    let mut downloads = pair.start(6);
    let victim = pair.keeper_of(&downloads[0]);
    let backend = downloads[0].owner.clone();
    let other = if backend == "b1" { "b2" } else { "b1" };
    let slow = slow.unwrap_or(other);
    let delayed = LinkSettings {
        delay: Duration::from_millis(80),
        ..LinkSettings::default()
    };
    pair.cluster.link(slow, &delayed).unwrap();
    let maps = pair.cluster.dispatcher_maps_of(&victim);
    let heir = if victim == "d1" { "d2" } else { "d1" };
    let before = pair.count(heir, "inherited");
    let words = ["drain", &backend, "--migrate", "--deadline", "0s"];
    std::thread::scope(|scope| {
        match why {
            Why::Death => pair.cluster.kill(&backend, None).unwrap(),
            // It may be over before that has returned, and its daemon dies in its midst.
            Why::Plan => drop(scope.spawn(|| pair.cluster.trapeze(&victim, &words))),
        }
        until("it is so", || {
            let flows = maps.flows.all().unwrap();
            flows.iter().any(|(_, flow)| is_so(flow)).then_some(())
        });
        pair.cluster.kill(&victim, None).unwrap();
    });
    pair.finish(&mut downloads);
    drop(downloads);
    let inherited = pair.count(heir, "inherited") - before;
    pair.cluster.link(slow, &LinkSettings::default()).unwrap();
    match why {
        Why::Death => pair.bring_back(&backend, &victim),
        Why::Plan => pair.bring_back_dispatcher(&backend, &victim),
    }
    inherited
}

#[test]
fn downloads_outlive_a_dispatcher_that_has_asked_their_clients() {
    let pair = Pair::up("take-asked");
    for _ in 0..2 {
        let is_asked = |flow: &Flow| flow.marks & MARK_TAKING != 0;
        die_when(&pair, Why::Death, Some("c1"), is_asked);
    }
}

#[test]
fn downloads_outlive_a_dispatcher_that_has_told_a_wedge() {
    let pair = Pair::up("take-told");
    let mut rounds = (0..5).map(|_| die_when(&pair, Why::Death, None, is_told));
    assert!(rounds.any(|inherited| inherited > 0), "each was too late");
}

fn is_told(flow: &Flow) -> bool {
    Meta::decode(&flow.meta).is_ok_and(|meta| meta.server_port == WEDGE_PORT)
}

/// It has asked their clients, and nothing else has happened: their backend, which is well, goes on with them.
#[test]
fn downloads_that_are_to_be_moved_stay_where_they_are_when_their_dispatcher_dies() {
    let pair = Pair::up("move-asked");
    for _ in 0..2 {
        let is_asked = |flow: &Flow| flow.marks & MARK_TAKING != 0;
        die_when(&pair, Why::Plan, Some("c1"), is_asked);
    }
    let not_taken = BOTH.map(|name| pair.count(name, "not-taken-over"));
    assert_eq!(not_taken, [0, 0]);
}

/// Their backend is well, and has not been told to fall silent; their next one has been told to go on.
#[test]
fn downloads_that_are_being_moved_outlive_a_dispatcher_that_has_told_a_wedge() {
    let pair = Pair::up("move-told");
    let mut rounds = (0..5).map(|_| die_when(&pair, Why::Plan, None, is_told));
    assert!(rounds.any(|inherited| inherited > 0), "each was too late");
}

/// They were its server's by the time it died, and their client has been told that they had come.
#[test]
fn what_was_asked_ahead_outlives_a_backend_and_its_dispatcher() {
    let pair = Pair::up("take-both-ahead");
    for offset in [0, 300, 640, 700] {
        pair.cluster.kill("b2", None).unwrap();
        for name in BOTH {
            until("b1 is alone", || {
                (pair.cluster.backend_as_seen_by(name, "b2").state == "silent").then_some(())
            });
        }
        let mut downloads = pair.start(4);
        let stayed = || {
            BOTH.iter()
                .map(|name| pair.count(name, "stayed-with-owner"))
                .sum::<u64>()
        };
        for _ in 0..2 {
            let before = stayed();
            downloads.iter_mut().for_each(Download::ask_ahead);
            until("their owner has them", || {
                (stayed() == before + 4).then_some(())
            });
        }
        pair.cluster.start("b2", None).unwrap();
        for name in BOTH {
            until("b2 is up", || {
                (pair.cluster.backend_as_seen_by(name, "b2").state == "up").then_some(())
            });
        }
        let victim = pair.keeper_of(&downloads[0]);
        pair.cluster.kill("b1", None).unwrap();
        std::thread::sleep(Duration::from_millis(offset));
        pair.cluster.kill(&victim, None).unwrap();
        std::thread::scope(|scope| {
            for download in &mut downloads {
                let large = &pair.large;
                scope.spawn(move || {
                    download.finish().unwrap();
                    same(&download.body, large);
                    for _ in 0..2 {
                        assert_eq!(download.hear(), "b2");
                    }
                    assert_eq!(download.ask(), "b2");
                });
            }
        });
        drop(downloads);
        pair.bring_back("b1", &victim);
    }
}
