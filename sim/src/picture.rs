//! Pictures of outcomes as SVG: a panel for each workload; lines over the number of
//! backends where there are several numbers, bars of policies where there is one.

use std::fmt::Write;

use crate::outcome::Outcome;

const WIDTH: f64 = 800.0;
const LEFT: f64 = 150.0;
const RIGHT: f64 = 190.0;
const ROW: f64 = 20.0;
const LINES: f64 = 260.0;
/// Told apart by people who see colours differently (M. Okabe, K. Ito).
const COLOURS: [&str; 8] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999",
];
/// Of a line; once all colours are taken, the next one.
const DASHES: [&str; 3] = ["none", "7 4", "2 3"];
/// The same of its points.
const MARKERS: [Marker; 4] = [
    Marker::Disc,
    Marker::Square,
    Marker::Triangle,
    Marker::Diamond,
];

#[derive(Clone, Copy)]
enum Marker {
    Disc,
    Square,
    Triangle,
    Diamond,
}

/// How a policy's line is told from the others: the first 96 have no two alike.
#[derive(Clone, Copy)]
struct Style {
    colour: &'static str,
    dash: &'static str,
    marker: Marker,
}

impl Style {
    fn of(index: usize) -> Self {
        let round = index / COLOURS.len();
        Style {
            colour: COLOURS[index % COLOURS.len()],
            dash: DASHES[round % DASHES.len()],
            marker: MARKERS[round % MARKERS.len()],
        }
    }

    fn line(self, body: &mut String, points: &[(f64, f64)]) {
        let Style { colour, dash, .. } = self;
        let path: Vec<String> = (points.iter())
            .map(|(x, y)| format!("{x:.1},{y:.1}"))
            .collect();
        let _ = writeln!(
            body,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" \
             stroke-dasharray=\"{dash}\"/>",
            path.join(" ")
        );
        for &point in points {
            self.point(body, point);
        }
    }

    /// Hollow, so that one below shows.
    fn point(self, body: &mut String, (x, y): (f64, f64)) {
        let r = 3.5;
        let corners = |at: &[(f64, f64)]| {
            let at = at
                .iter()
                .map(|(dx, dy)| format!("{:.1},{:.1}", x + dx, y + dy));
            format!("polygon points=\"{}\"", at.collect::<Vec<_>>().join(" "))
        };
        let shape = match self.marker {
            Marker::Disc => format!("circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{r}\""),
            Marker::Square => corners(&[(-r, -r), (r, -r), (r, r), (-r, r)]),
            Marker::Triangle => corners(&[(0.0, -r - 1.0), (r + 1.0, r), (-r - 1.0, r)]),
            Marker::Diamond => {
                let r = r + 1.0;
                corners(&[(0.0, -r), (r, 0.0), (0.0, r), (-r, 0.0)])
            }
        };
        let colour = self.colour;
        let _ = writeln!(
            body,
            "<{shape} fill=\"white\" fill-opacity=\"0.6\" stroke=\"{colour}\" stroke-width=\"1.5\"/>"
        );
    }
}

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
        let style = Style::of(index);
        let mut points: Vec<(f64, f64)> = (group.iter().filter(|o| o.policy == *policy))
            .map(|o| (x(o.backends), y(o.requests_per_second)))
            .collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        style.line(body, &points);
        let legend = top + 14.0 + index as f64 * 16.0;
        let right = WIDTH - RIGHT + 12.0;
        let middle = legend - 4.0;
        style.line(body, &[(right, middle), (right + 26.0, middle)]);
        text(body, (right + 34.0, legend), "start", "normal", policy);
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
        // A line, and its sample beside the name.
        assert_eq!(lines.matches("<polyline").count(), 2 * 2);
        assert_eq!(lines.matches("<circle").count(), 2 * (2 + 2));
        assert!(bars.contains("a &lt; b &amp; c") && bars.ends_with("</svg>\n"));
    }

    #[test]
    fn no_two_policies_look_alike() {
        let policies = PolicyKind::ALL.len().max(90);
        let mut looks: Vec<String> = (0..policies)
            .map(|index| {
                let mut drawn = String::new();
                Style::of(index).line(&mut drawn, &[(0.0, 0.0)]);
                drawn
            })
            .collect();
        looks.sort();
        looks.dedup();
        assert_eq!(looks.len(), policies);
    }
}
