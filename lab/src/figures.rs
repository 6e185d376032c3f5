//! Figures of measurements: what they come to over rounds, and how they are written
//! for people.

use serde::Serialize;

/// A ratio of two runs of one round.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Ratio {
    /// Over the rounds.
    pub median: f64,
    /// Of all rounds.
    pub min: f64,
    /// Of all rounds.
    pub max: f64,
}

impl Ratio {
    /// Of the rounds' ratios, those left out that divide by nothing.
    pub fn of(mut ratios: Vec<f64>) -> Option<Self> {
        ratios.retain(|ratio| ratio.is_finite());
        Some(Ratio {
            min: ratios.iter().copied().reduce(f64::min)?,
            max: ratios.iter().copied().reduce(f64::max)?,
            median: median(ratios)?,
        })
    }

    /// Whether it reaches the bar; none without one.
    pub fn meets(self, bar: Option<f64>) -> Option<bool> {
        bar.map(|bar| self.median >= bar)
    }
}

/// The middle value, or the mean of the two middle ones.
pub fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        count if count % 2 == 1 => Some(values[middle]),
        _ => Some((values[middle - 1] + values[middle]) / 2.0),
    }
}

/// A count with a comma after each three digits.
pub fn grouped(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A time in the unit that suits it.
pub fn time(us: f64) -> String {
    match us {
        us if us < 1e3 => format!("{us:.0} µs"),
        us if us < 1e6 => format!("{:.2} ms", us / 1e3),
        us => format!("{:.2} s", us / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(median(vec![]), None);
        assert_eq!(median(vec![3.0]), Some(3.0));
        assert_eq!(median(vec![9.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![4.0, 1.0, 2.0, 9.0]), Some(3.0));
    }

    #[test]
    fn numbers_are_written_for_people() {
        assert_eq!(
            [0.4, 999.6, 59_086.8, 1_234_567.0].map(grouped),
            ["0", "1,000", "59,087", "1,234,567"]
        );
        assert_eq!(
            [513.0, 4270.0, 2e6].map(time),
            ["513 µs", "4.27 ms", "2.00 s"]
        );
    }
}
