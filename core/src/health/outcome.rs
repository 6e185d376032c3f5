//! What came of one check.

use std::fmt;

/// What came of one check, for people and for the count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// All that was expected.
    Passed,
    /// The host is there, and nobody listens.
    Refused,
    /// There is no way to it.
    Unreachable,
    /// No connection within the timeout.
    NotConnected,
    /// No answer, or only the beginning of one, within the timeout.
    NotAnswered,
    /// It closed or reset the connection before it had answered.
    Closed,
    /// What it answered is not HTTP/1.
    NotHttp,
    /// Another status than expected.
    Status(u16),
    /// Another body than expected.
    Body,
}

impl Outcome {
    /// Was it as expected?
    pub fn is_pass(self) -> bool {
        self == Self::Passed
    }

    /// Does it say that the server does nothing at all? One that answers something else than
    /// expected may well go on with what it has begun.
    pub fn is_dead(self) -> bool {
        match self {
            Self::Refused
            | Self::Unreachable
            | Self::NotConnected
            | Self::NotAnswered
            | Self::Closed => true,
            Self::Passed | Self::NotHttp | Self::Status(_) | Self::Body => false,
        }
    }

    /// Its number in an agent's word, and the status.
    pub fn encode(self) -> (u8, u16) {
        match self {
            Self::Passed => (1, 0),
            Self::Refused => (2, 0),
            Self::Unreachable => (3, 0),
            Self::NotConnected => (4, 0),
            Self::NotAnswered => (5, 0),
            Self::Closed => (6, 0),
            Self::NotHttp => (7, 0),
            Self::Status(status) => (8, status),
            Self::Body => (9, 0),
        }
    }

    /// The inverse of [`Self::encode`]; none of what a later version may say.
    pub fn decode(number: u8, status: u16) -> Option<Self> {
        Some(match number {
            1 => Self::Passed,
            2 => Self::Refused,
            3 => Self::Unreachable,
            4 => Self::NotConnected,
            5 => Self::NotAnswered,
            6 => Self::Closed,
            7 => Self::NotHttp,
            8 => Self::Status(status),
            9 => Self::Body,
            _ => return None,
        })
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Passed => f.write_str("as expected"),
            Self::Refused => f.write_str("nothing listens"),
            Self::Unreachable => f.write_str("no way to it"),
            Self::NotConnected => f.write_str("no connection within the timeout"),
            Self::NotAnswered => f.write_str("no answer within the timeout"),
            Self::Closed => f.write_str("closed without an answer"),
            Self::NotHttp => f.write_str("its answer is not HTTP/1"),
            Self::Status(status) => write!(f, "status {status}"),
            Self::Body => f.write_str("not the body that is expected"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_a_number_of_its_own() {
        let all = (0..=u8::MAX).filter_map(|number| Some((number, Outcome::decode(number, 503)?)));
        let all: Vec<_> = all.collect();
        assert_eq!(all.len(), 9);
        for (number, outcome) in all {
            assert_eq!(outcome.encode().0, number);
            let (number, status) = outcome.encode();
            assert_eq!(Outcome::decode(number, status), Some(outcome));
        }
    }
}
