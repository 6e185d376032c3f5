//! What is wrong with a configuration, where, and what to do: one message per
//! mistake, with its line and a caret, so that an operator can mend all of them
//! in one round.

use std::fmt;
use std::ops::Range;
use std::str::Utf8Error;

/// Every mistake that was found, in the order of the text; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigErrors {
    errors: Vec<ConfigError>,
}

impl ConfigErrors {
    /// Puts the mistakes in the order of the text.
    pub(super) fn new(mut errors: Vec<ConfigError>) -> Self {
        debug_assert!(!errors.is_empty());
        errors.sort_by_key(|e| (e.line, e.column));
        ConfigErrors { errors }
    }

    pub(super) fn not_utf8(bytes: &[u8], error: Utf8Error, file: &str) -> Self {
        let at = error.valid_up_to();
        // Its replacement stands where the byte does.
        let text = String::from_utf8_lossy(bytes);
        let message = format!(
            "the byte 0x{:02x} is not UTF-8, which TOML is written in: save the file as UTF-8",
            bytes[at]
        );
        Self::new(vec![ConfigError::new(&text, file, at..at + 1, message)])
    }

    /// The mistakes, in the order of the text.
    pub fn iter(&self) -> std::slice::Iter<'_, ConfigError> {
        self.errors.iter()
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, error) in self.errors.iter().enumerate() {
            if i > 0 {
                f.write_str("\n\n")?;
            }
            error.fmt(f)?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}

/// A host looks for itself in vain.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no [[{kind}]] is named {name}; there are: {}", names.join(", "))]
pub struct NotNamed {
    kind: &'static str,
    name: String,
    names: Vec<String>,
}

impl NotNamed {
    pub(super) fn new<'n>(
        kind: &'static str,
        name: &str,
        names: impl Iterator<Item = &'n String>,
    ) -> Self {
        let (name, names) = (name.to_owned(), names.cloned().collect());
        NotNamed { kind, name, names }
    }
}

/// One mistake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// The file's name, as the caller gave it.
    pub file: String,
    /// Counted from 1.
    pub line: usize,
    /// In characters, counted from 1.
    pub column: usize,
    /// What is wrong and what to do.
    pub message: String,
    /// The line itself, without its end and without secrets.
    source: String,
    /// How many characters the caret underlines, at least 1.
    width: usize,
}

impl ConfigError {
    /// Places a message at `span`, which is in bytes of `text`.
    pub(super) fn new(text: &str, file: &str, span: Range<usize>, message: String) -> Self {
        let start = floor_char_boundary(text, span.start);
        let line_start = text[..start].rfind('\n').map_or(0, |i| i + 1);
        let source = text[line_start..].lines().next().unwrap_or("");
        let line_end = line_start + source.len();
        // A span that ends on a later line (a whole table) is underlined to the
        // end of its first.
        let end = floor_char_boundary(text, span.end.clamp(start, line_end.max(start)));
        ConfigError {
            file: file.to_owned(),
            line: line_of(text, start),
            column: text[line_start..start].chars().count() + 1,
            message,
            source: without_secrets(source),
            width: text[start..end].chars().count().max(1),
        }
    }
}

/// `file:line:column: message`, then the line with a caret below.
impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = self.line.to_string();
        let gutter = " ".repeat(number.len());
        // Tabs stay tabs, so that the caret stands where the terminal puts the text.
        let indent: String = (self.source.chars())
            .take(self.column - 1)
            .map(|c| if c == '\t' { '\t' } else { ' ' })
            .collect();
        let caret = "^".repeat(self.width);
        let ConfigError {
            file,
            line,
            column,
            message,
            source,
            ..
        } = self;
        writeln!(f, "{file}:{line}:{column}: {message}")?;
        writeln!(f, " {gutter} |")?;
        writeln!(f, " {number} | {source}")?;
        write!(f, " {gutter} | {indent}{caret}")
    }
}

impl std::error::Error for ConfigError {}

/// The line, counted from 1, that holds the byte at `offset`.
pub(super) fn line_of(text: &str, offset: usize) -> usize {
    let before = &text.as_bytes()[..offset.min(text.len())];
    1 + before.iter().filter(|&&b| b == b'\n').count()
}

/// Errors go to terminals and logs, where keys have no business: what may be one,
/// even misspelt or cut short, becomes stars of the same width.
fn without_secrets(line: &str) -> String {
    let mut shown = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(first) = rest.chars().next() {
        let run = rest.bytes().take_while(u8::is_ascii_hexdigit).count();
        let len = run.max(first.len_utf8());
        if run >= SECRET_DIGITS {
            shown.push_str(&"*".repeat(run));
        } else {
            shown.push_str(&rest[..len]);
        }
        rest = &rest[len..];
    }
    shown
}

/// As many hex digits in a row are no address or number, but part of a key.
const SECRET_DIGITS: usize = 12;

fn floor_char_boundary(text: &str, offset: usize) -> usize {
    let mut at = offset.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}
