//! The last known members, on disk: a node that begins while etcd is away begins with them.
//! Not in /run, since a host may begin again at the same time as etcd.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use trapeze_core::membership::directory::Directory;

/// Where clusters have their directories.
const ROOT: &str = "/var/lib/trapeze";

/// One node's file.
pub struct Store(PathBuf);

impl Store {
    pub fn of(cluster: &str, node: &str) -> Self {
        Self(Path::new(ROOT).join(cluster).join(node).join("members"))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// None: there are none yet, or what is there is damaged.
    pub fn read(&self) -> Option<Directory> {
        let text = std::fs::read_to_string(&self.0).ok()?;
        let entries: BTreeMap<String, String> = serde_json::from_str(&text).ok()?;
        Some(Directory::remembered(entries))
    }

    /// A reader sees the old ones or the new ones.
    pub fn write(&self, known: &Directory) -> io::Result<()> {
        let entries: BTreeMap<&str, &str> = known.entries().collect();
        let new = self.0.with_extension("new");
        if let Some(directory) = self.0.parent() {
            std::fs::create_dir_all(directory)?;
        }
        std::fs::write(&new, serde_json::to_vec_pretty(&entries)?)?;
        std::fs::rename(&new, &self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_known_is_known_again() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store(directory.path().join("c/d1/members"));
        assert!(store.read().is_none());
        let value = "address = \"10.0.0.1\"\n".to_owned();
        let known = Directory::remembered([("dispatcher/d1".to_owned(), value)]);
        store.write(&known).unwrap();
        assert_eq!(store.read(), Some(known));
        std::fs::write(store.path(), "{").unwrap();
        assert!(store.read().is_none());
    }
}
