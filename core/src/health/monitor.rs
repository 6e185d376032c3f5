//! Rise and fall: how many outcomes in a row change what is held of a server.
//!
//! ```text
//!              passed                 fall × not passed
//!   Unknown ───────────► Up ──────────────────────────────► Down
//!      │                  ▲                                  │ ▲
//!      │                  └──────────────────────────────────┘ │
//!      │                            rise × passed              │
//!      └───────────────────────────────────────────────────────┘
//!                             not passed
//! ```

use super::Outcome;

/// What is held of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Standing {
    /// It has not been asked yet: taken to be up.
    #[default]
    Unknown,
    /// It does its work.
    Up,
    /// It does not.
    Down,
}

/// One server's.
#[derive(Clone, Copy, Debug)]
pub struct Monitor {
    rise: u32,
    fall: u32,
    standing: Standing,
    /// Outcomes in a row that speak against it.
    against: u32,
    last: Option<Outcome>,
}

impl Monitor {
    /// Of a server that nobody has asked. The numbers are at least 1.
    pub fn new(rise: u32, fall: u32) -> Self {
        Self {
            rise: rise.max(1),
            fall: fall.max(1),
            standing: Standing::Unknown,
            against: 0,
            last: None,
        }
    }

    /// Other numbers, from the next outcome on.
    pub fn configure(&mut self, rise: u32, fall: u32) {
        (self.rise, self.fall) = (rise.max(1), fall.max(1));
    }

    /// What is held of it.
    pub fn standing(&self) -> Standing {
        self.standing
    }

    /// What came of the last check.
    pub fn last(&self) -> Option<Outcome> {
        self.last
    }

    /// What has come of a check. True: it changes what is held of the server.
    pub fn hear(&mut self, outcome: Outcome) -> bool {
        self.last = Some(outcome);
        let said = match outcome.is_pass() {
            true => Standing::Up,
            false => Standing::Down,
        };
        if said == self.standing {
            self.against = 0;
            return false;
        }
        self.against += 1;
        let needed = match self.standing {
            Standing::Unknown => 1,
            Standing::Up => self.fall,
            Standing::Down => self.rise,
        };
        if self.against < needed {
            return false;
        }
        self.against = 0;
        self.standing = said;
        true
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BAD: Outcome = Outcome::Status(503);

    #[test]
    fn it_takes_fall_and_rise() {
        let mut monitor = Monitor::new(2, 3);
        assert!(monitor.hear(Outcome::Passed), "the first one decides");
        assert_eq!(monitor.standing(), Standing::Up);
        assert!(!monitor.hear(BAD));
        assert!(!monitor.hear(BAD));
        assert!(monitor.hear(BAD));
        assert_eq!(monitor.standing(), Standing::Down);
        assert!(!monitor.hear(Outcome::Passed));
        assert!(!monitor.hear(BAD), "begins again");
        assert!(!monitor.hear(Outcome::Passed));
        assert!(monitor.hear(Outcome::Passed));
        assert_eq!(monitor.standing(), Standing::Up);
    }

    #[test]
    fn a_server_that_is_dead_from_the_start_is_down_at_once() {
        let mut monitor = Monitor::new(2, 3);
        assert!(monitor.hear(Outcome::Refused));
        assert_eq!(
            (monitor.standing(), monitor.last()),
            (Standing::Down, Some(Outcome::Refused))
        );
    }

    proptest! {
        /// By its definition: the state is that of the last run of equal outcomes which was
        /// long enough, or of the first outcome.
        #[test]
        fn only_runs_that_are_long_enough_count(
            rise in 1u32..5,
            fall in 1u32..5,
            outcomes in prop::collection::vec(any::<bool>(), 1..60),
        ) {
            let mut monitor = Monitor::new(rise, fall);
            let mut expected = None;
            let (mut run, mut of) = (0, outcomes[0]);
            for passed in outcomes {
                run = if passed == of { run + 1 } else { 1 };
                of = passed;
                let before = monitor.standing();
                let changed = monitor.hear(if passed { Outcome::Passed } else { BAD });
                if expected.is_none() || run >= if passed { rise } else { fall } {
                    expected = Some(passed);
                }
                let now = if expected == Some(true) { Standing::Up } else { Standing::Down };
                prop_assert_eq!(monitor.standing(), now);
                prop_assert_eq!(changed, before != now);
            }
        }
    }
}
