//! Files of experiments: what they serve, and what came of them.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// A directory of its own, which goes with the experiment.
pub struct Scratch(PathBuf);

impl Scratch {
    /// Makes it, for experiments of that name.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn make(experiment: &str) -> std::io::Result<Self> {
        let name = format!("trapeze-{experiment}-{}", std::process::id());
        let scratch = Scratch(std::env::temp_dir().join(name));
        std::fs::create_dir_all(&scratch.0)?;
        Ok(scratch)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Writes results to files of these names.
///
/// # Errors
/// They cannot be written; says where.
pub fn write_results(out: &Path, files: &[(&str, &str)]) -> Result<()> {
    std::fs::create_dir_all(out)
        .and_then(|()| {
            (files.iter()).try_for_each(|(name, text)| std::fs::write(out.join(name), text))
        })
        .with_context(|| format!("cannot write the results to {}", out.display()))
}
