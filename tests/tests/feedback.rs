//! What agents say of their hosts reaches policies and people.
//!
//! All hosts of a lab have the processors of one machine, so that a real hog is seen
//! by every agent alike. Here the test is the agents' daemons: it writes what they would
//! have sampled, and data paths, dispatcher and policy do the rest.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use trapeze_datapath::abi::Feedback;
use trapeze_datapath::clock;
use trapeze_datapath::map::Update;
use trapeze_lab::Process;
use trapeze_tests::{Cluster, Connection, Raised, until};

const BACKENDS: [&str; 3] = ["b1", "b2", "b3"];

/// Does `work` while agents say that their processors are so busy, in thousandths;
/// b1's may be changed meanwhile.
fn saying<T>(cluster: &Cluster, of_b1: &AtomicU32, work: impl FnOnce() -> T) -> T {
    for backend in BACKENDS {
        cluster.kill(backend, Some(Process::Agent)).unwrap();
    }
    let maps = BACKENDS.map(|backend| cluster.agent_maps(backend).feedback);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _raised = Raised(&over);
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                for (number, map) in maps.iter().enumerate() {
                    let feedback = Feedback {
                        sampled_ns: clock::monotonic().as_nanos() as u64,
                        cpu_permille: match number {
                            0 => of_b1.load(Ordering::Relaxed),
                            _ => 200,
                        },
                        memory_permille: 500,
                    };
                    map.put(&0, &feedback, Update::Any).expect("it is written");
                }
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        // Else a failure would wait for the thread for ever.
        over.store(true, Ordering::Relaxed);
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Begins so many downloads that go on, and counts those of each backend.
fn downloads(cluster: &Cluster, count: usize) -> [usize; 3] {
    cluster.on("c1", || {
        let begin = || {
            let mut client = Connection::open();
            client.send("GET /100m HTTP/1.1\r\nHost: a\r\n\r\n");
            let head = client.try_response(false).unwrap();
            (head.backend().to_owned(), client)
        };
        let held: Vec<_> = (0..count).map(|_| begin()).collect();
        BACKENDS.map(|name| held.iter().filter(|(backend, _)| backend == name).count())
    })
}

#[test]
fn a_backend_whose_host_is_busy_gets_less() {
    let site = r#"[[pool]]
name = "web"
policy = "least-connections"
backends = ["b1", "b2", "b3"]
[[service]]
name = "site"
address = "10.77.0.100:80"
pool = "web"
"#;
    let cluster = Cluster::configured("busy", 3, site, |_| {});
    let of_b1 = AtomicU32::new(1000);
    let heard = |permille| {
        until("the dispatcher has heard it", || {
            let of = |name| cluster.backend(name).feedback;
            let said = of("b1")?.cpu_permille == permille && of("b3")?.cpu_permille == 200;
            said.then_some(())
        });
    };
    saying(&cluster, &of_b1, || {
        heard(1000);
        assert_eq!(cluster.backend("b1").feedback.unwrap().memory_permille, 500);
        // A request there counts seven quarters.
        assert_eq!(downloads(&cluster, 18), [4, 7, 7]);
        until("they have ended", || {
            (BACKENDS
                .iter()
                .all(|name| cluster.backend(name).active == 0))
            .then_some(())
        });
        of_b1.store(250, Ordering::Relaxed);
        heard(250);
        assert_eq!(downloads(&cluster, 18), [6, 6, 6]);
    });
}
