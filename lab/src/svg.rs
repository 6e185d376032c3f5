//! Pictures as SVG. The background is transparent and the colours are of middle
//! lightness, so that they can be read on a light page and on a dark one.

use std::fmt::Write;

/// Beside and between bars.
pub const GREY: &str = "#768390";
/// Upon a bar.
const DARK: &str = "#0d1620";

/// How text looks, and where its x is.
#[derive(Clone, Copy)]
pub struct Style {
    anchor: &'static str,
    size: u32,
    weight: u32,
    fill: &'static str,
}

impl Style {
    /// In another colour.
    pub fn filled(self, fill: &'static str) -> Self {
        Self { fill, ..self }
    }
}

/// In the middle of a line.
pub const SMALL: Style = Style {
    anchor: "middle",
    size: 11,
    weight: 400,
    fill: GREY,
};
/// Beside a colour; the beginning of a line.
pub const LEGEND: Style = Style {
    anchor: "start",
    size: 12,
    ..SMALL
};
/// A picture's title.
pub const HEADING: Style = Style {
    size: 16,
    weight: 600,
    ..LEGEND
};
/// Of what stands below or beside.
pub const NAME: Style = Style {
    size: 13,
    weight: 600,
    ..SMALL
};
/// Left of an axis.
pub const SCALE: Style = Style {
    anchor: "end",
    ..SMALL
};
/// Within a bar.
pub const ON_BAR: Style = Style {
    weight: 600,
    fill: DARK,
    ..SMALL
};
/// Above a bar.
pub const ABOVE_BAR: Style = Style {
    fill: GREY,
    ..ON_BAR
};

/// An SVG document that is being written.
pub struct Svg(String);

impl Svg {
    /// An empty one, of so many pixels.
    pub fn new(width: f64, height: f64, title: &str) -> Self {
        Svg(format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
             width=\"{width}\" height=\"{height}\" role=\"img\" \
             font-family=\"system-ui, 'DejaVu Sans', sans-serif\">\n<title>{}</title>\n",
            escaped(title)
        ))
    }

    /// A filled rectangle.
    pub fn rect(&mut self, x: f64, y: f64, width: f64, height: f64, fill: &str) {
        self.push(format_args!(
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" \
             rx=\"1.5\" fill=\"{fill}\"/>"
        ));
    }

    /// A line, its opacity from 0 to 1.
    pub fn line(&mut self, from: (f64, f64), to: (f64, f64), stroke: &str, opacity: f64) {
        self.push(format_args!(
            "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"{stroke}\" \
             stroke-opacity=\"{opacity}\"/>",
            from.0, from.1, to.0, to.1
        ));
    }

    /// Some words.
    pub fn text(&mut self, x: f64, y: f64, style: Style, text: &str) {
        let Style {
            anchor,
            size,
            weight,
            fill,
        } = style;
        self.push(format_args!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" font-size=\"{size}\" \
             font-weight=\"{weight}\" fill=\"{fill}\">{}</text>",
            escaped(text)
        ));
    }

    fn push(&mut self, element: std::fmt::Arguments) {
        writeln!(self.0, "{element}").expect("a string takes all");
    }

    /// The document.
    pub fn finish(self) -> String {
        self.0 + "</svg>\n"
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

/// Asserts that tags nest, and that text and attributes have no bare markup.
#[cfg(test)]
pub fn check_well_formed(svg: &str) {
    let mut open = Vec::new();
    let mut rest = svg;
    while let Some(start) = rest.find('<') {
        assert!(!rest[..start].contains('>'), "{}", &rest[..start]);
        let end = start + rest[start..].find('>').expect("a tag ends");
        let tag = &rest[start + 1..end];
        assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
        let name = tag.trim_start_matches('/').split(' ').next().unwrap();
        match tag {
            tag if tag.starts_with('/') => assert_eq!(open.pop(), Some(name)),
            tag if tag.ends_with('/') => {}
            _ => open.push(name),
        }
        rest = &rest[end + 1..];
    }
    assert!(open.is_empty(), "{open:?}");
    assert_eq!(rest.trim(), "");
}
