//! Labs with daemons: side by side, and gone without a trace.

use std::path::Path;

use trapeze_lab::Process;
use trapeze_tests::{Cluster, Connection};

/// What there is of a lab, anywhere on the machine.
fn remains(name: &str) -> Vec<String> {
    let directories = [
        "/run/netns",
        "/run/trapeze",
        "/run/trapeze/lab",
        "/sys/fs/bpf/trapeze",
        "/var/tmp/trapeze/lab",
    ];
    let files = directories.iter().flat_map(|directory| {
        let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
        entries.map(|entry| entry.path().display().to_string())
    });
    let processes = std::fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| {
            let bytes = std::fs::read(entry.path().join("cmdline")).ok()?;
            Some(String::from_utf8_lossy(&bytes).replace('\0', " "))
        });
    let links = std::fs::read_dir("/sys/class/net").unwrap().flatten();
    let links = links.map(|entry| entry.file_name().to_string_lossy().into_owned());
    files
        .chain(processes)
        .chain(links)
        .filter(|text| text.contains(name))
        .collect()
}

#[test]
fn two_labs_do_not_meet_and_leave_nothing() {
    let one = Cluster::up("one");
    let two = Cluster::up("two");
    let serves =
        |cluster: &Cluster| cluster.on("c1", || Connection::open().ask("/1k").ok().to_owned());
    for _ in 0..3 {
        serves(&one);
    }
    assert_eq!(one.agents().of("rebuilt"), 3);
    assert_eq!(
        two.agents().of("rebuilt") + two.dispatcher().of("syn-answered"),
        0
    );
    let kept = one.on("c1", Connection::open);
    two.kill("d1", Some(Process::Dispatch)).unwrap();
    two.kill("b1", None).unwrap();
    serves(&one);
    let name = two.name().to_owned();
    assert!(remains(&name).len() > 5);
    drop(two);
    assert_eq!(remains(&name), Vec::<String>::new());
    let mut kept = kept;
    kept.ask("/1k").ok();
    let name = one.name().to_owned();
    drop(one);
    assert_eq!(remains(&name), Vec::<String>::new());
}

#[test]
fn daemons_that_are_told_to_stop_take_everything_back() {
    let cluster = Cluster::up("stop");
    let status = cluster.status().unwrap();
    let daemons = [("d1", Process::Dispatch), ("b1", Process::Agent)];
    for (host, process) in daemons {
        let pid = status.host(host).unwrap().processes[&process].pid.unwrap();
        let term = std::process::Command::new("kill")
            .arg(pid.to_string())
            .status();
        assert!(term.unwrap().success());
        trapeze_tests::until("it has ended", || {
            let status = cluster.status().unwrap();
            (!status.host(host).unwrap().processes[&process].running).then_some(())
        });
        let pins = format!("/sys/fs/bpf/trapeze/lab-{}/{host}", cluster.name());
        assert!(!Path::new(&pins).exists());
        assert!(!Path::new(&pins.replace("/sys/fs/bpf", "/run")).exists());
        let addresses = cluster.run(host, &["ip", "-o", "addr", "show"]);
        assert!(!addresses.contains("10.77.0.100"), "{addresses}");
        let programs = cluster.run(host, &["tc", "filter", "show", "dev", "eth0", "ingress"]);
        assert_eq!(programs, "");
    }
    cluster.start("b1", Some(Process::Agent)).unwrap();
    cluster.start("d1", Some(Process::Dispatch)).unwrap();
    cluster.on("c1", || Connection::open().ask("/1k").ok().to_owned());
}
