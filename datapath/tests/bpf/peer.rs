//! Whether an interface's peer can be handed packets: asked of real ones.

use std::process::Command;
use std::sync::mpsc::channel;

use trapeze_datapath::host::has_peer_elsewhere;
use trapeze_datapath::netns;

fn run(program: &str, arguments: &str) {
    let done = Command::new(program)
        .args(arguments.split_whitespace())
        .status();
    let done = done.expect("iproute2 is installed");
    assert!(done.success(), "{program} {arguments}");
}

#[test]
fn only_a_veth_with_its_end_elsewhere_has_a_peer() {
    netns::enter_new().expect("these tests need root");
    std::thread::scope(|scope| {
        let (tell, told) = channel();
        let (_stay, until_dropped) = channel::<()>();
        scope.spawn(move || {
            netns::enter_new().unwrap();
            tell.send(own_namespace()).unwrap();
            let _ = until_dropped.recv();
        });
        let elsewhere = told.recv().unwrap();
        run("ip", "link add near type veth peer name next");
        run(
            "ip",
            &format!("link add far type veth peer name end netns {elsewhere}"),
        );
        run("ip", "link add shaped type veth peer name loose");
        run("ip", &format!("link set loose netns {elsewhere}"));
        for interface in ["near", "next", "far", "shaped"] {
            run("ip", &format!("link set {interface} up"));
        }
        run("tc", "qdisc replace dev shaped root pfifo");
        let table = [
            ("near", false, "its peer is here"),
            ("next", false, "the same"),
            ("far", true, "made there"),
            ("shaped", false, "packets queue on the way out"),
            ("lo", false, "no veth"),
            ("none", false, "no interface"),
        ];
        for (interface, expected, why) in table {
            let got = has_peer_elsewhere(interface).unwrap();
            assert_eq!(got, expected, "{interface}: {why}");
        }
        run("tc", "qdisc delete dev shaped root");
        assert!(has_peer_elsewhere("shaped").unwrap(), "moved there");
    });
}

/// The calling thread's network namespace, as iproute2 takes it.
fn own_namespace() -> String {
    let thread = std::fs::read_link("/proc/thread-self").expect("proc is mounted");
    format!("/proc/{}/ns/net", thread.display())
}
