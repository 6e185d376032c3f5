//! Times and sizes as people read them: short, and precise enough.

use std::time::Duration;

/// `0.3s`, `42s`, `5m10s`, `3h05m`, `2d04h`.
pub fn time(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..10 => format!("{}.{}s", seconds, time.subsec_millis() / 100),
        10..60 => format!("{seconds}s"),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3600..86400 => format!("{}h{:02}m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{}d{:02}h", seconds / 86400, seconds / 3600 % 24),
    }
}

/// `512 B`, `1.2 kB`, `34 MB`: powers of 1000.
pub fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["kB", "MB", "GB", "TB", "PB"];
    if bytes < 1000 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1000.0;
    let mut units = UNITS.iter();
    let mut unit = units.next().expect("there are five");
    // From here on it would be shown as 1000.
    while value >= 999.5 {
        let Some(next) = units.next() else { break };
        (value, unit) = (value / 1000.0, next);
    }
    match value < 9.95 {
        true => format!("{value:.1} {unit}"),
        false => format!("{value:.0} {unit}"),
    }
}

/// Bytes from `512`, `64k`, `32M`, `1.5G`: powers of 1024, as `docker` and `truncate`
/// have them.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(['B', 'b', 'i']);
    let (number, unit) = match digits.chars().last() {
        Some(unit) if unit.is_ascii_alphabetic() => (&digits[..digits.len() - 1], Some(unit)),
        _ => (digits, None),
    };
    let wrong = || "write it as 512, 64k, 32M or 1.5G".to_owned();
    let shift = match unit.map(|u| u.to_ascii_lowercase()) {
        None => 0,
        Some('k') => 10,
        Some('m') => 20,
        Some('g') => 30,
        Some('t') => 40,
        Some(_) => return Err(wrong()),
    };
    let number: f64 = number.trim().parse().map_err(|_| wrong())?;
    let bytes = number * (1u64 << shift) as f64;
    match bytes {
        0.0..=BYTES_MAX => Ok(bytes as u64),
        BYTES_MAX.. if bytes.is_finite() => Err("more than 1024T".to_owned()),
        _ => Err(wrong()),
    }
}

/// 1024T: more than any backend's memory.
const BYTES_MAX: f64 = (1u64 << 50) as f64;

/// `1 backend`, `2 backends`.
pub fn count(count: usize, noun: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {noun}{plural}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_two_units_at_most() {
        for (ms, text) in [
            (0, "0.0s"),
            (1_960, "1.9s"),
            (59_999, "59s"),
            (310_000, "5m10s"),
            (11_100_000, "3h05m"),
            (187_200_000, "2d04h"),
        ] {
            assert_eq!(time(Duration::from_millis(ms)), text);
        }
    }

    #[test]
    fn sizes_are_read_in_powers_of_1024() {
        for (text, size) in [
            ("0", 0),
            ("512", 512),
            ("64k", 65_536),
            ("32M", 32 << 20),
            ("32MiB", 32 << 20),
            ("1.5G", 3 << 29),
            ("1999999999", 1_999_999_999),
            ("68719476736", 64 << 30),
            ("1024T", 1 << 50),
        ] {
            assert_eq!(parse_bytes(text), Ok(size), "{text}");
        }
        for wrong in ["", "M", "x", "-1", "1X", "NaN", "inf", "1e30", "1025T"] {
            assert!(parse_bytes(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn sizes_have_two_digits_at_least() {
        for (size, text) in [
            (0, "0 B"),
            (999, "999 B"),
            (1_000, "1.0 kB"),
            (9_960, "10 kB"),
            (999_400, "999 kB"),
            (999_600, "1.0 MB"),
            (u64::MAX, "18447 PB"),
        ] {
            assert_eq!(bytes(size), text);
        }
    }
}
