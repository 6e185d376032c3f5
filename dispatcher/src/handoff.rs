//! Requests that wait for their flow's owner to give the flow up, so that another
//! backend can have it (docs/protocol/handoff.md §5): what is asked for, when to ask
//! again, and when to give up. What comes of it is the worker's.

use std::collections::HashMap;
use std::time::Duration;

use trapeze_core::flow::FlowKey;
use trapeze_core::intake::{Answer, Body};
use trapeze_core::seq::ClientSeq;

use crate::cluster::Choice;
use crate::look::Extent;

/// An owner is asked again after this, and after twice as long each time.
const FIRST_RETRY: Duration = Duration::from_millis(1);
const LONGEST_RETRY: Duration = Duration::from_millis(100);
/// The same of one that has said "not now" for longer than [`Waiting::patience`].
const SELDOM_RETRY: Duration = Duration::from_secs(1);
/// A connection whose first packet has arrived is there by then.
const SETTLING: Duration = Duration::from_millis(500);
/// It has by then, however often it was lost.
const SETTING_UP: Duration = Duration::from_secs(30);
/// An owner that has not said a word for this and the request's patience is gone.
const SILENCE: Duration = Duration::from_secs(5);

/// Who is to have the request.
#[derive(Clone, Copy, Debug)]
pub enum Target {
    /// That backend.
    To(Choice),
    /// Nobody: the client is told.
    Answer(Answer, Body),
    /// No request: the owner is to have the connection no more.
    Nobody,
}

/// A request that waits.
#[derive(Clone, Copy, Debug)]
pub struct Waiting {
    pub target: Target,
    /// How far the request goes.
    pub extent: Extent,
    /// That the flow has after the move.
    pub epoch: u32,
    /// Where the request starts.
    pub start: ClientSeq,
    /// Its owner is not asked before then.
    pub not_before: Duration,
    began: Duration,
    retry_at: Duration,
    retry_after: Duration,
    patience: Duration,
    heard: Duration,
}

/// What is due of a request that waits.
pub enum Due {
    /// Ask its owner again.
    Ask(FlowKey),
    /// It stays with its owner.
    GiveUp(FlowKey),
}

/// All that wait.
#[derive(Debug, Default)]
pub struct Waitings {
    all: HashMap<FlowKey, Waiting>,
    /// Nothing is due before.
    quiet_until: Option<Duration>,
}

impl Waitings {
    /// A request begins to wait; its owner has not been asked, or has just said no.
    pub fn begin(
        &mut self,
        now: Duration,
        key: FlowKey,
        (epoch, start): (u32, ClientSeq),
        target: Target,
        extent: Extent,
        patience: Duration,
    ) {
        let waiting = Waiting {
            target,
            extent,
            epoch,
            start,
            not_before: now,
            began: now,
            retry_at: now + FIRST_RETRY,
            retry_after: FIRST_RETRY,
            patience,
            heard: now,
        };
        let until = self.quiet_until.unwrap_or(waiting.retry_at);
        self.quiet_until = Some(until.min(waiting.retry_at));
        self.all.insert(key, waiting);
    }

    /// What its request waits behind has another owner: it is to move to that epoch now.
    pub fn follow(&mut self, key: &FlowKey, epoch: u32) {
        if let Some(waiting) = self.all.get_mut(key) {
            waiting.epoch = epoch;
        }
    }

    /// Its owner is not asked before then: until then it is only looked who has the flow.
    pub fn defer(&mut self, key: &FlowKey, until: Duration) {
        if let Some(waiting) = self.all.get_mut(key) {
            waiting.not_before = until;
        }
    }

    /// The request of that flow, if one waits.
    pub fn get(&self, key: &FlowKey) -> Option<&Waiting> {
        self.all.get(key)
    }

    /// The request that this word is about.
    pub fn find(&self, key: &FlowKey, epoch: u32, start: ClientSeq) -> Option<&Waiting> {
        (self.all.get(key)).filter(|w| w.epoch == epoch && w.start == start)
    }

    /// It waits no longer.
    pub fn end(&mut self, key: &FlowKey) -> Option<Waiting> {
        self.all.remove(key)
    }

    /// Has it waited so long that an owner without such a connection, which it has been
    /// given so long ago, has none? The packet that sets it up may be on its way up the
    /// owner's stack, or have been lost: its client sends it again.
    pub fn is_settled(&self, key: &FlowKey, now: Duration, given: Duration) -> bool {
        given >= SETTING_UP && (self.all.get(key)).is_some_and(|w| now >= w.began + SETTLING)
    }

    /// Its owner says "not now", or is none that says anything: it has as much time again.
    pub fn heard(&mut self, now: Duration, key: &FlowKey) {
        if let Some(waiting) = self.all.get_mut(key) {
            waiting.heard = now;
        }
    }

    /// When [`Self::due`] may have something.
    pub fn next_due(&self) -> Option<Duration> {
        self.quiet_until
    }

    /// What is due; what is to be asked counts as asked.
    pub fn due(&mut self, now: Duration) -> Vec<Due> {
        let mut all = Vec::new();
        if self.quiet_until.is_none_or(|until| now < until) {
            return all;
        }
        for (key, waiting) in &mut self.all {
            if waiting.retry_at > now {
                continue;
            }
            if now > waiting.heard + waiting.patience + SILENCE {
                all.push(Due::GiveUp(*key));
                continue;
            }
            let longest = match now > waiting.began + waiting.patience {
                true => SELDOM_RETRY,
                false => LONGEST_RETRY,
            };
            waiting.retry_after = (waiting.retry_after * 2).min(longest);
            waiting.retry_at = now + waiting.retry_after;
            all.push(Due::Ask(*key));
        }
        self.quiet_until = self.all.values().map(|w| w.retry_at).min();
        all
    }
}
