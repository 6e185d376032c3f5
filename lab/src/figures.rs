//! Figures of measurements: what they come to over rounds, and how they are written
//! for people.

use serde::Serialize;

/// Of two figures of each round. Between `low` and `high` is the median of all
/// rounds that the machine would ever run, with the probability `confidence`,
/// however the ratios are distributed as long as rounds are independent.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Ratio {
    /// Of the rounds.
    pub median: f64,
    /// The interval's lower end: one of the rounds.
    pub low: f64,
    /// Its upper end: another.
    pub high: f64,
    /// 0 to 1; at least [`CONFIDENCE`], or as much as so few rounds give.
    pub confidence: f64,
}

/// What an interval is to be worth: 9 rounds without the least and the greatest
/// give 0.96, all of 5 rounds give 0.94.
const CONFIDENCE: f64 = 0.9;

impl Ratio {
    /// Of the rounds' ratios, those left out that divide by nothing.
    pub fn of(mut ratios: Vec<f64>) -> Option<Self> {
        ratios.retain(|ratio| ratio.is_finite());
        ratios.sort_by(f64::total_cmp);
        let (left_out, confidence) = interval(ratios.len());
        Some(Ratio {
            low: *ratios.get(left_out)?,
            high: ratios[ratios.len() - 1 - left_out],
            confidence,
            median: median(ratios)?,
        })
    }

    /// Whether it reaches the bar.
    pub fn meets(self, bar: f64) -> bool {
        self.median >= bar
    }

    /// Whether the whole interval is on one side of the bar.
    pub fn is_sure_of(self, bar: f64) -> bool {
        bar <= self.low || self.high < bar
    }
}

/// How many of `count` sorted values to leave out at each end so that those left
/// still enclose the median of their distribution with [`CONFIDENCE`], and the
/// confidence that this comes to. A value is below the median or above it like a
/// coin's sides: the interval misses if at most so many are on one side.
fn interval(count: usize) -> (usize, f64) {
    let all = 0.5_f64.powi(count as i32);
    let mut ways = 1.0;
    let mut misses = 2.0 * all;
    let mut best = (0, (1.0 - misses).max(0.0));
    for left_out in 1..count.div_ceil(2) {
        ways *= (count + 1 - left_out) as f64 / left_out as f64;
        misses += 2.0 * ways * all;
        if 1.0 - misses < CONFIDENCE {
            break;
        }
        best = (left_out, 1.0 - misses);
    }
    best
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
    fn an_interval_leaves_out_as_many_at_each_end_as_its_confidence_allows() {
        // 1 - 2 (C(n,0) + ... + C(n,k)) / 2^n
        assert_eq!(interval(0), (0, 0.0));
        assert_eq!(interval(1), (0, 0.0));
        assert_eq!(interval(5), (0, 1.0 - 2.0 / 32.0));
        assert_eq!(interval(7), (0, 1.0 - 2.0 / 128.0));
        assert_eq!(interval(8), (1, 1.0 - 2.0 * 9.0 / 256.0));
        assert_eq!(interval(9), (1, 1.0 - 2.0 * 10.0 / 512.0));
        assert_eq!(interval(11), (2, 1.0 - 2.0 * 67.0 / 2048.0));
        let ratio = Ratio::of((1..=9).map(f64::from).collect()).unwrap();
        assert_eq!((ratio.low, ratio.median, ratio.high), (2.0, 5.0, 8.0));
        assert_eq!(Ratio::of(vec![f64::NAN, f64::INFINITY]), None);
    }

    /// The promise of an interval, kept by dice.
    #[test]
    fn intervals_hold_the_true_median_as_often_as_they_say() {
        let mut random = crate::random::Random::for_use(1, "intervals");
        let held = (0..10_000).filter(|_| {
            // As skewed as ratios are when a round is disturbed; its median is 0.25.
            let ratios = (0..9).map(|_| random.fraction().powi(2)).collect();
            let ratio = Ratio::of(ratios).unwrap();
            ratio.low <= 0.25 && 0.25 <= ratio.high
        });
        let share = held.count() as f64 / 10_000.0;
        assert!((0.95..0.97).contains(&share), "{share}");
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
