//! How much an origin server remembers, and what it costs to ask it for more.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// An origin server's memory and disk.
///
/// The defaults are the LARD paper's costs scaled down, so that an experiment takes
/// seconds. It has 28 ms for a read and 410 µs for each 4 KiB, which is 10 MB/s
/// (Pai et al., ASPLOS 1998, §3.1).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OriginSettings {
    /// Bytes of bodies that fit in its memory.
    pub cache_bytes: u64,
    /// How long a read from its disk takes, whatever it reads.
    pub miss: Duration,
    /// How many bytes a second it reads on top of that; at least 1.
    pub miss_bytes_per_s: u64,
}

impl Default for OriginSettings {
    fn default() -> Self {
        OriginSettings {
            cache_bytes: 8 << 20,
            miss: Duration::from_millis(5),
            miss_bytes_per_s: 20_000_000,
        }
    }
}

impl OriginSettings {
    /// How long the disk is busy with an object of so many bytes.
    pub fn read_time(&self, bytes: u64) -> Duration {
        let transfer_s = bytes as f64 / self.miss_bytes_per_s.max(1) as f64;
        self.miss + Duration::from_secs_f64(transfer_s)
    }
}

impl fmt::Display for OriginSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} of cache, a miss takes {:?} and reads {} MB/s",
            mebibytes(self.cache_bytes),
            self.miss,
            self.miss_bytes_per_s as f64 / 1e6
        )
    }
}

/// As people read it: `8 MiB`, `0.5 MiB`.
pub fn mebibytes(bytes: u64) -> String {
    let mebibytes = bytes as f64 / f64::from(1 << 20);
    format!("{} MiB", (mebibytes * 10.0).round() / 10.0)
}

/// `32mib`, `512kib`, `20mb`: a number of bytes above zero, up to a terabyte.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    const HINT: &str = "write a number with its unit, such as 32mib, 512kib or 20mb";
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let number: f64 = text[..end].parse().map_err(|_| HINT)?;
    let bytes = match text[end..].to_ascii_lowercase().as_str() {
        "b" => number,
        "kb" => number * 1e3,
        "mb" => number * 1e6,
        "gb" => number * 1e9,
        "kib" => number * 1024.0,
        "mib" => number * 1024.0 * 1024.0,
        "gib" => number * 1024.0 * 1024.0 * 1024.0,
        _ => return Err(HINT.into()),
    };
    match (1.0..=1e12).contains(&bytes) {
        true => Ok(bytes as u64),
        false => Err("between 1b and 1000gb".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_units() {
        assert_eq!(parse_bytes("32mib"), Ok(32 << 20));
        assert_eq!(parse_bytes("1.5KiB"), Ok(1536));
        assert_eq!(parse_bytes("20mb"), Ok(20_000_000));
        for wrong in ["", "32", "0mib", "-1mb", "1tb", "mb", "1001gb", "1.2.3mb"] {
            assert!(parse_bytes(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_read_takes_its_seek_and_its_bytes() {
        let settings = OriginSettings::default();
        assert_eq!(settings.read_time(0), Duration::from_millis(5));
        assert_eq!(settings.read_time(200_000), Duration::from_millis(15));
        assert_eq!(
            settings.to_string(),
            "8 MiB of cache, a miss takes 5ms and reads 20 MB/s"
        );
    }
}
