//! Requests that are sent ahead of a long answer's end, and backends that die meanwhile: those that have them, or that
//! whose answer it is (docs/protocol/takeover.md 2.2b1).

use std::time::Duration;

use trapeze_tests::same;
use trapeze_tests::saved::{Download, MIB, Site};

const BACKENDS: [&str; 3] = ["b1", "b2", "b3"];
/// It is read by then what has been asked, and given to whoever is to have it.
const GIVEN: Duration = Duration::from_millis(500);

fn others(owner: &str) -> Vec<&'static str> {
    let others = BACKENDS.into_iter().filter(|name| *name != owner);
    others.collect()
}

/// Whoever is to answer next has nothing yet: a living one's answer, and what is asked behind it, is not theirs to end.
#[test]
fn a_protected_answer_outlives_the_backends_that_were_to_answer_next() {
    let site = Site::up("ahead-next", 3);
    let mut download = site.start();
    download.read(8 * MIB).unwrap();
    site.await_protection(1);
    for _ in 0..2 {
        download.ask_ahead();
    }
    std::thread::sleep(GIVEN);
    for other in others(&download.owner) {
        site.cluster.kill(other, None).unwrap();
    }
    download.finish().unwrap();
    same(&download.body, &site.large);
    for _ in 0..2 {
        assert_eq!(download.hear(), download.owner);
    }
    assert_eq!(site.count("not-taken-over"), 0);
}

/// They were asked before anybody knew that the answer is worth it.
#[test]
fn what_was_asked_at_once_does_not_keep_an_answer_from_being_taken_over() {
    let site = Site::up("ahead-early", 3);
    let mut downloads: Vec<Download> = (0..6)
        .map(|_| {
            let mut download = site.start();
            for _ in 0..2 {
                download.ask_ahead();
            }
            download
        })
        .collect();
    for download in &mut downloads {
        download.read(4 * MIB).unwrap();
    }
    site.await_protection(6);
    site.cluster.kill("b1", None).unwrap();
    for download in &mut downloads {
        download.finish().unwrap();
        same(&download.body, &site.large);
        for _ in 0..2 {
            assert_ne!(download.hear(), "b1");
        }
    }
    assert_eq!(site.count("not-taken-over"), 0);
}
