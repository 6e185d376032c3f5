//! What a link does to frames, as the command line gives it and as the relay
//! is told.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// What happens to each frame, in each direction on its own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LinkSettings {
    /// How long a frame travels. A round trip takes twice as long.
    pub delay: Duration,
    /// The travelling time varies evenly by this much up and down. Order is kept.
    pub jitter: Duration,
    /// The share of frames that vanish, 0..=1.
    pub loss: f64,
    /// The share of frames that arrive twice, 0..=1.
    pub duplicate: f64,
    /// The share of frames that are held back so that later ones overtake them, 0..=1.
    pub reorder: f64,
    /// Bits a second; without it a frame takes no time to send.
    pub rate: Option<u64>,
    /// Frames that may wait for their turn at `rate`; more are dropped.
    pub limit: usize,
    /// Determines which frames are lost, doubled and held back.
    pub seed: u64,
}

impl Default for LinkSettings {
    fn default() -> Self {
        LinkSettings {
            delay: Duration::ZERO,
            jitter: Duration::ZERO,
            loss: 0.0,
            duplicate: 0.0,
            reorder: 0.0,
            rate: None,
            limit: 1_000,
            seed: 1,
        }
    }
}

impl LinkSettings {
    /// Whether the link changes nothing, as if there were no emulator.
    pub fn is_clear(&self) -> bool {
        let shares = self.loss + self.duplicate + self.reorder;
        self.delay.is_zero() && self.jitter.is_zero() && shares == 0.0 && self.rate.is_none()
    }
}

impl fmt::Display for LinkSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut words = Vec::new();
        for (name, time) in [("delay", self.delay), ("jitter", self.jitter)] {
            if !time.is_zero() {
                words.push(format!("{name} {time:?}"));
            }
        }
        for (name, share) in [
            ("loss", self.loss),
            ("duplicate", self.duplicate),
            ("reorder", self.reorder),
        ] {
            if share > 0.0 {
                words.push(format!("{name} {}%", percent(share)));
            }
        }
        if let Some(rate) = self.rate {
            words.push(format!("rate {}mbit", rate as f64 / 1e6));
        }
        match words.is_empty() {
            true => f.write_str("clear"),
            false => f.write_str(&words.join(" ")),
        }
    }
}

/// `40ms`, `1.5s`, `300us`: at most a minute.
pub fn parse_time(text: &str) -> Result<Duration, String> {
    const HINT: &str = "write a number with its unit, such as 40ms, 300us or 1.5s";
    let (number, unit) = split_unit(text).ok_or(HINT)?;
    let seconds = match unit {
        "us" => number / 1e6,
        "ms" => number / 1e3,
        "s" => number,
        "" if number == 0.0 => 0.0,
        _ => return Err(HINT.into()),
    };
    match seconds <= 60.0 {
        true => Ok(Duration::from_secs_f64(seconds)),
        false => Err("at most 60s".into()),
    }
}

/// `1%`, `0.5%`: as a share of one.
pub fn parse_share(text: &str) -> Result<f64, String> {
    const HINT: &str = "write a percentage from 0% to 100%, such as 1%";
    let (number, unit) = split_unit(text).ok_or(HINT)?;
    let valid = (unit == "%" && number <= 100.0) || (unit.is_empty() && number == 0.0);
    match valid {
        true => Ok(number / 100.0),
        false => Err(HINT.into()),
    }
}

/// `10mbit`, `1gbit`, `64kbit`: in bits a second.
pub fn parse_rate(text: &str) -> Result<u64, String> {
    const HINT: &str = "write bits a second with their unit, such as 64kbit, 10mbit or 1gbit";
    let (number, unit) = split_unit(text).ok_or(HINT)?;
    let bits = match unit.to_ascii_lowercase().as_str() {
        "bit" => number,
        "kbit" => number * 1e3,
        "mbit" => number * 1e6,
        "gbit" => number * 1e9,
        "" if number == 0.0 => 0.0,
        _ => return Err(HINT.into()),
    };
    match (8_000.0..=100e9).contains(&bits) {
        true => Ok(bits as u64),
        false => {
            Err("a rate is between 8kbit and 100gbit; without --rate there is no limit".into())
        }
    }
}

/// A share as people write it, to a ten-thousandth of a percent.
pub fn percent(share: f64) -> f64 {
    (share * 1e6).round() / 1e4
}

/// A number that is finite and not negative, and what follows it.
fn split_unit(text: &str) -> Option<(f64, &str)> {
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let number = f64::from_str(&text[..end]).ok()?;
    number.is_finite().then_some((number, &text[end..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        assert_eq!(parse_time("40ms"), Ok(Duration::from_millis(40)));
        assert_eq!(parse_time("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(parse_time("250us"), Ok(Duration::from_micros(250)));
        assert_eq!(parse_time("0"), Ok(Duration::ZERO));
        for wrong in [
            "", "40", "ms", "-1ms", "1e400s", "61s", "4 ms", "1.2.3s", "5m",
        ] {
            assert!(parse_time(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn shares_are_percentages() {
        assert_eq!(parse_share("1%"), Ok(0.01));
        assert_eq!(parse_share("0.5%"), Ok(0.005));
        assert_eq!(parse_share("100%"), Ok(1.0));
        assert_eq!(parse_share("0"), Ok(0.0));
        for wrong in ["", "1", "%", "101%", "-1%", "1%%", "0.1"] {
            assert!(parse_share(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn rates_are_bits_a_second() {
        assert_eq!(parse_rate("10mbit"), Ok(10_000_000));
        assert_eq!(parse_rate("2.5gbit"), Ok(2_500_000_000));
        assert_eq!(parse_rate("64Kbit"), Ok(64_000));
        for zero in ["0", "0mbit"] {
            let error = parse_rate(zero).unwrap_err();
            assert!(
                error.contains("without --rate there is no limit"),
                "{error}"
            );
        }
        for wrong in ["", "10", "10mb", "1bit", "101gbit", "-1mbit"] {
            assert!(parse_rate(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn settings_read_as_they_are_written() {
        let settings = LinkSettings {
            delay: Duration::from_millis(40),
            loss: 0.07,
            rate: Some(10_000_000),
            ..LinkSettings::default()
        };
        assert_eq!(settings.to_string(), "delay 40ms loss 7% rate 10mbit");
        assert_eq!(LinkSettings::default().to_string(), "clear");
        assert!(LinkSettings::default().is_clear());
        assert!(!settings.is_clear());
    }
}
