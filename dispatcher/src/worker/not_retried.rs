//! Requests that have died with their backends and that nobody else is given: counted once each, and
//! why, in the log; a line a second at most, for a server that dies takes many with it.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use super::State;

/// Between two lines.
const PAUSE: Duration = Duration::from_secs(1);

/// Why no other backend is given a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum WhyNot {
    HasPart,
    Silent,
    AskedAhead,
    NotKept,
    NoTurn,
    Tried,
    NoRoom,
}

impl WhyNot {
    fn text(self) -> &'static str {
        match self {
            Self::HasPart => "the client has had something of an answer",
            Self::Silent => "the client does not say what it has had",
            Self::AskedAhead => "the client has asked for more behind it",
            Self::NotKept => "nothing of it is kept here",
            Self::NoTurn => "too many are retried, and its turn has not come for 10 s",
            Self::Tried => "four backends have had it",
            Self::NoRoom => "there is no room to read it again",
        }
    }
}

/// What the log has not said yet.
#[derive(Debug, Default)]
pub(super) struct Complaints {
    all: BTreeMap<WhyNot, usize>,
    say_at: Duration,
}

impl Complaints {
    fn note(&mut self, why: WhyNot) {
        *self.all.entry(why).or_default() += 1;
    }

    /// Says it, if it is time.
    pub(super) fn say(&mut self, now: Duration) {
        if let Some(line) = self.line(now) {
            eprintln!("{line}");
        }
    }

    fn line(&mut self, now: Duration) -> Option<String> {
        if self.all.is_empty() || now < self.say_at {
            return None;
        }
        self.say_at = now + PAUSE;
        let mut line = String::from("requests are not retried that died with their backends: ");
        for (at, (why, count)) in std::mem::take(&mut self.all).into_iter().enumerate() {
            let before = if at == 0 { "" } else { "; " };
            let _ = write!(line, "{before}{count}, as {}", why.text());
        }
        Some(line)
    }
}

impl State {
    /// One more is not.
    pub(super) fn not_retried_as(&mut self, why: WhyNot) {
        self.count("not-retried");
        self.retries.complaints.note(why);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_of_them_is_one_line() {
        let mut complaints = Complaints::default();
        let second = Duration::from_secs(1);
        assert_eq!(complaints.line(second * 9), None);
        complaints.note(WhyNot::Tried);
        complaints.note(WhyNot::HasPart);
        complaints.note(WhyNot::Tried);
        assert_eq!(
            complaints.line(second * 9).as_deref(),
            Some(
                "requests are not retried that died with their backends: 1, as the client has had \
                 something of an answer; 2, as four backends have had it"
            )
        );
        complaints.note(WhyNot::NoTurn);
        assert_eq!(complaints.line(second * 9 + second / 2), None);
        assert!(complaints.line(second * 10).is_some());
        assert_eq!(complaints.line(second * 20), None);
    }
}
