//! What hosts a lab can have: their names, their addresses, what runs on them.
//! Another role or process is another line here.

use std::net::Ipv4Addr;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// The service address of every lab. Each lab's network is its own.
pub const VIP: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 100);
/// The length of the network's prefix.
pub const PREFIX: u8 = 24;
/// The name of the namespace that holds a lab's bridge.
pub const SWITCH: &str = "switch";
/// The interface of every host.
pub const INTERFACE: &str = "eth0";

/// What a host is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Makes requests: c1, c2, …
    Client,
    /// Spreads packets over dispatchers: s1, s2, …
    Spray,
    /// Reads requests: d1, d2, …
    Dispatcher,
    /// Serves: b1, b2, …
    Backend,
    /// Reads requests and serves: n1, n2, …
    Combined,
    /// Knows who is in the cluster: e1.
    Etcd,
}

/// What can run on a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Process {
    /// nginx, Apache or the lab's own in Python.
    Server,
    /// `trapeze agent`.
    Agent,
    /// `trapeze dispatch`.
    Dispatch,
    /// `trapeze spray`.
    Spray,
    /// etcd.
    Etcd,
}

impl Role {
    /// Every role, in the order in which hosts are listed.
    pub const ALL: [Role; 6] = [
        Role::Client,
        Role::Spray,
        Role::Dispatcher,
        Role::Backend,
        Role::Combined,
        Role::Etcd,
    ];

    /// What the names of its hosts start with.
    pub fn letter(self) -> char {
        match self {
            Role::Client => 'c',
            Role::Spray => 's',
            Role::Dispatcher => 'd',
            Role::Backend => 'b',
            Role::Combined => 'n',
            Role::Etcd => 'e',
        }
    }

    /// How many hosts of it a lab can have.
    pub fn limit(self) -> u8 {
        match self {
            Role::Client | Role::Spray | Role::Dispatcher | Role::Combined => 9,
            Role::Backend => 60,
            Role::Etcd => 1,
        }
    }

    /// What runs on its hosts, in the order of starting.
    pub fn processes(self) -> &'static [Process] {
        match self {
            Role::Client => &[],
            Role::Spray => &[Process::Spray],
            Role::Dispatcher => &[Process::Dispatch],
            Role::Backend => &[Process::Server, Process::Agent],
            Role::Combined => &[Process::Server, Process::Agent, Process::Dispatch],
            Role::Etcd => &[Process::Etcd],
        }
    }

    /// As users write it.
    pub fn word(self) -> &'static str {
        match self {
            Role::Client => "client",
            Role::Spray => "spray",
            Role::Dispatcher => "dispatcher",
            Role::Backend => "backend",
            Role::Combined => "dispatcher and backend",
            Role::Etcd => "etcd",
        }
    }

    /// Whether a dispatcher runs on its hosts.
    pub fn dispatches(self) -> bool {
        self.processes().contains(&Process::Dispatch)
    }

    /// Whether a server runs on its hosts.
    pub fn serves(self) -> bool {
        self.processes().contains(&Process::Server)
    }

    /// The name of its `number`th host, from 1.
    pub fn host(self, number: u8) -> String {
        format!("{}{number}", self.letter())
    }

    /// The address of its `number`th host, from 1.
    pub fn address(self, number: u8) -> Ipv4Addr {
        let before_first = match self {
            Role::Client => 0,
            Role::Spray => 90,
            Role::Dispatcher => 10,
            Role::Backend => 20,
            Role::Etcd => 120,
            Role::Combined => 130,
        };
        Ipv4Addr::new(10, 77, 0, before_first + number)
    }

    /// The role and number that a host's name says.
    pub fn of(host: &str) -> Option<(Role, u8)> {
        let mut letters = host.chars();
        let letter = letters.next()?;
        let number: u8 = letters.as_str().parse().ok()?;
        let role = Role::ALL.into_iter().find(|role| role.letter() == letter)?;
        let valid = (1..=role.limit()).contains(&number) && role.host(number) == host;
        valid.then_some((role, number))
    }
}

impl Process {
    /// Every kind, in the order of starting.
    pub const ALL: [Process; 5] = [
        Process::Etcd,
        Process::Server,
        Process::Agent,
        Process::Dispatch,
        Process::Spray,
    ];

    /// As users write it, and as `status --json` does.
    pub fn word(self) -> &'static str {
        match self {
            Process::Server => "server",
            Process::Agent => "agent",
            Process::Dispatch => "dispatch",
            Process::Spray => "spray",
            Process::Etcd => "etcd",
        }
    }

    /// The subcommand of `trapeze` that it is, unless it is not ours.
    pub fn subcommand(self) -> Option<&'static str> {
        match self {
            Process::Server | Process::Etcd => None,
            Process::Agent => Some("agent"),
            Process::Dispatch => Some("dispatch"),
            Process::Spray => Some("spray"),
        }
    }
}

/// What a host is called in the cluster's configuration as what `process` makes of it: a
/// dispatcher that is a backend, too, has two names.
pub fn node(host: &str, process: Process) -> String {
    match (Role::of(host), process) {
        (Some((Role::Combined, _)), Process::Dispatch) => format!("{host}-d"),
        (Some((Role::Combined, _)), _) => format!("{host}-b"),
        _ => host.to_owned(),
    }
}

/// From where the `number`th dispatcher of a role connects to backends without an agent.
pub fn splice_address(role: Role, number: u8) -> Ipv4Addr {
    let before_first = match role {
        Role::Combined => 140,
        _ => 110,
    };
    Ipv4Addr::new(10, 77, 0, before_first + number)
}

/// A host's link-layer address: its network address, marked as locally administered.
pub fn mac(address: Ipv4Addr) -> [u8; 6] {
    let [a, b, c, d] = address.octets();
    [0x02, 0x7a, a, b, c, d]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_role_and_number() {
        assert_eq!(Role::of("b12"), Some((Role::Backend, 12)));
        assert_eq!(Role::of("c1"), Some((Role::Client, 1)));
        for wrong in ["", "b", "b0", "b01", "b+1", "b61", "c10", "x1", "1", "b1 "] {
            assert_eq!(Role::of(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn no_two_hosts_share_an_address_and_none_has_the_vip() {
        let mut seen = std::collections::HashSet::from([VIP]);
        for role in Role::ALL {
            for number in 1..=role.limit() {
                assert!(seen.insert(role.address(number)), "{role:?} {number}");
            }
        }
        for role in [Role::Dispatcher, Role::Combined] {
            for number in 1..=role.limit() {
                assert!(
                    seen.insert(splice_address(role, number)),
                    "{role:?} {number}"
                );
            }
        }
    }
}
