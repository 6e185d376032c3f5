//! The two ways to be spliced, which are to look the same to clients and servers
//! (docs/protocol/splice.md).

use trapeze_lab::Options;

use crate::cluster::{Cluster, until};

/// How connections get to backends, if dispatchers open them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Splice {
    /// Dispatchers rewrite both directions.
    Whole,
    /// Agents rewrite what servers say.
    Split,
}

impl Splice {
    /// As configurations have it.
    pub fn transfer(self) -> &'static str {
        match self {
            Self::Whole => "splice",
            Self::Split => "split-splice",
        }
    }

    /// Do agents take part?
    pub fn is_split(self) -> bool {
        self == Self::Split
    }

    /// A lab's name: the same test may run both ways at once.
    pub fn named(self, test: &str) -> String {
        match self {
            Self::Whole => test.to_owned(),
            Self::Split => format!("{test}-two"),
        }
    }

    /// A line of a backend's section, and that it is spliced so.
    pub fn of(self, line: &str) -> String {
        format!("{line}\ntransfer = {:?}", self.transfer())
    }

    /// One whose backends are all spliced so, and have been found to be up.
    pub fn cluster(self, test: &str, change: impl FnOnce(&mut Options)) -> Cluster {
        let cluster = Cluster::with(&self.named(test), |options| {
            options.transfer = Some(self.transfer().into());
            change(options);
        });
        until("its servers have been asked", || {
            let up = |name: &str| cluster.backend(name).state == "up";
            let status = cluster.status().unwrap();
            let mut backends = status.hosts.iter().filter(|h| h.name.starts_with('b'));
            backends.all(|host| up(&host.name)).then_some(())
        });
        cluster
    }

    /// As configured in a whole file.
    pub fn configured(self, test: &str, text: &str) -> Cluster {
        Cluster::configured_whole(&self.named(test), text, |_| {})
    }
}

/// Functions of a [`Splice`] as tests, one for each of both.
#[macro_export]
macro_rules! by_each_splice {
    ($($name:ident),* $(,)?) => {
        mod splice {
            $(#[test]
            fn $name() {
                super::$name($crate::Splice::Whole);
            })*
        }
        mod split_splice {
            $(#[test]
            fn $name() {
                super::$name($crate::Splice::Split);
            })*
        }
    };
}
