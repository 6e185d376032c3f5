//! Common Log Format: `host ident user [date] "request" status bytes`, and whatever
//! comes after.

use super::{Format, Line, text};

pub(super) struct CommonLog;

impl Format for CommonLog {
    fn name(&self) -> &'static str {
        "common log"
    }

    fn line(&mut self, line: &str) -> Result<Option<Line>, &'static str> {
        let (before, request, rest) =
            request(line).ok_or("no request in quotes with a status after it")?;
        let mut words = rest.split_whitespace();
        let status = text::status(words.next().unwrap_or("")).ok_or("the status is no number")?;
        let bytes = text::bytes(words.next().unwrap_or(""))?;
        let request = request.trim();
        let (method, url) = match request.split_once([' ', '\t']) {
            Some((method, rest)) => (text::method(method), rest.trim()),
            // HTTP/0.9 had no version; some logs have no method.
            None => (text::method(""), request),
        };
        let url = match url.rsplit_once([' ', '\t']) {
            Some((url, version)) if version.to_ascii_uppercase().starts_with("HTTP") => url.trim(),
            _ => url,
        };
        if url.is_empty() || url == "-" {
            return Err("no URL");
        }
        Ok(Some(Line {
            at_s: date(before),
            method: method.ok_or("the method is no word")?,
            url: url.to_owned(),
            status,
            bytes,
        }))
    }
}

/// What stands before the request, the request, and what follows it. A user may be in
/// quotes: the request's come after the date. URLs may hold quotes: the one that ends it
/// has a status behind it.
fn request(line: &str) -> Option<(&str, &str, &str)> {
    let dated = line.find("] \"").or_else(|| line.find("]\t\""));
    let start = dated.map_or_else(|| line.find('"'), |at| Some(at + 2))? + 1;
    (line[start..].match_indices('"'))
        .map(|(at, _)| {
            let end = start + at;
            (&line[..start - 1], &line[start..end], &line[end + 1..])
        })
        .find(|(_, _, rest)| {
            let first = rest.split_whitespace().next().unwrap_or("");
            first == "-" || (first.len() == 3 && first.bytes().all(|b| b.is_ascii_digit()))
        })
}

/// Seconds from `[10/Oct/1995:13:55:36 -0700]`, or `[30:13:55:36]` (day of the month
/// first, as in the EPA's log); none if there is no such time.
fn date(before: &str) -> Option<f64> {
    // A client of IPv6 may be in brackets too.
    let inside = before.rsplit_once('[')?.1.split_once(']')?.0;
    let mut parts = inside.split_whitespace();
    let (stamp, zone) = (parts.next()?, parts.next());
    let mut fields = stamp.split(':');
    let (day, hours, minutes, seconds) = (
        fields.next()?,
        fields.next()?,
        fields.next()?,
        fields.next()?,
    );
    if fields.next().is_some() {
        return None;
    }
    let days = match day.split('/').collect::<Vec<_>>().as_slice() {
        [day] => day.parse().ok().filter(|day| (1..=31).contains(day))?,
        [day, month, year] => days(year.parse().ok()?, month, day.parse().ok()?)?,
        _ => return None,
    };
    // A minute may have a leap second.
    let clock_s =
        3600.0 * within(hours, 24.0)? + 60.0 * within(minutes, 60.0)? + within(seconds, 61.0)?;
    Some(days as f64 * 86_400.0 + clock_s - zone.map_or(Some(0.0), offset_s)?)
}

/// A number from 0 to below a limit.
fn within(text: &str, limit: f64) -> Option<f64> {
    (text.parse().ok()).filter(|number| (0.0..limit).contains(number))
}

/// Days from a fixed one, by the civil calendar (H. Hinnant, "chrono-compatible
/// low-level date algorithms"); none if it has no such day, or a log cannot.
fn days(year: i64, month: &str, day: i64) -> Option<i64> {
    const MONTHS: [(&str, i64); 12] = [
        ("jan", 31),
        ("feb", 28),
        ("mar", 31),
        ("apr", 30),
        ("may", 31),
        ("jun", 30),
        ("jul", 31),
        ("aug", 31),
        ("sep", 30),
        ("oct", 31),
        ("nov", 30),
        ("dec", 31),
    ];
    let name = month.to_ascii_lowercase();
    let month = match MONTHS.iter().position(|(m, _)| name.starts_with(m)) {
        Some(at) => at + 1,
        None => month.parse().ok().filter(|m| (1..=12).contains(m))?,
    };
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let last = MONTHS[month - 1].1 + i64::from(leap && month == 2);
    if !(1970..2200).contains(&year) || !(1..=last).contains(&day) {
        return None;
    }
    let month = month as i64;
    let year = year - i64::from(month <= 2);
    let of_year = (153 * (month + if month > 2 { -3 } else { 9 }) + 2) / 5 + day - 1;
    Some(year * 365 + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + of_year)
}

/// Seconds east of Greenwich from `-0700`; none if no zone is so far away. A name is taken
/// for Greenwich's.
fn offset_s(zone: &str) -> Option<f64> {
    let sign = match zone.as_bytes().first()? {
        b'-' => -1.0,
        b'+' => 1.0,
        _ => return Some(0.0),
    };
    let (hours, minutes) = (zone.get(1..3)?, zone.get(3..)?);
    let minutes = minutes.strip_prefix(':').unwrap_or(minutes);
    // Kiritimati is 14 hours ahead.
    Some(sign * (3600.0 * within(hours, 15.0)? + 60.0 * within(minutes, 60.0)?))
}
