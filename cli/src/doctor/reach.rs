//! Whether backends take packets as long as a dispatcher's interface does. What is
//! too long for them gets lost on the way, uncounted: short requests are served then,
//! and uploads hang.

use std::net::IpAddr;
use std::process::{Child, Command, Stdio};

use trapeze_core::config::Backend;

use super::Check;

/// Headers of IPv4 and of an ICMP echo.
const ECHO_HEADERS: u32 = 28;

/// How a backend answers echoes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    /// Those of full length.
    Full,
    /// Only short ones.
    Short,
    /// None: filtered, or it is down.
    Nothing,
}

/// Looks, from a dispatcher whose interface has this MTU.
pub fn checks(backends: &[Backend], mtu: u32) -> Vec<Check> {
    if Command::new("ping").arg("-V").output().is_err() {
        return vec![Check::warning(
            "reach",
            "there is no `ping`: whether long packets get to backends cannot be seen",
            "apt-get install iputils-ping",
        )];
    }
    let addresses: Vec<IpAddr> = backends.iter().map(|b| b.address).collect();
    let full = answers(&addresses, mtu.saturating_sub(ECHO_HEADERS));
    let silent = || addresses.iter().zip(&full).filter(|(_, full)| !**full);
    let asked_again: Vec<IpAddr> = silent().map(|(address, _)| *address).collect();
    let mut short = answers(&asked_again, 0).into_iter();
    let reached = full.iter().map(|full| match full {
        true => Reach::Full,
        false if short.next() == Some(true) => Reach::Short,
        false => Reach::Nothing,
    });
    judge(backends, &reached.collect::<Vec<_>>(), mtu)
}

fn judge(backends: &[Backend], reached: &[Reach], mtu: u32) -> Vec<Check> {
    let (name, mut checks) = ("reach", Vec::new());
    let of = |wanted: Reach| {
        let all = backends.iter().zip(reached);
        all.filter(move |(_, reach)| **reach == wanted)
            .map(|(backend, _)| backend)
    };
    let full: Vec<&str> = of(Reach::Full).map(|b| b.name.as_str()).collect();
    if !full.is_empty() {
        let names = full.join(", ");
        checks.push(Check::ok(
            name,
            format!("packets of {mtu} bytes get to {names}"),
        ));
    }
    for backend in of(Reach::Short) {
        checks.push(Check::missing(
            name,
            format!(
                "packets of {mtu} bytes do not get to {}: long heads and uploads to it hang",
                backend.name
            ),
            format!(
                "on {}: ip link set {} mtu {mtu}",
                backend.name, backend.interface
            ),
        ));
    }
    for backend in of(Reach::Nothing) {
        checks.push(Check::warning(
            name,
            format!(
                "{} answers no ping, so its MTU cannot be seen",
                backend.name
            ),
            format!("ping {}", backend.address),
        ));
    }
    checks
}

/// Who answers an echo with so many bytes that must not be fragmented; asked all at once.
fn answers(addresses: &[IpAddr], bytes: u32) -> Vec<bool> {
    let asked: Vec<Option<Child>> = (addresses.iter())
        .map(|address| {
            Command::new("ping")
                .args(["-n", "-q", "-c1", "-W1", "-Mdo", "-s"])
                .args([bytes.to_string(), address.to_string()])
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .ok()
        })
        .collect();
    (asked.into_iter())
        .map(|child| child.is_some_and(|mut child| child.wait().is_ok_and(|end| end.success())))
        .collect()
}

#[cfg(test)]
mod tests {
    use trapeze_core::config::Config;

    use super::super::Level;
    use super::*;

    #[test]
    fn whoever_takes_short_packets_only_is_named() {
        let text = include_str!("../../../examples/trapeze.toml");
        let config = Config::parse(text, "trapeze.toml").unwrap();
        let reached = [Reach::Full, Reach::Short, Reach::Nothing];
        let checks = judge(&config.backends, &reached, 1500);
        let levels: Vec<Level> = checks.iter().map(|check| check.level).collect();
        assert_eq!(levels, [Level::Ok, Level::Missing, Level::Warning]);
        let mend = checks[1].mend.as_deref().unwrap();
        assert_eq!(mend, "on b2: ip link set eth0 mtu 1500");
    }
}
