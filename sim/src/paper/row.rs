//! A line of a comparison, and its verdict: which of the paper's statements were looked at,
//! and which of them hold for what was measured. There is no tolerance that is not named.

use serde::Serialize;

/// What was published, and what was measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Of what.
    pub what: String,
    /// As the paper has it.
    pub published: String,
    /// As the model has it.
    pub measured: String,
    /// The paper's statements, one by one; none where it made none.
    pub checks: Vec<Check>,
    /// Whether all of them hold; none where there are none.
    pub holds: Option<bool>,
    /// The same in words.
    pub verdict: Option<String>,
}

/// One of a paper's statements.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// What was compared.
    pub of: &'static str,
    /// Whether it holds for what was measured.
    pub holds: bool,
}

impl Row {
    pub(super) fn new(
        what: impl Into<String>,
        published: impl Into<String>,
        measured: String,
    ) -> Self {
        Row {
            what: what.into(),
            published: published.into(),
            measured,
            checks: Vec::new(),
            holds: None,
            verdict: None,
        }
    }

    /// With one more statement that was looked at.
    pub(super) fn check(mut self, of: &'static str, holds: bool) -> Self {
        self.checks.push(Check { of, holds });
        self.holds = Some(self.checks.iter().all(|check| check.holds));
        let sentence = |holds: bool, one: &str, several: &str| {
            let of: Vec<&str> = (self.checks.iter())
                .filter(|check| check.holds == holds)
                .map(|check| check.of)
                .collect();
            let verb = if of.len() == 1 { one } else { several };
            (!of.is_empty()).then(|| format!("{} {verb}", of.join(" and ")))
        };
        let said = [
            sentence(true, "holds", "hold"),
            sentence(false, "does not hold", "do not hold"),
        ];
        let said: Vec<String> = said.into_iter().flatten().collect();
        self.verdict = Some(said.join(", "));
        self
    }

    /// As [`Self::check`]: what was measured lies in the published range, to the digit that
    /// both are written with.
    pub(super) fn check_range(self, measured: (f64, f64), published: (f64, f64)) -> Self {
        let tenths = |value: f64| (value * 10.0).round();
        let inside =
            tenths(measured.0) >= tenths(published.0) && tenths(measured.1) <= tenths(published.1);
        self.check("range", inside)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row() -> Row {
        Row::new("a policy", "+1.0 to +2.0 %", "+1.0 to +2.1 %".to_owned())
    }

    #[test]
    fn a_verdict_says_what_was_compared() {
        assert_eq!((row().holds, row().verdict), (None, None));
        let verdict = |row: Row| (row.holds.unwrap(), row.verdict.unwrap());
        let of = |text: &str| text.to_owned();
        assert_eq!(
            verdict(row().check("order", true)),
            (true, of("order holds"))
        );
        assert_eq!(
            verdict(row().check("order", true).check("range", false)),
            (false, of("order holds, range does not hold"))
        );
        assert_eq!(
            verdict(row().check("order", false).check("range", false)),
            (false, of("order and range do not hold"))
        );
    }

    #[test]
    fn a_range_is_compared_as_it_is_printed() {
        let holds = |low, high| row().check_range((low, high), (1.0, 2.0)).holds;
        assert_eq!(holds(0.96, 2.04), Some(true));
        assert_eq!(holds(0.94, 1.5), Some(false));
        assert_eq!(holds(1.5, 2.06), Some(false));
    }
}
