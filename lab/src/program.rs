//! The programs that a lab runs: where they are, and which package has those
//! that are missing.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// Debian's packages of the programs that a lab may need.
const PACKAGES: [(&str, &str); 11] = [
    ("ip", "iproute2"),
    ("ss", "iproute2"),
    ("ethtool", "ethtool"),
    ("nginx", "nginx-light"),
    ("apache2", "apache2"),
    ("python3", "python3"),
    ("openssl", "openssl"),
    ("setpriv", "util-linux"),
    ("haproxy", "haproxy"),
    ("wrk", "wrk"),
    ("etcd", "etcd-server"),
];

/// The system's own directories, which a user's PATH may lack or hide.
const SYSTEM: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

/// Where the program `name` is.
///
/// # Errors
/// It is not installed: says which package has it.
pub fn find(name: &str) -> Result<PathBuf> {
    let path = std::env::var("PATH").unwrap_or_default();
    let found = SYSTEM
        .split(':')
        .chain(path.split(':'))
        .map(|directory| Path::new(directory).join(name))
        .find(|candidate| candidate.is_file());
    if let Some(found) = found {
        return Ok(found);
    }
    let package = PACKAGES
        .iter()
        .find(|(program, _)| *program == name)
        .map_or(name, |(_, package)| package);
    bail!("{name} is not installed: apt-get install {package}")
}

/// The `trapeze` binary: this very one, or for tests and benches the one that
/// cargo built beside them.
///
/// # Errors
/// There is none.
pub fn trapeze() -> Result<PathBuf> {
    let own = std::env::current_exe().context("cannot tell which program this is")?;
    if own.file_name().is_some_and(|name| name == "trapeze") {
        return Ok(own);
    }
    own.ancestors()
        .skip(1)
        .take(3)
        .map(|directory| directory.join("trapeze"))
        .find(|candidate| candidate.is_file())
        .with_context(|| {
            format!(
                "no trapeze binary beside {}: cargo build -p trapeze-cli",
                own.display()
            )
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named_with_its_package() {
        assert!(find("sh").is_ok());
        let error = find("no-such-server").unwrap_err().to_string();
        assert_eq!(
            error,
            "no-such-server is not installed: apt-get install no-such-server"
        );
    }
}
