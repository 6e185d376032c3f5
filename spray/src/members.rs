//! Members by etcd, where the configuration says so (trapeze-membership): a change is taken
//! as a reload is.

use trapeze_core::config::Registration;
use trapeze_core::membership::watch::State;
use trapeze_membership::Daemon;

use crate::Shared;

impl Daemon for Shared {
    fn members_changed(&self) -> anyhow::Result<()> {
        self.take(None)
    }

    /// As the vigil saw it last.
    fn is_gone(&self, member: &Registration) -> bool {
        let status = self.status.lock().expect("no thread panics with it");
        let mut all = status.dispatchers.iter().chain(&status.sprays);
        let is_it = all.find(|seen| seen.name == member.name);
        is_it.is_some_and(|seen| seen.state == State::Silent.name())
    }
}
