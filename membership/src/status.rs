//! What commands are told of membership.

use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::{Membership, State};

/// How membership stands.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct MembershipStatus {
    /// etcd answers.
    pub connected: bool,
    /// The endpoint in use, or the one that was tried last.
    pub endpoint: String,
    /// For how long it has been so.
    pub for_ms: u64,
    /// Why it is not well.
    pub problem: Option<String>,
    /// This node's registration is there.
    pub registered: bool,
    /// Who is registered, and who was and still answers, this node included.
    pub members: Vec<MemberStatus>,
    /// Registrations that do not count.
    pub refused: Vec<RefusedStatus>,
}

/// A member.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MemberStatus {
    /// `dispatcher` or `spray`.
    pub role: String,
    /// Its name.
    pub name: String,
    /// Its own address.
    pub address: String,
    /// Its registration has ended; it answers heartbeats.
    pub lapsed: bool,
}

/// A registration that does not count.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RefusedStatus {
    /// Role and name.
    pub key: String,
    /// Why not, and what to do.
    pub why: String,
}

/// How it is between this node and etcd.
pub struct Link {
    pub is_up: bool,
    pub endpoint: String,
    pub since: Instant,
    pub problem: Option<String>,
}

impl Default for Link {
    fn default() -> Self {
        Self {
            is_up: false,
            endpoint: String::new(),
            since: Instant::now(),
            problem: None,
        }
    }
}

impl Link {
    /// True: that is new.
    pub fn becomes(&mut self, is_up: bool, problem: Option<String>) -> bool {
        let is_new = self.is_up != is_up || self.problem != problem;
        if self.is_up != is_up {
            self.since = Instant::now();
        }
        (self.is_up, self.problem) = (is_up, problem);
        is_new
    }
}

impl Membership {
    /// How it stands now.
    pub fn status(&self) -> MembershipStatus {
        let state = self.state();
        let State {
            known,
            link,
            refused,
            ..
        } = &*state;
        let (members, _) = known.members();
        MembershipStatus {
            connected: link.is_up,
            endpoint: link.endpoint.clone(),
            for_ms: link.since.elapsed().as_millis() as u64,
            problem: link.problem.clone(),
            registered: state.is_registered,
            members: (members.iter())
                .map(|member| MemberStatus {
                    role: member.role.word().to_owned(),
                    name: member.name.clone(),
                    address: member.address.to_string(),
                    lapsed: known.is_lapsed(&member.key()),
                })
                .collect(),
            refused: (refused.iter())
                .map(|refused| RefusedStatus {
                    key: refused.key.clone(),
                    why: refused.why.clone(),
                })
                .collect(),
        }
    }
}
