//! Members by etcd: this node is registered there under a lease, and others are learnt from
//! there. What the daemon does with a change it does itself ([`Daemon`]).
//!
//! etcd says whom to ask. Who is there, who has flows and who leads follows from heartbeats
//! alone, so nothing of this is on a packet's way, and etcd may be away for as long as it
//! likes: the last known members stay (docs/decisions/0020-membership-by-etcd.md).
//!
//! ```text
//!  gateway   etcd's requests as HTTP and JSON      follow   lease, watch, back-off
//!  store     the last known members, on disk       status   what commands are told
//! ```

mod follow;
mod gateway;
mod status;
mod store;

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use trapeze_core::config::{Config, Etcd, Refused, Registration};
use trapeze_core::membership::directory::Directory;

pub use follow::Follower;
pub use gateway::{Event, Gateway, GatewayError};
pub use status::{MemberStatus, MembershipStatus, RefusedStatus};

use status::Link;
use store::Store;

/// A first registration is tried again after this.
const FIRST_RETRY: Duration = Duration::from_secs(1);

/// The daemon whose node it is.
pub trait Daemon: Send + Sync {
    /// The members have changed: [`complete`] has them.
    ///
    /// # Errors
    /// They cannot be taken; the daemon goes on with those of before.
    fn members_changed(&self) -> anyhow::Result<()>;

    /// A node that is not registered any more does not answer heartbeats either, or this
    /// daemon does not ask it.
    fn is_gone(&self, member: &Registration) -> bool;
}

/// The members that are registered, as this node knows them.
pub struct Membership {
    etcd: Etcd,
    /// All its keys begin with it.
    directory: String,
    own: Registration,
    store: Store,
    state: Mutex<State>,
}

/// How a node begins.
pub enum Begun {
    /// The file names all members.
    Alone,
    /// It is registered, or was before and etcd is away.
    Registered(Arc<Membership>, Follower),
    /// It was told to stop while it waited for etcd.
    Stopped,
}

#[derive(Default)]
pub(crate) struct State {
    known: Directory,
    link: Link,
    refused: Vec<Refused>,
    /// This node's, if it has one.
    lease: Option<i64>,
    is_registered: bool,
    /// It is not to be registered again.
    is_leaving: bool,
}

/// Registers a node and learns who is there, if the configuration has members registered,
/// before it begins to work: of two that begin at once, at least one knows the other. With
/// members known from an earlier run etcd may be away. Without, this waits for it: who knows
/// nobody would take itself for the whole cluster. `wait` waits, and says whether to go on.
///
/// # Errors
/// What the configuration names (a certificate, a key) cannot be read.
pub fn begin(
    config: &Config,
    own: Registration,
    wait: impl FnMut(Duration) -> anyhow::Result<bool>,
) -> anyhow::Result<Begun> {
    let Some(etcd) = &config.membership else {
        return Ok(Begun::Alone);
    };
    Ok(match Membership::begin(config, etcd, own, wait)? {
        Some((membership, follower)) => Begun::Registered(membership, follower),
        None => Begun::Stopped,
    })
}

/// The file's configuration with those that are registered, if that is how it is.
pub fn complete(membership: Option<&Membership>, file: &Config) -> Config {
    membership.map_or_else(|| file.clone(), |membership| membership.complete(file))
}

impl Membership {
    fn begin(
        config: &Config,
        etcd: &Etcd,
        own: Registration,
        mut wait: impl FnMut(Duration) -> anyhow::Result<bool>,
    ) -> anyhow::Result<Option<(Arc<Self>, Follower)>> {
        let store = Store::of(&config.name, &own.name);
        let remembered = store.read();
        let is_new = remembered.is_none();
        let membership = Arc::new(Membership {
            directory: etcd.directory(&config.name),
            etcd: etcd.clone(),
            own,
            store,
            state: Mutex::new(State {
                known: remembered.unwrap_or_default(),
                ..State::default()
            }),
        });
        let mut follower = Follower::new(membership.clone(), Gateway::open(etcd)?);
        let mut is_told = false;
        while let Err(error) = follower.register_and_look() {
            follower.note(Err(&error));
            if !is_new && matches!(error, GatewayError::Away { .. }) {
                eprintln!("etcd: beginning with the members known before");
                break;
            }
            if !std::mem::replace(&mut is_told, true) {
                eprintln!("etcd: nothing begins before this node is registered there");
            }
            if !wait(FIRST_RETRY)? {
                return Ok(None);
            }
        }
        Ok(Some((membership, follower)))
    }

    fn complete(&self, file: &Config) -> Config {
        let mut state = self.state();
        let (members, unread) = state.known.members();
        let (config, refused) = file.with_members(&members);
        state.refused = unread;
        state.refused.extend(refused);
        config
    }

    /// Ends this node's registration, if etcd is there: others forget it as soon as it does
    /// not answer any more.
    pub fn leave(&self) {
        let lease = {
            let mut state = self.state();
            state.is_leaving = true;
            state.lease.take()
        };
        let gateway = lease.and_then(|lease| Some((lease, Gateway::open(&self.etcd).ok()?)));
        if let Some((lease, mut gateway)) = gateway
            && let Err(error) = gateway.revoke(lease)
        {
            let lease = self.etcd.lease.as_secs();
            eprintln!("etcd: {error}; this node's registration ends by itself in {lease} s");
        }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread panics with it")
    }
}
