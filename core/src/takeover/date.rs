//! Times in heads (RFC 9110 §5.6.7), as far as they make a validator strong (§8.8.2.2).

/// A Last-Modified that lies so many seconds before the answer's Date is strong. RFC 9110 wants one
/// second where both are of one clock, and else so much that clocks which differ are unlikely; 60
/// is what RFC 7232 §2.2.2 had. A file may be on a server that has its own.
const STRONG_BEHIND: i64 = 60;

/// Does it name one version of the object only (§8.8.2.2)?
pub(super) fn is_strong(modified: &str, date: &str) -> bool {
    matches!((seconds(modified), seconds(date)), (Some(modified), Some(date)) if date - modified >= STRONG_BEHIND)
}

/// `Sun, 06 Nov 1994 08:49:37 GMT`, since 1970. None: in another form; the obsolete ones are
/// nobody's any more.
fn seconds(text: &str) -> Option<i64> {
    const MONTHS: [&str; 12] = [
        "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
    ];
    let rest = text.get(3..)?.strip_prefix(", ")?.strip_suffix(" GMT")?;
    let [day, month, year, time] = fields(rest, ' ')?;
    let [hour, minute, second] = fields(time, ':')?;
    let month = MONTHS.iter().position(|name| *name == month)? as i64 + 1;
    let (day, year) = (number(day, 2, 1..=31)?, number(year, 4, 1970..=9999)?);
    let hour = number(hour, 2, 0..=23)?;
    let (minute, second) = (number(minute, 2, 0..=59)?, number(second, 2, 0..=60)?);
    // Days before that year's March, which February's length is then no matter of.
    let (year, month) = if month > 2 {
        (year, month - 3)
    } else {
        (year - 1, month + 9)
    };
    let days = year * 365 + year / 4 - year / 100 + year / 400 + (month * 153 + 2) / 5 + day - 1;
    Some((days - 719_468) * 86_400 + hour * 3600 + minute * 60 + second)
}

fn fields<const N: usize>(text: &str, separator: char) -> Option<[&str; N]> {
    text.split(separator).collect::<Vec<_>>().try_into().ok()
}

fn number(text: &str, digits: usize, range: std::ops::RangeInclusive<i64>) -> Option<i64> {
    let plain = text.len() == digits && text.bytes().all(|b| b.is_ascii_digit());
    plain
        .then(|| text.parse().ok())?
        .filter(|n| range.contains(n))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        for (text, expected) in [
            ("Thu, 01 Jan 1970 00:00:00 GMT", Some(0)),
            ("Sun, 06 Nov 1994 08:49:37 GMT", Some(784_111_777)),
            ("Tue, 29 Feb 2000 23:59:59 GMT", Some(951_868_799)),
            ("Wed, 01 Mar 2000 00:00:00 GMT", Some(951_868_800)),
            ("Fri, 01 Jan 2100 00:00:00 GMT", Some(4_102_444_800)),
            ("Sunday, 06-Nov-94 08:49:37 GMT", None),
            ("Sun Nov  6 08:49:37 1994", None),
            ("Sun, 06 Nov 1994 08:49:37 UTC", None),
            ("Sun, 6 Nov 1994 08:49:37 GMT", None),
            ("Sun, 06 Nov 1994 08:49 GMT", None),
            ("Sun, 00 Nov 1994 08:49:37 GMT", None),
            ("", None),
        ] {
            assert_eq!(seconds(text), expected, "{text}");
        }
    }

    #[test]
    fn what_has_just_changed_may_change_again_within_its_second() {
        let at = |time: &str| format!("Sun, 06 Nov 1994 {time} GMT");
        let (date, minute) = (at("09:00:00"), at("08:59:00"));
        assert!(is_strong(&minute, &date) && is_strong(&at("00:00:00"), &date));
        assert!(!is_strong(&at("08:59:01"), &date) && !is_strong(&date, &date));
        assert!(!is_strong(&at("10:00:00"), &date));
        assert!(!is_strong("yesterday", &date) && !is_strong(&minute, "now"));
    }
}
