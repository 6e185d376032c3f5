//! The results as a picture: a bar for each policy's throughput, with its hit ratio
//! beside it.

use super::results::{PolicyResults, Results};
use crate::figures::grouped;
use crate::servers::origin::settings::mebibytes;
use crate::svg::{GREY, HEADING, LEGEND, NAME, SMALL, Svg};

const LEFT: f64 = 150.0;
const PLOT_WIDTH: f64 = 420.0;
const RIGHT: f64 = 150.0;
const TOP: f64 = 72.0;
const ROW: f64 = 40.0;
const BAR: f64 = 24.0;
const BOTTOM: f64 = 16.0;
const BLUE: &str = "#2f8fd8";

/// The picture.
pub fn draw(results: &Results) -> String {
    let rows = results.policies.len() as f64;
    let (width, height) = (LEFT + PLOT_WIDTH + RIGHT, TOP + ROW * rows + BOTTOM);
    let mut svg = Svg::new(width, height, "Requests a second and hit ratio by policy");
    draw_heading(&mut svg, results);
    let rates = results.policies.iter().flat_map(|policy| &policy.rounds);
    let highest = rates.map(|run| run.outcome.rate()).fold(1.0, f64::max);
    let x = |rate: f64| LEFT + PLOT_WIDTH * rate / highest;
    for (row, policy) in (0..).zip(&results.policies) {
        draw_row(&mut svg, TOP + ROW * f64::from(row), policy, x);
    }
    svg.finish()
}

fn draw_heading(svg: &mut Svg, results: &Results) {
    let settings = &results.settings;
    svg.text(16.0, 24.0, HEADING, "Requests a second, by policy");
    let conditions = format!(
        "{} backends with {} of cache each, {} objects of {}, n^-{}; median and range of {} rounds",
        settings.backends,
        mebibytes(settings.origin.cache_bytes),
        grouped(settings.objects as f64),
        mebibytes(settings.catalogue_bytes),
        settings.zipf,
        settings.rounds
    );
    svg.text(16.0, 44.0, LEGEND, &conditions);
}

fn draw_row(svg: &mut Svg, top: f64, policy: &PolicyResults, x: impl Fn(f64) -> f64) {
    let middle = top + BAR / 2.0;
    svg.text(LEFT - 76.0, middle + 4.0, NAME, policy.policy);
    let Some(median) = policy.median else {
        return;
    };
    let end = x(median.requests_per_s);
    svg.rect(LEFT, top, end - LEFT, BAR, BLUE);
    let rates = policy.rounds.iter().map(|run| run.outcome.rate());
    let (low, high) = rates.fold((f64::MAX, 0.0_f64), |(low, high), rate| {
        (low.min(rate), high.max(rate))
    });
    svg.line((x(low), middle), (x(high), middle), GREY, 0.9);
    let said = format!(
        "{}/s, {:.0} % hits",
        grouped(median.requests_per_s),
        median.hit_ratio * 100.0
    );
    svg.text(x(high) + 68.0, middle + 4.0, SMALL, &said);
}

#[cfg(test)]
mod tests {
    use super::super::results::tests::results;
    use super::*;
    use crate::svg::check_well_formed;

    #[test]
    fn each_policy_has_a_bar() {
        let svg = draw(&results());
        check_well_formed(&svg);
        assert_eq!(svg.matches("<rect").count(), 2);
        assert!(svg.contains(">800/s, 90 % hits</text>"), "{svg}");
    }

    #[test]
    fn one_that_was_not_measured_has_none() {
        let mut results = results();
        results.policies[1].median = None;
        let svg = draw(&results);
        check_well_formed(&svg);
        assert_eq!(svg.matches("<rect").count(), 1);
    }
}
