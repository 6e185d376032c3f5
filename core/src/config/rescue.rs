//! What outlives a backend that dies: which of its answers another one goes on with, and which
//! requests that it has not answered another one is given. A pool says it, and a rule may say
//! otherwise for its requests, key by key.

use std::fmt;
use std::ops::Range;
use std::time::Duration;

use super::checks::Found;
use super::parse::value_or;
use super::section::Section;
use super::{Handoff, Retry, Transfer, value};

/// As a pool says it, or a rule and its pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rescue {
    /// Of answers (default: none; docs/protocol/takeover.md).
    pub protection: Protection,
    /// Of requests (default: unheard; docs/protocol/retry.md).
    pub retry: Retry,
}

/// Which answers outlive their backend, where another one can go on with them: those that are
/// large, and those that take long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Protection {
    /// With so many bytes of body, or more (1..=2^40).
    pub from: Option<u64>,
    /// In progress for so long, whatever their size (100 ms..=1 d).
    pub after: Option<Duration>,
}

impl Protection {
    /// Does any answer?
    pub fn is_any(self) -> bool {
        self.from.is_some() || self.after.is_some()
    }

    /// How long an answer with so many bytes of body is in progress before it does; none: it never does.
    pub fn delay(self, bytes: u64) -> Option<Duration> {
        match self.from {
            Some(from) if bytes >= from => Some(Duration::ZERO),
            _ => self.after,
        }
    }

    /// So many bytes of body must an answer have that may do so at all; none: none may.
    pub fn least(self) -> Option<u64> {
        match self.after {
            Some(_) => Some(1),
            None => self.from,
        }
    }
}

impl fmt::Display for Rescue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Protection { from, after } = self.protection;
        f.write_str("answers that outlive their backend: ")?;
        match (from, after) {
            (None, None) => f.write_str("none")?,
            (Some(from), None) => write!(f, "from {from} bytes on")?,
            (None, Some(after)) => write!(f, "in progress for {}", value::in_units(after))?,
            (Some(from), Some(after)) => {
                let after = value::in_units(after);
                write!(f, "from {from} bytes on, or in progress for {after}")?;
            }
        }
        write!(f, "; requests that do: {}", self.retry.name())
    }
}

/// What is known of the answers that the keys are about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answers {
    /// Where each of them begins and ends.
    Followed,
    /// They are a pool's with `handoff = "none"`.
    NotFollowed,
    /// None of the pool's backends makes connections of clients' own.
    Spliced,
    /// They are encrypted.
    Tls,
}

impl Answers {
    /// Of a pool with that handoff, whose backends have connections so.
    pub(super) fn of(handoff: Handoff, transfers: impl IntoIterator<Item = Transfer>) -> Self {
        let mut transfers = transfers.into_iter().peekable();
        let is_known = transfers.peek().is_some();
        match handoff {
            Handoff::None => Self::NotFollowed,
            _ if is_known && transfers.all(|transfer| transfer.connects()) => Self::Spliced,
            Handoff::HalfPipe | Handoff::Drained => Self::Followed,
        }
    }
}

/// Why a key that wants something of a pool's connections is a mistake there.
pub(super) const NOT_FOLLOWED: &str = "cannot be where the pool says `handoff = \"none\"`, for its \
                                       connections are not followed: remove it, or write another `handoff`";

/// The keys of a [[pool]] or a rule. What is not said is as `inherited`.
pub(super) fn read_rescue(
    section: &mut Section<'_>,
    inherited: Rescue,
    answers: Answers,
) -> Rescue {
    let from = section.optional("protect_from", |v| {
        value::unless_false(v, |v| value::integer(v, 1..=1 << 40))
    });
    let after = section.optional("protect_after", |v| {
        let (least, most) = (Duration::from_millis(100), Duration::from_secs(86_400));
        value::unless_false(v, |v| value::duration(v, least..=most))
    });
    let retry = section.optional("retry", value::retry);
    // Where it is, and whether it wants anything.
    let keys = [
        ("protect_from", of(&from, |from| from.is_some())),
        ("protect_after", of(&after, |after| after.is_some())),
        ("retry", of(&retry, |retry| retry.keeps())),
    ];
    for (key, at) in keys {
        let why = match (answers, at) {
            (Answers::Tls, Some((span, _))) => Some((
                span,
                "is about requests of HTTP/1, and this rule about TLS, in which nobody can read them: \
                 remove it",
            )),
            (Answers::NotFollowed, Some((span, true))) => Some((span, NOT_FOLLOWED)),
            (Answers::Spliced, Some((span, true))) => Some((
                span,
                "cannot be where all backends of the pool are spliced, for no answer of these outlives \
                 them, and no request that they have acknowledged: remove it, or add a backend without \
                 `transfer`, which takes an agent there",
            )),
            _ => None,
        };
        if let Some((span, why)) = why {
            section.source.error(span, format!("`{key}` {why}"));
        }
    }
    Rescue {
        protection: Protection {
            from: value_or(from, inherited.protection.from),
            after: value_or(after, inherited.protection.after),
        },
        retry: value_or(retry, inherited.retry),
    }
}

fn of<T>(found: &Found<T>, wants: impl Fn(&T) -> bool) -> Option<(Range<usize>, bool)> {
    let found = found.as_ref()?;
    Some((found.span(), wants(found.get_ref())))
}
