//! Who is in the cluster, who of them is there, and who has what: the part of dispatchers
//! and sprays that is about each other, not about requests.
//!
//! | file | question |
//! | --- | --- |
//! | `watch` | who answers heartbeats? |
//! | `directory` | who is registered, and who was? |
//! | `lots` | which dispatcher has a packet, or a flow? |
//! | `lead` | which spray has the service addresses? |
//! | `replay` | what had a dead dispatcher not passed on, perhaps? |
//! | `subclusters` | who has a flow among thousands of nodes, in two levels? |
//!
//! Members stand in the configuration by name and address ([`crate::config::Config`]):
//! `dispatchers`, and `sprays` in the order in which they are to lead; those of the file, and
//! those that have registered themselves. Link addresses do
//! not: data paths find them by their hosts' routes and neighbours. What members share
//! without a word is derived there, too: cookie keys from the cluster's keys, so that any
//! dispatcher finishes a handshake that another one began, and [`lots::key`] from its
//! name, so that all agree whose a flow is.

pub mod directory;
pub mod lead;
pub mod lots;
pub mod replay;
pub mod subclusters;
pub mod watch;

/// What a member says of itself with every heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// A spray, and whether it has the service addresses.
    Spray(SprayState),
    /// A dispatcher.
    Dispatcher {
        /// Capacity that it has to spare; none if its daemon has not said so lately.
        workload: Option<Workload>,
    },
    /// A dispatcher that is about to keep its share of flows, and keeps none yet.
    Joining,
    /// A dispatcher that is about to stop: it is to have no packets any more.
    Leaving,
}

/// How a spray stands to the service addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SprayState {
    /// It would take them.
    Standby,
    /// It has them.
    Active,
    /// Another one may have them: it goes, has no daemon, or hears no dispatcher.
    Yielding,
}

/// A workload factor: the share of a member's capacity that is to spare, in thousandths,
/// 1..=1000 [SPLICE06 §4.2].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Workload(u16);

impl Workload {
    /// All of it.
    pub const IDLE: Self = Workload(1000);

    /// What is left of a host whose CPUs are so busy, in thousandths. Never nothing: who
    /// has no lots at all could not show that it has become better.
    pub fn of_cpu(busy_permille: u32) -> Self {
        Workload(1000u32.saturating_sub(busy_permille).max(1) as u16)
    }

    /// As told by others, if that can be.
    pub fn new(permille: u32) -> Option<Self> {
        (1..=1000)
            .contains(&permille)
            .then_some(Workload(permille as u16))
    }

    /// In thousandths, 1..=1000.
    pub fn permille(self) -> u16 {
        self.0
    }
}

const SPRAY: u8 = 1;
const DISPATCHER: u8 = 2;
/// In the place of a workload factor.
const LEAVING: u32 = 1001;
const JOINING: u32 = 1002;

impl Presence {
    /// Has a dispatcher that said this no daemon any more, or another one, as it says that now?
    pub fn has_lost_daemon(self, now: Self) -> bool {
        let had_one = matches!(self, Self::Joining | Self::Dispatcher { workload: Some(_) });
        had_one && now == Self::Dispatcher { workload: None }
    }

    /// The number of its role, as it travels.
    pub fn role(self) -> u8 {
        match self {
            Presence::Spray(_) => SPRAY,
            Presence::Dispatcher { .. } | Presence::Joining | Presence::Leaving => DISPATCHER,
        }
    }

    /// What goes with the role, as it travels.
    pub fn word(self) -> u32 {
        match self {
            Presence::Spray(state) => state.word(),
            Presence::Dispatcher { workload } => workload.map_or(0, |w| w.0.into()),
            Presence::Leaving => LEAVING,
            Presence::Joining => JOINING,
        }
    }

    /// Of what has travelled; none if it is no presence.
    pub fn of(role: u8, word: u32) -> Option<Self> {
        match (role, word) {
            (SPRAY, 1) => Some(Presence::Spray(SprayState::Standby)),
            (SPRAY, 2) => Some(Presence::Spray(SprayState::Active)),
            (SPRAY, 3) => Some(Presence::Spray(SprayState::Yielding)),
            (DISPATCHER, 0) => Some(Presence::Dispatcher { workload: None }),
            (DISPATCHER, LEAVING) => Some(Presence::Leaving),
            (DISPATCHER, JOINING) => Some(Presence::Joining),
            (DISPATCHER, factor) => Some(Presence::Dispatcher {
                workload: Some(Workload::new(factor)?),
            }),
            _ => None,
        }
    }
}

impl SprayState {
    /// As it travels, and as maps hold it.
    pub fn word(self) -> u32 {
        match self {
            SprayState::Standby => 1,
            SprayState::Active => 2,
            SprayState::Yielding => 3,
        }
    }

    /// As shown to people.
    pub fn name(self) -> &'static str {
        match self {
            SprayState::Standby => "standby",
            SprayState::Active => "active",
            SprayState::Yielding => "yielding",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_presence_travels_whole() {
        let states = [
            SprayState::Standby,
            SprayState::Active,
            SprayState::Yielding,
        ];
        let sprays = states.map(Presence::Spray);
        let workloads = [None, Workload::new(1), Some(Workload::IDLE)];
        let dispatchers = workloads.map(|workload| Presence::Dispatcher { workload });
        let changing = [Presence::Joining, Presence::Leaving];
        for presence in sprays.into_iter().chain(dispatchers).chain(changing) {
            assert_eq!(
                Presence::of(presence.role(), presence.word()),
                Some(presence)
            );
        }
        for (role, word) in [(0, 1), (1, 0), (1, 4), (2, 1003), (3, 1)] {
            assert_eq!(Presence::of(role, word), None, "{role} {word}");
        }
    }

    #[test]
    fn a_busy_host_keeps_a_little() {
        let factors = [0, 1, 400, 999, 1000, 1200].map(|busy| Workload::of_cpu(busy).permille());
        assert_eq!(factors, [1000, 999, 600, 1, 1, 1]);
    }
}
