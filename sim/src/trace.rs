//! Recorded traces: Common Log Format (with whatever follows it, as in the combined
//! format) and CSV with a header such as `t,url,bytes,status,method`; both also as
//! `.gz`. What can be understood is taken: a line that cannot is counted by what is
//! wrong with it, the first of each kind is shown, and the reading goes on. A request
//! takes 40 bytes while the trace is read and 24 afterwards, a URL about 150 and its
//! length twice.

mod clf;
mod csv;
mod gz;
mod text;

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use serde::Serialize;
use thiserror::Error;

use crate::workload::{Content, Kind, Object};

/// A trace in memory.
#[derive(Clone, Debug)]
pub struct Trace {
    /// Every URL that was asked for.
    pub objects: Vec<Object>,
    /// Requests in order of time.
    pub records: Vec<Record>,
    /// How the reading went.
    pub reading: Reading,
}

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Since the first request.
    pub at_ns: u64,
    /// Index into [`Trace::objects`].
    pub object: u32,
    /// Bytes of the answer.
    pub bytes: u64,
    /// Whether the object's contents were sent.
    pub content: Content,
}

/// How the reading went.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Reading {
    /// Which format it was.
    pub format: &'static str,
    /// Lines that were neither empty nor comments nor a header.
    pub lines: u64,
    /// Those that could not be understood, and were left out.
    pub malformed: u64,
    /// What was wrong with them, the most frequent first.
    pub left_out: Vec<LeftOut>,
    /// Requests whose time was before that of the line above; they were put in order.
    pub out_of_order: u64,
    /// Requests whose line has no time that could be read; they have that of the line
    /// above.
    pub untimed: u64,
    /// Empty lines and comments, which begin with `#`.
    pub blank: u64,
    /// Behind the end of what is compressed stands something else, which was not read.
    pub trailing: bool,
}

/// Lines that were left out for one reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LeftOut {
    /// What was wrong.
    pub reason: &'static str,
    /// How many lines.
    pub lines: u64,
    /// The first of them, counted from 1.
    pub first_line: u64,
    /// How it begins.
    pub text: String,
}

impl Reading {
    fn leave_out(&mut self, number: u64, reason: &'static str, text: &str) {
        self.malformed += 1;
        if let Some(known) = self.left_out.iter_mut().find(|l| l.reason == reason) {
            known.lines += 1;
            return;
        }
        self.left_out.push(LeftOut {
            reason,
            lines: 1,
            first_line: number,
            text: shown(text),
        });
    }
}

/// The beginning of a line as a terminal may have it: a log holds what strangers sent.
fn shown(line: &str) -> String {
    let mut text = String::new();
    for c in line.chars().take(SHOWN) {
        match c.is_control() {
            true => text.extend(c.escape_default()),
            false => text.push(c),
        }
    }
    text
}

/// What a trace holds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Profile {
    /// Requests.
    pub requests: u64,
    /// Different URLs.
    pub objects: u64,
    /// From the first to the last.
    pub seconds: f64,
    /// Requests for what looks like a program.
    pub dynamic_requests: u64,
    /// Of all URLs' largest answers.
    pub total_bytes: u64,
    /// Of all answers.
    pub sent_bytes: u64,
    /// The most popular files that take 90, 99 and 100 % of requests for files, in
    /// bytes.
    pub covering_bytes: [u64; 3],
}

/// Why there is no trace.
#[derive(Debug, Error)]
pub enum TraceError {
    /// The file could not be read.
    #[error("cannot read it; traces are log files or CSV, plain or .gz")]
    Read(#[from] io::Error),
    /// Not one line could be understood.
    #[error(
        "no request in it: {}; it must be Common Log Format, \
         or CSV with the columns t,url,bytes,status,method",
        lines(.reading)
    )]
    Empty {
        /// How the reading went.
        reading: Box<Reading>,
    },
    /// URLs would be read from another column.
    #[error(
        "line {line} is a CSV header without a column for the URL: `{header}`; name that \
         column url (or uri, path, object, request_url)"
    )]
    NoUrlColumn {
        /// Where the header stands.
        line: u64,
        /// How it begins.
        header: String,
    },
    /// The file ends in the middle, or the disk fails.
    #[error("cannot read on after line {line}: {error}; a .gz that was cut off must be mended")]
    Broken {
        /// The last line that was read.
        line: u64,
        /// What happened.
        error: io::Error,
    },
    /// It has more than can be numbered.
    #[error("more than {} different URLs or requests: split it", u32::MAX)]
    TooLarge,
}

/// What a line says; fields that it lacks have been filled in.
#[derive(Clone, Debug, PartialEq)]
struct Line {
    /// Seconds; none if the line does not say.
    at_s: Option<f64>,
    method: Method,
    url: String,
    status: u16,
    bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Method {
    Get,
    Head,
    Other,
}

/// Understands lines of one format.
trait Format {
    fn name(&self) -> &'static str;

    /// Whether columns are known by their place alone.
    fn by_place(&self) -> bool {
        false
    }

    /// What a line says, or what is wrong with it; none for a header or comment.
    fn line(&mut self, line: &str) -> Result<Option<Line>, &'static str>;
}

/// What there was instead of requests.
fn lines(reading: &Reading) -> String {
    match reading.left_out.first() {
        None => "no line but empty ones, comments and headers".to_owned(),
        Some(first) => format!(
            "{} lines left out, the first of them line {}: {}: `{}`",
            reading.malformed, first.first_line, first.reason, first.text
        ),
    }
}

/// How much of a line that is left out is shown, in characters.
const SHOWN: usize = 100;
/// No line of a log is longer than this; what is cannot be a request, and would fill
/// the memory.
const LINE_MAX: usize = 1 << 20;
/// What a program is taken to work for an answer, where nothing tells.
const DYNAMIC_WORK_NS: u64 = 2_000_000;

impl Trace {
    /// Reads a file, up to so many requests.
    pub fn open(path: &Path, most: u64) -> Result<Self, TraceError> {
        Self::read_first(File::open(path)?, most)
    }

    /// Reads anything.
    pub fn read(input: impl Read) -> Result<Self, TraceError> {
        Self::read_first(input, u64::MAX)
    }

    /// Reads anything, up to so many requests; what is compressed is recognised by its
    /// first bytes.
    pub fn read_first(input: impl Read, most: u64) -> Result<Self, TraceError> {
        let mut input = BufReader::with_capacity(1 << 16, input);
        if !input.fill_buf()?.starts_with(&gz::MAGIC) {
            return Self::lines(input, most);
        }
        let (members, followed) = gz::Members::new(input);
        let mut trace = Self::lines(BufReader::new(members), most)?;
        trace.reading.trailing = followed.get();
        Ok(trace)
    }

    /// What it holds.
    pub fn profile(&self) -> Profile {
        let is_file = |object: u32| self.objects[object as usize].kind == Kind::Static;
        let mut asked = vec![0u64; self.objects.len()];
        for record in self.records.iter().filter(|r| r.content == Content::Needed) {
            asked[record.object as usize] += u64::from(is_file(record.object));
        }
        let all: u64 = asked.iter().sum();
        let mut order: Vec<usize> = (0..asked.len()).filter(|&o| asked[o] > 0).collect();
        order.sort_by_key(|&o| std::cmp::Reverse(asked[o]));
        let covering = |share: f64| {
            let mut left = (all as f64 * share).ceil() as u64;
            (order.iter())
                .take_while(|&&o| {
                    let needed = left > 0;
                    left = left.saturating_sub(asked[o]);
                    needed
                })
                .map(|&o| self.objects[o].bytes)
                .sum()
        };
        let dynamic = self.records.iter().filter(|r| !is_file(r.object)).count();
        Profile {
            requests: self.records.len() as u64,
            objects: self.objects.len() as u64,
            seconds: self.records.last().map_or(0.0, |r| r.at_ns as f64 / 1e9),
            dynamic_requests: dynamic as u64,
            total_bytes: self.objects.iter().map(|o| o.bytes).sum(),
            sent_bytes: self.records.iter().map(|r| r.bytes).sum(),
            covering_bytes: [0.90, 0.99, 1.0].map(covering),
        }
    }

    fn lines(mut input: impl BufRead, most: u64) -> Result<Self, TraceError> {
        let mut format: Option<Box<dyn Format>> = None;
        let mut reading = Reading::default();
        let mut builder = Builder::default();
        let mut bytes = Vec::new();
        let mut number = 0;
        let broken = |line, error| TraceError::Broken { line, error };
        let end = line_end(input.fill_buf().map_err(|error| broken(0, error))?);
        let mut header = None;
        while (builder.records.len() as u64) < most {
            let read = line(&mut input, end, &mut bytes);
            let Some(whole) = read.map_err(|error| broken(number, error))? else {
                break;
            };
            number += 1;
            let text = String::from_utf8_lossy(&bytes);
            let text = text.trim_start_matches('\u{feff}').trim_ascii();
            if text.is_empty() || text.starts_with('#') {
                reading.blank += 1;
                continue;
            }
            if !whole {
                reading.lines += 1;
                reading.leave_out(number, "longer than 1 MiB", text);
                continue;
            }
            if format.is_none() {
                format = recognise(text);
                // By their place columns would be others than the header says.
                if let Some(error) =
                    header.take_if(|_| format.as_ref().is_some_and(|f| f.by_place()))
                {
                    return Err(error);
                }
            }
            let Some(format) = &mut format else {
                if header.is_none() && csv::is_header(text) {
                    header = Some(TraceError::NoUrlColumn {
                        line: number,
                        header: shown(text),
                    });
                }
                reading.lines += 1;
                reading.leave_out(number, "neither Common Log Format nor CSV", text);
                continue;
            };
            match format.line(text) {
                Ok(None) => {}
                Ok(Some(line)) => {
                    reading.lines += 1;
                    builder.add(line)?;
                }
                Err(wrong) => {
                    reading.lines += 1;
                    reading.leave_out(number, wrong, text);
                }
            }
        }
        reading.left_out.sort_by_key(|l| std::cmp::Reverse(l.lines));
        reading.format = format.map_or("", |f| f.name());
        match header {
            Some(error) if builder.records.is_empty() => Err(error),
            _ => builder.finish(reading),
        }
    }
}

/// What ends lines, by how the file begins: old Macs, and spreadsheets that write for them,
/// have a CR alone.
fn line_end(beginning: &[u8]) -> u8 {
    let inside = &beginning[..beginning.len().saturating_sub(1)];
    match !beginning.contains(&b'\n') && inside.contains(&b'\r') {
        true => b'\r',
        false => b'\n',
    }
}

/// Reads a line; none at the end. False: it is longer than [`LINE_MAX`], of which it
/// has the beginning; the rest is skipped.
fn line(input: &mut impl BufRead, end: u8, line: &mut Vec<u8>) -> io::Result<Option<bool>> {
    line.clear();
    let most = LINE_MAX as u64;
    if input.by_ref().take(most).read_until(end, line)? == 0 {
        return Ok(None);
    }
    if line.len() < LINE_MAX || line.ends_with(&[end]) {
        return Ok(Some(true));
    }
    loop {
        let rest = input.fill_buf()?;
        let at = rest.iter().position(|&b| b == end);
        let skipped = at.map_or(rest.len(), |at| at + 1);
        input.consume(skipped);
        if at.is_some() || skipped == 0 {
            return Ok(Some(false));
        }
    }
}

/// The format that understands a line. What stands before the first such line does not
/// decide for all that follow.
fn recognise(first: &str) -> Option<Box<dyn Format>> {
    if clf::CommonLog.line(first).is_ok() {
        return Some(Box::new(clf::CommonLog));
    }
    let understood = csv::Csv::of(first).line(first).is_ok();
    understood.then(|| Box::new(csv::Csv::of(first)) as Box<dyn Format>)
}

#[derive(Default)]
struct Builder {
    numbers: HashMap<String, u32>,
    objects: Vec<Object>,
    /// Times in seconds as the file has them.
    records: Vec<(f64, Record)>,
    last_s: f64,
    out_of_order: u64,
    untimed: u64,
}

impl Builder {
    fn add(&mut self, line: Line) -> Result<(), TraceError> {
        if self.records.len() >= u32::MAX as usize {
            return Err(TraceError::TooLarge);
        }
        self.untimed += u64::from(line.at_s.is_none());
        let at_s = line.at_s.unwrap_or(self.last_s);
        if at_s < self.last_s && !self.records.is_empty() {
            self.out_of_order += 1;
        }
        self.last_s = at_s;
        let whole = matches!(line.status, 200 | 203 | 206) && line.method != Method::Head;
        let content = match whole {
            true => Content::Needed,
            false => Content::Spared,
        };
        let object = self.object(&line);
        let known = &mut self.objects[object as usize];
        if whole {
            known.bytes = known.bytes.max(line.bytes);
        }
        let record = Record {
            at_ns: 0,
            object,
            bytes: line.bytes,
            content,
        };
        self.records.push((at_s, record));
        Ok(())
    }

    fn object(&mut self, line: &Line) -> u32 {
        if let Some(&number) = self.numbers.get(&line.url) {
            return number;
        }
        let number = self.objects.len() as u32;
        let (path, query) = text::path_and_query(&line.url);
        self.objects.push(Object {
            path: path.as_bytes().into(),
            query: query.map(|q| q.as_bytes().into()),
            bytes: 0,
            kind: match text::is_dynamic(path, query) || line.method == Method::Other {
                true => Kind::Dynamic {
                    work_ns: DYNAMIC_WORK_NS,
                },
                false => Kind::Static,
            },
        });
        self.numbers.insert(line.url.clone(), number);
        number
    }

    fn finish(mut self, mut reading: Reading) -> Result<Trace, TraceError> {
        if self.records.is_empty() {
            return Err(TraceError::Empty {
                reading: Box::new(reading),
            });
        }
        reading.out_of_order = self.out_of_order;
        reading.untimed = self.untimed;
        // Stable: requests of one second stay in the file's order.
        self.records.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        let first_s = self.records[0].0;
        let records = (self.records.into_iter())
            .map(|(at_s, record)| Record {
                at_ns: ((at_s - first_s) * 1e9) as u64,
                ..record
            })
            .collect();
        Ok(Trace {
            objects: self.objects,
            records,
            reading,
        })
    }
}

#[cfg(test)]
mod tests;
