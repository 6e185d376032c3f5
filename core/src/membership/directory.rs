//! Who is registered, and who was. A registration that ends (its lease has run out, or
//! somebody has deleted it) is no death: its node stays a member as *lapsed* until it does
//! not answer heartbeats either (docs/decisions/0020-membership-by-etcd.md). So the directory
//! says whom to ask; who has flows follows from answers alone.
//!
//! ```text
//!   (absent) --registered--> registered --ended--> lapsed --silent--> (absent)
//!                                 ^----registered-----'
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

    /// It is registered, so. True: the members are others than before.
    pub fn register(&mut self, key: &str, value: &str) -> bool {
        let entry = Entry {
            value: value.to_owned(),
            is_lapsed: false,
        };
        let old = self.entries.insert(key.to_owned(), entry);
        old.is_none_or(|old| old.value != value)
    }

    /// It is not registered any more.
    pub fn end(&mut self, key: &str) {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.is_lapsed = true;
        }
    }

    /// These are registered, and no others. True: the members are others than before.
    pub fn replace(&mut self, all: &[(String, String)]) -> bool {
        for (key, entry) in &mut self.entries {
            entry.is_lapsed = !all.iter().any(|(registered, _)| registered == key);
        }
        let register =
            |changed, (key, value): &(String, String)| self.register(key, value) | changed;
        all.iter().fold(false, register)
    }

    /// Forgets the lapsed that are gone. True: there were some.
    pub fn forget(&mut self, mut is_gone: impl FnMut(&Registration) -> bool) -> bool {
        let before = self.entries.len();
        self.entries.retain(|key, entry| {
            // What cannot be read was nobody's.
            let is_there = |node| !is_gone(&node);
            !entry.is_lapsed || Registration::read(key, &entry.value).is_ok_and(is_there)
        });
        self.entries.len() != before
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
        for (key, value) in self.entries() {
            match Registration::read(key, value) {
                Ok(member) => members.push(member),
                Err(why) => refused.push(Refused {
                    key: key.to_owned(),
                    why,
                }),
            }
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
        assert!(directory.replace(&[pair("d1", 1), pair("d2", 2)]));
        // All registrations have run out at once: nobody goes.
        assert!(!directory.replace(&[]));
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
        assert!(!directory.register(&key, &value));
        assert!(!directory.forget(|_| true));
        assert_eq!(names(&directory), ["d1"]);
    }

    #[test]
    fn another_address_is_another_member() {
        let mut directory = Directory::remembered([pair("d1", 1)]);
        let (key, value) = pair("d1", 9);
        assert!(directory.register(&key, &value));
        assert!(!directory.register(&key, &value));
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
