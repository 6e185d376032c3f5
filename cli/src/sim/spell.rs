//! When a simulated backend is away, from the command line: `b3@20s`, `b3@20s..40s`.

use std::str::FromStr;

use trapeze_sim::{Change, Condition};

/// A backend, and from when until when.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spell {
    /// From 0.
    pub backend: usize,
    from_ns: u64,
    until_ns: Option<u64>,
}

impl Spell {
    /// What happens to the backend, and that it is over.
    pub fn changes(&self, into: Condition) -> impl Iterator<Item = Change> {
        let change = |at_ns, into| Change {
            at_ns,
            backend: self.backend,
            into,
        };
        let over = self.until_ns.map(|at| change(at, Condition::Up));
        [change(self.from_ns, into)].into_iter().chain(over)
    }
}

impl FromStr for Spell {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}`: write b3@20s, or b3@20s..40s");
        let (backend, when) = text.split_once('@').ok_or_else(wrong)?;
        let number: usize = (backend.strip_prefix('b'))
            .and_then(|n| n.parse().ok())
            .ok_or_else(wrong)?;
        let (from, until) = match when.split_once("..") {
            Some((from, until)) => (from, Some(until)),
            None => (when, None),
        };
        let spell = Spell {
            backend: number.checked_sub(1).ok_or_else(wrong)?,
            from_ns: nanoseconds(from).ok_or_else(wrong)?,
            until_ns: match until {
                Some(until) => Some(nanoseconds(until).ok_or_else(wrong)?),
                None => None,
            },
        };
        if spell.until_ns.is_some_and(|until| until <= spell.from_ns) {
            return Err(format!("`{text}` ends before it begins"));
        }
        Ok(spell)
    }
}

fn nanoseconds(text: &str) -> Option<u64> {
    let (number, unit) = match text.strip_suffix("ms") {
        Some(number) => (number, 1e6),
        None => (text.strip_suffix('s').unwrap_or(text), 1e9),
    };
    let number: f64 = number.parse().ok()?;
    (0.0..1e9)
        .contains(&number)
        .then_some((number * unit) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spells_have_a_backend_a_beginning_and_perhaps_an_end() {
        let spell: Spell = "b3@20s..40.5s".parse().unwrap();
        assert_eq!(
            spell.changes(Condition::Gone).collect::<Vec<_>>(),
            [
                (20_000_000_000, Condition::Gone),
                (40_500_000_000, Condition::Up)
            ]
            .map(|(at_ns, into)| Change {
                at_ns,
                backend: 2,
                into,
            })
        );
        let spell: Spell = "b1@500ms".parse().unwrap();
        assert_eq!(spell.changes(Condition::Draining).count(), 1);
        for wrong in ["b0@1s", "3@1s", "b1", "b1@", "b1@-1s", "b1@2s..1s", "b1@1h"] {
            assert!(wrong.parse::<Spell>().is_err(), "{wrong}");
        }
    }
}
