//! Emulated links between real hosts. Needs root, ping, iperf3 and ethtool, and
//! cargo build -p trapeze-cli.

mod support;

use std::time::Duration;

use support::*;
use trapeze_lab::{Counters, Lab, LinkSettings};

const MILLISECOND: Duration = Duration::from_millis(1);

/// The least round-trip time of some, in milliseconds.
fn round_trip_ms(lab: &Lab) -> f64 {
    let said = on(lab, "c1", &["ping", "-c10", "-i0.01", "-q", "10.77.0.21"]);
    let (_, times) = said.rsplit_once(" = ").expect("ping sums up");
    times.split('/').next().unwrap().parse().unwrap()
}

/// Bits a second from c1 to b1, as b1 received them.
fn throughput(lab: &Lab, more: &[&str]) -> f64 {
    let server = lab
        .host("b1")
        .unwrap()
        .command("iperf3")
        .args(["-s", "-1"])
        .spawn();
    let mut server = server.unwrap();
    std::thread::sleep(Duration::from_millis(200));
    let command = ["iperf3", "-J", "-t2", "-c", "10.77.0.21"];
    let said = on(lab, "c1", &[&command[..], more].concat());
    server.wait().unwrap();
    let report: serde_json::Value = serde_json::from_str(&said).unwrap();
    report["end"]["sum_received"]["bits_per_second"]
        .as_f64()
        .unwrap()
}

/// What became of the frames of c1, once none is on its way any more.
fn counters(lab: &Lab) -> (Counters, Counters) {
    let settled = |c: &Counters| c.received + c.duplicated == c.sent + c.lost + c.overflowed;
    for _ in 0..100 {
        let status = lab.status().unwrap();
        let link = status.host("c1").unwrap().link.clone().unwrap();
        let (from, to) = (link.from_host.unwrap(), link.to_host.unwrap());
        if settled(&from) && settled(&to) {
            return (from, to);
        }
        std::thread::sleep(10 * MILLISECOND);
    }
    panic!("frames have vanished: {:#?}", lab.status());
}

#[test]
fn delay_is_added_both_ways_and_changes_without_a_cut() {
    let lab = lab("delay");
    let delay = |milliseconds: u32| {
        let settings = LinkSettings {
            delay: MILLISECOND * milliseconds,
            ..LinkSettings::default()
        };
        lab.link("c1", &settings).unwrap();
        round_trip_ms(&lab)
    };
    for milliseconds in [40, 5, 1] {
        let expected = f64::from(2 * milliseconds);
        let measured = delay(milliseconds);
        assert!((expected..expected + 1.0).contains(&measured), "{measured}");
    }
    let (from, to) = counters(&lab);
    assert_eq!((from.failed, to.failed), (0, 0));
    assert_eq!(from.received, from.sent);
}

#[test]
fn loss_takes_its_share() {
    let lab = lab("loss");
    let settings = LinkSettings {
        loss: 0.1,
        ..LinkSettings::default()
    };
    lab.link("c1", &settings).unwrap();
    output_on(&lab, "c1", &["ping", "-f", "-c2000", "-q", "10.77.0.21"]);
    let (from, to) = counters(&lab);
    for counters in [from, to] {
        let share = counters.lost as f64 / counters.received as f64;
        assert!((0.07..0.13).contains(&share), "{counters:?}");
        assert_eq!(counters.sent + counters.lost, counters.received);
    }
}

#[test]
fn rate_bounds_a_transfer() {
    let lab = lab("rate");
    let settings = LinkSettings {
        rate: Some(20_000_000),
        limit: 100,
        ..LinkSettings::default()
    };
    lab.link("c1", &settings).unwrap();
    for direction in [&[][..], &["-R"]] {
        let measured = throughput(&lab, direction) / 1e6;
        assert!((16.0..20.5).contains(&measured), "{measured} Mbit/s");
    }
}

#[test]
fn content_survives_loss_order_and_copies() {
    let lab = lab("mixed");
    let settings = LinkSettings {
        loss: 0.01,
        reorder: 0.05,
        duplicate: 0.01,
        jitter: MILLISECOND,
        delay: 2 * MILLISECOND,
        ..LinkSettings::default()
    };
    lab.link("c1", &settings).unwrap();
    let root = lab.status().unwrap().root;
    let got = output_on(&lab, "c1", &["curl", "-sSf", "http://10.77.0.21/10m"]);
    assert!(got.stdout == std::fs::read(root.join("10m")).unwrap());
    let (_, to) = counters(&lab);
    assert!(
        to.lost > 0 && to.reordered > 0 && to.duplicated > 0,
        "{to:?}"
    );
}

#[test]
fn without_anything_to_do_it_loses_nothing_at_full_speed() {
    let lab = lab("speed");
    let settings = LinkSettings {
        delay: Duration::from_micros(1),
        ..LinkSettings::default()
    };
    lab.link("c1", &settings).unwrap();
    for direction in [&[][..], &["-R"]] {
        let measured = throughput(&lab, direction) / 1e9;
        eprintln!("{measured:.2} Gbit/s {direction:?}");
        // The machine may be busy: a floor, not the figure.
        assert!(measured > 0.3, "{measured} Gbit/s");
    }
    let (from, to) = counters(&lab);
    for counters in [from, to] {
        assert_eq!(counters.received, counters.sent, "{counters:?}");
        assert_eq!(counters.failed, 0);
    }
}

#[test]
fn clearing_restores_the_interfaces() {
    let lab = lab("clear");
    let offloads = |lab: &Lab| on(lab, "c1", &["ethtool", "-k", "eth0"]);
    let ports = |lab: &Lab| {
        on(
            lab,
            "switch",
            &["ip", "-br", "link", "show", "master", "br0"],
        )
    };
    let before = (offloads(&lab), ports(&lab));
    let settings = LinkSettings {
        delay: MILLISECOND,
        ..LinkSettings::default()
    };
    lab.link("c1", &settings).unwrap();
    assert_ne!(before.0, offloads(&lab));
    assert_ne!(before.1, ports(&lab));
    lab.link("c1", &LinkSettings::default()).unwrap();
    assert_eq!(before, (offloads(&lab), ports(&lab)));
    assert!(round_trip_ms(&lab) < 1.0);
}

#[test]
fn a_link_outlives_a_loss_of_power_and_goes_with_the_lab() {
    let lab = lab("relink");
    let settings = LinkSettings {
        delay: 10 * MILLISECOND,
        ..LinkSettings::default()
    };
    lab.link("b1", &settings).unwrap();
    lab.kill("b1", None).unwrap();
    assert!(lab.link("b1", &settings).is_err(), "it is off");
    lab.start("b1", None).unwrap();
    let measured = round_trip_ms(&lab);
    assert!((20.0..21.0).contains(&measured), "{measured}");
    let name = lab.name().to_owned();
    drop(lab);
    assert_gone(&name);
}

#[test]
fn a_link_needs_something_to_do_and_valid_numbers() {
    let lab = lab("words");
    for (arguments, says) in [
        (&["link", "c1"][..], "required"),
        (&["link", "c1", "--loss", "1"], "such as 1%"),
        (&["link", "c1", "--delay", "40"], "such as 40ms"),
        (&["link", "c1", "--rate", "10"], "10mbit"),
        (&["link", "x1", "--delay", "1ms"], "it has c1 d1 b1 b2 b3"),
        (
            &["link", "c1", "--clear", "--delay", "1ms"],
            "cannot be used with",
        ),
    ] {
        let output = trapeze_lab(lab.name(), arguments);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && said.contains(says), "{said}");
    }
}
