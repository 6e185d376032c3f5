//! A crowd's downloads outlive two backends (docs/protocol/takeover.md).

use trapeze_lab::LinkSettings;
use trapeze_tests::downloads::Downloads;
use trapeze_tests::{Cluster, Content, VIP, until};

const CLIENTS: usize = 100;
/// So much is on its way for ten seconds or so.
const FILE: u64 = 14 << 20;

/// The backend of all of them dies, and then the one that has gone on, with losses: every file is
/// right, and nothing is left of it.
#[test]
fn a_hundred_downloads_outlive_two_backends() {
    let root = tempfile::tempdir().expect("a temporary directory");
    let bytes = Content::new(7, FILE).bytes();
    std::fs::write(root.path().join("file"), bytes).expect("a temporary file");
    let text = "[[pool]]\nname = \"web\"\nprotect_from = 1000000\nbackends = [\"b1\", \"b2\", \"b3\"]\n\
                [[service]]\nname = \"site\"\naddress = \"10.77.0.100:80\"\npool = \"web\"\n";
    let path = root.path().to_owned();
    let cluster = Cluster::configured("take-crowd", 3, text, |options| options.root = Some(path));
    let lossy = LinkSettings {
        loss: 0.01,
        rate: Some(1_000_000_000),
        ..LinkSettings::default()
    };
    cluster.link("c1", &lossy).unwrap();
    for later in ["b2", "b3"] {
        cluster.kill(later, None).unwrap();
    }
    let names = vec!["file".to_owned(); CLIENTS];
    let downloads = Downloads::start(&cluster, "c1", VIP, root.path(), &names);
    until("all are protected", || {
        (cluster.daemon().protected_answers == CLIENTS).then_some(())
    });
    let count = |what: &str| cluster.daemon().counters.get(what).copied().unwrap_or(0);
    let mut due = 0;
    for (dies, goes_on) in [("b1", "b2"), ("b2", "b3")] {
        cluster.start(goes_on, None).unwrap();
        until("it is up", || {
            (cluster.backend(goes_on).state == "up").then_some(())
        });
        cluster.kill(dies, None).unwrap();
        let in_progress = CLIENTS - downloads.ended();
        assert!(in_progress > CLIENTS / 2, "only {in_progress} were left");
        due += in_progress as u64;
        until("they are taken over", || {
            (count("taken-over") + downloads.ended() as u64 >= due).then_some(())
        });
    }
    downloads.join();
    assert_eq!(count("not-taken-over"), 0);
    assert!(
        count("taken-over") > CLIENTS as u64,
        "{}",
        count("taken-over")
    );
    cluster.expect_nothing_left(&["b3"]);
}
