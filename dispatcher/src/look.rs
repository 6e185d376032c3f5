//! A look at what has come of a request: what is to be done with it, and where in the
//! client's stream it ends.

use trapeze_core::flow::FlowKey;
use trapeze_core::head::{self, Expected, Followed, Inspection, Progress};
use trapeze_core::intake::{Answer, Body, Looked};

use crate::Shared;
use crate::cluster::{Cluster, Decision};
use crate::standing::Seen;
use crate::unanswered::REQUEST_MAX;

/// How far a request, or a piece of its body, goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    /// Where the next boundary lies, in bytes from this one, and what starts there. None:
    /// there is none any more.
    pub next: Option<(usize, Expected)>,
    /// It is a HEAD: its answer has no body.
    pub is_head: bool,
    /// It is its connection's last: where its server closes, it closes the client's.
    pub is_last: bool,
    /// It is to be kept for another backend.
    pub is_kept: bool,
    /// It is to be kept, and more of it is to come: all that its client says goes by way of the daemon
    /// (docs/protocol/retry.md 2.1).
    pub is_copied: bool,
}

impl Extent {
    /// Does another request start at the next boundary? Else it is more of this one's body.
    pub fn is_whole(&self) -> bool {
        matches!(self.next, Some((_, Expected::Head)))
    }
}

/// What is to be done with what starts at a boundary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// A request.
    Request(Decision, Extent),
    /// Part of one, or nothing that can be read: its owner's.
    Owners(Extent),
}

/// What is known of a connection that has an owner.
#[derive(Clone, Copy, Debug)]
pub struct Later {
    /// What starts at its boundary.
    pub expected: Expected,
    /// The owner's slot.
    pub owner: u32,
    /// All of it is the owner's from here on, whatever it is.
    pub is_tunnel: bool,
}

/// What is looked at.
pub struct Look<'a> {
    pub shared: &'a Shared,
    pub cluster: &'a Cluster,
    /// The generation that decisions made now belong to.
    pub decisions: u32,
    pub key: FlowKey,
    /// It is in a connection that has an owner.
    pub later: Option<Later>,
    /// A decision could not be remembered.
    pub not_remembered: bool,
}

impl Look<'_> {
    /// At `bytes`, all that have come from the boundary on.
    pub fn at(&mut self, bytes: &[u8], progress: &mut Progress) -> Looked<Found> {
        if self.later.is_some_and(|later| later.is_tunnel) {
            return Looked::Done(Found::Owners(Extent::default()));
        }
        match self.later.map(|later| later.expected) {
            None | Some(Expected::Head) => self.at_head(bytes, progress),
            // Asked ahead of the answer that says what it is.
            Some(Expected::Upgraded | Expected::Invited) => {
                Looked::Done(Found::Owners(Extent::default()))
            }
            Some(expected) => match head::follow(expected, bytes) {
                Followed::More => Looked::More,
                Followed::To { at, expected } => {
                    let next = Some((at, expected));
                    let extent = Extent {
                        next,
                        ..Extent::default()
                    };
                    Looked::Cut(Found::Owners(extent), at)
                }
                Followed::Lost => Looked::Done(Found::Owners(Extent::default())),
            },
        }
    }

    fn at_head(&mut self, bytes: &[u8], progress: &mut Progress) -> Looked<Found> {
        let limit = self.cluster.config.limits.head_bytes;
        let inspection = head::inspect_from(bytes, progress, limit);
        let (vip, client) = (self.key.vip, self.key.client);
        let health = &self.shared.health;
        let owner = self.later.map(|later| later.owner);
        let decision = match (self.cluster).look(health, vip, client, owner, &inspection) {
            Looked::More => return Looked::More,
            // As of a first one, and as of one that does not come in time: nobody reads on without end. Once its
            // owner owes nothing the client is told.
            Looked::Bad(answer @ Answer::HeadTooLarge) if self.later.is_some() => {
                let refused = Decision::Refuse(answer, Body::Full);
                return Looked::Done(Found::Request(refused, Extent::default()));
            }
            // What the server makes of it is the server's to say.
            Looked::Bad(_) if self.later.is_some() => {
                return Looked::Done(Found::Owners(Extent::default()));
            }
            Looked::Bad(answer) => return Looked::Bad(answer),
            Looked::Done(decision) | Looked::Cut(decision, _) => decision,
        };
        if let (Inspection::Http(head), Decision::To(choice)) = (&inspection, &decision)
            // Each of these is kept.
            && !choice.retry.keeps()
        {
            let standing = &self.shared.standing;
            let seen = Seen { vip, head, bytes };
            let told = standing.remember(self.decisions, self.cluster, health, &seen, choice);
            self.not_remembered |= told.is_err();
        }
        let is_head = matches!(&inspection, Inspection::Http(head) if head.method == "HEAD");
        let is_last = matches!(&inspection, Inspection::Http(head) if head.is_last());
        let next = match head::follow_head(&inspection, bytes) {
            Followed::To { at, expected } => Some((at, expected)),
            Followed::More | Followed::Lost => None,
        };
        let is_to_be_kept = match (&inspection, &decision) {
            (Inspection::Http(head), Decision::To(choice)) => choice.retry.keeps_one(head),
            _ => false,
        };
        let is_copied = is_to_be_kept && can_be_copied(next, bytes.len());
        let is_whole = matches!(next, Some((at, Expected::Head)) if at <= bytes.len());
        let found = Found::Request(
            decision,
            Extent {
                next,
                is_head,
                is_last,
                is_kept: is_copied || is_to_be_kept && is_whole,
                is_copied,
            },
        );
        match next {
            Some((at, _)) => Looked::Cut(found, at),
            None => Looked::Done(found),
        }
    }
}

/// Of a request that is not whole in so many bytes: can the rest be kept as it comes?
fn can_be_copied(next: Option<(usize, Expected)>, here: usize) -> bool {
    match next {
        Some((at, Expected::Head | Expected::Invited)) => here < at && at <= REQUEST_MAX,
        Some((_, Expected::Upgraded)) | None => false,
        Some(_) => true,
    }
}
