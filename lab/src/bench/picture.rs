//! The results as a picture: throughput relative to direct, in groups of bars.

use super::case::{Mode, Target};
use super::results::{CaseResults, Results};
use crate::figures::{Ratio, grouped};
use crate::svg::{ABOVE_BAR, GREY, HEADING, LEGEND, NAME, ON_BAR, SCALE, SMALL, Svg};

const GROUP_WIDTH: f64 = 168.0;
const BAR_WIDTH: f64 = 34.0;
const BAR_GAP: f64 = 4.0;
const LEFT: f64 = 48.0;
const RIGHT: f64 = 64.0;
const TOP: f64 = 84.0;
const PLOT_HEIGHT: f64 = 260.0;
const BOTTOM: f64 = 66.0;
/// The least width, in groups: the heading must fit.
const LEAST_GROUPS: usize = 4;

/// The picture; none if direct was not measured, or nothing else.
pub fn draw(results: &Results) -> Option<String> {
    let groups: Vec<&CaseResults> = results.cases.iter().filter(|case| is_shown(case)).collect();
    let bars: Vec<Target> = [
        Target::Haproxy,
        Target::HaproxySplice,
        Target::Nginx,
        Target::Nat,
        Target::Trapeze,
    ]
    .into_iter()
    .filter(|&target| groups.iter().any(|case| of_direct(case, target).is_some()))
    .collect();
    if bars.is_empty() {
        return None;
    }
    let highest = groups.iter().flat_map(|case| {
        let ratios = bars.iter().filter_map(|&target| of_direct(case, target));
        ratios.map(|ratio| ratio.high)
    });
    let plot = Plot {
        width: groups.len().max(LEAST_GROUPS) as f64 * GROUP_WIDTH,
        // A whole number of grid lines, and room for the highest label.
        top: (highest.fold(1.0, f64::max) * 5.0).ceil() / 5.0,
    };
    let mut svg = Svg::new(
        LEFT + plot.width + RIGHT,
        TOP + PLOT_HEIGHT + BOTTOM,
        "Throughput relative to direct, by size of the answer",
    );
    draw_heading(&mut svg, results, &bars);
    draw_grid(&mut svg, &plot);
    for (index, case) in groups.iter().enumerate() {
        let middle = LEFT + (index as f64 + 0.5) * plot.width / groups.len() as f64;
        draw_group(&mut svg, &plot, middle, case, &bars);
    }
    Some(svg.finish())
}

/// Where values are on the picture.
struct Plot {
    width: f64,
    top: f64,
}

impl Plot {
    fn y(&self, ratio: f64) -> f64 {
        TOP + PLOT_HEIGHT * (1.0 - ratio / self.top)
    }
}

/// Latency of an idle system is no throughput.
fn is_shown(case: &CaseResults) -> bool {
    case.case.mode != Mode::OneConnection
}

fn of_direct(case: &CaseResults, target: Target) -> Option<Ratio> {
    case.ratio(target, Target::Direct)
}

fn colour(target: Target) -> &'static str {
    match target {
        Target::Direct => GREY,
        Target::Haproxy => "#a598cc",
        Target::HaproxySplice => "#7f9f6b",
        Target::Nginx => "#c99a3c",
        Target::Nat => "#b0705f",
        Target::Trapeze => "#2f8fd8",
    }
}

fn draw_heading(svg: &mut Svg, results: &Results, bars: &[Target]) {
    let (environment, settings) = (&results.environment, &results.settings);
    svg.text(LEFT, 22.0, HEADING, "Throughput, relative to direct");
    let conditions = format!(
        "{} connections, {}; median of {} rounds and its interval; {} cores, Linux {}",
        settings.connections,
        settings.servers(),
        settings.rounds,
        environment.machine.cores,
        environment.machine.kernel
    );
    svg.text(LEFT, 41.0, LEGEND, &conditions);
    let mut x = LEFT;
    for &target in bars {
        svg.rect(x, 53.0, 11.0, 11.0, colour(target));
        svg.text(x + 16.0, 63.0, LEGEND, target.title());
        x += 36.0 + 7.0 * target.title().len() as f64;
    }
}

fn draw_grid(svg: &mut Svg, plot: &Plot) {
    let right = LEFT + plot.width;
    let lines = (plot.top * 5.0).round() as u32;
    for ratio in (0..=lines).map(|line| f64::from(line) / 5.0) {
        let is_direct = ratio == 1.0;
        let y = plot.y(ratio);
        let opacity = if is_direct { 1.0 } else { 0.25 };
        svg.line((LEFT, y), (right, y), GREY, opacity);
        svg.text(LEFT - 8.0, y + 4.0, SCALE, &format!("{ratio:.1}"));
        if is_direct {
            svg.text(right + 6.0, y + 4.0, LEGEND, "direct");
        }
    }
}

fn draw_group(svg: &mut Svg, plot: &Plot, middle: f64, case: &CaseResults, bars: &[Target]) {
    let step = BAR_WIDTH + BAR_GAP;
    let mut x = middle - (step * bars.len() as f64 - BAR_GAP) / 2.0;
    for &target in bars {
        if let Some(ratio) = of_direct(case, target) {
            let (y, foot) = (plot.y(ratio.median), plot.y(0.0));
            svg.rect(x, y, BAR_WIDTH, foot - y, colour(target));
            let centre = x + BAR_WIDTH / 2.0;
            let (low, high) = (plot.y(ratio.low), plot.y(ratio.high));
            svg.line((centre, low), (centre, high), GREY, 0.9);
            let label = format!("{:.2}", ratio.median);
            // At the foot, where the range does not cross it.
            let (label_y, style) = match foot - y {
                height if height < 24.0 => (high - 5.0, ABOVE_BAR),
                _ => (foot - 7.0, ON_BAR),
            };
            svg.text(centre, label_y, style, &label);
        }
        x += step;
    }
    let below = plot.y(0.0);
    let (size, mode) = match case.case.mode {
        Mode::ConnectionPerRequest => (case.case.size.title(), "a connection each"),
        Mode::KeepAlive | Mode::OneConnection => (case.case.size.title(), "keep-alive"),
    };
    svg.text(middle, below + 19.0, NAME, &size);
    svg.text(middle, below + 35.0, SMALL, mode);
    if let Some(direct) = case.target(Target::Direct).and_then(|of| of.median) {
        let rate = format!("direct: {}/s", grouped(direct.requests_per_s));
        svg.text(middle, below + 51.0, SMALL, &rate);
    }
}

#[cfg(test)]
mod tests {
    use super::super::results::tests::{case, results};
    use super::*;
    use crate::svg::check_well_formed;

    #[test]
    fn the_picture_is_well_formed_and_stays_inside_its_frame() {
        let svg = draw(&results()).unwrap();
        check_well_formed(&svg);
        // Three groups of four bars, and the legend.
        assert_eq!(svg.matches("<rect").count(), 16);
        assert!(svg.contains(">0.95</text>") && svg.contains(">direct: 50,000/s</text>"));
        for attribute in ["x", "y", "x1", "y1", "x2", "y2", "height"] {
            for value in svg.split(&format!(" {attribute}=\"")).skip(1) {
                let value: f64 = value.split('"').next().unwrap().parse().unwrap();
                assert!((0.0..=1000.0).contains(&value), "{attribute}={value}");
            }
        }
    }

    #[test]
    fn text_cannot_become_markup() {
        let mut results = results();
        results.environment.machine.kernel = "6 <&>".into();
        let svg = draw(&results).unwrap();
        check_well_formed(&svg);
        assert!(svg.contains("6 &lt;&amp;&gt;"));
    }

    #[test]
    fn there_is_no_picture_without_direct_or_without_others() {
        let mut results = results();
        for rates in [
            [&[][..], &[9], &[9], &[8], &[7]],
            [&[9], &[], &[], &[], &[]],
        ] {
            results.cases = vec![case("1k", Mode::KeepAlive, rates)];
            assert_eq!(draw(&results), None);
        }
    }
}
