//! What a node says of itself where members are registered, and a configuration with those
//! that are. The value is TOML, the few keys of the node's own section that others need:
//!
//! ```text
//!   /trapeze/shop/dispatcher/d3      address = "10.0.0.13"
//! ```

use std::fmt;
use std::net::IpAddr;

use toml::Spanned;
use toml::de::DeTable;

use super::parse::MEMBERS_MAX;
use super::section::{Section, Source};
use super::{Attach, Config, Dispatcher, Spray, value};

/// A node, as it has registered itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registration {
    /// What it is.
    pub role: MemberRole,
    /// Unique among nodes.
    pub name: String,
    /// Its own address.
    pub address: IpAddr,
    /// A dispatcher's, if it has one.
    pub splice_address: Option<IpAddr>,
    /// A dispatcher's; 0: the front end.
    pub sub_cluster: u8,
}

/// What can be registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MemberRole {
    /// A `[[dispatcher]]`.
    Dispatcher,
    /// A `[[spray]]`.
    Spray,
}

impl MemberRole {
    /// As in the file and in keys.
    pub fn word(self) -> &'static str {
        match self {
            MemberRole::Dispatcher => "dispatcher",
            MemberRole::Spray => "spray",
        }
    }
}

/// A registration that does not count, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Role and name, as in its key.
    pub key: String,
    /// What is wrong and what to do.
    pub why: String,
}

impl Registration {
    /// A dispatcher's own.
    pub fn of_dispatcher(own: &Dispatcher) -> Self {
        Registration {
            role: MemberRole::Dispatcher,
            name: own.name.clone(),
            address: own.address,
            splice_address: own.splice_address,
            sub_cluster: own.sub_cluster,
        }
    }

    /// A spray's own.
    pub fn of_spray(own: &Spray) -> Self {
        Registration {
            role: MemberRole::Spray,
            name: own.name.clone(),
            address: own.address,
            splice_address: None,
            sub_cluster: 0,
        }
    }

    /// Its key, behind the directory.
    pub fn key(&self) -> String {
        format!("{}/{}", self.role.word(), self.name)
    }

    /// Its value.
    pub fn value(&self) -> String {
        let mut value = format!("address = \"{}\"\n", self.address);
        if let Some(address) = self.splice_address {
            value += &format!("splice_address = \"{address}\"\n");
        }
        if self.sub_cluster > 0 {
            value += &format!("sub_cluster = {}\n", self.sub_cluster);
        }
        value
    }

    /// Of what stands in the directory. Keys of later versions are left alone.
    ///
    /// # Errors
    /// Says what is wrong, and where.
    pub fn read(key: &str, text: &str) -> Result<Self, String> {
        let (role, name) = key
            .split_once('/')
            .ok_or("a member's key ends in ROLE/NAME")?;
        let roles = [MemberRole::Dispatcher, MemberRole::Spray];
        let role = roles
            .into_iter()
            .find(|known| known.word() == role)
            .ok_or_else(|| format!("there is no role {role:?}; there are dispatcher and spray"))?;
        value::node_name(name)?;
        let source = Source::new(text, key);
        let (document, errors) = DeTable::parse_recoverable(text);
        if let Some(error) = errors.first() {
            return Err(format!("it is no TOML: {}", error.message()));
        }
        let mut section = Section::new(&source, "the registration", document.get_ref(), 0..0);
        let address = section.required("address", "\"10.0.0.13\"", value::address);
        let splice_address = section.optional("splice_address", value::address);
        let sub_cluster = section.optional("sub_cluster", value::sub_cluster);
        drop(section);
        if let Some(error) = source.into_errors().first() {
            return Err(error.message.clone());
        }
        Ok(Registration {
            role,
            name: name.to_owned(),
            address: address.expect("no error").into_inner(),
            splice_address: splice_address.map(Spanned::into_inner),
            sub_cluster: sub_cluster.map_or(0, Spanned::into_inner),
        })
    }
}

impl fmt::Display for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} at {}", self.role.word(), self.name, self.address)
    }
}

impl Config {
    /// With those that are registered, and those of them that do not fit. What the file says
    /// of a node holds. Sprays are in the order of their names: files differ in which they
    /// name.
    pub fn with_members(&self, registered: &[Registration]) -> (Config, Vec<Refused>) {
        let mut config = self.clone();
        let mut refused = Vec::new();
        for member in registered {
            match config.refusal(member) {
                Some(why) => refused.push(Refused {
                    key: member.key(),
                    why,
                }),
                None => config.add(member),
            }
        }
        config.sprays.sort_by(|a, b| a.name.cmp(&b.name));
        config.dispatchers.sort_by(|a, b| a.name.cmp(&b.name));
        (config, refused)
    }

    /// Why a node cannot be a member.
    fn refusal(&self, member: &Registration) -> Option<String> {
        let Registration {
            role,
            name,
            address,
            splice_address,
            sub_cluster,
        } = member;
        let others: Vec<Registration> = self.registrations().collect();
        if let Some(same) = others.iter().find(|o| o.role == *role && o.name == *name) {
            let differs = same.address != *address || same.splice_address != *splice_address;
            if !differs && same.sub_cluster != *sub_cluster {
                return Some(format!(
                    "the file has it in sub-cluster {}, not {sub_cluster}: write the same there, or \
                     remove it there",
                    same.sub_cluster
                ));
            }
            return differs.then(|| {
                format!(
                    "the file has this {} at {}, not {address}: write the same there, or remove it there",
                    role.word(),
                    same.address
                )
            });
        }
        if others.iter().any(|other| other.name == *name) || self.backend(name).is_some() {
            return Some("another kind of node has that name: rename one".into());
        }
        if address.is_ipv6() || splice_address.is_some_and(|a| a.is_ipv6()) {
            return Some("IPv6 is not served yet: register an IPv4 address".into());
        }
        if let Some(same) = others
            .iter()
            .find(|o| o.role == *role && o.address == *address)
        {
            return Some(format!(
                "{} has the address {address}: one of them is wrong",
                same.name
            ));
        }
        let fronts = self.front_addresses();
        let of_nodes = (others.iter().map(|other| other.address))
            .chain(self.backends.iter().map(|backend| backend.address))
            .chain([*address]);
        let taken = |wanted: &IpAddr| of_nodes.clone().any(|other| other == *wanted);
        if fronts.contains(address) {
            return Some(format!("{address} is a service's or splice address"));
        }
        if let Some(splice) = splice_address.filter(|a| fronts.contains(a) || taken(a)) {
            return Some(format!(
                "its splice_address {splice} is another's: each dispatcher needs its own"
            ));
        }
        let is_spliced = self.backends.iter().any(|b| b.transfer.connects());
        if *role == MemberRole::Dispatcher && is_spliced && splice_address.is_none() {
            return Some(
                "there are backends with `transfer = \"splice\"`: give it a splice_address".into(),
            );
        }
        let count = others.iter().filter(|other| other.role == *role).count();
        (count >= MEMBERS_MAX).then(|| format!("there are {count} already: split the cluster"))
    }

    fn registrations(&self) -> impl Iterator<Item = Registration> {
        let dispatchers = self.dispatchers.iter().map(Registration::of_dispatcher);
        dispatchers.chain(self.sprays.iter().map(Registration::of_spray))
    }

    /// What only the node itself needs to know is left open.
    fn add(&mut self, member: &Registration) {
        let (name, address) = (member.name.clone(), member.address);
        match member.role {
            _ if self
                .registrations()
                .any(|known| known.key() == member.key()) => {}
            MemberRole::Dispatcher => self.dispatchers.push(Dispatcher {
                name,
                address,
                interface: String::new(),
                attach: Attach::Xdp,
                workers: 1,
                splice_address: member.splice_address,
                sub_cluster: member.sub_cluster,
            }),
            MemberRole::Spray => self.sprays.push(Spray {
                name,
                address,
                interface: String::new(),
                attach: Attach::Xdp,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"
[cluster]
name = "shop"
keys = [{ id = 1, secret = "000102030405060708090a0b0c0d0e0f" }]
[membership.etcd]
endpoints = ["http://10.0.0.5:2379"]
[[dispatcher]]
name = "d2"
address = "10.0.0.12"
interface = "eth0"
[[backend]]
name = "b1"
address = "10.0.0.21"
interface = "eth0"
[[pool]]
name = "web"
backends = ["b1"]
[[service]]
name = "site"
address = "10.0.0.100:80"
pool = "web"
"#;

    fn member(key: &str, address: &str) -> Registration {
        Registration::read(key, &format!("address = \"{address}\"")).unwrap()
    }

    fn config() -> Config {
        Config::parse(FILE, "test").unwrap()
    }

    #[test]
    fn a_registration_travels_whole() {
        let own = Registration::of_dispatcher(&config().dispatchers[0]);
        assert_eq!(own.key(), "dispatcher/d2");
        assert_eq!(Registration::read(&own.key(), &own.value()), Ok(own));
        let spliced = Registration {
            splice_address: Some("10.0.0.112".parse().unwrap()),
            sub_cluster: 3,
            ..member("dispatcher/d7", "10.0.0.17")
        };
        assert_eq!(
            Registration::read(&spliced.key(), &spliced.value()),
            Ok(spliced)
        );
    }

    #[test]
    fn a_later_versions_registration_is_read() {
        let text = "address = \"10.0.0.13\"\nshade = \"green\"\n";
        assert!(Registration::read("dispatcher/d3", text).is_ok());
    }

    #[test]
    fn a_wrong_registration_says_what_is_wrong() {
        let cases = [
            ("dispatcher", "", "ROLE/NAME"),
            ("cook/d3", "", "no role \"cook\""),
            ("dispatcher/D3", "", "a name consists of"),
            ("dispatcher/d3", "", "lacks `address`"),
            ("dispatcher/d3", "address = 10", "`address`: expected"),
            ("dispatcher/d3", "address =", "no TOML"),
            (
                "spray/s1",
                "address = \"10.0.0.1:80\"",
                "write \"10.0.0.1\"",
            ),
        ];
        for (key, text, wanted) in cases {
            let error = Registration::read(key, text).unwrap_err();
            assert!(error.contains(wanted), "{key} {text}: {error}");
        }
    }

    proptest::proptest! {
        #![proptest_config(proptest::test_runner::Config {
            failure_persistence: None,
            ..Default::default()
        })]
        #[test]
        fn nothing_that_stands_there_panics(key in ".{0,40}", text in ".{0,80}") {
            let _ = Registration::read(&key, &text);
            let _ = Registration::read("dispatcher/d1", &format!("address = {text}"));
            let _ = Registration::read("spray/s1", &text);
        }
    }

    #[test]
    fn all_come_to_the_same_members_in_the_same_order() {
        let members = [
            member("dispatcher/d1", "10.0.0.11"),
            member("dispatcher/d2", "10.0.0.12"),
            member("spray/s2", "10.0.0.92"),
            member("spray/s1", "10.0.0.91"),
        ];
        let (whole, refused) = config().with_members(&members);
        assert_eq!(refused, []);
        let names = |nodes: Vec<&String>| nodes.into_iter().cloned().collect::<Vec<_>>();
        assert_eq!(
            names(whole.dispatchers.iter().map(|d| &d.name).collect()),
            ["d1", "d2"]
        );
        assert_eq!(
            names(whole.sprays.iter().map(|s| &s.name).collect()),
            ["s1", "s2"]
        );
        // Its own, whole.
        assert_eq!(whole.dispatchers[1], config().dispatchers[0]);
    }

    #[test]
    fn what_does_not_fit_is_refused_and_said() {
        let mut spliced = member("dispatcher/d3", "10.0.0.13");
        spliced.splice_address = Some("10.0.0.100".parse().unwrap());
        let by_a_backend = Registration {
            splice_address: Some(config().backends[0].address),
            ..member("dispatcher/d3", "10.0.0.13")
        };
        let by_itself = Registration {
            splice_address: Some("10.0.0.13".parse().unwrap()),
            ..member("dispatcher/d3", "10.0.0.13")
        };
        let elsewhere = Registration {
            sub_cluster: 1,
            ..member("dispatcher/d2", "10.0.0.12")
        };
        let cases = [
            (elsewhere, "the file has it in sub-cluster 0, not 1"),
            (
                member("dispatcher/d2", "10.0.0.13"),
                "the file has this dispatcher at 10.0.0.12",
            ),
            (member("dispatcher/b1", "10.0.0.13"), "another kind of node"),
            (member("dispatcher/d3", "10.0.0.12"), "d2 has the address"),
            (member("dispatcher/d3", "10.0.0.100"), "is a service's"),
            (member("dispatcher/d3", "2001:db8::1"), "IPv6"),
            (spliced, "splice_address 10.0.0.100 is another's"),
            (by_a_backend, "is another's"),
            (by_itself, "splice_address 10.0.0.13 is another's"),
        ];
        for (member, wanted) in cases {
            let (same, refused) = config().with_members(std::slice::from_ref(&member));
            assert!(refused[0].why.contains(wanted), "{member}: {refused:?}");
            assert_eq!(same, config());
        }
    }
}
