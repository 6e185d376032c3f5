//! A story as a sequence diagram.

use std::time::Duration;

use trapeze_lab::svg::{GREY, HEADING, LEGEND, NAME, SCALE, SMALL, Svg};

use crate::story::Event;

const LEFT: f64 = 90.0;
const BETWEEN: f64 = 215.0;
const TOP: f64 = 98.0;
const ROW: f64 = 30.0;
/// Of what each host says.
const COLOURS: [&str; 5] = ["#768390", "#316dca", "#347d39", "#ae5622", "#8256d0"];

/// Draws it; `zero` is the time from which all are told.
pub fn draw(title: &str, hosts: &[&str], events: &[Event], zero: Duration) -> String {
    let width = LEFT + BETWEEN * hosts.len() as f64;
    let height = TOP + ROW * (events.len() as f64 + 1.0);
    let x = |host: &str| {
        let place = hosts.iter().position(|known| *known == host).unwrap_or(0);
        LEFT + BETWEEN * (place as f64 + 0.5)
    };
    let mut svg = Svg::new(width, height, title);
    svg.text(16.0, 28.0, HEADING, title);
    svg.text(16.0, 48.0, LEGEND, "arrivals, in seconds");
    for host in hosts {
        svg.text(x(host), TOP - 22.0, NAME, host);
        svg.line((x(host), TOP - 12.0), (x(host), height - 12.0), GREY, 0.5);
    }
    for (row, event) in events.iter().enumerate() {
        let y = TOP + ROW * (row as f64 + 0.6);
        svg.text(LEFT - 14.0, y + 4.0, SCALE, &time(event.at(), zero));
        match event {
            Event::Message { from, to, says, .. } => {
                let place = hosts.iter().position(|host| host == from).unwrap_or(0);
                let colour = COLOURS[place % COLOURS.len()];
                let (from, to) = (x(from), x(to));
                let back = if to > from { -7.0 } else { 7.0 };
                svg.line((from, y), (to, y), colour, 0.9);
                svg.line((to + back, y - 4.0), (to, y), colour, 0.9);
                svg.line((to + back, y + 4.0), (to, y), colour, 0.9);
                svg.text((from + to) / 2.0, y - 5.0, SMALL, says);
            }
            Event::Remark { says, .. } => {
                svg.line((LEFT, y + 8.0), (width - 12.0, y + 8.0), "#c69026", 0.7);
                svg.text(LEFT + 8.0, y + 3.0, LEGEND, says);
            }
        }
    }
    svg.finish()
}

/// As a table of text says it, in seconds.
pub fn time(at: Duration, zero: Duration) -> String {
    format!("{:+.3}", at.as_secs_f64() - zero.as_secs_f64())
}
