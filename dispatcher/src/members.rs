//! Members by etcd, where the configuration says so (trapeze-membership): a change is taken
//! as a reload is.

use trapeze_core::config::{MemberRole, Registration};
use trapeze_membership::Daemon;

use crate::{Shared, v4};

impl Daemon for Shared {
    fn members_changed(&self) -> anyhow::Result<()> {
        self.take(None)
    }

    /// Sprays ask dispatchers, and are not asked by them.
    fn is_gone(&self, member: &Registration) -> bool {
        match (member.role, v4(member.address)) {
            (MemberRole::Dispatcher, Ok(address)) => !self.peers.has_living(address),
            (MemberRole::Dispatcher, Err(_)) | (MemberRole::Spray, _) => true,
        }
    }
}
