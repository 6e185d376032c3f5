//! The documents that backends serve unless told otherwise: pseudo-random, the
//! same on every machine, made once.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::random::Random;

/// Where they are kept, for all labs and after them.
const DIRECTORY: &str = "/var/tmp/trapeze/documents";

/// Their names and lengths in bytes.
pub const DOCUMENTS: [(&str, u64); 7] = [
    ("empty", 0),
    ("1k", 1 << 10),
    ("10k", 10 << 10),
    ("100k", 100 << 10),
    ("1m", 1 << 20),
    ("10m", 10 << 20),
    ("100m", 100 << 20),
];

/// Makes those that are missing, and returns their directory.
///
/// # Errors
/// The directory cannot be written to, or the disk is full.
pub fn ensure() -> Result<PathBuf> {
    let directory = PathBuf::from(DIRECTORY);
    std::fs::create_dir_all(&directory)
        .and_then(|()| make_missing(&directory))
        .with_context(|| format!("cannot make the lab's documents in {DIRECTORY}"))?;
    Ok(directory)
}

fn make_missing(directory: &Path) -> std::io::Result<()> {
    // Several labs may come up at once.
    let lock = File::open(directory)?;
    lock.lock()?;
    let index = directory.join("index.html");
    if !index.exists() {
        std::fs::write(index, index_page())?;
    }
    for (name, length) in DOCUMENTS {
        let path = directory.join(name);
        if std::fs::metadata(&path).is_ok_and(|metadata| metadata.len() == length) {
            continue;
        }
        let unfinished = directory.join(format!(".{name}"));
        let mut file = BufWriter::with_capacity(1 << 20, File::create(&unfinished)?);
        write_content(name, length, &mut file)?;
        file.into_inner()?;
        std::fs::rename(unfinished, path)?;
    }
    Ok(())
}

fn write_content(name: &str, length: u64, to: &mut impl Write) -> std::io::Result<()> {
    let mut random = Random::for_use(0, name);
    for _ in 0..length / 8 {
        to.write_all(&random.bits().to_le_bytes())?;
    }
    Ok(())
}

fn index_page() -> String {
    let links: String = DOCUMENTS
        .iter()
        .map(|(name, length)| format!("<li><a href=\"/{name}\">{name}</a>: {length} bytes\n"))
        .collect();
    format!(
        "<!doctype html>\n<title>Trapeze lab</title>\n<h1>Trapeze lab</h1>\n<ul>\n{links}</ul>\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_has_its_length_and_never_changes() {
        let mut bytes = Vec::new();
        write_content("1k", 1024, &mut bytes).unwrap();
        assert_eq!(bytes.len(), 1024);
        let sum = bytes.iter().fold(0_u32, |sum, &byte| {
            sum.wrapping_mul(31).wrapping_add(byte.into())
        });
        assert_eq!(sum, 1_726_961_902);
    }
}
