//! Who is registered, and who was. A registration that ends (its lease has run out, or
//! somebody has deleted it) is no death: its node stays a member as *lapsed* until it does
//! not answer heartbeats either (docs/decisions/0020-membership-by-etcd.md). So the directory
//! says whom to ask; who has flows follows from answers alone. Nor does a second one of the same
//! name, with another address, put out the one that answers: it waits until that is silent.
//!
//! ```text
//!   (absent) --registered--> registered --ended--> lapsed --silent--> (absent)
//!                             |       ^-----registered-----'
//!                  registered otherwise
//!                             v
//!                         contested --silent--> registered, otherwise
//! ```

use std::collections::BTreeMap;

use crate::config::{Refused, Registration};

/// Registrations by key, in the order of keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Directory {
    entries: BTreeMap<String, Entry>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    value: String,
    is_lapsed: bool,
    /// What is registered now, if that is another node.
    rival: Option<String>,
}

impl Directory {
    /// As it was when it was written down.
    pub fn remembered(entries: impl IntoIterator<Item = (String, String)>) -> Self {
        let mut directory = Self::default();
        for (key, value) in entries {
            directory.register(&key, &value);
        }
        directory
    }

    /// It is registered, so.
    pub fn register(&mut self, key: &str, value: &str) {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.is_lapsed = false;
            entry.rival = (entry.value != value).then(|| value.to_owned());
            return;
        }
        let entry = Entry {
            value: value.to_owned(),
            is_lapsed: false,
            rival: None,
        };
        self.entries.insert(key.to_owned(), entry);
    }

    /// It is not registered any more.
    pub fn end(&mut self, key: &str) {
        if let Some(entry) = self.entries.get_mut(key) {
            (entry.is_lapsed, entry.rival) = (true, None);
        }
    }

    /// These are registered, and no others.
    pub fn replace(&mut self, all: &[(String, String)]) {
        let is_registered = |key: &String| all.iter().any(|(registered, _)| registered == key);
        let ended: Vec<String> = (self.entries.keys())
            .filter(|key| !is_registered(key))
            .cloned()
            .collect();
        ended.iter().for_each(|key| self.end(key));
        for (key, value) in all {
            self.register(key, value);
        }
    }

    /// Forgets the lapsed that are gone, and the contested for who has their name now. True:
    /// there were some.
    pub fn forget(&mut self, mut is_gone: impl FnMut(&Registration) -> bool) -> bool {
        let mut changed = false;
        self.entries.retain(|key, entry| {
            if !entry.is_lapsed && entry.rival.is_none() {
                return true;
            }
            // What cannot be read was nobody's.
            let is_there = |node| !is_gone(&node);
            if Registration::read(key, &entry.value).is_ok_and(is_there) {
                return true;
            }
            changed = true;
            match entry.rival.take() {
                Some(value) => {
                    entry.value = value;
                    true
                }
                None => false,
            }
        });
        changed
    }

    /// Keys and values, whether lapsed or not, to be written down.
    pub fn entries(&self) -> impl Iterator<Item = (&str, &str)> {
        (self.entries.iter()).map(|(key, entry)| (&**key, &*entry.value))
    }

    /// Whether there is such a key, and it has lapsed.
    pub fn is_lapsed(&self, key: &str) -> bool {
        self.entries.get(key).is_some_and(|entry| entry.is_lapsed)
    }

    /// The members, and what cannot be one.
    pub fn members(&self) -> (Vec<Registration>, Vec<Refused>) {
        let (mut members, mut refused) = (Vec::new(), Vec::new());
        for (key, entry) in &self.entries {
            let why = match Registration::read(key, &entry.value) {
                Ok(member) => {
                    let why = entry.rival.as_ref().map(|rival| {
                        format!(
                            "{rival:?} is there, and {} answers: stop that one, or rename one",
                            member.address
                        )
                    });
                    members.push(member);
                    why
                }
                Err(why) => Some(why),
            };
            refused.extend(why.map(|why| Refused {
                key: key.clone(),
                why,
            }));
        }
        (members, refused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(name: &str, last: u8) -> (String, String) {
        let key = format!("dispatcher/{name}");
        (key, format!("address = \"10.0.0.{last}\"\n"))
    }

    fn names(directory: &Directory) -> Vec<String> {
        let (members, _) = directory.members();
        members.into_iter().map(|member| member.name).collect()
    }

    #[test]
    fn who_is_not_registered_stays_until_it_is_silent() {
        let mut directory = Directory::default();
        directory.replace(&[pair("d1", 1), pair("d2", 2)]);
        // All registrations have run out at once: nobody goes.
        directory.replace(&[]);
        assert_eq!(names(&directory), ["d1", "d2"]);
        assert!(!directory.forget(|_| false));
        assert!(directory.forget(|node| node.name == "d2"));
        assert_eq!(names(&directory), ["d1"]);
    }

    #[test]
    fn who_is_registered_stays_however_silent() {
        let mut directory = Directory::remembered([pair("d1", 1)]);
        assert!(!directory.forget(|_| true));
        directory.end("dispatcher/d1");
        assert!(directory.is_lapsed("dispatcher/d1"));
        let (key, value) = pair("d1", 1);
        // It is back before anybody missed it.
        directory.register(&key, &value);
        assert!(!directory.forget(|_| true));
        assert_eq!(names(&directory), ["d1"]);
    }

    #[test]
    fn another_address_is_another_node_which_waits_until_the_first_is_silent() {
        let mut directory = Directory::remembered([pair("d1", 1)]);
        let address = |directory: &Directory| directory.members().0[0].address.to_string();
        let (key, value) = pair("d1", 9);
        directory.register(&key, &value);
        assert!(!directory.forget(|_| false));
        assert_eq!(address(&directory), "10.0.0.1");
        assert!(directory.members().1[0].why.contains("10.0.0.1 answers"));
        assert!(directory.forget(|_| true));
        assert_eq!(address(&directory), "10.0.0.9");
        assert!(!directory.forget(|_| true));
        // The rival goes first: nothing has happened.
        let (_, first) = pair("d1", 1);
        directory.register(&key, &first);
        directory.register(&key, &value);
        assert_eq!(directory.members().1, []);
        assert!(!directory.forget(|_| true));
    }

    #[test]
    fn what_cannot_be_read_is_refused_and_forgotten_at_its_end() {
        let mut directory = Directory::remembered([("cook/x".to_owned(), String::new())]);
        let (members, refused) = directory.members();
        assert_eq!((members.len(), refused.len()), (0, 1));
        assert!(!directory.forget(|_| false));
        directory.end("cook/x");
        assert!(directory.forget(|_| false));
    }
}
