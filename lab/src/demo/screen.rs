//! What the demo prints: plain text that fits 90 columns, coloured only on a
//! terminal.

use std::io::IsTerminal;
use std::time::Duration;

use super::client::Request;

const WIDTH: usize = 88;
const INDENT: &str = "    ";

/// Where the demo prints.
pub struct Screen {
    has_colour: bool,
    scenes: usize,
    /// What was printed last.
    last: Part,
}

#[derive(Clone, Copy, PartialEq)]
enum Part {
    Title,
    Text,
    Command,
    Answer,
    Block,
}

impl Screen {
    /// The standard output.
    pub fn new() -> Self {
        Screen {
            // https://no-color.org
            has_colour: std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none(),
            scenes: 0,
            last: Part::Title,
        }
    }

    pub fn title(&mut self, text: &str) {
        println!("{}", self.painted("1", text));
    }

    /// Begins the next scene.
    pub fn scene(&mut self, title: &str) {
        self.scenes += 1;
        self.last = Part::Title;
        let title = format!("{}. {title}", self.scenes);
        println!("\n{}", self.painted("1;36", &title));
    }

    pub fn say(&mut self, text: &str) {
        self.part(Part::Text);
        for line in wrapped(text, WIDTH - 2) {
            println!("  {line}");
        }
    }

    /// Lines that are aligned already.
    pub fn block(&mut self, lines: &str) {
        self.part(Part::Block);
        for line in lines.lines() {
            println!("{INDENT}{}", line.trim_end());
        }
    }

    /// What the client is about to do.
    pub fn command(&mut self, request: &Request) {
        self.part(Part::Command);
        println!("  {}", self.painted("2", &format!("c1$ {request}")));
    }

    /// Who answered a request.
    pub fn answer(&mut self, request: &Request, who: &str) {
        self.part(Part::Answer);
        let request = request.to_string();
        println!(
            "{INDENT}{request:<56} {} {}",
            self.painted("2", "->"),
            self.painted("1;32", who)
        );
    }

    pub fn end(&mut self, text: &str) {
        println!("\n{}", self.painted("1", text));
    }

    /// Says what went wrong.
    pub fn failed(&mut self, why: &str, logs: &str) {
        println!("\n{}", self.painted("1;31", "FAILED"));
        self.last = Part::Title;
        self.say(why);
        if !logs.is_empty() {
            self.say("The daemons' last words:");
            self.block(logs);
        }
    }

    /// An empty line between a block or a list and what stands around it.
    fn part(&mut self, next: Part) {
        let is_set_off = |part| matches!(part, Part::Answer | Part::Block);
        let parted = is_set_off(self.last) || is_set_off(next);
        if parted && self.last != Part::Title && (self.last, next) != (Part::Answer, Part::Answer) {
            println!();
        }
        self.last = next;
    }

    fn painted(&self, style: &str, text: &str) -> String {
        match self.has_colour {
            true => format!("\x1b[{style}m{text}\x1b[0m"),
            false => text.to_owned(),
        }
    }
}

/// A number with its thousands apart.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Bytes in the unit that suits them, decimal.
pub fn bytes(number: u64) -> String {
    let number = number as f64;
    match number {
        n if n >= 1e6 => format!("{:.1} MB", n / 1e6),
        n if n >= 1e3 => format!("{:.1} kB", n / 1e3),
        n => format!("{n} B"),
    }
}

pub fn seconds(duration: Duration) -> String {
    format!("{:.2} s", duration.as_secs_f64())
}

/// Lines of at most `width` columns, broken between words.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().expect("never empty");
        if line.is_empty() {
            *line = word.to_owned();
        } else if line.len() + 1 + word.len() <= width {
            *line += " ";
            *line += word;
        } else {
            lines.push(word.to_owned());
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_readable() {
        let table = [
            (0, "0"),
            (999, "999"),
            (1000, "1,000"),
            (1234567, "1,234,567"),
        ];
        for (number, expected) in table {
            assert_eq!(count(number), expected);
        }
        assert_eq!(bytes(104_857_600), "104.9 MB");
        assert_eq!(bytes(68_021), "68.0 kB");
        assert_eq!(bytes(0), "0 B");
    }

    #[test]
    fn text_is_broken_between_words() {
        assert_eq!(wrapped("one two three", 7), ["one two", "three"]);
        assert_eq!(
            wrapped("longer-than-width x", 5),
            ["longer-than-width", "x"]
        );
    }
}
