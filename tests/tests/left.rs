//! Answers whose clients leave in their midst: there is nothing to be saved of them
//! (docs/protocol/takeover.md 2.1, 2.2).

use std::time::Duration;

use trapeze_tests::saved::{Download, MIB, Site};

/// As often as backends tell of one (`limits.update_interval`), and a look.
const SAID_AGAIN: Duration = Duration::from_secs(4);

#[test]
fn they_are_forgotten_by_backends_and_dispatchers() {
    let site = Site::up("left", 2);
    let mut downloads: Vec<Download> = (0..8).map(|_| site.start()).collect();
    let mut stays = downloads.pop().expect("there are eight");
    for download in &mut downloads {
        download.read(MIB).expect("the first of it");
    }
    site.await_protection(8);
    // With bytes that they have not read: that is a reset.
    drop(downloads);
    std::thread::sleep(SAID_AGAIN);
    assert_eq!(site.cluster.daemon().protected_answers, 1);
    let told = site.count("updates");
    std::thread::sleep(SAID_AGAIN * 2);
    let more = site.count("updates") - told;
    assert!((1..=3).contains(&more), "told {more} times of one");
    // Its client reads nothing meanwhile, and has not left.
    site.cluster.kill(&stays.owner, None).unwrap();
    stays.finish().expect("all of it");
    trapeze_tests::same(&stays.body, &site.large);
}
