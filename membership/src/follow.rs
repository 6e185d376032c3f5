//! The thread that keeps this node registered and hears of others. Each round renews the
//! lease and then watches for as long as that is good for, so that one thread and one request
//! at a time are enough. Whatever goes wrong, the next round begins anew: registers, lists,
//! watches from there.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use trapeze_core::config::Registration;

use crate::gateway::{Event, Gateway, GatewayError};
use crate::{Daemon, Membership, State};

/// Between two tries while etcd is away: at first, and at most.
const RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));
/// A watch takes no longer, whatever the lease: what is dead is found then.
const LONGEST_WATCH: Duration = Duration::from_secs(5);

/// This node's side of the talk with etcd.
pub struct Follower {
    membership: Arc<Membership>,
    gateway: Gateway,
    /// From where to watch; none: to be registered and to list first.
    revision: Option<i64>,
}

impl Follower {
    pub(crate) fn new(membership: Arc<Membership>, gateway: Gateway) -> Self {
        Self {
            membership,
            gateway,
            revision: None,
        }
    }

    /// Follows until [`Membership::leave`].
    pub fn run(mut self, daemon: &dyn Daemon) {
        let mut pause = RETRY.0;
        // What has changed since the daemon began.
        let mut changed = true;
        while !self.membership.state().is_leaving {
            match self.round(daemon, &mut changed) {
                Ok(()) => pause = RETRY.0,
                Err(error) => {
                    self.revision = None;
                    // To begin anew, at once, is the way to mend it.
                    if let GatewayError::Gone(what) = error {
                        println!("etcd: {what} is gone: registering anew");
                        self.membership.state().is_registered = false;
                    } else {
                        self.note(Err(&error));
                    }
                    std::thread::sleep(pause + jitter(pause));
                    pause = (pause * 2).min(RETRY.1);
                }
            }
        }
    }

    fn round(&mut self, daemon: &dyn Daemon, changed: &mut bool) -> Result<(), GatewayError> {
        let lease = self.membership.state().lease;
        let from = match (self.revision, lease) {
            (Some(revision), Some(lease)) => {
                self.gateway.keep_alive(lease)?;
                revision
            }
            _ => {
                self.register_and_look()?;
                *changed = true;
                self.revision.expect("it has looked")
            }
        };
        self.note(Ok(()));
        self.forget(daemon, changed);
        tell(daemon, changed);
        let membership = self.membership.clone();
        let own = format!("{}{}", membership.directory, membership.own.key());
        let patience = (membership.etcd.lease / 3).min(LONGEST_WATCH);
        let mut is_displaced = false;
        let watched = self
            .gateway
            .watch(&membership.directory, from, patience, |events| {
                let is_own = |event: &Event| match event {
                    Event::Put(key, value) => *key == own && *value != membership.own.value(),
                    Event::Deleted(key) => *key == own,
                };
                is_displaced |= events.iter().any(is_own);
                membership.hear(events);
                *changed = true;
                tell(daemon, changed);
                match is_displaced || membership.state().is_leaving {
                    true => ControlFlow::Break(()),
                    false => ControlFlow::Continue(()),
                }
            });
        self.revision = Some(watched?).filter(|_| !is_displaced);
        Ok(())
    }

    /// Has this node registered, and hears of all others.
    pub(crate) fn register_and_look(&mut self) -> Result<(), GatewayError> {
        let membership = self.membership.clone();
        let kept = membership.state().lease;
        let lease = match kept.map(|lease| (lease, self.gateway.keep_alive(lease))) {
            Some((lease, Ok(()))) => lease,
            Some((_, Err(error))) if !matches!(error, GatewayError::Gone(_)) => return Err(error),
            Some((_, Err(_))) | None => self.gateway.grant(membership.etcd.lease)?,
        };
        membership.state().lease = Some(lease);
        let own = &membership.own;
        let key = format!("{}{}", membership.directory, own.key());
        if membership.state().is_leaving {
            return Ok(());
        }
        self.gateway.claim(&key, &own.value(), lease)?;
        let (revision, found) = self.gateway.list(&membership.directory)?;
        // Deleted in between: no watch from here on would tell.
        if !found.iter().any(|(found, _)| *found == key) {
            return Err(GatewayError::Gone("the registration"));
        }
        self.revision = Some(revision + 1);
        let mut all = Vec::new();
        for (key, value) in found {
            if let Some(key) = key.strip_prefix(&membership.directory) {
                all.push((key.to_owned(), value));
            }
        }
        let mut state = membership.state();
        state.is_registered = true;
        state.known.replace(&all);
        membership.remember(&state);
        drop(state);
        self.note(Ok(()));
        Ok(())
    }

    /// Those whose registration has ended, or is another's, and who do not answer.
    fn forget(&self, daemon: &dyn Daemon, changed: &mut bool) {
        let membership = &self.membership;
        let (members, _) = membership.state().known.members();
        // Asked without the lock: the daemon may want to tell its status meanwhile.
        let is_gone = |member: &&Registration| daemon.is_gone(member);
        let gone: Vec<Registration> = members.iter().filter(is_gone).cloned().collect();
        let mut state = membership.state();
        if state.known.forget(|member| gone.contains(member)) {
            println!("etcd: forgets who is not there, and not registered so");
            membership.remember(&state);
            *changed = true;
        }
    }

    /// How it is between this node and etcd, said once.
    pub(crate) fn note(&self, result: Result<(), &GatewayError>) {
        let mut state = self.membership.state();
        let is_away = matches!(result, Err(GatewayError::Away { .. }));
        let was_up = state.link.is_up;
        state.link.endpoint = self.gateway.endpoint().to_owned();
        let problem = result.err().map(ToString::to_string);
        let is_new = state.link.becomes(!is_away, problem.clone());
        match problem {
            Some(problem) if is_new => {
                state.is_registered &= is_away;
                let meanwhile = if is_away {
                    "; the members stay as they are"
                } else {
                    ""
                };
                eprintln!("etcd: {problem}{meanwhile}");
            }
            None if is_new && !was_up => println!("etcd: connected to {}", state.link.endpoint),
            _ => {}
        }
    }
}

impl Membership {
    fn hear(&self, events: Vec<Event>) {
        let mut state = self.state();
        if state.is_leaving {
            return;
        }
        for event in events {
            let (Event::Put(key, _) | Event::Deleted(key)) = &event;
            let Some(key) = key.strip_prefix(&self.directory) else {
                continue;
            };
            match &event {
                Event::Put(_, value) => {
                    state.known.register(key, value);
                    println!("etcd: {key} is registered");
                }
                Event::Deleted(_) => {
                    state.known.end(key);
                    println!("etcd: {key} is not registered any more");
                }
            }
        }
        self.remember(&state);
    }

    fn remember(&self, state: &State) {
        if let Err(error) = self.store.write(&state.known) {
            let path = self.store.path().display();
            eprintln!("cannot write {path}: {error}; without it a restart waits for etcd");
        }
    }
}

/// Has the daemon take the members, if they have changed.
fn tell(daemon: &dyn Daemon, changed: &mut bool) {
    if !std::mem::take(changed) {
        return;
    }
    if let Err(error) = daemon.members_changed() {
        eprintln!("etcd: the members are not taken, those of before stay: {error:#}");
    }
}

/// Up to a quarter more, so that nodes do not come all at once.
fn jitter(pause: Duration) -> Duration {
    let nanos = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |now| now.subsec_nanos());
    pause * (nanos % 256) / 1024
}
