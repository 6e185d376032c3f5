//! The head of an answer that may be gone on with (RFC 9112 §4, RFC 9110 §8, §14).

use std::ops::Range;

use super::date;
use super::stream::{RESUME, RESUME_FROM, Resume, UNTIL_CLOSE};

/// What it says of the bytes behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnswerHead<'a> {
    /// Its bytes, with the empty line that ends it.
    pub len: usize,
    /// 200 or 206, mostly.
    pub status: u16,
    /// Bytes of the body; at most one field says so. [`UNTIL_CLOSE`]: a stream's.
    pub length: u64,
    /// Of a stream, which ends when its server closes: how it is gone on with.
    pub resume: Option<Resume<'a>>,
    /// From which byte on a stream is gone on with here.
    pub resumed_from: Option<u64>,
    /// The entity-tag as sent, weak or strong (RFC 9110 §8.8.3).
    pub etag: Option<&'a str>,
    /// When the object has changed last, as sent, if that is said once,
    pub modified: Option<&'a str>,
    /// and when the answer was made.
    pub date: Option<&'a str>,
    /// Of a part: which bytes of the object (the end is behind the last), and how many the
    /// object has.
    pub part: Option<(Range<u64>, u64)>,
    /// Codings, as sent: the same object in another coding has other bytes.
    pub coding: Option<&'a str>,
    /// The connection closes behind the body.
    pub closes: bool,
}

impl<'a> AnswerHead<'a> {
    /// Reads a head that `bytes` begin with. None: it is not whole, is none of HTTP/1, or
    /// does not say, once and plainly, how long its body is, or, of one until close, how to go on with it.
    pub fn parse(bytes: &'a [u8]) -> Option<Self> {
        let len = bytes.windows(4).position(|w| w == b"\r\n\r\n")? + 4;
        let text = std::str::from_utf8(&bytes[..len - 4]).ok()?;
        let mut lines = text.split("\r\n");
        let (version, rest) = lines.next()?.split_once(' ')?;
        let old = match version {
            "HTTP/1.1" => false,
            "HTTP/1.0" => true,
            _ => return None,
        };
        let status = rest.get(..3)?.parse().ok()?;
        let (mut length, mut etag, mut part, mut coding) = (None, None, None, None);
        let (mut modified, mut date) = (Said::Not, Said::Not);
        let (mut resume, mut resumed_from) = (Said::Not, Said::Not);
        let (mut says_close, mut says_keep) = (false, false);
        for line in lines {
            let (name, value) = line.split_once(':')?;
            let value = value.trim_matches([' ', '\t']);
            let is = |wanted: &str| name.eq_ignore_ascii_case(wanted);
            if is("content-length") {
                once(&mut length, number(value)?)?;
            } else if is("transfer-encoding") {
                return None;
            } else if is("etag") {
                once(&mut etag, value)?;
            } else if is("last-modified") {
                modified = modified.and(value);
            } else if is("date") {
                date = date.and(value);
            } else if is("content-range") {
                once(&mut part, read_part(value)?)?;
            } else if is("content-encoding") {
                once(&mut coding, value)?;
            } else if is(RESUME) {
                resume = resume.and(value);
            } else if is(RESUME_FROM) {
                resumed_from = resumed_from.and(value);
            } else if is("connection") {
                let mut options = value.split(',').map(str::trim);
                says_close |= options.any(|option| option.eq_ignore_ascii_case("close"));
                let mut options = value.split(',').map(str::trim);
                says_keep |= options.any(|option| option.eq_ignore_ascii_case("keep-alive"));
            }
        }
        let resume = match length {
            Some(_) => None,
            None => Some(Resume::parse(resume.once()?)?),
        };
        Some(Self {
            len,
            status,
            length: length.unwrap_or(UNTIL_CLOSE),
            resume,
            resumed_from: resumed_from.once().and_then(number),
            etag,
            modified: modified.once(),
            date: date.once(),
            part,
            coding,
            closes: says_close || old && !says_keep || resume.is_some(),
        })
    }

    /// What names this version of the object and no other (RFC 9110 §8.8.1): a strong entity-tag, with its quotes;
    /// where there is none, not even a weak one (§13.1.5), a Last-Modified that is strong by §8.8.2.2.
    pub fn validator(&self) -> Option<&'a str> {
        match (self.etag, self.modified, self.date) {
            (Some(etag), _, _) => Some(etag).filter(|etag| is_strong(etag)),
            (None, Some(modified), Some(date)) => {
                Some(modified).filter(|_| date::is_strong(modified, date))
            }
            _ => None,
        }
    }

    /// Is its object that version, as far as it says? A 206 may say less than the 200 before (§15.3.7).
    pub fn is_of(&self, validator: &str) -> bool {
        match self.etag {
            Some(etag) => etag == validator && is_strong(etag),
            None => self.modified == Some(validator),
        }
    }

    /// Which bytes of its object the body is, and the object's size. None: it cannot be
    /// gone on with, for it is no plain answer.
    pub fn object(&self) -> Option<(Range<u64>, u64)> {
        match (self.status, &self.part) {
            _ if self.resume.is_some() => None,
            (200, None) => Some((0..self.length, self.length)),
            (206, Some((range, total))) if range.end - range.start == self.length => {
                Some((range.clone(), *total))
            }
            _ => None,
        }
    }
}

/// What a field says, that others than this take for what they like if it comes twice.
#[derive(Clone, Copy)]
enum Said<'a> {
    Not,
    Once(&'a str),
    Often,
}

impl<'a> Said<'a> {
    fn and(self, value: &'a str) -> Self {
        match self {
            Self::Not => Self::Once(value),
            _ => Self::Often,
        }
    }

    fn once(self) -> Option<&'a str> {
        match self {
            Self::Once(value) => Some(value),
            _ => None,
        }
    }
}

/// A field that says something twice says nothing.
fn once<T>(slot: &mut Option<T>, value: T) -> Option<()> {
    slot.replace(value).is_none().then_some(())
}

fn number(text: &str) -> Option<u64> {
    let plain = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    plain.then(|| text.parse().ok())?
}

/// `bytes 0-9/10` (RFC 9110 §14.4).
fn read_part(value: &str) -> Option<(Range<u64>, u64)> {
    let (unit, value) = value.split_once(' ')?;
    let (range, total) = value.split_once('/')?;
    if !unit.eq_ignore_ascii_case("bytes") {
        return None;
    }
    let (first, last) = range.split_once('-')?;
    let (first, last, total) = (number(first)?, number(last)?, number(total)?);
    (first <= last && last < total).then_some((first..last + 1, total))
}

/// RFC 9110 §8.8.3: an opaque-tag without `W/`.
fn is_strong(etag: &str) -> bool {
    let inner = etag.strip_prefix('"').and_then(|e| e.strip_suffix('"'));
    inner.is_some_and(|inner| !inner.contains('"'))
}
