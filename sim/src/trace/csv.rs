//! CSV: a header names the columns in any order; without one they are
//! `t,url,bytes,status,method`. Fields may be quoted as RFC 4180 has it.

use super::{Format, Line, text};

pub(super) struct Csv {
    separator: char,
    /// Which column holds what; those beyond the line's end are missing.
    columns: Columns,
    header: Header,
    /// No header says what the columns are.
    by_place: bool,
}

#[derive(Clone, Copy)]
struct Columns {
    t: Option<usize>,
    url: usize,
    bytes: Option<usize>,
    status: Option<usize>,
    method: Option<usize>,
}

#[derive(PartialEq)]
enum Header {
    Expected,
    None,
}

impl Csv {
    /// For a file with this first line.
    pub(super) fn of(first: &str) -> Self {
        let separator = separator(first);
        let names: Vec<String> = (fields(first, separator).into_iter())
            .map(|name| name.trim().to_ascii_lowercase())
            .collect();
        let column = |known: &[&str]| names.iter().position(|n| known.contains(&n.as_str()));
        match column(&["url", "uri", "path", "object", "request_url"]) {
            Some(url) => Csv {
                separator,
                columns: Columns {
                    t: column(&["t", "time", "timestamp", "ts", "seconds", "date"]),
                    url,
                    bytes: column(&["bytes", "size", "length", "bytes_sent", "response_bytes"]),
                    status: column(&["status", "code", "response", "status_code"]),
                    method: column(&["method", "verb"]),
                },
                header: Header::Expected,
                by_place: false,
            },
            None => Csv {
                separator,
                columns: Columns {
                    t: Some(0),
                    url: 1,
                    bytes: Some(2),
                    status: Some(3),
                    method: Some(4),
                },
                header: Header::None,
                by_place: true,
            },
        }
    }
}

impl Format for Csv {
    fn name(&self) -> &'static str {
        "CSV"
    }

    fn by_place(&self) -> bool {
        self.by_place
    }

    fn line(&mut self, line: &str) -> Result<Option<Line>, &'static str> {
        if self.header == Header::Expected {
            self.header = Header::None;
            return Ok(None);
        }
        let fields = fields(line, self.separator);
        if fields.len() <= self.columns.url {
            return Err("no column for the URL");
        }
        let field = |column: Option<usize>| {
            (column.and_then(|c| fields.get(c)).map(String::as_str))
                .unwrap_or("")
                .trim()
        };
        let url = field(Some(self.columns.url));
        if url.is_empty() {
            return Err("no URL");
        }
        let at_s = match field(self.columns.t) {
            "" | "-" => None,
            t => Some(seconds(t)?),
        };
        Ok(Some(Line {
            at_s,
            method: text::method(field(self.columns.method)).ok_or("the method is no word")?,
            url: url.to_owned(),
            status: text::status(field(self.columns.status)).ok_or("the status is no number")?,
            bytes: text::bytes(field(self.columns.bytes))?,
        }))
    }
}

/// Seconds; numbers too large for seconds since 1970 are milli-, micro- or
/// nanoseconds.
fn seconds(text: &str) -> Result<f64, &'static str> {
    let t = (text.parse::<f64>().ok())
        .filter(|t| t.is_finite())
        .ok_or("the time is no number")?;
    let seconds = match t.abs() {
        ..1e11 => t,
        ..1e14 => t / 1e3,
        ..1e17 => t / 1e6,
        _ => t / 1e9,
    };
    match seconds.abs() <= text::LATEST_S {
        true => Ok(seconds),
        false => Err("the time is after the year 2200"),
    }
}

/// Whether a line that is no request names columns: nothing but words.
pub(super) fn is_header(line: &str) -> bool {
    let is_word = |field: &str| {
        let mut letters = field.trim().bytes();
        letters.next().is_some_and(|b| b.is_ascii_alphabetic())
            && letters.all(|b| b.is_ascii_alphanumeric() || b == b'_')
    };
    let fields = fields(line, separator(line));
    fields.len() > 1 && fields.iter().all(|field| is_word(field))
}

/// What separates a line's fields.
fn separator(line: &str) -> char {
    let count = |separator: &char| line.matches(*separator).count();
    let separator = [',', ';', '\t'].into_iter().max_by_key(count);
    // The last of equals would win: a comma where there is none of all.
    separator.filter(|s| count(s) > count(&',')).unwrap_or(',')
}

/// The fields of a line. A quote that is not closed, or stands inside of a field,
/// is a character like others.
fn fields(line: &str, separator: char) -> Vec<String> {
    let mut fields = Vec::new();
    let mut rest = line;
    loop {
        let (field, after) = match quoted(rest, separator) {
            Some(found) => found,
            None => match rest.split_once(separator) {
                Some((field, after)) => (field.to_owned(), Some(after)),
                None => (rest.to_owned(), None),
            },
        };
        fields.push(field);
        match after {
            Some(after) => rest = after,
            None => return fields,
        }
    }
}

/// A field in quotes with doubled ones inside, up to a separator or the line's end.
fn quoted(rest: &str, separator: char) -> Option<(String, Option<&str>)> {
    let inside = rest.trim_start().strip_prefix('"')?;
    let mut field = String::new();
    let mut from = 0;
    loop {
        let at = from + inside[from..].find('"')?;
        field += &inside[from..at];
        let after = &inside[at + 1..];
        if after.starts_with('"') {
            field.push('"');
            from = at + 2;
            continue;
        }
        let after = after.trim_start_matches(' ');
        if after.is_empty() {
            return Some((field, None));
        }
        if let Some(after) = after.strip_prefix(separator) {
            return Some((field, Some(after)));
        }
        field.push('"');
        from = at + 1;
    }
}
