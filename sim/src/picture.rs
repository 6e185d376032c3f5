//! Pictures of outcomes as SVG: a panel for each workload; lines over the number of
//! backends where there are several numbers, bars of policies where there is one.

use std::fmt::Write;

use crate::outcome::Outcome;

const WIDTH: f64 = 760.0;
const LEFT: f64 = 150.0;
const RIGHT: f64 = 150.0;
const ROW: f64 = 20.0;
const LINES: f64 = 260.0;
/// Told apart by people who see colours differently (M. Okabe, K. Ito).
const COLOURS: [&str; 8] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999",
];

/// Throughput of all outcomes.
pub fn throughput(outcomes: &[Outcome]) -> String {
    let mut body = String::new();
    let mut y = 10.0;
    for group in outcomes.chunk_by(|a, b| a.workload == b.workload) {
        let several = group.iter().any(|o| o.backends != group[0].backends);
        let suffix = match several {
            true => String::new(),
            false => format!(", {} backends", group[0].backends),
        };
        let title = format!("{}{suffix}: requests a second", group[0].workload);
        text(&mut body, (10.0, y + 14.0), "start", "bold", &title);
        y += 26.0;
        y += match several {
            true => lines(&mut body, group, y),
            false => bars(&mut body, group, y),
        };
        y += 16.0;
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{y:.0}\" \
         viewBox=\"0 0 {WIDTH} {y:.0}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n{body}</svg>\n"
    )
}

fn most(group: &[Outcome]) -> f64 {
    group
        .iter()
        .fold(1e-9, |most, o| most.max(o.requests_per_second))
}

fn bars(body: &mut String, group: &[Outcome], top: f64) -> f64 {
    let scale = (WIDTH - LEFT - RIGHT) / most(group);
    for (row, o) in group.iter().enumerate() {
        let y = top + row as f64 * ROW;
        let width = o.requests_per_second * scale;
        text(body, (LEFT - 8.0, y + 13.0), "end", "normal", &o.policy);
        let _ = writeln!(
            body,
            "<rect x=\"{LEFT}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{:.1}\" fill=\"{}\"/>",
            ROW - 5.0,
            COLOURS[0]
        );
        let value = format!("{:.0}", o.requests_per_second);
        text(
            body,
            (LEFT + width + 6.0, y + 13.0),
            "start",
            "normal",
            &value,
        );
    }
    group.len() as f64 * ROW
}

fn lines(body: &mut String, group: &[Outcome], top: f64) -> f64 {
    let sizes = |f: fn(usize, usize) -> usize| group.iter().map(|o| o.backends).reduce(f);
    let (low, high) = (
        sizes(usize::min).unwrap_or(1),
        sizes(usize::max).unwrap_or(1),
    );
    let (most, bottom) = (most(group), top + LINES);
    let x = |n: usize| {
        let span = (high - low).max(1) as f64;
        LEFT + (WIDTH - LEFT - RIGHT) * (n - low) as f64 / span
    };
    let y = |rate: f64| bottom - (LINES - 10.0) * rate / most;
    let _ = writeln!(
        body,
        "<path d=\"M{LEFT} {top}V{bottom}H{}\" fill=\"none\" stroke=\"#999999\"/>",
        WIDTH - RIGHT
    );
    text(
        body,
        (LEFT - 8.0, top + 14.0),
        "end",
        "normal",
        &format!("{most:.0}"),
    );
    text(body, (LEFT - 8.0, bottom), "end", "normal", "0");
    for n in low..=high {
        if group.iter().any(|o| o.backends == n) {
            text(
                body,
                (x(n), bottom + 15.0),
                "middle",
                "normal",
                &n.to_string(),
            );
        }
    }
    let mut policies: Vec<&str> = Vec::new();
    for o in group {
        if !policies.contains(&o.policy.as_str()) {
            policies.push(&o.policy);
        }
    }
    for (index, policy) in policies.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let points: Vec<String> = (group.iter().filter(|o| o.policy == *policy))
            .map(|o| format!("{:.1},{:.1}", x(o.backends), y(o.requests_per_second)))
            .collect();
        let _ = writeln!(
            body,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
            points.join(" ")
        );
        let legend = top + 14.0 + index as f64 * 16.0;
        let right = WIDTH - RIGHT + 12.0;
        let _ = writeln!(
            body,
            "<rect x=\"{right}\" y=\"{:.1}\" width=\"12\" height=\"4\" fill=\"{colour}\"/>",
            legend - 6.0
        );
        text(body, (right + 18.0, legend), "start", "normal", policy);
    }
    LINES.max(16.0 * policies.len() as f64) + 20.0
}

fn text(body: &mut String, (x, y): (f64, f64), anchor: &str, weight: &str, words: &str) {
    let words = words
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;");
    let _ = writeln!(
        body,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" font-weight=\"{weight}\">{words}</text>"
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Entrant, Hardware, Run, Span, workload::Zipf};
    use trapeze_core::config::PolicyKind;

    fn outcome(backends: usize, name: &str) -> Outcome {
        Run {
            hardware: &Hardware::lard98().with_backends(backends),
            workload: &Zipf::new(10, 1.0, 1 << 20, 1).named("a < b & c"),
            entrant: &Entrant::of(PolicyKind::RoundRobin).named(name),
            span: Span::requests(100),
            seed: 1,
        }
        .go()
    }

    #[test]
    fn one_number_of_backends_makes_bars_and_several_make_lines() {
        let bars = throughput(&[outcome(2, "p"), outcome(2, "q")]);
        assert_eq!(bars.matches("<rect").count(), 1 + 2);
        let lines = throughput(&[
            outcome(1, "p"),
            outcome(1, "q"),
            outcome(2, "p"),
            outcome(2, "q"),
        ]);
        assert_eq!(lines.matches("<polyline").count(), 2);
        assert!(bars.contains("a &lt; b &amp; c") && bars.ends_with("</svg>\n"));
    }
}
