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
        let bytes =
            text::bytes(words.next().unwrap_or("")).ok_or("the size is no number below 2^50")?;
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
            at_s: date(before).filter(|s| s.is_finite()),
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
/// first, as in the EPA's log).
fn date(before: &str) -> Option<f64> {
    // A client of IPv6 may be in brackets too.
    let inside = before.rsplit_once('[')?.1.split_once(']')?.0;
    let mut parts = inside.split_whitespace();
    let (stamp, zone) = (parts.next()?, parts.next());
    let fields: Vec<&str> = stamp.split(':').collect();
    let [day, clock @ ..] = fields.as_slice() else {
        return None;
    };
    let mut seconds = 0.0;
    for field in clock {
        seconds = seconds * 60.0 + field.parse::<f64>().ok()?;
    }
    let days = match day.split('/').collect::<Vec<_>>().as_slice() {
        [day] => day.parse().ok()?,
        [day, month, year] => days(year.parse().ok()?, month, day.parse().ok()?)?,
        _ => return None,
    };
    Some(days as f64 * 86_400.0 + seconds - zone.and_then(offset_s).unwrap_or(0.0))
}

/// Days from a fixed one, by the civil calendar (H. Hinnant, "chrono-compatible
/// low-level date algorithms").
fn days(year: i64, month: &str, day: i64) -> Option<i64> {
    const MONTHS: [&str; 12] = [
        "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec",
    ];
    let name = month.to_ascii_lowercase();
    let month = match MONTHS.iter().position(|m| name.starts_with(m)) {
        Some(at) => at as i64 + 1,
        None => month.parse().ok().filter(|m| (1..=12).contains(m))?,
    };
    let year = year - i64::from(month <= 2);
    let of_year = (153 * (month + if month > 2 { -3 } else { 9 }) + 2) / 5 + day - 1;
    Some(year * 365 + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + of_year)
}

/// Seconds east of Greenwich from `-0700`.
fn offset_s(zone: &str) -> Option<f64> {
    let (hours, minutes) = (zone.get(1..3)?, zone.get(3..5)?);
    let minutes = hours.parse::<f64>().ok()? * 60.0 + minutes.parse::<f64>().ok()?;
    match zone.as_bytes()[0] {
        b'-' => Some(-minutes * 60.0),
        b'+' => Some(minutes * 60.0),
        _ => None,
    }
}
