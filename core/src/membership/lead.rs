//! Which spray has the service addresses. Each decides for itself, by what it hears of the
//! others; there is nothing to be agreed on, since sprays keep no state: two who have the
//! addresses for a moment spray packets all the same.
//!
//! The first in the configuration has them, when all begin at once. Who has them keeps
//! them: one that comes back stands by, whatever its place, so that nothing moves twice for
//! one death. Two who both have them (a network that was cut is whole again) are told apart
//! by their place.

use super::SprayState;

/// The deciding spray.
#[derive(Clone, Copy, Debug)]
pub struct Own {
    /// Its place in the configuration.
    pub place: usize,
    /// It has the addresses.
    pub holds: bool,
    /// It hears a dispatcher at least.
    pub fit: bool,
    /// It is about to stop.
    pub leaving: bool,
    /// It has listened for as long as it takes to know who is there.
    pub has_listened: bool,
}

/// Another one, that answers.
#[derive(Clone, Copy, Debug)]
pub struct Other {
    /// Its place in the configuration.
    pub place: usize,
    /// What it says.
    pub state: SprayState,
}

/// What follows for the deciding one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lead {
    /// It is to have the addresses.
    pub hold: bool,
    /// It is to say this.
    pub say: SprayState,
}

/// Decides, from what is heard of those that answer.
pub fn decide(own: Own, others: &[Other]) -> Lead {
    let any = |which: fn(&Own, &Other) -> bool| others.iter().any(|other| which(&own, other));
    let rival = any(|_, other| other.state == SprayState::Active);
    let rival_before =
        any(|own, other| other.state == SprayState::Active && other.place < own.place);
    let heir = any(|_, other| other.state == SprayState::Standby);
    let heir_before =
        any(|own, other| other.state == SprayState::Standby && other.place < own.place);
    let anybody_before = any(|own, other| other.place < own.place);

    let hold = if own.leaving {
        false
    } else if own.holds {
        !rival_before && (own.fit || !rival)
    } else if rival || !own.has_listened {
        false
    } else if own.fit {
        !heir_before
    } else {
        // Nobody hears a dispatcher: better one of them than none.
        !heir && !anybody_before
    };
    let say = match (hold, own.fit) {
        _ if own.leaving => SprayState::Yielding,
        (true, true) => SprayState::Active,
        // Without an heir there is nothing to yield to.
        (true, false) if heir => SprayState::Yielding,
        (true, false) => SprayState::Active,
        (false, true) => SprayState::Standby,
        (false, false) => SprayState::Yielding,
    };
    Lead { hold, say }
}

#[cfg(test)]
mod tests {
    use super::*;
    use SprayState::{Active, Standby, Yielding};

    fn own(place: usize, holds: bool) -> Own {
        Own {
            place,
            holds,
            fit: true,
            leaving: false,
            has_listened: true,
        }
    }

    fn lead(own: Own, others: &[(usize, SprayState)]) -> (bool, SprayState) {
        let other = |&(place, state): &(usize, SprayState)| Other { place, state };
        let lead = decide(own, &others.iter().map(other).collect::<Vec<_>>());
        (lead.hold, lead.say)
    }

    #[test]
    fn the_first_begins() {
        assert_eq!(lead(own(0, false), &[(1, Standby)]), (true, Active));
        assert_eq!(lead(own(1, false), &[(0, Standby)]), (false, Standby));
        let early = Own {
            has_listened: false,
            ..own(0, false)
        };
        assert_eq!(lead(early, &[]), (false, Standby));
    }

    #[test]
    fn whoever_has_them_keeps_them() {
        assert_eq!(lead(own(0, false), &[(1, Active)]), (false, Standby));
        assert_eq!(lead(own(1, true), &[(0, Standby)]), (true, Active));
    }

    #[test]
    fn the_next_takes_over_from_the_dead() {
        assert_eq!(lead(own(1, false), &[]), (true, Active));
        assert_eq!(lead(own(2, false), &[(1, Standby)]), (false, Standby));
        // Its daemon is gone: it cannot.
        assert_eq!(lead(own(2, false), &[(1, Yielding)]), (true, Active));
    }

    #[test]
    fn of_two_the_first_remains() {
        assert_eq!(lead(own(0, true), &[(1, Active)]), (true, Active));
        assert_eq!(lead(own(1, true), &[(0, Active)]), (false, Standby));
    }

    #[test]
    fn who_hears_no_dispatcher_makes_way_for_one_who_does() {
        let deaf = |holds| Own {
            fit: false,
            ..own(0, holds)
        };
        // It keeps them until the other has them.
        assert_eq!(lead(deaf(true), &[(1, Standby)]), (true, Yielding));
        assert_eq!(lead(own(1, false), &[(0, Yielding)]), (true, Active));
        assert_eq!(lead(deaf(true), &[(1, Active)]), (false, Yielding));
        // Where all are deaf, the first has them.
        assert_eq!(lead(deaf(true), &[(1, Yielding)]), (true, Active));
        assert_eq!(lead(deaf(false), &[(1, Yielding)]), (true, Active));
        let last = Own {
            place: 1,
            ..deaf(false)
        };
        assert_eq!(lead(last, &[(0, Yielding)]), (false, Yielding));
    }

    #[test]
    fn who_leaves_yields() {
        let leaving = Own {
            leaving: true,
            ..own(0, true)
        };
        assert_eq!(lead(leaving, &[(1, Standby)]), (false, Yielding));
    }

    /// Any number of sprays, in any state, settle on one of those that are fit.
    #[test]
    fn all_come_to_one() {
        for holds in 0..8u32 {
            for fit in 0..8u32 {
                let mut sprays: Vec<(Own, SprayState)> = (0..3)
                    .map(|place| {
                        let bit = |bits: u32| bits >> place & 1 == 1;
                        let spray = Own {
                            fit: bit(fit),
                            ..own(place, bit(holds))
                        };
                        (spray, if spray.holds { Active } else { Standby })
                    })
                    .collect();
                for round in 0..12 {
                    let place = round % 3;
                    let others: Vec<_> = (sprays.iter().enumerate())
                        .filter(|(other, _)| *other != place)
                        .map(|(other, (_, state))| (other, *state))
                        .collect();
                    let (hold, say) = lead(sprays[place].0, &others);
                    sprays[place].0.holds = hold;
                    sprays[place].1 = say;
                }
                let holders: Vec<&(Own, SprayState)> =
                    sprays.iter().filter(|s| s.0.holds).collect();
                assert_eq!(holders.len(), 1, "{holds} {fit}");
                assert!(holders[0].0.fit || fit == 0, "{holds} {fit}");
            }
        }
    }
}
