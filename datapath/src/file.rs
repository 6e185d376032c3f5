//! The cluster's configuration file, read and checked: what is in it is
//! `trapeze_core::config`'s matter.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;
use trapeze_core::config::{Config, ConfigErrors};

/// Why there is no configuration.
#[derive(Debug, Error)]
pub enum FileError {
    /// The file cannot be read.
    #[error("cannot read the configuration {path}: {error}")]
    Unread {
        /// Which.
        path: PathBuf,
        /// The kernel's reason.
        error: io::Error,
    },
    /// Its mistakes, each with line and column.
    #[error("{0}")]
    Wrong(ConfigErrors),
}

/// Reads and checks it.
///
/// # Errors
/// It cannot be read, or something in it is wrong.
pub fn read(path: &Path) -> Result<Config, FileError> {
    let bytes = std::fs::read(path).map_err(|error| FileError::Unread {
        path: path.to_owned(),
        error,
    })?;
    Config::from_bytes(&bytes, &path.to_string_lossy()).map_err(FileError::Wrong)
}
